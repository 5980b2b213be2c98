--- moth.onnx: models as ONNX files. docs/onnx.md.
--
--     moth.onnx.export(model, x, "model.onnx", { input_names = { "input" }, output_names = { "output" },
--       dynamic_axes = { input = { [1] = "batch" } } })
--     moth.onnx.export(ep, nil, "model.onnx")                -- of an exported program
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local export = require "moth.export"
local messages = require "moth.onnx.messages"
local sizes = require "moth.compile.sizes"
local writer = require "moth.onnx.writer"

local M = {}

local function names(o, key)
  local list = o[key]
  if list == nil then return nil end
  if type(list) ~= "table" then
    check.fail("[onnx.export] %s: expected a list of names, got %s", key, class.name(list))
  end
  for i = 1, #list do
    if type(list[i]) ~= "string" or list[i] == "" then
      check.fail("[onnx.export] %s: element %d is no name", key, i)
    end
  end
  return list
end

-- dynamic_axes, by the names or positions of inputs, as dynamic_shapes. Those of outputs follow from them.
local function dynamic_shapes(axes, input_names, output_names)
  local out, known = {}, { output = true }
  for i, name in ipairs(input_names or {}) do known[name] = i end
  for _, name in ipairs(output_names or {}) do known[name] = known[name] or true end
  for name, dims in each(axes) do
    local at = known[name] or name -- a position, or an argument's name
    if at ~= true and not (type(at) == "string" and at:find("^output_%d+$")) then
      if type(dims) ~= "table" then
        check.fail("[onnx.export] dynamic_axes: %s: expected { [dimension] = name }, got %s", tostring(name),
          class.name(dims))
      end
      out[at] = {}
      for d, label in each(dims) do
        out[at][d] = class.is_a(label, sizes.Dim) and label or export.Dim(tostring(label))
      end
    end
  end
  return out
end

--- Writes a function, module or exported program as an ONNX file. args: a tensor, or a list of arguments. Options:
-- input_names, output_names (lists), dynamic_axes ({ input = { [dimension] = name } }) or dynamic_shapes (as of
-- moth.export), opset_version (17 to 23), index_base (0: positions count from 0 in the file; 1: as in Lua),
-- external_data (true: the elements of tensors go into a file beside it, PATH.data; a number: if they are more bytes;
-- left out: above 2 GB), dynamo and verbose (taken, without effect).
function M.export(model, args, path, o, ...)
  if select("#", ...) > 0 then check.fail("[onnx.export] takes a model, arguments, a path and options") end
  o = check.options("onnx.export", o, "input_names output_names dynamic_axes dynamic_shapes opset_version index_base \z
    external_data dynamo verbose")
  if o.external_data ~= nil and type(o.external_data) ~= "boolean" and type(o.external_data) ~= "number" then
    check.fail("[onnx.export] external_data: expected a boolean or a number of bytes, got %s",
      class.name(o.external_data))
  end
  if type(path) ~= "string" then check.fail("[onnx.export] expected a path, got %s", class.name(path)) end
  local opset = o.opset_version or 17
  if type(opset) ~= "number" or opset < 17 or opset > 23 or opset ~= math.floor(opset) then
    check.fail("[onnx.export] opset_version: 17 to 23 can be written, got %s", tostring(opset))
  end
  if o.index_base ~= nil and o.index_base ~= 0 and o.index_base ~= 1 then
    check.fail("[onnx.export] index_base is 0 or 1, got %s", tostring(o.index_base))
  end
  local input_names, output_names = names(o, "input_names"), names(o, "output_names")
  local ep = model
  if not export.is_exported(model) then
    if B.is_tensor(args) then args = { args } end
    if type(args) ~= "table" then
      check.fail("[onnx.export] expected a tensor or a list of arguments, got %s", class.name(args))
    end
    local dynamic = o.dynamic_shapes
    if o.dynamic_axes then dynamic = dynamic_shapes(o.dynamic_axes, input_names, output_names) end
    ep = export(model, args, { dynamic_shapes = dynamic })
  elseif o.dynamic_axes or o.dynamic_shapes then
    check.fail("[onnx.export] the dimensions of an exported program are those it was exported with")
  end
  local message, data = writer.model(ep, { input_names = input_names, output_names = output_names,
    opset_version = opset, index_base = o.index_base or 0, external_data = o.external_data,
    location = path:match("[^/\\]*$") .. ".data" })
  if data then messages.write(data, path .. ".data") end
  messages.write(message, path)
end

--- Reads an ONNX file as an exported program. Options: dims = { name = size or moth.Dim }: the dimensions that the file
-- leaves open; map_location: the device of its tensors.
function M.load(path, o, ...)
  if select("#", ...) > 0 then check.fail("[onnx.load] takes a path and options") end
  if type(path) ~= "string" then check.fail("[onnx.load] expected a path, got %s", class.name(path)) end
  o = check.options("onnx.load", o, "dims map_location")
  if o.dims ~= nil and type(o.dims) ~= "table" then
    check.fail("[onnx.load] dims: expected { name = size or moth.Dim }, got %s", class.name(o.dims))
  end
  return require("moth.onnx.session").load(path, o)
end

--- InferenceSession(path, { device = "cuda", record = true, compile = false }): an ONNX file that runs, with
-- onnxruntime's methods: run(names or nil, { name = tensor }), get_inputs(), get_outputs(). record: sizes that come
-- again are run as a recorded program; compile: that program is compiled (moth.compile).
M.InferenceSession = require("moth.onnx.session").InferenceSession

return M
