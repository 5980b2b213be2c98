/* Files for Lua: safetensors, IDX, checksums, atomic writing. */
#include <string.h>

#include "block_types.h"
#include "core/alloc.h"
#include "io/crc32.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/gguf.h"
#include "io/gunzip.h"
#include "io/idx.h"
#include "io/json.h"
#include "io/mapped.h"
#include "io/safetensors.h"
#include "io/seal.h"
#include "io/sha256.h"
#include "lua/moth_lua.h"

enum { GUNZIP_CAP = 1 << 30 };

/* Whether moth wrote the file. One key of moth's is enough to require the seal, so that a damaged key does not make
 * the file look like another program's. */
static bool is_own(const MothSafetensors *file) {
  for (int64_t i = 0; i < file->metadata_count; i++) {
    const MothSafetensorsPair *pair = &file->metadata[i];
    if (strncmp(pair->key, "moth.", 5) == 0 ||
        (strcmp(pair->key, "format") == 0 && strcmp(pair->value, "moth") == 0))
      return true;
  }
  return false;
}

/* A tensor of a mapped file; a copy where its place does not suit its dtype. */
static MothStatus tensor_at(MothMapping *m, const uint8_t *bytes, MothDType dtype, int ndim,
                            const int64_t *shape, int64_t begin, int64_t end, MothTensor **out) {
  if (dtype != MOTH_BOOL && begin % moth_dtype_size(dtype) == 0 && end > begin)
    return moth_mapping_tensor(m, dtype, begin, ndim, shape, out);
  MOTH_TRY(moth_tensor_new(ndim, shape, dtype, (MothDevice){MOTH_CPU, 0}, out));
  moth_elements_copy(dtype, false, (*out)->data, bytes + begin, end - begin);
  return MOTH_OK;
}

/* The same, always a copy. */
static MothStatus copy_at(const uint8_t *bytes, const MothSafetensorsEntry *e, MothTensor **out) {
  MOTH_TRY(moth_tensor_new(e->ndim, e->shape, e->dtype, (MothDevice){MOTH_CPU, 0}, out));
  moth_elements_copy(e->dtype, false, (*out)->data, bytes + e->begin, e->end - e->begin);
  return MOTH_OK;
}

/* Small floats as bfloat16. */
static MothStatus widened(const uint8_t *bytes, const MothSafetensorsEntry *e, MothTensor **out) {
  int64_t shape[MOTH_MAX_DIMS];
  memcpy(shape, e->shape, sizeof shape);
  if (e->small->bits == 4)
    shape[e->ndim - 1] *= 2;
  MOTH_TRY(moth_tensor_new(e->ndim, shape, MOTH_BFLOAT16, (MothDevice){MOTH_CPU, 0}, out));
  moth_small_float_copy(e->small, (uint16_t *)(void *)(*out)->data, bytes + e->begin,
                        e->end - e->begin);
  return MOTH_OK;
}

/* Raises what went wrong with a file, with its path. */
static int fail_at(lua_State *L, const char *path) {
  char message[1024];
  snprintf(message, sizeof message, "%s", moth_error_text(1));
  return moth_lua_error(L, "%s: %s", path, message);
}

/* load_safetensors(path, is_copied) -> { names }, { tensors }, { metadata }, whether it is a checkpoint of moth's.
 * The tensors lie in the mapped file, unless is_copied. */
static int b_load_safetensors(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  bool is_copied = lua_toboolean(L, 2);
  MothMapping *m = NULL;
  MothSafetensors *file = NULL;
  size_t n = 0;
  MothStatus s = moth_mapping_open(path, &m);
  if (s)
    return moth_lua_raise(L, s);
  const uint8_t *bytes = moth_mapping_bytes(m, &n);
  s = moth_safetensors_parse(bytes, n, &file);
  bool own = !s && is_own(file);
  if (own)
    s = moth_seal_check(bytes, n);
  if (s) {
    moth_safetensors_free(file);
    moth_mapping_close(m);
    return s == MOTH_ERR_INTERRUPTED ? moth_lua_raise(L, s) : fail_at(L, path);
  }
  is_copied = is_copied || n < MOTH_MAPPING_LEAST;
  lua_newtable(L);
  lua_newtable(L);
  lua_newtable(L);
  for (int64_t i = 0; i < file->count && s == MOTH_OK; i++) {
    const MothSafetensorsEntry *e = &file->entries[i];
    MothTensor *t;
    s = e->small    ? widened(bytes, e, &t)
        : is_copied ? copy_at(bytes, e, &t)
                    : tensor_at(m, bytes, e->dtype, e->ndim, e->shape, e->begin, e->end, &t);
    if (s)
      break;
    moth_lua_push_tensor(L, t);
    lua_rawseti(L, -3, (int)i + 1);
    lua_pushstring(L, e->name);
    lua_rawseti(L, -4, (int)i + 1);
  }
  for (int64_t i = 0; i < file->metadata_count && s == MOTH_OK; i++) {
    lua_pushstring(L, file->metadata[i].value);
    lua_setfield(L, -2, file->metadata[i].key);
  }
  moth_safetensors_free(file);
  moth_mapping_close(m);
  if (s)
    return moth_lua_raise(L, s);
  lua_pushboolean(L, own);
  return 4;
}

static void push_gguf_value(lua_State *L, MothGgufKind kind, const uint8_t **at) {
  MothGgufValue v = moth_gguf_next(kind, at);
  if (v.text)
    lua_pushlstring(L, v.text, v.n);
  else if (kind == MOTH_GGUF_BOOL)
    lua_pushboolean(L, v.integer != 0);
  else
    lua_pushnumber(L, v.number);
}

static void push_gguf_pairs(lua_State *L, const MothGguf *file) {
  lua_newtable(L);
  for (int64_t i = 0; i < file->pair_count; i++) {
    const MothGgufPair *p = &file->pairs[i];
    const uint8_t *at = p->at;
    lua_pushlstring(L, p->key, p->key_n);
    if (p->is_array) {
      lua_newtable(L);
      for (int64_t k = 0; k < p->count; k++) {
        push_gguf_value(L, p->kind, &at);
        lua_rawseti(L, -2, (int)k + 1);
      }
    } else {
      push_gguf_value(L, p->kind, &at);
    }
    lua_rawset(L, -3);
  }
}

/* The elements of a tensor where they lie; of a quantized one the bytes of its rows. */
static MothStatus gguf_tensor(MothMapping *m, const uint8_t *bytes, const MothGgufEntry *e,
                              MothTensor **out) {
  MothDType dtype = MOTH_UINT8;
  int64_t shape[4], unit, size = moth_gguf_block(e->type, &unit);
  memcpy(shape, e->shape, sizeof shape);
  if (size)
    shape[e->ndim - 1] = shape[e->ndim - 1] / unit * size;
  else
    moth_gguf_plain(e->type, &dtype);
  return tensor_at(m, bytes, dtype, e->ndim, shape, e->begin, e->end, out);
}

/* read_gguf(path) -> { metadata }, { names }, { types }, { tensors } */
static int b_read_gguf(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  MothMapping *m = NULL;
  MothGguf *file = NULL;
  size_t n = 0;
  MothStatus s = moth_mapping_open(path, &m);
  if (s)
    return moth_lua_raise(L, s);
  const uint8_t *bytes = moth_mapping_bytes(m, &n);
  s = moth_gguf_parse(bytes, n, &file);
  if (s) {
    moth_mapping_close(m);
    return fail_at(L, path);
  }
  push_gguf_pairs(L, file);
  for (int i = 0; i < 3; i++)
    lua_newtable(L);
  for (int64_t i = 0; i < file->count && s == MOTH_OK; i++) {
    const MothGgufEntry *e = &file->entries[i];
    MothTensor *t;
    int at = (int)i + 1;
    s = gguf_tensor(m, bytes, e, &t);
    if (s)
      break;
    moth_lua_push_tensor(L, t);
    lua_rawseti(L, -2, at);
    lua_pushstring(L, moth_gguf_type_name(e->type));
    lua_rawseti(L, -3, at);
    lua_pushlstring(L, e->name, e->name_n);
    lua_rawseti(L, -4, at);
  }
  moth_gguf_free(file);
  moth_mapping_close(m);
  return s ? moth_lua_raise(L, s) : 4;
}

/* gguf_blocks() -> { name = { number =, elements =, bytes = } } of the types in blocks */
static int b_gguf_blocks(lua_State *L) {
  static const struct {
    const char *name;
    int number, elements, bytes;
  } types[] = {
#define RECORD(NAME, name, number, elements, bytes, zero, leasts) {#NAME, number, elements, bytes},
      MOTH_BLOCK_TYPES(RECORD)};
  lua_newtable(L);
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    lua_createtable(L, 0, 3);
    lua_pushinteger(L, types[i].number);
    lua_setfield(L, -2, "number");
    lua_pushinteger(L, types[i].elements);
    lua_setfield(L, -2, "elements");
    lua_pushinteger(L, types[i].bytes);
    lua_setfield(L, -2, "bytes");
    lua_setfield(L, -2, types[i].name);
  }
  return 1;
}

/* save_safetensors(path, { names }, { row-major cpu tensors }, { {key, value}, ... }, sealed);
 * sealed: the first metadata is the seal's */
static int b_save_safetensors(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  moth_lua_type(L, 2, LUA_TTABLE);
  moth_lua_type(L, 3, LUA_TTABLE);
  moth_lua_type(L, 4, LUA_TTABLE);
  lua_settop(L, 5);
  size_t n = lua_objlen(L, 2), m = lua_objlen(L, 4);
  /* All memory belongs to Lua: errors leak nothing. */
  MothSafetensorsEntry *entries = lua_newuserdata(L, sizeof *entries * (n + 1));
  MothSafetensorsPair *pairs = lua_newuserdata(L, sizeof *pairs * (m + 1));
  MothPiece *pieces = lua_newuserdata(L, sizeof *pieces * (n + 1));
  memset(entries, 0, sizeof *entries * (n + 1));
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (int)i + 1);
    moth_lua_type(L, -1,
                  LUA_TSTRING); /* the text of a converted number would exist on the stack only */
    entries[i].name = lua_tostring(L, -1);
    lua_pop(L, 1);
    lua_rawgeti(L, 3, (int)i + 1);
    MothTensor *t = moth_lua_check_tensor(L, -1, "save");
    lua_pop(L, 1);
    if (t->device.type != MOTH_CPU || !t->contiguous || moth_tensor_is_fake(t))
      return moth_lua_error(L, "save: tensor '%s' must be a row-major cpu tensor", entries[i].name);
    MothStatus s = moth_tensor_ready(t);
    if (s)
      return moth_lua_raise(L, s);
    entries[i].dtype = (MothDType)t->dtype;
    entries[i].ndim = t->ndim;
    memcpy(entries[i].shape, t->shape, sizeof(int64_t) * t->ndim);
    pieces[i + 1].bytes = t->data;
    pieces[i + 1].n = (size_t)(t->numel * moth_itemsize(t));
  }
  for (size_t i = 0; i < m; i++) {
    lua_rawgeti(L, 4, (int)i + 1);
    moth_lua_type(L, -1, LUA_TTABLE);
    lua_rawgeti(L, -1, 1);
    lua_rawgeti(L, -2, 2);
    moth_lua_type(L, -2, LUA_TSTRING);
    moth_lua_type(L, -1, LUA_TSTRING);
    pairs[i].key = lua_tostring(L, -2); /* the table keeps both alive */
    pairs[i].value = lua_tostring(L, -1);
    lua_pop(L, 3);
  }
  uint8_t *header;
  size_t header_n;
  MothStatus s =
      moth_safetensors_header(entries, (int64_t)n, pairs, (int64_t)m, &header, &header_n);
  if (s)
    return moth_lua_raise(L, s);
  pieces[0].bytes = header;
  pieces[0].n = header_n;
  if (lua_toboolean(L, 5))
    moth_seal_set(header, pieces, (int)n + 1);
  s = moth_file_write_atomic(path, pieces, (int)n + 1);
  moth_safetensors_header_free(header);
  return s ? moth_lua_raise(L, s) : 0;
}

/* Expands no more than the header requires, and nothing if the file is too small for that: a small file must not
 * cost seconds and a gigabyte before it is refused. */
static MothStatus gunzip_idx(const uint8_t *bytes, int64_t packed, uint8_t **plain, size_t *n) {
  uint8_t head[MOTH_IDX_HEADER];
  size_t got, total;
  MOTH_TRY(moth_gunzip_head(bytes, (size_t)packed, head, sizeof head, &got));
  if (got)
    MOTH_TRY(moth_idx_total(head, got, &total));
  else
    total = 0;
  if (total > GUNZIP_CAP)
    return moth_fail(MOTH_ERR_VALUE, "idx: its %zu bytes are more than the allowed %d", total,
                     GUNZIP_CAP);
  if (total / MOTH_DEFLATE_RATIO > (size_t)packed)
    return moth_fail(MOTH_ERR_VALUE,
                     "idx: the header asks for %zu bytes, which %lld compressed ones cannot hold "
                     "(truncated?)",
                     total, (long long)packed);
  return moth_gunzip(bytes, (size_t)packed, total, plain, n);
}

/* load_idx(path) -> tensor; a .gz is expanded */
static int b_load_idx(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  MothFileMap map;
  MothStatus s = moth_file_map(path, &map);
  if (s)
    return moth_lua_raise(L, s);
  uint8_t *plain = NULL;
  size_t n = (size_t)map.size;
  const uint8_t *bytes = map.bytes;
  if (n >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b) {
    s = gunzip_idx(map.bytes, map.size, &plain, &n);
    bytes = plain;
  }
  MothIdx idx;
  MothTensor *t = NULL;
  if (!s)
    s = moth_idx_parse(bytes, n, &idx);
  if (!s)
    s = moth_tensor_new(idx.ndim, idx.shape, idx.dtype, (MothDevice){MOTH_CPU, 0}, &t);
  if (!s)
    moth_idx_copy(&idx, t->data);
  if (plain)
    moth_gunzip_free(plain);
  moth_file_unmap(&map);
  if (s == MOTH_ERR_INTERRUPTED)
    return moth_lua_raise(L, s);
  if (s) {
    char message[1024];
    strncpy(message, moth_error_text(1), sizeof message - 1);
    message[sizeof message - 1] = 0;
    return moth_lua_error(L, "%s: %s", path, message);
  }
  moth_lua_push_tensor(L, t);
  return 1;
}

static int b_sha256_file(lua_State *L) {
  MothFileMap map;
  char hex[65];
  MothStatus s = moth_file_map(moth_lua_path(L, 1), &map);
  if (s)
    return moth_lua_raise(L, s);
  moth_sha256_hex(map.bytes, (size_t)map.size, hex);
  moth_file_unmap(&map);
  lua_pushstring(L, hex);
  return 1;
}

/* is_text(string): whether it is valid UTF-8 without NUL, as names in files must be */
static int b_is_text(lua_State *L) {
  size_t n;
  const char *s = moth_lua_bytes(L, 1, &n);
  lua_pushboolean(L, strlen(s) == n && moth_utf8_is_valid(s, n));
  return 1;
}

static int b_sha256(lua_State *L) {
  size_t n;
  char hex[65];
  const char *s = moth_lua_bytes(L, 1, &n);
  moth_sha256_hex(s, n, hex);
  lua_pushstring(L, hex);
  return 1;
}

/* The bytes of a string or a row-major cpu tensor at a stack index. */
static MothPiece check_piece(lua_State *L, int index, const char *where) {
  MothPiece piece;
  if (lua_type(L, index) == LUA_TSTRING) {
    piece.bytes = lua_tolstring(L, index, &piece.n);
    return piece;
  }
  MothTensor *t = moth_lua_check_tensor(L, index, where);
  if (t->device.type != MOTH_CPU || !t->contiguous || moth_tensor_is_fake(t))
    moth_lua_error(L, "%s: expected strings and row-major cpu tensors", where);
  MothStatus s = moth_tensor_ready(t);
  if (s)
    moth_lua_raise(L, s);
  return (MothPiece){t->data, (size_t)(t->numel * moth_itemsize(t))};
}

/* crc32(string or tensor) */
static int b_crc32(lua_State *L) {
  MothPiece piece = check_piece(L, 1, "crc32");
  lua_pushnumber(L, piece.n ? moth_crc32(0, piece.bytes, piece.n) : 0);
  return 1;
}

/* write_file(path, { strings and tensors }): replaces the file with them, one after the other, or leaves it */
static int b_write_file(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  moth_lua_type(L, 2, LUA_TTABLE);
  int n = (int)lua_objlen(L, 2);
  MothPiece *pieces = lua_newuserdata(L, sizeof *pieces * ((size_t)n + 1));
  for (int i = 0; i < n; i++) {
    lua_rawgeti(L, 2, i + 1);
    pieces[i] = check_piece(L, -1, "write_file");
    lua_pop(L, 1); /* the table keeps it alive */
  }
  MothStatus s = moth_file_write_atomic(path, pieces, n);
  return s ? moth_lua_raise(L, s) : 0;
}

void moth_lua_open_io(lua_State *L) {
  static const luaL_Reg fns[] = {{"load_safetensors", b_load_safetensors},
                                 {"read_gguf", b_read_gguf},
                                 {"gguf_blocks", b_gguf_blocks},
                                 {"save_safetensors", b_save_safetensors},
                                 {"load_idx", b_load_idx},
                                 {"sha256_file", b_sha256_file},
                                 {"sha256", b_sha256},
                                 {"crc32", b_crc32},
                                 {"write_file", b_write_file},
                                 {"is_text", b_is_text},
                                 {NULL, NULL}};
  moth_io_init();
  luaL_register(L, NULL, fns);
}
