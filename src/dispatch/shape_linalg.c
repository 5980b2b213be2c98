/* Rules of src/ops/linalg.lua. */
#include <string.h>

#include "core/dtype.h"
#include "dispatch/dispatch.h"
#include "unpack.h"

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

MothStatus moth_shape_mm(MothCall *c) {
  MOTH_UNPACK_MM(c)
  MOTH_TRY(need_2d(self, "self"));
  MOTH_TRY(need_2d(mat2, "mat2"));
  MOTH_TRY(need_inner(self, mat2));
  MOTH_TRY(same_dtype(self, mat2));
  int64_t shape[2] = {self->shape[0], mat2->shape[1]};
  return moth_result(c, 0, (MothDType)self->dtype, 2, shape);
}

MothStatus moth_shape_bmm(MothCall *c) {
  MOTH_UNPACK_BMM(c)
  if (self->ndim != 3 || mat2->ndim != 3)
    return moth_fail(MOTH_ERR_VALUE, "both arguments must be 3-D, got %d and %d dimensions",
                     self->ndim, mat2->ndim);
  if (self->shape[0] != mat2->shape[0])
    return moth_fail(MOTH_ERR_VALUE, "batch sizes differ: %lld and %lld", (long long)self->shape[0],
                     (long long)mat2->shape[0]);
  if (self->shape[2] != mat2->shape[1])
    return moth_fail(MOTH_ERR_VALUE,
                     "batch1 and batch2 shapes cannot be multiplied (%lldx%lld and %lldx%lld)",
                     (long long)self->shape[1], (long long)self->shape[2],
                     (long long)mat2->shape[1], (long long)mat2->shape[2]);
  MOTH_TRY(same_dtype(self, mat2));
  int64_t shape[3] = {self->shape[0], self->shape[1], mat2->shape[2]};
  return moth_result(c, 0, (MothDType)self->dtype, 3, shape);
}

MothStatus moth_shape_addmm(MothCall *c) {
  MOTH_UNPACK_ADDMM(c)
  MOTH_TRY(need_2d(mat1, "mat1"));
  MOTH_TRY(need_2d(mat2, "mat2"));
  MOTH_TRY(need_inner(mat1, mat2));
  MOTH_TRY(same_dtype(mat1, mat2));
  MOTH_TRY(same_dtype(self, mat1));
  int64_t shape[2] = {mat1->shape[0], mat2->shape[1]}, joint[MOTH_MAX_DIMS];
  int n;
  MOTH_TRY(moth_broadcast(2, shape, self->ndim, self->shape, &n, joint));
  if (n != 2 || memcmp(joint, shape, sizeof shape) != 0)
    return moth_fail(MOTH_ERR_VALUE, "self cannot be expanded to the product's shape [%lld, %lld]",
                     (long long)shape[0], (long long)shape[1]);
  if (!moth_dtype_is_float((MothDType)self->dtype) &&
      (beta.tag == MOTH_V_FLOAT || alpha.tag == MOTH_V_FLOAT))
    return moth_fail(MOTH_ERR_TYPE, "beta and alpha must be integers for %s",
                     moth_dtype_name((MothDType)self->dtype));
  return moth_result(c, 0, (MothDType)self->dtype, 2, shape);
}

MothStatus moth_shape_linear(MothCall *c) {
  MOTH_UNPACK_LINEAR(c)
  MOTH_TRY(need_2d(weight, "weight"));
  if (input->ndim < 1)
    return moth_fail(MOTH_ERR_VALUE, "'input' must have at least one dimension");
  int64_t in = weight->shape[1], out = weight->shape[0], last = input->shape[input->ndim - 1];
  if (last != in)
    return moth_fail(MOTH_ERR_VALUE,
                     "mat1 and mat2 shapes cannot be multiplied (%lldx%lld and %lldx%lld)",
                     (long long)(last ? input->numel / last : 0), (long long)last, (long long)in,
                     (long long)out);
  MOTH_TRY(same_dtype(input, weight));
  if (bias) {
    if (bias->ndim != 1 || bias->shape[0] != out)
      return moth_fail(MOTH_ERR_VALUE, "bias must have shape [%lld]", (long long)out);
    MOTH_TRY(same_dtype(input, bias));
  }
  int64_t shape[MOTH_MAX_DIMS];
  memcpy(shape, input->shape, sizeof(int64_t) * input->ndim);
  shape[input->ndim - 1] = out;
  return moth_result(c, 0, (MothDType)input->dtype, input->ndim, shape);
}
