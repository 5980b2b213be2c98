/* See process.h. */
#include "comm/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/wire.h"
#include "core/alloc.h"
#include "core/error.h"

enum { SIGNALS = 65 };

static struct {
  bool active;
  int bell[2];
  struct sigaction before[SIGNALS];
  bool changed[SIGNALS];
} catching;
static volatile sig_atomic_t caught[SIGNALS];

/* --- children ----------------------------------------------------------------------------------- */

static void close_pipe(const int ends[2]) {
  for (int i = 0; i < 2; i++)
    if (ends[i] >= 0)
      close(ends[i]);
}

static int spawn(char *const argv[], char *const envp[], int in, int out, int err, int *pid) {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  if (posix_spawn_file_actions_init(&files) != 0)
    return ENOMEM;
  if (posix_spawnattr_init(&attributes) != 0) {
    posix_spawn_file_actions_destroy(&files);
    return ENOMEM;
  }
  int error = in >= 0 ? posix_spawn_file_actions_adddup2(&files, in, 0)
                      : posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  if (!error)
    error = posix_spawn_file_actions_adddup2(&files, out, 1);
  if (!error)
    error = posix_spawn_file_actions_adddup2(&files, err, 2);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  if (!error)
    error = posix_spawnp(pid, argv[0], &files, &attributes, argv, envp);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return error;
}

MothStatus moth_process_start(char *const argv[], char *const envp[], int *pid, int *in, int *out,
                              int *err) {
  int to[2] = {-1, -1}, from[2][2] = {{-1, -1}, {-1, -1}}, error = 0;
  if ((in && socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, to) < 0) ||
      pipe2(from[0], O_CLOEXEC) < 0 || pipe2(from[1], O_CLOEXEC) < 0)
    error = errno;
  if (!error)
    error = spawn(argv, envp, to[0], from[0][1], from[1][1], pid);
  if (error) {
    close_pipe(to);
    close_pipe(from[0]);
    close_pipe(from[1]);
    return moth_fail(MOTH_ERR_IO, "%s cannot be started: %s", argv[0], strerror(error));
  }
  close(from[0][1]);
  close(from[1][1]);
  fcntl(from[0][0], F_SETFL, O_NONBLOCK);
  fcntl(from[1][0], F_SETFL, O_NONBLOCK);
  *out = from[0][0];
  *err = from[1][0];
  if (in) {
    close(to[0]);
    *in = to[1];
  }
  return MOTH_OK;
}

bool moth_process_ended(int pid, int *status) {
  siginfo_t info = {0};
  if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0) {
    *status = 0; /* somebody else has waited for it */
    return errno == ECHILD;
  }
  if (info.si_pid == 0)
    return false;
  kill(-pid, SIGKILL); /* while nobody else can have this number */
  waitpid(pid, NULL, 0);
  *status = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
  return true;
}

void moth_process_signal(int pid, int signal_number) {
  kill(-pid, signal_number);
}

/* --- signals ------------------------------------------------------------------------------------ */

static void on_signal(int number) {
  int error = errno;
  caught[number] = 1;
  moth_wire_ring(catching.bell);
  errno = error;
}

MothStatus moth_process_catch(const int *signals, int n) {
  if (catching.active)
    return moth_fail(MOTH_ERR_STATE, "a launcher runs in this process already");
  if (moth_wire_bell(catching.bell) < 0)
    return moth_fail(MOTH_ERR_IO, "no file descriptor: %s", strerror(errno));
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK | SA_RESTART};
  sigemptyset(&action.sa_mask);
  catching.active = true;
  for (int i = 0; i < n; i++) {
    int number = signals[i];
    if (number > 0 && number < SIGNALS)
      catching.changed[number] = sigaction(number, &action, &catching.before[number]) == 0;
  }
  return MOTH_OK;
}

void moth_process_release(void) {
  if (!catching.active)
    return;
  for (int i = 0; i < SIGNALS; i++) {
    if (catching.changed[i])
      sigaction(i, &catching.before[i], NULL);
    catching.changed[i] = false;
    caught[i] = 0;
  }
  close(catching.bell[0]);
  catching.active = false;
}

MothStatus moth_process_wait(const int *fds, int n, double seconds, bool *ready) {
  struct pollfd *p = calloc((size_t)n + 1, sizeof *p);
  if (!p)
    return moth_no_memory(((size_t)n + 1) * sizeof *p);
  for (int i = 0; i < n; i++)
    p[i] = (struct pollfd){.fd = fds[i], .events = POLLIN};
  p[n] = (struct pollfd){.fd = catching.active ? catching.bell[0] : -1, .events = POLLIN};
  int ms = seconds > 1e6 ? 1000000000 : seconds > 0 ? (int)(seconds * 1e3 + 0.999) : 0;
  int k = poll(p, (nfds_t)n + 1, ms);
  if (k > 0 && p[n].revents)
    moth_wire_hush(catching.bell);
  for (int i = 0; i < n; i++)
    ready[i] = k > 0 && p[i].revents != 0;
  free(p);
  return MOTH_OK;
}

int moth_process_caught(void) {
  for (int i = 1; i < SIGNALS; i++)
    if (caught[i]) {
      caught[i] = 0;
      return i;
    }
  return 0;
}
