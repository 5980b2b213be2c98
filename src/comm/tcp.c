/* The tcp engine: opening, closing. See tcp.h. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/interfaces.h"
#include "comm/nccl.h"
#include "comm/store_token.h"
#include "comm/tcp.h"
#include "comm/thread.h"
#include "comm/transport.h"
#include "comm/wire.h"
#include "core/alloc.h"
#include "core/environment.h"
#include "core/error.h"
#include "core/parallel.h"

/* In front of everything on a new connection. */
typedef struct Hello {
  uint64_t magic, secret;
  uint32_t rank, channel;
} Hello;
#define HELLO_MAGIC 0x6d6f746874637031ull

const char *moth_tcp_rank(const MothTcp *e, int rank, char *text, size_t n) {
  const char *about = e->peers[rank].about;
  snprintf(text, n, about[0] ? "rank %d (%s)" : "rank %d", moth_group_world_rank(e->group, rank),
           about);
  return text;
}

static void take(MothTcp *e, int rank, uint32_t channel, int fd) {
  int *at = channel ? &e->peers[rank].control : &e->peers[rank].data;
  if (*at >= 0)
    close(*at);
  *at = fd;
  int size = 4 << 20;
  if (!channel) {
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
  }
}

enum { PENDING = 256 };

/* Accepts the connections of the higher ranks; strangers, and halves of a hello, are dropped. */
static MothStatus accept_higher(MothTcp *e, int listener, uint64_t secret, double deadline) {
  MothGroup *g = e->group;
  struct {
    int fd;
    size_t n;
    Hello hello;
  } wait[PENDING];
  int nwait = 0, missing = (e->own_data ? 2 : 1) * (g->size - 1 - g->rank);
  MothStatus status = MOTH_OK;
  while (missing > 0 && status == MOTH_OK) {
    struct pollfd p[PENDING + 1] = {{.fd = listener, .events = POLLIN}};
    for (int i = 0; i < nwait; i++)
      p[i + 1] = (struct pollfd){.fd = wait[i].fd, .events = POLLIN};
    poll(p, (nfds_t)nwait + 1, moth_wire_left(deadline, 50));
    const volatile sig_atomic_t *flag = moth_interrupt_flag();
    if (flag && *flag)
      status = moth_interrupted();
    else if (moth_wire_now() >= deadline) {
      char list[200] = "", one[16];
      for (int i = g->rank + 1; i < g->size; i++)
        if (e->peers[i].control < 0 && strlen(list) < sizeof list - 20) {
          snprintf(one, sizeof one, "%s%d", list[0] ? ", " : "", moth_group_world_rank(g, i));
          strcat(list, one);
        }
      status = moth_fail(MOTH_ERR_IO, "rank %d waited in vain for connections of rank %s",
                         moth_group_world_rank(g, g->rank), list);
    }
    for (int i = nwait - 1; i >= 0; i--) {
      if (!p[i + 1].revents)
        continue;
      ssize_t k =
          recv(wait[i].fd, (char *)&wait[i].hello + wait[i].n, sizeof wait[i].hello - wait[i].n, 0);
      if (k < 0 && (errno == EAGAIN || errno == EINTR))
        continue;
      if (k > 0)
        wait[i].n += (size_t)k;
      if (k > 0 && wait[i].n < sizeof(Hello))
        continue;
      Hello h = wait[i].hello;
      bool right = k > 0 && h.magic == HELLO_MAGIC && h.secret == secret && (int)h.rank > g->rank &&
                   (int)h.rank < g->size && h.channel < 2;
      if (right) {
        take(e, (int)h.rank, h.channel, wait[i].fd);
        missing--;
      } else {
        close(wait[i].fd);
      }
      memmove(wait + i, wait + i + 1, (size_t)(--nwait - i) * sizeof *wait);
    }
    int fd = p[0].revents ? accept(listener, NULL, NULL) : -1;
    if (fd >= 0 && moth_wire_prepare(fd) < 0) {
      close(fd);
    } else if (fd >= 0) {
      if (nwait == PENDING) { /* ranks say who they are at once: the oldest is silent */
        close(wait[0].fd);
        memmove(wait, wait + 1, (size_t)--nwait * sizeof *wait);
      }
      wait[nwait].fd = fd;
      wait[nwait++].n = 0;
    }
  }
  for (int i = 0; i < nwait; i++)
    close(wait[i].fd);
  return status;
}

static MothStatus connect_lower(MothTcp *e, int rank, const char *host, int port, uint64_t secret,
                                double deadline) {
  for (uint32_t channel = e->own_data ? 0 : 1; channel < 2; channel++) {
    int fd = moth_wire_connect(host, port, deadline);
    if (fd < 0)
      return errno == EINTR
                 ? moth_interrupted()
                 : moth_fail(MOTH_ERR_IO, "cannot connect to rank %d at %s port %d: %s",
                             moth_group_world_rank(e->group, rank), host, port, strerror(errno));
    Hello h = {HELLO_MAGIC, secret, (uint32_t)e->group->rank, channel};
    take(e, rank, channel, fd);
    if (moth_wire_write(fd, &h, sizeof h, deadline) < 0)
      return moth_fail(MOTH_ERR_IO, "cannot talk to rank %d at %s port %d: %s",
                       moth_group_world_rank(e->group, rank), host, port, strerror(errno));
  }
  return MOTH_OK;
}

/* Publishes what other ranks need; an error if another process has done so as this rank. */
static MothStatus claim(MothGroup *g, MothStore *store, const char *name, MothBytes value) {
  MothBytes now;
  void *block = NULL;
  MOTH_TRY(moth_store_compare_set(store, (MothBytes){name, strlen(name)}, (MothBytes){"", 0}, value,
                                  &now, &block));
  MothStatus status = MOTH_OK;
  if (now.n != value.n || memcmp(now.data, value.data, now.n) != 0) {
    char text[300] = "", at[128], host[64] = "?";
    int port, pid = 0;
    snprintf(text, sizeof text, "%.*s", (int)now.n, now.data);
    sscanf(text, "%127s %d %d %63s", at, &port, &pid, host);
    status = moth_fail(MOTH_ERR_VALUE,
                       "rank %d is there already (pid %d on %s): it was started twice, or another "
                       "job uses the same MASTER_ADDR and MASTER_PORT",
                       moth_group_world_rank(g, g->rank), pid, host);
  }
  free(block);
  return status;
}

/* MOTH_GLOO=always, hosts (between hosts alone), never (the default: own sockets are faster where cores are busy, since the
 * thread of Gloo's device looks again and again at a connection whose lock another thread has). */
static int wish_for_gloo(const MothGroup *g) {
  static const char *const words[] = {"never", "hosts", "always", NULL};
  int wish = moth_env_choice("MOTH_GLOO", words);
  return g->engine == &moth_engine_gloo && wish > 0 && moth_transport_available("gloo") ? wish : 0;
}

/* What each rank publishes: "address port pid host secret detail gloo file nonce". All read all, and so agree: on what rank
 * 0 wishes, and by what data travels. */
typedef struct Published {
  char address[128], host[64];
  int port, pid, detail, gloo, file; /* file: of shared memory; -1: none */
  unsigned long long secret, nonce;
} Published;

static bool parse(MothBytes value, Published *p) {
  char text[300];
  snprintf(text, sizeof text, "%.*s", (int)value.n, value.data);
  return sscanf(text, "%127s %d %d %63s %llu %d %d %d %llu", p->address, &p->port, &p->pid, p->host,
                &p->secret, &p->detail, &p->gloo, &p->file, &p->nonce) == 9;
}

/* The values of all ranks at "key/rank<tail>". *block: to be freed. */
static MothStatus read_all(MothGroup *g, MothStore *store, const char *key, const char *tail,
                           double deadline, MothBytes *values, void **block) {
  MothBytes *keys = calloc((size_t)g->size, sizeof *keys);
  char(*names)[220] = calloc((size_t)g->size, sizeof *names);
  MothStatus status = keys && names ? MOTH_OK : moth_no_memory(0);
  for (int i = 0; status == MOTH_OK && i < g->size; i++) {
    snprintf(names[i], sizeof names[i], "%s/%d%s", key, i, tail);
    keys[i] = (MothBytes){names[i], strlen(names[i])};
  }
  double left = deadline - moth_wire_now();
  if (status == MOTH_OK)
    status = moth_store_get(store, g->size, keys, left > 0 ? left : 0, values, block);
  free(keys);
  free(names);
  return status;
}

/* Opens the memory of all ranks, if all can. */
static MothStatus share(MothTcp *e, MothStore *store, const char *key, const Published *all,
                        double deadline) {
  MothGroup *g = e->group;
  bool ok = e->shared != NULL;
  for (int i = 0; i < g->size && ok; i++)
    ok = i == g->rank || (all[i].file >= 0 &&
                          moth_shared_open(e->shared, i, all[i].pid, all[i].file, all[i].nonce));
  char name[220];
  snprintf(name, sizeof name, "%s/%d/shared", key, g->rank);
  MOTH_TRY(moth_store_set(store, (MothBytes){name, strlen(name)}, (MothBytes){ok ? "1" : "0", 1}));
  MothBytes *values = calloc((size_t)g->size, sizeof *values);
  void *block = NULL;
  if (!values)
    return moth_no_memory((size_t)g->size * sizeof *values);
  MothStatus status = read_all(g, store, key, "/shared", deadline, values, &block);
  for (int i = 0; status == MOTH_OK && i < g->size; i++)
    ok &= values[i].n == 1 && values[i].data[0] == '1';
  if (status == MOTH_OK && ok) {
    moth_shared_settle(e->shared);
    e->own_data = false;
    g->by = "shared memory";
    g->last = moth_shared_last(e->shared, g->rank);
  }
  free(values);
  free(block);
  return status;
}

static MothStatus agree(MothTcp *e, MothStore *store, const char *key, int listener, double timeout,
                        double deadline, Published *all) {
  MothGroup *g = e->group;
  MothBytes *values = calloc((size_t)g->size, sizeof *values);
  void *block = NULL;
  MothStatus status =
      values ? read_all(g, store, key, "", deadline, values, &block) : MOTH_ERR_MEMORY;
  if (status != MOTH_OK && strstr(moth_last_error(), "nobody set"))
    status = moth_fail(MOTH_ERR_IO, "not all %d ranks came within %g s (%s)", g->size, timeout,
                       moth_last_error());
  bool hosts = false, gloo = true, shared = true;
  for (int i = 0; status == MOTH_OK && i < g->size; i++) {
    if (!parse(values[i], &all[i])) {
      status = moth_fail(MOTH_ERR_IO, "rank %d published nonsense", i);
      break;
    }
    gloo &= all[i].gloo > 0;
    hosts |= strcmp(all[0].host, all[i].host) != 0;
    shared &= all[i].file >= 0;
    snprintf(e->peers[i].about, sizeof e->peers[i].about, "pid %d on %s", all[i].pid, all[i].host);
  }
  free(values);
  free(block);
  if (status != MOTH_OK)
    return status;
  e->detail = all[0].detail;
  bool by_gloo = gloo && (all[0].gloo == 2 || (all[0].gloo == 1 && hosts));
  const char *by = g->engine == &moth_engine_mpi ? "mpi" : by_gloo ? "gloo" : NULL;
  e->own_data = !by;
  if (by)
    g->by = by;
  else if (shared && !hosts)
    MOTH_TRY(share(e, store, key, all, deadline));
  if (e->shared && g->last == &g->own_last) {
    moth_shared_free(e->shared);
    e->shared = NULL;
  }
  for (int i = 0; i < g->rank; i++)
    MOTH_TRY(connect_lower(e, i, all[i].address, all[i].port, all[0].secret, deadline));
  MOTH_TRY(accept_higher(e, listener, all[0].secret, deadline));
  return by ? moth_transport_connect(e, by, store, key, deadline) : MOTH_OK;
}

MothStatus moth_tcp_connect(MothTcp *e, MothStore *store, const char *key, double timeout) {
  MothGroup *g = e->group;
  double deadline = moth_wire_now() + timeout;
  char address[128], host[64] = "?", name[200], value[300];
  int port, file = -1;
  g->by = g->engine == &moth_engine_nccl ? "nccl" : "tcp";
  if (g->size == 1)
    return g->engine == &moth_engine_nccl ? moth_nccl_connect(e, store, key, deadline) : MOTH_OK;
  if (g->engine == &moth_engine_mpi)
    MOTH_TRY(moth_transport_need_mpi());
  MOTH_TRY(moth_data_address(store, address, sizeof address));
  int listener = moth_wire_listen(address, 0, &port);
  if (listener < 0)
    return moth_fail(MOTH_ERR_IO, "cannot listen on %s: %s", address, strerror(errno));
  gethostname(host, sizeof host - 1);
  uint64_t
      secret = 0,
      nonce =
          0; /* what only the ranks of this group know: rank 0 draws it, the store hands it out */
  if (g->rank == 0 && !moth_token_draw(&secret, sizeof secret)) {
    close(listener);
    return moth_fail(MOTH_ERR_IO, "no random bytes: %s", strerror(errno));
  }
  if (g->engine != &moth_engine_tcp && g->engine != &moth_engine_mpi &&
      moth_env_flag("MOTH_SHARED_MEMORY", true))
    e->shared = moth_shared_new(g->rank, g->size, &file, &nonce);
  int n = snprintf(value, sizeof value, "%s %d %d %s %llu %d %d %d %llu", address, port,
                   (int)getpid(), host, (unsigned long long)secret, moth_comm_debug() == 2,
                   wish_for_gloo(g), file, (unsigned long long)nonce);
  snprintf(name, sizeof name, "%s/%d", key, g->rank);
  MothStatus status = claim(g, store, name, (MothBytes){value, (size_t)n});
  Published *all = calloc((size_t)g->size, sizeof *all);
  if (status == MOTH_OK && !all)
    status = moth_no_memory((size_t)g->size * sizeof *all);
  if (status == MOTH_OK)
    status = agree(e, store, key, listener, timeout, deadline, all);
  if (status == MOTH_OK && g->engine == &moth_engine_nccl)
    status = moth_nccl_connect(e, store, key, deadline);
  close(listener);
  free(all);
  return status;
}

/* What a rank has called last, where its memory is seen. */
static const MothCommLast *tcp_last_of(MothGroup *g, int rank) {
  MothTcp *e = g->state;
  return e && e->shared ? moth_shared_last(e->shared, rank) : NULL;
}

static void free_engine(MothTcp *e) {
  e->group->last = &e->group->own_last;
  moth_shared_free(e->shared);
  moth_transport_close(e);
  moth_nccl_close(e);
  for (int i = 0; e->peers && i < e->group->size; i++) {
    if (e->peers[i].data >= 0)
      close(e->peers[i].data);
    if (e->peers[i].control >= 0)
      close(e->peers[i].control);
    free(e->peers[i].text);
  }
  if (e->alarm[0] >= 0)
    close(e->alarm[0]);
  if (e->bell[0] >= 0)
    close(e->bell[0]);
  pthread_mutex_destroy(&e->lock);
  pthread_cond_destroy(&e->changed);
  free(e->peers);
  free(e->scratch);
  free(e);
}

static MothStatus tcp_open(MothGroup *g, MothStore *store, const char *key, double timeout) {
  MothTcp *e = calloc(1, sizeof *e);
  if (!e)
    return moth_no_memory(sizeof *e);
  e->group = g;
  e->last_posted = &e->posted;
  e->alarm[0] = e->bell[0] = -1;
  moth_comm_lock(&e->lock, &e->changed);
  e->peers = calloc((size_t)g->size, sizeof *e->peers);
  for (int i = 0; e->peers && i < g->size; i++) {
    e->peers[i].data = e->peers[i].control = -1;
    e->peers[i].last = &e->peers[i].first;
  }
  MothStatus status = MOTH_OK;
  if (!e->peers || moth_wire_bell(e->alarm) < 0 || moth_wire_bell(e->bell) < 0)
    status = moth_fail(MOTH_ERR_MEMORY, "no memory or descriptors for the group");
  if (status == MOTH_OK)
    status = moth_tcp_connect(e, store, key, timeout);
  g->state = e;
  if (status == MOTH_OK && moth_comm_thread(&e->thread, "moth control", moth_tcp_control, e))
    status = moth_fail(MOTH_ERR_MEMORY, "no thread could be started");
  if (status != MOTH_OK) {
    free_engine(e);
    g->state = NULL;
  }
  return status;
}

static void tcp_wake(MothGroup *g) {
  MothTcp *e = g->state;
  if (e) {
    moth_wire_ring(e->alarm);
    moth_wire_ring(e->bell);
    moth_transport_wake(e);
    moth_shared_wake(e->shared);
  }
}

static void tcp_close(MothGroup *g) {
  MothTcp *e = g->state;
  if (e->transport && !atomic_load(&g->broken))
    moth_tcp_linger(e);
  pthread_mutex_lock(&e->lock);
  e->closing = true;
  pthread_mutex_unlock(&e->lock);
  moth_wire_ring(e->bell);
  pthread_join(e->thread, NULL);
  pthread_mutex_lock(&g->lock); /* nobody wakes it any more */
  g->closed = true;
  g->state = NULL;
  g->last = &g->own_last;
  pthread_mutex_unlock(&g->lock);
  free_engine(e);
}

/* They differ in what data travels by, which moth_tcp_connect settles. */
#define ENGINE(by)                                                                                 \
  {                                                                                                \
    .name = by, .open = tcp_open, .run = moth_tcp_run, .attempt = moth_tcp_attempt,                \
    .post = moth_tcp_post, .wake = tcp_wake, .close = tcp_close, .last_of = tcp_last_of            \
  }
const MothEngine moth_engine_tcp = ENGINE("tcp"), moth_engine_gloo = ENGINE("gloo"),
                 moth_engine_mpi = ENGINE("mpi"), moth_engine_nccl = ENGINE("nccl");
