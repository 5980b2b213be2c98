/* Joins of reductions, as operators of the kernels (the joins themselves: kernels/math_join.h; those of records are printed
 * by src/codegen/reduce.lua). An Op has
 *   lane         what a thread gathers a few hundred elements in
 *   total        what is joined over threads, blocks and long runs; a number, double or 64 bits wide
 *   none<T>()    of no elements, as a lane or a total
 *   join(a, b)   of two lanes or totals
 *   chunk<V, U>  U packs of V elements as a lane; element u * V + v has the position first + u * step + v
 *   widen        a lane as a total
 *   finish       writes the result i of a total
 * Floats are added up in `real`, pairwise inside a chunk, and from there on in double. */

#if MOTH_IS_FLOAT
typedef real sum_lane;
typedef double sum_total;
#else
typedef unsigned long long sum_lane; /* overflow wraps */
typedef unsigned long long sum_total;
#endif

/* Result i in the output's dtype, which is a float one where this is one. */
__device__ __forceinline__ void put(const MothReduceOut &out, long long i, sum_total x) {
  switch (out.dtype) {
#if MOTH_IS_FLOAT
  case MOTH_FLOAT64:
    static_cast<double *>(out.values)[i] = (double)x;
    break;
  case MOTH_FLOAT32:
    static_cast<float *>(out.values)[i] = (float)x;
    break;
  case MOTH_FLOAT16:
    static_cast<uint16_t *>(out.values)[i] = m_f32_to_f16((float)x);
    break;
  case MOTH_BFLOAT16:
    static_cast<uint16_t *>(out.values)[i] = m_f32_to_bf16((float)x);
    break;
#else
  case MOTH_INT64:
    static_cast<uint64_t *>(out.values)[i] = x;
    break;
  case MOTH_INT32:
    static_cast<uint32_t *>(out.values)[i] = (uint32_t)x;
    break;
  case MOTH_INT16:
    static_cast<uint16_t *>(out.values)[i] = (uint16_t)x;
    break;
  case MOTH_BOOL:
    static_cast<uint8_t *>(out.values)[i] = x != 0;
    break;
  default:
    static_cast<uint8_t *>(out.values)[i] = (uint8_t)x;
    break;
#endif
  }
}

/* The sum of K values (a power of 2) in a tree. */
template <int K, class T> __device__ __forceinline__ T tree_sum(T *a) {
  if constexpr (K > 1) {
#pragma unroll
    for (int k = 0; k < K / 2; k++)
      a[k] += a[k + K / 2];
    tree_sum<K / 2>(a);
  }
  return a[0];
}

/* K elements (a power of 2) joined: pairwise, and one after the other. The halves are a recursion: of a loop inside a
 * loop nvcc keeps the array in memory. */
template <class Op, int K>
__device__ __forceinline__ typename Op::lane join_tree(typename Op::lane *a) {
  if constexpr (K > 1) {
#pragma unroll
    for (int k = 0; k < K / 2; k++)
      a[k] = Op::join(a[k], a[k + K / 2]);
    join_tree<Op, K / 2>(a);
  }
  return a[0];
}
template <class Op, int K> __device__ __forceinline__ typename Op::lane gather_tree(const real *x) {
  typename Op::lane a[K];
#pragma unroll
  for (int k = 0; k < K; k++)
    a[k] = Op::of(x[k]);
  return join_tree<Op, K>(a);
}
template <class Op, int K> __device__ __forceinline__ typename Op::lane gather_line(const real *x) {
  typename Op::lane a = Op::of(x[0]);
#pragma unroll
  for (int k = 1; k < K; k++)
    a = Op::join(a, Op::of(x[k]));
  return a;
}

#if MOTH_IS_FLOAT
static __device__ __forceinline__ double reduce_finish(int which, double s0, double count);
#endif
__device__ __forceinline__ void put_finished(const MothReduceOut &out, long long i, sum_total a) {
#if MOTH_IS_FLOAT
  a = reduce_finish(out.finish, a, out.divisor);
#endif
  put(out, i, a);
}
__device__ __forceinline__ void put_element(const MothReduceOut &out, long long i, real a) {
  static_cast<stored *>(out.values)[i] = STORE(a);
}
__device__ __forceinline__ void put_truth(const MothReduceOut &out, long long i, unsigned a) {
  static_cast<uint8_t *>(out.values)[i] = a != 0;
}

/* Those of records: Reduce_<name>, and Scan_<name> for running results (scan.cuh). */
#if MOTH_IS_FLOAT
typedef stored wide_stored;
#define STORE_WIDE(x) STORE((real)(x))
#else
typedef unsigned long long wide_stored;
#define STORE_WIDE(x) (x)
#endif
#include "cuda/reduce_ops.h"

/* The first largest (smallest) value and its position; the first NaN wins. */
template <bool MIN> struct ArgOp {
  struct lane {
    long long pos;
    real x;
  };
  typedef lane total;
  template <class T> static __device__ __forceinline__ T none() {
    return T{INT64_MAX, MIN ? m_highest() : m_lowest()};
  }
  static __device__ __forceinline__ bool beats(real a, real b) {
    return MIN ? M_BEATS_MIN(a, b) : M_BEATS_MAX(a, b);
  }
  static __device__ __forceinline__ lane join(lane a, lane b) {
    bool same = (a.x == b.x) | (M_IS_NAN(a.x) & M_IS_NAN(b.x));
    return beats(b.x, a.x) | (same & (b.pos < a.pos)) ? b : a;
  }
  template <int V, int U>
  static __device__ __forceinline__ lane chunk(const real *x, long long first, long long step) {
    real best = x[0];
    int at = 0;
#pragma unroll
    for (int k = 1; k < V * U; k++)
      if (beats(x[k], best)) {
        best = x[k];
        at = k;
      }
    return lane{first + at / V * step + at % V, best};
  }
  static __device__ __forceinline__ total widen(lane a) {
    return a;
  }
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
    if (out.values)
      static_cast<stored *>(out.values)[i] = STORE(a.x);
    if (out.pos)
      out.pos[i] = a.pos + out.base;
  }
};

#if MOTH_IS_FLOAT
/* A chunk is two passes over registers. */
typedef m_moments Moments;
/* a / n, whose error scales what little a chunk moves the mean. */
__device__ __forceinline__ double part_of(double a, double n) {
#if defined(__CUDA_ARCH__) && MOTH_REAL_KIND == 1
  return (double)__fdividef((float)a, (float)n);
#else
  return (double)((real)a / (real)n);
#endif
}
struct VarOp {
  typedef Moments lane;
  typedef Moments total;
  template <class T> static __device__ __forceinline__ T none() { return T{0, 0, 0}; }
  static __device__ __forceinline__ Moments join(const Moments &a, const Moments &b) {
    double n = a.n + b.n;
    return m_join_moments(a, b, n > 0 ? part_of(b.n, n) : 0);
  }
  template <int V, int U>
  static __device__ __forceinline__ lane chunk(const real *x, long long, long long) {
    constexpr int K = V * U;
    real a[K], sq[K];
#pragma unroll
    for (int k = 0; k < K; k++)
      a[k] = x[k];
    real mean = tree_sum<K>(a) * ((real)1 / K);
#pragma unroll
    for (int k = 0; k < K; k++) {
      a[k] = x[k] - mean;
      sq[k] = a[k] * a[k];
    }
    /* what the mean lost in rounding */
    real rest = tree_sum<K>(a) * ((real)1 / K);
    return {K, (double)mean + (double)rest, (double)(tree_sum<K>(sq) - rest * rest * K)};
  }
  static __device__ __forceinline__ total widen(const lane &a) {
    return a;
  }
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
    double sq = a.sq < 0 ? 0 : a.sq;
    put(out, i, out.divisor > 0 && a.n > 0 ? sq / out.divisor : (double)m_nan());
  }
};

/* exp for x <= 0, as exact as the dtype is worth. */
__device__ __forceinline__ real soft_exp(real x) {
#if MOTH_STORED == 0
  return m_exp_soft(x);
#else
  return m_exp_rough(x);
#endif
}

/* The largest value and the sum of exp(x - largest) of what came so far. The sum means nothing where
 * the largest is not finite. */
template <class R> struct SumExp { R max, sum; };
struct SumExpOp {
  typedef SumExp<real> lane;
  typedef SumExp<double> total;
  template <class T> static __device__ __forceinline__ T none() {
    return T{(decltype(T::max))m_lowest(), 0};
  }
  template <class R>
  static __device__ __forceinline__ SumExp<R> join(const SumExp<R> &a, const SumExp<R> &b) {
    real max = m_join_max((real)a.max, (real)b.max), s = m_lse_shift(max);
    return {(R)max,
            M_JOIN_LSE(a.sum, (R)soft_exp((real)a.max - s), b.sum, (R)soft_exp((real)b.max - s))};
  }
  template <int V, int U>
  static __device__ __forceinline__ lane chunk(const real *x, long long, long long) {
    constexpr int K = V * U;
    real max = x[0], e[K];
#pragma unroll
    for (int k = 1; k < K; k++)
      max = m_join_max(max, x[k]);
    real s = m_lse_shift(max);
#pragma unroll
    for (int k = 0; k < K; k++)
      e[k] = soft_exp(x[k] - s);
    return {max, tree_sum<K>(e)};
  }
  static __device__ __forceinline__ total widen(const lane &a) {
    return {(double)a.max, (double)a.sum};
  }
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
    put(out, i, m_lse_value(a.max, a.sum));
  }
};
#endif
