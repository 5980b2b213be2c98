/* The emulation's cuBLASLt: column-major products on the CPU, as strict about its arguments as the real
 * one. MOTH_EMU_CUBLASLT=fail lets products fail, =none finds no algorithm, so that specs can test both. */
#include "emu/cublaslt.h"

#include <stdlib.h>

#include <complex>
#include <vector>

#define MOTH_FN static inline __attribute__((unused))
#include "kernels/math_bits.h"

#pragma GCC optimize("O3")

struct cublasLtContext {
  int unused;
};
static cublasLtContext the_context;

static bool told_to(const char *what) {
  const char *s = getenv("MOTH_EMU_CUBLASLT");
  return s && !strcmp(s, what);
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
  *handle = &the_context;
  return CUBLAS_STATUS_SUCCESS;
}
size_t cublasLtGetVersion(void) {
  return 0;
}
const char *cublasLtGetStatusName(cublasStatus_t s) {
  return s == CUBLAS_STATUS_SUCCESS            ? "CUBLAS_STATUS_SUCCESS"
         : s == CUBLAS_STATUS_INVALID_VALUE    ? "CUBLAS_STATUS_INVALID_VALUE"
         : s == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
         : s == CUBLAS_STATUS_NOT_SUPPORTED    ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                               : "CUBLAS_STATUS_?";
}

/* Fills a structure that the caller has given with its size in this version of the library. */
template <class T> static cublasStatus_t init(T *to, size_t size, const T &value) {
  if (size != sizeof *to)
    return CUBLAS_STATUS_INVALID_VALUE;
  *to = value;
  return CUBLAS_STATUS_SUCCESS;
}
template <class T> static cublasStatus_t set(T *to, const void *value, size_t size) {
  if (size != sizeof *to)
    return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(to, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDescOpaque_t *d, size_t size,
                                               cublasComputeType_t compute, cudaDataType_t scale) {
  if ((compute == CUBLAS_COMPUTE_64F) != (scale == CUDA_R_64F || scale == CUDA_C_64F))
    return CUBLAS_STATUS_INVALID_VALUE;
  return init(d, size,
              {compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr});
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDescOpaque_t *d,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t size) {
  switch (attribute) {
  case CUBLASLT_MATMUL_DESC_TRANSA:
    return set(&d->trans_a, value, size);
  case CUBLASLT_MATMUL_DESC_TRANSB:
    return set(&d->trans_b, value, size);
  case CUBLASLT_MATMUL_DESC_EPILOGUE:
    return set(&d->epilogue, value, size);
  case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
    return set(&d->bias, value, size);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayoutOpaque_t *l, size_t size,
                                                 cudaDataType_t type, uint64_t rows, uint64_t cols,
                                                 int64_t ld) {
  return init(l, size, {type, rows, cols, ld, 0, 1});
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayoutOpaque_t *l,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *value, size_t size) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
    return set(&l->batch, value, size);
  return set(&l->step, value, size);
}
cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreferenceOpaque_t *p,
                                                     size_t size) {
  return init(p, size, {0, 7, {256, 256, 256, 256}});
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreferenceOpaque_t *p,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t size) {
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
    return set(&p->workspace, value, size);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
    return set(&p->schemes, value, size);
  return set(&p->align[attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, size);
}

/* --- the product -------------------------------------------------------------------------------- */

struct Sizes {
  int64_t m, n, k;
};

static bool sizes(const cublasLtMatmulDescOpaque_t *d, const cublasLtMatrixLayoutOpaque_t *a,
                  const cublasLtMatrixLayoutOpaque_t *b, const cublasLtMatrixLayoutOpaque_t *c,
                  Sizes *s) {
  bool ta = d->trans_a == CUBLAS_OP_T, tb = d->trans_b == CUBLAS_OP_T;
  s->m = (int64_t)(ta ? a->cols : a->rows);
  s->k = (int64_t)(ta ? a->rows : a->cols);
  s->n = (int64_t)(tb ? b->rows : b->cols);
  bool right = s->m && s->n && s->k && (int64_t)(tb ? b->cols : b->rows) == s->k &&
               (int64_t)c->rows == s->m && (int64_t)c->cols == s->n && a->type == b->type &&
               a->type == c->type && a->batch == c->batch && b->batch == c->batch;
  for (const auto *l : {a, b, c})
    right = right && l->ld >= (int64_t)l->rows;
  return right;
}

/* Some sizes need workspace, so that it is passed and checked. */
static size_t wanted(const Sizes &s) {
  return s.k > 64 ? (size_t)(s.m * s.n) * 4 : 0;
}

cublasStatus_t
cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDescOpaque_t *d,
                               cublasLtMatrixLayoutOpaque_t *a, cublasLtMatrixLayoutOpaque_t *b,
                               cublasLtMatrixLayoutOpaque_t *c, cublasLtMatrixLayoutOpaque_t *out,
                               cublasLtMatmulPreferenceOpaque_t *preference, int requested,
                               cublasLtMatmulHeuristicResult_t *results, int *found) {
  Sizes s;
  if (handle != &the_context || requested < 1 || !sizes(d, a, b, c, &s) || out->ld != c->ld)
    return CUBLAS_STATUS_INVALID_VALUE;
  *found = 0;
  if (told_to("none") || wanted(s) > preference->workspace)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  memset(results, 0, sizeof *results);
  /* An algorithm is good for pointers of this alignment. */
  memcpy(results->algo.data, preference->align, sizeof preference->align);
  results->workspaceSize = wanted(s);
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

static double load(cudaDataType_t type, const void *p, int64_t i) {
  switch (type) {
  case CUDA_R_64F:
    return static_cast<const double *>(p)[i];
  case CUDA_R_16F:
    return m_f16_to_f32(static_cast<const unsigned short *>(p)[i]);
  case CUDA_R_16BF:
    return m_bf16_to_f32(static_cast<const unsigned short *>(p)[i]);
  default:
    return static_cast<const float *>(p)[i];
  }
}
static void store(cudaDataType_t type, void *p, int64_t i, double x) {
  switch (type) {
  case CUDA_R_64F:
    static_cast<double *>(p)[i] = x;
    break;
  case CUDA_R_16F:
    static_cast<unsigned short *>(p)[i] = m_f64_to_f16(x);
    break;
  case CUDA_R_16BF:
    static_cast<unsigned short *>(p)[i] = m_f64_to_bf16(x);
    break;
  default:
    static_cast<float *>(p)[i] = (float)x;
  }
}

struct Product {
  cublasLtMatmulDescOpaque_t d;
  cublasLtMatrixLayoutOpaque_t la, lb, lc;
  const void *a, *b;
  void *c;
  double alpha, beta;
  Sizes s;
};

/* Sums in T, in parts of 64; TF32 keeps 10 bits of the operands' mantissas. */
template <class T> static void multiply(const Product &p) {
  const int64_t m = p.s.m, n = p.s.n, k = p.s.k;
  std::vector<T> a((size_t)(m * k)), b((size_t)(k * n)), sum((size_t)m), part((size_t)m);
  auto rounded = [&](double x) {
    if (p.d.compute != CUBLAS_COMPUTE_32F_FAST_TF32)
      return (T)x;
    float f = (float)x;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&f, &bits, 4);
    return (T)f;
  };
  for (int64_t batch = 0; batch < p.lc.batch; batch++) {
    for (int64_t i = 0; i < m; i++)
      for (int64_t q = 0; q < k; q++)
        a[(size_t)(q * m + i)] = rounded(load(
            p.la.type, p.a,
            batch * p.la.step + (p.d.trans_a == CUBLAS_OP_T ? q + i * p.la.ld : i + q * p.la.ld)));
    for (int64_t q = 0; q < k; q++)
      for (int64_t j = 0; j < n; j++)
        b[(size_t)(j * k + q)] = rounded(load(
            p.lb.type, p.b,
            batch * p.lb.step + (p.d.trans_b == CUBLAS_OP_T ? j + q * p.lb.ld : q + j * p.lb.ld)));
    for (int64_t j = 0; j < n; j++) {
      sum.assign((size_t)m, 0);
      for (int64_t first = 0; first < k; first += 64) {
        part.assign((size_t)m, 0);
        T *to = part.data();
        for (int64_t q = first; q < k && q < first + 64; q++) {
          const T *column = &a[(size_t)(q * m)];
          T x = b[(size_t)(j * k + q)];
          for (int64_t i = 0; i < m; i++)
            to[i] += column[i] * x;
        }
        for (int64_t i = 0; i < m; i++)
          sum[(size_t)i] += to[i];
      }
      for (int64_t i = 0; i < m; i++) {
        int64_t at = batch * p.lc.step + i + j * p.lc.ld;
        T x = (T)p.alpha * sum[(size_t)i];
        if (p.beta != 0)
          x += (T)p.beta * (T)load(p.lc.type, p.c, at);
        if (p.d.epilogue == CUBLASLT_EPILOGUE_BIAS)
          x += (T)load(p.lc.type, p.d.bias, i);
        store(p.lc.type, p.c, at, x);
      }
    }
  }
}

/* Of complex numbers; alpha and beta are real. */
template <class R> static void multiply_pairs(const Product &p) {
  typedef std::complex<R> Z;
  for (int64_t batch = 0; batch < p.lc.batch; batch++)
    for (int64_t j = 0; j < p.s.n; j++)
      for (int64_t i = 0; i < p.s.m; i++) {
        Z sum = 0, *to = static_cast<Z *>(p.c) + batch * p.lc.step + i + j * p.lc.ld;
        for (int64_t q = 0; q < p.s.k; q++)
          sum += static_cast<const Z *>(
                     p.a)[batch * p.la.step +
                          (p.d.trans_a == CUBLAS_OP_T ? q + i * p.la.ld : i + q * p.la.ld)] *
                 static_cast<const Z *>(
                     p.b)[batch * p.lb.step +
                          (p.d.trans_b == CUBLAS_OP_T ? j + q * p.lb.ld : q + j * p.lb.ld)];
        *to = (R)p.alpha * sum + (p.beta != 0 ? (R)p.beta * *to : Z(0));
      }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDescOpaque_t *d,
                              const void *alpha, const void *a, cublasLtMatrixLayoutOpaque_t *la,
                              const void *b, cublasLtMatrixLayoutOpaque_t *lb, const void *beta,
                              const void *c, cublasLtMatrixLayoutOpaque_t *lc, void *out,
                              cublasLtMatrixLayoutOpaque_t *lout, const cublasLtMatmulAlgo_t *algo,
                              void *workspace, size_t workspace_size, cudaStream_t stream) {
  Product p = {*d, *la, *lb, *lc, a, b, out, 0, 0, {}};
  uint32_t align[4];
  memcpy(align, algo->data, sizeof align);
  const void *pointers[4] = {a, b, c, out};
  bool pairs = la->type == CUDA_C_32F || la->type == CUDA_C_64F;
  bool right = handle == &the_context && sizes(d, la, lb, lc, &p.s) && c == out &&
               lout->ld == lc->ld && workspace_size >= wanted(p.s) &&
               (workspace != nullptr) == (workspace_size > 0) &&
               (d->epilogue != CUBLASLT_EPILOGUE_BIAS || (d->bias && !pairs)) &&
               (!pairs || d->scale == la->type);
  for (int i = 0; i < 4; i++)
    right = right && align[i] && (uintptr_t)pointers[i] % align[i] == 0;
  if (!right)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (told_to("fail"))
    return CUBLAS_STATUS_EXECUTION_FAILED;
  bool wide = d->scale == CUDA_R_64F || d->scale == CUDA_C_64F;
  p.alpha = wide ? *static_cast<const double *>(alpha) : *static_cast<const float *>(alpha);
  p.beta = wide ? *static_cast<const double *>(beta) : *static_cast<const float *>(beta);
  cudaError_t e = moth_emu_launch(
      "cublasLtMatmul",
      [=]() {
        if (workspace_size)
          memset(workspace, 0x5a, workspace_size);
        if (pairs && wide)
          multiply_pairs<double>(p);
        else if (pairs)
          multiply_pairs<float>(p);
        else if (wide)
          multiply<double>(p);
        else
          multiply<float>(p);
      },
      dim3(1), dim3(1), 0, stream);
  return e == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
