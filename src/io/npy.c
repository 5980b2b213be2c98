#include "io/npy.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/error.h"
#include "io/elements.h"

static const char magic[6] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

/* NumPy's letter and size of each dtype. */
static const char *const descriptions[MOTH_NDTYPES] = {
    [MOTH_FLOAT32] = "f4",   [MOTH_FLOAT64] = "f8",     [MOTH_FLOAT16] = "f2", [MOTH_INT8] = "i1",
    [MOTH_UINT8] = "u1",     [MOTH_INT16] = "i2",       [MOTH_INT32] = "i4",   [MOTH_INT64] = "i8",
    [MOTH_BOOL] = "b1",      [MOTH_UINT16] = "u2",      [MOTH_UINT32] = "u4",  [MOTH_UINT64] = "u8",
    [MOTH_COMPLEX64] = "c8", [MOTH_COMPLEX128] = "c16",
};

/* The header that is being read. */
typedef struct Reader {
  const char *at, *end;
} Reader;

static MothStatus bad_header(const char *what) {
  return moth_fail(MOTH_ERR_VALUE, "npy: the header is damaged: %s", what);
}

static void skip_blanks(Reader *r) {
  while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r'))
    r->at++;
}

/* Whether c comes next; skips it if so. */
static bool take(Reader *r, char c) {
  skip_blanks(r);
  if (r->at == r->end || *r->at != c)
    return false;
  r->at++;
  return true;
}

static bool take_word(Reader *r, const char *word) {
  size_t n = strlen(word);
  skip_blanks(r);
  if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0)
    return false;
  r->at += n;
  return true;
}

/* A string in single or double quotes, without escapes. */
static MothStatus read_string(Reader *r, const char **text, int *n) {
  skip_blanks(r);
  char quote = r->at < r->end ? *r->at : 0;
  if (quote != '\'' && quote != '"')
    return bad_header("expected a string");
  *text = ++r->at;
  while (r->at < r->end && *r->at != quote && *r->at != '\\' && *r->at != '\n')
    r->at++;
  if (r->at == r->end || *r->at != quote)
    return bad_header("a string without end");
  *n = (int)(r->at++ - *text);
  return MOTH_OK;
}

static MothStatus read_shape(Reader *r, MothNpy *out) {
  if (!take(r, '('))
    return bad_header("expected the shape as (…)");
  while (!take(r, ')')) {
    if (out->ndim == MOTH_MAX_DIMS)
      return moth_fail(MOTH_ERR_VALUE, "npy: more than %d dimensions", MOTH_MAX_DIMS);
    int64_t size = 0;
    skip_blanks(r);
    const char *begin = r->at;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
      if (__builtin_mul_overflow(size, 10, &size) ||
          __builtin_add_overflow(size, *r->at - '0', &size))
        return moth_fail(MOTH_ERR_VALUE, "npy: the shape is too large");
    if (r->at == begin)
      return bad_header("expected a size");
    if (r->at < r->end && *r->at == 'L') /* of Python 2 */
      r->at++;
    out->shape[out->ndim++] = size;
    if (!take(r, ',') && (skip_blanks(r), r->at == r->end || *r->at != ')'))
      return bad_header("expected ',' or ')' in the shape");
  }
  return MOTH_OK;
}

/* Why moth does not read elements of this kind; NULL if only their size is not supported. */
static const char *refusal(char kind) {
  switch (kind) {
  case 'O':
    return "are Python objects, which only code in the file could make again; moth never runs such";
  case 'U':
  case 'S':
  case 'a':
  case 'T':
    return "are text, and a tensor has numbers";
  case 'V':
    return "are records or bytes without a type; save each field as an array of its own";
  case 'M':
  case 'm':
    return "are dates or times; save .astype('int64')";
  default:
    return NULL;
  }
}

static MothStatus read_dtype(const char *text, int n, MothNpy *out) {
  const uint16_t one = 1;
  bool little = *(const uint8_t *)&one == 1;
  char order = n > 0 ? text[0] : 0;
  if (n > 0 && (order == '<' || order == '>' || order == '|' || order == '=')) {
    text++;
    n--;
  } else {
    order = '=';
  }
  for (int d = 0; d < MOTH_NDTYPES; d++)
    if (descriptions[d] && n == (int)strlen(descriptions[d]) &&
        memcmp(text, descriptions[d], (size_t)n) == 0) {
      if (order == '|' && moth_dtype_size((MothDType)d) > 1)
        break;
      out->dtype = (MothDType)d;
      out->swap = (order == '<' && !little) || (order == '>' && little);
      return MOTH_OK;
    }
  const char *why = n > 0 ? refusal(*text) : NULL;
  return moth_fail(MOTH_ERR_VALUE, "npy: the elements, of type '%.*s', %s", n < 40 ? n : 40, text,
                   why ? why : "are none that moth has");
}

static MothStatus read_dictionary(Reader *r, MothNpy *out) {
  static const char *const keys[] = {"descr", "fortran_order", "shape"};
  unsigned seen = 0;
  if (!take(r, '{'))
    return bad_header("expected a dictionary");
  while (!take(r, '}')) {
    const char *text;
    int n, key = 0;
    MOTH_TRY(read_string(r, &text, &n));
    while (key < 3 && (n != (int)strlen(keys[key]) || memcmp(text, keys[key], (size_t)n) != 0))
      key++;
    if (key == 3 || seen >> key & 1)
      return bad_header("an unknown key, or one twice");
    seen |= 1u << key;
    if (!take(r, ':'))
      return bad_header("expected ':'");
    if (key == 0) {
      skip_blanks(r);
      if (r->at < r->end && *r->at == '[')
        return moth_fail(MOTH_ERR_VALUE, "npy: the elements %s", refusal('V'));
      MOTH_TRY(read_string(r, &text, &n));
      MOTH_TRY(read_dtype(text, n, out));
    } else if (key == 1) {
      out->fortran_order = take_word(r, "True");
      if (!out->fortran_order && !take_word(r, "False"))
        return bad_header("fortran_order must be True or False");
    } else {
      MOTH_TRY(read_shape(r, out));
    }
    if (!take(r, ',') && (skip_blanks(r), r->at == r->end || *r->at != '}'))
      return bad_header("expected ',' or '}'");
  }
  skip_blanks(r);
  if (seen != 7)
    return bad_header("descr, fortran_order or shape is missing");
  return r->at == r->end ? MOTH_OK : bad_header("something follows the dictionary");
}

bool moth_npy_is(const uint8_t *bytes, size_t n) {
  return n >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

/* Parses a file of n bytes of which the first `here` are given. */
static MothStatus parse(const uint8_t *bytes, size_t here, size_t n, MothNpy *out) {
  *out = (MothNpy){0};
  if (!moth_npy_is(bytes, here) || n > PTRDIFF_MAX)
    return moth_fail(MOTH_ERR_VALUE, "npy: not a .npy file");
  int version = here > 6 ? bytes[6] : 0;
  size_t begin = version == 1 ? 10 : 12;
  if (here < begin)
    return moth_fail(MOTH_ERR_VALUE, "npy: the file ends within its header (truncated?)");
  if (version < 1 || version > 3 || bytes[7] != 0)
    return moth_fail(MOTH_ERR_VALUE, "npy: format version %d.%d; moth reads 1.0, 2.0 and 3.0",
                     version, bytes[7]);
  size_t length = (size_t)bytes[8] | (size_t)bytes[9] << 8;
  if (version > 1)
    length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
  if (length > MOTH_NPY_MAX_HEADER)
    return moth_fail(MOTH_ERR_VALUE, "npy: a header of %zu bytes is too large (limit %d)", length,
                     MOTH_NPY_MAX_HEADER);
  if (length > n - begin)
    return moth_fail(MOTH_ERR_VALUE, "npy: the file ends within its header (truncated?)");
  if (length > here - begin)
    return MOTH_OK;
  Reader r = {(const char *)bytes + begin, (const char *)bytes + begin + length};
  MOTH_TRY(read_dictionary(&r, out));

  size_t rest = n - begin - length;
  if (!moth_elements_count(out->dtype, out->ndim, out->shape, &out->nbytes))
    return moth_fail(MOTH_ERR_VALUE, "npy: the shape is too large");
  if (out->nbytes > (int64_t)rest)
    return moth_fail(MOTH_ERR_VALUE,
                     "npy: the shape needs %" PRId64
                     " bytes of data, but there are %zu (truncated?)",
                     out->nbytes, rest);
  if (out->nbytes < (int64_t)rest)
    return moth_fail(MOTH_ERR_VALUE,
                     "npy: %" PRId64 " bytes follow the array (several arrays in one file? save "
                     "them as .npz)",
                     (int64_t)rest - out->nbytes);
  out->data = bytes + begin + length;
  return MOTH_OK;
}

MothStatus moth_npy_parse(const uint8_t *bytes, size_t n, MothNpy *out) {
  return parse(bytes, n, n, out);
}

MothStatus moth_npy_check_size(const uint8_t *bytes, size_t here, size_t n) {
  MothNpy npy;
  return parse(bytes, here < n ? here : n, n, &npy);
}

MothStatus moth_npy_header(MothDType dtype, int ndim, const int64_t *shape, char *out, size_t *n) {
  enum { BEGIN = 10, STEP = 64 };
  const uint16_t one = 1;
  if (!descriptions[dtype])
    return moth_fail(MOTH_ERR_VALUE, "npy: NumPy has no bfloat16; save x:float()");
  char order = moth_dtype_size(dtype) == 1 ? '|' : *(const uint8_t *)&one == 1 ? '<' : '>';
  char text[MOTH_NPY_HEADER - STEP]; /* 16 sizes of at most 21 characters fit */
  int length = snprintf(text, sizeof text, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                        order, descriptions[dtype]);
  for (int d = 0; d < ndim; d++)
    length += snprintf(text + length, sizeof text - (size_t)length, "%s%" PRId64, d ? ", " : "",
                       shape[d]);
  length += snprintf(text + length, sizeof text - (size_t)length, "%s), }", ndim == 1 ? "," : "");
  size_t total = ((size_t)length + BEGIN + 1 + STEP - 1) / STEP * STEP;
  memset(out, ' ', total);
  memcpy(out, magic, sizeof magic);
  out[6] = 1;
  out[7] = 0;
  out[8] = (char)((total - BEGIN) & 0xff);
  out[9] = (char)((total - BEGIN) >> 8);
  memcpy(out + BEGIN, text, (size_t)length);
  out[total - 1] = '\n';
  *n = total;
  return MOTH_OK;
}
