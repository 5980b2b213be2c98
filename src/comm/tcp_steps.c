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

static bool is_done(const MothTransfer *t) {
  return t->head_done == sizeof t->head && t->done == t->n;
}

bool moth_tcp_timed_out(MothRun *r) {
  char text[MOTH_COMM_TEXT];
  moth_tcp_diagnose(r->e, r->w, text, sizeof text);
  moth_group_fault(r->g, "%s", text);
  return false;
}

bool moth_tcp_step(MothRun *r, MothTransfer *t, int n) {
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
    double next = r->look < r->w->deadline ? r->look : r->w->deadline;
    int events = poll(p, (nfds_t)np, moth_wire_left(next, 1000));
    if (p[0].revents || (events == 0 && !moth_tcp_stalled(r))) { /* broken or closing */
      ok = false;
      break;
    }
    if (moth_wire_now() >= r->w->deadline) {
      ok = moth_tcp_timed_out(r);
      break;
    }
  }
  if (p != few)
    free(p);
  return ok;
}
