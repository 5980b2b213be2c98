--- A step of a layout as programs for moth.distributed.simulate: one for each stage of the pipeline, as the ranks of
-- the other dimensions do the same.
local shape = require "moth.distributed.planner.shape"
local schedules = require "moth.distributed.pipeline.schedules"
local proof = require "moth.distributed.pipeline.check"

local M = {}

local function near(gpu, ranks, stride) return math.max(1, math.min(ranks, math.floor(gpu.node / stride))) end

-- What a stage is: its layers, seconds of a layer forward and backward, bytes and groups of its collectives.
local function stage_of(l)
  local s, t, gpu = l.shape, l.time, l.gpu
  local again = shape.recompute[l.recompute]
  local micro_batches = math.max(1, l.batch / (l.dp * l.micro))
  local stages = l.pp * l.interleave
  local layers = math.max(1, math.floor(s.layers / stages + 0.5))
  local layer = (t.products + t.attention + t.elementwise + t.tp + t.cp) / micro_batches / (layers * l.interleave)
    * t.slowest
  local shards = l.dp * l.cp / l.replicas
  return { layers = layers, micro_batches = micro_batches, forward = layer / (3 + again),
    backward = layer - layer / (3 + again), shards = shards,
    gather = s.block / l.tp * 2, reduce = s.block / l.tp * 4,
    group = { size = shards, near = near(gpu, shards, l.tp) },
    all = { size = l.dp * l.cp, near = near(gpu, l.dp * l.cp, l.tp) },
    across = { size = l.replicas, near = near(gpu, l.replicas, l.tp * shards) },
    edge = l.micro * l.seq * s.hidden * 2 / (l.tp * l.cp) }
end

-- One rank without a pipeline: parameters of the next layer are gathered under this one, gradients of the one before
-- reduced.
local function flat(l, st)
  local p = {}
  local sharded = l.shard ~= "none" and st.shards > 1
  local function add(...) p[#p + 1] = { ... } end
  local function gather(i, pass) add("start", "all_gather", st.gather, st.group, "gather " .. i, pass .. i) end
  for m = 1, st.micro_batches do
    local fetch = sharded and (l.shard == "full" or m == 1)
    if fetch then gather(1, "f" .. m .. ".") end
    for i = 1, st.layers do
      if fetch and i < st.layers then gather(i + 1, "f" .. m .. ".") end
      if fetch then add("wait", "f" .. m .. "." .. i) end
      add("run", st.forward, "forward " .. i)
    end
    local back = sharded and l.shard == "full"
    local last = m == st.micro_batches
    if back then gather(st.layers, "b" .. m .. ".") end
    for i = st.layers, 1, -1 do
      if back and i > 1 then gather(i - 1, "b" .. m .. ".") end
      if back then add("wait", "b" .. m .. "." .. i) end
      add("run", st.backward, "backward " .. i)
      if sharded and (back or last) then
        add("start", "reduce_scatter", st.reduce, st.group, "reduce " .. i, "r")
        if l.replicas > 1 and last then
          add("start", "all_reduce", st.reduce / st.shards, st.across, "all-reduce " .. i, "a")
        end
      elseif last and st.all.size > 1 then
        add("start", "all_reduce", st.reduce, st.all, "all-reduce " .. i, "a")
      end
    end
  end
  return { [0] = p }
end

-- A program for each rank of the pipeline, by the actions of its schedule.
local function staged(l, st)
  local name = l.interleave > 1 and "interleaved" or "1f1b"
  local s = proof.with_transfers(schedules.generate(name, l.pp, st.micro_batches, l.interleave))
  local programs = {}
  for rank = 0, l.pp - 1 do
    local p, waits = {}, {}
    programs[rank] = p
    for i, a in ipairs(s[rank]) do
      local id = a.stage .. "." .. a.micro
      if a.op == "SEND" then
        p[#p + 1] = { "send", st.edge, a.peer, "send", "s" .. i }
      elseif a.op == "RECV" then
        p[#p + 1] = { "recv", st.edge, a.peer, "send", "r" .. i }
        waits[a.what .. id] = "r" .. i
      else
        local input = a.op == "F" and "F" .. a.stage - 1 .. "." .. a.micro or "B" .. a.stage + 1 .. "." .. a.micro
        if waits[input] then p[#p + 1] = { "wait", waits[input] } end
        local time = (a.op == "F" and st.forward or st.backward) * st.layers
        p[#p + 1] = { "run", time, (a.op == "F" and "forward " or "backward ") .. a.micro }
      end
    end
    if st.all.size > 1 then
      local kind = l.shard == "none" and "all_reduce" or "reduce_scatter"
      p[#p + 1] = { "call", kind, st.reduce * st.layers * l.interleave, l.shard == "none" and st.all or st.group,
        "reduce gradients" }
    end
  end
  return programs
end

--- The programs of a judged layout.
function M.of(l)
  local st = stage_of(l)
  if l.pp > 1 then return staged(l, st) end
  return flat(l, st)
end

return M
