--- moth.export: a function or module as a program of ops, without its Lua code.
--
--     local batch = moth.Dim("batch", { min = 1, max = 64 })
--     local ep = moth.export(model, { x }, { dynamic_shapes = { { [1] = batch } } })
--     print(ep)                                  -- a call a line, with sizes and places
--     local y = ep(x)
--     moth.export.save(ep, "model.mth2")
--     local same = moth.export.load("model.mth2")
--
-- The guide is docs/export.md. moth.onnx, moth.edge and moth.inductor.aot_compile take exported programs.
local B = require "moth_lua"
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local class = require "moth.class"
local is_recorded = require "moth.export.active"
local ops = require "moth.dispatch.ops"
local tree = require "moth.lang.tree"
local each = require "moth.each"
local lazy = require "moth.lang.lazy"
local follow = require "moth.export.follow"
local frozen -- moth.export.frozen, once a program runs
local sizes = require "moth.compile.sizes"
local inputs_of = require "moth.export.inputs"
local merge = require "moth.export.merge"
local placed = require "moth.export.placed"
local programs = require "moth.export.program"
local records = require "moth.export.record"
require "moth.export.control"

local M = {}
local C = B.compile

--- A dimension that may have any size in a range: Dim("batch", { min = 1, max = 64, multiple_of = 1 }).
function M.Dim(...) return sizes.Dim(...) end

local Exported = class("ExportedProgram")

-- A program, the tensors it holds { name = { kind, tensor } }, the structure of its arguments (spec and leaves: false
-- for a tensor, else the constant).
function Exported:__init(program, held, spec, leaves)
  self.program, self.held, self.spec, self.leaves = program, held, spec, leaves
  self.example, self.ranges = program.example, {}
  for name, range in each(program.dims) do
    self.ranges[name] = { range.min, range.max, multiple_of = range.multiple_of }
  end
  self.tensors, self.constants = {}, {}
  for name, s in each(held) do
    self.tensors[name] = s.tensor
    if s.kind == "constant" then self.constants[name] = s.tensor end
  end
end
-- ---- calling -------------------------------------------------------------------------------------

-- Checks a tensor against an input, and notes the sizes of dynamic dimensions.
local function check_input(self, input, t, dims)
  local function refuse(why)
    check.fail("[export] input %s: %s; expected %s %s, got %s %s", input.name, why, input.dtype,
      programs.shape_text(input.shape), t:dtype().name, programs.shape_text(t:size()))
  end
  if t:dtype().name ~= input.dtype then refuse "another dtype" end
  if t:dim() ~= #input.shape then refuse "another number of dimensions" end
  if input.row_major and not t:is_contiguous() then
    refuse "the program writes to it, and takes it to be row-major, as it was in the example; it is not"
  end
  for i, expected in ipairs(input.shape) do
    local n = t:size(i)
    if type(expected) == "number" then
      if n ~= expected then
        refuse(("dimension %d is %d, and the program was exported for %d (dynamic_shapes makes it a range)")
          :format(i, n, expected))
      end
    else
      local range = self.program.dims[expected]
      if not sizes.fits(range, n) then
        refuse(("%s is %d, outside its range of %d to %s%s"):format(expected, n, range.min, range.max or "any",
          range.multiple_of > 1 and (", in steps of %d"):format(range.multiple_of) or ""))
      end
      if dims[expected] and dims[expected] ~= n then
        refuse(("%s is %d in another input"):format(expected, dims[expected]))
      end
      dims[expected] = n
    end
  end
end

local function count_args(spec)
  local n = 0
  for _, key in ipairs(spec.keys) do n = math.max(n, key) end
  return n
end

-- Where the tables of arguments differ first from those of the example.
local function difference(expected, given, path)
  if not expected then return ("argument %s was no table in the example"):format(path) end
  if not given then return ("argument %s was a table in the example"):format(path) end
  local function at(key) return path == "" and tostring(key) or path .. "." .. tostring(key) end
  local known = {}
  for i, key in ipairs(given.keys) do known[key] = i end
  for i, key in ipairs(expected.keys) do
    local k = known[key]
    if not k then return ("argument %s is missing"):format(at(key)) end
    known[key] = nil
    if not inputs_of.same_structure(expected[i], given[k]) then return difference(expected[i], given[k], at(key)) end
  end
  return ("argument %s was not in the example"):format(at(next(known)))
end

local function dim_of(name) return ("v[%q]"):format(name) end

-- The tensors among arguments, checked.
local function bind(self, ...)
  local most = count_args(self.spec)
  local given = select("#", ...)
  local list = { ... }
  for i = given, most + 1, -1 do
    if list[i] ~= nil then check.fail("[export] the program takes %d arguments, got %d", most, given) end
  end
  local leaves, spec = tree.flatten(list)
  if not inputs_of.same_structure(spec, self.spec) then
    check.fail("[export] the arguments are not of the form that was exported: %s", difference(self.spec, spec, ""))
  end
  local tensors, dims = {}, {}
  for i, constant in ipairs(self.leaves) do
    local v = leaves[i]
    if constant == false then
      local input = self.program.inputs[#tensors + 1]
      if not B.is_tensor(v) then
        check.fail("[export] input %s: expected a tensor, got %s", input.name, class.name(v))
      end
      check_input(self, input, v, dims)
      tensors[#tensors + 1] = v
    elseif v ~= constant.value and (v == v or constant.value == constant.value) then -- NaN is NaN here
      check.fail("[export] argument %d was %s when the program was exported, and is part of it; got %s", i,
        tostring(constant.value), tostring(v))
    end
  end
  local broken = self.program.guards and sizes.broken(self.program.guards, dims, dim_of)
  if broken then
    check.fail("[export] the program was recorded where %s; got %s: export another one for these sizes (this one "
      .. "holds at least for %s)", sizes.guard_text(broken), merge.point_text(dims),
      follow.range_text(self.program.guards, self.program.dims, self.example))
  end
  return tensors, dims
end

local function results_of(self, dims, ...)
  local flat, made = {}, { ... }
  for i, leaf in ipairs(self.program.results.leaves) do
    local constant = leaf.constant
    if leaf.tensor then
      flat[i] = made[leaf.tensor]
    elseif type(constant) == "table" then
      flat[i] = sizes.evaluate(constant, dims)
    else
      flat[i] = constant
    end
  end
  local out = tree.unflatten(flat, self.program.results.spec)
  return unpack(out, 1, table.maxn(out))
end

-- The program as a run takes it; a record takes it as it is.
local function run_as(self) return (is_recorded() or C.recording()) and self.program or self.placed end

--- Runs the program on arguments as the example's; other sizes where a dimension is dynamic.
function Exported:__call(...)
  local tensors, dims = bind(self, ...)
  frozen = frozen or require "moth.export.frozen"
  local plan = frozen.plan(self, tensors, dims)
  if plan then return results_of(self, dims, plan(unpack(tensors, 1, #tensors))) end
  return results_of(self, dims, run_as(self):run(self.tensors, dims, tensors, self.device))
end

-- Inputs of the example's sizes, whose elements nobody has set.
local function example_inputs(self)
  local args = {}
  local at = 0
  for i, constant in ipairs(self.leaves) do
    if constant == false then
      at = at + 1
      local input, shape = self.program.inputs[at], {}
      for k, n in ipairs(input.shape) do shape[k] = self.example[n] or n end
      args[i] = B.ops.empty(shape, { dtype = input.dtype, device = self.device or input.device })
    else
      args[i] = constant.value
    end
  end
  return tree.unflatten(args, self.spec)
end

-- The module of a program: its tensors stand where they stood in the module that was exported.
local Loaded = nn.class("ExportedModule")

local function place_of(root, name)
  local owner, key = root, name:match("([^.]+)$")
  for part in name:sub(1, -#key - 1):gmatch("[^.]+") do
    if owner[part] == nil then owner[part] = nn.Module() end
    owner = owner[part]
  end
  return { owner = owner, key = key }
end

function Loaded:__init(ep)
  local places = {}
  for _, name in ipairs(tree.keys(ep.held)) do
    local s, place = ep.held[name], place_of(self, name)
    places[name] = place
    if s.kind == "parameter" then
      place.owner[place.key] = nn.Parameter.is(s.tensor) and s.tensor
        or nn.Parameter(s.tensor, s.tensor:is_floating_point() or s.tensor:is_complex())
    else
      place.owner:register_buffer(place.key, s.tensor, s.kind ~= "constant")
    end
  end
  self.program_of = function() return ep, places end
end

function Loaded:forward(...)
  local ep, places = self.program_of()
  local tensors, dims = bind(ep, ...)
  local state = {}
  for name, place in each(places) do state[name] = place.owner[place.key] end
  return results_of(ep, dims, run_as(ep):run(state, dims, tensors))
end

--- The program as a module, with its parameters and buffers by name: to train, to compile, to save a state dict of.
function Exported:module() return Loaded(self) end

-- Whether an op's record says what it is made of. settled: whatever the strides of its arguments, which differ from
-- call to call.
local function has_parts(op, settled)
  local record = ops.get(op)
  local parts = record and (record.decompose or record.expr)
  return parts ~= nil and not (settled and (parts:find("viewable(", 1, true) or parts:find("is_contiguous(", 1, true)
    or parts:find(".stride[", 1, true)))
end

--- The program with calls of these ops, { op = true }, replaced by those of what they are made of (docs/records.md);
-- left out: of all that are made of others, until none is left but reshape, contiguous and unfold: what they are made
-- of depends on strides.
function Exported:decompose(set)
  if set == nil then
    local ep = self
    for _ = 1, 8 do
      local missing = {}
      for node in ep.program:calls() do
        if has_parts(node.op, true) then missing[node.op] = true end
      end
      if next(missing) == nil then break end
      ep = ep:decompose(missing)
    end
    return ep
  end
  if type(set) ~= "table" then check.fail("[export] decompose: expected { op = true }, got %s", class.name(set)) end
  for op, how in each(set) do
    if how == true and type(op) == "string" and not has_parts(op) then
      check.fail("[export] decompose: %s", ops.get(op) and op .. " is a kernel, it is not made of other ops"
        or "there is no op '" .. op .. "'")
    end
  end
  local given = { inputs = self.program.inputs, tensors = {}, leaves = {}, spec = self.spec, dims = {},
    example = self.example, expressions = follow.expressions_of(self.program),
    guards = self.program.guards }
  for name, range in each(self.program.dims) do
    given.dims[name] = { min = range.min, max = range.max, multiple_of = range.multiple_of }
  end
  given.leaves = tree.flatten(example_inputs(self))
  for _, leaf in ipairs(given.leaves) do
    if B.is_tensor(leaf) then given.tensors[#given.tensors + 1] = leaf end
  end
  local state, names = {}, {}
  for name, s in each(self.held) do state[name], names[B.memory_key(s.tensor)] = s, name end
  local program, held = records.of(function(...)
    local tensors, dims = bind(self, ...)
    return results_of(self, dims, self.program:run(self.tensors, dims, tensors, self.device, set))
  end, given, state, names, true)
  program.guards = self.program.guards
  return Exported(program, held, self.spec, self.leaves)
end

--- The program compiled: moth.compile of it, with the same options.
function Exported:compile(o)
  self.program:pack(self.tensors)
  return moth.compile(function(...) return self(...) end, o)
end

-- ---- looking -------------------------------------------------------------------------------------

--- Arguments of the example's sizes; their elements are not set.
function Exported:example_inputs() return unpack(example_inputs(self), 1, count_args(self.spec)) end

-- The same without memory, for records.
local function fake_inputs(self) return moth.fake_mode(example_inputs, self) end

-- The graph of moth.compile at the example's sizes.
local function graph_of(self)
  local list = fake_inputs(self)
  list.n = count_args(self.spec)
  return require("moth.compile.explain").capture(function(...) return self(...) end, list)
end

-- The program that its calls make, at the example's sizes.
function Exported:record_again()
  local list = fake_inputs(self)
  return (records.record(function(...) return self(...) end, list, nil, true))
end

-- What it takes and gives: { inputs = { { name, dtype, shape } }, parameters, buffers, constants = names,
-- outputs = { { name, dtype, shape } } }.
local function signature_of(self)
  local out = { inputs = {}, parameters = {}, buffers = {}, constants = {}, outputs = {} }
  for i, input in ipairs(self.program.inputs) do
    out.inputs[i] = { name = input.name, dtype = input.dtype, shape = input.shape }
  end
  local lists = { parameter = out.parameters, buffer = out.buffers, constant = out.constants }
  for _, name in ipairs(tree.keys(self.held)) do table.insert(lists[self.held[name].kind], name) end
  local metas = {}
  for _, input in ipairs(out.inputs) do metas[input.name] = input end -- an input may be an output
  for _, node in ipairs(self.program.nodes) do
    for i, name in ipairs(node.out) do metas[name] = node.metas[i] end
  end
  for i, name in ipairs(self.program.outputs) do
    local meta = metas[name]
    local held = self.held[name]
    out.outputs[i] = { name = name, dtype = meta and meta.dtype or held and held.tensor:dtype().name,
      shape = meta and meta.shape or held and held.tensor:size() }
  end
  return out
end

--- { name = tensor } of its parameters and buffers.
function Exported:state_dict()
  local out = {}
  for name, s in each(self.held) do
    if s.kind ~= "constant" then out[name] = s.tensor end
  end
  return out
end

local computed = { graph = graph_of, signature = signature_of, placed = placed.of }
local methods = Exported.__index
function Exported.__index(self, key)
  local make = computed[key]
  if make then
    local value = make(self)
    rawset(self, key, value)
    return value
  end
  if type(methods) == "function" then return methods(self, key) end
  return methods[key]
end

function Exported:__tostring()
  local lines = { tostring(self.program) }
  local ranges = {}
  for _, name in ipairs(tree.keys(self.program.dims)) do
    local r = self.program.dims[name]
    ranges[#ranges + 1] = ("%s: %d to %s"):format(name, r.min, r.max and ("%d"):format(r.max) or "any")
  end
  if #ranges > 0 then lines[#lines + 1] = "ranges: " .. table.concat(ranges, ", ") end
  for _, g in ipairs(self.program.guards or {}) do lines[#lines + 1] = "where " .. sizes.guard_text(g) end
  local sig = self.signature
  lines[#lines + 1] = ("%d inputs, %d outputs, %d parameters, %d buffers, %d constants"):format(#sig.inputs,
    #sig.outputs, #sig.parameters, #sig.buffers, #sig.constants)
  return table.concat(lines, "\n")
end

-- ---- making --------------------------------------------------------------------------------------

local warned = false

local function export(fn, args, o, ...)
  if select("#", ...) > 0 then check.fail("[export] takes a function or module, a list of arguments, and options") end
  o = check.options("export", o, "dynamic_shapes strict")
  if B.is_tensor(fn) or not check.is_callable(fn) then
    check.fail("[export] expected a function or a module, got %s", B.is_tensor(fn) and "a tensor" or class.name(fn))
  end
  if B.is_tensor(args) or type(args) ~= "table" then
    check.fail("[export] expected a list of arguments, such as { x }, got %s", class.name(args))
  end
  if o.dynamic_shapes ~= nil and type(o.dynamic_shapes) ~= "table" then
    check.fail("[export] dynamic_shapes: expected a list of tables { [dimension] = moth.Dim(name) }, got %s",
      class.name(o.dynamic_shapes))
  end
  if class.is_a(fn, Exported) then fn = fn:module() end
  if type(fn) == "table" and rawget(fn, "training") and not warned and next(fn:modules(), 1) then
    warned = true
    io.stderr:write("[moth] warning: export: the module is in training mode: in the program dropout draws and batch "
      .. "norm updates its statistics; call :eval() first for a program that infers\n")
  end
  local program, held, given = records.record(fn, args, o.dynamic_shapes)
  if program.guards then
    (o.strict and check.fail or check.warn)("%s", "[export] " .. follow.guards_text(program,
      "a call with other sizes is an error"))
  end
  local leaves = {}
  for i, leaf in ipairs(given.leaves) do leaves[i] = not B.is_tensor(leaf) and { value = leaf } end
  return Exported(program, held, given.spec, leaves)
end

--- Whether x is an exported program.
M.is_exported = signature("export.is_exported(any x?)", function(x) return class.is_a(x, Exported) end)

--- Writes an exported program to one file: a safetensors file, whose metadata has the program as JSON.
M.save = signature("export.save(any program, path path)", function(ep, path)
  if not M.is_exported(ep) then
    check.fail("[export.save] expected an exported program, got %s; moth.save writes tensors and state dicts",
      class.name(ep))
  end
  require("moth.export.file").save(ep, path)
end)

--- Reads a file of export.save. It is checked before anything runs: ops and their arguments, values, sizes. No code in
-- a file is ever run. map_location: the device for its tensors.
M.load = signature("export.load(path path, *, device map_location?)", function(path, device)
  return require("moth.export.file").load(path, device, Exported)
end)

local module_of = lazy(M, "moth.export.", {}, "moth.export")
getmetatable(module_of).__call = function(_, ...) return export(...) end
return M
