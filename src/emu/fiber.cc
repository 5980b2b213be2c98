/* Kernels of the emulation: the threads of a block as fibers.
 *
 * Blocks run one after the other, in random direction. A fiber runs threads of the block one after the other, until
 * one of them has to wait: then the fiber stays with that thread, and another fiber runs the rest. So a kernel
 * without barriers needs one fiber and few switches. The order of warps and lanes is random.
 *
 * Collectives of a warp: lanes that call it with the same mask form a group, and continue when all lanes of the mask
 * have called it. Several groups of disjoint masks can be open. Lanes that have ended count as present for votes and
 * __syncwarp, as on the hardware; for a shuffle they are missing. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "emu/cudaemu.h"
#include "emu/emu.h"
#include "emu/shared.h"
#ifdef MOTH_EMU_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

enum { MAX_THREADS = 1024, NONE = -1 };
#ifdef MOTH_EMU_ASAN
const size_t STACK = 512 << 10;
#else
const size_t STACK = 128 << 10;
#endif
const size_t PAGE = 4096;

/* --- switching ---------------------------------------------------------------------------------- */

struct Context {
#ifdef __x86_64__
  void *sp;
#else
  ucontext_t u;
#endif
  const void *bottom; /* of its stack */
  size_t size;
  void *fake; /* AddressSanitizer's fake stack */
};

#ifdef __x86_64__
extern "C" void moth_emu_switch(void **save, void *to);
/* rdi: where to save this stack's pointer; rsi: the stack to continue on. */
__asm__(".text\n.globl moth_emu_switch\n.hidden moth_emu_switch\n.type moth_emu_switch,@function\n"
        "moth_emu_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n");
#endif

Context scheduler;

void go(Context *from, Context *to) {
#ifdef MOTH_EMU_ASAN
  __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->size);
#endif
#ifdef __x86_64__
  moth_emu_switch(&from->sp, to->sp);
#else
  swapcontext(&from->u, &to->u);
#endif
#ifdef MOTH_EMU_ASAN
  if (from == &scheduler)
    __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
  else /* kernels may be run by any thread of the process */
    __sanitizer_finish_switch_fiber(from->fake, &scheduler.bottom, &scheduler.size);
#endif
}

const char *const names[] = {"__syncwarp", "__ballot_sync", "__any_sync",      "__all_sync",
                             "a shuffle",  "__reduce_sync", "__match_any_sync"};

/* --- the state of a block ----------------------------------------------------------------------- */

enum State { FRESH, READY, BLOCK, WARP, DONE };

struct Thread {
  State state;
  int fiber; /* which waits in it */
};
/* A collective in progress. */
struct Group {
  unsigned mask, arrived, left, ballot;
  bool open;
  MothEmuMeeting what;
  uint64_t value[32];
};
struct Warp {
  Group group[33]; /* each lane is in at most one, open or about to be left */
  int groups;      /* how many of them were ever used */
  int open;
  int ready;      /* threads */
  unsigned ended; /* lanes */
};

struct Fiber {
  Context context;
  bool made;
};

Fiber fibers[MAX_THREADS + 1];
int idle[MAX_THREADS + 1], nidle; /* fibers without a thread */
char *stacks;
bool failed; /* moth_emu_say has a message */

Thread threads[MAX_THREADS];
Warp warps[MAX_THREADS / 32];
int nthreads, nwarps, now, fiber_now;
int begun, order_start, order_step; /* which thread begins next */
int block_count, block_result, pauses;
const std::function<void()> *body;
const char *kernel;
MothEmuRandom rng{moth_emu_seed() ^ 0x5bd1e995};

void set_index(int i) {
  unsigned u = (unsigned)i;
  if (blockDim.x == (unsigned)nthreads) {
    threadIdx.x = u;
    return;
  }
  threadIdx.x = u % blockDim.x;
  threadIdx.y = u / blockDim.x % blockDim.y;
  threadIdx.z = u / blockDim.x / blockDim.y;
}

/* The k-th thread to begin: warps in a random rotation, lanes of each upwards or downwards. */
int fresh_thread(int k) {
  int w = (order_start + k / 32) % nwarps;
  int i = w * 32 + (order_step > 0 ? k % 32 : 31 - k % 32);
  return i < nthreads ? i : NONE;
}

void wake(int i) {
  threads[i].state = READY;
  warps[i >> 5].ready++;
}

void complete(int warp, Group *g) {
  g->open = false;
  warps[warp].open--;
  for (unsigned lanes = g->arrived; lanes; lanes &= lanes - 1) {
    int i = warp * 32 + __builtin_ctz(lanes);
    if (threads[i].state == WARP)
      wake(i);
  }
}
void complete_if_all_came(int warp, Group *g) {
  unsigned absent = g->mask & ~g->arrived;
  if ((absent & ~warps[warp].ended) == 0 && (!absent || g->what <= MOTH_EMU_ALL))
    complete(warp, g);
}

void ended(int i) {
  threads[i].state = DONE;
  Warp *w = &warps[i >> 5];
  w->ended |= 1u << (i & 31);
  for (int k = 0; k < w->groups && w->open; k++)
    if (w->group[k].open)
      complete_if_all_came(i >> 5, &w->group[k]);
}

void fiber_main() {
#ifdef MOTH_EMU_ASAN
  __sanitizer_finish_switch_fiber(nullptr, &scheduler.bottom, &scheduler.size);
#endif
  int self = fiber_now;
  for (;;) {
    while (begun < nwarps * 32) {
      int i = fresh_thread(begun++);
      if (i == NONE)
        continue;
      now = i;
      set_index(i);
      (*body)();
      ended(now);
    }
    idle[nidle++] = self;
    go(&fibers[self].context, &scheduler);
  }
}

void make(int f) {
  char *low =
      stacks + (size_t)f * (STACK + PAGE) + PAGE; /* pages between the stacks are not mapped */
  mprotect(low, STACK, PROT_READ | PROT_WRITE);
  ASAN_UNPOISON_MEMORY_REGION(low, STACK);
  Context *c = &fibers[f].context;
  c->bottom = low;
  c->size = STACK;
  c->fake = nullptr;
#ifdef __x86_64__
  void **sp = (void **)(low + STACK);
  *--sp = nullptr; /* keeps the stack aligned as after a call */
  *--sp = (void *)fiber_main;
  for (int k = 0; k < 6; k++)
    *--sp = nullptr;
  c->sp = sp;
#else
  getcontext(&c->u);
  c->u.uc_stack.ss_sp = low;
  c->u.uc_stack.ss_size = STACK;
  c->u.uc_link = nullptr;
  makecontext(&c->u, fiber_main, 0);
#endif
  fibers[f].made = true;
}

void resume(int f) {
  fiber_now = f;
  go(&scheduler, &fibers[f].context);
}

/* Called by a thread: runs others until it is woken. */
void wait(State s) {
  int i = now, f = fiber_now;
  threads[i].state = s;
  threads[i].fiber = f;
  go(&fibers[f].context, &scheduler);
  now = i;
  fiber_now = f;
  set_index(i);
}

void begin_fresh() {
  while (begun < nwarps * 32 && !failed) {
    if (nidle == 0) { /* all fibers have threads that wait: makes one more */
      for (int f = 0; f <= MAX_THREADS; f++)
        if (!fibers[f].made) {
          make(f);
          idle[nidle++] = f;
          break;
        }
    }
    resume(idle[--nidle]);
  }
}

/* Runs every thread that can continue, once. True: at least one did. */
bool pass() {
  bool ran = false;
  int first = (int)rng.below((unsigned)nwarps), down = (int)rng.below(2) * 31;
  for (int k = 0; k < nwarps; k++) {
    int w = (first + k) % nwarps;
    for (int l = 0; l < 32 && warps[w].ready && !failed; l++) {
      int i = w * 32 + (l ^ down);
      if (i >= nthreads || threads[i].state != READY)
        continue;
      warps[w].ready--;
      ran = true;
      resume(threads[i].fiber);
    }
  }
  return ran;
}

/* --- messages of failures ------------------------------------------------------------------ */

void lanes_text(char *to, size_t size, unsigned lanes) {
  size_t n = 0;
  for (int l = 0; l < 32; l++)
    if (lanes >> l & 1) {
      int last = l;
      while (last < 31 && lanes >> (last + 1) & 1)
        last++;
      if (n + 16 < size)
        n += (size_t)snprintf(to + n, size - n, last > l ? "%s%d-%d" : "%s%d", n ? "," : "", l,
                              last);
      l = last;
    }
}

void say(const char *format, ...) {
  char text[400];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (!failed)
    moth_emu_say("unspecified launch failure: %s, block (%u, %u, %u): %s", kernel, blockIdx.x,
                 blockIdx.y, blockIdx.z, text);
  failed = true;
}

void say_deadlock() {
  int at_barrier = 0, waiting = 0;
  for (int i = 0; i < nthreads; i++) {
    at_barrier += threads[i].state == BLOCK;
    waiting += threads[i].state != DONE;
  }
  for (int w = 0; w < nwarps; w++)
    for (const Group &g : warps[w].group)
      if (g.open) {
        unsigned absent = g.mask & ~g.arrived;
        char here[100] = "", missing[100] = "", gone[130] = "";
        lanes_text(here, sizeof here, g.arrived);
        lanes_text(missing, sizeof missing, absent);
        if (absent & warps[w].ended) {
          strcpy(gone, "; ended: ");
          lanes_text(gone + 9, sizeof gone - 9, absent & warps[w].ended);
        }
        say("deadlock: in warp %d lanes %s wait in %s (mask 0x%08x) for lanes %s%s; %d of %d "
            "threads wait at __syncthreads",
            w, here, names[g.what], g.mask, missing, gone, at_barrier, waiting);
        return;
      }
  say("deadlock: %d of %d threads wait at __syncthreads", at_barrier, waiting);
}

/* --- blocks ------------------------------------------------------------------------------------- */

void run_block() {
  block_count = pauses = 0;
  for (int i = 0; i < nthreads; i++)
    threads[i].state = FRESH;
  for (int w = 0; w < nwarps; w++) {
    int lanes = nthreads - w * 32;
    warps[w].ended = lanes < 32 ? ~0u << lanes : 0; /* lanes beyond the block */
    warps[w].ready = 0;
  }
  moth_emu_shared_begin();
  begun = 0;
  order_start = (int)rng.below((unsigned)nwarps);
  order_step = rng.below(2) ? 1 : -1;
  begin_fresh();
  while (!failed) {
    if (pass())
      continue;
    int at_barrier = 0, waiting = 0;
    for (int i = 0; i < nthreads; i++) {
      at_barrier += threads[i].state == BLOCK;
      waiting += threads[i].state != DONE;
    }
    if (!waiting)
      return;
    if (at_barrier != waiting) {
      say_deadlock();
      return;
    }
    block_result = block_count;
    block_count = 0;
    for (int i = 0; i < nthreads; i++)
      if (threads[i].state == BLOCK)
        wake(i);
  }
}

/* After a failure some fibers still wait: drops them. */
void abandon() {
  for (Fiber &f : fibers)
    f.made = false;
  nidle = 0;
  memset(warps, 0, sizeof warps);
}

} // namespace

/* --- for the kernels ---------------------------------------------------------------------------- */

void moth_emu_barrier(void) {
  wait(BLOCK);
}
int moth_emu_barrier_count(bool p) {
  block_count += p;
  wait(BLOCK);
  return block_result;
}
void moth_emu_pause(void) {
  if (++pauses > 10000000)
    say("livelock: thread (%u, %u, %u) has waited too often", threadIdx.x, threadIdx.y,
        threadIdx.z);
  warps[now >> 5].ready++;
  wait(READY);
}
int moth_emu_lane(void) {
  return now & 31;
}

/* The values of the lane's group, of the lanes that took part. */
static Group *meet(MothEmuMeeting what, unsigned mask, uint64_t value, bool predicate) {
  int lane = now & 31, warp = now >> 5;
  Warp *w = &warps[warp];
  int lanes = nthreads - warp * 32;
  if (lanes < 32)
    mask &= (1u << lanes) - 1; /* lanes beyond the block */
  if (!(mask >> lane & 1)) {
    say("lane %d of warp %d calls %s with a mask (0x%08x) that it is not in", lane, warp,
        names[what], mask);
    wait(WARP);
  }
  Group *g = nullptr, *unused = nullptr;
  for (Group *c = w->group; c < w->group + w->groups; c++) {
    if (c->open && c->mask == mask && !(c->arrived >> lane & 1))
      g = c;
    else if (!c->open && !c->left)
      unused = c;
  }
  if (g && g->what != what) {
    say("lanes of warp %d meet in %s and in %s (mask 0x%08x)", warp, names[g->what], names[what],
        mask);
    wait(WARP);
  }
  if (!g) {
    g = unused ? unused : &w->group[w->groups++];
    w->open++;
    g->mask = mask;
    g->arrived = g->left = g->ballot = 0;
    g->open = true;
    g->what = what;
  }
  g->value[lane] = value;
  g->ballot |= (unsigned)predicate << lane;
  g->arrived |= 1u << lane;
  g->left |= 1u << lane;
  complete_if_all_came(warp, g);
  if (g->open)
    wait(WARP);
  return g;
}

uint64_t moth_emu_exchange(MothEmuMeeting what, unsigned mask, uint64_t value, int from) {
  int lane = now & 31;
  Group *g = meet(what, mask, value, false);
  /* For a lane that does not take part the hardware returns any value. */
  uint64_t got = from == lane ? value : g->arrived >> from & 1u ? g->value[from] : ~(uint64_t)0;
  g->left &= ~(1u << lane);
  return got;
}
unsigned moth_emu_vote(MothEmuMeeting what, unsigned mask, bool predicate) {
  Group *g = meet(what, mask, 0, predicate);
  g->left &= ~(1u << (now & 31));
  return g->ballot;
}
unsigned moth_emu_gather(MothEmuMeeting what, unsigned mask, uint64_t value, uint64_t *values) {
  Group *g = meet(what, mask, value, false);
  memcpy(values, g->value, sizeof g->value);
  g->left &= ~(1u << (now & 31));
  return g->arrived;
}

cudaError_t moth_emu_run(const char *name, const std::function<void()> &f, dim3 grid, dim3 block,
                         size_t shared) {
  if (!stacks) {
    void *p = mmap(nullptr, (MAX_THREADS + 1) * (STACK + PAGE), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      return cudaErrorMemoryAllocation;
    stacks = (char *)p;
  }
  body = &f;
  kernel = name;
  failed = false;
  nthreads = (int)(block.x * block.y * block.z);
  nwarps = (nthreads + 31) / 32;
  threadIdx = {0, 0, 0};
  gridDim = grid;
  blockDim = block;
  if (!moth_emu_shared_open(shared))
    return cudaErrorMemoryAllocation;
  const uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
  const bool backwards = rng.below(2);
  for (uint64_t k = 0; k < blocks && !failed; k++) {
    uint64_t at = backwards ? blocks - 1 - k : k, rows = at / grid.x;
    blockIdx = {(unsigned)(at % grid.x), (unsigned)(rows % grid.y), (unsigned)(rows / grid.y)};
    run_block();
  }
  if (failed)
    abandon();
  return failed ? cudaErrorLaunchFailure : cudaSuccess;
}
