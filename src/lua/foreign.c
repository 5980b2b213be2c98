/* Files of other programs for Lua: NumPy's .npy and .npz, PyTorch's .pt; and recognising the kind of a file. */
#include <string.h>

#include "core/alloc.h"
#include "core/tensor.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/mapped.h"
#include "io/npy.h"
#include "io/pth.h"
#include "io/zip.h"
#include "lua/moth_lua.h"

/* The resources of a file being read: a userdata, so that nothing leaks if Lua raises. */
typedef struct Source {
  const char *path;
  MothFileMap map;
  MothMapping *mapping; /* or NULL: the bytes are its own, tensors may lie in it */
  MothZip *zip;
  MothPth *pth;
} Source;

static const char source_key = 0;

static int close_source(lua_State *L) {
  Source *s = lua_touserdata(L, 1);
  moth_pth_free(s->pth);
  moth_zip_free(s->zip);
  if (s->mapping)
    moth_mapping_close(s->mapping);
  else
    moth_file_unmap(&s->map);
  s->mapping = NULL;
  s->map = (MothFileMap){0};
  s->pth = NULL;
  s->zip = NULL;
  return 0;
}

/* Raises the message of a failed call, prefixed by the path. */
static int raise_in(lua_State *L, const Source *s) {
  char message[1024];
  strncpy(message, moth_error_text(1), sizeof message - 1);
  message[sizeof message - 1] = 0;
  return moth_lua_error(L, "%s: %s", s->path, message);
}

/* Pushes a mapped file. The path must be an argument: it stays on the stack. */
static Source *open_source(lua_State *L, const char *path, bool for_tensors) {
  Source *s = lua_newuserdata(L, sizeof *s);
  *s = (Source){.path = path};
  lua_pushlightuserdata(L, (void *)(uintptr_t)&source_key);
  lua_rawget(L, LUA_REGISTRYINDEX);
  lua_setmetatable(L, -2);
  MothStatus status =
      for_tensors ? moth_mapping_open(path, &s->mapping) : moth_file_map(path, &s->map);
  if (status)
    moth_lua_raise(L, status);
  if (s->mapping) {
    size_t n;
    s->map.bytes = moth_mapping_bytes(s->mapping, &n);
    s->map.size = (int64_t)n;
  }
  return s;
}

/* ---- NumPy ------------------------------------------------------------------------------------
 */

/* A tensor of an array's elements; a column-major array becomes a tensor with column-major strides. */
static MothStatus tensor_of_array(const MothNpy *npy, MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS], stride[MOTH_MAX_DIMS], step = 1;
  MothTensor *t, *view;
  for (int d = 0; d < npy->ndim; d++)
    shape[d] = npy->shape[npy->fortran_order ? npy->ndim - 1 - d : d];
  MOTH_TRY(moth_tensor_new(npy->ndim, shape, npy->dtype, (MothDevice){MOTH_CPU, 0}, &t));
  moth_elements_copy(npy->dtype, npy->swap, t->data, npy->data, npy->nbytes);
  *out = t;
  if (!npy->fortran_order || npy->ndim < 2)
    return MOTH_OK;
  for (int d = 0; d < npy->ndim; d++) {
    stride[d] = step;
    step *= npy->shape[d] > 1 ? npy->shape[d] : 1;
  }
  MothStatus status = moth_tensor_view(t, npy->ndim, npy->shape, stride, 0, &view);
  moth_tensor_release(t);
  if (status)
    return status;
  status = moth_tensor_alias(view, false, out); /* so that autograd sees no view */
  moth_tensor_release(view);
  return status;
}

static MothStatus read_array(const uint8_t *bytes, size_t n, MothTensor **out) {
  MothNpy npy;
  MOTH_TRY(moth_npy_parse(bytes, n, &npy));
  return tensor_of_array(&npy, out);
}

/* load_npy(path) -> tensor */
static int b_load_npy(lua_State *L) {
  MothTensor *t;
  Source *s = open_source(L, moth_lua_path(L, 1), false);
  if (read_array(s->map.bytes, (size_t)s->map.size, &t))
    return raise_in(L, s);
  moth_lua_push_tensor(L, t);
  return 1;
}

/* write_pieces(path, { string | row-major cpu tensor, ... }, name): the bytes of all, one after the other; the file is
 * replaced when they are written. Errors are those of the function `name`. */
static int b_write_pieces(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  moth_lua_type(L, 2, LUA_TTABLE);
  const char *name = luaL_checkstring(L, 3);
  size_t n = lua_objlen(L, 2);
  MothPiece *pieces = lua_newuserdata(L, sizeof *pieces * (n + 1));
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (int)i + 1); /* the table keeps it alive */
    if (lua_type(L, -1) == LUA_TSTRING) {
      pieces[i].bytes = lua_tolstring(L, -1, &pieces[i].n);
    } else {
      MothTensor *t = moth_lua_check_tensor(L, -1, "save");
      if (t->device.type != MOTH_CPU || !t->contiguous || moth_tensor_is_fake(t))
        return moth_lua_error(L, "[%s] expected row-major cpu tensors", name);
      MothStatus status = moth_tensor_ready(t);
      if (status)
        return moth_lua_raise(L, status);
      pieces[i] = (MothPiece){t->data, (size_t)(t->numel * moth_itemsize(t))};
    }
    lua_pop(L, 1);
  }
  if (moth_file_write_atomic(path, pieces, (int)n))
    return moth_lua_error(L, "[%s] %s", name, moth_last_error());
  return 0;
}

/* save_npy(path, row-major cpu tensor) */
static int b_save_npy(lua_State *L) {
  char header[MOTH_NPY_HEADER];
  size_t n = 0;
  const char *path = moth_lua_path(L, 1);
  MothTensor *t = moth_lua_check_tensor(L, 2, "save");
  if (t->device.type != MOTH_CPU || !t->contiguous || moth_tensor_is_fake(t))
    return moth_lua_error(L, "save: expected a row-major cpu tensor");
  MothStatus status = moth_tensor_ready(t);
  if (!status)
    status = moth_npy_header((MothDType)t->dtype, t->ndim, t->shape, header, &n);
  MothPiece pieces[] = {{header, n}, {t->data, (size_t)(t->numel * moth_itemsize(t))}};
  if (!status)
    status = moth_file_write_atomic(path, pieces, 2);
  return status ? moth_lua_raise(L, status) : 0;
}

static MothStatus
check_member(const MothZipEntry *e) { /* called before expanding the whole member */
  enum { HEAD = MOTH_NPY_MAX_HEADER + 16 };
  uint8_t head[HEAD];
  int64_t got;
  MOTH_TRY(moth_zip_head(e, head, HEAD, &got));
  return moth_npy_check_size(head, (size_t)got, (size_t)e->size);
}

static int load_npz(lua_State *L, Source *s) {
  lua_pushliteral(L, "npz");
  lua_newtable(L);
  for (int64_t i = 0; i < s->zip->count; i++) {
    const MothZipEntry *e = &s->zip->entries[i];
    size_t n = strlen(e->name);
    if (n < 4 || strcmp(e->name + n - 4, ".npy") != 0)
      return moth_lua_error(L, "%s: the member \"%s\" is no array of NumPy's", s->path, e->name);
    lua_pushlstring(L, e->name, n - 4);
    const uint8_t *bytes = e->data;
    MothTensor *t = NULL;
    MothStatus status = MOTH_OK;
    if (e->deflated && (status = check_member(e))) {
      lua_pushnil(L);
    } else if (e->deflated) {
      uint8_t *plain = lua_newuserdata(L, (size_t)e->size + 1);
      status = moth_zip_read(e, plain);
      bytes = plain;
    } else {
      lua_pushnil(L);
      status = moth_zip_verify(e);
    }
    if (!status)
      status = read_array(bytes, (size_t)e->size, &t);
    if (status) {
      char message[1024];
      strncpy(message, moth_error_text(1), sizeof message - 1);
      message[sizeof message - 1] = 0;
      return moth_lua_error(L, "%s: \"%s\": %s", s->path, e->name, message);
    }
    lua_pop(L, 1);
    moth_lua_push_tensor(L, t);
    lua_rawset(L, -3);
  }
  return 2;
}

/* ---- PyTorch ----------------------------------------------------------------------------------
 */

/* Stack indices. STORAGES also has long strings, by their addresses. */
enum { PATH = 1, CALLBACKS, CAP, SOURCE, SEEN, TENSORS, STORAGES, FIXED };

static void push_callback(lua_State *L, const char *name) {
  lua_getfield(L, CALLBACKS, name);
}

/* Whether a storage is used where it lies in the file, rather than copied. */
static bool lies_in_file(const Source *s, const MothPickleStorage *storage,
                         const MothZipEntry *member) {
  return s->mapping && s->map.size >= MOTH_MAPPING_LEAST && !member->deflated &&
         storage->numel > 0 && storage->dtype != MOTH_BOOL && !storage->small &&
         (member->data - s->map.bytes) % moth_dtype_size(storage->dtype) == 0;
}

/* Pushes the tensor of a whole storage, made when first needed. */
static void push_storage(lua_State *L, const Source *s, uint32_t index) {
  const MothPickleStorage *storage = &s->pth->pickle->storages[index];
  MothTensor *t = NULL;
  lua_rawgeti(L, STORAGES, (int)storage->same + 1);
  if (!lua_isnil(L, -1))
    return;
  lua_pop(L, 1);
  const MothZipEntry *member = s->pth->members[index];
  if (lies_in_file(s, storage, member)) {
    if (moth_zip_verify(member) ||
        moth_mapping_tensor(s->mapping, storage->dtype, member->data - s->map.bytes, 1,
                            &storage->numel, &t))
      raise_in(L, s);
    moth_lua_push_tensor(L, t);
  } else {
    MothStatus status =
        moth_tensor_new(1, &storage->numel, storage->dtype, (MothDevice){MOTH_CPU, 0}, &t);
    if (status)
      moth_lua_raise(L, status);
    moth_lua_push_tensor(L, t);
    /* Bytes that become bfloat16 stand in the second half, where each is read before its place is written. */
    uint8_t *bytes = (uint8_t *)t->data + (storage->small ? storage->numel : 0);
    if (storage->numel > 0 && moth_zip_read(member, bytes))
      raise_in(L, s);
    if (storage->small && storage->numel > 0)
      moth_small_float_copy(storage->small, (uint16_t *)(void *)t->data, bytes, storage->numel);
    if (storage->dtype == MOTH_BOOL)
      moth_elements_copy(MOTH_BOOL, false, t->data, (const uint8_t *)t->data, storage->numel);
  }
  push_callback(L, "place");
  if (lua_isnil(L, -1)) {
    lua_pop(L, 1);
  } else {
    lua_insert(L, -2);
    lua_call(L, 1, 1);
  }
  lua_pushvalue(L, -1);
  lua_rawseti(L, STORAGES, (int)storage->same + 1);
}

static void push_tensor(lua_State *L, const Source *s, uint32_t index) {
  const MothPickle *p = s->pth->pickle;
  const MothPickleTensor *t = &p->tensors[index];
  MothTensor *view, *alias = NULL;
  lua_rawgeti(L, TENSORS, (int)index + 1);
  if (!lua_isnil(L, -1))
    return;
  lua_pop(L, 1);
  push_storage(L, s, t->storage);
  MothStatus status =
      moth_tensor_view(moth_lua_check_tensor(L, -1, "load"), t->ndim, p->dims + t->dims,
                       p->dims + t->dims + t->ndim, t->offset, &view);
  if (!status) {
    status = moth_tensor_alias(view, false, &alias);
    moth_tensor_release(view);
  }
  if (status)
    raise_in(L, s);
  lua_pop(L, 1);
  moth_lua_push_tensor(L, alias);
  if (t->requires_grad) {
    push_callback(L, "leaf");
    lua_pushvalue(L, -2);
    lua_call(L, 1, 0);
  }
  lua_pushvalue(L, -1);
  lua_rawseti(L, TENSORS, (int)index + 1);
}

static void push_integer(lua_State *L, int64_t i) {
  enum { EXACT = 53 };
  if (i >= -(1ll << EXACT) && i <= 1ll << EXACT) {
    lua_pushnumber(L, (lua_Number)i);
    return;
  }
  push_callback(L, "integer");
  lua_pushnumber(L, (lua_Number)(i >> 32));
  lua_pushnumber(L, (lua_Number)(i & 0xffffffff));
  lua_call(L, 2, 1);
}

/* Pushes a string. A string stored once may be referred to a million times: long ones are made once. */
static void push_string(lua_State *L, MothPickleValue v) {
  enum { SHORT = 64 };
  void *key = (void *)(uintptr_t)v.u.text;
  if (v.n <= SHORT) {
    lua_pushlstring(L, v.u.text, v.n);
    return;
  }
  lua_pushlightuserdata(L, key);
  lua_rawget(L, STORAGES);
  if (!lua_isnil(L, -1))
    return;
  lua_pop(L, 1);
  lua_pushlstring(L, v.u.text, v.n);
  lua_pushlightuserdata(L, key);
  lua_pushvalue(L, -2);
  lua_rawset(L, STORAGES);
}

static void push_value(lua_State *L, const Source *s, MothPickleValue v);

static void push_list(lua_State *L, const Source *s, const MothPickleContainer *c) {
  const MothPickle *p = s->pth->pickle;
  int n = 0;
  bool holes = false;
  lua_createtable(L, (int)c->count, 0);
  for (uint32_t i = c->first; i != MOTH_PICKLE_END; i = p->cells[i].next) {
    push_value(L, s, p->cells[i].value);
    holes |= lua_isnil(L, -1);
    lua_rawseti(L, -2, ++n);
  }
  if (holes) {
    lua_pushinteger(L, n);
    lua_setfield(L, -2, "n");
  }
}

static void push_dictionary(lua_State *L, const Source *s, const MothPickleContainer *c) {
  const MothPickle *p = s->pth->pickle;
  bool ordered = c->kind == MOTH_PICKLE_ORDERED;
  int n = 0;
  if (ordered)
    lua_createtable(L, (int)c->count / 2, 0); /* the keys */
  lua_createtable(L, 0, (int)c->count / 2);
  for (uint32_t i = c->first; i != MOTH_PICKLE_END; i = p->cells[p->cells[i].next].next) {
    push_value(L, s, p->cells[i].value);
    if (lua_type(L, -1) == LUA_TNUMBER && lua_tonumber(L, -1) != lua_tonumber(L, -1))
      moth_lua_error(L, "%s: a dictionary has the key NaN, a table cannot", s->path);
    if (ordered) {
      lua_pushvalue(L, -1);
      lua_rawseti(L, -4, ++n);
    }
    push_value(L, s, p->cells[p->cells[i].next].value);
    lua_rawset(L, -3);
  }
  if (!ordered)
    return;
  push_callback(L, "ordered");
  lua_insert(L, -3);
  lua_call(L, 2, 1);
}

/* Recursive: the pickle's reader has limited the depth to MOTH_PICKLE_MAX_DEPTH. */
static void push_value(lua_State *L, const Source *s, MothPickleValue v) {
  luaL_checkstack(L, 12, "load");
  switch ((MothPickleKind)v.kind) {
  case MOTH_PICKLE_BOOL:
    lua_pushboolean(L, v.u.i != 0);
    return;
  case MOTH_PICKLE_INT:
    push_integer(L, v.u.i);
    return;
  case MOTH_PICKLE_FLOAT:
    lua_pushnumber(L, v.u.d);
    return;
  case MOTH_PICKLE_STRING:
    push_string(L, v);
    return;
  case MOTH_PICKLE_DTYPE:
    moth_lua_push_dtype(L, (MothDType)v.n);
    return;
  case MOTH_PICKLE_TENSOR:
    push_tensor(L, s, v.n);
    return;
  case MOTH_PICKLE_TUPLE:
  case MOTH_PICKLE_LIST:
  case MOTH_PICKLE_SPARSE:
  case MOTH_PICKLE_DICT:
  case MOTH_PICKLE_ORDERED:
  case MOTH_PICKLE_RECORD:
    break;
  default:
    lua_pushnil(L);
    return;
  }
  lua_rawgeti(L, SEEN, (int)v.n + 1); /* one object in Python becomes one table */
  if (!lua_isnil(L, -1))
    return;
  lua_pop(L, 1);
  const MothPickleContainer *c = &s->pth->pickle->containers[v.n];
  if (v.kind <= MOTH_PICKLE_SPARSE)
    push_list(L, s, c);
  else
    push_dictionary(L, s, c);
  if (v.kind == MOTH_PICKLE_SPARSE) {
    push_callback(L, "sparse");
    lua_insert(L, -2);
    lua_call(L, 1, 1);
  }
  lua_pushvalue(L, -1);
  lua_rawseti(L, SEEN, (int)v.n + 1);
}

/* load_zip(path, { ordered=, integer=, leaf=, sparse=, place= }, cap, is_copied, offset, length) -> "npz", { name = tensor } or
 * "pth", value. offset, length: the bytes of the archive in the file (nil: all).
 * ordered(keys, values) makes an ordered table, integer(high, low) one beyond 2^53, leaf(t) sets
 * requires_grad, sparse(parts) makes a sparse tensor, place(t) moves the tensor of a storage to its device (nil: it stays). */
static int b_load_zip(lua_State *L) {
  const char *path = moth_lua_path(L, PATH);
  moth_lua_type(L, CALLBACKS, LUA_TTABLE);
  lua_Number cap = moth_lua_number(L, CAP);
  bool is_copied = lua_toboolean(L, CAP + 1);
  lua_Number offset = luaL_optnumber(L, CAP + 2, 0), length = luaL_optnumber(L, CAP + 3, -1);
  lua_settop(L, CAP);
  Source *s = open_source(L, path, !is_copied);
  if (length < 0)
    length = (lua_Number)s->map.size - offset;
  if (!(offset >= 0 && length >= 0 && offset + length <= (lua_Number)s->map.size))
    return moth_lua_error(L, "%s: %.0f bytes at %.0f lie beyond its end", s->path, length, offset);
  if (moth_zip_parse(s->map.bytes + (int64_t)offset, (size_t)length,
                     cap < 9e18 ? (int64_t)cap : INT64_MAX, &s->zip))
    return raise_in(L, s);
  if (moth_pth_program(s->zip))
    return moth_lua_error(L, "%s: %s", s->path, moth_pth_program(s->zip));
  if (!moth_pth_is(s->zip))
    return load_npz(L, s);
  if (moth_pth_open(s->zip, &s->pth))
    return raise_in(L, s);
  while (lua_gettop(L) < FIXED - 1)
    lua_newtable(L);
  lua_pushliteral(L, "pth");
  push_value(L, s, s->pth->pickle->root);
  return 2;
}

/* load_records(path, { integer= }) -> the index of a distributed checkpoint of PyTorch: objects as tables of their
 * fields, also as keys. */
static int b_load_records(lua_State *L) {
  const char *path = moth_lua_path(L, PATH);
  moth_lua_type(L, CALLBACKS, LUA_TTABLE);
  lua_settop(L, CALLBACKS);
  lua_pushnil(L);
  Source *s = open_source(L, path, false);
  if (moth_pth_open_records(s->map.bytes, (size_t)s->map.size, &s->pth))
    return raise_in(L, s);
  while (lua_gettop(L) < FIXED - 1)
    lua_newtable(L);
  push_value(L, s, s->pth->pickle->root);
  return 1;
}

/* Whether a text begins here, of which `{` may be the ninth byte: no length of a header. */
static bool is_text(const uint8_t *bytes, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (bytes[i] >= 0x7f ||
        (bytes[i] < ' ' && bytes[i] != '\n' && bytes[i] != '\r' && bytes[i] != '\t'))
      return false;
  return true;
}

/* file_kind(path) -> "zip", "npy", "safetensors", or nil and perhaps the reason */
static int b_file_kind(lua_State *L) {
  enum { PREFIX = 8 };
  Source *s = open_source(L, moth_lua_path(L, 1), false);
  const uint8_t *bytes = s->map.bytes;
  size_t n = (size_t)s->map.size;
  const char *kind = moth_zip_is(bytes, n)                                           ? "zip"
                     : moth_npy_is(bytes, n)                                         ? "npy"
                     : n > PREFIX && bytes[PREFIX] == '{' && !is_text(bytes, PREFIX) ? "safetensors"
                                                                                     : NULL;
  lua_pushstring(L, kind); /* NULL: nil */
  lua_pushstring(L, kind ? NULL : moth_pth_refusal(bytes, n));
  return 2;
}

void moth_lua_open_foreign(lua_State *L) {
  static const luaL_Reg fns[] = {{"load_npy", b_load_npy},
                                 {"save_npy", b_save_npy},
                                 {"write_pieces", b_write_pieces},
                                 {"load_zip", b_load_zip},
                                 {"load_records", b_load_records},
                                 {"file_kind", b_file_kind},
                                 {NULL, NULL}};
  lua_pushlightuserdata(L, (void *)(uintptr_t)&source_key);
  lua_newtable(L);
  lua_pushcfunction(L, close_source);
  lua_setfield(L, -2, "__gc");
  lua_rawset(L, LUA_REGISTRYINDEX);
  luaL_register(L, NULL, fns);
}
