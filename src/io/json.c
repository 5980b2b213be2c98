#include "io/json.h"

#include <string.h>

#include "core/error.h"

static MothStatus bad(const MothJson *json, const char *what) {
  return moth_fail(MOTH_ERR_VALUE, "invalid JSON at byte %td: %s", json->at - json->begin, what);
}

static void skip_blanks(MothJson *json) {
  while (json->at < json->end &&
         (*json->at == ' ' || *json->at == '\n' || *json->at == '\r' || *json->at == '\t'))
    json->at++;
}

void moth_json_init(MothJson *json, const uint8_t *bytes, size_t n, char *arena) {
  *json = (MothJson){
      .begin = bytes, .at = bytes, .end = bytes + n, .arena = arena, .most = MOTH_JSON_MAX_DEPTH};
}

int moth_json_peek(MothJson *json) {
  skip_blanks(json);
  return json->at < json->end ? *json->at : 0;
}

static MothStatus expect(MothJson *json, char token, const char *what) {
  if (moth_json_peek(json) != token || json->at == json->end)
    return bad(json, what);
  json->at++;
  return MOTH_OK;
}

static bool in_object(const MothJson *json) {
  int top = json->depth - 1;
  return (json->objects[top / 64] >> (top % 64) & 1) != 0;
}

/* ---- brackets ---------------------------------------------------------------------------------
 */

MothStatus moth_json_begin(MothJson *json, char bracket) {
  if (json->depth == json->most && moth_json_peek(json) == bracket)
    return bad(json, "nested too deep");
  MOTH_TRY(expect(json, bracket, bracket == '{' ? "expected an object" : "expected an array"));
  int word = json->depth / 64;
  uint64_t bit = UINT64_C(1) << (json->depth++ % 64);
  json->objects[word] = bracket == '{' ? json->objects[word] | bit : json->objects[word] & ~bit;
  json->started[word] &= ~bit;
  return MOTH_OK;
}

MothStatus moth_json_next(MothJson *json, bool *more) {
  *more = false;
  if (json->depth == 0)
    return bad(json, "not inside an object or array");
  uint64_t *started = &json->started[(json->depth - 1) / 64];
  uint64_t bit = UINT64_C(1) << ((json->depth - 1) % 64);
  bool object = in_object(json);
  int token = moth_json_peek(json);
  if (token == (object ? '}' : ']')) {
    json->at++;
    json->depth--;
    return MOTH_OK;
  }
  if (*started & bit) {
    MOTH_TRY(expect(json, ',', object ? "expected ',' or '}'" : "expected ',' or ']'"));
    token = moth_json_peek(json);
    if (token == '}' || token == ']')
      return bad(json, "a comma before the closing bracket");
  }
  *started |= bit;
  *more = true;
  return MOTH_OK;
}

MothStatus moth_json_end(MothJson *json) {
  skip_blanks(json);
  return json->at == json->end ? MOTH_OK : bad(json, "something follows the value");
}

/* ---- strings ----------------------------------------------------------------------------------
 */

/* The length of the UTF-8 sequence at p, or 0 if there is no valid one. Table 3-7 of Unicode. */
static size_t utf8_length(const uint8_t *p, const uint8_t *end) {
  size_t left = (size_t)(end - p);
  if (left == 0)
    return 0;
  if (p[0] < 0x80)
    return 1;
  size_t n = p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
  if (n == 0 || left < n)
    return 0;
  uint8_t low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
  uint8_t high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf;
  if (p[1] < low || p[1] > high)
    return 0;
  for (size_t i = 2; i < n; i++)
    if ((p[i] & 0xc0) != 0x80)
      return 0;
  return n;
}

bool moth_utf8_is_valid(const char *text, size_t n) {
  const uint8_t *p = (const uint8_t *)text, *end = p + n;
  while (p < end) {
    size_t length = utf8_length(p, end);
    if (length == 0)
      return false;
    p += length;
  }
  return true;
}

static size_t utf8_encode(uint32_t code, char *out) {
  if (code < 0x80) {
    out[0] = (char)code;
    return 1;
  }
  size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (size_t i = n - 1; i > 0; i--, code >>= 6)
    out[i] = (char)(0x80 | (code & 0x3f));
  out[0] = (char)(code | (n == 2 ? 0xc0 : n == 3 ? 0xe0 : 0xf0));
  return n;
}

static MothStatus read_hex4(MothJson *json, uint32_t *out) {
  if (json->end - json->at < 4)
    return bad(json, "a \\u escape needs four hexadecimal digits");
  uint32_t code = 0;
  for (int i = 0; i < 4; i++) {
    uint32_t c = json->at[i], lower = c | 0x20;
    uint32_t digit = c >= '0' && c <= '9'           ? c - '0'
                     : lower >= 'a' && lower <= 'f' ? lower - 'a' + 10
                                                    : 16;
    if (digit == 16)
      return bad(json, "a \\u escape needs four hexadecimal digits");
    code = code << 4 | digit;
  }
  json->at += 4;
  *out = code;
  return MOTH_OK;
}

/* Reads an escape after \u, with the second half of a surrogate pair. */
static MothStatus read_unicode_escape(MothJson *json, uint32_t *out) {
  uint32_t low;
  MOTH_TRY(read_hex4(json, out));
  if (*out < 0xd800 || *out > 0xdfff)
    return MOTH_OK;
  if (*out > 0xdbff || json->end - json->at < 2 || json->at[0] != '\\' || json->at[1] != 'u')
    return bad(json, "a surrogate without its other half");
  json->at += 2;
  MOTH_TRY(read_hex4(json, &low));
  if (low < 0xdc00 || low > 0xdfff)
    return bad(json, "a surrogate without its other half");
  *out = 0x10000 + ((*out - 0xd800) << 10) + (low - 0xdc00);
  return MOTH_OK;
}

/* Reads an escape after the backslash; at least one byte is left. Writes at most 4 bytes, never more than
 * it reads. */
static MothStatus read_escape(MothJson *json, char *out, size_t *n) {
  static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
  uint8_t c = *json->at;
  if (c == 'u') {
    uint32_t code = 0;
    json->at++;
    MOTH_TRY(read_unicode_escape(json, &code));
    *n = utf8_encode(code, out);
    return MOTH_OK;
  }
  const char *place = c ? strchr(from, c) : NULL;
  if (!place)
    return bad(json, "an unknown escape");
  json->at++;
  out[0] = to[place - from];
  *n = 1;
  return MOTH_OK;
}

MothStatus moth_json_string(MothJson *json, MothText *out) {
  char *text =
      json->arena; /* never longer than the input: the quotes make up for the NUL, escapes only shrink */
  size_t n = 0;
  MOTH_TRY(expect(json, '"', "expected a string"));
  for (;;) {
    char piece[4];
    size_t length = 1;
    const void *source = json->at;
    if (json->at == json->end)
      return bad(json, "a string without an end");
    uint8_t c = *json->at;
    if (c == '"')
      break;
    if (c < 0x20)
      return bad(json, "a control character in a string");
    if (c == '\\') {
      json->at++;
      if (json->at == json->end)
        return bad(json, "a string without an end");
      MOTH_TRY(read_escape(json, piece, &length));
      source = piece;
    } else {
      length = utf8_length(json->at, json->end);
      if (length == 0)
        return bad(json, "a string that is not UTF-8");
      json->at += length;
    }
    if (text)
      memcpy(text + n, source, length);
    n += length;
  }
  json->at++;
  if (text) {
    text[n] = 0;
    json->arena += n + 1;
  }
  *out = (MothText){text, n};
  return MOTH_OK;
}

MothStatus moth_json_key(MothJson *json, MothText *out) {
  MOTH_TRY(moth_json_string(json, out));
  return expect(json, ':', "expected ':'");
}

size_t moth_json_quoted_size(const char *text, size_t n) {
  size_t size = n + 2;
  for (size_t i = 0; i < n; i++) {
    uint8_t c = (uint8_t)text[i];
    size += c == '"' || c == '\\' ? 1 : c < 0x20 ? 5 : 0;
  }
  return size;
}

char *moth_json_quote(char *out, const char *text, size_t n) {
  static const char digits[] = "0123456789abcdef";
  *out++ = '"';
  for (size_t i = 0; i < n; i++) {
    uint8_t c = (uint8_t)text[i];
    if (c < 0x20) {
      memcpy(out, "\\u00", 4);
      out[4] = digits[c >> 4];
      out[5] = digits[c & 15];
      out += 6;
      continue;
    }
    if (c == '"' || c == '\\')
      *out++ = '\\';
    *out++ = (char)c;
  }
  *out++ = '"';
  return out;
}

/* ---- numbers and the rest ---------------------------------------------------------------------
 */

static bool is_digit(const MothJson *json) {
  return json->at < json->end && *json->at >= '0' && *json->at <= '9';
}

static MothStatus skip_digits(MothJson *json) {
  if (!is_digit(json))
    return bad(json, "expected a digit");
  while (is_digit(json))
    json->at++;
  return MOTH_OK;
}

static bool is_next(const MothJson *json, char a, char b) {
  return json->at < json->end && (*json->at == a || *json->at == b);
}

static MothStatus skip_number(MothJson *json) {
  if (is_next(json, '-', '-'))
    json->at++;
  if (is_next(json, '0', '0')) {
    json->at++;
    if (is_digit(json))
      return bad(json, "a number with a leading zero");
  } else {
    MOTH_TRY(skip_digits(json));
  }
  if (is_next(json, '.', '.')) {
    json->at++;
    MOTH_TRY(skip_digits(json));
  }
  if (is_next(json, 'e', 'E')) {
    json->at++;
    if (is_next(json, '+', '-'))
      json->at++;
    MOTH_TRY(skip_digits(json));
  }
  return MOTH_OK;
}

MothStatus moth_json_integer(MothJson *json, int64_t *out) {
  skip_blanks(json);
  const uint8_t *first = json->at;
  if (!is_digit(json) && !is_next(json, '-', '-'))
    return bad(json, "expected an integer");
  MOTH_TRY(skip_number(json));
  bool negative = *first == '-';
  int64_t value = 0;
  for (const uint8_t *p = first + negative; p < json->at; p++) {
    int64_t digit = *p - '0';
    if (digit < 0 || digit > 9)
      return bad(json, "expected an integer");
    if (__builtin_mul_overflow(value, 10, &value) ||
        __builtin_add_overflow(value, negative ? -digit : digit, &value))
      return bad(json, "an integer beyond 64 bits");
  }
  *out = value;
  return MOTH_OK;
}

MothStatus moth_json_number(MothJson *json, MothText *out) {
  skip_blanks(json);
  const uint8_t *first = json->at;
  MOTH_TRY(skip_number(json));
  *out = (MothText){(const char *)first, (size_t)(json->at - first)};
  return MOTH_OK;
}

MothStatus moth_json_word(MothJson *json) {
  static const char *const words[] = {"true", "false", "null"};
  skip_blanks(json);
  for (int i = 0; i < 3; i++) {
    size_t n = strlen(words[i]);
    if ((size_t)(json->end - json->at) >= n && memcmp(json->at, words[i], n) == 0) {
      json->at += n;
      return MOTH_OK;
    }
  }
  return bad(json, "expected a value");
}

static MothStatus skip_scalar(MothJson *json) {
  int token = moth_json_peek(json);
  if (token == '"') {
    MothText unused;
    char *arena = json->arena;
    json->arena = NULL;
    MothStatus status = moth_json_string(json, &unused);
    json->arena = arena;
    return status;
  }
  if (token == '-' || (token >= '0' && token <= '9'))
    return skip_number(json);
  return moth_json_word(json);
}

MothStatus moth_json_skip(MothJson *json) {
  int depth = json->depth;
  for (bool value = true;;) {
    if (value) {
      int token = moth_json_peek(json);
      if (token == '{' || token == '[')
        MOTH_TRY(moth_json_begin(json, (char)token));
      else
        MOTH_TRY(skip_scalar(json));
    }
    if (json->depth == depth)
      return MOTH_OK;
    MOTH_TRY(moth_json_next(json, &value));
    if (value && in_object(json)) {
      MothText unused;
      char *arena = json->arena;
      json->arena = NULL;
      MothStatus status = moth_json_key(json, &unused);
      json->arena = arena;
      MOTH_TRY(status);
    }
  }
}
