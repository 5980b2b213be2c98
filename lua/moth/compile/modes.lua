--- The modes of compile: what they make of a backend.
--
-- "reduce-overhead": one launch a call. On the CPU that is the plan, which the backends "blocks" and "inductor" make.
-- On a GPU the code of a segment is captured as a CUDA graph after two calls, with inputs of its own that each call's
-- are copied to (parameters, which stay where they are, need no copy); results are copies.
-- "max-autotune": generated kernels are timed with several sizes of blocks (moth.compile.tune), then each segment is
-- run by each backend there is, and the fastest is kept; MOTH_LOGS=autotuning prints the times. They are kept for the
-- next process.
--
-- Segments that record a gradient, write to something or draw random numbers are as in "default", but for the timed
-- kernels.
local B = require "moth_lua"
local ops = require "moth.dispatch.ops"
local C = B.compile

local M = {}

M.names = { "default", "reduce-overhead", "max-autotune" }

--- Segments captured as CUDA graphs, and replays of them, since the start: for tests and reports.
M.counters = { captured = 0, replayed = 0 }

--- The functions that backend() has made.
M.made = setmetatable({}, { __mode = "k" })

-- "eager" as a backend, for pure graphs; other graphs run call by call.
local function interpreted(graph) return graph:interpreter(), true end

local function as_default(backend, graph, inputs)
  if backend == interpreted then return nil, true end
  return backend(graph, inputs)
end

-- Whether calling a graph's code twice, or on copies of its inputs, is calling it once.
local function is_pure(graph)
  if select(3, C.graph_facts(graph.handle)) then return false end
  for node in graph:nodes() do
    local op = node.op == "call" and ops.get((node.target:gsub("_$", "")))
    if node.op == "call" then
      if not C.graph_node(graph.handle, node.id).plain or not op or op.draws or op.writes or op.memory == "self" then
        return false
      end
    end
  end
  return true
end

local function list_of(first, ...)
  if type(first) == "table" then return first end
  return { first, ... }
end

-- ---- reduce-overhead ---------------------------------------------------------------------------------

local function on_cuda(inputs)
  for _, x in ipairs(inputs) do
    if B.tensor_device(x).type ~= "cuda" then return false end
  end
  return #inputs > 0
end

-- Whether a result lies in the memory of one of the first n inputs, or of another result.
local function shares(results, inputs, n)
  for i, r in ipairs(results) do
    for k = 1, n do
      if B.shares_storage(r, inputs[k]) then return true end
    end
    for k = 1, i - 1 do
      if B.shares_storage(r, results[k]) then return true end
    end
  end
  return false
end

-- The code that replays `code`, of n inputs (and numbers behind them, which are pinned).
local function replaying(code, n)
  local cuda = require "moth.cuda"
  local calls, at, moves = 0, {}, {} -- where each input was in the call before; whether it has moved
  local graph, static, results
  local function capture(numbers, given)
    static = {}
    for i = 1, n do static[i] = moves[i] and B.ops.clone(given[i]) or given[i] end
    local got
    graph, got = cuda.graph(function()
      if numbers then
        static[n + 1] = numbers
        return list_of(code(unpack(static, 1, n + 1)))
      end
      return list_of(code(unpack(static, 1, n)))
    end)
    results = got
    if shares(results, static, n) then graph, calls = nil, -math.huge end
    M.counters.captured = M.counters.captured + 1
  end
  return function(...)
    local given = { ... }
    calls = calls + 1
    for i = 1, n do
      local pointer = B.data_ptr(given[i])
      if at[i] and at[i] ~= pointer and not moves[i] then
        moves[i] = true
        if graph and static[i] then graph = nil end -- it read this one where it was
      end
      at[i] = pointer
    end
    if calls < 3 then return code(...) end
    if not graph then capture(given[n + 1], given) end
    if not graph then return code(...) end
    for i = 1, n do
      if moves[i] then B.ops.copy_(static[i], given[i]) end
    end
    graph:replay()
    M.counters.replayed = M.counters.replayed + 1
    local out = {}
    for i, r in ipairs(results) do out[i] = B.ops.clone(r) end
    return out
  end
end

local function reduced(backend)
  return function(graph, inputs)
    if not on_cuda(inputs) or not is_pure(graph) then return as_default(backend, graph, inputs) end
    graph:pin_numbers()
    graph:pin_sizes()
    local code = backend(graph, inputs) or interpreted(graph)
    return replaying(code, #inputs), true
  end
end

-- ---- max-autotune ------------------------------------------------------------------------------------

-- The backends that are the same in each process.
local own_name = { eager = true, blocks = true, inductor = true, aot_eager = true }

-- A graph's text, without the places of its calls and the numbers of this call.
local function what_it_does(graph)
  local text = C.graph_text(graph.handle):gsub(" +%-%- [^\n]*", ""):gsub(" +%S+:%d+\n", "\n")
  return (text:gsub("(k%d+) = [^,)]*", "%1"))
end

-- What runs a segment: the fastest of the backends, as it was timed, or is now.
local function tuned(backend, name)
  local tune = require "moth.compile.tune"
  local inductor = require "moth.compile.inductor"
  if name == "inductor" then backend = inductor.tuned end
  local list = { { "one by one", interpreted }, { name, backend } }
  if name ~= "blocks" then list[#list + 1] = { "blocks", require("moth.compile.blocks").backend } end
  if name ~= "inductor" then list[#list + 1] = { "inductor", inductor.tuned } end
  return function(graph, inputs)
    if not is_pure(graph) then return as_default(backend, graph, inputs) end
    local device = inputs[1] and tostring(B.tensor_device(inputs[1])) or "cpu"
    local what = ("a segment of %d calls"):format(graph:count())
    local key = table.concat({ "segment", name, tune.place(device), what_it_does(graph) }, "\0")
    local known = own_name[name] and tune.known(key, what)
    for _, one in ipairs(list) do
      if one[1] == known then
        local code, own = one[2](graph, inputs)
        if code ~= nil then return code, own end
      end
    end
    local args, n, numbers = { unpack(inputs) }, #inputs, {}
    for i, k in ipairs(graph:numbers()) do numbers[i] = k.value end
    if #numbers > 0 then
      n = n + 1
      args[n] = numbers
    end
    local codes, times = {}, {}
    for _, one in ipairs(list) do
      local code, own = one[2](graph, inputs)
      if code ~= nil then
        codes[one[1]] = { code, own }
        times[#times + 1] = { one[1], tune.time(function() code(unpack(args, 1, n)) end, device) }
      end
    end
    local best = codes[tune.keep(key, what, times)]
    return best[1], best[2]
  end
end

--- The backend that a mode makes of one, and its name (nil: "inductor", but in mode "default").
function M.backend(mode, backend, name)
  if mode == nil or mode == "default" then return backend, name end
  if name == nil then backend, name = require("moth.compile.inductor").backend, "inductor" end
  backend = backend or interpreted
  local made = mode == "max-autotune" and reduced(tuned(backend, name or "eager")) or reduced(backend)
  M.made[made] = true
  return made, name
end

return M
