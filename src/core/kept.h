/* What kernels make of constants, such as packed weights, kept for the next run of the same calls. Who runs a program again and
 * again (src/edge, graph/plan.h) sets a keeper for the time of a run; kernels ask it and go on without where there is none. */
#ifndef MOTH_CORE_KEPT_H
#define MOTH_CORE_KEPT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct MothKeeper {
  void *(*keep)(struct MothKeeper *k, const void *of, int64_t layout, size_t bytes, bool *made);
} MothKeeper;

extern _Thread_local MothKeeper *moth_keeper;

/* Memory for what is made of a constant that begins at `of`: the same memory in each run, if layout and bytes are the same;
 * `made`: a run before has filled it. NULL: it is no constant, or nothing is kept. */
static inline void *moth_keep(const void *of, int64_t layout, size_t bytes, bool *made) {
  *made = false;
  return moth_keeper ? moth_keeper->keep(moth_keeper, of, layout, bytes, made) : NULL;
}

/* --- for who runs programs ---------------------------------------------------------------------------------------- */

/* What one call asks for, in the order in which it asks. */
typedef struct MothKept MothKept;

/* A keeper of a run: begin, then for each call `call` and, if it has succeeded, `made`; end. */
typedef struct MothKeeping {
  MothKeeper base;
  bool (*is_constant)(const void *owner, const void *p);
  const void *owner;
  MothKept **list; /* of the call that asks now, */
  uint32_t asked;  /* for the asked-th time; NULL: nobody asks */
  bool fills;      /* memory is allocated; else what is there is used */
} MothKeeping;

void moth_keeping_begin(MothKeeping *k, bool (*is_constant)(const void *owner, const void *p),
                        const void *owner, bool fills);
void moth_keeping_call(MothKeeping *k, MothKept **list);
void moth_keeping_made(const MothKeeping *k);
void moth_keeping_end(MothKeeping *k);
void moth_kept_free(MothKept **list);
#endif
