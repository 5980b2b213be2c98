/* A group of two ranks in the middle of a job, for the fuzzers of what the other rank sends. */
#ifndef MOTH_FUZZ_JOB_H
#define MOTH_FUZZ_JOB_H
#include <stdlib.h>

#include "comm/comm.h"
#include "comm/nccl.h"
#include "comm/tcp.h"
#include "comm/thread.h"
#include "comm/unit.h"

/* There are no devices, so no events of theirs and no NCCL. */
MothStatus moth_event_new(MothDeviceType type, bool timing, MothEvent **out) {
  (void)type, (void)timing, (void)out;
  return MOTH_ERR_VALUE;
}
void moth_event_free(MothEvent *e) {
  (void)e;
}
MothStatus moth_event_record(MothEvent *e, MothStream *s) {
  (void)e, (void)s;
  return MOTH_ERR_VALUE;
}
MothStatus moth_nccl_connect(MothTcp *e, MothStore *store, const char *key, double deadline) {
  (void)e, (void)store, (void)key, (void)deadline;
  return MOTH_ERR_VALUE;
}
bool moth_nccl_run(MothRun *r) {
  (void)r;
  return false;
}
MothStatus moth_nccl_check(const MothCommRequest *r) {
  (void)r;
  return MOTH_ERR_VALUE;
}
void moth_nccl_close(MothTcp *e) {
  (void)e;
}

static const int job_collectives[] = {MOTH_COMM_ALL_REDUCE, MOTH_COMM_ALL_GATHER,
                                      MOTH_COMM_BROADCAST,  MOTH_COMM_ALL_TO_ALL,
                                      MOTH_COMM_BARRIER,    MOTH_COMM_REDUCE_SCATTER};

static MothWork *job_work(MothGroup *g, int op, int64_t count) {
  MothWork *w = calloc(1, sizeof *w);
  w->refs = 1;
  w->group = g;
  moth_group_retain(g);
  w->head = (MothCommHead){.magic = 0x6d6f7468,
                           .op = (uint8_t)op,
                           .dtype = MOTH_FLOAT32,
                           .ndim = 1,
                           .root = op >= MOTH_COMM_SEND        ? 0
                                   : op == MOTH_COMM_BROADCAST ? 1
                                                               : -1,
                           .seq = 1,
                           .count = count,
                           .shape = {count}};
  w->itemsize = 4;
  w->nin = w->nout = count;
  w->peer = 1;
  w->timeout = w->deadline = 1e18;
  w->in = calloc((size_t)(2 * count), 4);
  w->out = calloc((size_t)(2 * count), 4);
  return w;
}

static void job_free_work(MothWork *w) {
  free((char *)w->in);
  free(w->out);
  moth_work_release(w);
}

/* The group of an engine, of which this is rank 0. */
static MothGroup *job_group(MothTcp *e, const MothEngine *engine) {
  MothGroup *g = calloc(1, sizeof *g);
  *g = (MothGroup){.refs = 1, .size = 2, .engine = engine, .state = e, .tail = &g->first};
  g->last = &g->own_last;
  moth_comm_lock(&g->lock, &g->changed);
  g->records = calloc(MOTH_COMM_RECORDS, sizeof *g->records);
  moth_comm_lock(&e->lock, &e->changed);
  e->group = g;
  e->last_posted = &e->posted;
  for (int i = 0; i < 2; i++)
    e->peers[i].last = &e->peers[i].first;
  return g;
}

static void job_end(MothTcp *e, MothGroup *g, MothWork *w) {
  job_free_work(w);
  free(e->scratch);
  pthread_mutex_destroy(&e->lock);
  pthread_cond_destroy(&e->changed);
  moth_group_release(g);
}
#endif
