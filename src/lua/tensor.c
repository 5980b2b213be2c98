/* Functions of tensors that are no ops: from and to tables, properties, raw memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/parallel.h"
#include "core/random.h"
#include "device/cuda.h"
#include "dispatch/subclass.h"
#include "graph/trace.h"
#include "lua/moth_lua.h"

static MothTensor *arg_tensor(lua_State *L, int idx) {
  MothHandle *h = moth_lua_handle(L, idx, MOTH_MAGIC_TENSOR);
  if (__builtin_expect(h && h->u.t, 1))
    return h->u.t;
  if (h)
    moth_lua_error(L, "the tensor was released by free()");
  moth_lua_error(L, "expected a tensor, got %s",
                 lua_isnone(L, idx) ? "nothing" : luaL_typename(L, idx));
  return NULL;
}

/* The tensor of a function that has no other argument. */
static MothTensor *only_tensor(lua_State *L) {
  if (__builtin_expect(lua_gettop(L) > 1, 0) && !lua_isnil(L, 2))
    moth_lua_error(L, "too many arguments: expected a tensor alone");
  return arg_tensor(L, 1);
}

/* --- from tables ------------------------------------------------------------------------------- */

enum { SAW_BOOL = 1, SAW_NUMBER = 2, SAW_COMPLEX = 4 };

/* The shape of a nested table, taken from its first elements. */
static int table_shape(lua_State *L, int idx, int64_t *shape) {
  int ndim = 0, top = lua_gettop(L);
  lua_pushvalue(L, idx);
  while (lua_type(L, -1) == LUA_TTABLE) {
    if (ndim == MOTH_MAX_DIMS)
      moth_lua_error(L, "[tensor] the table is nested more than %d deep", MOTH_MAX_DIMS);
    shape[ndim] = (int64_t)lua_objlen(L, -1);
    luaL_checkstack(L, 4, "tensor");
    if (shape[ndim++] == 0) {
      lua_pushnil(L);
      if (lua_next(L, -2))
        moth_lua_error(
            L,
            "[tensor] a table without an array part has key '%s'; options go into the second "
            "argument",
            lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : "?");
      break;
    }
    lua_rawgeti(L, -1, 1);
  }
  lua_settop(L, top);
  return ndim;
}

typedef struct Fill {
  MothDType dtype;
  char *at;
  int ndim;
  const int64_t *shape;
  int saw;
} Fill;

static void fill_from(lua_State *L, Fill *f, int depth) {
  if (depth == f->ndim) {
    int type = lua_type(L, -1);
    int64_t whole;
    double z[2];
    if (type == LUA_TNUMBER) {
      double d = lua_tonumber(L, -1);
      MothValue v = moth_v_float(d);
      bool is_float = moth_dtype_is_inexact(f->dtype);
      if (!is_float && d == floor(d) && fabs(d) <= 9007199254740992.0)
        v = moth_v_int((int64_t)d);
      else if (d != floor(d) && f->dtype != MOTH_BOOL && !is_float)
        moth_lua_error(L, "[tensor] %.14g is not integral and does not go into %s", d,
                       moth_dtype_name(f->dtype));
      if (!is_float && moth_dtype_check_number(f->dtype, v, "an element"))
        moth_lua_error(L, "[tensor] %s", moth_error_text(1));
      moth_dtype_store(f->dtype, f->at, v);
      f->saw |= SAW_NUMBER;
    } else if (type == LUA_TBOOLEAN) {
      moth_dtype_store(f->dtype, f->at, moth_v_bool(lua_toboolean(L, -1)));
      f->saw |= SAW_BOOL;
    } else if (moth_lua_int64(L, lua_gettop(L), &whole)) {
      moth_dtype_store(f->dtype, f->at, moth_v_int(whole));
      f->saw |= SAW_NUMBER;
    } else if (moth_lua_complex(L, lua_gettop(L), z)) {
      f->saw |= SAW_NUMBER | SAW_COMPLEX;
      if (f->dtype == MOTH_COMPLEX64)
        *(MothComplex64 *)(void *)f->at = (MothComplex64){(float)z[0], (float)z[1]};
      else if (f->dtype == MOTH_COMPLEX128)
        *(MothComplex128 *)(void *)f->at = (MothComplex128){z[0], z[1]};
    } else {
      moth_lua_error(L, "[tensor] expected a number or boolean, got %s at depth %d",
                     luaL_typename(L, -1), depth);
    }
    f->at += moth_dtype_size(f->dtype);
    return;
  }
  if (lua_type(L, -1) != LUA_TTABLE || (int64_t)lua_objlen(L, -1) != f->shape[depth])
    moth_lua_error(L, "[tensor] ragged table: expected %lld elements at depth %d, got %s%.0f",
                   (long long)f->shape[depth], depth + 1,
                   lua_type(L, -1) == LUA_TTABLE ? "" : luaL_typename(L, -1),
                   lua_type(L, -1) == LUA_TTABLE ? (double)lua_objlen(L, -1) : 0.0);
  for (int64_t i = 1; i <= f->shape[depth]; i++) {
    lua_rawgeti(L, -1, (int)i);
    fill_from(L, f, depth + 1);
    lua_pop(L, 1);
  }
  /* Refuses what follows the last element of a table: a name, or an element behind a hole. */
  lua_pushinteger(L, (lua_Integer)f->shape[depth]);
  if (f->shape[depth] && lua_next(L, -2)) {
    if (lua_type(L, -2) != LUA_TNUMBER)
      moth_lua_error(L,
                     "[tensor] a table of values has the key '%s'; options go into the outermost "
                     "table or a second one",
                     lua_type(L, -2) == LUA_TSTRING ? lua_tostring(L, -2) : luaL_typename(L, -2));
    else if (lua_tonumber(L, -2) > (double)f->shape[depth] || lua_tonumber(L, -2) < 1)
      moth_lua_error(
          L, "[tensor] a table of values has a hole: it has element %.14g and none before it",
          lua_tonumber(L, -2));
    lua_pop(L, 2);
  }
}

/* tensor(value, dtype or nil) -> cpu tensor. Booleans give bool, numbers the default dtype. */
static int b_tensor(lua_State *L) {
  int64_t shape[MOTH_MAX_DIMS];
  int ndim = lua_type(L, 1) == LUA_TTABLE ? table_shape(L, 1, shape) : 0;
  MothDType dtype = moth_default_dtype();
  if (!lua_isnoneornil(L, 2)) {
    dtype = moth_lua_check_dtype(L, 2);
  } else { /* the kind of the first leaf */
    int top = lua_gettop(L);
    lua_pushvalue(L, 1);
    for (int i = 0; i < ndim && lua_type(L, -1) == LUA_TTABLE; i++)
      lua_rawgeti(L, -1, 1);
    if (lua_type(L, -1) == LUA_TBOOLEAN)
      dtype = MOTH_BOOL;
    lua_settop(L, top);
  }
  MothTensor *t;
  MothStatus s = moth_tensor_new(ndim, shape, dtype, (MothDevice){MOTH_CPU, 0}, &t);
  if (s)
    return moth_lua_raise(L, s);
  moth_lua_push_tensor(L, t);
  Fill f = {dtype, t->data, ndim, shape, 0};
  if (t->numel) {
    lua_pushvalue(L, 1);
    fill_from(L, &f, 0);
    lua_pop(L, 1);
  }
  if (f.saw & SAW_COMPLEX && !moth_dtype_is_complex(dtype)) {
    if (!lua_isnoneornil(L, 2))
      return moth_lua_error(L, "[tensor] a complex number does not go into %s",
                            moth_dtype_name(dtype));
    lua_settop(L, 1);
    moth_lua_push_dtype(L, moth_dtype_complex(moth_default_dtype()));
    return b_tensor(L);
  }
  if (lua_isnoneornil(L, 2) && f.saw == (SAW_BOOL | SAW_NUMBER))
    return moth_lua_error(L, "[tensor] the table mixes numbers and booleans; give {dtype = ...}");
  return 1;
}

/* --- to Lua ------------------------------------------------------------------------------------ */

static void push_element(lua_State *L, MothDType dtype, const void *p) {
  if (dtype == MOTH_COMPLEX64) {
    const MothComplex64 *z = p;
    moth_lua_push_complex(L, (double)z->re, (double)z->im);
    return;
  }
  if (dtype == MOTH_COMPLEX128) {
    const MothComplex128 *z = p;
    moth_lua_push_complex(L, z->re, z->im);
    return;
  }
  MothValue v = moth_dtype_load(dtype, p);
  if (v.tag == MOTH_V_BOOL)
    lua_pushboolean(L, v.u.b);
  else
    lua_pushnumber(L, moth_as_double(v));
}

/* The bytes of the element at positions 2 to top of the stack, one for each dimension. */
static MothStatus element_at(lua_State *L, MothTensor *t, int top, void *element) {
  int64_t offset = 0;
  if (top - 1 != t->ndim)
    moth_lua_error(L, "[item] expected %d positions, one for each dimension, got %d", t->ndim,
                   top - 1);
  for (int d = 0; d < t->ndim; d++) {
    if (lua_isnil(L, d + 2))
      moth_lua_error(L, "[item] argument %d: expected a position, got nil", d + 2);
    double p = moth_lua_number(L, d + 2), size = (double)t->shape[d];
    if (p != floor(p))
      moth_lua_error(L, "[item] a position is an integer, got %.14g", p);
    if (p == 0)
      moth_lua_error(
          L, "[item] position 0 in dimension %d: moth counts from 1 (and from the end by -1)",
          d + 1);
    if (!(p >= -size && p <= size))
      moth_lua_error(L, "[item] position %.14g is out of range for dimension %d of size %lld", p,
                     d + 1, (long long)t->shape[d]);
    int64_t i = (int64_t)p;
    offset += (i > 0 ? i - 1 : t->shape[d] + i) * t->stride[d];
  }
  if (moth_tensor_is_fake(t))
    moth_lua_error(L, "[item] a fake tensor has no values");
  MOTH_TRY(moth_tensor_check_memory(t));
  MOTH_TRY(moth_tensor_ready(t));
  MOTH_TRY(moth_memory(t->device.type)
               ->to_host(t->device.index, element, t->data + offset * moth_itemsize(t),
                         (size_t)moth_itemsize(t)));
  return MOTH_OK;
}

/* The bytes of the only element. */
static MothStatus only_element(MothTensor *t, void *element) {
  MothValue checked;
  MOTH_TRY(moth_tensor_item(t, &checked));
  return moth_memory(t->device.type)
      ->to_host(t->device.index, element, t->data, (size_t)moth_itemsize(t));
}

/* item(t, position, …) -> number or boolean; beyond 2^53 two more numbers: the high and low 32 bits. high is not
 * negative where the number is from 2^63 on. */
static int b_item(lua_State *L) {
  MothValue v;
  MothTensor *t = arg_tensor(L, 1);
  int top = lua_gettop(L);
  while (top > 1 && lua_isnil(L, top))
    top--;
  MothComplex128 element;
  bool is_complex = moth_dtype_is_complex((MothDType)t->dtype);
  MothStatus s = top > 1      ? element_at(L, t, top, &element)
                 : is_complex ? only_element(t, &element)
                              : moth_tensor_item(t, &v);
  if (s)
    return moth_lua_raise(L, s);
  if (is_complex) {
    push_element(L, (MothDType)t->dtype, &element);
    return 1;
  }
  if (top > 1)
    v = moth_dtype_load((MothDType)t->dtype, &element);
  if (v.tag == MOTH_V_BOOL) {
    lua_pushboolean(L, v.u.b);
  } else if (v.tag == MOTH_V_FLOAT) {
    lua_pushnumber(L, v.u.d);
  } else {
    lua_pushnumber(L, moth_as_double(v));
    if (v.n || v.u.i > 9007199254740992 || v.u.i < -9007199254740992) {
      lua_pushnumber(L, (lua_Number)(v.n ? (int64_t)((uint64_t)v.u.i >> 32) : v.u.i >> 32));
      lua_pushnumber(L, (lua_Number)(v.u.i & 0xffffffff));
      return 3;
    }
  }
  return 1;
}

static void push_nested(lua_State *L, const MothTensor *t, int dim, const char *p) {
  if (dim == t->ndim) {
    push_element(L, (MothDType)t->dtype, p);
    return;
  }
  luaL_checkstack(L, 4, "totable");
  lua_createtable(L, (int)t->shape[dim], 0);
  for (int64_t i = 0; i < t->shape[dim]; i++) {
    push_nested(L, t, dim + 1, p + i * t->stride[dim] * moth_itemsize(t));
    lua_rawseti(L, -2, (int)i + 1);
  }
}

static void need_values(lua_State *L, const MothTensor *t, const char *what) {
  if (moth_tensor_is_fake(t))
    moth_lua_error(L, "%s: a fake tensor has no values", what);
  if (t->device.type != MOTH_CPU)
    moth_lua_error(L, "%s: the tensor is on %s; copy it first with x:cpu()", what,
                   moth_memory(t->device.type)->name);
  MothStatus s = moth_tensor_ready(t);
  if (s != MOTH_OK)
    moth_lua_raise(L, s);
}

static int b_totable(lua_State *L) {
  MothTensor *t = arg_tensor(L, 1);
  need_values(L, t, "totable");
  push_nested(L, t, 0, t->data);
  return 1;
}

/* extremes(t) -> the least and the greatest element of a float tensor of the CPU; nothing for other tensors, empty
 * and fake ones, and where reading would have to wait, or calls are captured (export: its tensors may hold anything). For checks of
 * values: no mode, trace or graph sees it. */
static int b_extremes(lua_State *L) {
  static const char *const names[2] = {"amin", "amax"};
  MothTensor *t = arg_tensor(L, 1);
  MothThread *thread = moth_thread_state();
  if (t->device.type != MOTH_CPU || moth_tensor_is_fake(t) || !t->numel ||
      (t->keys | thread->include) & (MOTH_KEY_PENDING | MOTH_KEY_FAKE))
    return 0;
  MothRecorder *recorder = moth_recorder_open();
  if (recorder && recorder->trace->capture)
    return 0;
  uint32_t exclude = thread->exclude;
  thread->exclude = ~(uint32_t)MOTH_KEYS_DATA;
  MothStatus s = MOTH_OK;
  for (int i = 0; i < 2 && s == MOTH_OK; i++) {
    MothValue args[1] = {moth_v_tensor(t)}, result, v;
    s = moth_op_call(moth_op_find(names[i]), 1, args, &result);
    if (s == MOTH_OK) {
      s = moth_tensor_item(result.u.t, &v);
      moth_tensor_release(result.u.t);
    }
    if (s == MOTH_OK)
      lua_pushnumber(L, moth_as_double(v));
  }
  thread->exclude = exclude;
  return s == MOTH_OK ? 2 : moth_lua_raise(L, s);
}

/* --- facts ------------------------------------------------------------------------------------- */

static int push_list(lua_State *L, int n, const int64_t *list) {
  lua_createtable(L, n, 0);
  for (int i = 0; i < n; i++) {
    lua_pushnumber(L, (lua_Number)list[i]);
    lua_rawseti(L, -2, i + 1);
  }
  return 1;
}

static int pick_dim(lua_State *L, const MothTensor *t, const int64_t *list) {
  double d = moth_lua_number(L, 2);
  int n = t->ndim ? t->ndim : 0;
  double at = d > 0 ? d - 1 : d + n; /* as a double: refuses NaN, and what no int can hold */
  if (d != floor(d) || d == 0 || !(at >= 0 && at < n))
    return moth_lua_error(L, "dimension out of range: expected 1 to %d (or %d to -1), got %g", n,
                          -n, d);
  lua_pushnumber(L, (lua_Number)list[(int)at]);
  return 1;
}

static int b_size(lua_State *L) {
  MothTensor *t = arg_tensor(L, 1);
  return lua_isnoneornil(L, 2) ? push_list(L, t->ndim, t->shape) : pick_dim(L, t, t->shape);
}
static int b_stride(lua_State *L) {
  MothTensor *t = arg_tensor(L, 1);
  return lua_isnoneornil(L, 2) ? push_list(L, t->ndim, t->stride) : pick_dim(L, t, t->stride);
}

#define NUMBER(name, expr)                                                                         \
  static int name(lua_State *L) {                                                                  \
    MothTensor *t = only_tensor(L);                                                                \
    lua_pushnumber(L, (lua_Number)(expr));                                                         \
    return 1;                                                                                      \
  }
#define BOOLEAN(name, expr)                                                                        \
  static int name(lua_State *L) {                                                                  \
    MothTensor *t = only_tensor(L);                                                                \
    lua_pushboolean(L, expr);                                                                      \
    return 1;                                                                                      \
  }
NUMBER(b_dim, t->ndim)
NUMBER(b_numel, t->numel)
NUMBER(b_offset, t->offset)
NUMBER(b_itemsize, moth_itemsize(t))
NUMBER(b_version, moth_tensor_version(t))
/* For kernels that write to t without an op: what saved it for backward has to see that. */
static int b_bump_version(lua_State *L) {
  ++*moth_version_of(only_tensor(L));
  return 0;
}
/* What is wrong with a tensor whose memory was released; else nil, and data_ptr is right. For what reads memory without
 * an op. */
static int b_check_memory(lua_State *L) {
  MothTensor *t = only_tensor(L);
  if (__builtin_expect(moth_released_storages != 0, 0) && moth_tensor_check_memory(t) != MOTH_OK)
    lua_pushstring(L, moth_last_error());
  else
    lua_pushnil(L);
  return 1;
}
/* computed(t) -> t, which a module makes anew each time a field is read: writing to it is an error from now on. */
static int b_computed(lua_State *L) {
  MothTensor *t = moth_lua_check_tensor(L, 1, "computed");
  if (!(t->keys & MOTH_KEY_LAZY)) /* its memory is that of a recorded call */
    t->storage->computed = true;
  lua_settop(L, 1);
  return 1;
}
/* A null pointer of a fake tensor would reach C functions through the FFI. */
static int b_data_ptr(lua_State *L) {
  MothTensor *t = only_tensor(L);
  if (moth_tensor_is_fake(t))
    return moth_lua_error(L, "data_ptr: a fake tensor has no memory");
  lua_pushnumber(L, (lua_Number)(uintptr_t)t->data);
  return 1;
}
NUMBER(b_storage_id, (uintptr_t)t->storage)
/* What tells one tensor from another, its place in memory, as bytes: equal ones are equal strings. */
static int b_memory_key(lua_State *L) {
  const MothTensor *t = only_tensor(L);
  int64_t key[3 + 2 * MOTH_MAX_DIMS] = {(int64_t)(uintptr_t)t->storage, t->offset, t->dtype};
  memcpy(key + 3, t->shape, sizeof *key * t->ndim);
  memcpy(key + 3 + t->ndim, t->stride, sizeof *key * t->ndim);
  lua_pushlstring(L, (const char *)key, sizeof *key * (3 + 2 * (size_t)t->ndim));
  return 1;
}
NUMBER(b_storage_ptr, (uintptr_t)t->storage->data)
NUMBER(b_storage_nbytes, moth_storage_nbytes(t))
BOOLEAN(b_is_contiguous, t->contiguous)
BOOLEAN(b_is_lazy, t->keys &MOTH_KEY_LAZY)
BOOLEAN(b_is_fake, (t->keys & (MOTH_KEY_FAKE | MOTH_KEY_LAZY)) == MOTH_KEY_FAKE)

static int b_tensor_dtype(lua_State *L) {
  moth_lua_push_dtype(L, (MothDType)only_tensor(L)->dtype);
  return 1;
}
static int b_tensor_device(lua_State *L) {
  moth_lua_push_device(L, only_tensor(L)->device);
  return 1;
}

/* Releases the tensor on top of the stack. */
static void free_top(lua_State *L) {
  MothHandle *h = moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR);
  MothTensor *t = h->u.t;
  int idx = lua_gettop(L);
  h->u.t = NULL;
  if (t && t->grad &&
      t->grad->hooks) { /* the graph may still run them: another handle takes over */
    lua_getfenv(L, idx);
    moth_lua_push_tensor(L, t);
    lua_insert(L, -2);
    lua_setfenv(L, -2);
    lua_pop(L, 1);
    return;
  }
  moth_tensor_release(t);
  lua_pushvalue(L, lua_upvalueindex(1)); /* without a finalizer: nothing is left to release */
  lua_setmetatable(L, idx);
}

/* free_all(list): free for each. */
static int b_free_all(lua_State *L) {
  moth_lua_type(L, 1, LUA_TTABLE);
  for (int i = 1, n = (int)lua_objlen(L, 1); i <= n; i++) {
    lua_rawgeti(L, 1, i);
    if (!moth_lua_handle(L, -1, MOTH_MAGIC_TENSOR))
      moth_lua_error(L, "free_all: element %d is no tensor", i);
    free_top(L);
    lua_pop(L, 1);
  }
  return 0;
}

/* free(t): releases the tensor now; using the handle afterwards is an error. */
static int b_free(lua_State *L) {
  if (!moth_lua_handle(L, 1, MOTH_MAGIC_TENSOR) || (lua_gettop(L) > 1 && !lua_isnil(L, 2)))
    only_tensor(L); /* raises */
  lua_settop(L, 1);
  free_top(L);
  return 0;
}

/* The address of the first element, as a light userdata for ffi.cast; the caller keeps t alive. */
static int b_pointer(lua_State *L) {
  MothTensor *t = arg_tensor(L, 1);
  need_values(L, t, "data");
  lua_pushlightuserdata(L, t->data);
  return 1;
}

/* A tensor over a foreign address; `owner` is referenced until the last view is freed. */
typedef struct Owner {
  MothLuaRef *value;
} Owner;
static void release_owner(void *ctx) {
  Owner *o = ctx;
  moth_lua_ref_release(o->value);
  moth_free(o, sizeof *o);
}
static int b_from_ptr(lua_State *L) { /* (address number, sizes, dtype, owner) */
  int64_t shape[MOTH_MAX_DIMS];
  void *p = lua_type(L, 1) == LUA_TLIGHTUSERDATA
                ? lua_touserdata(L, 1)
                : (void *)(uintptr_t)moth_lua_check_integer(L, 1, 0, 9007199254740992.0);
  moth_lua_type(L, 2, LUA_TTABLE);
  int n = (int)lua_objlen(L, 2);
  if (n > MOTH_MAX_DIMS)
    return moth_lua_error(L, "from_ptr: too many dimensions");
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    double d = lua_type(L, -1) == LUA_TNUMBER ? lua_tonumber(L, -1) : -1;
    if (d != floor(d) || d < 0 || d > 9007199254740992.0)
      return moth_lua_error(L, "from_ptr: expected sizes that are integers from 0, got %s",
                            lua_isstring(L, -1) ? lua_tostring(L, -1) : luaL_typename(L, -1));
    shape[i] = (int64_t)d;
    lua_pop(L, 1);
  }
  MothDType dtype = moth_lua_check_dtype(L, 3);
  Owner *o = NULL;
  if (!lua_isnoneornil(L, 4)) {
    o = moth_alloc(sizeof *o);
    if (!o)
      return moth_lua_raise(L, moth_no_memory(sizeof *o));
    lua_pushvalue(L, 4);
    o->value = moth_lua_ref_new(L);
    if (!o->value) {
      moth_free(o, sizeof *o);
      return moth_lua_raise(L, moth_no_memory(0));
    }
  }
  MothTensor *t;
  MothStatus s = moth_tensor_from_ptr(p, n, shape, dtype, o ? release_owner : NULL, o, &t);
  if (s) {
    if (o)
      release_owner(o);
    return moth_lua_raise(L, s);
  }
  moth_lua_push_tensor(L, t);
  return 1;
}

/* bytes(t) -> string of a row-major tensor; set_bytes(t, string) */
static int b_bytes(lua_State *L) {
  MothTensor *t = arg_tensor(L, 1);
  need_values(L, t, "bytes");
  if (!t->contiguous)
    return moth_lua_error(L, "bytes: the tensor must be row-major; call contiguous()");
  lua_pushlstring(L, t->data ? t->data : "", (size_t)(t->numel * moth_itemsize(t)));
  return 1;
}

static int b_shares_storage(lua_State *L) {
  lua_pushboolean(L, arg_tensor(L, 1)->storage == arg_tensor(L, 2)->storage);
  return 1;
}

/* detach(t, fresh_version) -> the same elements without history, of t's class; for parts of moth that make a graph by
 * hand. Modes and traces see the op detach. */
static int b_detach(lua_State *L) {
  MothTensor *t = arg_tensor(L, 1), *out;
  moth_lua_enter(L);
  lua_State *outer = moth_lua_current;
  moth_lua_current = L;
  MothStatus s =
      lua_toboolean(L, 2) ? moth_tensor_alias(t, true, &out) : moth_alias_for_graph(t, &out);
  moth_lua_current = outer;
  if (s)
    return moth_lua_raise(L, s);
  moth_lua_push_tensor(L, out);
  return 1;
}
/* alias(t, fresh_version) -> the same as a plain tensor without subclass: for moth's own reads, which no mode sees */
static int b_alias(lua_State *L) {
  MothTensor *t;
  MothStatus s = moth_tensor_alias(arg_tensor(L, 1), lua_toboolean(L, 2), &t);
  if (s)
    return moth_lua_raise(L, s);
  if (t->keys & MOTH_KEY_SUBCLASS) /* a batch stays */
    moth_tensor_carry(t, NULL);
  moth_lua_push_tensor(L, t);
  return 1;
}

/* set_data(t, src): makes src's elements those of the leaf t, which keeps its handle. */
static int b_set_data(lua_State *L) {
  MothTensor *t = arg_tensor(L, 1), *src = arg_tensor(L, 2);
  if (!moth_tensor_is_leaf(t))
    return moth_lua_error(L,
                          "set_data: only a leaf can be given other data; use copy_ or detach()");
  if (moth_tensor_requires_grad(t) && !moth_dtype_is_float((MothDType)src->dtype))
    return moth_lua_error(L, "set_data: a tensor that requires grad must stay float");
  MothStatus s = moth_tensor_set_grad(t, NULL);
  if (!s)
    s = moth_tensor_set_data(t, src);
  return s ? moth_lua_raise(L, s) : 0;
}

/* storage_resize(t, nbytes): releases the memory (0) or allocates it again */
static int b_storage_resize(lua_State *L) {
  MothStatus s =
      moth_storage_resize(arg_tensor(L, 1), moth_lua_check_integer(L, 2, 0, 9007199254740992.0));
  return s ? moth_lua_raise(L, s) : 0;
}

/* fake(t) -> a shape-only tensor like t, with its strides */
static int b_fake(lua_State *L) {
  MothTensor *t = arg_tensor(L, 1), *out;
  MothStatus s = moth_tensor_fake_of(t, &out);
  if (s)
    return moth_lua_raise(L, s);
  moth_lua_push_tensor(L, out);
  return 1;
}

/* --- settings ---------------------------------------------------------------------------------- */

static int b_default_dtype(lua_State *L) {
  moth_lua_here(L);
  if (!lua_isnoneornil(L, 1)) {
    MothStatus s = moth_set_default_dtype(moth_lua_check_dtype(L, 1));
    if (s)
      return moth_lua_raise(L, s);
  }
  moth_lua_push_dtype(L, moth_default_dtype());
  return 1;
}

static int b_promote(lua_State *L) {
  MothDType common;
  MothStatus s = moth_dtype_common(moth_lua_check_dtype(L, 1), moth_lua_check_dtype(L, 2), &common);
  if (s)
    return moth_lua_raise(L, s);
  moth_lua_push_dtype(L, common);
  return 1;
}

static int b_result_type(lua_State *L) {
  MothValue v[2];
  for (int i = 0; i < 2; i++) {
    MothHandle *h = moth_lua_handle(L, i + 1, MOTH_MAGIC_TENSOR);
    if (h && h->u.t)
      v[i] = moth_v_tensor(h->u.t);
    else {
      double d = moth_lua_number(L, i + 1);
      v[i] = d == floor(d) ? moth_v_int(0) : moth_v_float(d);
    }
  }
  MothDType common;
  MothStatus s = moth_result_type(2, v, &common);
  if (s)
    return moth_lua_raise(L, s);
  moth_lua_push_dtype(L, common);
  return 1;
}

static int b_memory_stats(lua_State *L) {
  MothMemStats m;
  moth_memory_stats(&m);
  int64_t cycles, full;
  moth_lua_collections(&cycles, &full);
  lua_createtable(L, 0, 7);
  lua_pushnumber(L, (lua_Number)m.live);
  lua_setfield(L, -2, "live");
  lua_pushnumber(L, (lua_Number)m.peak);
  lua_setfield(L, -2, "peak");
  lua_pushnumber(L, (lua_Number)m.cached);
  lua_setfield(L, -2, "cached");
  lua_pushnumber(L, (lua_Number)m.allocs);
  lua_setfield(L, -2, "allocs");
  lua_pushnumber(L, (lua_Number)m.system);
  lua_setfield(L, -2, "system");
  lua_pushnumber(L, (lua_Number)cycles);
  lua_setfield(L, -2, "collections");
  lua_pushnumber(L, (lua_Number)full);
  lua_setfield(L, -2, "full_collections");
  return 1;
}
static int b_reset_peak(lua_State *L) {
  (void)L;
  moth_memory_reset_peak();
  return 0;
}
static int b_empty_cache(lua_State *L) {
  (void)L;
  moth_memory_empty_cache();
  return 0;
}
static int b_fail_at(lua_State *L) {
  moth_memory_fail_at(moth_lua_check_integer(L, 1, -1e9, 9e15), lua_toboolean(L, 2));
  return 0;
}
static int b_num_threads(lua_State *L) {
  moth_lua_here(L);
  if (!lua_isnoneornil(L, 1)) {
    MothStatus s = moth_set_num_threads((int)moth_lua_check_integer(L, 1, INT32_MIN, INT32_MAX));
    if (s)
      return moth_lua_raise(L, s);
  }
  lua_pushinteger(L, moth_num_threads());
  return 1;
}
static int b_cpu_level(lua_State *L) {
  if (!lua_isnoneornil(L, 1)) {
    MothStatus s = moth_set_cpu_level(moth_lua_string(L, 1));
    if (s)
      return moth_lua_raise(L, s);
  }
  lua_pushstring(L, moth_cpu_level());
  return 1;
}
/* format(t): "float32 [2, 3] cpu", for messages */
static int b_format(lua_State *L) {
  char buf[256];
  lua_pushstring(L, moth_tensor_format(moth_lua_check_tensor(L, 1, "format"), buf, sizeof buf));
  return 1;
}

static int b_cuda_why(lua_State *L) {
  const char *why = moth_cuda_why();
  if (why)
    lua_pushstring(L, why);
  else
    lua_pushnil(L);
  return 1;
}

void moth_lua_open_tensor(lua_State *L) {
  static const luaL_Reg fns[] = {{"tensor", b_tensor},
                                 {"item", b_item},
                                 {"totable", b_totable},
                                 {"extremes", b_extremes},
                                 {"size", b_size},
                                 {"stride", b_stride},
                                 {"dim", b_dim},
                                 {"numel", b_numel},
                                 {"storage_offset", b_offset},
                                 {"itemsize", b_itemsize},
                                 {"version", b_version},
                                 {"bump_version", b_bump_version},
                                 {"check_memory", b_check_memory},
                                 {"computed", b_computed},
                                 {"data_ptr", b_data_ptr},
                                 {"storage_id", b_storage_id},
                                 {"memory_key", b_memory_key},
                                 {"storage_ptr", b_storage_ptr},
                                 {"storage_nbytes", b_storage_nbytes},
                                 {"is_contiguous", b_is_contiguous},
                                 {"is_fake", b_is_fake},
                                 {"is_lazy", b_is_lazy},
                                 {"tensor_dtype", b_tensor_dtype},
                                 {"tensor_device", b_tensor_device},
                                 {"pointer", b_pointer},
                                 {"from_ptr", b_from_ptr},
                                 {"bytes", b_bytes},
                                 {"shares_storage", b_shares_storage},
                                 {"alias", b_alias},
                                 {"detach", b_detach},
                                 {"fake", b_fake},
                                 {"set_data", b_set_data},
                                 {"storage_resize", b_storage_resize},
                                 {"default_dtype", b_default_dtype},
                                 {"promote", b_promote},
                                 {"result_type", b_result_type},
                                 {"memory_stats", b_memory_stats},
                                 {"reset_peak", b_reset_peak},
                                 {"empty_cache", b_empty_cache},
                                 {"fail_at", b_fail_at},
                                 {"num_threads", b_num_threads},
                                 {"cpu_level", b_cpu_level},
                                 {"format", b_format},
                                 {"cuda_why", b_cuda_why},
                                 {NULL, NULL}};
  luaL_register(L, NULL, fns);
  lua_newtable(
      L); /* the metatable of released tensors, which Lua fills with that of tensors but for __gc */
  lua_pushvalue(L, -1);
  lua_setfield(L, -3, "Released");
  lua_pushvalue(L, -1);
  lua_pushcclosure(L, b_free_all, 1);
  lua_setfield(L, -3, "free_all");
  lua_pushcclosure(L, b_free, 1);
  lua_setfield(L, -2, "free");
  lua_pushliteral(L, MOTH_VERSION);
  lua_setfield(L, -2, "version_string");
  lua_pushfstring(L, "libmoth.so.%d",
                  atoi(MOTH_VERSION)); /* for ffi.load: finds the library that is loaded */
  lua_setfield(L, -2, "soname");
}
