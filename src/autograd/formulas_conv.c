/* Derivatives of src/ops/conv.lua that are more than one expression. */
#include "autograd/formulas.h"

static MothStatus give(MothStatus s, MothTensor *const *t, MothValue *out) {
  if (s == MOTH_OK)
    *out = moth_v_tensor(*t);
  return s;
}

MothStatus moth_grad_conv_bias_grad(const MothValue *a, MothValue *out) {
  MothTensor *t;
  bool batched = a[0].u.t->ndim == 4;
  int64_t dims[3] = {0, 2, 3}, plain[2] = {1, 2};
  MothValue over = batched ? moth_v_ints(dims, 3) : moth_v_ints(plain, 2);
  return give(moth_sum(a[0].u.t, over, false, moth_v_none(), &t), &t, out);
}

MothStatus moth_grad_conv2d_plain(const MothValue *a, MothValue *out) {
  MothTensor *t;
  return give(moth_conv2d(a[0].u.t, a[1].u.t, NULL, a[2], a[3], a[4], a[5].u.i, &t), &t, out);
}

MothStatus moth_grad_im2col_backward(const MothValue *a, MothValue *out) {
  MothTensor *t;
  const int64_t *size = a[1].u.ints + a[1].n - 2;
  return give(moth_col2im(a[0].u.t, size, 2, a[2].u.ints, (int)a[2].n, a[3], a[4], a[5], &t), &t,
              out);
}

MothStatus moth_grad_max_pool2d_pick(const MothValue *a, MothValue *out) {
  MothTensor *flat, *index = NULL, *picked = NULL, *t = NULL;
  MothTensor *like = a[1].u.t;
  MothStatus status = moth_flatten(a[0].u.t, -2, -1, &flat);
  if (status != MOTH_OK)
    return status;
  MOTH_GO(moth_flatten(like, -2, -1, &index));
  MOTH_GO(moth_gather(flat, -1, index, a[2].u.i, &picked));
  MOTH_GO(give(moth_reshape(picked, like->shape, like->ndim, &t), &t, out));
done:
  moth_tensor_release(flat);
  moth_tensor_release(index);
  moth_tensor_release(picked);
  return status;
}

MothStatus moth_grad_adaptive_max_pool2d_backward(const MothValue *a, MothValue *out) {
  MothTensor *t;
  MothValue none = moth_v_none();
  return give(moth_max_pool2d_backward(a[0].u.t, a[1].u.t, a[2].u.ints, (int)a[2].n, none, none,
                                       none, none, a[3].u.i, &t),
              &t, out);
}

MothStatus moth_grad_adaptive_avg_pool2d_like(const MothValue *a, MothValue *out) {
  MothTensor *t;
  return give(moth_adaptive_avg_pool2d(a[0].u.t, a[1].u.ints + a[1].n - 2, 2, &t), &t, out);
}
