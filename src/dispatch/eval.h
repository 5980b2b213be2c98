/* Functions for generated code: composites and derivatives that are expressions of the op table
 * (src/ops/expr.lua, emit.lua). Values are MothValue; temporaries are in an array that the function releases at its
 * end. Lists are written to the caller's memory `to`, of MOTH_LIST_MAX numbers. */
#ifndef MOTH_DISPATCH_EVAL_H
#define MOTH_DISPATCH_EVAL_H
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "core/tensor.h"
#include "dispatch/dispatch.h"

enum { MOTH_LIST_MAX = 2 * MOTH_MAX_DIMS };

/* --- calls and ownership ---------------------------------------------------------------------- */

/* Calls op with nargs arguments (defaults fill the rest) and stores its first result. */
MothStatus moth_eval(const MothOp *op, int nargs, const MothValue *args, MothValue *out);
/* The same with all its results, op->nresults of them. */
MothStatus moth_eval_all(const MothOp *op, int nargs, const MothValue *args, MothValue *out);
MothTensor *moth_take_value(MothValue *v);  /* moves the tensor out */
MothTensor *moth_keep(MothValue v);         /* retains it */
void moth_drop_values(MothValue *v, int n); /* releases the tensors among them */
/* Copies a value into a tensor, for ops that write to their arguments. */
MothStatus moth_eval_store(MothTensor *to, MothValue from);

/* Releases a temporary. */
static inline void moth_drop(MothValue *v) {
  if (v->tag == MOTH_V_TENSOR)
    moth_tensor_release(v->u.t);
  *v = moth_v_none();
}
/* The value with a reference of its own, if it is a tensor. */
static inline MothValue moth_value_keep(MothValue v) {
  if (v.tag == MOTH_V_TENSOR)
    moth_tensor_retain(v.u.t);
  return v;
}
/* Tensor i of a list; none of an empty one. */
static inline MothValue moth_list_tensor(MothValue list, uint32_t i) {
  return i < list.n ? moth_v_tensor(list.u.tensors[i]) : moth_v_none();
}
/* t as a value; none where there is none. */
static inline MothValue moth_v_given(MothTensor *t) {
  return t ? moth_v_tensor(t) : moth_v_none();
}
static inline MothValue moth_value_or(MothValue v, MothValue other) {
  return v.tag == MOTH_V_NONE ? other : v;
}
/* Can t have this size (-1: inferred) without a copy? True of a wrong size, too: the view refuses it. */
bool moth_viewable(const MothTensor *t, MothValue size);
/* Whether ops on v must have derivatives: autograd records them, or v has a tangent. */
static inline bool moth_value_records(MothValue v) {
  return v.tag == MOTH_V_TENSOR && ((!moth_thread.no_grad && moth_tensor_requires_grad(v.u.t)) ||
                                    v.u.t->keys & MOTH_KEY_TANGENT);
}
/* The dtype in which several ops on t are computed, to round once: float32 for halves, else t's own. */
static inline MothDType moth_working_dtype(const MothTensor *t) {
  bool half = moth_dtype_is_float((MothDType)t->dtype) && moth_itemsize(t) < 4;
  return half ? MOTH_FLOAT32 : (MothDType)t->dtype;
}

/* --- tensors made beside others ---------------------------------------------------------------- */

/* moth_eval of a factory on behalf of `like`: the result is fake if `like` is. */
MothStatus moth_eval_beside(const MothTensor *like, const MothOp *op, int nargs,
                            const MothValue *args, MothValue *out);
/* *x, a new tensor that values are to be written to, with a copy for each of the batches of these values (vmap). */
MothStatus moth_match_batches(MothValue *x, int n, const MothValue *values);
static inline MothStatus moth_match_batch(MothValue *x, int n, const MothValue *values) {
  uint32_t keys = 0;
  for (int i = 0; i < n; i++)
    keys |= values[i].tag == MOTH_V_TENSOR ? values[i].u.t->keys : 0;
  return keys & MOTH_KEY_BATCH ? moth_match_batches(x, n, values) : MOTH_OK;
}
/* Zeros of `like`'s dtype, on its device. */
MothStatus moth_zeros_as(const MothTensor *like, const int64_t *shape, int ndim, MothTensor **out);

/* --- numbers ---------------------------------------------------------------------------------- */

/* Of integers the result is an integer, but for quotients. */
MothValue moth_number_add(MothValue a, MothValue b);
MothValue moth_number_sub(MothValue a, MothValue b);
MothValue moth_number_mul(MothValue a, MothValue b);
MothValue moth_number_div(MothValue a, MothValue b);
/* Of integers, rounded down; 0 where b is 0. */
MothValue moth_number_floor_divide(MothValue a, MothValue b);
MothValue moth_number_remainder(MothValue a, MothValue b);
/* Of integers to the power of one that is not negative: an integer. */
MothValue moth_number_power(MothValue a, MothValue b);
/* How many times 1 must be doubled to be n or more. */
MothValue moth_number_doublings(MothValue n);
/* Dimension d, counted from the end if negative, of n; one out of range is not changed: the op refuses it. */
MothValue moth_number_wrap(MothValue d, MothValue n);

/* --- lists ------------------------------------------------------------------------------------ */

static inline MothValue moth_v_shape(const MothTensor *t) {
  return moth_v_ints(t->shape, (uint32_t)t->ndim);
}
static inline MothValue moth_v_stride(const MothTensor *t) {
  return moth_v_ints(t->stride, (uint32_t)t->ndim);
}
/* Element i, from the end if negative; 1 of an empty list: a 0-dim tensor has one element. */
MothValue moth_list_at(MothValue list, int64_t i);
MothValue moth_list_product(MothValue list);
/* The smallest element; INT64_MAX of an empty list. */
MothValue moth_list_least(MothValue list);
/* The number of elements of storage up to the last one of this geometry; offset if it has none. */
MothValue moth_list_reach(MothValue size, MothValue stride, MothValue offset);
bool moth_list_equal(MothValue a, MothValue b);
bool moth_list_overlaps(MothValue size, MothValue stride);
MothStatus moth_list_make(int n, const MothValue *v, int64_t *to, MothValue *out);
MothStatus moth_list_copy(MothValue list, int64_t *to, MothValue *out);
MothStatus moth_list_join(MothValue a, MothValue b, int64_t *to, MothValue *out);
MothStatus moth_list_first_n(MothValue list, MothValue n, int64_t *to, MothValue *out);
MothStatus moth_list_last_n(MothValue list, MothValue n, int64_t *to, MothValue *out);
MothStatus moth_list_drop_n(MothValue list, MothValue n, int64_t *to, MothValue *out);
MothStatus moth_list_replace(MothValue list, MothValue i, MothValue v, int64_t *to, MothValue *out);
MothStatus moth_list_insert(MothValue list, MothValue i, MothValue v, int64_t *to, MothValue *out);
MothStatus moth_list_remove(MothValue list, MothValue i, int64_t *to, MothValue *out);
MothStatus moth_list_ones_n(MothValue n, int64_t *to, MothValue *out);
/* from, from + 1, … below stop */
MothStatus moth_list_range(MothValue from, MothValue stop, int64_t *to, MothValue *out);
/* Elements from … to as one, their product. */
MothStatus moth_list_merged(MothValue list, MothValue from, MothValue to, int64_t *memory,
                            MothValue *out);
/* sizes with -1 replaced so that their product is n; an error if that is not possible. */
MothStatus moth_list_inferred(MothValue sizes, MothValue n, int64_t *to, MothValue *out);
/* Those of 0 … n - 1 that are not in dims, in order. */
MothStatus moth_list_others(MothValue n, MothValue dims, int64_t *to, MothValue *out);
/* The permutation that undoes one. */
MothStatus moth_list_inverse(MothValue dims, int64_t *to, MothValue *out);
/* The shape that two shapes broadcast to. */
MothStatus moth_list_wide(MothValue a, MothValue b, int64_t *to, MothValue *out);
/* The shape with 1 for the dimensions of dim (a number, a list, or none: all). */
MothStatus moth_list_kept(MothValue shape, MothValue dim, int64_t *to, MothValue *out);
#endif
