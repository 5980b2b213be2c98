/* Checks of src/io, compiled with AddressSanitizer and run by spec/io/io_spec.lua: `io_check GROUP
 * DIR`. Input is copied to the heap at its exact size, so that a read beyond it is seen. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "io/file.h"
#include "io/gunzip.h"
#include "io/idx.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/sha256.h"

static _Atomic int checks, failures;
static const char *dir;

#define CHECK(condition, ...)                                                                      \
  do {                                                                                             \
    checks++;                                                                                      \
    if (!(condition)) {                                                                            \
      failures++;                                                                                  \
      printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                       \
      printf(__VA_ARGS__);                                                                         \
      printf("\n");                                                                                \
    }                                                                                              \
  } while (0)

static void check_fails(MothStatus status, MothStatus expected, const char *message,
                        const char *what) {
  CHECK(status == expected, "%s: status %d, message %s", what, (int)status, moth_last_error());
  CHECK(strstr(moth_last_error(), message) != NULL, "%s: expected \"%s\", got \"%s\"", what,
        message, moth_last_error());
}

static uint8_t *copy(const void *bytes, size_t n) {
  uint8_t *p = malloc(n ? n : 1);
  memcpy(p, bytes, n);
  return p;
}

/* ---- json -------------------------------------------------------------------------------------
 */

static MothStatus read_json(const char *text, size_t n) {
  MothJson json;
  uint8_t *bytes = copy(text, n);
  moth_json_init(&json, bytes, n, NULL);
  MothStatus status = moth_json_skip(&json);
  if (status == MOTH_OK)
    status = moth_json_end(&json);
  free(bytes);
  return status;
}

static void check_string(const char *text, const char *expected, size_t n) {
  MothJson json;
  MothText out;
  size_t size = strlen(text);
  uint8_t *bytes = copy(text, size);
  char *arena = malloc(size);
  moth_json_init(&json, bytes, size, arena);
  MothStatus status = moth_json_string(&json, &out);
  CHECK(status == MOTH_OK, "%s: %s", text, moth_last_error());
  CHECK(status == MOTH_OK && out.n == n && memcmp(out.text, expected, n + 1) == 0, "%s", text);
  if (status == MOTH_OK) {
    char quoted[64];
    MothJson again;
    char again_arena[64];
    MothText back;
    char *end = moth_json_quote(quoted, out.text, out.n);
    CHECK((size_t)(end - quoted) == moth_json_quoted_size(out.text, out.n), "%s", text);
    moth_json_init(&again, (uint8_t *)quoted, (size_t)(end - quoted), again_arena);
    CHECK(moth_json_string(&again, &back) == MOTH_OK && back.n == n &&
              memcmp(back.text, expected, n) == 0,
          "%s again", text);
  }
  free(arena);
  free(bytes);
}

static void check_json(void) {
  static const char *const good[] = {
      "0",
      "-0",
      "1.5e-3",
      " [1, 2,\t[3]] ",
      "{\"a\":{\"b\":[true,false,null]},\"c\":\"\"}",
      "[]",
      "{}",
      "\"\\u00e9\\ud83d\\ude00\\/\"",
      "1E+9",
      "[[],{}]",
      "[0.0]",
      "\n\r\t 7 ",
  };
  static const char *const bad[] = {
      "",
      " ",
      "01",
      "+1",
      "1.",
      ".5",
      "1e",
      "-",
      "[1,]",
      "{\"a\":1,}",
      "[1 2]",
      "{\"a\" 1}",
      "{a:1}",
      "[",
      "]",
      "{",
      "\"",
      "\"\\x\"",
      "\"\\u12\"",
      "\"\\ud800\"",
      "\"\\udc00\"",
      "\"\\ud800\\u0041\"",
      "\"\\ud800\\",
      "tru",
      "nul",
      "truee",
      "1 2",
      "[1}",
      "{\"a\":1]",
      "\"\t\"",
      "\"\xff\"",
      "\"\xc0\x80\"",
      "\"\xed\xa0\x80\"",
      "\"\xf4\x90\x80\x80\"",
      "\"\xe2\x82\"",
      "NaN",
      "Infinity",
      "'a'",
      "[,1]",
      "{,}",
      "{\"a\":}",
      "/**/1",
      "\xef\xbb\xbf"
      "1",
      "0x10",
      "[1,,2]",
      "{\"a\":1,,}",
  };
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    CHECK(read_json(good[i], strlen(good[i])) == MOTH_OK, "%s: %s", good[i], moth_last_error());
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    check_fails(read_json(bad[i], strlen(bad[i])), MOTH_ERR_VALUE, "invalid JSON at byte", bad[i]);
  check_fails(read_json("\0", 1), MOTH_ERR_VALUE, "invalid JSON", "NUL");
  check_fails(read_json("1\0", 2), MOTH_ERR_VALUE, "follows", "NUL behind");

  char deep[200];
  memset(deep, '[', 100);
  memset(deep + 100, ']', 100);
  CHECK(read_json(deep + 100 - MOTH_JSON_MAX_DEPTH, 2 * MOTH_JSON_MAX_DEPTH) == MOTH_OK,
        "at the limit");
  check_fails(read_json(deep, 200), MOTH_ERR_VALUE, "too deep", "deep");
  check_fails(read_json(deep, 100), MOTH_ERR_VALUE, "too deep", "deep and open");

  check_string("\"\"", "", 0);
  check_string("\"a\\\"\\\\\\/\\b\\f\\n\\r\\tz\"", "a\"\\/\b\f\n\r\tz", 10);
  check_string("\"\\u0041\\u00e9\\u20ac\\uD83D\\uDE00\"", "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80",
               10);
  check_string("\"\\u0000x\"", "\0x", 2);
  check_string("\"\x7f\xed\x9f\xbf\xee\x80\x80\"", "\x7f\xed\x9f\xbf\xee\x80\x80", 7);

  static const struct {
    const char *text;
    int64_t value;
  } integers[] = {{"0", 0},
                  {"12", 12},
                  {"-7", -7},
                  {"9223372036854775807", INT64_MAX},
                  {"-9223372036854775808", INT64_MIN}};
  static const char *const no_integers[] = {"1.0",
                                            "1e3",
                                            "9223372036854775808",
                                            "-9223372036854775809",
                                            "99999999999999999999999",
                                            "true",
                                            "\"1\"",
                                            "",
                                            "-",
                                            "007"};
  MothJson json;
  int64_t value = 0;
  for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
    moth_json_init(&json, (const uint8_t *)integers[i].text, strlen(integers[i].text), NULL);
    CHECK(moth_json_integer(&json, &value) == MOTH_OK && value == integers[i].value, "%s",
          integers[i].text);
  }
  for (size_t i = 0; i < sizeof no_integers / sizeof *no_integers; i++) {
    moth_json_init(&json, (const uint8_t *)no_integers[i], strlen(no_integers[i]), NULL);
    check_fails(moth_json_integer(&json, &value), MOTH_ERR_VALUE, "invalid JSON at byte",
                no_integers[i]);
  }
}

/* ---- safetensors ------------------------------------------------------------------------------
 */

/* A file: the header, its length in front, and zeros as data. */
static uint8_t *make_file(const char *header, size_t header_n, size_t data_n, size_t *n) {
  uint8_t *bytes = calloc(1, 8 + header_n + data_n);
  for (int i = 0; i < 8; i++)
    bytes[i] = (uint8_t)((uint64_t)header_n >> (8 * i));
  memcpy(bytes + 8, header, header_n);
  *n = 8 + header_n + data_n;
  return bytes;
}

#define T(name, dtype, shape, begin, end)                                                          \
  "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" begin "," end   \
  "]}"
#define A      T("a", "F32", "2", "0", "8")
#define DIMS16 "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"

static const struct {
  const char *header;
  size_t data;
  const char *message; /* NULL: it is good */
} cases[] = {
    {"{" A "}", 8, NULL},
    {"{" A "}   \n", 8, NULL},
    {"{}", 0, NULL},
    {"{" T("b", "I64", "", "8", "16") "," A "}", 16, NULL}, /* header order is free */
    {"{" T("e", "U8", "0", "0", "0") "," T("f", "F64", "3,0,9", "0", "0") "," A "}", 8, NULL},
    {"{" T("", "BOOL", "3", "0", "3") "}", 3, NULL},
    {"{" T("a", "F16", DIMS16, "0", "2") "}", 2, NULL},
    {"{" T("z", "U8", "0,9223372036854775807,9223372036854775807", "0", "0") "}", 0, NULL},
    {"{\"__metadata__\":{\"format\":\"pt\",\"k\":\"\"}," A "}", 8, NULL},
    {"{" A "}", 9, "1 bytes follow"},
    {"{}", 1, "1 bytes follow"},
    {"{" A "}", 7, "truncated"},
    {"{" A "}x", 8, "something follows"},
    {" {" A "}", 8, "begin with '{'"},
    {"[]", 0, "begin with '{'"},
    {"{" A, 8, "expected ',' or '}'"},
    {"{" A ",}", 8, "comma"},
    {"{" A "," A "}", 8, "occurs twice"},
    {"{" A "," T("\\u0061", "F32", "2", "8", "16") "}", 16, "\"a\" occurs twice"},
    {"{" T("a", "F32", "2", "1", "9") "}", 9, "a hole"},
    {"{" A "," T("b", "F32", "2", "9", "17") "}", 17, "a hole"},
    {"{" A "," T("b", "F32", "2", "4", "12") "}", 12, "an overlap"},
    {"{" A "," T("b", "F32", "2", "0", "8") "}", 8, "an overlap"},
    {"{" T("a", "F32", "2", "8", "0") "}", 8, "offsets are [8, 0]"},
    {"{" T("a", "F32", "2", "0", "4") "}", 4, "needs 8 bytes"},
    {"{" T("a", "F32", "3", "0", "8") "}", 8, "needs 12 bytes"},
    {"{" T("a", "C64", "1", "0", "8") "}", 8, "\"a\" has dtype C64"},
    {"{" T("a", "f32", "1", "0", "4") "}", 4, "dtype f32"},
    {"{" T("a", "F32\\u0000", "1", "0", "4") "}", 4, "dtype F32"},
    {"{" T("a", "U64", "1", "0", "8") "}", 8, "dtype U64"},
    {"{" T("a", "F32", "-2", "0", "8") "}", 8, "negative size"},
    {"{" T("a", "F32", "2", "-8", "0") "}", 8, "negative offset"},
    {"{" T("a", "F32", "2.0", "0", "8") "}", 8, "integer"},
    {"{" T("a", "F32", "2e0", "0", "8") "}", 8, "integer"},
    {"{" T("a", "F32", "\"2\"", "0", "8") "}", 8, "integer"},
    {"{" T("a", "F32", "9223372036854775808", "0", "8") "}", 8, "beyond 64 bits"},
    {"{" T("a", "F32", "4611686018427387904,4", "0", "0") "}", 0, "too large"},
    {"{" T("a", "F32", "2305843009213693952,2", "0", "0") "}", 0, "too large"},
    {"{" T("a", "U8", "9223372036854775807", "0", "9223372036854775807") "}", 8, "truncated"},
    {"{" T("a", "U8", DIMS16 ",1", "0", "1") "}", 1, "more than 16 dimensions"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, "two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, "two numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 8, "no data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, "no shape"},
    {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
     "twice"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"x\":1}}", 8,
     "unknown field \"x\""},
    {"{\"a\":[]}", 0, "expected an object"},
    {"{\"a\":null}", 0, "expected an object"},
    {"{\"a\\u0000b\":{}}", 0, "NUL"},
    {"{\"a\xff\":{}}", 0, "not UTF-8"},
    {"{\"a\\ud800\":{}}", 0, "surrogate"},
    {"{\"__metadata__\":{\"a\":1}}", 0, "expected a string"},
    {"{\"__metadata__\":{\"a\":{}}}", 0, "expected a string"},
    {"{\"__metadata__\":[]}", 0, "expected an object"},
    {"{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0, "metadata key \"a\" occurs twice"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ occurs twice"},
    {"{\"__metadata__\":{\"a\":\"x\\u0000\"}}", 0, "NUL"},
    {"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0,
     "expected an object"},
};

static void check_safetensors_cases(void) {
  MothSafetensors *file;
  size_t n;
  int bad = 0;
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    uint8_t *bytes = make_file(cases[i].header, strlen(cases[i].header), cases[i].data, &n);
    MothStatus status = moth_safetensors_parse(bytes, n, &file);
    if (cases[i].message) {
      bad++;
      check_fails(status, MOTH_ERR_VALUE, cases[i].message, cases[i].header);
      CHECK(!file, "%s", cases[i].header);
    } else {
      CHECK(status == MOTH_OK, "%s: %s", cases[i].header, moth_last_error());
      moth_safetensors_free(file);
    }
    free(bytes);
  }
  CHECK(bad >= 25, "only %d bad files", bad);

  static const struct {
    uint8_t bytes[12];
    size_t n;
    const char *message;
  } raw[] = {
      {{0}, 0, "no safetensors file"},
      {{2, 0, 0}, 7, "no safetensors file"},
      {{0}, 8, "begin with '{'"},
      {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, "truncated"},
      {{1, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, "invalid JSON"},
      {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '{', '}'}, 10, "too large"},
      {{0, 0, 0, 0, 0, 0, 0, 0x80, '{', '}'}, 10, "too large"},
      {{0x00, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, '{', '}'}, 10, "truncated"}, /* 100 000 000 */
      {{0x01, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, '{', '}'}, 10, "too large"},
  };
  for (size_t i = 0; i < sizeof raw / sizeof *raw; i++) {
    uint8_t *bytes = copy(raw[i].bytes, raw[i].n);
    check_fails(moth_safetensors_parse(bytes, raw[i].n, &file), MOTH_ERR_VALUE, raw[i].message,
                "raw");
    free(bytes);
  }
  moth_safetensors_free(NULL);
}

static uint8_t *make_sample(size_t *n) {
  static MothSafetensorsEntry entries[] = {
      {.name = "w", .dtype = MOTH_FLOAT32, .ndim = 2, .shape = {2, 3}},
      {.name = "\xc3\xa9\"\\\n", .dtype = MOTH_BFLOAT16, .ndim = 0},
      {.name = "empty", .dtype = MOTH_INT64, .ndim = 2, .shape = {4, 0}},
      {.name = "last", .dtype = MOTH_BOOL, .ndim = 1, .shape = {5}},
  };
  static const MothSafetensorsPair metadata[] = {{"format", "moth"},
                                                 {"\xe2\x82\xac", "a \"quoted\"\x01 text"}};
  uint8_t *header;
  size_t header_n;
  CHECK(moth_safetensors_header(entries, 4, metadata, 2, &header, &header_n) == MOTH_OK, "%s",
        moth_last_error());
  CHECK(header_n % 8 == 0, "%zu", header_n);
  CHECK(entries[0].begin == (int64_t)header_n && entries[3].end == (int64_t)header_n + 31,
        "%" PRId64, entries[3].end);
  *n = header_n + 31;
  uint8_t *bytes = calloc(1, *n);
  memcpy(bytes, header, header_n);
  moth_safetensors_header_free(header);
  return bytes;
}

static void check_safetensors_write(void) {
  size_t n;
  MothSafetensors *file = NULL;
  uint8_t *bytes = make_sample(&n);
  CHECK(moth_safetensors_parse(bytes, n, &file) == MOTH_OK, "%s", moth_last_error());
  free(bytes); /* nothing may point into it */
  if (!file)
    return;
  CHECK(file->count == 4 && file->metadata_count == 2, "%" PRId64, file->count);
  CHECK(strcmp(file->entries[1].name, "\xc3\xa9\"\\\n") == 0, "%s", file->entries[1].name);
  CHECK(strcmp(file->metadata[1].value, "a \"quoted\"\x01 text") == 0, "%s",
        file->metadata[1].value);
  CHECK(file->entries[0].dtype == MOTH_FLOAT32 && file->entries[0].shape[1] == 3, "entry 0");
  CHECK(strcmp(file->entries[2].name, "empty") == 0 &&
            file->entries[2].begin == file->entries[2].end,
        "empty");
  CHECK(file->entries[3].end == (int64_t)n && file->entries[3].begin == (int64_t)n - 5, "entry 3");
  moth_safetensors_free(file);

  uint8_t *header;
  size_t header_n;
  MothSafetensorsEntry e[2] = {{.name = "a", .dtype = MOTH_UINT8},
                               {.name = "a", .dtype = MOTH_UINT8}};
  check_fails(moth_safetensors_header(e, 2, NULL, 0, &header, &header_n), MOTH_ERR_VALUE, "twice",
              "names");
  e[0].name = "__metadata__";
  check_fails(moth_safetensors_header(e, 1, NULL, 0, &header, &header_n), MOTH_ERR_VALUE, "named",
              "name");
  e[0].name = "\xff";
  check_fails(moth_safetensors_header(e, 1, NULL, 0, &header, &header_n), MOTH_ERR_VALUE, "UTF-8",
              "utf8");
  e[0] = (MothSafetensorsEntry){.name = "n", .dtype = MOTH_FLOAT64, .ndim = 1, .shape = {-1}};
  check_fails(moth_safetensors_header(e, 1, NULL, 0, &header, &header_n), MOTH_ERR_VALUE,
              "negative", "size");
  e[0].shape[0] = INT64_MAX / 4;
  check_fails(moth_safetensors_header(e, 1, NULL, 0, &header, &header_n), MOTH_ERR_VALUE,
              "too large", "size");
  e[0].shape[0] = INT64_MAX / 8;
  check_fails(moth_safetensors_header(e, 1, NULL, 0, &header, &header_n), MOTH_ERR_VALUE,
              "too large", "size");
  e[0].ndim = 17;
  check_fails(moth_safetensors_header(e, 1, NULL, 0, &header, &header_n), MOTH_ERR_VALUE,
              "dimensions", "17");
  CHECK(moth_safetensors_header(NULL, 0, NULL, 0, &header, &header_n) == MOTH_OK && header_n == 16,
        "empty");
  moth_safetensors_header_free(header);
}

/* Every truncation is refused; a flipped bit gives an error or a file that is consistent in itself.
 */
static void check_safetensors_damage(void) {
  size_t n;
  MothSafetensors *file;
  uint8_t *bytes = make_sample(&n);
  for (size_t k = 0; k < n; k++) {
    uint8_t *part = copy(bytes, k);
    CHECK(moth_safetensors_parse(part, k, &file) == MOTH_ERR_VALUE, "%zu of %zu bytes", k, n);
    free(part);
  }
  for (size_t bit = 0; bit < 8 * n; bit++) {
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
    MothStatus status = moth_safetensors_parse(bytes, n, &file);
    CHECK(status == MOTH_OK || (status == MOTH_ERR_VALUE && !file), "bit %zu: %d", bit,
          (int)status);
    if (status == MOTH_OK) {
      int64_t end = file->count ? file->entries[0].begin : 0;
      for (int64_t i = 0; i < file->count; end = file->entries[i++].end)
        CHECK(file->entries[i].begin == end && file->entries[i].end <= (int64_t)n, "bit %zu", bit);
      moth_safetensors_free(file);
    }
    bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
  }
  free(bytes);
}

/* ---- idx, sha256, gunzip ----------------------------------------------------------------------
 */

static void check_idx(void) {
  static const uint8_t good[] = {0, 0, 0x0b, 2, 0, 0, 0, 2, 0, 0, 0, 1, 0x12, 0x34, 0xff, 0xfe};
  MothIdx idx;
  int16_t values[2] = {0};
  uint8_t *bytes = copy(good, sizeof good);
  CHECK(moth_idx_parse(bytes, sizeof good, &idx) == MOTH_OK, "%s", moth_last_error());
  CHECK(idx.dtype == MOTH_INT16 && idx.ndim == 2 && idx.shape[0] == 2 && idx.shape[1] == 1,
        "shape");
  moth_idx_copy(&idx, values);
  CHECK(values[0] == 0x1234 && values[1] == -2, "%d %d", values[0], values[1]);
  for (size_t k = 0; k < sizeof good; k++) {
    uint8_t *part = copy(good, k);
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
    bytes = copy(bad[i].bytes, bad[i].n);
    check_fails(moth_idx_parse(bytes, bad[i].n, &idx), MOTH_ERR_VALUE, bad[i].message, "idx");
    free(bytes);
  }
}

static void check_sha256(void) {
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

static void check_gunzip(void) {
  uint8_t two[200], *out;
  size_t n, first = put_member(two, "hello, "), end = first + put_member(two + first, "moth");
  uint8_t *bytes = copy(two, end);
  CHECK(moth_gunzip(bytes, end, 100, &out, &n) == MOTH_OK, "%s", moth_last_error());
  CHECK(out && n == 11 && memcmp(out, "hello, moth", 11) == 0, "%zu", n);
  moth_gunzip_free(out);
  CHECK(moth_gunzip(bytes, end, 11, &out, &n) == MOTH_OK && n == 11, "exactly the cap");
  moth_gunzip_free(out);
  check_fails(moth_gunzip(bytes, end, 10, &out, &n), MOTH_ERR_VALUE, "allowed 10 bytes", "cap");
  CHECK(moth_gunzip(bytes, end, SIZE_MAX, &out, &n) == MOTH_OK, "no cap");
  moth_gunzip_free(out);
  for (size_t k = 0; k < end; k++) {
    uint8_t *part = copy(bytes, k);
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

/* ---- files ------------------------------------------------------------------------------------
 */

/* System calls that can be told to fail: the k-th from now on, `error` < 0 meaning something
 * milder. */
enum { SHORT_WRITE = -1, ZERO_WRITE = -2 };
enum { CALL_WRITE, CALL_FSYNC, CALL_RENAME, CALL_FCHMOD, CALL_OPENAT, CALLS };
static struct { int countdown, error, seen; } fault[CALLS];

static int strikes(int call) {
  fault[call].seen++;
  if (fault[call].countdown == 0 || --fault[call].countdown > 0)
    return 0;
  errno = fault[call].error;
  return 1;
}

ssize_t __real_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n);
ssize_t __wrap_write(int fd, const void *bytes, size_t n) {
  if (fault[CALL_WRITE].error == SHORT_WRITE)
    return __real_write(fd, bytes, n > 3 ? 3 : n);
  if (fault[CALL_WRITE].error == ZERO_WRITE)
    return 0;
  return strikes(CALL_WRITE) ? -1 : __real_write(fd, bytes, n);
}
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
  return strikes(CALL_FSYNC) ? -1 : __real_fsync(fd);
}
int __real_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to);
int __wrap_renameat(int from_dir, const char *from, int to_dir, const char *to) {
  return strikes(CALL_RENAME) ? -1 : __real_renameat(from_dir, from, to_dir, to);
}
int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode) {
  return strikes(CALL_FCHMOD) ? -1 : __real_fchmod(fd, mode);
}
int __real_openat(int folder, const char *name, int flags, mode_t mode);
int __wrap_openat(int folder, const char *name, int flags, mode_t mode);
int __wrap_openat(int folder, const char *name, int flags, mode_t mode) {
  return strikes(CALL_OPENAT) ? -1 : __real_openat(folder, name, flags, mode);
}

static const char *path_of(const char *name) {
  static char path[4][600];
  static int next;
  char *p = path[next++ % 4];
  snprintf(p, sizeof *path, "%s/%s", dir, name);
  return p;
}

static MothStatus write_text(const char *path, const char *text) {
  size_t half = strlen(text) / 2;
  MothPiece pieces[] = {{text, half}, {NULL, 0}, {text + half, strlen(text) - half}};
  return moth_file_write_atomic(path, pieces, 3);
}

static bool holds(const char *path, const char *text) {
  MothFileMap map;
  if (moth_file_map(path, &map) != MOTH_OK)
    return false;
  bool same = map.size == (int64_t)strlen(text) && memcmp(map.bytes, text, strlen(text)) == 0;
  moth_file_unmap(&map);
  return same;
}

static int count_files(void) {
  char command[700];
  int n = -1;
  snprintf(command, sizeof command, "ls -A '%s' | wc -l", dir);
  FILE *pipe = popen(command, "r");
  if (!pipe || fscanf(pipe, "%d", &n) != 1)
    n = -1;
  if (pipe)
    pclose(pipe);
  return n;
}

static unsigned mode_of(const char *path) {
  struct stat info;
  return stat(path, &info) == 0 ? info.st_mode & 07777 : 0;
}

static void check_map(void) {
  MothFileMap map;
  CHECK(write_text(path_of("empty"), "") == MOTH_OK, "%s", moth_last_error());
  CHECK(moth_file_map(path_of("empty"), &map) == MOTH_OK && map.size == 0 && map.bytes, "empty");
  moth_file_unmap(&map);
  moth_file_unmap(&map);
  check_fails(moth_file_map(path_of("none"), &map), MOTH_ERR_IO, "No such file", "none");
  CHECK(strstr(moth_last_error(), path_of("none")) != NULL, "%s", moth_last_error());
  check_fails(moth_file_map(dir, &map), MOTH_ERR_IO, "not a regular file", "folder");
  check_fails(moth_file_map("/dev/zero", &map), MOTH_ERR_IO, "not a regular file", "device");
  CHECK(mkfifo(path_of("fifo"), 0600) == 0, "fifo");
  check_fails(moth_file_map(path_of("fifo"), &map), MOTH_ERR_IO, "not a regular file", "fifo");
}

static void touch(const char *name) {
  FILE *file = fopen(path_of(name), "w");
  if (file)
    fclose(file);
}

static bool exists(const char *name) {
  return access(path_of(name), F_OK) == 0;
}

static void check_write(void) {
  char path[600];
  snprintf(path, sizeof path, "%s/file", dir);
  struct stat info;
  umask(027);
  CHECK(write_text(path, "one") == MOTH_OK && holds(path, "one"), "%s", moth_last_error());
  CHECK(mode_of(path) == 0640, "%o", mode_of(path));
  chmod(path, 0600);
  CHECK(write_text(path, "two and more") == MOTH_OK && holds(path, "two and more"), "%s",
        moth_last_error());
  CHECK(mode_of(path) == 0600, "%o", mode_of(path));
  CHECK(count_files() == 1, "%d files", count_files());

  CHECK(symlink("file", path_of("link")) == 0 && write_text(path_of("link"), "3") == MOTH_OK,
        "link");
  CHECK(lstat(path_of("link"), &info) == 0 && S_ISLNK(info.st_mode) && holds(path_of("file"), "3"),
        "link");

  CHECK(mkfifo(path_of("fifo"), 0600) == 0, "fifo");
  check_fails(write_text(path_of("fifo"), "x"), MOTH_ERR_IO, "not a regular file", "fifo");
  unlink(path_of("fifo"));
  check_fails(write_text(dir, "x"), MOTH_ERR_IO, "not a regular file", "folder");
  check_fails(write_text(path_of(""), "x"), MOTH_ERR_IO, "not a regular file", "folder/");
  check_fails(write_text(path_of("no/file"), "x"), MOTH_ERR_IO, "No such file", "no folder");
  check_fails(write_text("", "x"), MOTH_ERR_IO, "cannot", "empty path");
  char longest[256], too_long[257];
  memset(longest, 'x', 255);
  longest[255] = 0;
  memset(too_long, 'x', 256);
  too_long[256] = 0;
  CHECK(write_text(path_of(longest), "x") == MOTH_OK, "%s", moth_last_error());
  unlink(path_of(longest));
  check_fails(write_text(path_of(too_long), "x"), MOTH_ERR_IO, "too long", "name");
  CHECK(count_files() == 2, "%d files", count_files());

  char here[512];
  CHECK(getcwd(here, sizeof here) && chdir(dir) == 0, "chdir");
  CHECK(write_text("file", "relative") == MOTH_OK && holds("file", "relative"), "%s",
        moth_last_error());
  CHECK(chdir(here) == 0, "chdir");

  pid_t dead = fork();
  if (dead == 0)
    _exit(0);
  waitpid(dead, NULL, 0);
  pid_t zombie = fork();
  if (zombie == 0)
    _exit(0);
  siginfo_t how;
  waitid(P_PID, (id_t)zombie, &how, WEXITED | WNOWAIT); /* dead, and not reaped */
  static const char *const kept[] = {".file.tmp.1.0", ".file.tmp.x.0", ".file.tmp.4000000",
                                     ".file.tmp.-5.1"};
  char name[64];
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
    touch(kept[i]);
  snprintf(name, sizeof name, ".other.tmp.%d.0", (int)dead);
  touch(name);
  snprintf(name, sizeof name, ".file.tmp.%d.0x", (int)dead);
  touch(name);
  snprintf(name, sizeof name, ".file.tmp.%d.7", (int)dead);
  touch(name);
  char own[64];
  snprintf(own, sizeof own, ".file.tmp.%d.999999", (int)getpid());
  touch(own);
  char unreaped[64];
  snprintf(unreaped, sizeof unreaped, ".file.tmp.%d.1", (int)zombie);
  touch(unreaped);
  CHECK(write_text(path, "swept") == MOTH_OK, "%s", moth_last_error());
  CHECK(!exists(name) && !exists(own), "%s and %s should have been swept", name, own);
  CHECK(!exists(unreaped), "%s of a zombie should have been swept", unreaped);
  waitpid(zombie, NULL, 0);
  CHECK(count_files() == 2 + 6, "%d files", count_files());
}

static void check_faults(void) {
  static const struct {
    int call, error;
    const char *message;
  } faults[] = {
      {CALL_WRITE, ENOSPC, "No space"},      {CALL_WRITE, EIO, "Input/output"},
      {CALL_WRITE, EFBIG, "File too large"}, {CALL_FSYNC, EIO, "Input/output"},
      {CALL_FSYNC, ENOSPC, "No space"},      {CALL_RENAME, EXDEV, "cross-device"},
      {CALL_RENAME, EACCES, "Permission"},   {CALL_FCHMOD, EPERM, "permitted"},
      {CALL_OPENAT, EMFILE, "open files"},
  };
  char path[600];
  snprintf(path, sizeof path, "%s/file", dir);
  CHECK(write_text(path, "old content") == MOTH_OK, "%s", moth_last_error());
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
    for (int k = 1;; k++) {
      int call = faults[i].call;
      fault[call].countdown = k;
      fault[call].error = faults[i].error;
      fault[call].seen = 0;
      MothStatus status = write_text(path, "new content!");
      bool struck = fault[call].countdown == 0;
      fault[call].countdown = 0;
      fault[call].error = 0;
      if (!struck) {
        CHECK(status == MOTH_OK && holds(path, "new content!"), "%s", moth_last_error());
        CHECK(write_text(path, "old content") == MOTH_OK, "%s", moth_last_error());
        break;
      }
      if (call == CALL_OPENAT && status == MOTH_OK) { /* only the sweep was hindered */
        CHECK(write_text(path, "old content") == MOTH_OK, "%s", moth_last_error());
        continue;
      }
      check_fails(status, MOTH_ERR_IO, faults[i].message, "fault");
      CHECK(strstr(moth_last_error(), path) != NULL, "no path in %s", moth_last_error());
      bool after_rename = call == CALL_FSYNC && k == 2;
      CHECK(holds(path, after_rename ? "new content!" : "old content"), "fault %zu at %d", i, k);
      CHECK(count_files() == 1, "%d files after fault %zu at %d", count_files(), i, k);
    }
  for (int call = CALL_WRITE; call <= CALL_FSYNC; call++)
    for (int k = 1; k <= 2; k++) {
      fault[call].countdown = k;
      fault[call].error = EINTR;
      CHECK(write_text(path, "interrupted") == MOTH_OK && holds(path, "interrupted"), "%s",
            moth_last_error());
      CHECK(fault[call].countdown == 0, "no call %d", call);
    }
  fault[CALL_WRITE].error = SHORT_WRITE;
  CHECK(write_text(path, "in many short writes") == MOTH_OK, "%s", moth_last_error());
  CHECK(holds(path, "in many short writes"), "short writes");
  fault[CALL_WRITE].error = ZERO_WRITE;
  check_fails(write_text(path, "x"), MOTH_ERR_IO, "takes no more", "zero");
  fault[CALL_WRITE].error = 0;
  CHECK(holds(path, "in many short writes") && count_files() == 1, "zero");
}

static void *write_often(void *text) {
  char path[600];
  snprintf(path, sizeof path, "%s/shared", dir);
  for (int i = 0; i < 200; i++)
    CHECK(write_text(path, text) == MOTH_OK, "%s", moth_last_error());
  return NULL;
}

/* Killed at any time, or with several writers, the file is one of the versions and nothing is left.
 */
static void check_kill(void) {
  enum { SIZE = 400000 };
  char path[600];
  snprintf(path, sizeof path, "%s/file", dir);
  char *content = malloc(SIZE + 1);
  content[SIZE] = 0;
  memset(content, 'a', SIZE);
  CHECK(write_text(path, content) == MOTH_OK, "%s", moth_last_error());
  int lost = 0;
  for (int i = 0; i < 100; i++) {
    pid_t child = fork();
    if (child == 0) {
      for (int k = 0;; k++) {
        memset(content, 'b' + k % 20, SIZE);
        write_text(path, content);
      }
    }
    usleep((useconds_t)(i * 50));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    MothFileMap map;
    if (moth_file_map(path, &map) != MOTH_OK || map.size != SIZE) {
      lost++;
      continue;
    }
    for (int k = 1; k < SIZE; k++)
      if (map.bytes[k] != map.bytes[0]) {
        lost++;
        break;
      }
    moth_file_unmap(&map);
  }
  CHECK(lost == 0, "%d of 100 lost", lost);
  CHECK(write_text(path, "end") == MOTH_OK && count_files() == 1, "%d files", count_files());
  free(content);

  pthread_t threads[4];
  static char texts[4][8] = {"one", "two", "three", "four"};
  for (int i = 0; i < 4; i++)
    pthread_create(&threads[i], NULL, write_often, texts[i]);
  for (int i = 0; i < 4; i++)
    pthread_join(threads[i], NULL);
  CHECK(count_files() == 2, "%d files", count_files());
}

static void check_signals(void) {
  struct sigaction action;
  moth_io_init();
  sigaction(SIGXFSZ, NULL, &action);
  CHECK(action.sa_handler == SIG_IGN, "SIGXFSZ");
  signal(SIGPIPE, exit);
  moth_io_init();
  sigaction(SIGPIPE, NULL, &action);
  CHECK(action.sa_handler == exit, "a handler of the host");
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
      {"gunzip", check_gunzip},
      {"map", check_map},
      {"write", check_write},
      {"faults", check_faults},
      {"kill", check_kill},
      {"signals", check_signals},
  };
  dir = argc > 2 ? argv[2] : ".";
  for (size_t i = 0; argc > 1 && i < sizeof groups / sizeof *groups; i++)
    if (strcmp(argv[1], groups[i].name) == 0)
      groups[i].check();
  printf("%d checks, %d failures\n", checks, failures);
  return checks > 0 && failures == 0 ? 0 : 1;
}
