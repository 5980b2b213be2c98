/* libFuzzer: any bytes are refused, or their elements fill them exactly. */
#include <stdlib.h>

#include "io/idx.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  MothIdx idx;
  size_t total, head = n < MOTH_IDX_HEADER ? n : MOTH_IDX_HEADER;
  MothStatus early = moth_idx_total(bytes, head, &total);
  if (moth_idx_parse(bytes, n, &idx) == MOTH_OK && (early != MOTH_OK || total != n))
    abort();
  if (moth_idx_parse(bytes, n, &idx) != MOTH_OK)
    return 0;
  if (idx.data + idx.nbytes != bytes + n)
    abort();
  void *out = malloc((size_t)idx.nbytes + 1);
  moth_idx_copy(&idx, out);
  free(out);
  return 0;
}
