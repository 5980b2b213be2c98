--- dist.estimate: the cost of data parallel training from a few numbers, or of a step under a layout.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local hardware = require "moth.distributed.planner.hardware"
local shape = require "moth.distributed.planner.shape"
local layout = require "moth.distributed.planner.layout"

local Gradients = {}
Gradients.__index = Gradients
function Gradients:__tostring()
  local out = { ("gradients        %10.2f GB"):format(self.grad_bytes / 1e9),
    ("sent by a rank   %10.2f GB"):format(self.bytes_sent / 1e9),
    ("all-reduce       %10.2f ms"):format(self.time * 1e3) }
  if self.speedup then out[4] = ("speedup          %10.2f"):format(self.speedup) end
  return table.concat(out, "\n")
end

--- What it costs to keep replicas equal: { grad_bytes, factor (2(K-1)/K of a ring), bytes_sent, time (seconds of the
-- all-reduce) and, with `compute` (seconds of a step on one device), speedup, if nothing is hidden, and
-- speedup_hidden, if all but 5 % is }.
--     dist.estimate{ params = 350e6, world = 4, bw = 600e9, compute = 0.08 }.time --> 0.0035
-- Options: params, bytes (of a gradient, 4), world, bw (bytes a second of a link), compute.
-- With model (a name, a table, a module) instead of params: the step's parts, see moth.distributed.plan, for
-- `layout` on `gpu`.
return signature("distributed.estimate(*, number params?, number bytes=4, count world=1, number bw?, number compute?, \z
  any model?, any gpu?, table layout?)", function(o)
  local where = "[distributed.estimate]"
  if (o.params == nil) == (o.model == nil) then
    check.fail("%s expected one of the options 'params' and 'model'", where)
  end
  if o.model ~= nil then
    local s = shape.read(where, o.model)
    return layout.judge(s, hardware.gpu(where, o.gpu or "h100"), layout.read(where, s, o.layout or {}))
  end
  check.number(where, "params", o.params, 0)
  local bw = check.number(where, "bw", o.bw or hardware.gpu(where, o.gpu or "h100").link, 1)
  local e = { grad_bytes = o.params * o.bytes, factor = 2 * (o.world - 1) / o.world }
  e.bytes_sent = e.grad_bytes * e.factor
  e.naive, e.time = e.grad_bytes / bw, e.bytes_sent / bw
  if o.compute then
    check.number(where, "compute", o.compute, 1e-12)
    e.speedup = o.world * o.compute / (o.compute + e.time)
    e.speedup_hidden = o.world * o.compute / (o.compute + 0.05 * e.time)
  end
  return setmetatable(e, Gradients)
end, true)
