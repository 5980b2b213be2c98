/* Steps by a library, for networks that it knows better than sockets do: Gloo by libmoth_gloo.so (gloo.cc), which is built
 * where libgloo-dev is, and MPI by libmoth_mpi.so (mpi/shim.c; `make mpi`), of the site's own MPI. Both are opened when
 * first wanted. Everything else is that of the tcp engine: who takes part, heads, messages, faults. The control thread
 * wakes whoever waits here, some times a second. */
#include "comm/transport.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/interfaces.h"
#include "comm/tcp_steps.h"
#include "comm/transport_shim.h"
#include "comm/wire.h"
#include "core/environment.h"
#include "core/error.h"

enum { HEADS, DATA }; /* slots */
enum {
  PARTS = 4,
  WHOLE = 512 << 10
}; /* what is longer travels in parts: one is reduced while the next comes */

static const MothTransportApi *gloo, *mpi;
static char why_mpi[1200];
static pthread_once_t once_gloo = PTHREAD_ONCE_INIT, once_mpi = PTHREAD_ONCE_INIT;

/* flags: libraries of MPI open parts of themselves, which look for its names among the global ones. */
static const MothTransportApi *open_library(const char *name, const char *from, int flags) {
  Dl_info here;
  char path[1024];
  if (!from) {
    if (!dladdr((void *)open_library, &here) || !here.dli_fname)
      return NULL;
    const char *slash = strrchr(here.dli_fname, '/');
    snprintf(path, sizeof path, "%.*slibmoth_%s.so", slash ? (int)(slash + 1 - here.dli_fname) : 0,
             here.dli_fname, name);
    from = path;
  }
  void *lib = dlopen(from, RTLD_NOW | flags);
  if (!lib && flags)
    snprintf(why_mpi, sizeof why_mpi, "%s", dlerror());
  const MothTransportApi *found = lib ? dlsym(lib, "moth_transport_api") : NULL;
  if (lib && flags && (!found || found->version != MOTH_TRANSPORT_VERSION))
    snprintf(why_mpi, sizeof why_mpi, "%s is of another version of moth: run make mpi again", from);
  return found && found->version == MOTH_TRANSPORT_VERSION ? found : NULL;
}
static void open_gloo(void) {
  gloo = open_library("gloo", NULL, RTLD_LOCAL);
}
static void open_mpi(void) {
  mpi = open_library("mpi", moth_env_text("MOTH_MPI_LIBRARY"), RTLD_GLOBAL);
}

static const MothTransportApi *api_of(const char *name) {
  bool is_mpi = strcmp(name, "mpi") == 0;
  pthread_once(is_mpi ? &once_mpi : &once_gloo, is_mpi ? open_mpi : open_gloo);
  return is_mpi ? mpi : gloo;
}
bool moth_transport_available(const char *name) {
  return api_of(name) != NULL;
}
MothStatus moth_transport_need_mpi(void) {
  return api_of("mpi")
             ? MOTH_OK
             : moth_fail(MOTH_ERR_IO,
                         "%s; HINT: make mpi MPICC=mpicc, with the mpicc of the mpirun that "
                         "starts the job; MOTH_MPI_LIBRARY names another place",
                         why_mpi);
}

/* --- opening ------------------------------------------------------------------------------------ */

typedef struct Keys {
  MothStore *store;
  const char *prefix;
  double deadline;
} Keys;

static bool set_key(void *ctx, const char *key, const void *data, size_t n) {
  Keys *k = ctx;
  char name[300];
  int m = snprintf(name, sizeof name, "%s/data/%s", k->prefix, key);
  return moth_store_set(k->store, (MothBytes){name, (size_t)m}, (MothBytes){data, n}) == MOTH_OK;
}

static bool get_key(void *ctx, const char *key, void **block, const char **data, size_t *n) {
  Keys *k = ctx;
  char name[300];
  int m = snprintf(name, sizeof name, "%s/data/%s", k->prefix, key);
  MothBytes value, asked = {name, (size_t)m};
  double left = k->deadline - moth_wire_now();
  if (moth_store_get(k->store, 1, &asked, left > 0 ? left : 0, &value, block) != MOTH_OK)
    return false;
  *data = value.data;
  *n = value.n;
  return true;
}

MothStatus moth_transport_connect(MothTcp *e, const char *name, MothStore *store, const char *key,
                                  double deadline) {
  MothGroup *g = e->group;
  char address[128], why[400] = "";
  Keys keys = {store, key, deadline};
  MothTransportStore shared = {&keys, set_key, get_key};
  e->api = api_of(name);
  MOTH_TRY(moth_data_address(store, address, sizeof address));
  double left = deadline - moth_wire_now();
  e->transport =
      e->api->open(address, g->rank, g->size, left > 0 ? left : 0, &shared, why, sizeof why);
  return e->transport ? MOTH_OK
                      : moth_fail(MOTH_ERR_IO, "%s could not connect rank %d: %s", e->api->name,
                                  moth_group_world_rank(g, g->rank), why);
}

void moth_transport_wake(MothTcp *e) {
  if (e->transport)
    e->api->wake(e->transport);
}
void moth_transport_close(MothTcp *e) {
  if (e->transport)
    e->api->close(e->transport, atomic_load(&e->group->broken));
  e->transport = NULL;
}

/* --- steps -------------------------------------------------------------------------------------- */

/* What was posted for a transfer. */
typedef struct MothPosts {
  bool begun, has_head; /* the head has come, and the data is posted */
  void *head, *part[PARTS];
  MothCommHead theirs;
} MothPosts;
typedef MothPosts Posts;

/* The bytes of part k begin at this one. */
static int64_t part_at(const MothTransfer *t, int64_t itemsize, int k) {
  if (t->n <= WHOLE)
    return k == 0 ? 0 : t->n;
  int64_t each = (t->n / itemsize + PARTS - 1) / PARTS * itemsize, at = each * k;
  return at < t->n ? at : t->n;
}

static bool await(MothRun *r, void *posted, const MothTransfer *t) {
  MothTcp *e = r->e;
  for (int done; r->looks;) {
    if ((done = posted ? e->api->test(e->transport, posted) : -1) > 0)
      return true;
    if (done < 0 || --r->looks == 0) {
      r->looks = 0;
      r->put_off = true;
      return false;
    }
  }
  for (;;) {
    int done = posted ? e->api->wait(e->transport, posted, t->sends) : -1;
    if (done > 0)
      return true;
    if (atomic_load(&r->g->broken) || atomic_load(&r->g->closing))
      return false;
    const MothTcpPeer *peer = &e->peers[t->peer];
    if (done < 0 || (atomic_load(&peer->left) && atomic_load(&peer->gone)))
      return moth_tcp_lost(r, t->peer, ECONNRESET);
    if (moth_wire_now() >= r->w->deadline)
      return moth_tcp_timed_out(r);
    if (!moth_tcp_stalled(r))
      return false;
  }
}

static void post_data(MothRun *r, const MothTransfer *t, Posts *p) {
  for (int k = 0; k < PARTS; k++) {
    int64_t at = part_at(t, r->w->itemsize, k), end = part_at(t, r->w->itemsize, k + 1);
    if (end > at)
      p->part[k] = r->e->api->post(r->e->transport, t->peer, t->sends, DATA, t->data + at,
                                   (size_t)(end - at));
  }
}

static bool finish_data(MothRun *r, const MothTransfer *t, Posts *p) {
  const int64_t size = r->w->itemsize;
  for (int k = 0; k < PARTS; k++) {
    int64_t at = part_at(t, size, k), end = part_at(t, size, k + 1);
    if (end <= at)
      continue;
    if (!await(r, p->part[k], t))
      return false;
    if (!t->sends && t->own)
      moth_reduce_elements(r->w->head.reduce, (MothDType)r->w->head.dtype, t->own + at,
                           t->data + at, t->to + at, (end - at) / size);
  }
  return true;
}

/* Heads come first: what follows has the size that they say, or Gloo and MPI would break the connection. Between two ranks one head
 * is enough for a call, since all sizes follow from it. */
static bool run_step(MothRun *r, MothTransfer *t, int n, Posts *p) {
  bool check = r->e->detail && r->step == 1; /* it says nothing of sizes */
  for (int i = 0; i < n; i++) {
    if (p[i].begun)
      continue;
    p[i].begun = true;
    MothTcpPeer *peer = &r->e->peers[t[i].peer];
    if (peer->met[t[i].sends] != r->w->head.seq) {
      peer->met[t[i].sends] = check ? 0 : r->w->head.seq;
      p[i].head = r->e->api->post(r->e->transport, t[i].peer, t[i].sends, HEADS,
                                  t[i].sends ? &t[i].head : &p[i].theirs, sizeof t[i].head);
      t[i].head_done = 1;
      if (!p[i].head)
        return await(r, NULL, &t[i]);
    }
    if (t[i].sends)
      post_data(r, &t[i], &p[i]);
  }
  for (int i = 0; i < n; i++) {
    if (t[i].sends || p[i].has_head)
      continue;
    if (t[i].head_done &&
        (!await(r, p[i].head, &t[i]) || !moth_tcp_check_head(r, &t[i], &p[i].theirs)))
      return false;
    post_data(r, &t[i], &p[i]);
    p[i].has_head = true;
  }
  for (int i = 0; i < n; i++)
    if (!t[i].sends && !finish_data(r, &t[i], &p[i]))
      return false;
  for (int i = 0; i < n; i++)
    if (t[i].sends &&
        ((t[i].head_done && !await(r, p[i].head, &t[i])) || !finish_data(r, &t[i], &p[i])))
      return false;
  return true;
}

bool moth_transport_step(MothRun *r, MothTransfer *t, int n) {
  Posts *p = r->posts ? r->posts : calloc((size_t)n + 1, sizeof *p);
  if (!p) {
    moth_group_fault(r->g, "rank %d has no memory", moth_group_world_rank(r->g, r->g->rank));
    return false;
  }
  atomic_store(&r->e->waits, true);
  bool ok = run_step(r, t, n, p);
  r->posts = r->put_off ? p : NULL;
  if (r->put_off)
    return false;
  atomic_store(&r->e->waits, false);
  for (int i = 0; i < n; i++) {
    if (p[i].head)
      r->e->api->drop(r->e->transport, p[i].head);
    for (int k = 0; k < PARTS; k++)
      if (p[i].part[k])
        r->e->api->drop(r->e->transport, p[i].part[k]);
  }
  free(p);
  return ok;
}
