/* Zip archives, as .npz and PyTorch's .pt are: a directory at the end of the file names the
 * members, which are stored or deflated; zip64 where numbers are large. PKWARE's APPNOTE.TXT.
 *
 * Members are read in place, without unpacking the archive. */
#ifndef MOTH_IO_ZIP_H
#define MOTH_IO_ZIP_H
#include <stddef.h>

#include "moth.h"

#define MOTH_ZIP_MAX_MEMBERS 1000000

typedef struct MothZipEntry {
  const char *name;    /* UTF-8 without NUL inside; a relative path */
  const uint8_t *data; /* points into the bytes given */
  int64_t packed;      /* bytes there */
  int64_t size;        /* bytes of the member itself */
  uint32_t crc;
  bool deflated;
} MothZipEntry;

typedef struct MothZip {
  int64_t count;
  MothZipEntry *entries; /* in order of their names */
  char *names;
} MothZip;

/* Whether n bytes begin as an archive does. Cannot fail. */
MOTH_API bool moth_zip_is(const uint8_t *bytes, size_t n);

/* Reads the directory of a whole file of n bytes and checks it against them: members lie within the
 * file and do not overlap, their local headers agree with the directory, names are unique, relative
 * and without "..", nothing is encrypted, a link or a device; deflated members together are at most
 * `cap` bytes, and each at most what deflate can make of the bytes there. On success *out is to be
 * freed by moth_zip_free, before the bytes. Errors: MOTH_ERR_VALUE (*out is NULL), MOTH_ERR_MEMORY.
 */
MOTH_API MothStatus moth_zip_parse(const uint8_t *bytes, size_t n, int64_t cap, MothZip **out);
MOTH_API void moth_zip_free(MothZip *zip); /* NULL is allowed */

/* The member of this name, or NULL. */
MOTH_API const MothZipEntry *moth_zip_find(const MothZip *zip, const char *name);

/* Reads only the beginning of a member, at most `want` bytes, to out; *got bytes are written, fewer if the member
 * is damaged (which is not reported). Errors: MOTH_ERR_STATE, MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_zip_head(const MothZipEntry *entry, uint8_t *out, int64_t want,
                                  int64_t *got);

/* Writes the member's `size` bytes to out and compares them with the checksum. Errors:
 * MOTH_ERR_VALUE (damaged), MOTH_ERR_STATE (deflated, and no zlib on this machine), MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_zip_read(const MothZipEntry *entry, uint8_t *out);

/* Compares a stored member with its checksum, in place. Errors: as of moth_zip_read. */
MOTH_API MothStatus moth_zip_verify(const MothZipEntry *entry);

#endif
