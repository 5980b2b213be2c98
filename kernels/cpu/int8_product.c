/* The loops over bytes, one for each instruction set: generic, AVX2, AVX-512 VNNI, arm64's dot product. Sums are exact modulo 2^32, which is
 * all that AVX2's vpmaddwd and VNNI's vpdpbusd do, too; vpmaddubsw saturates and is not used. Bits do not depend on the
 * instruction set. */
#include "kernels/cpu/int8.h"

#include <string.h>

#include "kernels/cpu/loop.h"
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define HAS_SDOT 1
#include <arm_neon.h>
#include <sys/auxv.h>
#endif

enum { ROWS = MOTH_INT8_ROWS, COLUMNS = MOTH_INT8_COLUMNS };

static int64_t panel_width(const MothInt8Weight *w, int64_t panel) {
  int64_t left = moth_int8_columns(w->n) - panel * COLUMNS;
  return left < COLUMNS ? left : COLUMNS;
}

/* --- generic ---------------------------------------------------------------------------------- */

static void add_segment(const uint8_t *a, const int8_t *b, int64_t length, int64_t width,
                        uint32_t *sums) {
  for (int64_t k = 0; k < length; k += 4, b += 4 * width) {
    int32_t x0 = a[k], x1 = a[k + 1], x2 = a[k + 2], x3 = a[k + 3];
    for (int64_t j = 0; j < width; j++)
      sums[j] +=
          (uint32_t)(x0 * b[4 * j] + x1 * b[4 * j + 1] + x2 * b[4 * j + 2] + x3 * b[4 * j + 3]);
  }
}

static void tile_generic(const MothInt8Weight *w, const int8_t *b, int64_t width,
                         const uint8_t *const *rows, int count, int32_t *sums) {
  for (int r = 0; r < count; r++) {
    uint32_t own[COLUMNS] = {0};
    for (int64_t s = 0; s < w->segments; s++)
      add_segment(rows[r] + w->at[s], b + s * w->length * width, w->length, width, own);
    memcpy(sums + r * COLUMNS, own, sizeof own);
  }
}

#if defined(__x86_64__)
/* --- AVX2 ------------------------------------------------------------------------------------- */

#define AVX2 __attribute__((target("avx2")))
enum { PART = 512, AVX2_ROWS = 3 };

/* Three rows by eight columns: a result is the sum of two neighbouring lanes. x: rows as int16, PART apart. */
static inline AVX2 __attribute__((always_inline)) void avx2_columns(const int16_t *x,
                                                                    const int8_t *b, int64_t quads,
                                                                    int64_t width, int32_t *sums,
                                                                    int rows) {
  __m256i acc[AVX2_ROWS][2];
  for (int r = 0; r < rows; r++)
    acc[r][0] = acc[r][1] = _mm256_setzero_si256();
  for (int64_t q = 0; q < quads; q++, b += 4 * width) {
    __m256i b0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)b));
    __m256i b1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + 16)));
    for (int r = 0; r < rows; r++) {
      int64_t four;
      memcpy(&four, x + r * PART + 4 * q, sizeof four);
      __m256i a = _mm256_set1_epi64x(four);
      acc[r][0] = _mm256_add_epi32(acc[r][0], _mm256_madd_epi16(a, b0));
      acc[r][1] = _mm256_add_epi32(acc[r][1], _mm256_madd_epi16(a, b1));
    }
  }
  for (int r = 0; r < rows; r++) {
    __m256i both = _mm256_permute4x64_epi64(_mm256_hadd_epi32(acc[r][0], acc[r][1]), 0xd8);
    __m256i *to = (__m256i *)(sums + r * COLUMNS);
    _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), both));
  }
}

static AVX2 void avx2_rows(const MothInt8Weight *w, const int8_t *b, int64_t width,
                           const uint8_t *const *rows, int count, int32_t *sums) {
  int16_t x[AVX2_ROWS][PART];
  for (int r = 0; r < count; r++)
    memset(sums + r * COLUMNS, 0, COLUMNS * sizeof *sums);
  for (int64_t s = 0; s < w->segments; s++)
    for (int64_t k = 0; k < w->length; k += PART) {
      int64_t n = w->length - k < PART ? w->length - k : PART;
      const int8_t *part = b + (s * w->length + k) * width;
      for (int r = 0; r < count; r++)
        for (int64_t i = 0; i < n; i++)
          x[r][i] = rows[r][w->at[s] + k + i];
      for (int64_t j = 0; j < width; j += 8)
        if (count == 3)
          avx2_columns(x[0], part + 4 * j, n / 4, width, sums + j, 3);
        else if (count == 2)
          avx2_columns(x[0], part + 4 * j, n / 4, width, sums + j, 2);
        else
          avx2_columns(x[0], part + 4 * j, n / 4, width, sums + j, 1);
    }
}

static void tile_avx2(const MothInt8Weight *w, const int8_t *b, int64_t width,
                      const uint8_t *const *rows, int count, int32_t *sums) {
  for (int r = 0; r < count; r += AVX2_ROWS)
    avx2_rows(w, b, width, rows + r, count - r < AVX2_ROWS ? count - r : AVX2_ROWS,
              sums + r * COLUMNS);
}

/* --- AVX-512 VNNI ----------------------------------------------------------------------------- */

#define VNNI        __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni")))
#define VNNI_INLINE static inline VNNI __attribute__((always_inline))
#define UNROLL      _Pragma("GCC unroll 8")

/* Six rows by 64 columns need 24 + 4 + 1 of 32 registers. In assembly: gcc moves accumulators to the stack and back where
 * it likes, which takes twice the time, and not in each version of the source (spec/kernels/int8_spec.lua). */
#define ZERO(i)                          "vpxord %%zmm" #i ",%%zmm" #i ",%%zmm" #i "\n\t"
#define FETCH_SUM(i)                     "vmovdqu32 64*" #i "(%[sums]),%%zmm" #i "\n\t"
#define STORE_SUM(i)                     "vmovdqu32 %%zmm" #i ",64*" #i "(%[sums])\n\t"
#define EIGHT(X, a, b, c, d, e, f, g, h) X(a) X(b) X(c) X(d) X(e) X(f) X(g) X(h)
#define ALL(X)                                                                                     \
  EIGHT(X, 0, 1, 2, 3, 4, 5, 6, 7)                                                                 \
  EIGHT(X, 8, 9, 10, 11, 12, 13, 14, 15) EIGHT(X, 16, 17, 18, 19, 20, 21, 22, 23)
#define ROW(r, i0, i1, i2, i3)                                                                     \
  "vpbroadcastd (%[" #r "],%[k]),%%zmm28\n\t"                                                      \
  "vpdpbusd %%zmm24,%%zmm28,%%zmm" #i0 "\n\t"                                                      \
  "vpdpbusd %%zmm25,%%zmm28,%%zmm" #i1 "\n\t"                                                      \
  "vpdpbusd %%zmm26,%%zmm28,%%zmm" #i2 "\n\t"                                                      \
  "vpdpbusd %%zmm27,%%zmm28,%%zmm" #i3 "\n\t"
static VNNI void vnni_segment(const uint8_t *const *rows, int64_t at, int64_t length,
                              const int8_t *b, bool first, int32_t *sums) {
  int64_t k = 0;
  if (length <= 0)
    return;
  __asm__ volatile(
      "testb %[first],%[first]\n\t"
      "jz 1f\n\t" ALL(
          ZERO) "jmp 2f\n"
                "1:\n\t" ALL(FETCH_SUM) ".p2align 4\n"
                                        "2:\n\t"
                                        "vmovdqu32 (%[b]),%%zmm24\n\t"
                                        "vmovdqu32 64(%[b]),%%zmm25\n\t"
                                        "vmovdqu32 128(%[b]),%%zmm26\n\t"
                                        "vmovdqu32 192(%[b]),%%zmm27\n\t" ROW(r0, 0, 1, 2, 3)
                                            ROW(r1, 4, 5, 6, 7) ROW(r2, 8, 9, 10, 11)
                                                ROW(r3, 12, 13, 14, 15) ROW(r4, 16, 17, 18, 19) ROW(
                                                    r5, 20, 21, 22, 23) "addq $256,%[b]\n\t"
                                                                        "addq $4,%[k]\n\t"
                                                                        "cmpq %[length],%[k]\n\t"
                                                                        "jl 2b\n\t" ALL(STORE_SUM)
      : [b] "+r"(b), [k] "+r"(k)
      : [r0] "r"(rows[0] + at), [r1] "r"(rows[1] + at), [r2] "r"(rows[2] + at),
        [r3] "r"(rows[3] + at), [r4] "r"(rows[4] + at), [r5] "r"(rows[5] + at),
        [length] "r"(length), [sums] "r"(sums), [first] "q"(first)
      : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8",
        "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18",
        "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28");
}

/* Fewer rows or columns. */
VNNI_INLINE void vnni_small(const MothInt8Weight *w, const int8_t *b, const uint8_t *const *rows,
                            int32_t *sums, int count, int vectors) {
  __m512i acc[ROWS][4];
  UNROLL for (int r = 0; r < count; r++) UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
      _mm512_setzero_si512();
  for (int64_t s = 0; s < w->segments; s++)
    for (int64_t k = 0; k < w->length; k += 4, b += 64 * vectors) {
      __m512i y[4];
      UNROLL for (int v = 0; v < vectors; v++) y[v] = _mm512_loadu_si512(b + 64 * v);
      UNROLL for (int r = 0; r < count; r++) {
        int32_t four;
        memcpy(&four, rows[r] + w->at[s] + k, sizeof four);
        __m512i x = _mm512_set1_epi32(four);
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] =
            _mm512_dpbusd_epi32(acc[r][v], x, y[v]);
      }
    }
  UNROLL for (int r = 0; r < count; r++) UNROLL for (int v = 0; v < vectors; v++)
      _mm512_storeu_si512(sums + r * COLUMNS + 16 * v, acc[r][v]);
}
#define VNNI_CASES(V)                                                                              \
  case 10 + (V):                                                                                   \
    vnni_small(w, b, rows, to, 1, V);                                                              \
    break;                                                                                         \
  case 20 + (V):                                                                                   \
    vnni_small(w, b, rows, to, 2, V);                                                              \
    break;                                                                                         \
  case 40 + (V):                                                                                   \
    vnni_small(w, b, rows, to, 4, V);                                                              \
    break;
/* 3 and 5 rows are computed as 4 and 6, with the last one twice: as fast, and less code. */
static VNNI void tile_vnni(const MothInt8Weight *w, const int8_t *b, int64_t width,
                           const uint8_t *const *given, int count, int32_t *sums) {
  const uint8_t *rows[ROWS];
  int32_t more[ROWS * COLUMNS];
  int as = count <= 2 ? count : count <= 4 ? 4 : ROWS;
  int32_t *to = as > count ? more : sums;
  for (int r = 0; r < ROWS; r++)
    rows[r] = given[r < count ? r : count - 1];
  switch (as * 10 + (int)(width / 16)) {
    VNNI_CASES(1)
    VNNI_CASES(2) VNNI_CASES(3) VNNI_CASES(4) case 61 : vnni_small(w, b, rows, to, 6, 1);
    break;
  case 62:
    vnni_small(w, b, rows, to, 6, 2);
    break;
  case 63:
    vnni_small(w, b, rows, to, 6, 3);
    break;
  default:
    for (int64_t s = 0; s < w->segments; s++)
      vnni_segment(rows, w->at[s], w->length, b + s * w->length * width, s == 0, to);
  }
  if (to != sums)
    memcpy(sums, to, (size_t)count * COLUMNS * sizeof *sums);
}

/* --- int4 --------------------------------------------------------------------------------------- */

/* The scales of a block's lanes, from s on: of one group, or of `each`, 2 or 4, of which `left` are there. */
VNNI_INLINE __m512 lane_scales(const float *s, int64_t each, int64_t left) {
  if (each == 1)
    return _mm512_set1_ps(*s);
  __mmask16 in = (__mmask16)((1u << (left < each ? left : each)) - 1);
  __m512i lane = _mm512_srli_epi32(
      _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), each == 4 ? 2 : 3);
  return _mm512_permutexvar_ps(lane, _mm512_maskz_loadu_ps(in, s));
}

typedef struct Int4Block {
  int64_t first, each, left; /* groups: the first of the block, how many, how many are left */
  __mmask64 in;              /* bytes of weights */
} Int4Block;

/* acc += the products of a block. */
VNNI_INLINE void int4_block(const MothInt4 *p, int64_t block, const Int4Block *b, int64_t j,
                            int64_t row, int rows, int columns, __m512 acc[4][4]) {
  const __m512i low = _mm512_set1_epi8(15);
  __m512i w[4][2];
  __m512 scale[4];
  UNROLL for (int c = 0; c < columns; c++) {
    const uint8_t *at = p->weight + (j + c) * p->weight_row + 64 * block;
    __m512i two = _mm512_maskz_loadu_epi8(b->in, at);
    w[c][0] = _mm512_and_si512(two, low);
    w[c][1] = _mm512_and_si512(_mm512_srli_epi16(two, 4), low);
    scale[c] =
        lane_scales((const float *)p->scale + (j + c) * p->groups + b->first, b->each, b->left);
    _mm_prefetch((const char *)at + p->ahead * p->weight_row, _MM_HINT_T0);
    _mm_prefetch(
        (const char *)((const float *)p->scale + (j + c + p->ahead) * p->groups + b->first),
        _MM_HINT_T0);
  }
  UNROLL for (int r = 0; r < rows; r++) {
    int64_t i = (row + r) * p->blocks + block;
    const int8_t *x = p->values + i * MOTH_INT4_BLOCK;
    __m512i x0 = _mm512_loadu_si512(x), x1 = _mm512_loadu_si512(x + 64);
    __m512i start = _mm512_loadu_si512(p->starts + i * MOTH_INT4_LANES);
    __m512 by = _mm512_loadu_ps((const float *)p->scales + i * MOTH_INT4_LANES);
    UNROLL for (int c = 0; c < columns; c++) {
      __m512i sum = _mm512_dpbusd_epi32(start, w[c][0], x0);
      sum = _mm512_dpbusd_epi32(sum, w[c][1], x1);
      acc[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale[c], by), acc[r][c]);
    }
  }
}

/* `each`: groups of a block; known when this is compiled, as rows and columns are. */
VNNI_INLINE void int4_columns(const MothInt4 *p, int64_t j, int64_t row, int rows, int columns,
                              int64_t each) {
  __m512 acc[4][4];
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < columns; c++) acc[r][c] =
      _mm512_setzero_ps();
  const int64_t per = p->group / MOTH_INT4_BLOCK; /* blocks of a group */
  int64_t whole = p->weight_row / 64, of_group = 0;
  Int4Block b = {.each = each, .left = p->groups, .in = ~(__mmask64)0};
  for (int64_t block = 0; block < p->blocks; block++) {
    if (block == whole)
      b.in = ((__mmask64)1 << (p->weight_row - 64 * block)) - 1;
    int4_block(p, block, &b, j, row, rows, columns, acc);
    if (each > 1) {
      b.first += each;
      b.left -= each;
    } else if (++of_group >= per) {
      b.first++;
      of_group = 0;
    }
  }
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < columns; c++) {
    float sum = _mm512_reduce_add_ps(acc[r][c]);
    ((float *)p->out)[(row + r) * p->n + j + c] =
        p->bias ? sum + ((const float *)p->bias)[j + c] : sum;
  }
}

VNNI_INLINE void int4_rows(const MothInt4 *p, int64_t row, int rows, int columns, int64_t each) {
  int64_t j = p->from;
  for (; j + columns <= p->to; j += columns)
    int4_columns(p, j, row, rows, columns, each);
  for (; j < p->to; j++)
    int4_columns(p, j, row, rows, 1, each);
}

/* One, two or four rows, for groups of which a block has `each`. */
VNNI_INLINE void int4_all(const MothInt4 *p, int64_t each) {
  int64_t row = 0;
  for (; row + 4 <= p->rows; row += 4)
    int4_rows(p, row, 4, 2, each);
  if (p->rows - row >= 2) {
    int4_rows(p, row, 2, 4, each);
    row += 2;
  }
  if (row < p->rows)
    int4_rows(p, row, 1, 4, each);
}

/* Four columns are read at a time, each a stream that ends soon: too short for the processor to see ahead. So
 * what is fetched is the same place of columns to come, at least 4 KB further. */
VNNI void moth_int4_dots(const MothInt4 *given) {
  MothInt4 own = *given, *p = &own;
  own.ahead = 4 * (1 + 1024 / own.weight_row);
  if (p->group == 32)
    int4_all(p, 4);
  else if (p->group == 64)
    int4_all(p, 2);
  else
    int4_all(p, 1);
}

bool moth_int8_dots(void) {
  return moth_isa == MOTH_ISA_AVX512 && __builtin_cpu_supports("avx512vnni");
}
#elif defined(HAS_SDOT)
/* --- arm64: sdot -------------------------------------------------------------------------------- */

/* Four sums of four products of int8 in each lane group, from ARMv8.2 on (optional there). Two columns of 16 bytes are one
 * of VNNI's: four columns, four positions of K. */
#define SDOT        __attribute__((target("arch=armv8.2-a+dotprod")))
#define SDOT_INLINE static inline SDOT __attribute__((always_inline))
#define UNROLL      _Pragma("GCC unroll 8")

/* Six rows by 16 columns: 24 sums of 32 registers. Activations are uint8, x - 128 is int8: what is missing, 128 times the
 * sums of the columns, comes at the end. */
SDOT_INLINE void sdot_columns(const MothInt8Weight *w, const int8_t *b, int64_t width,
                              const uint8_t *const *rows, int32_t *sums, int count) {
  const uint8x16_t half = vdupq_n_u8(128);
  int32x4_t acc[ROWS][4];
  UNROLL for (int r = 0; r < count; r++) UNROLL for (int v = 0; v < 4; v++) acc[r][v] =
      vdupq_n_s32(0);
  for (int64_t s = 0; s < w->segments; s++)
    for (int64_t k = 0; k < w->length; k += 4, b += 4 * width) {
      int8x16_t y[4];
      UNROLL for (int v = 0; v < 4; v++) y[v] = vld1q_s8(b + 16 * v);
      UNROLL for (int r = 0; r < count; r++) {
        uint32_t four;
        memcpy(&four, rows[r] + w->at[s] + k, sizeof four);
        int8x16_t x = vreinterpretq_s8_u8(veorq_u8(vreinterpretq_u8_u32(vdupq_n_u32(four)), half));
        UNROLL for (int v = 0; v < 4; v++) acc[r][v] = vdotq_s32(acc[r][v], x, y[v]);
      }
    }
  UNROLL for (int r = 0; r < count; r++) UNROLL for (int v = 0; v < 4; v++)
      vst1q_s32(sums + r * COLUMNS + 4 * v, acc[r][v]);
}

static SDOT void tile_sdot(const MothInt8Weight *w, const int8_t *b, int64_t width,
                           const uint8_t *const *rows, int count, const int32_t *of_columns,
                           int64_t columns, int32_t *sums) {
  for (int64_t j = 0; j < width; j += 16)
    switch (count) {
    case 1:
      sdot_columns(w, b + 4 * j, width, rows, sums + j, 1);
      break;
    case 2:
      sdot_columns(w, b + 4 * j, width, rows, sums + j, 2);
      break;
    case 3:
      sdot_columns(w, b + 4 * j, width, rows, sums + j, 3);
      break;
    case 4:
      sdot_columns(w, b + 4 * j, width, rows, sums + j, 4);
      break;
    case 5:
      sdot_columns(w, b + 4 * j, width, rows, sums + j, 5);
      break;
    default:
      sdot_columns(w, b + 4 * j, width, rows, sums + j, ROWS);
    }
  for (int r = 0; r < count; r++)
    for (int64_t j = 0; j < columns; j++)
      sums[r * COLUMNS + j] =
          (int32_t)((uint32_t)sums[r * COLUMNS + j] + 128 * (uint32_t)of_columns[j]);
}

/* One column for up to four rows. `each`: groups of a block; known when this is compiled, as rows are. */
SDOT_INLINE void int4_column(const MothInt4 *p, int64_t j, int64_t row, int rows, int64_t each) {
  const uint8x16_t low = vdupq_n_u8(15);
  const uint8_t *weights = p->weight + j * p->weight_row;
  const float *scales = (const float *)p->scale + j * p->groups;
  float32x4_t acc[4][4];
  UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < 4; v++) acc[r][v] =
      vdupq_n_f32(0);
  for (int64_t block = 0; block < p->blocks; block++) {
    const uint8_t *at = weights + 64 * block;
    uint8_t end[64];
    int64_t left = p->weight_row - 64 * block;
    if (left < 64) {
      memset(end, 0, sizeof end);
      memcpy(end, at, (size_t)left);
      at = end;
    }
    UNROLL for (int v = 0; v < 4; v++) {
      uint8x16_t two = vld1q_u8(at + 16 * v);
      int8x16_t w0 = vreinterpretq_s8_u8(vandq_u8(two, low));
      int8x16_t w1 = vreinterpretq_s8_u8(vshrq_n_u8(two, 4));
      int64_t group = each > 1 ? each * block + v * each / 4 : block / (p->group / MOTH_INT4_BLOCK);
      float32x4_t scale = vdupq_n_f32(group < p->groups ? scales[group] : 0);
      UNROLL for (int r = 0; r < rows; r++) {
        int64_t i = (row + r) * p->blocks + block;
        const int8_t *x = p->values + i * MOTH_INT4_BLOCK + 16 * v;
        const float *by = (const float *)p->scales + i * MOTH_INT4_LANES + 4 * v;
        int32x4_t sum = vld1q_s32(p->starts + i * MOTH_INT4_LANES + 4 * v);
        sum = vdotq_s32(sum, w0, vld1q_s8(x));
        sum = vdotq_s32(sum, w1, vld1q_s8(x + 64));
        acc[r][v] = vfmaq_f32(acc[r][v], vcvtq_f32_s32(sum), vmulq_f32(scale, vld1q_f32(by)));
      }
    }
  }
  UNROLL for (int r = 0; r < rows; r++) {
    float sum =
        vaddvq_f32(vaddq_f32(vaddq_f32(acc[r][0], acc[r][2]), vaddq_f32(acc[r][1], acc[r][3])));
    ((float *)p->out)[(row + r) * p->n + j] = p->bias ? sum + ((const float *)p->bias)[j] : sum;
  }
}

SDOT_INLINE void int4_all(const MothInt4 *p, int64_t each) {
  int64_t row = 0;
  for (; row + 4 <= p->rows; row += 4)
    for (int64_t j = p->from; j < p->to; j++)
      int4_column(p, j, row, 4, each);
  for (; row < p->rows; row++)
    for (int64_t j = p->from; j < p->to; j++)
      int4_column(p, j, row, 1, each);
}

SDOT void moth_int4_dots(const MothInt4 *p) {
  if (p->group == 32)
    int4_all(p, 4);
  else if (p->group == 64)
    int4_all(p, 2);
  else
    int4_all(p, 1);
}

bool moth_int8_dots(void) {
  enum { HAS_DOT_PRODUCT = 1 << 20 };
  return (getauxval(AT_HWCAP) & HAS_DOT_PRODUCT) != 0;
}
#else
void moth_int4_dots(const MothInt4 *p) {
  (void)p;
}
bool moth_int8_dots(void) {
  return false;
}
#endif

void moth_int8_tile(const MothInt8Weight *w, int64_t panel, const uint8_t *const *rows, int count,
                    int32_t *sums) {
  int64_t width = panel_width(w, panel);
  const int8_t *b = w->panels + panel * COLUMNS * w->segments * w->length;
#if defined(__x86_64__)
  if (moth_int8_dots())
    tile_vnni(w, b, width, rows, count, sums);
  else if (moth_isa >= MOTH_ISA_AVX2)
    tile_avx2(w, b, width, rows, count, sums);
  else
#elif defined(HAS_SDOT)
  int64_t columns = w->n - panel * COLUMNS;
  if (moth_int8_dots())
    tile_sdot(w, b, width, rows, count, w->sums + panel * COLUMNS,
              columns < COLUMNS ? columns : COLUMNS, sums);
  else
#endif
    tile_generic(w, b, width, rows, count, sums);
}
