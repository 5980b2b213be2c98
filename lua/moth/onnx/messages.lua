--- The messages of ONNX files (onnx.proto, of the ONNX specification, IR version 8), written.
--
-- A message is a list of pieces, strings and tensors, and the number of its bytes: elements go from the tensors' memory
-- to the file, never through a Lua string.
local B = require "moth_lua"
local proto = require "moth.tensorboard.proto"
local check = require "moth.utils.check"

local M = {}

--- The codes of dtypes.
M.codes = { float32 = 1, uint8 = 2, int8 = 3, uint16 = 4, int16 = 5, int32 = 6, int64 = 7, bool = 9, float16 = 10,
  float64 = 11, uint32 = 12, uint64 = 13, complex64 = 14, complex128 = 15, bfloat16 = 16 }

function M.code(dtype)
  return M.codes[dtype] or check.fail("[onnx] there is no dtype %s in ONNX", tostring(dtype))
end

local SMALL, ALIGNED = 1024, 64 -- bytes: of tensors that stay in the model, of places in a file of data

local Message = {}
Message.__index = Message

function M.new() return setmetatable({ n = 0 }, Message) end

function Message:put(text)
  self[#self + 1], self.n = text, self.n + #text
  return self
end
function Message:int(field, v) return self:put(proto.int(field, v)) end
function Message:string(field, v) return self:put(proto.bytes(field, v)) end
function Message:float(field, v) return self:put(proto.float(field, v)) end

--- A message in it.
function Message:add(field, other)
  self:put(proto.varint(field * 8 + 2) .. proto.varint(other.n))
  for i = 1, #other do self[#self + 1] = other[i] end
  self.n = self.n + other.n
  return self
end

local function in_host(t) return B.ops.contiguous(B.ops.to(B.alias(t, false), { device = "cpu" })) end

--- The elements of a tensor, by themselves.
function Message:raw(t)
  local n = t:numel() * t:element_size()
  if n > 0 then self[#self + 1], self.n = in_host(t), self.n + n end
  return self
end

--- The elements of a tensor as a field.
function Message:elements(field, t)
  self:put(proto.varint(field * 8 + 2) .. proto.varint(t:numel() * t:element_size()))
  return self:raw(t)
end

-- ---- parts of a model ----------------------------------------------------------------------------

local function is_integer(v) return v == math.floor(v) and math.abs(v) < 2 ^ 53 end

-- Attributes that are floats though their value is integral.
local floats = { alpha = true, beta = true, epsilon = true, gamma = true, cubic_coeff_a = true,
  extrapolation_value = true }

--- An attribute: a number, boolean, string, list of numbers or strings, tensor, graph.
function M.attribute(name, v)
  local a = M.new():string(1, name)
  local kind = type(v)
  if kind == "boolean" then v, kind = v and 1 or 0, "number" end
  if getmetatable(v) == Message then -- a graph
    a:add(6, v):int(20, 5)
  elseif B.is_tensor(v) then
    a:add(5, M.tensor(nil, v)):int(20, 4)
  elseif kind == "string" then
    a:string(4, v):int(20, 3)
  elseif kind == "number" and is_integer(v) and not floats[name] then
    a:int(3, v):int(20, 2)
  elseif kind == "number" then
    a:float(2, v):int(20, 1)
  elseif type(v[1]) == "string" then
    for _, item in ipairs(v) do a:string(9, item) end
    a:int(20, 8)
  else
    for _, item in ipairs(v) do a:int(8, item) end
    a:int(20, 7)
  end
  return a
end

--- A tensor with its elements; external = { location, offset }: these lie in another file.
function M.tensor(name, t, external)
  local m = M.new()
  for _, n in ipairs(t:size()) do m:int(1, n) end
  m:int(2, M.code(t:dtype().name))
  if name then m:string(8, name) end
  if external then
    local function entry(key, value) m:add(13, M.new():string(1, key):string(2, value)) end
    entry("location", external.location)
    entry("offset", ("%d"):format(external.offset))
    entry("length", ("%d"):format(t:numel() * t:element_size()))
    return m:int(14, 1)
  end
  return m:elements(9, t)
end

--- A value with its type: shape has sizes and names of sizes; "?" is left open.
function M.value(name, dtype, shape)
  local dims = M.new()
  for _, n in ipairs(shape) do
    local dim = M.new()
    if type(n) == "number" then dim:int(1, n) elseif n ~= "?" then dim:string(2, n) end
    dims:add(1, dim)
  end
  return M.new():string(1, name):add(2, M.new():add(1, M.new():int(1, M.code(dtype)):add(2, dims)))
end

function M.node(op, inputs, outputs, attributes, name, place)
  local m = M.new()
  for _, v in ipairs(inputs) do m:string(1, v) end
  for _, v in ipairs(outputs) do m:string(2, v) end
  m:string(3, name):string(4, op)
  for _, a in ipairs(attributes) do m:add(5, M.attribute(a[1], a[2])) end
  if place ~= "" then m:string(6, place) end
  return m
end

--- A graph of lists of messages. initializers: { { name, tensor }, … }; data, a file's name and what goes into it: the
-- elements of all but small tensors.
function M.graph(name, nodes, inputs, outputs, initializers, data)
  local m = M.new()
  for _, node in ipairs(nodes) do m:add(1, node) end
  m:string(2, name)
  for _, pair in ipairs(initializers or {}) do
    local t = pair[2]
    if data and t:numel() * t:element_size() >= SMALL then
      local gap = -data.n % ALIGNED
      if gap > 0 then data:put(("\0"):rep(gap)) end
      m:add(5, M.tensor(pair[1], t, { location = data.location, offset = data.n }))
      data:raw(t)
    else
      m:add(5, M.tensor(pair[1], t))
    end
  end
  for _, v in ipairs(inputs) do m:add(11, v) end
  for _, v in ipairs(outputs) do m:add(12, v) end
  return m
end

--- A model of a graph; metadata: { { key, value }, … }.
function M.model(graph, opset, metadata)
  -- The version of the format that came with the opset: 17 is of 8.
  local ir = opset < 19 and 8 or opset < 21 and 9 or opset < 23 and 10 or 11
  local m = M.new():int(1, ir):string(2, "moth"):string(3, B.version_string):add(7, graph)
  m:add(8, M.new():string(1, ""):int(2, opset))
  for _, pair in ipairs(metadata or {}) do m:add(14, M.new():string(1, pair[1]):string(2, pair[2])) end
  return m
end

--- Writes a message to a file; the path is replaced when all is written.
function M.write(message, path) B.write_pieces(path, message, "onnx.export") end

return M
