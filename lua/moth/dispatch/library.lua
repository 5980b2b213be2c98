--- A third backend: a device of the user's, with kernels for ops.
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local M = {}

--- Names the user device and gives it kernels: register_backend("mydev", { add = function(args, results) … end }).
-- A kernel gets the op's arguments and the allocated results, and fills these in. Tensors are moved there by
-- x:to("mydev") and back by x:cpu(). Copies need no kernel.
function M.register_backend(name, kernels)
  if not name:match("^%a[%w_]*$") then
    check.fail("[register_backend] expected a name such as 'mydev', got '%s'", name)
  end
  B.register_backend(name)
  M.backend = name
  for op, fn in each(kernels or {}) do B.register_kernel(op, fn) end
end

--- A kernel in Lua for one op of the user device.
M.register_kernel = B.named(B.register_kernel, "register_kernel")

return signature.all(M, { "register_backend(string name, table kernels?)",
  "register_kernel(string op, function fn)" })
