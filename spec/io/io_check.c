/* Checks of src/io, compiled with AddressSanitizer and run by spec/io/io_spec.lua: `io_check GROUP
 * DIR`. Input is copied to the heap at its exact size, so that a read beyond it is seen. */
#include "io_check.h"

#include <stdlib.h>
#include <string.h>

#include "io/crc32.h"
#include "io/gunzip.h"
#include "io/idx.h"
#include "io/sha256.h"

_Atomic int io_checks, io_failures;
const char *io_check_dir;

void check_fails(MothStatus status, MothStatus expected, const char *message, const char *what) {
  CHECK(status == expected, "%s: status %d, message %s", what, (int)status, moth_last_error());
  CHECK(strstr(moth_last_error(), message) != NULL, "%s: expected \"%s\", got \"%s\"", what,
        message, moth_last_error());
}

uint8_t *copy_of(const void *bytes, size_t n) {
  uint8_t *p = malloc(n ? n : 1);
  memcpy(p, bytes, n);
  return p;
}

/* ---- idx, sha256, gunzip ----------------------------------------------------------------------
 */

void check_idx(void) {
  static const uint8_t good[] = {0, 0, 0x0b, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0x12, 0x34, 0xff, 0xfe};
  MothIdx idx;
  int16_t values[2] = {0};
  uint8_t *bytes = copy_of(good, sizeof good);
  CHECK(moth_idx_parse(bytes, sizeof good, &idx) == MOTH_OK, "%s", moth_last_error());
  CHECK(idx.dtype == MOTH_INT16 && idx.ndim == 2 && idx.shape[0] == 2 && idx.shape[1] == 1,
        "shape");
  moth_idx_copy(&idx, values);
  CHECK(values[0] == 0x1234 && values[1] == -2, "%d %d", values[0], values[1]);
  for (size_t k = 0; k < sizeof good; k++) {
    uint8_t *part = copy_of(good, k);
    CHECK(moth_idx_parse(part, k, &idx) == MOTH_ERR_VALUE, "%zu bytes", k);
    free(part);
  }
  for (size_t bit = 0; bit < 8 * sizeof good; bit++) {
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    MothStatus status = moth_idx_parse(bytes, sizeof good, &idx);
    CHECK((status == MOTH_OK) == (bit >= 12 * 8), "bit %zu", bit); /* only the data may change */
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
  free(bytes);
  static const struct {
    uint8_t bytes[24];
    size_t n;
    const char *message;
  } bad[] = {
      {{0, 0, 8, 1, 0, 0, 0, 2, 1, 2, 3}, 11, "needs 2 bytes"},
      {{0, 0, 8, 1, 0, 0, 0, 2, 1}, 9, "truncated"},
      {{0, 0, 8, 0, 1}, 5, "0 dimensions"},
      {{0, 0, 8, 17}, 24, "17 dimensions"},
      {{0, 0, 0x0a, 1, 0, 0, 0, 0}, 8, "unknown type 0x0a"},
      {{1, 0, 8, 1, 0, 0, 0, 0}, 8, "not an IDX"},
      {{0x1f, 0x8b, 8, 1, 0, 0, 0, 0}, 8, "not an IDX"},
      {{0, 0, 0x0e, 2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, 12, "too large"},
  };
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    bytes = copy_of(bad[i].bytes, bad[i].n);
    check_fails(moth_idx_parse(bytes, bad[i].n, &idx), MOTH_ERR_VALUE, bad[i].message, "idx");
    free(bytes);
  }
}

void check_sha256(void) {
  char hex[65], *million = malloc(1000000);
  moth_sha256_hex("", 0, hex);
  CHECK(!strcmp(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"), "%s",
        hex);
  moth_sha256_hex("abc", 3, hex);
  CHECK(!strcmp(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"), "%s",
        hex);
  moth_sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 56, hex);
  CHECK(!strcmp(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"), "%s",
        hex);
  memset(million, 'a', 1000000);
  moth_sha256_hex(million, 1000000, hex);
  CHECK(!strcmp(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"), "%s",
        hex);
  for (size_t n = 0; n < 200; n++) { /* in pieces it is the same */
    MothSha256 hash;
    uint8_t whole[32], pieces[32];
    moth_sha256_init(&hash);
    moth_sha256_update(&hash, million, n);
    moth_sha256_final(&hash, whole);
    moth_sha256_init(&hash);
    for (size_t at = 0, step = 1; at < n; at += step, step = step * 3 % 70 + 1)
      moth_sha256_update(&hash, million, step < n - at ? step : n - at);
    moth_sha256_final(&hash, pieces);
    CHECK(memcmp(whole, pieces, 32) == 0, "%zu bytes", n);
  }
  free(million);
}

static uint32_t crc32_of(const char *bytes, size_t n) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < n; i++) {
    crc ^= (uint8_t)bytes[i];
    for (int k = 0; k < 8; k++)
      crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

void check_crc32(void) {
  enum { MOST = 3000 };
  char *bytes = malloc(MOST);
  CHECK(moth_crc32(0, "123456789", 9) == 0xcbf43926u, "the check value");
  for (size_t i = 0; i < MOST; i++)
    bytes[i] = (char)(i * i * 7 + i);
  for (size_t n = 0; n < MOST; n += n < 300 ? 1 : 97)
    for (size_t from = 0; from < 3 && from <= n; from++) { /* any alignment */
      uint32_t expected = crc32_of(bytes + from, n - from);
      CHECK(moth_crc32(0, bytes + from, n - from) == expected, "%zu bytes from %zu", n, from);
      size_t half = (n - from) / 3;
      uint32_t first = moth_crc32(0, bytes + from, half);
      CHECK(moth_crc32(first, bytes + from + half, n - from - half) == expected, "%zu in two", n);
    }
  free(bytes);
}

/* A gzip member with one stored block. */
static size_t put_member(uint8_t *out, const char *text) {
  static const uint8_t start[] = {0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 1};
  size_t n = strlen(text);
  uint32_t crc = crc32_of(text, n);
  memcpy(out, start, sizeof start);
  uint8_t *p = out + sizeof start;
  *p++ = (uint8_t)n;
  *p++ = 0;
  *p++ = (uint8_t)~n;
  *p++ = 0xff;
  memcpy(p, text, n);
  p += n;
  for (int i = 0; i < 4; i++)
    *p++ = (uint8_t)(crc >> (8 * i));
  *p++ = (uint8_t)n;
  memset(p, 0, 3);
  return (size_t)(p + 3 - out);
}

void check_gunzip(void) {
  uint8_t two[200], *out;
  size_t n, first = put_member(two, "hello, "), end = first + put_member(two + first, "moth");
  uint8_t *bytes = copy_of(two, end);
  CHECK(moth_gunzip(bytes, end, 100, &out, &n) == MOTH_OK, "%s", moth_last_error());
  CHECK(out && n == 11 && memcmp(out, "hello, moth", 11) == 0, "%zu", n);
  moth_gunzip_free(out);
  CHECK(moth_gunzip(bytes, end, 11, &out, &n) == MOTH_OK && n == 11, "exactly the cap");
  moth_gunzip_free(out);
  check_fails(moth_gunzip(bytes, end, 10, &out, &n), MOTH_ERR_VALUE, "allowed 10 bytes", "cap");
  CHECK(moth_gunzip(bytes, end, SIZE_MAX, &out, &n) == MOTH_OK, "no cap");
  moth_gunzip_free(out);
  for (size_t k = 0; k < end; k++) {
    uint8_t *part = copy_of(bytes, k);
    MothStatus status = moth_gunzip(part, k, 100, &out, &n);
    CHECK(status == (k == first ? MOTH_OK : MOTH_ERR_VALUE), "%zu of %zu bytes: %d", k, end,
          (int)status);
    moth_gunzip_free(out);
    free(part);
  }
  for (size_t bit = 0; bit < 8 * end; bit++) {
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    MothStatus status = moth_gunzip(bytes, end, 100, &out, &n);
    CHECK(status == MOTH_ERR_VALUE ||
              (status == MOTH_OK && n == 11 && !memcmp(out, "hello, moth", 11)),
          "bit %zu: %d", bit, (int)status);
    moth_gunzip_free(out);
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
  free(bytes);
  memcpy(two + end, "xyz", 3);
  check_fails(moth_gunzip(two, end + 3, 100, &out, &n), MOTH_ERR_VALUE, "something else follows",
              "rest");
  check_fails(moth_gunzip((const uint8_t *)"PK\3\4", 4, 100, &out, &n), MOTH_ERR_VALUE, "not gzip",
              "zip");

  FILE *gzip = popen("head -c 20000000 /dev/zero | gzip -9", "r");
  uint8_t *bomb = malloc(100000);
  size_t bomb_n = gzip ? fread(bomb, 1, 100000, gzip) : 0;
  CHECK(gzip && pclose(gzip) == 0, "gzip");
  CHECK(moth_gunzip(bomb, bomb_n, 20000000, &out, &n) == MOTH_OK && n == 20000000, "%s",
        moth_last_error());
  moth_gunzip_free(out);
  check_fails(moth_gunzip(bomb, bomb_n, 19999999, &out, &n), MOTH_ERR_VALUE, "allowed", "bomb");
  check_fails(moth_gunzip(bomb, bomb_n - 9, 20000000, &out, &n), MOTH_ERR_VALUE, "truncated",
              "bomb");
  free(bomb);
}

int main(int argc, char **argv) {
  static const struct {
    const char *name;
    void (*check)(void);
  } groups[] = {
      {"json", check_json},
      {"safetensors_cases", check_safetensors_cases},
      {"safetensors_write", check_safetensors_write},
      {"safetensors_damage", check_safetensors_damage},
      {"idx", check_idx},
      {"sha256", check_sha256},
      {"crc32", check_crc32},
      {"gunzip", check_gunzip},
      {"map", check_map},
      {"write", check_write},
      {"faults", check_faults},
      {"kill", check_kill},
      {"signals", check_signals},
  };
  io_check_dir = argc > 2 ? argv[2] : ".";
  for (size_t i = 0; argc > 1 && i < sizeof groups / sizeof *groups; i++)
    if (strcmp(argv[1], groups[i].name) == 0)
      groups[i].check();
  printf("%d checks, %d failures\n", io_checks, io_failures);
  return io_checks > 0 && io_failures == 0 ? 0 : 1;
}
