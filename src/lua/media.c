/* Files of data sets for Lua: mapped tensors, images, archives. */
#include <string.h>

#include "io/archive.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/image.h"
#include "io/mapped.h"
#include "lua/moth_lua.h"

#define MAGIC_ARCHIVE 0x6d6f746841726368ull

static char key_archive;

/* map_file(path, dtype, offset, count) -> tensor of one dimension; count -1: to the end */
static int b_map_file(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  MothTensor *t;
  moth_lua_done(L, moth_tensor_map(path, moth_lua_check_dtype(L, 2),
                                   moth_lua_check_integer(L, 3, 0, 9e15),
                                   moth_lua_check_integer(L, 4, -1, 9e15), &t));
  moth_lua_push_tensor(L, t);
  return 1;
}

static int push_array(lua_State *L, MothTensor *t, const MothNpy *info) {
  moth_lua_push_tensor(L, t);
  lua_newtable(L);
  for (int i = 0; i < info->ndim; i++) {
    lua_pushnumber(L, (lua_Number)info->shape[i]);
    lua_rawseti(L, -2, i + 1);
  }
  lua_pushboolean(L, info->fortran_order);
  return 3;
}

/* map_npy(path) -> tensor of one dimension, { sizes }, whether the order is column-major */
static int b_map_npy(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  MothNpy info;
  MothTensor *t;
  moth_lua_done(L, moth_npy_map(path, &info, &t));
  return push_array(L, t, &info);
}

/* decode_npy(bytes) -> as map_npy */
static int b_decode_npy(lua_State *L) {
  size_t n;
  const char *bytes = moth_lua_bytes(L, 1, &n);
  MothNpy info;
  MothTensor *t;
  moth_lua_done(L, moth_npy_parse((const uint8_t *)bytes, n, &info));
  int64_t count = info.nbytes / moth_dtype_size(info.dtype);
  moth_lua_done(L, moth_tensor_new(1, &count, info.dtype, (MothDevice){MOTH_CPU, 0}, &t));
  moth_elements_copy(info.dtype, info.swap, t->data, info.data, info.nbytes);
  return push_array(L, t, &info);
}

/* decode_image(bytes, channels) -> tensor */
static int b_decode_image(lua_State *L) {
  size_t n;
  const char *bytes = moth_lua_bytes(L, 1, &n);
  MothTensor *t;
  moth_lua_done(
      L, moth_image_decode((const uint8_t *)bytes, n, (int)moth_lua_check_integer(L, 2, 0, 4), &t));
  moth_lua_push_tensor(L, t);
  return 1;
}

/* read_image(path, channels) -> tensor */
static int b_read_image(lua_State *L) {
  const char *path = moth_lua_path(L, 1);
  int channels = (int)moth_lua_check_integer(L, 2, 0, 4);
  MothFileMap map;
  MothTensor *t;
  moth_lua_done(L, moth_file_map(path, &map));
  MothStatus s = moth_image_decode(map.bytes, (size_t)map.size, channels, &t);
  moth_file_unmap(&map);
  if (s) {
    char message[512];
    strncpy(message, moth_error_text(1), sizeof message - 1);
    message[sizeof message - 1] = 0;
    return moth_lua_error(L, "%s: %s", path, message);
  }
  moth_lua_push_tensor(L, t);
  return 1;
}

static int b_open_archive(lua_State *L) { /* (path) -> archive */
  const char *path = moth_lua_path(L, 1);
  MothHandle *h = moth_lua_new_handle(L, MAGIC_ARCHIVE, &key_archive);
  MothArchive *a;
  moth_lua_done(L, moth_archive_open(path, &a));
  h->u.other = a;
  return 1;
}

static int b_next_member(lua_State *L) { /* (archive) -> name, bytes; nothing at the end */
  MothHandle *h = moth_lua_check_handle(L, 1, MAGIC_ARCHIVE, "archive");
  const char *name;
  const void *bytes;
  size_t n;
  moth_lua_enter(L);
  if (!h->u.other)
    return 0;
  moth_lua_done(L, moth_archive_next(h->u.other, &name, &bytes, &n));
  if (!name)
    return 0;
  lua_pushstring(L, name);
  lua_pushlstring(L, bytes, n);
  return 2;
}

static int b_close_archive(lua_State *L) { /* (archive) */
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_ARCHIVE);
  if (h) {
    moth_archive_close(h->u.other);
    h->u.other = NULL;
  }
  return 0;
}

void moth_lua_open_media(lua_State *L) { /* the binding's table is on top: into its field media */
  static const luaL_Reg fns[] = {{"map_file", b_map_file},
                                 {"map_npy", b_map_npy},
                                 {"decode_npy", b_decode_npy},
                                 {"decode_image", b_decode_image},
                                 {"read_image", b_read_image},
                                 {"open_archive", b_open_archive},
                                 {"next_member", b_next_member},
                                 {"close_archive", b_close_archive},
                                 {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  moth_lua_new_class(L, &key_archive, "moth.Archive", b_close_archive);
  lua_setfield(L, -2, "media");
}
