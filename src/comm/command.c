/* See command.h. */
#include "comm/command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/process.h"
#include "core/alloc.h"
#include "core/error.h"
#include "core/parallel.h"

enum { BLOCK = 1 << 16 };

struct MothCommand {
  int pid, out, err; /* pid 0: it has ended; descriptors -1: closed */
  size_t nsaid;
  char said[512]; /* the end of what it wrote to its standard error */
  char block[BLOCK];
};

MothStatus moth_command_start(char *const argv[], char *const envp[], const char *input,
                              size_t ninput, MothCommand **out) {
  MothCommand *c = calloc(1, sizeof *c);
  if (!c)
    return moth_no_memory(sizeof *c);
  int in;
  MothStatus s = moth_process_start(argv, envp, &c->pid, &in, &c->out, &c->err);
  if (s) {
    free(c);
    return s;
  }
  fcntl(c->out, F_SETPIPE_SZ, 1 << 20); /* it may run ahead of the reader */
  /* The socket's buffer holds it; a command that ends without reading it says itself what is wrong. */
  for (size_t at = 0; at < ninput;) {
    ssize_t n = send(in, input + at, ninput - at, MSG_NOSIGNAL);
    if (n < 0 && errno != EINTR)
      break;
    at += n > 0 ? (size_t)n : 0;
  }
  close(in);
  *out = c;
  return MOTH_OK;
}

static void hear(MothCommand *c) {
  char bytes[sizeof c->said];
  ssize_t n = read(c->err, bytes, sizeof bytes);
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  if (n <= 0) {
    close(c->err);
    c->err = -1;
    return;
  }
  size_t kept = c->nsaid, most = sizeof c->said - (size_t)n;
  if (kept > most)
    kept = most;
  memmove(c->said, c->said + c->nsaid - kept, kept);
  memcpy(c->said + kept, bytes, (size_t)n);
  c->nsaid = kept + (size_t)n;
}

/* As moth_command_pull; -2: nothing came for `ms` milliseconds. */
static long pull(MothCommand *c, int ms) {
  const volatile sig_atomic_t *flag = moth_interrupt_flag();
  for (;;) {
    struct pollfd p[2] = {{.fd = c->out, .events = POLLIN}, {.fd = c->err, .events = POLLIN}};
    int ready = poll(p, 2, ms < 0 ? 50 : ms);
    if (flag && *flag)
      return -1;
    if (ready == 0 && ms >= 0)
      return -2;
    if (ready < 0 && errno != EINTR)
      return -1;
    if (ready > 0 && p[1].revents)
      hear(c);
    if (ready > 0 && p[0].revents) {
      ssize_t n = read(c->out, c->block, BLOCK);
      if (n >= 0 || (errno != EAGAIN && errno != EINTR))
        return n;
    }
  }
}

long moth_command_pull(void *command, const void **block) {
  MothCommand *c = command;
  *block = c->block;
  return pull(c, -1);
}

static MothStatus failed(const MothCommand *c, const char *name, int status) {
  size_t n = c->nsaid;
  while (n > 0 && (c->said[n - 1] == '\n' || c->said[n - 1] == ' '))
    n--;
  return moth_fail(MOTH_ERR_IO, "archive: %s: its command ended with %s %d%s%.*s", name,
                   status < 0 ? "signal" : "exit status", status < 0 ? -status : status,
                   n ? ": " : "", (int)n, c->said);
}

MothStatus moth_command_end(void *command, const char *name, bool damaged) {
  MothCommand *c = command;
  for (int turns = 0; c->pid && (!damaged || turns < 100); turns++) {
    long n = pull(c, 10);
    if (n > 0 || n == -2)
      continue;
    poll(NULL, 0, 1); /* its output is closed: it is about to end */
    int status;
    if (moth_process_ended(c->pid, &status)) {
      c->pid = 0;
      if (c->err >= 0)
        hear(c);
      return status ? failed(c, name, status) : MOTH_OK;
    }
  }
  return MOTH_OK;
}

void moth_command_close(MothCommand *c) {
  if (!c)
    return;
  int status;
  /* It may tidy up: half a second. */
  for (int turns = 0; c->pid && !moth_process_ended(c->pid, &status); turns++) {
    if (turns == 0 || turns == 500)
      moth_process_signal(c->pid, turns == 0 ? SIGTERM : SIGKILL);
    poll(NULL, 0, 1);
  }
  close(c->out);
  if (c->err >= 0)
    close(c->err);
  free(c);
}
