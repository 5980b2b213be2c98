/* The store's server: one thread, one poll loop. A call that waits for keys stays with its connection until the last
 * of them is set, or its time is over. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
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

enum { BUCKETS = 4096 };

typedef struct Entry {
  struct Entry *next;
  char *key, *value;
  size_t nkey, nvalue;
} Entry;

typedef struct Client {
  struct Client *next;
  int fd;
  bool known;         /* its hello was right */
  bool over;          /* to be closed once all is written */
  MothBuffer in, out; /* bytes read, not yet handled; to be written */
  size_t written;     /* of out */
  char *waits;        /* the body of the call that waits; NULL: none */
  size_t nwaits;
  double until;
} Client;

struct MothStoreServer {
  pthread_t thread;
  int listener, port, bell[2];
  _Atomic bool stop;
  char *token;
  MothTokenFile file; /* where the token is kept, if it is one of its own */
  char open[700];     /* why there is none */
  Client *clients;
  Entry *entries[BUCKETS];
  int64_t count;
  bool changed; /* a key was set since waiting calls were looked at */
};

/* --- entries ------------------------------------------------------------------------------------ */

static Entry **place_of(MothStoreServer *s, MothBytes key) {
  uint32_t hash = 2166136261u;
  for (size_t i = 0; i < key.n; i++)
    hash = (hash ^ (unsigned char)key.data[i]) * 16777619u;
  Entry **at = &s->entries[hash % BUCKETS];
  while (*at && !((*at)->nkey == key.n && memcmp((*at)->key, key.data, key.n) == 0))
    at = &(*at)->next;
  return at;
}

static char *copy_of(MothBytes a, MothBytes b) {
  char *p = malloc(a.n + b.n + 1);
  if (p) {
    memcpy(p, a.data, a.n);
    memcpy(p + a.n, b.data, b.n);
    p[a.n + b.n] = 0;
  }
  return p;
}

/* Sets a key to the bytes of `head`, then `value`. False: no memory. */
static bool put(MothStoreServer *s, Entry **at, MothBytes key, MothBytes head, MothBytes value) {
  char *copy = copy_of(head, value);
  Entry *e = *at;
  if (copy && !e) {
    e = calloc(1, sizeof *e);
    char *name = copy_of(key, (MothBytes){"", 0});
    if (!e || !name) {
      free(e);
      free(name);
      free(copy);
      return false;
    }
    e->key = name;
    e->nkey = key.n;
    *at = e;
    s->count++;
  }
  if (!copy)
    return false;
  free(e->value);
  e->value = copy;
  e->nvalue = head.n + value.n;
  s->changed = true;
  return true;
}

static void take_out(MothStoreServer *s, Entry **at) {
  Entry *e = *at;
  *at = e->next;
  free(e->key);
  free(e->value);
  free(e);
  s->count--;
}

/* --- calls -------------------------------------------------------------------------------------- */

static void reply(Client *c, MothStoreStatus status, int n, const MothBytes *fields) {
  size_t at = moth_frame_begin(&c->out, (uint8_t)status);
  for (int i = 0; i < n; i++)
    moth_frame_add(&c->out, fields[i]);
  moth_frame_end(&c->out, at);
  c->over |= c->out.failed;
}

static void reply_text(Client *c, MothStoreStatus status, const char *text) {
  reply(c, status, 1, &(MothBytes){text, strlen(text)});
}

/* Replies to a call that waits if all its keys are there, or `late`. */
static bool reply_waiting(MothStoreServer *s, Client *c, const char *body, size_t n, bool late) {
  static MothBytes fields[MOTH_STORE_FIELDS],
      values[MOTH_STORE_FIELDS]; /* of the one thread of all servers */
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  pthread_mutex_lock(&lock);
  int count = moth_frame_read(body + 1, n - 1, fields, MOTH_STORE_FIELDS), missing = 0;
  for (int i = 1; i < count; i++) {
    Entry *e = *place_of(s, fields[i]);
    if (!e)
      fields[missing++] = fields[i]; /* those before it have been looked at */
    else
      values[i - 1] = (MothBytes){e->value, e->nvalue};
  }
  bool done = missing == 0 || late;
  if (missing == 0)
    reply(c, MOTH_STORE_OK, body[0] == MOTH_STORE_GET ? count - 1 : 0, values);
  else if (late)
    reply(c, MOTH_STORE_TIMEOUT, missing, fields);
  pthread_mutex_unlock(&lock);
  return done;
}

static double milliseconds(MothBytes text) {
  char copy[32];
  size_t n = text.n < sizeof copy - 1 ? text.n : sizeof copy - 1;
  memcpy(copy, text.data, n);
  copy[n] = 0;
  return strtod(copy, NULL);
}

static void add_to(MothStoreServer *s, Client *c, MothBytes key, MothBytes amount) {
  Entry **at = place_of(s, key);
  char text[32], *end = NULL;
  int64_t sum = 0, by = 0;
  if (*at)
    sum = strtoll((*at)->value, &end, 10);
  if (end && (*end || !(*at)->nvalue)) {
    reply_text(c, MOTH_STORE_REFUSED, "its value is no integer");
    return;
  }
  if (amount.n >= sizeof text) {
    reply_text(c, MOTH_STORE_REFUSED, "the amount is no integer");
    return;
  }
  memcpy(text, amount.data, amount.n);
  text[amount.n] = 0;
  by = strtoll(text, NULL, 10);
  if (__builtin_add_overflow(sum, by, &sum)) {
    reply_text(c, MOTH_STORE_REFUSED, "the sum is too large");
    return;
  }
  int n = snprintf(text, sizeof text, "%lld", (long long)sum);
  MothBytes value = {text, (size_t)n};
  if (put(s, at, key, (MothBytes){"", 0}, value))
    reply(c, MOTH_STORE_OK, 1, &value);
  else
    reply_text(c, MOTH_STORE_REFUSED, "no memory");
}

static void compare_and_set(MothStoreServer *s, Client *c, const MothBytes *f) {
  Entry **at = place_of(s, f[0]);
  bool same =
      *at ? (*at)->nvalue == f[1].n && memcmp((*at)->value, f[1].data, f[1].n) == 0 : f[1].n == 0;
  if (same && !put(s, at, f[0], (MothBytes){"", 0}, f[2])) {
    reply_text(c, MOTH_STORE_REFUSED, "no memory");
    return;
  }
  MothBytes value = *at ? (MothBytes){(*at)->value, (*at)->nvalue} : (MothBytes){"", 0};
  reply(c, MOTH_STORE_OK, 1, &value);
}

static void hello(MothStoreServer *s, Client *c, MothBytes token) {
  char *text = copy_of(token, (MothBytes){"", 0});
  c->known = text && moth_wire_same(text, s->token);
  free(text);
  if (c->known) {
    reply(c, MOTH_STORE_OK, 0, NULL);
  } else {
    reply_text(c, MOTH_STORE_DENIED, "wrong token");
    c->over = true;
  }
}

/* A frame's body: the command, then the fields. */
static void handle(MothStoreServer *s, Client *c, const char *body, size_t n) {
  int command = n > 0 ? (uint8_t)body[0] : 0;
  MothBytes f[3];
  if (c->known && (command == MOTH_STORE_GET || command == MOTH_STORE_WAIT)) {
    MothBytes first[1];
    uint32_t length = 0;
    if (n > 5)
      memcpy(&length, body + 1, 4);
    if (n < 5 || length > n - 5 || c->waits ||
        moth_frame_read(body + 1, 4 + length, first, 1) != 1) {
      c->over = true;
      return;
    }
    double until = moth_wire_now() + milliseconds(first[0]) * 1e-3;
    if (reply_waiting(s, c, body, n, false))
      return;
    c->waits = copy_of((MothBytes){body, n}, (MothBytes){"", 0});
    c->nwaits = n;
    c->until = until;
    c->over |= !c->waits;
    return;
  }
  if (c->known && command == MOTH_STORE_CHECK) {
    size_t at = 1;
    bool all = true;
    while (at + 4 <= n) {
      uint32_t length;
      memcpy(&length, body + at, 4);
      if (length > n - at - 4)
        break;
      all &= *place_of(s, (MothBytes){body + at + 4, length}) != NULL;
      at += 4 + length;
    }
    reply_text(c, MOTH_STORE_OK, all ? "1" : "0");
    return;
  }
  int count = n > 0 ? moth_frame_read(body + 1, n - 1, f, 3) : -1;
  Entry **at = count > 0 ? place_of(s, f[0]) : NULL;
  MothBytes nothing = {"", 0};
  char text[32];
  if (command == MOTH_STORE_HELLO && count == 1 && !c->known) {
    hello(s, c, f[0]);
  } else if (!c->known) {
    c->over = true;
  } else if ((command == MOTH_STORE_SET || command == MOTH_STORE_APPEND) && count == 2) {
    MothBytes head =
        command == MOTH_STORE_APPEND && *at ? (MothBytes){(*at)->value, (*at)->nvalue} : nothing;
    if (put(s, at, f[0], head, f[1]))
      reply(c, MOTH_STORE_OK, 0, NULL);
    else
      reply_text(c, MOTH_STORE_REFUSED, "no memory");
  } else if (command == MOTH_STORE_ADD && count == 2) {
    add_to(s, c, f[0], f[1]);
  } else if (command == MOTH_STORE_CAS && count == 3) {
    compare_and_set(s, c, f);
  } else if (command == MOTH_STORE_DELETE && count == 1) {
    bool there = *at != NULL;
    if (there)
      take_out(s, at);
    reply_text(c, MOTH_STORE_OK, there ? "1" : "0");
  } else if (command == MOTH_STORE_COUNT && count == 0) {
    snprintf(text, sizeof text, "%lld", (long long)s->count);
    reply_text(c, MOTH_STORE_OK, text);
  } else {
    c->over = true; /* it does not speak this language */
  }
}

/* --- connections -------------------------------------------------------------------------------- */

static void handle_input(MothStoreServer *s, Client *c) {
  size_t at = 0;
  while (!c->over) {
    uint64_t magic;
    uint32_t length;
    if (!c->known && at == 0) { /* in front of the first frame */
      if (c->in.n < sizeof magic)
        break;
      memcpy(&magic, c->in.data, sizeof magic);
      if (magic != MOTH_STORE_MAGIC) {
        c->over = true;
        break;
      }
      at = sizeof magic;
    }
    if (c->in.n - at < sizeof length) {
      if (!c->known)
        at = 0;
      break;
    }
    memcpy(&length, c->in.data + at, sizeof length);
    if (length > (c->known ? MOTH_STORE_FRAME : 4096u)) {
      c->over = true;
      break;
    }
    if (c->in.n - at - sizeof length < length) {
      if (!c->known)
        at = 0;
      break;
    }
    handle(s, c, c->in.data + at + sizeof length, length);
    at += sizeof length + length;
  }
  if (at > 0 && at <= c->in.n) {
    memmove(c->in.data, c->in.data + at, c->in.n - at);
    c->in.n -= at;
  }
}

static void read_from(MothStoreServer *s, Client *c) {
  char bytes[16384];
  for (;;) {
    ssize_t k = recv(c->fd, bytes, sizeof bytes, 0);
    if (k < 0 && errno == EINTR)
      continue;
    if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      break;
    if (k <= 0) {
      c->over = true;
      c->written = c->out.n; /* nobody reads it */
      return;
    }
    moth_buffer_add(&c->in, bytes, (size_t)k);
    c->over |= c->in.failed;
    if ((size_t)k < sizeof bytes)
      break;
  }
  handle_input(s, c);
}

static void write_to(Client *c) {
  while (c->written < c->out.n) {
    ssize_t k = send(c->fd, c->out.data + c->written, c->out.n - c->written, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR)
      continue;
    if (k < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
      return;
    if (k < 0) {
      c->over = true;
      c->written = c->out.n;
      return;
    }
    c->written += (size_t)k;
  }
  c->out.n = c->written = 0;
}

static void accept_all(MothStoreServer *s) {
  for (;;) {
    int fd = accept(s->listener, NULL, NULL);
    if (fd < 0)
      return;
    Client *c = calloc(1, sizeof *c);
    if (!c || moth_wire_prepare(fd) < 0) {
      free(c);
      close(fd);
      continue;
    }
    c->fd = fd;
    c->next = s->clients;
    s->clients = c;
  }
}

static void free_client(Client *c) {
  close(c->fd);
  moth_buffer_free(&c->in);
  moth_buffer_free(&c->out);
  free(c->waits);
  free(c);
}

/* Replies to the calls that have waited for what is there now; returns the milliseconds to the next deadline. */
static int look_at_waiting(MothStoreServer *s) {
  int next = -1;
  double now = moth_wire_now();
  for (Client *c = s->clients; c; c = c->next) {
    if (!c->waits)
      continue;
    bool late = now >= c->until;
    if ((s->changed || late) && reply_waiting(s, c, c->waits, c->nwaits, late)) {
      free(c->waits);
      c->waits = NULL;
      write_to(c);
      continue;
    }
    int left = moth_wire_left(c->until, 1000000);
    if (next < 0 || left < next)
      next = left;
  }
  s->changed = false;
  return next;
}

static void *serve(void *data) {
  MothStoreServer *s = data;
  struct pollfd *p = NULL;
  size_t size = 0;
  while (!atomic_load(&s->stop)) {
    size_t n = 2;
    for (Client **at = &s->clients; *at;) {
      Client *c = *at;
      if (c->over && c->written >= c->out.n) {
        *at = c->next;
        free_client(c);
        continue;
      }
      at = &c->next;
      n++;
    }
    if (n > size) {
      struct pollfd *more = realloc(p, (n + 64) * sizeof *p);
      if (!more)
        break;
      p = more;
      size = n + 64;
    }
    int wait = look_at_waiting(s);
    p[0] = (struct pollfd){.fd = s->bell[0], .events = POLLIN};
    p[1] = (struct pollfd){.fd = s->listener, .events = POLLIN};
    size_t i = 2;
    for (Client *c = s->clients; c; c = c->next)
      p[i++] = (struct pollfd){.fd = c->fd,
                               .events = (short)(POLLIN | (c->written < c->out.n ? POLLOUT : 0))};
    if (poll(p, (nfds_t)n, wait) < 0 && errno != EINTR)
      break;
    i = 2;
    for (Client *c = s->clients; c; c = c->next, i++) {
      if (p[i].revents & (POLLIN | POLLHUP | POLLERR))
        read_from(s, c);
      write_to(c);
    }
    if (p[1].revents)
      accept_all(s);
  }
  free(p);
  return NULL;
}

static void free_server(MothStoreServer *s) {
  moth_token_remove(&s->file); /* while nobody else can have the port */
  while (s->clients) {
    Client *c = s->clients;
    s->clients = c->next;
    free_client(c);
  }
  for (int i = 0; i < BUCKETS; i++)
    while (s->entries[i])
      take_out(s, &s->entries[i]);
  if (s->listener >= 0)
    close(s->listener);
  if (s->bell[0] >= 0)
    close(s->bell[0]);
  free(s->token);
  free(s);
}

/* Finds the token. The server listens already, but answers to nobody yet: who is refused reads the file anew. */
static MothStatus choose_token(MothStoreServer *s, const char *token) {
  bool unsafe = false, local = !token && moth_token_name(&s->file, s->listener, false);
  if (local && !moth_token_keep(&s->file, &unsafe) && unsafe)
    return moth_fail(MOTH_ERR_IO,
                     "store: its token cannot be kept where only this user reads it: %s; remove "
                     "that, or set MOTH_STORE_TOKEN to a secret of the job",
                     s->file.why);
  if (local && !s->file.token[0])
    snprintf(s->open, sizeof s->open, "its token cannot be kept: %s", s->file.why);
  else if (!token && !local)
    snprintf(s->open, sizeof s->open, "the address is not one of this machine alone");
  s->token = strdup(local ? s->file.token : token ? token : "");
  return s->token ? MOTH_OK : moth_fail(MOTH_ERR_MEMORY, "store: out of memory");
}

MothStatus moth_store_serve(const char *host, int port, const char *token, MothStoreServer **out) {
  MOTH_TRY(moth_given("store", out));
  MothStoreServer *s = calloc(1, sizeof *s);
  if (!s)
    return moth_fail(MOTH_ERR_MEMORY, "store: out of memory");
  s->listener = s->bell[0] = -1;
  s->listener = moth_wire_listen(host, port, &s->port);
  if (s->listener < 0) {
    int error = errno;
    free_server(s);
    return moth_fail(MOTH_ERR_IO, "store: cannot listen on %s port %d: %s%s",
                     host ? host : "any address", port, strerror(error),
                     error == EADDRINUSE
                         ? "; another program, or an earlier run, uses this port: take another "
                           "MASTER_PORT, or 0 for a free one"
                         : "");
  }
  MothStatus status = choose_token(s, token);
  if (status != MOTH_OK) {
    free_server(s);
    return status;
  }
  if (moth_wire_bell(s->bell) < 0 || moth_comm_thread(&s->thread, "moth store", serve, s)) {
    free_server(s);
    return moth_fail(MOTH_ERR_MEMORY, "store: no memory for the server");
  }
  *out = s;
  return MOTH_OK;
}

int moth_store_server_port(const MothStoreServer *s) {
  return s->port;
}

const char *moth_store_server_open(const MothStoreServer *s) {
  return s->token[0] ? NULL : s->open;
}

void moth_store_server_free(MothStoreServer *s) {
  if (!s)
    return;
  atomic_store(&s->stop, true);
  moth_wire_ring(s->bell);
  pthread_join(s->thread, NULL);
  free_server(s);
}
