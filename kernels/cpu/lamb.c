/* LAMB, on every device: the directions of all parameters by one kernel, then norms and the step of each. */
#include "core/alloc.h"
#include "dispatch/eval.h"
#include "ops/create.h"
#include "ops/linalg.h"
#include "ops/optim.h"
#include "ops/pointwise.h"
#include "ops/view.h"
#include "unpack/optim.h"

/* d times |x| / |d| and the rate; without a factor where a norm is 0, and 0 where found_inf is not. */
static MothStatus scaled(MothTensor *x, MothTensor *d, MothValue lr, MothTensor *found,
                         MothValue v[9]) {
  MothStatus status = MOTH_OK;
  MothValue zero = moth_v_int(0), out;
  MOTH_GO(moth_eval(MOTH_OP(linalg_vector_norm), 1, (MothValue[]){moth_v_tensor(x)}, &v[0]));
  MOTH_GO(moth_eval(MOTH_OP(linalg_vector_norm), 1, (MothValue[]){moth_v_tensor(d)}, &v[1]));
  MOTH_GO(moth_eval(MOTH_OP(gt), 2, (MothValue[]){v[0], zero}, &v[2]));
  MOTH_GO(moth_eval(MOTH_OP(gt), 2, (MothValue[]){v[1], zero}, &v[3]));
  MOTH_GO(moth_eval(MOTH_OP(logical_and), 2, (MothValue[]){v[2], v[3]}, &v[4]));
  MOTH_GO(moth_eval(MOTH_OP(div), 2, (MothValue[]){v[0], v[1]}, &v[5]));
  MOTH_GO(moth_eval(MOTH_OP(where), 3, (MothValue[]){v[4], v[5], moth_v_int(1)}, &v[6]));
  MOTH_GO(moth_eval(MOTH_OP(mul), 2, (MothValue[]){v[6], lr}, &v[7]));
  MOTH_GO(moth_eval(MOTH_OP(mul), 2, (MothValue[]){moth_v_tensor(d), v[7]}, &v[8]));
  if (found) {
    MOTH_GO(moth_eval(MOTH_OP(ne), 2, (MothValue[]){moth_v_tensor(found), zero}, &out));
    moth_drop(&v[7]);
    v[7] = out;
    MOTH_GO(moth_eval(MOTH_OP(where), 3, (MothValue[]){v[7], zero, v[8]}, &out));
    moth_drop(&v[8]);
    v[8] = out;
  }
done:
  return status;
}

static MothStatus step_one(MothTensor *x, MothTensor *d, MothValue lr, MothTensor *found) {
  MothValue v[9] = {{{0}, 0, 0}};
  MothStatus status = scaled(x, d, lr, found, v);
  if (status == MOTH_OK)
    status = moth_sub_(moth_v_tensor(x), v[8], moth_v_int(1));
  moth_drop_values(v, 9);
  return status;
}

static MothStatus step_all(MothCall *c, MothTensor **directions, MothValue rate) {
  MOTH_UNPACK_LAMB_STEP(c)
  uint32_t n = params.n;
  MothStatus status = MOTH_OK;
  for (uint32_t i = 0; i < n && status == MOTH_OK; i++)
    status = moth_call1(MOTH_OP(empty_like), 1, (MothValue[]){moth_v_tensor(params.u.tensors[i])},
                        &directions[i]);
  MothValue args[] = {params,
                      grads,
                      exp_avgs,
                      exp_avg_sqs,
                      moth_v_tensors(directions, n),
                      moth_v_float(beta1),
                      moth_v_float(beta2),
                      moth_v_float(eps),
                      moth_v_float(weight_decay),
                      step,
                      moth_v_bool(maximize),
                      moth_v_given(grad_scale),
                      moth_v_given(found_inf)};
  if (status == MOTH_OK)
    status = moth_op_call(MOTH_OP(native_lamb_directions), 13, args, NULL);
  for (uint32_t i = 0; i < n && status == MOTH_OK; i++)
    status = step_one(params.u.tensors[i], directions[i], rate, found_inf);
  return status;
}

MothStatus moth_cpu_lamb_step(MothCall *c) {
  MOTH_UNPACK_LAMB_STEP(c)
  MothValue rate = lr;
  size_t bytes = params.n * sizeof(MothTensor *);
  if (!params.n)
    return MOTH_OK;
  MothTensor **directions = moth_alloc(bytes);
  if (!directions)
    return moth_no_memory(0);
  memset(directions, 0, bytes);
  bool grad = moth_set_grad_enabled(false);
  MothStatus status = MOTH_OK;
  if (lr.tag == MOTH_V_TENSOR) /* of no dimensions, so that it broadcasts against anything */
    status = moth_eval(MOTH_OP(reshape), 2, (MothValue[]){lr, moth_v_ints(NULL, 0)}, &rate);
  if (status == MOTH_OK)
    status = step_all(c, directions, rate);
  moth_set_grad_enabled(grad);
  if (lr.tag == MOTH_V_TENSOR)
    moth_drop(&rate);
  for (uint32_t i = 0; i < params.n; i++)
    moth_tensor_release(directions[i]);
  moth_free(directions, bytes);
  return status;
}
