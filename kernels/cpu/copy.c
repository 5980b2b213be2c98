/* Copies, conversions, fills, and the kernels of src/ops/create.lua. */
#include <string.h>

#include "core/dtype.h"
#include "core/parallel.h"
#include "device/device.h"
#include "dispatch/dispatch.h"
#include "dispatch/on_cpu.h"
#include "kernels/common/iter.h"
#include "kernels/common/sequence.h"
#include "kernels/cpu/util.h"
#include "unpack/view.h"

/* --- copies ----------------------------------------------------------------------------------- */

MothStatus moth_cpu_copy_across(MothTensor *dst, MothTensor *src, bool non_blocking) {
  MothDevice far = src->device.type == MOTH_CPU ? dst->device : src->device;
  const MothDeviceOps *ops = moth_device_ops((MothDeviceType)far.type);
  if (ops->copy)
    return ops->copy(dst, src, non_blocking);
  bool to_host = dst->device.type == MOTH_CPU;
  if (!to_host && src->device.type != MOTH_CPU)
    return moth_fail(MOTH_ERR_VALUE,
                     "a copy between two devices goes through the cpu: x:cpu():to(device)");
  bool plain =
      src->contiguous && dst->contiguous && src->dtype == dst->dtype && src->numel == dst->numel;
  size_t n = (size_t)(src->numel * moth_itemsize(src));
  if (plain && to_host)
    return ops->memory.to_host(far.index, dst->data, src->data, n);
  if (plain)
    return ops->memory.from_host(far.index, dst->data, src->data, n);
  MothHostCopy copy = {0};
  MothStatus s = moth_host_fetch(&copy, to_host ? src : dst, to_host);
  if (s == MOTH_OK && to_host)
    moth_cpu_copy(dst, copy.view);
  if (s == MOTH_OK && !to_host) {
    moth_cpu_copy(copy.view, src);
    s = moth_host_send(&copy);
  }
  moth_host_drop(&copy);
  return s;
}

/* Whether the call is left to the CPU, as its tensors lie in memory that the host cannot read. */
static bool is_apart(const MothTensor *dst, const MothTensor *src) {
  return dst->device.type == src->device.type &&
         moth_device_ops((MothDeviceType)dst->device.type)->apart;
}

static MothStatus copy_any(MothTensor *dst, MothTensor *src, bool non_blocking) {
  if (dst->device.type != src->device.type)
    return moth_cpu_copy_across(dst, src, non_blocking);
  if (moth_tensor_overlap(dst, src) != 2) {
    moth_cpu_copy(dst, src);
    return MOTH_OK;
  }
  MothTensor *whole; /* overlapping: read all of the source before writing */
  MOTH_TRY(moth_tensor_new(src->ndim, src->shape, (MothDType)src->dtype, src->device, &whole));
  moth_cpu_copy(whole, src);
  moth_cpu_copy(dst, whole);
  moth_tensor_release(whole);
  return MOTH_OK;
}

MothStatus moth_cpu_copy_(MothCall *c) {
  if (is_apart(c->results[0].u.t, c->args[1].u.t))
    return moth_call_on_cpu(c);
  return copy_any(c->results[0].u.t, c->args[1].u.t, c->args[2].u.b);
}
MothStatus moth_cpu_clone(MothCall *c) {
  return copy_any(c->results[0].u.t, c->args[0].u.t, false);
}
MothStatus moth_cpu_to_copy(MothCall *c) {
  if (is_apart(c->results[0].u.t, c->args[0].u.t))
    return moth_call_on_cpu(c);
  return copy_any(c->results[0].u.t, c->args[0].u.t, c->args[3].u.b);
}

/* --- fills ------------------------------------------------------------------------------------ */

typedef struct Fill {
  char *data;
  int64_t size;
  MothParam value;
  int dtype;
} Fill;

static void fill_range(void *ctx, int64_t begin, int64_t end) {
  const Fill *f = ctx;
  MothSequence s = {.out = f->data + begin * f->size, .n = end - begin, .value = f->value};
  moth_cpu_kernels(f->dtype)->fill(&s);
}

/* Fills with a number, in the dtype of t. */
static void fill_complex(MothTensor *t, MothValue v) {
  MothComplex128 element;
  moth_dtype_store((MothDType)t->dtype, &element, v);
  MothTensor one = {.dtype = t->dtype, .numel = 1, .contiguous = true, .data = (char *)&element};
  moth_cpu_copy(t, &one);
}

static MothStatus fill(MothTensor *t, MothValue v) {
  if (moth_dtype_is_complex((MothDType)t->dtype)) {
    fill_complex(t, v);
    return MOTH_OK;
  }
  if (t->contiguous) {
    Fill f = {t->data, moth_itemsize(t), moth_param_of(v, (MothDType)t->dtype), t->dtype};
    moth_parallel_for(t->numel, MOTH_GRAIN, fill_range, &f);
    return MOTH_OK;
  }
  MothIter it;
  char element[8];
  moth_dtype_store((MothDType)t->dtype, element, v);
  moth_iter_init(&it, t->ndim, t->shape);
  moth_iter_add(&it, t);
  moth_iter_add_scalar(&it, element);
  moth_iter_prepare(&it);
  moth_iter_run(&it, moth_cpu_kernels(t->dtype)->copy_from[t->dtype], NULL, MOTH_GRAIN);
  return MOTH_OK;
}

MothStatus moth_cpu_fill_(MothCall *c) {
  MothValue v = c->args[1];
  if (v.tag == MOTH_V_TENSOR) {
    if (v.u.t->ndim != 0)
      return moth_fail(MOTH_ERR_VALUE, "the value must be a number or a 0-dim tensor");
    if (moth_dtype_is_complex((MothDType)v.u.t->dtype)) {
      if (!moth_dtype_is_complex((MothDType)c->results[0].u.t->dtype))
        return moth_fail(MOTH_ERR_TYPE, "a complex value does not go into a %s tensor",
                         moth_dtype_name((MothDType)c->results[0].u.t->dtype));
      moth_cpu_copy(c->results[0].u.t, v.u.t);
      return MOTH_OK;
    }
    MOTH_TRY(moth_tensor_item(v.u.t, &v));
  }
  return fill(c->results[0].u.t, v);
}

MothStatus moth_cpu_empty(MothCall *c) {
  (void)c;
  return MOTH_OK;
}
MothStatus moth_cpu_zero_(MothCall *c) {
  return fill(c->results[0].u.t, moth_v_int(0));
}
MothStatus moth_cpu_zeros(MothCall *c) {
  return fill(c->results[0].u.t, moth_v_int(0));
}
MothStatus moth_cpu_ones(MothCall *c) {
  return fill(c->results[0].u.t, moth_v_int(1));
}
MothStatus moth_cpu_full(MothCall *c) {
  return fill(c->results[0].u.t, c->args[1]);
}

MothStatus moth_cpu_arange(MothCall *c) {
  MothTensor *t = c->results[0].u.t;
  int64_t first = moth_as_whole(c->args[0]), by = moth_as_whole(c->args[2]), skips = 1LL << 53;
  if (t->dtype == MOTH_INT64 && (first > skips || first < -skips || by > skips || by < -skips)) {
    int64_t *out =
        (int64_t *)t->data; /* doubles, which the kernels are given, skip integers here */
    for (int64_t i = 0; i < t->numel; i++)
      out[i] = (int64_t)((uint64_t)first + (uint64_t)i * (uint64_t)by);
    return MOTH_OK;
  }
  MothSequence s = {.out = t->data,
                    .n = t->numel,
                    .start = moth_as_double(c->args[0]),
                    .step = moth_as_double(c->args[2])};
  moth_cpu_kernels(t->dtype)->arange(&s);
  return MOTH_OK;
}

MothStatus moth_cpu_linspace(MothCall *c) {
  MothTensor *t = c->results[0].u.t;
  double a = moth_as_double(c->args[0]), b = moth_as_double(c->args[1]);
  int64_t n = t->numel, size = moth_itemsize(t);
  double step = n > 1 ? (b - a) / (double)(n - 1) : 0;
  for (int64_t i = 0; i < n; i++) /* from both ends, so that the last one is b */
    moth_dtype_store(
        (MothDType)t->dtype, t->data + i * size,
        moth_v_float(i < n / 2 || n == 1 ? a + step * (double)i : b - step * (double)(n - 1 - i)));
  return MOTH_OK;
}

MothStatus moth_cpu_eye(MothCall *c) {
  MothTensor *t = c->results[0].u.t;
  MOTH_TRY(fill(t, moth_v_int(0)));
  int64_t n = t->shape[0] < t->shape[1] ? t->shape[0] : t->shape[1];
  for (int64_t i = 0; i < n; i++)
    moth_dtype_store((MothDType)t->dtype, t->data + i * (t->shape[1] + 1) * moth_itemsize(t),
                     moth_v_int(1));
  return MOTH_OK;
}

MothStatus moth_cpu_as_strided_backward(MothCall *c);
static MothStatus parts_of_as_strided_backward(MothCall *c) {
  MothTensor *out = c->results[0].u.t, grad, result;
  MothValue args[MOTH_MAX_ARGS], results[1] = {moth_v_tensor(&result)};
  MothCall inner = *c;
  memcpy(args, c->args, sizeof(MothValue) * c->op->nargs);
  args[0] = moth_v_tensor(&grad);
  inner.args = args;
  inner.results = results;
  for (int which = 0; which < 2; which++) {
    moth_cpu_see_part(c->args[0].u.t, which, &grad);
    moth_cpu_see_part(out, which, &result);
    MOTH_TRY(moth_cpu_as_strided_backward(&inner));
  }
  return MOTH_OK;
}

/* out (base geometry): each element of grad is added to the element that as_strided read. Serial: several may
 * go to the same one. */
MothStatus moth_cpu_as_strided_backward(MothCall *c) {
  MOTH_UNPACK_AS_STRIDED_BACKWARD(c)
  MothTensor *out = c->results[0].u.t, *grad;
  if (moth_dtype_is_complex((MothDType)out->dtype))
    return parts_of_as_strided_backward(c);
  MOTH_TRY(fill(out, moth_v_int(0)));
  /* The base's elements are at base_offset + index . base_stride of a flat buffer of sums. */
  int64_t reach = 0;
  for (uint32_t i = 0; i < size.n; i++)
    reach += size.u.ints[i] > 0 ? (size.u.ints[i] - 1) * stride.u.ints[i] : 0;
  int64_t base_reach = 0;
  for (uint32_t i = 0; i < base_size.n; i++)
    base_reach += base_size.u.ints[i] > 0 ? (base_size.u.ints[i] - 1) * base_stride.u.ints[i] : 0;
  int64_t n = storage_offset + reach + 1;
  if (base_offset + base_reach + 1 > n)
    n = base_offset + base_reach + 1;
  MothTensor *flat;
  MothDevice cpu = {MOTH_CPU, 0};
  MOTH_TRY(moth_tensor_new(1, &n, MOTH_FLOAT64, cpu, &flat));
  MothStatus s = fill(flat, moth_v_int(0));
  if (s == MOTH_OK)
    s = moth_cpu_contiguous_as(grad_output, MOTH_FLOAT64, &grad);
  if (s == MOTH_OK) {
    double *f = (double *)flat->data;
    const double *g = (const double *)grad->data;
    int64_t index[MOTH_MAX_DIMS] = {0}, at = storage_offset;
    for (int64_t i = 0; i < grad->numel; i++) {
      f[at] += g[i];
      for (int d = (int)size.n - 1; d >= 0; d--) {
        at += stride.u.ints[d];
        if (++index[d] < size.u.ints[d])
          break;
        at -= stride.u.ints[d] * size.u.ints[d];
        index[d] = 0;
      }
    }
    moth_tensor_release(grad);
    MothTensor *view;
    s = moth_tensor_view(flat, (int)base_size.n, base_size.u.ints, base_stride.u.ints, base_offset,
                         &view);
    if (s == MOTH_OK) {
      moth_cpu_copy(out, view);
      moth_tensor_release(view);
    }
  }
  moth_tensor_release(flat);
  return s;
}
