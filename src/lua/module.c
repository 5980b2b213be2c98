/* luaopen_moth_lua: the table of everything that lua/moth builds on. */
#include "lua/moth_lua.h"

__attribute__((visibility("default"))) int luaopen_moth_lua(lua_State *L) {
  lua_newtable(L);
  moth_lua_open_state(L);
  moth_lua_open_handles(L);
  moth_lua_open_calls(L);
  moth_lua_open_tensor(L);
  moth_lua_open_autograd(L);
  moth_lua_open_coroutines(L);
  moth_lua_open_leaves(L);
  moth_lua_open_modes(L);
  moth_lua_open_io(L);
  moth_lua_open_foreign(L);
  moth_lua_open_backends(L);
  moth_lua_open_cuda(L);
  return 1;
}
