/* The structures of a heap: segments, blocks, the tree of free blocks and the table of used ones. Part of
 * alloc.cu. */
#ifndef MOTH_CUDA_HEAP_H
#define MOTH_CUDA_HEAP_H
#include <stdlib.h>

#include "cuda/runtime.h"

namespace {

struct Block;
struct Arena {
  Arena *next;
  uint64_t pool;
  cudaStream_t stream;
  bool small;
  Block *root;
};
struct Segment {
  Segment *prev, *next;
  size_t size;
  Block *first;
  Arena *arena;
};
struct Use {
  Use *next;
  cudaStream_t stream;
};
enum State { FREE, USED, WAITING };
struct Block {
  char *p;
  size_t size, asked;
  Segment *segment;
  Block *prev, *next;  /* neighbours in the segment */
  Block *left, *right; /* free: in the arena's tree */
  uint32_t weight;
  State state;
  int events;   /* waiting: how many have not completed */
  Use *uses;    /* other streams */
  Block *chain; /* used: in the table; waiting for a capture to end: in that list */
};
struct Pending {
  Pending *next;
  Block *block;
  cudaEvent_t event;
  cudaStream_t stream;
};

struct Heap {
  pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  int device;
  Arena *arenas;
  Segment *segments;
  Block **table; /* used blocks by address */
  size_t capacity, count;
  Pending *first, *last; /* in the order of their events */
  Block *deferred;       /* freed in a capture, with uses */
  uint32_t random = 2463534242u;
  size_t limit; /* of the process; 0: none */
  MothCudaMemory stats;
};
void add(MothCudaCount *c, int64_t n) {
  c->current += n;
  c->allocated += n;
  if (c->current > c->peak)
    c->peak = c->current;
}
void take(MothCudaCount *c, int64_t n) {
  c->current -= n;
  c->freed += n;
}

/* --- the tree of free blocks: a treap, ordered by size, then address ------------------------------- */

bool before(const Block *a, const Block *b) {
  return a->size != b->size ? a->size < b->size : a->p < b->p;
}
void insert(Heap *h, Block *b) {
  h->random ^= h->random << 13;
  h->random ^= h->random >> 17;
  b->weight = h->random ^= h->random << 5;
  Block **at = &b->segment->arena->root;
  while (*at && (*at)->weight >= b->weight)
    at = before(b, *at) ? &(*at)->left : &(*at)->right;
  /* split the subtree found here around b */
  Block *rest = *at, **low = &b->left, **high = &b->right;
  *at = b;
  while (rest) {
    if (before(rest, b)) {
      *low = rest;
      low = &rest->right;
      rest = rest->right;
    } else {
      *high = rest;
      high = &rest->left;
      rest = rest->left;
    }
  }
  *low = *high = nullptr;
}
void remove(Block *b) {
  Block **at = &b->segment->arena->root;
  while (*at != b)
    at = before(b, *at) ? &(*at)->left : &(*at)->right;
  Block *low = b->left, *high = b->right;
  while (low && high) {
    if (low->weight > high->weight) {
      *at = low;
      at = &low->right;
      low = low->right;
    } else {
      *at = high;
      at = &high->left;
      high = high->left;
    }
  }
  *at = low ? low : high;
  b->left = b->right = nullptr;
}
Block *best_fit(const Arena *a, size_t size) {
  Block *best = nullptr;
  for (Block *b = a->root; b;) {
    if (b->size >= size) {
      best = b;
      b = b->left;
    } else {
      b = b->right;
    }
  }
  return best;
}

/* --- the table of used blocks ---------------------------------------------------------------------- */

size_t place(const Heap *h, const void *p) {
  return (size_t)(((uintptr_t)p >> 9) * 0x9e3779b97f4a7c15ull >> 20) & (h->capacity - 1);
}
bool grow(Heap *h) {
  size_t capacity = h->capacity ? h->capacity * 2 : 1024;
  Block **table = (Block **)calloc(capacity, sizeof *table), **old = h->table;
  if (!table)
    return h->capacity != 0; /* without memory: longer chains */
  size_t n = h->capacity;
  h->table = table;
  h->capacity = capacity;
  for (size_t i = 0; i < n; i++)
    for (Block *b = old[i], *next; b; b = next) {
      next = b->chain;
      b->chain = table[place(h, b->p)];
      table[place(h, b->p)] = b;
    }
  free(old);
  return true;
}
void put_used(Heap *h, Block *b) {
  b->chain = h->table[place(h, b->p)];
  h->table[place(h, b->p)] = b;
  h->count++;
}
Block **find_used(Heap *h, const void *p) {
  if (!h->capacity)
    return nullptr;
  Block **at = &h->table[place(h, p)];
  while (*at && (*at)->p != p)
    at = &(*at)->chain;
  return *at ? at : nullptr;
}

} // namespace
#endif
