/* A client of the store: one connection, one call at a time. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/store_token.h"
#include "comm/store_wire.h"
#include "comm/thread.h"
#include "comm/wire.h"
#include "core/error.h"

struct MothStore {
  pthread_mutex_t lock; /* held during a call */
  int fd;
  bool known; /* it has answered to the hello */
  _Atomic bool broken;
  char host[256];
  int port;
};

static MothStatus lost(MothStore *s, const char *what, int error) {
  atomic_store(&s->broken, true);
  if (error == EINTR)
    return moth_fail(MOTH_ERR_INTERRUPTED, "interrupted");
  const char *why = error == EPIPE || error == ECONNRESET
                        ? "it closed the connection: its process has ended"
                    : error == ETIMEDOUT ? "it does not answer"
                                         : strerror(error);
  return moth_fail(MOTH_ERR_IO, "store: %s: the store at %s port %d is lost: %s", what, s->host,
                   s->port, why);
}

/* Seconds that a store may take to greet: who listens there may be no store at all. */
#define GREETING 2.0

/* Sends a frame, reads the reply into *reply, whose first byte is the status. */
static MothStatus exchange(MothStore *s, const char *what, MothBuffer *frame, double timeout,
                           MothBuffer *in) {
  /* Half a minute more than the server may take. */
  double deadline =
      moth_wire_now() + (isfinite(timeout) && timeout < 1e8 ? timeout : 1e8) + (s->known ? 30 : 0);
  if (frame->failed) {
    moth_buffer_free(frame);
    return moth_fail(MOTH_ERR_MEMORY, "store: out of memory");
  }
  if (frame->n > MOTH_STORE_FRAME) {
    size_t n = frame->n;
    moth_buffer_free(frame);
    return moth_fail(MOTH_ERR_VALUE,
                     "store: %s: %zu bytes are more than a value of the store may have", what, n);
  }
  pthread_mutex_lock(&s->lock);
  MothStatus status = MOTH_OK;
  uint32_t length = 0;
  if (atomic_load(&s->broken))
    status =
        moth_fail(MOTH_ERR_IO, "store: %s: the connection to the store at %s port %d is closed",
                  what, s->host, s->port);
  else if (moth_wire_write(s->fd, frame->data, frame->n, deadline) < 0 ||
           moth_wire_read(s->fd, &length, sizeof length, deadline) < 0)
    status = lost(s, what, errno);
  if (status == MOTH_OK && (length < 1 || length > MOTH_STORE_FRAME))
    status = lost(s, what, EPROTO);
  if (status == MOTH_OK) {
    in->data = malloc(length + 1);
    in->n = in->size = length;
    if (!in->data)
      status = moth_fail(MOTH_ERR_MEMORY, "store: out of memory");
    else if (moth_wire_read(s->fd, in->data, length, deadline) < 0)
      status = lost(s, what, errno);
    else
      in->data[length] = 0;
  }
  pthread_mutex_unlock(&s->lock);
  moth_buffer_free(frame);
  if (status != MOTH_OK)
    moth_buffer_free(in);
  return status;
}

/* The status of a reply as an error. */
static MothStatus refused(const char *what, const MothBuffer *in, double timeout) {
  MothBytes f[8];
  char text[400] = "";
  int n = moth_frame_read(in->data + 1, in->n - 1, f, 8);
  for (int i = 0; i < n && i < 8; i++) {
    size_t at = strlen(text);
    snprintf(text + at, sizeof text - at, "%s%.*s", i ? ", " : "",
             (int)(f[i].n < 100 ? f[i].n : 100), f[i].data);
  }
  if ((uint8_t)in->data[0] == MOTH_STORE_TIMEOUT)
    return moth_fail(MOTH_ERR_IO, "store: %s: nobody set %s within %g s", what,
                     n > 0 ? text : "the keys", timeout);
  return moth_fail(MOTH_ERR_VALUE, "store: %s: %s", what, n > 0 ? text : "refused");
}

/* A call whose reply has n fields, which stay valid while *block does. */
static MothStatus call(MothStore *s, const char *what, MothBuffer *frame, double timeout, int n,
                       MothBytes *fields, MothBuffer *in) {
  *in = (MothBuffer){0};
  MOTH_TRY(exchange(s, what, frame, timeout, in));
  MothStatus status = MOTH_OK;
  if (in->data[0] != MOTH_STORE_OK)
    status = refused(what, in, timeout);
  else if (n > 0 && moth_frame_read(in->data + 1, in->n - 1, fields, n) != n)
    status = moth_fail(MOTH_ERR_IO, "store: %s: the reply is malformed", what);
  if (status != MOTH_OK)
    moth_buffer_free(in);
  return status;
}

static MothBuffer frame_of(MothStoreCommand command, int n, const MothBytes *fields) {
  MothBuffer b = {0};
  size_t at = moth_frame_begin(&b, (uint8_t)command);
  for (int i = 0; i < n; i++)
    moth_frame_add(&b, fields[i]);
  moth_frame_end(&b, at);
  return b;
}

/* Connects with a token; NULL: with the `place`-th that is kept for this address (from 0; beyond the folders: ""). What
 * is known of its file is left in *file. *wrong: the token is another. */
static MothStatus connect_with(const char *host, int port, const char *token, int place,
                               MothTokenFile *file, double deadline, double timeout, bool *wrong,
                               MothStore **out) {
  *wrong = false;
  MothStore *s = calloc(1, sizeof *s);
  if (!s)
    return moth_fail(MOTH_ERR_MEMORY, "store: out of memory");
  snprintf(s->host, sizeof s->host, "%s", host);
  s->port = port;
  s->fd = moth_wire_connect(host, port, deadline);
  if (s->fd < 0) {
    int error = errno;
    free(s);
    if (error == EINTR)
      return moth_fail(MOTH_ERR_INTERRUPTED, "interrupted");
    return moth_fail(MOTH_ERR_IO,
                     "store: no store answers at %s port %d within %g s: %s; is rank 0 (or the "
                     "launcher) running, and are MASTER_ADDR and MASTER_PORT its address?",
                     host, port, timeout, strerror(error));
  }
  pthread_mutex_init(&s->lock, NULL);
  if (!token && place < MOTH_TOKEN_FOLDERS) { /* the connection says which file it is */
    *wrong = !moth_token_name(file, s->fd, true) || !moth_token_read(file, place);
    if (*wrong) { /* nothing was sent */
      moth_store_free(s);
      return MOTH_OK;
    }
    token = file->token;
  }
  token = token ? token : "";
  uint64_t magic = MOTH_STORE_MAGIC;
  MothBuffer frame = {0}, in;
  moth_buffer_add(&frame, &magic, sizeof magic);
  size_t at = moth_frame_begin(&frame, MOTH_STORE_HELLO);
  moth_frame_add(&frame, (MothBytes){token, strlen(token)});
  moth_frame_end(&frame, at);
  MothStatus status =
      call(s, "hello", &frame, timeout < GREETING ? timeout : GREETING, 0, NULL, &in);
  if (status != MOTH_OK) {
    *wrong = strstr(moth_last_error(), "wrong token") != NULL;
    if (!*wrong && status == MOTH_ERR_IO) {
      char why[300];
      snprintf(why, sizeof why, "%s", moth_last_error());
      status = moth_fail(MOTH_ERR_IO,
                         "%s; it has not greeted as a store of moth's: does another program use "
                         "this MASTER_PORT?",
                         why);
    }
    moth_store_free(s);
    return status;
  }
  s->known = true;
  moth_buffer_free(&in);
  *out = s;
  return MOTH_OK;
}

MothStatus moth_store_connect(const char *host, int port, const char *token, double timeout,
                              MothStore **out) {
  MOTH_TRY(moth_given("store", host && out));
  double deadline = moth_wire_now() + timeout;
  MothTokenFile file = {0};
  char why[700] = "";
  bool wrong = true, bad = false; /* the last one: why says what is wrong with a file */
  MothStatus status = MOTH_OK;
  /* Twice: a file that was read before the server had written its own is of a store that is no more. */
  for (int i = 0; wrong && i < (token ? 1 : 2 * (MOTH_TOKEN_FOLDERS + 1)); i++) {
    int place = i % (MOTH_TOKEN_FOLDERS + 1);
    status = connect_with(host, port, token, place, &file, deadline, timeout, &wrong, out);
    if (!wrong || token || place == MOTH_TOKEN_FOLDERS)
      continue;
    if (file.why[0] && !bad)
      snprintf(why, sizeof why, " (%s)", file.why);
    else if (file.path[0] && !bad)
      snprintf(why, sizeof why, file.token[0] ? " (%s has another)" : " (there is no %s)",
               file.path);
    bad = bad || file.why[0] || file.token[0];
  }
  if (wrong)
    status = moth_fail(MOTH_ERR_VALUE,
                       "store: the store at %s port %d refused this process: wrong token; all "
                       "processes of a job need the same MOTH_STORE_TOKEN, or none if all run on "
                       "this machine, as the same user%s",
                       host, port, why);
  return status;
}

void moth_store_abort(MothStore *s) {
  atomic_store(&s->broken, true);
  shutdown(s->fd, SHUT_RDWR);
}

void moth_store_free(MothStore *s) {
  if (!s)
    return;
  close(s->fd);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

const char *moth_store_address(MothStore *s, char *text, size_t n) {
  return moth_wire_address(s->fd, text, n);
}

static MothStatus simple(MothStore *s, MothStoreCommand command, const char *what, int n,
                         const MothBytes *fields) {
  MothBuffer in, frame = frame_of(command, n, fields);
  MOTH_TRY(call(s, what, &frame, 0, 0, NULL, &in));
  moth_buffer_free(&in);
  return MOTH_OK;
}

MothStatus moth_store_set(MothStore *s, MothBytes key, MothBytes value) {
  return simple(s, MOTH_STORE_SET, "set", 2, (MothBytes[]){key, value});
}
MothStatus moth_store_append(MothStore *s, MothBytes key, MothBytes value) {
  return simple(s, MOTH_STORE_APPEND, "append", 2, (MothBytes[]){key, value});
}

MothStatus moth_store_get(MothStore *s, int n, const MothBytes *keys, double timeout,
                          MothBytes *values, void **block) {
  char ms[32];
  MothBuffer frame = {0}, in;
  if (n < 1 || n >= MOTH_STORE_FIELDS)
    return moth_fail(MOTH_ERR_VALUE, "store: get: expected 1 to %d keys, got %d",
                     MOTH_STORE_FIELDS - 1, n);
  double limit = timeout < 1e9 ? timeout * 1e3 : 1e12;
  int k = snprintf(ms, sizeof ms, "%.0f", limit);
  size_t at = moth_frame_begin(&frame, values ? MOTH_STORE_GET : MOTH_STORE_WAIT);
  moth_frame_add(&frame, (MothBytes){ms, (size_t)k});
  for (int i = 0; i < n; i++)
    moth_frame_add(&frame, keys[i]);
  moth_frame_end(&frame, at);
  MOTH_TRY(call(s, values ? "get" : "wait", &frame, timeout, values ? n : 0, values, &in));
  if (values)
    *block = in.data;
  else
    moth_buffer_free(&in);
  return MOTH_OK;
}

MothStatus moth_store_check(MothStore *s, int n, const MothBytes *keys, bool *there) {
  MothBuffer in, frame = frame_of(MOTH_STORE_CHECK, n, keys);
  MothBytes value;
  MOTH_TRY(call(s, "check", &frame, 0, 1, &value, &in));
  *there = value.n == 1 && value.data[0] == '1';
  moth_buffer_free(&in);
  return MOTH_OK;
}

MothStatus moth_store_add(MothStore *s, MothBytes key, int64_t amount, int64_t *now) {
  char text[32];
  int n = snprintf(text, sizeof text, "%lld", (long long)amount);
  MothBuffer in, frame = frame_of(MOTH_STORE_ADD, 2, (MothBytes[]){key, {text, (size_t)n}});
  MothBytes value;
  MOTH_TRY(call(s, "add", &frame, 0, 1, &value, &in));
  *now = strtoll(value.data, NULL, 10);
  moth_buffer_free(&in);
  return MOTH_OK;
}

MothStatus moth_store_compare_set(MothStore *s, MothBytes key, MothBytes expected,
                                  MothBytes desired, MothBytes *now, void **block) {
  MothBuffer in, frame = frame_of(MOTH_STORE_CAS, 3, (MothBytes[]){key, expected, desired});
  MOTH_TRY(call(s, "compare_set", &frame, 0, 1, now, &in));
  *block = in.data;
  return MOTH_OK;
}

MothStatus moth_store_delete(MothStore *s, MothBytes key, bool *was_there) {
  MothBuffer in, frame = frame_of(MOTH_STORE_DELETE, 1, &key);
  MothBytes value;
  MOTH_TRY(call(s, "delete", &frame, 0, 1, &value, &in));
  *was_there = value.n == 1 && value.data[0] == '1';
  moth_buffer_free(&in);
  return MOTH_OK;
}

MothStatus moth_store_count(MothStore *s, int64_t *keys) {
  MothBuffer in, frame = frame_of(MOTH_STORE_COUNT, 0, NULL);
  MothBytes value;
  MOTH_TRY(call(s, "count", &frame, 0, 1, &value, &in));
  *keys = strtoll(value.data, NULL, 10);
  moth_buffer_free(&in);
  return MOTH_OK;
}
