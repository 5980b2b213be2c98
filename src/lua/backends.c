/* Settings of backends, for lua/moth/cuda/backends.lua. */
#include "device/cuda_settings.h"
#include "lua/moth_lua.h"

/* cuda_setting(name[, value]) -> its value before */
static int b_cuda_setting(lua_State *L) {
  static const char *const names[] = {"allow_tf32", "own_gemm", "library", NULL};
  int which = luaL_checkoption(L, 1, NULL, names);
  if (which == 2) {
    lua_pushstring(L, moth_cuda_settings.library);
    return 1;
  }
  bool *setting = which ? &moth_cuda_settings.own_gemm : &moth_cuda_settings.allow_tf32;
  lua_pushboolean(L, *setting);
  if (!lua_isnoneornil(L, 2))
    *setting = lua_toboolean(L, 2);
  return 1;
}

void moth_lua_open_backends(lua_State *L) {
  static const luaL_Reg fns[] = {{"cuda_setting", b_cuda_setting}, {NULL, NULL}};
  luaL_register(L, NULL, fns);
}
