/* Gradients of normalisations (layer_norm, group_norm, …; the op `norm` is the p-norm). One fused op computes
 * those of all inputs; where they must be differentiable (create_graph), the same formula is made of ops:
 *   xhat = (x - mean(x)) rstd, gw = g w
 *   dx = rstd (gw - mean(gw) - xhat mean(gw xhat)), dweight = sum(g xhat), dbias = sum(g)
 * with means over the elements that share a statistic. */
#include "autograd/formulas.h"

#define OP(name, v, ...)                                                                           \
  moth_eval(MOTH_OP(name), (int)(sizeof((MothValue[]){__VA_ARGS__}) / sizeof(MothValue)),          \
            (MothValue[]){__VA_ARGS__}, v)
#define NONE moth_v_none()

/* Two views of x: `stat` (3 dimensions), where the dimensions `over` share a statistic; and `affine`, where the
 * parameters, of shape `param`, lie along the dimensions not in `sum`. */
typedef struct Layout {
  int64_t stat[3], over[3], affine[3], sum[3], param[3];
  uint32_t nover, nsum;
  bool rms, own; /* own: the statistics are functions of x */
} Layout;

static MothValue ints(const int64_t *v, uint32_t n) {
  return moth_v_ints(v, n);
}

/* out[i]: gradient i, if bit i of need is set. mean, rstd: used only if they are not functions of x. */
static MothStatus by_ops(const Layout *l, MothValue g, MothValue x, MothValue w, double eps,
                         MothValue mean, MothValue rstd, uint32_t need, MothValue *out) {
  enum { N = 24 };
  MothStatus status = MOTH_OK;
  MothValue t[N] = {{{0}, 0, 0}};
  int n = 0;
  MothValue *v = t;
#define NEXT (n++, v = &t[n - 1])
  MothValue over = ints(l->over, l->nover), keep = moth_v_bool(true), xc, r, xh, gw, full;
  MothValue stat = ints(l->stat, 3), affine = ints(l->affine, 3);
  MothValue xs = ints(x.u.t->shape, x.u.t->ndim);
  MOTH_GO(OP(reshape, NEXT, x, stat));
  xc = *v;
  if (l->own) {
    if (!l->rms) {
      MOTH_GO(OP(mean, NEXT, xc, over, keep));
      MothValue m = *v;
      MOTH_GO(OP(sub, NEXT, xc, m));
      xc = *v;
    }
    MOTH_GO(OP(square, NEXT, xc));
    MothValue sq = *v;
    MOTH_GO(OP(mean, NEXT, sq, over, keep));
    sq = *v;
    MOTH_GO(OP(add, NEXT, sq, moth_v_float(eps)));
    sq = *v;
    MOTH_GO(OP(rsqrt, NEXT, sq));
    r = *v;
  } else {
    int64_t one[3] = {1, l->stat[1], 1};
    MOTH_GO(OP(reshape, NEXT, mean, ints(one, 3)));
    MothValue m = *v;
    MOTH_GO(OP(sub, NEXT, xc, m));
    xc = *v;
    MOTH_GO(OP(reshape, NEXT, rstd, ints(one, 3)));
    r = *v;
  }
  MOTH_GO(OP(mul, NEXT, xc, r));
  xh = *v;
  MOTH_GO(OP(reshape, NEXT, g, affine));
  full = *v;
  if (need & 1) {
    gw = full;
    if (w.tag == MOTH_V_TENSOR) {
      MOTH_GO(OP(reshape, NEXT, w, ints(l->param, 3)));
      MothValue wide = *v;
      MOTH_GO(OP(mul, NEXT, gw, wide));
      gw = *v;
    }
    MOTH_GO(OP(reshape, NEXT, gw, stat));
    gw = *v;
    MothValue d = gw;
    if (l->own) {
      MOTH_GO(OP(mul, NEXT, gw, xh));
      MothValue p = *v;
      MOTH_GO(OP(mean, NEXT, p, over, keep));
      p = *v;
      MOTH_GO(OP(mul, NEXT, xh, p));
      p = *v;
      MOTH_GO(OP(sub, NEXT, gw, p));
      d = *v;
      if (!l->rms) {
        MOTH_GO(OP(mean, NEXT, gw, over, keep));
        p = *v;
        MOTH_GO(OP(sub, NEXT, d, p));
        d = *v;
      }
    }
    MOTH_GO(OP(mul, NEXT, d, r));
    d = *v;
    MOTH_GO(OP(reshape, &out[0], d, xs));
  }
  /* parameters have the shape of w, or of the dimensions that are not summed over */
  MothValue sum = ints(l->sum, l->nsum);
  for (int i = 1; i <= 2; i++) {
    if (!(need >> i & 1))
      continue;
    MothValue p = full;
    if (i == 1) {
      MOTH_GO(OP(reshape, NEXT, xh, affine));
      p = *v;
      MOTH_GO(OP(mul, NEXT, full, p));
      p = *v;
    }
    MOTH_GO(OP(sum, &out[i], p, sum, moth_v_bool(false)));
  }
done:
  moth_drop_values(t, N);
  return status;
#undef NEXT
}

/* For parameters of several dimensions: by_ops returns their gradients flat. */
static MothStatus unflatten(MothValue *v, const MothTensor *x, int64_t dims) {
  MothValue flat = *v;
  if (v->tag != MOTH_V_TENSOR || dims == 1)
    return MOTH_OK;
  *v = NONE;
  MothStatus s = OP(reshape, v, flat, ints(x->shape + x->ndim - dims, (uint32_t)dims));
  moth_tensor_release(flat.u.t);
  return s;
}

/* Calls the fused op; out gets the results in `need`, the others are released. */
static MothStatus fused(const MothOp *op, int nargs, MothValue *args, uint32_t need,
                        MothValue *out) {
  MothValue results[MOTH_MAX_RESULTS] = {{{0}, 0, 0}};
  MOTH_TRY(moth_op_call_variant(op, MOTH_FUNCTIONAL, nargs, args, NULL, results));
  for (int i = 0; i < op->nresults; i++) {
    if (need >> i & 1)
      out[i] = results[i];
    else
      moth_tensor_release(results[i].u.t);
  }
  return MOTH_OK;
}

static bool twice(MothValue g, MothValue x, MothValue w) {
  return moth_value_records(g) || moth_value_records(x) || moth_value_records(w);
}

static Layout rows_layout(const MothTensor *x, int64_t dims, bool rms) {
  int64_t rows = 1, n = 1;
  for (int i = 0; i < x->ndim; i++)
    *(i < x->ndim - dims ? &rows : &n) *= x->shape[i];
  return (Layout){.stat = {1, rows, n},
                  .over = {2},
                  .nover = 1,
                  .affine = {1, rows, n},
                  .sum = {0, 1},
                  .nsum = 2,
                  .param = {1, 1, n},
                  .rms = rms,
                  .own = true};
}
static Layout channels_layout(const MothTensor *x) {
  int64_t inner = 1;
  for (int i = 2; i < x->ndim; i++)
    inner *= x->shape[i];
  return (Layout){.stat = {x->shape[0], x->shape[1], inner},
                  .over = {0, 2},
                  .nover = 2,
                  .affine = {x->shape[0], x->shape[1], inner},
                  .sum = {0, 2},
                  .nsum = 2,
                  .param = {1, x->shape[1], 1}};
}

MothStatus moth_gradset_layer_norm(const MothValue *a, uint32_t need, MothValue *out) {
  if (!twice(a[0], a[1], a[2]))
    return fused(MOTH_OP(layer_norm_backward), 7,
                 (MothValue[]){a[0], a[1], a[6], a[7], a[2], a[4], moth_v_int(need)}, need, out);
  Layout l = rows_layout(a[1].u.t, a[4].u.i, false);
  MOTH_TRY(by_ops(&l, a[0], a[1], a[2], a[5].u.d, NONE, NONE, need, out));
  MOTH_TRY(unflatten(&out[1], a[1].u.t, a[4].u.i));
  return unflatten(&out[2], a[1].u.t, a[4].u.i);
}

MothStatus moth_gradset_rms_norm(const MothValue *a, uint32_t need, MothValue *out) {
  if (!twice(a[0], a[1], a[2]))
    return fused(MOTH_OP(rms_norm_backward), 6,
                 (MothValue[]){a[0], a[1], a[5], a[2], a[3], moth_v_int(need)}, need, out);
  Layout l = rows_layout(a[1].u.t, a[3].u.i, true);
  MOTH_TRY(by_ops(&l, a[0], a[1], a[2], a[4].u.d, NONE, NONE, need, out));
  return unflatten(&out[1], a[1].u.t, a[3].u.i);
}

MothStatus moth_gradset_group_norm(const MothValue *a, uint32_t need, MothValue *out) {
  if (!twice(a[0], a[1], a[2]))
    return fused(MOTH_OP(group_norm_backward), 7,
                 (MothValue[]){a[0], a[1], a[6], a[7], a[2], a[4], moth_v_int(need)}, need, out);
  Layout l = channels_layout(a[1].u.t);
  int64_t groups = a[4].u.i;
  l.stat[2] *= l.stat[1] / groups;
  l.stat[1] = groups;
  l.over[0] = 2;
  l.nover = 1;
  l.own = true;
  return by_ops(&l, a[0], a[1], a[2], a[5].u.d, NONE, NONE, need, out);
}

MothStatus moth_gradset_batch_norm(const MothValue *a, uint32_t need, MothValue *out) {
  bool training = a[4].u.i;
  if (!twice(a[0], a[1], a[2]))
    return fused(MOTH_OP(batch_norm_backward), 7,
                 (MothValue[]){a[0], a[1], a[6], a[7], a[2], a[4], moth_v_int(need)}, need, out);
  Layout l = channels_layout(a[1].u.t);
  l.own = training;
  return by_ops(&l, a[0], a[1], a[2], a[5].u.d, a[6], a[7], need, out);
}
