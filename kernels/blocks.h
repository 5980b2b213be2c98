/* Blocks of quantized weights, as GGUF files hold them: one unpacker for each type of src/ops/blocks.lua. It writes, of
 * one block, q (uint8 [elements]), scale (float [elements / 16]) and, of types that have them, least (the same):
 * an element is scale * (q - zero), or scale * q + least. They read the bytes of the block alone, whatever these are.
 *
 * Included by the kernels of unpack_blocks and linear_blocks. Needs MOTH_FN and
 * kernels/math_bits.h. */
#ifndef MOTH_KERNELS_BLOCKS_H
#define MOTH_KERNELS_BLOCKS_H
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "block_grids.h"
#include "block_types.h"

enum { MOTH_BLOCK_SMALL = 32, MOTH_BLOCK_LARGE = 256, MOTH_BLOCK_GROUP = 16 };

#if defined __F16C__ && !defined __CUDACC__
#include <immintrin.h>
MOTH_FN float m_block_half(const uint8_t *p) {
  return _cvtsh_ss((unsigned short)(p[0] | p[1] << 8));
}
#else
MOTH_FN float m_block_half(const uint8_t *p) {
  return m_f16_to_f32((unsigned short)(p[0] | p[1] << 8));
}
#endif

/* q[i] = (b[i] >> shift & mask) << up of n bytes, 16 or 32, and q[i] |= that. By words, for there is no shift of bytes. */
#ifdef __CUDACC__
MOTH_FN void m_block_bits(const uint8_t *b, int n, int shift, int mask, uint8_t *q) {
  for (int i = 0; i < n; i++)
    q[i] = (uint8_t)(b[i] >> shift & mask);
}
MOTH_FN void m_block_or_bits(const uint8_t *b, int n, int shift, int mask, int up, uint8_t *q) {
  for (int i = 0; i < n; i++)
    q[i] |= (uint8_t)((b[i] >> shift & mask) << up);
}
#else
typedef uint64_t m_block_16 __attribute__((vector_size(16), aligned(1), may_alias));
typedef uint64_t m_block_32 __attribute__((vector_size(32), aligned(1), may_alias));
MOTH_FN void m_block_bits(const uint8_t *b, int n, int shift, int mask, uint8_t *q) {
  const uint64_t m = (uint64_t)mask * 0x0101010101010101u;
  if (n == 16)
    *(m_block_16 *)q = *(const m_block_16 *)b >> shift & m;
  else
    *(m_block_32 *)q = *(const m_block_32 *)b >> shift & m;
}
MOTH_FN void m_block_or_bits(const uint8_t *b, int n, int shift, int mask, int up, uint8_t *q) {
  const uint64_t m = (uint64_t)mask * 0x0101010101010101u;
  if (n == 16)
    *(m_block_16 *)q |= (*(const m_block_16 *)b >> shift & m) << up;
  else
    *(m_block_32 *)q |= (*(const m_block_32 *)b >> shift & m) << up;
}
#endif

/* 16 bytes of 32 elements: the low half of byte i is element i, the high one i + 16. */
MOTH_FN void m_block_nibbles(const uint8_t *b, uint8_t *q) {
  m_block_bits(b, 16, 0, 15, q);
  m_block_bits(b, 16, 4, 15, q + 16);
}
/* The same by a table of what 4 bits stand for. */
#if defined __SSSE3__ && !defined __CUDACC__
#include <immintrin.h>
MOTH_FN void m_block_nibbles_by(const uint8_t *b, const uint8_t *table, uint8_t *q) {
  const __m128i low = _mm_set1_epi8(15), of = _mm_loadu_si128((const __m128i *)(const void *)table);
  __m128i two = _mm_loadu_si128((const __m128i *)(const void *)b);
  __m128i high = _mm_and_si128(_mm_srli_epi16(two, 4), low);
  _mm_storeu_si128((__m128i *)(void *)q, _mm_shuffle_epi8(of, _mm_and_si128(two, low)));
  _mm_storeu_si128((__m128i *)(void *)(q + 16), _mm_shuffle_epi8(of, high));
}
#else
MOTH_FN void m_block_nibbles_by(const uint8_t *b, const uint8_t *table, uint8_t *q) {
  for (int i = 0; i < 16; i++) {
    q[i] = table[b[i] & 15];
    q[16 + i] = table[b[i] >> 4];
  }
}
#endif
/* One scale for 32 elements. */
MOTH_FN void m_block_both(float *scale, float x) {
  scale[0] = scale[1] = x;
}

MOTH_FN void m_unpack_q4_0(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  (void)least;
  m_block_both(scale, m_block_half(b));
  m_block_nibbles(b + 2, q);
}

MOTH_FN void m_unpack_q4_1(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  m_block_both(scale, m_block_half(b));
  m_block_both(least, m_block_half(b + 2));
  m_block_nibbles(b + 4, q);
}

/* 32 fifth bits: bit i is that of element i. Eight at a time, as bytes of a word, the first the lowest: each keeps its own
 * bit, which is carried to the byte's highest. */
#if defined __AVX2__ && !defined __CUDACC__
MOTH_FN void m_block_fifth(const uint8_t *b, uint8_t *q) {
  int32_t word;
  memcpy(&word, b, sizeof word);
  __m256i spread =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  __m256i own = _mm256_set1_epi64x((int64_t)0x8040201008040201u);
  __m256i bits = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(word), spread), own);
  bits = _mm256_and_si256(_mm256_cmpeq_epi8(bits, own), _mm256_set1_epi8(16));
  /* in halves, as they were stored: a longer load would wait for both */
  __m128i *to = (__m128i *)(void *)q;
  _mm_storeu_si128(to, _mm_or_si128(_mm_loadu_si128(to), _mm256_castsi256_si128(bits)));
  _mm_storeu_si128(to + 1,
                   _mm_or_si128(_mm_loadu_si128(to + 1), _mm256_extracti128_si256(bits, 1)));
}
#else
MOTH_FN void m_block_fifth(const uint8_t *b, uint8_t *q) {
  for (int k = 0; k < 4; k++) {
    uint64_t own = b[k] * 0x0101010101010101u & 0x8040201008040201u;
    uint64_t bits = (own + 0x7f7f7f7f7f7f7f7fu) >> 3 & 0x1010101010101010u, eight;
    memcpy(&eight, q + 8 * k, sizeof eight);
    eight |= bits;
    memcpy(q + 8 * k, &eight, sizeof eight);
  }
}
#endif

MOTH_FN void m_unpack_q5_0(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  (void)least;
  m_block_both(scale, m_block_half(b));
  m_block_nibbles(b + 6, q);
  m_block_fifth(b + 2, q);
}

MOTH_FN void m_unpack_q5_1(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  m_block_both(scale, m_block_half(b));
  m_block_both(least, m_block_half(b + 2));
  m_block_nibbles(b + 8, q);
  m_block_fifth(b + 4, q);
}

MOTH_FN void m_unpack_q8_0(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  (void)least;
  m_block_both(scale, m_block_half(b));
  for (int i = 0; i < 32; i++)
    q[i] = (uint8_t)(b[2 + i] ^ 128);
}

/* A block of 32 elements. One that is inf or nan makes all nan. */
MOTH_FN void m_pack_q8_0(const float *x, uint8_t *b) {
  float big = 0, rest = 0;
  for (int i = 0; i < 32; i++) {
    float a = x[i] < 0 ? -x[i] : x[i];
    big = a > big ? a : big;
    rest += a * 0;
  }
  float scale = big * (1.0f / 127) + rest, inverse = scale > 0 ? 1 / scale : 0;
  unsigned short half = m_f32_to_f16(scale);
  b[0] = (uint8_t)half;
  b[1] = (uint8_t)(half >> 8);
  for (int i = 0; i < 32; i++) {
    float y = x[i] * inverse;
    y = y < 127 ? y : 127; /* of nan, too: of no integer could it be made */
    y = y > -127 ? y : -127;
    b[2 + i] = (uint8_t)(int8_t)(y < 0 ? y - 0.5f : y + 0.5f);
  }
}

/* 2 bits: byte i of 32 has elements i, i + 32, i + 64 and i + 96 of 128. */
MOTH_FN void m_block_crumbs(const uint8_t *b, uint8_t *q) {
  for (int half = 0; half < 2; half++, b += 32)
    for (int k = 0; k < 4; k++, q += 32)
      m_block_bits(b, 32, 2 * k, 3, q);
}

/* 16 bytes: a scale and a least value of 4 bits for 16 elements each; then the elements. */
MOTH_FN void m_unpack_q2_k(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  float d = m_block_half(b + 80), m = m_block_half(b + 82);
  for (int k = 0; k < 16; k++)
    scale[k] = d * (float)(b[k] & 15);
  for (int k = 0; k < 16; k++)
    least[k] = -(m * (float)(b[k] >> 4));
  m_block_crumbs(b + 16, q);
}

/* Bits 0 and 1 as in q2_k, bit 2 in bit i / 32 of byte i % 32; 16 scales of 6 bits, 32 taken away: their low 4 bits
 * in halves of 8 bytes, their high 2 in 4. */
MOTH_FN void m_unpack_q3_k(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  const uint8_t *high = b, *s = b + 96;
  float d = m_block_half(b + 108);
  (void)least;
  for (int k = 0; k < 16; k++) {
    int low = k < 8 ? s[k] & 15 : s[k - 8] >> 4;
    scale[k] = d * (float)((low | (s[8 + k % 4] >> (k / 4 * 2) & 3) << 4) - 32);
  }
  m_block_crumbs(b + 32, q);
  for (int k = 0; k < 8; k++)
    m_block_or_bits(high, 32, k, 1, 2, q + 32 * k);
}

/* 8 scales and 8 least values of 6 bits each in 12 bytes. */
MOTH_FN void m_block_scales(const uint8_t *b, float *scale, float *least) {
  const uint8_t *s = b + 4;
  uint8_t of[8], m[8];
  for (int k = 0; k < 4; k++) {
    of[k] = s[k] & 63;
    m[k] = s[k + 4] & 63;
    of[k + 4] = (uint8_t)((s[k + 8] & 15) | (s[k] >> 6) << 4);
    m[k + 4] = (uint8_t)(s[k + 8] >> 4 | (s[k + 4] >> 6) << 4);
  }
  float d = m_block_half(b), less = m_block_half(b + 2);
  for (int k = 0; k < 8; k++) {
    m_block_both(scale + 2 * k, d * (float)of[k]);
    m_block_both(least + 2 * k, -(less * (float)m[k]));
  }
}
/* 4 bits: byte i of 32 has elements i and i + 32 of 64. */
MOTH_FN void m_block_halves(const uint8_t *b, uint8_t *q) {
  for (int k = 0; k < 4; k++, b += 32, q += 64) {
    m_block_bits(b, 32, 0, 15, q);
    m_block_bits(b, 32, 4, 15, q + 32);
  }
}

MOTH_FN void m_unpack_q4_k(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  m_block_scales(b, scale, least);
  m_block_halves(b + 16, q);
}

/* The fifth bit is bit i / 32 of byte i % 32. */
MOTH_FN void m_unpack_q5_k(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  const uint8_t *high = b + 16;
  m_block_scales(b, scale, least);
  m_block_halves(b + 48, q);
  for (int k = 0; k < 8; k++)
    m_block_or_bits(high, 32, k, 1, 4, q + 32 * k);
}

/* 4 low bits: byte i of 64 has elements i and i + 64 of 128; 2 high bits as in q2_k; 16 scales of 8 bits. */
MOTH_FN void m_unpack_q6_k(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  const uint8_t *low = b, *high = b + 128;
  float d = m_block_half(b + 208);
  (void)least;
  for (int k = 0; k < 16; k++)
    scale[k] = d * (float)(int8_t)b[192 + k];
  for (int half = 0; half < 2; half++, low += 64, high += 32, q += 128)
    for (int k = 0; k < 4; k++) {
      m_block_bits(low + k % 2 * 32, 32, k / 2 * 4, 15, q + 32 * k);
      m_block_or_bits(high, 32, 2 * k, 3, 4, q + 32 * k);
    }
}

/* What 4 bits stand for in the types IQ4, less 128, and as floats of 4 bits (E2M1), doubled, less 12. */
#define MOTH_BLOCK_UNEVEN                                                                          \
  { 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 }
#define MOTH_BLOCK_E2M1                                                                            \
  { 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0 }

MOTH_FN void m_unpack_iq4_nl(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  const uint8_t table[16] = MOTH_BLOCK_UNEVEN;
  (void)least;
  m_block_both(scale, m_block_half(b));
  m_block_nibbles_by(b + 2, table, q);
}

/* 8 scales of 6 bits, 32 taken away: their high 2 bits in 2 bytes, their low 4 in 4. */
MOTH_FN void m_unpack_iq4_xs(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  const uint8_t table[16] = MOTH_BLOCK_UNEVEN;
  const uint8_t *high = b + 2, *low = b + 4;
  float d = m_block_half(b);
  (void)least;
  for (int k = 0; k < 8; k++) {
    int s = (low[k / 2] >> (k % 2 * 4) & 15) | (high[k / 4] >> (k % 4 * 2) & 3) << 4;
    m_block_both(scale + 2 * k, d * (float)(s - 32));
    m_block_nibbles_by(b + 8 + 16 * k, table, q + 32 * k);
  }
}

/* ---- codes of 4 or 8 elements: src/ops/block_grids.lua ------------------------------------------- */

MOTH_FN uint32_t m_block_u16(const uint8_t *b) {
  return b[0] | (uint32_t)b[1] << 8;
}
MOTH_FN uint32_t m_block_u32(const uint8_t *b) {
  return m_block_u16(b) | m_block_u16(b + 2) << 16;
}

/* The digits of a code, 8 of 2 bits or 4 of 3 bits, as bytes. */
MOTH_FN uint64_t m_block_eight(uint64_t x) {
  x = (x | x << 24) & 0x000000ff000000ffu;
  x = (x | x << 12) & 0x000f000f000f000fu;
  return (x | x << 6) & 0x0303030303030303u;
}
MOTH_FN uint64_t m_block_four(uint64_t x) {
  x = (x | x << 10) & 0x003f003fu;
  return (x | x << 5) & 0x07070707u;
}

#define MOTH_EACH_BYTE(n) ((uint64_t)(n)*0x0101010101010101u)

/* 8 elements: `zero` plus or, where a bit of signs is set, less magnitudes up to that. */
MOTH_FN void m_block_signed(uint64_t v, uint32_t signs, int zero, uint8_t *q) {
  uint64_t own = MOTH_EACH_BYTE(signs) & 0x8040201008040201u;
  uint64_t less = ((own + MOTH_EACH_BYTE(127)) >> 7 & MOTH_EACH_BYTE(1)) * 255;
  v = ((v ^ less) & MOTH_EACH_BYTE(127)) + (less & MOTH_EACH_BYTE(1)) +
      (~less & MOTH_EACH_BYTE(128));
  v -= MOTH_EACH_BYTE(128 - zero); /* no byte is below that */
  memcpy(q, &v, sizeof v);
}
/* 7 signs; the eighth makes their number even. */
MOTH_FN uint32_t m_block_even(uint32_t signs) {
  uint32_t odd = signs ^ signs >> 4;
  odd ^= odd >> 2;
  return signs | ((odd ^ odd >> 1) & 1) << 7;
}

/* IQ2: 8, 25 or 43. */
MOTH_FN uint64_t m_block_of_iq2(uint64_t code) {
  uint64_t x = m_block_eight(code);
  return x * 17 + (x >> 1 & MOTH_EACH_BYTE(1)) + MOTH_EACH_BYTE(8);
}

/* 32 elements: four codes of 8 bits, then four times 7 signs and 4 bits of a scale. */
MOTH_FN void m_unpack_iq2_xxs(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  static const uint16_t grid[256] = MOTH_GRID_IQ2_XXS;
  float d = m_block_half(b);
  (void)least;
  b += 2;
  for (int k = 0; k < 8; k++, b += 8) {
    uint32_t rest = m_block_u32(b + 4);
    m_block_both(scale + 2 * k, d * (0.5f + (float)(rest >> 28)) * 0.25f);
    for (int i = 0; i < 4; i++, rest >>= 7, q += 8)
      m_block_signed(m_block_of_iq2(grid[b[i]]), m_block_even(rest & 127), 43, q);
  }
}

/* A scale of 4 bits for 16 elements, the low half of a byte first. */
MOTH_FN void m_block_half_scales(const uint8_t *b, float d, float *scale) {
  for (int g = 0; g < 16; g++)
    scale[g] = d * (0.5f + (float)(b[g / 2] >> (g % 2 * 4) & 15)) * 0.25f;
}

/* 9 bits of a code and 7 signs. */
MOTH_FN void m_unpack_iq2_xs(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  static const uint16_t grid[512] = MOTH_GRID_IQ2_XS;
  (void)least;
  m_block_half_scales(b + 66, m_block_half(b), scale);
  for (int i = 0; i < 32; i++) {
    uint32_t x = m_block_u16(b + 2 + 2 * i);
    m_block_signed(m_block_of_iq2(grid[x & 511]), m_block_even(x >> 9), 43, q + 8 * i);
  }
}

/* 8 bits of 32 codes, 8 signs for each, their high 2 bits. */
MOTH_FN void m_unpack_iq2_s(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  static const uint16_t grid[1024] = MOTH_GRID_IQ2_S;
  const uint8_t *low = b + 2, *signs = b + 34, *high = b + 66;
  (void)least;
  m_block_half_scales(b + 74, m_block_half(b), scale);
  for (int i = 0; i < 32; i++) {
    int code = low[i] | (high[i / 4] >> (i % 4 * 2) & 3) << 8;
    m_block_signed(m_block_of_iq2(grid[code]), signs[i], 43, q + 8 * i);
  }
}

/* 4, 12, 20 … 52, and 62. */
MOTH_FN uint64_t m_block_of_iq3(uint64_t first, uint64_t second) {
  uint64_t x = m_block_four(first) | m_block_four(second) << 32;
  uint64_t seven = x & x >> 1 & x >> 2 & MOTH_EACH_BYTE(1);
  return x * 8 + 2 * seven + MOTH_EACH_BYTE(4);
}

/* 64 codes of 8 bits; for 32 elements four times 7 signs, and 4 bits of a scale. */
MOTH_FN void m_unpack_iq3_xxs(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  static const uint16_t grid[256] = MOTH_GRID_IQ3_XXS;
  const uint8_t *codes = b + 2, *rests = b + 66;
  float d = m_block_half(b);
  (void)least;
  for (int k = 0; k < 8; k++, rests += 4) {
    uint32_t rest = m_block_u32(rests);
    m_block_both(scale + 2 * k, d * (0.5f + (float)(rest >> 28)) * 0.5f);
    for (int i = 0; i < 4; i++, rest >>= 7, q += 8, codes += 2)
      m_block_signed(m_block_of_iq3(grid[codes[0]], grid[codes[1]]), m_block_even(rest & 127), 62,
                     q);
  }
}

/* 1, 3, 5 … 15. 8 bits of 64 codes, their ninth bits, signs, a scale of 4 bits for 32 elements. */
MOTH_FN void m_unpack_iq3_s(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  static const uint16_t grid[512] = MOTH_GRID_IQ3_S;
  const uint8_t *low = b + 2, *high = b + 66, *signs = b + 74, *scales = b + 106;
  float d = m_block_half(b);
  (void)least;
  for (int k = 0; k < 8; k++)
    m_block_both(scale + 2 * k, d * (float)(1 + 2 * (scales[k / 2] >> (k % 2 * 4) & 15)));
  for (int i = 0; i < 32; i++) {
    int ninth = high[i / 4] >> (i % 4 * 2);
    uint64_t x = m_block_four(grid[low[2 * i] | (ninth & 1) << 8]) |
                 m_block_four(grid[low[2 * i + 1] | (ninth >> 1 & 1) << 8]) << 32;
    m_block_signed(x * 2 + MOTH_EACH_BYTE(1), signs[i], 15, q + 8 * i);
  }
}

/* IQ1: -1, 0 or 1, and an eighth more or less, times 8; the code of 11 bits. */
MOTH_FN void m_block_of_iq1(uint32_t code, bool is_less, uint8_t *q) {
  static const uint16_t grid[2048] = MOTH_GRID_IQ1_S;
  uint64_t x = m_block_eight(grid[code]) * 8 + MOTH_EACH_BYTE(is_less ? 0 : 2);
  memcpy(q, &x, sizeof x);
}

/* 8 bits of 32 codes; for 32 elements 3 high bits of four, 3 bits of a scale, and which eighth. */
MOTH_FN void m_unpack_iq1_s(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  const uint8_t *low = b + 2, *rests = b + 34;
  float d = m_block_half(b);
  (void)least;
  for (int k = 0; k < 8; k++, rests += 2) {
    uint32_t rest = m_block_u16(rests);
    m_block_both(scale + 2 * k, d * (float)(2 * (rest >> 12 & 7) + 1) * 0.125f);
    for (int i = 0; i < 4; i++, q += 8)
      m_block_of_iq1(*low++ | (rest >> (3 * i) & 7) << 8, rest >> 15, q);
  }
}

/* 8 bits of 32 codes; for each 3 high bits, and which eighth; 16 scales of 3 bits, in words whose highest 4 bits make the
 * block's own, of float16. */
MOTH_FN void m_unpack_iq1_m(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  const uint8_t *low = b, *high = b + 32;
  uint32_t s[4];
  (void)least;
  for (int k = 0; k < 4; k++)
    s[k] = m_block_u16(b + 48 + 2 * k);
  uint32_t own = s[0] >> 12 | (s[1] >> 8 & 0xf0) | (s[2] >> 4 & 0xf00) | (s[3] & 0xf000);
  const uint8_t bytes[2] = {(uint8_t)(own & 255), (uint8_t)(own >> 8)};
  float d = m_block_half(bytes);
  for (int g = 0; g < 16; g++)
    scale[g] = d * (float)(2 * (s[g / 4] >> (g % 4 * 3) & 7) + 1) * 0.125f;
  for (int i = 0; i < 32; i++) {
    uint32_t rest = high[i / 2] >> (i % 2 * 4);
    m_block_of_iq1(low[i] | (rest & 7) << 8, rest >> 3 & 1, q + 8 * i);
  }
}

/* Digits 0, 1, 2: each of n bytes holds `digits` of them, n elements apart, as the leading digits of a fraction of 256. */
MOTH_FN uint8_t *m_block_ternary(const uint8_t *b, int n, int digits, uint8_t *q) {
  int power = 1;
  for (int k = 0; k < digits; k++, power *= 3, q += n)
    for (int i = 0; i < n; i++)
      q[i] = (uint8_t)((b[i] * power & 255) * 3 >> 8);
  return q;
}

MOTH_FN void m_block_all(float *scale, float x) {
  for (int k = 0; k < 16; k++)
    scale[k] = x;
}

MOTH_FN void m_unpack_tq1_0(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  (void)least;
  m_block_all(scale, m_block_half(b + 52));
  q = m_block_ternary(b, 32, 5, q);
  q = m_block_ternary(b + 32, 16, 5, q);
  m_block_ternary(b + 48, 4, 4, q);
}

MOTH_FN void m_unpack_tq2_0(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  (void)least;
  m_block_all(scale, m_block_half(b + 64));
  m_block_crumbs(b, q);
}

/* 2^n, n from -128 to 127. */
MOTH_FN float m_block_power(int n) {
  return m_f32_from_bits(n > -127 ? (unsigned)(n + 127) << 23 : 0x400000u >> (-127 - n));
}

/* The scale is a power of 2 (E8M0), halved, as the elements are doubled. */
MOTH_FN void m_unpack_mxfp4(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  const uint8_t table[16] = MOTH_BLOCK_E2M1;
  (void)least;
  m_block_both(scale, m_block_power(b[0] - 128));
  m_block_nibbles_by(b + 1, table, q);
}

/* Four scales (E4M3 without a sign; 127 is 0), halved, of 16 elements each, in halves of 8 bytes. */
MOTH_FN void m_unpack_nvfp4(const uint8_t *b, uint8_t *q, float *scale, float *least) {
  const uint8_t table[16] = MOTH_BLOCK_E2M1;
  (void)least;
  for (int k = 0; k < 4; k++) {
    int exponent = b[k] >> 3 & 15, rest = b[k] & 7;
    float d = exponent ? (float)(8 + rest) * m_block_power(exponent - 11)
                       : (float)rest * m_block_power(-10);
    scale[k] = b[k] == 127 ? 0 : d;
  }
  for (int k = 0; k < 2; k++, q += 32) {
    uint8_t both[32];
    m_block_nibbles_by(b + 4 + 16 * k, table, both);
    for (int i = 0; i < 4; i++)
      memcpy(q + 8 * i, both + (i % 2 * 16 + i / 2 * 8), 8);
  }
}

#endif
