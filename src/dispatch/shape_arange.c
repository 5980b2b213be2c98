/* The shape rule of arange. */
#include <math.h>

#include "core/dtype.h"
#include "dispatch/pattern.h"

MothStatus moth_shape_arange(const MothCall *c, MothMeta *out) {
  bool integral = true;
  for (int i = 0; i < 3; i++) {
    integral = integral && c->args[i].tag != MOTH_V_FLOAT;
    if (!isfinite(moth_as_double(c->args[i])))
      return moth_fail(MOTH_ERR_VALUE, "start, stop and step must be finite");
  }
  MothDType dtype = integral ? MOTH_INT64 : moth_default_dtype();
  if (c->args[3].tag == MOTH_V_DTYPE)
    dtype = (MothDType)c->args[3].u.i;
  MOTH_TRY(moth_meta_device(out, c->args[4]));
  double start = moth_as_double(c->args[0]), stop = moth_as_double(c->args[1]),
         step = moth_as_double(c->args[2]);
  if (step == 0)
    return moth_fail(MOTH_ERR_VALUE, "step must not be 0");
  if ((step > 0 && stop < start) || (step < 0 && stop > start))
    return moth_fail(MOTH_ERR_VALUE, "the sign of step (%g) does not lead from %g to %g", step,
                     start, stop);
  double n = ceil((stop - start) / step);
  int64_t size = moth_whole(n), from = moth_as_whole(c->args[0]), by = moth_as_whole(c->args[2]);
  if (integral) { /* exactly: doubles skip integers beyond 2^53 */
    uint64_t span = (uint64_t)moth_as_whole(c->args[1]) - (uint64_t)from,
             stride = by < 0 ? 0 - (uint64_t)by : (uint64_t)by;
    span = by < 0 ? 0 - span : span;
    span = span / stride + (span % stride != 0);
    size = span > INT64_MAX ? INT64_MAX : (int64_t)span;
  }
  if (n > 9e18)
    return moth_fail(MOTH_ERR_VALUE, "more than 9e18 elements");
  if (!moth_dtype_is_float(dtype)) { /* the step is an integer, too */
    double reach = trunc(start) + trunc(step) * (size > 0 ? n - 1 : 0);
    MothValue last =
        integral
            ? moth_v_int((int64_t)((uint64_t)from + (uint64_t)(size - (size > 0)) * (uint64_t)by))
            : moth_v_float(reach);
    MOTH_TRY(moth_dtype_check_number(dtype, c->args[0], "start"));
    MOTH_TRY(moth_dtype_check_number(MOTH_INT64, c->args[2], "step"));
    MOTH_TRY(moth_dtype_check_number(dtype, last, "the last number"));
  }
  return moth_meta_set(out, dtype, 1, &size);
}
