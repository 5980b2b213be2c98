/* Values of JSON as Lua's, for lua/moth/io/json.lua, by the reader of io/json.h. */
#include <string.h>

#include "io/json.h"
#include "io/json_numbers.h"
#include "lua/moth_lua.h"

enum { NULL_AT = 3, ARRAY_AT, LONG_AT, EXACT_DIGITS = 15 };

typedef struct Reader {
  lua_State *L;
  MothJson json;
  char *arena;
} Reader;

static MothStatus read_value(Reader *r);

static MothStatus push_string(Reader *r, bool is_key) {
  MothText text;
  r->json.arena = r->arena;
  MOTH_TRY(is_key ? moth_json_key(&r->json, &text) : moth_json_string(&r->json, &text));
  lua_pushlstring(r->L, text.text, text.n);
  return MOTH_OK;
}

/* A number; long integers and what is beyond doubles is left to the function at LONG_AT, which gets the text. */
static MothStatus push_number(Reader *r) {
  MothText text;
  double value = 0;
  MOTH_TRY(moth_json_number(&r->json, &text));
  bool is_integer = !memchr(text.text, '.', text.n) && !memchr(text.text, 'e', text.n) &&
                    !memchr(text.text, 'E', text.n);
  if (!is_integer || text.n <= EXACT_DIGITS)
    moth_json_read_number(text.text, (int64_t)text.n, 0, &value);
  if ((is_integer && text.n > EXACT_DIGITS) || value - value != 0) {
    lua_pushvalue(r->L, LONG_AT);
    lua_pushlstring(r->L, text.text, text.n);
    lua_call(r->L, 1, 1);
    if (lua_isnil(r->L, -1)) {
      r->json.at = (const uint8_t *)text.text;
      return moth_fail(MOTH_ERR_VALUE, "a number beyond the range of doubles and 64-bit integers");
    }
    return MOTH_OK;
  }
  lua_pushnumber(r->L, value);
  return MOTH_OK;
}

static MothStatus read_array(Reader *r) {
  lua_newtable(r->L);
  int table = lua_gettop(r->L), n = 0;
  bool more;
  MOTH_TRY(moth_json_begin(&r->json, '['));
  for (;; n++) {
    MOTH_TRY(moth_json_next(&r->json, &more));
    if (!more)
      break;
    MOTH_TRY(read_value(r));
    lua_rawseti(r->L, table, n + 1);
  }
  if (n == 0) { /* to be told from an empty object */
    lua_pushvalue(r->L, ARRAY_AT);
    lua_setmetatable(r->L, table);
  }
  return MOTH_OK;
}

static MothStatus read_object(Reader *r) {
  lua_newtable(r->L);
  int table = lua_gettop(r->L);
  bool more;
  MOTH_TRY(moth_json_begin(&r->json, '{'));
  for (;;) {
    MOTH_TRY(moth_json_next(&r->json, &more));
    if (!more)
      return MOTH_OK;
    MOTH_TRY(push_string(r, true));
    MOTH_TRY(read_value(r));
    lua_rawset(r->L, table);
  }
}

static MothStatus read_value(Reader *r) {
  luaL_checkstack(r->L, 8, "a value of JSON");
  int token = moth_json_peek(&r->json);
  if (token == '{')
    return read_object(r);
  if (token == '[')
    return read_array(r);
  if (token == '"')
    return push_string(r, false);
  if (token == '-' || (token >= '0' && token <= '9'))
    return push_number(r);
  MOTH_TRY(moth_json_word(&r->json));
  if (token == 'n')
    lua_pushvalue(r->L, NULL_AT);
  else
    lua_pushboolean(r->L, token == 't');
  return MOTH_OK;
}

/* json_decode(text, depth, null, metatable of empty arrays, long(text)) -> true, value; or false, the byte from 1, why */
static int b_json_decode(lua_State *L) {
  size_t n;
  const char *text = moth_lua_bytes(L, 1, &n);
  Reader r = {.L = L};
  lua_settop(L, LONG_AT);
  moth_json_init(&r.json, (const uint8_t *)text, n, NULL);
  r.json.most = (int)moth_lua_check_integer(L, 2, 1, MOTH_JSON_DEEPEST);
  r.arena = lua_newuserdata(L, n + 1);
  MothStatus s = read_value(&r);
  if (s == MOTH_OK)
    s = moth_json_end(&r.json);
  if (s == MOTH_OK) {
    lua_pushboolean(L, 1);
    lua_insert(L, -2);
    return 2;
  }
  const char *why = moth_last_error(), *what = strstr(why, ": ");
  lua_pushboolean(L, 0);
  lua_pushinteger(L, (lua_Integer)(r.json.at - r.json.begin) + 1);
  lua_pushstring(L, strncmp(why, "invalid JSON", 12) == 0 && what ? what + 2 : why);
  return 3;
}

void moth_lua_open_json(lua_State *L) { /* the binding's table is on top */
  lua_pushcfunction(L, b_json_decode);
  lua_setfield(L, -2, "json_decode");
  lua_pushlightuserdata(L, NULL); /* as lua-cjson has it */
  lua_setfield(L, -2, "json_null");
}
