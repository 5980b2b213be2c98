/* SHA-256 (FIPS 180-4), for the checksums of downloads and the seals of checkpoints. */
#ifndef MOTH_IO_SHA256_H
#define MOTH_IO_SHA256_H
#include <stddef.h>

#include "moth.h"

typedef struct MothSha256 {
  uint32_t state[8];
  uint64_t n; /* bytes so far */
  uint8_t block[64];
} MothSha256;

/* Incremental; none of these can fail. digest is 32 bytes. */
MOTH_API void moth_sha256_init(MothSha256 *hash);
MOTH_API void moth_sha256_update(MothSha256 *hash, const void *bytes, size_t n);
MOTH_API void moth_sha256_final(MothSha256 *hash, uint8_t *digest);

/* The digest of n bytes as 64 lower-case hexadecimal digits and a NUL: out has 65 bytes. */
MOTH_API void moth_sha256_hex(const void *bytes, size_t n, char *out);

#endif
