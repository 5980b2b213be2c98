--- dist.plan: all layouts of a model on a number of devices, judged by the cost model, fastest first.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local hardware = require "moth.distributed.planner.hardware"
local shape = require "moth.distributed.planner.shape"
local cost = require "moth.distributed.planner.cost"
local layout = require "moth.distributed.planner.layout"

local Plan = {}
Plan.__index = Plan

function Plan:__tostring()
  local out = { ("%d layouts fit; the fastest:"):format(self.fitting),
    ("%-34s %5s %-10s %9s %6s %7s %8s %8s"):format("layout", "micro", "recompute", "tokens/s", "peak %", "GiB",
      "comm. %", "bubble %") }
  for i = 1, math.min(8, #self) do
    local l = self[i]
    out[#out + 1] = ("%-34s %5d %-10s %9.0f %6.1f %7.1f %8.1f %8.1f"):format(layout.short(l), l.micro, l.recompute,
      l.time.tokens, 100 * l.time.mfu, l.memory.total / 2 ^ 30, 100 * l.time.communication / l.time.step,
      math.max(0, 100 * l.time.pipeline / l.time.step))
  end
  out[#out + 1] = "Times are within about 10 % of published runs; compare layouts rather than figures."
  return table.concat(out, "\n")
end

local function powers(limit)
  local list, n = {}, 1
  while n <= limit do
    list[#list + 1] = n
    n = n * 2
  end
  return list
end

local function divisors(n, limit)
  local list = {}
  for d = 1, math.min(n, limit) do if n % d == 0 then list[#list + 1] = d end end
  return list
end

-- Calls visit(layout) for each combination; the table is used again.
local function each_layout(s, gpu, o, visit)
  local lay = { seq = o.seq, batch = o.batch, fp8 = o.fp8, compiled = o.compiled, async_tp = o.async_tp,
    ring = "balanced" }
  local function inner(dp, tp, cp, pp)
    lay.dp, lay.tp, lay.cp, lay.pp = dp, tp, cp, pp
    local together = dp * cp
    local shards = { { "none", 1 } }
    if together > 1 then
      shards[#shards + 1] = { "full", 1 }
      if pp == 1 then shards[#shards + 1] = { "grads", 1 } end
      local inside = math.max(1, math.floor(gpu.node / tp))
      if inside > 1 and together > inside and together % inside == 0 then
        shards[#shards + 1] = { "full", together / inside }
      end
    end
    for _, sh in ipairs(shards) do
      lay.shard, lay.replicas = sh[1], sh[2]
      for _, recompute in ipairs { "none", "selective", "full" } do
        lay.recompute = recompute
        for _, micro in ipairs(powers(math.min(64, o.batch / dp))) do
          lay.micro = micro
          if (o.batch / dp) % micro == 0 then
            for _, v in ipairs(pp > 1 and powers(math.min(8, math.floor(s.layers / pp))) or { 1 }) do
              lay.interleave = v
              if v == 1 or o.batch / dp / micro >= pp then visit(lay) end
            end
          end
        end
      end
    end
  end
  for _, tp in ipairs(powers(gpu.node)) do
    if s.heads % tp == 0 and o.gpus % tp == 0 then
      for _, cp in ipairs(powers(math.max(1, o.seq / 8192))) do
        local rest = o.gpus / tp / cp
        if rest == math.floor(rest) then
          for _, pp in ipairs(divisors(rest, s.layers)) do
            local dp = rest / pp
            if o.batch % dp == 0 then inner(dp, tp, cp, pp) end
          end
        end
      end
    end
  end
end

-- Dimensions in use: of two plans that are equally fast, the simpler one is better.
local function dimensions(l)
  local n = 0
  for _, d in ipairs { "dp", "tp", "cp", "pp" } do n = n + (l[d] > 1 and 1 or 0) end
  return n + (l.replicas > 1 and 0.5 or 0) + (l.interleave > 1 and 0.25 or 0)
end

--- Layouts that fit, fastest first: a list of { dp, tp, cp, pp, shard, replicas, micro, recompute, interleave, time,
-- memory }, which prints as a table, its elements as a breakdown. Within 2 % of the fastest the simplest is first.
-- Options: model (a name such as "llama3-8b", { layers = , hidden = , … }, a module, a number of parameters), gpus,
-- gpu ("h100", or a table), batch (sequences of a step; 4 million tokens if not given), seq, fp8, compiled (true),
-- async_tp, keep (how many, 100). Errors: nothing fits.
return signature("distributed.plan(*, any model, count gpus, any gpu='h100', count batch?, count seq?, \z
  bool fp8=false, bool compiled=true, bool async_tp=false, count keep=100)", function(o)
  local where = "[distributed.plan]"
  local s, gpu = shape.read(where, o.model), hardware.gpu(where, o.gpu)
  if o.fp8 and not gpu.fp8 then check.fail("%s: this gpu has no fp8", where) end
  o.seq = o.seq or s.seq
  o.batch = o.batch or math.max(1, math.floor(2 ^ 22 / o.seq / o.gpus)) * o.gpus
  local found, least = {}, nil
  each_layout(s, gpu, o, function(lay)
    local bytes = cost.memory(s, lay).total
    if not least or bytes < least then least = bytes end
    if bytes <= 0.95 * gpu.memory then found[#found + 1] = layout.judge(s, gpu, lay) end
  end)
  if #found == 0 then
    check.fail("%s: nothing fits: the leanest of all layouts needs %.1f GiB, 95 %% of a device are %.1f; take more \z
      gpus, shorter sequences (seq) or a larger batch to divide (batch = %d)", where, (least or math.huge) / 2 ^ 30,
      0.95 * gpu.memory / 2 ^ 30, o.batch)
  end
  table.sort(found, function(a, b) return a.time.tokens > b.time.tokens end)
  local first, best = 1, found[1].time.tokens
  for i = 2, #found do
    if found[i].time.tokens < 0.98 * best then break end
    if dimensions(found[i]) < dimensions(found[first]) then first = i end
  end
  local list = { fitting = #found }
  list[1] = found[first]
  for i = 1, #found do
    if i ~= first and #list < o.keep then list[#list + 1] = found[i] end
  end
  return setmetatable(list, Plan)
end, true)
