--- Records a function or module as a program (moth.export.program): once for a fixed set of sizes, or at several sizes
-- of its dynamic dimensions, of which the differences are made formulas.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local tree = require "moth.lang.tree"
local class = require "moth.class"
local each = require "moth.each"
local inputs_of = require "moth.export.inputs"
local merge = require "moth.export.merge"
local checks = require "moth.export.checks"
local symbols = require "moth.compile.symbols"
local programs = require "moth.export.program"
local watched = require("moth.export.watch").watched
local trace = require "moth.lang.trace"
local writes = require "moth.export.writes"
local capture = require("moth.compile.explain").capture

local M = {}
local C = B.compile

local WHERE = "export"

-- ---- one record ----------------------------------------------------------------------------------

local autocast_types = { "cpu", "cuda" }

local function autocast_of(facts)
  if not facts.autocast then return nil end
  local out = {}
  for _, name in ipairs(autocast_types) do out[name] = facts.autocast[name] end
  return next(out) and out or nil
end

-- The arguments of a call as Lua gives them: positions count from 1, without saying so.
local function given_args(target, args, value)
  local facts = programs.call_facts(target)
  local out = { n = 0 }
  for i = 1, args.n or #args do
    if facts.args[i].type ~= "INDEX_BASE" then
      out.n = out.n + 1
      out[out.n] = value(args[i])
    elseif args[i] ~= 1 then
      check.fail("[export] %s gets positions that count from 0: it cannot be recorded", target)
    end
  end
  return out
end

-- The program of a graph. The recorder names the tensors that it holds.
local function program_of(graph, inputs, recorder, results)
  local made, nodes, count, placeholder = {}, {}, 0, 0 -- made: by the node's id
  local program = { inputs = inputs, nodes = nodes, of_state = {}, results = results }
  local function result_of(ref) -- of the binding: { node = its id, result }
    local known = made[ref.node]
    return known.kind and known or { kind = "value", name = known.out[ref.result] }
  end
  local function value(v)
    local kind = type(v)
    if kind == "table" and getmetatable(v) == nil then
      if v.node then return result_of(v) end
      local list = { kind = "list", n = v.n or #v }
      for i = 1, list.n do list[i] = value(v[i]) end
      return list
    end
    if kind == "number" or kind == "string" or kind == "boolean" or v == nil or B.is_dtype(v) then return v end
    if B.is_device(v) then return { kind = "device", name = v.type } end
    return check.fail("[export] an argument that is a %s cannot be exported", class.name(v))
  end
  for _, id in ipairs(C.graph_nodes(graph.handle)) do
    local node = C.graph_node(graph.handle, id, false, true)
    local op = node.kind
    local input = #nodes == 0 and node.target == "detach" and made[node.args[1].node]
    if input then -- those of `body`
      made[id] = input
    elseif op == "placeholder" then
      placeholder = placeholder + 1
      made[id] = { kind = "value", name = inputs[placeholder].name }
    elseif op == "get_attr" then
      local name = recorder:name_of(node.tensor)
      program.of_state[name], recorder.held[name] = true, true
      made[id] = { kind = "state", name = name }
    elseif op == "output" then
      program.outputs = {}
      local list = node.args
      for i = 1, list.n or #list do program.outputs[i] = value(list[i]).name end
    else
      local call = { op = node.target, out = {}, metas = node.metas, at = node.place,
        autocast = autocast_of(node), default_dtype = node.default_dtype ~= "float32" and node.default_dtype or nil }
      call.args = given_args(node.target, node.args, value)
      for i = 1, #node.metas do
        count = count + 1
        call.out[i] = tostring(count)
      end
      if node.out then
        call.into = {}
        for i, ref in ipairs(node.out) do call.into[i] = result_of(ref) end
      end
      made[id] = { out = call.out }
      call = recorder:control(call)
      nodes[#nodes + 1] = call
      for _, part in ipairs(call and programs.parts(call) or {}) do
        for name in each(part.of_state) do program.of_state[name] = true end
      end
    end
  end
  return programs.new(program)
end

local Recorder = {}
Recorder.__index = Recorder

--- Keeps the names of the tensors that graphs hold; `state` and `names` are those of inputs.lua's state_of.
function M.recorder(state, names, watch)
  watch = watch or { logs = {}, count = 0 }
  watch.count = watch.count + 1
  return setmetatable({ state = state, names = names, controls = {}, held = {}, parts = {}, at = 0, watch = watch,
    id = watch.count }, Recorder)
end

-- Calls a function that asks for sizes. watch.logs: what it asked for, a list for each recorder of a record;
-- watch.formulas: those of these numbers, where sizes are symbols.
function Recorder:watched(fn)
  local log, watch = {}, self.watch
  watch.logs[self.id] = log
  return symbols.watch(fn, log, watch.formulas and watch.formulas[self.id] or watch.formulas and {}, watch)
end

function Recorder:name_of(t)
  local key = B.memory_key(t)
  local name = self.names[key]
  if not name then
    local n = 1
    while self.state["constant_" .. n] do n = n + 1 end
    name = "constant_" .. n
    self.state[name], self.names[key] = { kind = "constant", tensor = t:detach() }, name
  end
  return name
end

-- A call of an op that stands for cond or while_loop is that; nil: it has more results of the one before.
function Recorder:control(node)
  local make = self.controls[node.op]
  if make then return make(node) or nil end
  return node
end

local active -- the recorder of the export that runs; moth.export.control asks for it
function M.active() return active end

-- The arguments of fn from the tensors of one record, and the results' tensors; `results` gets their structure.
local function body(fn, given, results, recorder)
  return function(...)
    local at, list, leaves, n = 0, { ... }, {}, 0
    for i, leaf in ipairs(given.leaves) do
      if B.is_tensor(leaf) then
        at = at + 1
        leaf = B.ops.detach(list[at]) -- recorded, so that a look at its elements is seen
      end
      leaves[i] = leaf
    end
    for _, i in ipairs(given.spec.keys) do n = math.max(n, i) end
    local flat, spec = recorder:watched(function()
      local flat, spec = tree.flatten({ moth.no_grad(fn, unpack(tree.unflatten(leaves, given.spec), 1, n)) })
      for i, leaf in ipairs(flat) do flat[i] = symbols.plain(leaf) end
      return flat, spec
    end)
    local kept = {}
    inputs_of.check_keys(spec, "results")
    results.spec, results.leaves = spec, {}
    for i, leaf in ipairs(flat) do
      local kind = type(leaf)
      if B.is_tensor(leaf) then
        kept[#kept + 1] = leaf
        results.leaves[i] = { tensor = #kept }
      elseif kind == "number" or kind == "string" or kind == "boolean" then
        results.leaves[i] = { constant = leaf }
      else
        check.fail("[export] the function returns a %s: expected tensors, numbers, strings, booleans or tables of them",
          class.name(leaf))
      end
    end
    return kept
  end
end

-- A record of fn on tensors. Graphs do not nest: where cond or while_loop asks for the programs of its functions, the
-- record is given up, they are recorded, and it begins anew.
local function attempt(fn, given, tensors, recorder)
  local results = {}
  recorder.at, recorder.wanted = 0, nil
  local outer = active
  active = recorder
  local ok, graph = xpcall(capture, trace.keep, body(fn, given, results, recorder), tensors)
  active = outer
  if ok then return program_of(graph, given.inputs, recorder, results) end
  if recorder.wanted then return end
  local first, why, rest = tostring(graph):match(
    "^(.-)%[[%w_.]+%] fullgraph = true, but the graph breaks: ([^\n]*)(.*)$")
  if not why then trace.rethrow(graph) end
  why = why:gsub("^batch_level", "tostring, as print calls it") -- what it asks of a tensor first
  local hint = "docs/compile.md lists what breaks a graph"
  if why:find("^vmap_") or why:find("requires_grad", 1, true) or why:find("^backward") then
    hint = "a program holds calls of ops: export the function, and take derivatives or vmap of the program"
  elseif why:find("^detach") or why:find("^alias") then -- as nn.Parameter does
    hint = "modules and parameters are made outside of the function; docs/compile.md lists what breaks a graph"
  elseif why:find("^[%w_]+$") or why:find("^[%w_]+,") then -- of the binding, no op: item, totable
    hint = "elements are not there yet: a branch or loop on them is moth.cond(pred, f, g, { x }) or " ..
      "moth.while_loop(test, body, { x })"
  elseif why:find("sizes of its result depend on elements", 1, true) then
    hint = "results of a program have sizes that its inputs' tell: moth.where(mask, x, 0) and sums over masks keep them"
  elseif recorder.inside and why:find("a tensor without values", 1, true) then
    hint = "functions of moth.cond and moth.while_loop reach the program's tensors by variables and plain tables, " ..
      "not by fields of objects: add it to the operands"
  end
  trace.rethrow(("%s[export] the program cannot be recorded as one: %s\nHINT: %s%s"):format(first, why, hint, rest))
end

--- A program of fn on tensors like given.tensors, but for the sizes of dims, without writes in place (given.as_is: with
-- them).
function M.once(fn, given, dims, recorder)
  local tensors = {}
  for i, input in ipairs(given.inputs) do
    local t, shape, same = given.tensors[i], {}, true
    for k, n in ipairs(input.shape) do
      shape[k] = dims[n] or n
      same = same and shape[k] == t:size(k)
    end
    tensors[i] = same and t:detach() or moth.fake_mode(B.ops.empty, shape, { dtype = t:dtype(), device = t:device() })
  end
  recorder.parts = {}
  while true do
    local program = attempt(fn, given, tensors, recorder)
    if program and given.as_is then return program end
    if program then return writes.functional(program, tensors, recorder.state, recorder.inside) end
    local wanted, parts = recorder.wanted, {}
    wanted.given.as_is = given.as_is
    for i, like in ipairs(wanted.given.tensors) do
      local t = moth.fake_mode(B.ops.empty, like.size, { dtype = like.dtype, device = like.device })
      wanted.given.tensors[i], wanted.given.leaves[i] = t, t
    end
    for i, part in ipairs(wanted.functions) do
      local own = M.recorder(recorder.state, recorder.names, recorder.watch)
      own.held, own.inside = recorder.held, true
      parts[i] = M.once(part, wanted.given, {}, own)
    end
    local made = wanted.finish(parts)
    made.count = #wanted.given.inputs
    recorder.parts[#recorder.parts + 1] = made
  end
end

--- For the next call of cond or while_loop in the record that runs: what `finish` makes of the programs of functions on
-- operands.
function Recorder:programs(functions, operands, finish)
  self.at = self.at + 1
  local made = self.parts[self.at]
  if made then
    if made.count == #operands then return made end
    check.fail("[export] functions of cond and while_loop reach other tensors when they are recorded again: give "
      .. "them as operands")
  end
  local given = { inputs = {}, tensors = {}, leaves = {}, spec = { keys = {} } }
  for i, t in ipairs(operands) do
    given.inputs[i] = { name = "operand_" .. i, dtype = t:dtype().name, shape = t:size(), device = t:device().type }
    given.tensors[i] = { size = t:size(), dtype = t:dtype(), device = t:device() }
    given.spec.keys[i], given.spec[i] = i, false
  end
  self.wanted = { functions = functions, given = given, finish = finish }
  error("[export] the record begins anew", 0)
end

-- ---- at any sizes --------------------------------------------------------------------------------------

--- Records fn on what inputs.lua says: returns the program, { name = { kind, tensor } } of the tensors it holds. state
-- and names are those of inputs.lua's state_of. any_one: fn is known to be right where a size is 1.
function M.of(fn, given, state, names, any_one)
  local known = {} -- but for the example's, which becomes the program
  local function record(point, watch)
    local text = merge.point_text(point)
    if known[text] then return known[text] end
    local recorder = M.recorder(state, names, watch)
    local program = M.once(fn, given, point, recorder)
    program.of_state = recorder.held
    if text ~= merge.point_text(given.example) then known[text] = program end
    return program
  end
  local lost, least_of = nil, {}
  for name, range in each(given.dims) do least_of[name] = range.min end
  if next(given.dims) and not any_one then
    local ok, example = pcall(record, given.example)
    if ok then
      local found, guards, expressions = pcall(watched, given, record, example, state)
      if found then given.guards, given.expressions = guards, expressions else lost = guards end
    end
  end
  local program = merge.at_sizes(given, record, function(records, points, known_sizes, solve)
    return merge.records(records, { points = points, known = known_sizes, state = state, follow = solve,
      guards = given.guards, lost = lost })
  end, function(message, point, example)
    if point == example then error(message, 0) end
    local equal, text = merge.equal_names(point, example), merge.point_text
    check.fail("[%s] with %s, where the example has %s: %s\nHINT: %s", WHERE, text(point), text(example),
      tostring(message), equal and ("if %s are one size always, give these dimensions the same name"):format(equal)
      or "limit the dimension by min, max and multiple_of")
  end)
  if lost then trace.rethrow(lost) end -- what the records at other sizes tell is said first
  if not any_one then
    checks.small(given, record, program, state)
    checks.corners(given, record, program, state)
    if given.guards then program.guards = checks.settled(given, least_of) end
  end
  program.dims, program.example = given.dims, given.example
  -- Only what the program holds: constants of the other records, parameters that nothing reads, are left out.
  local held = {}
  for name in each(program.of_state) do held[name] = state[name] end
  return program, held
end

--- Records a function or module on arguments: the program, what it holds, and what inputs.lua says. as_is: with its
-- writes in place.
function M.record(fn, args, dynamic, as_is)
  local given = inputs_of.inputs(fn, args, dynamic)
  given.as_is = as_is
  local program, held = M.of(fn, given, inputs_of.state_of(fn))
  return program, held, given
end

return M
