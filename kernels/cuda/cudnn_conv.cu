/* Convolution by cuDNN: a product is a graph of one operation. See cudnn.h. */
#include "kernels/cuda/cudnn.h"

#include "kernels/cuda/conv.h"
#include "kernels/cuda/util.h"

#ifdef __CUDACC__
extern "C" {
#include "core/log.h"
#include "device/cuda_settings.h"
}

static void tensor(Desc *t, int64_t id, int dtype, int64_t align, const int64_t size[4]) {
  int64_t stride[4] = {size[1] * size[2] * size[3], size[2] * size[3], size[3], 1};
  moth_dnn_tensor(t, id, moth_dnn_type(dtype), align, size, stride);
  t->finish();
}

/* Ids of the tensors: 1 the input, 2 the weight, 3 the result (or their gradients). */
static void make_plan(MothDnnSession *session, const MothConv *g, int mode, MothDType dtype,
                      bool tf32, int64_t align_a, int64_t align_b, int64_t align_out,
                      MothDnnPlan *p) {
  int64_t x_size[4] = {g->n, g->c, g->h, g->w}, y_size[4] = {g->n, g->k, g->oh, g->ow};
  int64_t w_size[4] = {g->k, g->c / g->groups, g->kernel[0], g->kernel[1]};
  /* alignments of input and weight among a, b and out */
  int64_t ax = mode == MOTH_CONV_INPUT ? align_out : align_b;
  int64_t aw = mode == MOTH_CONV_WEIGHT ? align_out : align_a;
  int64_t ay = mode == MOTH_CONV_FORWARD ? align_out : mode == MOTH_CONV_INPUT ? align_b : align_a;
  Desc x(CUDNN_BACKEND_TENSOR_DESCRIPTOR), w(CUDNN_BACKEND_TENSOR_DESCRIPTOR),
      y(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  tensor(&x, 1, dtype, ax, x_size);
  tensor(&w, 2, dtype, aw, w_size);
  tensor(&y, 3, dtype, ay, y_size);

  Desc conv(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  cudnnDataType_t compute = dtype == MOTH_FLOAT64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT;
  cudnnConvolutionMode_t cross = CUDNN_CROSS_CORRELATION;
  int64_t dims = 2;
  conv.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dims);
  conv.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  conv.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &cross);
  conv.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, g->padding);
  conv.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, g->padding);
  conv.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, g->dilation);
  conv.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, g->stride);
  conv.finish();

  struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t conv, x, w, y, alpha, beta;
  } const names[3] = {
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
  };
  Desc op(names[mode].type);
  double one = 1, zero = 0;
  float one_f = 1, zero_f = 0;
  bool wide = dtype == MOTH_FLOAT64;
  cudnnBackendAttributeType_t number = wide ? CUDNN_TYPE_DOUBLE : CUDNN_TYPE_FLOAT;
  op.set(names[mode].conv, conv);
  op.set(names[mode].x, x);
  op.set(names[mode].w, w);
  op.set(names[mode].y, y);
  op.set(names[mode].alpha, number, 1, wide ? (const void *)&one : &one_f);
  op.set(names[mode].beta, number, 1, wide ? (const void *)&zero : &zero_f);
  op.finish();

  Desc graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &session->handle);
  graph.set(CUDNN_ATTR_OPERATIONGRAPH_OPS, op);
  if (!graph.finish()) {
    moth_log_write("cuda", "cuDNN refuses a convolution: %s",
                   dnn.cudnnGetErrorString(graph.status));
    return;
  }
  if (!session->choose(graph, {dtype == MOTH_FLOAT32, tf32, false}, p))
    moth_log_write("cuda", "cuDNN has no engine for a convolution of %lld to %lld channels",
                   (long long)g->c, (long long)g->k);
}

MothStatus moth_cudnn_conv(const MothCudaRun *run, MothDType dtype, const MothConvProduct *product,
                           bool *done) {
  const MothConv *g = &product->g;
  const MothConvMode mode = product->mode;
  const void *a = product->a, *b = product->b, *out = product->out;
  *done = false;
  if (!moth_dnn_open())
    return MOTH_OK;
  bool tf32 = dtype == MOTH_FLOAT32 && moth_cuda_settings.allow_tf32;
  int64_t align[3] = {moth_dnn_alignment(a), moth_dnn_alignment(b), moth_dnn_alignment(out)};
  MothDnnKey key = {{1,
                     run->device,
                     dtype,
                     mode,
                     tf32,
                     align[0],
                     align[1],
                     align[2],
                     g->n,
                     g->c,
                     g->h,
                     g->w,
                     g->k,
                     g->oh,
                     g->ow,
                     g->groups,
                     g->kernel[0],
                     g->kernel[1],
                     g->stride[0],
                     g->stride[1],
                     g->padding[0],
                     g->padding[1],
                     g->dilation[0],
                     g->dilation[1]}};
  const void *data[3] = {mode == MOTH_CONV_INPUT ? out : b, mode == MOTH_CONV_WEIGHT ? out : a,
                         mode == MOTH_CONV_FORWARD ? out
                         : mode == MOTH_CONV_INPUT ? b
                                                   : a}; /* input, weight, result */
  const int64_t ids[3] = {1, 2, 3};
  MothDnnSession session(run->device, run->stream);
  MOTH_TRY(session.status);
  MothDnnPlan *p = session.find(key);
  if (!p->used)
    make_plan(&session, g, mode, dtype, tf32, align[0], align[1], align[2], p);
  p->used = true;
  if (!p->plan)
    return MOTH_OK;
  MOTH_TRY(session.run(run->device, p, 3, ids, data));
  *done = true;
  return MOTH_OK;
}
#else
MothStatus moth_cudnn_conv(const MothCudaRun *, MothDType, const MothConvProduct *, bool *done) {
  *done = false;
  return MOTH_OK;
}
#endif
