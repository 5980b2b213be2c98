/* cdist and pdist: distances between rows, from their differences. Those of norm 2 between long rows come from a product of
 * matrices, and from the differences where rows are near. No more memory is taken than for results and copies of the rows. */
#include "kernels/common/distance.h"

#include "core/alloc.h"
#include "core/parallel.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/util.h"
#include "unpack/near.h"

typedef void (*Kernel)(const MothDistance *);

typedef struct Work {
  MothDistance q;
  Kernel kernel;
  const MothKernels *kernels;
  size_t bytes; /* of `work`, which each part of the rows has for itself */
  bool is_full; /* out of memory */
} Work;

enum { ROWS = 16 }; /* of a unit of work */

static void work_range(void *ctx, int64_t begin, int64_t end) {
  Work *w = ctx;
  MothDistance q = w->q;
  q.work = w->bytes ? moth_alloc(w->bytes) : NULL;
  if (w->bytes && !q.work) {
    w->is_full = true;
    return;
  }
  for (int64_t i = begin; i < end && !moth_stopped(); i++) {
    q.from = i * ROWS;
    q.to = q.from + ROWS < q.rows ? q.from + ROWS : q.rows;
    w->kernel(&q);
  }
  if (q.work)
    moth_free(q.work, w->bytes);
}

static MothStatus out_of_memory(void) {
  return moth_fail(MOTH_ERR_MEMORY, "out of memory: rows of the distances");
}

/* Calls the kernel for all rows. `cost`: of a distance. */
static MothStatus run(Work *w, Kernel kernel, int64_t cost) {
  w->kernel = kernel;
  moth_parallel_for((w->q.rows + ROWS - 1) / ROWS, moth_cpu_grain(ROWS * w->q.others * cost / 8),
                    work_range, w);
  return w->is_full ? out_of_memory() : MOTH_OK;
}

/* Calls the kernel with the rows of y in panels. */
static MothStatus run_packed(Work *w, Kernel kernel) {
  const MothKernels *k = w->kernels;
  size_t size = (size_t)moth_dtype_size(k == moth_cpu_kernels(MOTH_FLOAT64) ? MOTH_FLOAT64
                                                                            : MOTH_FLOAT32),
         bytes = (size_t)k->distance_pack(&w->q) * size;
  void *panels = moth_alloc(bytes);
  if (!panels)
    return out_of_memory();
  Work packed = *w;
  packed.q.work = panels;
  k->distance_pack(&packed.q);
  packed.q.work = NULL;
  packed.q.y = panels;
  MothStatus status =
      run(&packed, kernel, w->q.norm == MOTH_NORM_P ? 40 * w->q.size : w->q.size + 1);
  moth_free(panels, bytes);
  return status;
}

/* The sums of squares of all rows. They are freed by moth_free(sums, *bytes). */
static char *sums_of(const Work *w, MothDType dtype, size_t *bytes) {
  const MothDistance *q = &w->q;
  size_t size = (size_t)moth_dtype_size(dtype);
  *bytes = size * (size_t)(q->rows + q->others);
  char *sums = moth_alloc(*bytes);
  if (!sums)
    return NULL;
  Work one = *w, two = *w;
  one.q.out = sums;
  two.q.out = sums + size * (size_t)q->rows;
  two.q.x = q->y;
  two.q.rows = q->others;
  one.q.others = two.q.others = 1;
  one.bytes = two.bytes = 0;
  run(&one, w->kernels->distance_sums, q->size);
  run(&two, w->kernels->distance_sums, q->size);
  return sums;
}

/* By a product. */
static MothStatus run_product(Work *w, MothDType dtype) {
  MothDistance *q = &w->q;
  size_t bytes;
  char *sums = sums_of(w, dtype, &bytes);
  if (!sums)
    return out_of_memory();
  MothGemm g = {.dtype = (int)dtype,
                .m = q->rows,
                .n = q->others,
                .k = q->size,
                .a = q->x,
                .a_row = q->size,
                .a_col = 1,
                .b = q->y,
                .b_row = 1,
                .b_col = q->size,
                .c = q->out,
                .c_row = q->others,
                .alpha = -2};
  moth_gemm(&g, true);
  Work last = *w;
  last.q.x_sum = sums;
  last.q.y_sum = sums + moth_dtype_size(dtype) * q->rows;
  MothStatus status = run(&last, w->kernels->distance_of_product, 8);
  moth_free(sums, bytes);
  return status;
}

enum { LEAST = 24 }; /* what is worth a product of the derivative */

static bool suits_product(const MothDistance *q) {
  return q->norm == MOTH_NORM_2 && !q->pairs && q->size >= LEAST && q->rows >= LEAST &&
         q->others >= LEAST;
}

static void backward_range(void *ctx, int64_t begin, int64_t end) {
  Work *w = ctx;
  MothDistance q = w->q;
  bool wide = w->kernels == moth_cpu_kernels(MOTH_FLOAT64);
  q.work = moth_alloc(w->bytes);
  if (!q.work) {
    w->is_full = true;
    return;
  }
  for (int64_t i = begin; i < end && !moth_stopped(); i++) {
    q.from = i * DISTANCE_FAR;
    q.to = moth_min64(q.from + DISTANCE_FAR, q.rows);
    w->kernels->distance_far(&q);
    MothGemm g = {.dtype = wide ? MOTH_FLOAT64 : MOTH_FLOAT32,
                  .m = q.to - q.from,
                  .n = q.size,
                  .k = q.others,
                  .a = q.work,
                  .a_row = q.transposed ? 1 : q.others,
                  .a_col = q.transposed ? DISTANCE_FAR : 1,
                  .b = q.y,
                  .b_row = q.size,
                  .b_col = 1,
                  .c = (char *)q.out + q.from * q.size * (wide ? 8 : 4),
                  .c_row = q.size,
                  .alpha = -1,
                  .beta = 1};
    moth_gemm(&g, false);
  }
  moth_free(q.work, w->bytes);
}

/* The derivative of norm 2 by products, a block of rows after the other. */
static MothStatus backward_product(const Work *w, MothDType dtype) {
  Work run = *w;
  size_t bytes, size = (size_t)moth_dtype_size(dtype);
  char *sums = sums_of(w, dtype, &bytes);
  if (!sums)
    return out_of_memory();
  run.q.x_sum = sums;
  run.q.y_sum = sums + size * (size_t)run.q.rows;
  run.bytes = DISTANCE_FAR * (size_t)run.q.others * size;
  double flops = 2.0 * DISTANCE_FAR * (double)run.q.others * (double)run.q.size;
  moth_parallel_for((run.q.rows + DISTANCE_FAR - 1) / DISTANCE_FAR, moth_cpu_flops_grain(flops),
                    backward_range, &run);
  moth_free(sums, bytes);
  return run.is_full ? out_of_memory() : MOTH_OK;
}

/* The larger of both, float32 at least. */
static MothDType dtype_of(const MothTensor *t) {
  return t->dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
}

/* A float32 or float64 tensor to compute `out` in, which may be out itself. */
static MothStatus result_of(MothTensor *out, MothDType dtype, MothTensor **wide) {
  *wide = out;
  if (out->dtype == dtype)
    return MOTH_OK;
  return moth_tensor_new(out->ndim, out->shape, dtype, out->device, wide);
}
static MothStatus result_done(MothStatus status, MothTensor *out, MothTensor *wide) {
  if (wide && wide != out) {
    if (status == MOTH_OK)
      moth_cpu_copy(out, wide);
    moth_tensor_release(wide);
  }
  return status;
}

static MothStatus cdist(MothTensor *out, MothTensor *x1, MothTensor *x2, double p) {
  MothTensor *x = NULL, *y = NULL, *wide = NULL;
  MothStatus status = MOTH_OK;
  MothDType dtype = dtype_of(out);
  int64_t batch = x1->shape[0];
  Work w = {.kernels = moth_cpu_kernels((int)dtype)};
  if (!out->numel)
    return MOTH_OK;
  MOTH_GO(moth_cpu_contiguous_as(x1, dtype, &x));
  MOTH_GO(moth_cpu_contiguous_as(x2, dtype, &y));
  MOTH_GO(result_of(out, dtype, &wide));
  w.q = (MothDistance){.rows = x1->shape[1],
                       .others = x2->shape[1],
                       .size = x1->shape[2],
                       .norm = moth_norm_of(p),
                       .p = p};
  for (int64_t b = 0; b < batch && status == MOTH_OK && !moth_stopped(); b++) {
    int64_t size = moth_itemsize(wide);
    w.q.x = x->data + b * w.q.rows * w.q.size * size;
    w.q.y = y->data + b * w.q.others * w.q.size * size;
    w.q.out = wide->data + b * w.q.rows * w.q.others * size;
    if (suits_product(&w.q))
      status = run_product(&w, dtype);
    else
      status = run_packed(&w, w.kernels->distance_rows);
  }
done:
  moth_tensor_release(x);
  moth_tensor_release(y);
  return result_done(status, out, wide);
}

/* A contiguous tensor with the last two dimensions of t, or, `transposed`, with those exchanged. */
static MothStatus in_rows(MothTensor *t, bool transposed, MothDType dtype, MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  MothTensor *view;
  if (!transposed)
    return moth_cpu_contiguous_as(t, dtype, out);
  for (int i = 0; i < t->ndim; i++) {
    int from = i < t->ndim - 2 ? i : 2 * t->ndim - 3 - i;
    shape[i] = t->shape[from];
    stride[i] = t->stride[from];
  }
  MOTH_TRY(moth_tensor_view(t, t->ndim, shape, stride, t->offset, &view));
  MothStatus status = moth_cpu_contiguous_as(view, dtype, out);
  moth_tensor_release(view);
  return status;
}

static MothStatus cdist_backward(MothTensor *out, MothTensor *grad, MothTensor *x1, MothTensor *x2,
                                 double p, MothTensor *dist, bool pairs) {
  MothTensor *x = NULL, *y = NULL, *g = NULL, *d = NULL, *wide = NULL;
  MothStatus status = MOTH_OK;
  MothDType dtype = dtype_of(out);
  int64_t batch = pairs ? 1 : x1->shape[0], n = x1->ndim;
  Work w = {.kernels = moth_cpu_kernels((int)dtype)};
  if (!out->numel)
    return MOTH_OK;
  MOTH_GO(moth_cpu_contiguous_as(x1, dtype, &x));
  MOTH_GO(moth_cpu_contiguous_as(x2, dtype, &y));
  MOTH_GO(result_of(out, dtype, &wide));
  w.q = (MothDistance){.rows = x1->shape[n - 2],
                       .others = x2->shape[n - 2],
                       .size = x1->shape[n - 1],
                       .norm = moth_norm_of(p),
                       .p = p,
                       .pairs = pairs};
  /* That by x2 comes with both transposed: copies of them took a third of the time. */
  w.q.transposed = suits_product(&w.q) && dist->stride[1] == 1;
  MOTH_GO(in_rows(grad, w.q.transposed, dtype, &g));
  MOTH_GO(in_rows(dist, w.q.transposed, dtype, &d));
  w.bytes = (size_t)w.kernels->distance_work(&w.q) * (size_t)moth_dtype_size(dtype);
  for (int64_t b = 0; b < batch && status == MOTH_OK && !moth_stopped(); b++) {
    int64_t size = moth_itemsize(wide), at = b * w.q.rows * w.q.size * size,
            pair = b * w.q.rows * w.q.others * size;
    w.q.x = x->data + at;
    w.q.y = y->data + b * w.q.others * w.q.size * size;
    w.q.grad = g->data + pair;
    w.q.dist = d->data + pair;
    w.q.out = wide->data + at;
    status = suits_product(&w.q) ? backward_product(&w, dtype)
                                 : run_packed(&w, w.kernels->distance_backward);
  }
done:
  moth_tensor_release(x);
  moth_tensor_release(y);
  moth_tensor_release(g);
  moth_tensor_release(d);
  return result_done(status, out, wide);
}

MothStatus moth_cpu_native_cdist(MothCall *c) {
  MOTH_UNPACK_NATIVE_CDIST(c)
  return cdist(c->results[0].u.t, x1, x2, p);
}
MothStatus moth_cpu_native_cdist_backward(MothCall *c) {
  MOTH_UNPACK_NATIVE_CDIST_BACKWARD(c)
  return cdist_backward(c->results[0].u.t, grad, x1, x2, p, cdist, false);
}

MothStatus moth_cpu_native_pdist(MothCall *c) {
  MOTH_UNPACK_NATIVE_PDIST(c)
  MothTensor *out = c->results[0].u.t, *x = NULL, *wide = NULL;
  MothStatus status = MOTH_OK;
  MothDType dtype = dtype_of(out);
  Work w = {.kernels = moth_cpu_kernels((int)dtype)};
  if (!out->numel)
    return MOTH_OK;
  MOTH_GO(moth_cpu_contiguous_as(self, dtype, &x));
  MOTH_GO(result_of(out, dtype, &wide));
  w.q = (MothDistance){.x = x->data,
                       .y = x->data,
                       .out = wide->data,
                       .rows = self->shape[0],
                       .others = self->shape[0],
                       .size = self->shape[1],
                       .norm = moth_norm_of(p),
                       .p = p,
                       .pairs = true};
  status = run_packed(&w, w.kernels->distance_rows);
done:
  moth_tensor_release(x);
  return result_done(status, out, wide);
}
MothStatus moth_cpu_native_pdist_backward(MothCall *c) {
  MOTH_UNPACK_NATIVE_PDIST_BACKWARD(c)
  return cdist_backward(c->results[0].u.t, grad, self, self, p, pdist, true);
}
