/* Rules of src/ops/linalg.lua. */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"
#include "unpack/linalg.h"

static MothStatus same_dtype(const MothTensor *a, const MothTensor *b) {
  if (a->dtype != b->dtype)
    return moth_fail(MOTH_ERR_TYPE, "expected the same dtype, got %s and %s",
                     moth_dtype_name((MothDType)a->dtype), moth_dtype_name((MothDType)b->dtype));
  if (a->dtype == MOTH_BOOL)
    return moth_fail(MOTH_ERR_TYPE, "not implemented for bool");
  return MOTH_OK;
}

static MothStatus need_2d(const MothTensor *t, const char *name) {
  if (t->ndim != 2)
    return moth_fail(MOTH_ERR_VALUE, "'%s' must be 2-D, got %d dimensions", name, t->ndim);
  return MOTH_OK;
}

static MothStatus need_inner(const MothTensor *a, const MothTensor *b) {
  if (a->shape[1] != b->shape[0])
    return moth_fail(MOTH_ERR_VALUE,
                     "mat1 and mat2 shapes cannot be multiplied (%lldx%lld and %lldx%lld)",
                     (long long)a->shape[0], (long long)a->shape[1], (long long)b->shape[0],
                     (long long)b->shape[1]);
  return MOTH_OK;
}

MothStatus moth_shape_mm(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_MM(c)
  MOTH_TRY(need_2d(self, "self"));
  MOTH_TRY(need_2d(mat2, "mat2"));
  MOTH_TRY(need_inner(self, mat2));
  MOTH_TRY(same_dtype(self, mat2));
  int64_t shape[2] = {self->shape[0], mat2->shape[1]};
  return moth_meta_set(out, (MothDType)self->dtype, 2, shape);
}

static MothStatus batched_shape(const MothTensor *a, const MothTensor *b, int64_t shape[3]) {
  if (a->ndim != 3 || b->ndim != 3)
    return moth_fail(MOTH_ERR_VALUE, "both matrices must be 3-D, got %d and %d dimensions", a->ndim,
                     b->ndim);
  if (a->shape[0] != b->shape[0])
    return moth_fail(MOTH_ERR_VALUE, "batch sizes differ: %lld and %lld", (long long)a->shape[0],
                     (long long)b->shape[0]);
  if (a->shape[2] != b->shape[1])
    return moth_fail(MOTH_ERR_VALUE,
                     "batch1 and batch2 shapes cannot be multiplied (%lldx%lld and %lldx%lld)",
                     (long long)a->shape[1], (long long)a->shape[2], (long long)b->shape[1],
                     (long long)b->shape[2]);
  shape[0] = a->shape[0];
  shape[1] = a->shape[1];
  shape[2] = b->shape[2];
  return same_dtype(a, b);
}

MothStatus moth_shape_bmm(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_BMM(c)
  int64_t shape[3];
  MOTH_TRY(batched_shape(self, mat2, shape));
  return moth_meta_set(out, (MothDType)self->dtype, 3, shape);
}

/* Whether self can be added to a product of this shape, times numbers that its dtype has. */
static MothStatus check_added(const MothTensor *self, int ndim, const int64_t *shape,
                              MothValue beta, MothValue alpha) {
  int64_t joint[MOTH_MAX_DIMS];
  char text[200];
  int n;
  MOTH_TRY(moth_broadcast(ndim, shape, self->ndim, self->shape, &n, joint));
  if (n != ndim || memcmp(joint, shape, sizeof *shape * (size_t)ndim) != 0)
    return moth_fail(MOTH_ERR_VALUE, "self cannot be expanded to the product's shape %s",
                     moth_shape_format(ndim, shape, text, sizeof text));
  if (!moth_dtype_is_float((MothDType)self->dtype) &&
      (beta.tag == MOTH_V_FLOAT || alpha.tag == MOTH_V_FLOAT))
    return moth_fail(MOTH_ERR_TYPE, "beta and alpha must be integers for %s",
                     moth_dtype_name((MothDType)self->dtype));
  return MOTH_OK;
}

MothStatus moth_shape_baddbmm(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_BADDBMM(c)
  int64_t shape[3];
  MOTH_TRY(batched_shape(batch1, batch2, shape));
  MOTH_TRY(same_dtype(self, batch1));
  MOTH_TRY(check_added(self, 3, shape, beta, alpha));
  return moth_meta_set(out, (MothDType)self->dtype, 3, shape);
}

MothStatus moth_shape_addmm(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_ADDMM(c)
  MOTH_TRY(need_2d(mat1, "mat1"));
  MOTH_TRY(need_2d(mat2, "mat2"));
  MOTH_TRY(need_inner(mat1, mat2));
  MOTH_TRY(same_dtype(mat1, mat2));
  MOTH_TRY(same_dtype(self, mat1));
  int64_t shape[2] = {mat1->shape[0], mat2->shape[1]};
  MOTH_TRY(check_added(self, 2, shape, beta, alpha));
  return moth_meta_set(out, (MothDType)self->dtype, 2, shape);
}

MothStatus moth_shape_linear(const MothCall *c, MothMeta *out) {
  MOTH_UNPACK_LINEAR(c)
  MOTH_TRY(need_2d(weight, "weight"));
  if (input->ndim < 1)
    return moth_fail(MOTH_ERR_VALUE, "'input' must have at least one dimension");
  int64_t in = weight->shape[1], units = weight->shape[0], last = input->shape[input->ndim - 1];
  if (last != in)
    return moth_fail(MOTH_ERR_VALUE,
                     "mat1 and mat2 shapes cannot be multiplied (%lldx%lld and %lldx%lld)",
                     (long long)(last ? input->numel / last : 0), (long long)last, (long long)in,
                     (long long)units);
  MOTH_TRY(same_dtype(input, weight));
  if (bias) {
    if (bias->ndim != 1 || bias->shape[0] != units)
      return moth_fail(MOTH_ERR_VALUE, "bias must have shape [%lld]", (long long)units);
    MOTH_TRY(same_dtype(input, bias));
  }
  int64_t shape[MOTH_MAX_DIMS];
  memcpy(shape, input->shape, sizeof(int64_t) * input->ndim);
  shape[input->ndim - 1] = units;
  return moth_meta_set(out, (MothDType)input->dtype, input->ndim, shape);
}
