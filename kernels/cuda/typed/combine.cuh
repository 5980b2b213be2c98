/* What is reduced to what. An Op has
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
#define REAL_MIN  (-m_inf())
#define REAL_MAX  (m_inf())
#define IS_NAN(x) ((x) != (x))
#else
typedef unsigned long long sum_lane; /* overflow wraps */
typedef unsigned long long sum_total;
#if MOTH_REAL_KIND == 3
#define REAL_MIN ((real)(1ull << (8 * sizeof(real) - 1)))
#else
#define REAL_MIN ((real)0)
#endif
#define REAL_MAX  ((real)~REAL_MIN)
#define IS_NAN(x) false
#endif

__device__ __forceinline__ real join_max(real a, real b) {
  real m = a > b ? a : b;
  return IS_NAN(a) ? a : m;
}
__device__ __forceinline__ real join_min(real a, real b) {
  real m = a < b ? a : b;
  return IS_NAN(a) ? a : m;
}

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

struct SumOp {
  typedef sum_lane lane;
  typedef sum_total total;
  template <class T> static __device__ __forceinline__ T none() { return 0; }
  template <class T> static __device__ __forceinline__ T join(T a, T b) { return a + b; }
  template <int V, int U>
  static __device__ __forceinline__ lane chunk(const real *x, long long, long long) {
    lane a[V * U];
#pragma unroll
    for (int k = 0; k < V * U; k++)
      a[k] = (lane)x[k];
    return tree_sum<V * U>(a);
  }
  static __device__ __forceinline__ total widen(lane a) {
    return (total)a;
  }
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
#if MOTH_IS_FLOAT
    a /= out.divisor;
#endif
    put(out, i, a);
  }
};

/* In double all along, as on the CPU: products leave the range of float32 on the way. */
struct ProdOp {
  typedef sum_total lane;
  typedef sum_total total;
  template <class T> static __device__ __forceinline__ T none() { return 1; }
  template <class T> static __device__ __forceinline__ T join(T a, T b) { return a * b; }
  template <int V, int U>
  static __device__ __forceinline__ lane chunk(const real *x, long long, long long) {
    lane a = (lane)x[0];
#pragma unroll
    for (int k = 1; k < V * U; k++)
      a *= (lane)x[k];
    return a;
  }
  static __device__ __forceinline__ total widen(lane a) {
    return a;
  }
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
    put(out, i, a);
  }
};

template <bool MIN> struct ExtremeOp {
  typedef real lane;
  typedef real total;
  template <class T> static __device__ __forceinline__ T none() {
    return MIN ? REAL_MAX : REAL_MIN;
  }
  template <class T> static __device__ __forceinline__ T join(T a, T b) {
    return MIN ? join_min(a, b) : join_max(a, b);
  }
  template <int V, int U>
  static __device__ __forceinline__ lane chunk(const real *x, long long, long long) {
    real a = x[0];
#pragma unroll
    for (int k = 1; k < V * U; k++)
      a = join(a, x[k]);
    return a;
  }
  static __device__ __forceinline__ total widen(lane a) {
    return a;
  }
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
    static_cast<stored *>(out.values)[i] = STORE(a);
  }
};

template <bool ALL> struct TruthOp {
  typedef unsigned lane;
  typedef unsigned total;
  template <class T> static __device__ __forceinline__ T none() { return ALL; }
  template <class T> static __device__ __forceinline__ T join(T a, T b) {
    return ALL ? a & b : a | b;
  }
  template <int V, int U>
  static __device__ __forceinline__ lane chunk(const real *x, long long, long long) {
    lane a = ALL;
#pragma unroll
    for (int k = 0; k < V * U; k++)
      a = join(a, (lane)(x[k] != 0));
    return a;
  }
  static __device__ __forceinline__ total widen(lane a) {
    return a;
  }
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
    static_cast<uint8_t *>(out.values)[i] = a != 0;
  }
};

/* The first largest (smallest) value and its position; the first NaN wins. */
template <bool MIN> struct ArgOp {
  struct lane {
    long long pos;
    real x;
  };
  typedef lane total;
  template <class T> static __device__ __forceinline__ T none() {
    return T{INT64_MAX, MIN ? REAL_MAX : REAL_MIN};
  }
  static __device__ __forceinline__ bool beats(real a, real b) {
    return (MIN ? a < b : a > b) | (IS_NAN(a) & !IS_NAN(b));
  }
  static __device__ __forceinline__ lane join(lane a, lane b) {
    bool same = (a.x == b.x) | (IS_NAN(a.x) & IS_NAN(b.x));
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
/* Count, mean and sum of squared deviations: a chunk is two passes over registers, chunks are joined as
 * in Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing sample
 * variances", 1979. The mean is in double from the start: one rounded to float32 is off by as much as
 * the values differ where they are all near a large number. */
struct Moments {
  double n, mean, sq;
};
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
    double n = a.n + b.n, d = b.mean - a.mean, part = n > 0 ? part_of(b.n, n) : 0;
    return {n, a.mean + d * part, a.sq + b.sq + d * a.n * (d * part)};
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

/* exp for x <= 0. float16 and bfloat16 take what the hardware gives, float32 adds what x * log2(e)
 * lost in rounding. */
__device__ __forceinline__ real soft_exp(real x) {
#if defined(__CUDA_ARCH__) && MOTH_REAL_KIND == 1
  float y, c = x < -120.0f ? -120.0f : x, t = c * 1.44269502f;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t));
#if MOTH_STORED == 0
  float lost = fmaf(c, 1.44269502f, -t) + c * 1.92596299e-8f;
  y = fmaf(y, lost * 0.693147182f, y);
#endif
  return y;
#else
  return m_exp(x);
#endif
}

/* The largest value and the sum of exp(x - largest) of what came so far. The sum means nothing where
 * the largest is not finite. */
template <class R> struct SumExp { R max, sum; };
struct SumExpOp {
  typedef SumExp<real> lane;
  typedef SumExp<double> total;
  template <class T> static __device__ __forceinline__ T none() {
    return T{(decltype(T::max))REAL_MIN, 0};
  }
  /* What is subtracted under a maximum: -inf - -inf would be NaN. */
  static __device__ __forceinline__ real shift(real max) { return max == REAL_MIN ? (real)0 : max; }
  template <class R>
  static __device__ __forceinline__ SumExp<R> join(const SumExp<R> &a, const SumExp<R> &b) {
    real max = join_max((real)a.max, (real)b.max), s = shift(max);
    return {(R)max, a.sum * (R)soft_exp((real)a.max - s) + b.sum * (R)soft_exp((real)b.max - s)};
  }
  template <int V, int U>
  static __device__ __forceinline__ lane chunk(const real *x, long long, long long) {
    constexpr int K = V * U;
    real max = x[0], e[K];
#pragma unroll
    for (int k = 1; k < K; k++)
      max = join_max(max, x[k]);
    real s = shift(max);
#pragma unroll
    for (int k = 0; k < K; k++)
      e[k] = soft_exp(x[k] - s);
    return {max, tree_sum<K>(e)};
  }
  static __device__ __forceinline__ total widen(const lane &a) {
    return {(double)a.max, (double)a.sum};
  }
  static __device__ __forceinline__ void finish(const MothReduceOut &out, long long i, total a) {
    bool finite = a.max - a.max == 0;
    put(out, i, finite ? log(a.sum) + a.max : a.max);
  }
};
#endif
