/* CRC-32 as of zip, gzip and PNG (IEEE 802.3): for archives and the seals of checkpoints. */
#ifndef MOTH_IO_CRC32_H
#define MOTH_IO_CRC32_H
#include <stddef.h>

#include "moth.h"

/* The checksum of what `crc` is that of (0: nothing) followed by the n bytes, as zlib's crc32. Any thread; cannot
 * fail. With MOTH_CPU=generic or without the processor's carry-less product: tables, some 2 GB/s instead of 10. */
MOTH_API uint32_t moth_crc32(uint32_t crc, const void *bytes, size_t n);

#endif
