--- Observers: modules that see activations or weights and give the scale and zero point for them.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local is_exported = require "moth.export.active"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local state_dict = require "moth.nn.state_dict"

local M = {}

local Observer = class("Observer", Module)
M.Observer = Observer

local options = "*, dtype dtype?, 'per_tensor_affine'|'per_tensor_symmetric'|'per_channel_affine'|\z
  'per_channel_symmetric' qscheme=%s, int quant_min?, int quant_max?, Dim ch_axis=1"

-- The bounds: all of uint8; of int8 for symmetric schemes -127 to 127, which are as many on both sides.
local function begin(self, where, o)
  self.dtype = B.dtype(o.dtype or "uint8")
  if self.dtype ~= moth.uint8 and self.dtype ~= moth.int8 then
    check.fail("[%s] dtype: expected moth.int8 or moth.uint8, got %s", where, self.dtype.name)
  end
  self.qscheme, self.ch_axis = o.qscheme, o.ch_axis
  self.symmetric, self.per_channel = o.qscheme:find("symmetric") ~= nil, o.qscheme:find("channel") ~= nil
  local low, high = 0, 255
  if self.dtype == moth.int8 then low, high = self.symmetric and -127 or -128, 127 end
  self.quant_min, self.quant_max = o.quant_min or low, o.quant_max or high
  if self.quant_min >= self.quant_max then
    check.fail("[%s] quant_min (%d) must be below quant_max (%d)", where, self.quant_min, self.quant_max)
  end
  local least, most = self.dtype == moth.int8 and -128 or 0, self.dtype == moth.int8 and 127 or 255
  if self.quant_min < least or self.quant_max > most then
    check.fail("[%s] quant_min (%d) and quant_max (%d) must be from %d to %d, as %s holds", where, self.quant_min,
      self.quant_max, least, most, self.dtype.name)
  end
  self:reset()
  M.resizes(self, "min_val", "max_val")
end

--- Buffers that take the size of what is loaded: they have one element for each channel once something was seen.
function M.resizes(module, ...)
  local names = { ... }
  state_dict.register(module, "load_state_dict_pre", function(m, sd, prefix)
    for _, name in ipairs(names) do
      local saved = sd[prefix .. name]
      if B.is_tensor(saved) and saved:dim() == 1 and saved:numel() ~= m[name]:numel() then
        m[name] = moth.empty(saved:size(), { dtype = m[name]:dtype(), device = m[name]:device() })
      end
    end
  end)
end

--- Is m an observer, of any class that has these methods?
function M.is(m) return Module.is(m) and m.calculate_qparams ~= nil and m.reset ~= nil and m.seen ~= nil end

--- Forgets what it saw.
function Observer:reset()
  local n = self.per_channel and 0 or 1
  self:register_buffer("min_val", moth.full({ n }, math.huge))
  self:register_buffer("max_val", moth.full({ n }, -math.huge))
  self.skipped = 0
end

-- The least and largest element of x, or of each slice along ch_axis; nil where there is inf or nan: one such batch
-- would spoil what all others say.
local function extremes(self, x)
  local lo, hi
  if self.per_channel then
    local rows = x:movedim(self.ch_axis, 1):reshape(x:size(self.ch_axis), -1)
    lo, hi = rows:amin(2), rows:amax(2)
  else
    lo, hi = x:amin():view(1), x:amax():view(1)
  end
  if self.per_channel and self.min_val:numel() > 0 and self.min_val:numel() ~= lo:numel() then
    check.fail("[quantization.%s] it has seen %d channels and now gets %s, %d at ch_axis %d", self.__name,
      self.min_val:numel(), tostring(x:size()), lo:numel(), self.ch_axis)
  end
  if moth.isfinite(hi - lo):all():item() then return lo, hi end
  self.skipped = self.skipped + 1
end

--- Has anything been seen?
function Observer:seen()
  return self.min_val:numel() > 0 and self.min_val[1]:item() <= self.max_val[1]:item()
end

--- Why there is no range: a text.
function Observer:missing()
  return self.skipped > 0 and ("has seen inf or nan in all batches (%d)"):format(self.skipped)
    or "has seen nothing: run the prepared model on some batches"
end

--- Takes a tensor's range into account: what a class of observers defines.
function Observer:update(x)
  local lo, hi = extremes(self, x)
  if not lo then return end
  if self:seen() then lo, hi = moth.minimum(lo, self.min_val), moth.maximum(hi, self.max_val) end
  self.min_val, self.max_val = lo, hi
end

--- x -> x, which it has seen. Empty tensors tell nothing; what is exported observes nothing.
function Observer:forward(x)
  if B.is_fake(x) or is_exported() or x:numel() == 0 then return x end
  moth.no_grad(function() self:update(x:detach():to(moth.float32)) end)
  return x
end

--- Scales and zero points, vectors of one element, or one for each channel, for these extremes.
function Observer:of_range(lo, hi)
  lo, hi = lo:clamp(-math.huge, 0), hi:clamp(0, math.huge)
  local steps = self.quant_max - self.quant_min
  local scale, zero
  if self.symmetric then
    local middle = math.floor((self.quant_max + self.quant_min + 1) / 2)
    scale = moth.maximum(-lo, hi) / math.min(self.quant_max - middle, middle - self.quant_min)
    zero = moth.full_like(scale, middle)
  else
    scale = (hi - lo) / steps
  end
  scale = moth.where(scale:gt(1e-30), scale, 1) -- of a range of zero: 1
  zero = zero or (-(lo / scale)):round():add(self.quant_min):clamp(self.quant_min, self.quant_max)
  return scale, zero
end

--- scale, zero_point: vectors; an error if nothing was seen.
function Observer:calculate_qparams()
  if not self:seen() then
    check.fail("[quantization.%s] it %s", self.__name, self:missing())
  end
  return moth.no_grad(function() return self:of_range(self.min_val, self.max_val) end)
end

function Observer:extra_repr()
  if not self:seen() then return ("%s, saw nothing"):format(self.qscheme) end
  return ("%s, min_val=%.4g, max_val=%.4g"):format(self.qscheme, self.min_val:amin():item(), self.max_val:amax():item())
end

local function make(name, base, qscheme, more, init)
  local cls = base and class(name, base) or Observer
  local where = "quantization." .. name
  cls.__init = signature.init(("%s(%s%s)"):format(where, options:format(qscheme), more or ""), function(self, o)
    begin(self, where, o)
    if init then init(self, o) end
  end)
  M[name] = cls
  return cls
end

-- The running mean of the extremes of batches.
local function averaged(self, x)
  local lo, hi = extremes(self, x)
  if not lo then return end
  if self:seen() then
    lo = self.min_val + (lo - self.min_val) * self.averaging_constant
    hi = self.max_val + (hi - self.max_val) * self.averaging_constant
  end
  self.min_val, self.max_val = lo, hi
end
local function keep_constant(self, o)
  if not (o.averaging_constant > 0 and o.averaging_constant <= 1) then
    check.fail("[quantization.%s] averaging_constant must be above 0 and at most 1, got %g", self.__name,
      o.averaging_constant)
  end
  self.averaging_constant = o.averaging_constant
end
local constant = ", number averaging_constant=0.01"

make("Observer", nil, "'per_tensor_affine'") -- the base of one's own
make("MinMaxObserver", Observer, "'per_tensor_affine'")
make("PerChannelMinMaxObserver", Observer, "'per_channel_symmetric'")
make("MovingAverageMinMaxObserver", Observer, "'per_tensor_affine'", constant, keep_constant).update = averaged
make("MovingAveragePerChannelMinMaxObserver", Observer, "'per_channel_symmetric'", constant,
  keep_constant).update = averaged

-- ---- histogram -----------------------------------------------------------------------------------------

local Histogram = make("HistogramObserver", Observer, "'per_tensor_affine'", ", count bins=2048", function(self, o)
  if self.per_channel then check.fail("[quantization.HistogramObserver] it sees whole tensors, no channels") end
  self.bins = o.bins
  self:register_buffer("histogram", moth.zeros(o.bins))
end)

local function counts(x, bins, lo, hi)
  if hi > lo then return moth.histc(x, { bins = bins, min = lo, max = hi }) end
  local out = moth.zeros(bins)
  out[1] = x:numel()
  return out
end

local function centres(self, lo, hi)
  local width = (hi - lo) / self.bins
  return moth.arange(0, self.bins) * width + (lo + width / 2)
end

-- Where the range grows, the counts so far go to the bins that their centres fall into.
function Histogram:update(x)
  x = x:reshape(-1)
  local lo, hi = extremes(self, x)
  if not lo then return end
  lo, hi = lo:item(), hi:item()
  local before = self:seen()
  local old_lo, old_hi = self.min_val[1]:item(), self.max_val[1]:item()
  if before then lo, hi = math.min(lo, old_lo), math.max(hi, old_hi) end
  local new = counts(x, self.bins, lo, hi)
  if before and (lo < old_lo or hi > old_hi) then
    local at = ((centres(self, old_lo, old_hi) - lo) * (self.bins / (hi - lo))):floor():clamp(0, self.bins - 1)
    new = new:index_add(1, at:to(moth.int64) + 1, self.histogram)
  elseif before then
    new = new + self.histogram
  end
  self.histogram = new
  self.min_val, self.max_val = moth.tensor { lo }, moth.tensor { hi }
end

-- The squared error of all that was seen, if it is quantised for the range lo .. hi.
local function error_of(self, at, lo, hi)
  local scale, zero = self:of_range(moth.tensor { lo }, moth.tensor { hi })
  local off = moth.fake_quantize(at, scale, zero, self.quant_min, self.quant_max) - at
  return (off * off * self.histogram):sum():item()
end

--- Those of least squared error: each end is moved in by turns, as long as that helps.
function Histogram:calculate_qparams()
  if not self:seen() then return Observer.calculate_qparams(self) end
  return moth.no_grad(function()
    local lo, hi = self.min_val[1]:item(), self.max_val[1]:item()
    local at = centres(self, lo, hi)
    local best = error_of(self, at, lo, hi)
    for round = 1, 2 do
      local from_lo, from_hi, steps = lo, hi, 32 / round
      for k = 1, steps - 1 do
        local share = 1 - k / steps * (round == 1 and 1 or 0.2)
        local e = error_of(self, at, lo, from_hi * share)
        if from_hi > 0 and e < best then best, hi = e, from_hi * share end
      end
      for k = 1, steps - 1 do
        local share = 1 - k / steps * (round == 1 and 1 or 0.2)
        local e = error_of(self, at, from_lo * share, hi)
        if from_lo < 0 and e < best then best, lo = e, from_lo * share end
      end
    end
    return self:of_range(moth.tensor { lo }, moth.tensor { hi })
  end)
end

return M
