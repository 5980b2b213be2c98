/* Elements and properties of tensors, one number at a time, for compiled Lua loops.
 *
 * lua/moth calls these functions through the FFI, by their addresses: LuaJIT compiles such a call to a plain one, while
 * a function of Lua's C API ends the trace. Functions called by the FFI must not run Lua and cannot raise errors. So
 * each handles only the usual case. For freed tensors, positions out of range, tensors with a history, fake ones,
 * other devices, and dtypes that Lua's numbers cannot represent it returns a value that means "use the function of
 * the C API". The caller in Lua has checked that the userdata is a tensor. */
#include <math.h>

#include "dispatch/subclass.h"
#include "graph/trace.h"
#include "lua/moth_lua.h"

static const double EXACT = 9007199254740992.0; /* 2^53 */

/* Converts a Lua position (from 1, or negative) in a dimension of this size to one from 0; out of range stays out of
 * range, compared as unsigned. */
static inline uint64_t place(int32_t position, int64_t size) {
  return (uint64_t)(position > 0 ? position - 1 : position + size);
}

/* The offset of the element at n positions from t's first one, in elements; negative: out of range, or t has a negative
 * stride. */
static inline int64_t find_element(const MothTensor *t, int n, int32_t i, int32_t j, int32_t k) {
  const int64_t *size = t->shape, *stride = t->stride;
  uint64_t a = place(i, size[0]), b = n > 1 ? place(j, size[1]) : 0,
           c = n > 2 ? place(k, size[2]) : 0;
  if (t->ndim != n || a >= (uint64_t)size[0] || (n > 1 && b >= (uint64_t)size[1]) ||
      (n > 2 && c >= (uint64_t)size[2]))
    return -1;
  int64_t offset = (int64_t)a * stride[0];
  if (n > 1)
    offset += (int64_t)b * stride[1];
  return n > 2 ? offset + (int64_t)c * stride[2] : offset;
}

/* Canonical NaN: with other bits LuaJIT would take it for a tagged value. */
static inline double number(double v) {
  return v == v ? v : (double)NAN;
}

/* The number `at` elements after `data`; NaN if it is NaN or Lua's numbers cannot represent it. */
static inline double load(MothDType dtype, const char *data, int64_t at) {
  int64_t whole;
  switch (dtype) {
  case MOTH_FLOAT32:
    return number((double)((const float *)data)[at]);
  case MOTH_FLOAT64:
    return number(((const double *)data)[at]);
  case MOTH_INT8:
    return ((const int8_t *)data)[at];
  case MOTH_UINT8:
    return ((const uint8_t *)data)[at];
  case MOTH_INT16:
    return ((const int16_t *)data)[at];
  case MOTH_INT32:
    return ((const int32_t *)data)[at];
  case MOTH_INT64:
    whole = ((const int64_t *)data)[at];
    return whole >= -(INT64_C(1) << 53) && whole <= INT64_C(1) << 53 ? (double)whole : (double)NAN;
  case MOTH_FLOAT16:
  case MOTH_BFLOAT16:
    return number(moth_as_double(moth_dtype_load(dtype, data + 2 * at)));
  default: /* booleans, which are no numbers, and stored dtypes */
    return NAN;
  }
}

static inline bool is_here(const MothTensor *t) {
  return t && !(moth_unrun & MOTH_UNRUN_WRITES) &&
         (t->keys & (MOTH_KEYS_DEVICE | MOTH_KEY_FAKE | MOTH_KEY_PENDING | MOTH_KEY_BATCH |
                     MOTH_KEY_TANGENT)) == MOTH_KEY_CPU &&
         !atomic_load_explicit(&moth_released_storages, memory_order_relaxed);
}

/* The only element of the tensor. NaN, here and below: use item (tensor.c), which handles all cases. */
static double get_only(const MothHandle *h) {
  const MothTensor *t = h->u.t;
  return is_here(t) && t->numel == 1 ? load((MothDType)t->dtype, t->data, 0) : (double)NAN;
}

static inline double get_at(const MothHandle *h, int n, int32_t i, int32_t j, int32_t k) {
  const MothTensor *t = h->u.t;
  int64_t at;
  if (!is_here(t) || (at = find_element(t, n, i, j, k)) < 0)
    return NAN;
  return load((MothDType)t->dtype, t->data, at);
}

/* The element at a position for each dimension. */
static double get_1(const MothHandle *h, int32_t i) {
  return get_at(h, 1, i, 0, 0);
}
static double get_2(const MothHandle *h, int32_t i, int32_t j) {
  return get_at(h, 2, i, j, 0);
}
static double get_3(const MothHandle *h, int32_t i, int32_t j, int32_t k) {
  return get_at(h, 3, i, j, k);
}

/* Writes the integer v, if there is one of this type. */
#define STORE_WHOLE(type)                                                                          \
  if (!(v >= -EXACT && v <= EXACT))                                                                \
    return false;                                                                                  \
  whole = (int64_t)v;                                                                              \
  if ((double)whole != v || (type)whole != whole)                                                  \
    return false;                                                                                  \
  ((type *)data)[at] = (type)whole;                                                                \
  return true;

/* Writes v as fill_ does; false where that is an error, or more than one store. */
static inline __attribute__((always_inline)) bool store(MothDType dtype, char *data, int64_t at,
                                                        double v) {
  int64_t whole;
  if (dtype == MOTH_FLOAT32) { /* the usual case, before the switch */
    if (!(fabs(v) < 0x1.ffffffp127) && !isnan(v) && !isinf(v))
      return false;
    ((float *)data)[at] = (float)v;
    return true;
  }
  switch (dtype) {
  case MOTH_FLOAT64:
    ((double *)data)[at] = v;
    return true;
  case MOTH_INT8:
    STORE_WHOLE(int8_t)
  case MOTH_UINT8:
    STORE_WHOLE(uint8_t)
  case MOTH_INT16:
    STORE_WHOLE(int16_t)
  case MOTH_INT32:
    STORE_WHOLE(int32_t)
  case MOTH_INT64:
    STORE_WHOLE(int64_t)
  default:
    return false;
  }
}

/* The modes of the running thread, cached: finding them costs as much as the rest of a call. */
static _Thread_local const MothThread *modes MOTH_LUA_TLS;

/* Writes v to an element, as x[{ i, j, k }] = v, and bumps the version, if the call is not intercepted and has no
 * derivative. False: nothing is written, call fill_. `running` is the calling Lua state: the thread's modes are those of
 * the state that entered last. */
static inline bool set_at(const MothHandle *h, const MothLuaState *running, int n, int32_t i,
                          int32_t j, int32_t k, double v) {
  MothTensor *t = h->u.t;
  if (!t || t->keys != MOTH_KEY_CPU || (t->base && t->base->keys & MOTH_KEY_AUTOGRAD) ||
      t->storage->computed)
    return false;
  if (__builtin_expect(!modes, 0))
    modes = moth_thread_state();
  if (running != moth_lua_last.state || modes->include & ~(uint32_t)MOTH_KEY_AUTOCAST ||
      *moth_lua_interrupt || atomic_load_explicit(&moth_released_storages, memory_order_relaxed) ||
      moth_unrun || moth_lua_records) /* a coroutine's modes may have to be loaded first */
    return false;
  int64_t at = find_element(t, n, i, j, k);
  if (at < 0 ||
      !store((MothDType)t->dtype, t->data, at, v + 0.0)) /* ops take -0.0 for the integer 0 */
    return false;
  ++*moth_version_of(t);
  return true;
}

static bool set_1(const MothHandle *h, const MothLuaState *running, int32_t i, double v) {
  return set_at(h, running, 1, i, 0, 0, v);
}
static bool set_2(const MothHandle *h, const MothLuaState *running, int32_t i, int32_t j,
                  double v) {
  return set_at(h, running, 2, i, j, 0, v);
}
static bool set_3(const MothHandle *h, const MothLuaState *running, int32_t i, int32_t j, int32_t k,
                  double v) {
  return set_at(h, running, 3, i, j, k, v);
}

/* In the order of element.lua's list. */
enum Fact { DIM, NUMEL, OFFSET, ITEMSIZE, VERSION, CONTIGUOUS, FAKE, REQUIRES_GRAD, DTYPE, ON_CPU };

/* A property of the tensor as a number, booleans as 0 and 1; -1 if the tensor has been released, or calls that were noted
 * decide about it. */
static double get_fact(const MothHandle *h, int fact) {
  const MothTensor *t = h->u.t;
  if (!t)
    return -1;
  switch ((enum Fact)fact) {
  case DIM:
    return t->ndim;
  case NUMEL:
    return (double)t->numel;
  case OFFSET:
    return t->keys & MOTH_KEY_LAZY ? -1 : (double)t->offset;
  case ITEMSIZE:
    return (double)moth_itemsize(t);
  case VERSION:
    return moth_unrun & MOTH_UNRUN_WRITES || t->keys & MOTH_KEY_LAZY
               ? -1
               : (double)*moth_version_of((MothTensor *)t);
  case CONTIGUOUS:
    return t->contiguous;
  case FAKE:
    return (t->keys & (MOTH_KEY_FAKE | MOTH_KEY_LAZY)) == MOTH_KEY_FAKE;
  case REQUIRES_GRAD:
    return moth_unrun & MOTH_UNRUN_HISTORY ? -1 : moth_tensor_requires_grad(t);
  case DTYPE:
    return t->dtype;
  case ON_CPU:
    return t->device.type == MOTH_CPU;
  }
  return -1;
}

/* The size or the stride of a dimension (from 1, or negative); NaN: no such dimension, or a released tensor. */
static double get_extent(const MothHandle *h, int stride, double dim) {
  const MothTensor *t = h->u.t;
  if (!t || !(dim >= -t->ndim && dim <= t->ndim))
    return NAN;
  int d = (int)dim;
  if (d != dim || d == 0)
    return NAN;
  d = d > 0 ? d - 1 : t->ndim + d;
  return (double)(stride ? t->stride[d] : t->shape[d]);
}

void moth_lua_open_elements(lua_State *L) { /* the binding's table is on top */
  static const struct {
    const char *name;
    void *address;
  } functions[] = {
      {"get_only", __extension__(void *) get_only},    {"get_1", __extension__(void *) get_1},
      {"get_2", __extension__(void *) get_2},          {"get_3", __extension__(void *) get_3},
      {"set_1", __extension__(void *) set_1},          {"set_2", __extension__(void *) set_2},
      {"set_3", __extension__(void *) set_3},          {"get_fact", __extension__(void *) get_fact},
      {"get_extent", __extension__(void *) get_extent}};
  lua_newtable(L);
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    lua_pushlightuserdata(L, functions[i].address);
    lua_setfield(L, -2, functions[i].name);
  }
  lua_pushlightuserdata(L, moth_lua_here(L));
  lua_setfield(L, -2, "state");
  lua_createtable(L, MOTH_NDTYPES, 0); /* by code */
  for (int d = 0; d < MOTH_NDTYPES; d++) {
    moth_lua_push_dtype(L, (MothDType)d);
    lua_rawseti(L, -2, d);
  }
  lua_setfield(L, -2, "dtypes");
  lua_setfield(L, -2, "compiled");
}
