--- Normalisation: nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.BatchNorm1d/2d/3d, nn.InstanceNorm1d/2d/3d.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local init = require "moth.nn.init_"
local each = require "moth.each"

local M = {}

local function show(v) return v and "True" or "False" end
local function shape_of(where, v)
  if type(v) == "number" then v = { v } end
  if type(v) ~= "table" or #v == 0 then check.fail("%s: normalized_shape is a size or a table of sizes", where) end
  for i = 1, #v do check.integer(where, "normalized_shape", v[i], 1) end
  return v
end
local function listed(shape) return "(" .. table.concat(shape, ", ") .. (#shape == 1 and ",)" or ")") end

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

--- @tparam int|table normalized_shape the last sizes of the input
-- @tparam[opt] table o eps (1e-5), elementwise_affine (true), bias (true), dtype, device
function LayerNorm:__init(normalized_shape, o)
  o = check.options("nn.LayerNorm", o, "eps elementwise_affine bias dtype device")
  self.normalized_shape = shape_of("nn.LayerNorm", normalized_shape)
  self.eps = check.number("nn.LayerNorm", "eps", o.eps or 1e-5)
  self.elementwise_affine = o.elementwise_affine ~= false
  affine(self, self.normalized_shape, o, self.elementwise_affine, self.elementwise_affine and o.bias ~= false)
  self:reset()
end
LayerNorm.reset = reset

--- x (…, normalized_shape) -> its shape
function LayerNorm:forward(x) return moth.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps) end

function LayerNorm:extra_repr()
  return ("%s, eps=%.14g, elementwise_affine=%s"):format(listed(self.normalized_shape), self.eps,
    show(self.elementwise_affine))
end

local RMSNorm = class("RMSNorm", Module)
M.RMSNorm = RMSNorm

--- @tparam int|table normalized_shape
-- @tparam[opt] table o eps (that of the dtype), elementwise_affine (true), dtype, device
function RMSNorm:__init(normalized_shape, o)
  o = check.options("nn.RMSNorm", o, "eps elementwise_affine dtype device")
  self.normalized_shape = shape_of("nn.RMSNorm", normalized_shape)
  if o.eps then self.eps = check.number("nn.RMSNorm", "eps", o.eps) end
  self.elementwise_affine = o.elementwise_affine ~= false
  affine(self, self.normalized_shape, o, self.elementwise_affine, false)
  self:reset()
end
RMSNorm.reset = reset

--- x (…, normalized_shape) -> its shape
function RMSNorm:forward(x) return moth.rms_norm(x, self.normalized_shape, self.weight, self.eps) end

function RMSNorm:extra_repr()
  return ("%s, eps=%s, elementwise_affine=%s"):format(listed(self.normalized_shape),
    self.eps and ("%.14g"):format(self.eps) or "None", show(self.elementwise_affine))
end

local GroupNorm = class("GroupNorm", Module)
M.GroupNorm = GroupNorm

--- @tparam int num_groups @tparam int num_channels a multiple of num_groups
-- @tparam[opt] table o eps (1e-5), affine (true), dtype, device
function GroupNorm:__init(num_groups, num_channels, o)
  o = check.options("nn.GroupNorm", o, "eps affine dtype device")
  self.num_groups = check.integer("nn.GroupNorm", "num_groups", num_groups, 1)
  self.num_channels = check.integer("nn.GroupNorm", "num_channels", num_channels, 1)
  if num_channels % num_groups ~= 0 then
    check.fail("nn.GroupNorm: %d channels are not divisible into %d groups", num_channels, num_groups)
  end
  self.eps = check.number("nn.GroupNorm", "eps", o.eps or 1e-5)
  self.affine = o.affine ~= false
  affine(self, { num_channels }, o, self.affine, self.affine)
  self:reset()
end
GroupNorm.reset = reset

--- x (N, C, …) -> its shape
function GroupNorm:forward(x) return moth.group_norm(x, self.num_groups, self.weight, self.bias, self.eps) end

function GroupNorm:extra_repr()
  return ("%d, %d, eps=%.14g, affine=%s"):format(self.num_groups, self.num_channels, self.eps, show(self.affine))
end

-- The number of dimensions that the input of a class may have.
local dims = { ["1d"] = { 2, 3 }, ["2d"] = { 4, 4 }, ["3d"] = { 5, 5 } }

for size, d in each(dims) do
  local name = "BatchNorm" .. size
  local BatchNorm = class(name, Module)
  M[name] = BatchNorm

  --- @tparam int num_features the channels
  -- @tparam[opt] table o eps (1e-5), momentum (0.1; false: the average of all batches), affine (true),
  -- track_running_stats (true), dtype, device
  function BatchNorm:__init(num_features, o)
    o = check.options("nn." .. name, o, "eps momentum affine track_running_stats dtype device")
    self.num_features = check.integer("nn." .. name, "num_features", num_features, 1)
    self.eps = check.number("nn." .. name, "eps", o.eps or 1e-5)
    self.momentum = o.momentum
    if o.momentum == nil then self.momentum = 0.1 end
    self.affine = o.affine ~= false
    self.track_running_stats = o.track_running_stats ~= false
    affine(self, { num_features }, o, self.affine, self.affine)
    if self.track_running_stats then
      local like = { dtype = o.dtype, device = o.device }
      self:register_buffer("running_mean", moth.zeros({ num_features }, like))
      self:register_buffer("running_var", moth.ones({ num_features }, like))
      self:register_buffer("num_batches_tracked", moth.zeros({}, { dtype = moth.int64, device = o.device }))
    end
    self:reset()
  end

  --- Parameters and running statistics as at the beginning.
  function BatchNorm:reset()
    reset(self)
    if not self.track_running_stats then return end
    self.running_mean:zero_()
    self.running_var:fill_(1)
    self.num_batches_tracked:zero_()
  end

  --- x (N, C, …) -> its shape
  function BatchNorm:forward(x)
    local n = x:dim()
    if n < d[1] or n > d[2] then
      check.fail("nn.%s: expected an input of %s dimensions, got %d", name,
        d[1] == d[2] and tostring(d[1]) or d[1] .. " or " .. d[2], n)
    end
    local momentum = self.momentum or 0
    if self.training and self.track_running_stats then
      self.num_batches_tracked:add_(1)
      if self.momentum == false then momentum = 1 / self.num_batches_tracked:item() end
    end
    local own = self.training or not self.track_running_stats
    return moth.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, own, momentum, self.eps)
  end

  function BatchNorm:extra_repr()
    return ("%d, eps=%.14g, momentum=%s, affine=%s, track_running_stats=%s"):format(self.num_features, self.eps,
      self.momentum and ("%.14g"):format(self.momentum) or "None", show(self.affine), show(self.track_running_stats))
  end

  local instance = "InstanceNorm" .. size
  local InstanceNorm = class(instance, Module)
  M[instance] = InstanceNorm
  local rank = tonumber(size:sub(1, 1)) + 2

  --- @tparam int num_features the channels @tparam[opt] table o eps (1e-5), affine (false), dtype, device
  function InstanceNorm:__init(num_features, o)
    o = check.options("nn." .. instance, o, "eps affine dtype device")
    self.num_features = check.integer("nn." .. instance, "num_features", num_features, 1)
    self.eps = check.number("nn." .. instance, "eps", o.eps or 1e-5)
    self.affine = o.affine == true
    affine(self, { num_features }, o, self.affine, self.affine)
    self:reset()
  end
  InstanceNorm.reset = reset

  --- x (N, C, …) -> its shape
  function InstanceNorm:forward(x)
    if x:dim() ~= rank then
      check.fail("nn.%s: expected an input of %d dimensions, got %d", instance, rank, x:dim())
    end
    return moth.instance_norm(x, self.weight, self.bias, self.eps)
  end

  function InstanceNorm:extra_repr()
    return ("%d, eps=%.14g, momentum=0.1, affine=%s, track_running_stats=False"):format(self.num_features, self.eps,
      show(self.affine))
  end
end

return M
