--- dist.estimate: the cost of data parallel training from a few numbers, or of a step under a layout.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local hardware = require "moth.distributed.planner.hardware"
local shape = require "moth.distributed.planner.shape"
local layout = require "moth.distributed.planner.layout"

local Parts = {}
Parts.__index = Parts
function Parts:__tostring()
  local out = {}
  local function line(what, value, unit, factor)
    if value then out[#out + 1] = ("%-16s %10.2f%s"):format(what, value * factor, unit) end
  end
  line("gradients", self.grad_bytes, " GB", 1e-9)
  line("sent by a rank", self.bytes_sent, " GB", 1e-9)
  line("fully_shard", self.fsdp_bytes_sent, " GB", 1e-9)
  line("all-reduce", self.time, " ms", 1e3)
  line("speedup", self.speedup, "", 1)
  line("tp latency", self.tp_latency, " ms", 1e3)
  line("bubble", self.bubble, " %", 100)
  return table.concat(out, "\n")
end

--- The limits of each way to cut a training step, from a few numbers; print it.
-- params (with world, bytes of a gradient, 4, bw, bytes a second of a link): { grad_bytes, factor (2(K-1)/K of a ring),
-- bytes_sent, fsdp_bytes_sent (by fully_shard: 1.5 times as much), time (seconds of the all-reduce) and, with `compute`
-- (seconds of a step on one device), speedup, if nothing is hidden, and speedup_hidden, if all but 5 % is }.
--     dist.estimate{ params = 350e6, world = 4, bw = 600e9, compute = 0.08 }.time --> 0.0035
-- pp (stages) and microbatches: bubble, the share of a step in which ranks wait, as of GPipe and 1F1B.
--     dist.estimate{ pp = 4, microbatches = 8 }.bubble --> 0.273
-- tp (ranks) and layers: tp_latency, seconds of the eight collectives of each layer, if they sent nothing.
-- With model (a name, a table, a module) instead of these: the step's parts, see moth.distributed.plan, for
-- `layout` on `gpu`.
return signature("distributed.estimate(*, number params?, number bytes=4, count world=1, number bw?, number compute?, \z
  count pp?, count microbatches=1, count tp?, count layers=1, any model?, any gpu?, table layout?)", function(o)
  local where = "[distributed.estimate]"
  local parts = o.params ~= nil or o.pp ~= nil or o.tp ~= nil
  if parts == (o.model ~= nil) then
    check.fail(parts and "%s layouts of a model stand in 'layout': option 'model' goes without 'params', 'pp' and 'tp'"
      or "%s expected one of the options 'params' and 'model', or 'pp' or 'tp'", where)
  end
  local gpu = hardware.gpu(where, o.gpu or "h100")
  if o.model ~= nil then
    local s = shape.read(where, o.model)
    return layout.judge(s, gpu, layout.read(where, s, o.layout or {}))
  end
  local e = {}
  if o.params then
    check.number(where, "params", o.params, 0)
    local bw = check.number(where, "bw", o.bw or gpu.link, 1)
    e.grad_bytes, e.factor = o.params * o.bytes, 2 * (o.world - 1) / o.world
    e.bytes_sent = e.grad_bytes * e.factor
    e.fsdp_bytes_sent = 1.5 * e.bytes_sent
    e.naive, e.time = e.grad_bytes / bw, e.bytes_sent / bw
    if o.compute then
      check.number(where, "compute", o.compute, 1e-12)
      e.speedup = o.world * o.compute / (o.compute + e.time)
      e.speedup_hidden = o.world * o.compute / (o.compute + 0.05 * e.time)
    end
  end
  if o.tp then
    e.tp_latency = 8 * o.layers * o.microbatches * hardware.collective(gpu, "all_gather", 0, o.tp,
      math.max(1, math.min(o.tp, gpu.node)))
  end
  if o.pp then e.bubble = (o.pp - 1) / (o.pp - 1 + o.microbatches) end
  return setmetatable(e, Parts)
end, true)
