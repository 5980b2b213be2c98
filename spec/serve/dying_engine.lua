-- An engine of batches that ends its process when a value is 13, after `pause` seconds; else gives its input back.
local M = {}

local Dying = {}
Dying.__index = Dying

function Dying:run(inputs)
  if self.pause then require("moth.utils.system").sleep(self.pause) end
  if inputs[1]:eq(13):any():item() then os.exit(7) end
  return { inputs[1] }
end

function M.load(options)
  local tensors = { { name = "x1", dtype = "float32", shape = { -1, 4 } } }
  local made = { { name = "y1", dtype = "float32", shape = { -1, 4 } } }
  return setmetatable({ pause = options.pause, signature = { platform = "spec", inputs = tensors, outputs = made,
    batch = { min = 1 } } }, Dying)
end

return M
