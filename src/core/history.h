/* The record of allocations: which blocks are alive, where the program made them, and, in order, what was allocated and
 * freed. Off until moth_history_start; the allocators then call it through moth_alloc_watch. All devices; any thread. */
#ifndef MOTH_CORE_HISTORY_H
#define MOTH_CORE_HISTORY_H
#include <stddef.h>

#include "moth.h"

typedef struct MothHistoryBlock {
  const void *address; /* NULL: a free slot of the table */
  int64_t bytes;       /* of the block */
  int64_t nbytes;      /* of the tensor's elements in it; -1: it is no tensor's memory */
  int64_t time;        /* ns since the start */
  uint32_t trace;      /* see moth_history_trace */
  uint32_t serial;     /* of the allocation, from 1 */
  MothDevice device;
} MothHistoryBlock;

/* One allocation (bytes > 0) or release (< 0), of the block with that serial; 0: one from before the start. */
typedef struct MothHistoryEvent {
  int64_t bytes, time;
  uint32_t serial, trace;
  MothDevice device;
} MothHistoryEvent;

/* Begins with an empty record, or ends recording and keeps what is there. `describe` writes where the program is, as a
 * text of at most n bytes, on the thread that allocates; NULL: nobody knows. The last `capacity` events are kept. */
MOTH_API MothStatus moth_history_start(int64_t capacity, void (*describe)(char *text, size_t n));
MOTH_API void moth_history_stop(void);
MOTH_API bool moth_history_on(void);
/* The block at p is a tensor's, of nbytes bytes. */
MOTH_API void moth_history_mark(const void *p, int64_t nbytes);
/* Copies of the live blocks and of the events, in order; the caller frees *out by free(). -1: no memory. */
MOTH_API int64_t moth_history_blocks(MothHistoryBlock **out);
MOTH_API int64_t moth_history_events(MothHistoryEvent **out);
/* The text of a trace; valid until the next start. "" for an unknown one. */
MOTH_API const char *moth_history_trace(uint32_t trace);
/* For errors: "; most is held by: 12 MB in 3 blocks from train.lua:12, …", or what to do to know that. */
MOTH_API void moth_history_holders(char *text, size_t n);
#endif
