--- Pictures of one disc or one frame each, for examples that need no download.
local moth = require "moth"
local M = {}

-- (n, 1, 1) numbers between low and high.
local function draws(n, low, high) return moth.rand(n, 1, 1) * (high - low) + low end

--- @return pictures (n, 1, size, size) in [0, 1], and masks of what is drawn, (n, size, size), 1 nothing, 2 a disc, 3 a
-- frame
function M.batch(n, size, noise)
  local y = moth.arange(1, size + 1):to(moth.float32):view(1, size, 1):expand(n, size, size)
  local x = moth.arange(1, size + 1):to(moth.float32):view(1, 1, size):expand(n, size, size)
  local radius = draws(n, size / 6, size / 3)
  local dy, dx = y - draws(n, size / 3, size * 2 / 3), x - draws(n, size / 3, size * 2 / 3)
  local disc = (dy:square() + dx:square()):le(radius:square())
  local far = moth.maximum(dy:abs(), dx:abs())
  local frame = far:le(radius):logical_and(far:ge(radius - size / 10))
  local is_disc = moth.rand(n, 1, 1):lt(0.5)
  local class = moth.where(is_disc, disc:to(moth.float32), frame:to(moth.float32) * 2)
  local picture = class:gt(0):to(moth.float32)
  if noise then picture = (picture + moth.randn(n, size, size) * noise):clamp(0, 1) end
  return picture:unsqueeze(2), (class + 1):to(moth.int64)
end

return M
