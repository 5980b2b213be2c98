--- Writes an exported program as an ONNX graph, by the rules in the records (`onnx`, src/ops/onnx.lua).
--
-- Positions. ONNX counts from 0, moth's Lua from 1. A value that is an index is stored from 0: what gives indices
-- (argmax, topk) gives them so, what takes them (embedding, gather) takes them so, and where a number is made an index,
-- or an index used as a number, 1 is taken away or added. An input that is only used as an index counts from 0 in the
-- file; so does an output. index_base = 1 leaves both as they are in Lua.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local follow = require "moth.export.follow"
local constants = require "moth.export.constants"
local messages = require "moth.onnx.messages"
local places = require "moth.onnx.positions"
local rules = require "moth.onnx.rules"
local programs = require "moth.export.program"
local tree = require "moth.lang.tree"
local sizes = require "moth.compile.sizes"

local M = {}

local OWN = debug.getinfo(1, "S").source -- rules are moth's code: errors point at the caller's

local Writer = {}
Writer.__index = Writer

local function refuse(message, ...) check.fail("[onnx.export] " .. message, ...) end

-- ---- records --------------------------------------------------------------------------------------

local records_by_name
local function all_records()
  if records_by_name then return records_by_name end
  records_by_name = {}
  for _, record in ipairs(require "moth.ops_table") do
    record.visible, record.indices = {}, places.facts(record).takes
    for _, a in ipairs(record.args) do
      if a.type ~= "INDEX_BASE" then record.visible[#record.visible + 1] = a end
    end
    records_by_name[record.name] = record
  end
  return records_by_name
end

-- ---- nodes and constants -------------------------------------------------------------------------

function Writer:fresh(base)
  local n, name = 1, base
  while self.used[name] do
    n = n + 1
    name = base .. "_" .. n
  end
  self.used[name] = true
  return name
end

local axes_are_inputs = {}
for name in ("Max Min Mean Prod LogSumExp L1 L2"):gmatch("%w+") do axes_are_inputs["Reduce" .. name] = true end

--- Adds a node; returns the names of its results.
function Writer:node(op, inputs, count, attributes, place)
  local list, made = {}, {}
  if axes_are_inputs[op] and self.opset >= 18 and attributes.axes then
    inputs[2], attributes.axes = self:ints(attributes.axes).name, nil
  end
  for _, key in ipairs(tree.keys(attributes)) do
    if key ~= "outputs" and attributes[key] ~= nil then list[#list + 1] = { key, attributes[key] } end
  end
  for i = 1, count do made[i] = self:fresh(op:lower()) end
  for _, name in ipairs(inputs) do self.read[name] = true end
  self.nodes[#self.nodes + 1] = { op = op, inputs = inputs, outputs = made, attributes = list, place = place }
  return made
end

--- A constant tensor of the file. key: of equal ones, which are there once.
function Writer:tensor(t, key)
  local known = key and self.constants[key .. t:dtype().name]
  if known then return known end
  local v = rules.value(self:fresh("constant"), t:dtype().name, t:size())
  self.initializers[#self.initializers + 1], self.tensors[v.name] = { v.name, t }, t
  if key then self.constants[key .. t:dtype().name] = v end
  return v
end

--- A constant of one element, or the value of a formula of sizes.
function Writer:constant(v, dtype)
  if type(v) == "table" and (v.terms or v.op) then return self:formula(v, dtype) end
  local text = type(v) == "table" and "[] " .. table.concat(v, ",") or type(v) == "number" and ("%.17g"):format(v)
  local key = dtype .. " " .. (text or tostring(v))
  local known = self.constants[key]
  if not known then
    local t = type(v) == "table" and moth.tensor(v, { dtype = B.dtype(dtype) }) or B.ops.full({}, v, { dtype = dtype })
    known = self:tensor(t)
    self.constants[key] = known
  end
  return known
end

-- The size of a dimension, as a tensor of one element.
function Writer:dim(name)
  local known = self.dims[name]
  if known then return known end
  for _, input in ipairs(self.inputs) do
    for i, n in ipairs(input.shape) do
      if n == name then
        local shape = self:node("Shape", { input.name }, 1, {}, "")
        local at = self:constant({ i - 1 }, "int64")
        known = self:node("Gather", { shape[1], at.name }, 1, { axis = 0 }, "")[1]
        self.dims[name] = known
        return known
      end
    end
  end
  return refuse("no input has the dimension %s", name)
end

local calls = { add = "Add", sub = "Sub", mul = "Mul", mod = "Mod", min = "Min", max = "Max", abs = "Abs" }
local floats = { div = "Div", pow = "Pow", sqrt = "Sqrt", floor = "Floor", ceil = "Ceil", log = "Log", exp = "Exp" }

--- A formula as a tensor of one element in a list: int64, or another dtype.
function Writer:size(f, dtype)
  f, dtype = sizes.call(f), dtype or "int64"
  local ints = dtype == "int64"
  local function node(op, ...) return self:node(op, { ... }, 1, {}, "")[1] end
  local function cast(v) return self:node("Cast", { v }, 1, { to = messages.code(dtype) }, "")[1] end
  if type(f) == "number" then
    if ints and f % 1 ~= 0 then refuse("a size that is computed of %s, which is no integer", tostring(f)) end
    return self:constant({ f }, dtype).name
  end
  if type(f) == "string" then return ints and self:dim(f) or cast(self:dim(f)) end
  local rounds, quotient = f.op == "floor" or f.op == "ceil", f.op == "floor" and sizes.call(f.a)
  local whole = quotient and quotient.op == "div" and sizes.is_whole(quotient.a) and sizes.is_whole(quotient.b)
  if not ints and (whole or f.op == "mod" or not rounds and sizes.is_whole(f)) then return cast(self:size(f)) end
  if whole then
    local over, by = self:size(quotient.a), self:size(quotient.b)
    if sizes.may_be_negative(quotient) then over = node("Sub", over, node("Mod", over, by)) end -- Div cuts towards 0
    return node("Div", over, by)
  end
  if ints and rounds then return cast(self:size(f, "float64")) end
  local op = calls[f.op] or not ints and floats[f.op]
  if not op then refuse("%s of sizes as a size: %s", f.op, sizes.text(f)) end
  return node(op, self:size(f.a, dtype), f.b and self:size(f.b, dtype))
end

--- The value of a formula as a tensor without dimensions.
function Writer:formula(f, dtype)
  local v = self:node("Squeeze", { self:size(f, dtype), self:constant({ 0 }, "int64").name }, 1, {}, "")[1]
  return rules.value(v, dtype, {})
end

--- A list of sizes, numbers or formulas, as a tensor of int64.
function Writer:ints(list)
  local fixed, parts = true, {}
  for _, n in ipairs(list) do
    if type(n) == "string" then refuse("a size that depends on elements") end
    fixed = fixed and type(n) == "number"
  end
  if fixed then
    if #list == 0 then return self:tensor(B.ops.zeros({ 0 }, { dtype = "int64" })) end
    return self:constant(list, "int64")
  end
  for i, n in ipairs(list) do
    parts[i] = type(n) == "number" and self:constant({ n }, "int64").name or self:size(n)
  end
  return rules.value(self:node("Concat", parts, 1, { axis = 0 }, "")[1], "int64", { #list })
end

--- An error unless all calls that use result i of a call pass a test.
function Writer:only(node, i, test)
  for _, other in ipairs(self.program.nodes) do
    for k = 1, other.args.n do
      local v = other.args[k]
      if type(v) == "table" and v.kind == "value" and v.name == node.out[i] and not test(other) then
        refuse("%s (%s) is used by %s in a way that ONNX's does not give", node.op, node.at, other.op)
      end
    end
  end
  for _, name in ipairs(self.program.outputs) do
    if name == node.out[i] then refuse("result %d of %s (%s) is none of ONNX's", i, node.op, node.at) end
  end
end

-- ---- positions -----------------------------------------------------------------------------------

local gives_index = { argmax = 1, argmin = 1, max_dim = 2, min_dim = 2, topk = 2, sort = 2,
  max_pool2d_with_indices = 2 } -- as their rules do

-- Whether the result of a call holds elements of its arguments, and all of these count from 0.
function Writer:passes(node, record)
  local facts, all = places.facts(record), true
  local any = false
  if facts.results[1] ~= "carried" or #node.out > 1 or node.metas[1].dtype == "bool" then return false end
  local function look(v)
    if type(v) == "number" or type(v) == "table" and v.kind == "size" then
      all = false -- a number is one of Lua's
    elseif type(v) == "table" and (v.kind == "value" or v.kind == "state") then
      local known = self.values[v.name]
      any = true
      all = all and known ~= nil and self.index[known.name] or false
    elseif type(v) == "table" and v.kind == "list" then
      for i = 1, v.n do look(v[i]) end
    end
  end
  for i, a in ipairs(record.visible) do
    if facts.carries[a.name] then look(node.args[i]) end
  end
  return all and any
end

-- A value as a call wants it: from 0 where it is an index, a number elsewhere.
function Writer:shifted(v, index)
  if not v.dtype or (self.index[v.name] or false) == (index or false) then return v end
  local key = v.name .. (index and " -1" or " +1")
  if not self.moved[key] then
    local one = self:constant(1, v.dtype)
    local made = rules.value(self:node(index and "Sub" or "Add", { v.name, one.name }, 1, {}, "")[1], v.dtype, v.shape)
    self.index[made.name], self.moved[key] = index or nil, made
    self.moved[made.name .. (index and " +1" or " -1")] = v
  end
  return self.moved[key]
end

-- ---- messages ------------------------------------------------------------------------------------

local function messages_of(nodes)
  local list = {}
  for i, node in ipairs(nodes) do
    list[i] = messages.node(node.op, node.inputs, node.outputs, node.attributes, ("%s_%d"):format(node.op, i),
      node.place)
  end
  return list
end

-- A shape as the file shows it: sums of sizes by a name, what cannot be said left open.
local function shown(shape)
  local out = {}
  for k, n in ipairs(shape) do
    out[k] = n
    if type(n) == "table" then
      local plain = not (n.div or n.op)
      out[k] = plain and sizes.text(n):gsub("%W", "_") or "?"
    end
  end
  return out
end

local function open(shape)
  local out = {}
  for k in ipairs(shape) do out[k] = "?" end
  return out
end

-- ---- calls ---------------------------------------------------------------------------------------

-- The arguments of a call by name, as its rule sees them.
function Writer:arguments(node, record, passes)
  local values, carries = {}, places.facts(record).carries
  local first
  local function convert(v, a)
    if type(v) ~= "table" or v.kind == "size" then return v end
    if v.kind == "value" or v.kind == "state" then
      local known = self.values[v.name] or self:state(v.name)
      if passes and carries[a.name] then return known end
      return self:shifted(known, record.indices[a.name])
    end
    if v.kind == "list" then
      local list = {}
      for i = 1, v.n do list[i] = convert(v[i], a) end
      return list
    end
    return v.name
  end
  for i, a in ipairs(record.visible) do
    local v = convert(node.args[i], a)
    values[a.name] = v
    if not first then first = rules.is_value(v) and v or type(v) == "table" and rules.is_value(v[1]) and v[1] end
  end
  local ndim = first and first.ndim or 0
  local function position(d, a)
    if type(d) ~= "number" then return d end
    return d > 0 and d - 1 or d + ndim + (a.of_result and 1 or 0)
  end
  for _, a in ipairs(record.visible) do
    local v = values[a.name]
    if v ~= nil and a.type == "DIM" then values[a.name] = position(v, a)
    elseif v ~= nil and a.type == "DIMS" then
      local list = {}
      for i, d in ipairs(type(v) == "table" and not v.kind and v or { v }) do list[i] = position(d, a) end
      values[a.name] = list
    elseif v ~= nil and a.type == "INDEX" then
      if type(v) == "number" then values[a.name] = v > 0 and v - 1 or v
      elseif v.op then values[a.name] = sizes.combined("sub", v, 1)
      else values[a.name] = { kind = "size", terms = v.terms, add = (v.add or 0) - (v.div or 1), div = v.div }
      end
    elseif a.type == "INTS" and type(v) == "number" then
      values[a.name] = {}
      for i = 1, a.count or 1 do values[a.name][i] = v end
    elseif a.type == "BOOL" and v == nil then values[a.name] = a.default and a.default.value or false
    end
  end
  return values
end

--- A tensor of the program as a constant of the file.
function Writer:state(name)
  local t = self.ep.tensors[name]
  local v = rules.value(self:fresh(name), t:dtype().name, t:size())
  self.initializers[#self.initializers + 1], self.tensors[v.name] = { v.name, t }, t
  self.values[name] = v
  return v
end

-- ---- branches and loops --------------------------------------------------------------------------

-- The nodes of a program that another one calls, for these values: they go to the list `nodes`. Returns its results.
function Writer:inlined(program, given, nodes)
  local function over(t) return setmetatable({}, { __index = t }) end
  local own = over(self)
  own.program, own.nodes = program, nodes
  own.values, own.dims, own.moved = over(self.values), over(self.dims), over(self.moved)
  for i, input in ipairs(program.inputs) do own.values[input.name] = given[i] end
  for _, node in ipairs(program.nodes) do own:call(node) end
  local results = {}
  for i, name in ipairs(program.outputs) do
    results[i] = own:shifted(own.values[name] or own:state(name), false)
  end
  return results, own
end

-- Makes values the results of a graph: each has a node of its own there. Returns what stands for them.
local function ended(self, nodes, results)
  local out = {}
  for i, v in ipairs(results) do
    local name = self:fresh "result"
    nodes[#nodes + 1] = { op = "Identity", inputs = { v.name }, outputs = { name }, attributes = {}, place = "" }
    self.read[v.name] = true
    out[i] = messages.value(name, v.dtype, v.shape and open(v.shape))
  end
  return out
end

local function truth(self, v)
  local flag = v
  if v.dtype ~= "bool" then
    flag = rules.value(self:node("Cast", { v.name }, 1, { to = messages.code "bool" }, "")[1], "bool", v.shape)
  end
  local none = self:tensor(B.ops.zeros({ 0 }, { dtype = "int64" }))
  return rules.value(self:node("Reshape", { flag.name, none.name }, 1, {}, "")[1], "bool", {})
end

local controls = {}

function controls.cond(self, node, given)
  local branches = {}
  for k = 2, 3 do
    local nodes = {}
    local results = self:inlined(node.args[k].program, given[4], nodes)
    local outs = ended(self, nodes, results)
    branches[k] = messages.graph("branch", messages_of(nodes), {}, outs)
  end
  return self:node("If", { truth(self, given[1]).name }, #node.out, { then_branch = branches[2],
    else_branch = branches[3] }, node.at)
end

function controls.while_loop(self, node, given)
  local test, body = node.args[1].program, node.args[2].program
  local start, names = {}, { "", truth(self, self:inlined(test, given[3], self.nodes)[1]).name }
  local inputs = { messages.value(self:fresh "step", "int64", {}), messages.value(self:fresh "going", "bool", {}) }
  for i, v in ipairs(given[3]) do
    names[#names + 1] = v.name
    start[i] = rules.value(self:fresh "state", v.dtype, v.shape)
    inputs[#inputs + 1] = messages.value(start[i].name, v.dtype, open(v.shape))
  end
  local nodes = {}
  local results, own = self:inlined(body, start, nodes)
  local going = own:inlined(test, results, nodes)[1]
  table.insert(results, 1, truth(own, going))
  local outs = ended(self, nodes, results)
  local loop = messages.graph("body", messages_of(nodes), inputs, outs)
  return self:node("Loop", names, #node.out, { body = loop }, node.at)
end

function Writer:control(node)
  local given = {}
  local function value(v)
    return self:shifted(self.values[v.name] or self:state(v.name), false)
  end
  for i = 1, node.args.n do
    local v = node.args[i]
    if v.kind == "list" then
      given[i] = {}
      for k = 1, v.n do given[i][k] = value(v[k]) end
    elseif v.kind ~= "program" then
      given[i] = value(v)
    end
  end
  local made = controls[node.op](self, node, given)
  for i, meta in ipairs(node.metas) do self.values[node.out[i]] = rules.value(made[i], meta.dtype, meta.shape) end
end

-- Whether a call goes along a dimension of a tensor that has none: dimension 1 of a scalar is allowed, but not in ONNX.
local function along_no_dimension(record, values)
  local first, along = nil, record.name == "one_hot"
  for _, a in ipairs(record.visible) do
    local v = values[a.name]
    first = first or rules.is_value(v) and v
    along = along or v ~= nil and (a.type == "DIM" and not a.of_result or a.type == "DIMS" and #v > 0)
  end
  return first and first.ndim == 0 and along
end

function Writer:reshaped(v, shape, node)
  return rules.value(self:node("Reshape", { v.name, self:ints(shape, node).name }, 1, {}, node.at)[1], v.dtype, shape)
end

-- Writes the nodes of a call of an op; its results stand for their values.
function Writer:emit(node)
  local record = self.records[node.op]
  local rule = assert(loadstring("return " .. record.onnx:gsub("^composed%b()%s*or%s+", ""), OWN))
  local passes = self:passes(node, record)
  local values = self:arguments(node, record, passes)
  local scalar = along_no_dimension(record, values)
  if scalar then
    for name, v in each(values) do
      if rules.is_value(v) and v.ndim == 0 then values[name] = self:reshaped(v, { 1 }, node) end
    end
  end
  setfenv(rule, rules.environment(self, node, values))
  local results = { rule() }
  for i, meta in ipairs(node.metas) do
    local v = results[i]
    if v == nil then break end
    if meta.dtype == "bool" and v.dtype == "int64" then -- of an operator that takes numbers
      v = rules.value(self:node("Cast", { v.name }, 1, { to = messages.code "bool" }, node.at)[1], "bool")
    end
    local made = rules.value(v.name, meta.dtype, meta.shape)
    if scalar then made = self:reshaped(made, meta.shape, node) end
    if gives_index[node.op] == i or passes and i == 1 then self.index[made.name] = true end
    self.values[node.out[i]] = made
  end
end

function Writer:call(node)
  for _, meta in ipairs(node.metas) do
    if meta.dtype:find("^complex") then
      refuse("%s (%s) makes complex numbers, which ONNX's operators do not take: write it by real ones", node.op,
        node.at)
    end
  end
  if node.autocast then refuse("%s (%s) runs under autocast: export the model without it", node.op, node.at) end
  if controls[node.op] then return self:control(node) end
  self:emit(node)
end

-- ---- the graph -----------------------------------------------------------------------------------

-- Whether a value is an argument of a call, or a result.
local is_read
function is_read(program, name)
  local function has(v)
    if type(v) ~= "table" then return false end
    for i = 1, v.kind == "list" and v.n or 0 do
      if has(v[i]) then return true end
    end
    return v.kind == "value" and v.name == name or v.kind == "program" and is_read(v.program, name)
  end
  for _, node in ipairs(program.nodes) do
    for k = 1, node.args.n do
      if has(node.args[k]) then return true end
    end
  end
  for _, other in ipairs(program.outputs) do
    if other == name then return true end
  end
  return false
end

-- Whether a rule says that this call is composed of others.
local function is_composed(node, record, program, opset)
  local when = record.onnx:match("^composed(%b())")
  if not when then return false end
  local env = { opset = opset, used = function(i) return is_read(program, node.out[i]) end }
  for i, a in ipairs(record.visible) do
    local v = node.args[i]
    if v == nil and a.default then v = a.default.value end
    env[a.name] = v
  end
  return setfenv(assert(loadstring("return " .. when)), env)() and true or false
end

-- The program with ops that have no rule replaced by what they are made of.
local function decomposed(ep, opset)
  local self_made, given = all_records(), require "moth.onnx.composed"
  for _ = 1, 8 do
    local missing = {}
    for node in ep.program:calls() do
      local r = self_made[node.op]
      local known = programs.controls[node.op] or missing[node.op]
      if not known and (not r or not r.onnx or is_composed(node, r, ep.program, opset)) then
        if not (r and (r.expr or r.decompose or r.onnx and given[r.name])) then
          refuse("there is no rule for %s (%s), and it is not made of other ops\nHINT: write it by other ops, or leave "
            .. "it to the program that reads the file (docs/onnx.md)", node.op, node.at)
        end
        missing[node.op] = r.onnx and given[r.name] or true
      end
    end
    if next(missing) == nil then return ep end
    ep = ep:decompose(missing)
  end
  return refuse("ops are made of each other")
end

-- The program with a product of the turned weight in the place of a `linear` that is no Gemm: tools look for products
-- with constants, among them onnxruntime's quantisers, which leave a product with a Transpose of a constant as it is.
local function with_products(ep)
  local program, nodes = {}, {}
  for _, node in ipairs(ep.program.nodes) do
    local x, weight, bias = unpack(node.args, 1, 3)
    local shape = node.metas[1].shape
    local w = node.op == "linear" and weight.kind == "state" and ep.tensors[weight.name]
    if w and #shape ~= 2 and w:dim() == 2 then
      local name = node.out[1]
      local function add(op, args, out, size)
        args.n = #args
        nodes[#nodes + 1] = { op = op, args = args, out = { out }, at = node.at, autocast = node.autocast,
          metas = { { dtype = node.metas[1].dtype, shape = size } } }
        return { kind = "value", name = out }
      end
      local turned = add("t", { weight }, name .. " turned", { w:size(2), w:size(1) })
      local product = add("matmul", { x, turned }, bias and name .. " product" or name, shape)
      if bias then add("add", { product, bias, 1 }, name, shape) end
    else
      nodes[#nodes + 1] = node
    end
  end
  for key, v in each(ep.program) do program[key] = v end
  program.nodes, program.ends = nodes, nil
  return setmetatable({ program = programs.new(program) }, { __index = ep })
end

local MOST = 2 ^ 31 - 2 ^ 24 -- bytes of tensors in a model: a protocol buffer has at most 2 GB

--- The ModelProto of a program, as a message, and the data that goes into a file beside it, or nil. o: input_names,
-- output_names, opset_version, index_base, external_data, location (the name of that file).
function M.model(ep, o)
  follow.refuse_guards("onnx.export", ep.program)
  if ep.program:writes() then ep = ep:decompose {} end -- a file of an older moth
  local target, writer = ep.program:written_outside()
  if target then
    refuse("%s (%s) writes to %s, which is not the program's own\nHINT: call :eval() before the export", writer.op,
      writer.at, target.name)
  end
  local as_index, positions = {}, {}
  if o.index_base == 0 then -- as the model's ops see them
    as_index, positions = places.of(ep.program, function(op) return all_records()[op] end)
  end
  ep = constants.fold(with_products(constants.fold(decomposed(ep, o.opset_version))))
  local program = ep.program
  local self = setmetatable({ ep = ep, program = program, opset = o.opset_version, used = {}, nodes = {},
    initializers = {}, tensors = {}, constants = {}, values = {}, dims = {}, index = {}, moved = {}, inputs = {},
    read = {}, records = all_records() }, Writer)
  if #program.outputs == 0 then refuse("the model gives no tensor") end
  for _, key in ipairs { "input_names", "output_names" } do
    local count = key == "input_names" and #program.inputs or #program.outputs
    for i, name in ipairs(o[key] or {}) do -- names inside of the file make room for them
      if i > count then refuse("%s: %d names for %d tensors", key, #o[key], count) end
      if self.used[name] then refuse("%s: the name %s is there twice", key, name) end
      self.used[name] = true
    end
  end
  for i, input in ipairs(program.inputs) do
    local name = o.input_names and o.input_names[i] or self:fresh(input.name)
    local shape = {}
    for k, n in ipairs(input.shape) do
      shape[k] = type(n) == "string" and { kind = "size", terms = { { 1, n } }, add = 0 } or n
    end
    self.inputs[i] = { name = name, dtype = input.dtype, shape = input.shape }
    self.values[input.name] = rules.value(name, input.dtype, shape)
    if as_index[input.name] then self.index[name] = true end
  end
  for _, node in ipairs(program.nodes) do self:call(node) end
  local outputs, indices, inputs, names = {}, {}, {}, program:result_names "output_"
  if names[1] == "output_1" then names[1] = "output" end
  for i, name in ipairs(program.outputs) do
    local v = self.values[name] or self:state(name)
    v = self:shifted(v, positions[i])
    local wanted = o.output_names and o.output_names[i] or self:fresh(names[i])
    self.nodes[#self.nodes + 1] = { op = "Identity", inputs = { v.name }, outputs = { wanted }, attributes = {},
      place = "" }
    self.read[v.name] = true
    outputs[i] = messages.value(wanted, v.dtype, shown(v.shape))
    if self.index[v.name] then indices[#indices + 1] = wanted end
  end
  for i, input in ipairs(self.inputs) do
    inputs[i] = messages.value(input.name, input.dtype, input.shape)
    if self.index[input.name] then indices[#indices + 1] = input.name end
  end
  local metadata = { { "moth.index_base", ("%d"):format(o.index_base) } }
  if #indices > 0 then
    table.sort(indices)
    metadata[2] = { "moth.indices", table.concat(indices, " ") }
  end
  local bytes, data, constants_read = 0, nil, {}
  for _, pair in ipairs(self.initializers) do
    if self.read[pair[1]] then
      bytes = bytes + pair[2]:numel() * pair[2]:element_size()
      constants_read[#constants_read + 1] = pair
    end
  end
  local most = type(o.external_data) == "number" and math.min(o.external_data, MOST) or MOST
  if o.external_data == true or o.external_data ~= false and bytes > most then
    data = messages.new()
    data.location = o.location
  end
  local graph = messages.graph("moth", messages_of(self.nodes), inputs, outputs, constants_read, data)
  return messages.model(graph, self.opset, metadata), data
end

return M
