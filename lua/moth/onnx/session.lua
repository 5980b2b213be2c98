--- ONNX models that run: moth.onnx.load and moth.onnx.InferenceSession.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local export = require "moth.export"
-- What runs once: traces of it would hold its tensors.
local interpreted = require "moth.compile.interpreted"
local interpreter = require "moth.onnx.interpreter"
local reader = require "moth.onnx.reader"
local small = require "moth.onnx.small"
local tree = require "moth.lang.tree"

local M = {}

-- ---- inputs and results --------------------------------------------------------------------------

-- The names of element types, as onnxruntime says them.
local type_names = { float32 = "float", float64 = "double" }

local function type_text(t)
  if t == nil then return "unknown" end
  if t.tensor then
    local name = reader.dtype_of(t.tensor.elem) or "unknown"
    return ("tensor(%s)"):format(type_names[name] or name)
  end
  if t.sequence then return ("seq(%s)"):format(type_text(t.sequence.elem)) end
  if t.optional then return ("optional(%s)"):format(type_text(t.optional.elem)) end
  return "unknown"
end

-- { name, type, shape }: sizes are numbers, names, or "?"; shape is nil where the number of dimensions is not known.
local function described(value)
  local out = { name = value.name or "", type = type_text(value.type) }
  local tensor = value.type and value.type.tensor
  if tensor and tensor.shape then
    out.shape = {}
    for i, d in ipairs(tensor.shape.dim) do
      local named = d.param and d.param ~= "" and d.param or nil
      out.shape[i] = d.value and d.value >= 0 and d.value or named or "?"
    end
  end
  out.dtype = tensor and reader.dtype_of(tensor.elem)
  return out
end

-- Inputs that a run has to give, and those that may replace an initializer.
local function inputs_of(model)
  local list = {}
  for _, v in ipairs(model.graph.values.input) do
    local d = described(v)
    if model.graph.constants[d.name] == nil then list[#list + 1] = d end
  end
  return list
end

local function outputs_of(model)
  local list = {}
  for i, v in ipairs(model.graph.values.output) do list[i] = described(v) end
  return list
end

-- ---- the model as a function -----------------------------------------------------------------------

-- A model as export takes it: called with tensors, with the names of its arguments and of its tensors.
local Callable = {}
Callable.__index = Callable

local function callable(model, list, o)
  local names = {}
  for i, input in ipairs(list) do names[i] = input.name:gsub("[^%w_]", "_") end
  local state = { parameters = {}, buffers = {} }
  for _, name in ipairs(tree.keys(model.graph.constants)) do
    local t = model.graph.constants[name]
    if B.is_tensor(t) then
      local device = o.device or t:device()
      if device.type ~= "cpu" then
        o.moved[t] = o.moved[t] or B.ops.to(t, { device = device })
        t = o.moved[t]
      end
      table.insert(t:is_floating_point() and state.parameters or state.buffers, { name, t })
    end
  end
  return setmetatable({ model = model, list = list, argument_names = names, state = state, o = o }, Callable)
end

local function pairs_of(list)
  local i = 0
  return function()
    i = i + 1
    if list[i] then return list[i][1], list[i][2] end
  end
end
function Callable:named_parameters() return pairs_of(self.state.parameters) end
function Callable:named_buffers() return pairs_of(self.state.buffers) end

-- The result as the outside has it: sequences are lists.
local function outside(run, v)
  if type(v) == "table" and v.kind == "sequence" then
    local list = {}
    for i, item in ipairs(v) do list[i] = outside(run, item) end
    return list
  end
  if type(v) == "table" and v.kind == "optional" then return outside(run, v.value) end
  return run:operand(v, "output")
end

-- A value as the graph has it, on the session's device; dtype: what the file calls its elements.
local function inside(v, device, dtype)
  if type(v) == "table" and (v.kind == nil or v.kind == "sequence") then
    local list = { kind = "sequence" }
    for i, item in ipairs(v) do list[i] = inside(item, device) end
    return list
  end
  if not B.is_tensor(v) then return v end
  if device then v = B.ops.to(v, { device = device }) end
  if small.kinds[dtype] then
    v = B.alias(v, false)
    small.tag[v] = dtype
  end
  return v
end

local function run_graph(model, values, n, o)
  local run = interpreter.run(o)
  local results = { run:graph(model.graph, values, nil, n) }
  for i = 1, #model.graph.outputs do results[i] = outside(run, results[i]) end
  return unpack(results, 1, #model.graph.outputs)
end

-- The inputs by name as a list in the order of the graph.
local function ordered(model, list, given)
  local by_name, values = {}, {}
  for i, input in ipairs(list) do by_name[input.name] = given[i] end
  for i, name in ipairs(model.graph.inputs) do values[i] = by_name[name] end
  return values, #model.graph.inputs
end

function Callable:__call(...)
  local values, n = ordered(self.model, self.list, { ... })
  return run_graph(self.model, values, n, { recording = B.compile.recording(), sized = self.o.sized,
    device = self.o.device, moved = self.o.moved })
end

-- ---- load ----------------------------------------------------------------------------------------

-- Sizes at which dimensions without one are recorded, until the model runs at them: words, images; images that are
-- halved several times, the last two dimensions of four; sound, the last dimension of two or three.
local EXAMPLES = { { 4, "sizes of 4" }, { 64, "sizes of 64" },
  { 64, "sides of images that are multiples of 32", dims = 4, multiple = 32 }, { 512, "512 samples", dims = 2 } }

-- Whether the way of an example is for dimension k of an input.
local function is_for(example, input, k)
  local n = #input.shape
  if example.dims == 4 then return n == 4 and k > 2 end
  return example.dims ~= 2 or n <= 3 and n > 1 and k == n
end

local function dims_of(input, wanted, used, example)
  local shape, spec = {}, {}
  for k, n in ipairs(input.shape) do
    if type(n) == "number" then
      shape[k] = n
    else
      local label = n == "?" and ("%s_%d"):format(input.name, k) or n
      label = label:gsub("[^%w_]", "_"):gsub("^(%d)", "_%1")
      local want = wanted[n] or wanted[label]
      if want ~= nil then used[wanted[n] and n or label] = true end
      if type(want) == "number" then
        shape[k] = want
      elseif want == nil or class.is_a(want, require("moth.compile.sizes").Dim) then
        local own = is_for(example, input, k)
        local multiple = own and example.multiple
        local dim = want or export.Dim(label, multiple and { multiple_of = multiple } or nil)
        local every, about = dim.multiple_of or 1, own and example[1] or EXAMPLES[1][1]
        local size = math.max(math.ceil(about / every) * every, math.ceil(dim.min / every) * every)
        shape[k], spec[k] = dim.max and math.min(size, dim.max) or size, dim
      else
        check.fail("[onnx.load] dims: %s: expected a size or moth.Dim(name, …), got %s", label, class.name(want))
      end
    end
  end
  return shape, spec
end

--- Reads an ONNX file as an exported program (docs/export.md): it runs, compiles, decomposes, is saved by
-- moth.export.save and written again. Options: dims = { name = size or moth.Dim }, sizes and ranges of the dimensions
-- that the file leaves open; map_location, the device of its tensors.
function M.load(path, o)
  local device = o.map_location and B.device(o.map_location) or nil
  local model = interpreter.load(path, "onnx.load")
  local list, used = inputs_of(model), {}
  for _, input in ipairs(list) do
    if not input.type:find("^tensor") or not input.shape or not pcall(B.dtype, input.dtype) then
      check.fail("[onnx.load] %s: the input %s is of the type %s%s: only tensors of known dimensions make a program; "
        .. "InferenceSession runs it", path, input.name, input.type, input.shape and "" or " of any shape")
    end
    dims_of(input, o.dims or {}, used, EXAMPLES[1])
  end
  for name in each(o.dims or {}) do
    if not used[name] then check.fail("[onnx.load] dims: %s has no dimension '%s'", path, tostring(name)) end
  end
  local said, names = {}, {}
  for _, example in ipairs(EXAMPLES) do
    local args, dynamic, sized, fits = {}, {}, false, false
    for i, input in ipairs(list) do
      local shape, spec = dims_of(input, o.dims or {}, used, example)
      args[i] = B.ops.zeros(shape, { dtype = input.dtype, device = device })
      if #tree.keys(spec) > 0 then dynamic[i], sized = spec, true end
      for k, dim in each(spec) do
        names[dim.name] = true
        fits = fits or is_for(example, input, k) and not (o.dims or {})[dim.name]
      end
    end
    if fits or #said == 0 then
      local fn = callable(model, list, { sized = sized, device = device, moved = {} })
      local ok, made = pcall(interpreted, export, fn, args, { dynamic_shapes = sized and dynamic or nil })
      if ok then return made end
      if not sized then error(made, 0) end
      said[#said + 1] = ("with %s: %s"):format(example[2], tostring(made))
    end
  end
  names = tree.keys(names)
  error(("[onnx.load] %s: no program does for the sizes that it leaves open\n%s\nHINT: say what is known of %s: a "
    .. "size or a range, dims = { %s = moth.Dim(name, { multiple_of = 32, min = …, max = … }) }; InferenceSession runs "
    .. "it at any sizes"):format(path, table.concat(said, "\n"), table.concat(names, ", "), names[1]), 0)
end

-- ---- sessions ------------------------------------------------------------------------------------

local Session = class("InferenceSession")
M.InferenceSession = Session

local KEPT = 32 -- programs of one session

function Session:__init(path, ...)
  if select("#", ...) > 1 then check.fail("[onnx.InferenceSession] takes a path and options") end
  if type(path) ~= "string" then check.fail("[onnx.InferenceSession] expected a path, got %s", class.name(path)) end
  local o = check.options("onnx.InferenceSession", (...), "device record compile")
  for _, key in ipairs { "record", "compile" } do
    if o[key] ~= nil and type(o[key]) ~= "boolean" then
      check.fail("[onnx.InferenceSession] %s: expected a boolean, got %s", key, class.name(o[key]))
    end
  end
  self.model = interpreter.load(path, "onnx.InferenceSession")
  self.inputs, self.outputs = inputs_of(self.model), outputs_of(self.model)
  self.optional = {}
  for _, v in ipairs(self.model.graph.values.input) do
    if self.model.graph.constants[v.name] ~= nil then self.optional[v.name] = described(v) end
  end
  self.device = o.device and B.device(o.device) or nil
  self.record, self.compile = o.record ~= false, o.compile or false
  self.moved, self.seen, self.programs, self.order = setmetatable({}, { __mode = "k" }), {}, {}, {}
end

--- A list of { name, type, shape } of the inputs: types as "tensor(float)"; sizes are numbers, names or "?".
function Session:get_inputs() return self.inputs end

--- The same of the results.
function Session:get_outputs() return self.outputs end

local function shape_text(shape)
  local list = {}
  for i, n in ipairs(shape) do list[i] = tostring(n) end
  return "[" .. table.concat(list, ", ") .. "]"
end

local function checked(input, v)
  if v == nil and input.type:find("^optional") then return end
  if input.dtype and input.dtype ~= "string" and not B.is_tensor(v) then
    check.fail("[onnx.InferenceSession.run] input %s: expected a tensor, got %s", input.name, class.name(v))
  end
  if not B.is_tensor(v) or not input.shape then return end
  local kind = small.kinds[input.dtype]
  local dtype = kind and kind.dtype or input.dtype
  local fits = v:dtype().name == dtype and v:dim() == #input.shape
  for k, n in ipairs(input.shape) do
    fits = fits and (type(n) ~= "number" or v:size(k) == n)
  end
  if not fits then
    check.fail("[onnx.InferenceSession.run] input %s: expected %s %s, got %s %s", input.name, dtype,
      shape_text(input.shape), v:dtype().name, shape_text(v:size()))
  end
end

-- What tells the sizes of one call from another's; nil: it has values that are no tensors.
local function signature_of(given, n)
  local parts = {}
  for i = 1, n do
    if not B.is_tensor(given[i]) or small.tag[given[i]] then return nil end
    parts[i] = table.concat(given[i]:size(), "x")
  end
  return table.concat(parts, " ")
end

-- Whether one program does for all calls: the file says all sizes of the inputs, which are tensors.
local function are_fixed(self)
  if next(self.optional) then return false end
  for _, input in ipairs(self.inputs) do
    if not input.type:find "^tensor" or small.kinds[input.dtype] then return false end
    for _, n in ipairs(input.shape or { "?" }) do
      if type(n) ~= "number" then return false end
    end
  end
  return true
end

-- Frees the constants of the file but those that a program has: nothing else runs.
local function drop_constants(graph, tensors)
  local kept = {}
  for _, t in each(tensors) do kept[B.storage_id(t)] = true end
  for _, t in each(graph.constants) do
    if B.is_tensor(t) and not kept[B.storage_id(t)] then t:free() end
  end
  graph.constants = nil
  B.empty_cache()
end

-- The program for these sizes, made when they come for the second time, or where the file has no others for the first:
-- false where the model cannot be recorded.
function Session:program(given, n)
  if not self.record or not self.list then return false end
  local key = signature_of(given, n)
  if not key then return false end
  local known = self.programs[key]
  if known ~= nil then return known end
  if self.fixed == nil then self.fixed = are_fixed(self) end
  if not self.seen[key] and not self.fixed then
    self.seen[key] = true
    return false
  end
  local fn = callable(self.model, self.list, { device = self.device, moved = self.moved })
  local ok, made = pcall(interpreted, export, fn, given)
  if ok then made.program:prune() end
  if ok and not self.compile then
    interpreted(require("moth.export.frozen").freeze_in_place, made)
    if self.fixed then drop_constants(self.model.graph, made.tensors) end
  end
  if ok and self.compile then made = made:compile() end
  if not ok then self.why = made end
  self.programs[key] = ok and made or false
  self.order[#self.order + 1] = key
  if #self.order > KEPT then
    self.programs[table.remove(self.order, 1)] = nil
  end
  return self.programs[key]
end

--- Runs the model on { name = tensor }; names: of the results that are wanted, in that order; nil: all. Returns a list.
-- Positions count from 0 in what it takes and gives, as the file has them. Sequences are lists, texts tables { kind =
-- "strings", shape, … }.
function Session:run(names, inputs, ...)
  if select("#", ...) > 0 or names ~= nil and type(names) ~= "table" or type(inputs) ~= "table" or B.is_tensor(inputs)
  then
    check.fail("[onnx.InferenceSession.run] expected a list of names or nil, and { name = tensor }")
  end
  local known, given, list = {}, {}, {}
  for i, input in ipairs(self.inputs) do
    local v = inputs[input.name]
    if v == nil and not input.type:find("^optional") then
      check.fail("[onnx.InferenceSession.run] the input %s is missing", input.name)
    end
    checked(input, v)
    known[input.name], list[i] = true, input
    given[i] = inside(v, self.device, input.dtype)
  end
  for _, name in ipairs(tree.keys(inputs)) do
    if not known[name] then
      local input = self.optional[name]
      if not input then check.fail("[onnx.InferenceSession.run] there is no input '%s'", tostring(name)) end
      checked(input, inputs[name])
      list[#list + 1], given[#list + 1] = input, inside(inputs[name], self.device, input.dtype)
    end
  end
  self.list = #list == #self.inputs and list or nil
  local places = {}
  for i, output in ipairs(self.outputs) do places[output.name] = i end
  for _, name in ipairs(names or {}) do
    if not places[name] then
      check.fail("[onnx.InferenceSession.run] there is no result '%s'", tostring(name))
    end
  end
  local program = self:program(given, #list)
  local results = { moth.no_grad(function()
    if program then return program(unpack(given, 1, #list)) end
    local values, n = ordered(self.model, list, given)
    return run_graph(self.model, values, n, { device = self.device, moved = self.moved })
  end) }
  if not names then return results end
  local out = {}
  for i, name in ipairs(names) do out[i] = results[places[name]] end
  return out
end

function Session:__tostring()
  local lines = { ("onnx.InferenceSession(%s, opset %s, %d nodes)"):format(self.model.path, tostring(self.model.opset),
    #self.model.graph.nodes) }
  for _, pair in ipairs { { "input ", self.inputs }, { "result", self.outputs } } do
    for _, v in ipairs(pair[2]) do
      lines[#lines + 1] = ("  %s %s: %s %s"):format(pair[1], v.name, v.type, v.shape and shape_text(v.shape) or "")
    end
  end
  return table.concat(lines, "\n")
end

return M
