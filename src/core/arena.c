/* Buffers are placed from the largest to the smallest, each into the smallest gap that holds it between those alive at the
 * same time. See arena.h. */
#include "core/arena.h"

static bool is_before(const MothArenaBuffer *a, const MothArenaBuffer *b) {
  if (a->bytes != b->bytes)
    return a->bytes > b->bytes;
  return a->first != b->first ? a->first < b->first : a < b;
}

static void swap(MothArenaBuffer **a, MothArenaBuffer **b) {
  MothArenaBuffer *t = *a;
  *a = *b;
  *b = t;
}

static void sift(MothArenaBuffer **list, uint32_t i, uint32_t n) {
  for (uint32_t child; (child = 2 * i + 1) < n; i = child) {
    if (child + 1 < n && is_before(list[child], list[child + 1]))
      child++;
    if (!is_before(list[i], list[child]))
      return;
    swap(&list[i], &list[child]);
  }
}

/* The first in is_before's order comes first. A heap: qsort may allocate. */
static void sort(MothArenaBuffer **list, uint32_t n) {
  for (uint32_t i = n / 2; i-- > 0;)
    sift(list, i, n);
  for (uint32_t i = n; i-- > 1;) {
    swap(&list[0], &list[i]);
    sift(list, 0, i);
  }
}

/* Of n buffers in the order of their offsets, the smallest gap that holds b between those that are alive with it. */
static int64_t find_gap(MothArenaBuffer *const *placed, uint32_t n, const MothArenaBuffer *b) {
  int64_t end = 0, best = -1, gap = INT64_MAX;
  for (uint32_t i = 0; i < n; i++) {
    const MothArenaBuffer *o = placed[i];
    if (o->first > b->last || b->first > o->last)
      continue;
    if (o->offset - end >= b->bytes && o->offset - end < gap) {
      gap = o->offset - end;
      best = end;
    }
    end = o->offset + o->bytes > end ? o->offset + o->bytes : end;
  }
  return best >= 0 ? best : end;
}

int64_t moth_arena_place(MothArenaBuffer **list, MothArenaBuffer **placed, uint32_t n) {
  int64_t total = 0, sum = 0;
  sort(list, n);
  for (uint32_t i = 0; i < n; i++) {
    MothArenaBuffer *b = list[i];
    if (__builtin_add_overflow(sum, b->bytes, &sum) || b->bytes < 0)
      return -1;
    b->offset = find_gap(placed, i, b);
    total = b->offset + b->bytes > total ? b->offset + b->bytes : total;
    uint32_t k = i;
    for (; k > 0 && placed[k - 1]->offset > b->offset; k--)
      placed[k] = placed[k - 1];
    placed[k] = b;
  }
  return total;
}

bool moth_arena_may_replace(const MothTensor *t, int64_t offset, int64_t bytes,
                            const MothTensor *result) {
  int64_t size = moth_itemsize(result);
  return t->contiguous && offset == 0 && t->numel == result->numel && moth_itemsize(t) == size &&
         bytes == t->numel * size;
}
