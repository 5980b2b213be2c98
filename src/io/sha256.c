/* Uses the processor's instructions for SHA-256 where it has them (measured: 10 times as fast): the hash of a
 * checkpoint takes most of the time of saving it. */
#include "io/sha256.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/environment.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

/* Fractions of the cube roots of the first 64 primes (FIPS 180-4, 4.2.2). */
static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int n) {
  return x >> n | x << (32 - n);
}

static void add_blocks_portable(uint32_t *state, const uint8_t *bytes, size_t blocks) {
  for (; blocks > 0; blocks--) {
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++, bytes += 4)
      w[i] =
          (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
    for (int i = 16; i < 64; i++) {
      uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
      uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
      w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof s);
#pragma GCC unroll 8
    for (int i = 0; i < 64; i++) { /* a … h rotate by index: a is s[-i mod 8] */
      uint32_t *e = &s[(68 - i) & 7], *h = &s[(71 - i) & 7], *d = &s[(67 - i) & 7];
      uint32_t a = s[(64 - i) & 7], b = s[(65 - i) & 7], c = s[(66 - i) & 7];
      uint32_t choice = (*e & s[(69 - i) & 7]) ^ (~*e & s[(70 - i) & 7]);
      uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
      uint32_t sum1 = rotate(*e, 6) ^ rotate(*e, 11) ^ rotate(*e, 25);
      uint32_t sum0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
      uint32_t t = *h + sum1 + choice + round_constants[i] + w[i];
      *d += t;
      *h = t + sum0 + majority;
    }
    for (int i = 0; i < 8; i++)
      state[i] += s[i];
  }
}

static void (*add_blocks)(uint32_t *state, const uint8_t *bytes, size_t blocks);

#if defined(__x86_64__)
/* The instructions want the state as the words (f, e, b, a) and (h, g, d, c), lowest first; two rounds
 * each take constant + message from the lower half of a vector. */
__attribute__((target("sha,sse4.1"))) static void
add_blocks_sha(uint32_t *state, const uint8_t *bytes, size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  __m128i dcba = _mm_loadu_si128((const __m128i *)state);
  __m128i hgfe = _mm_loadu_si128((const __m128i *)(state + 4));
  __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
  for (; blocks > 0; blocks--, bytes += 64) {
    __m128i w[4], abef_before = abef, cdgh_before = cdgh;
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) { /* four rounds */
      __m128i *now = &w[i & 3];
      if (i < 4) {
        *now = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(bytes + 16 * i)), swap);
      } else {
        __m128i last = w[(i + 3) & 3], middle = _mm_alignr_epi8(last, w[(i + 2) & 3], 4);
        *now = _mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(i + 1) & 3]), middle);
        *now = _mm_sha256msg2_epu32(*now, last);
      }
      __m128i sum =
          _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)(round_constants + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
  _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
  _mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}
#endif

static void choose(void) {
  const char *level = moth_env_text("MOTH_CPU");
  add_blocks = add_blocks_portable;
#if defined(__x86_64__)
  unsigned a, b = 0, c, d;
  bool has = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
  if (has && !(level && strcmp(level, "generic") == 0) && __builtin_cpu_supports("sse4.1"))
    add_blocks = add_blocks_sha;
#endif
  (void)level;
}

void moth_sha256_init(MothSha256 *hash) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, choose);
  *hash = (MothSha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void moth_sha256_update(MothSha256 *hash, const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  size_t used = hash->n % 64;
  hash->n += n;
  while (n > 0) {
    if (used == 0 && n >= 64) {
      add_blocks(hash->state, p, n / 64);
      p += n / 64 * 64;
      n %= 64;
      continue;
    }
    size_t take = n < 64 - used ? n : 64 - used;
    memcpy(hash->block + used, p, take);
    used = (used + take) % 64;
    if (used == 0)
      add_blocks(hash->state, hash->block, 1);
    p += take;
    n -= take;
  }
}

void moth_sha256_final(MothSha256 *hash, uint8_t *digest) {
  uint8_t tail[72] = {0x80};
  uint64_t bits = hash->n * 8;
  size_t zeros = (119 - hash->n % 64) % 64; /* so that the length ends a block */
  for (int i = 0; i < 8; i++)
    tail[1 + zeros + (size_t)i] = (uint8_t)(bits >> (56 - 8 * i));
  moth_sha256_update(hash, tail, 1 + zeros + 8);
  for (int i = 0; i < 32; i++)
    digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void moth_sha256_hex(const void *bytes, size_t n, char *out) {
  MothSha256 hash;
  uint8_t digest[32];
  moth_sha256_init(&hash);
  moth_sha256_update(&hash, bytes, n);
  moth_sha256_final(&hash, digest);
  for (int i = 0; i < 32; i++) {
    out[2 * i] = "0123456789abcdef"[digest[i] >> 4];
    out[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
  }
  out[64] = 0;
}
