/* The numbers of convolution and pooling for the kernels, from arguments that the shape rules have checked. */
#include "kernels/common/window.h"

#include "dispatch/dispatch.h"

static void pair(MothValue v, int64_t out[2]) {
  out[0] = v.u.ints[0];
  out[1] = v.u.ints[1];
}

void moth_conv_geometry(int ndim, const int64_t *input, const int64_t *weight, MothValue stride,
                        MothValue padding, MothValue dilation, int64_t groups, MothConv *g) {
  pair(stride, g->stride);
  pair(padding, g->padding);
  pair(dilation, g->dilation);
  g->batched = ndim == 4;
  g->n = g->batched ? input[0] : 1;
  g->c = input[ndim - 3];
  g->h = input[ndim - 2];
  g->w = input[ndim - 1];
  g->k = weight[0];
  g->kernel[0] = weight[2];
  g->kernel[1] = weight[3];
  g->groups = groups;
  for (int i = 0; i < 2; i++) {
    int64_t size = (i ? g->w : g->h) + 2 * g->padding[i];
    int64_t span = g->dilation[i] * (g->kernel[i] - 1) + 1;
    *(i ? &g->ow : &g->oh) = (size - span) / g->stride[i] + 1;
  }
}

void moth_columns_geometry(const MothTensor *image, MothValue kernel, MothValue stride,
                           MothValue padding, MothValue dilation, MothConv *g) {
  int64_t weight[4] = {1, image->shape[image->ndim - 3], kernel.u.ints[0], kernel.u.ints[1]};
  moth_conv_geometry(image->ndim, image->shape, weight, stride, padding, dilation, 1, g);
}

void moth_pool_geometry(const MothCall *c, int ndim, const int64_t *input, MothPool *p) {
  const MothOp *op = c->op;
  static const int64_t one[2] = {1, 1};
  MothValue kernel = moth_v_none(), stride = kernel, padding = kernel,
            dilation = moth_v_ints(one, 2);
  bool backward = true;
  *p = (MothPool){.include_pad = true,
                  .planes = input[ndim - 3] * (ndim == 4 ? input[0] : 1),
                  .h = input[ndim - 2],
                  .w = input[ndim - 1]};
  if (op == MOTH_OP(max_pool2d_with_indices) || op == MOTH_OP(max_pool2d_backward)) {
    backward = op == MOTH_OP(max_pool2d_backward);
    const MothValue *a = c->args + (backward ? 3 : 1);
    kernel = a[0];
    stride = a[1];
    padding = a[2];
    dilation = a[3];
  } else if (op == MOTH_OP(avg_pool2d) || op == MOTH_OP(avg_pool2d_backward)) {
    backward = op == MOTH_OP(avg_pool2d_backward);
    const MothValue *a = c->args + (backward ? 2 : 1);
    kernel = a[0];
    stride = a[1];
    padding = a[2];
    p->include_pad = a[4].u.b;
    p->divisor = a[5].tag == MOTH_V_INT ? a[5].u.i : 0;
  } else {
    backward = op == MOTH_OP(adaptive_avg_pool2d_backward);
  }
  const MothTensor *pooled = backward ? c->args[0].u.t : c->results[0].u.t;
  p->oh = pooled->shape[ndim - 2];
  p->ow = pooled->shape[ndim - 1];
  p->adaptive = kernel.tag == MOTH_V_NONE;
  if (!p->adaptive) {
    pair(kernel, p->kernel);
    pair(stride, p->stride);
    pair(padding, p->padding);
    pair(dilation, p->dilation);
  }
}
