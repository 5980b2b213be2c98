/* Derivatives of linear algebra that depend on values or shapes. */
#include "autograd/formulas.h"
#include "core/dtype.h"
#include "ops/create.h"

#define OP(name, v, ...)                                                                           \
  moth_eval(MOTH_OP(name), (int)(sizeof((MothValue[]){__VA_ARGS__}) / sizeof(MothValue)),          \
            (MothValue[]){__VA_ARGS__}, v)

/* Whether a determinant is so small that the inverse may not exist. What has no values counts as large. */
static MothStatus some_singular(const MothTensor *det, MothValue *v, bool *yes) {
  MothValue item, d = moth_v_tensor((MothTensor *)det);
  MothStatus status = MOTH_OK;
  *yes = false;
  if (det->keys & MOTH_KEY_FAKE || !det->numel)
    return MOTH_OK;
  MOTH_GO(OP(detach, &v[0], d));
  MOTH_GO(OP(abs, &v[1], v[0]));
  MOTH_GO(OP(amin, &v[2], v[1]));
  MOTH_GO(moth_tensor_item(v[2].u.t, &item));
  *yes = moth_as_double(item) < 100 * moth_dtype_epsilon((MothDType)det->dtype);
done:
  return status;
}

MothStatus moth_grad_det_backward(const MothValue *a, MothValue *out) {
  MothValue v[10] = {{{0}, 0, 0}}, again[4] = {{{0}, 0, 0}};
  MothTensor *A = a[2].u.t;
  MothStatus status = MOTH_OK;
  bool singular;
  MOTH_GO(some_singular(a[1].u.t, v, &singular));
  if (singular) {
    MOTH_GO(OP(native_cofactors, &v[3], a[2]));
    MOTH_GO(OP(unsqueeze, &v[4], a[0], moth_v_int(-1)));
    MOTH_GO(OP(unsqueeze, &v[5], v[4], moth_v_int(-1)));
    MOTH_GO(OP(mul, out, v[3], v[5]));
  } else { /* A' X = det(A) grad, on the diagonal */
    MothValue n = moth_v_int(A->shape[A->ndim - 1]);
    MOTH_GO(moth_eval_beside(
        A, MOTH_OP(eye), 4,
        (MothValue[]){n, n, moth_v_dtype((MothDType)A->dtype), moth_v_device(A->device)}, &v[3]));
    MOTH_GO(OP(conj, &v[9], a[1]));
    MOTH_GO(OP(mul, &v[4], a[0], v[9]));
    MOTH_GO(OP(unsqueeze, &v[5], v[4], moth_v_int(-1)));
    MOTH_GO(OP(unsqueeze, &v[6], v[5], moth_v_int(-1)));
    MOTH_GO(OP(mul, &v[7], v[3], v[6]));
    MOTH_GO(OP(adjoint, &v[8], a[2]));
    MOTH_GO(moth_eval_all(MOTH_OP(native_solve), 3, (MothValue[]){v[8], v[7], moth_v_bool(false)},
                          again));
    *out = moth_v_tensor(moth_take_value(&again[0]));
  }
done:
  moth_drop_values(v, 10);
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
