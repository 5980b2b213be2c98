--- Runs ONNX graphs by moth's ops, eagerly or while a program is recorded.
--
-- Values are tensors, texts ({ kind = "strings" }), sequences ({ kind = "sequence", … }) and optionals ({ kind =
-- "optional", value }). A tensor whose elements the file and the sizes of the inputs tell is static: what has static
-- inputs alone is computed at once, on the CPU, aside from a program that is recorded, so that shapes and their
-- arithmetic become Lua numbers. run.static says of a tensor "constant" or "sized" (it depends on sizes that may
-- differ): where that is used as a tensor, it is made by ops of numbers, which the program keeps as formulas.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local import = require "moth.onnx.import"
local reader = require "moth.onnx.reader"
local small = require "moth.onnx.small"
local each = require "moth.each"

local M = {}

local MAX_DEPTH = 32 -- of functions in functions
local MOST_NODES = 2 ^ 18 -- that functions make: each may call another one many times
local MOST_VALUES = 4000 -- inputs, or results, of a node: a call of Lua takes 8000

-- ---- linking -------------------------------------------------------------------------------------

local Link = {} -- what stands behind a model while its graphs are read
Link.__index = Link

local function attribute_value(link, a)
  local kind = a.type
  if kind == 1 or kind == nil and a.f then return a.f or 0 end
  if kind == 2 or kind == nil and a.i then return a.i or 0 end
  if kind == 3 or kind == nil and a.s then return a.s or "" end
  if kind == 4 or kind == nil and a.t then
    if not a.t then link.cursor:fail("the attribute %s is damaged", a.name or "") end
    local t, dtype = reader.tensor(link.cursor, a.t)
    if small.kinds[dtype] then small.tag[t] = dtype end
    return t
  end
  if kind == 5 then
    if not a.g then link.cursor:fail("the attribute %s is damaged", a.name or "") end
    return link:graph(a.g)
  end
  if kind == 6 then return a.floats end
  if kind == 7 then return a.ints end
  if kind == 8 then return a.strings end
  if kind == 9 then
    local list = {}
    for i, t in ipairs(a.tensors) do list[i] = reader.tensor(link.cursor, t) end
    return list
  end
  if kind == 10 then
    local list = {}
    for i, g in ipairs(a.graphs) do list[i] = link:graph(g) end
    return list
  end
  if kind == 13 then return a.type_proto or {} end
  if kind == 11 and a.sparse then return (reader.sparse(link.cursor, a.sparse)) end
  if kind == nil then
    if #a.ints > 0 then return a.ints end
    if #a.floats > 0 then return a.floats end
    return a.strings
  end
  return link.cursor:fail("the attribute %s has the type %s, which is not read", a.name or "", tostring(kind))
end

function Link:node(n, i)
  local op, domain = n.op or "", n.domain or ""
  if domain == "ai.onnx" then domain = "" end
  local label = n.name and n.name ~= "" and ("'%s'"):format(n.name) or ("%d (-> %s)"):format(i, n.output[1] or "?")
  local node = { op = op, domain = domain, label = label, inputs = n.input, outputs = n.output, attributes = {} }
  local own = self.functions[domain .. ":" .. op]
  local rule = import.find(domain, op)
  if not own and not rule then
    self.cursor:fail("node %s: the operator %s%s is not known", label, domain ~= "" and domain .. "." or "", op)
  end
  if #n.input > MOST_VALUES or #n.output > MOST_VALUES then
    self.cursor:fail("node %s: %d inputs and %d results: at most %d", label, #n.input, #n.output, MOST_VALUES)
  end
  local given = {}
  for _, a in ipairs(n.attribute) do
    local name = a.name or ""
    local source = a
    if a.ref and a.ref ~= "" then
      source = self.bindings and self.bindings[a.ref]
    elseif not own and not rule.known[name] then
      self.cursor:fail("node %s: the operator %s has no attribute '%s' that moth understands", label, op, name)
    end
    if source then given[name] = source end
  end
  if self.depth > 0 then
    self.made = self.made + 1
    if self.made > MOST_NODES then self.cursor:fail("its functions make more than %d nodes", MOST_NODES) end
  end
  if own then
    self.depth = self.depth + 1
    if self.depth > MAX_DEPTH then self.cursor:fail("functions call each other too deeply") end
    node.body = self:body(own, given)
    self.depth = self.depth - 1
    return node
  end
  node.rule = rule
  for name, value in each(rule.defaults) do node.attributes[name] = value end
  for name, a in each(given) do node.attributes[name] = attribute_value(self, a) end
  node.opset = self.opsets[domain] or self.opsets["ai.onnx"] or 1
  return node
end

-- The graph of a function with the attributes of one call.
function Link:body(own, given)
  local outer, opsets = self.bindings, self.opsets
  local bindings = {}
  for _, a in ipairs(own.defaults) do bindings[a.name or ""] = a end
  for name, a in each(given) do bindings[name] = a end
  self.bindings, self.opsets = bindings, {}
  for _, o in ipairs(own.opset) do self.opsets[o.domain or ""] = o.version or 1 end
  local inputs, outputs = {}, {}
  for i, name in ipairs(own.input) do inputs[i] = { name = name } end
  for i, name in ipairs(own.output) do outputs[i] = { name = name } end
  local graph = self:graph({ node = own.node, input = inputs, output = outputs, initializer = {}, sparse = {} })
  self.bindings, self.opsets = outer, opsets
  return graph
end

local function free_of(graph)
  local made, free = {}, {}
  for name in each(graph.constants) do made[name] = true end
  for _, name in ipairs(graph.inputs) do made[name] = true end
  local function reads(name)
    if name ~= "" and not made[name] then free[name] = true end
  end
  for _, node in ipairs(graph.nodes) do
    for _, name in ipairs(node.inputs) do reads(name) end
    for _, v in each(node.attributes) do
      if type(v) == "table" and v.nodes then
        for name in each(v.free) do reads(name) end
      end
    end
    for _, name in ipairs(node.outputs) do made[name] = true end
  end
  for _, name in ipairs(graph.outputs) do reads(name) end
  return free
end

-- Where each value is used for the last time: it is let go there.
local function last_uses(graph)
  local at = {}
  for i, node in ipairs(graph.nodes) do
    for _, name in ipairs(node.outputs) do at[name] = i end
    for _, name in ipairs(node.inputs) do at[name] = i end
    for _, v in each(node.attributes) do
      if type(v) == "table" and v.nodes then
        for name in each(v.free) do at[name] = i end
      end
    end
  end
  for _, name in ipairs(graph.outputs) do at[name] = nil end
  local ends = {}
  for name, i in each(at) do
    if name ~= "" then
      ends[i] = ends[i] or {}
      table.insert(ends[i], name)
    end
  end
  return ends
end

--- A graph with its rules found and its constants read.
function Link:graph(g)
  local graph = { name = g.name or "", inputs = {}, outputs = {}, nodes = {}, constants = {},
    values = { input = g.input, output = g.output } }
  for _, t in ipairs(g.initializer) do
    local tensor, dtype = reader.tensor(self.cursor, t)
    if small.kinds[dtype] then small.tag[tensor] = dtype end
    graph.constants[t.name or ""] = tensor
  end
  for _, s in ipairs(g.sparse) do
    graph.constants[s.values and s.values.name or ""] = reader.sparse(self.cursor, s)
  end
  for _, v in ipairs(g.input) do graph.inputs[#graph.inputs + 1] = v.name or "" end
  for i, v in ipairs(g.output) do graph.outputs[i] = v.name or "" end
  for i, n in ipairs(g.node) do graph.nodes[i] = self:node(n, i) end
  graph.free, graph.ends, graph.lasting = free_of(graph), last_uses(graph), {}
  for name in each(graph.constants) do graph.lasting[name] = true end
  for _, name in ipairs(graph.inputs) do graph.lasting[name] = nil end
  return graph
end

--- The model of a file, ready to run: { graph, opset, producer, metadata }.
function M.load(path, where)
  local model, cursor = reader.model(path, where)
  local link = setmetatable({ cursor = cursor, functions = {}, opsets = {}, depth = 0, made = 0 }, Link)
  for _, o in ipairs(model.opset) do link.opsets[o.domain or ""] = o.version or 1 end
  for _, f in ipairs(model.functions) do link.functions[(f.domain or "") .. ":" .. (f.name or "")] = f end
  local graph = link:graph(model.graph)
  graph.main = true
  for name in each(graph.free) do
    cursor:fail("the value '%s' is used, but nothing makes it", name)
  end
  local metadata = {}
  for _, e in ipairs(model.metadata) do metadata[e.key or ""] = e.value or "" end
  if B.is_tensor(cursor.owner) then cursor.owner:free() end -- the bytes of the file, as large as all tensors
  B.empty_cache()
  return { graph = graph, opset = link.opsets[""] or link.opsets["ai.onnx"], producer = model.producer or "",
    metadata = metadata, path = path }
end

-- ---- running -------------------------------------------------------------------------------------

local Run = {}
Run.__index = Run

local weak = { __mode = "k" }

--- A run. o: recording (a program is recorded), sized (its sizes may differ), device, moved (constants on that device,
-- kept from run to run).
function M.run(o)
  return setmetatable({ static = setmetatable({}, weak), recording = o.recording, sized = o.sized, device = o.device,
    made = setmetatable({}, weak), again = setmetatable({}, weak), moved = o.moved or setmetatable({}, weak) }, Run)
end

local aside = import.aside

local MANY = 256 -- elements of a sized tensor that are made one by one

-- A static tensor as an operand of ops.
function Run:operand(t, label)
  if not B.is_tensor(t) then return t end
  local how = self.static[t]
  if how == nil then return t end
  if how == "constant" or not self.recording then
    if not self.device or self.device.type == "cpu" then return t end
    if not self.moved[t] then
      self.moved[t] = aside(B.ops.to, t, { device = self.device })
      small.tag[self.moved[t]] = small.tag[t]
    end
    return self.moved[t]
  end
  if not self.made[t] and self.again[t] then
    local again = self.again[t]
    local results = { again.call() }
    for k, other in each(again.results) do self.made[other] = results[k] end
  end
  if not self.made[t] then
    local dtype, list = t:dtype(), aside(function() return t:reshape({ -1 }):totable() end)
    if #list > MANY then
      check.fail("[onnx] node %s: a tensor of %d elements depends on sizes: they cannot be followed", label, #list)
    end
    local parts = {}
    for i, v in ipairs(list) do
      if type(v) == "boolean" then v = v and 1 or 0 end
      parts[i] = B.ops.full({ 1 }, v, { dtype = dtype, device = self.device })
    end
    local flat = #parts == 0 and t or #parts == 1 and parts[1] or B.ops.cat(parts, 1)
    self.made[t] = B.ops.reshape(flat, t:size())
  end
  return self.made[t]
end

-- Whether tensors are lists of integers, as sizes are.
local function are_lists(results, n)
  for i = 1, n do
    local t = results[i]
    if not B.is_tensor(t) or t:dim() > 1 or t:is_floating_point() or t:is_complex() then return false end
  end
  return true
end

local narrow = { uint16 = true, uint32 = true, uint64 = true }

-- Unsigned integers without arithmetic in moth are computed in int64.
local function widened(fn, c, args, n)
  local dtype
  for i = 1, n do
    local v = args[i]
    if B.is_tensor(v) and narrow[v:dtype().name] then
      dtype = dtype or v:dtype()
      args[i] = v:to(moth.int64)
    end
  end
  if not dtype then return fn(c, unpack(args, 1, n)) end
  local results = { fn(c, unpack(args, 1, n)) }
  for i = 1, c.node.rule.index and c.node.rule.index - 1 or #results do
    if B.is_tensor(results[i]) and results[i]:dtype() == moth.int64 then results[i] = results[i]:to(dtype) end
  end
  return unpack(results)
end

-- Results of types that moth does not have keep them when they are only moved.
local function tagged(args, n, first, ...)
  for i = 1, n do
    local kind = B.is_tensor(args[i]) and small.tag[args[i]]
    if kind and B.is_tensor(first) and not small.tag[first] then
      small.tag[first] = kind
      for k = 1, select("#", ...) do
        local other = select(k, ...)
        if B.is_tensor(other) then small.tag[other] = kind end
      end
    end
  end
  return first, ...
end

local function call_rule(rule, c, args, n)
  if rule.moves then return tagged(args, n, rule.run(c, unpack(args, 1, n))) end
  if rule.any then return rule.run(c, unpack(args, 1, n)) end
  return widened(rule.run, c, args, n)
end

-- How all inputs of a call are known: "constant", "sized"; nil: some are not.
function Run:static_of(args, n)
  local how = "constant"
  for i = 1, n do
    local v = args[i]
    if B.is_tensor(v) then
      local this = self.static[v]
      if not this then return nil end
      if this == "sized" then how = this end
    elseif type(v) == "table" and v.kind ~= "strings" then
      return nil
    end
  end
  return how
end

-- Calls: a table for each node, whose fields are its attributes.
local call_meta = { __index = function(c, key)
  local method = import.Call[key]
  if method then return method end
  return c.node.attributes[key]
end }

function Run:call(node, env)
  local n, args = #node.inputs, {}
  for i = 1, n do
    local name = node.inputs[i]
    if name ~= "" then args[i] = env[name] end
  end
  local rule = node.rule
  if not rule then return self:graph(node.body, args, nil, n) end
  local c = setmetatable({ node = node, run = self, opset = node.opset, env = env, n = n, count = #node.outputs },
    call_meta)
  if rule.control then return rule.run(c, unpack(args, 1, n)) end
  local how = not rule.draws and (rule.static and (self.sized and "sized" or "constant") or self:static_of(args, n))
  local from = rule.static and self:static_of(args, n)
  if from then how = from end
  local function record()
    c.device = self.device
    local operands = {}
    for i = 1, n do
      if rule.numbers[i] then operands[i] = args[i] else operands[i] = self:operand(args[i], node.label) end
    end
    return call_rule(rule, c, operands, n)
  end
  if not how then return record() end
  -- Its length may differ: a list of integers is known, and made again by ops where it is used as a tensor.
  local long = how == "sized" and self.recording and rule.makes
  for i = 1, n do long = long or args[i] ~= nil and self.again[args[i]] ~= nil end
  local results = { aside(call_rule, rule, c, { unpack(args, 1, n) }, n) } -- on the CPU
  if long and not are_lists(results, #node.outputs) then return record() end
  local again = long and { call = record, results = {} }
  for i = 1, #node.outputs do
    if B.is_tensor(results[i]) then
      self.static[results[i]] = how
      if again then again.results[i], self.again[results[i]] = results[i], again end
    end
  end
  return unpack(results, 1, #node.outputs)
end

local function described(node, message)
  message = tostring(message)
  if message:find("^%[onnx") or message:find(": %[onnx[%].]") then return message end
  return ("[onnx] node %s (%s): %s"):format(node.label, node.op, message)
end

local function called(run, node, ok, ...)
  if ok then return { ... } end
  local message = tostring((...))
  if message:find(": attempt to ", 1, true) or message:find(": bad argument #", 1, true)
      or message:find(": 'for' ", 1, true) then -- Lua's own, of values that a rule does not expect
    message = ("[onnx] node %s (%s): its inputs or attributes are not those that the operator takes"):format(node.label,
      node.op)
  elseif run.recording and (type((...)) ~= "string" or message:find("[export] ", 1, true)
      or message:find("fullgraph = true", 1, true)) then
    error((...), 0) -- the record's own
  end
  error(described(node, message), 0)
end

-- Whether the results of a call are the same at each run.
local function lasts(self, graph, node, results)
  local rule = node.rule
  if not graph.main or not rule or rule.draws or rule.control then return false end
  for _, name in ipairs(node.inputs) do
    if name ~= "" and not graph.lasting[name] then return false end
  end
  for k = 1, #node.outputs do
    if not B.is_tensor(results[k]) or self.static[results[k]] ~= "constant" then return false end
  end
  for _, name in ipairs(node.outputs) do graph.lasting[name] = true end
  return true
end

--- Runs a graph on a list of n inputs; outer: the values of the graph around it. Returns its results.
function Run:graph(graph, inputs, outer, n)
  local env = setmetatable({}, { __index = outer })
  for name, t in each(graph.constants) do
    env[name] = t
    self.static[t] = "constant"
  end
  for i, name in ipairs(graph.inputs) do
    if i <= (n or #graph.inputs) and inputs[i] ~= nil then env[name] = inputs[i] end
  end
  for i, node in ipairs(graph.nodes) do
    local results = node.folded
    if not results then
      results = called(self, node, pcall(self.call, self, node, env))
      if lasts(self, graph, node, results) then node.folded = results end
    elseif B.is_tensor(results[1]) then
      for k = 1, #node.outputs do self.static[results[k]] = "constant" end
    end
    for k, name in ipairs(node.outputs) do
      if name ~= "" then rawset(env, name, results[k]) end
    end
    for _, name in ipairs(graph.ends[i] or {}) do rawset(env, name, nil) end
  end
  local results = {}
  for i, name in ipairs(graph.outputs) do results[i] = env[name] end
  return unpack(results, 1, #graph.outputs)
end

return M
