-- moth as a rock, built from the tree that it lies in, with no download:
--
--     luarocks --lua-version=5.1 make rocks/moth-scm-1.rockspec            for everyone
--     luarocks --lua-version=5.1 --local make rocks/moth-scm-1.rockspec    into ~/.luarocks
--     luarocks --lua-version=5.1 remove moth
--
-- moth runs under LuaJIT, whose rocks are those of Lua 5.1.
rockspec_format = "3.0"
package = "moth"
version = "scm-1"
source = { url = "." } -- `luarocks make` takes the tree itself
description = {
  summary = "Deep learning for LuaJIT",
  detailed = "Tensors, automatic differentiation, networks, optimizers and data loading: PyTorch's role for Lua.",
  license = "MIT",
  labels = { "deep-learning", "tensor", "autograd", "luajit" },
}
supported_platforms = { "linux" }
dependencies = { "lua == 5.1" }
build = {
  type = "make",
  install_target = "install-lua",
  -- The rock's folders; luarocks moves what is in them into its tree. libmoth.so goes beside moth_lua.so.
  install_variables = {
    PREFIX = "$(PREFIX)", BINDIR = "$(BINDIR)", LUADIR = "$(LUADIR)", LIBDIR = "$(LIBDIR)", CLUADIR = "$(LIBDIR)",
  },
}
