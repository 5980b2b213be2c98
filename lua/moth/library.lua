--- A third backend: a device of the user's, with kernels for ops.
local B = require "moth_lua"
local each = require "moth.each"
local M = {}

--- Names the user device and gives it kernels: register_backend("mydev", { add = function(args, results) … end }).
-- A kernel gets the op's arguments and the results that the shape rule has made, and fills them in. Tensors go there by
-- x:to("mydev") and back by x:cpu(). Copies need no kernel.
function M.register_backend(name, kernels)
  if type(name) ~= "string" or not name:match("^%a[%w_]*$") then
    error("register_backend: expected a name such as 'mydev', got " .. tostring(name), 2)
  end
  B.register_backend(name)
  M.backend = name
  for op, fn in each(kernels or {}) do B.register_kernel(op, fn) end
end

--- A kernel in Lua for one op of the user device.
M.register_kernel = B.register_kernel

return M
