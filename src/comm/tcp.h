/* The tcp engine: a full mesh with two connections for each pair of ranks.
 *
 * The first carries collectives, on the group's thread (tcp.c, tcp_collectives.c): each step sends a head in front of its
 * data, so that a mismatch is seen at the first byte. Where all ranks are on one host, memory that they share takes its place
 * (shared.h). The second is served by a thread of its own (tcp_control.c): sends
 * and receives, and what ranks tell each other: that one leaves, what one has called last, the text of a fault. As every
 * rank has this connection to every other one, a rank that dies is seen by all at once, and by its own number. */
#ifndef MOTH_COMM_TCP_H
#define MOTH_COMM_TCP_H
#include "comm/comm.h"
#include "comm/shared.h"

typedef struct MothTcpFrame MothTcpFrame;

typedef struct MothTcpPeer {
  int data, control; /* sockets; -1: of this rank itself, or closed */
  char about[96];    /* "pid 123 on host" */
  _Atomic bool left; /* it said that it leaves */
  _Atomic bool gone; /* its connection broke */
  int64_t met
      [2]; /* transport: the last call in which a head was received, sent; of the group's thread */
  /* of the control thread */
  MothTcpFrame *first, **last; /* frames to be sent */
  size_t sent;                 /* bytes of the first one, with its head */
  MothCommHead head;           /* of the frame that comes in */
  size_t got;                  /* bytes of the head, then of the data */
  bool has_head;
  MothWork *work; /* the receive that the data is for */
  char *text;     /* or memory for it */
  bool holds;     /* the data waits for a receive */
  /* answers to a question, under the engine's lock */
  bool answered;
  int64_t made;      /* the number of its last collective call */
  int64_t over;      /* of the last one that has ended */
  MothCommHead call; /* the one that was asked for, or its last one if it has not come there */
  char where[MOTH_COMM_WHERE];
} MothTcpPeer;

typedef struct MothTcp {
  MothGroup *group;
  MothTcpPeer *peers;
  const struct MothTransportApi *api; /* of transport */
  void *transport;                    /* where data travels by Gloo or MPI; NULL: by own sockets */
  MothShared *shared; /* data travels by memory: all ranks are on this host; may be NULL */
  void *nccl;         /* collectives of CUDA tensors by NCCL; NULL: of the host's */
  _Atomic bool waits; /* transport: the group's thread is in a step */
  bool detail;        /* rank 0 runs with MOTH_DISTRIBUTED_DEBUG=DETAIL */
  int alarm[2];       /* rings once the group is broken or closing; polled by the group's thread */
  int bell[2];        /* wakes the control thread */
  pthread_t thread;
  bool has_thread, own_data; /* own_data: by own sockets */
  pthread_mutex_t lock;      /* of the fields below */
  pthread_cond_t changed;
  MothWork *posted, **last_posted; /* handed to the control thread */
  int64_t question; /* the number of a call that all ranks are to be asked for; 0: none */
  bool closing, announced;
  char *scratch;
  size_t nscratch;       /* of the thread that runs a call */
  struct MothRun *begun; /* by a caller, for the group's thread to go on with; NULL: nothing */
} MothTcp;

/* Opens the connections to all other ranks. */
MothStatus moth_tcp_connect(MothTcp *e, MothStore *store, const char *key, double timeout);
bool moth_tcp_run(MothGroup *g, MothWork *w);
bool moth_tcp_attempt(MothGroup *g, MothWork *w);
void *moth_tcp_control(void *engine);
void moth_tcp_post(MothGroup *g, MothWork *w);
/* Asks all ranks for their call of this number. Answers come by and by. */
void moth_tcp_ask(MothTcp *e, int64_t seq);
/* Whether a rank has answered that it called something else than w: who and what, as a text. */
bool moth_tcp_compare(MothTcp *e, const MothWork *w, char *text, size_t n);
/* A rank sent this head where w's was expected: what both have called. */
void moth_tcp_mismatch(MothTcp *e, const MothWork *w, int peer, const MothCommHead *theirs,
                       char *text, size_t n);
/* Asks all ranks what they do, and writes who keeps w waiting. On the group's thread. */
void moth_tcp_diagnose(MothTcp *e, const MothWork *w, char *text, size_t n);
/* Before a transport is closed, whose libraries drop what is still on its way: waits until the others have ended the calls
 * that this rank has, or left; not for ever. */
void moth_tcp_linger(MothTcp *e);
/* "rank 1 (pid 123 on host)" */
const char *moth_tcp_rank(const MothTcp *e, int rank, char *text, size_t n);
#endif
