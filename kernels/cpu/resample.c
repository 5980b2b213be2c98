/* resample and resample_backward: each row of a result is a sum of some rows, in one order, so that threads do not change it.
 * The derivative's sums are listed by counting. float16 and bfloat16 are computed in float32. */
#include "kernels/cpu/resample.h"

#include <stdatomic.h>
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/util.h"
#include "unpack/conv.h"

enum { WIDTH = 2048, LINES_BYTES = 1 << 20 };

typedef struct Work {
  MothResample q;
  void (*kernel)(const MothResample *);
  int64_t size, outer, inner, parts; /* parts: of the columns of a row */
  bool lines;
  _Atomic bool failed;
} Work;

static void rows_range(void *ctx, int64_t begin, int64_t end) {
  Work *w = ctx;
  for (int64_t i = begin; i < end; i++) {
    MothResample q = w->q;
    int64_t o = i / w->parts, column = i % w->parts * WIDTH;
    q.in = (const char *)q.in + (o * q.from * w->inner + column) * w->size;
    q.out = (char *)q.out + (o * q.to * w->inner + column) * w->size;
    q.width = moth_min64(WIDTH, w->inner - column);
    w->kernel(&q);
  }
}

static void lines_range(void *ctx, int64_t begin, int64_t end) {
  Work *w = ctx;
  size_t bytes = (size_t)(w->q.from * MOTH_LINES * w->size);
  char *work = moth_alloc(bytes);
  if (!work) {
    w->failed = true;
    return;
  }
  for (int64_t i = begin; i < end; i++) {
    MothResample q = w->q;
    int64_t line = i * MOTH_LINES;
    q.in = (const char *)q.in + line * q.from * w->size;
    q.out = (char *)q.out + line * q.to * w->size;
    q.width = moth_min64(MOTH_LINES, w->outer - line);
    q.work = work;
    w->kernel(&q);
  }
  moth_free(work, bytes);
}

/* The sums of a result: of the transposed map, which the derivative is, by counting. Entries keep their order. */
typedef struct Sums {
  int64_t *start, *at;
  char *weight;
  size_t bytes;
} Sums;

static MothStatus sums_open(const int64_t *places, const MothTensor *weights, bool transposed,
                            int64_t n, Sums *s) {
  int64_t rows = weights->shape[0], taps = weights->shape[1], entries = rows * taps;
  int64_t to = transposed ? n : rows, size = moth_itemsize(weights);
  s->bytes = (size_t)(to + 1 + entries) * sizeof(int64_t) + (size_t)(entries * size);
  s->start = moth_alloc(s->bytes);
  if (!s->start)
    return moth_no_memory(s->bytes);
  s->at = s->start + to + 1;
  s->weight = (char *)(s->at + entries);
  if (!transposed) {
    for (int64_t i = 0; i <= rows; i++)
      s->start[i] = i * taps;
    memcpy(s->at, places, (size_t)entries * sizeof(int64_t));
    memcpy(s->weight, weights->data, (size_t)(entries * size));
    return MOTH_OK;
  }
  memset(s->start, 0, (size_t)(to + 1) * sizeof(int64_t));
  for (int64_t e = 0; e < entries; e++)
    s->start[places[e] + 1]++;
  for (int64_t i = 0; i < to; i++)
    s->start[i + 1] += s->start[i];
  for (int64_t e = 0; e < entries; e++) { /* start[i]: behind the entries so far */
    int64_t f = s->start[places[e]]++;
    s->at[f] = e / taps;
    memcpy(s->weight + f * size, (const char *)weights->data + e * size, (size_t)size);
  }
  memmove(s->start + 1, s->start, (size_t)to * sizeof(int64_t));
  s->start[0] = 0;
  return MOTH_OK;
}

static MothStatus run(MothCall *c, const MothTensor *x, const MothTensor *places, int64_t base,
                      const MothTensor *weights, bool backward) {
  MothTensor *out = c->results[0].u.t, *in = NULL, *v = NULL, *y = NULL;
  MothDType dtype = out->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothStatus status = MOTH_OK;
  int64_t *at = NULL, n = (backward ? out : x)->shape[1];
  Sums sums = {0};
  MOTH_GO(moth_cpu_index(places, base, n, 1, "index", &at));
  if (!out->numel)
    goto done;
  MOTH_GO(moth_cpu_contiguous_as(x, dtype, &in));
  MOTH_GO(moth_cpu_contiguous_as(weights, dtype, &v));
  MOTH_GO(sums_open(at, v, backward, n, &sums));
  if (out->dtype == dtype) {
    moth_tensor_retain(out);
    y = out;
  } else {
    MOTH_GO(moth_tensor_new(out->ndim, out->shape, dtype, out->device, &y));
  }
  const MothKernels *k = moth_cpu_kernels((int)dtype);
  Work w = {.size = moth_dtype_size(dtype), .outer = out->shape[0], .inner = out->shape[2]};
  w.q = (MothResample){.start = sums.start,
                       .at = sums.at,
                       .weight = sums.weight,
                       .from = x->shape[1],
                       .to = out->shape[1],
                       .row = w.inner,
                       .in = in->data,
                       .out = y->data};
  int64_t all = w.q.from + w.q.to;
  w.lines = w.inner == 1 && w.q.from * MOTH_LINES * w.size <= LINES_BYTES;
  w.kernel = w.lines ? k->resample_lines : k->resample_rows;
  w.parts = (w.inner + WIDTH - 1) / WIDTH;
  if (w.lines)
    moth_parallel_for((w.outer + MOTH_LINES - 1) / MOTH_LINES, moth_cpu_grain(all * MOTH_LINES),
                      lines_range, &w);
  else
    moth_parallel_for(w.outer * w.parts, moth_cpu_grain(all * moth_min64(WIDTH, w.inner)),
                      rows_range, &w);
  if (w.failed)
    MOTH_GO(moth_no_memory(0));
  if (y != out)
    moth_cpu_copy(out, y);
done:
  if (sums.start)
    moth_free(sums.start, sums.bytes);
  if (at)
    moth_cpu_index_free(places, at);
  moth_tensor_release(in);
  moth_tensor_release(v);
  moth_tensor_release(y);
  return status;
}

MothStatus moth_cpu_native_resample(MothCall *c) {
  MOTH_UNPACK_NATIVE_RESAMPLE(c)
  return run(c, self, places, index_base, weights, false);
}

MothStatus moth_cpu_native_resample_backward(MothCall *c) {
  MOTH_UNPACK_NATIVE_RESAMPLE_BACKWARD(c)
  return run(c, grad_output, places, index_base, weights, true);
}
