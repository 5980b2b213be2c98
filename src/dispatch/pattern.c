/* What the generated shape rules call: errors of patterns, reductions, windows. See pattern.h. */
#include "dispatch/pattern.h"

#include <stdio.h>
#include <string.h>

#include "core/dtype.h"

/* --- errors ----------------------------------------------------------------------------------- */

/* A word of a pattern: "N", "3", "*", "*D", "*D:n", "N?". */
typedef struct Word {
  const char *text;
  int length;
  bool star; /* stands for any dimensions */
  const MothKnown *known;
} Word;

/* The next word of a pattern, which begins behind *at; false at its end. */
static bool next_word(const char **at, const MothKnown *known, int nknown, Word *w) {
  const char *p = *at + strspn(*at, " ");
  *w = (Word){.text = p, .length = (int)strcspn(p, " ")};
  *at = p + w->length;
  if (!w->length)
    return false;
  w->star = p[0] == '*' || p[w->length - 1] == '?';
  const char *name = p[0] == '*' && w->length > 1 ? p + 1 : p;
  size_t n = strcspn(name, " ?:");
  for (int i = 0; i < nknown && !w->known; i++)
    if (strlen(known[i].name) == n && !memcmp(known[i].name, name, n) &&
        !(known[i].value.tag == MOTH_V_INT &&
          known[i].value.u.i < 0)) /* not bound: an optional argument is none */
      w->known = &known[i];
  return true;
}

/* How many dimensions a word stands for, -1 if that is open. */
static int dims_of(const Word *w) {
  if (!w->star)
    return 1;
  if (!w->known)
    return -1;
  return (int)(w->known->value.tag == MOTH_V_INTS ? w->known->value.n : w->known->value.u.i);
}

/* Whether all sizes of a pattern are known. */
static bool is_known(const char *pattern, const MothKnown *known, int nknown) {
  bool all = true;
  for (Word w; next_word(&pattern, known, nknown, &w);)
    all = all && ((w.known && w.known->value.tag == (w.star ? MOTH_V_INTS : MOTH_V_INT)) ||
                  (w.text[0] >= '0' && w.text[0] <= '9'));
  return all;
}

/* Writes the pattern with the sizes that are known, "[N, 3, *]"; only its words, with `plain`. */
static void write_pattern(const char *pattern, const MothKnown *known, int nknown, bool plain,
                          char *buf, size_t n) {
  Word w;
  size_t k = (size_t)snprintf(buf, n, "[");
  const char *between = "";
  while (next_word(&pattern, known, nknown, &w) && k < n) {
    const MothKnown *value = plain ? NULL : w.known;
    if (value && value->value.tag == MOTH_V_INTS) {
      for (uint32_t i = 0; i < value->value.n && k < n; i++) {
        k += (size_t)snprintf(buf + k, n - k, "%s%lld", between, (long long)value->value.u.ints[i]);
        between = ", ";
      }
      continue;
    }
    if (value && !w.star)
      k += (size_t)snprintf(buf + k, n - k, "%s%lld", between, (long long)value->value.u.i);
    else
      k += (size_t)snprintf(buf + k, n - k, "%s%.*s", between, w.length, w.text);
    between = ", ";
  }
  if (k < n)
    snprintf(buf + k, n - k, "]");
}

/* The first word that a shape with the right number of dimensions does not fit. */
static bool first_wrong(const char *pattern, const MothKnown *known, int nknown, int ndim,
                        const int64_t *shape, Word *w) {
  int total = 0, at = 0;
  for (const char *p = pattern; next_word(&p, known, nknown, w);)
    total += dims_of(w) < 0 ? 0 : dims_of(w);
  while (next_word(&pattern, known, nknown, w)) {
    int n = dims_of(w) < 0 ? ndim - total : dims_of(w);
    const MothKnown *k = w->known;
    if (at + n > ndim)
      return false;
    if (k && w->star && k->value.tag == MOTH_V_INTS && !moth_same_dims(shape + at, k->value))
      return true;
    if (k && !w->star && k->value.u.i >= 0 && shape[at] != k->value.u.i)
      return true;
    at += n;
  }
  return false;
}

MothStatus moth_shape_wrong(const char *name, int ndim, const int64_t *shape, int least, int most,
                            const char *pattern, const MothKnown *known, int nknown) {
  char want[200], got[200], value[200] = "";
  Word w;
  moth_shape_format(ndim, shape, got, sizeof got);
  bool other_count = ndim < least || (most >= 0 && ndim > most);
  if (other_count && !is_known(pattern, known, nknown)) {
    char count[40];
    snprintf(count, sizeof count,
             most < 0       ? "at least %d"
             : most > least ? "%d or %d"
                            : "%d",
             least, most);
    write_pattern(pattern, known, nknown, true, want, sizeof want);
    return moth_fail(MOTH_ERR_VALUE, "%s must have %s dimension%s, %s, got %s", name, count,
                     most == 1 || (most < 0 && least == 1) ? "" : "s", want, got);
  }
  write_pattern(pattern, known, nknown, false, want, sizeof want);
  if (!other_count && first_wrong(pattern, known, nknown, ndim, shape, &w) && w.known &&
      w.known->from[0]) {
    if (w.star)
      snprintf(value, sizeof value, "; the dimensions %.*s are those of %s", w.length, w.text,
               w.known->from);
    else
      snprintf(value, sizeof value, "; %.*s = %lld as in %s", w.length, w.text,
               (long long)w.known->value.u.i, w.known->from);
  }
  return moth_fail(MOTH_ERR_VALUE, "%s must have the shape %s, got %s%s", name, want, got, value);
}

MothStatus moth_product_wrong(const char *first, const MothTensor *t, const char *name, int ndim,
                              const int64_t *shape, int least, int most, const char *pattern,
                              const MothKnown *known, int nknown) {
  char a[200] = "", b[200] = "", want[200];
  size_t na = 0, nb = 0;
  if (ndim < least || (most >= 0 && ndim > most))
    return moth_shape_wrong(name, ndim, shape, least, most, pattern, known, nknown);
  for (int i = 0; i < t->ndim && na < sizeof a; i++)
    na += (size_t)snprintf(a + na, sizeof a - na, i ? "x%lld" : "%lld", (long long)t->shape[i]);
  for (int i = 0; i < ndim && nb < sizeof b; i++)
    nb += (size_t)snprintf(b + nb, sizeof b - nb, i ? "x%lld" : "%lld", (long long)shape[i]);
  write_pattern(pattern, known, nknown, false, want, sizeof want);
  return moth_fail(MOTH_ERR_VALUE,
                   "%s and %s shapes cannot be multiplied (%s and %s): %s must have the shape %s",
                   first, name, a, b, name, want);
}

MothStatus moth_list_wrong(const char *first, uint32_t n, const char *name, uint32_t got) {
  return moth_fail(MOTH_ERR_VALUE, "%s must be as many as %s: expected %u, got %u", name, first, n,
                   got);
}

MothStatus moth_dtype_wrong(const char *name, const MothTensor *t, const char *wanted) {
  return moth_fail(MOTH_ERR_TYPE, "%s must have %s dtype, got %s", name, wanted,
                   moth_dtype_name((MothDType)t->dtype));
}

MothStatus moth_dtypes_differ(const char *first, const MothTensor *a, const char *second,
                              const MothTensor *b) {
  return moth_fail(MOTH_ERR_TYPE, "%s and %s must have the same dtype, got %s and %s", first,
                   second, moth_dtype_name((MothDType)a->dtype),
                   moth_dtype_name((MothDType)b->dtype));
}

/* --- geometry --------------------------------------------------------------------------------- */

MothStatus moth_meta_reduced(MothMeta *m, MothDType dtype, const MothTensor *t, MothValue dim,
                             bool keepdim, bool no_identity) {
  int64_t shape[MOTH_MAX_DIMS];
  uint32_t mask = 0;
  int n = 0;
  if (dim.tag == MOTH_V_INTS)
    for (uint32_t i = 0; i < dim.n; i++)
      mask |= 1u << dim.u.ints[i];
  else
    mask = dim.tag == MOTH_V_INT ? 1u << dim.u.i : ~0u;
  for (int i = 0; i < t->ndim; i++) {
    if (!(mask >> i & 1)) {
      shape[n++] = t->shape[i];
      continue;
    }
    if (no_identity && t->shape[i] == 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "dimension " MOTH_AT
                       "%d has size 0, and this reduction has no identity for no elements",
                       i);
    if (keepdim)
      shape[n++] = 1;
  }
  return moth_meta_set(m, dtype, n, shape);
}

MothStatus moth_shape_self(const MothCall *c, MothMeta *out) {
  MothTensor *self = c->args[0].u.t;
  if (moth_tensor_self_overlaps(self))
    return moth_fail(
        MOTH_ERR_VALUE,
        "the tensor written to holds several elements in one place (an expanded view?); "
        "clone() it first");
  return moth_meta_set(out, (MothDType)self->dtype, self->ndim, self->shape);
}

/* --- functions of the language ----------------------------------------------------------------- */

MothValue moth_list_largest(MothValue list) {
  int64_t best = list.n ? list.u.ints[0] : 0;
  for (uint32_t i = 1; i < list.n; i++)
    best = list.u.ints[i] > best ? list.u.ints[i] : best;
  return moth_v_int(best);
}

bool moth_list_expands(MothValue from, MothValue shape) {
  bool fits = from.n <= shape.n;
  for (uint32_t i = 1; fits && i <= from.n; i++)
    fits = from.u.ints[from.n - i] == 1 || from.u.ints[from.n - i] == shape.u.ints[shape.n - i];
  return fits;
}

/* A window of elements `step` apart may step over all of a small image: it has no largest element. */
static MothStatus check_windows(int64_t size, int64_t kernel, int64_t stride, int64_t padding,
                                int64_t step, int64_t count) {
  for (int64_t o = 0; o < count && step > 1; o++) {
    int64_t start = o * stride - padding;
    int64_t before = start < 0 ? (-start + step - 1) / step : 0; /* elements before the image */
    if (before >= kernel || start + before * step >= size)
      return moth_fail(MOTH_ERR_VALUE,
                       "window " MOTH_AT
                       "%lld steps over all %lld elements: its dilation of %lld is too "
                       "large for its padding of %lld",
                       (long long)o, (long long)size, (long long)step, (long long)padding);
  }
  return MOTH_OK;
}

MothStatus moth_list_window_out(MothValue size, MothValue kernel, MothValue stride,
                                MothValue padding, MothValue dilation, MothValue ceil_mode,
                                int64_t *to, MothValue *out) {
  bool pooling = ceil_mode.tag != MOTH_V_NONE, up = pooling && ceil_mode.u.b;
  char s[200];
  for (uint32_t i = 0; i < size.n; i++) {
    int64_t n = size.u.ints[i], k = kernel.u.ints[i], step = stride.u.ints[i],
            p = padding.u.ints[i];
    if (n < 1 || k < 1 || n > INT32_MAX || k > INT32_MAX)
      return moth_fail(MOTH_ERR_VALUE, "%s must not be empty, nor larger than 2^31 - 1, got %s",
                       n < 1 || n > INT32_MAX ? "an image" : "a window",
                       n < 1 || n > INT32_MAX
                           ? moth_shape_format((int)size.n, size.u.ints, s, sizeof s)
                           : moth_shape_format((int)kernel.n, kernel.u.ints, s, sizeof s));
    if (pooling && 2 * p > k)
      return moth_fail(MOTH_ERR_VALUE,
                       "padding must be at most half of kernel_size, %lld, got %lld", (long long)k,
                       (long long)p);
    /* ceil_mode adds one window for a rest of less than a stride. */
    int64_t span = dilation.u.ints[i] * (k - 1) + 1;
    int64_t left = n + 2 * p - span + (up ? step - 1 : 0);
    if (left < 0)
      return moth_fail(MOTH_ERR_VALUE,
                       "the window's extent %lld (size %lld, dilation %lld) is larger than the "
                       "padded input %lld in the %s dimension",
                       (long long)span, (long long)k, (long long)dilation.u.ints[i],
                       (long long)(n + 2 * p), i + 1 == size.n ? "last" : "second last");
    to[i] = left / step + 1;
    /* The last window must begin inside of the image or its left padding. */
    if (up && (to[i] - 1) * step >= n + p)
      to[i]--;
    if (pooling)
      MOTH_TRY(check_windows(n, k, step, p, dilation.u.ints[i], to[i]));
  }
  *out = moth_v_ints(to, size.n);
  return MOTH_OK;
}

MothStatus moth_need_in_range(MothValue value, MothValue dtype, MothValue what) {
  bool number = value.tag >= MOTH_V_BOOL && value.tag <= MOTH_V_FLOAT;
  return number ? moth_dtype_check_number((MothDType)dtype.u.i, value, what.u.s) : MOTH_OK;
}

/* A 0-dim tensor counts as one of one dimension. */
static int dims(const MothTensor *t) {
  return t->ndim ? t->ndim : 1;
}

MothStatus moth_need_picks(MothValue self, MothValue dim, MothValue index) {
  const MothTensor *t = self.u.t, *at = index.u.t;
  if (dims(at) != dims(t))
    return moth_fail(MOTH_ERR_VALUE,
                     "index must have as many dimensions as self: expected %d, got %d", t->ndim,
                     at->ndim);
  for (int k = 0; k < t->ndim && k < at->ndim && at->numel; k++)
    if (k != dim.u.i && at->shape[k] > t->shape[k])
      return moth_fail(MOTH_ERR_VALUE,
                       "index must not be larger than self but in dimension " MOTH_AT
                       "%d: its size is %lld in dimension " MOTH_AT "%d, where self has size %lld",
                       (int)dim.u.i, (long long)at->shape[k], k, (long long)t->shape[k]);
  return MOTH_OK;
}

MothStatus moth_need_covers(MothValue src, MothValue index) {
  if (src.tag != MOTH_V_TENSOR)
    return MOTH_OK;
  const MothTensor *t = src.u.t, *at = index.u.t;
  if (dims(t) != dims(at))
    return moth_fail(MOTH_ERR_VALUE,
                     "src must have as many dimensions as index: expected %d, got %d", at->ndim,
                     t->ndim);
  for (int k = 0; (k < at->ndim || k < t->ndim) && at->numel; k++) {
    int64_t wanted = at->ndim ? at->shape[k] : 1, got = t->ndim ? t->shape[k] : 1;
    if (wanted > got)
      return moth_fail(MOTH_ERR_VALUE,
                       "src must not be smaller than index: its size is %lld in dimension " MOTH_AT
                       "%d, where index has size %lld",
                       (long long)got, k, (long long)wanted);
  }
  return MOTH_OK;
}
