/* Steps by the library Gloo, for hosts whose network it knows better: libmoth_gloo.so (gloo.cc), which is built where
 * libgloo-dev is, and opened when it is first wanted. Everything else is that of the tcp engine: who takes part, heads,
 * messages, faults. The control thread wakes whoever waits here, some times a second. */
#include "comm/gloo.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/gloo_shim.h"
#include "comm/interfaces.h"
#include "comm/tcp_steps.h"
#include "comm/wire.h"
#include "core/error.h"

enum { HEADS, DATA }; /* slots */
enum {
  PARTS = 4,
  WHOLE = 512 << 10
}; /* what is longer travels in parts: one is reduced while the next comes */

static const MothGlooApi *api;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_library(void) {
  Dl_info here;
  char path[768];
  if (!dladdr((void *)open_library, &here) || !here.dli_fname)
    return;
  const char *slash = strrchr(here.dli_fname, '/');
  snprintf(path, sizeof path, "%.*slibmoth_gloo.so", slash ? (int)(slash + 1 - here.dli_fname) : 0,
           here.dli_fname);
  void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const MothGlooApi *found = lib ? dlsym(lib, "moth_gloo_api") : NULL;
  if (found && found->version == MOTH_GLOO_VERSION)
    api = found;
}

bool moth_gloo_available(void) {
  pthread_once(&once, open_library);
  return api != NULL;
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
  int m = snprintf(name, sizeof name, "%s/gloo/%s", k->prefix, key);
  return moth_store_set(k->store, (MothBytes){name, (size_t)m}, (MothBytes){data, n}) == MOTH_OK;
}

static bool get_key(void *ctx, const char *key, void **block, const char **data, size_t *n) {
  Keys *k = ctx;
  char name[300];
  int m = snprintf(name, sizeof name, "%s/gloo/%s", k->prefix, key);
  MothBytes value, asked = {name, (size_t)m};
  double left = k->deadline - moth_wire_now();
  if (moth_store_get(k->store, 1, &asked, left > 0 ? left : 0, &value, block) != MOTH_OK)
    return false;
  *data = value.data;
  *n = value.n;
  return true;
}

MothStatus moth_gloo_connect(MothTcp *e, MothStore *store, const char *key, double deadline) {
  MothGroup *g = e->group;
  char address[128], why[400] = "";
  Keys keys = {store, key, deadline};
  MothGlooStore shared = {&keys, set_key, get_key};
  MOTH_TRY(moth_data_address(store, address, sizeof address));
  double left = deadline - moth_wire_now();
  e->gloo = api->open(address, g->rank, g->size, left > 0 ? left : 0, &shared, why, sizeof why);
  return e->gloo ? MOTH_OK
                 : moth_fail(MOTH_ERR_IO, "Gloo could not connect rank %d: %s",
                             moth_group_world_rank(g, g->rank), why);
}

void moth_gloo_wake(MothTcp *e) {
  if (e->gloo)
    api->wake(e->gloo);
}
void moth_gloo_close(MothTcp *e) {
  if (e->gloo)
    api->close(e->gloo);
  e->gloo = NULL;
}

/* --- steps -------------------------------------------------------------------------------------- */

/* What was posted for a transfer. */
typedef struct Posts {
  void *head, *part[PARTS];
  MothCommHead theirs;
} Posts;

/* The bytes of part k begin at this one. */
static int64_t part_at(const MothTransfer *t, int64_t itemsize, int k) {
  if (t->n <= WHOLE)
    return k == 0 ? 0 : t->n;
  int64_t each = (t->n / itemsize + PARTS - 1) / PARTS * itemsize, at = each * k;
  return at < t->n ? at : t->n;
}

static bool await(MothRun *r, void *posted, const MothTransfer *t) {
  MothTcp *e = r->e;
  for (;;) {
    int done = posted ? api->wait(e->gloo, posted, t->sends) : -1;
    if (done > 0)
      return true;
    if (atomic_load(&r->g->broken) || atomic_load(&r->g->closing))
      return false;
    if (done < 0)
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
      p->part[k] = api->post(r->e->gloo, t->peer, t->sends, DATA, t->data + at, (size_t)(end - at));
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

/* Heads come first: what follows has the size that they say, or Gloo would break the connection. Between two ranks one head
 * is enough for a call, since all sizes follow from it. */
static bool run_step(MothRun *r, MothTransfer *t, int n, Posts *p) {
  bool check = r->e->detail && r->step == 1; /* it says nothing of sizes */
  for (int i = 0; i < n; i++) {
    MothTcpPeer *peer = &r->e->peers[t[i].peer];
    if (peer->met[t[i].sends] != r->w->head.seq) {
      peer->met[t[i].sends] = check ? 0 : r->w->head.seq;
      p[i].head = api->post(r->e->gloo, t[i].peer, t[i].sends, HEADS,
                            t[i].sends ? &t[i].head : &p[i].theirs, sizeof t[i].head);
      if (!p[i].head)
        return await(r, NULL, &t[i]);
      t[i].head_done = 1;
    }
    if (t[i].sends)
      post_data(r, &t[i], &p[i]);
  }
  for (int i = 0; i < n; i++) {
    if (t[i].sends)
      continue;
    if (t[i].head_done &&
        (!await(r, p[i].head, &t[i]) || !moth_tcp_check_head(r, &t[i], &p[i].theirs)))
      return false;
    post_data(r, &t[i], &p[i]);
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

bool moth_gloo_step(MothRun *r, MothTransfer *t, int n) {
  Posts *p = calloc((size_t)n + 1, sizeof *p);
  if (!p) {
    moth_group_fault(r->g, "rank %d has no memory", moth_group_world_rank(r->g, r->g->rank));
    return false;
  }
  r->step++;
  for (int i = 0; i < n; i++) {
    t[i].head = r->w->head;
    if (!t[i].number)
      t[i].number = r->step;
    t[i].head.step = t[i].number;
    t[i].head.nbytes = t[i].n;
    t[i].head_done = 0;
    *(t[i].sends ? &r->g->stats.bytes_sent : &r->g->stats.bytes_received) += t[i].n;
  }
  atomic_store(&r->e->waits, true);
  bool ok = run_step(r, t, n, p);
  atomic_store(&r->e->waits, false);
  for (int i = 0; i < n; i++) {
    if (p[i].head)
      api->drop(r->e->gloo, p[i].head);
    for (int k = 0; k < PARTS; k++)
      if (p[i].part[k])
        api->drop(r->e->gloo, p[i].part[k]);
  }
  free(p);
  return ok;
}
