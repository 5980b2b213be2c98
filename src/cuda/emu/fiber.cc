/* Kernels of the emulation: the threads of a block as fibers. See cudaemu.h. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "cuda/emu/emu.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace {

enum State { READY, BLOCK, WARP, DONE };

struct Fiber {
  void *sp;
  State state;
  uint3 index;
};
/* A collective of a warp in progress. */
struct Warp {
  unsigned arrived, departed, mask, ballot;
  uint64_t value[32];
};

enum { MAX_THREADS = 1024, STACK = 128 << 10 };

Fiber fibers[MAX_THREADS];
Warp warps[MAX_THREADS / 32];
int nthreads, now, block_count, block_result;
void *scheduler_sp;
char *stacks;
alignas(64) char dynamic_shared[256 << 10];
const std::function<void()> *body;
uint64_t rng = 88172645463325252ull;

uint64_t next_random() {
  rng ^= rng << 13;
  rng ^= rng >> 7;
  return rng ^= rng << 17;
}

extern "C" void moth_emu_switch(void **save, void *to);
/* rdi: where to keep this stack; rsi: the stack to go on with. */
__asm__(".text\n.globl moth_emu_switch\n.hidden moth_emu_switch\n.type moth_emu_switch,@function\n"
        "moth_emu_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n");

void yield(State s) {
  Fiber *f = &fibers[now];
  f->state = s;
  moth_emu_switch(&f->sp, scheduler_sp);
}

void fiber_main() {
  (*body)();
  yield(DONE);
}

void prepare(int i) {
  char *top = stacks + (size_t)(i + 1) * STACK;
  void **sp = (void **)top;
  *--sp = nullptr; /* keeps the stack aligned as after a call */
  *--sp = (void *)fiber_main;
  for (int k = 0; k < 6; k++)
    *--sp = nullptr;
  fibers[i].sp = sp;
  fibers[i].state = READY;
}

/* Runs every fiber that can go on, in a random direction from a random place. True: some did. */
bool pass() {
  bool ran = false;
  uint64_t r = next_random();
  int start = (int)(r % (unsigned)nthreads), step = r >> 40 & 1 ? 1 : nthreads - 1;
  for (int k = 0, i = start; k < nthreads; k++, i = (i + step) % nthreads) {
    Fiber *f = &fibers[i];
    if (f->state != READY)
      continue;
    now = i;
    threadIdx = f->index;
    ran = true;
    moth_emu_switch(&scheduler_sp, f->sp);
  }
  return ran;
}

cudaError_t run_block(const char *name) {
  block_count = 0;
  memset(warps, 0, sizeof warps);
  int i = 0;
  for (unsigned z = 0; z < blockDim.z; z++)
    for (unsigned y = 0; y < blockDim.y; y++)
      for (unsigned x = 0; x < blockDim.x; x++, i++) {
        prepare(i);
        fibers[i].index = {x, y, z};
      }
  for (;;) {
    if (pass())
      continue;
    int at_barrier = 0, waiting = 0;
    for (i = 0; i < nthreads; i++) {
      at_barrier += fibers[i].state == BLOCK;
      waiting += fibers[i].state != DONE;
    }
    if (!waiting)
      return cudaSuccess;
    if (at_barrier != waiting) {
      fprintf(
          stderr,
          "cuda emulation: deadlock in %s, block (%u, %u, %u): of %d threads that go on, %d wait "
          "at __syncthreads and %d for lanes of their warp\n",
          name, blockIdx.x, blockIdx.y, blockIdx.z, waiting, at_barrier, waiting - at_barrier);
      return cudaErrorLaunchFailure;
    }
    block_result = block_count;
    block_count = 0;
    for (i = 0; i < nthreads; i++)
      if (fibers[i].state == BLOCK)
        fibers[i].state = READY;
  }
}

} // namespace

void moth_emu_barrier(void) {
  yield(BLOCK);
}
int moth_emu_barrier_count(bool p) {
  block_count += p;
  yield(BLOCK);
  return block_result;
}
void *moth_emu_shared(void) {
  return dynamic_shared;
}
int moth_emu_lane(void) {
  return now & 31;
}

static void wake(int warp) {
  for (int i = warp * 32; i < warp * 32 + 32 && i < nthreads; i++)
    if (fibers[i].state == WARP)
      fibers[i].state = READY;
}

uint64_t moth_emu_exchange(unsigned mask, uint64_t value, int from, bool predicate,
                           unsigned *ballot) {
  int lane = now & 31, warp = now >> 5;
  Warp *w = &warps[warp];
  int last = nthreads - warp * 32;
  if (last < 32)
    mask &= (1u << last) - 1;
  while (w->arrived >> lane & 1 || w->departed) /* the one before is not over */
    yield(WARP);
  w->mask = mask;
  w->value[lane] = value;
  w->ballot = (w->arrived ? w->ballot : 0) | (unsigned)predicate << lane;
  w->arrived |= 1u << lane;
  if (w->arrived == mask)
    wake(warp);
  while ((w->arrived & mask) != mask)
    yield(WARP);
  uint64_t got = from >= 0 && mask >> from & 1 ? w->value[from] : value;
  *ballot = w->ballot;
  w->departed |= 1u << lane;
  if (w->departed == w->arrived) {
    w->arrived = w->departed = 0;
    wake(warp);
  }
  return got;
}

cudaError_t moth_emu_run(const char *name, const std::function<void()> &f, dim3 grid, dim3 block,
                         size_t shared) {
  size_t threads = (size_t)block.x * block.y * block.z;
  if (threads == 0 || threads > MAX_THREADS || shared > sizeof dynamic_shared)
    return cudaErrorInvalidConfiguration;
  if (!stacks) {
    void *p = mmap(nullptr, (size_t)MAX_THREADS * STACK, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
      return cudaErrorMemoryAllocation;
    stacks = (char *)p;
  }
  body = &f;
  nthreads = (int)threads;
  gridDim = grid;
  blockDim = block;
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = {x, y, z};
        cudaError_t e = run_block(name);
        if (e != cudaSuccess)
          return e;
      }
  return cudaSuccess;
}
