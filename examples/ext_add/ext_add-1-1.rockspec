-- A library of ops as a rock, in the folder that it lies in: luarocks --lua-version=5.1 make ext_add-1-1.rockspec
-- Then `moth.library.load "ext_add"` defines moth.ops.ext_add.add. moth must be there: as a rock or by `make install`.
rockspec_format = "3.0"
package = "ext_add"
version = "1-1"
source = { url = "." } -- `luarocks make` takes the folder itself
description = { summary = "An op for moth, written in C and CUDA C", license = "MIT" }
dependencies = { "lua == 5.1" }
build = {
  type = "make",
  build_variables = { CUDA = "$(CUDA)" },
  install_variables = { LIBDIR = "$(LIBDIR)" },
}
