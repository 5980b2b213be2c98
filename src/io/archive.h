/* Archives (.tar, .tar.gz, .tar.zst, .zip …), read from the beginning to the end by the system's libarchive
 * (libarchive.so.13), which is opened when first needed. */
#ifndef MOTH_IO_ARCHIVE_H
#define MOTH_IO_ARCHIVE_H
#include <stdbool.h>
#include <stddef.h>

#include "moth.h"

typedef struct MothArchive MothArchive;

/* Opens a file; *out is to be closed. Errors: MOTH_ERR_IO: the file, or the library is not on this machine;
 * MOTH_ERR_VALUE: no archive. */
MOTH_API MothStatus moth_archive_open(const char *path, MothArchive **out);
/* Where the bytes of an archive come from that is no file. pull: the next ones, which last until the next call; 0 at the
 * end, -1: an error. end: called once the archive is at its end, or damaged: whether the stream itself has failed. */
typedef struct {
  void *data;
  long (*pull)(void *data, const void **block);
  MothStatus (*end)(void *data, const char *name, bool damaged);
} MothArchiveStream;
/* The same of a stream, which the caller closes after the archive; `name` stands for it in errors. Errors, also of
 * moth_archive_next: those of the stream, too. */
MOTH_API MothStatus moth_archive_open_stream(const char *name, const MothArchiveStream *stream,
                                             MothArchive **out);
/* The next member that is a file: its name and bytes, which last until the next call. *name is NULL at the end. Errors:
 * MOTH_ERR_VALUE: damage, or a member of more than 2 GB; MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_archive_next(MothArchive *a, const char **name, const void **bytes,
                                      size_t *n);
MOTH_API void moth_archive_close(MothArchive *a); /* NULL is allowed */

#endif
