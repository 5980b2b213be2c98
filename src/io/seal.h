/* The seal of a checkpoint: 64 digits over the whole file, with the digits themselves as zeros, stored as the first
 * entry of a safetensors file's metadata. It covers every bit of the file, names, shapes and padding included.
 * "moth.sha256" is SHA-256 of the file. "moth.crc32" is SHA-256 of the CRC-32 (4 bytes, lowest first) of each MiB of
 * it: damage is found as surely as by zip's checksum, at memory's speed. */
#ifndef MOTH_IO_SEAL_H
#define MOTH_IO_SEAL_H
#include "io/file.h"

#define MOTH_SEAL_SHA256 "moth.sha256"
#define MOTH_SEAL_CRC32  "moth.crc32"
#define MOTH_SEAL_BLANK  "0000000000000000000000000000000000000000000000000000000000000000"

/* Seals a file that is about to be written: pieces[0] is `header`, made by moth_safetensors_header
 * with one of the two keys = MOTH_SEAL_BLANK as the first metadata; its digits are set. Cannot fail. */
MOTH_API void moth_seal_set(uint8_t *header, const MothPiece *pieces, int count);

/* Whether the n bytes of a file have their seal. Errors: MOTH_ERR_VALUE; MOTH_ERR_INTERRUPTED. */
MOTH_API MothStatus moth_seal_check(const uint8_t *bytes, size_t n);

#endif
