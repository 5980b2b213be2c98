/* Random fills, with the bits of kernels/cpu/typed/random.h. Element i comes from the Philox block
 * offset + i * words / 4, where a value takes `words` words; a thread computes the blocks of 16 bytes of values. */
enum { RANDOM_THREADS = 256, RANDOM_LANES = 16 / (int)sizeof(stored) };

struct alignas(16) RandomLanes {
  stored v[RANDOM_LANES];
};

/* Words of consecutive blocks. */
template <int BLOCKS>
__device__ __forceinline__ void random_words(unsigned (&word)[4 * BLOCKS], const MothCudaPhilox &p,
                                             uint64_t block) {
  uint64_t seed = moth_philox_seed(p);
  block += moth_philox_offset(p);
#pragma unroll
  for (int b = 0; b < BLOCKS; b++) {
    struct m_philox x = m_philox((unsigned)seed, (unsigned)(seed >> 32), (unsigned)(block + b),
                                 (unsigned)((block + b) >> 32), 0, 0);
#pragma unroll
    for (int k = 0; k < 4; k++)
      word[4 * b + k] = x.v[k];
  }
}

/* The words from number `at` on: a thread with two one-word values uses half a block. */
template <int WORDS>
__device__ __forceinline__ void random_words_at(unsigned (&word)[WORDS < 4 ? 4 : WORDS],
                                                const MothCudaPhilox &p, uint64_t at) {
  random_words<(WORDS + 3) / 4>(word, p, at / 4);
  if (WORDS < 4 && at & 2) {
    word[0] = word[2];
    word[1] = word[3];
  }
}

template <class G>
__global__ void __launch_bounds__(RANDOM_THREADS)
    random_fill(G g, stored *out, int64_t n, bool aligned, MothCudaPhilox p) {
  constexpr int COUNT = (int)RANDOM_LANES * (int)G::WORDS;
  int64_t i = ((int64_t)blockIdx.x * RANDOM_THREADS + threadIdx.x) * RANDOM_LANES;
  if (i >= n)
    return;
  unsigned word[COUNT < 4 ? 4 : COUNT];
  random_words_at<COUNT>(word, p, (uint64_t)i * G::WORDS);
  RandomLanes y;
  g(word, y.v);
  if (aligned && i + RANDOM_LANES <= n) {
    *reinterpret_cast<RandomLanes *>(out + i) = y;
    return;
  }
#pragma unroll
  for (int k = 0; k < RANDOM_LANES; k++)
    if (i + k < n)
      out[i + k] = y.v[k];
}

static dim3 random_grid(int64_t n) {
  return dim3((unsigned)moth_ceil_div(n, (int64_t)RANDOM_THREADS * RANDOM_LANES));
}
template <class G>
static MothStatus random_run(const char *name, cudaStream_t stream, void *out, int64_t n,
                             MothCudaPhilox p, const G &g) {
  return moth_launch(name, random_fill<G>, random_grid(n), dim3(RANDOM_THREADS), 0, stream, g,
                     (stored *)out, n, (uintptr_t)out % 16 == 0, p);
}

#if MOTH_REAL_KIND == 2
enum { REAL_WORDS = 2 };
#else
enum { REAL_WORDS = 1 };
#endif

#if MOTH_IS_FLOAT
struct Uniform {
  enum { WORDS = REAL_WORDS };
  real a, width, top;
  stored first;
  __device__ __forceinline__ void operator()(const unsigned *word, stored *y) const {
#pragma unroll
    for (int k = 0; k < RANDOM_LANES; k++) {
#if MOTH_REAL_KIND == 2
      stored x = STORE(a + width * m_uniform_f64(word[2 * k], word[2 * k + 1]));
#else
      stored x = STORE(a + width * m_uniform_f32(word[k]));
#endif
      y[k] = LOAD(x) < top ? x : first; /* rounding must not reach hi */
    }
  }
};
struct Normal {
  enum { WORDS = REAL_WORDS };
  real mean, std;
  __device__ __forceinline__ void operator()(const unsigned *word, stored *y) const {
#pragma unroll
    for (int k = 0; k < RANDOM_LANES / 2; k++) {
      real z0, z1;
#if MOTH_REAL_KIND == 2
      m_normal_f64(word[4 * k], word[4 * k + 1], word[4 * k + 2], word[4 * k + 3], &z0, &z1);
#else
      m_normal_f32(word[2 * k], word[2 * k + 1], &z0, &z1);
#endif
      y[2 * k] = STORE(mean + std * z0);
      y[2 * k + 1] = STORE(mean + std * z1);
    }
  }
};
#endif

static MothStatus random_uniform(cudaStream_t stream, void *out, int64_t n, MothCudaPhilox p,
                                 double lo, double hi) {
#if MOTH_IS_FLOAT
  real width = (real)(hi - lo);
  Uniform g = {(real)lo, width, width > 0 ? (real)hi : m_inf(), 0};
#if MOTH_STORED == 1
  g.first = m_f32_to_f16((real)lo);
#else
  g.first = STORE((real)lo);
#endif
  return random_run("uniform", stream, out, n, p, g);
#else
  (void)stream, (void)out, (void)n, (void)p, (void)lo, (void)hi;
  return moth_fail(MOTH_ERR_TYPE, "expected a float dtype");
#endif
}

static MothStatus random_normal(cudaStream_t stream, void *out, int64_t n, MothCudaPhilox p,
                                double mean, double std) {
#if MOTH_IS_FLOAT
  return random_run("normal", stream, out, n, p, Normal{(real)mean, (real)std});
#else
  (void)stream, (void)out, (void)n, (void)p, (void)mean, (void)std;
  return moth_fail(MOTH_ERR_TYPE, "expected a float dtype");
#endif
}

/* A word below the threshold p 2^32 has probability p; p = 1 takes all. */
struct Threshold {
  unsigned limit;
  bool all;
};
static Threshold threshold_of(double p) {
  uint64_t t = (uint64_t)(p * 4294967296.0);
  return Threshold{(unsigned)t, t > 0xffffffffu};
}

struct Bernoulli {
  enum { WORDS = 1 };
  Threshold t;
  __device__ __forceinline__ void operator()(const unsigned *word, stored *y) const {
    stored one = STORE((real)1), zero = t.all ? one : STORE((real)0);
#pragma unroll
    for (int k = 0; k < RANDOM_LANES; k++)
      y[k] = word[k] < t.limit ? one : zero;
  }
};
static MothStatus random_bernoulli(cudaStream_t stream, void *out, int64_t n, MothCudaPhilox p,
                                   double probability) {
  return random_run("bernoulli", stream, out, n, p, Bernoulli{threshold_of(probability)});
}

struct Integers {
  enum { WORDS = 2 };
  unsigned long long lo, range;
  __device__ __forceinline__ void operator()(const unsigned *word, stored *y) const {
#pragma unroll
    for (int k = 0; k < RANDOM_LANES; k++) {
      unsigned long long x = (unsigned long long)word[2 * k] << 32 | word[2 * k + 1];
      y[k] = STORE((real)(long long)(lo + __umul64hi(x, range)));
    }
  }
};
static MothStatus random_int(cudaStream_t stream, void *out, int64_t n, MothCudaPhilox p,
                             int64_t lo, int64_t hi) {
  Integers g = {(unsigned long long)lo, (unsigned long long)hi - (unsigned long long)lo};
  return random_run("randint", stream, out, n, p, g);
}

/* out = 1 with the probability in `in`, a uniform float64 number (two words) below it. */
__global__ void __launch_bounds__(RANDOM_THREADS)
    bernoulli_each_kernel(stored *out, const stored *in, int64_t n, MothCudaPhilox p, MothFault *f,
                          int op) {
#if MOTH_IS_FLOAT
  int64_t i = ((int64_t)blockIdx.x * RANDOM_THREADS + threadIdx.x) * 2;
  if (i >= n)
    return;
  unsigned word[4];
  random_words<1>(word, p, (uint64_t)i / 2);
#pragma unroll
  for (int k = 0; k < 2; k++)
    if (i + k < n) {
      double chance = (double)LOAD(in[i + k]);
      if (!(chance >= 0 && chance <= 1))
        moth_fault_number(f, op, MOTH_FAULT_PROBABILITY, chance);
      bool hit = m_uniform_f64(word[2 * k], word[2 * k + 1]) < chance;
      out[i + k] = STORE((real)(hit ? 1 : 0));
    }
#endif
}
MOTH_TYPED MothStatus bernoulli_each(const MothCudaRun *run, const MothRandom *r,
                                     MothCudaPhilox p) {
  return moth_launch("bernoulli", bernoulli_each_kernel,
                     dim3((unsigned)moth_ceil_div(r->n, 2 * RANDOM_THREADS)), dim3(RANDOM_THREADS),
                     0, run->stream, (stored *)r->out, (const stored *)r->in, r->n, p,
                     moth_cuda_fault(run->device), run->op);
}

/* out = in / (1 - p) where kept, else 0; mask tells which. in and out may be NULL: the mask alone. */
struct alignas(RANDOM_LANES) MaskLanes {
  uint8_t v[RANDOM_LANES];
};
__global__ void __launch_bounds__(RANDOM_THREADS)
    dropout_kernel(stored *out, uint8_t *mask, const stored *in, int64_t n, bool aligned,
                   MothCudaPhilox p, Threshold t, real scale) {
#if MOTH_IS_FLOAT
  int64_t i = ((int64_t)blockIdx.x * RANDOM_THREADS + threadIdx.x) * RANDOM_LANES;
  if (i >= n)
    return;
  bool whole = aligned && i + RANDOM_LANES <= n;
  RandomLanes x = {};
  if (whole && in) {
    x = *reinterpret_cast<const RandomLanes *>(in + i);
  } else {
#pragma unroll
    for (int k = 0; k < RANDOM_LANES; k++)
      if (in && i + k < n)
        x.v[k] = in[i + k];
  }
  unsigned word[RANDOM_LANES < 4 ? 4 : RANDOM_LANES];
  random_words_at<RANDOM_LANES>(word, p, (uint64_t)i);
  MaskLanes m;
#pragma unroll
  for (int k = 0; k < RANDOM_LANES; k++) {
    bool keep = word[k] >= t.limit && !t.all;
    m.v[k] = keep;
    x.v[k] = STORE(keep ? LOAD(x.v[k]) * scale : (real)0);
  }
  if (whole) {
    if (out)
      *reinterpret_cast<RandomLanes *>(out + i) = x;
    *reinterpret_cast<MaskLanes *>(mask + i) = m;
    return;
  }
#pragma unroll
  for (int k = 0; k < RANDOM_LANES; k++)
    if (i + k < n) {
      if (out)
        out[i + k] = x.v[k];
      mask[i + k] = m.v[k];
    }
#endif
}
static MothStatus dropout(cudaStream_t stream, void *out, uint8_t *mask, const void *in, int64_t n,
                          MothCudaPhilox p, double probability) {
  real scale = probability < 1 ? (real)(1 / (1 - probability)) : (real)0;
  bool aligned = ((uintptr_t)out | (uintptr_t)in | (uintptr_t)mask) % 16 == 0;
  return moth_launch("native_dropout", dropout_kernel, random_grid(n), dim3(RANDOM_THREADS), 0,
                     stream, (stored *)out, mask, (const stored *)in, n, aligned, p,
                     threshold_of(probability), scale);
}

MOTH_TYPED MothStatus random_fill(const MothCudaRun *run, const MothRandom *r, MothCudaPhilox p) {
  switch (r->what) {
  case MOTH_RANDOM_UNIFORM:
    return random_uniform(run->stream, r->out, r->n, p, r->a, r->b);
  case MOTH_RANDOM_NORMAL:
    return random_normal(run->stream, r->out, r->n, p, r->a, r->b);
  case MOTH_RANDOM_BERNOULLI:
    return random_bernoulli(run->stream, r->out, r->n, p, r->a);
  case MOTH_RANDOM_INTEGERS:
    return random_int(run->stream, r->out, r->n, p, r->lo, r->hi);
  default:
    return dropout(run->stream, r->out, r->mask, r->in, r->n, p, r->a);
  }
}
