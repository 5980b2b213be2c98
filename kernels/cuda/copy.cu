/* Copies, conversions, fills, and the kernels of src/ops/create.lua. */
#include "kernels/common/sequence.h"
#include "kernels/cuda/util.h"
extern "C" {
#include "kernels/cpu/util.h"
}

/* Complex numbers as bools, by the loop of ne: another operand of 0. */
static MothStatus is_not_zero(MothTensor *dst, const MothTensor *src) {
  const MothOp *op = MOTH_OP(ne);
  MothPointwise p = {};
  MothIter it;
  moth_iter_init(&it, dst->ndim, dst->shape);
  moth_iter_add(&it, dst);
  moth_iter_add(&it, src);
  moth_iter_add_scalar(&it, NULL);
  moth_iter_prepare(&it);
  p.it = &it;
  p.stream = moth_cuda_stream(dst->device.index);
  return static_cast<const MothCudaLoop *>(op->loops[MOTH_CUDA])[src->dtype](&p);
}

/* Complex tensors by their parts, as moth_cpu_copy. */
static MothStatus copy_complex(MothTensor *dst, const MothTensor *src) {
  bool to = moth_dtype_is_complex((MothDType)dst->dtype),
       from = moth_dtype_is_complex((MothDType)src->dtype);
  MothTensor d = {}, s = {};
  if (dst->dtype == MOTH_BOOL)
    return is_not_zero(dst, src);
  if (to && from && dst->ndim == src->ndim && dst->ndim < MOTH_MAX_DIMS) {
    moth_cpu_see_part(dst, 2, &d);
    moth_cpu_see_part(src, 2, &s);
    return moth_cuda_copy(&d, &s);
  }
  for (int which = 0; which < (to ? 2 : 1); which++) {
    if (to)
      moth_cpu_see_part(dst, which, &d);
    if (from)
      moth_cpu_see_part(src, which, &s);
    if (which == 1 && !from)
      MOTH_TRY(moth_cuda_fill(&d, moth_v_int(0)));
    else
      MOTH_TRY(moth_cuda_copy(to ? &d : dst, from ? &s : src));
  }
  return MOTH_OK;
}

MothStatus moth_cuda_copy(MothTensor *dst, const MothTensor *src) {
  cudaStream_t stream = moth_cuda_stream(dst->device.index);
  MOTH_TRY(moth_cuda_set_device(dst->device.index));
  if (dst->numel == 0)
    return MOTH_OK;
  if (dst->contiguous && src->contiguous && dst->dtype == src->dtype && dst->numel == src->numel) {
    if (dst->data == src->data)
      return MOTH_OK;
    MOTH_CUDA_TRY(cudaMemcpyAsync(dst->data, src->data, (size_t)(dst->numel * moth_itemsize(dst)),
                                  cudaMemcpyDeviceToDevice, stream));
    return MOTH_OK;
  }
  if (dst->dtype >= MOTH_COMPLEX64 || src->dtype >= MOTH_COMPLEX64)
    return copy_complex(dst, src);
  MothIter it;
  moth_iter_init(&it, dst->ndim, dst->shape);
  moth_iter_add(&it, dst);
  moth_iter_add(&it, src);
  moth_iter_prepare(&it);
  MothPointwise p = {};
  p.it = &it;
  p.stream = stream;
  return moth_cuda_casts[dst->dtype][src->dtype](&p);
}

MothStatus moth_cuda_fill(MothTensor *t, MothValue v) {
  if (moth_dtype_is_complex((MothDType)t->dtype)) {
    MothTensor part = {};
    moth_cpu_see_part(t, 0, &part);
    MOTH_TRY(moth_cuda_fill(&part, v));
    moth_cpu_see_part(t, 1, &part);
    return moth_cuda_fill(&part, moth_v_int(0));
  }
  MOTH_TRY(moth_cuda_set_device(t->device.index));
  MothIter it;
  moth_iter_init(&it, t->ndim, t->shape);
  moth_iter_add(&it, t);
  moth_iter_add_scalar(&it, NULL);
  moth_iter_prepare(&it);
  MothPointwise p = {};
  p.it = &it;
  p.stream = moth_cuda_stream(t->device.index);
  moth_dtype_store((MothDType)t->dtype, p.number[1], v);
  return moth_cuda_casts[t->dtype][t->dtype](&p);
}

MothStatus moth_cuda_broadcast_as(const MothTensor *t, MothDType dtype, int ndim,
                                  const int64_t *shape, MothTensor **out) {
  bool same = t->ndim == ndim;
  for (int i = 0; i < ndim && same; i++)
    same = t->shape[i] == shape[i];
  if (same && t->contiguous && t->dtype == dtype) {
    moth_tensor_retain((MothTensor *)t);
    *out = (MothTensor *)t;
    return MOTH_OK;
  }
  MothTensor *copy;
  MOTH_TRY(moth_tensor_new(ndim, shape, dtype, t->device, &copy));
  MothStatus s = moth_cuda_copy(copy, t);
  if (s != MOTH_OK)
    moth_tensor_release(copy);
  else
    *out = copy;
  return s;
}

MothStatus moth_cuda_contiguous_as(const MothTensor *t, MothDType dtype, MothTensor **out) {
  return moth_cuda_broadcast_as(t, dtype, t->ndim, t->shape, out);
}

/* --- between devices ---------------------------------------------------------------------------- */

static MothStatus copy_within(MothTensor *dst, MothTensor *src) {
  if (dst->device.type == MOTH_CUDA)
    return moth_cuda_copy(dst, src);
  moth_cpu_copy(dst, src);
  return MOTH_OK;
}

/* Enables access to each other's memory for two devices that can; else CUDA copies through the host. */
static void connect(int a, int b) {
  static bool tried[MOTH_CUDA_MAX_DEVICES][MOTH_CUDA_MAX_DEVICES];
  if (__atomic_exchange_n(&tried[a][b], true, __ATOMIC_RELAXED))
    return;
  int can = 0;
  if (moth_cuda_set_device(a) != MOTH_OK || cudaDeviceCanAccessPeer(&can, a, b) != cudaSuccess ||
      (can && cudaDeviceEnablePeerAccess(b, 0) != cudaSuccess))
    cudaGetLastError();
}

/* The copy runs on the source's stream, after all work queued so far on both devices' streams and before any
 * later work on them. */
static MothStatus copy_peer(MothTensor *dst, const MothTensor *src, size_t n) {
  int from = src->device.index, to = dst->device.index;
  cudaStream_t out = moth_cuda_stream(from), in = moth_cuda_stream(to);
  connect(to, from);
  connect(from, to);
  MOTH_TRY(moth_cuda_order(to, in, from, out));
  MOTH_TRY(moth_cuda_set_device(from));
  MOTH_CUDA_TRY(cudaMemcpyPeerAsync(dst->data, to, src->data, from, n, out));
  return moth_cuda_order(from, out, to, in);
}

/* Copies row-major tensors of one dtype. Synchronous, but for copies between devices, and with non_blocking from
 * or to pinned memory. */
static MothStatus copy_bytes(MothTensor *dst, MothTensor *src, bool non_blocking) {
  size_t n = (size_t)(dst->numel * moth_itemsize(dst));
  if (dst->device.type == MOTH_CUDA && src->device.type == MOTH_CUDA)
    return copy_peer(dst, src, n);
  bool in = dst->device.type == MOTH_CUDA;
  int index = in ? dst->device.index : src->device.index;
  cudaMemcpyKind kind = in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  cudaStream_t stream = moth_cuda_stream(index);
  if (!non_blocking || !moth_cuda_pinned_use(in ? src->data : dst->data, index, stream))
    return moth_cuda_memcpy(index, dst->data, src->data, n, kind);
  MOTH_TRY(moth_cuda_set_device(index));
  MOTH_CUDA_TRY(cudaMemcpyAsync(dst->data, src->data, n, kind, stream));
  return MOTH_OK;
}

/* Row-major bytes are copied. The source's device broadcasts and makes them row-major; a CUDA device converts
 * them, before or after the copy; the target's device scatters them to its strides. */
MothStatus moth_cuda_copy_across(MothTensor *dst, MothTensor *src, bool non_blocking) {
  MothOwned s, d;
  MothTensor *to = dst;
  bool whole = src->contiguous && src->numel == dst->numel;
  if (dst->numel == 0)
    return MOTH_OK;
  if (!whole || (src->dtype != dst->dtype && src->device.type == MOTH_CUDA)) {
    MOTH_TRY(moth_tensor_new(dst->ndim, dst->shape, (MothDType)dst->dtype, src->device, &s.t));
    MOTH_TRY(copy_within(s, src));
    src = s;
    if (src->device.type == MOTH_CPU)
      non_blocking = false; /* the copy is freed when this returns */
  }
  if (!dst->contiguous || dst->dtype != src->dtype) {
    MOTH_TRY(moth_tensor_new(dst->ndim, dst->shape, (MothDType)src->dtype, dst->device, &d.t));
    to = d;
  }
  MOTH_TRY(copy_bytes(to, src, non_blocking && (to == dst || dst->device.type == MOTH_CUDA)));
  return to == dst ? MOTH_OK : copy_within(dst, to);
}

static MothStatus copy_any(MothTensor *dst, MothTensor *src, bool non_blocking) {
  if (dst->device.type != src->device.type || dst->device.index != src->device.index)
    return moth_cuda_copy_across(dst, src, non_blocking);
  if (moth_tensor_overlap(dst, src) != 2)
    return moth_cuda_copy(dst, src);
  MothOwned whole; /* overlapping: read all of the source before writing */
  MOTH_TRY(moth_tensor_new(src->ndim, src->shape, (MothDType)src->dtype, src->device, &whole.t));
  MOTH_TRY(moth_cuda_copy(whole, src));
  return moth_cuda_copy(dst, whole);
}

MothStatus moth_cuda_copy_(MothCall *c) {
  return copy_any(c->results[0].u.t, c->args[1].u.t, c->args[2].u.b);
}
MothStatus moth_cuda_clone(MothCall *c) {
  return copy_any(c->results[0].u.t, c->args[0].u.t, false);
}
MothStatus moth_cuda_to_copy(MothCall *c) {
  return copy_any(c->results[0].u.t, c->args[0].u.t, c->args[3].u.b);
}

/* --- fills -------------------------------------------------------------------------------------- */

MothStatus moth_cuda_fill_(MothCall *c) {
  MothValue v = c->args[1];
  if (v.tag == MOTH_V_TENSOR) {
    if (v.u.t->ndim != 0)
      return moth_fail(MOTH_ERR_VALUE, "the value must be a number or a 0-dim tensor");
    return copy_any(c->results[0].u.t, v.u.t, false);
  }
  return moth_cuda_fill(c->results[0].u.t, v);
}
MothStatus moth_cuda_zero_(MothCall *c) {
  return moth_cuda_fill(c->results[0].u.t, moth_v_int(0));
}
MothStatus moth_cuda_zeros(MothCall *c) {
  return moth_cuda_fill(c->results[0].u.t, moth_v_int(0));
}
MothStatus moth_cuda_ones(MothCall *c) {
  return moth_cuda_fill(c->results[0].u.t, moth_v_int(1));
}
MothStatus moth_cuda_full(MothCall *c) {
  return moth_cuda_fill(c->results[0].u.t, c->args[1]);
}
MothStatus moth_cuda_arange(MothCall *c) {
  MothTensor *t = c->results[0].u.t;
  int64_t first = moth_as_whole(c->args[0]), by = moth_as_whole(c->args[2]), skips = 1LL << 53;
  if (t->dtype == MOTH_INT64 && (first > skips || first < -skips || by > skips || by < -skips))
    return moth_fail(
        MOTH_ERR_VALUE,
        "numbers beyond 2^53 on CUDA: make it on the CPU and move it there by x:cuda()");
  MothSequence s = {};
  MothCudaRun run;
  MOTH_TRY(moth_cuda_run(c, &run));
  s.out = t->data;
  s.n = t->numel;
  s.start = moth_as_double(c->args[0]);
  s.step = moth_as_double(c->args[2]);
  return moth_cuda_kernels[t->dtype]->arange(&run, &s);
}
