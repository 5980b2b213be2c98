/* Makes the arguments of a call canonical, once, before any step of the dispatcher, by their declared types.
 *
 * Dim: from 0, a dimension of the first tensor (in a list of tensors of the first that is not an empty vector, since
 * cat accepts these beside any shape), or of the result. Dim[]: the same, without repetition; for reductions none and
 * an empty list mean all. Index: from 0 in the dimension of the preceding Dim; one out of range is left to the shape
 * rule, which has a better message. int[n]: n numbers. enum: the number of the word. Ranges of numbers and the dtypes
 * of masks and indices are checked. Canonical arguments are not changed again, so that an interceptor may forward
 * them. */
#include <stdio.h>
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"

static const int64_t all_dims[MOTH_MAX_DIMS] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                8, 9, 10, 11, 12, 13, 14, 15};

/* The tensor whose dimensions Dim means, or NULL. */
static const MothTensor *subject(const MothCall *c) {
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    if (v.tag == MOTH_V_TENSOR)
      return v.u.t;
    if (v.tag != MOTH_V_TENSORS || !v.n)
      continue;
    for (uint32_t k = 0; k < v.n; k++)
      if (v.u.tensors[k]->ndim != 1 || v.u.tensors[k]->shape[0] != 0)
        return v.u.tensors[k];
    return v.u.tensors[0];
  }
  return NULL;
}

static MothStatus wrap_dims(const MothArg *a, MothValue *v, int ndim, int64_t **workspace,
                            int *left) {
  uint32_t seen = 0;
  bool negative = false;
  if (a->all && (v->tag == MOTH_V_NONE || v->n == 0)) {
    *v = moth_v_ints(all_dims, (uint32_t)ndim);
    return MOTH_OK;
  }
  for (uint32_t i = 0; v->tag == MOTH_V_INTS && i < v->n; i++) {
    int d = (int)v->u.ints[i];
    if ((uint64_t)v->u.ints[i] >= (uint64_t)ndim)
      MOTH_TRY(moth_wrap_dim(v->u.ints[i], ndim, &d));
    if (seen >> d & 1 && !a->repeats)
      return moth_fail(MOTH_ERR_VALUE,
                       "dimension " MOTH_AT "%d appears twice in the list of dimensions", d);
    seen |= 1u << d;
    negative = negative || v->u.ints[i] < 0;
  }
  if (!negative)
    return MOTH_OK;
  if (v->n > (uint32_t)*left)
    return moth_fail(MOTH_ERR_VALUE, "'%s' names too many dimensions: %u", a->name, v->n);
  for (uint32_t i = 0; i < v->n; i++)
    (*workspace)[i] = v->u.ints[i] < 0 ? v->u.ints[i] + (ndim ? ndim : 1) : v->u.ints[i];
  *v = moth_v_ints(*workspace, v->n);
  *workspace += v->n;
  *left -= (int)v->n;
  return MOTH_OK;
}

/* int[n]: the default, or one number for all. */
static MothStatus fill_ints(const MothCall *c, const MothArg *a, MothValue *v, int64_t **workspace,
                            int *left) {
  if (v->tag == MOTH_V_NONE || (v->n == 0 && (a->def.tag == MOTH_V_INTS || a->like >= 0)))
    *v = a->like >= 0 ? c->args[a->like] : a->def;
  if (v->tag == MOTH_V_NONE || v->n == a->count)
    return MOTH_OK;
  if (v->n != 1)
    return moth_fail(MOTH_ERR_VALUE, "%s must be one number%s, got %u", a->name,
                     a->count == 1   ? ""
                     : a->count == 2 ? " or two"
                                     : " or as many as there are dimensions",
                     v->n);
  if (a->count > *left)
    return moth_fail(MOTH_ERR_VALUE, "'%s' holds too many numbers", a->name);
  for (int i = 0; i < a->count; i++)
    (*workspace)[i] = v->u.ints[0];
  *v = moth_v_ints(*workspace, a->count);
  *workspace += a->count;
  *left -= a->count;
  return MOTH_OK;
}

static MothStatus pick_value(const MothArg *a, MothValue *v) {
  char words[200];
  size_t n = 0;
  int count = 0;
  for (; a->values[count]; count++)
    if (v->tag == MOTH_V_STRING && !strcmp(v->u.s, a->values[count])) {
      *v = moth_v_int(count);
      return MOTH_OK;
    }
  if (v->tag == MOTH_V_NONE || (v->tag == MOTH_V_INT && v->u.i >= 0 && v->u.i < count))
    return MOTH_OK;
  for (int i = 0; i < count && n < sizeof words; i++)
    n += (size_t)snprintf(words + n, sizeof words - n, "%s%s",
                          i == 0           ? ""
                          : i + 1 == count ? " or "
                                           : ", ",
                          a->values[i]);
  if (v->tag == MOTH_V_STRING)
    return moth_fail(MOTH_ERR_VALUE, "%s must be %s, got '%.40s'", a->name, words, v->u.s);
  return moth_fail(MOTH_ERR_VALUE, "%s must be %s, or its number from 0 to %d, got %lld", a->name,
                   words, count - 1, (long long)v->u.i);
}

static MothStatus check_bounds(const MothArg *a, MothValue v, bool element) {
  double x = moth_as_double(v), low = a->low;
  char got[40];
  if (element && x > INT32_MAX)
    return moth_fail(MOTH_ERR_VALUE, "%s is too large: %lld", a->name, (long long)v.u.i);
  if (x <= a->high && (a->open ? x > low : x >= low))
    return MOTH_OK;
  if (v.tag == MOTH_V_INT)
    snprintf(got, sizeof got, "%lld", (long long)v.u.i);
  else
    snprintf(got, sizeof got, "%g", x);
  if (a->high < INT32_MAX)
    return moth_fail(MOTH_ERR_VALUE, "%s must be between %g and %g, got %s", a->name, low, a->high,
                     got);
  if (!element && low == 0 && !a->open)
    return moth_fail(MOTH_ERR_VALUE, "%s must not be negative, got %s", a->name, got);
  if (!element && (a->open ? low == 0 : v.tag == MOTH_V_INT && low == 1))
    return moth_fail(MOTH_ERR_VALUE, "%s must be positive, got %s", a->name, got);
  return moth_fail(MOTH_ERR_VALUE, "%s must be %s %g, got %s", a->name,
                   a->open ? "more than" : "at least", low, got);
}

static MothStatus check_holds(const MothArg *a, const MothTensor *t) {
  int class = (int)moth_dtype_class((MothDType)t->dtype);
  if (a->holds == MOTH_HOLDS_BOOL && class != MOTH_CLASS_BOOL)
    return moth_fail(MOTH_ERR_TYPE, "'%s' must be bool, got %s; compare first, as in x:ne(0)",
                     a->name, moth_dtype_name((MothDType)t->dtype));
  if (a->holds == MOTH_HOLDS_POSITIONS && class != MOTH_CLASS_INT)
    return moth_fail(MOTH_ERR_TYPE, "%s must have an integer dtype, got %s", a->name,
                     moth_dtype_name((MothDType)t->dtype));
  return MOTH_OK;
}

/* Sets argument i to v, in a copy of the arguments. */
static void replace(MothCall *c, MothValue *own, int i, MothValue v) {
  if (c->args != own) {
    memcpy(own, c->args, sizeof *own * c->op->nargs);
    c->args = own;
  }
  own[i] = v;
}

MothStatus moth_canonical(MothCall *c, MothValue *own, int64_t *workspace) {
  const MothTensor *t = c->args[0].tag == MOTH_V_TENSOR ? c->args[0].u.t : subject(c);
  int left = MOTH_CANONICAL_WORKSPACE, d = 0;
  for (uint32_t which = c->op->canonical; which; which &= which - 1) {
    int i = __builtin_ctz(which);
    const MothArg *a = &c->op->args[i];
    MothValue v = c->args[i];
    switch ((MothType)a->type) {
    case MOTH_T_DIM: {
      if (v.tag != MOTH_V_INT || !t)
        continue;
      int n = t->ndim + a->of_result;
      if ((uint64_t)v.u.i < (uint64_t)(n ? n : 1)) {
        d = (int)v.u.i;
        continue;
      }
      MOTH_TRY(moth_wrap_dim(v.u.i, n, &d));
      v = moth_v_int(d);
      break;
    }
    case MOTH_T_INDEX:
      if (v.tag != MOTH_V_INT || v.u.i >= 0 || !t || d >= t->ndim || v.u.i < -t->shape[d])
        continue;
      v = moth_v_int(v.u.i + t->shape[d]);
      break;
    case MOTH_T_DIMS:
      if (!t)
        continue;
      MOTH_TRY(wrap_dims(a, &v, t->ndim, &workspace, &left));
      break;
    case MOTH_T_INTS:
      MOTH_TRY(fill_ints(c, a, &v, &workspace, &left));
      for (uint32_t k = 0; a->bounded && v.tag == MOTH_V_INTS && k < v.n; k++)
        MOTH_TRY(check_bounds(a, moth_v_int(v.u.ints[k]), true));
      break;
    case MOTH_T_ENUM:
      MOTH_TRY(pick_value(a, &v));
      break;
    case MOTH_T_INT:
    case MOTH_T_FLOAT:
      if (v.tag != MOTH_V_NONE)
        MOTH_TRY(check_bounds(a, v, false));
      continue;
    default:
      if (v.tag == MOTH_V_TENSOR)
        MOTH_TRY(check_holds(a, v.u.t));
      continue;
    }
    if (v.u.i != c->args[i].u.i || v.tag != c->args[i].tag || v.n != c->args[i].n)
      replace(c, own, i, v);
  }
  return MOTH_OK;
}
