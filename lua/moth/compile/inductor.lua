--- The backend "inductor": calls of a graph are taken apart by their records (moth.compile.lower), what can be computed
-- together is grouped (moth.compile.fuse), each group becomes a program of the kernel language (moth.compile.schedule),
-- and all of them one file of C (moth.kernel.native). The other calls run as recorded (moth.compile.runtime).
--
-- For segments that record no gradient, write to nothing and draw no random numbers; the rest, and all where there is no
-- C compiler, runs call by call. Kernels take sizes, strides and numbers as arguments: graphs that differ in these alone
-- share them. Maps give eager's bits, but where the compiler contracts sums and products inside a formula in another way
-- than in eager's loop: the last bit of acosh, atanh and log1p, so far. Reductions of floats add in another order.
local B = require "moth_lua"
local blocks = require "moth.compile.blocks"
local fuse = require "moth.compile.fuse"
local graphs = require "moth.compile.graph"
local lower = require "moth.compile.lower"
local native = require "moth.kernel.native"
local ops = require "moth.dispatch.ops"
local runtime = require "moth.compile.runtime"
local schedule = require "moth.compile.schedule"
local toolchain = require "moth.utils.toolchain"

local M = {}

--- Kernels compiled, groups and calls in them, since the start: for tests and reports.
M.counters = { kernels = 0, groups = 0, fused = 0 }

-- The calls of a graph, its placeholders, held tensors, outputs, and whether one of its calls is a view of another's
-- result; nil if it has a call that writes, draws or records a gradient.
local function read(graph)
  local value, calls, inputs, held, outputs = {}, {}, {}, {}, {}
  local shared, views = {}, false -- values that are inputs or views of inputs
  local function values_of(node, call)
    local list = {}
    value[node] = list
    for i, meta in ipairs(node.metas) do
      local fake
      list[i] = { facts = lower.facts(meta), call = call, fake = function()
        fake = fake or B.compile.graph_fake(graph.handle, node.id, i)
        return fake
      end }
    end
    return list
  end
  local function convert(v)
    if type(v) ~= "table" then return v end
    if value[v] then return value[v][1] end
    if graphs.is_number(v) then return v end
    local node = rawget(v, "node")
    if node and value[node] then return value[node][rawget(v, "result")] end
    if getmetatable(v) ~= nil then return v end
    local list = { n = v.n or #v }
    for i = 1, list.n do list[i] = convert(v[i]) end
    return list
  end
  for node in graph:nodes() do
    if node.op == "placeholder" or node.op == "get_attr" then
      values_of(node)
    elseif node.op == "call" then
      local f = graph.handle and B.compile.graph_node(graph.handle, node.id)
      local op = ops.get(node.target)
      if not f.plain or not op or op.draws or op.writes or not B.ops[node.target] then return nil end
      for _, meta in ipairs(node.metas) do
        if meta.requires_grad then return nil end
      end
      local call = { target = node.target, fn = B.ops[node.target], record = op }
      call.unit = { call = call, place = node.place, owners = {} }
      call.given = convert(node.args)
      call.given.n = node.args.n
      call.results = values_of(node, call)
      if op.memory ~= "new" then
        if op.memory ~= "view" and op.kind ~= "composite" then return nil end
        lower.each_value(call.given, call.given.n, function(v) views = views or not shared[v] end)
        for _, v in ipairs(call.results) do shared[v] = true end
      end
      calls[#calls + 1] = call
    else
      for i = 1, node.args.n do
        local v = convert(node.args[i])
        if not v.call then return nil end
        outputs[i] = v
      end
    end
  end
  return calls, inputs, held, outputs, views
end

local said = false

local function compiler()
  local cc = toolchain.cc()
  if not cc and not said then
    toolchain.log("fusion", true, "compile: there is no C compiler, so nothing is fused; MOTH_CC names one")
    said = true
  end
  return cc
end

--- The steps of a graph with their kernels, its inputs, held tensors and outputs; nil where there is nothing to fuse.
local function plan(graph)
  local calls, inputs, held, outputs, views = read(graph)
  if not calls then return nil end
  local steps, programs = fuse.steps(calls, outputs), {}
  for _, step in ipairs(steps) do
    if step.fused then
      step.kernel = schedule.program(step)
      programs[#programs + 1] = step.kernel
      M.counters.groups = M.counters.groups + 1
      M.counters.fused = M.counters.fused + #step.calls
    end
  end
  if #programs == 0 then return nil end
  local cc = compiler()
  if not cc then return nil end
  local new, message = native.programs(programs, cc)
  if not new then
    toolchain.log("fusion", true, "compile: the C compiler failed, the calls run one by one: %s", tostring(message))
    return nil
  end
  M.counters.kernels = M.counters.kernels + new
  return steps, inputs, held, outputs, views
end

--- The backend: a function of the graph's inputs, and true: values that are no outputs are deferred. nil and true: the
-- calls run one by one.
function M.backend(graph)
  graph:pin_sizes()
  local steps, inputs, held, outputs, views = plan(graph)
  if not steps then return nil, true end
  for i, v in ipairs(outputs) do outputs[i] = lower.resolve(v) end
  return runtime.program(steps, inputs, held, outputs), not views
end

return M
