/* The fake engine: one process stands for a rank of a group of any size. Nothing travels: results have the right shape, and
 * of the elements those that this rank gives itself. Calls are counted, and are in the flight recorder. */
#include <string.h>

#include "comm/comm.h"

static MothStatus fake_open(MothGroup *g, MothStore *store, const char *key, double timeout) {
  (void)g, (void)store, (void)key, (void)timeout;
  return MOTH_OK;
}

static void put(char *to, const char *from, int64_t n) {
  if (n > 0 && to != from)
    memmove(to, from, (size_t)n);
}

static bool fake_run(MothGroup *g, MothWork *w) {
  int64_t in = w->nin * w->itemsize, out = w->nout * w->itemsize, size = g->size;
  bool at_root = w->head.root == g->rank;
  switch (w->head.op) {
  case MOTH_COMM_ALL_GATHER:
    for (int64_t i = 0; i < size; i++)
      put(w->out + i * in, w->in, in);
    g->stats.bytes_sent += in * (size - 1);
    break;
  case MOTH_COMM_GATHER:
    for (int64_t i = 0; i < size && at_root; i++)
      put(w->out + i * in, w->in, in);
    g->stats.bytes_sent += at_root ? 0 : in;
    break;
  case MOTH_COMM_REDUCE_SCATTER:
    put(w->out, w->in + g->rank * out, out);
    g->stats.bytes_sent += out * (size - 1);
    break;
  case MOTH_COMM_SCATTER:
    put(w->out, w->in + g->rank * out, at_root ? out : 0);
    g->stats.bytes_sent += at_root ? out * (size - 1) : 0;
    break;
  case MOTH_COMM_ALL_REDUCE:
    put(w->out, w->in, in);
    g->stats.bytes_sent += 2 * in * (size - 1) / size;
    break;
  case MOTH_COMM_BARRIER:
  case MOTH_COMM_RECV:
    break;
  default:
    put(w->out, w->in, in < out ? in : out);
    g->stats.bytes_sent += in;
    break;
  }
  return true;
}

static void fake_wake(MothGroup *g) {
  (void)g;
}

const MothEngine moth_engine_fake = {
    .name = "fake", .open = fake_open, .run = fake_run, .wake = fake_wake, .close = fake_wake};
