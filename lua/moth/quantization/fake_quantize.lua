--- Modules that round as a quantised model will, so that training sees it; the derivative goes through.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local is_exported = require "moth.export.active"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local observers = require "moth.quantization.observer"
local weights = require "moth.quantization.weights"

local M = {}

local FakeQuantize = class("FakeQuantize", Module)
M.FakeQuantize = FakeQuantize

--- observer: an observer, which decides bounds and scheme, or its class. In training it sees each input; in
-- evaluation, too, with `always`, as weights want it.
local signed = "quantization.FakeQuantize(Module|callable observer, *, bool always=false)"
FakeQuantize.__init = signature.init(signed, function(self, o)
  local observer = Module.is(o.observer) and o.observer or o.observer()
  if not observers.is(observer) then
    check.fail("[quantization.FakeQuantize] expected an observer, or its class, got %s", class.name(observer))
  end
  self.observer, self.always = observer, o.always
  self:register_buffer("scale", moth.ones(1))
  self:register_buffer("zero_point", moth.zeros(1))
  self.fake_quant_enabled, self.observer_enabled = true, true
  observers.resizes(self, "scale", "zero_point")
end)

--- The scale and the zero point by the range that was seen; seen(): whether there is one; missing(): what to do if
-- not.
function FakeQuantize:calculate_qparams() return self.observer:calculate_qparams() end
function FakeQuantize:seen() return self.observer:seen() end
function FakeQuantize:missing() return self.observer:missing() end

-- Takes x into account where it observes; is there a range to round by? What is exported has that of the last call.
local function observed(self, x)
  local o = self.observer
  if is_exported() then
    if self.has_range == nil then
      check.fail("[quantization.FakeQuantize] it has not run since it was made: call the model once before the export")
    end
    return self.has_range
  end
  if self.observer_enabled and (self.training or self.always) then
    o(x)
    if o:seen() then self.scale, self.zero_point = o:calculate_qparams() end
  end
  self.has_range = o:seen()
  return self.has_range
end

--- x -> x, rounded to the grid
function FakeQuantize:forward(x)
  local o = self.observer
  if not observed(self, x) or not self.fake_quant_enabled then return x end
  if o.per_channel then
    return moth.fake_quantize_per_channel_affine(x, self.scale, self.zero_point, o.ch_axis, o.quant_min, o.quant_max)
  end
  return moth.fake_quantize(x, self.scale, self.zero_point, o.quant_min, o.quant_max)
end

-- For module:apply, as in PyTorch: late in training ranges stand still, and before that there may be no rounding.
local function switch(name, field, value)
  M[name] = signature(("quantization.%s(Module module)"):format(name), function(m)
    if m[field] ~= nil then m[field] = value end
  end)
end
--- The ranges follow what comes, as at first.
switch("enable_observer", "observer_enabled", true)
--- The ranges stay as they are.
switch("disable_observer", "observer_enabled", false)
--- Values are rounded, as at first.
switch("enable_fake_quant", "fake_quant_enabled", true)
--- Values pass as they are.
switch("disable_fake_quant", "fake_quant_enabled", false)
--- Layers with a batch norm folded in use its running statistics from now on, and do not change them.
switch("freeze_bn_stats", "bn_frozen", true)
--- They use those of the batch again.
switch("update_bn_stats", "bn_frozen", false)

local Group = class("GroupFakeQuantize", Module)
M.GroupFakeQuantize = Group

--- Weights of 4 bits in groups, as nn.Linear's by quantize_weights.
Group.__init = signature.init("quantization.GroupFakeQuantize(count group=32)", function(self, o)
  weights.check_group("quantization.GroupFakeQuantize", o.group)
  self.group, self.bits = o.group, 4
end)

--- True: its ranges are those of the weight itself.
function Group.seen() return true end

-- The derivative is 1 for clipped weights, too: the scale follows them. With 0 they would stand still, and training
-- ends no better than rounding afterwards.
function Group:forward(w)
  if B.is_fake(w) then return w end
  return w + moth.no_grad(function()
    local own = w:detach()
    local q, scale = weights.int4_weight(own, self.group)
    return weights.dequantize_int4(q, scale, self.group, w:size(2)) - own
  end)
end

function Group:extra_repr() return ("int4, group=%d"):format(self.group) end

return M
