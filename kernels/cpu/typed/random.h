/* Random fills. Element i of an op comes from the Philox block offset + i / 4 (float64: i / 2), lane
 * i % 4: any split into ranges gives the same values. Ranges begin at multiples of 4. */

MOTH_FN struct m_philox philox_at(uint64_t seed, uint64_t block) {
  return m_philox((unsigned)seed, (unsigned)(seed >> 32), (unsigned)block, (unsigned)(block >> 32),
                  0, 0);
}

#if MOTH_REAL_KIND == 2
enum { WORDS = 2 }; /* 32-bit words that one value takes */
#else
enum { WORDS = 1 };
#endif

static void random_uniform(void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,
                           double lo, double hi) {
#if MOTH_IS_FLOAT
  stored *o = out;
  real a = (real)lo, width = (real)(hi - lo);
  for (int64_t i = begin; i < end; i += 4 / WORDS) {
    struct m_philox r = philox_at(seed, offset + (uint64_t)(i * WORDS / 4));
    for (int64_t k = 0; k < 4 / WORDS && i + k < end; k++) {
#if MOTH_REAL_KIND == 2
      real x = a + width * m_uniform_f64(r.v[2 * k], r.v[2 * k + 1]);
#else
      real x = a + width * m_uniform_f32(r.v[k]);
#endif
      /* rounding to the stored dtype must not reach hi */
      stored y = STORE(x);
      o[i + k] = LOAD(y) < (real)hi || !(width > 0) ? y : STORE(a);
    }
  }
#else
  (void)out, (void)begin, (void)end, (void)seed, (void)offset, (void)lo, (void)hi;
#endif
}

static void random_normal(void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,
                          double mean, double std) {
#if MOTH_IS_FLOAT
  stored *o = out;
  for (int64_t i = begin; i < end; i += 4 / WORDS) {
    struct m_philox r = philox_at(seed, offset + (uint64_t)(i * WORDS / 4));
    real z[4];
#if MOTH_REAL_KIND == 2
    m_normal_f64(r.v[0], r.v[1], r.v[2], r.v[3], &z[0], &z[1]);
#else
    m_normal_f32(r.v[0], r.v[1], &z[0], &z[1]);
    m_normal_f32(r.v[2], r.v[3], &z[2], &z[3]);
#endif
    for (int64_t k = 0; k < 4 / WORDS && i + k < end; k++)
      o[i + k] = STORE((real)mean + (real)std * z[k]);
  }
#else
  (void)out, (void)begin, (void)end, (void)seed, (void)offset, (void)mean, (void)std;
#endif
}

/* A word below `threshold` has probability p. p = 1 takes all. */
MOTH_FN uint64_t bernoulli_threshold(double p) {
  return (uint64_t)(p * 4294967296.0);
}

static void random_bernoulli(void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,
                             double p) {
  stored *o = out;
  uint64_t threshold = bernoulli_threshold(p);
  stored one = STORE((real)1), zero = STORE((real)0);
  for (int64_t i = begin; i < end; i += 4) {
    struct m_philox r = philox_at(seed, offset + (uint64_t)(i / 4));
    for (int64_t k = 0; k < 4 && i + k < end; k++)
      o[i + k] = r.v[k] < threshold ? one : zero;
  }
}

static void random_int(void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,
                       int64_t lo, int64_t hi) {
  stored *o = out;
  uint64_t range = (uint64_t)hi - (uint64_t)lo;
  for (int64_t i = begin; i < end; i += 2) {
    struct m_philox r = philox_at(seed, offset + (uint64_t)(i / 2));
    for (int64_t k = 0; k < 2 && i + k < end; k++) {
      uint64_t x = (uint64_t)r.v[2 * k] << 32 | r.v[2 * k + 1];
      /* The high half of x * range: even to range / 2^64. */
      int64_t v = (int64_t)((uint64_t)lo + (uint64_t)((unsigned __int128)x * range >> 64));
      o[i + k] = STORE((real)v);
    }
  }
}

/* out = in / (1 - p) where kept, else 0; mask tells which. Eight blocks at a time, so that the rounds
 * of Philox and the choice run as vectors. */
static void dropout(void *out, uint8_t *mask, const void *in, int64_t begin, int64_t end,
                    uint64_t seed, uint64_t offset, double p) {
#if MOTH_IS_FLOAT
  enum { BLOCKS = 64 };
  stored *o = out;
  const stored *a = in;
  uint64_t threshold = bernoulli_threshold(p);
  unsigned limit = (unsigned)(threshold > 0xffffffffu ? 0xffffffffu : threshold);
  unsigned all = threshold > 0xffffffffu;
  real scale = p < 1 ? (real)(1 / (1 - p)) : (real)0;
  for (int64_t i = begin; i < end; i += 4 * BLOCKS) {
    unsigned w[4][BLOCKS], word[4 * BLOCKS];
    uint64_t block = offset + (uint64_t)(i / 4);
    for (int b = 0; b < BLOCKS; b++) {
      struct m_philox r = philox_at(seed, block + (uint64_t)b);
      w[0][b] = r.v[0];
      w[1][b] = r.v[1];
      w[2][b] = r.v[2];
      w[3][b] = r.v[3];
    }
    for (int b = 0; b < BLOCKS; b++) {
      word[4 * b] = w[0][b];
      word[4 * b + 1] = w[1][b];
      word[4 * b + 2] = w[2][b];
      word[4 * b + 3] = w[3][b];
    }
    int64_t n = end - i < 4 * BLOCKS ? end - i : 4 * BLOCKS;
    MOTH_VECTOR for (int64_t k = 0; k < n; k++) {
      unsigned keep = (unsigned)(word[k] >= limit) & (unsigned)!all;
      mask[i + k] = (uint8_t)keep;
      o[i + k] = STORE(keep ? LOAD(a[i + k]) * scale : (real)0);
    }
  }
#else
  (void)out, (void)mask, (void)in, (void)begin, (void)end, (void)seed, (void)offset, (void)p;
#endif
}
