/* Composites that change sizes: interpolation, repetition; and running products. */
#include <math.h>
#include <string.h>

#include "composite/composite.h"
#include "core/dtype.h"
#include "ops/create.h"
#include "ops/index.h"
#include "ops/pointwise.h"
#include "ops/view.h"
#include "unpack/conv.h"
#include "unpack/reduce.h"
#include "unpack/sort.h"

static MothStatus range(const MothTensor *like, int64_t n, MothDType dtype, MothTensor **out) {
  uint32_t keep = moth_enter_as(like);
  MothStatus s = moth_arange(moth_v_int(0), moth_v_int(n), moth_v_int(1), moth_v_dtype(dtype),
                             moth_v_device(like->device), out);
  moth_thread.include = keep;
  return s;
}

/* --- interpolation ---------------------------------------------------------------------------- */

static MothStatus check_sizes(const MothTensor *self, MothValue size) {
  int spatial = self->ndim - 2;
  if (spatial < 1 || (int)size.n != spatial)
    return moth_fail(MOTH_ERR_VALUE,
                     "size must hold one number for each dimension after (N, C), got %u for %d "
                     "dimensions",
                     size.n, self->ndim);
  for (int i = 0; i < spatial; i++) {
    if (size.u.ints[i] < 1)
      return moth_fail(MOTH_ERR_VALUE, "size must be positive, got %lld",
                       (long long)size.u.ints[i]);
    if (self->shape[2 + i] < 1)
      return moth_fail(MOTH_ERR_VALUE,
                       "dimension " MOTH_AT "%d is empty: there is nothing to interpolate", 2 + i);
  }
  return MOTH_OK;
}

/* Position i of `to` is position i * from / to, rounded down. */
static MothStatus nearest_along(MothTensor *x, int d, int64_t to, MothTensor **out) {
  int64_t from = x->shape[d];
  MothTensor *i, *scaled, *index;
  MOTH_TRY(range(x, to, MOTH_INT64, &i));
  MOTH_TRY(then(moth_mul(moth_v_tensor(i), moth_v_int(from), &scaled), i));
  MOTH_TRY(then(moth_floor_divide(moth_v_tensor(scaled), moth_v_int(to), &index), scaled));
  return then(moth_index_select(x, d, index, 0, out), index);
}

MothStatus moth_composite_upsample_nearest(MothCall *c) {
  MOTH_UNPACK_UPSAMPLE_NEAREST(c)
  MothTensor *x = self, *next;
  MOTH_TRY(check_sizes(self, size));
  moth_tensor_retain(x);
  for (uint32_t i = 0; i < size.n; i++) {
    MOTH_TRY(then(nearest_along(x, 2 + (int)i, size.u.ints[i], &next), x));
    x = next;
  }
  return moth_give(c, x);
}

/* Linear interpolation between the two elements next to the source coordinate of each result. */
static MothStatus linear_along(MothTensor *x, int d, int64_t to, bool corners, MothTensor **out) {
  enum { N = 12 };
  MothTensor *t[N] = {NULL};
  MothStatus status = MOTH_OK;
  int64_t from = x->shape[d], shape[MOTH_MAX_DIMS];
  double step = !corners ? (double)from / (double)to
                : to > 1 ? (double)(from - 1) / (double)(to - 1)
                         : 0;
  double first = corners ? 0 : 0.5 * step - 0.5;
  MOTH_GO(range(x, to, MOTH_FLOAT64, &t[0]));
  MOTH_GO(moth_mul(moth_v_tensor(t[0]), moth_v_float(step), &t[1]));
  MOTH_GO(moth_add(moth_v_tensor(t[1]), moth_v_float(first), moth_v_int(1), &t[2]));
  MOTH_GO(moth_clamp(t[2], moth_v_int(0), moth_v_int(from - 1), &t[3]));
  MOTH_GO(moth_floor(t[3], &t[4]));
  MOTH_GO(moth_sub(moth_v_tensor(t[3]), moth_v_tensor(t[4]), moth_v_int(1), &t[5]));
  MOTH_GO(as_dtype(t[4], MOTH_INT64, &t[6]));
  MOTH_GO(moth_add(moth_v_tensor(t[6]), moth_v_int(1), moth_v_int(1), &t[7]));
  MOTH_GO(moth_clamp(t[7], moth_v_none(), moth_v_int(from - 1), &t[8]));
  for (int i = 0; i < x->ndim - d; i++)
    shape[i] = i ? 1 : to;
  MOTH_GO(moth_view(t[5], shape, x->ndim - d, &t[9]));
  MOTH_GO(moth_index_select(x, d, t[6], 0, &t[10]));
  MOTH_GO(moth_index_select(x, d, t[8], 0, &t[11]));
  MothTensor *weight;
  MOTH_GO(as_dtype(t[9], (MothDType)x->dtype, &weight));
  status = then(moth_lerp(t[10], moth_v_tensor(t[11]), moth_v_tensor(weight), out), weight);
done:
  for (int i = 0; i < N; i++)
    moth_tensor_release(t[i]);
  return status;
}

MothStatus moth_composite_upsample_linear(MothCall *c) {
  MOTH_UNPACK_UPSAMPLE_LINEAR(c)
  MothDType dtype = (MothDType)self->dtype;
  MothTensor *x, *next;
  MOTH_TRY(check_sizes(self, size));
  if (!moth_dtype_is_float(dtype))
    return moth_fail(MOTH_ERR_TYPE, "expected a float dtype, got %s", moth_dtype_name(dtype));
  /* Halves are rounded once. */
  MOTH_TRY(as_dtype(self, working_dtype(self), &x));
  for (uint32_t i = 0; i < size.n; i++) {
    MOTH_TRY(then(linear_along(x, 2 + (int)i, size.u.ints[i], align_corners, &next), x));
    x = next;
  }
  MOTH_TRY(then(as_dtype(x, dtype, &next), x));
  return moth_give(c, next);
}

/* --- running products ------------------------------------------------------------------------- */

/* log2(n) passes, each of which multiplies by the element `step` before: differentiable also where elements are 0. */
MothStatus moth_composite_cumprod(MothCall *c) {
  MOTH_UNPACK_CUMPROD(c)
  MothDType dtype = (MothDType)self->dtype;
  MothTensor *x, *parts[2], *a, *b, *next;
  int d = (int)dim;
  bool is_float = moth_dtype_is_float(dtype);
  if (!is_float)
    dtype = MOTH_INT64;
  MOTH_TRY(moth_to(self, moth_v_dtype(is_float ? working_dtype(self) : dtype), moth_v_none(), false,
                   true, &x));
  int64_t n = self->ndim ? self->shape[d] : 1;
  for (int64_t step = 1; step < n; step *= 2) {
    MothStatus status = MOTH_OK;
    parts[0] = parts[1] = a = b = NULL;
    MOTH_GO(moth_narrow(x, d, 0, step, &parts[0]));
    MOTH_GO(moth_narrow(x, d, step, n - step, &a));
    MOTH_GO(moth_narrow(x, d, 0, n - step, &b));
    MOTH_GO(moth_mul(moth_v_tensor(a), moth_v_tensor(b), &parts[1]));
    MOTH_GO(moth_cat(parts, 2, d, &next));
  done:
    moth_tensor_release(parts[0]);
    moth_tensor_release(parts[1]);
    moth_tensor_release(a);
    moth_tensor_release(b);
    MOTH_TRY(then(status, x));
    x = next;
  }
  MOTH_TRY(then(as_dtype(x, dtype, &next), x));
  return moth_give(c, next);
}
