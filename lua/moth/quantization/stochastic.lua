--- int8 whose rounding errors have the mean 0.
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

--- int8 of x and its scale, a tensor of one element: an element between two steps goes up as often as it is near to the
-- upper one, so that the mean of many is x itself. The draws are Philox's.
-- @return int8 tensor, scale
M.stochastic_int8 = signature("quantization.stochastic_int8(Tensor input, Generator generator?)", function(x, generator)
  if not x:is_floating_point() then
    check.fail("[quantization.stochastic_int8] expected a tensor of floats, got %s", x:dtype().name)
  end
  return moth.no_grad(function()
    x = x:detach()
    local scale = x:numel() == 0 and moth.ones(1, { dtype = x:dtype() })
      or x:abs():amax():clamp(1e-30, math.huge):view(1) / 127
    local draw = moth.rand(x:size(), { dtype = x:dtype(), device = x:device(), generator = generator })
    return (x / scale + draw):floor():clamp(-127, 127):to(moth.int8), scale
  end)
end)

return M
