/* A message is a string of items, each a letter and what belongs to it:
 *
 *   N nil · T true · F false · D double · S length, bytes · P number of a tensor · C number of a channel · Y dtype ·
 *   V device · [ values of 1, 2, …, then ] with pairs of key and value, then }
 *
 * Tensors are held by a reference: both states see the same elements. */
#include "lua/message.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH = 60 }; /* of tables in tables; a table that contains itself ends there */

typedef struct Packer {
  lua_State *L;
  MothMessage *m;
  const char *what;
  char *path;
  size_t at; /* the path is written from its end */
  bool no_memory;
} Packer;

static bool put(Packer *p, const void *bytes, size_t n) {
  MothMessage *m = p->m;
  if (m->size + n > m->capacity) {
    size_t capacity = 2 * m->capacity + n + 256;
    char *grown = realloc(m->bytes, capacity);
    if (!grown) {
      p->no_memory = true;
      return false;
    }
    m->bytes = grown;
    m->capacity = capacity;
  }
  if (n)
    memcpy(m->bytes + m->size, bytes, n);
  m->size += n;
  return true;
}

static bool put_letter(Packer *p, char letter) {
  return put(p, &letter, 1);
}

static bool put_number(Packer *p, char letter, double number) {
  return put_letter(p, letter) && put(p, &number, sizeof number);
}

static bool put_held(Packer *p, char letter, void *object) {
  MothMessage *m = p->m;
  if (m->nheld == m->held_capacity) {
    int capacity = 2 * m->held_capacity + 4;
    MothHeld *grown = realloc(m->held, (size_t)capacity * sizeof *grown);
    if (!grown) {
      p->no_memory = true;
      return false;
    }
    m->held = grown;
    m->held_capacity = capacity;
  }
  if (!put_number(p, letter, m->nheld))
    return false;
  m->held[m->nheld++] = (MothHeld){object, letter == 'C'};
  if (letter == 'P')
    moth_tensor_retain(object);
  else
    moth_channel_retain(object);
  return true;
}

/* Puts text before what the path has. */
static void prepend(Packer *p, const char *text) {
  size_t n = strlen(text);
  if (n > p->at)
    return;
  p->at -= n;
  memcpy(p->path + p->at, text, n);
}

static void prepend_key(Packer *p, int idx) {
  char text[64];
  if (lua_type(p->L, idx) == LUA_TSTRING)
    snprintf(text, sizeof text, ".%.50s", lua_tostring(p->L, idx));
  else if (lua_type(p->L, idx) == LUA_TNUMBER)
    snprintf(text, sizeof text, "[%.14g]", lua_tonumber(p->L, idx));
  else
    snprintf(text, sizeof text, "[a %s]", luaL_typename(p->L, idx));
  prepend(p, text);
}

static bool refuse(Packer *p, const char *what) {
  p->what = what;
  return false;
}

static bool pack_tensor(Packer *p, MothTensor *t) {
  if (!t)
    return refuse(p, "a tensor that was released by free()");
  if (t->keys & MOTH_KEY_LAZY)
    return refuse(p, "a tensor of a recorded call that has not run");
  if (t->carried)
    return refuse(p, "a tensor of a subclass");
  if (moth_tensor_requires_grad(t))
    return refuse(p, "a tensor that requires a gradient; detach() it");
  return put_held(p, 'P', t);
}

static bool pack_userdata(Packer *p, int idx) {
  MothHandle *h = lua_touserdata(p->L, idx);
  if (h && lua_type(p->L, idx) == LUA_TUSERDATA && lua_objlen(p->L, idx) == sizeof *h) {
    if (h->magic == MOTH_MAGIC_TENSOR)
      return pack_tensor(p, h->u.t);
    if (h->magic == MOTH_MAGIC_CHANNEL)
      return put_held(p, 'C', h->u.other);
    if (h->magic == MOTH_MAGIC_DTYPE)
      return put_number(p, 'Y', (double)h->u.code);
    if (h->magic == MOTH_MAGIC_DEVICE)
      return put_number(p, 'V', (double)h->u.code);
  }
  return refuse(p, "a userdata");
}

static bool pack(Packer *p, int idx, int depth);

static bool pack_table(Packer *p, int idx, int depth) {
  lua_State *L = p->L;
  if (lua_getmetatable(L, idx)) {
    lua_pop(L, 1);
    return refuse(p, "an object");
  }
  if (depth == DEPTH)
    return refuse(p, "a table in a table, too deep");
  if (!lua_checkstack(L, 8))
    return refuse(p, NULL);
  int n = (int)lua_objlen(L, idx);
  if (!put_letter(p, '['))
    return false;
  for (int i = 1; i <= n; i++) {
    lua_rawgeti(L, idx, i);
    bool ok = pack(p, lua_gettop(L), depth + 1);
    lua_pop(L, 1);
    if (!ok) {
      char text[32];
      snprintf(text, sizeof text, "[%d]", i);
      prepend(p, text);
      return false;
    }
  }
  if (!put_letter(p, ']'))
    return false;
  lua_pushnil(L);
  while (lua_next(L, idx)) {
    int value = lua_gettop(L), key = value - 1;
    double at = lua_type(L, key) == LUA_TNUMBER ? lua_tonumber(L, key) : 0;
    if (at >= 1 && at <= n && at == floor(at)) {
      lua_pop(L, 1);
      continue;
    }
    if (!pack(p, key, depth + 1) || !pack(p, value, depth + 1)) {
      prepend_key(p, key);
      lua_pop(L, 2);
      return false;
    }
    lua_pop(L, 1);
  }
  return put_letter(p, '}');
}

static bool pack(Packer *p, int idx, int depth) {
  lua_State *L = p->L;
  switch (lua_type(L, idx)) {
  case LUA_TNIL:
    return put_letter(p, 'N');
  case LUA_TBOOLEAN:
    return put_letter(p, lua_toboolean(L, idx) ? 'T' : 'F');
  case LUA_TNUMBER:
    return put_number(p, 'D', lua_tonumber(L, idx));
  case LUA_TSTRING: {
    size_t n;
    const char *s = lua_tolstring(L, idx, &n);
    return put_letter(p, 'S') && put(p, &n, sizeof n) && put(p, s, n);
  }
  case LUA_TTABLE:
    return pack_table(p, idx, depth);
  case LUA_TUSERDATA:
    return pack_userdata(p, idx);
  case LUA_TFUNCTION:
    return refuse(p, "a function");
  case LUA_TTHREAD:
    return refuse(p, "a coroutine");
  default:
    return refuse(p, "cdata of the FFI");
  }
}

MothMessage *moth_message_pack(lua_State *L, int first, int n, const char **what, char *path) {
  Packer p = {
      .L = L, .m = calloc(1, sizeof *p.m), .path = path, .at = MOTH_MESSAGE_PATH - 1, .what = NULL};
  path[p.at] = 0;
  bool ok = p.m && lua_checkstack(L, 8);
  for (int i = 0; i < n && ok; i++) {
    ok = pack(&p, first + i, 0);
    if (!ok) {
      char text[32];
      snprintf(text, sizeof text, "[%d]", i + 1);
      prepend(&p, text);
    }
  }
  if (ok)
    return p.m;
  moth_message_free(p.m);
  *what = p.no_memory ? NULL : p.what;
  memmove(path, path + p.at, MOTH_MESSAGE_PATH - p.at);
  return NULL;
}

void moth_message_free(MothMessage *m) {
  if (!m)
    return;
  for (int i = 0; i < m->nheld; i++) {
    if (m->held[i].is_channel)
      moth_channel_release(m->held[i].object);
    else
      moth_tensor_release(m->held[i].object);
  }
  free(m->held);
  free(m->bytes);
  free(m);
}

/* --- unpacking -----------------------------------------------------------------------------------
 */

typedef struct Reader {
  lua_State *L;
  const MothMessage *m;
  const char *at;
} Reader;

static double number(Reader *r) {
  double d;
  memcpy(&d, r->at, sizeof d);
  r->at += sizeof d;
  return d;
}

/* Pushes the next value; false at an end of a table. */
static bool unpack(Reader *r) {
  lua_State *L = r->L;
  char letter = *r->at++;
  luaL_checkstack(L, 8, "a message is nested too deeply");
  switch (letter) {
  case 'N':
    lua_pushnil(L);
    return true;
  case 'T':
  case 'F':
    lua_pushboolean(L, letter == 'T');
    return true;
  case 'D':
    lua_pushnumber(L, number(r));
    return true;
  case 'S': {
    size_t n;
    memcpy(&n, r->at, sizeof n);
    lua_pushlstring(L, r->at + sizeof n, n);
    r->at += sizeof n + n;
    return true;
  }
  case 'P': {
    MothTensor *t = r->m->held[(int)number(r)].object;
    moth_tensor_retain(t);
    moth_lua_push_tensor(L, t);
    return true;
  }
  case 'C': {
    MothChannel *c = r->m->held[(int)number(r)].object;
    moth_channel_retain(c);
    moth_lua_push_channel(L, c);
    return true;
  }
  case 'Y':
    moth_lua_push_dtype(L, (MothDType)number(r));
    return true;
  case 'V': {
    int64_t code = (int64_t)number(r);
    moth_lua_push_device(L, (MothDevice){(uint8_t)(code >> 8), (uint8_t)code});
    return true;
  }
  case '[':
    lua_newtable(L);
    for (int i = 1; unpack(r); i++)
      lua_rawseti(L, -2, i);
    while (unpack(r)) {
      unpack(r);
      lua_rawset(L, -3);
    }
    return true;
  default: /* ] or } */
    return false;
  }
}

int moth_message_unpack(lua_State *L, const MothMessage *m) {
  Reader r = {.L = L, .m = m, .at = m->bytes};
  int top = lua_gettop(L);
  while (r.at < m->bytes + m->size)
    unpack(&r);
  return lua_gettop(L) - top;
}
