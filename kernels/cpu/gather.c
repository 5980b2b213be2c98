/* gather, scatter and scatter_add.
 *
 * All three walk an index tensor that points into `self`, and a tensor of values of the index's shape (the
 * result of gather, the source of scatter). A line is the n index values along `dim`; the other dimensions
 * number the lines. Lines are independent, and threads share them; within a line the order of the index is
 * kept, so that the last write wins and sums have the same bits for any number of threads. Lines are processed
 * in groups, whose offsets are computed once; where dim is not the innermost dimension, the lines of a group
 * advance together, so that memory is read in order. */
#include "core/parallel.h"
#include "kernels/common/scatter.h"
#include "kernels/cpu/slices.h"
#include "kernels/cpu/util.h"
#include "unpack/index.h"

/* Lines of a group; positions of lines that are walked one by one. */
enum { GROUP = 256, SHORT = 4 };

typedef struct Lines {
  const MothKernels *k;
  int64_t itemsize;
  int ndim; /* of the line numbers */
  int64_t size[MOTH_MAX_DIMS];
  int64_t self[MOTH_MAX_DIMS], of_index[MOTH_MAX_DIMS], value[MOTH_MAX_DIMS]; /* strides */
  int64_t self_stride, index_stride, value_stride;                            /* along dim */
  int64_t n, lines;
  int64_t origin; /* where position 0 is in self: the index counts from another one */
  const int64_t *index;
  char *dst;       /* gather: the values; scatter: self */
  const char *src; /* gather: self; scatter: the values */
  bool gather, add;
} Lines;

/* value: NULL or 0-dim for a single number, which gets strides of 0. */
static void lines_init(Lines *l, const MothTensor *self, const MothTensor *index,
                       const MothTensor *value, int dim) {
  l->k = moth_cpu_kernels(self->dtype);
  l->itemsize = moth_itemsize(self);
  l->ndim = 0;
  l->lines = 1;
  l->n = index->ndim ? index->shape[dim] : 1;
  l->self_stride = self->ndim ? self->stride[dim] : 1;
  l->value_stride = value && value->ndim ? value->stride[dim] : 0;
  int64_t row_major[MOTH_MAX_DIMS];
  moth_contiguous_strides(index->ndim, index->shape, row_major);
  l->index_stride = index->ndim ? row_major[dim] : 1;
  for (int i = 0; i < index->ndim; i++) {
    if (i == dim)
      continue;
    l->size[l->ndim] = index->shape[i];
    l->self[l->ndim] = self->stride[i];
    l->value[l->ndim] = value && value->ndim ? value->stride[i] : 0;
    l->of_index[l->ndim++] = row_major[i];
    l->lines *= index->shape[i];
  }
}

#define MOVE(T)                                                                                    \
  do {                                                                                             \
    T *d = (T *)l->dst;                                                                            \
    const T *s = (const T *)l->src;                                                                \
    if (l->index_stride == 1 && n >= SHORT)                                                        \
      for (int64_t g = 0; g < lines; g++, at += 3)                                                 \
        if (l->gather)                                                                             \
          for (int64_t j = 0; j < n; j++)                                                          \
            d[at[2] + j * value] = s[at[0] + index[at[1] + j] * self];                             \
        else                                                                                       \
          for (int64_t j = 0; j < n; j++)                                                          \
            d[at[0] + index[at[1] + j] * self] = s[at[2] + j * value];                             \
    else                                                                                           \
      for (int64_t j = 0; j < n; j++) {                                                            \
        const int64_t *b = at, *i = index + j * l->index_stride;                                   \
        if (l->gather)                                                                             \
          for (int64_t g = 0; g < lines; g++, b += 3)                                              \
            d[b[2] + j * value] = s[b[0] + i[b[1]] * self];                                        \
        else                                                                                       \
          for (int64_t g = 0; g < lines; g++, b += 3)                                              \
            d[b[0] + i[b[1]] * self] = s[b[2] + j * value];                                        \
      }                                                                                            \
  } while (0)

/* at: offsets of self, index and value, three for each line. */
static void move_lines(const Lines *l, int64_t lines, const int64_t *at) {
  const int64_t *index = l->index;
  int64_t n = l->n, self = l->self_stride, value = l->value_stride;
  switch (l->itemsize) {
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

static void lines_range(void *ctx, int64_t begin, int64_t end) {
  const Lines *l = ctx;
  int64_t at[3 * GROUP];
  MothScatter q = {.out = l->dst,
                   .src = l->src,
                   .positions = l->n,
                   .index = l->index,
                   .out_stride = l->self_stride,
                   .index_stride = l->index_stride,
                   .src_stride = l->value_stride,
                   .offsets = at};
  MothWalk self, index, value;
  moth_walk_init(&self, l->ndim, l->size, l->self, begin);
  moth_walk_init(&index, l->ndim, l->size, l->of_index, begin);
  moth_walk_init(&value, l->ndim, l->size, l->value, begin);
  while (begin < end) {
    int64_t m = moth_min64(GROUP, end - begin);
    for (int64_t g = 0; l->ndim == 1 && g < m;
         g++) { /* short lines: less than a step of three walks */
      at[3 * g] = l->origin + (begin + g) * l->self[0];
      at[3 * g + 1] = (begin + g) * l->of_index[0];
      at[3 * g + 2] = (begin + g) * l->value[0];
    }
    for (int64_t g = 0; l->ndim != 1 && g < m; g++) {
      at[3 * g] = l->origin + self.at;
      at[3 * g + 1] = index.at;
      at[3 * g + 2] = value.at;
      moth_walk_next(&self);
      moth_walk_next(&index);
      moth_walk_next(&value);
    }
    q.lines = m;
    if (l->add)
      l->k->scatter_add_lines(&q);
    else
      move_lines(l, m, at);
    begin += m;
  }
}

static MothStatus lines_run(Lines *l, const MothTensor *self, const MothTensor *index, int dim,
                            int64_t base) {
  MothTensor *positions;
  if (index->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cpu_index_checked(index, base, self->ndim ? self->shape[dim] : 1, dim, "index",
                                  &positions));
  l->index = (const int64_t *)positions->data;
  l->origin = -base * l->self_stride;
  moth_parallel_for(l->lines, moth_cpu_grain(l->n), lines_range, l);
  moth_tensor_release(positions);
  return MOTH_OK;
}

/* Whether an index that was expanded names whole slices of self. */
static bool names_slices(const MothTensor *self, const MothTensor *index, int dim) {
  bool any = false;
  for (int i = 0; i < index->ndim; i++) {
    if (i == dim)
      continue;
    if (index->shape[i] != self->shape[i] || (index->shape[i] > 1 && index->stride[i] != 0))
      return false;
    any |= index->shape[i] > 1;
  }
  return any;
}

MothStatus moth_cpu_gather(MothCall *c) {
  MOTH_UNPACK_GATHER(c)
  MothTensor *out = c->results[0].u.t;
  int d = (int)dim;
  if (index->numel && names_slices(self, index, d)) {
    MothTensor *one;
    MOTH_TRY(moth_tensor_view(index, 1, index->shape + d, index->stride + d, index->offset, &one));
    MothStatus s = moth_cpu_select_slices(self, d, one, index_base, out);
    moth_tensor_release(one);
    return s;
  }
  Lines l = {.gather = true, .src = self->data, .dst = out->data};
  lines_init(&l, self, index, out, d);
  return lines_run(&l, self, index, d, index_base);
}

static MothStatus scatter_run(MothCall *c, bool add) {
  MOTH_UNPACK_SCATTER(c)
  MothTensor *out = c->results[0].u.t, *values = NULL, *sums = NULL;
  int64_t number = 0;
  int d = (int)dim;
  MothStatus status;
  MOTH_GO(moth_cpu_sums_as(out, add, &sums));
  Lines l = {.add = add, .dst = sums->data};
  if (src.tag != MOTH_V_TENSOR) {
    moth_dtype_store((MothDType)self->dtype, &number, src);
    l.src = (const char *)&number;
  } else {
    if (sums != out)
      MOTH_GO(moth_cpu_contiguous_as(src.u.t, (MothDType)sums->dtype, &values));
    else
      moth_tensor_retain(values = src.u.t);
    l.src = values->data;
  }
  moth_cpu_copy(sums, self);
  lines_init(&l, sums, index, values, d);
  MOTH_GO(lines_run(&l, sums, index, d, index_base));
  if (sums != out)
    moth_cpu_copy(out, sums);
done:
  moth_tensor_release(values);
  moth_tensor_release(sums);
  return status;
}

MothStatus moth_cpu_scatter(MothCall *c) {
  return scatter_run(c, false);
}
MothStatus moth_cpu_scatter_add(MothCall *c) {
  return scatter_run(c, true);
}
