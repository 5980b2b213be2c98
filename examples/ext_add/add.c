/* The op ext_add::add, defined by a library of C: its kernel for the CPU, its derivative, its fakes. The one for CUDA
 * stands in add.cu; without that file the op is there on the CPU alone. */
#include <moth.h>
#include <moth_ops.h>

/* The same shape and dtype: what the kernels take. */
static MothStatus check(MothTensor *a, MothTensor *b) {
  bool same = moth_tensor_ndim(a) == moth_tensor_ndim(b) && moth_tensor_dtype(a) == MOTH_FLOAT32 &&
              moth_tensor_dtype(b) == MOTH_FLOAT32;
  for (int i = 0; same && i < moth_tensor_ndim(a); i++)
    same = moth_tensor_shape(a)[i] == moth_tensor_shape(b)[i];
  return same ? MOTH_OK : moth_fail(MOTH_ERR_VALUE, "expected two float32 tensors of one shape");
}

/* The arguments as rows in memory, and a result like them. */
MothStatus ext_add_prepare(MothCall *c, MothTensor **a, MothTensor **b, MothTensor **out) {
  MothTensor *given[2] = {moth_call_arg(c, 0).u.t, moth_call_arg(c, 1).u.t};
  MothStatus s = check(given[0], given[1]);
  *a = *b = *out = NULL;
  if (!s)
    s = moth_contiguous(given[0], a);
  if (!s)
    s = moth_contiguous(given[1], b);
  if (!s)
    s = moth_tensor_new(moth_tensor_ndim(*a), moth_tensor_shape(*a), MOTH_FLOAT32,
                        moth_tensor_device(*a), out);
  return s;
}

MothStatus ext_add_finish(MothCall *c, MothStatus s, MothTensor *a, MothTensor *b,
                          MothTensor *out) {
  moth_tensor_release(a);
  moth_tensor_release(b);
  if (!s)
    return moth_call_set_result(c, 0, out);
  moth_tensor_release(out);
  return s;
}

static MothStatus add_cpu(MothCall *c) {
  MothTensor *a, *b, *out;
  MothStatus s = ext_add_prepare(c, &a, &b, &out);
  if (!s) {
    const float *x = moth_tensor_data(a), *y = moth_tensor_data(b);
    float *to = moth_tensor_data(out);
    for (int64_t i = 0; i < moth_tensor_numel(out); i++)
      to[i] = x[i] + y[i];
  }
  return ext_add_finish(c, s, a, b, out);
}

static MothStatus add_fake(MothCall *c) {
  MothTensor *out;
  MothStatus s = check(moth_call_arg(c, 0).u.t, moth_call_arg(c, 1).u.t);
  if (!s)
    s = moth_add(moth_call_arg(c, 0), moth_call_arg(c, 1), moth_v_int(1), &out);
  return s ? s : moth_call_set_result(c, 0, out);
}

static MothStatus add_backward(MothNode *n, MothTensor *const *grads, uint32_t need,
                               MothTensor **out) {
  for (int i = 0; i < 2; i++)
    if (need >> i & 1) {
      MothStatus s = moth_clone(grads[0], &out[moth_node_edge(n, i)]);
      if (s)
        return s;
    }
  return MOTH_OK;
}

__attribute__((weak)) MothStatus add_cuda(MothCall *c);

MOTH_LIBRARY(ext_add, m) {
  moth_def_op(m, &(MothOpDef){.schema = "add(Tensor a, Tensor b) -> Tensor",
                              .doc = "a + b, of float32 tensors of one shape.",
                              .cpu = add_cpu,
                              .cuda = add_cuda,
                              .fake = add_fake,
                              .backward = add_backward});
}
