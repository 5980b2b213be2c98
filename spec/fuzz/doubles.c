/* What src/io needs of the core, so that it can be tested without the rest of moth. */
#include "moth.h"

int64_t moth_dtype_size(MothDType d) {
  static const int64_t sizes[MOTH_NDTYPES] = {
#define MOTH_X(upper, name, type, ...) sizeof(type),
      MOTH_DTYPE_LIST(MOTH_X)
#undef MOTH_X
  };
  return sizes[d];
}
