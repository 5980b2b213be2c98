/* The seal of a checkpoint: SHA-256 of the whole file with the seal's own 64 digits as zeros, stored as the
 * first entry of a safetensors file's metadata. It covers every bit of the file, names, shapes and padding
 * included. */
#ifndef MOTH_IO_SEAL_H
#define MOTH_IO_SEAL_H
#include "io/file.h"

#define MOTH_SEAL_KEY   "moth.sha256"
#define MOTH_SEAL_BLANK "0000000000000000000000000000000000000000000000000000000000000000"

/* Seals a file that is about to be written: pieces[0] is `header`, made by moth_safetensors_header
 * with MOTH_SEAL_KEY = MOTH_SEAL_BLANK as the first metadata; its digits are set. Cannot fail. */
MOTH_API void moth_seal_set(uint8_t *header, const MothPiece *pieces, int count);

/* Whether the n bytes of a file have their seal. Errors: MOTH_ERR_VALUE. */
MOTH_API MothStatus moth_seal_check(const uint8_t *bytes, size_t n);

#endif
