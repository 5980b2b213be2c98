/* mm, bmm, addmm, baddbmm, linear: makes the operands readable for BLAS, then calls moth_cuda_gemm. */
#include "kernels/cuda/gemm.h"

#include "kernels/cuda/util.h"
extern "C" {
#include "device/cuda_settings.h"
}
#include "unpack/linalg.h"

/* A product of complex matrices where the library has none: a thread for each element of C, sums in k's order. */
template <class R> __global__ void complex_kernel(MothGemm g, int64_t numel) {
  for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < numel;
       at += (int64_t)gridDim.x * blockDim.x) {
    int64_t j = at % g.n, i = at / g.n % g.m, batch = at / g.n / g.m;
    const R *a = static_cast<const R *>(g.a) + 2 * (batch * g.a_batch + i * g.a_row);
    const R *b = static_cast<const R *>(g.b) + 2 * (batch * g.b_batch + j * g.b_col);
    R *c = static_cast<R *>(g.c) + 2 * (batch * g.c_batch + i * g.c_row + j);
    R re = 0, im = 0;
    for (int64_t q = 0; q < g.k; q++) {
      const R *x = a + 2 * q * g.a_col, *y = b + 2 * q * g.b_row;
      re += x[0] * y[0] - x[1] * y[1];
      im += x[0] * y[1] + x[1] * y[0];
    }
    c[0] = (R)g.alpha * re + (g.beta != 0 ? (R)g.beta * c[0] : (R)0);
    c[1] = (R)g.alpha * im + (g.beta != 0 ? (R)g.beta * c[1] : (R)0);
  }
}
static MothStatus own_gemm(const MothCudaRun *run, const MothGemm *g) {
  if (!moth_dtype_is_complex((MothDType)g->dtype))
    return moth_cuda_kernels[g->dtype]->gemm(run, g);
  int64_t numel = g->batch * g->m * g->n, blocks = (numel + 255) / 256;
  dim3 grid((unsigned)(blocks < 65535 ? blocks : 65535));
  return g->dtype == MOTH_COMPLEX64 ? moth_launch("gemm", complex_kernel<float>, grid, dim3(256), 0,
                                                  run->stream, *g, numel)
                                    : moth_launch("gemm", complex_kernel<double>, grid, dim3(256),
                                                  0, run->stream, *g, numel);
}

MothStatus moth_cuda_gemm(const MothCudaRun *run, const MothGemm *g) {
  if (!g->m || !g->n || !g->batch)
    return MOTH_OK;
  bool done = false;
  if (g->k && moth_dtype_is_inexact((MothDType)g->dtype) && !moth_cuda_settings.own_gemm)
    MOTH_TRY(moth_cublaslt_gemm(run, g, &done));
  return done ? MOTH_OK : own_gemm(run, g);
}

/* A matrix, or one per batch, as BLAS can read it: element (r, c) at p + r * row + c * col. */
struct Operand {
  MothOwned keep;
  const char *p;
  int64_t rows, cols, row, col, batch;

  /* Whether it is row-major (col is 1, row at least cols) or column-major. The stride of a dimension of one
   * element is not used: it is set to a value that BLAS accepts. */
  bool settle() {
    if ((col == 1 || cols == 1) && (row >= cols || rows == 1)) {
      row = rows == 1 ? cols : row;
      col = 1;
      return true;
    }
    if ((row == 1 || rows == 1) && (col >= rows || cols == 1)) {
      col = cols == 1 ? rows : col;
      row = 1;
      return true;
    }
    return false;
  }
  void transpose() {
    int64_t r = rows, s = row;
    rows = cols, row = col;
    cols = r, col = s;
    settle();
  }
  /* The last two dimensions of t, after at most one of batches: t itself, or a copy. */
  MothStatus take(MothTensor *t) {
    int n = t->ndim;
    rows = t->shape[n - 2];
    cols = t->shape[n - 1];
    row = t->stride[n - 2];
    col = t->stride[n - 1];
    if (settle()) {
      moth_tensor_retain(t);
      keep.t = t;
    } else {
      MOTH_TRY(moth_cuda_contiguous(t, &keep.t));
      row = cols;
      col = 1;
    }
    p = keep->data;
    batch = n == 3 ? keep->stride[0] : 0;
    return MOTH_OK;
  }
};

static MothStatus product(const MothCudaRun *run, MothTensor *out, int64_t batch, const Operand &a,
                          const Operand &b, const void *bias, double alpha, double beta) {
  MothGemm g = {};
  g.dtype = out->dtype;
  g.batch = batch;
  g.m = a.rows, g.n = b.cols, g.k = a.cols;
  g.a = a.p, g.a_row = a.row, g.a_col = a.col, g.a_batch = a.batch;
  g.b = b.p, g.b_row = b.row, g.b_col = b.col, g.b_batch = b.batch;
  g.c = out->data, g.c_row = g.n, g.c_batch = g.m * g.n;
  g.bias = bias;
  g.alpha = alpha;
  g.beta = beta;
  return moth_cuda_gemm(run, &g);
}

/* Whether a product can add a row to each of its own: of complex numbers the library has none that does. */
static bool takes_bias(const MothTensor *out) {
  return !moth_dtype_is_complex((MothDType)out->dtype);
}

static MothStatus multiply(MothCall *c, MothTensor *self, MothTensor *mat2) {
  MothTensor *out = c->results[0].u.t;
  MothCudaRun run;
  Operand a, b;
  MOTH_TRY(moth_cuda_run(c, &run));
  if (!out->numel)
    return MOTH_OK;
  MOTH_TRY(a.take(self));
  MOTH_TRY(b.take(mat2));
  return product(&run, out, out->ndim == 3 ? out->shape[0] : 1, a, b, nullptr, 1, 0);
}

MothStatus moth_cuda_mm(MothCall *c) {
  MOTH_UNPACK_MM(c)
  return multiply(c, self, mat2);
}

MothStatus moth_cuda_bmm(MothCall *c) {
  MOTH_UNPACK_BMM(c)
  return multiply(c, self, mat2);
}

MothStatus moth_cuda_addmm(MothCall *c) {
  MOTH_UNPACK_ADDMM(c)
  MothTensor *out = c->results[0].u.t;
  MothCudaRun run;
  Operand left, right;
  MOTH_TRY(moth_cuda_run(c, &run));
  if (!out->numel)
    return MOTH_OK;
  double by = moth_as_double(beta);
  int64_t n = out->shape[1];
  /* A contiguous row to be added with factor 1 is passed as a bias. */
  bool row = by == 1 && takes_bias(out) && self->numel == n && n > 1 &&
             self->shape[self->ndim - 1] == n && self->stride[self->ndim - 1] == 1 &&
             self->dtype == out->dtype;
  if (by != 0 && !row) /* beta = 0 ignores self, NaN included */
    MOTH_TRY(moth_cuda_copy(out, self));
  MOTH_TRY(left.take(mat1));
  MOTH_TRY(right.take(mat2));
  return product(&run, out, 1, left, right, row ? self->data : nullptr, moth_as_double(alpha),
                 row ? 0 : by);
}

MothStatus moth_cuda_baddbmm(MothCall *c) {
  MOTH_UNPACK_BADDBMM(c)
  MothTensor *out = c->results[0].u.t;
  MothCudaRun run;
  Operand left, right;
  double by = moth_as_double(beta);
  MOTH_TRY(moth_cuda_run(c, &run));
  if (!out->numel)
    return MOTH_OK;
  if (by != 0)
    MOTH_TRY(moth_cuda_copy(out, self));
  MOTH_TRY(left.take(batch1));
  MOTH_TRY(right.take(batch2));
  return product(&run, out, out->shape[0], left, right, nullptr, moth_as_double(alpha), by);
}

MothStatus moth_cuda_linear(MothCall *c) {
  MOTH_UNPACK_LINEAR(c)
  MothTensor *out = c->results[0].u.t;
  MothCudaRun run;
  Operand in, w;
  MothOwned added;
  MOTH_TRY(moth_cuda_run(c, &run));
  if (!out->numel)
    return MOTH_OK;
  if (input->ndim == 2) { /* without a copy, also if transposed */
    MOTH_TRY(in.take(input));
  } else { /* all dimensions but the last are rows */
    MOTH_TRY(moth_cuda_contiguous(input, &in.keep.t));
    in.p = in.keep->data;
    in.rows = out->numel / weight->shape[0];
    in.cols = in.row = weight->shape[1];
    in.col = 1;
    in.batch = 0;
  }
  MOTH_TRY(w.take(weight));
  w.transpose();
  if (bias && !takes_bias(out)) {
    MOTH_TRY(moth_cuda_copy(out, bias));
    return product(&run, out, 1, in, w, nullptr, 1, 1);
  }
  if (bias)
    MOTH_TRY(moth_cuda_contiguous(bias, &added.t));
  return product(&run, out, 1, in, w, bias ? added->data : nullptr, 1, 0);
}
