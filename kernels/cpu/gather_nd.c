/* gather_nd and scatter_nd_: an index of several dimensions.
 *
 * The index is first checked, wrapped and turned into `count` offsets into self. self's other dimensions before
 * the indexed ones are walked outermost, those after them innermost; the last of these form a run, as far as
 * its elements are evenly spaced. The values (the result of gather_nd, the source of scatter_nd_) are row-major:
 * outer x count x inner x run. Threads share outer, inner and blocks of runs, in gather_nd also the offsets.
 * scatter_nd_ keeps their order: the last write wins, and sums have the same bits for any number of threads. */
#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "dispatch/shape.h"
#include "kernels/common/scatter.h"
#include "kernels/cpu/util.h"
#include "unpack/index.h"

enum { BLOCK = 256, OFFSETS = 2048 };

typedef struct Nd {
  const MothKernels *k;
  int64_t itemsize;
  int nouter, ninner;
  int64_t outer_size[MOTH_MAX_DIMS], outer_stride[MOTH_MAX_DIMS];
  int64_t inner_size[MOTH_MAX_DIMS], inner_stride[MOTH_MAX_DIMS];
  int64_t outer, count, inner, run, stride; /* stride: of the elements of a run */
  int64_t chunk, chunks; /* offsets of a task, tasks of an outer x inner x block */
  int64_t block, blocks; /* elements of a task, tasks of a run */
  int64_t *at, unit;     /* [count]: offsets, in units of `unit` elements */
  char *self;
  char *value;
  bool gather;
} Nd;

typedef struct Offsets {
  const int64_t *in;
  int64_t *out;
  int k;
  int64_t base, size[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  _Atomic int64_t first_bad;
} Offsets;

/* An index, counted from `base` or negative, as one from 0; the result is out of range if the index is. */
static inline int64_t from_0(int64_t x, int64_t base, int64_t size) {
  return x < 0 ? x + size : (int64_t)((uint64_t)x - (uint64_t)base);
}

static void offsets_range(void *ctx, int64_t begin, int64_t end) {
  Offsets *o = ctx;
  uint64_t bad = 0;
  MothIndexCheck check = {o->in + begin, end - begin, o->base, o->size[0], o->out + begin};
  /* The usual case: one dimension, no negative index. */
  if (o->k == 1 && o->stride[0] == 1 && !moth_cpu_kernels(MOTH_INT64)->index_outside(&check))
    return;
  for (int j = 0; j < o->k; j++) {
    const int64_t *in = o->in + j;
    int64_t k = o->k, base = o->base, size = o->size[j], stride = o->stride[j];
    for (int64_t i = begin; i < end; i++) {
      int64_t x = from_0(in[i * k], base, size);
      bad |= (uint64_t)((uint64_t)x >= (uint64_t)size);
      o->out[i] = (j ? o->out[i] : 0) + (int64_t)((uint64_t)x * (uint64_t)stride);
    }
  }
  if (!bad)
    return;
  int64_t i = begin * o->k;
  while ((uint64_t)from_0(o->in[i], o->base, o->size[i % o->k]) < (uint64_t)o->size[i % o->k])
    i++;
  int64_t old = atomic_load(&o->first_bad);
  while (i < old && !atomic_compare_exchange_weak(&o->first_bad, &old, i))
    ;
}

static MothStatus offsets(const MothTensor *self, const MothNd *nd, const MothTensor *index,
                          int64_t base, int64_t unit, int64_t *at) {
  MothTensor *wide;
  MOTH_TRY(moth_cpu_contiguous_as(index, MOTH_INT64, &wide));
  Offsets o = {.in = (const int64_t *)wide->data,
               .out = at,
               .k = nd->k,
               .base = base,
               .first_bad = INT64_MAX};
  for (int j = 0; j < nd->k; j++) {
    o.size[j] = self->shape[nd->dims[j]];
    o.stride[j] = self->stride[nd->dims[j]] / unit;
  }
  moth_parallel_for(nd->count, moth_cpu_grain(nd->k), offsets_range, &o);
  MothStatus s = MOTH_OK;
  if (o.first_bad != INT64_MAX) {
    int j = (int)(o.first_bad % nd->k);
    s = moth_cpu_index_fail("index", o.in[o.first_bad], base, o.size[j], nd->dims[j]);
  }
  moth_tensor_release(wide);
  return s;
}

/* Prepares the walk over `self` (the tensor or its float32 sums) and its checked offsets. */
static MothStatus nd_open(Nd *n, const MothNd *nd, MothTensor *self, const MothTensor *index,
                          int64_t base) {
  n->k = moth_cpu_kernels(self->dtype);
  n->itemsize = moth_itemsize(self);
  n->self = self->data;
  n->count = nd->count;
  n->outer = n->inner = n->run = n->stride = 1;
  for (int i = 0; i < nd->before; i++) {
    n->outer_size[i] = self->shape[nd->rest[i]];
    n->outer_stride[i] = self->stride[nd->rest[i]];
    n->outer *= n->outer_size[i];
  }
  n->nouter = nd->before;
  int last = nd->nrest - 1;
  for (bool first = true; last >= nd->before; last--) {
    int64_t size = self->shape[nd->rest[last]], stride = self->stride[nd->rest[last]];
    if (size == 1)
      continue;
    if (first)
      n->stride = stride;
    else if (stride != n->stride * n->run)
      break;
    n->run *= size;
    first = false;
  }
  for (int i = nd->before; i <= last; i++) {
    n->inner_size[n->ninner] = self->shape[nd->rest[i]];
    n->inner_stride[n->ninner] = self->stride[nd->rest[i]];
    n->inner *= n->inner_size[n->ninner++];
  }
  n->at = moth_alloc((size_t)n->count * sizeof(int64_t));
  if (!n->at)
    return moth_no_memory(0);
  n->unit = n->run;
  for (int j = 0; j < nd->k; j++)
    if (n->run == 0 || self->stride[nd->dims[j]] % n->run != 0)
      n->unit = 1;
  return offsets(self, nd, index, base, n->unit, n->at);
}

static void nd_close(Nd *n) {
  if (n->at)
    moth_free(n->at, (size_t)n->count * sizeof(int64_t));
}

/* A task: offsets [first, last), elements [from, from + width) of a run. */
typedef struct Task {
  MothWalk outer, inner;
  int64_t chunk, from;
  int64_t at; /* number of the run in the values, for offset 0 */
  int64_t self, value, first, last, width;
} Task;

static void task_place(const Nd *n, Task *t) {
  t->self = t->outer.at + t->inner.at + t->from * n->stride;
  t->value = t->at * n->run + t->from;
  t->first = t->chunk * n->chunk;
  t->last = moth_min64(t->first + n->chunk, n->count);
  t->width = moth_min64(n->block, n->run - t->from);
}

static void task_init(const Nd *n, Task *t, int64_t i) {
  t->chunk = i % n->chunks;
  t->from = i / n->chunks % n->blocks * n->block;
  i = i / n->chunks / n->blocks;
  t->at = i / n->inner * n->count * n->inner + i % n->inner;
  moth_walk_init(&t->outer, n->nouter, n->outer_size, n->outer_stride, i / n->inner);
  moth_walk_init(&t->inner, n->ninner, n->inner_size, n->inner_stride, i % n->inner);
  task_place(n, t);
}

static void task_next(const Nd *n, Task *t) {
  if (++t->chunk == n->chunks) {
    t->chunk = 0;
    t->from += n->block;
    if (t->from >= n->run) {
      t->from = 0;
      t->at++;
      moth_walk_next(&t->inner);
      if (t->at % n->inner == 0) {
        t->at += (n->count - 1) * n->inner;
        moth_walk_next(&t->outer);
      }
    }
  }
  task_place(n, t);
}

#define MOVE(T)                                                                                    \
  do {                                                                                             \
    T *self = (T *)n->self + t.self, *value = (T *)n->value + t.value;                             \
    if (t.width == 1 && n->gather)                                                                 \
      for (int64_t s = t.first; s < t.last; s++)                                                   \
        value[s * row] = self[at[s] * unit];                                                       \
    else if (t.width == 1)                                                                         \
      for (int64_t s = t.first; s < t.last; s++)                                                   \
        self[at[s] * unit] = value[s * row];                                                       \
    else                                                                                           \
      for (int64_t s = t.first; s < t.last; s++) {                                                 \
        T *a = self + at[s] * unit, *b = value + s * row;                                          \
        if (n->gather)                                                                             \
          for (int64_t i = 0; i < t.width; i++)                                                    \
            b[i] = a[i * stride];                                                                  \
        else                                                                                       \
          for (int64_t i = 0; i < t.width; i++)                                                    \
            a[i * stride] = b[i];                                                                  \
      }                                                                                            \
  } while (0)

static void move_range(void *ctx, int64_t begin, int64_t end) {
  const Nd *n = ctx;
  const int64_t *at = n->at;
  int64_t row = n->inner * n->run, stride = n->stride, unit = n->unit, size = n->itemsize;
  Task t;
  task_init(n, &t, begin);
  for (int64_t k = begin; k < end; k++, task_next(n, &t)) {
    if (stride == 1 && t.width >= 8) {
      for (int64_t s = t.first; s < t.last; s++) {
        char *a = n->self + (t.self + at[s] * unit) * size,
             *b = n->value + (t.value + s * row) * size;
        memcpy(n->gather ? b : a, n->gather ? a : b, (size_t)(t.width * size));
      }
      continue;
    }
    switch (size) {
    case 1:
      MOVE(uint8_t);
      break;
    case 2:
      MOVE(uint16_t);
      break;
    case 4:
      MOVE(uint32_t);
      break;
    default:
      MOVE(uint64_t);
    }
  }
}

/* Where all offsets are multiples of a run and runs follow one another in the values, adds run by run. */
static void add_range(void *ctx, int64_t begin, int64_t end) {
  const Nd *n = ctx;
  bool runs = n->inner == 1 && n->stride == 1 && n->unit == n->run;
  int64_t lines[3 * BLOCK], size = n->itemsize;
  MothScatter q = {.positions = n->count,
                   .inner = n->run,
                   .index = n->at,
                   .out_stride = n->unit,
                   .index_stride = 1,
                   .src_stride = n->inner * n->run,
                   .offsets = lines};
  Task t;
  task_init(n, &t, begin);
  for (int64_t k = begin; k < end; k++, task_next(n, &t)) {
    if (runs) {
      q.out = n->self + t.self * size;
      q.src = n->value + t.value * size;
      q.cols = t.width;
      n->k->scatter_add_rows(&q);
      continue;
    }
    for (int64_t i = 0; i < t.width; i++) {
      lines[3 * i] = t.self + i * n->stride;
      lines[3 * i + 1] = 0;
      lines[3 * i + 2] = t.value + i;
    }
    q.out = n->self;
    q.src = n->value;
    q.lines = t.width;
    n->k->scatter_add_lines(&q);
  }
}

static void nd_run(Nd *n, int64_t chunk, int64_t block, MothRange range) {
  if (n->outer * n->count * n->inner * n->run == 0)
    return;
  n->chunk = moth_min64(chunk, n->count);
  n->chunks = (n->count + n->chunk - 1) / n->chunk;
  n->block = moth_min64(block, n->run);
  n->blocks = (n->run + n->block - 1) / n->block;
  moth_parallel_for(n->outer * n->inner * n->blocks * n->chunks,
                    moth_cpu_grain(n->chunk * n->block), range, n);
}

MothStatus moth_cpu_gather_nd(MothCall *c) {
  MOTH_UNPACK_GATHER_ND(c)
  MothNd nd;
  Nd n = {.gather = true, .value = c->results[0].u.t->data};
  MOTH_TRY(moth_nd(self, dims, index, &nd));
  MothStatus s = nd_open(&n, &nd, self, index, index_base);
  if (s == MOTH_OK) /* few offsets per task where runs are long, so that threads have tasks */
    nd_run(&n, moth_max64(1, OFFSETS / moth_max64(1, n.run)), INT64_MAX, move_range);
  nd_close(&n);
  return s;
}

MothStatus moth_cpu_scatter_nd_(MothCall *c) {
  MOTH_UNPACK_SCATTER_ND_(c)
  MothNd nd;
  Nd n = {.gather = false};
  MothTensor *sums = NULL, *values = NULL;
  MothStatus status;
  MOTH_GO(moth_nd(self, dims, index, &nd));
  MOTH_GO(moth_cpu_sums_as(self, accumulate, &sums));
  MOTH_GO(moth_cpu_broadcast_as(src, (MothDType)sums->dtype, nd.ndim, nd.shape, &values));
  if (moth_tensor_overlap(self, values)) { /* read all of the source before writing */
    MothTensor *whole;
    MOTH_GO(moth_tensor_new(nd.ndim, nd.shape, (MothDType)values->dtype, values->device, &whole));
    moth_cpu_copy(whole, values);
    moth_tensor_release(values);
    values = whole;
  }
  MOTH_GO(nd_open(&n, &nd, sums, index, index_base));
  n.value = values->data;
  if (sums != self)
    moth_cpu_copy(sums, self);
  nd_run(&n, n.count, BLOCK, accumulate ? add_range : move_range);
  if (sums != self)
    moth_cpu_copy(self, sums);
done:
  nd_close(&n);
  moth_tensor_release(values);
  moth_tensor_release(sums);
  return status;
}
