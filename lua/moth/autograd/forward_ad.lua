--- Forward-mode derivatives: tensors with a tangent. `moth.autograd.forward_ad`.
--
--     local y, dy = forward_ad.dual_level(function()
--       local x = forward_ad.make_dual(primal, tangent)
--       return forward_ad.unpack_dual(f(x))              -- f(primal), and its derivative in the direction of tangent
--     end)
--
-- moth.func.jvp is the same for a function.
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local within = require "moth.dispatch.within"
local M = {}

local open = {} -- the levels, innermost last

local function enter()
  open[#open + 1] = B.dual_open()
  return open[#open]
end

local function leave(level)
  for i = #open, 1, -1 do
    if open[i] == level then table.remove(open, i) end
  end
  B.dual_close(level)
end

--- Calls fn(...) with a new level; the tangents of the level end with it. Returns fn's results.
function M.dual_level(fn, ...) return within(enter, leave, nil, fn, ...) end

--- The same; fn gets the level, for the binding. For moth.func.
function M.with_level(fn)
  local level = B.dual_open()
  return within(function() end, function() B.dual_close(level) end, nil, fn, level)
end

--- enter_dual_level(): the level, for exit_dual_level. dual_level(fn) also ends it after an error.
function M.enter_dual_level() return enter() end
--- Ends the innermost level.
function M.exit_dual_level()
  if #open == 0 then check.fail("[exit_dual_level] no level is open") end
  leave(open[#open])
end

--- A view of `tensor` with a tangent, of the same shape and dtype, at the innermost level.
function M.make_dual(tensor, tangent)
  if #open == 0 then check.fail("[make_dual] no level is open; call it inside dual_level(function() … end)") end
  return B.dual_make(tensor, tangent, open[#open])
end

--- unpack_dual(tensor): the tensor without the tangent of the innermost level, and that tangent (nil: it has none).
function M.unpack_dual(tensor)
  if #open == 0 then return tensor, nil end
  local level = open[#open]
  local tangent = B.dual_tangent(tensor, level)
  if not tangent then return tensor, nil end
  local primal = B.ops.view(tensor, B.size(tensor))
  B.dual_set(primal, nil, level)
  return primal, tangent
end

return signature.all(M, { "dual_level(callable fn, ...)", "with_level(callable fn)", "enter_dual_level()",
  "exit_dual_level()", "make_dual(Tensor tensor, Tensor tangent)", "unpack_dual(Tensor tensor)" })
