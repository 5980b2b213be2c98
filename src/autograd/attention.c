/* Gradients of attention. The fused op computes those of query, key and value in tiles; where they must be
 * differentiable (create_graph), they are made of differentiable ops, with the whole matrix of weights:
 *   P = softmax(q k' scale + mask), dV = P' g, dP = g V', dS = P (dP - sum(dP P) + grad_logsumexp),
 *   dq = dS k scale, dk = dS' q scale */
#include <math.h>

#include "autograd/formulas.h"
#include "core/dtype.h"

#define INT(x) moth_v_int(x)

/* The temporaries of one formula, released together. */
typedef struct Pool {
  MothValue v[48];
  int n;
} Pool;
#define LAST (pool->v[pool->n - 1])
/* Calls an op and appends its result to the pool; its arguments are evaluated before. */
#define STEP(name, ...)                                                                            \
  step(pool, MOTH_OP(name), (int)(sizeof((MothValue[]){__VA_ARGS__}) / sizeof(MothValue)),         \
       (MothValue[]){__VA_ARGS__})

static MothStatus step(Pool *pool, const MothOp *op, int n, const MothValue *args) {
  MOTH_TRY(moth_eval(op, n, args, &pool->v[pool->n]));
  pool->n++;
  return MOTH_OK;
}

/* Repeats each head of key or value for its group of query heads: (B, K, S, E) to (B, H, S, E). */
static MothStatus for_heads(Pool *pool, MothValue x, int64_t heads, MothValue *out) {
  const MothTensor *t = x.u.t;
  int64_t group = t->shape[1] ? heads / t->shape[1] : 1;
  int64_t five[5] = {t->shape[0], t->shape[1], group, t->shape[2], t->shape[3]};
  int64_t four[4] = {five[0], heads, five[3], five[4]};
  *out = x;
  if (group == 1)
    return MOTH_OK;
  MOTH_TRY(STEP(unsqueeze, x, INT(2)));
  MOTH_TRY(STEP(expand, LAST, moth_v_ints(five, 5)));
  MOTH_TRY(STEP(reshape, LAST, moth_v_ints(four, 4)));
  *out = LAST;
  return MOTH_OK;
}

/* The adjoint of for_heads: sums over the heads of a group. */
static MothStatus of_groups(Pool *pool, MothValue x, int64_t theirs, MothValue *out) {
  const MothTensor *t = x.u.t;
  int64_t group = theirs ? t->shape[1] / theirs : 1, dim = 2;
  int64_t five[5] = {t->shape[0], theirs, group, t->shape[2], t->shape[3]};
  *out = x;
  if (group == 1)
    return MOTH_OK;
  MOTH_TRY(STEP(reshape, x, moth_v_ints(five, 5)));
  MOTH_TRY(STEP(sum, LAST, moth_v_ints(&dim, 1)));
  *out = LAST;
  return MOTH_OK;
}

/* *hidden: the excluded scores (bool, or none); *added: the addends of the scores (or none). */
static MothStatus read_mask(Pool *pool, MothValue mask, bool causal, const MothTensor *scores,
                            MothValue *hidden, MothValue *added) {
  *hidden = *added = moth_v_none();
  if (causal) {
    MOTH_TRY(STEP(ones, moth_v_ints(scores->shape + 2, 2), moth_v_dtype(MOTH_BOOL),
                  moth_v_device(scores->device)));
    MOTH_TRY(STEP(triu, LAST, INT(1)));
    *hidden = LAST;
  } else if (mask.tag == MOTH_V_TENSOR && mask.u.t->dtype == MOTH_BOOL) {
    MOTH_TRY(STEP(logical_not, mask));
    *hidden = LAST;
  } else if (mask.tag == MOTH_V_TENSOR) {
    MOTH_TRY(STEP(to, mask, moth_v_dtype((MothDType)scores->dtype)));
    MothValue wide = LAST;
    MOTH_TRY(STEP(eq, wide, moth_v_float(-INFINITY)));
    *hidden = LAST;
    MOTH_TRY(STEP(masked_fill, wide, *hidden, INT(0)));
    *added = LAST;
  }
  return MOTH_OK;
}

/* The weights; rows with all keys excluded are 0. */
static MothStatus weights(Pool *pool, MothValue q, MothValue k, MothValue mask, bool causal,
                          double scale, MothValue *out) {
  MothValue hidden, added;
  MOTH_TRY(STEP(transpose, k, INT(-2), INT(-1)));
  MOTH_TRY(STEP(matmul, q, LAST));
  MOTH_TRY(STEP(mul, LAST, moth_v_float(scale)));
  MothValue s = LAST;
  MOTH_TRY(read_mask(pool, mask, causal, s.u.t, &hidden, &added));
  if (added.tag == MOTH_V_TENSOR) {
    MOTH_TRY(STEP(add, s, added));
    s = LAST;
  }
  if (hidden.tag ==
      MOTH_V_TENSOR) { /* not -infinity: that gives NaN in rows with all keys excluded */
    MOTH_TRY(STEP(masked_fill, s, hidden, moth_v_float(-1e30)));
    s = LAST;
  }
  MOTH_TRY(STEP(softmax, s, INT(-1)));
  if (hidden.tag == MOTH_V_TENSOR) {
    s = LAST;
    MOTH_TRY(STEP(masked_fill, s, hidden, INT(0)));
  }
  *out = LAST;
  return MOTH_OK;
}

/* x (…, m, n)' y (…, m, k) */
static MothStatus transposed_product(Pool *pool, MothValue x, MothValue y) {
  MOTH_TRY(STEP(transpose, x, INT(-2), INT(-1)));
  return STEP(matmul, LAST, y);
}

static MothStatus by_ops(Pool *pool, const MothValue *a, uint32_t need, MothValue *out) {
  MothDType dtype = (MothDType)a[2].u.t->dtype,
            work = dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothValue wide[5] = {a[0], a[1], a[2], a[3], a[4]}, made[3] = {{{0}, 0, 0}}, k, v, p, ds;
  double scale = moth_as_double(a[11]);
  int64_t heads = a[2].u.t->shape[1], theirs = a[3].u.t->shape[1], last = -1;
  for (int i = 0; i < 5; i++)
    if (wide[i].tag == MOTH_V_TENSOR && wide[i].u.t->dtype != work) {
      MOTH_TRY(STEP(to, wide[i], moth_v_dtype(work)));
      wide[i] = LAST;
    }
  MOTH_TRY(for_heads(pool, wide[3], heads, &k));
  MOTH_TRY(for_heads(pool, wide[4], heads, &v));
  MOTH_TRY(weights(pool, wide[2], k, a[5], a[10].u.b, scale, &p));
  if (need & 4) {
    MOTH_TRY(transposed_product(pool, p, wide[0]));
    MOTH_TRY(of_groups(pool, LAST, theirs, &made[2]));
  }
  if (need & 3) {
    MOTH_TRY(STEP(transpose, v, INT(-2), INT(-1)));
    MOTH_TRY(STEP(matmul, wide[0], LAST));
    MothValue dp = LAST;
    MOTH_TRY(STEP(mul, dp, p));
    MOTH_TRY(STEP(sum, LAST, moth_v_ints(&last, 1), moth_v_bool(true)));
    MOTH_TRY(STEP(sub, dp, LAST));
    if (wide[1].tag == MOTH_V_TENSOR) {
      MothValue d = LAST;
      MOTH_TRY(STEP(unsqueeze, wide[1], INT(-1)));
      MOTH_TRY(STEP(add, d, LAST));
    }
    MOTH_TRY(STEP(mul, p, LAST));
    MOTH_TRY(STEP(mul, LAST, moth_v_float(scale)));
    ds = LAST;
  }
  if (need & 1) {
    MOTH_TRY(STEP(matmul, ds, k));
    made[0] = LAST;
  }
  if (need & 2) {
    MOTH_TRY(transposed_product(pool, ds, wide[2]));
    MOTH_TRY(of_groups(pool, LAST, theirs, &made[1]));
  }
  for (int i = 0; i < 3; i++)
    if (made[i].tag == MOTH_V_TENSOR)
      MOTH_TRY(moth_eval(MOTH_OP(to), 2, (MothValue[]){made[i], moth_v_dtype(dtype)}, &out[i]));
  return MOTH_OK;
}

MothStatus moth_gradset_attention(const MothValue *a, uint32_t need, MothValue *out) {
  bool twice = false;
  for (int i = 0; i < 5; i++)
    twice = twice || moth_value_records(a[i]);
  if (!twice)
    return moth_eval_all(MOTH_OP(attention_backward), 12, a, out);
  if (moth_as_double(a[9]) > 0)
    return moth_fail(MOTH_ERR_STATE,
                     "derivative of attention_backward by 'grad_output' is not implemented with "
                     "dropout_p > 0; give dropout_p = 0, or drop weights of your own product");
  Pool pool = {.n = 0};
  MothStatus s = by_ops(&pool, a, need, out); /* the caller releases out, also after an error */
  moth_drop_values(pool.v, pool.n);
  return s;
}
