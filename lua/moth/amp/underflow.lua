--- What became of gradients in float16: those that are exactly 0, infinite, NaN; a warning where a scaler is missing.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local autocast = require "moth.amp.autocast"

local M = {}

-- Gradients smaller than this are 0 in float16, whose least positive number is 6e-8.
local HINT = "gradients below 6e-8 are 0 in float16: scale the loss by moth.amp.GradScaler, or use bfloat16"

local function list_of(where, what)
  if type(what) == "table" and what.__module and what.parameters then return what:parameters() end
  if type(what) == "table" and what.param_groups then
    local all = {}
    for _, group in ipairs(what.param_groups) do
      for _, p in ipairs(group.params) do all[#all + 1] = p end
    end
    return all
  end
  if B.is_tensor(what) then return { what } end
  if type(what) ~= "table" then
    check.fail("[amp.%s] expected a module, an optimizer or a list of parameters, got %s", where, type(what))
  end
  return what
end

local Report = {}
Report.__index = Report
function Report:__tostring()
  return ("gradients: %d elements, %.1f %% zero, %d infinite, %d NaN%s"):format(self.elements, 100 * self.zero_share,
    self.infinite, self.nan, self.hint and "; " .. self.hint or "")
end

--- Counts the elements of all gradients of a module, an optimizer or a list of parameters: { elements, zero,
-- infinite, nan, zero_share, hint }, and prints as a line. hint, where half of them are 0 and autocast has used
-- float16, says what helps. Waits for the device.
M.gradient_report = signature("amp.gradient_report(any parameters)", function(what)
  local r = { elements = 0, zero = 0, infinite = 0, nan = 0 }
  moth.no_grad(function()
    for _, p in ipairs(list_of("gradient_report", what)) do
      local g = B.get_grad(p)
      if g then
        r.elements = r.elements + B.numel(g)
        r.zero = r.zero + g:eq(0):sum():item()
        r.infinite = r.infinite + g:isinf():sum():item()
        r.nan = r.nan + g:isnan():sum():item()
      end
    end
  end)
  r.zero_share = r.elements > 0 and r.zero / r.elements or 0
  if autocast.used_float16 and r.zero_share > 0.5 then r.hint = HINT end
  return setmetatable(r, Report)
end)

local original

--- With true, each step of an optimizer that runs after an autocast to float16 without a GradScaler looks at its
-- gradients, and says on stderr, once for each optimizer, if most of them are 0.
M.set_debug = signature("amp.set_debug(bool mode)", function(on)
  local Optimizer = require "moth.optim.optimizer"
  if not on then
    if original then Optimizer.step, original = original, nil end
    return
  end
  if original then return end
  original = Optimizer.step
  local step, told = original, setmetatable({}, { __mode = "k" })
  function Optimizer.step(self, ...)
    if autocast.used_float16 and not self.found_inf and not told[self] then
      local r = M.gradient_report(self)
      if r.hint then
        told[self] = true
        io.stderr:write("moth.amp: " .. tostring(r) .. "\n")
      end
    end
    return step(self, ...)
  end
end)

return M
