/* Whole files: mapping them for reading, and replacing them so that a crash leaves the old or the
 * new one, never something between. */
#ifndef MOTH_IO_FILE_H
#define MOTH_IO_FILE_H
#include <stddef.h>

#include "moth.h"

/* Ignores SIGXFSZ and SIGPIPE, unless the host has its own handlers: a full disk or a closed pipe
 * is then an error of the call and not the end of the process. Can be called again. Cannot fail. */
MOTH_API void moth_io_init(void);

typedef struct MothFileMap {
  const uint8_t *bytes; /* read-only; never NULL */
  int64_t size;
} MothFileMap;

/* Maps a whole regular file. *out is to be released by moth_file_unmap. If the file is shortened meanwhile, reading
 * faults, as with any mapping; files written by moth_file_write_atomic are never shortened. Errors: MOTH_ERR_IO,
 * naming path and reason. */
MOTH_API MothStatus moth_file_map(const char *path, MothFileMap *out);
MOTH_API void moth_file_unmap(MothFileMap *map);

/* Like struct iovec: one of the buffers that make up a file. */
typedef struct MothPiece {
  const void *bytes;
  size_t n;
} MothPiece;

/* Replaces or makes the file with the pieces, one after the other. They go to a temporary file in
 * the same folder, which is synced and renamed over the old one; then the folder is synced. The
 * file keeps its permissions, a new one gets those of the umask; a symbolic link is followed.
 * Temporary files of this name left by processes that died are removed. Errors: MOTH_ERR_IO, naming
 * path and reason: the temporary file is gone and the old file as it was (except when the folder
 * cannot be synced after renaming: the message says so). MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_file_write_atomic(const char *path, const MothPiece *pieces, int count);

#endif
