--- Records a function or module as a program (moth.export.program): once for a fixed set of sizes, or at several sizes
-- of its dynamic dimensions, of which the differences are made formulas.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local tree = require "moth.lang.tree"
local class = require "moth.class"
local each = require "moth.each"
local sizes = require "moth.compile.sizes"
local follow = require "moth.export.follow"
local symbols = require "moth.compile.symbols"
local programs = require "moth.export.program"
local trace = require "moth.lang.trace"
local capture = require("moth.compile.explain").capture

local M = {}

local WHERE = "export"

-- ---- names ---------------------------------------------------------------------------------------

local function is_module(fn) return type(fn) == "table" and type(fn.named_parameters) == "function" end

-- The names of a function's arguments, as its source has them.
local function names_of(fn)
  local f, first = fn, 1
  if type(fn) == "table" and rawget(fn, "argument_names") then return fn.argument_names end
  if type(fn) == "table" then f, first = rawget(fn, "forward") or fn.forward, 2 end
  local list = {}
  if type(f) ~= "function" then return list end
  for i = first, debug.getinfo(f, "u").nparams or 0 do list[#list + 1] = debug.getlocal(f, i) end
  return list
end

local function unique(used, name)
  local n, free = 1, name
  while used[free] do
    n = n + 1
    free = name .. "_" .. n
  end
  used[free] = true
  return free
end

--- What tells one tensor from another: its place in memory. Handles differ for those of the binding's own making.
function M.key_of(t)
  return ("%d %d %s %s %s"):format(B.storage_id(t), B.storage_offset(t), t:dtype().name, table.concat(t:size(), ","),
    table.concat(t:stride(), ","))
end

--- The tensors of a module by name, with { kind = "parameter" or "buffer", tensor = }, and their names by key_of.
function M.state_of(fn)
  local state, names = {}, {}
  if not is_module(fn) then return state, names end
  for name, p in fn:named_parameters() do
    state[name], names[M.key_of(p)] = { kind = "parameter", tensor = p }, name
  end
  for name, b in fn:named_buffers() do
    local key = M.key_of(b)
    if not names[key] then state[name], names[key] = { kind = "buffer", tensor = b }, name end
  end
  return state, names
end

-- ---- inputs --------------------------------------------------------------------------------------

-- The Dims that dynamic_shapes has, by name: what a name alone stands for.
local function named_dims(spec, out)
  for _, value in each(type(spec) == "table" and spec or {}) do
    if class.is_a(value, sizes.Dim) then
      out[value.name] = out[value.name] or value
    else
      named_dims(value, out)
    end
  end
  return out
end

local function dim_of(where, spec, named)
  if type(spec) == "string" then return named[spec] or sizes.Dim(spec) end
  if class.is_a(spec, sizes.Dim) then return spec end
  check.fail("[export] dynamic_shapes: %s: expected moth.Dim(name) or a name, got %s", where, class.name(spec))
end

-- The dimensions of one tensor: { [dimension] = Dim }.
local function dims_of_tensor(where, t, spec, out)
  if spec == nil or spec == false then return {} end
  if type(spec) ~= "table" or class.is_a(spec, sizes.Dim) then
    check.fail("[export] dynamic_shapes: %s: expected a table { [dimension] = moth.Dim(…) }, got %s", where,
      class.name(spec))
  end
  local list = {}
  for key, value in each(spec) do
    local ndim = t:dim()
    if type(key) ~= "number" or key ~= math.floor(key) or key == 0 or math.abs(key) > ndim then
      check.fail("[export] dynamic_shapes: %s has %d dimensions, no dimension %s", where, ndim, tostring(key))
    end
    local at = key < 0 and ndim + 1 + key or key
    local dim = dim_of(where, value, out.named)
    local known = out.dims[dim.name]
    if known and (known.min ~= dim.min or known.max ~= dim.max or known.multiple_of ~= dim.multiple_of) then
      check.fail("[export] dynamic_shapes: there are two dimensions '%s' with different ranges", dim.name)
    end
    if out.example[dim.name] and out.example[dim.name] ~= t:size(at) then
      check.fail("[export] dynamic_shapes: '%s' is %d and %d in the example's tensors: the same name is the same size",
        dim.name, out.example[dim.name], t:size(at))
    end
    if not sizes.fits(dim, t:size(at)) then
      check.fail("[export] dynamic_shapes: %s has %d in dimension %d, which is not in the range of %s", where,
        t:size(at), at, tostring(dim))
    end
    out.dims[dim.name] = { min = dim.min, max = dim.max, multiple_of = dim.multiple_of }
    out.example[dim.name] = t:size(at)
    list[at] = dim.name
  end
  return list
end

--- Whether two structures, of tree.flatten, are one.
function M.same_structure(a, b)
  if not a or not b then return a == b end
  if #a.keys ~= #b.keys then return false end
  for i, key in ipairs(a.keys) do
    if key ~= b.keys[i] or not M.same_structure(a[i], b[i]) then return false end
  end
  return true
end

-- Files and the names of values have room for keys that are texts and numbers.
local function check_keys(spec, what)
  for i, key in ipairs(spec and spec.keys or {}) do
    if type(key) ~= "string" and (type(key) ~= "number" or key - key ~= 0) then
      check.fail("[export] %s: tables have texts and numbers as keys, got %s", what, tostring(key))
    end
    check_keys(spec[i], what)
  end
end

-- Walks the arguments and dynamic_shapes side by side, in the order of tree.flatten.
local function collect(where, value, spec, out)
  if B.is_tensor(value) then
    local name = unique(out.used, where:gsub("[^%w_]", "_"))
    local dims, shape = dims_of_tensor(where, value, spec, out), {}
    for i, n in ipairs(value:size()) do shape[i] = dims[i] or n end
    out.inputs[#out.inputs + 1] = { name = name, dtype = value:dtype().name, shape = shape,
      device = value:device().type }
    out.tensors[#out.tensors + 1] = value
    return
  end
  if type(value) == "table" and check.is_plain(value) then
    if spec and (type(spec) ~= "table" or class.is_a(spec, sizes.Dim)) then
      check.fail("[export] dynamic_shapes: %s is a table: expected one of what its tensors have, got %s", where,
        class.name(spec))
    end
    for key in each(spec or {}) do
      if value[key] == nil then check.fail("[export] dynamic_shapes: %s has no %s", where, tostring(key)) end
    end
    for _, key in ipairs(tree.keys(value)) do
      collect(where .. "_" .. tostring(key), value[key], spec and spec[key], out)
    end
    return
  end
  local kind = type(value)
  if kind ~= "number" and kind ~= "string" and kind ~= "boolean" then
    check.fail("[export] argument %s: expected tensors, numbers, strings, booleans or tables of them, got %s", where,
      class.name(value))
  end
  if spec then check.fail("[export] dynamic_shapes: %s is a %s, which has no dimensions", where, kind) end
end

--- What stands behind a list of arguments: { inputs, tensors, leaves, spec, dims, example }.
function M.inputs(fn, args, dynamic)
  local out = { inputs = {}, tensors = {}, dims = {}, example = {}, used = {},
    named = named_dims(dynamic, {}) }
  local names = names_of(fn)
  local list = {}
  for i = 1, args.n or table.maxn(args) do list[i] = args[i] end
  for key in each(dynamic or {}) do
    local known = type(key) == "number" and list[key] ~= nil
    for i, name in ipairs(names) do known = known or name == key and list[i] ~= nil end
    if not known then check.fail("[export] dynamic_shapes: there is no argument %s", tostring(key)) end
  end
  for _, i in ipairs(tree.keys(list)) do
    local name = names[i] or "x" .. i
    collect(name, list[i], dynamic and (dynamic[i] or dynamic[name]), out)
  end
  out.leaves, out.spec = tree.flatten(list)
  check_keys(out.spec, "arguments")
  return out
end

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
  local facts = B.op_facts(target) or B.op_facts((target:gsub("_$", "")))
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
  local function result_of(id, result)
    local known = made[id]
    return known.kind and known or { kind = "value", name = known.out[result] }
  end
  local function value(v)
    local kind = type(v)
    if kind == "number" or kind == "string" or kind == "boolean" or v == nil or B.is_dtype(v) then return v end
    if B.is_device(v) then return { kind = "device", name = v.type } end
    if kind == "table" and rawget(v, "result") and rawget(v, "node") then return result_of(v.node.id, v.result) end
    if kind == "table" and rawget(v, "id") and made[v.id] then return result_of(v.id, 1) end
    if kind ~= "table" or getmetatable(v) ~= nil then
      check.fail("[export] an argument that is a %s cannot be exported", class.name(v))
    end
    local list = { kind = "list", n = v.n or #v }
    for i = 1, list.n do list[i] = value(v[i]) end
    return list
  end
  for handle in graph:nodes() do
    local node, id = handle:all(), handle.id
    local op = node.op
    local input = #nodes == 0 and node.target == "detach" and made[node.args[1].id]
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
      local call = { op = node.target, out = {}, metas = {}, at = node.place,
        autocast = autocast_of(node), default_dtype = node.default_dtype ~= "float32" and node.default_dtype or nil }
      call.args = given_args(node.target, node.args, value)
      for i, meta in ipairs(node.metas) do
        count = count + 1
        call.out[i] = tostring(count)
        call.metas[i] = { dtype = meta.dtype.name, shape = meta.shape }
      end
      if node.out then
        call.into = {}
        for i, ref in ipairs(node.out) do call.into[i] = result_of(ref.node, ref.result) end
      end
      made[id] = { out = call.out }
      nodes[#nodes + 1] = recorder:control(call)
    end
  end
  return programs.new(program)
end

local Recorder = {}
Recorder.__index = Recorder

--- Keeps the names of the tensors that graphs hold; `state` and `names` are those of M.state_of.
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
  local key = M.key_of(t)
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
    check_keys(spec, "results")
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
    hint = "functions of moth.cond and moth.while_loop get the tensors of the program as operands: add it to their list"
  end
  trace.rethrow(("%s[export] the program cannot be recorded as one: %s\nHINT: %s%s"):format(first, why, hint, rest))
end

--- A program of fn on tensors like given.tensors, but for the sizes of dims.
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
    if program then return program end
    local wanted, parts = recorder.wanted, {}
    for i, like in ipairs(wanted.given.tensors) do
      local t = moth.fake_mode(B.ops.empty, like.size, { dtype = like.dtype, device = like.device })
      wanted.given.tensors[i], wanted.given.leaves[i] = t, t
    end
    for i, part in ipairs(wanted.functions) do
      local own = M.recorder(recorder.state, recorder.names, recorder.watch)
      own.held, own.inside = recorder.held, true
      parts[i] = M.once(part, wanted.given, {}, own)
    end
    recorder.parts[#recorder.parts + 1] = wanted.finish(parts)
  end
end

--- For the next call of cond or while_loop in the record that runs: what `finish` makes of the programs of functions on
-- operands.
function Recorder:programs(functions, operands, finish)
  self.at = self.at + 1
  local made = self.parts[self.at]
  if made then return made end
  local given = { inputs = {}, tensors = {}, leaves = {}, spec = { keys = {} } }
  for i, t in ipairs(operands) do
    given.inputs[i] = { name = "operand_" .. i, dtype = t:dtype().name, shape = t:size(), device = t:device().type }
    given.tensors[i] = { size = t:size(), dtype = t:dtype(), device = t:device() }
    given.spec.keys[i], given.spec[i] = i, false
  end
  self.wanted = { functions = functions, given = given, finish = finish }
  error("[export] the record begins anew", 0)
end

-- ---- several records -----------------------------------------------------------------------------

local function point_text(point)
  local parts = {}
  for _, name in ipairs(tree.keys(point)) do parts[#parts + 1] = ("%s = %d"):format(name, point[name]) end
  return table.concat(parts, ", ")
end

-- The sizes to record at: the example's, then one dimension at a time, then several together; the names of the
-- dimensions; which of the sizes are far ones. given: { dims, example }.
local function points_of(given, wide)
  local names = tree.keys(given.dims)
  local points, probes, far = { given.example }, {}, {}
  for _, name in ipairs(names) do
    local first_far
    probes[name], first_far = sizes.probes(given.dims[name], given.example[name], wide)
    for i, n in ipairs(probes[name]) do
      local point = {}
      for _, other in ipairs(names) do point[other] = given.example[other] end
      point[name] = n
      points[#points + 1] = point
      far[point] = i >= first_far
    end
  end
  for k = 1, #names > 1 and 5 or 0 do
    local point, differs = {}, 0
    for i, name in ipairs(names) do
      local list = probes[name]
      local at = k <= 3 and k + i - 1 or #list - (k + i) % 3 -- near ones, then far ones
      point[name] = list[(at - 1) % math.max(#list, 1) + 1] or given.example[name]
      if point[name] ~= given.example[name] then differs = differs + 1 end
    end
    if differs > 1 then
      points[#points + 1] = point
      far[point] = k > 3
    end
  end
  return points, names, far
end

--- Makes something at several sizes, and one thing of all: make(point), then merge(list, points, names, follow), where
-- follow(values) is the formula of numbers that differ. If there is none, both are done again, at more sizes. A far
-- size at which make fails is left out: a table of positions may end before it. failed(message, point, example) tells
-- of another failure.
function M.at_sizes(given, make, merge, failed)
  local again = {}
  local expressions = given.expressions or given.nodes and follow.expressions_of(given) or {}
  for _, wide in ipairs { false, true } do
    local all, names, far = points_of(given, wide)
    for _, point in ipairs(follow.turns(expressions, all, names, given.dims, given.guards)) do
      all[#all + 1], far[point] = point, true
    end
    local points, made = {}, {}
    for _, point in ipairs(all) do
      local ok, one = pcall(make, point)
      if not ok and not far[point] then failed(one, point, all[1]) end
      if ok then points[#points + 1], made[#made + 1] = point, one end
    end
    local ok, result = pcall(merge, made, points, names, function(values)
      local f = follow.solve(points, values, names, given.dims, expressions)
      if f == nil and not wide then error(again, 0) end
      return f
    end)
    if ok then return result end
    if result ~= again then error(result, 0) end
  end
end

M.point_text = point_text

local function differs(points, i, node, other, what)
  local a = node and ("%s at %s"):format(node.op, node.at) or "the end"
  local b = other and ("%s at %s"):format(other.op, other.at) or "the end"
  check.fail("[%s] %s: with %s it is %s, with %s it is %s\nHINT: a branch or loop that depends on a size is recorded "
    .. "as it ran; take the dimension out of dynamic_shapes, or export one program for each case", WHERE, what,
    point_text(points[1]), a, point_text(points[i]), b)
end

local function same_constant(a, b)
  local x, y = a.tensor, b.tensor
  return x:dtype() == y:dtype() and moth.equal(x, y)
end

-- The size of a result: a number, a formula, or "?" where it is neither.
local function merge_size(list, about)
  local f = follow.solve(about.points, list, about.names, about.ranges, about.expressions)
  if type(f) == "table" then f.kind = "size" end
  return f or "?"
end

-- The inputs of branches, which have the sizes of the operands: a list that both branches of a record share is left.
local function merge_inputs(parts, about)
  local inputs = {}
  for k, input in ipairs(parts[1].inputs) do
    local shape = {}
    for d = 1, #input.shape do
      local list = {}
      for i, part in ipairs(parts) do list[i] = part.inputs[k].shape[d] or -1 end
      shape[d] = merge_size(list, about)
    end
    inputs[k] = { name = input.name, dtype = input.dtype, shape = shape, device = input.device }
  end
  parts[1].inputs = inputs
end

local function same_state(a, b, state)
  a, b = state[a.name], state[b.name]
  return a == b or a.kind == "constant" and b.kind == "constant" and same_constant(a, b)
end

local function kind_of(v) return type(v) == "table" and not B.is_dtype(v) and v.kind or type(v) end

local merge_records

-- What the records' values have in common: a constant or a formula. about: { points, names, ranges, state, follow }.
local function merge(list, node, where, about)
  local first, points = list[1], about.points
  local kind = kind_of(first)
  local same, other = true, nil
  for i = 2, #points do
    local v = list[i]
    if kind_of(v) ~= kind then differs(points, i, node, node, where .. " is of another kind") end
    if v ~= first and (v == v or first == first) then -- NaN, too
      same, other = false, other or i
    end
  end
  if same then return first end
  if kind == "number" then
    local f = about.follow(list)
    if f == nil then
      check.fail("[%s] %s of %s (%s) depends on a size in no way that can be followed: it is %s with %s, %s with %s\n"
        .. "HINT: sums, products and quotients of sizes can be followed; give this dimension a fixed size", WHERE,
        where, node.op, node.at, tostring(first), point_text(points[1]), tostring(list[other]),
        point_text(points[other]))
    end
    if type(f) == "table" then f.kind = "size" end
    return f
  elseif kind == "value" or kind == "device" then
    for i = 2, #points do
      if list[i].name ~= first.name then differs(points, i, node, node, where .. " is another value") end
    end
    return first
  elseif kind == "state" then
    for i = 2, #points do
      if not same_state(first, list[i], about.state) then
        check.fail("[%s] %s of %s (%s) is a tensor that Lua makes anew at each call, and which depends on a size: make "
          .. "it by ops (arange, full, …)", WHERE, where, node.op, node.at)
      end
    end
    return first
  elseif kind == "list" then
    local out = { kind = "list", n = first.n }
    for i = 2, #points do
      if list[i].n ~= first.n then differs(points, i, node, node, where .. " has another length") end
    end
    for k = 1, first.n do
      local items = {}
      for i = 1, #points do items[i] = list[i][k] end
      out[k] = merge(items, node, where, about)
    end
    return out
  elseif kind == "program" then
    local parts = {}
    for i = 1, #points do parts[i] = list[i].program end
    merge_inputs(parts, about)
    merge_records(parts, about)
    return first
  end
  return check.fail("[%s] %s of %s (%s) is %s with %s, but %s with %s", WHERE, where, node.op, node.at, tostring(first),
    point_text(points[1]), tostring(list[other]), point_text(points[other]))
end

function merge_records(records, about)
  local out, points = records[1], about.points
  for i = 2, #records do
    for k = 1, math.max(#out.nodes, #records[i].nodes) do
      local a, b = out.nodes[k], records[i].nodes[k]
      if not a or not b or a.op ~= b.op or #a.out ~= #b.out or a.args.n ~= b.args.n then
        differs(points, i, a, b, "the calls depend on a size")
      end
      for r, meta in ipairs(a.metas) do
        if meta.dtype ~= b.metas[r].dtype then
          differs(points, i, a, b, ("the dtype depends on a size, %s or %s"):format(meta.dtype, b.metas[r].dtype))
        end
      end
    end
  end
  for k, node in ipairs(out.nodes) do
    for j = 1, node.args.n do
      local list = {}
      for i, record in ipairs(records) do list[i] = record.nodes[k].args[j] end
      node.args[j] = merge(list, node, "argument " .. j, about)
    end
    for r, meta in ipairs(node.metas) do
      for d = 1, #meta.shape do
        local list = {}
        for i, record in ipairs(records) do list[i] = record.nodes[k].metas[r].shape[d] or -1 end
        meta.shape[d] = merge_size(list, about)
      end
    end
  end
  for i = 2, #records do
    if table.concat(records[i].outputs, " ") ~= table.concat(out.outputs, " ") then
      local constants = false
      for j, name in ipairs(out.outputs) do
        constants = constants or about.state[name] ~= nil and about.state[records[i].outputs[j]] ~= nil
      end
      if not constants then check.fail("[%s] the results depend on a size", WHERE) end
    end
  end
  return out
end

-- What the function returns: tables of the same keys, whose ends are tensors, constants, or numbers that sizes tell.
local function merge_results(records, about)
  local out = records[1].results
  local node = { op = "the function", at = "what it returns" }
  for i = 2, #records do
    local other = records[i].results
    local same = M.same_structure(out.spec, other.spec)
    for k, leaf in ipairs(out.leaves) do same = same and leaf.tensor == other.leaves[k].tensor end
    if not same then
      check.fail("[%s] the number or the keys of the results depend on a size: they differ with %s and with %s", WHERE,
        point_text(about.points[1]), point_text(about.points[i]))
    end
  end
  for k, leaf in ipairs(out.leaves) do
    if not leaf.tensor then
      local list = {}
      for i, record in ipairs(records) do list[i] = record.results.leaves[k].constant end
      leaf.constant = merge(list, node, "value " .. k, about)
    end
  end
end

local holds_at

-- Whether a value of a program is that of a record at these sizes.
local function is_at(v, other, dims, state)
  local kind = kind_of(v)
  if kind == "size" then
    local n = sizes.evaluate(v, dims)
    local unit = math.abs(n) > 2 ^ 24 and n % 1 == 0 and 1e-7 or 1e-14 -- the program may compute in float32
    return type(other) == "number" and (n == other or math.abs(n - other) < unit * math.abs(n))
  end
  if kind_of(other) ~= kind then return false end
  if kind == "value" or kind == "device" then return v.name == other.name end
  if kind == "state" then return same_state(v, other, state) end
  if kind == "program" then return holds_at(v.program, other.program, dims, state) end
  if kind ~= "list" then return v == other or v ~= v and other ~= other end
  for i = 1, v.n do
    if not is_at(v[i], other[i], dims, state) then return false end
  end
  return v.n == other.n
end

-- Whether a program is what a record at these sizes says.
function holds_at(program, record, dims, state)
  if #program.nodes ~= #record.nodes then return false end
  for k, a in ipairs(program.nodes) do
    local b = record.nodes[k]
    if a.op ~= b.op or a.args.n ~= b.args.n then return false end
    for j = 1, a.args.n do
      if not is_at(a.args[j], b.args[j], dims, state) then return false end
    end
  end
  local results = program.results.leaves or {} -- those of branches are tensors
  for k, leaf in ipairs(results) do
    local other = record.results.leaves[k] or {}
    if leaf.tensor ~= other.tensor or not is_at(leaf.constant, other.constant, dims, state) then return false end
  end
  return #results == #(record.results.leaves or {})
end

M.holds_at = holds_at

-- The sizes below the example's, from `first` on, at which the program is not that of the example: the largest of them
-- and what happens there; nil: there is none. look(n) -> "same", "other", or the error of an op, which the program has,
-- too.
local function largest_other(look, first, example, every)
  local function least(low, high, is) -- of those for which is(look(n)), of which high is one, and none below low
    while low < high do
      local middle = math.floor((low + high) / 2)
      if is(look(middle * every)) then high = middle else low = middle + 1 end
    end
    return low
  end
  local low, high = math.ceil(first / every), example / every
  if look(low * every) == "same" then return nil end
  low = least(low, high, function(said) return said == "same" or said == "other" end)
  low = least(low, high, function(said) return said == "same" end)
  if low * every > first and look((low - 1) * every) == "other" then return (low - 1) * every end
end

-- Small sizes are often cases of their own, in Lua code as in ops, 1 most of all: where the program is another one
-- there, the range begins behind; an error where the caller asked for them.
local function check_small(given, record, program, state)
  for _, name in ipairs(tree.keys(given.dims)) do
    local range, example, seen = given.dims[name], given.example[name], {}
    local function look(n)
      if not seen[n] then
        local point = {}
        for other, size in each(given.example) do point[other] = size end
        point[name] = n
        local ok, one = pcall(record, point)
        seen[n] = not ok and tostring(one) or holds_at(program, one, point, state) and "same" or "other"
      end
      return seen[n]
    end
    local every = range.multiple_of or 1
    local largest = example > 2 and largest_other(look, math.max(range.min, 2), example, every)
    if not largest and example > 1 and sizes.fits(range, 1) and look(1) ~= "same" then largest = 1 end
    if largest then
      if range.min > 0 then
        local said = look(largest)
        if said == "other" then said = "the function makes other calls than with other sizes" end
        check.fail("[%s] with %s = %d %s\nHINT: moth.Dim(\"%s\", { min = %d }), and a program of its own for %s",
          WHERE, name, largest, said, name, largest + every, largest == 1 and "1" or "less")
      end
      range.min = largest + every
    end
  end
end

-- ---- sizes as symbols ----------------------------------------------------------------------------

local ROUNDS = 4

-- The formulas of the numbers that were asked for in records at points, { [recorder] = { formulas } }.
local function formulas_of(logs, points, names, ranges, expressions)
  local out = {}
  for id, first in ipairs(logs[1]) do
    local alike, values = {}, {}
    for i, log in ipairs(logs) do -- of records in which as much was asked for
      if log[id] and #log[id] == #first then alike[#alike + 1], values[#values + 1] = points[i], log[id] end
    end
    out[id] = {}
    for k, n in ipairs(first) do
      local list = {}
      for i, log in ipairs(values) do list[i] = log[k] end
      local f = follow.solve(alike, list, names, ranges, expressions)
      if f == nil then f = { op = "unknown" } end
      if type(f) == "table" then f.kind = "size" end
      out[id][k] = f or n
    end
  end
  return out
end

local function is_known(f)
  if type(f) ~= "table" then return true end
  return f.op ~= "unknown" and is_known(f.a) and is_known(f.b)
end

local function without_doubles(list, text)
  local out, known = {}, {}
  for _, item in ipairs(list) do
    local key = text(item)
    if not known[key] then out[#out + 1], known[key] = item, true end
  end
  return out
end

-- Records with symbols for sizes: what the program depends on, { guards, expressions }. record(point, watch); example:
-- the program there.
local watched
function watched(given, record, example, state, wide)
  local points, names = points_of(given, wide)
  local logs, known, expressions, guards = {}, {}, {}, {}
  for _ = 1, ROUNDS do
    local all, at = {}, {}
    for _, list in ipairs { points, follow.turns(expressions, points, names, given.dims, guards) } do
      for _, point in ipairs(list) do all[#all + 1] = point end
    end
    local used = {}
    for _, point in ipairs(all) do
      local text = point_text(point)
      if logs[text] == nil then
        local watch = { logs = {}, count = 0 }
        logs[text] = pcall(record, point, watch) and watch.logs or false
      end
      if logs[text] then used[#used + 1], at[#at + 1] = logs[text], point end
    end
    local formulas = formulas_of(used, at, names, given.dims, expressions)
    local watch = { logs = {}, count = 0, formulas = formulas, expressions = {}, guards = {}, used = {} }
    local ok, made = pcall(record, given.example, watch)
    if not ok then
      check.fail("%s\nHINT: %s may have any size: where the program asks for it, it is no plain number. A loop over it "
        .. "is moth.while_loop; math.min, max, floor, ceil, abs and sqrt know it by these names; else give it a fixed "
        .. "size", tostring(made), table.concat(names, ", "))
    end
    if not M.holds_at(example, made, given.example, state) then
      check.fail("[%s] the program makes other calls where sizes are symbols: a size that may change is the key of a "
        .. "table there, or an argument of a function that gets numbers alone; give %s a fixed size", WHERE,
        table.concat(names, ", "))
    end
    expressions = {}
    local lost -- where a size is used of which nothing is known
    local function note(f, place)
      if not is_known(f) then
        lost = lost or place
      elseif type(f) == "table" then
        expressions[#expressions + 1] = f
      end
    end
    for id, f in ipairs(watch.expressions) do
      if watch.used[id] then note(f, watch.used[id]) end
    end
    guards = {}
    for _, g in ipairs(without_doubles(watch.guards, sizes.guard_text)) do
      note(g.a, g.at)
      note(g.b, g.at)
      if is_known(g.a) and is_known(g.b) then guards[#guards + 1] = g end
    end
    expressions = without_doubles(expressions, sizes.text)
    local new = false
    for _, f in ipairs(expressions) do
      new = new or not known[sizes.text(f)]
      known[sizes.text(f)] = true
    end
    if not new then
      if lost and not wide then return watched(given, record, example, state, true) end
      if lost then
        check.fail("[%s] %s: a size that is used here depends on %s in no way that can be followed", WHERE, lost,
          table.concat(names, ", "))
      end
      break
    end
  end
  return guards, expressions
end

-- Sizes at which C code takes another way are found by trying some.
local function check_corners(given, record, program, state)
  for _, name in ipairs(tree.keys(given.dims)) do
    for _, n in ipairs(sizes.corners(given.dims[name])) do
      local point = {}
      for other, size in each(given.example) do point[other] = size end
      point[name] = n
      local ok, one = pcall(record, point)
      if ok and follow.holds(given.guards, point) and not holds_at(program, one, point, state) then
        check.fail("[%s] with %s = %d the function makes other calls than with %s\nHINT: limit the dimension by "
          .. "moth.Dim(\"%s\", { min = …, max = … }), and export a program of its own for the rest", WHERE, name, n,
          point_text(given.example), name)
      end
    end
  end
end

-- Guards that hold at all sizes are left out; where the small sizes are those that a guard leaves out, the range begins
-- behind them.
local function settled(given, least_of)
  for _, name in ipairs(tree.keys(given.dims)) do
    local range, example = given.dims[name], given.example[name]
    local every = range.multiple_of or 1
    local least = math.max(range.min, example - 4096 * every)
    local behind, below = nil, false -- the first size that guards leave out, and whether they allow smaller ones
    for n = example, least, -every do
      local point = {}
      for other, size in each(given.example) do point[other] = size end
      point[name] = n
      local holds = follow.holds(given.guards, point)
      below = below or behind ~= nil and holds
      if not holds then behind = behind or n + every end
    end
    if behind and not below and least_of[name] == 0 then range.min = behind end
  end
  local left = {}
  for _, g in ipairs(given.guards) do
    if not sizes.guard_decided(g, given.dims) then left[#left + 1] = g end
  end
  return #left > 0 and left or nil
end

-- Dimensions that are equal in the example, but not at a point: "m and n", or nil.
local function equal_names(point, example)
  local names = tree.keys(point)
  for i, a in ipairs(names) do
    for k = i + 1, #names do
      local b = names[k]
      if example[a] == example[b] and point[a] ~= point[b] then return a .. " and " .. b end
    end
  end
end

--- Records fn on what M.inputs says: returns the program, { name = { kind, tensor } } of the tensors it holds. state
-- and names are those of M.state_of. any_one: fn is known to be right where a size is 1.
function M.of(fn, given, state, names, any_one)
  local known = {} -- but for the example's, which becomes the program
  local function record(point, watch)
    local text = point_text(point)
    if known[text] then return known[text] end
    local recorder = M.recorder(state, names, watch)
    local program = M.once(fn, given, point, recorder)
    program.of_state = recorder.held
    if text ~= point_text(given.example) then known[text] = program end
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
  local program = M.at_sizes(given, record, function(records, points, dim_names, solve)
    if #records == 1 then return records[1] end
    local about = { points = points, names = dim_names, ranges = given.dims, state = state, follow = solve,
      expressions = given.expressions }
    local merged = merge_records(records, about)
    merge_results(records, about)
    return merged
  end, function(message, point, example)
    if point == example then error(message, 0) end
    local equal = equal_names(point, example)
    check.fail("[%s] with %s, where the example has %s: %s\nHINT: %s", WHERE, point_text(point), point_text(example),
      tostring(message), equal and ("if %s are one size always, give these dimensions the same name"):format(equal)
      or "limit the dimension by min, max and multiple_of")
  end)
  if lost then trace.rethrow(lost) end -- what the records at other sizes tell is said first
  if not any_one then
    check_small(given, record, program, state)
    check_corners(given, record, program, state)
    if given.guards then program.guards = settled(given, least_of) end
  end
  program.dims, program.example = given.dims, given.example
  -- Only what the program holds: constants of the other records, parameters that nothing reads, are left out.
  local held = {}
  for name in each(program.of_state) do held[name] = state[name] end
  return program, held
end

--- Records a function or module on arguments: the program, what it holds, and what M.inputs says.
function M.record(fn, args, dynamic)
  local given = M.inputs(fn, args, dynamic)
  local program, held = M.of(fn, given, M.state_of(fn))
  return program, held, given
end

return M
