--- amp.GradScaler: multiplies the loss, so that small gradients of float16 do not become 0; divides them again before
-- the step, and leaves the step out if a gradient overflowed.
--
-- Arguments (one table): init_scale = 65536, growth_factor = 2, backoff_factor = 0.5, growth_interval = 2000,
-- enabled = true; device is accepted for PyTorch's programs: the scale goes where the losses are.
--
-- The scale, its count of good steps and "an infinity was found" are tensors on the losses' device: optimizers that
-- take found_inf (their class says supports_found_inf) run without waiting for it. State of an optimizer between two
-- update(): ready, unscaled, stepped.
local B = require "moth_lua"
local keep = require("moth.tensor.scope").keep
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local rows = require "moth.autograd.row_grad"
local each = require "moth.each"

local GradScaler = class("GradScaler")

local function fail(where, ...) check.fail("[GradScaler." .. where .. "] " .. string.format(...)) end

local function is_finite(x) return x == x and x ~= math.huge and x ~= -math.huge end

local function check_factors(where, growth, backoff, interval)
  if not (is_finite(growth) and growth > 1) then fail(where, "growth_factor must be greater than 1, got %g", growth) end
  if not (backoff > 0 and backoff < 1) then fail(where, "backoff_factor must be between 0 and 1, got %g", backoff) end
  check.integer("GradScaler." .. where, "growth_interval", interval, 1)
end

local init = signature.init("amp.GradScaler(number init_scale=65536, number growth_factor=2, \z
  number backoff_factor=0.5, count growth_interval=2000, bool enabled=true, *, device device?)", function(self, o)
  if not (is_finite(o.init_scale) and o.init_scale > 0) then
    fail("__init", "init_scale must be a positive number, got %g", o.init_scale)
  end
  check_factors("__init", o.growth_factor, o.backoff_factor, o.growth_interval)
  self.enabled, self.init_scale = o.enabled, o.init_scale
  self.growth_factor, self.backoff_factor, self.growth_interval = o.growth_factor, o.backoff_factor, o.growth_interval
  self.init_growth_tracker = 0
  self.states = {} -- optimizer -> { stage, found = { device's name -> tensor } }
end)
--- GradScaler("cuda", { … }), as PyTorch writes it, and GradScaler{ … }.
function GradScaler:__init(...)
  if type((...)) == "string" or B.is_device((...)) then return init(self, select(2, ...)) end
  return init(self, ...)
end

local function number(value, device, dtype)
  return keep(moth.full({}, value, { dtype = dtype or moth.float32, device = device }))
end

-- The scale on a device; the first one owns it.
local function scale_on(self, device)
  if not self.scale_tensor then
    self.scale_tensor = number(self.init_scale, device)
    self.tracker = number(self.init_growth_tracker, device, moth.int32)
  end
  local own = B.tensor_device(self.scale_tensor)
  return own == device and self.scale_tensor or self.scale_tensor:to { device = device }
end

local function scaled(self, value)
  if B.is_tensor(value) then return value:mul(scale_on(self, B.tensor_device(value))) end
  if type(value) ~= "table" then fail("scale", "expected a tensor or a table of tensors, got %s", type(value)) end
  local out = {}
  for key, v in each(value) do out[key] = scaled(self, v) end
  return out
end

--- The loss (or a table of them) times the scale: scaler:scale(loss):backward().
function GradScaler:scale(outputs)
  if not self.enabled then return outputs end
  return scaled(self, outputs)
end

local function check_optimizer(where, optimizer)
  if type(optimizer) ~= "table" or type(optimizer.param_groups) ~= "table" then
    fail(where, "argument 'optimizer': expected an optimizer, got %s", class.name(optimizer))
  end
end

local function state_of(self, optimizer)
  local s = self.states[optimizer]
  if not s then
    s = { stage = "ready", found = {} }
    self.states[optimizer] = s
  end
  return s
end

-- Unscales all gradients of an optimizer, one op for each device; s.found has what was found.
local function unscale(self, optimizer, s, allow_float16)
  local by_device, order = {}, {}
  for _, group in ipairs(optimizer.param_groups) do
    for _, p in ipairs(group.params) do
      local sparse = rows.any() and rows.rows(p) or nil
      local grad = sparse and sparse:coalesce():values() or B.get_grad(p)
      if grad then
        local device, dtype = B.tensor_device(grad), B.tensor_dtype(grad)
        if dtype == moth.float16 and not allow_float16 then
          fail("unscale_", "the gradient of a parameter is float16: its parameter should be float32 (autocast casts \z
            it where that gains); scaling protects no sums of float16")
        end
        local name = tostring(device)
        if not by_device[name] then
          by_device[name] = { device = device, grads = {}, own = {} }
          order[#order + 1] = name
        end
        local d = by_device[name]
        d.grads[#d.grads + 1] = grad
        if not sparse then d.own[#d.own + 1] = grad end -- our handles, not those of the row gradient
      end
    end
  end
  if #order > 0 and not self.scale_tensor then
    fail("unscale_", "no loss was scaled: call scaler:scale(loss):backward() first")
  end
  for _, name in ipairs(order) do
    local d = by_device[name]
    -- The inverse in float64: 1 / 65536 is exact, and so are all scales that are powers of 2.
    local inverse = scale_on(self, d.device):to(moth.float64):reciprocal():to(moth.float32)
    s.found[name] = number(0, d.device)
    B.ops.amp_unscale(d.grads, inverse, s.found[name])
    for _, grad in ipairs(d.own) do B.free(grad) end
  end
  local placement = package.loaded["moth.distributed.placement"]
  if placement then placement.share_overflow(optimizer, s.found) end -- parameters may be cut over ranks
end

--- Divides the gradients of an optimizer by the scale, in place, for who wants to clip or look at them before step().
function GradScaler:unscale_(optimizer)
  check_optimizer("unscale_", optimizer)
  if not self.enabled then return end
  local s = state_of(self, optimizer)
  if s.stage == "unscaled" then
    fail("unscale_", "unscale_() has already been called on this optimizer since the last update()")
  elseif s.stage == "stepped" then
    fail("unscale_", "unscale_() is being called after step()")
  end
  moth.no_grad(unscale, self, optimizer, s, false)
  s.stage = "unscaled"
end

-- One tensor on a device: whether something was found on any of them.
local function found_on(found, device)
  local sum
  for _, tensor in each(found) do
    local here = B.tensor_device(tensor) == device and tensor or tensor:to { device = device }
    sum = sum and sum:add(here) or here
  end
  return sum
end

--- Unscales the gradients, unless unscale_() did, and calls optimizer:step(), which is left out if one of them is
-- infinite or NaN. Returns what step() returns.
function GradScaler:step(optimizer, closure)
  check_optimizer("step", optimizer)
  if not self.enabled then return optimizer:step(closure) end
  if closure ~= nil then fail("step", "a closure cannot be used while the scaler is enabled") end
  local s = state_of(self, optimizer)
  if s.stage == "stepped" then fail("step", "step() has already been called since the last update()") end
  if s.stage == "ready" then moth.no_grad(unscale, self, optimizer, s, true) end
  local name, first = each(s.found)(s.found)
  if not name then fail("step", "none of the optimizer's parameters has a gradient: call backward() first") end
  local result
  if optimizer.supports_found_inf then
    optimizer.found_inf = moth.no_grad(found_on, s.found, B.tensor_device(first))
    local ok, err = xpcall(function() result = optimizer:step() end, require("moth.lang.trace").keep)
    optimizer.found_inf = nil
    if not ok then require("moth.lang.trace").rethrow(err) end
  elseif moth.no_grad(found_on, s.found, B.tensor_device(first)):item() == 0 then
    result = optimizer:step()
  end
  s.stage = "stepped"
  return result
end

--- The scale of the next step: smaller after one that was left out, larger after growth_interval good ones; or
-- new_scale. Once for each iteration, after all optimizers' step().
function GradScaler:update(new_scale)
  if not self.enabled then return end
  if not self.scale_tensor then fail("update", "no loss was scaled: call scaler:scale(loss):backward() first") end
  if new_scale ~= nil then
    local value = B.is_tensor(new_scale) and new_scale:item() or new_scale
    if type(value) ~= "number" or not is_finite(value) or value <= 0 then
      fail("update", "argument 'new_scale': expected a positive number, got %s", tostring(new_scale))
    end
    moth.no_grad(self.scale_tensor.fill_, self.scale_tensor, value)
  else
    local device, all = B.tensor_device(self.scale_tensor), {}
    for _, s in each(self.states) do
      for _, tensor in each(s.found) do all[#all + 1] = tensor end
    end
    if #all == 0 then fail("update", "no gradients were checked: call unscale_() or step() before update()") end
    moth.no_grad(function()
      B.ops.amp_update_scale(self.scale_tensor, self.tracker, found_on(all, device), self.growth_factor,
        self.backoff_factor, self.growth_interval)
    end)
  end
  self.states = {}
end

--- The scale, a number: waits for its device. 1 if the scaler is not enabled.
function GradScaler:get_scale()
  if not self.enabled then return 1 end
  return self.scale_tensor and self.scale_tensor:item() or self.init_scale
end
--- Whether it scales at all.
function GradScaler:is_enabled() return self.enabled end
for _, name in ipairs({ "growth_factor", "backoff_factor", "growth_interval" }) do
  --- growth_factor, backoff_factor (what the scale is multiplied by) and growth_interval (steps).
  GradScaler["get_" .. name] = function(self) return self[name] end
  --- Changes growth_factor, backoff_factor or growth_interval from now on.
  GradScaler["set_" .. name] = function(self, value)
    if type(value) ~= "number" then
      fail("set_" .. name, "argument '%s': expected a number, got %s", name, type(value))
    end
    local new = { growth_factor = self.growth_factor, backoff_factor = self.backoff_factor,
      growth_interval = self.growth_interval }
    new[name] = value
    check_factors("set_" .. name, new.growth_factor, new.backoff_factor, new.growth_interval)
    self[name] = value
  end
end

local saved = { "growth_factor", "backoff_factor", "growth_interval" }

--- { scale, growth_factor, backoff_factor, growth_interval, _growth_tracker }, plain numbers with PyTorch's names; {}
-- if the scaler is not enabled.
function GradScaler:state_dict()
  if not self.enabled then return {} end
  local sd = { scale = self:get_scale(),
    _growth_tracker = self.tracker and self.tracker:item() or self.init_growth_tracker }
  for _, name in ipairs(saved) do sd[name] = self[name] end
  return sd
end

--- Continues as the scaler that gave sd would.
function GradScaler:load_state_dict(sd)
  if not self.enabled then return end
  if type(sd) ~= "table" then fail("load_state_dict", "expected a table, got %s", type(sd)) end
  for _, name in ipairs({ "scale", "_growth_tracker", unpack(saved) }) do
    if type(sd[name]) ~= "number" then
      fail("load_state_dict", "expected { scale = …, growth_factor = …, … }, got no number '%s'%s", name,
        next(sd) == nil and "; the scaler that was saved was not enabled" or "")
    end
  end
  check_factors("load_state_dict", sd.growth_factor, sd.backoff_factor, sd.growth_interval)
  for _, name in ipairs(saved) do self[name] = sd[name] end
  self.init_scale, self.init_growth_tracker = sd.scale, sd._growth_tracker
  if self.scale_tensor then
    moth.no_grad(function()
      self.scale_tensor:fill_(sd.scale)
      self.tracker:fill_(sd._growth_tracker)
    end)
  end
end

function GradScaler:__tostring()
  if not self.enabled then return "GradScaler(enabled=false)" end
  return ("GradScaler(scale=%g, growth_factor=%g, backoff_factor=%g, growth_interval=%d)"):format(self:get_scale(),
    self.growth_factor, self.backoff_factor, self.growth_interval)
end

return GradScaler
