/* Files for Lua: safetensors, IDX, checksums, atomic writing. */
#include <string.h>

#include "core/alloc.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/gunzip.h"
#include "io/idx.h"
#include "io/json.h"
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

/* load_safetensors(path) -> { names }, { tensors }, { metadata }, whether it is a checkpoint of moth's */
static int b_load_safetensors(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  MothFileMap map;
  MothSafetensors *file = NULL;
  MothStatus s = moth_file_map(path, &map);
  if (s)
    return moth_lua_raise(L, s);
  s = moth_safetensors_parse(map.bytes, (size_t)map.size, &file);
  bool own = !s && is_own(file);
  if (own)
    s = moth_seal_check(map.bytes, (size_t)map.size);
  if (s) {
    char message[1024];
    strncpy(message, moth_error_text(1), sizeof message - 1);
    message[sizeof message - 1] = 0;
    moth_safetensors_free(file);
    moth_file_unmap(&map);
    return moth_lua_error(L, "%s: %s", path, message);
  }
  lua_newtable(L);
  lua_newtable(L);
  lua_newtable(L);
  for (int64_t i = 0; i < file->count && s == MOTH_OK; i++) {
    const MothSafetensorsEntry *e = &file->entries[i];
    MothTensor *t;
    s = moth_tensor_new(e->ndim, e->shape, e->dtype, (MothDevice){MOTH_CPU, 0}, &t);
    if (s)
      break;
    moth_elements_copy(e->dtype, false, t->data, map.bytes + e->begin, e->end - e->begin);
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
  moth_file_unmap(&map);
  if (s)
    return moth_lua_raise(L, s);
  lua_pushboolean(L, own);
  return 4;
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

void moth_lua_open_io(lua_State *L) {
  static const luaL_Reg fns[] = {{"load_safetensors", b_load_safetensors},
                                 {"save_safetensors", b_save_safetensors},
                                 {"load_idx", b_load_idx},
                                 {"sha256_file", b_sha256_file},
                                 {"sha256", b_sha256},
                                 {"is_text", b_is_text},
                                 {NULL, NULL}};
  moth_io_init();
  luaL_register(L, NULL, fns);
}
