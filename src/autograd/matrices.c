/* Derivatives of linear algebra that depend on values or shapes. */
#include <math.h>

#include "autograd/formulas.h"
#include "core/dtype.h"
#include "dispatch/batch.h"
#include "ops/create.h"

#define OP(name, v, ...)                                                                           \
  moth_eval(MOTH_OP(name), (int)(sizeof((MothValue[]){__VA_ARGS__}) / sizeof(MothValue)),          \
            (MothValue[]){__VA_ARGS__}, v)

/* Which determinants may be no more than rounding, so that there may be no inverse, in *which, and whether any is, of all
 * of a batch. The product of the rows' lengths is the largest that a determinant can be (Hadamard); a random matrix of
 * order n has about exp(-n / 2) of it. What has no values counts as large. */
static MothStatus some_singular(const MothValue *det, const MothValue *A, MothValue *which,
                                bool *yes) {
  MothValue v[12] = {{{0}, 0, 0}}, item;
  int64_t last = -1;
  double rounding = 100 * moth_dtype_epsilon((MothDType)A->u.t->dtype);
  MothStatus status = MOTH_OK;
  *yes = false;
  if (det->u.t->keys & MOTH_KEY_FAKE || !det->u.t->numel)
    return MOTH_OK;
  MOTH_GO(OP(detach, &v[0], *det));
  MOTH_GO(OP(abs, &v[1], v[0]));
  MOTH_GO(OP(detach, &v[2], *A));
  MOTH_GO(OP(abs, &v[3], v[2]));
  MOTH_GO(OP(square, &v[4], v[3]));
  MOTH_GO(OP(sum, &v[5], v[4], moth_v_ints(&last, 1)));
  MOTH_GO(OP(sqrt, &v[6], v[5]));
  MOTH_GO(
      OP(mul, &v[7], v[6], moth_v_float(exp(-0.5)))); /* before the product, which may overflow */
  MOTH_GO(OP(prod, &v[8], v[7], moth_v_ints(&last, 1)));
  MOTH_GO(OP(add, &v[9], v[8], moth_v_int(1)));
  MOTH_GO(OP(mul, &v[11], v[9], moth_v_float(rounding)));
  MOTH_GO(OP(lt, which, v[1], v[11]));
  MOTH_GO(OP(any, &v[10], moth_v_tensor(moth_batch_values(which->u.t))));
  MOTH_GO(moth_tensor_item(v[10].u.t, &item));
  *yes = moth_as_double(item) != 0;
done:
  moth_drop_values(v, 12);
  return status;
}

/* The matrices of cofactors of small A, of order n: A's adjugate by Faddeev and LeVerrier, which is a polynomial. one: the
 * identity. */
static MothStatus cofactors(const MothValue *A, const MothValue *one, int64_t n, MothValue *out) {
  MothValue v[6] = {{{0}, 0, 0}};
  int64_t dims[] = {-2, -1};
  MothStatus status = MOTH_OK;
  MOTH_GO(OP(add, &v[0], moth_v_tensor(one->u.t), moth_v_int(0)));
  for (int64_t k = 1; k < n; k++) { /* M = A M - trace(A M) / k */
    MOTH_GO(OP(matmul, &v[1], *A, v[0]));
    MOTH_GO(OP(mul, &v[2], v[1], *one));
    MOTH_GO(OP(sum, &v[3], v[2], moth_v_ints(dims, 2), moth_v_bool(true)));
    MOTH_GO(OP(mul, &v[4], v[3], *one));
    MOTH_GO(OP(div, &v[5], v[4], moth_v_int(k)));
    moth_drop(&v[0]);
    MOTH_GO(OP(sub, &v[0], v[1], v[5]));
    for (int i = 1; i < 6; i++)
      moth_drop(&v[i]);
  }
  MOTH_GO(OP(mul, &v[1], v[0], moth_v_int(n % 2 ? 1 : -1)));
  MOTH_GO(OP(adjoint, out, v[1]));
done:
  moth_drop_values(v, 6);
  return status;
}

/* The same of large A by the singular values. Where A is not singular, equal ones may stop further derivatives: in its
 * place stands a diagonal there, whose cofactors are not used. */
static MothStatus cofactors_where(const MothValue *A, const MothValue *one, const MothValue *which,
                                  int64_t n, MothValue *out) {
  MothValue v[4] = {{{0}, 0, 0}};
  MothTensor *t = A->u.t;
  MothStatus status = MOTH_OK;
  MOTH_GO(
      moth_eval_beside(t, MOTH_OP(arange), 5,
                       (MothValue[]){moth_v_int(1), moth_v_int(n + 1), moth_v_int(1),
                                     moth_v_dtype((MothDType)t->dtype), moth_v_device(t->device)},
                       &v[0]));
  MOTH_GO(OP(mul, &v[1], v[0], *one));
  MOTH_GO(OP(where, &v[2], *which, *A, v[1]));
  MOTH_GO(OP(native_cofactors, out, v[2]));
done:
  moth_drop_values(v, 4);
  return status;
}

enum { SMALL_ORDER = 4 };

MothStatus moth_grad_det_backward(const MothValue *a, MothValue *out) {
  MothValue v[16] = {{{0}, 0, 0}}, again[4] = {{{0}, 0, 0}};
  MothTensor *A = a[2].u.t;
  int64_t order = A->shape[A->ndim - 1];
  MothValue n = moth_v_int(order), first = moth_v_int(-1);
  MothStatus status = MOTH_OK;
  bool singular;
  MOTH_GO(some_singular(&a[1], &a[2], &v[10], &singular));
  MOTH_GO(moth_eval_beside(
      A, MOTH_OP(eye), 4,
      (MothValue[]){n, n, moth_v_dtype((MothDType)A->dtype), moth_v_device(A->device)}, &v[3]));
  if (singular) {
    MOTH_GO(OP(unsqueeze, &v[4], a[0], first));
    MOTH_GO(OP(unsqueeze, &v[5], v[4], first));
    MOTH_GO(OP(unsqueeze, &v[11], v[10], first));
    MOTH_GO(OP(unsqueeze, &v[12], v[11], first));
    MOTH_GO(order <= SMALL_ORDER ? cofactors(&a[2], &v[3], order, &v[6])
                                 : cofactors_where(&a[2], &v[3], &v[12], order, &v[6]));
    MOTH_GO(OP(mul, &v[13], v[6], v[5]));
    if (order <= SMALL_ORDER) {
      *out = moth_v_tensor(moth_take_value(&v[13]));
      goto done;
    }
    for (int i = 4; i < 7; i++)
      moth_drop(&v[i]);
    MOTH_GO(OP(where, &v[14], v[12], v[3], a[2])); /* those that have inverses */
  } else {
    v[14] = moth_v_tensor(moth_keep(a[2]));
  }
  /* A' X = det(A) grad, on the diagonal */
  MOTH_GO(OP(conj, &v[9], a[1]));
  MOTH_GO(OP(mul, &v[4], a[0], v[9]));
  MOTH_GO(OP(unsqueeze, &v[5], v[4], first));
  MOTH_GO(OP(unsqueeze, &v[6], v[5], first));
  MOTH_GO(OP(mul, &v[7], v[3], v[6]));
  MOTH_GO(OP(adjoint, &v[8], v[14]));
  MOTH_GO(moth_eval_all(MOTH_OP(native_solve), 3, (MothValue[]){v[8], v[7], moth_v_bool(false)},
                        again));
  if (singular)
    MOTH_GO(OP(where, out, v[12], v[13], again[0]));
  else
    *out = moth_v_tensor(moth_take_value(&again[0]));
done:
  moth_drop_values(v, 16);
  moth_drop_values(again, 4);
  return status;
}

MothStatus moth_grad_qr_differentiable(const MothValue *a, MothValue *out) {
  const MothTensor *q = a[0].u.t, *r = a[1].u.t;
  if (q->ndim < 2)
    return moth_fail(MOTH_ERR_STATE, "the derivative needs Q, which mode 'r' leaves out");
  if (q->shape[q->ndim - 1] > r->shape[r->ndim - 1])
    return moth_fail(MOTH_ERR_STATE,
                     "with mode 'complete' and more rows than columns there is no derivative: "
                     "Q has columns that A does not determine; use mode 'reduced'");
  *out = moth_v_tensor(moth_keep(a[0]));
  return MOTH_OK;
}
