/* Linear algebra on CUDA devices, by cuSOLVER and cuBLAS (solver.h). Without them, and for what they lack (LDL of hermitian
 * matrices, least squares but by QR), by the CPU's kernels on copies of the arguments; MOTH_LOGS=device says so. Derivatives and
 * composites run on the device, as they are made of products.
 *
 * Matrices are column-major there: copies of transposes. Eigenvectors and singular vectors get the signs that they have on
 * the CPU (kernels/cpu/decompose.c). Where an error depends on the result, the call waits for it. */
#include "kernels/cuda/solver.h"

#include <vector>
extern "C" {
#include "kernels/common/matrices.h"
}
#include "unpack/decompositions.h"

namespace {

enum { THREADS = 256 };

dim3 blocks_for(int64_t n) {
  int64_t blocks = (n + THREADS - 1) / THREADS;
  return dim3((unsigned)(blocks < 65535 ? blocks : 65535));
}
#define EACH(i, n)                                                                                 \
  for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                        \
       i += (int64_t)gridDim.x * blockDim.x)

/* --- matrices of a call --------------------------------------------------------------------------- */

struct Work {
  MothCudaRun run;
  MothMatrices a;
  MothSolver s;
  MothScratch info;
  int64_t k; /* min(m, n) */
};

/* Whether the device computes it; *w is filled then. */
MothStatus begin(MothCall *c, const MothTensor *a, Work *w, bool *here) {
  *here = moth_cuda_has_solver();
  if (!*here)
    return MOTH_OK;
  MOTH_TRY(moth_matrices(a, &w->a));
  MOTH_TRY(moth_cuda_run(c, &w->run));
  MOTH_TRY(w->info.take(w->run.device, (size_t)w->a.count * 4));
  MOTH_CUDA_TRY(cudaMemsetAsync(w->info.p, 0, (size_t)w->a.count * 4, w->run.stream));
  w->s = {&w->run, (MothDType)a->dtype, w->a.count, w->info.as<int32_t>()};
  w->k = moth_min64(w->a.m, w->a.n);
  return MOTH_OK;
}

/* The error that info holds, once the device has written it. */
MothStatus failed(const Work &w, MothFactorError what) {
  std::vector<int32_t> info((size_t)w.a.count);
  MOTH_TRY(moth_cuda_memcpy(w.run.device, info.data(), w.s.info, info.size() * 4,
                            cudaMemcpyDeviceToHost));
  return moth_matrices_check(w.a.t, info.data(), w.a.count, what);
}
MothStatus give_info(const Work &w, MothTensor *to) {
  if (w.a.count)
    MOTH_CUDA_TRY(cudaMemcpyAsync(to->data, w.s.info, (size_t)w.a.count * 4,
                                  cudaMemcpyDeviceToDevice, w.run.stream));
  return MOTH_OK;
}

MothStatus transposed(MothTensor *t, MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  for (int d = 0; d < t->ndim; d++) {
    shape[d] = t->shape[d];
    stride[d] = t->stride[d];
  }
  int64_t *s = shape + t->ndim - 2, *by = stride + t->ndim - 2, m = s[0], step = by[0];
  s[0] = s[1], by[0] = by[1];
  s[1] = m, by[1] = step;
  return moth_tensor_view(t, t->ndim, shape, stride, t->offset, out);
}
/* A row-major tensor with the batch of t and matrices of rows x columns. */
MothStatus make(const MothTensor *t, int64_t rows, int64_t columns, MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS];
  for (int d = 0; d < t->ndim - 2; d++)
    shape[d] = t->shape[d];
  shape[t->ndim - 2] = rows;
  shape[t->ndim - 1] = columns;
  return moth_tensor_new(t->ndim, shape, (MothDType)t->dtype, t->device, out);
}
/* Rows from..from+n of the matrices. */
MothStatus rows_of(MothTensor *t, int64_t n, MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS];
  for (int d = 0; d < t->ndim; d++)
    shape[d] = t->shape[d];
  shape[t->ndim - 2] = n;
  return moth_tensor_view(t, t->ndim, shape, t->stride, t->offset, out);
}
/* A copy of t, row-major. */
MothStatus rows(MothTensor *t, MothTensor **out) {
  MOTH_TRY(make(t, t->shape[t->ndim - 2], t->shape[t->ndim - 1], out));
  return t->numel ? moth_cuda_copy(*out, t) : MOTH_OK;
}
/* A copy of t, column-major: its memory is that of the transpose. */
MothStatus columns(MothTensor *t, MothTensor **out) {
  MothOwned view;
  MOTH_TRY(transposed(t, &view.t));
  return rows(view, out);
}
/* to = the matrices of a column-major copy. */
MothStatus store(MothTensor *to, MothTensor *from) {
  MothOwned view;
  if (!to->numel)
    return MOTH_OK;
  MOTH_TRY(transposed(from, &view.t));
  return moth_cuda_copy(to, view);
}

/* --- kernels -------------------------------------------------------------------------------------- */

/* info of matrices with elements that are not finite. part: of square column-major ones only the upper (1) or lower (-1)
 * triangle counts. */
template <class R>
__global__ void finite_kernel(const R *a, int64_t n, int64_t each, int64_t numel, int parts,
                              int part, int32_t *info) {
  EACH(i, numel) {
    int64_t column = i % each / n, row = i % n;
    bool counts = part == 0 || (part > 0 ? row <= column : row >= column);
    for (int p = 0; counts && p < parts; p++)
      if (!isfinite(a[i * parts + p]))
        atomicExch(info + i / each, (int32_t)MOTH_NOT_FINITE);
  }
}
/* An error if one is not; `t` is a column-major copy. */
MothStatus finite(const Work &w, MothTensor *t, int part) {
  int64_t n = t->shape[t->ndim - 1], each = t->shape[t->ndim - 2] * n;
  auto launch = [&](auto *a, auto kernel) {
    return moth_launch("finite", kernel, blocks_for(t->numel), dim3(THREADS), 0, w.run.stream, a, n,
                       each, t->numel, w.a.is_complex ? 2 : 1, part, w.s.info);
  };
  MOTH_TRY(w.a.real == 4
               ? launch(reinterpret_cast<const float *>(t->data), finite_kernel<float>)
               : launch(reinterpret_cast<const double *>(t->data), finite_kernel<double>));
  return failed(w, MOTH_NO_CONVERGENCE);
}

/* Vectors of a batch: element i of vector j of matrix b at p + b * matrix + j * vector + i * step, of `parts` numbers. */
struct Vectors {
  void *p;
  int64_t matrix, vector, step, n;
};
/* The largest component of each vector v becomes real and positive; the vectors `u` beside them, of the first `beside`,
 * get the conjugate factors. */
template <class R, int PARTS>
__global__ void signs_kernel(Vectors v, Vectors u, int64_t count, int64_t beside, int64_t numel) {
  EACH(at, numel) {
    int64_t b = at / count, j = at % count;
    R *x = static_cast<R *>(v.p) + (b * v.matrix + j * v.vector) * PARTS;
    double best = 0, re = 1, im = 0;
    for (int64_t i = 0; i < v.n; i++) {
      double p = (double)x[i * v.step * PARTS],
             q = PARTS == 2 ? (double)x[i * v.step * PARTS + PARTS - 1] : 0.0;
      double size = hypot(p, q);
      if (size >
          best * 1.0001) { /* of almost the same size: the first one, whatever their rounding */
        best = size;
        re = p / size;
        im = -q / size;
      }
    }
    for (int side = 0; side < 2 && !(re == 1 && im == 0); side++, im = -im) {
      const Vectors &w = side ? u : v;
      if (side && (!u.p || j >= beside))
        break;
      R *y = static_cast<R *>(w.p) + (b * w.matrix + j * w.vector) * PARTS;
      for (int64_t i = 0; i < w.n; i++) {
        R *z = y + i * w.step * PARTS;
        double p = (double)z[0], q = PARTS == 2 ? (double)z[PARTS - 1] : 0.0;
        z[0] = (R)(PARTS == 2 ? p * re - q * im : p * re);
        if (PARTS == 2)
          z[PARTS - 1] = (R)(p * im + q * re);
      }
    }
  }
}
MothStatus set_signs(const MothCudaRun &run, MothDType dtype, const Vectors &v, const Vectors &u,
                     int64_t batch, int64_t count, int64_t beside) {
  auto launch = [&](auto kernel) {
    return moth_launch("signs", kernel, blocks_for(batch * count), dim3(THREADS), 0, run.stream, v,
                       u, count, beside, batch * count);
  };
  return dtype == MOTH_FLOAT32     ? launch(signs_kernel<float, 1>)
         : dtype == MOTH_FLOAT64   ? launch(signs_kernel<double, 1>)
         : dtype == MOTH_COMPLEX64 ? launch(signs_kernel<float, 2>)
                                   : launch(signs_kernel<double, 2>);
}
const Vectors NO_VECTORS = {nullptr, 0, 0, 0, 0};

/* Pivots from 1 to n (signs: or -1 to -n) as int32; others are faults, and exchange nothing. */
__global__ void pivots_kernel(int32_t *to, const int64_t *from, int64_t k, int64_t n, bool signs,
                              int64_t numel, MothFault *f, int op) {
  EACH(i, numel) {
    int64_t v = from[i], place = signs && v < 0 ? -v : v;
    if (place < 1 || place > n) {
      moth_fault(f, op, MOTH_FAULT_INDEX, -1, v, 1, n);
      v = i % k + 1;
    }
    to[i] = (int32_t)v;
  }
}
MothStatus take_pivots(const MothCudaRun &run, const MothTensor *pivots, int64_t n, bool signs,
                       MothScratch *out) {
  MothOwned wide;
  int64_t k = pivots->shape[pivots->ndim - 1];
  MOTH_TRY(moth_cuda_contiguous_as(pivots, MOTH_INT64, &wide.t));
  MOTH_TRY(out->take(run.device, (size_t)wide->numel * 4));
  return moth_launch("pivots", pivots_kernel, blocks_for(wide->numel), dim3(THREADS), 0, run.stream,
                     out->as<int32_t>(), reinterpret_cast<const int64_t *>(wide->data), k, n, signs,
                     wide->numel, moth_cuda_fault(run.device), run.op);
}

/* Which row of A is row i of L U: the exchanges of a matrix, one after another. */
__global__ void rows_kernel(int64_t *rows, const int32_t *pivots, int64_t n, int64_t k,
                            int64_t count) {
  EACH(b, count) {
    int64_t *r = rows + b * n;
    for (int64_t i = 0; i < n; i++)
      r[i] = i;
    for (int64_t i = 0; i < k; i++) {
      int64_t other = pivots[b * k + i] - 1, kept = r[other];
      r[other] = r[i];
      r[i] = kept;
    }
  }
}

__global__ void count_kernel(int32_t *p, int64_t k, int64_t numel) {
  EACH(i, numel) p[i] = (int32_t)(i % k) + 1;
}

/* Eigenvalues and column-major eigenvectors of real matrices as complex numbers: a pair of conjugate ones has the real parts
 * of the first vector in one column, the imaginary parts in the next. Row k of `count` * n. */
template <class R>
__global__ void pairs_kernel(R *values, R *vectors, const R *w, const R *v, int64_t n,
                             int64_t numel) {
  EACH(at, numel) {
    int64_t b = at / n, j = at % n;
    const R *re = w + b * 2 * n, *im = re + n;
    values[2 * at] = re[j];
    values[2 * at + 1] = im[j];
    if (!v)
      continue;
    const R *x = v + b * n * n;
    int64_t first =
        im[j] < 0 ? j - 1 : j; /* the one with the positive imaginary part comes first */
    for (int64_t i = 0; i < n; i++) {
      R *z = vectors + 2 * ((b * n + j) * n + i);
      z[0] = x[first * n + i];
      z[1] = im[j] == 0 ? (R)0 : im[j] > 0 ? x[(first + 1) * n + i] : -x[(first + 1) * n + i];
    }
  }
}

/* The first 0 on the diagonals of column-major matrices with ld rows is their info. */
template <class T>
__global__ void diagonal_kernel(const T *a, int64_t ld, int64_t step, int64_t k, int parts,
                                int64_t count, int32_t *info) {
  EACH(b, count) {
    for (int64_t i = 0; i < k && !info[b]; i++) {
      const T *x = a + (b * step + i * ld + i) * parts;
      if (x[0] == 0 && x[parts - 1] == 0)
        info[b] = (int32_t)i + 1;
    }
  }
}

template <class T> __global__ void conjugate_kernel(T *a, int64_t numel) {
  EACH(i, numel) a[2 * i + 1] = -a[2 * i + 1];
}
MothStatus conjugate(const Work &w, MothTensor *t) {
  auto launch = [&](auto *a, auto kernel) {
    return moth_launch("conjugate", kernel, blocks_for(t->numel), dim3(THREADS), 0, w.run.stream, a,
                       t->numel);
  };
  return !w.a.is_complex ? MOTH_OK
         : w.a.real == 4 ? launch(reinterpret_cast<float *>(t->data), conjugate_kernel<float>)
                         : launch(reinterpret_cast<double *>(t->data), conjugate_kernel<double>);
}

} // namespace

/* --- factors -------------------------------------------------------------------------------------- */

MothStatus moth_cuda_linalg_cholesky_ex(MothCall *c) {
  MOTH_UNPACK_LINALG_CHOLESKY_EX(c)
  MothTensor *out = c->results[0].u.t;
  Work w;
  bool here;
  MOTH_TRY(begin(c, A, &w, &here));
  if (!here)
    return moth_call_on_cpu(c);
  if (out->numel) {
    MOTH_TRY(moth_cuda_copy(out, A));
    /* Row-major memory is that of the transpose: its upper triangle is our lower one. */
    MOTH_TRY(moth_solver_potrf(&w.s, !upper, w.a.n, out->data));
    MOTH_TRY(moth_cuda_keep_triangle(out, upper, w.run.stream));
  }
  MOTH_TRY(give_info(w, c->results[1].u.t));
  return check_errors ? failed(w, MOTH_NOT_POSITIVE) : MOTH_OK;
}

MothStatus moth_cuda_native_solve_triangular(MothCall *c) {
  MOTH_UNPACK_NATIVE_SOLVE_TRIANGULAR(c)
  MothTensor *out = c->results[0].u.t;
  MothOwned a;
  Work w;
  bool here;
  if (!out->numel)
    return MOTH_OK;
  MOTH_TRY(begin(c, A, &w, &here));
  if (!here)
    return moth_call_on_cpu(c);
  MOTH_TRY(moth_cuda_contiguous(A, &a.t));
  MOTH_TRY(moth_cuda_copy(out, B));
  /* A X = B in row-major memory is X' A' = B' in the library's. */
  int64_t n = w.a.n, k = B->shape[B->ndim - 1];
  const MothTriangular t = {false,   !upper, false, unitriangular != 0, k, n,
                            a->data, n,      n * n, out->data,          k, n * k};
  return moth_solver_trsm(&w.s, &t);
}

MothStatus moth_cuda_linalg_lu_factor_ex(MothCall *c) {
  MOTH_UNPACK_LINALG_LU_FACTOR_EX(c)
  MothTensor *pivots = c->results[1].u.t;
  int32_t *p = reinterpret_cast<int32_t *>(pivots->data);
  MothOwned a;
  Work w;
  bool here;
  MOTH_TRY(begin(c, A, &w, &here));
  if (!here)
    return moth_call_on_cpu(c);
  if (A->numel) {
    MOTH_TRY(columns(A, &a.t));
    MOTH_TRY(moth_solver_getrf(&w.s, w.a.m, w.a.n, a->data, pivot ? p : nullptr));
    MOTH_TRY(store(c->results[0].u.t, a));
    if (!pivot)
      MOTH_TRY(moth_launch("count", count_kernel, blocks_for(pivots->numel), dim3(THREADS), 0,
                           w.run.stream, p, w.k, pivots->numel));
  }
  MOTH_TRY(give_info(w, c->results[2].u.t));
  return check_errors ? failed(w, MOTH_SINGULAR_U) : MOTH_OK;
}

MothStatus moth_cuda_native_lu_rows(MothCall *c) {
  MOTH_UNPACK_NATIVE_LU_ROWS(c)
  MothTensor *out = c->results[0].u.t;
  int64_t k = pivots->shape[pivots->ndim - 1];
  MothCudaRun run;
  MothScratch p;
  MOTH_TRY(moth_cuda_run(c, &run));
  if (pivots->numel)
    MOTH_TRY(take_pivots(run, pivots, n, false, &p));
  if (!out->numel)
    return MOTH_OK;
  MOTH_TRY(moth_launch("lu_rows", rows_kernel, blocks_for(out->numel / n), dim3(THREADS), 0,
                       run.stream, reinterpret_cast<int64_t *>(out->data), p.as<int32_t>(), n, k,
                       out->numel / n));
  return moth_cuda_leave(c);
}

MothStatus moth_cuda_native_lu_solve(MothCall *c) {
  MOTH_UNPACK_NATIVE_LU_SOLVE(c)
  MothTensor *out = c->results[0].u.t;
  MothOwned a, b;
  MothScratch p;
  Work w;
  bool here;
  if (!out->numel)
    return MOTH_OK;
  MOTH_TRY(begin(c, LU, &w, &here));
  if (!here)
    return moth_call_on_cpu(c);
  MOTH_TRY(take_pivots(w.run, pivots, w.a.n, false, &p));
  MOTH_TRY(columns(LU, &a.t));
  MOTH_TRY(columns(B, &b.t));
  MOTH_TRY(moth_solver_getrs(&w.s, turned, w.a.n, B->shape[B->ndim - 1], a->data, p.as<int32_t>(),
                             b->data));
  MOTH_TRY(store(out, b));
  return moth_cuda_leave(c);
}

/* --- QR ------------------------------------------------------------------------------------------- */

MothStatus moth_cuda_native_qr(MothCall *c) {
  MOTH_UNPACK_NATIVE_QR(c)
  MothTensor *q = c->results[0].u.t, *r = c->results[1].u.t;
  MothOwned view, top, tau;
  MothOwned a;
  Work w;
  bool here;
  MOTH_TRY(begin(c, A, &w, &here));
  if (!here || !A->numel)
    return moth_call_on_cpu(c);
  int64_t m = w.a.m, n = w.a.n, wide = mode == MOTH_MODE_R ? 0 : q->shape[q->ndim - 1];
  /* Q is made where A was, and may have more columns. */
  MOTH_TRY(make(A, moth_max64(n, wide), m, &a.t));
  MOTH_TRY(rows_of(a, n, &top.t));
  MOTH_TRY(transposed(A, &view.t));
  MOTH_TRY(moth_cuda_copy(top, view));
  MOTH_TRY(make(A, 1, w.k, &tau.t));
  int64_t step = m * moth_max64(n, wide);
  MOTH_TRY(moth_solver_geqrf(&w.s, m, n, a->data, step, tau->data));
  MothOwned upper, kept;
  MOTH_TRY(transposed(top, &upper.t));
  MOTH_TRY(rows_of(upper, r->shape[r->ndim - 2], &kept.t));
  MOTH_TRY(moth_cuda_copy(r, kept));
  MOTH_TRY(moth_cuda_keep_triangle(r, true, w.run.stream));
  if (!wide)
    return MOTH_OK;
  MOTH_TRY(moth_solver_orgqr(&w.s, m, wide, w.k, a->data, step, tau->data));
  MothOwned first;
  MOTH_TRY(rows_of(a, wide, &first.t));
  return store(q, first);
}

MothStatus moth_cuda_geqrf(MothCall *c) {
  MOTH_UNPACK_GEQRF(c)
  MothOwned a;
  Work w;
  bool here;
  MOTH_TRY(begin(c, self, &w, &here));
  if (!here)
    return moth_call_on_cpu(c);
  if (!self->numel)
    return MOTH_OK;
  MOTH_TRY(columns(self, &a.t));
  MOTH_TRY(moth_solver_geqrf(&w.s, w.a.m, w.a.n, a->data, w.a.m * w.a.n, c->results[1].u.t->data));
  return store(c->results[0].u.t, a);
}

MothStatus moth_cuda_native_householder_product(MothCall *c) {
  MOTH_UNPACK_NATIVE_HOUSEHOLDER_PRODUCT(c)
  MothOwned a, scales;
  Work w;
  bool here;
  int64_t k = tau->shape[tau->ndim - 1];
  MOTH_TRY(begin(c, A, &w, &here));
  if (!here || !k) /* of no reflectors: the identity */
    return moth_call_on_cpu(c);
  if (!A->numel)
    return MOTH_OK;
  MOTH_TRY(columns(A, &a.t));
  MOTH_TRY(moth_cuda_contiguous(tau, &scales.t));
  MOTH_TRY(moth_solver_orgqr(&w.s, w.a.m, w.a.n, k, a->data, w.a.m * w.a.n, scales->data));
  return store(c->results[0].u.t, a);
}

MothStatus moth_cuda_native_ormqr(MothCall *c) {
  MOTH_UNPACK_NATIVE_ORMQR(c)
  MothTensor *out = c->results[0].u.t;
  MothOwned a, b, scales;
  Work w;
  bool here;
  int64_t k = tau->shape[tau->ndim - 1];
  MOTH_TRY(begin(c, self, &w, &here));
  if (!here || !k)
    return moth_call_on_cpu(c);
  if (!out->numel)
    return MOTH_OK;
  MOTH_TRY(columns(self, &a.t));
  MOTH_TRY(columns(other, &b.t));
  MOTH_TRY(moth_cuda_contiguous(tau, &scales.t));
  MOTH_TRY(moth_solver_ormqr(&w.s, left, transpose, out->shape[out->ndim - 2],
                             out->shape[out->ndim - 1], k, a->data, w.a.m, w.a.n, scales->data,
                             b->data));
  return store(out, b);
}

/* --- eigenvalues and singular values -------------------------------------------------------------- */

MothStatus moth_cuda_native_eigh(MothCall *c) {
  MOTH_UNPACK_NATIVE_EIGH(c)
  MothTensor *values = c->results[0].u.t;
  MothOwned a;
  Work w;
  bool here, upper = UPLO == MOTH_UPLO_U;
  if (!values->numel)
    return MOTH_OK;
  MOTH_TRY(begin(c, A, &w, &here));
  if (!here)
    return moth_call_on_cpu(c);
  int64_t n = w.a.n;
  MOTH_TRY(columns(A, &a.t));
  MOTH_TRY(finite(w, a, upper ? 1 : -1));
  MOTH_TRY(moth_solver_syevd(&w.s, vectors, upper, n, a->data, values->data));
  MOTH_TRY(failed(w, MOTH_NO_CONVERGENCE));
  if (!vectors)
    return MOTH_OK;
  MOTH_TRY(set_signs(w.run, w.s.dtype, {a->data, n * n, n, 1, n}, NO_VECTORS, w.a.count, n, 0));
  return store(c->results[1].u.t, a);
}

MothStatus moth_cuda_native_eig(MothCall *c) {
  MOTH_UNPACK_NATIVE_EIG(c)
  MothTensor *values = c->results[0].u.t, *out = c->results[1].u.t;
  MothOwned a, v, made;
  MothScratch pairs;
  Work w;
  bool here;
  if (!values->numel)
    return MOTH_OK;
  MOTH_TRY(begin(c, A, &w, &here));
  if (!here || !moth_cuda_has_geev())
    return moth_call_on_cpu(c);
  int64_t n = w.a.n, count = w.a.count;
  MothDType dtype = (MothDType)values->dtype;
  MOTH_TRY(columns(A, &a.t));
  MOTH_TRY(finite(w, a, 0));
  if (vectors) {
    MOTH_TRY(make(A, n, n, &v.t));
    MOTH_TRY(make(out, n, n, &made.t));
  }
  MOTH_TRY(pairs.take(w.run.device, (size_t)(count * 2 * n) * w.a.real));
  void *numbers = w.a.is_complex ? values->data : pairs.p;
  MothTensor *to = w.a.is_complex ? made : v;
  MOTH_TRY(moth_solver_geev(&w.s, n, a->data, numbers, vectors ? to->data : nullptr));
  MOTH_TRY(failed(w, MOTH_NO_CONVERGENCE));
  if (!w.a.is_complex) {
    auto launch = [&](auto *none, auto kernel) {
      using R = decltype(none);
      return moth_launch("pairs", kernel, blocks_for(count * n), dim3(THREADS), 0, w.run.stream,
                         reinterpret_cast<R>(values->data),
                         vectors ? reinterpret_cast<R>(made->data) : nullptr,
                         reinterpret_cast<R>(numbers),
                         vectors ? reinterpret_cast<R>(v->data) : nullptr, n, count * n);
    };
    MOTH_TRY(w.a.real == 4 ? launch(static_cast<float *>(nullptr), pairs_kernel<float>)
                           : launch(static_cast<double *>(nullptr), pairs_kernel<double>));
  }
  if (!vectors)
    return MOTH_OK;
  MOTH_TRY(set_signs(w.run, dtype, {made->data, n * n, n, 1, n}, NO_VECTORS, count, n, 0));
  return store(out, made);
}

MothStatus moth_cuda_native_svd(MothCall *c) {
  MOTH_UNPACK_NATIVE_SVD(c)
  MothTensor *u = c->results[0].u.t, *vh = c->results[2].u.t;
  void *values = c->results[1].u.t->data;
  MothOwned a, left, right;
  Work w;
  bool here;
  MOTH_TRY(begin(c, A, &w, &here));
  if (!here || !w.k)
    return moth_call_on_cpu(c);
  if (!w.a.count)
    return MOTH_OK;
  int64_t m = w.a.m, n = w.a.n, wide = full_matrices ? m : w.k, tall = full_matrices ? n : w.k;
  char job = !vectors ? 'N' : full_matrices ? 'A' : 'S';
  /* The library wants at least as many rows as columns. A row-major matrix is its transpose there, whose U and V' are our V
   * and U', each row-major. */
  bool turned = n >= m;
  MOTH_TRY((turned ? rows : columns)(A, &a.t));
  MOTH_TRY(finite(w, a, 0));
  if (vectors && !turned) {
    MOTH_TRY(make(A, wide, m, &left.t));
    MOTH_TRY(make(A, n, n, &right.t));
  }
  if (turned)
    MOTH_TRY(moth_solver_gesvd(&w.s, job, n, m, a->data, values, vectors ? vh->data : nullptr,
                               vectors ? u->data : nullptr));
  else
    MOTH_TRY(moth_solver_gesvd(&w.s, job, m, n, a->data, values, vectors ? left->data : nullptr,
                               vectors ? right->data : nullptr));
  MOTH_TRY(failed(w, MOTH_NO_CONVERGENCE));
  if (!vectors)
    return MOTH_OK;
  if (!turned) {
    MOTH_TRY(store(u, left));
    MOTH_TRY(store(vh, right));
  }
  MOTH_TRY(set_signs(w.run, w.s.dtype, {u->data, m * wide, 1, wide, m},
                     {vh->data, tall * n, n, 1, n}, w.a.count, wide, w.k));
  if (tall == w.k)
    return MOTH_OK;
  Vectors more = {reinterpret_cast<char *>(vh->data) + w.k * n * (int64_t)w.a.item, tall * n, n, 1,
                  n};
  return set_signs(w.run, w.s.dtype, more, NO_VECTORS, w.a.count, tall - w.k, 0);
}

/* --- least squares and LDL ------------------------------------------------------------------------ */

/* Of full rank, by QR. With fewer rows than columns: A' = Q R, so that X = conj(Q) R'^-1 B is the shortest solution. */
MothStatus moth_cuda_native_lstsq(MothCall *c) {
  MOTH_UNPACK_NATIVE_LSTSQ(c)
  MothTensor *out = c->results[0].u.t;
  MothOwned a, b, tau, x, top;
  Work w;
  bool here;
  MOTH_TRY(begin(c, A, &w, &here));
  int64_t k = B->shape[B->ndim - 1];
  if (!here || driver != MOTH_DRIVER_GELS || !A->numel || !k)
    return moth_call_on_cpu(c);
  int64_t m = w.a.m, n = w.a.n, most = moth_max64(m, n), least = w.k;
  bool tall = m >= n;
  MOTH_TRY((tall ? columns : rows)(A, &a.t));
  MOTH_TRY(finite(w, a, 0));
  MOTH_TRY(make(A, 1, least, &tau.t));
  MOTH_TRY(moth_solver_geqrf(&w.s, most, least, a->data, m * n, tau->data));
  auto launch = [&](auto *p, auto kernel) {
    return moth_launch("diagonal", kernel, blocks_for(w.a.count), dim3(THREADS), 0, w.run.stream, p,
                       most, m * n, least, w.a.is_complex ? 2 : 1, w.a.count, w.s.info);
  };
  MOTH_TRY(w.a.real == 4
               ? launch(reinterpret_cast<const float *>(a->data), diagonal_kernel<float>)
               : launch(reinterpret_cast<const double *>(a->data), diagonal_kernel<double>));
  MOTH_TRY(failed(w, MOTH_NOT_FULL_RANK));
  MOTH_TRY(columns(B, &b.t));
  if (tall)
    MOTH_TRY(moth_solver_ormqr(&w.s, true, true, m, k, n, a->data, m, n, tau->data, b->data));
  const MothTriangular t = {true,    true, !tall, false,   least, k,
                            a->data, most, m * n, b->data, m,     m * k};
  MOTH_TRY(moth_solver_trsm(&w.s, &t));
  if (!tall) {
    MothOwned rest, first;
    MOTH_TRY(conjugate(w, b));
    MOTH_TRY(make(A, k, n, &x.t)); /* column-major, n x k */
    MOTH_TRY(moth_cuda_fill(x, moth_v_int(0)));
    MOTH_TRY(transposed(x, &rest.t));
    MOTH_TRY(rows_of(rest, m, &first.t));
    MOTH_TRY(store(first, b));
    MOTH_TRY(moth_solver_ormqr(&w.s, true, false, n, k, m, a->data, n, m, tau->data, x->data));
    MOTH_TRY(conjugate(w, x));
    MOTH_TRY(store(out, x));
  } else {
    MothOwned view;
    MOTH_TRY(transposed(b, &view.t));
    MOTH_TRY(rows_of(view, n, &top.t));
    MOTH_TRY(moth_cuda_copy(out, top));
  }
  return moth_cuda_fill(c->results[1].u.t, moth_v_int(least));
}

MothStatus moth_cuda_linalg_ldl_factor_ex(MothCall *c) {
  MOTH_UNPACK_LINALG_LDL_FACTOR_EX(c)
  MothOwned a;
  Work w;
  bool here;
  MOTH_TRY(begin(c, A, &w, &here));
  if (!here || (hermitian && w.a.is_complex))
    return moth_call_on_cpu(c);
  if (A->numel) {
    MOTH_TRY(columns(A, &a.t));
    MOTH_TRY(moth_solver_sytrf(&w.s, w.a.n, a->data,
                               reinterpret_cast<int32_t *>(c->results[1].u.t->data)));
    MOTH_TRY(store(c->results[0].u.t, a));
    MOTH_TRY(moth_cuda_keep_triangle(c->results[0].u.t, false, w.run.stream));
  }
  MOTH_TRY(give_info(w, c->results[2].u.t));
  return check_errors ? failed(w, MOTH_SINGULAR_D) : MOTH_OK;
}

MothStatus moth_cuda_native_ldl_solve(MothCall *c) {
  MOTH_UNPACK_NATIVE_LDL_SOLVE(c)
  MothTensor *out = c->results[0].u.t;
  MothOwned a, b;
  MothScratch p;
  Work w;
  bool here;
  if (!out->numel)
    return MOTH_OK;
  MOTH_TRY(begin(c, LD, &w, &here));
  if (!here || (hermitian && w.a.is_complex))
    return moth_call_on_cpu(c);
  MOTH_TRY(take_pivots(w.run, pivots, w.a.n, true, &p));
  MOTH_TRY(columns(LD, &a.t));
  MOTH_TRY(columns(B, &b.t));
  MOTH_TRY(
      moth_solver_sytrs(&w.s, w.a.n, B->shape[B->ndim - 1], a->data, p.as<int32_t>(), b->data));
  MOTH_TRY(store(out, b));
  return moth_cuda_leave(c);
}
