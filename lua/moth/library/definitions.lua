--- Ops that are defined at run time: their schemas and records, read by the parser and the checks that the op table is
-- built with, and the functions that compute them. moth.library is what users call.
local B = require "moth_lua"
local autograd = require "moth.autograd"
local check = require "moth.utils.check"
local deterministic = require "moth.utils.deterministic"
local each = require "moth.each"
local kinds = require "moth.records.kinds"
local schema = require "moth.records.schema"
local M = {}

local function methods() return require("moth.tensor").methods end

local kind_code = {}
for i, name in ipairs(kinds.names) do kind_code[name] = i - 1 end
-- The kinds that the library can define.
local allowed = { extern = true, random = true, effect = true, composite = true, fused = true }

-- PyTorch's dispatch keys, which impl accepts.
local keys = { CPU = "cpu", CUDA = "cuda", Meta = "fake", Fake = "fake", Autograd = "autograd",
  CompositeImplicitAutograd = "composite", CompositeImplicit = "composite", CompositeExplicitAutograd = "all",
  CompositeExplicit = "all" }

-- ---- reading ---------------------------------------------------------------------------------------

local holds = { Mask = 1, IndexTensor = 2 } -- MothHolds

-- A default as a Lua value; of an enum the word's number.
local function value_of(a)
  local d = a.default
  if d == nil or d == "none" then return nil end
  if a.type == "BOOL" then return d == "true" end
  if a.like then return nil end
  for i, word in ipairs(a.values or {}) do if d == "'" .. word .. "'" then return i - 1 end end
  return d:match("^'(.*)'$") or tonumber(d)
    or error(("cannot read the default '%s' of argument '%s'"):format(d, a.name), 0)
end

local function node_name(name)
  local camel = name:gsub("^.*::", ""):gsub("^%l", string.upper):gsub("_(%w)", string.upper):gsub("_$", "")
  return camel .. "Backward0"
end

-- The fields of a record that C reads (src/lua/schema.c).
local function complete(op)
  local facts = kinds.facts(op)
  for _, key in ipairs({ "drops", "draws", "repeats", "factory", "memory" }) do op[key] = facts[key] end
  op.kind_code, op.nargs, op.node = kind_code[op.kind], #op.args, node_name(op.name)
  schema.canonical(op)
  op.canonical_mask, op.differentiable = 0, 0
  for _, at in ipairs(op.canonical) do op.canonical_mask = op.canonical_mask + 2 ^ at end
  for i, a in ipairs(op.args) do
    a.value, a.holds, a.like_at = value_of(a), holds[a.written], a.like and a.like.at
    local tensor = a.written == "Tensor" or a.written == "Operand" or a.written == "Tensor[]"
    if tensor and (not a.mutated or (i == 1 and op.returns_self)) then
      op.differentiable = op.differentiable + 2 ^ (i - 1)
    end
  end
  return op
end

--- Parses a schema to a record: { name, schema, kind, args, nresults … }. Errors are texts without a place.
function M.read(text, kind, amp, doc, place)
  local op = schema.read(text, place)
  op.kind, op.amp, op.doc, op.place = kind or "extern", amp or "keep", doc or "", place or "?"
  if not schema.values.amp(op.amp) then
    error(("%s: amp '%s': expected keep, low, high or widest"):format(op.name, tostring(op.amp)), 0)
  end
  return complete(op)
end

--- The same, with the checks of an op that is defined at run time. C calls it, too, for its libraries
-- (src/lua/schema.c).
function M.read_allowed(text, kind, ...)
  if kind and not allowed[kind] then
    error(("kind '%s': expected extern, random, effect, composite or fused; those of other kinds have kernels that \z
      are built from the op table"):format(tostring(kind)), 0)
  end
  return M.read(text, kind, ...)
end

-- ---- what this state has defined -------------------------------------------------------------------

local records = {} -- name -> record
local facts_kinds = kinds.names
local amps = { [0] = "keep", "low", "high", "widest" }

--- The record of an op that was defined at run time, by any state; nil if there is none.
function M.record(name)
  if records[name] then return records[name] end
  local facts = B.op_facts(name)
  if not facts or not facts.defined then return nil end
  local op = M.read(facts.schema, facts_kinds[facts.kind_code + 1], amps[facts.amp_code], facts.doc, facts.place)
  op.family, op.samples, op.errors, op.kernels, op.takes = "library", {}, {}, {}, "float,int,bool"
  op.grad = op.kind == "composite" and "composite" or facts.has_derivative and "a function" or "none"
  op.inplace = facts.inplace or nil
  for device in each(B.kernels(name)) do op.kernels[device] = { "a function", op.place } end
  return op
end

local function own(name, what)
  return records[name] or check.fail("[%s] '%s' was not defined in this Lua state", what, name)
end

--- Names of the ops of a namespace that this state has defined.
function M.names(namespace)
  local list = {}
  for name in each(records) do
    if name:sub(1, #namespace + 2) == namespace .. "::" then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

local function place_of(fn)
  local info = debug.getinfo(fn, "S")
  return ("%s:%d"):format(info.short_src, info.linedefined)
end

-- ---- kernels ---------------------------------------------------------------------------------------

local function pack(...) return { n = select("#", ...), ... } end
local function text_of(sizes) return "[" .. table.concat(sizes, ", ") .. "]" end

local function first_tensor(...)
  for i = 1, select("#", ...) do
    local v = (select(i, ...))
    if B.is_tensor(v) then return v end
    if type(v) == "table" and B.is_tensor(v[1]) then return v[1] end
  end
end

-- Shapes and dtypes of the results, by the rule of the op: { { sizes, dtype, device }, … }.
local function metas(op, ...)
  local rule, first, out = op.rule, first_tensor(...), {}
  local given = pack(rule(...))
  if given.n ~= op.nresults then
    check.fail("[%s] the shape function returned %d value%s, where the schema says %d: %s", op.name, given.n,
      given.n == 1 and "" or "s", op.nresults, op.schema)
  end
  for i = 1, given.n do
    local m = given[i]
    if type(m) ~= "table" then
      check.fail("[%s] the shape function returned %s for result %d, where sizes are due", op.name, type(m), i)
    end
    local dtype = m.dtype and B.dtype(m.dtype) or first and B.tensor_dtype(first) or B.default_dtype()
    out[i] = { sizes = { unpack(m) }, dtype = dtype, device = m.device or first and B.tensor_device(first) or "cpu" }
  end
  return out
end

local function fake_of(op)
  return function(...)
    local results = {}
    for i, m in ipairs(metas(op, ...)) do
      results[i] = B.ops.empty(m.sizes, { dtype = m.dtype, device = m.device })
    end
    return unpack(results, 1, op.nresults)
  end
end

-- A function that asks the shape rule, which may refuse the arguments, calls fn, and checks its results against it.
local function checked(op, fn)
  return function(...)
    local expected = metas(op, ...)
    local results = pack(fn(...))
    for i = 1, op.nresults do
      local t = results[i]
      if B.is_tensor(t) and (text_of(B.size(t)) ~= text_of(expected[i].sizes) or
        B.tensor_dtype(t) ~= expected[i].dtype) then
        check.fail("[%s] the kernel returned %s %s for result %d, where the shape rule says %s %s", op.name,
          B.tensor_dtype(t).name, text_of(B.size(t)), i, expected[i].dtype.name, text_of(expected[i].sizes))
      end
    end
    return unpack(results, 1, results.n)
  end
end

-- A function that first says that it is not deterministic, on the devices that op.nondeterministic names.
local function refused(op, key, fn)
  local why = op.nondeterministic
  if not why then return fn end
  if type(why) == "table" and B.device_types()[key] then
    if not why[key] then return fn end
    why = why[key]
  end
  return function(...)
    local text = why
    if type(why) == "table" then
      local t = first_tensor(...)
      text = why[t and tostring(B.tensor_device(t)):match("^%a+") or "cpu"]
    end
    if text then deterministic.refuse(op.name, text) end
    return fn(...)
  end
end

--- Sets op's function for a device (or `all`, `fake`, `composite`, `Autograd`).
function M.implement(name, key, fn)
  local op = own(name, "library.impl")
  key = keys[key] or key
  if key == "autograd" then return M.derivative(name, { backward = fn }) end
  if key == "fake" then
    op.rule = nil
  elseif key == "composite" then
    if op.kind ~= "composite" then
      check.fail("[library.impl] '%s' is of kind %s: an op made of others is defined with kind = \"composite\"", name,
        op.kind)
    end
  elseif op.kind == "composite" then
    check.fail("[library.impl] '%s' is of kind composite: what it is made of has kernels", name)
  elseif key ~= "all" and not B.device_types()[key] then
    check.fail("[library.impl] expected a device such as 'cpu', 'all', 'fake' or 'composite', got '%s'", key)
  end
  local asked = fn
  fn = op.rule and checked(op, fn) or fn
  if key ~= "fake" then fn = refused(op, key, fn) end
  B.implement(name, key, fn)
  fn = asked
  if key ~= "fake" and key ~= "composite" then op.kernels[key] = { "a Lua function", place_of(fn) } end
  if key == "composite" then op.kernels.composite = { "a Lua function", place_of(fn) } end
  if key == "fake" then op.kernels.shape = { "a Lua function", place_of(fn) } end
end

-- ---- derivatives -----------------------------------------------------------------------------------

-- Formulas in the language of the records: values are what C has saved, positions count from 0. One formula for several
-- arguments, ["weight, bias"] = "f(…)", is a call with as many results.
local function formulas(op)
  local graph = require "moth.records.graph"
  local known = { key = "derivative", grad = "tensor", result = "tensor" }
  for i = 1, op.nresults - 1 do known["grad" .. i], known["result" .. i] = "tensor", "tensor" end
  local list = {}
  for names, text in each(op.grad) do
    local of = {}
    for name in names:gmatch("[%w_]+") do of[#of + 1] = name end
    if text ~= "unimplemented" then
      local ok, err = pcall(graph.check, op, text, known)
      if ok and #of == 1 and err[1] ~= "tensor" and err[1] ~= "any" then
        ok, err = false, "it is no tensor, but of kind " .. tostring(err[1])
      end
      if not ok then check.fail("[library.define] %s: the derivative by %s, \"%s\": %s", op.name, names, text, err) end
    end
    list[#list + 1] = { of = of, text = text }
  end
  return function(values, grads, need)
    local out = {}
    for i, g in ipairs(grads) do values[i == 1 and "grad" or "grad" .. (i - 1)] = g end
    for key, v in each(values) do
      if B.is_dtype(v) then values[key] = v.name elseif B.is_device(v) then values[key] = tostring(v) end
    end
    for _, g in ipairs(list) do
      local needed
      for _, name in ipairs(g.of) do needed = needed or need[name] and name end
      if needed and g.text == "unimplemented" then
        error(("derivative of %s by '%s' is not implemented"):format(op.name, needed), 0)
      elseif needed then
        local results = { graph.evaluate(op, g.text, values, known) }
        for i, name in ipairs(g.of) do out[name] = results[i] end
      end
    end
    return out
  end
end

-- The arguments and results that formulas read.
local function saved_by(op)
  local names, list = {}, {}
  for i = 1, op.nresults do names[i == 1 and "result" or "result" .. (i - 1)] = true end
  for _, a in ipairs(op.args) do
    if a.type ~= "TENSORS" and a.type ~= "GENERATOR" then names[a.name] = true end
  end
  for _, text in each(op.grad) do
    for name in text:gmatch("[%a_][%w_]*") do
      if names[name] then
        names[name] = nil
        list[#list + 1] = name
      end
    end
  end
  return table.concat(list, " ")
end

-- The default setup_context: arguments and results under their names.
local function save_all(op)
  return function(ctx, inputs, output)
    for i, a in ipairs(op.args) do ctx[a.name] = inputs[i] end
    local results = op.nresults == 1 and { output } or output
    for i = 1, op.nresults do ctx[i == 1 and "result" or "result" .. (i - 1)] = results[i] end
  end
end

--- Sets op's derivative: spec.backward(ctx, grad …) returns a gradient for each argument, nil where there is none, to
-- the last one that is asked for at least; spec.setup_context(ctx, inputs, output) saves what it reads.
function M.derivative(name, spec)
  local op = own(name, "library.register_autograd")
  if type(spec.backward) ~= "function" or (spec.setup_context and type(spec.setup_context) ~= "function") then
    check.fail("[library.register_autograd] expected a table with a function 'backward', and perhaps 'setup_context'")
  end
  for _, a in ipairs(op.args) do
    if a.mutated then
      check.fail("[library.register_autograd] '%s' writes to '%s': only an op that writes to nothing has a derivative \z
        by a function; a record may have formulas", name, a.name)
    end
  end
  local setup, place = spec.setup_context or save_all(op), place_of(spec.backward)
  local node = node_name(op.name):gsub("Backward0$", "")
  B.implement(name, "autograd", function(args, results)
    -- A gradient for each tensor: those of lists one after the other.
    local flat, counts, n, due = {}, {}, 0, 0
    for i, a in ipairs(op.args) do
      local list = a.type == "TENSORS" and args[i] or nil
      counts[i] = list and #list or false
      for k = 1, list and #list or 1 do
        n = n + 1
        if list then flat[n] = list[k] else flat[n] = args[i] end
        if B.is_tensor(flat[n]) and B.requires_grad(flat[n]) then due = i end -- what follows needs no nil
      end
    end
    local function backward(ctx, ...)
      local grads, out, at = pack(spec.backward(ctx, ...)), {}, 0
      if grads.n < due or grads.n > op.nargs then
        error(("the backward of '%s' (%s) returned %d gradient%s, where it has %d argument%s: %s"):format(name, place,
          grads.n, grads.n == 1 and "" or "s", op.nargs, op.nargs == 1 and "" or "s", op.schema), 0)
      end
      for i = 1, op.nargs do
        for k = 1, counts[i] or 1 do
          at = at + 1
          if counts[i] then out[at] = grads[i] and grads[i][k] else out[at] = grads[i] end
        end
      end
      return unpack(out, 1, n)
    end
    return autograd.record({ name = node, backward = backward }, args, flat, n, results, op.nresults, setup)
  end)
  op.grad = "a function"
end

-- ---- defining --------------------------------------------------------------------------------------

local options = { kind = "string", impl = "function or table", fake = "function", shape = "function",
  dims = "table", out = "string or table", let = "table", check = "table", grad = "string, table or function",
  setup_context = "function", amp = "string", samples = "table", errors = "table", reference = "function",
  doc = "string", method = "boolean", inplace = "boolean", expr = "string", tolerance = "table", keep = "boolean",
  place = "string", nondeterministic = "string or table" }

local function check_options(o)
  for key, value in each(o) do
    local types = options[key]
    if not types then
      local names = {}
      for k in each(options) do names[#names + 1] = k end
      check.fail("[library.define] unknown option '%s'%s", tostring(key), check.suggest(tostring(key), names))
    end
    if not types:find(type(value), 1, true) then
      check.fail("[library.define] option '%s': expected a %s, got %s", key, types, type(value))
    end
  end
end

-- The error of the parser, at the user's line.
local function read(...)
  local ok, op = pcall(M.read_allowed, ...)
  if not ok then check.fail("[library.define] %s", (tostring(op):gsub("^%?: ", ""))) end
  return op
end

local function user_place()
  for level = 3, 20 do
    local info = debug.getinfo(level, "Sl")
    if not info then return "?" end
    if info.currentline > 0 and not info.source:find("lua/moth/", 1, true) then
      return ("%s:%d"):format(info.short_src, info.currentline)
    end
  end
  return "?"
end

-- The function of an expression in the language of the records.
local function composite_of(op)
  local graph = require "moth.records.graph"
  local records_ = require "moth.records"
  local ok, err = pcall(graph.check, op, op.expr)
  for i, kind in ipairs(ok and err or {}) do
    if ok and kind ~= "tensor" and kind ~= "any" then
      ok, err = false, ("result %d is no tensor, but of kind %s"):format(i, kind)
    end
  end
  if not ok then check.fail("[library.define] %s: the expression \"%s\": %s", op.name, op.expr, err) end
  return function(...)
    local given = {}
    for i, a in ipairs(op.args) do given[a.name] = (select(i, ...)) end
    return graph.evaluate(op, op.expr, records_.canonical(op, given))
  end
end

--- Defines an op: moth.library.define.
function M.define(text, o)
  check_options(o)
  local impl = o.impl
  local kind = o.kind or (o.expr and "composite") or "extern"
  for key in each(not o.kind and type(impl) == "table" and impl or {}) do
    if (keys[key] or key) == "composite" then kind = "composite" end
  end
  local op = read(text, kind, o.amp, o.doc, o.place or user_place())
  local name = op.name
  if records[name] then
    check.fail("[library.define] '%s' is defined already, at %s; destroy() its library first", name,
      records[name].place)
  end
  op.family, op.kernels, op.takes = "library", {}, "float,int,bool"
  op.samples, op.errors, op.reference, op.tolerance = o.samples or {}, o.errors or {}, o.reference, o.tolerance
  op.inplace, op.expr, op.rule = o.inplace or nil, o.expr, o.shape
  op.nondeterministic = o.nondeterministic
  for device, why in each(type(o.nondeterministic) == "table" and o.nondeterministic or {}) do
    if not B.device_types()[device] or type(why) ~= "string" then
      check.fail("[library.define] option 'nondeterministic': expected texts by device, such as { cuda = \"atomic \z
        sums; use index_add\" }")
    end
  end
  local grad = o.grad
  if grad == nil then grad = kind == "composite" and "composite" or "unimplemented" end
  local by_function = type(grad) == "function" and { backward = grad, setup_context = o.setup_context } or
    type(grad) == "table" and type(grad.backward) == "function" and grad or nil
  op.grad = by_function and "a function" or grad
  local saves
  if type(op.grad) == "table" then
    local ok, err = pcall(schema.check_grad, op)
    if not ok then check.fail("[library.define] %s", (err:gsub("^.-: .-: ", "", 1))) end
    saves, op.differentiable = saved_by(op), 0
    for names in each(op.grad) do
      for arg in names:gmatch("[%w_]+") do op.differentiable = op.differentiable + 2 ^ op.index[arg].at end
    end
  elseif op.grad == "none" then
    op.differentiable = 0
  elseif op.grad ~= "unimplemented" and not by_function and (op.grad ~= "composite" or kind ~= "composite") then
    check.fail("[library.define] option 'grad': expected formulas by argument, a function, \"none\" or \z
      \"unimplemented\", got '%s'", tostring(op.grad))
  end
  if o.dims or o.out or o.let or o.check then
    for _, key in ipairs { "dims", "let", "out", "check" } do
      local test = schema.values[key]
      local fine, expected = true, nil
      if o[key] ~= nil then fine, expected = test(o[key]) end
      if not fine then check.fail("[library.define] %s: option '%s': expected %s", name, key, expected) end
      op[key] = o[key]
    end
    if op.out == nil and op.nresults > 0 and not op.returns_self then
      check.fail("[library.define] %s: option 'out' is missing: the shapes of the results", name)
    end
    local fine, rule = pcall(require("moth.library.patterns").rule, op)
    if not fine then check.fail("[library.define] %s", rule) end
    op.rule = rule
  end
  B.define_op(op, saves)
  records[name] = op
  local ok, err = pcall(function()
    if type(op.grad) == "table" then B.implement(name, "backward", formulas(op)) end
    if op.rule then B.implement(name, "fake", fake_of(op)) end
    if o.fake then M.implement(name, "fake", o.fake) end
    if o.expr then M.implement(name, "composite", composite_of(op)) end
    if type(impl) == "function" then
      M.implement(name, kind == "composite" and "composite" or "all", impl)
    else
      for key, fn in each(impl or {}) do M.implement(name, key, fn) end
    end
    if by_function then M.derivative(name, by_function) end
  end)
  if not ok then
    M.undefine(name)
    error(err, 0)
  end
  if o.method then M.add_method(name) end
  return op
end

--- Undefines an op of this state.
function M.undefine(name)
  local op = own(name, "library.destroy")
  records[name] = nil
  B.undefine_op(name)
  if op.method then methods()[op.method] = nil end
end

--- x:name(…) for every tensor x.
function M.add_method(name)
  local op = records[name]
  local short = name:match("::(.*)$")
  if not (op.args[1] and op.args[1].type == "TENSOR") then
    M.undefine(name)
    check.fail("[library.define] '%s' can be no method: its first argument is no tensor", name)
  elseif methods()[short] ~= nil then
    M.undefine(name)
    check.fail("[library.define] tensors have a method '%s' already", short)
  end
  op.method = short
  methods()[short] = B.op(name)
end

return M
