/* gather, scatter and scatter_add.
 *
 * All three walk an index tensor of shape S next to a row-major tensor that it points into. Along
 * `dim` lies a line of n index values; the other dimensions name the lines. Lines are independent of
 * each other, so they are what threads share; within a line the order of the index is kept, which
 * makes the last write stay and sums the same for any number of threads. Lines are taken in groups whose
 * beginnings are worked out once; where dim is not the innermost, a group goes side by side, so that
 * memory is read in order. */
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack.h"

enum { GROUP = 256 };

typedef struct Lines {
  const MothKernels *k;
  int64_t itemsize;
  int ndim; /* of the line numbers */
  int64_t size[MOTH_MAX_DIMS];
  int64_t far[MOTH_MAX_DIMS], of_index[MOTH_MAX_DIMS], near[MOTH_MAX_DIMS];
  int64_t far_step, index_step, near_step; /* along dim */
  int64_t n, lines;
  const int64_t *index;
  char *dst;       /* gather: what is filled; else what the index points into */
  const char *src; /* gather: what the index points into; else the values */
  bool gather, add;
} Lines;

/* far: the tensor that the index points into; near: the one that goes along with the index, with
 * strides of 0 for a single number. */
static void lines_init(Lines *l, const MothTensor *far, const MothTensor *index,
                       const MothTensor *near, int dim) {
  l->k = moth_cpu_kernels(far->dtype);
  l->itemsize = moth_itemsize(far);
  l->ndim = 0;
  l->lines = 1;
  l->n = index->ndim ? index->shape[dim] : 1;
  l->far_step = far->ndim ? far->stride[dim] : 1;
  l->near_step = near && near->ndim ? near->stride[dim] : 0;
  int64_t row_major[MOTH_MAX_DIMS];
  moth_contiguous_strides(index->ndim, index->shape, row_major);
  l->index_step = index->ndim ? row_major[dim] : 1;
  for (int i = 0; i < index->ndim; i++) {
    if (i == dim)
      continue;
    l->size[l->ndim] = index->shape[i];
    l->far[l->ndim] = far->stride[i];
    l->near[l->ndim] = near && near->ndim ? near->stride[i] : 0;
    l->of_index[l->ndim++] = row_major[i];
    l->lines *= index->shape[i];
  }
}

#define MOVE(T)                                                                                    \
  do {                                                                                             \
    T *d = (T *)l->dst;                                                                            \
    const T *s = (const T *)l->src;                                                                \
    if (l->index_step == 1)                                                                        \
      for (int64_t g = 0; g < lines; g++, at += 3)                                                 \
        if (l->gather)                                                                             \
          for (int64_t j = 0; j < n; j++)                                                          \
            d[at[2] + j * near] = s[at[0] + index[at[1] + j] * far];                               \
        else                                                                                       \
          for (int64_t j = 0; j < n; j++)                                                          \
            d[at[0] + index[at[1] + j] * far] = s[at[2] + j * near];                               \
    else                                                                                           \
      for (int64_t j = 0; j < n; j++) {                                                            \
        const int64_t *b = at, *i = index + j * l->index_step;                                     \
        if (l->gather)                                                                             \
          for (int64_t g = 0; g < lines; g++, b += 3)                                              \
            d[b[2] + j * near] = s[b[0] + i[b[1]] * far];                                          \
        else                                                                                       \
          for (int64_t g = 0; g < lines; g++, b += 3)                                              \
            d[b[0] + i[b[1]] * far] = s[b[2] + j * near];                                          \
      }                                                                                            \
  } while (0)

/* Lines with their beginnings in `at`: far, index, near, three for each line. */
static void move_lines(const Lines *l, int64_t lines, const int64_t *at) {
  const int64_t *index = l->index;
  int64_t n = l->n, far = l->far_step, near = l->near_step;
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
  MothWalk far, index, near;
  moth_walk_init(&far, l->ndim, l->size, l->far, begin);
  moth_walk_init(&index, l->ndim, l->size, l->of_index, begin);
  moth_walk_init(&near, l->ndim, l->size, l->near, begin);
  while (begin < end) {
    int64_t m = moth_min64(GROUP, end - begin);
    for (int64_t g = 0; g < m; g++) {
      at[3 * g] = far.at;
      at[3 * g + 1] = index.at;
      at[3 * g + 2] = near.at;
      moth_walk_next(&far);
      moth_walk_next(&index);
      moth_walk_next(&near);
    }
    if (l->add)
      l->k->scatter_add_lines(l->dst, l->far_step, l->index, l->index_step, l->src, l->near_step,
                              l->n, m, at);
    else
      move_lines(l, m, at);
    begin += m;
  }
}

static MothStatus lines_run(Lines *l, const MothTensor *far, const MothTensor *index, int dim,
                            int64_t base) {
  int64_t *positions;
  if (index->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cpu_index(index, base, far->ndim ? far->shape[dim] : 1, dim, "index", &positions));
  l->index = positions;
  moth_parallel_for(l->lines, moth_cpu_grain(l->n), lines_range, l);
  moth_cpu_index_free(index, positions);
  return MOTH_OK;
}

MothStatus moth_cpu_gather(MothCall *c) {
  MOTH_UNPACK_GATHER(c)
  MothTensor *out = c->results[0].u.t;
  int d = (int)dim;
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
