/* conv2d and its derivatives, im2col and col2im: by cuDNN if it is available, else by moth's kernels. */
#include "kernels/cuda/conv.h"

#include "kernels/cuda/util.h"
#include "unpack/conv.h"

/* A product, whose mode and geometry are in *p. */
static MothStatus product(const MothCall *c, const MothCudaRun *run, MothConvProduct *p,
                          const MothTensor *a, const MothTensor *b, const MothTensor *bias) {
  MothTensor *out = c->results[0].u.t;
  MothDType dtype = (MothDType)out->dtype;
  const MothCudaKernels *k = moth_cuda_kernels[dtype];
  MothOwned left, right, add;
  bool done = false;
  MOTH_TRY(moth_cuda_contiguous(a, &left.t));
  MOTH_TRY(moth_cuda_contiguous(b, &right.t));
  if (bias)
    MOTH_TRY(moth_cuda_contiguous(bias, &add.t));
  p->a = left->data;
  p->b = right->data;
  p->bias = bias ? add->data : nullptr;
  p->out = out->data;
  MOTH_TRY(moth_cudnn_conv(run, dtype, p, &done));
  if (!done)
    return k->conv_simt(run, p);
  return bias ? k->conv_bias(run, p) : MOTH_OK;
}

MothStatus moth_cuda_conv2d(MothCall *c) {
  MOTH_UNPACK_CONV2D(c)
  MothConvProduct p = {};
  MothCudaRun run;
  MOTH_TRY(moth_cuda_run(c, &run));
  moth_conv_geometry(input->ndim, input->shape, weight->shape, stride, padding, dilation, groups,
                     &p.g);
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  p.mode = MOTH_CONV_FORWARD;
  return product(c, &run, &p, weight, input, bias);
}

MothStatus moth_cuda_conv2d_backward_input(MothCall *c) {
  MOTH_UNPACK_CONV2D_BACKWARD_INPUT(c)
  MothConvProduct p = {};
  MothCudaRun run;
  MOTH_TRY(moth_cuda_run(c, &run));
  moth_conv_geometry((int)input_size.n, input_size.u.ints, weight->shape, stride, padding, dilation,
                     groups, &p.g);
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  p.mode = MOTH_CONV_INPUT;
  return product(c, &run, &p, weight, grad_output, nullptr);
}

MothStatus moth_cuda_conv2d_backward_weight(MothCall *c) {
  MOTH_UNPACK_CONV2D_BACKWARD_WEIGHT(c)
  MothConvProduct p = {};
  MothCudaRun run;
  MOTH_TRY(moth_cuda_run(c, &run));
  moth_conv_geometry(input->ndim, input->shape, weight_size.u.ints, stride, padding, dilation,
                     groups, &p.g);
  if (grad_output->numel == 0)
    return moth_cuda_fill(c->results[0].u.t, moth_v_int(0));
  p.mode = MOTH_CONV_WEIGHT;
  return product(c, &run, &p, grad_output, input, nullptr);
}

/* --- columns -------------------------------------------------------------------------------------- */

MothStatus moth_cuda_im2col(MothCall *c) {
  MOTH_UNPACK_IM2COL(c)
  MothTensor *out = c->results[0].u.t;
  MothConvProduct p = {};
  MothCudaRun run;
  MothOwned in;
  MOTH_TRY(moth_cuda_run(c, &run));
  moth_columns_geometry(self, kernel_size, stride, padding, dilation, &p.g);
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  p.b = in->data;
  p.out = out->data;
  return moth_cuda_kernels[out->dtype]->im2col(&run, &p);
}

MothStatus moth_cuda_col2im(MothCall *c) {
  MOTH_UNPACK_COL2IM(c)
  MothTensor *out = c->results[0].u.t;
  MothConvProduct p = {};
  MothCudaRun run;
  MothOwned in;
  MOTH_TRY(moth_cuda_run(c, &run));
  moth_columns_geometry(out, kernel_size, stride, padding, dilation, &p.g);
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  p.b = in->data;
  p.out = out->data;
  return moth_cuda_kernels[out->dtype]->col2im(&run, &p);
}
