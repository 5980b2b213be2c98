/* Folds 64 bytes at a time by carry-less products (Intel, "Fast CRC computation for generic polynomials using
 * PCLMULQDQ", 2009); the rest, and other processors, by eight tables of a byte each ("slicing by 8"). */
#include "io/crc32.h"

#include <pthread.h>
#include <string.h>

#include "core/environment.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { SLICES = 8, LANES = 4, VECTOR = 16, FOLD = LANES * VECTOR };
#define POLYNOMIAL 0xedb88320u /* bits reversed */

static uint32_t tables[SLICES][256];
static bool has_product;

static void prepare(void) {
  for (uint32_t i = 0; i < 256; i++) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; bit++)
      c = (c >> 1) ^ (c & 1 ? POLYNOMIAL : 0);
    tables[0][i] = c;
  }
  for (int s = 1; s < SLICES; s++)
    for (int i = 0; i < 256; i++) {
      uint32_t before = tables[s - 1][i];
      tables[s][i] = (before >> 8) ^ tables[0][before & 0xff];
    }
#if defined(__x86_64__)
  const char *level = moth_env_text("MOTH_CPU");
  has_product = !(level && strcmp(level, "generic") == 0) && __builtin_cpu_supports("pclmul") &&
                __builtin_cpu_supports("sse4.1");
#endif
}

/* Of the register, without the inversions before and after. */
static uint32_t by_tables(uint32_t c, const uint8_t *p, size_t n) {
  for (; n >= SLICES; n -= SLICES, p += SLICES) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    word ^= c;
    c = 0;
    for (int s = 0; s < SLICES; s++)
      c ^= tables[SLICES - 1 - s][(word >> (8 * s)) & 0xff];
  }
  for (; n > 0; n--, p++)
    c = (c >> 8) ^ tables[0][(c ^ *p) & 0xff];
  return c;
}

#if defined(__x86_64__)
#define WITH_PRODUCT __attribute__((target("pclmul,sse4.1")))

/* x moved on by the distance of `by`, plus what is there. */
WITH_PRODUCT static inline __m128i fold(__m128i x, __m128i by, __m128i there) {
  __m128i low = _mm_clmulepi64_si128(x, by, 0x00), high = _mm_clmulepi64_si128(x, by, 0x11);
  return _mm_xor_si128(_mm_xor_si128(low, high), there);
}

static inline __m128i load(const uint8_t *p) {
  return _mm_loadu_si128((const __m128i *)(const void *)p);
}

/* n: a multiple of VECTOR, FOLD at least. The constants are powers of x modulo the polynomial, from the paper. */
WITH_PRODUCT static uint32_t by_products(uint32_t c, const uint8_t *p, size_t n) {
  const __m128i by_64 = _mm_set_epi64x(0x01c6e41596, 0x0154442bd4);
  const __m128i by_16 = _mm_set_epi64x(0x00ccaa009e, 0x01751997d0);
  const __m128i by_8 = _mm_set_epi64x(0, 0x0163cd6124);
  const __m128i barrett = _mm_set_epi64x(0x01f7011641, 0x01db710641);
  const __m128i words = _mm_setr_epi32(-1, 0, -1, 0);
  __m128i x[LANES];
  for (int i = 0; i < LANES; i++)
    x[i] = load(p + VECTOR * i);
  x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)c));
  for (p += FOLD, n -= FOLD; n >= FOLD; p += FOLD, n -= FOLD)
    for (int i = 0; i < LANES; i++)
      x[i] = fold(x[i], by_64, load(p + VECTOR * i));
  for (int i = 1; i < LANES; i++)
    x[0] = fold(x[0], by_16, x[i]);
  for (; n >= VECTOR; p += VECTOR, n -= VECTOR)
    x[0] = fold(x[0], by_16, load(p));
  __m128i a = _mm_xor_si128(_mm_srli_si128(x[0], 8), _mm_clmulepi64_si128(x[0], by_16, 0x10));
  a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, words), by_8, 0));
  __m128i q = _mm_clmulepi64_si128(_mm_and_si128(a, words), barrett, 0x10);
  q = _mm_clmulepi64_si128(_mm_and_si128(q, words), barrett, 0x00);
  return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, q), 1);
}
#endif

uint32_t moth_crc32(uint32_t crc, const void *bytes, size_t n) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  const uint8_t *p = bytes;
  uint32_t c = ~crc;
  pthread_once(&once, prepare);
#if defined(__x86_64__)
  if (has_product && n >= FOLD) {
    size_t whole = n / VECTOR * VECTOR;
    c = by_products(c, p, whole);
    p += whole;
    n -= whole;
  }
#endif
  return ~by_tables(c, p, n);
}
