#include "io/elements.h"

#include <string.h>

void moth_elements_copy(MothDType dtype, bool swap, void *out, const uint8_t *from,
                        int64_t nbytes) {
  uint8_t *to = out;
  bool is_complex = dtype == MOTH_COMPLEX64 || dtype == MOTH_COMPLEX128;
  int64_t item = moth_dtype_size(dtype) / (is_complex ? 2 : 1);
  if (nbytes <= 0)
    return;
  if (dtype == MOTH_BOOL) {
    for (int64_t i = 0; i < nbytes; i++)
      to[i] = from[i] != 0;
  } else if (!swap || item == 1) {
    if (to != from)
      memcpy(to, from, (size_t)nbytes);
  } else {
    for (int64_t i = 0; i < nbytes; i += item) {
      uint8_t element[8];
      memcpy(element, from + i, (size_t)item);
      for (int64_t k = 0; k < item; k++)
        to[i + k] = element[item - 1 - k];
    }
  }
}

bool moth_elements_count(MothDType dtype, int ndim, const int64_t *shape, int64_t *nbytes) {
  int64_t n = moth_dtype_size(dtype);
  for (int d = 0; d < ndim; d++)
    if (shape[d] == 0)
      n = 0;
  for (int d = 0; d < ndim && n > 0; d++)
    if (shape[d] < 0 || __builtin_mul_overflow(n, shape[d], &n))
      return false;
  *nbytes = n;
  return true;
}
