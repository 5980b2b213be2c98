/* libFuzzer: any bytes are refused or expand to no more than the cap. */
#include <stdlib.h>
#include <string.h>

#include "io/gunzip.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  enum { CAP = 100000 };
  uint8_t *out;
  size_t out_n;
  MothStatus status = moth_gunzip(bytes, n, CAP, &out, &out_n);
  if (out_n > CAP || (status != MOTH_OK) != !out)
    abort();
  uint8_t head[64];
  size_t got;
  if (moth_gunzip_head(bytes, n, head, sizeof head, &got) == MOTH_OK && out &&
      (got > sizeof head || (got < sizeof head && got != out_n) || memcmp(head, out, got) != 0))
    abort(); /* what is good begins so */
  moth_gunzip_free(out);
  return 0;
}
