/* libFuzzer: any bytes are refused, or their elements fill them exactly. */
#include <stdlib.h>

#include "io/idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  MothIdx idx;
  if (moth_idx_parse(bytes, n, &idx) != MOTH_OK)
    return 0;
  if (idx.data + idx.nbytes != bytes + n)
    abort();
  void *out = malloc((size_t)idx.nbytes + 1);
  moth_idx_copy(&idx, out);
  free(out);
  return 0;
}
