#include "io/seal.h"

#include <string.h>

#include "core/error.h"
#include "io/crc32.h"
#include "io/sha256.h"
#include "io/zlib.h"

enum { PREFIX = 8, DIGITS = 64, BLOCK = 1 << 20 };

/* The bytes between the header's length and the digits. */
#define START(key) "{\"__metadata__\":{\"" key "\":\""
static const char start_sha256[] = START(MOTH_SEAL_SHA256), start_crc32[] = START(MOTH_SEAL_CRC32);

typedef struct Hash {
  bool is_crc;
  size_t begin;  /* where the digits are */
  size_t filled; /* bytes of this block */
  uint32_t crc;
  MothSha256 sha;
} Hash;

/* false: the bytes have no seal where it must be. */
static bool begin(Hash *hash, const uint8_t *bytes, size_t n) {
  *hash = (Hash){.is_crc = false, .begin = PREFIX + sizeof start_sha256 - 1};
  moth_sha256_init(&hash->sha);
  if (n >= hash->begin + DIGITS &&
      memcmp(bytes + PREFIX, start_sha256, sizeof start_sha256 - 1) == 0)
    return true;
  hash->is_crc = true;
  hash->begin = PREFIX + sizeof start_crc32 - 1;
  return n >= hash->begin + DIGITS &&
         memcmp(bytes + PREFIX, start_crc32, sizeof start_crc32 - 1) == 0;
}

static void end_block(Hash *hash) {
  uint8_t word[4];
  for (int i = 0; i < 4; i++)
    word[i] = (uint8_t)(hash->crc >> (8 * i));
  moth_sha256_update(&hash->sha, word, sizeof word);
  hash->crc = 0;
  hash->filled = 0;
}

static void add(Hash *hash, const void *bytes, size_t n) {
  const uint8_t *p = bytes;
  if (!hash->is_crc) {
    if (n > 0)
      moth_sha256_update(&hash->sha, p, n);
    return;
  }
  while (n > 0) {
    size_t take = n < BLOCK - hash->filled ? n : BLOCK - hash->filled;
    hash->crc = moth_crc32(hash->crc, p, take);
    hash->filled += take;
    p += take;
    n -= take;
    if (hash->filled == BLOCK)
      end_block(hash);
  }
}

static void finish(Hash *hash, char *digits) {
  uint8_t digest[DIGITS / 2];
  if (hash->is_crc && hash->filled > 0)
    end_block(hash);
  moth_sha256_final(&hash->sha, digest);
  for (int i = 0; i < DIGITS / 2; i++) {
    digits[2 * i] = "0123456789abcdef"[digest[i] >> 4];
    digits[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
  }
}

void moth_seal_set(uint8_t *header, const MothPiece *pieces, int count) {
  Hash hash;
  if (!begin(&hash, header, pieces[0].n))
    return;
  for (int i = 0; i < count; i++)
    add(&hash, pieces[i].bytes, pieces[i].n);
  finish(&hash, (char *)header + hash.begin);
}

MothStatus moth_seal_check(const uint8_t *bytes, size_t n) {
  Hash hash;
  char digits[DIGITS];
  if (!begin(&hash, bytes, n))
    return moth_fail(MOTH_ERR_VALUE, "the checksum is not where moth puts it, the file is damaged");
  add(&hash, bytes, hash.begin);
  add(&hash, MOTH_SEAL_BLANK, DIGITS);
  for (size_t at = hash.begin + DIGITS; at < n; at += MOTH_Z_CHUNK) {
    MOTH_TRY(moth_z_look());
    add(&hash, bytes + at, n - at < MOTH_Z_CHUNK ? n - at : MOTH_Z_CHUNK);
  }
  finish(&hash, digits);
  if (memcmp(bytes + hash.begin, digits, DIGITS) != 0)
    return moth_fail(MOTH_ERR_VALUE, "checksum mismatch, the file is damaged");
  return MOTH_OK;
}
