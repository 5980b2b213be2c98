/* The collectives of the engines tcp and gloo, on the group's thread: sequences of steps. */
#include <stdlib.h>
#include <string.h>

#include "comm/nccl.h"
#include "comm/tcp_steps.h"
#include "comm/transport_shim.h"
#include "comm/wire.h"
#include "core/error.h"

enum {
  SMALL = 16 << 10,        /* bytes that go to all ranks directly rather than around the ring */
  SMALL_OF_TWO = 64 << 10, /* the same for two ranks */
  CHAIN = 1 << 20,         /* pieces of a broadcast along the chain */
  LOOKS = 300              /* of a caller, before the group's thread goes on: some microseconds */
};

typedef MothTransfer Transfer;
typedef MothRun Run;

static void copy(char *to, const char *from, size_t n) {
  if (n > 0 && to != from)
    memmove(to, from, n);
}

static bool step(Run *r, Transfer *t, int n) {
  moth_tcp_begin_step(r, t, n);
  return r->e->transport ? moth_transport_step(r, t, n) : moth_tcp_step(r, t, n);
}

/* Memory that a step needs to receive n bytes that it reduces. */
static int64_t room_for(const Run *r, int64_t n) {
  return r->e->transport ? n : MOTH_TCP_PIECE;
}

static Transfer send_to(int peer, const char *data, int64_t n) {
  return (Transfer){.peer = peer, .sends = true, .data = (char *)data, .n = n};
}
static Transfer receive_from(int peer, char *data, int64_t n) {
  return (Transfer){.peer = peer, .data = data, .n = n};
}

/* Memory of this engine until the next call; NULL: there is none, and the group is broken. */
static char *scratch(Run *r, int64_t n) {
  if ((size_t)n > r->e->nscratch) {
    free(r->e->scratch);
    r->e->scratch = malloc((size_t)n);
    r->e->nscratch = r->e->scratch ? (size_t)n : 0;
    if (!r->e->scratch)
      moth_group_fault(r->g, "rank %d has no memory for %lld bytes",
                       moth_group_world_rank(r->g, r->g->rank), (long long)n);
  }
  return r->e->scratch;
}

/* A step with a transfer to and from each other rank. */
typedef void (*Describe)(Run *r, int peer, Transfer *send, Transfer *receive);

/* All ranks to all others. Where describe gives a negative size, nothing travels. */
static bool all_at_once(Run *r, Describe describe) {
  int size = r->g->size, n = 0;
  Transfer *t = calloc(2 * (size_t)size, sizeof *t);
  if (!t) {
    moth_group_fault(r->g, "rank %d has no memory", moth_group_world_rank(r->g, r->g->rank));
    return false;
  }
  for (int k = 1; k < size; k++) {
    int peer = (r->g->rank + k) % size;
    Transfer s = send_to(peer, NULL, -1), v = receive_from(peer, NULL, -1);
    describe(r, peer, &s, &v);
    if (s.n >= 0)
      t[n++] = s;
    if (v.n >= 0)
      t[n++] = v;
  }
  bool ok = step(r, t, n);
  if (r->put_off) {
    r->transfers = t;
    r->ntransfers = n;
  } else {
    free(t);
  }
  return ok;
}

/* --- reductions --------------------------------------------------------------------------------- */

static void describe_small(Run *r, int peer, Transfer *s, Transfer *v) {
  int64_t n = r->w->nin * r->w->itemsize;
  s->data = (char *)r->w->in;
  v->data = r->e->scratch + peer * n;
  s->n = v->n = n;
}

static bool add_small(Run *r) {
  MothWork *w = r->w;
  int64_t n = w->nin * w->itemsize;
  char *all = r->e->scratch;
  copy(all + r->g->rank * n, w->in, (size_t)n);
  for (int i = 1; i < r->g->size; i++)
    moth_reduce_elements(w->head.reduce, (MothDType)w->head.dtype, all, all + i * n, all, w->nin);
  if (w->head.reduce == MOTH_COMM_AVG)
    moth_divide_elements((MothDType)w->head.dtype, all, w->nin, r->g->size);
  copy(w->out, all, (size_t)n);
  return true;
}

/* Everybody sends everything to everybody, and adds in the order of the ranks. */
static bool small_all_reduce(Run *r) {
  MothWork *w = r->w;
  int64_t n = w->nin * w->itemsize;
  return scratch(r, n * r->g->size + 1) && all_at_once(r, describe_small) && add_small(r);
}

/* Where chunk i of count elements, cut into size chunks, begins, in bytes. */
static int64_t chunk(const Run *r, int64_t count, int i) {
  int64_t each = (count + r->g->size - 1) / r->g->size, at = each * i;
  return (at < count ? at : count) * r->w->itemsize;
}
static int ring(const Run *r, int i) {
  int size = r->g->size;
  return (i % size + size) % size;
}

/* A step around the ring: the bytes [a, b) of `from` go to the next rank; those that come from the one before are
 * reduced with `own` into `to`, or, where own is NULL, just put there. */
static bool pass(Run *r, const char *from, int64_t na, const char *own, char *to, int64_t nb,
                 char *room) {
  Transfer t[2] = {send_to(ring(r, r->g->rank + 1), from, na),
                   receive_from(ring(r, r->g->rank - 1), own ? room : to, nb)};
  t[1].own = own;
  t[1].to = to;
  return step(r, t, 2);
}

/* After it, chunk rank + 1 of `out` is that of all ranks. `in` may be out. */
static bool ring_reduce(Run *r, const char *in, char *out, int64_t count, char *room) {
  int rank = r->g->rank, size = r->g->size;
  for (int s = 0; s < size - 1; s++) {
    int a = ring(r, rank - s), b = ring(r, rank - s - 1);
    int64_t a0 = chunk(r, count, a), b0 = chunk(r, count, b);
    if (!pass(r, (s == 0 ? in : out) + a0, chunk(r, count, a + 1) - a0, in + b0, out + b0,
              chunk(r, count, b + 1) - b0, room))
      return false;
  }
  int mine = ring(r, rank + 1);
  int64_t at = chunk(r, count, mine), n = chunk(r, count, mine + 1) - at;
  if (r->w->head.reduce == MOTH_COMM_AVG)
    moth_divide_elements((MothDType)r->w->head.dtype, out + at, n / r->w->itemsize, size);
  return true;
}

static bool is_small(const MothGroup *g, int64_t nbytes) {
  return nbytes <= (g->size == 2 ? SMALL_OF_TWO : SMALL);
}

static bool all_reduce(Run *r) {
  MothWork *w = r->w;
  int rank = r->g->rank, size = r->g->size;
  int64_t n = w->nin * w->itemsize;
  if (is_small(r->g, n))
    return small_all_reduce(r);
  if (!scratch(r, room_for(r, chunk(r, w->nin, 1))) ||
      !ring_reduce(r, w->in, w->out, w->nin, r->e->scratch))
    return false;
  for (int s = 0; s < size - 1; s++) {
    int a = ring(r, rank + 1 - s), b = ring(r, rank - s);
    int64_t a0 = chunk(r, w->nin, a), b0 = chunk(r, w->nin, b);
    if (!pass(r, w->out + a0, chunk(r, w->nin, a + 1) - a0, NULL, w->out + b0,
              chunk(r, w->nin, b + 1) - b0, NULL))
      return false;
  }
  return true;
}

static bool reduce(Run *r) {
  MothWork *w = r->w;
  int rank = r->g->rank, size = r->g->size;
  int64_t n = w->nin * w->itemsize;
  int64_t own_room = room_for(r, chunk(r, w->nin, 1));
  char *room = scratch(r, own_room + n + 1);
  if (!room || !ring_reduce(r, w->in, room + own_room, w->nin, room))
    return false;
  char *sums = room + own_room;
  Transfer *t = calloc((size_t)size, sizeof *t);
  if (!t) {
    moth_group_fault(r->g, "rank %d has no memory", moth_group_world_rank(r->g, rank));
    return false;
  }
  int nt = 0, own = ring(r, rank + 1);
  int64_t at = chunk(r, w->nin, own), m = chunk(r, w->nin, own + 1) - at;
  if (rank != w->head.root) {
    t[nt++] = send_to(w->head.root, sums + at, m);
  } else {
    copy(w->out + at, sums + at, (size_t)m);
    for (int i = 0; i < size; i++) {
      int c = ring(r, i + 1);
      int64_t c0 = chunk(r, w->nin, c);
      if (i != rank)
        t[nt++] = receive_from(i, w->out + c0, chunk(r, w->nin, c + 1) - c0);
    }
  }
  bool ok = step(r, t, nt);
  free(t);
  return ok;
}

/* Partial sums of one chunk travel; chunk r ends at rank r. */
static bool reduce_scatter(Run *r) {
  MothWork *w = r->w;
  int rank = r->g->rank, size = r->g->size;
  int64_t n = w->nout * w->itemsize;
  int64_t own_room = room_for(r, n);
  char *room = scratch(r, own_room + 2 * n + 1);
  if (!room)
    return false;
  char *partial[2] = {room + own_room, room + own_room + n};
  const char *from = w->in + ring(r, rank - 1) * n;
  for (int s = 0; s < size - 1; s++) {
    int b = ring(r, rank - s - 2);
    char *to = partial[s & 1];
    if (!pass(r, from, n, w->in + b * n, to, n, room))
      return false;
    from = to;
  }
  copy(w->out, from, (size_t)n);
  if (w->head.reduce == MOTH_COMM_AVG)
    moth_divide_elements((MothDType)w->head.dtype, w->out, w->nout, size);
  return true;
}

/* --- movements ---------------------------------------------------------------------------------- */

static void describe_gather_all(Run *r, int peer, Transfer *s, Transfer *v) {
  int64_t n = r->w->nin * r->w->itemsize;
  s->data = (char *)r->w->in;
  v->data = r->w->out + peer * n;
  s->n = v->n = n;
}

static bool all_gather(Run *r) {
  MothWork *w = r->w;
  int rank = r->g->rank;
  int64_t n = w->nin * w->itemsize;
  char *own = w->out + rank * n;
  if (own != w->in)
    copy(own, w->in, (size_t)n);
  if (n <= SMALL)
    return all_at_once(r, describe_gather_all);
  for (int s = 0; s < r->g->size - 1; s++)
    if (!pass(r, w->out + ring(r, rank - s) * n, n, NULL, w->out + ring(r, rank - s - 1) * n, n,
              NULL))
      return false;
  return true;
}

static void describe_all_to_all(Run *r, int peer, Transfer *s, Transfer *v) {
  const MothWork *w = r->w;
  int size = r->g->size;
  int64_t even_in = w->nin / size * w->itemsize, even_out = w->nout / size * w->itemsize;
  s->data = (char *)w->in;
  v->data = w->out;
  for (int i = 0; i < peer; i++) {
    s->data += w->splits ? w->splits[i] : even_in;
    v->data += w->splits ? w->splits[size + i] : even_out;
  }
  s->n = w->splits ? w->splits[peer] : even_in;
  v->n = w->splits ? w->splits[size + peer] : even_out;
}

static bool all_to_all(Run *r) {
  Transfer s, v;
  describe_all_to_all(r, r->g->rank, &s, &v);
  copy(v.data, s.data, (size_t)(s.n < v.n ? s.n : v.n));
  return all_at_once(r, describe_all_to_all);
}

/* Small: from the root to each. Large: along a chain, in pieces. */
static bool broadcast(Run *r) {
  MothWork *w = r->w;
  int rank = r->g->rank, size = r->g->size, root = w->head.root, place = ring(r, rank - root);
  int64_t n = w->nout * w->itemsize;
  if (rank == root && w->out != w->in)
    copy(w->out, w->in, (size_t)n);
  Transfer *t = calloc((size_t)size, sizeof *t);
  bool ok = t != NULL;
  if (!ok) {
    moth_group_fault(r->g, "rank %d has no memory", moth_group_world_rank(r->g, rank));
  } else if (n <= SMALL || size == 2) {
    int nt = 0;
    if (rank != root)
      t[nt++] = receive_from(root, w->out, n);
    for (int i = 1; i < size && rank == root; i++)
      t[nt++] = send_to(ring(r, root + i), w->out, n);
    ok = step(r, t, nt);
  } else {
    int64_t pieces = (n + CHAIN - 1) / CHAIN;
    for (int64_t k = 0; k <= pieces && ok; k++) {
      int nt = 0;
      int64_t in = k * CHAIN, out = in - CHAIN;
      if (place > 0 && k < pieces)
        t[nt++] = receive_from(ring(r, rank - 1), w->out + in, n - in < CHAIN ? n - in : CHAIN);
      if (place < size - 1 && k > 0)
        t[nt++] = send_to(ring(r, rank + 1), w->out + out, n - out < CHAIN ? n - out : CHAIN);
      for (int i = 0; i < nt; i++) /* a piece has one number for its sender and its receiver */
        t[i].number = (uint32_t)(t[i].sends ? k : k + 1);
      ok = nt == 0 || step(r, t, nt);
    }
  }
  free(t);
  return ok;
}

static void describe_gather(Run *r, int peer, Transfer *s, Transfer *v) {
  const MothWork *w = r->w;
  bool to_root = w->head.op == MOTH_COMM_GATHER, at_root = r->g->rank == w->head.root;
  int64_t n = (to_root ? w->nin : w->nout) * w->itemsize;
  if (to_root && at_root) {
    v->data = w->out + peer * n;
    v->n = n;
  } else if (to_root && peer == w->head.root) {
    s->data = (char *)w->in;
    s->n = n;
  } else if (!to_root && at_root) {
    s->data = (char *)w->in + peer * n;
    s->n = n;
  } else if (!to_root && peer == w->head.root) {
    v->data = w->out;
    v->n = n;
  }
}

static bool gather(Run *r) {
  MothWork *w = r->w;
  if (r->g->rank == w->head.root) {
    bool to_root = w->head.op == MOTH_COMM_GATHER;
    int64_t n = (to_root ? w->nin : w->nout) * w->itemsize, at = r->g->rank * n;
    copy(w->out + (to_root ? at : 0), w->in + (to_root ? 0 : at), (size_t)n);
  }
  return all_at_once(r, describe_gather);
}

/* splits[0]: the rank to send to; splits[1]: the rank to receive from. */
static bool permute(Run *r) {
  MothWork *w = r->w;
  int64_t n = w->nin * w->itemsize;
  int to = (int)(w->splits[0] / w->itemsize), from = (int)(w->splits[r->g->size] / w->itemsize);
  if (to == r->g->rank) {
    copy(w->out, w->in, (size_t)n);
    return true;
  }
  Transfer t[2] = {send_to(to, w->in, n), receive_from(from, w->out, n)};
  return step(r, t, 2);
}

/* Dissemination: after k steps a rank knows of 2^k. */
static bool barrier(Run *r) {
  for (int d = 1; d < r->g->size; d *= 2) {
    char none = 0;
    Transfer t[2] = {send_to(ring(r, r->g->rank + d), &none, 0),
                     receive_from(ring(r, r->g->rank - d), &none, 0)};
    if (!step(r, t, 2))
      return false;
  }
  return true;
}

static void describe_nothing(Run *r, int peer, Transfer *s, Transfer *v) {
  (void)r, (void)peer;
  s->n = v->n = 0;
}

/* A group of one rank. */
static bool alone(MothWork *w) {
  if (w->head.op != MOTH_COMM_BARRIER && w->out && w->out != w->in)
    copy(w->out, w->in, (size_t)(w->nout * w->itemsize));
  return true;
}

/* By memory or a library that looks without waiting. Longer calls wait for data more than once, and bytes are then what
 * takes the time. */
bool moth_tcp_attempt(MothGroup *g, MothWork *w) {
  MothTcp *e = g->state;
  if (g->size == 1 && !e->nccl)
    return alone(w);
  bool looks = e->transport ? e->api->test != NULL : e->shared != NULL;
  if (!looks || e->detail || e->nccl || w->head.op != MOTH_COMM_ALL_REDUCE ||
      !is_small(g, w->nin * w->itemsize))
    return false;
  Run r = {.e = e, .g = g, .w = w, .look = moth_wire_now() + 0.1, .pause = 0.1, .looks = LOOKS};
  if (small_all_reduce(&r))
    return true;
  if (!r.put_off)
    return false;
  r.put_off = false;
  r.looks = 0;
  w->begun = true;
  e->begun = malloc(sizeof r);
  if (e->begun)
    *e->begun = r;
  else
    moth_group_fault(g, "rank %d has no memory", moth_group_world_rank(g, g->rank));
  return false;
}

/* Ends what was begun: where the group is broken or closing, too, since its memory is in use. */
static bool go_on(MothTcp *e) {
  Run *r = e->begun;
  bool ok = r &&
            (e->transport ? moth_transport_step(r, r->transfers, r->ntransfers)
                          : moth_tcp_step(r, r->transfers, r->ntransfers)) &&
            add_small(r);
  if (r)
    free(r->transfers);
  free(r);
  e->begun = NULL;
  return ok;
}

bool moth_tcp_run(MothGroup *g, MothWork *w) {
  if (w->begun)
    return go_on(g->state);
  Run r = {.e = g->state, .g = g, .w = w, .look = moth_wire_now() + 0.1, .pause = 0.1};
  static bool (*const run[])(Run *) = {[MOTH_COMM_ALL_REDUCE] = all_reduce,
                                       [MOTH_COMM_BROADCAST] = broadcast,
                                       [MOTH_COMM_REDUCE] = reduce,
                                       [MOTH_COMM_ALL_GATHER] = all_gather,
                                       [MOTH_COMM_REDUCE_SCATTER] = reduce_scatter,
                                       [MOTH_COMM_ALL_TO_ALL] = all_to_all,
                                       [MOTH_COMM_GATHER] = gather,
                                       [MOTH_COMM_SCATTER] = gather,
                                       [MOTH_COMM_PERMUTE] = permute,
                                       [MOTH_COMM_BARRIER] = barrier};
  bool on_device = r.e->nccl && w->ready; /* memory of the host travels by own sockets */
  if (g->size == 1 && !on_device)
    return alone(w);
  /* In detail, all ranks compare their calls first: some collectives do not bring each pair of ranks together. */
  return (!r.e->detail || all_at_once(&r, describe_nothing)) &&
         (on_device ? moth_nccl_run(&r) : run[w->head.op](&r));
}
