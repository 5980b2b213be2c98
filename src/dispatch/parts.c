/* Complex tensors in kernels that know floats only.
 *
 * What an op does to each part alone (cat, gather, index_add, sum, cumsum …) its kernel does to complex tensors as well,
 * seen as floats with one dimension more, of size 2, behind the others: dimensions are counted from 0 here, so that
 * their numbers stay right. Indices and masks that have the dimensions of the tensors get the last one, too
 * (MothOp.parts_with), and real tensors among complex ones become complex. Records name the class "complex" for such
 * ops; ops whose kernels read complex elements say parts = "none", or "cpu" if only those of the CPU do: on other devices
 * such calls run there, on copies. */
#include "dispatch/parts.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "dispatch/subclass.h"

enum { MOST = 64 };

/* Tensors that are released at the end. */
typedef struct Made {
  MothTensor *t[MOST];
  int n;
  bool
      lift; /* 0-dim tensors get a dimension of size 1: the call names one, which must not be that of the parts */
} Made;

static MothStatus keep(Made *m, MothTensor *t) {
  if (m->n == MOST) {
    moth_tensor_release(t);
    return moth_fail(MOTH_ERR_VALUE, "too many complex tensors in one call, at most %d", MOST);
  }
  m->t[m->n++] = t;
  return MOTH_OK;
}

static MothStatus parts_of(MothTensor *t, bool lift, MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  if (t->ndim == MOTH_MAX_DIMS)
    return moth_fail(MOTH_ERR_VALUE, "complex tensors of %d dimensions have too many for this op",
                     MOTH_MAX_DIMS);
  for (int i = 0; i < t->ndim; i++) {
    shape[i] = t->shape[i];
    stride[i] = t->stride[i] * 2;
  }
  int n = t->ndim;
  if (lift && !n) {
    shape[n] = 1;
    stride[n++] = 2;
  }
  shape[n] = 2;
  stride[n++] = 1;
  return moth_tensor_view_as(t, moth_dtype_real((MothDType)t->dtype), n, shape, stride,
                             t->offset * 2, out);
}

/* t as a kernel for floats sees it. `to`: the complex dtype of the call. */
static MothStatus seen(Made *m, MothTensor *t, MothDType to, MothTensor **out) {
  if (!moth_dtype_is_complex((MothDType)t->dtype)) {
    MOTH_TRY(moth_call1(MOTH_OP(to), 2, (MothValue[]){moth_v_tensor(t), moth_v_dtype(to)}, &t));
    MOTH_TRY(keep(m, t));
  }
  MOTH_TRY(parts_of(t, m->lift, out));
  return keep(m, *out);
}

/* An index or mask with one more dimension. */
static MothStatus widened(Made *m, MothTensor *t, MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  for (int i = 0; i < t->ndim; i++) {
    shape[i] = t->shape[i];
    stride[i] = t->stride[i];
  }
  int n = t->ndim;
  if (m->lift && !n) {
    shape[n] = 1;
    stride[n++] = 1;
  }
  shape[n] = 2;
  stride[n++] = 0;
  MOTH_TRY(moth_tensor_view(t, n, shape, stride, t->offset, out));
  return keep(m, *out);
}

/* A number, or a 0-dim tensor, as a tensor of the shape of `like`. */
static MothStatus spread(Made *m, MothValue v, const MothTensor *like, MothDType to,
                         MothTensor **out) {
  MothTensor *one = v.u.t, *wide;
  if (v.tag != MOTH_V_TENSOR) {
    MothValue args[4] = {moth_v_ints(NULL, 0), v, moth_v_dtype(to), moth_v_device(like->device)};
    MOTH_TRY(moth_call1(MOTH_OP(full), 4, args, &one));
    MOTH_TRY(keep(m, one));
  }
  MothValue size = moth_v_ints(like->shape, like->ndim);
  MOTH_TRY(moth_call1(MOTH_OP(expand), 2, (MothValue[]){moth_v_tensor(one), size}, &wide));
  MOTH_TRY(keep(m, wide));
  return seen(m, wide, to, out);
}

static MothDType complex_of(const MothCall *c) {
  for (int i = 0; i < c->op->nresults; i++)
    if (c->results[i].tag == MOTH_V_TENSOR &&
        moth_dtype_is_complex((MothDType)c->results[i].u.t->dtype))
      return (MothDType)c->results[i].u.t->dtype;
  for (int i = 0; i < c->op->nargs; i++) {
    MothValue v = c->args[i];
    for (uint32_t k = 0; k < (v.tag == MOTH_V_TENSORS ? v.n : v.tag == MOTH_V_TENSOR); k++) {
      MothTensor *t = v.tag == MOTH_V_TENSORS ? v.u.tensors[k] : v.u.t;
      if (moth_dtype_is_complex((MothDType)t->dtype))
        return (MothDType)t->dtype;
    }
  }
  return MOTH_NDTYPES;
}

static const int64_t first_dimension = 0;

/* Whether the op has dimensions among its arguments. */
static bool names_dimension(const MothCall *c) {
  for (int i = 0; i < c->op->nargs; i++)
    if (c->op->args[i].type == MOTH_T_DIM || c->op->args[i].type == MOTH_T_DIMS)
      return true;
  return false;
}

/* Whether results keep the dimensions that the call names. */
static bool keeps_dimensions(const MothCall *c) {
  if (c->op->kind != MOTH_KIND_REDUCE)
    return true;
  for (int i = 0; i < c->op->nargs; i++)
    if (!strcmp(c->op->args[i].name, "keepdim"))
      return c->args[i].u.i != 0;
  return false;
}

/* The arguments as the kernel sees them; `lists` has space for those that are lists of tensors. */
static MothStatus see_arguments(const MothCall *c, Made *m, MothDType to, MothValue *args,
                                MothTensor **list) {
  const MothOp *op = c->op;
  const MothTensor *like = NULL; /* the first that is widened */
  for (int i = 0; i < op->nargs; i++)
    if (op->parts_with >> i & 1 && c->args[i].tag == MOTH_V_TENSOR && !like)
      like = c->args[i].u.t;
  for (int i = 0; i < op->nargs; i++) {
    MothValue v = args[i] = c->args[i];
    const MothArg *a = &op->args[i];
    MothTensor *t;
    bool all = a->type == MOTH_T_DIMS && (v.tag == MOTH_V_NONE || !v.n);
    if (all && c->args[0].tag == MOTH_V_TENSOR && !c->args[0].u.t->ndim) {
      args[i] =
          moth_v_ints(&first_dimension, 1); /* all of a 0-dim tensor, but not that of the parts */
    } else if (a->type == MOTH_T_DTYPE && v.tag == MOTH_V_DTYPE) {
      args[i] = moth_v_dtype(moth_dtype_real((MothDType)v.u.i));
    } else if (v.tag == MOTH_V_TENSORS) {
      if (v.n > MOST)
        return moth_fail(MOTH_ERR_VALUE, "too many complex tensors in one call, at most %d", MOST);
      for (uint32_t k = 0; k < v.n; k++)
        MOTH_TRY(seen(m, v.u.tensors[k], to, &list[k]));
      args[i] = moth_v_tensors(list, v.n);
    } else if (op->parts_with >> i & 1 && v.tag == MOTH_V_TENSOR) {
      MOTH_TRY(widened(m, v.u.t, &t));
      args[i] = moth_v_tensor(t);
    } else if (a->type == MOTH_T_OPERAND && like && (v.tag != MOTH_V_TENSOR || !v.u.t->ndim)) {
      MOTH_TRY(spread(m, v, like, to, &t));
      args[i] = moth_v_tensor(t);
    } else if (v.tag == MOTH_V_TENSOR && a->holds == MOTH_HOLDS_ANY) {
      MOTH_TRY(seen(m, v.u.t, to, &t));
      args[i] = moth_v_tensor(t);
    }
  }
  return MOTH_OK;
}

/* A result that the kernel has made of floats, (…, 2) or in pairs, as complex. */
static MothStatus joined(MothTensor *t, MothTensor **out) {
  int64_t n = t->numel / 2, one = 1;
  return moth_tensor_view_as(t, moth_dtype_complex((MothDType)t->dtype), 1, &n, &one, t->offset / 2,
                             out);
}

MothStatus moth_run_parts(MothCall *c, MothKernel kernel) {
  MothDType to = complex_of(c);
  MothValue args[MOTH_MAX_ARGS], results[MOTH_MAX_RESULTS];
  MothTensor *list[MOST];
  MothCall inner = *c;
  Made made = {.n = 0, .lift = names_dimension(c)};
  /* Its parts are not recorded a second time. */
  uint32_t exclude = moth_thread.exclude;
  moth_thread.exclude |= MOTH_KEY_AUTOGRAD | MOTH_KEY_ABOVE | MOTH_KEY_BELOW | MOTH_KEY_SUBCLASS;
  MothStatus s = see_arguments(c, &made, to, args, list);
  made.lift = made.lift && keeps_dimensions(c);
  for (int i = 0; i < c->op->nresults && s == MOTH_OK; i++) {
    results[i] = c->results[i];
    if (results[i].tag == MOTH_V_TENSOR &&
        moth_dtype_is_complex((MothDType)results[i].u.t->dtype)) {
      MothTensor *t;
      s = seen(&made, results[i].u.t, to, &t);
      results[i] = moth_v_tensor(t);
    }
  }
  moth_thread.exclude = exclude;
  if (s == MOTH_OK && (c->op == MOTH_OP(normal_) || c->op == MOTH_OP(randn))) {
    /* The variance is that of both parts together. */
    MothValue normal[4] = {results[0], moth_v_float(0), moth_v_float(1), args[3]};
    if (c->op == MOTH_OP(normal_))
      normal[1] = args[1], normal[2] = args[2];
    normal[2].u.d *= sqrt(0.5);
    memcpy(args, normal, sizeof normal);
    inner.op = MOTH_OP(normal_);
    kernel = moth_kernel_of(inner.op, c->device.type);
  }
  if (s == MOTH_OK) {
    inner.args = args;
    inner.results = results;
    inner.target = NULL;
    s = kernel(&inner);
  }
  for (int i = 0; i < c->op->nresults && s == MOTH_OK && !c->op->shape; i++)
    if (c->results[i].tag != MOTH_V_TENSOR && results[i].tag == MOTH_V_TENSOR) {
      MothTensor *t;
      s = joined(results[i].u.t, &t);
      if (s == MOTH_OK) {
        moth_tensor_release(t->base); /* a result, no view of one */
        t->base = NULL;
        c->results[i] = moth_v_tensor(t);
      }
      moth_tensor_release(results[i].u.t);
    }
  while (made.n)
    moth_tensor_release(made.t[--made.n]);
  return s;
}
