/* conv2d and its derivatives, im2col and col2im: by cuDNN if it is available, else by moth's kernels. */
#include "kernels/cuda/util.h"
#include "unpack/conv.h"

static MothStatus product(const MothCall *c, cudaStream_t stream, MothConvMode mode,
                          const MothConv *g, const MothTensor *a, const MothTensor *b,
                          const MothTensor *bias) {
  MothTensor *out = c->results[0].u.t;
  MothDType dtype = (MothDType)out->dtype;
  const MothCudaKernels *k = moth_cuda_kernels[dtype];
  MothOwned left, right, add;
  bool done = false;
  MOTH_TRY(moth_cuda_contiguous(a, &left.t));
  MOTH_TRY(moth_cuda_contiguous(b, &right.t));
  if (bias)
    MOTH_TRY(moth_cuda_contiguous(bias, &add.t));
  MOTH_TRY(moth_cudnn_conv(out->device.index, stream, mode, dtype, g, left->data, right->data,
                           out->data, &done));
  if (!done)
    return k->conv_simt(stream, mode, g, left->data, right->data, bias ? add->data : nullptr,
                        out->data);
  return bias ? k->conv_bias(stream, g, out->data, add->data) : MOTH_OK;
}

MothStatus moth_cuda_conv2d(MothCall *c) {
  MOTH_UNPACK_CONV2D(c)
  cudaStream_t stream;
  MothConv g;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  moth_conv_geometry(input->ndim, input->shape, weight->shape, stride, padding, dilation, groups,
                     &g);
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  return product(c, stream, MOTH_CONV_FORWARD, &g, weight, input, bias);
}

MothStatus moth_cuda_conv2d_backward_input(MothCall *c) {
  MOTH_UNPACK_CONV2D_BACKWARD_INPUT(c)
  cudaStream_t stream;
  MothConv g;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  moth_conv_geometry((int)input_size.n, input_size.u.ints, weight->shape, stride, padding, dilation,
                     groups, &g);
  if (c->results[0].u.t->numel == 0)
    return MOTH_OK;
  return product(c, stream, MOTH_CONV_INPUT, &g, weight, grad_output, nullptr);
}

MothStatus moth_cuda_conv2d_backward_weight(MothCall *c) {
  MOTH_UNPACK_CONV2D_BACKWARD_WEIGHT(c)
  cudaStream_t stream;
  MothConv g;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  moth_conv_geometry(input->ndim, input->shape, weight_size.u.ints, stride, padding, dilation,
                     groups, &g);
  if (grad_output->numel == 0)
    return moth_cuda_fill(c->results[0].u.t, moth_v_int(0));
  return product(c, stream, MOTH_CONV_WEIGHT, &g, grad_output, input, nullptr);
}

/* --- columns -------------------------------------------------------------------------------------- */

MothStatus moth_cuda_im2col(MothCall *c) {
  MOTH_UNPACK_IM2COL(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned in;
  MothConv g;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  moth_columns_geometry(self, kernel_size, stride, padding, dilation, &g);
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  return moth_cuda_kernels[out->dtype]->im2col(stream, &g, out->data, in->data);
}

MothStatus moth_cuda_col2im(MothCall *c) {
  MOTH_UNPACK_COL2IM(c)
  MothTensor *out = c->results[0].u.t;
  cudaStream_t stream;
  MothOwned in;
  MothConv g;
  MOTH_TRY(moth_cuda_enter(c, &stream));
  moth_columns_geometry(out, kernel_size, stride, padding, dilation, &g);
  if (out->numel == 0)
    return MOTH_OK;
  MOTH_TRY(moth_cuda_contiguous(self, &in.t));
  return moth_cuda_kernels[out->dtype]->col2im(stream, &g, out->data, in->data);
}
