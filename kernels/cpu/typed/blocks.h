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
  COLUMNS = MOTH_BLOCKS_COLUMNS
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

/* Rows [from, to) of the weight as real. */
MOTH_TYPED_REAL void blocks_unpack(const struct MothBlocks *p) {
  for (int64_t r = p->from; r < p->to; r++)
    for (int64_t k = 0; k < p->k; k += SPAN) {
      Span s;
      int64_t n = p->k - k < SPAN ? p->k - k : SPAN;
      kinds[p->type].unpack(p->weight + r * p->weight_row + bytes_of(p, k), n, &s);
      to_real(&s, n, kinds[p->type].zero, kinds[p->type].leasts, (real *)p->out + r * p->k + k);
    }
}

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

/* A chunk of up to COLUMNS rows of the weight: spans [at, at + spans) of rows from j on. */
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
#define VNNI         __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define VNNI_INLINE  static inline VNNI __attribute__((always_inline))
#define BLOCK_UNROLL _Pragma("GCC unroll 8")

/* From neighbours to lanes, in place. */
static VNNI void to_lanes(Span *s, int spans) {
  const __m512i turn = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  for (; spans > 0; spans--, s++) {
    __m512i a = _mm512_load_si512(s->q), b = _mm512_load_si512(s->q + 64);
    __m512i c = _mm512_load_si512(s->q + 128), d = _mm512_load_si512(s->q + 192);
    __m512i ab = _mm512_unpacklo_epi32(a, b), cd = _mm512_unpacklo_epi32(c, d);
    __m512i ab_high = _mm512_unpackhi_epi32(a, b), cd_high = _mm512_unpackhi_epi32(c, d);
    _mm512_store_si512(s->q, _mm512_unpacklo_epi64(ab, cd));
    _mm512_store_si512(s->q + 64, _mm512_unpackhi_epi64(ab, cd));
    _mm512_store_si512(s->q + 128, _mm512_unpacklo_epi64(ab_high, cd_high));
    _mm512_store_si512(s->q + 192, _mm512_unpackhi_epi64(ab_high, cd_high));
    _mm512_storeu_ps(s->scale, _mm512_permutexvar_ps(turn, _mm512_loadu_ps(s->scale)));
    _mm512_storeu_ps(s->least, _mm512_permutexvar_ps(turn, _mm512_loadu_ps(s->least)));
  }
}

VNNI_INLINE void vnni_tile(const MothBlocks *p, const Chunk *chunk, int64_t r, int column, int rows,
                           int columns) {
  __m512 acc[4][4];
  BLOCK_UNROLL for (int i = 0; i < rows; i++) BLOCK_UNROLL for (int c = 0; c < columns; c++)
      acc[i][c] = _mm512_setzero_ps();
  for (int s = 0; s < chunk->spans; s++) {
    int64_t at = r * p->spans + chunk->at + s;
    const int8_t *x = p->values + at * SPAN;
    const float *scales = (const float *)p->scales + at * GROUPS,
                *sums = (const float *)p->sums + at * GROUPS;
    __m512i dot[4][4];
    BLOCK_UNROLL for (int v = 0; v < 4; v++) {
      __m512i w[4];
      BLOCK_UNROLL for (int c = 0; c < columns; c++) w[c] =
          _mm512_load_si512(chunk->w[column + c][s].q + 64 * v);
      BLOCK_UNROLL for (int i = 0; i < rows; i++) {
        __m512i four = _mm512_loadu_si512(x + i * p->spans * SPAN + 64 * v);
        BLOCK_UNROLL for (int c = 0; c < columns; c++) dot[i][c] =
            _mm512_dpbusd_epi32(v ? dot[i][c] : _mm512_setzero_si512(), w[c], four);
      }
    }
    BLOCK_UNROLL for (int c = 0; c < columns; c++) {
      const Span *w = &chunk->w[column + c][s];
      __m512 scale = _mm512_loadu_ps(w->scale), least = _mm512_loadu_ps(w->least);
      BLOCK_UNROLL for (int i = 0; i < rows; i++) {
        __m512 by = _mm512_mul_ps(scale, _mm512_loadu_ps(scales + i * p->spans * GROUPS));
        acc[i][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[i][c]), by, acc[i][c]);
        acc[i][c] =
            _mm512_fmadd_ps(least, _mm512_loadu_ps(sums + i * p->spans * GROUPS), acc[i][c]);
      }
    }
  }
  BLOCK_UNROLL for (int i = 0; i < rows; i++) BLOCK_UNROLL for (int c = 0; c < columns; c++)
      put(p, chunk, r + i, column + c, _mm512_reduce_add_ps(acc[i][c]));
}

static VNNI void vnni_chunk(const MothBlocks *p, const Chunk *c) {
  int64_t r = 0;
  for (int i = 0; i < c->columns; i++)
    to_lanes(c->w[i], c->spans);
  if (c->columns < COLUMNS) {
    for (; r < p->rows; r++)
      for (int i = 0; i < c->columns; i++)
        vnni_tile(p, c, r, i, 1, 1);
    return;
  }
  for (; r + 4 <= p->rows; r += 4) {
    vnni_tile(p, c, r, 0, 4, 2);
    vnni_tile(p, c, r, 2, 4, 2);
  }
  for (; r + 2 <= p->rows; r += 2)
    vnni_tile(p, c, r, 0, 2, 4);
  for (; r < p->rows; r++)
    vnni_tile(p, c, r, 0, 1, 4);
}
#endif

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
    vnni_chunk(p, c);
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
  Span w[COLUMNS][SPANS];
  Chunk c = {.w = w};
  for (c.j = p->from; c.j < p->to; c.j += COLUMNS) {
    c.columns = p->to - c.j < COLUMNS ? (int)(p->to - c.j) : COLUMNS;
    for (c.at = 0; c.at < p->spans; c.at += SPANS) {
      int64_t k = c.at * SPAN, n = p->k - k < SPANS * SPAN ? p->k - k : SPANS * SPAN;
      c.spans = (int)((n + SPAN - 1) / SPAN);
      for (int i = 0; i < c.columns; i++)
        kinds[p->type].unpack(p->weight + (c.j + i) * p->weight_row + bytes_of(p, k), n, w[i]);
      chunk_products(p, &c);
    }
  }
}
