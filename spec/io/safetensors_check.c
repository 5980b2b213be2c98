/* Checks of JSON and safetensors. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "io/json.h"
#include "io/safetensors.h"
#include "io_check.h"

/* ---- json -------------------------------------------------------------------------------------
 */

static MothStatus read_json(const char *text, size_t n) {
  MothJson json;
  uint8_t *bytes = copy_of(text, n);
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
  uint8_t *bytes = copy_of(text, size);
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

void check_json(void) {
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
    {"{" T("a", "C128", "1", "0", "16") "}", 16, "\"a\" has dtype C128"},
    {"{" T("a", "f32", "1", "0", "4") "}", 4, "dtype f32"},
    {"{" T("a", "F32\\u0000", "1", "0", "4") "}", 4, "dtype F32"},
    {"{" T("a", "U128", "1", "0", "16") "}", 16, "dtype U128"},
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

void check_safetensors_cases(void) {
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
    uint8_t *bytes = copy_of(raw[i].bytes, raw[i].n);
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

void check_safetensors_write(void) {
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
void check_safetensors_damage(void) {
  size_t n;
  MothSafetensors *file;
  uint8_t *bytes = make_sample(&n);
  for (size_t k = 0; k < n; k++) {
    uint8_t *part = copy_of(bytes, k);
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
