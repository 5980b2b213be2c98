#include "io/json_numbers.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };
enum { VALUE, FIRST, AFTER }; /* what comes: a value; a value or the end; a comma or the end */

static bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}
static bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

int64_t moth_json_skip_numbers(const char *text, int64_t size, int64_t at, int64_t *count) {
  int64_t n = 0;
  int depth = 0;
  bool inside = false; /* of a number */
  for (; at < size; at++) {
    char c = text[at];
    if (is_digit(c) || c == '-' || c == '.' || c == 'e' || c == 'E' || c == '+') {
      n += !inside;
      inside = true;
      continue;
    }
    inside = false;
    if (c == '[') {
      if (++depth > MAX_DEPTH)
        return 0;
    } else if (c == ']') {
      if (--depth == 0) {
        *count = n;
        return at + 1;
      }
    } else if (c != ',' && !is_blank(c)) {
      return 0;
    }
  }
  return 0;
}

/* ---- one number ---------------------------------------------------------------------------------- */

/* Powers of ten that a long double holds exactly: 5^27 < 2^64. */
static const long double tens[] = {1e0L,  1e1L,  1e2L,  1e3L,  1e4L,  1e5L,  1e6L,
                                   1e7L,  1e8L,  1e9L,  1e10L, 1e11L, 1e12L, 1e13L,
                                   1e14L, 1e15L, 1e16L, 1e17L, 1e18L, 1e19L, 1e20L,
                                   1e21L, 1e22L, 1e23L, 1e24L, 1e25L, 1e26L, 1e27L};
enum { TENS = 27, DOUBLE_TENS = 22 };

/* digits * 10^power as the nearest double; false: not certain by these means. */
static bool scale(uint64_t digits, int power, double *out) {
  if (digits <= (UINT64_C(1) << 53) && power >= -DOUBLE_TENS && power <= DOUBLE_TENS) {
    double p = (double)tens[power < 0 ? -power : power]; /* both exact: one rounding */
    *out = power < 0 ? (double)digits / p : (double)digits * p;
    return true;
  }
#if LDBL_MANT_DIG == 64
  if (power >= -TENS && power <= TENS) {
    long double p = tens[power < 0 ? -power : power];
    long double r = power < 0 ? (long double)digits / p : (long double)digits * p;
    uint64_t bits;
    memcpy(&bits, &r, sizeof bits);
    uint64_t below = bits & 0x7ff; /* what a double drops */
    *out = (double)r;
    return below < 0x3ff || below > 0x401; /* else it was rounded to, or from, a tie */
  }
#endif
  return false;
}

/* The nearest double of a number's text, in any locale. */
static double careful(const char *text, int64_t n) {
  char small[512], *copy = n < (int64_t)sizeof small ? small : malloc((size_t)n + 1);
  if (!copy)
    return NAN;
  memcpy(copy, text, (size_t)n);
  copy[n] = 0;
  char *end, *point = strchr(copy, '.');
  double v = strtod(copy, &end);
  if (*end && point) { /* this locale writes another sign */
    char half[4];
    snprintf(half, sizeof half, "%.1f", 0.5);
    *point = half[1];
    v = strtod(copy, &end);
  }
  if (copy != small)
    free(copy);
  return v;
}

int64_t moth_json_read_number(const char *text, int64_t size, int64_t at, double *out) {
  int64_t begin = at;
  bool negative = at < size && text[at] == '-';
  at += negative;
  if (at >= size || !is_digit(text[at]))
    return 0;
  if (text[at] == '0' && at + 1 < size && is_digit(text[at + 1]))
    return 0;
  uint64_t digits = 0;
  int used = 0, power = 0;
  bool whole = true; /* all digits are in `digits` */
  for (; at < size && is_digit(text[at]); at++) {
    used += used > 0 || text[at] != '0';
    if (used <= 19)
      digits = 10 * digits + (uint64_t)(text[at] - '0');
    else
      whole = false;
  }
  if (at < size && text[at] == '.') {
    int64_t first = ++at;
    for (; at < size && is_digit(text[at]); at++) {
      used += used > 0 || text[at] != '0';
      if (used <= 19) {
        digits = 10 * digits + (uint64_t)(text[at] - '0');
        power -= power > -100000;
      } else {
        whole = false;
      }
    }
    if (at == first)
      return 0;
  }
  if (at < size && (text[at] == 'e' || text[at] == 'E')) {
    int sign = 1, e = 0;
    at++;
    if (at < size && (text[at] == '+' || text[at] == '-'))
      sign = text[at++] == '-' ? -1 : 1;
    int64_t first = at;
    for (; at < size && is_digit(text[at]); at++)
      e = e < 100000 ? 10 * e + (text[at] - '0') : e;
    if (at == first)
      return 0;
    power += sign * e;
  }
  double v;
  if (digits == 0 && whole)
    v = 0;
  else if (!whole || !scale(digits, power, &v))
    v = careful(text + begin + negative, at - begin - negative);
  *out = negative ? -v : v;
  return at;
}

int64_t moth_json_read_numbers(const char *text, int64_t size, MothNumbers *r, double *out,
                               int64_t most) {
  int64_t n = 0, at = r->at;
  if (r->failed || (r->depth == 0 && r->state == AFTER))
    return 0;
  while (n < most) {
    while (at < size && is_blank(text[at]))
      at++;
    char c = at < size ? text[at] : 0;
    if (c == '[' && r->state != AFTER && r->depth < MAX_DEPTH) {
      r->depth++;
      r->state = FIRST;
      at++;
    } else if (c == ']' && r->state != VALUE && r->depth > 0) {
      r->depth--;
      r->state = AFTER;
      at++;
      if (r->depth == 0)
        break;
    } else if (c == ',' && r->state == AFTER) {
      r->state = VALUE;
      at++;
    } else {
      int64_t end =
          r->state != AFTER && r->depth > 0 ? moth_json_read_number(text, size, at, &out[n]) : 0;
      if (end == 0) {
        r->failed = 1;
        break;
      }
      at = end;
      n++;
      r->state = AFTER;
    }
  }
  r->at = at;
  return n;
}

/* ---- writing ------------------------------------------------------------------------------------- */

static char *write_carefully(char *out, double v, int digits) {
  int n = snprintf(out, MOTH_JSON_NUMBER_MOST, "%.*g", digits, v);
  for (int i = 0; i < n; i++)
    if (out[i] == ',') /* some locales' point */
      out[i] = '.';
  return out + n;
}

/* The decimal digits of m, which has `digits` of them, with exponent e of the first, as %g writes them. */
static char *write_decimal(char *out, uint64_t m, int digits, int e) {
  char text[20];
  for (int i = digits; i-- > 0; m /= 10)
    text[i] = (char)('0' + m % 10);
  int n = digits;
  while (n > 1 && text[n - 1] == '0')
    n--;
  bool fixed = e >= -4 && e < digits;
  int point = fixed ? e + 1 : 1; /* digits before the point */
  if (point <= 0) {
    *out++ = '0';
    *out++ = '.';
    for (int i = point; i < 0; i++)
      *out++ = '0';
  }
  for (int i = 0; i < n || i < point; i++) {
    if (i == point && i > 0)
      *out++ = '.';
    *out++ = i < n ? text[i] : '0';
  }
  if (!fixed) {
    *out++ = 'e';
    *out++ = e < 0 ? '-' : '+';
    *out++ = (char)('0' + abs(e) / 10);
    *out++ = (char)('0' + abs(e) % 10);
  }
  return out;
}

static char *write_whole(char *out, uint64_t m) {
  char text[20];
  int n = 0;
  do
    text[n++] = (char)('0' + m % 10);
  while (m /= 10);
  while (n > 0)
    *out++ = text[--n];
  return out;
}

/* In doubles, for up to nine digits: the product's error is far below the last one's half. */
static char *write_number(char *out, double v, int digits) {
  double size = fabs(v), bound = digits < 15 ? (double)tens[digits] : 1e15;
  if (size < bound && size == floor(size)) {
    if (signbit(v))
      *out++ = '-';
    return write_whole(out, (uint64_t)size);
  }
  if (digits > 9 || size < 1e-12 || size > 1e20)
    return write_carefully(out, v, digits);
  if (v < 0)
    *out++ = '-';
  int e = (int)floor(log10(size));
  double low = (double)tens[digits - 1], high = (double)tens[digits];
  int power = digits - 1 - e;
  double m = rint(power < 0 ? size / (double)tens[-power] : size * (double)tens[power]);
  if (m >= high || m < low) { /* log10 or rint went over a power of ten */
    e += m >= high ? 1 : -1;
    power = digits - 1 - e;
    m = rint(power < 0 ? size / (double)tens[-power] : size * (double)tens[power]);
  }
  return write_decimal(out, (uint64_t)m, digits, e);
}

char *moth_json_write_numbers(char *out, const double *values, int64_t n, int digits) {
  for (int64_t i = 0; i < n; i++) {
    if (i > 0)
      *out++ = ',';
    out = write_number(out, values[i], digits);
  }
  return out;
}
