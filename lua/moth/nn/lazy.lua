--- Lazy modules: nn.LazyLinear, LazyConv1d … 3d, LazyConvTranspose1d … 3d, LazyBatchNorm1d … 3d, LazyInstanceNorm1d …
-- 3d take a size from their first input and are plain modules from then on.
--
--     local net = nn.Sequential(nn.LazyConv2d(16, 3), nn.Flatten(), nn.LazyLinear(10))
--     net(moth.zeros(1, 3, 28, 28))
--
-- Until then their parameters are empty (nn.UninitializedParameter); they keep their handles, so an optimizer may be
-- made before. Loading a state dict gives them their sizes, too.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Parameter = require "moth.nn.parameter"
local Ordered = require "moth.nn.ordered"
local each = require "moth.each"

local M = {}

--- A parameter without elements, to be filled by a lazy module; nn.UninitializedParameter{ dtype = … }.
M.UninitializedParameter = signature("nn.UninitializedParameter(bool requires_grad=true, device device?, \z
  dtype dtype?)", function(requires_grad, device, dtype)
  return Parameter(moth.empty({ 0 }, { dtype = dtype, device = device }), { requires_grad = requires_grad })
end)

--- A buffer without elements: nn.UninitializedBuffer{ dtype = … }.
M.UninitializedBuffer = signature("nn.UninitializedBuffer(bool requires_grad=false, device device?, dtype dtype?)",
  function(requires_grad, device, dtype)
    return moth.empty({ 0 }, { dtype = dtype, device = device, requires_grad = requires_grad })
  end)

-- The fields of a module that a fresh one does not replace.
local kept = { training = true, _hooks = true, _parameters = true, _buffers = true, _modules = true, _transient = true,
  _lazy = true }

-- Makes `self` a module of the class `base`, with `n` as the size that was left out.
local function become(self, base, n)
  local lazy = rawget(self, "_lazy")
  local o = {}
  for key, value in each(lazy.options) do o[key] = value end
  o[lazy.argument] = n
  local like = self.weight or self.bias
  if like then o.dtype, o.device = B.tensor_dtype(like), B.tensor_device(like) end
  local fresh = base(o)
  for key, value in each(fresh) do
    if not kept[key] then rawset(self, key, value) end
  end
  for name, p in Ordered.items(fresh._parameters) do B.set_data(rawget(self._parameters, name), B.alias(p, false)) end
  for name, b in Ordered.items(fresh._buffers) do self:register_buffer(name, b) end
  rawset(self, "_lazy", nil)
  setmetatable(self, base)
end

-- A lazy class. argument: the name of the size; at: the dimension of the input that has it, from the end or from 1;
-- of_weight(size of a weight, options): the size as a state dict says it.
local function make(base, argument, at, of_weight)
  local name = "Lazy" .. base.__name
  local cls = class(name, base)
  local text = signature.of(base.__init)
  local parameters = text:gsub("^nn%.", "nn.Lazy"):gsub("%w+ " .. argument .. ", ", "")
    :gsub("%(%w+ " .. argument .. "%)", "()")
    :gsub("(affine=)false", "%1true"):gsub("(track_running_stats=)false", "%1true") -- PyTorch's own defaults here
  cls.__init = signature.init(parameters, function(self, o)
    rawset(self, "_lazy", { options = o, argument = argument })
    self[argument] = 0
    for key, value in each(o) do
      if type(value) ~= "table" and key ~= "bias" and not B.is_device(value) and not B.is_dtype(value) then
        self[key] = value
      end
    end
    local like = { dtype = o.dtype, device = o.device }
    if o.affine ~= false then
      self.weight = M.UninitializedParameter(like)
      if o.bias then self.bias = M.UninitializedParameter(like) end
    end
  end)

  --- Gives the parameters their sizes for an input `x`, without running the module.
  function cls:initialize_parameters(x)
    local n = B.dim(check.tensor("nn." .. name, "input", x))
    local d = type(at) == "function" and at(n) or at
    if d > n or -d > n then check.fail("nn.%s: an input of %d dimensions has no channels", name, n) end
    become(self, base, B.size(x, d))
  end

  -- For load_state_dict: the size as the weight of a checkpoint tells it.
  function cls:initialize_from(weight)
    if B.dim(weight) >= 1 then become(self, base, of_weight(B.size(weight), self._lazy.options)) end
  end

  function cls:forward(x, ...)
    self:initialize_parameters(x)
    return self:forward(x, ...)
  end

  function cls:reset() -- luacheck: ignore self
  end

  function cls:extra_repr()
    local lazy = rawget(self, "_lazy")
    local o = {}
    for key, value in each(lazy.options) do o[key] = value end
    o[argument] = argument == "in_channels" and (o.groups or 1) or 1
    return (base(o):extra_repr():gsub("^in_features=%d+", "in_features=0"):gsub("^%d+", "0"))
  end

  M[name] = cls
end

local function second() return 2 end
make(require "moth.nn.linear", "in_features", function() return -1 end, function(s) return s[2] end)
local conv, norm = require "moth.nn.conv", require "moth.nn.norm"
for n = 1, 3 do
  local function channels(dims) return dims == n + 1 and 1 or 2 end
  make(conv["Conv" .. n .. "d"], "in_channels", channels, function(s, o) return s[2] * (o.groups or 1) end)
  make(conv["ConvTranspose" .. n .. "d"], "in_channels", channels, function(s) return s[1] end)
  make(norm["BatchNorm" .. n .. "d"], "num_features", second, function(s) return s[1] end)
  make(norm["InstanceNorm" .. n .. "d"], "num_features", second, function(s) return s[1] end)
end

return M
