--- What norms have in common: parameters, running statistics and the classes' constructors.
local moth = require "moth"
local signature = require "moth.utils.signature"
local Parameter = require "moth.nn.parameter"
local init = require "moth.nn.init_"

local M = {}

function M.show(v) return v and "True" or "False" end

function M.without_bias(self, with_weight) return with_weight and not self.bias and ", bias=False" or "" end

--- Weight and bias of a shape, or none.
function M.affine(self, shape, o, with_weight, with_bias)
  local like = { dtype = o.dtype, device = o.device }
  if with_weight then self.weight = Parameter(moth.empty(shape, like)) end
  if with_bias then self.bias = Parameter(moth.empty(shape, like)) end
end

function M.reset(self)
  if self.weight then init.ones_(self.weight) end
  if self.bias then init.zeros_(self.bias) end
end

--- The __init of a class; more: parameters behind track_running_stats, which become fields.
function M.statistics(name, with_affine, track, more)
  local text = ("nn.%s(count num_features, number eps=1e-5, number|false momentum=0.1, bool affine=%s, \z
    bool track_running_stats=%s, %sdevice device?, dtype dtype?, *, bool bias=true)"):format(name, with_affine, track,
    more or "")
  return signature.init(text, function(self, o)
    local n, like = o.num_features, { dtype = o.dtype, device = o.device }
    self.num_features, self.eps, self.momentum = n, o.eps, o.momentum
    self.affine, self.track_running_stats, self.process_group = o.affine, o.track_running_stats, o.process_group
    M.affine(self, { n }, o, o.affine, o.affine and o.bias)
    if o.track_running_stats then
      self:register_buffer("running_mean", moth.zeros({ n }, like))
      self:register_buffer("running_var", moth.ones({ n }, like))
      self:register_buffer("num_batches_tracked", moth.zeros({}, { dtype = moth.int64, device = o.device }))
    end
    self:reset()
  end)
end

--- Resets parameters and running statistics.
function M.reset_statistics(self)
  M.reset(self)
  if not self.track_running_stats then return end
  self.running_mean:zero_()
  self.running_var:fill_(1)
  self.num_batches_tracked:zero_()
end

--- The running statistics that a forward pass updates, and with which momentum. Under momentum = false these are
-- copies, which take the batch's own statistics and go to `averaged`: 1 / num_batches_tracked is not read from its
-- device.
function M.running(self)
  local mean, var = self.running_mean, self.running_var
  if not (self.training and self.track_running_stats) then return mean, var, self.momentum or 0 end
  self.num_batches_tracked:add_(1)
  if self.momentum then return mean, var, self.momentum end
  return mean:clone(), var:clone(), 1
end

--- Moves the running statistics towards a batch's, so that they are the averages of all batches.
function M.averaged(self, mean, var)
  if rawequal(mean, self.running_mean) then return end
  moth.no_grad(function()
    local weight = self.num_batches_tracked:to(mean:dtype()):reciprocal()
    self.running_mean:lerp_(mean, weight)
    self.running_var:lerp_(var, weight)
  end)
end

function M.listing(self)
  return ("%d, eps=%.14g, momentum=%s, affine=%s%s, track_running_stats=%s"):format(self.num_features, self.eps,
    self.momentum and ("%.14g"):format(self.momentum) or "None", M.show(self.affine), M.without_bias(self, self.affine),
    M.show(self.track_running_stats))
end

--- Batch norm of x (N, C, …).
function M.normalize(self, x)
  local own = self.training or not self.track_running_stats
  local mean, var, momentum = M.running(self)
  local y = moth.batch_norm(x, mean, var, self.weight, self.bias, own, momentum, self.eps)
  M.averaged(self, mean, var)
  return y
end

return M
