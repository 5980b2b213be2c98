/* Quantized blocks of GGUF as floats. Blocks of 32 elements have one float16 scale d (and in the "_1" types a least value
 * m); those of 256, the "K" types and IQ4_XS, have a float16 scale of small integer scales of 16 or 32 elements each, TQ1_0 and
 * TQ2_0 one float16 scale. MXFP4 and NVFP4 have floats of 4 bits, and scales that are floats of 8 bits. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/parallel.h"
#include "io/gguf.h"

#define MOTH_FN static inline __attribute__((unused))
#include "kernels/math_bits.h"

enum { SMALL = 32, LARGE = 256, GRAIN = 256 };

static float half_at(const uint8_t *p) {
  uint16_t h;
  memcpy(&h, p, sizeof h);
  return m_f16_to_f32(h);
}

/* Element i of 32 in halves of 16 bytes: the low half of a byte is element i, the high one i + 16. */
static int nibble(const uint8_t *q, int i) {
  return i < SMALL / 2 ? q[i] & 15 : q[i - SMALL / 2] >> 4;
}

static int bit(const uint8_t *bits, int i) {
  return bits[i / 8] >> (i % 8) & 1;
}

static void q4_0(const uint8_t *b, float *y) {
  float d = half_at(b);
  for (int i = 0; i < SMALL; i++)
    y[i] = d * (float)(nibble(b + 2, i) - 8);
}

static void q4_1(const uint8_t *b, float *y) {
  float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < SMALL; i++)
    y[i] = d * (float)nibble(b + 4, i) + m;
}

static void q5_0(const uint8_t *b, float *y) {
  float d = half_at(b);
  for (int i = 0; i < SMALL; i++)
    y[i] = d * (float)((nibble(b + 6, i) | bit(b + 2, i) << 4) - 16);
}

static void q5_1(const uint8_t *b, float *y) {
  float d = half_at(b), m = half_at(b + 2);
  for (int i = 0; i < SMALL; i++)
    y[i] = d * (float)(nibble(b + 8, i) | bit(b + 4, i) << 4) + m;
}

static void q8_0(const uint8_t *b, float *y) {
  float d = half_at(b);
  for (int i = 0; i < SMALL; i++)
    y[i] = d * (float)(int8_t)b[2 + i];
}

/* scales: 16 of a 4-bit scale and a 4-bit least value; then 2 bits an element: byte i of 32 has elements i, i + 32,
 * i + 64 and i + 96 of 128. */
static void q2_k(const uint8_t *b, float *y) {
  const uint8_t *scales = b, *q = b + 16;
  float d = half_at(b + 80), m = half_at(b + 82);
  for (int i = 0; i < LARGE; i++) {
    int s = scales[i / 16], v = q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    y[i] = d * (float)(s & 15) * (float)v - m * (float)(s >> 4);
  }
}

/* Bits 0 and 1 as in q2_k, bit 2 (a 0 takes 4 away) in bit i / 32 of byte i % 32; 16 scales of 6 bits, 32 taken away:
 * their low 4 bits in halves of 8 bytes, their high 2 in 4. */
static void q3_k(const uint8_t *b, float *y) {
  const uint8_t *high = b, *q = b + 32, *scales = b + 96;
  float d = half_at(b + 108);
  for (int i = 0; i < LARGE; i++) {
    int k = i / 16, low = k < 8 ? scales[k] & 15 : scales[k - 8] >> 4;
    int scale = (low | (scales[8 + k % 4] >> (k / 4 * 2) & 3) << 4) - 32;
    int v = (q[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) -
            (high[i % 32] >> (i / 32) & 1 ? 0 : 4);
    y[i] = d * (float)scale * (float)v;
  }
}

/* Scale k and least value k of 8, of 6 bits each in 12 bytes. */
static void scale_of(const uint8_t *s, int k, int *scale, int *least) {
  if (k < 4) {
    *scale = s[k] & 63;
    *least = s[k + 4] & 63;
  } else {
    *scale = (s[k + 4] & 15) | (s[k - 4] >> 6) << 4;
    *least = s[k + 4] >> 4 | (s[k] >> 6) << 4;
  }
}

/* Of q4_k and q5_k: 4 bits an element, byte i of 32 has elements i and i + 32 of 64; high: bit i / 32 of byte i % 32 is
 * the fifth, or NULL. */
static void scaled(const uint8_t *b, const uint8_t *high, const uint8_t *q, float *y) {
  float d = half_at(b), m = half_at(b + 2);
  for (int k = 0; k < LARGE / SMALL; k++) {
    int scale, least;
    scale_of(b + 4, k, &scale, &least);
    float by = d * (float)scale, less = m * (float)least;
    for (int i = 0; i < SMALL; i++) {
      int v = q[k / 2 * SMALL + i] >> (k % 2 * 4) & 15;
      if (high)
        v |= (high[i] >> k & 1) << 4;
      y[k * SMALL + i] = by * (float)v - less;
    }
  }
}

static void q4_k(const uint8_t *b, float *y) {
  scaled(b, NULL, b + 16, y);
}

static void q5_k(const uint8_t *b, float *y) {
  scaled(b, b + 16, b + 48, y);
}

/* 4 low bits: byte i of 64 has elements i and i + 64 of 128; 2 high bits: byte i of 32 has elements i, i + 32, i + 64 and
 * i + 96 of 128; 16 scales of 8 bits. */
static void q6_k(const uint8_t *b, float *y) {
  const uint8_t *low = b, *high = b + 128, *scales = b + 192;
  float d = half_at(b + 208);
  for (int i = 0; i < LARGE; i++) {
    int half = i / 128, at = i % 128;
    int v = (low[half * 64 + at % 64] >> (at / 64 * 4) & 15) |
            (high[half * 32 + at % 32] >> (at / 32 * 2) & 3) << 4;
    y[i] = d * (float)(int8_t)scales[i / 16] * (float)(v - 32);
  }
}

/* What 4 bits stand for in the types IQ4: the steps grow with the distance from 0. */
static const int8_t uneven[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                  1,    13,   25,  38,  53,  69,  89,  113};

static void uneven_block(const uint8_t *q, float d, float *y) {
  for (int i = 0; i < SMALL; i++)
    y[i] = d * (float)uneven[nibble(q, i)];
}

static void iq4_nl(const uint8_t *b, float *y) {
  uneven_block(b + 2, half_at(b), y);
}

/* 8 scales of 6 bits, 32 taken away: their high 2 bits in 2 bytes, their low 4 in 4. */
static void iq4_xs(const uint8_t *b, float *y) {
  const uint8_t *high = b + 2, *low = b + 4, *q = b + 8;
  float d = half_at(b);
  for (int k = 0; k < LARGE / SMALL; k++) {
    int scale = (low[k / 2] >> (k % 2 * 4) & 15) | (high[k / 4] >> (k % 4 * 2) & 3) << 4;
    uneven_block(q + k * SMALL / 2, d * (float)(scale - 32), y + k * SMALL);
  }
}

/* Floats of 4 bits (E2M1), doubled; the scales are halved for it. */
static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* The scale is a power of 2 (E8M0). */
static void mxfp4(const uint8_t *b, float *y) {
  float d = ldexpf(1.0f, b[0] - 128);
  for (int i = 0; i < SMALL; i++)
    y[i] = d * (float)doubled[nibble(b + 1, i)];
}

/* Four scales (E4M3 without a sign; 127 is 0) of 16 elements each, in halves of 8 bytes. */
static void nvfp4(const uint8_t *b, float *y) {
  for (int k = 0; k < 4; k++) {
    const uint8_t *q = b + 4 + k * 8;
    int exponent = b[k] >> 3 & 15, rest = b[k] & 7;
    float d = exponent ? ldexpf((float)(8 + rest), exponent - 11) : ldexpf((float)rest, -10);
    if (b[k] == 127)
      d = 0;
    for (int i = 0; i < 16; i++)
      y[k * 16 + i] = d * (float)doubled[i < 8 ? q[i] & 15 : q[i - 8] >> 4];
  }
}

/* Digits -1, 0, 1: each of n bytes holds `digits` of them, n elements apart, as the leading digits of a fraction of 256. */
static float *ternary(const uint8_t *q, int n, int digits, float d, float *y) {
  for (int k = 0, power = 1; k < digits; k++, power *= 3)
    for (int i = 0; i < n; i++)
      *y++ = d * (float)(((q[i] * power & 255) * 3 >> 8) - 1);
  return y;
}

static void tq1_0(const uint8_t *b, float *y) {
  float d = half_at(b + 52);
  y = ternary(b, 32, 5, d, y);
  y = ternary(b + 32, 16, 5, d, y);
  ternary(b + 48, 4, 4, d, y);
}

/* 2 bits: byte i of 32 has elements i, i + 32, i + 64 and i + 96 of 128. */
static void tq2_0(const uint8_t *b, float *y) {
  float d = half_at(b + 64);
  for (int i = 0; i < LARGE; i++)
    y[i] = d * (float)((b[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - 1);
}

typedef struct Blocks {
  int64_t elements, bytes;
  void (*dequantize)(const uint8_t *block, float *out);
} Blocks;

static const Blocks blocks[] = {
    [MOTH_GGUF_TENSOR_Q4_0] = {SMALL, 18, q4_0},
    [MOTH_GGUF_TENSOR_Q4_1] = {SMALL, 20, q4_1},
    [MOTH_GGUF_TENSOR_Q5_0] = {SMALL, 22, q5_0},
    [MOTH_GGUF_TENSOR_Q5_1] = {SMALL, 24, q5_1},
    [MOTH_GGUF_TENSOR_Q8_0] = {SMALL, 34, q8_0},
    [MOTH_GGUF_TENSOR_Q2_K] = {LARGE, 84, q2_k},
    [MOTH_GGUF_TENSOR_Q3_K] = {LARGE, 110, q3_k},
    [MOTH_GGUF_TENSOR_Q4_K] = {LARGE, 144, q4_k},
    [MOTH_GGUF_TENSOR_Q5_K] = {LARGE, 176, q5_k},
    [MOTH_GGUF_TENSOR_Q6_K] = {LARGE, 210, q6_k},
    [MOTH_GGUF_TENSOR_IQ4_NL] = {SMALL, 18, iq4_nl},
    [MOTH_GGUF_TENSOR_IQ4_XS] = {LARGE, 136, iq4_xs},
    [MOTH_GGUF_TENSOR_TQ1_0] = {LARGE, 54, tq1_0},
    [MOTH_GGUF_TENSOR_TQ2_0] = {LARGE, 66, tq2_0},
    [MOTH_GGUF_TENSOR_MXFP4] = {SMALL, 17, mxfp4},
    [MOTH_GGUF_TENSOR_NVFP4] = {64, 36, nvfp4},
};

int64_t moth_gguf_block(uint32_t type, int64_t *elements) {
  bool known = type < sizeof blocks / sizeof *blocks && blocks[type].bytes;
  *elements = known ? blocks[type].elements : 0;
  return known ? blocks[type].bytes : 0;
}

typedef struct Work {
  const Blocks *kind;
  const uint8_t *bytes;
  float *out;
} Work;

static void dequantize(void *ctx, int64_t begin, int64_t end) {
  const Work *w = ctx;
  for (int64_t i = begin; i < end; i++)
    w->kind->dequantize(w->bytes + i * w->kind->bytes, w->out + i * w->kind->elements);
}

MothStatus moth_gguf_dequantize(MothGgufType type, const uint8_t *bytes, int64_t count,
                                float *out) {
  int64_t elements;
  if (!moth_gguf_block(type, &elements) || count % elements)
    return moth_fail(MOTH_ERR_VALUE, "GGUF: %lld elements of type %s are no whole blocks",
                     (long long)count, moth_gguf_type_name(type));
  Work w = {&blocks[type], bytes, out};
  moth_parallel_for(count / elements, GRAIN, dequantize, &w);
  return MOTH_OK;
}
