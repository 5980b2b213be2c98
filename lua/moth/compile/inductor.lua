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
local templates = require "moth.compile.templates"
local toolchain = require "moth.utils.toolchain"

local M = {}
local C = B.compile

M.counters = require "moth.compile.generated"

-- The calls of a graph, and its outputs; nil if it has a call that records a gradient, or, unless it is a plain graph
-- of moth.compile.aot, one that writes, draws or is under autocast (there the casts are calls). open: of
-- moth.compile.templates: sizes are symbols.
local function read(graph, is_plain, open)
  local value, calls, outputs = {}, {}, {}
  local owner = open and open:owner(graph.handle) or graph
  local function values_of(id, metas, call)
    local list = {}
    value[id] = list
    for i, meta in ipairs(metas) do
      local fake
      local facts = lower.facts(meta)
      if open then facts.shape, facts.stride = open:list(facts.shape), open:list(facts.stride) end
      list[i] = { facts = facts, call = call, node = id, result = i, fake = function()
        fake = fake or C.graph_fake(owner.handle, id, i)
        return fake
      end }
    end
    return list
  end
  local function convert(v)
    if type(v) ~= "table" then return v end
    if v.node then return value[v.node][v.result] end
    if v.size then return type(v.size) == "table" and open:list(v.size) or open:number(v.size) end
    if v.number then return graphs.Graph.number(owner, v) end
    local list = { n = v.n or #v }
    for i = 1, list.n do list[i] = convert(v[i]) end
    return list
  end
  for _, id in ipairs(C.graph_nodes(graph.handle)) do
    local f = C.graph_node(graph.handle, id, open ~= nil)
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

local function itself(v) return v end

-- What is changed in a graph: { inserted = calls that others were taken apart into, replaced = those others, values =
-- { { value, the one that takes its place }, … } }.
local function changes(calls, steps)
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
  local out = { inserted = list, replaced = {}, values = {} }
  for i = #calls, 1, -1 do
    local call = calls[i]
    if replaced[call] then
      out.replaced[#out.replaced + 1] = call.node
      for k, v in ipairs(call.results) do
        local to = lower.resolve(v)
        if to ~= v then out.values[#out.values + 1] = { call.node, k, to } end
      end
    end
  end
  return out
end

-- Writes changes into the graph; values: the numbers of symbols. False, and the graph is as it was: calls have given
-- other values than those that it was made for.
local function rewrite(graph, change, values)
  for n, call in ipairs(change.inserted) do
    local fakes, ids, results, known = {}, {}, {}, {}
    local function given(v)
      if type(v) ~= "table" then return values(v) end
      if graphs.is_number(v) then
        C.graph_pin(graph.handle, v.index)
        return v.value
      end
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
    local id = C.graph_insert(graph.handle, call.unit.call.node, fakes, ids, results, call.fn, args)
    if not call.node then
      call.node = id
      for i, v in ipairs(call.results) do v.node, v.result = id, i end
    end
    if values ~= itself and not templates.is_same(graph.handle, call, id, values) then
      for k = n, 1, -1 do C.graph_erase(graph.handle, k == n and id or change.inserted[k].node) end
      return false
    end
  end
  for _, r in ipairs(change.values) do C.graph_replace(graph.handle, r[1], r[2], r[3].node, r[3].result) end
  for _, id in ipairs(change.replaced) do C.graph_erase(graph.handle, id) end
  return true
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

-- What each kernel does, as lists of names: "linear(add)" where it has only a part of a call.
local function names_of(steps)
  local parts, list = {}, {}
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
    if step.fused then list[#list + 1] = names end
  end
  return list
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

-- The same; nil and true, with one warning, where a kernel cannot be generated.
local function try_steps(calls, outputs)
  if M.strict or lower.open then return steps_of(calls, outputs) end
  local ok, steps = pcall(steps_of, calls, outputs)
  if ok then return steps end
  local message = tostring(steps)
  if message:find("interrupted", 1, true) then error(steps, 0) end
  if not told[message] then
    told[message] = true
    io.stderr:write(("[moth] warning: compile: no kernels for a graph, it runs in blocks; please report this: %s\n")
      :format(message))
  end
  return nil, true
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

-- The code of a graph whose calls are known: { steps, change, names }; false: there is nothing to fuse; nil: it has
-- failed, or there is no compiler. tune: nil, or moth.compile.tune.
local function code_of(calls, outputs, tune)
  local steps, failed = try_steps(calls, outputs)
  if steps and tune then
    steps = tune.steps(steps, compile, function() return try_steps(calls, outputs) end, is_checked())
  end
  if not steps then
    if failed then return nil end
    return false
  end
  log(steps)
  local done, message = compile(steps)
  if not done then
    if message then toolchain.log("fusion", true, "compile: pointwise calls run in blocks: %s", message) end
    return nil
  end
  for _, step in ipairs(steps) do
    if step.fused then
      M.counters.groups = M.counters.groups + 1
      M.counters.fused = M.counters.fused + #step.calls
    end
  end
  return { steps = steps, change = changes(calls, steps), names = names_of(steps) }
end

-- The steps of a plan.
local function launches(code, values)
  local run = {}
  for i, step in ipairs(code.steps) do run[i] = step.fused and runtime.launch(step, values) or step.calls[1].node end
  return run
end

-- The plan of a graph by its code; nil: the code does not hold for it.
local function run_code(graph, code, values)
  if not rewrite(graph, code.change, values) then return nil end
  for _, names in ipairs(code.names) do graph:add_kernel(names) end
  return C.plan_new(graph.handle, launches(code, values))
end

-- Tells, if somebody listens, for which sizes a template is.
local function tell(graph, template)
  local logged = toolchain.logs "guards"
  if not template.code or not logged and not graphs.is_watched() then return end
  local list = template:texts(graph)
  graph:add_guards(list)
  if logged and #list > 0 then
    toolchain.log("guards", false, "%s", "kernels for any sizes where\n  " .. table.concat(list, "\n  "))
  end
end

-- The plan of a graph by code for any sizes, that is known or new; false: there is nothing to fuse; nil: no such code.
local function code_for_any(graph, is_plain)
  local kind = ("%s %s %s "):format(is_plain, toolchain.cc(), is_checked())
  local form = templates.form(graph, kind)
  local function concrete()
    local calls, outputs = read(graph, is_plain)
    return calls and code_of(calls, outputs)
  end
  local known = templates.find(form, concrete)
  if known then
    tell(graph, known)
    local made = known.code and run_code(graph, known.code, known:values(form.bytes))
    if made ~= nil then return made end
    templates.drop(form, known)
  end
  local made = templates.make(form, function(open)
    lower.open = open
    local ok, calls, outputs = pcall(read, graph, is_plain, open)
    local code
    if ok and calls then ok, code = pcall(code_of, calls, outputs) end
    lower.open = nil
    if not ok then error(code or calls, 0) end
    for _, step in ipairs(code and code.steps or {}) do
      if step.fused then step.kernel.prog, step.kernel.printer, step.kernel.code = nil, nil, nil end
    end
    return code
  end)
  if made then tell(graph, made) end
  local run = made and made.code
  if run then run = run_code(graph, made.code, made:values(form.bytes)) end
  if run ~= nil then templates.keep(form, made, (C.graph_pins(graph.handle))) end
  return run
end

-- The plan of a graph; any: by what is known of others that differ in sizes. nil: there is nothing to fuse,
-- or no compiler.
local function plan(graph, is_plain, any, tune)
  if any and not tune and not toolchain.logs "output_code" and not toolchain.logs "fusion" then
    local made = code_for_any(graph, is_plain)
    if made ~= nil then return made or nil end
  end
  local calls, outputs = read(graph, is_plain)
  local code = calls and code_of(calls, outputs, tune)
  return code and run_code(graph, code, itself) or nil
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
    rewrite(graph, changes(calls, steps), itself)
    return graph, steps
  end)
end

-- The backend; tune: nil, or moth.compile.tune.
local function backend_with(tune)
  -- That of plain graphs (moth.compile.aot). It saves less for backward, and computes pointwise calls again: about 1 %
  -- of a GPT's step for a fifth of its memory.
  local with_gradients = aot.backend(function(graph, _, info)
    return interpreted(plan, graph, true, info.dynamic, tune) or C.plan_new(graph.handle)
  end, { recompute = true })
  return function(graph, inputs)
    local any = graph.dynamic
    if not templates.remembered(any and graph, function() return interpreted(read, graph) ~= nil end) then
      return with_gradients(graph, inputs)
    end
    graph:pin_sizes()
    C.graph_fold(graph.handle)
    local made = interpreted(plan, graph, false, any, tune)
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
