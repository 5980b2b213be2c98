/* Ops defined by a library of C, for library_spec.lua: it is compiled and loaded there. */
#include <moth.h>
#include <moth_ops.h>

#ifndef NAME
#define NAME c_ops
#endif
#pragma GCC diagnostic ignored "-Wunused-function"

/* scale: elements of a dense float32 tensor times a number, by a loop of our own; others by moth's op. */
static MothStatus scale(MothCall *c) {
  MothTensor *x = moth_call_arg(c, 0).u.t, *out;
  double by = moth_call_arg(c, 1).u.d;
  MothStatus s;
  if (moth_tensor_dtype(x) != MOTH_FLOAT32 || !moth_tensor_is_contiguous(x)) {
    s = moth_mul(moth_v_tensor(x), moth_v_float(by), &out);
    return s ? s : moth_call_set_result(c, 0, out);
  }
  s = moth_tensor_new(moth_tensor_ndim(x), moth_tensor_shape(x), MOTH_FLOAT32,
                      moth_tensor_device(x), &out);
  if (s)
    return s;
  const float *from = moth_tensor_data(x);
  float *to = moth_tensor_data(out);
  for (int64_t i = 0; i < moth_tensor_numel(x); i++)
    to[i] = from[i] * (float)by;
  return moth_call_set_result(c, 0, out);
}

static MothStatus scale_fake(MothCall *c) {
  MothTensor *out;
  MothStatus s = moth_mul(moth_call_arg(c, 0), moth_v_float(1), &out);
  return s ? s : moth_call_set_result(c, 0, out);
}

static MothStatus scale_backward(MothNode *n, MothTensor *const *grads, uint32_t need,
                                 MothTensor **out) {
  MothValue by;
  MothStatus s = moth_node_arg(n, 1, &by);
  if (s || !(need & 1))
    return s;
  return moth_mul(moth_v_tensor(grads[0]), by, &out[moth_node_edge(n, 0)]);
}

/* sum and product of two tensors */
static MothStatus both(MothCall *c) {
  MothValue a = moth_call_arg(c, 0), b = moth_call_arg(c, 1);
  MothTensor *out;
  MothStatus s = moth_add(a, b, moth_v_int(1), &out);
  if (!s)
    s = moth_call_set_result(c, 0, out);
  if (!s)
    s = moth_mul(a, b, &out);
  return s ? s : moth_call_set_result(c, 1, out);
}

static MothStatus nothing(MothCall *c) {
  (void)c;
  return MOTH_OK;
}
static MothStatus fails(MothCall *c) {
  return moth_fail(MOTH_ERR_VALUE, "%s does not want to", moth_call_op(c));
}
static MothStatus too_many(MothCall *c) {
  MothTensor *out;
  MothStatus s = moth_clone(moth_call_arg(c, 0).u.t, &out);
  return s ? s : moth_call_set_result(c, 1, out);
}

MOTH_LIBRARY(NAME, m) {
#ifdef WRONG
  moth_def(m, "first(Tensor self) -> Tensor", nothing);
  moth_def(m, WRONG, nothing);
  moth_def(m, "after(Tensor self) -> Tensor", nothing);
#else
  moth_def_op(m, &(MothOpDef){.schema = "scale(Tensor self, float by=2) -> Tensor",
                              .doc = "self * by",
                              .place = "library_check.c:1",
                              .all = scale,
                              .fake = scale_fake,
                              .backward = scale_backward,
                              .saves = "by",
                              .amp = "low",
                              .inplace = true});
  moth_def(m, "both(Tensor a, Tensor b) -> (Tensor, Tensor)", both);
  moth_def(m, "nothing(Tensor self) -> Tensor", nothing);
  moth_def(m, "fails(Tensor self) -> Tensor", fails);
  moth_def(m, "too_many(Tensor self) -> Tensor", too_many);
#endif
}
