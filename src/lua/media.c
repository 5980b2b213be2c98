/* Files of data sets for Lua: mapped tensors, images, archives. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/command.h"
#include "core/alloc.h"
#include "io/archive.h"
#include "io/csv.h"
#include "io/elements.h"
#include "io/file.h"
#include "io/image.h"
#include "io/json_numbers.h"
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

/* ---- lines and tables ---------------------------------------------------------------------------- */

/* The bytes of a uint8 tensor at a stack index. */
static const char *check_text(lua_State *L, int index, int64_t *n) {
  const MothTensor *t = moth_lua_check_tensor(L, index, "csv");
  if (t->device.type != MOTH_CPU || !t->contiguous || t->dtype != MOTH_UINT8)
    moth_lua_error(L, "csv: expected a row-major uint8 tensor");
  *n = t->numel;
  return (const char *)t->data;
}

/* The positions of lines, as index_lines gives them, within n bytes. */
static const int64_t *check_lines(lua_State *L, int index, int64_t *count) {
  const MothTensor *t = moth_lua_check_tensor(L, index, "csv");
  if (t->device.type != MOTH_CPU || !t->contiguous || t->dtype != MOTH_INT64)
    moth_lua_error(L, "csv: expected a row-major int64 tensor");
  *count = t->numel;
  return (const int64_t *)(const void *)t->data;
}

/* index_lines(bytes, n, delimiter or -1) -> begins, ends: int64 tensors, of the lines that are not empty */
static int b_index_lines(lua_State *L) {
  int64_t have;
  const char *text = check_text(L, 1, &have);
  int64_t n = moth_lua_check_integer(L, 2, 0, (double)have);
  int delimiter = (int)moth_lua_check_integer(L, 3, -1, 255);
  int64_t count = moth_csv_index(text, n, delimiter, NULL, NULL, 0);
  MothTensor *begins, *ends;
  moth_lua_done(L, moth_tensor_new(1, &count, MOTH_INT64, (MothDevice){MOTH_CPU, 0}, &begins));
  moth_lua_push_tensor(L, begins);
  moth_lua_done(L, moth_tensor_new(1, &count, MOTH_INT64, (MothDevice){MOTH_CPU, 0}, &ends));
  moth_lua_push_tensor(L, ends);
  moth_csv_index(text, n, delimiter, (int64_t *)(void *)begins->data, (int64_t *)(void *)ends->data,
                 count);
  return 2;
}

/* A number as Lua's tonumber reads it. */
static bool other_number(void *ctx, const char *at, int64_t n, double *out) {
  lua_State *L = ctx;
  lua_pushlstring(L, at, (size_t)n);
  bool is = lua_isnumber(L, -1);
  if (is)
    *out = lua_tonumber(L, -1);
  lua_pop(L, 1);
  return is;
}

static void push_cell(lua_State *L, const MothCsvCell *cell) {
  if (!cell->is_quoted || !memchr(cell->at, '"', (size_t)cell->n)) {
    lua_pushlstring(L, cell->at, (size_t)cell->n);
    return;
  }
  char *text = lua_newuserdata(L, (size_t)cell->n);
  lua_pushlstring(L, text, (size_t)moth_csv_unquote(cell, text));
  lua_remove(L, -2);
}

/* csv_cells(line, delimiter, is_text) -> { cells }, how many; nil: a quote is not closed. An empty cell is nil, a
 * number a number, unless is_text. */
static int b_csv_cells(lua_State *L) {
  size_t n;
  const char *line = moth_lua_bytes(L, 1, &n);
  char delimiter = (char)moth_lua_check_integer(L, 2, 0, 255);
  bool is_text = lua_toboolean(L, 3);
  int count = 0;
  lua_newtable(L);
  for (int64_t at = 0; at <= (int64_t)n;) {
    MothCsvCell cell = moth_csv_cell(line, at, (int64_t)n, delimiter);
    double number;
    if (cell.is_damaged)
      return 0;
    count++;
    at = cell.next;
    if (!is_text && cell.n == 0)
      continue;
    if (!is_text && moth_json_read_number(cell.at, cell.n, 0, &number) == cell.n) {
      lua_pushnumber(L, number);
    } else {
      push_cell(L, &cell);
      if (!is_text && lua_isnumber(L, -1)) {
        number = lua_tonumber(L, -1);
        lua_pop(L, 1);
        lua_pushnumber(L, number);
      }
    }
    lua_rawseti(L, -2, count);
  }
  lua_pushinteger(L, count);
  return 2;
}

/* csv_numbers(bytes, begins, ends, delimiter, { place of each column from 0, -1: nowhere }, width, first, count)
 * -> float64 (count, width); or nil, line (from 0), column (from 1), cells (-1: a quote, -2: no number), the cell */
static int b_csv_numbers(lua_State *L) {
  int64_t size, lines, lines_ends;
  MothCsvTable t = {.text = check_text(L, 1, &size), .other = other_number, .ctx = L};
  t.begins = check_lines(L, 2, &lines);
  t.ends = check_lines(L, 3, &lines_ends);
  t.delimiter = (char)moth_lua_check_integer(L, 4, 0, 255);
  moth_lua_type(L, 5, LUA_TTABLE);
  t.width = moth_lua_check_integer(L, 6, 0, 1e6);
  int64_t first = moth_lua_check_integer(L, 7, 0, (double)lines);
  int64_t count = moth_lua_check_integer(L, 8, 0, (double)(lines - first));
  t.columns = (int64_t)lua_objlen(L, 5);
  int32_t *place = lua_newuserdata(L, sizeof *place * ((size_t)t.columns + 1));
  for (int64_t i = 0; i < t.columns; i++) {
    lua_rawgeti(L, 5, (int)i + 1);
    place[i] = (int32_t)moth_lua_check_integer(L, -1, -1, (double)t.width - 1);
    lua_pop(L, 1);
  }
  t.place = place;
  for (int64_t i = first; i < first + count; i++)
    if (lines_ends != lines || t.begins[i] < 0 || t.begins[i] > t.ends[i] || t.ends[i] > size)
      return moth_lua_error(L, "csv: lines that are not of these bytes");
  MothTensor *out;
  moth_lua_done(L, moth_tensor_new(2, (const int64_t[]){count, t.width}, MOTH_FLOAT64,
                                   (MothDevice){MOTH_CPU, 0}, &out));
  moth_lua_push_tensor(L, out);
  MothCsvFailure why;
  if (moth_csv_numbers(&t, first, count, (double *)(void *)out->data, &why))
    return 1;
  lua_pushnil(L);
  lua_pushnumber(L, (lua_Number)why.line);
  lua_pushnumber(L, (lua_Number)why.column + 1);
  lua_pushnumber(L, (lua_Number)why.cells);
  lua_pushlstring(L, why.at ? why.at : "", (size_t)(why.n < 80 ? why.n : 80));
  return 5;
}

/* An archive, and the command that writes it, if there is one. */
typedef struct {
  MothArchive *archive;
  MothCommand *command;
  MothArchiveStream stream;
} Source;

static void close_source(Source *s) {
  moth_archive_close(s->archive);
  moth_command_close(s->command);
  free(s);
}

static Source *new_source(lua_State *L) {
  MothHandle *h = moth_lua_new_handle(L, MAGIC_ARCHIVE, &key_archive);
  Source *s = calloc(1, sizeof *s);
  if (!s)
    moth_lua_done(L, moth_no_memory(sizeof *s));
  h->u.other = s;
  return s;
}

static int b_open_archive(lua_State *L) { /* (path) -> archive */
  const char *path = moth_lua_path(L, 1);
  Source *s = new_source(L);
  moth_lua_done(L, moth_archive_open(path, &s->archive));
  return 1;
}

static int
b_open_command(lua_State *L) { /* (name, words, input) -> archive, of what a command writes */
  const char *name = luaL_checkstring(L, 1);
  luaL_checktype(L, 2, LUA_TTABLE);
  size_t ninput, n = lua_objlen(L, 2);
  const char *input = luaL_checklstring(L, 3, &ninput);
  char **words = lua_newuserdata(L, (n + 1) * sizeof *words);
  for (size_t i = 0; i < n; i++) {
    lua_rawgeti(L, 2, (int)i + 1);
    words[i] = (char *)luaL_checkstring(L, -1); /* the list retains it */
    lua_pop(L, 1);
  }
  words[n] = NULL;
  if (n == 0)
    return moth_lua_error(L, "expected a program");
  Source *s = new_source(L);
  moth_lua_done(L, moth_command_start(words, environ, input, ninput, &s->command));
  s->stream = (MothArchiveStream){s->command, moth_command_pull, moth_command_end};
  moth_lua_done(L, moth_archive_open_stream(name, &s->stream, &s->archive));
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
  moth_lua_done(L, moth_archive_next(((Source *)h->u.other)->archive, &name, &bytes, &n));
  if (!name)
    return 0;
  lua_pushstring(L, name);
  lua_pushlstring(L, bytes, n);
  return 2;
}

static int b_close_archive(lua_State *L) { /* (archive) */
  MothHandle *h = moth_lua_handle(L, 1, MAGIC_ARCHIVE);
  if (h && h->u.other) {
    close_source(h->u.other);
    h->u.other = NULL;
  }
  return 0;
}

void moth_lua_open_media(lua_State *L) { /* the binding's table is on top: into its field media */
  static const luaL_Reg fns[] = {{"map_file", b_map_file},
                                 {"map_npy", b_map_npy},
                                 {"index_lines", b_index_lines},
                                 {"csv_cells", b_csv_cells},
                                 {"csv_numbers", b_csv_numbers},
                                 {"decode_npy", b_decode_npy},
                                 {"decode_image", b_decode_image},
                                 {"read_image", b_read_image},
                                 {"open_archive", b_open_archive},
                                 {"open_command", b_open_command},
                                 {"next_member", b_next_member},
                                 {"close_archive", b_close_archive},
                                 {NULL, NULL}};
  lua_newtable(L);
  luaL_register(L, NULL, fns);
  moth_lua_new_class(L, &key_archive, "moth.Archive", b_close_archive);
  lua_setfield(L, -2, "media");
}
