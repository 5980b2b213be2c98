/* What src/io needs of the core, so that it can be tested without the rest of moth. */
#include "core/error.h"
#include "core/parallel.h"

int64_t moth_dtype_size(MothDType d) {
  static const int64_t sizes[MOTH_NDTYPES] = {
#define MOTH_X(upper, name, type, ...) sizeof(type),
      MOTH_DTYPE_LIST(MOTH_X)
#undef MOTH_X
  };
  return sizes[d];
}

const char *moth_dtype_name(MothDType d) {
  static const char *const names[MOTH_NDTYPES] = {
#define MOTH_X(upper, name, type, ...) #name,
      MOTH_DTYPE_LIST(MOTH_X)
#undef MOTH_X
  };
  return names[d];
}

const volatile sig_atomic_t *moth_interrupt_flag(void) {
  return NULL;
}

MothStatus moth_interrupted(void) {
  return moth_fail(MOTH_ERR_INTERRUPTED, "interrupted");
}
