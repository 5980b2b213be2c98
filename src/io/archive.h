/* Archives (.tar, .tar.gz, .tar.zst, .zip …), read from the beginning to the end by the system's libarchive
 * (libarchive.so.13), which is opened when first needed. */
#ifndef MOTH_IO_ARCHIVE_H
#define MOTH_IO_ARCHIVE_H
#include <stddef.h>

#include "moth.h"

typedef struct MothArchive MothArchive;

/* Opens a file; *out is to be closed. Errors: MOTH_ERR_IO: the file, or the library is not on this machine;
 * MOTH_ERR_VALUE: no archive. */
MOTH_API MothStatus moth_archive_open(const char *path, MothArchive **out);
/* The next member that is a file: its name and bytes, which last until the next call. *name is NULL at the end. Errors:
 * MOTH_ERR_VALUE: damage, or a member of more than 2 GB; MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_archive_next(MothArchive *a, const char **name, const void **bytes,
                                      size_t *n);
MOTH_API void moth_archive_close(MothArchive *a); /* NULL is allowed */

#endif
