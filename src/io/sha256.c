#include "io/sha256.h"

#include <string.h>

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

static void add_block(uint32_t *state, const uint8_t *block) {
  uint32_t w[64], s[8];
  for (int i = 0; i < 16; i++, block += 4)
    w[i] = (uint32_t)block[0] << 24 | (uint32_t)block[1] << 16 | (uint32_t)block[2] << 8 | block[3];
  for (int i = 16; i < 64; i++) {
    uint32_t a = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t b = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  memcpy(s, state, sizeof s);
  for (int i = 0; i < 64; i++) {
    uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    uint32_t sum1 = rotate(s[4], 6) ^ rotate(s[4], 11) ^ rotate(s[4], 25);
    uint32_t sum0 = rotate(s[0], 2) ^ rotate(s[0], 13) ^ rotate(s[0], 22);
    uint32_t t = s[7] + sum1 + choice + round_constants[i] + w[i];
    memmove(s + 1, s, 7 * sizeof *s);
    s[4] += t;
    s[0] = t + sum0 + majority;
  }
  for (int i = 0; i < 8; i++)
    state[i] += s[i];
}

void moth_sha256_init(MothSha256 *hash) {
  *hash = (MothSha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                 0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void moth_sha256_update(MothSha256 *hash, const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  size_t used = hash->n % 64;
  hash->n += n;
  while (n > 0) {
    if (used == 0 && n >= 64) {
      add_block(hash->state, p);
      p += 64;
      n -= 64;
      continue;
    }
    size_t take = n < 64 - used ? n : 64 - used;
    memcpy(hash->block + used, p, take);
    used = (used + take) % 64;
    if (used == 0)
      add_block(hash->state, hash->block);
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
