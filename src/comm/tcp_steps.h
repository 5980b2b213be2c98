/* Steps of collectives: what the files of the engines tcp and gloo share. In a step a rank sends to some ranks and receives
 * from some, all at the same time. */
#ifndef MOTH_COMM_TCP_STEPS_H
#define MOTH_COMM_TCP_STEPS_H
#include "comm/tcp.h"

/* Seconds that a rank whose peer is gone waits for the launcher, which knows how the process ended. */
#define MOTH_TCP_WORD 0.08

enum { MOTH_TCP_PIECE = 256 << 10 }; /* bytes that are received before they are reduced */

/* One direction of a step. */
typedef struct MothTransfer {
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
} MothTransfer;

typedef struct MothRun {
  MothTcp *e;
  MothGroup *g;
  MothWork *w;
  uint32_t step;
  double look,
      pause; /* when a call that does not move looks for the reason; how long it waits until then */
  bool asked;
  int looks;    /* > 0: on the caller's thread; after so many without data the call is put off */
  bool put_off; /* transfers and posts are kept for the step to go on with */
  MothTransfer *transfers;
  int ntransfers;
  struct MothPosts *posts; /* of a transport */
} MothRun;

/* What both steps begin with: numbers, heads, counts of bytes. */
void moth_tcp_begin_step(MothRun *r, MothTransfer *t, int n);
/* Runs transfers that were begun until all are done. False: the group is broken, or closing, or the call is put off. */
bool moth_tcp_step(MothRun *r, MothTransfer *t, int n);
bool moth_transport_step(MothRun *r, MothTransfer *t, int n);

/* Faults; all return false. The connection to a rank broke (error: an errno): the control thread, or the launcher, knows
 * more. A rank sent a head of another call, or of another size. The call's time is over. */
bool moth_tcp_lost(MothRun *r, int peer, int error);
bool moth_tcp_differ(MothRun *r, int peer, const MothCommHead *theirs);
bool moth_tcp_timed_out(MothRun *r);
/* Whether a head that came is that of a transfer. */
bool moth_tcp_check_head(MothRun *r, const MothTransfer *t, const MothCommHead *theirs);
/* Nothing has moved for a while. Ranks that call different things may wait for each other, none of them sending: so they ask
 * what the others have called, after 0.1 s at first. False: something else. */
bool moth_tcp_stalled(MothRun *r);
#endif
