/* libFuzzer: any bytes are refused or expand to no more than the cap. */
#include <stdlib.h>

#include "io/gunzip.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  enum { CAP = 100000 };
  uint8_t *out;
  size_t out_n;
  MothStatus status = moth_gunzip(bytes, n, CAP, &out, &out_n);
  if (out_n > CAP || (status != MOTH_OK) != !out)
    abort();
  moth_gunzip_free(out);
  return 0;
}
