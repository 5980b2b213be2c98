--- nn.SyncBatchNorm: batch norm with the statistics of the batches of all processes of a group. Without a group, and in
-- evaluation, it is batch norm of an input of any number of dimensions.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local norm = require "moth.nn.norm"
local parts = require "moth.nn.norm_statistics"
local Ordered = require "moth.nn.ordered"

local SyncBatchNorm = class("SyncBatchNorm", norm.BatchNorm1d)

SyncBatchNorm.__init = parts.statistics("SyncBatchNorm", "true", "true", "any process_group?, ")

-- The group whose processes share their statistics, or nil: there is none, or it has one process.
local function group_of(self)
  local groups = package.loaded["moth.distributed.group"]
  local given = self.process_group
  if given ~= nil and not (groups and getmetatable(given) == groups.ProcessGroup) then
    check.fail("[nn.SyncBatchNorm] process_group must be a process group of moth.distributed, got %s", type(given))
  end
  if not (given or groups and groups.is_initialized()) then return nil end
  local group = groups.of(given, "nn.SyncBatchNorm")
  return group.size > 1 and group or nil
end

-- Mean and variance over all processes, in two sums over them, and the number of elements of a channel.
local function statistics(x, group)
  local all_reduce = moth.distributed.nn.all_reduce
  local function summed(t) return all_reduce(t, { group = group }) end
  local dtype, n, c = B.tensor_dtype(x), B.numel(x), B.size(x, 2)
  if dtype == moth.float16 or dtype == moth.bfloat16 then x = x:to(moth.float32) end
  local dims, shape = { 1 }, { 1, c }
  for d = 3, B.dim(x) do dims[#dims + 1], shape[d] = d, 1 end
  local mine = moth.cat({ x:sum(dims), x:new_full({ 1 }, n / c) }, 1)
  local all = summed(mine)
  local count = all:narrow(1, c + 1, 1):detach()
  local mean = all:narrow(1, 1, c) / count
  local var = summed((x - mean:view(shape)):square():sum(dims)) / count
  return mean, var, count, shape
end

--- x (N, C, …) -> its shape
function SyncBatchNorm:forward(x)
  if B.dim(check.tensor("nn.SyncBatchNorm", "input", x)) < 2 then
    check.fail("nn.SyncBatchNorm: expected an input of at least 2 dimensions, got %d", B.dim(x))
  end
  local group = self.training and group_of(self)
  if not group then return parts.normalize(self, x) end
  local mean, var, count, shape = statistics(x, group)
  local y = ((x - mean:view(shape)) * (var + self.eps):rsqrt():view(shape)):to(B.tensor_dtype(x))
  if self.weight then y = y * self.weight:view(shape) end
  if self.bias then y = y + self.bias:view(shape) end
  if self.track_running_stats then
    moth.no_grad(function()
      self.num_batches_tracked:add_(1)
      local share = self.momentum or self.num_batches_tracked:to(mean:dtype()):reciprocal()
      self.running_mean:lerp_(mean:detach(), share)
      self.running_var:lerp_(var:detach() * (count / (count - 1):clamp({ min = 1 })), share)
    end)
  end
  return y
end

--- The module with each BatchNorm1d, 2d, 3d in it replaced by a SyncBatchNorm of the same parameters and statistics; a
-- batch norm itself: its replacement.
SyncBatchNorm.convert_sync_batchnorm = signature("nn.SyncBatchNorm.convert_sync_batchnorm(Module module, \z
  any process_group?)", function(module, group)
  local function convert(m)
    local out, kind = m, getmetatable(m)
    if kind == norm.BatchNorm1d or kind == norm.BatchNorm2d or kind == norm.BatchNorm3d then
      out = SyncBatchNorm(m.num_features, { eps = m.eps, momentum = m.momentum, affine = m.affine,
        track_running_stats = m.track_running_stats, process_group = group, bias = m.bias ~= nil })
      for _, name in ipairs { "weight", "bias", "running_mean", "running_var", "num_batches_tracked" } do
        if m[name] then out[name] = m[name] end
      end
      out.training = m.training
    end
    local children = m:registry("_modules")
    for _, name in ipairs({ unpack(Ordered.keys(children)) }) do
      local child = rawget(children, name)
      local new = convert(child)
      if new ~= child then m:add_module(name, new) end
    end
    return out
  end
  return convert(module)
end)

return SyncBatchNorm
