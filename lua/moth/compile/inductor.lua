--- The backend "inductor": calls of a graph are taken apart by their records (moth.compile.lower), what can be computed
-- together is grouped (moth.compile.fuse), each group becomes a program of the kernel language (moth.compile.schedule),
-- and all of them one file of C (moth.kernel.native), or of CUDA C++ for each GPU (moth.kernel.cuda). The plan of the
-- graph launches them (moth.compile.runtime), and runs the other calls as recorded.
--
-- Segments that record gradients, write to tensors, draw random numbers or run under autocast become plain graphs
-- first, forward and backward (moth.compile.aot). Where there is no compiler, the backend is "blocks". Kernels take
-- sizes, strides and numbers as arguments: graphs that differ in these alone share them. Maps give eager's bits, but
-- where the compiler contracts sums and products inside a formula in another way than in eager's loop: the last bit of
-- acosh, atanh and log1p, so far. Reductions of floats add in another order, which does not depend on the number of
-- threads.
local aot = require "moth.compile.aot"
local B = require "moth_lua"
local blocks = require "moth.compile.blocks"
local fuse = require "moth.compile.fuse"
local graphs = require "moth.compile.graph"
local interpreted = require "moth.compile.interpreted"
local lower = require "moth.compile.lower"
local native = require "moth.kernel.native"
local ops = require "moth.dispatch.ops"
local runtime = require "moth.compile.runtime"
local schedule = require "moth.compile.schedule"
local system = require "moth.utils.system"
local toolchain = require "moth.utils.toolchain"

local M = {}
local C = B.compile

M.counters = require "moth.compile.generated"

-- The calls of a graph, and its outputs; nil if it has a call that records a gradient, or, unless it is a plain graph
-- of moth.compile.aot, one that writes, draws or is under autocast (there the casts are calls).
local function read(graph, is_plain)
  local value, calls, outputs = {}, {}, {}
  local function values_of(id, metas, call)
    local list = {}
    value[id] = list
    for i, meta in ipairs(metas) do
      local fake
      list[i] = { facts = lower.facts(meta), call = call, node = id, result = i, fake = function()
        fake = fake or C.graph_fake(graph.handle, id, i)
        return fake
      end }
    end
    return list
  end
  local function convert(v)
    if type(v) ~= "table" then return v end
    if v.node then return value[v.node][v.result] end
    if v.number then return graph:number(v) end
    local list = { n = v.n or #v }
    for i = 1, list.n do list[i] = convert(v[i]) end
    return list
  end
  for _, id in ipairs(C.graph_nodes(graph.handle)) do
    local f = C.graph_node(graph.handle, id)
    if f.kind == "placeholder" or f.kind == "get_attr" then
      values_of(id, f.metas)
    elseif f.kind == "call" then
      local op = ops.get(f.target)
      if not op or not is_plain and (op.draws or op.writes or f.autocast) then return nil end
      for _, meta in ipairs(f.metas) do
        if meta.requires_grad then return nil end
      end
      local call = { target = f.target, node = id, record = f.plain and op or nil }
      call.barrier = op.writes ~= nil or f.target:sub(-1) == "_"
      call.unit = { call = call, place = f.place, owners = {} }
      call.given = convert(f.args)
      call.results = values_of(id, f.metas, call)
      calls[#calls + 1] = call
    else
      outputs = convert(f.args)
    end
  end
  return calls, outputs
end

-- Writes the calls that others were taken apart into in their place in the graph.
local function rewrite(graph, calls, steps)
  local replaced = {}
  for _, call in ipairs(calls) do replaced[call] = true end
  local list, listed = {}, {}
  for _, step in ipairs(steps) do
    for _, call in ipairs(step.calls) do
      replaced[call] = nil
      if not call.node and not listed[call] then list[#list + 1] = call end
      listed[call] = true
    end
  end
  table.sort(list, function(a, b) return a.at < b.at end)
  for _, call in ipairs(list) do
    local fakes, ids, results, known = {}, {}, {}, {}
    local function given(v)
      if type(v) ~= "table" then return v end
      if graphs.is_number(v) then return v:pin() end
      if v.facts then
        if not known[v] then
          known[v] = C.graph_fake(graph.handle, v.node, v.result)
          fakes[#fakes + 1], ids[#ids + 1], results[#results + 1] = known[v], v.node, v.result
        end
        return known[v]
      end
      local copy = {}
      for i = 1, v.n or #v do copy[i] = given(v[i]) end
      return copy
    end
    local args = given(call.args)
    args.n = call.args.n
    call.node = C.graph_insert(graph.handle, call.unit.call.node, fakes, ids, results, call.fn, args)
    for i, v in ipairs(call.results) do v.node, v.result = call.node, i end
  end
  for i = #calls, 1, -1 do
    local call = calls[i]
    if replaced[call] then
      for k, v in ipairs(call.results) do
        local to = lower.resolve(v)
        if to ~= v then C.graph_replace(graph.handle, call.node, k, to.node, to.result) end
      end
    end
  end
  for i = #calls, 1, -1 do
    if replaced[calls[i]] then C.graph_erase(graph.handle, calls[i].node) end
  end
end

local said = false

local function compiler()
  local cc = toolchain.cc()
  if not cc and not said and not system.getenv "MOTH_CC" then -- of that one the search has told
    toolchain.log("fusion", true, "compile: there is no C compiler: pointwise calls run in blocks; MOTH_CC names one")
    said = true
  end
  return cc
end

local function log(steps)
  local fusion, code, number = toolchain.logs("fusion"), toolchain.logs("output_code"), 0
  if not fusion and not code then return end
  for _, step in ipairs(steps) do
    if step.fused and code then
      number = number + 1
      toolchain.log("output_code", false, "%s", "\n" .. schedule.source(step.kernel, "fused" .. number))
    end
    if step.fused and fusion then
      toolchain.log("fusion", false, ("kernel of %d calls over [%s]: %s"):format(#step.calls,
        table.concat(step.shape, ", "), step.kernel.text))
    end
  end
end

-- Tells the graph what each kernel does: "linear(add)" where it has only a part of a call.
local function note(graph, steps)
  local parts = {}
  for _, step in ipairs(steps) do
    for _, call in ipairs(step.calls) do parts[call.unit] = (parts[call.unit] or 0) + 1 end
  end
  for _, step in ipairs(steps) do
    local names, here, order = {}, {}, {}
    for _, call in ipairs(step.fused and step.calls or {}) do
      if not here[call.unit] then
        here[call.unit] = {}
        order[#order + 1] = call.unit
      end
      table.insert(here[call.unit], call.target)
    end
    for i, unit in ipairs(order) do
      local whole = #here[unit] == parts[unit]
      names[i] = unit.call.target .. (whole and "" or "(" .. table.concat(here[unit], " ") .. ")")
    end
    if step.fused then graph:add_kernel(names) end
  end
end

local function is_checked() return native.checked() or require("moth.compile").config.check end

-- The steps of a graph's calls, with programs where they are fused; nil: none is.
local function steps_of(calls, outputs)
  local steps, any, checked = fuse.steps(calls, outputs), false, is_checked()
  for _, step in ipairs(steps) do
    if step.fused then
      step.kernel, any = schedule.kernel(step, checked), true
    end
  end
  return any and steps or nil
end

--- Whether a kernel that cannot be generated, which is a mistake of moth, is an error: so for specs.
M.strict = false
local told = {}

-- The same; nil, with one warning, where a kernel cannot be generated.
local function try_steps(calls, outputs)
  if M.strict then return steps_of(calls, outputs) end
  local ok, steps = pcall(steps_of, calls, outputs)
  if ok then return steps end
  local message = tostring(steps)
  if message:find("interrupted", 1, true) then error(steps, 0) end
  if not told[message] then
    told[message] = true
    io.stderr:write(("[moth] warning: compile: no kernels for a graph, it runs in blocks; please report this: %s\n")
      :format(message))
  end
end

-- Compiles the programs of steps, those of each device together. nil and a message where a compiler fails, nil alone
-- where there is none.
local function compile(steps)
  local devices, lists = {}, {}
  for _, step in ipairs(steps) do
    if step.fused then
      if not lists[step.device] then
        lists[step.device] = {}
        devices[#devices + 1] = step.device
      end
      table.insert(lists[step.device], step.kernel)
    end
  end
  for _, device in ipairs(devices) do
    local count, message
    if device == "cpu" then
      local cc = compiler()
      if not cc then return nil end
      count, message = native.programs(lists[device], cc)
      if not count then return nil, "the C compiler failed: " .. message end
    else
      count, message = require("moth.kernel.cuda").programs(lists[device], tonumber(device:match("%d+")) or 0)
      if not count then return nil, "no kernels for " .. device .. ": " .. message end
    end
    M.counters.kernels = M.counters.kernels + count
  end
  return true
end

-- The plan of a graph whose calls are known; nil: there is nothing to fuse, or no compiler.
local function plan(graph, calls, outputs, tune)
  local steps = try_steps(calls, outputs)
  if steps and tune then
    steps = tune.steps(steps, compile, function() return try_steps(calls, outputs) end, is_checked())
  end
  if not steps then return nil end
  log(steps)
  local done, message = compile(steps)
  if not done then
    if message then toolchain.log("fusion", true, "compile: pointwise calls run in blocks: %s", message) end
    return nil
  end
  note(graph, steps)
  rewrite(graph, calls, steps)
  local run = {}
  for i, step in ipairs(steps) do
    if step.fused then
      M.counters.groups = M.counters.groups + 1
      M.counters.fused = M.counters.fused + #step.calls
    end
    run[i] = step.fused and runtime.launch(step) or step.calls[1].node
  end
  return C.plan_new(graph.handle, run)
end

--- What runs a graph as generated kernels and calls, for a library of its own (moth.inductor): the graph, which may
-- be a plain one of moth.compile.aot, and its steps, of which those with `fused` have programs. nil and why.
function M.steps(graph, inputs)
  return interpreted(function()
    local calls, outputs = read(graph)
    if not calls then
      local plain
      local _, why = aot.try(graph, inputs, function(g, _, info)
        if info.kind == "forward" then plain = plain or g end
        return g:interpreter()
      end)
      if not plain then return nil, why end
      graph = plain
      calls, outputs = read(graph, true)
      if not calls then return nil, "a call of it is of no op that can be compiled" end
    else
      graph:pin_sizes()
      if C.graph_fold(graph.handle) > 0 then calls, outputs = read(graph) end
    end
    local steps = fuse.steps(calls, outputs)
    for _, step in ipairs(steps) do
      if step.fused and step.device ~= "cpu" then return nil, "it is on " .. step.device end
      if step.fused then step.kernel = schedule.program(step) end
    end
    rewrite(graph, calls, steps)
    return graph, steps
  end)
end

-- The backend; tune: nil, or moth.compile.tune.
local function backend_with(tune)
  -- That of plain graphs (moth.compile.aot). It saves less for backward, and computes pointwise calls again: about 1 %
  -- of a GPT's step for a fifth of its memory.
  local with_gradients = aot.backend(function(graph)
    return interpreted(function()
      local calls, outputs = read(graph, true)
      return calls and plan(graph, calls, outputs, tune) or C.plan_new(graph.handle)
    end)
  end, { recompute = true })
  return function(graph, inputs)
    local calls, outputs = interpreted(read, graph)
    if not calls then return with_gradients(graph, inputs) end
    graph:pin_sizes()
    if C.graph_fold(graph.handle) > 0 then calls, outputs = interpreted(read, graph) end
    local made = interpreted(plan, graph, calls, outputs, tune)
    if not made then return blocks.backend(graph, inputs) end
    if not C.plan_facts(made).pure then return nil, true end
    return made, true
  end
end

--- The backend: the plan of the graph, and true: values that are no outputs are deferred. nil and true: the calls run
-- one by one. What cannot be compiled runs in blocks. Other segments, as said above, go through moth.compile.aot.
M.backend = backend_with()

local with_tuning

--- The same with kernels that are timed: mode "max-autotune".
function M.tuned(graph, inputs)
  with_tuning = with_tuning or backend_with(require "moth.compile.tune")
  return with_tuning(graph, inputs)
end

return M
