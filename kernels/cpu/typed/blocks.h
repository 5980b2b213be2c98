/* Weights in blocks: their elements, activations made int8 for them, and products. Note [Products with blocks] in
 * kernels/cpu/blocks.h. Sums over the spans of a row are in one order, whatever rows are computed beside it. */
#include "kernels/cpu/blocks.h"
#include "kernels/cpu/typed/prelude.h"
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/blocks.h"

/* How far the bytes of a weight are fetched before they are unpacked: they come from memory, in rows that lie behind each
 * other, and the processor alone fetches too late. */
enum { LINE = 64, AHEAD_OF_BLOCKS = 4096 };
enum {
  SPAN = MOTH_BLOCKS_SPAN,
  GROUPS = MOTH_BLOCKS_GROUPS,
  GROUP = SPAN / GROUPS,
  SPANS = MOTH_BLOCKS_CHUNK / SPAN,
  AT_ONCE = MOTH_BLOCKS_COLUMNS
};

/* 256 elements of a row of the weight: scale * q + least. */
typedef struct Span {
  uint8_t q[SPAN] __attribute__((aligned(64)));
  float scale[GROUPS], least[GROUPS];
} Span;

/* Unpacks n elements of a row, n a multiple of a block's. What the last span lacks is 0. */
#define UNPACKER(NAME, name, number, elements, bytes, zero, leasts)                                \
  static void unpack_##name(const uint8_t *b, int64_t n, Span *s) {                                \
    for (; n > 0; n -= SPAN, s++) {                                                                \
      int of = SPAN / (elements);                                                                  \
      for (int l = 0; l < of * (bytes); l += LINE)                                                 \
        __builtin_prefetch(b + AHEAD_OF_BLOCKS + l);                                               \
      if (n < SPAN) {                                                                              \
        of = (int)(n / (elements));                                                                \
        memset(s, 0, sizeof *s);                                                                   \
      }                                                                                            \
      for (int i = 0; i < of; i++, b += (bytes))                                                   \
        m_unpack_##name(b, s->q + i * (elements), s->scale + i * (elements) / GROUP,               \
                        s->least + i * (elements) / GROUP);                                        \
      if (!(leasts))                                                                               \
        for (int g = 0; g < GROUPS; g++)                                                           \
          s->least[g] = -(zero)*s->scale[g];                                                       \
    }                                                                                              \
  }
MOTH_BLOCK_TYPES(UNPACKER)

static const struct {
  void (*unpack)(const uint8_t *b, int64_t n, Span *s);
  int64_t elements, bytes;
  int zero;
  bool leasts;
} kinds[] = {
#define KIND(NAME, name, number, elements, bytes, zero, leasts)                                    \
  {unpack_##name, elements, bytes, zero, leasts},
    MOTH_BLOCK_TYPES(KIND)};

/* Of n elements, a multiple of a block's, from a block's start on. */
static int64_t bytes_of(const MothBlocks *p, int64_t n) {
  return n / kinds[p->type].elements * kinds[p->type].bytes;
}

/* Elements as a file's reader gives them, bit for bit: zero is taken away before the product. */
static void to_real(const Span *s, int64_t n, int zero, bool leasts, real *out) {
  for (int64_t i = 0; i < n; i += GROUP) {
    real scale = s->scale[i / GROUP], least = s->least[i / GROUP];
    const uint8_t *q = s->q + i;
    if (leasts)
      for (int j = 0; j < GROUP; j++)
        out[i + j] = scale * (real)q[j] + least;
    else
      for (int j = 0; j < GROUP; j++)
        out[i + j] = scale * (real)((int)q[j] - zero);
  }
}

/* Those of Q8_0, without a span between: they are read in each step of a cache of keys and values. */
static void unpack_rows_of_q8_0(const MothBlocks *p) {
  for (int64_t r = p->from; r < p->to; r++) {
    const uint8_t *b = p->weight + r * p->weight_row;
    real *out = (real *)p->out + r * p->k;
    for (int64_t k = 0; k < p->k; k += 32, b += 34) {
      real scale = m_block_half(b);
      MOTH_VECTOR for (int i = 0; i < 32; i++) out[k + i] = scale * (real)(int8_t)b[2 + i];
    }
  }
}

/* Rows [from, to) of `in` as blocks of Q8_0, which are written to `out` like a weight. */
MOTH_TYPED_REAL void blocks_pack_q8_0(const struct MothBlocks *p) {
  for (int64_t r = p->from; r < p->to; r++) {
    const real *in = (const real *)p->in + r * p->k;
    uint8_t *b = (uint8_t *)p->out + r * p->weight_row;
    for (int64_t k = 0; k < p->k; k += 32, b += 34) {
      float x[32];
      for (int i = 0; i < 32; i++)
        x[i] = (float)in[k + i];
      m_pack_q8_0(x, b);
    }
  }
}

/* Rows [from, to) of the weight as real. */
MOTH_TYPED_REAL void blocks_unpack(const struct MothBlocks *p) {
  if (p->type == MOTH_BLOCK_Q8_0) {
    unpack_rows_of_q8_0(p);
    return;
  }
  for (int64_t r = p->from; r < p->to; r++)
    for (int64_t k = 0; k < p->k; k += SPAN) {
      Span s;
      int64_t n = p->k - k < SPAN ? p->k - k : SPAN;
      kinds[p->type].unpack(p->weight + r * p->weight_row + bytes_of(p, k), n, &s);
      to_real(&s, n, kinds[p->type].zero, kinds[p->type].leasts, (real *)p->out + r * p->k + k);
    }
}

/* A chunk of up to AT_ONCE rows of the weight: spans [at, at + spans) of rows from j on. */
typedef struct Chunk {
  int64_t j, at;
  int columns, spans;
  Span (*w)[SPANS];
} Chunk;

/* Adds the sum of a chunk to a result, which begins with the bias. */
static void put(const MothBlocks *p, const Chunk *c, int64_t r, int column, real sum) {
  int64_t j = c->j + column;
  real *out = (real *)p->out + r * p->out_row + j;
  *out = sum + (c->at ? *out : p->bias ? ((const real *)p->bias)[j] : 0);
}

#if MOTH_REAL_KIND == 1 && defined(__AVX512F__)
#include "kernels/cpu/typed/blocks_vnni.h"
#endif

/* ---- activations -------------------------------------------------------------------------------- */

/* The place of a group among lanes. */
static int lane_of(int group) {
  return group % 4 * 4 + group / 4;
}

/* The largest magnitude of 32 values; not finite if one is not. As bits, for gcc makes no vectors of maxima of floats. */
static real largest(const real *in) {
#if MOTH_REAL_KIND == 1
  uint32_t big = 0;
  for (int i = 0; i < 2 * GROUP; i++) {
    uint32_t u = m_f32_bits(in[i]) & 0x7fffffffu;
    big = u > big ? u : big;
  }
  return m_f32_from_bits(big);
#else
  real big = 0;
  for (int i = 0; i < 2 * GROUP; i++) {
    real a = in[i] < 0 ? -in[i] : in[i];
    big = a > big || a != a ? a : big;
    if (a != a)
      break;
  }
  return big;
#endif
}

/* 32 values of a span. One that is inf or nan makes the scale nan, and so all results. */
static void quantize(const MothBlocks *p, const real *in, int half, int8_t *values, real *scales,
                     real *sums) {
  real big = largest(in), scale = big * (real)(1.0 / 127), inverse = 0;
  int32_t x[2 * GROUP] = {0};
  int8_t q[2 * GROUP];
  if (!(big - big == 0))
    scale = (real)__builtin_nanf("");
  else if (scale >= (real)1e-30)
    inverse = 1 / scale;
  else
    scale = 1;
  if (inverse > 0)
    for (int i = 0; i < 2 * GROUP; i++) {
      real y = m_round(in[i] * inverse);
      y = y < 127 ? y : 127;
      x[i] = (int32_t)(y > -127 ? y : -127);
    }
  for (int i = 0; i < 2 * GROUP; i++)
    q[i] = (int8_t)x[i];
  for (int g = 0; g < 2; g++) {
    int group = 2 * half + g, lane = p->lanes ? lane_of(group) : group;
    int32_t sum = 0;
    for (int i = 0; i < GROUP; i++)
      sum += x[GROUP * g + i];
    scales[lane] = scale;
    if (p->lanes && !kinds[p->type].leasts) {
      sum *= -kinds[p->type].zero;
      memcpy((char *)sums + sizeof sum * (size_t)lane, &sum, sizeof sum);
    } else
      sums[lane] = scale * (real)sum;
    for (int i = 0; i < GROUP; i += 4)
      memcpy(values + (p->lanes ? 64 * (i / 4) + 4 * lane : GROUP * group + i), q + GROUP * g + i,
             4);
  }
}

/* Rows [from, to) of activations. */
MOTH_TYPED_REAL void blocks_quantize(const struct MothBlocks *p) {
  for (int64_t r = p->from; r < p->to; r++)
    for (int64_t s = 0; s < p->spans; s++) {
      int64_t at = r * p->spans + s;
#if MOTH_REAL_KIND == 1 && defined(__AVX512F__)
      if (p->lanes && p->k - s * SPAN >= SPAN) {
        quantize_span((const float *)p->in + r * p->k + s * SPAN, kinds[p->type].zero,
                      kinds[p->type].leasts, p->values + at * SPAN,
                      (float *)p->scales + at * GROUPS, (float *)p->sums + at * GROUPS);
        continue;
      }
#endif
      memset(p->values + at * SPAN, 0, SPAN);
      memset((real *)p->scales + at * GROUPS, 0, GROUPS * sizeof(real));
      memset((real *)p->sums + at * GROUPS, 0, GROUPS * sizeof(real));
      for (int half = 0; half < SPAN / 32 && s * SPAN + half * 32 < p->k; half++) /* k: whole 32s */
        quantize(p, (const real *)p->in + r * p->k + s * SPAN + half * 32, half,
                 p->values + at * SPAN, (real *)p->scales + at * GROUPS,
                 (real *)p->sums + at * GROUPS);
    }
}

/* ---- products ----------------------------------------------------------------------------------- */

#if MOTH_REAL_KIND == 1 && defined(__AVX2__)
/* Sums of products of two groups: of the first in the lower four lanes, of the second in the upper. */
MOTH_FN __m256i two_groups(const uint8_t *q, const int8_t *x) {
  __m256i a = _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)q)),
                                _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)x)));
  __m256i b =
      _mm256_madd_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(q + GROUP))),
                        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(x + GROUP))));
  return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20),
                          _mm256_permute2x128_si256(a, b, 0x31));
}
/* Two numbers, each in four lanes. */
MOTH_FN __m256 in_lanes(const float *two) {
  return _mm256_set_m128(_mm_broadcast_ss(two + 1), _mm_broadcast_ss(two));
}
static float product(const Span *w, int spans, const int8_t *x, const float *scales,
                     const float *sums) {
  __m256 acc = _mm256_setzero_ps(), rest = _mm256_setzero_ps();
  for (int s = 0; s < spans; s++, w++, x += SPAN, scales += GROUPS, sums += GROUPS) {
    for (int g = 0; g < GROUPS; g += 2) {
      __m256 by = _mm256_mul_ps(in_lanes(w->scale + g), _mm256_broadcast_ss(scales + g));
      acc =
          _mm256_fmadd_ps(_mm256_cvtepi32_ps(two_groups(w->q + GROUP * g, x + GROUP * g)), by, acc);
    }
    for (int g = 0; g < GROUPS; g += 8)
      rest = _mm256_fmadd_ps(_mm256_loadu_ps(w->least + g), _mm256_loadu_ps(sums + g), rest);
  }
  acc = _mm256_add_ps(acc, rest);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(acc), _mm256_extractf128_ps(acc, 1));
  four = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
#else
static real product(const Span *w, int spans, const int8_t *x, const real *scales,
                    const real *sums) {
  real sum = 0;
  for (int s = 0; s < spans; s++, w++, x += SPAN, scales += GROUPS, sums += GROUPS)
    for (int g = 0; g < GROUPS; g++) {
      int32_t dot = 0;
      for (int i = 0; i < GROUP; i++)
        dot += (int32_t)w->q[GROUP * g + i] * x[GROUP * g + i];
      sum += (real)dot * ((real)w->scale[g] * scales[g]) + (real)w->least[g] * sums[g];
    }
  return sum;
}
#endif

static void chunk_products(const MothBlocks *p, const Chunk *c) {
#if MOTH_REAL_KIND == 1 && defined(__AVX512F__)
  if (p->lanes) {
    (kinds[p->type].leasts ? vnni_leasts : vnni_no_leasts)(p, c);
    return;
  }
#endif
  for (int64_t r = 0; r < p->rows; r++) {
    int64_t at = r * p->spans + c->at;
    for (int i = 0; i < c->columns; i++)
      put(p, c, r, i,
          product(c->w[i], c->spans, p->values + at * SPAN, (const real *)p->scales + at * GROUPS,
                  (const real *)p->sums + at * GROUPS));
  }
}

/* Columns [from, to) of the product. */
MOTH_TYPED_REAL void blocks_columns(const struct MothBlocks *p) {
  void (*unpack)(const uint8_t *b, int64_t n, Span *s) = kinds[p->type].unpack;
#if MOTH_REAL_KIND == 1 && defined(__AVX512F__)
  if (p->lanes && p->rows == 1) {
    vnni[p->type].one_row(p);
    return;
  }
  if (p->lanes)
    unpack = vnni[p->type].to_lanes;
#endif
  Span w[AT_ONCE][SPANS];
  Chunk c = {.w = w};
  for (c.j = p->from; c.j < p->to; c.j += AT_ONCE) {
    c.columns = p->to - c.j < AT_ONCE ? (int)(p->to - c.j) : AT_ONCE;
    for (c.at = 0; c.at < p->spans; c.at += SPANS) {
      int64_t k = c.at * SPAN, n = p->k - k < SPANS * SPAN ? p->k - k : SPANS * SPAN;
      c.spans = (int)((n + SPAN - 1) / SPAN);
      for (int i = 0; i < c.columns; i++)
        unpack(p->weight + (c.j + i) * p->weight_row + bytes_of(p, k), n, w[i]);
      chunk_products(p, &c);
    }
  }
}
