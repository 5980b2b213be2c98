/* libFuzzer: any bytes are refused, or their elements fill them exactly and a header written of the
 * same shape is read again. */
#include <stdlib.h>
#include <string.h>

#include "io/elements.h"
#include "io/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
  MothNpy npy, again;
  MothStatus early = moth_npy_check_size(bytes, n / 2, n);
  if (moth_npy_parse(bytes, n, &npy) == MOTH_OK && early != MOTH_OK && n / 2 >= 12)
    abort(); /* the beginning of what is good is good */
  if (moth_npy_parse(bytes, n, &npy) != MOTH_OK) {
    if (!*moth_last_error())
      abort();
    return 0;
  }
  if (npy.data + npy.nbytes != bytes + n)
    abort();
  size_t header_n;
  uint8_t *whole = malloc(MOTH_NPY_HEADER + (size_t)npy.nbytes);
  if (moth_npy_header(npy.dtype, npy.ndim, npy.shape, (char *)whole, &header_n) != MOTH_OK ||
      header_n > MOTH_NPY_HEADER)
    abort();
  moth_elements_copy(npy.dtype, npy.swap, whole + header_n, npy.data, npy.nbytes);
  if (moth_npy_parse(whole, header_n + (size_t)npy.nbytes, &again) != MOTH_OK ||
      again.dtype != npy.dtype || again.ndim != npy.ndim || again.swap ||
      memcmp(again.shape, npy.shape, sizeof npy.shape) != 0)
    abort();
  free(whole);
  return 0;
}
