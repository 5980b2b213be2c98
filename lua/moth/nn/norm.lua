--- Normalisation: nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.BatchNorm1d/2d/3d, nn.InstanceNorm1d/2d/3d.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local functional = require "moth.nn.functional"
local init = require "moth.nn.init_"
local each = require "moth.each"

local M = {}

local function show(v) return v and "True" or "False" end
local function shape_of(where, v)
  if type(v) == "number" then return { v } end
  if #v == 0 then check.fail("[%s] normalized_shape is an empty list", where) end
  return v
end
local function listed(shape) return "(" .. table.concat(shape, ", ") .. (#shape == 1 and ",)" or ")") end

local function without_bias(self, with_weight) return with_weight and not self.bias and ", bias=False" or "" end

-- weight and bias of a shape, or none
local function affine(self, shape, o, with_weight, with_bias)
  local like = { dtype = o.dtype, device = o.device }
  if with_weight then self.weight = Parameter(moth.empty(shape, like)) end
  if with_bias then self.bias = Parameter(moth.empty(shape, like)) end
end
local function reset(self)
  if self.weight then init.ones_(self.weight) end
  if self.bias then init.zeros_(self.bias) end
end

local LayerNorm = class("LayerNorm", Module)
M.LayerNorm = LayerNorm

--- normalized_shape: the last sizes of the input
LayerNorm.__init = signature.init("nn.LayerNorm(count|count[] normalized_shape, number eps=1e-5, \z
  bool elementwise_affine=true, bool bias=true, device device?, dtype dtype?)", function(self, o)
  self.normalized_shape = shape_of("nn.LayerNorm", o.normalized_shape)
  self.eps, self.elementwise_affine = o.eps, o.elementwise_affine
  affine(self, self.normalized_shape, o, self.elementwise_affine, self.elementwise_affine and o.bias)
  self:reset()
end)
LayerNorm.reset = reset

--- x (…, normalized_shape) -> its shape
function LayerNorm:forward(x) return moth.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps) end

function LayerNorm:extra_repr()
  return ("%s, eps=%.14g, elementwise_affine=%s%s"):format(listed(self.normalized_shape), self.eps,
    show(self.elementwise_affine), without_bias(self, self.elementwise_affine))
end

local RMSNorm = class("RMSNorm", Module)
M.RMSNorm = RMSNorm

--- eps: by default the epsilon of the input's dtype
RMSNorm.__init = signature.init("nn.RMSNorm(count|count[] normalized_shape, number eps?, \z
  bool elementwise_affine=true, device device?, dtype dtype?)", function(self, o)
  self.normalized_shape = shape_of("nn.RMSNorm", o.normalized_shape)
  self.eps, self.elementwise_affine = o.eps, o.elementwise_affine
  affine(self, self.normalized_shape, o, self.elementwise_affine, false)
  self:reset()
end)
RMSNorm.reset = reset

--- x (…, normalized_shape) -> its shape
function RMSNorm:forward(x) return moth.rms_norm(x, self.normalized_shape, self.weight, self.eps) end

function RMSNorm:extra_repr()
  return ("%s, eps=%s, elementwise_affine=%s"):format(listed(self.normalized_shape),
    self.eps and ("%.14g"):format(self.eps) or "None", show(self.elementwise_affine))
end

local GroupNorm = class("GroupNorm", Module)
M.GroupNorm = GroupNorm

--- num_channels: a multiple of num_groups
GroupNorm.__init = signature.init("nn.GroupNorm(count num_groups, count num_channels, number eps=1e-5, \z
  bool affine=true, device device?, dtype dtype?, *, bool bias=true)", function(self, o)
  if o.num_channels % o.num_groups ~= 0 then
    check.fail("[nn.GroupNorm] %d channels are not divisible into %d groups", o.num_channels, o.num_groups)
  end
  self.num_groups, self.num_channels, self.eps, self.affine = o.num_groups, o.num_channels, o.eps, o.affine
  affine(self, { o.num_channels }, o, o.affine, o.affine and o.bias)
  self:reset()
end)
GroupNorm.reset = reset

--- x (N, C, …) -> its shape
function GroupNorm:forward(x) return moth.group_norm(x, self.num_groups, self.weight, self.bias, self.eps) end

function GroupNorm:extra_repr()
  return ("%d, %d, eps=%.14g, affine=%s%s"):format(self.num_groups, self.num_channels, self.eps, show(self.affine),
    without_bias(self, self.affine))
end

-- ---- with running statistics -------------------------------------------------------------------------

local function statistics(name, with_affine, track)
  local text = ("nn.%s(count num_features, number eps=1e-5, number|false momentum=0.1, bool affine=%s, \z
    bool track_running_stats=%s, device device?, dtype dtype?, *, bool bias=true)"):format(name, with_affine, track)
  return signature.init(text, function(self, o)
    local n, like = o.num_features, { dtype = o.dtype, device = o.device }
    self.num_features, self.eps, self.momentum = n, o.eps, o.momentum
    self.affine, self.track_running_stats = o.affine, o.track_running_stats
    affine(self, { n }, o, o.affine, o.affine and o.bias)
    if o.track_running_stats then
      self:register_buffer("running_mean", moth.zeros({ n }, like))
      self:register_buffer("running_var", moth.ones({ n }, like))
      self:register_buffer("num_batches_tracked", moth.zeros({}, { dtype = moth.int64, device = o.device }))
    end
    self:reset()
  end)
end

-- Resets parameters and running statistics.
local function reset_statistics(self)
  reset(self)
  if not self.track_running_stats then return end
  self.running_mean:zero_()
  self.running_var:fill_(1)
  self.num_batches_tracked:zero_()
end

-- The running statistics that a forward pass updates, and with which momentum. Under momentum = false these are copies,
-- which take the batch's own statistics and go to `averaged`: 1 / num_batches_tracked is not read from its device.
local function running(self)
  local mean, var = self.running_mean, self.running_var
  if not (self.training and self.track_running_stats) then return mean, var, self.momentum or 0 end
  self.num_batches_tracked:add_(1)
  if self.momentum then return mean, var, self.momentum end
  return mean:clone(), var:clone(), 1
end

-- Moves the running statistics towards a batch's, so that they are the averages of all batches.
local function averaged(self, mean, var)
  if rawequal(mean, self.running_mean) then return end
  moth.no_grad(function()
    local weight = self.num_batches_tracked:to(mean:dtype()):reciprocal()
    self.running_mean:lerp_(mean, weight)
    self.running_var:lerp_(var, weight)
  end)
end

local function listing(self)
  return ("%d, eps=%.14g, momentum=%s, affine=%s%s, track_running_stats=%s"):format(self.num_features, self.eps,
    self.momentum and ("%.14g"):format(self.momentum) or "None", show(self.affine), without_bias(self, self.affine),
    show(self.track_running_stats))
end

-- The number of dimensions that the input of a class may have.
local dims = { ["1d"] = { 2, 3 }, ["2d"] = { 4, 4 }, ["3d"] = { 5, 5 } }

for size, d in each(dims) do
  local name = "BatchNorm" .. size
  local BatchNorm = class(name, Module)
  M[name] = BatchNorm

  --- num_features: the channels; momentum = false (Python's None): the average of all batches
  BatchNorm.__init = statistics(name, "true", "true")
  BatchNorm.reset = reset_statistics

  --- x (N, C, …) -> its shape
  function BatchNorm:forward(x)
    local n = check.tensor("nn." .. name, "input", x):dim()
    if n < d[1] or n > d[2] then
      check.fail("nn.%s: expected an input of %s dimensions, got %d", name,
        d[1] == d[2] and tostring(d[1]) or d[1] .. " or " .. d[2], n)
    end
    local own = self.training or not self.track_running_stats
    local mean, var, momentum = running(self)
    local y = moth.batch_norm(x, mean, var, self.weight, self.bias, own, momentum, self.eps)
    averaged(self, mean, var)
    return y
  end

  BatchNorm.extra_repr = listing

  local instance = "InstanceNorm" .. size
  local InstanceNorm = class(instance, Module)
  M[instance] = InstanceNorm
  local rank = tonumber(size:sub(1, 1)) + 2

  InstanceNorm.__init = statistics(instance, "false", "false")
  InstanceNorm.reset, InstanceNorm.extra_repr = reset_statistics, listing

  --- x (N, C, …) -> its shape
  function InstanceNorm:forward(x)
    if check.tensor("nn." .. instance, "input", x):dim() ~= rank then
      check.fail("nn.%s: expected an input of %d dimensions, got %d", instance, rank, x:dim())
    end
    if not self.track_running_stats then return moth.instance_norm(x, self.weight, self.bias, self.eps) end
    local mean, var, momentum = running(self)
    local y = functional.instance_norm(x, mean, var, self.weight, self.bias, self.training, momentum, self.eps)
    averaged(self, mean, var)
    return y
  end
end

-- ---- across channels ---------------------------------------------------------------------------------

--- nn.LocalResponseNorm(size): x / (k + alpha mean(x^2 of `size` channels around))^beta.
local LocalResponseNorm = class("LocalResponseNorm", Module)
M.LocalResponseNorm = LocalResponseNorm
LocalResponseNorm.__init = signature.init("nn.LocalResponseNorm(count size, number alpha=0.0001, number beta=0.75, \z
  number k=1)", function(self, o) self.size, self.alpha, self.beta, self.k = o.size, o.alpha, o.beta, o.k end)

--- x (N, C, …) -> its shape
function LocalResponseNorm:forward(x)
  return functional.local_response_norm(check.tensor("nn.LocalResponseNorm", "input", x), self.size, self.alpha,
    self.beta, self.k)
end

function LocalResponseNorm:extra_repr()
  return ("%d, alpha=%.14g, beta=%.14g, k=%s"):format(self.size, self.alpha, self.beta,
    self.k == math.floor(self.k) and ("%.1f"):format(self.k) or ("%.14g"):format(self.k))
end

return M
