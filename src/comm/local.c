/* The local engine: the ranks of a group are threads of one process, each with a Lua state of its own. A board has a place
 * for the call of each rank; when all are there, each rank takes its results from the memory of the others. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "comm/thread.h"
#include "comm/wire.h"
#include "core/alloc.h"
#include "core/error.h"
#include "core/parallel.h"

typedef struct Message {
  struct Message *next;
  int from, to;
  MothCommHead head;
  char data[];
} Message;

typedef struct Receive {
  struct Receive *next;
  MothGroup *group;
  MothWork *work;
} Receive;

typedef struct Board {
  struct Board *next;
  char key[64];
  int size, users; /* users: ranks that refer to it */
  pthread_mutex_t
      lock; /* of the fields below; never held while a group's lock is taken, except for none */
  pthread_cond_t changed;
  int joined, left, first_left;
  MothGroup **groups; /* of each rank; NULL: not there, or left */
  MothWork **calls;   /* of each rank; NULL: not there yet */
  int arrived, leaving;
  int64_t round;
  bool same, taking; /* the calls of this round are the same; ranks take their results */
  char mismatch[700];
  Message *messages;
  Receive *receives;
} Board;

static pthread_mutex_t boards_lock = PTHREAD_MUTEX_INITIALIZER;
static Board *boards;

static void free_board(Board *b) {
  while (b->messages) {
    Message *m = b->messages;
    b->messages = m->next;
    free(m);
  }
  pthread_mutex_destroy(&b->lock);
  pthread_cond_destroy(&b->changed);
  free(b->groups);
  free(b->calls);
  free(b);
}

static Board *board_of(const char *key, int size) {
  pthread_mutex_lock(&boards_lock);
  Board *b = boards;
  while (b && strcmp(b->key, key) != 0)
    b = b->next;
  if (!b && (b = calloc(1, sizeof *b))) {
    snprintf(b->key, sizeof b->key, "%s", key);
    b->size = size;
    b->groups = calloc((size_t)size, sizeof(MothGroup *));
    b->calls = calloc((size_t)size, sizeof(MothWork *));
    moth_comm_lock(&b->lock, &b->changed);
    if (b->groups && b->calls) {
      b->next = boards;
      boards = b;
    } else {
      free_board(b);
      b = NULL;
    }
  }
  if (b)
    b->users++;
  pthread_mutex_unlock(&boards_lock);
  return b;
}

static void release_board(Board *b) {
  pthread_mutex_lock(&boards_lock);
  bool last = --b->users == 0;
  for (Board **at = &boards; last && *at; at = &(*at)->next)
    if (*at == b) {
      *at = b->next;
      break;
    }
  pthread_mutex_unlock(&boards_lock);
  if (last)
    free_board(b);
}

static MothStatus local_open(MothGroup *g, MothStore *store, const char *key, double timeout) {
  (void)store;
  Board *b = board_of(key, g->size);
  if (!b)
    return moth_no_memory(0);
  const char *wrong = NULL;
  const volatile sig_atomic_t *flag = moth_interrupt_flag();
  double until = moth_wire_now() + timeout;
  pthread_mutex_lock(&b->lock);
  if (b->size != g->size)
    wrong = "its ranks do not agree on their number";
  else if (b->groups[g->rank])
    wrong = "another thread has this rank";
  else
    b->groups[g->rank] = g;
  b->joined += !wrong;
  pthread_cond_broadcast(&b->changed);
  while (!wrong && b->joined < b->size) {
    moth_comm_wait(&b->lock, &b->changed, until, 0.05);
    if (moth_wire_now() >= until || (flag && *flag))
      wrong = "not all ranks came in time";
  }
  if (wrong && b->groups[g->rank] == g) {
    b->groups[g->rank] = NULL;
    b->joined--;
  }
  pthread_mutex_unlock(&b->lock);
  if (wrong) {
    release_board(b);
    return moth_fail(MOTH_ERR_VALUE, "local group '%s': %s", key, wrong);
  }
  g->state = b;
  return MOTH_OK;
}

/* --- collectives -------------------------------------------------------------------------------- */

static void put(char *to, const char *from, int64_t n) {
  if (n > 0 && to != from)
    memmove(to, from, (size_t)n);
}

/* The same elements of all ranks, reduced in their order: n of them from `first` on, into `to`, which nobody reads. */
static void reduce_all(Board *b, MothWork *w, int64_t first, int64_t n, char *to) {
  MothDType dtype = (MothDType)w->head.dtype;
  put(to, b->calls[0]->in + first * w->itemsize, n * w->itemsize);
  for (int i = 1; i < b->size; i++)
    moth_reduce_elements(w->head.reduce, dtype, to, b->calls[i]->in + first * w->itemsize, to, n);
  if (w->head.reduce == MOTH_COMM_AVG)
    moth_divide_elements(dtype, to, n, b->size);
}

static int64_t bytes_for(const MothWork *w, int size, int rank) {
  return w->splits ? w->splits[rank] : w->nin / size * w->itemsize;
}

/* Into `to`, memory of its own: the inputs may be the outputs of others. */
static void take(Board *b, MothGroup *g, MothWork *w, char *to) {
  const int size = b->size, root = w->head.root;
  int64_t n = w->nin * w->itemsize;
  switch (w->head.op) {
  case MOTH_COMM_ALL_REDUCE:
    reduce_all(b, w, 0, w->nin, to);
    break;
  case MOTH_COMM_REDUCE:
    if (g->rank == root)
      reduce_all(b, w, 0, w->nin, to);
    break;
  case MOTH_COMM_REDUCE_SCATTER:
    reduce_all(b, w, g->rank * w->nout, w->nout, to);
    break;
  case MOTH_COMM_BROADCAST:
    put(to, b->calls[root]->in, w->nout * w->itemsize);
    break;
  case MOTH_COMM_ALL_GATHER:
  case MOTH_COMM_GATHER:
    for (int i = 0; i < size && (w->head.op == MOTH_COMM_ALL_GATHER || g->rank == root); i++)
      put(to + i * n, b->calls[i]->in, n);
    break;
  case MOTH_COMM_SCATTER:
    put(to, b->calls[root]->in + g->rank * w->nout * w->itemsize, w->nout * w->itemsize);
    break;
  case MOTH_COMM_ALL_TO_ALL:
    for (int i = 0; i < size; i++) {
      const MothWork *from = b->calls[i];
      const char *data = from->in;
      for (int k = 0; k < g->rank; k++)
        data += bytes_for(from, size, k);
      int64_t m = bytes_for(from, size, g->rank);
      put(to, data, m);
      to += m;
    }
    break;
  case MOTH_COMM_PERMUTE:
    put(to, b->calls[w->splits[size] / w->itemsize]->in, n);
    break;
  default:
    break;
  }
}

/* Whether this rank has a result of the call. */
static bool has_result(const MothGroup *g, const MothWork *w) {
  bool rooted = w->head.op == MOTH_COMM_REDUCE || w->head.op == MOTH_COMM_GATHER;
  return w->head.op != MOTH_COMM_BARRIER && (!rooted || g->rank == w->head.root);
}

/* Under the lock: the first call that is another than that of rank 0, as a text. */
static bool all_same(Board *b) {
  char one[300], other[300];
  const MothWork *p = b->calls[0];
  const MothGroup *g = b->groups[0];
  for (int i = 1; i < b->size; i++) {
    const MothWork *q = b->calls[i];
    if (moth_comm_same_call(&p->head, &q->head))
      continue;
    snprintf(b->mismatch, sizeof b->mismatch,
             "the calls of ranks do not match: rank %d calls %s%s%s, rank %d calls %s%s%s",
             g ? moth_group_world_rank(g, 0) : 0, moth_comm_head_text(&p->head, one, sizeof one),
             p->where[0] ? " at " : "", p->where, g ? moth_group_world_rank(g, i) : i,
             moth_comm_head_text(&q->head, other, sizeof other), q->where[0] ? " at " : "",
             q->where);
    return false;
  }
  for (int i = 0; i < b->size && p->head.op == MOTH_COMM_ALL_TO_ALL; i++)
    for (int k = 0; k < b->size; k++) {
      const MothWork *from = b->calls[k], *to = b->calls[i];
      int64_t gives = bytes_for(from, b->size, i);
      int64_t takes = to->splits ? to->splits[b->size + k] : to->nout / b->size * to->itemsize;
      if (gives == takes)
        continue;
      snprintf(b->mismatch, sizeof b->mismatch,
               "rank %d gives %lld bytes where rank %d expects %lld in #%lld all_to_all: sizes or "
               "splits of the two ranks differ",
               k, (long long)gives, i, (long long)takes, (long long)to->head.seq);
      return false;
    }
  return true;
}

static void say_who_is_missing(Board *b, MothGroup *g, const MothWork *w, char *text, size_t n) {
  char head[300];
  size_t at = (size_t)snprintf(text, n, "timed out after %g s in %s%s%s: ", w->timeout,
                               moth_comm_head_text(&w->head, head, sizeof head),
                               w->where[0] ? " at " : "", w->where);
  for (int i = 0, first = 1; i < b->size && at < n; i++)
    if (!b->calls[i]) {
      at += (size_t)snprintf(text + at, n - at, "%srank %d has not called it", first ? "" : "; ",
                             moth_group_world_rank(g, i));
      first = 0;
    }
}

static bool local_run(MothGroup *g, MothWork *w) {
  Board *b = g->state;
  char text[MOTH_COMM_TEXT] = "";
  int64_t n = has_result(g, w) ? w->nout * w->itemsize : 0;
  char *to = malloc((size_t)n + 1); /* results must not be written while others read inputs */
  if (!to) {
    moth_group_fault(g, "out of memory");
    return false;
  }
  pthread_mutex_lock(&b->lock);
  while (b->taking && !atomic_load(&g->broken) && !g->closing) /* of the round before */
    moth_comm_wait(&b->lock, &b->changed, w->deadline, 0.02);
  b->calls[g->rank] = w;
  int64_t round = b->round;
  if (++b->arrived == b->size) {
    b->same = all_same(b);
    b->taking = true;
    b->leaving = 0;
    b->round++;
    pthread_cond_broadcast(&b->changed);
  }
  while (b->round == round && !text[0]) {
    if (b->left > 0)
      snprintf(text, sizeof text,
               "rank %d has left the group: it called destroy_process_group, or its thread ended",
               moth_group_world_rank(g, b->first_left));
    else if (atomic_load(&g->broken) || g->closing)
      snprintf(text, sizeof text, "the group is broken");
    else if (moth_wire_now() >= w->deadline)
      say_who_is_missing(b, g, w, text, sizeof text);
    else
      moth_comm_wait(&b->lock, &b->changed, w->deadline, 0.02);
  }
  if (text[0]) {
    b->calls[g->rank] = NULL;
    b->arrived--;
  } else if (!b->same) {
    snprintf(text, sizeof text, "%s", b->mismatch);
  }
  bool met = b->round != round;
  pthread_mutex_unlock(&b->lock);
  if (!text[0])
    take(b, g, w, to);
  if (met) { /* nobody leaves before all have taken theirs */
    pthread_mutex_lock(&b->lock);
    if (++b->leaving == b->size) {
      memset(b->calls, 0, (size_t)b->size * sizeof *b->calls);
      b->arrived = 0;
      b->taking = false;
      pthread_cond_broadcast(&b->changed);
    }
    while (b->taking && b->round == round + 1)
      moth_comm_wait(&b->lock, &b->changed, 1e18, 0.02);
    pthread_mutex_unlock(&b->lock);
  }
  if (!text[0]) {
    put(w->out, to, n);
    g->stats.bytes_sent += w->nin * w->itemsize;
    g->stats.bytes_received += n;
  }
  free(to);
  if (text[0])
    moth_group_fault(g, "%s", text);
  return !text[0];
}

/* --- sends and receives ------------------------------------------------------------------------- */

static bool fits(const MothWork *w, int to, const Message *m) {
  return m->to == to && (w->peer < 0 || w->peer == m->from) && w->head.root == m->head.root;
}

static void receive(MothGroup *g, MothWork *w, Message *m) {
  char mine[300], theirs[300], text[700];
  bool same = m->head.dtype == w->head.dtype && m->head.count == w->head.count &&
              m->head.ndim == w->head.ndim &&
              memcmp(m->head.shape, w->head.shape, sizeof m->head.shape) == 0;
  if (same)
    put(w->out, m->data, w->nout * w->itemsize);
  else
    snprintf(
        text, sizeof text, "the calls of ranks do not match: rank %d calls %s, rank %d calls %s",
        moth_group_world_rank(g, g->rank), moth_comm_head_text(&w->head, mine, sizeof mine),
        moth_group_world_rank(g, m->from), moth_comm_head_text(&m->head, theirs, sizeof theirs));
  w->peer = m->from;
  free(m);
  moth_work_finish(w, same ? NULL : text);
}

static void local_post(MothGroup *g, MothWork *w) {
  Board *b = g->state;
  Message *m = NULL;
  Receive *r = NULL;
  if (w->head.op == MOTH_COMM_SEND) {
    int64_t n = w->nin * w->itemsize;
    m = malloc(sizeof *m + (size_t)n);
    if (!m) {
      moth_work_finish(w, "out of memory");
      return;
    }
    *m = (Message){.from = g->rank, .to = w->peer, .head = w->head};
    put(m->data, w->in, n);
  }
  pthread_mutex_lock(&b->lock);
  if (m) {
    Receive **at = &b->receives;
    while (*at && !fits((*at)->work, (*at)->group->rank, m))
      at = &(*at)->next;
    if ((r = *at)) {
      *at = r->next;
    } else {
      Message **end = &b->messages;
      while (*end)
        end = &(*end)->next;
      m->next = NULL;
      *end = m;
    }
  } else {
    Message **at = &b->messages;
    while (*at && !fits(w, g->rank, *at))
      at = &(*at)->next;
    if ((m = *at)) {
      *at = m->next;
    } else {
      Receive **end = &b->receives;
      while (*end)
        end = &(*end)->next;
      Receive *mine = calloc(1, sizeof *mine);
      if (mine)
        *mine = (Receive){NULL, g, w};
      *end = mine;
    }
  }
  pthread_mutex_unlock(&b->lock);
  if (w->head.op == MOTH_COMM_SEND) {
    if (r)
      receive(r->group, r->work, m);
    free(r);
    moth_work_finish(w, NULL);
  } else if (m) {
    receive(g, w, m);
  }
}

/* Ends the receives of a group. */
static void end_receives(MothGroup *g, Board *b, const char *why) {
  pthread_mutex_lock(&b->lock);
  Receive *mine = NULL;
  for (Receive **at = &b->receives; *at;) {
    Receive *r = *at;
    if (r->group != g) {
      at = &r->next;
      continue;
    }
    *at = r->next;
    r->next = mine;
    mine = r;
  }
  pthread_mutex_unlock(&b->lock);
  while (mine) {
    Receive *r = mine;
    mine = r->next;
    moth_work_finish(r->work, why);
    free(r);
  }
}

/* Called by who waits: the receive was not there in time, or its group is broken. */
static void local_expire(MothGroup *g, MothWork *w) {
  Board *b = g->state;
  Receive *r = NULL;
  if (!b || w->head.op != MOTH_COMM_RECV)
    return;
  pthread_mutex_lock(&b->lock);
  for (Receive **at = &b->receives; *at && !r; at = r ? at : &(*at)->next)
    if ((*at)->work == w) {
      r = *at;
      *at = r->next;
    }
  pthread_mutex_unlock(&b->lock);
  char text[MOTH_COMM_TEXT];
  if (r && !moth_group_is_broken(g, text, sizeof text))
    snprintf(text, sizeof text, "timed out after %g s: rank %d has sent nothing", w->timeout,
             w->peer);
  if (r)
    moth_work_finish(w, text);
  free(r);
}

/* The group's thread looks at its flags every 20 ms. */
static void local_wake(MothGroup *g) {
  (void)g;
}

static void local_close(MothGroup *g) {
  Board *b = g->state;
  end_receives(g, b, "the process group was destroyed");
  pthread_mutex_lock(&b->lock);
  b->groups[g->rank] = NULL;
  if (b->left++ == 0)
    b->first_left = g->rank;
  pthread_cond_broadcast(&b->changed);
  pthread_mutex_unlock(&b->lock);
  g->state = NULL;
  release_board(b);
}

const MothEngine moth_engine_local = {.name = "local",
                                      .open = local_open,
                                      .run = local_run,
                                      .post = local_post,
                                      .wake = local_wake,
                                      .expire = local_expire,
                                      .close = local_close};
