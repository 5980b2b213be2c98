#include "io/seal.h"

#include <string.h>

#include "core/error.h"
#include "io/sha256.h"

enum { PREFIX = 8, DIGITS = 64 };

/* The bytes between the header's length and the digits. */
static const char start[] = "{\"__metadata__\":{\"" MOTH_SEAL_KEY "\":\"";
enum { BEGIN = PREFIX + sizeof start - 1 };

static void finish(MothSha256 *hash, char *digits) {
  uint8_t digest[DIGITS / 2];
  moth_sha256_final(hash, digest);
  for (int i = 0; i < DIGITS / 2; i++) {
    digits[2 * i] = "0123456789abcdef"[digest[i] >> 4];
    digits[2 * i + 1] = "0123456789abcdef"[digest[i] & 15];
  }
}

void moth_seal_set(uint8_t *header, const MothPiece *pieces, int count) {
  MothSha256 hash;
  moth_sha256_init(&hash);
  for (int i = 0; i < count; i++)
    if (pieces[i].n > 0)
      moth_sha256_update(&hash, pieces[i].bytes, pieces[i].n);
  finish(&hash, (char *)header + BEGIN);
}

MothStatus moth_seal_check(const uint8_t *bytes, size_t n) {
  MothSha256 hash;
  char digits[DIGITS];
  if (n < BEGIN + DIGITS || memcmp(bytes + PREFIX, start, sizeof start - 1) != 0)
    return moth_fail(MOTH_ERR_VALUE, "the checksum is not where moth puts it, the file is damaged");
  moth_sha256_init(&hash);
  moth_sha256_update(&hash, bytes, BEGIN);
  moth_sha256_update(&hash, MOTH_SEAL_BLANK, DIGITS);
  moth_sha256_update(&hash, bytes + BEGIN + DIGITS, n - BEGIN - DIGITS);
  finish(&hash, digits);
  if (memcmp(bytes + BEGIN, digits, DIGITS) != 0)
    return moth_fail(MOTH_ERR_VALUE, "checksum mismatch, the file is damaged");
  return MOTH_OK;
}
