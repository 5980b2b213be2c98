--- Operators of ONNX's domain of classical learning, ai.onnx.ml; trees: import_trees.lua.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local rule = import.rule

local ML = { domain = "ai.onnx.ml", any = true }

rule("Binarizer", "threshold=0", function(c, x) return x:gt(c.threshold):to(x:dtype()) end, ML)

rule("ArrayFeatureExtractor", function(c, x, index)
  local at = c:positions(index:reshape { -1 }, x:size(-1))
  local y = x:index_select(x:dim(), at)
  return x:dim() == 1 and y:reshape { 1, -1 } or y
end, ML)

rule("Scaler", "offset scale", function(c, x)
  local function vector(list) return import.tensor(list, "float32", x:device()) end
  x = x:to(moth.float32)
  if c.offset then x = x - vector(c.offset) end
  return c.scale and x * vector(c.scale) or x
end, ML)

-- Keys and values are of one of these types each, as lists or tensors.
local function entries(c, what)
  local t = c[what .. "_tensor"]
  if t then
    if not B.is_tensor(t) then return t, "strings" end
    return c:list(t), t:dtype().name
  end
  for _, kind in ipairs { "strings", "int64s", "floats" } do
    if c[what .. "_" .. kind] then
      return c[what .. "_" .. kind], ({ strings = "strings", int64s = "int64", floats = "float32" })[kind]
    end
  end
  return c:fail("it has no %s", what)
end

rule("LabelEncoder", "keys_tensor keys_strings keys_int64s keys_floats values_tensor values_strings values_int64s \z
  values_floats default_tensor default_string='_Unused' default_int64=-1 default_float=-0", function(c, x)
  local keys = entries(c, "keys")
  local values, kind = entries(c, "values")
  local map, nan = {}, nil
  for i, k in ipairs(keys) do
    if k ~= k then nan = values[i] else map[k] = values[i] end
  end
  local default = kind == "strings" and c.default_string or kind == "float32" and c.default_float or c.default_int64
  local t = c.default_tensor
  if t then default = B.is_tensor(t) and c:list(t)[1] or not B.is_tensor(t) and t[1] or default end
  local items, out = B.is_tensor(x) and c:list(x) or x, {}
  for i = 1, B.is_tensor(x) and x:numel() or x.n do
    local v = items[i]
    if v ~= v then out[i] = nan else out[i] = map[v] end
    if out[i] == nil then out[i] = default end
  end
  local shape = B.is_tensor(x) and x:size() or x.shape
  if kind ~= "strings" then return import.tensor(out, kind):reshape(shape) end
  out.kind, out.shape, out.n = "strings", shape, #out
  return out
end, { domain = "ai.onnx.ml", any = true, numbers = 1 })
