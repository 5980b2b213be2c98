#include "kernels/common/iter.h"

#include <stdlib.h>

#include "core/parallel.h"

void moth_iter_init(MothIter *it, int ndim, const int64_t *shape) {
  it->nops = 0;
  it->ndim = ndim;
  it->numel = 1;
  for (int i = 0; i < ndim; i++) {
    it->shape[i] = shape[i];
    it->numel *= shape[i];
  }
}

void moth_iter_add(MothIter *it, const MothTensor *t) {
  int64_t *s = it->stride[it->nops];
  int64_t size = moth_itemsize(t);
  int shift = it->ndim - t->ndim;
  for (int i = 0; i < it->ndim; i++)
    s[i] = i < shift || t->shape[i - shift] == 1 ? 0 : t->stride[i - shift] * size;
  it->data[it->nops++] = t->data;
}

void moth_iter_add_scalar(MothIter *it, void *element) {
  for (int i = 0; i < it->ndim; i++)
    it->stride[it->nops][i] = 0;
  it->data[it->nops++] = element;
}

void moth_iter_add_raw(MothIter *it, void *data, const int64_t *stride) {
  for (int i = 0; i < it->ndim; i++)
    it->stride[it->nops][i] = stride[i];
  it->data[it->nops++] = data;
}

static void swap_dims(MothIter *it, int a, int b) {
  int64_t x = it->shape[a];
  it->shape[a] = it->shape[b];
  it->shape[b] = x;
  for (int k = 0; k < it->nops; k++) {
    x = it->stride[k][a];
    it->stride[k][a] = it->stride[k][b];
    it->stride[k][b] = x;
  }
}

/* Whether dimension a must be outside of b: by the first operand with different, nonzero strides. */
static bool outside(const MothIter *it, int a, int b) {
  for (int k = 0; k < it->nops; k++) {
    int64_t x = llabs(it->stride[k][a]), y = llabs(it->stride[k][b]);
    if (x != y && x && y)
      return x > y;
  }
  return a < b;
}

void moth_iter_prepare(MothIter *it) {
  /* Drop sizes of 1, sort the rest (insertion sort: few dimensions, nearly sorted), then merge. */
  int n = 0;
  for (int i = 0; i < it->ndim; i++) {
    if (it->shape[i] == 1)
      continue;
    if (i != n)
      swap_dims(it, n, i);
    n++;
  }
  it->ndim = n;
  for (int i = 1; i < n; i++)
    for (int j = i; j > 0 && !outside(it, j - 1, j); j--)
      swap_dims(it, j - 1, j);
  int m = 0;
  for (int i = 1; i < n; i++) {
    bool even = true;
    for (int k = 0; k < it->nops && even; k++)
      even = it->stride[k][m] == it->stride[k][i] * it->shape[i];
    if (even) {
      it->shape[m] *= it->shape[i];
    } else {
      m++;
      it->shape[m] = it->shape[i];
    }
    for (int k = 0; k < it->nops; k++)
      it->stride[k][m] = it->stride[k][i];
  }
  it->ndim = n ? m + 1 : 0;
}

typedef struct Run {
  const MothIter *it;
  MothLoop loop;
  const MothParam *params;
} Run;

static void run_range(void *ctx, int64_t begin, int64_t end) {
  const Run *r = ctx;
  const MothIter *it = r->it;
  int inner = it->ndim - 1;
  int64_t index[MOTH_MAX_DIMS], stride[MOTH_ITER_OPERANDS];
  char *p[MOTH_ITER_OPERANDS];
  int64_t rest = begin;
  for (int k = 0; k < it->nops; k++) {
    p[k] = it->data[k];
    stride[k] = it->stride[k][inner];
  }
  for (int i = inner; i >= 0; i--) {
    index[i] = rest % it->shape[i];
    rest /= it->shape[i];
    for (int k = 0; k < it->nops; k++)
      p[k] += index[i] * it->stride[k][i];
  }
  while (begin < end) {
    int64_t n = it->shape[inner] - index[inner];
    if (n > end - begin)
      n = end - begin;
    char *q[MOTH_ITER_OPERANDS];
    for (int k = 0; k < it->nops; k++)
      q[k] = p[k];
    r->loop(q, stride, n, r->params);
    begin += n;
    index[inner] += n;
    for (int k = 0; k < it->nops; k++)
      p[k] += n * stride[k];
    for (int i = inner; i > 0 && index[i] == it->shape[i]; i--) {
      index[i] = 0;
      index[i - 1]++;
      for (int k = 0; k < it->nops; k++)
        p[k] += it->stride[k][i - 1] - it->shape[i] * it->stride[k][i];
    }
  }
}

void moth_iter_run(const MothIter *it, MothLoop loop, const MothParam *params, int64_t grain) {
  if (it->numel == 0)
    return;
  if (it->ndim == 0) {
    int64_t zero[MOTH_ITER_OPERANDS] = {0};
    char *p[MOTH_ITER_OPERANDS];
    for (int k = 0; k < it->nops; k++)
      p[k] = it->data[k];
    loop(p, zero, 1, params);
    return;
  }
  if (it->ndim == 1 && (it->numel <= grain || grain == 0)) { /* one run */
    int64_t stride[MOTH_ITER_OPERANDS];
    char *p[MOTH_ITER_OPERANDS];
    for (int k = 0; k < it->nops; k++) {
      p[k] = it->data[k];
      stride[k] = it->stride[k][0];
    }
    loop(p, stride, it->numel, params);
    return;
  }
  Run r = {it, loop, params};
  if (it->numel <= grain || grain == 0)
    run_range(&r, 0, it->numel);
  else /* `grain` decides whether to use threads; smaller chunks balance their work */
    moth_parallel_for(it->numel, grain > 16 ? grain / 16 : 1, run_range, &r);
}
