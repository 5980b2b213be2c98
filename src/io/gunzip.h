/* Decompression of .gz files (RFC 1952) by the system's zlib, which is opened when first needed. */
#ifndef MOTH_IO_GUNZIP_H
#define MOTH_IO_GUNZIP_H
#include <stddef.h>

#include "moth.h"

/* Expands n bytes, all members one after the other, to at most cap bytes. *out, of *out_n bytes, is
 * to be freed by moth_gunzip_free. Errors: MOTH_ERR_VALUE (not gzip, corrupt, truncated, a rest
 * behind the last member, more than cap bytes), MOTH_ERR_STATE (no zlib on this machine),
 * MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_gunzip(const uint8_t *bytes, size_t n, size_t cap, uint8_t **out,
                                size_t *out_n);
MOTH_API void moth_gunzip_free(uint8_t *bytes);

/* Expands only the beginning, at most `want` bytes, to out; *got bytes are written. For reading a header that
 * tells the whole size. Errors as above. */
MOTH_API MothStatus moth_gunzip_head(const uint8_t *bytes, size_t n, uint8_t *out, size_t want,
                                     size_t *got);
/* The most bytes that one byte of deflated data can expand to. */
enum { MOTH_DEFLATE_RATIO = 1032 };

#endif
