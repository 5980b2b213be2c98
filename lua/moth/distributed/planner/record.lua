--- dist.record: the program of one rank, for dist.simulate, from a script's own control flow.
--
--     dist.init_process_group("fake", { rank = 0, world_size = 10240 })
--     local net = moth.fake_mode(function() return nn.parallel.DistributedDataParallel(Net()) end)
--     local program = dist.record(function() net(moth.randn(8, 4096)):sum():backward() end)
--     print(dist.simulate({ [0] = program }, { gpu = "h100" }))
--
-- The function runs on fake tensors, which have shapes and no elements; so does what makes the model. Each op is a time
-- on the device: that of its operations or of its bytes, whichever is longer. Collectives are what the function calls:
-- dist.*, dist.nn, those of dist.tp, the buckets of DistributedDataParallel, the units of fully_shard, which is called
-- within fake_mode, too. All ranks are taken to do the same. The second step of fully_shard knows which unit comes
-- next: run one in fake_mode first.
local B = require "moth_lua"
local check = require "moth.utils.check"
local collectives = require "moth.distributed.collectives"
local flops = require "moth.profiler.flops"
local groups = require "moth.distributed.group"
local hardware = require "moth.distributed.planner.hardware"
local moth = require "moth"
local signature = require "moth.utils.signature"

local function elements(shape)
  local n = 1
  for _, size in ipairs(shape) do n = n * size end
  return n
end

local function bytes_of(t) return elements(t.shape) * t:dtype().itemsize end

-- The tensors among values, also in lists.
local function tensors(values, n, out)
  for i = 1, n do
    local v = values[i]
    if B.is_tensor(v) then out[#out + 1] = v elseif type(v) == "table" then tensors(v, #v, out) end
  end
  return out
end

-- The operations of attention over all positions; a causal mask leaves out half of them. Twice and a half in backward,
-- where the query comes after the gradients.
local function of_attention(name, shapes)
  if name ~= "scaled_dot_product_attention" and not name:find "^attention_" then return nil end
  local at, times = 1, 4
  if name == "attention_backward" then at, times = #shapes[2] == #shapes[1] and 2 or 3, 10 end
  local q, k = shapes[at], shapes[at + 1]
  return times * elements(q) * k[#k - 1]
end

-- Seconds of an op on the device; 0 of a view, and of what only makes memory.
local function seconds(gpu, name, args, results)
  local op = require("moth.dispatch.ops").get(name)
  if op and op.kind == "view" or name == "detach" or name == "comm_copy_to" or name:find "empty" then return 0 end
  local a, r, moved = {}, {}, 0
  for i, t in ipairs(args) do
    a[i] = { unpack(t.shape) }
    moved = moved + bytes_of(t)
  end
  for i, t in ipairs(results) do
    r[i] = { unpack(t.shape) }
    moved = moved + bytes_of(t)
  end
  local attention = of_attention(name, a)
  local work = attention and attention / gpu.attention or (flops.flops(name, a, r) or 0) / gpu.gemm
  return math.max(work / gpu.peak, moved / gpu.hbm)
end

-- comm_* ops, as dist.simulate calls them; which tensor's bytes count.
local kinds = { comm_all_reduce = "all_reduce", comm_reduce_by = "all_reduce", comm_reduce_from = "all_reduce",
  comm_all_gather = "all_gather", comm_unshard = "all_gather", comm_reduce_scatter = "reduce_scatter",
  comm_all_to_all = "all_to_all",
  comm_broadcast = "broadcast", comm_reduce = "broadcast", all_reduce = "all_reduce", all_gather = "all_gather",
  reduce_scatter = "reduce_scatter", all_to_all = "all_to_all", broadcast = "broadcast", reduce = "broadcast",
  barrier = "barrier", gather = "all_gather", scatter = "broadcast" }

-- The ranks of a group, for simulate: how many, and the most that share a node.
local function ranks_of(group, gpu)
  local count, most = {}, 0
  for _, r in ipairs(group.ranks) do
    local node = math.floor(r / gpu.node)
    count[node] = (count[node] or 0) + 1
    most = math.max(most, count[node])
  end
  return { size = group.size, near = most }
end

--- What fn does on this rank, as a program for dist.simulate, and what fn returns. All of its tensors are fake. gpu: a
-- name or a table, as for simulate. Messages (send, recv) cannot be recorded: the other rank does something else.
return signature("distributed.record(function fn, *, any gpu='h100')", function(fn, o)
  local gpu, program, works = hardware.gpu("[distributed.record]", o.gpu), {}, 0
  local all = groups.of(nil, "record")
  if all.backend ~= "fake" then
    check.fail("[distributed.record] the process group must be of the backend fake, this one is %s", all.backend)
  end
  local sizes = {}
  local function ranks(group)
    sizes[group.number] = sizes[group.number] or ranks_of(group, gpu)
    return sizes[group.number]
  end
  local function run(name, time)
    if time > 0 then program[#program + 1] = { "run", time, name } end
  end

  local function handler(func, args, kwargs)
    local results = { func(unpack(args, 1, args.n)) }
    local given, made = tensors(args, args.n or #args, {}), tensors(results, #results, {})
    if kwargs and B.is_tensor(kwargs.out) then made[1] = kwargs.out end
    if kinds[func.name] then
      local group = all
      for i = 2, args.n or #args do -- group and size come last
        if type(args[i]) == "number" and i == (args.n or #args) - 1 then group = groups.numbered(args[i]) or all end
      end
      local whole = (func.name == "comm_all_gather" or func.name == "comm_unshard") and made[1] or given[1]
      program[#program + 1] = { "call", kinds[func.name], bytes_of(whole), ranks(group), func.name }
    else
      run(func.name, seconds(gpu, func.name, given, made))
    end
    return unpack(results)
  end

  local function note(name, group, from, to, async)
    if not kinds[name] then
      check.fail("[distributed.record] %s: messages between two ranks cannot be recorded", name)
    end
    local whole = name == "all_gather" and to or from or to
    local amount = whole and bytes_of(whole) or 4
    if not async then
      program[#program + 1] = { "call", kinds[name], amount, ranks(group), name }
      return nil
    end
    works = works + 1
    local id = works
    program[#program + 1] = { "start", kinds[name], amount, ranks(group), name, id }
    return function() program[#program + 1] = { "wait", id } end
  end

  local was = collectives.recorder
  collectives.recorder = note
  local function done(ok, ...)
    collectives.recorder = was
    if not ok then error((...), 0) end
    return program, ...
  end
  return done(pcall(moth.fake_mode, function() return moth.dispatch_mode(handler, fn) end))
end, true)
