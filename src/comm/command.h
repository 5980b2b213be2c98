/* A command whose output is read as a stream: archives of data.WebDataset (src/lua/media.c). */
#ifndef MOTH_COMM_COMMAND_H
#define MOTH_COMM_COMMAND_H
#include <stdbool.h>
#include <stddef.h>

#include "moth.h"

typedef struct MothCommand MothCommand;

/* Starts argv[0], looked for in PATH, with the environment envp; it reads `input`, of at most some KB. *out is to be
 * closed. Errors: those of moth_process_start; MOTH_ERR_MEMORY. */
MOTH_API MothStatus moth_command_start(char *const argv[], char *const envp[], const char *input,
                                       size_t ninput, MothCommand **out);
/* The next bytes of its output, which last until the next call: how many; 0 at the end; -1: an error. Waits. */
MOTH_API long moth_command_pull(void *command, const void **block);
/* Waits for its end, and reads past what it still writes. damaged: at most a second, for a failure that explains the
 * damage. Errors: MOTH_ERR_IO: it ended with another exit status than 0, or by a signal; with the end of what it wrote to
 * its standard error. name: of the stream, for errors. */
MOTH_API MothStatus moth_command_end(void *command, const char *name, bool damaged);
/* Ends it if it has not ended. NULL is allowed. */
MOTH_API void moth_command_close(MothCommand *c);
#endif
