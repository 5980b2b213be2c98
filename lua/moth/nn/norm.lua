--- Normalisation: nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.BatchNorm1d/2d/3d, nn.InstanceNorm1d/2d/3d,
-- nn.LocalResponseNorm, nn.CrossMapLRN2d.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local functional = require "moth.nn.functional"
local parts = require "moth.nn.norm_statistics"
local each = require "moth.each"

local affine, reset, show, without_bias = parts.affine, parts.reset, parts.show, parts.without_bias

local M = {}

local function shape_of(where, v)
  if type(v) == "number" then return { v } end
  if #v == 0 then check.fail("[%s] normalized_shape is an empty list", where) end
  return v
end
local function listed(shape) return "(" .. table.concat(shape, ", ") .. (#shape == 1 and ",)" or ")") end

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

-- The number of dimensions that the input of a class may have.
local dims = { ["1d"] = { 2, 3 }, ["2d"] = { 4, 4 }, ["3d"] = { 5, 5 } }

for size, d in each(dims) do
  local name = "BatchNorm" .. size
  local BatchNorm = class(name, Module)
  M[name] = BatchNorm

  --- num_features: the channels; momentum = false (Python's None): the average of all batches
  BatchNorm.__init = parts.statistics(name, "true", "true")
  BatchNorm.reset = parts.reset_statistics

  --- x (N, C, …) -> its shape
  function BatchNorm:forward(x)
    local n = check.tensor("nn." .. name, "input", x):dim()
    if n < d[1] or n > d[2] then
      check.fail("nn.%s: expected an input of %s dimensions, got %d", name,
        d[1] == d[2] and tostring(d[1]) or d[1] .. " or " .. d[2], n)
    end
    return parts.normalize(self, x)
  end

  BatchNorm.extra_repr = parts.listing

  local instance = "InstanceNorm" .. size
  local InstanceNorm = class(instance, Module)
  M[instance] = InstanceNorm
  local rank = tonumber(size:sub(1, 1)) + 2

  InstanceNorm.__init = parts.statistics(instance, "false", "false")
  InstanceNorm.reset, InstanceNorm.extra_repr = parts.reset_statistics, parts.listing

  --- x (N, C, …) -> its shape
  function InstanceNorm:forward(x)
    if check.tensor("nn." .. instance, "input", x):dim() ~= rank then
      check.fail("nn.%s: expected an input of %d dimensions, got %d", instance, rank, x:dim())
    end
    if not self.track_running_stats then return moth.instance_norm(x, self.weight, self.bias, self.eps) end
    local mean, var, momentum = parts.running(self)
    local y = functional.instance_norm(x, mean, var, self.weight, self.bias, self.training, momentum, self.eps)
    parts.averaged(self, mean, var)
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

--- nn.CrossMapLRN2d(size): LocalResponseNorm of the channels up to floor((size - 1) / 2) before and behind, of images.
-- PyTorch's keeps the first of these channels one channel too long, from channel floor((size + 3) / 2) on; this one
-- does not.
local CrossMapLRN2d = class("CrossMapLRN2d", Module)
M.CrossMapLRN2d = CrossMapLRN2d
CrossMapLRN2d.__init = signature.init("nn.CrossMapLRN2d(count size, number alpha=0.0001, number beta=0.75, \z
  number k=1)", function(self, o) self.size, self.alpha, self.beta, self.k = o.size, o.alpha, o.beta, o.k end)

--- x (N, C, H, W) -> its shape
function CrossMapLRN2d:forward(x)
  if B.dim(check.tensor("nn.CrossMapLRN2d", "input", x)) ~= 4 then
    check.fail("nn.CrossMapLRN2d: expected an input of 4 dimensions, got %d", x:dim())
  end
  local width = 2 * math.floor((self.size - 1) / 2) + 1
  return functional.local_response_norm(x, width, self.alpha * width / self.size, self.beta, self.k)
end

function CrossMapLRN2d:extra_repr()
  return ("%d, alpha=%.14g, beta=%.14g, k=%.14g"):format(self.size, self.alpha, self.beta, self.k)
end

return M
