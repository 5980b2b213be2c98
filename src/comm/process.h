/* Child processes of the launcher. Each leads a process group of its own, so that it is killed with all that it has
 * started, and reads nothing from standard input. */
#ifndef MOTH_COMM_PROCESS_H
#define MOTH_COMM_PROCESS_H
#include <stdbool.h>

#include "moth.h"

/* Starts argv[0], looked for in PATH, with the environment envp. *out, *err: ends of pipes that read its output, which
 * do not block and are the caller's to close. *in (may be NULL): a socket, whose other end is the child's descriptor 0,
 * for both directions. Errors: the program is not there; no file descriptors. */
MOTH_API MothStatus moth_process_start(char *const argv[], char *const envp[], int *pid, int *in,
                                       int *out, int *err);
/* Whether it has ended; then its group is killed. *status: its exit code, or minus the signal that killed it. */
MOTH_API bool moth_process_ended(int pid, int *status);
/* Sends a signal to the group of pid. */
MOTH_API void moth_process_signal(int pid, int signal_number);

/* From now on these signals end moth_process_wait rather than this process, until moth_process_release. Not for several
 * threads. */
MOTH_API MothStatus moth_process_catch(const int *signals, int n);
MOTH_API void moth_process_release(void);
/* Waits until a file descriptor can be read, a signal has come, or the time is over, at most 11 days. ready[i]: fds[i]
 * can be read, or is at its end. */
MOTH_API MothStatus moth_process_wait(const int *fds, int n, double seconds, bool *ready);
/* A signal that has come since it was last asked for; 0: none. */
MOTH_API int moth_process_caught(void);
#endif
