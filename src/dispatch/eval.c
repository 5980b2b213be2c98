/* The parts of generated composites and derivatives: calls, numbers, lists. */
#include "dispatch/eval.h"

#include <math.h>

#include "dispatch/shape.h"

MothStatus moth_eval(const MothOp *op, int nargs, const MothValue *args, MothValue *out) {
  MothTensor *t;
  MOTH_TRY(moth_call1(op, nargs, args, &t));
  *out = moth_v_tensor(t);
  return MOTH_OK;
}

MothStatus moth_eval_all(const MothOp *op, int nargs, const MothValue *args, MothValue *out) {
  return moth_op_call_variant(op, MOTH_FUNCTIONAL, nargs, args, NULL, out);
}

MothStatus moth_eval_store(MothTensor *to, MothValue from) {
  MothTensor *same;
  MOTH_TRY(moth_call1(MOTH_OP(copy_), 2, (MothValue[]){moth_v_tensor(to), from}, &same));
  moth_tensor_release(same);
  return MOTH_OK;
}

MothTensor *moth_take_value(MothValue *v) {
  MothTensor *t = v->tag == MOTH_V_TENSOR ? v->u.t : NULL;
  *v = moth_v_none();
  return t;
}

MothTensor *moth_keep(MothValue v) {
  if (v.tag != MOTH_V_TENSOR)
    return NULL;
  moth_tensor_retain(v.u.t);
  return v.u.t;
}

void moth_drop_values(MothValue *v, int n) {
  for (int i = 0; i < n; i++)
    if (v[i].tag == MOTH_V_TENSOR)
      moth_tensor_release(v[i].u.t);
}

/* --- tensors made beside others --------------------------------------------------------------- */

MothStatus moth_eval_beside(const MothTensor *like, const MothOp *op, int nargs,
                            const MothValue *args, MothValue *out) {
  MothTensor *t;
  uint32_t keep = moth_enter_as(like);
  MothStatus s = moth_call1(op, nargs, args, &t);
  MOTH_TRY(moth_leave_as(keep, like, s, &t));
  *out = moth_v_tensor(t);
  return MOTH_OK;
}

MothStatus moth_zeros_as(const MothTensor *like, const int64_t *shape, int ndim, MothTensor **out) {
  MothValue v, args[] = {moth_v_ints(shape, (uint32_t)ndim), moth_v_dtype((MothDType)like->dtype),
                         moth_v_device(like->device)};
  MOTH_TRY(moth_eval_beside(like, MOTH_OP(zeros), 3, args, &v));
  *out = v.u.t;
  return MOTH_OK;
}

bool moth_viewable(const MothTensor *t, MothValue size) {
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS];
  return moth_infer_size(t, (int)size.n, size.u.ints, shape) != MOTH_OK ||
         moth_view_strides(t, (int)size.n, shape, stride);
}

/* --- numbers ---------------------------------------------------------------------------------- */

static inline bool are_whole(MothValue a, MothValue b) {
  return a.tag != MOTH_V_FLOAT && b.tag != MOTH_V_FLOAT;
}
MothValue moth_number_add(MothValue a, MothValue b) {
  return are_whole(a, b) ? moth_v_int((int64_t)((uint64_t)a.u.i + (uint64_t)b.u.i))
                         : moth_v_float(moth_as_double(a) + moth_as_double(b));
}
MothValue moth_number_sub(MothValue a, MothValue b) {
  return are_whole(a, b) ? moth_v_int((int64_t)((uint64_t)a.u.i - (uint64_t)b.u.i))
                         : moth_v_float(moth_as_double(a) - moth_as_double(b));
}
MothValue moth_number_mul(MothValue a, MothValue b) {
  return are_whole(a, b) ? moth_v_int((int64_t)((uint64_t)a.u.i * (uint64_t)b.u.i))
                         : moth_v_float(moth_as_double(a) * moth_as_double(b));
}
MothValue moth_number_div(MothValue a, MothValue b) {
  return moth_v_float(moth_as_double(a) / moth_as_double(b));
}

MothValue moth_number_floor_divide(MothValue a, MothValue b) {
  int64_t x = a.u.i, y = b.u.i;
  if (y == 0 || (x == INT64_MIN && y == -1))
    return moth_v_int(0);
  return moth_v_int(x / y - (x % y != 0 && (x < 0) != (y < 0)));
}
MothValue moth_number_remainder(MothValue a, MothValue b) {
  int64_t x = a.u.i, y = b.u.i;
  if (y == 0 || y == -1)
    return moth_v_int(y ? 0 : x);
  return moth_v_int(x % y + (x % y != 0 && (x < 0) != (y < 0) ? y : 0));
}

MothValue moth_number_power(MothValue a, MothValue b) {
  if (!are_whole(a, b) || b.u.i < 0)
    return moth_v_float(pow(moth_as_double(a), moth_as_double(b)));
  uint64_t exact = 1, x = (uint64_t)a.u.i;
  for (uint64_t e = (uint64_t)b.u.i; e; e >>= 1, x *= x)
    exact *= e & 1 ? x : 1;
  return moth_v_int((int64_t)exact);
}

MothValue moth_number_doublings(MothValue n) {
  int k = 0;
  while (k < 63 && ((int64_t)1 << k) < n.u.i)
    k++;
  return moth_v_int(k);
}

MothValue moth_number_wrap(MothValue d, MothValue n) {
  return d.u.i < 0 ? moth_v_int(d.u.i + n.u.i) : d;
}

/* --- lists ------------------------------------------------------------------------------------ */

static MothStatus fits(int64_t n) {
  if (n >= 0 && n <= MOTH_LIST_MAX)
    return MOTH_OK;
  return moth_fail(MOTH_ERR_VALUE, "too many dimensions: %lld", (long long)n);
}

static int64_t from_end(MothValue i, uint32_t n) {
  return i.u.i < 0 ? i.u.i + n : i.u.i;
}

MothValue moth_list_at(MothValue list, int64_t i) {
  int64_t k = i < 0 ? i + list.n : i;
  return moth_v_int(k >= 0 && k < list.n ? list.u.ints[k] : 1);
}

MothValue moth_list_product(MothValue list) {
  uint64_t p = 1; /* wraps; sizes that are too large are refused where a tensor is made */
  for (uint32_t i = 0; i < list.n; i++)
    p *= (uint64_t)list.u.ints[i];
  return moth_v_int((int64_t)p);
}

MothValue moth_list_least(MothValue list) {
  int64_t least = INT64_MAX;
  for (uint32_t i = 0; i < list.n; i++)
    least = list.u.ints[i] < least ? list.u.ints[i] : least;
  return moth_v_int(least);
}

MothValue moth_list_reach(MothValue size, MothValue stride, MothValue offset) {
  uint64_t n = (uint64_t)offset.u.i + 1;
  for (uint32_t i = 0; i < size.n; i++) {
    if (size.u.ints[i] == 0)
      return offset;
    n += ((uint64_t)size.u.ints[i] - 1) * (uint64_t)stride.u.ints[i];
  }
  return moth_v_int((int64_t)n);
}

bool moth_list_equal(MothValue a, MothValue b) {
  return a.n == b.n && (!a.n || !memcmp(a.u.ints, b.u.ints, sizeof(int64_t) * a.n));
}

bool moth_list_overlaps(MothValue size, MothValue stride) {
  MothTensor t = {.ndim = (uint8_t)size.n, .numel = 2};
  if (size.n != stride.n || size.n > MOTH_MAX_DIMS)
    return false;
  memcpy(t.shape, size.u.ints, sizeof *t.shape * size.n);
  memcpy(t.stride, stride.u.ints, sizeof *t.stride * size.n);
  return moth_tensor_self_overlaps(&t);
}

MothStatus moth_list_make(int n, const MothValue *v, int64_t *to, MothValue *out) {
  MOTH_TRY(fits(n));
  for (int i = 0; i < n; i++)
    to[i] = v[i].u.i;
  *out = moth_v_ints(to, (uint32_t)n);
  return MOTH_OK;
}

MothStatus moth_list_join(MothValue a, MothValue b, int64_t *to, MothValue *out) {
  MOTH_TRY(fits((int64_t)a.n + b.n));
  for (uint32_t i = 0; i < a.n; i++)
    to[i] = a.u.ints[i];
  for (uint32_t i = 0; i < b.n; i++)
    to[a.n + i] = b.u.ints[i];
  *out = moth_v_ints(to, a.n + b.n);
  return MOTH_OK;
}

/* n elements from `first`; fewer at the end of the list. */
static MothStatus part(MothValue list, int64_t first, int64_t n, int64_t *to, MothValue *out) {
  first = first < 0 ? 0 : first > list.n ? list.n : first;
  n = n < 0 ? 0 : n > list.n - first ? list.n - first : n;
  MOTH_TRY(fits(n));
  for (int64_t i = 0; i < n; i++)
    to[i] = list.u.ints[first + i];
  *out = moth_v_ints(to, (uint32_t)n);
  return MOTH_OK;
}

MothStatus moth_list_copy(MothValue list, int64_t *to, MothValue *out) {
  if (list.tag != MOTH_V_INTS) {
    *out = list;
    return MOTH_OK;
  }
  return part(list, 0, list.n, to, out);
}
MothStatus moth_list_first_n(MothValue list, MothValue n, int64_t *to, MothValue *out) {
  return part(list, 0, n.u.i, to, out);
}
MothStatus moth_list_last_n(MothValue list, MothValue n, int64_t *to, MothValue *out) {
  return part(list, list.n - n.u.i, n.u.i, to, out);
}
MothStatus moth_list_drop_n(MothValue list, MothValue n, int64_t *to, MothValue *out) {
  return part(list, n.u.i, list.n, to, out);
}

MothStatus moth_list_replace(MothValue list, MothValue i, MothValue v, int64_t *to,
                             MothValue *out) {
  int64_t k = from_end(i, list.n);
  MOTH_TRY(fits(list.n));
  for (uint32_t d = 0; d < list.n; d++)
    to[d] = d == k ? v.u.i : list.u.ints[d];
  *out = moth_v_ints(to, list.n);
  return MOTH_OK;
}

MothStatus moth_list_insert(MothValue list, MothValue i, MothValue v, int64_t *to, MothValue *out) {
  int64_t k = i.u.i < 0 ? i.u.i + list.n + 1 : i.u.i;
  MOTH_TRY(fits((int64_t)list.n + 1));
  k = k < 0 ? 0 : k > list.n ? list.n : k;
  for (int64_t d = 0; d <= list.n; d++)
    to[d] = d == k ? v.u.i : list.u.ints[d < k ? d : d - 1];
  *out = moth_v_ints(to, list.n + 1);
  return MOTH_OK;
}

MothStatus moth_list_remove(MothValue list, MothValue i, int64_t *to, MothValue *out) {
  int64_t k = from_end(i, list.n);
  uint32_t n = 0;
  MOTH_TRY(fits(list.n));
  for (int64_t d = 0; d < list.n; d++)
    if (d != k)
      to[n++] = list.u.ints[d];
  *out = moth_v_ints(to, n);
  return MOTH_OK;
}

MothStatus moth_list_merged(MothValue list, MothValue from, MothValue to, int64_t *memory,
                            MothValue *out) {
  uint32_t n = 0;
  MOTH_TRY(fits(list.n));
  for (int64_t i = 0; i < list.n; i++)
    if (i > from.u.i && i <= to.u.i)
      memory[n - 1] *= list.u.ints[i];
    else
      memory[n++] = list.u.ints[i];
  *out = moth_v_ints(memory, n);
  return MOTH_OK;
}

MothStatus moth_list_inferred(MothValue sizes, MothValue n, int64_t *to, MothValue *out) {
  int64_t known = 1, unknown = -1;
  MOTH_TRY(fits(sizes.n));
  for (uint32_t i = 0; i < sizes.n; i++) {
    int64_t size = to[i] = sizes.u.ints[i];
    if (size == -1 && unknown < 0)
      unknown = i;
    else if (size < 0 || __builtin_mul_overflow(known, size, &known))
      return moth_fail(MOTH_ERR_VALUE, "invalid size %lld", (long long)size);
  }
  if (unknown >= 0 ? known == 0 || n.u.i % known != 0 : known != n.u.i)
    return moth_fail(MOTH_ERR_VALUE, "the sizes do not multiply to %lld", (long long)n.u.i);
  if (unknown >= 0)
    to[unknown] = n.u.i / known;
  *out = moth_v_ints(to, sizes.n);
  return MOTH_OK;
}

MothStatus moth_list_others(MothValue n, MothValue dims, int64_t *to, MothValue *out) {
  uint32_t k = 0;
  MOTH_TRY(fits(n.u.i));
  for (int64_t d = 0; d < n.u.i; d++) {
    bool taken = false;
    for (uint32_t i = 0; i < dims.n; i++)
      taken |= dims.u.ints[i] == d;
    if (!taken)
      to[k++] = d;
  }
  *out = moth_v_ints(to, k);
  return MOTH_OK;
}

MothStatus moth_list_ones_n(MothValue n, int64_t *to, MothValue *out) {
  MOTH_TRY(fits(n.u.i));
  for (int64_t i = 0; i < n.u.i; i++)
    to[i] = 1;
  *out = moth_v_ints(to, (uint32_t)n.u.i);
  return MOTH_OK;
}

MothStatus moth_list_range(MothValue from, MothValue stop, int64_t *to, MothValue *out) {
  int64_t n = stop.u.i > from.u.i ? stop.u.i - from.u.i : 0;
  MOTH_TRY(fits(n));
  for (int64_t i = 0; i < n; i++)
    to[i] = from.u.i + i;
  *out = moth_v_ints(to, (uint32_t)n);
  return MOTH_OK;
}

MothStatus moth_list_inverse(MothValue dims, int64_t *to, MothValue *out) {
  MOTH_TRY(fits(dims.n));
  for (uint32_t i = 0; i < dims.n; i++) {
    int64_t d = dims.u.ints[i];
    if (d < 0 || d >= dims.n)
      return moth_fail(MOTH_ERR_INDEX, "no permutation names dimension %lld", (long long)d);
    to[d] = i;
  }
  *out = moth_v_ints(to, dims.n);
  return MOTH_OK;
}

MothStatus moth_list_wide(MothValue a, MothValue b, int64_t *to, MothValue *out) {
  int n;
  MOTH_TRY(moth_broadcast((int)a.n, a.u.ints, (int)b.n, b.u.ints, &n, to));
  *out = moth_v_ints(to, (uint32_t)n);
  return MOTH_OK;
}

MothStatus moth_list_kept(MothValue shape, MothValue dim, int64_t *to, MothValue *out) {
  const int64_t one = dim.u.i;
  const int64_t *dims = dim.tag == MOTH_V_INT ? &one : dim.u.ints;
  uint32_t n = dim.tag == MOTH_V_INT ? 1 : dim.tag == MOTH_V_INTS ? dim.n : 0;
  MOTH_TRY(part(shape, 0, shape.n, to, out));
  for (uint32_t i = 0; i < shape.n && !n; i++)
    to[i] = 1;
  for (uint32_t i = 0; i < n && shape.n; i++) {
    int64_t d = dims[i] < 0 ? dims[i] + shape.n : dims[i];
    if (d < 0 || d >= shape.n)
      return moth_fail(MOTH_ERR_INDEX, "a shape of %u dimensions has none at %lld", shape.n,
                       (long long)dims[i]);
    to[d] = 1;
  }
  return MOTH_OK;
}
