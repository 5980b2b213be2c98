/* int8 products of one dtype: activations to bytes, sums of products to results, and int4 products where no instruction
 * set has its own. Numbers are rounded as the records' decompositions do it: x * (1 / scale), half to even. */
#include "kernels/cpu/int8.h"
#include "kernels/cpu/typed/prelude.h"

enum { WIDE = 16 };
#if MOTH_REAL_KIND == 1 && defined(__AVX512F__) && defined(__AVX512BW__)
#define BY_LANES 1
#else
#define BY_LANES 0
#endif
#if BY_LANES
#include <immintrin.h>

/* Cut to the bounds first, which are integers: the same as after rounding. NaN gives the lowest. */
MOTH_FN __m512i byte_lanes(__mmask16 in, const float *x, __m512 inverse, __m512 lo, __m512 hi,
                           __m512i zero) {
  __m512 y = _mm512_mul_ps(_mm512_maskz_loadu_ps(in, x), inverse);
  y = _mm512_min_ps(_mm512_max_ps(y, lo), hi);
  return _mm512_add_epi32(_mm512_cvtps_epi32(y), zero);
}
MOTH_FN __mmask16 first_lanes(int64_t n) {
  return n >= WIDE ? (__mmask16)0xffff : (__mmask16)((1u << n) - 1);
}
#define BYTE_LANES(in, x) byte_lanes(in, x, by, lo, hi, at)
#define BYTE_BOUNDS                                                                                \
  const __m512 by = _mm512_set1_ps(inverse), lo = _mm512_set1_ps(-zero);                           \
  const __m512 hi = _mm512_set1_ps(255 - zero);                                                    \
  const __m512i at = _mm512_set1_epi32((int)zero)
#endif

/* NaN counts as the lowest. */
#define TO_BYTE(x, inverse, zero)                                                                  \
  ((uint8_t)(int32_t)m_minimum_byte_(m_round((x) * (inverse)) + (zero)))
MOTH_FN real m_minimum_byte_(real x) {
  x = x > 0 ? x : 0;
  return x < 255 ? x : 255;
}

static void to_bytes(const real *restrict in, uint8_t *restrict out, int64_t n, real inverse,
                     real zero) {
#if BY_LANES
  BYTE_BOUNDS;
  for (int64_t i = 0; i < n; i += WIDE) {
    __mmask16 m = first_lanes(n - i);
    _mm512_mask_cvtepi32_storeu_epi8(out + i, m, BYTE_LANES(m, in + i));
  }
#else
  MOTH_VECTOR for (int64_t i = 0; i < n; i++) out[i] = TO_BYTE(in[i], inverse, zero);
#endif
}

#if BY_LANES
/* Four channels of 16 pixels, four bytes each. */
MOTH_FN __m512i four_channels(__mmask16 in, const float *x, int64_t stride, __m512 by, __m512 lo,
                              __m512 hi, __m512i at) {
  __m512i a = BYTE_LANES(in, x), b = BYTE_LANES(in, x + stride);
  __m512i c = BYTE_LANES(in, x + 2 * stride), d = BYTE_LANES(in, x + 3 * stride);
  a = _mm512_or_si512(a, _mm512_slli_epi32(b, 8));
  c = _mm512_or_si512(_mm512_slli_epi32(c, 16), _mm512_slli_epi32(d, 24));
  return _mm512_or_si512(a, c);
}
/* Sixteen channels of a row. */
static void sixteen_channels(const float *in, int64_t stride, uint8_t *out, int64_t step, int64_t n,
                             float inverse, float zero) {
  BYTE_BOUNDS;
  for (int64_t x = 0; x < n; x += WIDE) {
    __mmask16 m = first_lanes(n - x);
    __m512i v[4], t[4];
    for (int k = 0; k < 4; k++)
      v[k] = four_channels(m, in + x + 4 * k * stride, stride, by, lo, hi, at);
    t[0] = _mm512_unpacklo_epi32(v[0], v[1]);
    t[1] = _mm512_unpackhi_epi32(v[0], v[1]);
    t[2] = _mm512_unpacklo_epi32(v[2], v[3]);
    t[3] = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(t[0], t[2]); /* pixels 0 4 8 12 */
    v[1] = _mm512_unpackhi_epi64(t[0], t[2]);
    v[2] = _mm512_unpacklo_epi64(t[1], t[3]);
    v[3] = _mm512_unpackhi_epi64(t[1], t[3]);
    __m128i pixels[16];
    for (int k = 0; k < 4; k++) {
      pixels[k] = _mm512_extracti32x4_epi32(v[k], 0);
      pixels[4 + k] = _mm512_extracti32x4_epi32(v[k], 1);
      pixels[8 + k] = _mm512_extracti32x4_epi32(v[k], 2);
      pixels[12 + k] = _mm512_extracti32x4_epi32(v[k], 3);
    }
    for (int64_t i = 0; i < WIDE && x + i < n; i++)
      _mm_storeu_si128((__m128i *)(out + (x + i) * step), pixels[i]);
  }
}
#endif

/* The least and largest element, 0 among them; NaN if there is one. */
static void extremes(const real *in, int64_t n, real *least, real *most) {
#if BY_LANES
  __m512 low = _mm512_setzero_ps(), high = low, sum = low;
  for (int64_t k = 0; k < n; k += WIDE) {
    __m512 x = _mm512_maskz_loadu_ps(first_lanes(n - k), in + k);
    low = _mm512_min_ps(low, x);
    high = _mm512_max_ps(high, x);
    sum = _mm512_fmadd_ps(x, _mm512_setzero_ps(), sum); /* not 0 where x is inf or NaN */
  }
  float all = _mm512_reduce_add_ps(sum);
  *least = _mm512_reduce_min_ps(low) + all;
  *most = _mm512_reduce_max_ps(high) + all;
#else
  real lo[WIDE] = {0}, hi[WIDE] = {0}, odd[WIDE] = {0};
  int64_t i = 0;
  for (; i + WIDE <= n; i += WIDE)
    for (int l = 0; l < WIDE; l++) {
      real x = in[i + l];
      lo[l] = x < lo[l] ? x : lo[l];
      hi[l] = x > hi[l] ? x : hi[l];
      odd[l] += x * 0; /* not 0 where x is inf or NaN */
    }
  for (int l = 0; i < n; i++, l++) {
    real x = in[i];
    lo[l] = x < lo[l] ? x : lo[l];
    hi[l] = x > hi[l] ? x : hi[l];
    odd[l] += x * 0;
  }
  real a = 0, b = 0, c = 0;
  for (int l = 0; l < WIDE; l++) {
    a = lo[l] < a ? lo[l] : a;
    b = hi[l] > b ? hi[l] : b;
    c += odd[l];
  }
  *least = a + c;
  *most = b + c;
#endif
}

MOTH_TYPED_REAL void int8_quantize(const struct MothInt8Quantize *q) {
  for (int64_t r = 0; r < q->rows; r++) {
    const real *in = (const real *)q->in + r * q->in_row;
    uint8_t *out = q->out + r * q->out_row;
    real inverse = (real)q->inverse, zero = (real)q->zero;
    if (q->dynamic) {
      real lo, hi;
      extremes(in, q->n, &lo, &hi);
      real scale = (hi - lo) * (real)(1.0 / 255);
      scale = scale < (real)1e-30 ? 1 : scale;
      inverse = 1 / scale;
      zero = m_round(-lo * inverse);
      zero = zero > 0 ? zero : 0;
      zero = zero < 255 ? zero : 255;
      ((real *)q->scales)[r] = scale;
      q->zeros[r] = (int32_t)zero;
    }
    to_bytes(in, out, q->n, inverse, zero);
    memset(out + q->n, 0, (size_t)(q->out_row - q->n));
  }
}

MOTH_TYPED_REAL void int8_pixels(const struct MothInt8Pixels *p) {
  const int64_t w = p->width, n = p->channels;
  const real inverse = (real)p->inverse, zero = (real)p->zero;
  int64_t c = 0;
#if BY_LANES
  for (; c + 16 <= n; c += 16)
    sixteen_channels((const float *)p->in + c * p->channel_stride, p->channel_stride, p->out + c, n,
                     w, inverse, zero);
#endif
  for (; c < n; c += 4) {
    int64_t some = n - c < 4 ? n - c : 4;
    uint8_t *line = p->line, *out = p->out + c;
    for (int64_t i = 0; i < some; i++)
      to_bytes((const real *)p->in + (c + i) * p->channel_stride, n == 1 ? p->out : line + i * w, w,
               inverse, zero);
    if (some == 4)
      for (int64_t x = 0; x < w; x++) {
        uint32_t four = line[x] | (uint32_t)line[w + x] << 8 | (uint32_t)line[2 * w + x] << 16 |
                        (uint32_t)line[3 * w + x] << 24;
        memcpy(out + x * n, &four, sizeof four);
      }
    else if (n > 1)
      for (int64_t i = 0; i < some; i++)
        for (int64_t x = 0; x < w; x++)
          out[x * n + i] = line[i * w + x];
  }
}

#if BY_LANES
/* Rows of 16 elements to columns. */
MOTH_FN void transpose_lanes(__m512 *r) {
  __m512 t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    r[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
    r[i + 12] = _mm512_shuffle_f32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

static void finish_rows(const MothInt8Finish *f) {
  for (int64_t j = 0; j < f->columns; j += WIDE) {
    __mmask16 in = first_lanes(f->columns - j);
    __m512 scale = _mm512_maskz_loadu_ps(in, (const float *)f->scale + j);
    __m512 bias =
        f->bias ? _mm512_maskz_loadu_ps(in, (const float *)f->bias + j) : _mm512_setzero_ps();
    __m512i columns = _mm512_maskz_loadu_epi32(in, f->of_columns + j);
    for (int64_t r = 0; r < f->rows; r++) {
      __m512 by = _mm512_set1_ps(((const float *)f->row_scale)[r * f->row_step]);
      __m512i zero = _mm512_set1_epi32(f->row_zero[r * f->row_step]);
      __m512i sum = _mm512_loadu_si512(f->sums + r * MOTH_INT8_COLUMNS + j);
      sum = _mm512_sub_epi32(sum, _mm512_mullo_epi32(columns, zero));
      __m512 y = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, by));
      y = _mm512_add_ps(y, bias);
      y = f->relu ? _mm512_max_ps(_mm512_setzero_ps(), y) : y;
      _mm512_mask_storeu_ps((float *)f->out + r * f->out_row + j, in, y);
    }
  }
}

/* Pixels to channels: rows of the result are channels. */
static void finish_image(const MothInt8Finish *f) {
  const float by = *(const float *)f->row_scale;
  const __m512i zero = _mm512_set1_epi32(*f->row_zero);
  for (int64_t j = 0; j < f->columns; j += WIDE) {
    __mmask16 in = first_lanes(f->columns - j);
    __m512 scale =
        _mm512_mul_ps(_mm512_maskz_loadu_ps(in, (const float *)f->scale + j), _mm512_set1_ps(by));
    __m512 bias =
        f->bias ? _mm512_maskz_loadu_ps(in, (const float *)f->bias + j) : _mm512_setzero_ps();
    __m512i less = _mm512_mullo_epi32(_mm512_maskz_loadu_epi32(in, f->of_columns + j), zero);
    for (int64_t r = 0; r < f->rows; r += WIDE) {
      int64_t rows = f->rows - r < WIDE ? f->rows - r : WIDE;
      __m512 v[16];
#pragma GCC unroll 16
      for (int i = 0; i < WIDE; i++) {
        __m512i sum =
            _mm512_loadu_si512(f->sums + (r + (i < rows ? i : 0)) * MOTH_INT8_COLUMNS + j);
        __m512 y = _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, less));
        y = _mm512_add_ps(_mm512_mul_ps(y, scale), bias);
        v[i] = f->relu ? _mm512_max_ps(_mm512_setzero_ps(), y) : y;
      }
      transpose_lanes(v);
      float *out = (float *)f->out + r + j * f->out_column;
      for (int64_t i = 0; i < WIDE && j + i < f->columns; i++)
        _mm512_mask_storeu_ps(out + i * f->out_column, first_lanes(rows), v[i]);
    }
  }
}
#endif

/* The factor is rounded as in a product of scaled weights by scaled activations: once more. */
MOTH_TYPED_REAL void int8_finish(const struct MothInt8Finish *f) {
  const real *scale = f->scale, *bias = f->bias;
  const int64_t columns = f->columns;
#if BY_LANES
  if (f->out_row == 1 && f->row_step == 0) {
    finish_image(f);
    return;
  }
  if (f->out_column == 1) {
    finish_rows(f);
    return;
  }
#endif
  for (int64_t r = 0; r < f->rows; r++) {
    const int32_t *sums = f->sums + r * MOTH_INT8_COLUMNS;
    const real by = ((const real *)f->row_scale)[r * f->row_step];
    const uint32_t zero = (uint32_t)f->row_zero[r * f->row_step];
    real line[MOTH_INT8_COLUMNS];
    real *out = f->out_column == 1 ? (real *)f->out + r * f->out_row : line;
    for (int64_t j = 0; j < columns; j++)
      out[j] =
          (real)(int32_t)((uint32_t)sums[j] - zero * (uint32_t)f->of_columns[j]) * (scale[j] * by);
    if (bias)
      for (int64_t j = 0; j < columns; j++)
        out[j] += bias[j];
    if (f->relu)
      for (int64_t j = 0; j < columns; j++)
        out[j] = out[j] < 0 ? 0 : out[j];
    if (out == line)
      for (int64_t j = 0; j < columns; j++)
        ((real *)f->out)[r * f->out_row + j * f->out_column] = line[j];
  }
}

typedef uint8_t Bytes16 __attribute__((vector_size(16)));
typedef uint16_t Pairs16 __attribute__((vector_size(32)));
typedef int32_t Sums16 __attribute__((vector_size(64)));

/* The sums of MOTH_INT8_PIXELS windows. */
static void depthwise_sums(const MothInt8Depthwise *p, const uint8_t *first, int32_t *sums) {
  Sums16 low = (Sums16){0} - p->less, high = low;
  for (int64_t t = 0; t < p->taps; t++) {
    const uint8_t *in = first + p->at[t];
    const int32_t w = p->weight[t];
    if (p->stride == 1) { /* in two steps: gcc 12 has no good code for one */
      Bytes16 a, b;
      memcpy(&a, in, sizeof a);
      memcpy(&b, in + sizeof a, sizeof b);
      low += __builtin_convertvector(__builtin_convertvector(a, Pairs16), Sums16) * w;
      high += __builtin_convertvector(__builtin_convertvector(b, Pairs16), Sums16) * w;
    } else { /* 2: the lower byte of each pair */
      Pairs16 a, b;
      memcpy(&a, in, sizeof a);
      memcpy(&b, in + sizeof a, sizeof b);
      low += __builtin_convertvector(a & 255, Sums16) * w;
      high += __builtin_convertvector(b & 255, Sums16) * w;
    }
  }
  memcpy(sums, &low, sizeof low);
  memcpy(sums + 16, &high, sizeof high);
}

MOTH_TYPED_REAL void int8_depthwise(const struct MothInt8Depthwise *p) {
  const real factor = *(const real *)p->scale * *(const real *)p->row_scale;
  const real bias = p->bias ? *(const real *)p->bias : 0;
  const real floor = p->relu ? 0 : -(real)__builtin_inf();
  for (int64_t x = 0; x < p->n; x += MOTH_INT8_PIXELS) {
    int32_t sums[MOTH_INT8_PIXELS];
    real line[MOTH_INT8_PIXELS];
    depthwise_sums(p, p->in + x * p->stride, sums);
    for (int i = 0; i < MOTH_INT8_PIXELS; i++) {
      real y = (real)sums[i] * factor + bias;
      line[i] = y < floor ? floor : y;
    }
    int64_t left = p->n - x;
    memcpy((real *)p->out + x, line,
           (size_t)(left < MOTH_INT8_PIXELS ? left : MOTH_INT8_PIXELS) * sizeof *line);
  }
}

/* --- int4: Note [int4 blocks] ------------------------------------------------------------------- */

static void int4_group(const MothInt4 *p, int64_t row, int64_t first, int64_t n) {
  const real *in = (const real *)p->in + row * p->k + first;
  real least, most;
  extremes(in, n, &least, &most);
  real size = -least > most ? -least : most;
  real scale = size * (real)(1.0 / 127);
  scale = scale < (real)1e-30 ? 1 : scale;
  real inverse = 1 / scale;
  int64_t blocks = row * p->blocks;
  int64_t i = 0;
#if BY_LANES
  const __m512i odd = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
  const __m512i even = _mm512_sub_epi32(odd, _mm512_set1_epi32(1));
  const __m512 by = _mm512_set1_ps(inverse), lo = _mm512_set1_ps(-127), hi = _mm512_set1_ps(127);
  for (; i + 32 <= n; i += 32) {
    int64_t k = first + i;
    int8_t *to =
        p->values + (blocks + k / MOTH_INT4_BLOCK) * MOTH_INT4_BLOCK + k % MOTH_INT4_BLOCK / 2;
    __m512i a = byte_lanes(0xffff, in + i, by, lo, hi, _mm512_setzero_si512());
    __m512i b = byte_lanes(0xffff, in + i + 16, by, lo, hi, _mm512_setzero_si512());
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(_mm512_permutex2var_epi32(a, even, b)));
    _mm_storeu_si128((__m128i *)(to + 64),
                     _mm512_cvtepi32_epi8(_mm512_permutex2var_epi32(a, odd, b)));
  }
#endif
  for (; i < n; i++) {
    int64_t k = first + i, at = k % MOTH_INT4_BLOCK;
    real x = m_round(in[i] * inverse);
    x = x > -127 ? x : -127;
    x = x < 127 ? x : 127;
    p->values[(blocks + k / MOTH_INT4_BLOCK) * MOTH_INT4_BLOCK + (at & 1) * 64 + at / 2] =
        (int8_t)(int32_t)x;
  }
  for (int64_t k = first; k < first + p->group && k < p->blocks * MOTH_INT4_BLOCK; k += 8)
    ((real *)p->scales)[blocks * WIDE + k / 8] = scale;
}

static void int4_row(const MothInt4 *p, int64_t row) {
  int64_t from = row * p->blocks, blocks = p->blocks;
  memset(p->values + from * MOTH_INT4_BLOCK, 0, (size_t)(blocks * MOTH_INT4_BLOCK));
  memset((real *)p->scales + from * WIDE, 0, (size_t)(blocks * WIDE) * sizeof(real));
  for (int64_t k = 0; k < p->k; k += p->group)
    int4_group(p, row, k, p->k - k < p->group ? p->k - k : p->group);
  for (int64_t b = from; b < from + blocks; b++)
    for (int l = 0; l < WIDE; l++) {
      const int8_t *x = p->values + b * MOTH_INT4_BLOCK + 4 * l;
      int32_t sum = 0;
      for (int i = 0; i < 4; i++)
        sum += x[i] + x[64 + i];
      p->starts[b * WIDE + l] = -8 * sum;
    }
}

MOTH_TYPED_REAL void int4_quantize(const struct MothInt4 *p) {
  for (int64_t r = p->from; r < p->to; r++)
    int4_row(p, r);
}

/* The products of a block, by lane. */
static void int4_block(const uint8_t *restrict w, const int8_t *restrict x,
                       int32_t *restrict dots) {
  int16_t pairs[64];
  for (int i = 0; i < 64; i++)
    pairs[i] = (int16_t)((w[i] & 15) * x[i] + (w[i] >> 4) * x[64 + i]);
  for (int l = 0; l < WIDE; l++)
    dots[l] = pairs[4 * l] + pairs[4 * l + 1] + pairs[4 * l + 2] + pairs[4 * l + 3];
}

MOTH_TYPED_REAL void int4_columns(const struct MothInt4 *p) {
  for (int64_t r = 0; r < p->rows; r++)
    for (int64_t j = p->from; j < p->to; j++) {
      const real *scale = (const real *)p->scale + j * p->groups;
      real sum = 0;
      for (int64_t b = 0; b < p->blocks; b++) {
        int64_t at = r * p->blocks + b, left = p->weight_row - 64 * b;
        const uint8_t *w = p->weight + j * p->weight_row + 64 * b;
        int32_t dots[WIDE];
        uint8_t last[64] = {0};
        if (left < 64)
          w = memcpy(last, w, (size_t)left);
        int4_block(w, p->values + at * MOTH_INT4_BLOCK, dots);
        for (int l = 0; l < WIDE; l++) {
          int64_t g = (b * MOTH_INT4_BLOCK + 8 * l) / p->group;
          if (g < p->groups)
            sum += (real)(dots[l] + p->starts[at * WIDE + l]) *
                   (scale[g] * ((const real *)p->scales)[at * WIDE + l]);
        }
      }
      ((real *)p->out)[r * p->n + j] = p->bias ? sum + ((const real *)p->bias)[j] : sum;
    }
}
