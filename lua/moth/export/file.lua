--- Files of exported programs: one safetensors file, with the program as JSON in its metadata. Loading runs no code:
-- ops are named, and each is checked against this moth's table.
--
-- Metadata: format ("moth.export 1", "2" or "3"), moth (the version that wrote it), graph (below), moth.sha256
-- (of the file).
--
--     { inputs, nodes, outputs, dims, example, guards, results, spec, leaves, state = { name = { kind, tensor } },
--       schemas = { op = its schema } }
--
-- Arguments: numbers, booleans and null as they are; { "v": name } a value, { "t": name } a tensor, { "s": text },
-- { "n": "inf" }, { "d": dtype }, { "dev": device }, { "f": formula }, { "l": [ … ], "c": count }, { "p": program }.
local B = require "moth_lua"
local check = require "moth.utils.check"
local tree = require "moth.lang.tree"
local each = require "moth.each"
local programs = require "moth.export.program"
local sizes = require "moth.compile.sizes"
local key_of = B.memory_key

local M = {}

-- A file is of format 2 where a formula has formulas in it, or is a result, where an argument or result
-- is a number that is not finite, and where a default dtype is not float32: a moth that reads 1 alone would misread it.
-- It is of format 3 where a formula has calls (min, max, …) and where there are guards.
local FORMATS = { "moth.export 1", "moth.export 2", "moth.export 3" }
local MAX_DEPTH = 100
local floats = { float32 = true, float64 = true, float16 = true, bfloat16 = true }

local function json()
  local ok, cjson = pcall(require, "cjson.safe")
  if not ok then check.fail("[export] files need lua-cjson (Debian: lua-cjson)") end
  cjson = cjson.new()
  cjson.encode_sparse_array(true, 1, 0)
  cjson.encode_number_precision(14)
  cjson.encode_max_depth(MAX_DEPTH)
  cjson.decode_max_depth(MAX_DEPTH)
  return cjson
end

-- ---- writing -------------------------------------------------------------------------------------

-- Text of a value with keys in a fixed order: equal programs make equal files.
local function encode(v, quote)
  local kind = type(v)
  if kind == "table" then
    local parts = {}
    if v.__list then
      for i = 1, v.__list do parts[i] = encode(v[i], quote) end
      return "[" .. table.concat(parts, ",") .. "]"
    end
    for _, key in ipairs(tree.keys(v)) do parts[#parts + 1] = quote(key) .. ":" .. encode(v[key], quote) end
    return "{" .. table.concat(parts, ",") .. "}"
  elseif kind == "number" then
    return ("%.17g"):format(v)
  elseif v == nil then
    return "null"
  end
  return quote(v)
end

local function list(t, n, fn)
  local out = { __list = n or #t }
  for i = 1, out.__list do out[i] = fn and fn(t[i]) or t[i] end
  return out
end

local function pack_formula(f)
  if type(f) == "number" then return f end
  if f.op then return { op = f.op, a = pack_formula(f.a), b = f.b and pack_formula(f.b) } end
  return { terms = list(f.terms, nil, function(term)
    return list(term, nil, function(factor) return type(factor) == "table" and pack_formula(factor) or factor end)
  end), add = f.add or 0, div = f.div }
end

local pack_program

local function pack(v)
  local kind = type(v)
  if kind == "number" then
    if v ~= v or v == math.huge or v == -math.huge then return { n = tostring(v) } end
    return v
  elseif kind == "string" then
    return { s = v }
  elseif B.is_dtype(v) then
    return { d = v.name }
  elseif kind ~= "table" then
    return v
  elseif v.kind == "value" then
    return { v = v.name }
  elseif v.kind == "state" then
    return { t = v.name }
  elseif v.kind == "device" then
    return { dev = v.name }
  elseif v.kind == "size" then
    return { f = pack_formula(v) }
  elseif v.kind == "program" then
    return { p = pack_program(v.program) }
  end
  local items = { __list = v.n }
  for i = 1, v.n do items[i] = pack(v[i]) end
  return { l = items, c = v.n }
end

local function pack_shape(shape)
  return list(shape, nil, function(n) return type(n) == "table" and pack_formula(n) or n end)
end

local function pack_meta(meta) return { dtype = meta.dtype, shape = pack_shape(meta.shape) } end

function pack_program(p)
  return {
    inputs = list(p.inputs, nil, function(input)
      return { name = input.name, dtype = input.dtype, shape = pack_shape(input.shape), device = input.device,
        row_major = input.row_major }
    end),
    nodes = list(p.nodes, nil, function(node)
      local args = { __list = node.args.n }
      for i = 1, node.args.n do args[i] = pack(node.args[i]) end
      local into = node.into and list(node.into, nil, pack)
      local autocast = node.autocast and {}
      for name, dtype in each(node.autocast or {}) do autocast[name] = dtype end
      return { op = node.op, args = args, out = list(node.out), metas = list(node.metas, nil, pack_meta),
        at = B.is_text(node.at) and node.at or "", into = into, autocast = autocast,
        default_dtype = node.default_dtype }
    end),
    outputs = list(p.outputs),
    of_state = list(tree.keys(p.of_state)),
  }
end

local function pack_spec(spec)
  if not spec then return false end
  local out = { keys = list(spec.keys), parts = { __list = #spec.keys } }
  for i = 1, #spec.keys do out.parts[i] = pack_spec(spec[i]) end
  return out
end

-- What arguments and results are beside tensors: a text, number or boolean; a formula.
local function pack_constant(v)
  if type(v) == "string" then return v end
  return pack(v)
end

-- The lowest format that has a name for all in lists of inputs, calls and results.
local function format_of(packed)
  if type(packed) ~= "table" then return 1 end
  local format = packed.a ~= nil and packed.op and 3 or packed.default_dtype and 2 or 1
  for _, term in ipairs(packed.terms or {}) do
    for i = 2, term.__list do format = math.max(format, type(term[i]) == "table" and 2 or 1) end
  end
  for _, part in each(packed) do format = math.max(format, format_of(part)) end
  return format
end

local function schema_of(op) return (B.op_facts((op:gsub("_$", ""))) or B.op_facts(op) or {}).schema end

function M.save(ep, path)
  local p = ep.program
  local schemas, names, tensors, state = {}, {}, {}, {}
  for node in p:calls() do
    if not programs.controls[node.op] then
      local schema = schema_of(node.op)
      if not schema then check.fail("[export.save] there is no op '%s' (at %s)", node.op, node.at) end
      schemas[node.op] = schema
    end
  end
  local stored = {} -- by place in memory: what two names share is written once
  for _, name in ipairs(tree.keys(ep.held)) do
    local s = ep.held[name]
    local t = s.tensor
    local key = key_of(t)
    if not stored[key] then
      stored[key] = name
      names[#names + 1] = name
      local plain = B.ops.contiguous(B.ops.to(B.alias(t, false), { device = "cpu" }))
      tensors[#tensors + 1] = t:is_complex() and B.ops.view_as_real(plain) or plain
    end
    state[name] = { kind = s.kind, tensor = stored[key], complex = t:is_complex() or nil }
  end
  local packed = pack_program(p)
  packed.dims, packed.example, packed.schemas, packed.state = p.dims, p.example, schemas, state
  packed.results = { spec = pack_spec(p.results.spec), leaves = list(p.results.leaves, nil, function(leaf)
    return { tensor = leaf.tensor, constant = pack_constant(leaf.constant) }
  end) }
  packed.spec = pack_spec(ep.spec)
  packed.leaves = list(ep.leaves, nil, function(leaf)
    return leaf and { value = pack_constant(leaf.value) } or false
  end)
  packed.guards = p.guards and list(p.guards, nil, function(g)
    return { op = g.op, a = pack_formula(g.a), b = pack_formula(g.b), holds = g.holds,
      at = B.is_text(g.at) and g.at or "" }
  end)
  local format = math.max(p.guards and 3 or 1, format_of(packed.nodes), format_of(packed.inputs),
    format_of(packed.results))
  local function leaf(v) format = math.max(format, type(v) == "table" and 2 or 1) end
  for _, result in ipairs(packed.results.leaves) do leaf(result.constant) end
  for _, argument in ipairs(packed.leaves) do leaf(argument and argument.value) end
  local text = encode(packed, json().encode)
  B.save_safetensors(path, names, tensors, { { "moth.sha256", ("0"):rep(64) }, { "format", FORMATS[format] },
    { "moth", B.version_string }, { "graph", text } }, true)
end

-- ---- reading -------------------------------------------------------------------------------------

local Reader = {}
Reader.__index = Reader

function Reader:fail(why, ...) check.fail("[export.load] %s: " .. why, self.path, ...) end

function Reader:table(v, what)
  if type(v) ~= "table" then self:fail("%s is damaged", what) end
  return v
end
function Reader:text(v, what)
  if type(v) ~= "string" then self:fail("%s is damaged", what) end
  return v
end
function Reader:array(v, what, fn)
  self:table(v, what)
  local out = {}
  for i = 1, #v do out[i] = fn and fn(v[i]) or v[i] end
  return out
end

function Reader:formula(f) return sizes.read(f, self.dims) or self:fail("a formula of sizes is damaged") end

function Reader:value(v, known, null)
  local kind = type(v)
  if v == nil or v == null then return nil end
  if kind == "number" or kind == "boolean" then return v end
  self:table(v, "an argument")
  if v.v then
    if not known[v.v] then self:fail("a call uses the value %s before it is made", tostring(v.v)) end
    return { kind = "value", name = v.v }
  elseif v.t then
    if not self.state[v.t] then self:fail("there is no tensor '%s'", tostring(v.t)) end
    return { kind = "state", name = v.t }
  elseif v.s then
    return self:text(v.s, "an argument")
  elseif v.n then
    local n = tonumber(v.n)
    if not n then self:fail("a number is damaged") end
    return n
  elseif v.d then
    local ok, dtype = pcall(B.dtype, v.d)
    if not ok then self:fail("there is no dtype '%s'", tostring(v.d)) end
    return dtype
  elseif v.dev then
    return { kind = "device", name = self:text(v.dev, "a device") }
  elseif v.f then
    return self:formula(v.f)
  elseif v.p then
    self.depth = (self.depth or 0) + 1
    if self.depth > MAX_DEPTH then self:fail("programs nest too deeply") end
    local program = self:program(v.p, null)
    self.depth = self.depth - 1
    return { kind = "program", program = program }
  elseif v.l then
    local n, items = tonumber(v.c) or 0, self:table(v.l, "a list")
    if n ~= #items then self:fail("a list is damaged") end
    local out = { kind = "list", n = n }
    for i = 1, n do out[i] = self:value(items[i], known, null) end
    return out
  end
  return self:fail("an argument is damaged")
end

function Reader:constant(v)
  if type(v) ~= "table" then return v end
  local constant = (v.n or v.f) and self:value(v)
  if not constant then self:fail("a constant is damaged") end
  return constant
end

function Reader:shape(shape, symbols)
  return self:array(shape, "a shape", function(n)
    if type(n) == "number" and n >= 0 and n == math.floor(n) or n == "?" then return n end
    if type(n) == "string" and symbols and self.dims[n] then return n end
    if type(n) == "table" then return self:formula(n) end
    return self:fail("a shape is damaged")
  end)
end

function Reader:meta(meta, symbols)
  self:table(meta, "a result")
  local ok = pcall(B.dtype, meta.dtype)
  if not ok then self:fail("there is no dtype '%s'", tostring(meta.dtype)) end
  return { dtype = meta.dtype, shape = self:shape(meta.shape, symbols) }
end

-- The op of a call, which must have the arguments that the file was written for.
function Reader:op(name)
  self:text(name, "a call")
  if programs.controls[name] then return name end
  local now, then_ = schema_of(name), self.schemas[name]
  if not now or not programs.op(name) then
    self:fail("it calls the op '%s', which this moth, %s, does not have%s", name, B.version_string,
      name:find("::", 1, true) and ": load the library that defines it first"
        or "; it was written by moth " .. self.version)
  end
  if now ~= then_ then
    self:fail("it was written by moth %s, where op %s had other arguments:\n  then: %s\n  now:  %s", self.version, name,
      tostring(then_), now)
  end
  return name
end

function Reader:program(p, null)
  self:table(p, "the program")
  local known = {}
  local out = { nodes = {}, of_state = {} }
  out.inputs = self:array(p.inputs, "the list of inputs", function(input)
    local meta = self:meta(input, true)
    meta.name, meta.device = self:text(input.name, "an input"), self:text(input.device, "an input")
    meta.row_major = input.row_major == true or nil
    known[meta.name] = true
    return meta
  end)
  for i, node in ipairs(self:table(p.nodes, "the list of calls")) do
    self:table(node, "a call")
    local made = { op = self:op(node.op), at = self:text(node.at, "a call"), args = {} }
    local args = self:table(node.args, "a call")
    made.args.n = #args
    for k = 1, #args do made.args[k] = self:value(args[k], known, null) end
    if node.into then made.into = self:array(node.into, "a call", function(v) return self:value(v, known, null) end) end
    if node.autocast then
      made.autocast = {}
      for name, dtype in each(self:table(node.autocast, "a call")) do
        if dtype ~= "bfloat16" and dtype ~= "float16" then self:fail("the dtype of autocast is damaged") end
        made.autocast[self:text(name, "a call")] = dtype
      end
    end
    made.default_dtype = node.default_dtype
    if node.default_dtype and not floats[node.default_dtype] then self:fail("a call's default dtype is damaged") end
    made.metas = self:array(node.metas, "a call", function(meta) return self:meta(meta) end)
    made.out = self:array(node.out, "a call", function(name)
      self:text(name, "a call")
      if known[name] then self:fail("the value %s is made twice", name) end
      return name
    end)
    if #made.out ~= #made.metas then self:fail("a call of %s is damaged", made.op) end
    for _, name in ipairs(made.out) do known[name] = true end
    out.nodes[i] = made
  end
  for _, name in ipairs(self:array(p.of_state, "the list of tensors")) do
    if not self.state[name] then self:fail("there is no tensor '%s'", tostring(name)) end
    out.of_state[name] = true
  end
  out.outputs = self:array(p.outputs, "the list of outputs", function(name)
    if not known[name] and not self.state[name] then self:fail("there is no value %s", tostring(name)) end
    return name
  end)
  return programs.new(out)
end

function Reader:spec(spec, leaves, depth)
  if spec == false then
    leaves.n = (leaves.n or 0) + 1
    return false
  end
  self:table(spec, "the structure of a table")
  if (depth or 0) > MAX_DEPTH then self:fail("tables nest too deeply") end
  local out = { keys = self:array(spec.keys, "the structure of a table", function(key)
    if type(key) ~= "string" and type(key) ~= "number" then self:fail("the structure of a table is damaged") end
    return key
  end) }
  local parts = self:table(spec.parts, "the structure of a table")
  for i = 1, #out.keys do
    local part = parts[i]
    if part == nil then self:fail("the structure of a table is damaged") end
    out[i] = self:spec(part, leaves, (depth or 0) + 1)
  end
  return out
end


-- Whether the results of a call are as the file says, at the example's sizes.
local function agrees(said, meta, dims)
  if not said or said.dtype ~= meta.dtype or #said.shape ~= #meta.shape then return false end
  for k, n in ipairs(said.shape) do
    if type(n) == "table" then n = sizes.evaluate(n, dims) end
    if n ~= "?" and n ~= meta.shape[k] then return false end
  end
  return true
end

function Reader:compare(said, made)
  if #said.nodes ~= #made.nodes then self:fail("its calls make others of them") end
  for i, node in ipairs(made.nodes) do
    local other = said.nodes[i]
    if other.op ~= node.op then self:fail("the call of %s (%s) makes one of %s", other.op, other.at, node.op) end
    for k, meta in ipairs(node.metas) do
      if not agrees(other.metas[k], meta, self.example) then
        self:fail("result %d of %s (%s) is not what the file says", k, other.op, other.at)
      end
    end
    for k, part in ipairs(programs.parts(node)) do self:compare(programs.parts(other)[k], part) end
  end
end

local MOST = 2 ^ 40 -- elements of an input

-- Runs the shape rules at the example's sizes, and compares with what the file says. No op computes.
function Reader:verify(ep)
  for _, input in ipairs(ep.program.inputs) do
    local n = 1
    for _, size in ipairs(input.shape) do
      size = self.example[size] or size
      if type(size) ~= "number" then self:fail("a size of the input %s is damaged", input.name) end
      n = n * size
    end
    if n >= MOST or n ~= n then self:fail("an input of %g elements is too large", n) end
  end
  local ok, made = pcall(function() return ep:record_again() end)
  if not ok then self:fail("the calls do not fit their arguments: %s", tostring(made)) end
  self:compare(ep.program, made)
end

function M.load(path, device, Exported)
  local kind, why = require("moth.io.kinds").of(path)
  if kind ~= "safetensors" then
    check.fail("[export.load] %s: %s", path, kind and "this is no file of export.save; moth.load reads it" or why)
  end
  local names, tensors, metadata = B.load_safetensors(path)
  local self = setmetatable({ path = path, version = metadata.moth or "of another version" }, Reader)
  if not tostring(metadata.format):find("^moth%.export ") then
    local is_edge = tostring(metadata.format):find "^moth%.edge "
    self:fail(is_edge and "this is a file of moth.edge.export, for C: save the program by moth.export.save, too"
      or "this is no file of export.save; moth.load reads it")
  end
  if not (" " .. table.concat(FORMATS, " ") .. " "):find(" " .. metadata.format .. " ", 1, true) then
    self:fail("its format is '%s', written by moth %s; this moth, %s, reads '%s'", metadata.format, self.version,
      B.version_string, table.concat(FORMATS, "' and '"))
  end
  local cjson = json()
  local p, err = cjson.decode(metadata.graph or "")
  if type(p) ~= "table" then self:fail("the program is damaged: %s", tostring(err)) end
  local null, by_name = cjson.null, {}
  for i, name in ipairs(names) do by_name[name] = tensors[i] end
  self.schemas = self:table(p.schemas, "the list of ops")
  self.dims, self.example, self.state = {}, {}, {}
  for name, range in each(self:table(p.dims, "the dimensions")) do
    self:table(range, "a dimension")
    local low, high, step = tonumber(range.min), range.max, tonumber(range.multiple_of)
    if not low or not step or step < 1 or high ~= nil and type(high) ~= "number" then
      self:fail("a dimension is damaged")
    end
    self.dims[name] = { min = low, max = high, multiple_of = step }
    local size = tonumber(self:table(p.example, "the example")[name])
    if not size or not sizes.fits(self.dims[name], size) then self:fail("the example's sizes are damaged") end
    self.example[name] = size
  end
  local target = device and B.device(device)
  for name, s in each(self:table(p.state, "the list of tensors")) do
    self:table(s, "a tensor")
    local t = by_name[s.tensor]
    if not t then self:fail("the tensor '%s' is missing", tostring(s.tensor)) end
    if s.kind ~= "parameter" and s.kind ~= "buffer" and s.kind ~= "constant" then self:fail("a tensor is damaged") end
    if s.complex then t = B.alias(B.ops.clone(B.ops.view_as_complex(t)), false) end
    self.state[name] = { kind = s.kind, tensor = target and B.ops.to(t, { device = target }) or t }
  end
  local program = self:program(p, null)
  program.dims, program.example = self.dims, self.example
  if p.guards ~= nil and p.guards ~= null then
    program.guards = self:array(p.guards, "the list of guards", function(g)
      self:table(g, "a guard")
      if g.op ~= "lt" and g.op ~= "le" and g.op ~= "eq" or type(g.holds) ~= "boolean" then
        self:fail("a guard is damaged")
      end
      local function side(v) return type(v) == "number" and v or self:formula(self:table(v, "a guard")) end
      return { op = g.op, a = side(g.a), b = side(g.b), holds = g.holds, at = self:text(g.at, "a guard") }
    end)
  end
  local sized = {}
  for _, input in ipairs(program.inputs) do
    for _, n in ipairs(input.shape) do sized[n] = true end
  end
  for name in each(self.dims) do
    if not sized[name] then self:fail("no input has the dimension %s", name) end
  end
  local leaves, results = {}, self:table(p.results, "the results")
  program.results = { spec = self:spec(results.spec, leaves) }
  program.results.leaves = self:array(results.leaves, "the results", function(leaf)
    self:table(leaf, "a result")
    if leaf.tensor and not program.outputs[leaf.tensor] then
      self:fail("there is no result %s", tostring(leaf.tensor))
    end
    return { tensor = leaf.tensor, constant = self:constant(leaf.constant) }
  end)
  if #program.results.leaves ~= (leaves.n or 0) then self:fail("the results are damaged") end
  local given = {}
  local spec = self:spec(p.spec, given)
  for i, key in ipairs(type(spec) == "table" and spec.keys or {}) do -- a list of arguments, some of them nil
    if type(key) ~= "number" or key ~= math.floor(key) or key < i or key > 250 then
      self:fail("the arguments are damaged")
    end
  end
  local tensors_given = 0
  local constants = self:array(p.leaves, "the arguments", function(leaf)
    if leaf ~= false then return { value = self:constant(self:table(leaf, "an argument").value) } end
    tensors_given = tensors_given + 1
    return false
  end)
  if type(spec) ~= "table" or #constants ~= (given.n or 0) or tensors_given ~= #program.inputs then
    self:fail("the arguments are damaged")
  end
  local ep = Exported(program, self.state, spec, constants)
  ep.device = target and target.type or nil
  self:verify(ep)
  return ep
end

return M
