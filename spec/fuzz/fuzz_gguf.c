/* libFuzzer: any bytes are refused with a message, or give tensors that lie within them and values that can be read. */
#include <stdlib.h>

#include "io/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  MothGguf *file;
  if (moth_gguf_parse(bytes, n, &file) != MOTH_OK) {
    if (file || !*moth_last_error())
      abort();
    return 0;
  }
  for (int64_t i = 0; i < file->count; i++) {
    if (file->entries[i].begin < 0 || file->entries[i].begin > file->entries[i].end ||
        file->entries[i].end > (int64_t)n || !moth_gguf_type_name(file->entries[i].type))
      abort();
    int64_t elements, count = file->entries[i].end - file->entries[i].begin;
    int64_t block = moth_gguf_block(file->entries[i].type, &elements);
    if (block && count % block)
      abort();
  }
  volatile unsigned char sum = 0;
  for (int64_t i = 0; i < file->pair_count; i++) {
    const uint8_t *at = file->pairs[i].at;
    for (int64_t k = 0; k < file->pairs[i].count; k++) {
      MothGgufValue v = moth_gguf_next(file->pairs[i].kind, &at);
      for (size_t c = 0; c < v.n; c++)
        sum = (unsigned char)(sum + (unsigned char)v.text[c]);
    }
    if (at > bytes + n)
      abort();
  }
  moth_gguf_free(file);
  return 0;
}
