/* attention_forward and attention_backward, as kernels/cpu/attention.c. cuDNN for float16 and bfloat16 where
 * it supports the case, else the kernels of typed/attention.cuh. With dropout always these: its bits are the
 * CPU's. */
#include "kernels/cuda/attention.h"

#include "kernels/cuda/util.h"
#include "unpack/attention.h"

namespace {

/* t with contiguous columns: itself, or a copy; *owned has a reference to it. */
MothStatus heads_of(MothHeads *h, const MothTensor *t, MothDType dtype, MothOwned *owned) {
  if (t->dtype == dtype && (t->stride[3] == 1 || t->shape[3] <= 1)) {
    moth_tensor_retain(const_cast<MothTensor *>(t));
    owned->t = const_cast<MothTensor *>(t);
  } else {
    MOTH_TRY(moth_cuda_contiguous_as(t, dtype, &owned->t));
  }
  *h = MothHeads{owned->t->data, owned->t->stride[0], owned->t->stride[1], owned->t->stride[2]};
  return MOTH_OK;
}

/* Tensors that the kernels read, owned for the time of the call. */
struct Inputs {
  MothOwned q, k, v, mask, grad, o, lse, grad_lse, state;
};

MothStatus prepare(MothAttention *a, Inputs *in, const MothTensor *q, const MothTensor *k,
                   const MothTensor *v, const MothTensor *mask, double p, bool causal,
                   double scale) {
  MothDType dtype = (MothDType)q->dtype;
  a->B = q->shape[0], a->H = q->shape[1], a->L = q->shape[2], a->E = q->shape[3];
  a->K = k->shape[1], a->S = k->shape[2], a->V = v->shape[3];
  for (int64_t n : {a->L, a->S, a->E, a->V})
    if (n > 1 << 30)
      return moth_fail(MOTH_ERR_VALUE,
                       "attention on CUDA takes up to 2^30 positions and columns, got %lld",
                       (long long)n);
  a->p = p;
  a->causal = causal;
  a->scale = scale;
  MOTH_TRY(heads_of(&a->q, q, dtype, &in->q));
  MOTH_TRY(heads_of(&a->k, k, dtype, &in->k));
  MOTH_TRY(heads_of(&a->v, v, dtype, &in->v));
  if (!mask)
    return MOTH_OK;
  MothDType wide = dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MOTH_TRY(moth_cuda_contiguous_as(mask, mask->dtype == MOTH_BOOL ? MOTH_BOOL : wide, &in->mask.t));
  if (mask->dtype == MOTH_BOOL)
    a->mask_bool = (const uint8_t *)in->mask->data;
  else
    a->mask_add = in->mask->data;
  for (int i = 0; i < mask->ndim; i++)
    if (mask->shape[i] > 1)
      a->mask[4 - mask->ndim + i] = in->mask->stride[i];
  return MOTH_OK;
}

__global__ void state_kernel(uint64_t *state, MothCudaPhilox p) {
  state[0] = moth_philox_seed(p);
  state[1] = moth_philox_offset(p);
}

MothStatus attend(const MothCudaRun *run, MothDType dtype, const MothAttention *a, bool backward) {
  bool done = false;
  if ((dtype == MOTH_FLOAT16 || dtype == MOTH_BFLOAT16) && a->p == 0 && !a->mask_bool &&
      !a->mask_add && a->E && a->V && a->S)
    MOTH_TRY(moth_cudnn_attention(run, dtype, a, backward, &done));
  if (done)
    return MOTH_OK;
  const MothCudaAttentionKernels *k = moth_cuda_attention[dtype];
  return backward ? k->backward(run, a) : k->forward(run, a);
}

} // namespace

MothStatus moth_cuda_attention_forward(MothCall *c) {
  MOTH_UNPACK_ATTENTION_FORWARD(c)
  MothTensor *out = c->results[0].u.t, *lse = c->results[1].u.t, *state = c->results[2].u.t;
  MothDType dtype = (MothDType)query->dtype;
  MothAttention a = {};
  MothCudaRun run;
  Inputs in;
  MOTH_TRY(moth_cuda_run(c, &run));
  if (dropout_p > 0) {
    MothCudaPhilox philox =
        moth_cuda_philox(out->device.index, generator, 4 * lse->numel * ((key->shape[2] + 3) / 4));
    MOTH_TRY(moth_launch("attention_forward", state_kernel, dim3(1), dim3(1), 0, run.stream,
                         (uint64_t *)state->data, philox));
  } else {
    MOTH_CUDA_TRY(cudaMemsetAsync(state->data, 0, 16, run.stream));
  }
  if (!lse->numel)
    return MOTH_OK;
  MOTH_TRY(prepare(&a, &in, query, key, value, attn_mask, dropout_p, is_causal, scale));
  a.state = (const uint64_t *)state->data;
  a.lse = lse->data;
  a.o = MothHeads{out->data, out->stride[0], out->stride[1], out->stride[2]};
  return attend(&run, dtype, &a, false);
}

MothStatus moth_cuda_attention_backward(MothCall *c) {
  MOTH_UNPACK_ATTENTION_BACKWARD(c)
  MothTensor *result[3];
  MothDType dtype = (MothDType)query->dtype;
  MothDType wide = dtype == MOTH_FLOAT64 ? MOTH_FLOAT64 : MOTH_FLOAT32;
  MothHeads *heads[3];
  MothAttention a = {};
  MothCudaRun run;
  Inputs in;
  MothScratch delta;
  MOTH_TRY(moth_cuda_run(c, &run));
  for (int i = 0; i < 3; i++)
    result[i] = c->results[i].u.t;
  if (!logsumexp->numel || !key->shape[2]) {
    for (int i = 0; i < 3; i++)
      MOTH_TRY(moth_cuda_fill(result[i], moth_v_int(0)));
    return MOTH_OK;
  }
  MOTH_TRY(prepare(&a, &in, query, key, value, attn_mask, dropout_p, is_causal, scale));
  MOTH_TRY(heads_of(&a.grad, grad_output, dtype, &in.grad));
  MOTH_TRY(heads_of(&a.o, output, dtype, &in.o));
  MOTH_TRY(moth_cuda_contiguous_as(logsumexp, wide, &in.lse.t));
  MOTH_TRY(moth_cuda_contiguous(state, &in.state.t));
  if (grad_logsumexp)
    MOTH_TRY(moth_cuda_contiguous_as(grad_logsumexp, wide, &in.grad_lse.t));
  MOTH_TRY(delta.take(c->device.index, (size_t)(logsumexp->numel * moth_dtype_size(wide))));
  a.lse = in.lse->data;
  a.grad_lse = grad_logsumexp ? in.grad_lse->data : nullptr;
  a.state = (const uint64_t *)in.state->data;
  a.delta = delta.p;
  heads[0] = &a.dq, heads[1] = &a.dk, heads[2] = &a.dv;
  for (int i = 0; i < 3; i++)
    *heads[i] = MothHeads{result[i]->data, result[i]->stride[0], result[i]->stride[1],
                          result[i]->stride[2]};
  return attend(&run, dtype, &a, true);
}
