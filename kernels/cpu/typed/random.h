/* Random fills. Element i of an op comes from the Philox block offset + i / 4 (float64: i / 2), lane
 * i % 4: any split into ranges gives the same values. Ranges begin at multiples of 4. */
#ifdef __SSE2__
#include <immintrin.h>
#endif
#include "kernels/common/random.h"
#include "kernels/cpu/typed/prelude.h"

/* m_philox on vectors, one block in each 64-bit lane: a lane's product of two 32-bit words is both words
 * of the round's result. gcc does not see that such a product needs only the lower halves, and multiplies
 * 64 by 64 bits, at several times the cost: so that this instruction is an intrinsic. Upper halves are not
 * cleared, as the multiplication does not read them. */
#if defined(__AVX512F__)
enum { WIDE = 8, CHAINS = 4 };
#elif defined(__AVX2__)
enum { WIDE = 4, CHAINS = 2 };
#else
enum { WIDE = 2, CHAINS = 2 };
#endif
typedef unsigned long long Wide __attribute__((vector_size(8 * WIDE)));

MOTH_FN Wide wide_mul(Wide a, Wide b) {
#if defined(__AVX512F__)
  return (Wide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
  return (Wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
  return (Wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
  return (a & 0xffffffffu) * b;
#endif
}

/* The upper words, as lower ones. Shuffles and shifts use different ports: this alternates with a shift. */
MOTH_FN Wide wide_high(Wide a) {
#if defined(__AVX512F__)
  return (Wide)_mm512_shuffle_epi32((__m512i)a, 0xf5);
#elif defined(__AVX2__)
  return (Wide)_mm256_shuffle_epi32((__m256i)a, 0xf5);
#else
  return a >> 32;
#endif
}

/* The four words of each of the next n <= RUN blocks, in order; `word` is aligned and has 4 * RUN elements.
 * The rounds of a block depend on one another, so CHAINS vectors are interleaved. */
enum { RUN = 64 };

/* The memory that the caller reads and writes next, an element for each word: its cache lines are prefetched
 * between the rounds, one at a time, so that memory is busy all the time. NULL, NULL: none. */
typedef struct Ahead {
  const stored *in, *out;
} Ahead;

MOTH_FN void philox_ahead(uint64_t seed, uint64_t block, int n, unsigned *word, Ahead ahead) {
  enum { LINE = 64 / sizeof(stored), LINES = 4 * WIDE * CHAINS / LINE }; /* of an iteration */
  unsigned long long first[RUN], second[RUN]; /* words 0 and 1, 2 and 3 of each block */
  static const unsigned long long count[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  const Wide zero = {0};
  Wide start;
  memcpy(&start, count, sizeof start);
  start += zero + block;
  for (int b = 0; b < n; b += WIDE * CHAINS) {
    Wide v0[CHAINS], v1[CHAINS], v2[CHAINS], v3[CHAINS];
    for (int c = 0; c < CHAINS; c++) {
      v0[c] = start;
      v1[c] = start >> 32;
      v2[c] = v3[c] = zero;
      start += zero + WIDE;
    }
    Wide key0 = zero + (unsigned)seed, key1 = zero + (unsigned)(seed >> 32);
    for (int round = 0; round < 10; round++) {
      if (ahead.in && round < LINES) {
        __builtin_prefetch(ahead.in + (4 * b + round * LINE), 0);
        __builtin_prefetch(ahead.out + (4 * b + round * LINE), 1);
      }
      for (int c = 0; c < CHAINS; c++) {
        Wide x = wide_mul(v0[c], zero + 0xd2511f53u), y = wide_mul(v2[c], zero + 0xcd9e8d57u);
        v0[c] = wide_high(y) ^ v1[c] ^ key0;
        v1[c] = y;
        v2[c] = (x >> 32) ^ v3[c] ^ key1;
        v3[c] = x;
      }
      key0 += 0x9e3779b9u; /* what is carried into the upper words does not matter */
      key1 += 0xbb67ae85u;
    }
    for (int c = 0; c < CHAINS; c++) {
      Wide low = (v0[c] & 0xffffffffu) | v1[c] << 32, high = (v2[c] & 0xffffffffu) | v3[c] << 32;
      memcpy(first + b + c * WIDE, &low, sizeof low);
      memcpy(second + b + c * WIDE, &high, sizeof high);
    }
  }
  typedef unsigned long long __attribute__((may_alias)) Pair;
  Pair *pair = (Pair *)word;
  for (int b = 0; b < n; b++) {
    pair[2 * b] = first[b];
    pair[2 * b + 1] = second[b];
  }
}

static void philox_run(uint64_t seed, uint64_t block, int n, unsigned *word) {
  philox_ahead(seed, block, n, word, (Ahead){NULL, NULL});
}

#if MOTH_REAL_KIND == 2
enum { WORDS = 2 }; /* 32-bit words that one value takes */
#else
enum { WORDS = 1 };
#endif

enum { VALUES = 4 * RUN / WORDS };

/* The words of values [i, i + n), n <= VALUES. */
MOTH_FN void random_words(unsigned *word, int64_t i, int64_t n, uint64_t seed, uint64_t offset) {
  philox_run(seed, offset + (uint64_t)(i * WORDS / 4), (int)((n * WORDS + 3) / 4), word);
}

static void random_uniform(void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,
                           double lo, double hi) {
#if MOTH_IS_FLOAT
  stored *o = out, first = STORE((real)lo);
  real a = (real)lo, width = (real)(hi - lo), top = width > 0 ? (real)hi : m_inf();
  for (int64_t i = begin; i < end; i += VALUES) {
    unsigned word[4 * RUN] __attribute__((aligned(64)));
    int64_t n = end - i < VALUES ? end - i : VALUES;
    random_words(word, i, n, seed, offset);
    MOTH_VECTOR for (int64_t k = 0; k < n; k++) {
#if MOTH_REAL_KIND == 2
      real x = a + width * m_uniform_f64(word[2 * k], word[2 * k + 1]);
#else
      real x = a + width * m_uniform_f32(word[k]);
#endif
      /* rounding to the stored dtype must not reach hi */
      stored y = STORE(x);
      o[i + k] = LOAD(y) < top ? y : first;
    }
  }
#else
  (void)out, (void)begin, (void)end, (void)seed, (void)offset, (void)lo, (void)hi;
#endif
}

static void random_normal(void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,
                          double mean, double std) {
#if MOTH_IS_FLOAT
  enum { PAIRS = VALUES / 2 };
  stored *o = out;
  for (int64_t i = begin; i < end; i += VALUES) {
    unsigned word[4 * RUN] __attribute__((aligned(64)));
    real z0[PAIRS], z1[PAIRS], z[VALUES];
    int64_t n = end - i < VALUES ? end - i : VALUES, pairs = (n + 1) / 2;
    random_words(word, i, n, seed, offset);
    MOTH_VECTOR for (int64_t k = 0; k < pairs; k++) {
#if MOTH_REAL_KIND == 2
      m_normal_f64(word[4 * k], word[4 * k + 1], word[4 * k + 2], word[4 * k + 3], &z0[k], &z1[k]);
#else
      m_normal_f32(word[2 * k], word[2 * k + 1], &z0[k], &z1[k]);
#endif
    }
    for (int64_t k = 0; k < pairs; k++) {
      z[2 * k] = z0[k];
      z[2 * k + 1] = z1[k];
    }
    MOTH_VECTOR for (int64_t k = 0; k < n; k++) o[i + k] = STORE((real)mean + (real)std * z[k]);
  }
#else
  (void)out, (void)begin, (void)end, (void)seed, (void)offset, (void)mean, (void)std;
#endif
}

/* A word below the threshold p 2^32 has probability p; p = 1 takes all. */
typedef struct Threshold {
  unsigned limit;
  bool all;
} Threshold;
MOTH_FN Threshold threshold_of(double p) {
  uint64_t t = (uint64_t)(p * 4294967296.0);
  return (Threshold){(unsigned)t, t > 0xffffffffu};
}

static void random_bernoulli(void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,
                             double p) {
  stored *o = out, one = STORE((real)1), zero = STORE((real)0);
  Threshold t = threshold_of(p);
  zero = t.all ? one : zero;
  for (int64_t i = begin; i < end; i += 4 * RUN) {
    unsigned word[4 * RUN] __attribute__((aligned(64)));
    int64_t n = end - i < 4 * RUN ? end - i : 4 * RUN;
    philox_run(seed, offset + (uint64_t)(i / 4), (int)((n + 3) / 4), word);
    MOTH_VECTOR for (int64_t k = 0; k < n; k++) o[i + k] = word[k] < t.limit ? one : zero;
  }
}

static void random_int(void *out, int64_t begin, int64_t end, uint64_t seed, uint64_t offset,
                       int64_t lo, int64_t hi) {
  stored *o = out;
  uint64_t range = (uint64_t)hi - (uint64_t)lo;
  for (int64_t i = begin; i < end; i += 2 * RUN) {
    unsigned word[4 * RUN] __attribute__((aligned(64)));
    int64_t n = end - i < 2 * RUN ? end - i : 2 * RUN;
    philox_run(seed, offset + (uint64_t)(i / 2), (int)((n + 1) / 2), word);
    for (int64_t k = 0; k < n; k++) {
      uint64_t x = (uint64_t)word[2 * k] << 32 | word[2 * k + 1];
      /* The high half of x * range: even to range / 2^64. */
      int64_t v = (int64_t)((uint64_t)lo + (uint64_t)((unsigned __int128)x * range >> 64));
      o[i + k] = STORE((real)v);
    }
  }
}

#if MOTH_IS_FLOAT
/* out = in / (1 - p) where kept, else 0, unless it is NULL; mask: 1 where kept. */
static void dropout(void *out, uint8_t *mask, const void *in, int64_t begin, int64_t end,
                    uint64_t seed, uint64_t offset, double p) {
  stored *o = out;
  const stored *a = in;
  Threshold t = threshold_of(p);
  unsigned some = !t.all;
  real scale = p < 1 ? (real)(1 / (1 - p)) : (real)0;
  for (int64_t i = begin; i < end; i += 4 * RUN) {
    unsigned word[4 * RUN] __attribute__((aligned(64)));
    int64_t n = end - i < 4 * RUN ? end - i : 4 * RUN;
    philox_ahead(seed, offset + (uint64_t)(i / 4), (int)((n + 3) / 4), word,
                 (Ahead){a + i + 4 * RUN, o + i + 4 * RUN});
    MOTH_VECTOR for (int64_t k = 0; k < n; k++) mask[i + k] =
        (uint8_t)((unsigned)(word[k] >= t.limit) & some);
    if (o)
      MOTH_VECTOR for (int64_t k = 0; k < n; k++) {
        real kept = LOAD(a[i + k]) * scale; /* always: a jump that depends on chance takes longer */
        o[i + k] = mask[i + k] ? STORE(kept) : (stored)0;
      }
  }
}
#endif

MOTH_TYPED void random_fill(const struct MothRandom *r) {
  const int64_t begin = r->begin, end = r->end;
  const uint64_t seed = r->seed, offset = r->offset;
  switch (r->what) {
  case MOTH_RANDOM_UNIFORM:
    random_uniform(r->out, begin, end, seed, offset, r->a, r->b);
    break;
  case MOTH_RANDOM_NORMAL:
    random_normal(r->out, begin, end, seed, offset, r->a, r->b);
    break;
  case MOTH_RANDOM_BERNOULLI:
    random_bernoulli(r->out, begin, end, seed, offset, r->a);
    break;
  case MOTH_RANDOM_INTEGERS:
    random_int(r->out, begin, end, seed, offset, r->lo, r->hi);
    break;
#if MOTH_IS_FLOAT
  case MOTH_RANDOM_DROPOUT:
    dropout(r->out, r->mask, r->in, begin, end, seed, offset, r->a);
    break;
#endif
  }
}
