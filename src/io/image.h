/* JPEG, PNG and WebP images, decoded by the system's TurboJPEG (libturbojpeg.so.0), libspng (libspng.so.0) and libwebp
 * (libwebp.so.7), which are opened when first needed. */
#ifndef MOTH_IO_IMAGE_H
#define MOTH_IO_IMAGE_H
#include <stddef.h>

#include "moth.h"

typedef enum MothImageKind {
  MOTH_IMAGE_NONE,
  MOTH_IMAGE_JPEG,
  MOTH_IMAGE_PNG,
  MOTH_IMAGE_WEBP
} MothImageKind;

/* What the first bytes say. Cannot fail. */
MOTH_API MothImageKind moth_image_kind(const uint8_t *bytes, size_t n);

/* Decodes a whole file of n bytes to a tensor (H, W, C) of uint8, or of uint16 where a PNG has 16 bits. channels: 1
 * (grey), 3 (RGB), 4 (RGBA), or 0: as the file has them, 1, 3 or 4. Alpha is dropped, not blended. Any thread. Errors:
 * MOTH_ERR_VALUE: another format, damage, more than 2^28 pixels; MOTH_ERR_IO: the library is not on this machine;
 * MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_image_decode(const uint8_t *bytes, size_t n, int channels,
                                      MothTensor **out);

#endif
