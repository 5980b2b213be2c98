/* libFuzzer: any bytes are refused, or are an archive whose members lie within them and expand to
 * what they say, and a file of PyTorch or none. */
#include <stdlib.h>
#include <string.h>

#include "io/pth.h"

static void check_pth(const MothZip *zip) {
  MothPth *pth;
  if (moth_pth_open(zip, &pth) != MOTH_OK) {
    if (pth || !*moth_last_error())
      abort();
    return;
  }
  for (uint32_t i = 0; i < pth->pickle->storage_count; i++)
    if (pth->members[i]->size !=
        pth->pickle->storages[i].numel * moth_dtype_size(pth->pickle->storages[i].dtype))
      abort();
  moth_pth_free(pth);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  enum { CAP = 100000 };
  MothZip *zip;
  if (moth_zip_parse(bytes, n, CAP, &zip) != MOTH_OK) {
    if (zip || !*moth_last_error())
      abort();
    return 0;
  }
  int64_t expanded = 0;
  for (int64_t i = 0; i < zip->count; i++) {
    const MothZipEntry *entry = &zip->entries[i];
    if (entry->data < bytes || entry->packed < 0 || entry->packed > bytes + n - entry->data ||
        moth_zip_find(zip, entry->name) != entry || strncmp(entry->name, "../", 3) == 0 ||
        strstr(entry->name, "/../"))
      abort();
    expanded += entry->size;
    uint8_t *out = malloc((size_t)entry->size); /* at its exact size */
    (void)moth_zip_read(entry, out);
    free(out);
  }
  if (expanded > CAP + (int64_t)n)
    abort();
  check_pth(zip);
  moth_zip_free(zip);
  return 0;
}
