/* The collectives of the tcp engine, on the group's thread. Each is a sequence of steps; in a step a rank sends to some
 * ranks and receives from some, all at the same time. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "comm/tcp.h"
#include "comm/thread.h"
#include "comm/wire.h"
#include "core/error.h"

enum {
  SMALL = 16 << 10,        /* bytes that go to all ranks directly rather than around the ring */
  SMALL_OF_TWO = 64 << 10, /* the same for two ranks */
  PIECE = 256 << 10,       /* what is received before it is reduced */
  CHAIN = 1 << 20          /* pieces of a broadcast along the chain */
};

/* One direction of a step. */
typedef struct Transfer {
  int peer;
  bool sends;
  char *data;      /* sent from, or received to (the scratch memory of reductions) */
  int64_t n;       /* bytes */
  const char *own; /* a reduction: to[i] = own[i] op received[i] */
  char *to;
  uint32_t number; /* of the step; 0: counted */
  MothCommHead head;
  size_t head_done;
  int64_t done,
      reduced; /* bytes; while reducing, `done` counts all and data holds what is not reduced yet */
} Transfer;

typedef struct Run {
  MothTcp *e;
  MothGroup *g;
  MothWork *w;
  uint32_t step;
} Run;

static void copy(char *to, const char *from, size_t n) {
  if (n > 0 && to != from)
    memmove(to, from, n);
}

/* --- faults ------------------------------------------------------------------------------------- */

/* The connection to a rank broke: the control thread, or the launcher, knows more. */
static bool lost(Run *r, int peer, int error) {
  MothTcpPeer *p = &r->e->peers[peer];
  char rank[160], text[16];
  double until = moth_wire_now() + (moth_comm_watched() ? 0.6 : 0.25);
  while (moth_wire_now() < until && !moth_group_is_broken(r->g, text, sizeof text) &&
         !atomic_load(&p->left)) {
    struct pollfd alarm = {.fd = r->e->alarm[0], .events = POLLIN};
    poll(&alarm, 1, 2);
  }
  if (atomic_load(&p->left))
    moth_group_fault(r->g,
                     "%s has left the group: its process called destroy_process_group, or ended",
                     moth_tcp_rank(r->e, peer, rank, sizeof rank));
  else
    moth_group_fault(r->g, "%s closed its connection (%s): its process has ended",
                     moth_tcp_rank(r->e, peer, rank, sizeof rank), strerror(error));
  return false;
}

static bool differ(Run *r, const MothCommHead *theirs) {
  char mine[300], other[300];
  if (theirs->magic != r->w->head.magic) {
    moth_group_fault(r->g, "what rank %d sent is no message of moth's", (int)theirs->sender);
    return false;
  }
  int here = moth_group_world_rank(r->g, r->g->rank),
      there = moth_group_world_rank(r->g, theirs->sender);
  moth_group_fault(r->g, "the calls of ranks do not match: rank %d calls %s%s%s, rank %d calls %s",
                   here, moth_comm_head_text(&r->w->head, mine, sizeof mine),
                   r->w->where[0] ? " at " : "", r->w->where, there,
                   moth_comm_head_text(theirs, other, sizeof other));
  return false;
}

/* --- steps -------------------------------------------------------------------------------------- */

/* 1: progress, 0: none now, -1: the group is broken. */
static int send_some(Run *r, Transfer *t) {
  struct iovec v[2];
  int n = 0;
  if (t->head_done < sizeof t->head)
    v[n++] = (struct iovec){(char *)&t->head + t->head_done, sizeof t->head - t->head_done};
  if (t->done < t->n)
    v[n++] = (struct iovec){t->data + t->done, (size_t)(t->n - t->done)};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
  ssize_t k = sendmsg(r->e->peers[t->peer].data, &m, MSG_NOSIGNAL);
  if (k < 0)
    return errno == EAGAIN || errno == EINTR ? 0 : (lost(r, t->peer, errno), -1);
  size_t head = sizeof t->head - t->head_done;
  if ((size_t)k < head)
    head = (size_t)k;
  t->head_done += head;
  t->done += k - (ssize_t)head;
  return 1;
}

static void reduce_some(Run *r, Transfer *t, int64_t held) {
  const int64_t size = r->w->itemsize, whole = held / size * size;
  moth_reduce_elements(r->w->head.reduce, (MothDType)r->w->head.dtype, t->own + t->reduced, t->data,
                       t->to + t->reduced, held / size);
  t->reduced += whole;
  if (held > whole)
    memmove(t->data, t->data + whole, (size_t)(held - whole));
}

static int receive_some(Run *r, Transfer *t) {
  int fd = r->e->peers[t->peer].data;
  ssize_t k;
  if (t->head_done < sizeof t->head) {
    k = recv(fd, (char *)&t->head + t->head_done, sizeof t->head - t->head_done, 0);
    if (k > 0 && (t->head_done += (size_t)k) == sizeof t->head) {
      bool same = t->head.magic == r->w->head.magic && moth_comm_same_call(&t->head, &r->w->head);
      if (same && (t->head.nbytes != t->n || t->head.step != t->number)) {
        moth_group_fault(
            r->g,
            "rank %d gives %lld bytes where rank %d expects %lld in #%lld %s: sizes or splits "
            "of the two ranks differ",
            moth_group_world_rank(r->g, t->peer), (long long)t->head.nbytes,
            moth_group_world_rank(r->g, r->g->rank), (long long)t->n, (long long)r->w->head.seq,
            moth_comm_op_name(r->w->head.op));
        return -1;
      }
      if (!same)
        return differ(r, &t->head) ? 0 : -1;
    }
  } else {
    int64_t held = t->own ? t->done - t->reduced : t->done, want = t->n - t->done;
    if (t->own && want > PIECE - held)
      want = PIECE - held;
    k = recv(fd, t->data + held, (size_t)want, 0);
    if (k > 0) {
      t->done += k;
      held += k;
      if (t->own && (held >= PIECE / 2 || t->done == t->n))
        reduce_some(r, t, held);
    }
  }
  if (k == 0)
    return lost(r, t->peer, ECONNRESET), -1;
  if (k < 0)
    return errno == EAGAIN || errno == EINTR ? 0 : (lost(r, t->peer, errno), -1);
  return 1;
}

static bool is_done(const Transfer *t) {
  return t->head_done == sizeof t->head && t->done == t->n;
}

static bool timed_out(Run *r) {
  char text[MOTH_COMM_TEXT];
  moth_tcp_diagnose(r->e, r->w, text, sizeof text);
  moth_group_fault(r->g, "%s", text);
  return false;
}

/* Runs transfers until all are done. */
static bool step(Run *r, Transfer *t, int n) {
  struct pollfd few[18], *p = few;
  bool ok = true;
  r->step++;
  for (int i = 0; i < n; i++) {
    t[i].head = r->w->head;
    if (!t[i].number)
      t[i].number = r->step;
    t[i].head.step = t[i].number;
    t[i].head.nbytes = t[i].n;
    t[i].head_done = 0;
    t[i].done = t[i].reduced = 0;
    if (t[i].sends)
      r->g->stats.bytes_sent += t[i].n;
    else
      r->g->stats.bytes_received += t[i].n;
  }
  if (n + 1 > 18 && !(p = malloc((size_t)(n + 1) * sizeof *p))) {
    moth_group_fault(r->g, "rank %d has no memory", moth_group_world_rank(r->g, r->g->rank));
    return false;
  }
  for (;;) {
    int left = 0, moved = 0;
    for (int i = 0; i < n && ok; i++) {
      if (is_done(&t[i]))
        continue;
      int k = t[i].sends ? send_some(r, &t[i]) : receive_some(r, &t[i]);
      ok = k >= 0;
      moved |= k > 0;
      left += !is_done(&t[i]);
    }
    if (!ok || left == 0)
      break;
    if (moved)
      continue;
    int np = 1;
    p[0] = (struct pollfd){.fd = r->e->alarm[0], .events = POLLIN};
    for (int i = 0; i < n; i++)
      if (!is_done(&t[i]))
        p[np++] = (struct pollfd){.fd = r->e->peers[t[i].peer].data,
                                  .events = t[i].sends ? POLLOUT : POLLIN};
    poll(p, (nfds_t)np, moth_wire_left(r->w->deadline, 1000));
    if (p[0].revents) { /* broken or closing */
      ok = false;
      break;
    }
    if (moth_wire_now() >= r->w->deadline) {
      ok = timed_out(r);
      break;
    }
  }
  if (p != few)
    free(p);
  return ok;
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
  free(t);
  return ok;
}

/* --- reductions --------------------------------------------------------------------------------- */

static void describe_small(Run *r, int peer, Transfer *s, Transfer *v) {
  int64_t n = r->w->nin * r->w->itemsize;
  s->data = (char *)r->w->in;
  v->data = r->e->scratch + peer * n;
  s->n = v->n = n;
}

/* Everybody sends everything to everybody, and adds in the order of the ranks. */
static bool small_all_reduce(Run *r) {
  MothWork *w = r->w;
  int64_t n = w->nin * w->itemsize;
  if (!scratch(r, n * r->g->size + 1) || !all_at_once(r, describe_small))
    return false;
  char *all = r->e->scratch;
  copy(all + r->g->rank * n, w->in, (size_t)n);
  for (int i = 1; i < r->g->size; i++)
    moth_reduce_elements(w->head.reduce, (MothDType)w->head.dtype, all, all + i * n, all, w->nin);
  if (w->head.reduce == MOTH_COMM_AVG)
    moth_divide_elements((MothDType)w->head.dtype, all, w->nin, r->g->size);
  copy(w->out, all, (size_t)n);
  return true;
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

static bool all_reduce(Run *r) {
  MothWork *w = r->w;
  int rank = r->g->rank, size = r->g->size;
  int64_t n = w->nin * w->itemsize;
  if (n <= (size == 2 ? SMALL_OF_TWO : SMALL))
    return small_all_reduce(r);
  if (!scratch(r, PIECE) || !ring_reduce(r, w->in, w->out, w->nin, r->e->scratch))
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
  char *room = scratch(r, PIECE + n);
  if (!room || !ring_reduce(r, w->in, room + PIECE, w->nin, room))
    return false;
  char *sums = room + PIECE;
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
  char *room = scratch(r, PIECE + 2 * n);
  if (!room)
    return false;
  char *partial[2] = {room + PIECE, room + PIECE + n};
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

/* A group of one rank. */
static bool alone(MothWork *w) {
  if (w->head.op != MOTH_COMM_BARRIER && w->out && w->out != w->in)
    copy(w->out, w->in, (size_t)(w->nout * w->itemsize));
  return true;
}

bool moth_tcp_run(MothGroup *g, MothWork *w) {
  Run r = {.e = g->state, .g = g, .w = w};
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
  return g->size == 1 ? alone(w) : run[w->head.op](&r);
}
