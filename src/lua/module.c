/* luaopen_moth_lua: the table of everything that lua/moth builds on. */
#include <dlfcn.h>
#include <string.h>

#include "lua/moth_lua.h"

/* Two installations on one path would mix silently: their structures may differ. */
static int other_library(lua_State *L) {
  Dl_info info;
  const char *path = dladdr(__extension__(void *) moth_version, &info) ? info.dli_fname : "?";
  return luaL_error(L,
                    "moth_lua.so is " MOTH_VERSION ", libmoth.so is %s (%s)\n"
                    "HINT: install both again, from one version of moth",
                    moth_version(), path);
}

__attribute__((visibility("default"))) int luaopen_moth_lua(lua_State *L) {
  if (strcmp(moth_version(), MOTH_VERSION) != 0)
    return other_library(L);
  lua_newtable(L);
  moth_lua_open_state(L);
  moth_lua_open_handles(L);
  moth_lua_open_collector(L);
  moth_lua_open_calls(L);
  moth_lua_open_tensor(L);
  moth_lua_open_elements(L);
  moth_lua_open_autograd(L);
  moth_lua_open_func(L);
  moth_lua_open_hooks(L);
  moth_lua_open_coroutines(L);
  moth_lua_open_leaves(L);
  moth_lua_open_modes(L);
  moth_lua_open_library(L);
  moth_lua_open_schemas(L);
  moth_lua_open_io(L);
  moth_lua_open_foreign(L);
  moth_lua_open_backends(L);
  moth_lua_open_streams(L);
  moth_lua_open_threads(L);
  moth_lua_open_comm(L);
  moth_lua_open_reducer(L);
  moth_lua_open_unit(L);
  moth_lua_open_processes(L);
  moth_lua_open_memory(L);
  moth_lua_open_media(L);
  moth_lua_open_json(L);
  moth_lua_open_cuda(L);
  moth_lua_open_compile(L); /* it sees the functions of those before */
  moth_lua_open_profile(L); /* breaks no graph */
  return 1;
}
