/* libFuzzer: any bytes are refused with a message, or give entries that lie within them and that
 * can be written and read again. */
#include <stdlib.h>
#include <string.h>

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  MothSafetensors *file, *again;
  uint8_t *header;
  size_t header_n;
  if (moth_safetensors_parse(bytes, n, &file) != MOTH_OK) {
    if (file || !*moth_last_error())
      abort();
    return 0;
  }
  for (int64_t i = 0; i < file->count; i++)
    if (file->entries[i].begin < 0 || file->entries[i].begin > file->entries[i].end ||
        file->entries[i].end > (int64_t)n)
      abort();
  if (moth_safetensors_header(file->entries, file->count, file->metadata, file->metadata_count,
                              &header, &header_n) != MOTH_OK)
    abort();
  int64_t data = file->count ? file->entries[file->count - 1].end - (int64_t)header_n : 0;
  uint8_t *whole = calloc(1, header_n + (size_t)data);
  memcpy(whole, header, header_n);
  if (moth_safetensors_parse(whole, header_n + (size_t)data, &again) != MOTH_OK ||
      again->count != file->count || again->metadata_count != file->metadata_count)
    abort();
  for (int64_t i = 0; i < file->count; i++)
    if (strcmp(file->entries[i].name, again->entries[i].name) != 0)
      abort();
  moth_safetensors_free(again);
  moth_safetensors_free(file);
  moth_safetensors_header_free(header);
  free(whole);
  return 0;
}
