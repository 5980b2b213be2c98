/* The steps of the tcp engine, on the group's thread. See tcp_steps.h. */
#include "comm/tcp_steps.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "comm/wire.h"
#include "core/error.h"

/* --- faults ------------------------------------------------------------------------------------- */

bool moth_tcp_lost(MothRun *r, int peer, int error) {
  MothTcpPeer *p = &r->e->peers[peer];
  char rank[160], text[16];
  double now = moth_wire_now(), word = now + (moth_comm_watched() ? MOTH_TCP_WORD : 0);
  double until = word + 0.25;
  while (now < (atomic_load(&p->left) ? word : until) &&
         !moth_group_is_broken(r->g, text, sizeof text)) {
    struct pollfd alarm = {.fd = r->e->alarm[0], .events = POLLIN};
    poll(&alarm, 1, 2);
    now = moth_wire_now();
  }
  int number = moth_group_world_rank(r->g, peer);
  moth_tcp_rank(r->e, peer, rank, sizeof rank);
  if (atomic_load(&p->left))
    moth_group_blame(r->g, number,
                     "%s has left the group: its process called destroy_process_group, or ended",
                     rank);
  else
    moth_group_blame(r->g, number, "%s closed its connection (%s): its process has ended", rank,
                     strerror(error));
  return false;
}

bool moth_tcp_differ(MothRun *r, int peer, const MothCommHead *theirs) {
  char text[MOTH_COMM_TEXT];
  if (theirs->magic != r->w->head.magic)
    snprintf(text, sizeof text, "what rank %d sent is no message of moth's",
             moth_group_world_rank(r->g, peer));
  else
    moth_tcp_mismatch(r->e, r->w, peer, theirs, text, sizeof text);
  moth_group_fault(r->g, "%s", text);
  return false;
}

bool moth_tcp_check_head(MothRun *r, const MothTransfer *t, const MothCommHead *theirs) {
  if (theirs->magic != r->w->head.magic || !moth_comm_same_call(theirs, &r->w->head))
    return moth_tcp_differ(r, t->peer, theirs);
  if (theirs->nbytes == t->n && theirs->step == t->number)
    return true;
  moth_group_fault(
      r->g,
      "rank %d gives %lld bytes where rank %d expects %lld in #%lld %s: sizes or splits "
      "of the two ranks differ",
      moth_group_world_rank(r->g, t->peer), (long long)theirs->nbytes,
      moth_group_world_rank(r->g, r->g->rank), (long long)t->n, (long long)r->w->head.seq,
      moth_comm_op_name(r->w->head.op));
  return false;
}

bool moth_tcp_stalled(MothRun *r) {
  char text[MOTH_COMM_TEXT];
  double now = moth_wire_now();
  if (now < r->look)
    return true;
  r->asked = !r->asked;
  if (r->asked) {
    moth_tcp_ask(r->e, r->w->head.seq);
    r->look = now + 0.02;
    return true;
  }
  r->pause *= 4;
  r->look = now + r->pause;
  if (!moth_tcp_compare(r->e, r->w, text, sizeof text))
    return true;
  moth_group_fault(r->g, "%s", text);
  return false;
}

/* --- steps -------------------------------------------------------------------------------------- */

/* 1: progress, 0: none now, -1: the group is broken. */
static int send_some(MothRun *r, MothTransfer *t) {
  struct iovec v[2];
  int n = 0;
  if (t->head_done < sizeof t->head)
    v[n++] = (struct iovec){(char *)&t->head + t->head_done, sizeof t->head - t->head_done};
  if (t->done < t->n)
    v[n++] = (struct iovec){t->data + t->done, (size_t)(t->n - t->done)};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
  ssize_t k = sendmsg(r->e->peers[t->peer].data, &m, MSG_NOSIGNAL);
  if (k < 0)
    return errno == EAGAIN || errno == EINTR ? 0 : (moth_tcp_lost(r, t->peer, errno), -1);
  size_t head = sizeof t->head - t->head_done;
  if ((size_t)k < head)
    head = (size_t)k;
  t->head_done += head;
  t->done += k - (ssize_t)head;
  return 1;
}

static void reduce_some(MothRun *r, MothTransfer *t, int64_t held) {
  const int64_t size = r->w->itemsize, whole = held / size * size;
  moth_reduce_elements(r->w->head.reduce, (MothDType)r->w->head.dtype, t->own + t->reduced, t->data,
                       t->to + t->reduced, held / size);
  t->reduced += whole;
  if (held > whole)
    memmove(t->data, t->data + whole, (size_t)(held - whole));
}

static int receive_some(MothRun *r, MothTransfer *t) {
  int fd = r->e->peers[t->peer].data;
  ssize_t k;
  if (t->head_done < sizeof t->head) {
    k = recv(fd, (char *)&t->head + t->head_done, sizeof t->head - t->head_done, 0);
    if (k > 0 && (t->head_done += (size_t)k) == sizeof t->head) {
      MothCommHead theirs = t->head;
      if (!moth_tcp_check_head(r, t, &theirs))
        return -1;
    }
  } else {
    int64_t held = t->own ? t->done - t->reduced : t->done, want = t->n - t->done;
    if (t->own && want > MOTH_TCP_PIECE - held)
      want = MOTH_TCP_PIECE - held;
    k = recv(fd, t->data + held, (size_t)want, 0);
    if (k > 0) {
      t->done += k;
      held += k;
      if (t->own && (held >= MOTH_TCP_PIECE / 2 || t->done == t->n))
        reduce_some(r, t, held);
    }
  }
  if (k == 0)
    return moth_tcp_lost(r, t->peer, ECONNRESET), -1;
  if (k < 0)
    return errno == EAGAIN || errno == EINTR ? 0 : (moth_tcp_lost(r, t->peer, errno), -1);
  return 1;
}

/* --- the same by shared memory ------------------------------------------------------------------ */

/* -1. A process that writes where it should not may also write here. */
static int damaged(MothRun *r, int peer) {
  moth_group_fault(r->g,
                   "what rank %d wrote into the memory that it shares is no message of moth's",
                   moth_group_world_rank(r->g, peer));
  return -1;
}

static int send_shared(MothRun *r, MothTransfer *t) {
  MothShared *s = r->e->shared;
  const char *head = (const char *)&t->head;
  int moved = 0;
  if (t->head_done < sizeof t->head) {
    int64_t k = moth_shared_write(s, t->peer, head + t->head_done,
                                  (int64_t)(sizeof t->head - t->head_done));
    if (k < 0)
      return damaged(r, t->peer);
    t->head_done += (size_t)k;
    moved = k > 0;
  }
  if (t->head_done == sizeof t->head && t->done < t->n) {
    int64_t k = moth_shared_write(s, t->peer, t->data + t->done, t->n - t->done);
    if (k < 0)
      return damaged(r, t->peer);
    t->done += k;
    moved |= k > 0;
  }
  return moved;
}

/* A reduction reads what came where it lies. */
static int receive_shared(MothRun *r, MothTransfer *t) {
  MothShared *s = r->e->shared;
  int64_t n;
  const char *from = moth_shared_read(s, t->peer, &n);
  if (!from)
    return n < 0 ? damaged(r, t->peer) : 0;
  if (t->head_done < sizeof t->head) {
    size_t k = sizeof t->head - t->head_done;
    if ((int64_t)k > n)
      k = (size_t)n;
    memcpy((char *)&t->head + t->head_done, from, k);
    moth_shared_take(s, t->peer, (int64_t)k);
    MothCommHead theirs = t->head;
    return (t->head_done += k) < sizeof t->head || moth_tcp_check_head(r, t, &theirs) ? 1 : -1;
  }
  const int64_t size = r->w->itemsize;
  int64_t k = t->n - t->done;
  if (k > n)
    k = n;
  if (k > MOTH_TCP_PIECE / 4)
    k = MOTH_TCP_PIECE / 4;
  if (t->own)
    moth_reduce_elements(r->w->head.reduce, (MothDType)r->w->head.dtype, t->own + t->done, from,
                         t->to + t->done, k / size);
  else
    memcpy(t->data + t->done, from, (size_t)k);
  t->done += k;
  moth_shared_take(s, t->peer, k);
  return 1;
}

static bool is_done(const MothTransfer *t) {
  return t->head_done == sizeof t->head && t->done == t->n;
}

bool moth_tcp_timed_out(MothRun *r) {
  char text[MOTH_COMM_TEXT];
  moth_tcp_diagnose(r->e, r->w, text, sizeof text);
  moth_group_fault(r->g, "%s", text);
  return false;
}

/* Moves what can be moved now: 1: something, 0: nothing, -1: the group is broken. *left: the transfers that are not done. */
static int move_some(MothRun *r, MothTransfer *t, int n, int *left) {
  int moved = 0;
  *left = 0;
  for (int i = 0; i < n; i++) {
    if (is_done(&t[i]))
      continue;
    int k = r->e->shared ? (t[i].sends ? send_shared(r, &t[i]) : receive_shared(r, &t[i]))
            : t[i].sends ? send_some(r, &t[i])
                         : receive_some(r, &t[i]);
    if (k < 0)
      return -1;
    moved |= k;
    *left += !is_done(&t[i]);
  }
  return moved;
}

static bool poll_sockets(MothRun *r, const MothTransfer *t, int n, struct pollfd *p, double until) {
  int np = 1;
  p[0] = (struct pollfd){.fd = r->e->alarm[0], .events = POLLIN};
  for (int i = 0; i < n; i++)
    if (!is_done(&t[i]))
      p[np++] = (struct pollfd){.fd = r->e->peers[t[i].peer].data,
                                .events = t[i].sends ? POLLOUT : POLLIN};
  int events = poll(p, (nfds_t)np, moth_wire_left(until, 1000));
  return !p[0].revents && (events != 0 || moth_tcp_stalled(r));
}

enum { LOOKS = 40 };

static void relax(void) {
#if defined __x86_64__
  __builtin_ia32_pause();
#elif defined __aarch64__
  __asm__ volatile("yield");
#endif
}

/* Ranks that run at the same time need each other's data within microseconds: sleep comes after some looks. *idle: those in
 * which nothing moved. */
static bool await_shared(MothRun *r, const MothTransfer *t, int n, int *idle, double until) {
  MothShared *s = r->e->shared;
  if (++*idle < LOOKS) {
    relax();
    return true;
  }
  if (*idle == LOOKS) {
    moth_shared_drowse(s);
    return true;
  }
  if (atomic_load(&r->g->broken) || atomic_load(&r->g->closing))
    return false;
  for (int i = 0; i < n; i++) {
    const MothTcpPeer *p = &r->e->peers[t[i].peer];
    if (!is_done(&t[i]) && atomic_load(&p->left) && atomic_load(&p->gone))
      return moth_tcp_lost(r, t[i].peer, ECONNRESET);
  }
  moth_shared_sleep(s, moth_wire_left(until, 1000));
  moth_shared_rise(s);
  *idle = 0;
  return moth_wire_now() < r->look || moth_tcp_stalled(r);
}

void moth_tcp_begin_step(MothRun *r, MothTransfer *t, int n) {
  r->step++;
  for (int i = 0; i < n; i++) {
    t[i].head = r->w->head;
    if (!t[i].number)
      t[i].number = r->step;
    t[i].head.step = t[i].number;
    t[i].head.nbytes = t[i].n;
    t[i].head_done = 0;
    t[i].done = t[i].reduced = 0;
    *(t[i].sends ? &r->g->stats.bytes_sent : &r->g->stats.bytes_received) += t[i].n;
  }
}

bool moth_tcp_step(MothRun *r, MothTransfer *t, int n) {
  struct pollfd few[18], *p = few;
  bool ok = true;
  int idle = 0;
  if (n + 1 > 18 && !(p = malloc((size_t)(n + 1) * sizeof *p))) {
    moth_group_fault(r->g, "rank %d has no memory", moth_group_world_rank(r->g, r->g->rank));
    return false;
  }
  for (int left; ok;) {
    int moved = move_some(r, t, n, &left);
    ok = moved >= 0;
    if (!ok || left == 0)
      break;
    if (moved) {
      if (idle >= LOOKS)
        moth_shared_rise(r->e->shared);
      idle = 0;
      continue;
    }
    if (r->looks) {
      relax();
      r->put_off = --r->looks == 0;
      ok = !r->put_off;
      continue;
    }
    double until = r->look < r->w->deadline ? r->look : r->w->deadline;
    ok = r->e->shared ? await_shared(r, t, n, &idle, until) : poll_sockets(r, t, n, p, until);
    if (ok && idle == 0 && moth_wire_now() >= r->w->deadline)
      ok = moth_tcp_timed_out(r);
  }
  if (r->e->shared && !r->put_off)
    moth_shared_rise(r->e->shared);
  if (p != few)
    free(p);
  return ok;
}
