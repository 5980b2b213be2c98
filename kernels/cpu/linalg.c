/* mm, bmm, addmm, baddbmm, linear: makes the operands readable for BLAS, then calls moth_gemm. Products of float16 and
 * bfloat16 are summed in float32, and rounded once. */
#include "unpack/linalg.h"
#include "core/dtype.h"
#include "core/parallel.h"
#include "dispatch/dispatch.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/util.h"

/* The last two dimensions as a matrix that BLAS can read: t itself or a copy (owned either way). */
static MothStatus readable(MothTensor *t, MothDType dtype, MothTensor **out) {
  int n = t->ndim;
  int64_t r = t->stride[n - 2], c = t->stride[n - 1], rows = t->shape[n - 2],
          cols = t->shape[n - 1];
  bool fine = (c == 1 && (r >= cols || rows == 1)) || (r == 1 && (c >= rows || cols == 1));
  if (t->dtype == dtype && fine) {
    moth_tensor_retain(t);
    *out = t;
    return MOTH_OK;
  }
  return moth_cpu_contiguous_as(t, dtype, out);
}

static void set_a(MothGemm *g, const MothTensor *a, int64_t batch) {
  int n = a->ndim;
  g->a = a->data + batch * moth_itemsize(a);
  g->a_row = a->stride[n - 2];
  g->a_col = a->stride[n - 1];
  if (g->a_col != 1 && g->a_row != 1) /* one column or one row: its stride is not used */
    g->a_col = 1;
}

static void set_b(MothGemm *g, const MothTensor *b, int64_t batch) {
  int n = b->ndim;
  g->b = b->data + batch * moth_itemsize(b);
  g->b_row = b->stride[n - 2];
  g->b_col = b->stride[n - 1];
  if (g->b_col != 1 && g->b_row != 1)
    g->b_col = 1;
}

typedef struct Batch {
  MothGemm g;
  const MothTensor *a, *b;
  MothTensor *out;
  bool parallel;
} Batch;

static void batch_range(void *ctx, int64_t begin, int64_t end) {
  const Batch *w = ctx;
  for (int64_t i = begin; i < end; i++) {
    MothGemm g = w->g;
    set_a(&g, w->a, i * w->a->stride[0]);
    set_b(&g, w->b, i * w->b->stride[0]);
    g.c =
        w->out->data + i * g.m * g.n * moth_itemsize(w->out); /* float32 where a and b are halves */
    moth_gemm(&g, w->parallel);
  }
}

/* out = alpha * a @ b + beta * out; a and b are 2-D, or 3-D with a batch in front. */
static MothStatus product(MothTensor *out, MothTensor *a, MothTensor *b, double alpha,
                          double beta) {
  MothDType dtype = (MothDType)out->dtype, work = dtype;
  if (dtype == MOTH_FLOAT16 || dtype == MOTH_BFLOAT16)
    work = MOTH_FLOAT32;
  MothTensor *ra = NULL, *rb = NULL, *wide = NULL;
  MothStatus status = MOTH_OK;
  if (!out->numel)
    return MOTH_OK;
  MOTH_GO(readable(a, dtype, &ra));
  MOTH_GO(readable(b, dtype, &rb));
  MothTensor *target = out;
  if (work != dtype) {
    MOTH_GO(moth_tensor_new(out->ndim, out->shape, work, out->device, &wide));
    if (beta != 0)
      moth_cpu_copy(wide, out);
    target = wide;
  }
  int n = out->ndim;
  MothGemm g = {.dtype = (int)dtype,
                .m = out->shape[n - 2],
                .n = out->shape[n - 1],
                .k = a->shape[a->ndim - 1],
                .c = target->data,
                .c_row = out->shape[n - 1],
                .alpha = alpha,
                .beta = beta};
  if (n == 2) {
    set_a(&g, ra, 0);
    set_b(&g, rb, 0);
    moth_gemm(&g, true);
  } else {
    /* Small products: in parallel over the batch. Large ones: one after another, each in parallel. */
    double flops = moth_gemm_flops(&g);
    Batch w = {g, ra, rb, target, flops >= 64e6};
    if (w.parallel)
      batch_range(&w, 0, out->shape[0]);
    else
      moth_parallel_for(out->shape[0], moth_cpu_flops_grain(flops), batch_range, &w);
  }
  if (wide)
    moth_cpu_copy(out, wide);
done:
  moth_tensor_release(ra);
  moth_tensor_release(rb);
  moth_tensor_release(wide);
  return status;
}

MothStatus moth_cpu_mm(MothCall *c) {
  MOTH_UNPACK_MM(c)
  return product(c->results[0].u.t, self, mat2, 1, 0);
}

MothStatus moth_cpu_bmm(MothCall *c) {
  MOTH_UNPACK_BMM(c)
  return product(c->results[0].u.t, self, mat2, 1, 0);
}

/* beta self + alpha a @ b; beta = 0 ignores self, NaN included. */
static MothStatus add_product(MothTensor *out, const MothTensor *self, MothTensor *a, MothTensor *b,
                              MothValue beta, MothValue alpha) {
  if (moth_as_double(beta) != 0)
    moth_cpu_copy(out, self);
  return product(out, a, b, moth_as_double(alpha), moth_as_double(beta));
}

MothStatus moth_cpu_addmm(MothCall *c) {
  MOTH_UNPACK_ADDMM(c)
  return add_product(c->results[0].u.t, self, mat1, mat2, beta, alpha);
}

MothStatus moth_cpu_baddbmm(MothCall *c) {
  MOTH_UNPACK_BADDBMM(c)
  return add_product(c->results[0].u.t, self, batch1, batch2, beta, alpha);
}

MothStatus moth_cpu_linear(MothCall *c) {
  MOTH_UNPACK_LINEAR(c)
  MothTensor *out = c->results[0].u.t, *flat, *out2 = NULL, *in2 = NULL, *wt = NULL;
  int64_t in = weight->shape[1], width = weight->shape[0], rows = width ? out->numel / width : 0;
  MothStatus status = MOTH_OK;
  if (!out->numel)
    return MOTH_OK;
  if (bias)
    moth_cpu_copy(out, bias);
  if (input->ndim == 2) { /* as it is, a transposed one too */
    moth_tensor_retain(input);
    flat = input;
  } else {
    MOTH_TRY(moth_cpu_contiguous(input, &flat));
  }
  int64_t si[2] = {rows, in}, ti[2] = {in, 1}, so[2] = {rows, width}, to[2] = {width, 1};
  int64_t sw[2] = {in, width}, tw[2] = {weight->stride[1], weight->stride[0]};
  if (input->ndim == 2) {
    ti[0] = input->stride[0];
    ti[1] = input->stride[1];
  }
  MOTH_GO(moth_tensor_view(flat, 2, si, ti, flat->offset, &in2));
  MOTH_GO(moth_tensor_view(out, 2, so, to, out->offset, &out2));
  MOTH_GO(moth_tensor_view(weight, 2, sw, tw, weight->offset, &wt));
  MOTH_GO(product(out2, in2, wt, 1, bias ? 1 : 0));
done:
  moth_tensor_release(in2);
  moth_tensor_release(out2);
  moth_tensor_release(wt);
  moth_tensor_release(flat);
  return status;
}
