/* The control thread of the tcp engine: sends and receives, and what ranks tell each other. See tcp.h. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "comm/tcp_steps.h"
#include "comm/thread.h"
#include "comm/transport.h"
#include "comm/wire.h"
#include "core/parallel.h"

/* Ops of heads beside those of MothCommOp. */
enum {
  FAULT = 64, /* a text */
  QUESTION,
  ANSWER, /* seq: of the last collective made; a Call */
  LEAVING
};

enum {
  EAGER = 32 << 20, /* the largest message that is read before its receive is there */
  LINGER = 60       /* seconds that a rank which leaves waits for those that are behind */
};

/* What a rank answers: a call and its line, and the number of the last one that has ended there. */
typedef struct Call {
  MothCommHead head;
  int64_t over;
  char where[MOTH_COMM_WHERE];
} Call;

/* A frame to be sent. */
struct MothTcpFrame {
  MothTcpFrame *next;
  MothCommHead head;
  MothWork *work; /* its data, or: */
  char text[];
};

/* A message without a receive. */
typedef struct Message {
  struct Message *next;
  int peer;
  MothCommHead head;
  char *data;
} Message;

typedef struct Control {
  MothTcp *e;
  MothGroup *g;
  MothWork *receives, **last; /* posted, in order */
  Message *messages, **last_message;
  double suspect_until; /* of a rank that is gone: until then the launcher may say why */
  int suspect;          /* -1: none */
} Control;

/* --- frames out --------------------------------------------------------------------------------- */

static void enqueue(MothTcpPeer *p, MothTcpFrame *f) {
  f->next = NULL;
  *p->last = f;
  p->last = &f->next;
}

static void tell(Control *c, int peer, uint8_t what, int64_t seq, const void *text, size_t n) {
  MothTcpPeer *p = &c->e->peers[peer];
  if (p->control < 0 || atomic_load(&p->gone))
    return;
  MothTcpFrame *f = calloc(1, sizeof *f + n + 1);
  if (!f)
    return;
  f->head.magic = 0x6d6f7468;
  f->head.seq = seq;
  f->head.op = what;
  f->head.sender = c->g->rank;
  f->head.nbytes = (int64_t)n;
  memcpy(f->text, text, n);
  enqueue(p, f);
}

static void tell_all(Control *c, uint8_t what, int64_t seq, const char *text) {
  for (int i = 0; i < c->g->size; i++)
    if (i != c->g->rank)
      tell(c, i, what, seq, text, strlen(text));
}

/* That a rank has left the group, as the error of a call. */
static const char *left_text(const Control *c, int peer, char *text, size_t n) {
  char rank[160];
  snprintf(text, n, "%s has left the group: its process called destroy_process_group, or ended",
           moth_tcp_rank(c->e, peer, rank, sizeof rank));
  return text;
}

/* A rank whose connection broke. Without a word before, sends to it wait until it is said why, as all calls do: where a
 * launcher watches, it knows how the process ended. */
static void mark_gone(Control *c, int peer) {
  MothTcpPeer *p = &c->e->peers[peer];
  if (atomic_exchange(&p->gone, true))
    return;
  bool left = atomic_load(&p->left);
  char text[MOTH_COMM_TEXT];
  for (MothTcpFrame **at = &p->first; *at;) {
    MothTcpFrame *f = *at;
    if (f->work && !left) {
      at = &f->next;
      continue;
    }
    *at = f->next;
    if (f->work)
      moth_work_finish(f->work, left_text(c, peer, text, sizeof text));
    free(f);
  }
  p->last = &p->first;
  while (*p->last)
    p->last = &(*p->last)->next;
  if (!left && c->suspect < 0) {
    c->suspect = peer;
    c->suspect_until = moth_wire_now() + (moth_comm_watched() ? MOTH_TCP_WORD : 0);
  }
  moth_shared_wake(c->e->shared); /* who waits for one that has left */
}

static void write_some(Control *c, int peer) {
  MothTcpPeer *p = &c->e->peers[peer];
  while (p->first && !atomic_load(&p->gone)) {
    MothTcpFrame *f = p->first;
    const char *data = f->work ? f->work->in : f->text;
    size_t head = sizeof f->head, total = head + (size_t)f->head.nbytes;
    while (p->sent < total) {
      bool in_head = p->sent < head;
      const char *from = in_head ? (const char *)&f->head + p->sent : data + (p->sent - head);
      size_t n = in_head ? head - p->sent : total - p->sent;
      ssize_t k =
          send(p->control, from, n, MSG_NOSIGNAL | (in_head && total > head ? MSG_MORE : 0));
      if (k < 0 && errno == EINTR)
        continue;
      if (k < 0 && errno == EAGAIN)
        return;
      if (k < 0) {
        mark_gone(c, peer);
        return;
      }
      p->sent += (size_t)k;
    }
    p->sent = 0;
    if (!(p->first = f->next))
      p->last = &p->first;
    if (f->work)
      moth_work_finish(f->work, NULL);
    free(f);
  }
}

/* --- frames in ---------------------------------------------------------------------------------- */

static bool fits(const MothWork *w, int peer, const MothCommHead *h) {
  return (w->peer < 0 || w->peer == peer) && w->head.root == h->root;
}

/* The first receive for a message, taken out of the list; a fault if the two differ. */
static MothWork *take_receive(Control *c, int peer, const MothCommHead *h) {
  for (MothWork **at = &c->receives; *at; at = &(*at)->next) {
    MothWork *w = *at;
    if (!fits(w, peer, h))
      continue;
    char mine[300], theirs[300];
    bool same = h->dtype == w->head.dtype && h->count == w->head.count && h->ndim == w->head.ndim &&
                memcmp(h->shape, w->head.shape, sizeof h->shape) == 0 &&
                h->nbytes == w->nout * w->itemsize;
    if (!same)
      moth_group_fault(
          c->g, "the calls of ranks do not match: rank %d calls %s%s%s, rank %d calls %s",
          moth_group_world_rank(c->g, c->g->rank), moth_comm_head_text(&w->head, mine, sizeof mine),
          w->where[0] ? " at " : "", w->where, moth_group_world_rank(c->g, peer),
          moth_comm_head_text(h, theirs, sizeof theirs));
    if (!same)
      return NULL;
    if (!(*at = w->next))
      c->last = at;
    return w;
  }
  return NULL;
}

static void end_receive(Control *c, MothWork *w, int peer) {
  c->g->stats.bytes_received += w->head.count * w->itemsize;
  w->peer = peer;
  moth_work_finish(w, NULL);
}

/* Where the data of the head that came in goes. */
static void begin_data(Control *c, int peer) {
  MothTcpPeer *p = &c->e->peers[peer];
  MothCommHead *h = &p->head;
  p->got = 0;
  p->holds = false;
  p->work = NULL;
  free(p->text);
  p->text = NULL;
  if (h->magic != 0x6d6f7468 || h->nbytes < 0) {
    moth_group_fault(c->g, "what rank %d sent is no message of moth's",
                     moth_group_world_rank(c->g, peer));
    mark_gone(c, peer);
    return;
  }
  if (h->op == MOTH_COMM_SEND) {
    p->work = take_receive(c, peer, h);
    if (p->work)
      return;
    if (h->nbytes > EAGER) {
      p->holds = true;
      return;
    }
  } else if (h->nbytes > 1 << 16) {
    mark_gone(c, peer);
    return;
  }
  p->text = calloc(1, (size_t)h->nbytes + 1);
  p->holds = !p->text;
}

/* This rank's call of a number, or its last one. Returns the number of that. */
static int64_t find_call(MothGroup *g, int64_t seq, Call *call) {
  pthread_mutex_lock(&g->lock);
  int64_t made = g->seq;
  *call = (Call){.head = g->last->head, .over = atomic_load(&g->last->over)};
  memcpy(call->where, g->last->where, sizeof call->where);
  for (int64_t i = g->nrecords - 1; i >= 0 && i >= g->nrecords - MOTH_COMM_RECORDS; i--) {
    const MothCommRecord *r = &g->records[i % MOTH_COMM_RECORDS];
    if (r->head.op >= MOTH_COMM_SEND || r->head.seq != seq)
      continue;
    call->head = r->head;
    memcpy(call->where, r->where, sizeof call->where);
    break;
  }
  pthread_mutex_unlock(&g->lock);
  return made;
}

static void answer(Control *c, int peer) {
  Call call;
  int64_t made = find_call(c->g, c->e->peers[peer].head.seq, &call);
  tell(c, peer, ANSWER, made, &call, sizeof call);
}

static void take_answer(MothTcp *e, MothTcpPeer *p) {
  Call call;
  if (p->head.nbytes != sizeof call)
    return;
  memcpy(&call, p->text, sizeof call);
  call.where[sizeof call.where - 1] = 0;
  pthread_mutex_lock(&e->lock);
  p->answered = true;
  p->made = p->head.seq;
  p->call = call.head;
  p->over = call.over;
  memcpy(p->where, call.where, sizeof p->where);
  pthread_cond_broadcast(&e->changed);
  pthread_mutex_unlock(&e->lock);
}

static void end_data(Control *c, int peer) {
  MothTcpPeer *p = &c->e->peers[peer];
  MothTcp *e = c->e;
  p->has_head = false;
  p->got = 0;
  if (p->work) {
    end_receive(c, p->work, peer);
    p->work = NULL;
    return;
  }
  switch (p->head.op) {
  case MOTH_COMM_SEND: {
    MothWork *w = take_receive(c, peer, &p->head); /* posted while the data came in */
    if (w) {
      if (p->head.nbytes > 0)
        memcpy(w->out, p->text, (size_t)p->head.nbytes);
      end_receive(c, w, peer);
      break;
    }
    Message *m = calloc(1, sizeof *m);
    if (m) {
      *m = (Message){.peer = peer, .head = p->head, .data = p->text};
      p->text = NULL;
      *c->last_message = m;
      c->last_message = &m->next;
    }
    break;
  }
  case FAULT:
    moth_group_fault(c->g, "%s", p->text);
    break;
  case QUESTION:
    answer(c, peer);
    break;
  case ANSWER:
    take_answer(e, p);
    break;
  case LEAVING:
    atomic_store(&p->left, true);
    break;
  default:
    break;
  }
}

static void read_some(Control *c, int peer) {
  MothTcpPeer *p = &c->e->peers[peer];
  for (int rounds = 0; rounds < 64 && !p->holds && !atomic_load(&p->gone); rounds++) {
    char *to = !p->has_head ? (char *)&p->head + p->got
               : p->work    ? p->work->out + p->got
                            : p->text + p->got;
    size_t n = p->has_head ? (size_t)p->head.nbytes - p->got : sizeof p->head - p->got;
    if (n > 0) {
      ssize_t k = recv(p->control, to, n, 0);
      if (k < 0 && errno == EINTR)
        continue;
      if (k < 0 && errno == EAGAIN)
        return;
      if (k <= 0) {
        mark_gone(c, peer);
        return;
      }
      p->got += (size_t)k;
      if ((size_t)k < n)
        continue;
    }
    if (p->has_head) {
      end_data(c, peer);
    } else {
      p->has_head = true;
      begin_data(c, peer);
    }
  }
}

/* --- sends and receives ------------------------------------------------------------------------- */

static void take_message(Control *c, MothWork *w) {
  for (Message **at = &c->messages; *at; at = &(*at)->next) {
    Message *m = *at;
    if (!fits(w, m->peer, &m->head))
      continue;
    w->next = NULL;
    *c->last = w; /* for the check of take_receive */
    c->last = &w->next;
    if (take_receive(c, m->peer, &m->head) == w) {
      if (m->head.nbytes > 0)
        memcpy(w->out, m->data, (size_t)m->head.nbytes);
      if (!(*at = m->next))
        c->last_message = at;
      end_receive(c, w, m->peer);
      free(m->data);
      free(m);
    }
    return;
  }
  w->next = NULL;
  *c->last = w;
  c->last = &w->next;
  for (int i = 0; i < c->g->size; i++) { /* a large one may wait for it */
    MothTcpPeer *p = &c->e->peers[i];
    if (p->holds && fits(w, i, &p->head)) {
      begin_data(c, i);
      return;
    }
  }
}

static void take_posted(Control *c) {
  pthread_mutex_lock(&c->e->lock);
  MothWork *list = c->e->posted;
  c->e->posted = NULL;
  c->e->last_posted = &c->e->posted;
  pthread_mutex_unlock(&c->e->lock);
  while (list) {
    MothWork *w = list;
    list = w->next;
    w->next = NULL;
    MothTcpPeer *p = w->peer >= 0 ? &c->e->peers[w->peer] : NULL;
    char text[MOTH_COMM_TEXT];
    if (moth_group_is_broken(c->g, text, sizeof text)) {
      moth_work_finish(w, text);
    } else if (w->head.op == MOTH_COMM_RECV) {
      take_message(c, w);
    } else if (atomic_load(&p->left)) {
      moth_work_finish(w, left_text(c, w->peer, text, sizeof text));
    } else {
      MothTcpFrame *f = calloc(1, sizeof *f);
      if (!f) {
        moth_work_finish(w, "out of memory");
        continue;
      }
      f->head = w->head;
      f->head.nbytes = w->nin * w->itemsize;
      f->work = w;
      c->g->stats.bytes_sent += f->head.nbytes;
      enqueue(p, f);
    }
  }
}

/* Fails the receives that wait: all (of a broken group), those of ranks that left, those whose time is over. Returns the
 * earliest deadline of the others. */
static double fail_receives(Control *c, const char *all) {
  double next = 1e18, now = moth_wire_now();
  char text[MOTH_COMM_TEXT], rank[160];
  c->last = &c->receives;
  for (MothWork **at = &c->receives; *at;) {
    MothWork *w = *at;
    MothTcpPeer *p = w->peer >= 0 ? &c->e->peers[w->peer] : NULL;
    const char *why = all;
    if (!why && p && atomic_load(&p->left) && atomic_load(&p->gone)) {
      why = left_text(c, w->peer, text, sizeof text);
    } else if (!why && now >= w->deadline) {
      if (p)
        snprintf(text, sizeof text, "timed out after %g s: %s has sent nothing", w->timeout,
                 moth_tcp_rank(c->e, w->peer, rank, sizeof rank));
      else
        snprintf(text, sizeof text, "timed out after %g s: no rank has sent anything", w->timeout);
      why = text;
    }
    if (why) {
      *at = w->next;
      moth_work_finish(w, why);
      continue;
    }
    if (w->deadline < next)
      next = w->deadline;
    at = &w->next;
    c->last = at;
  }
  return next;
}

/* Of sends whose receiver takes nothing. */
static double fail_sends(Control *c, const char *all) {
  double next = 1e18, now = moth_wire_now();
  for (int i = 0; i < c->g->size; i++) {
    MothTcpPeer *p = &c->e->peers[i];
    for (MothTcpFrame *f = p->first; f; f = f->next) {
      if (!f->work)
        continue;
      if (now >= f->work->deadline && !all) {
        char rank[160];
        moth_group_fault(c->g, "a send timed out after %g s: %s does not receive it",
                         f->work->timeout, moth_tcp_rank(c->e, i, rank, sizeof rank));
        return now;
      }
      if (f->work->deadline < next)
        next = f->work->deadline;
    }
    if (all &&
        p->first) { /* what has begun stays, or the receiver would read nonsense: its data goes with it */
      for (MothTcpFrame **at = &p->first; *at;) {
        MothTcpFrame *f = *at;
        if (!f->work) {
          at = &f->next;
          continue;
        }
        if (f == p->first && p->sent > 0) { /* no more can be told to this rank */
          shutdown(p->control, SHUT_WR);
          atomic_store(&p->gone, true);
        }
        *at = f->next;
        moth_work_finish(f->work, all);
        free(f);
      }
      p->last = &p->first;
      while (*p->last)
        p->last = &(*p->last)->next;
    }
    if (all && p->work) {
      moth_work_finish(p->work, all);
      p->work = NULL;
      atomic_store(&p->gone, true);
    }
  }
  return next;
}

void moth_tcp_post(MothGroup *g, MothWork *w) {
  MothTcp *e = g->state;
  pthread_mutex_lock(&e->lock);
  w->next = NULL;
  *e->last_posted = w;
  e->last_posted = &w->next;
  pthread_mutex_unlock(&e->lock);
  moth_wire_ring(e->bell);
}

/* --- the thread --------------------------------------------------------------------------------- */

static bool unsent(const Control *c) {
  for (int i = 0; i < c->g->size; i++)
    if (c->e->peers[i].first && !atomic_load(&c->e->peers[i].gone))
      return true;
  return false;
}

static void settle(Control *c, double *next) {
  char text[MOTH_COMM_TEXT], rank[160];
  double now = moth_wire_now();
  if (c->suspect >= 0 && now >= c->suspect_until && !atomic_load(&c->g->broken))
    moth_group_blame(c->g, moth_group_world_rank(c->g, c->suspect),
                     "%s is gone: its connection broke, so its process was killed or has crashed",
                     moth_tcp_rank(c->e, c->suspect, rank, sizeof rank));
  else if (c->suspect >= 0 && c->suspect_until < *next)
    *next = c->suspect_until;
  bool broken = moth_group_is_broken(c->g, text, sizeof text);
  if (broken && !c->e->announced) {
    c->e->announced = true;
    fail_sends(c, text);
    tell_all(c, FAULT, 0, text);
  }
  double a = fail_receives(c, broken ? text : NULL), b = broken ? 1e18 : fail_sends(c, NULL);
  if (broken)
    c->suspect = -1;
  *next = a < *next ? a : *next;
  *next = b < *next ? b : *next;
}

static void serve(Control *c, struct pollfd *p, int *peers) {
  MothTcp *e = c->e;
  double end = 0; /* closing: until then the rest is sent */
  for (;;) {
    double next = 1e18;
    pthread_mutex_lock(&e->lock);
    bool closing = e->closing;
    int64_t question = e->question;
    e->question = 0;
    pthread_mutex_unlock(&e->lock);
    take_posted(c);
    if (question)
      tell_all(c, QUESTION, question, "");
    settle(c, &next);
    if (closing && end == 0) {
      end = moth_wire_now() + 1;
      tell_all(c, LEAVING, 0, "");
    }
    for (int i = 0; i < c->g->size; i++)
      write_some(c, i);
    if (closing && (!unsent(c) || moth_wire_now() >= end))
      return;
    if (closing)
      next = end;
    int n = 1;
    p[0] = (struct pollfd){.fd = e->bell[0], .events = POLLIN};
    for (int i = 0; i < c->g->size; i++) {
      MothTcpPeer *peer = &e->peers[i];
      if (peer->control < 0 || atomic_load(&peer->gone))
        continue;
      peers[n] = i;
      p[n++] = (struct pollfd){
          .fd = peer->control,
          .events = (short)((peer->holds ? 0 : POLLIN) | (peer->first ? POLLOUT : 0))};
    }
    int most = e->transport ? 50 : 100000;
    poll(p, (nfds_t)n, next >= 1e17 ? (e->transport ? most : -1) : moth_wire_left(next, most));
    if (atomic_load(&e->waits)) /* for deadlines, and for what was posted after the group broke */
      moth_transport_wake(e);
    if (p[0].revents)
      moth_wire_hush(e->bell);
    for (int i = 1; i < n; i++)
      if (p[i].revents & (POLLIN | POLLHUP | POLLERR)) {
        if (e->peers[peers[i]].holds && !(p[i].revents & POLLIN))
          mark_gone(c, peers[i]);
        else
          read_some(c, peers[i]);
      }
  }
}

void *moth_tcp_control(void *engine) {
  MothTcp *e = engine;
  Control c = {.e = e, .g = e->group, .suspect = -1};
  c.last = &c.receives;
  c.last_message = &c.messages;
  struct pollfd *p = calloc((size_t)e->group->size + 1, sizeof *p);
  int *peers = calloc((size_t)e->group->size + 1, sizeof *peers);
  if (p && peers)
    serve(&c, p, peers);
  else
    moth_group_fault(e->group, "there is no memory for the control thread");
  take_posted(&c);
  fail_receives(&c, "the process group was destroyed");
  fail_sends(&c, "the process group was destroyed");
  while (c.messages) {
    Message *m = c.messages;
    c.messages = m->next;
    free(m->data);
    free(m);
  }
  for (int i = 0; i < e->group->size; i++)
    while (e->peers[i].first) {
      MothTcpFrame *f = e->peers[i].first;
      e->peers[i].first = f->next;
      free(f);
    }
  free(p);
  free(peers);
  return NULL;
}

/* --- who is it ---------------------------------------------------------------------------------- */

void moth_tcp_ask(MothTcp *e, int64_t seq) {
  pthread_mutex_lock(&e->lock);
  for (int i = 0; i < e->group->size; i++)
    e->peers[i].answered = i == e->group->rank;
  e->question = seq;
  pthread_mutex_unlock(&e->lock);
  moth_wire_ring(e->bell);
}

/* Under the lock: waits for the answers of all ranks but those that are gone; at most so long. */
static void await_answers(MothTcp *e, int only, double timeout) {
  MothGroup *g = e->group;
  double until = moth_wire_now() + timeout;
  for (;;) {
    int missing = 0;
    for (int i = 0; i < g->size; i++)
      missing +=
          (only < 0 || i == only) && !e->peers[i].answered && !atomic_load(&e->peers[i].gone);
    if (missing == 0 || moth_wire_now() >= until || atomic_load(&g->broken))
      return;
    moth_comm_wait(&e->lock, &e->changed, until, 0.05);
  }
}

/* "rank 0 calls … at …, rank 1 calls … at …" */
static void say_both(const MothGroup *g, const Call *mine, int peer, const MothCommHead *theirs,
                     const char *where, char *text, size_t n) {
  char a[300], b[300];
  snprintf(text, n, "the calls of ranks do not match: rank %d calls %s%s%s, rank %d calls %s%s%s",
           moth_group_world_rank(g, g->rank), moth_comm_head_text(&mine->head, a, sizeof a),
           mine->where[0] ? " at " : "", mine->where, moth_group_world_rank(g, peer),
           moth_comm_head_text(theirs, b, sizeof b), where[0] ? " at " : "", where);
}

bool moth_tcp_compare(MothTcp *e, const MothWork *w, char *text, size_t n) {
  Call mine;
  bool differs = false;
  find_call(e->group, w->head.seq, &mine);
  pthread_mutex_lock(&e->lock);
  for (int i = 0; i < e->group->size && !differs; i++) {
    const MothTcpPeer *p = &e->peers[i];
    if (i == e->group->rank || !p->answered || p->call.seq != w->head.seq)
      continue;
    differs = !moth_comm_same_call(&p->call, &w->head);
    if (differs)
      say_both(e->group, &mine, i, &p->call, p->where, text, n);
  }
  pthread_mutex_unlock(&e->lock);
  return differs;
}

/* One of the two may be further: it did its part of a call without a word from the other. So both say what they called as
 * the number of the one behind. */
void moth_tcp_mismatch(MothTcp *e, const MothWork *w, int peer, const MothCommHead *theirs,
                       char *text, size_t n) {
  Call mine;
  MothTcpPeer *p = &e->peers[peer];
  int64_t seq = theirs->seq < w->head.seq ? theirs->seq : w->head.seq;
  find_call(e->group, seq, &mine);
  moth_tcp_ask(e, seq);
  pthread_mutex_lock(&e->lock);
  await_answers(e, peer, 0.25);
  bool known = p->answered && p->call.seq == seq;
  say_both(e->group, &mine, peer, known ? &p->call : theirs, known ? p->where : "", text, n);
  pthread_mutex_unlock(&e->lock);
}

void moth_tcp_diagnose(MothTcp *e, const MothWork *w, char *text, size_t n) {
  MothGroup *g = e->group;
  char head[300], rank[160];
  moth_tcp_ask(e, w->head.seq);
  pthread_mutex_lock(&e->lock);
  await_answers(e, -1, 0.25);
  size_t at = (size_t)snprintf(text, n, "timed out after %g s in %s%s%s: ", w->timeout,
                               moth_comm_head_text(&w->head, head, sizeof head),
                               w->where[0] ? " at " : "", w->where);
  const char *comma = "";
  for (int i = 0; i < g->size && at < n; i++) {
    MothTcpPeer *p = &e->peers[i];
    if (i == g->rank)
      continue;
    moth_tcp_rank(e, i, rank, sizeof rank);
    if (atomic_load(&p->left) || atomic_load(&p->gone))
      at += (size_t)snprintf(text + at, n - at, "%s%s %s", comma, rank,
                             atomic_load(&p->left) ? "has left the group" : "is gone");
    else if (!p->answered)
      at += (size_t)snprintf(text + at, n - at,
                             "%s%s does not answer: it is stopped, or cannot be reached", comma,
                             rank);
    else if (p->made < w->head.seq)
      at += (size_t)snprintf(
          text + at, n - at, "%s%s has not called it; its last call was %s%s%s", comma, rank,
          p->made > 0 ? moth_comm_head_text(&p->call, head, sizeof head) : "none",
          p->made > 0 && p->where[0] ? " at " : "", p->made > 0 ? p->where : "");
    else
      continue;
    comma = "; ";
  }
  if (!comma[0] && at < n)
    snprintf(text + at, n - at, "all ranks have called it, the slowest needs more time");
  pthread_mutex_unlock(&e->lock);
}

void moth_tcp_linger(MothTcp *e) {
  MothGroup *g = e->group;
  const volatile sig_atomic_t *flag = moth_interrupt_flag();
  double now = moth_wire_now(), until = now + (g->timeout < LINGER ? g->timeout : LINGER);
  pthread_mutex_lock(&g->lock);
  int64_t seq = atomic_load(&g->last->over);
  pthread_mutex_unlock(&g->lock);
  for (double pause = 0.001; seq > 0 && now < until && !(flag && *flag); pause *= 2) {
    bool waits = false;
    moth_tcp_ask(e, seq);
    pthread_mutex_lock(&e->lock);
    await_answers(e, -1, 0.25);
    for (int i = 0; i < g->size; i++) {
      const MothTcpPeer *p = &e->peers[i];
      waits |= i != g->rank && !atomic_load(&p->gone) && !atomic_load(&p->left) &&
               !(p->answered && p->over >= seq);
    }
    pthread_mutex_unlock(&e->lock);
    if (!waits || atomic_load(&g->broken))
      return;
    poll(NULL, 0, pause < 0.05 ? (int)(pause * 1e3) : 50);
    now = moth_wire_now();
  }
}
