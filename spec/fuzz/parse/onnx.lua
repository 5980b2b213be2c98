--- ONNX models: those of moth's own writer, models of one or two nodes of any operator that moth has a rule for, with
-- random attributes and inputs, and the files of the folder MOTH_ONNX_CASES, such as spec/parity/onnx_cases.py writes.
-- What loads is run twice, the second time recorded.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local damage = require "fuzz.damage"
local proto = require "moth.tensorboard.proto"
local nn = moth.nn

local function read_file(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

-- ---- the operators, and what each is told
-- -----------------------------------------------------------------------------

local rules = {}
local function read_rules(folder)
  for _, family in ipairs { "math", "shape", "index", "reduce", "nn", "window", "recurrent", "control", "quant",
    "attention", "image", "signal", "text", "ml", "loss" } do
    local text = read_file(folder .. "import_" .. family .. ".lua"):gsub("\\z%s+", "")
    for names, attributes in text:gmatch('%f[%w]rule%("([^"]+)",%s*"?([^"\n]*)') do
      local list = {}
      for name, default in attributes:gmatch("([%w_]+)=?([^%s]*)") do
        list[#list + 1] = { name, default }
      end
      if attributes:find("function", 1, true) then list = {} end
      for name in names:gmatch("%S+") do rules[#rules + 1] = { name, list, family == "ml" and "ai.onnx.ml" or "" } end
    end
    -- the many that a table or a helper names: whatever stands in quotes and begins with a capital
    for name in text:gmatch('"(%u%w+)"') do rules[#rules + 1] = { name, {}, "" } end
    for name in text:gmatch("[{ ](%u%l%w+) =") do rules[#rules + 1] = { name, {}, "" } end
  end
  local known, out = {}, {}
  for _, r in ipairs(rules) do
    if require("moth.onnx.import").find(r[3], r[1]) and not (known[r[1]] and #r[2] == 0) then
      known[r[1]], out[#out + 1] = true, r
    end
  end
  rules = out
end
read_rules(package.searchpath("moth.onnx.import", package.path):match("^(.*)import%.lua$"))

-- ---- models of a few nodes
-- ---------------------------------------------------------------------------------------------

local codes = { 1, 1, 1, 1, 7, 7, 7, 6, 9, 11, 10, 16, 2, 3, 5, 12, 13, 8, 17, 21, 22, 14 }
local sizes = { 0, 1, 1, 2, 2, 3, 3, 4, 5, 8 }
local huge = { 2 ^ 31 - 1, 2 ^ 31, 2 ^ 40, 2 ^ 52, -2 ^ 52, -1, 0, 65536, 2 ^ 20, 1e9 }

local function shape_of(c)
  local shape = {}
  for i = 1, c:pick({ 0, 1, 1, 2, 2, 3, 4, 4, 5 }) do shape[i] = c:pick(sizes) end
  return shape
end

local function number(c) return c:one_in(25) and c:pick(huge) or c:int(-2, 6) end

-- A TensorProto of small numbers.
local function tensor(c, name, code, shape)
  local n, parts = 1, {}
  for _, size in ipairs(shape) do
    n = n * size
    parts[#parts + 1] = proto.int(1, size)
  end
  parts[#parts + 1] = proto.int(2, code)
  if name then parts[#parts + 1] = proto.bytes(8, name) end
  local data = {}
  if code == 1 then
    for i = 1, n do data[i] = ffi.string(ffi.new("float[1]", number(c) / 2), 4) end
    parts[#parts + 1] = proto.bytes(9, table.concat(data))
  elseif code == 7 then
    for i = 1, n do data[i] = ffi.string(ffi.new("int64_t[1]", number(c)), 8) end
    parts[#parts + 1] = proto.bytes(9, table.concat(data))
  elseif code == 8 then
    for _ = 1, n do parts[#parts + 1] = proto.bytes(6, c:pick { "", "a", "b c", "1", "\255" }) end
  else -- as numbers of protocol buffers, which moth has for all but some
    for _ = 1, n do parts[#parts + 1] = proto.int((code == 12 or code == 13) and 11 or 5, c:int(0, 3)) end
    if code == 11 then
      parts = { unpack(parts, 1, #shape + 2) }
      parts[#parts + 1] = proto.doubles(10, (function()
        local list = {}
        for i = 1, n do list[i] = number(c) end
        return list
      end)())
    end
  end
  return table.concat(parts)
end

local function value(name, code, shape)
  local dims = {}
  for i, n in ipairs(shape) do dims[i] = proto.bytes(1, proto.int(1, n)) end
  return proto.bytes(1, name) .. proto.bytes(2, proto.bytes(1, proto.int(1, code) .. proto.bytes(2,
    table.concat(dims))))
end

local graph

local words = { "", "NOTSET", "SAME_UPPER", "VALID", "linear", "nearest", "reflect", "edge", "add", "mul", "sum",
  "mean",
  "none", "DCR", "CRD", "bidirectional", "reverse", "Relu", "Tanh", "ij,jk->ik", "ii", "...i->i", "RIGHT", "xyz" }

local function attribute(c, name, default, depth)
  local out, kind = proto.bytes(1, name), c:int(12)
  local whole = tonumber(default)
  if name == "body" or name:find("_branch$") or name == "score_mod" then kind = 12 end
  if default:find("^'") and not c:one_in(8) then kind = 3 elseif whole and not c:one_in(8) then kind = 1 end
  if name == "value" and c:one_in(2) then kind = 5 end
  if kind == 12 and depth < 2 then return out .. proto.bytes(6, graph(c, depth + 1)) .. proto.int(20, 5) end
  if kind == 1 then return out .. proto.int(3, c:one_in(3) and number(c) or math.floor(whole or 1)) .. proto.int(20,
    2) end
  if kind == 2 then return out .. proto.float(2, number(c) / 3) .. proto.int(20, 1) end
  if kind == 3 then return out .. proto.bytes(4, c:one_in(2) and default:match("^'(.*)'$") or c:pick(words))
    .. proto.int(20, 3) end
  if kind == 4 then
    for _ = 1, c:int(0, 3) do out = out .. proto.float(7, number(c) / 2) end
    return out .. proto.int(20, 6)
  end
  if kind == 5 then return out .. proto.bytes(5, tensor(c, nil, c:pick(codes), shape_of(c))) .. proto.int(20, 4) end
  if kind == 6 then return out .. proto.bytes(9, c:pick(words)) .. proto.bytes(9, c:pick(words)) .. proto.int(20, 8) end
  for _ = 1, c:int(0, 4) do out = out .. proto.int(8, number(c)) end
  return out .. proto.int(20, 7)
end

-- A graph of nodes on inputs and initializers; within another one it also sees that one's.
function graph(c, depth)
  local parts, names, prefix = {}, depth > 0 and { "x0" } or {}, ("g%d"):format(depth):rep(depth > 0 and 1 or 0)
  local code, shape = c:pick(codes), shape_of(c)
  local function give(name)
    local own = c:one_in(4)
    local is_shape = c:one_in(3)
    local of, size = own and c:pick(codes) or is_shape and 7 or code,
      is_shape and { c:int(0, 4) } or own and shape_of(c) or shape
    if c:one_in(2) then parts[#parts + 1] = proto.bytes(5, tensor(c, name, of, size)) else
      parts[#parts + 1] = proto.bytes(11, value(name, of, size))
    end
    names[#names + 1] = name
  end
  for i = 0, c:int(0, 3) do give(prefix .. "x" .. i) end
  local last
  for k = 1, c:pick({ 1, 1, 1, 2, 3 }) do
    local rule = c:pick(rules)
    local node, list = {}, {}
    for _ = 1, c:pick({ 1, 1, 2, 2, 3, 4, 5, 0 }) do
      list[#list + 1] = c:one_in(12) and "" or c:one_in(3) and last or c:pick(names)
    end
    for _, name in ipairs(list) do node[#node + 1] = proto.bytes(1, name) end
    for i = 1, c:pick({ 1, 1, 1, 2, 3 }) do
      last = ("%sn%d_%d"):format(prefix, k, i)
      node[#node + 1], names[#names + 1] = proto.bytes(2, last), last
    end
    last = ("%sn%d_1"):format(prefix, k)
    node[#node + 1] = proto.bytes(4, rule[1])
    if rule[3] ~= "" then node[#node + 1] = proto.bytes(7, rule[3]) end
    for _, a in ipairs(rule[2]) do
      if c:one_in(2) then node[#node + 1] = proto.bytes(5, attribute(c, a[1], a[2], depth)) end
    end
    parts[#parts + 1] = proto.bytes(1, table.concat(node))
  end
  parts[#parts + 1] = proto.bytes(12, value(last, code, shape))
  if c:one_in(3) then parts[#parts + 1] = proto.bytes(12, value(c:pick(names), code, shape)) end
  return table.concat(parts)
end

local function model(c)
  local out = proto.int(1, 8) .. proto.bytes(8, proto.int(2, c:int(9, 24)))
  if c:one_in(3) then out = out .. proto.bytes(8, proto.bytes(1, "ai.onnx.ml") .. proto.int(2, c:int(1, 5))) end
  return out .. proto.bytes(7, graph(c, 0))
end

-- ---- seeds
-- ---------------------------------------------------------------------------------------------------------------

local seeds, files = {}, {}
do
  local path = os.tmpname()
  local function add(fn, args, o)
    if type(fn) == "table" then fn:eval() end
    moth.onnx.export(moth.export(fn, args, o), nil, path)
    seeds[#seeds + 1] = damage.protobuf_seed(read_file(path))
  end
  moth.manual_seed(1)
  add(nn.Linear(3, 2), { moth.randn(2, 3) }, { dynamic_shapes = { { [1] = "batch" } } })
  add(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)),
    { moth.randn(1, 1, 6, 6) })
  add(nn.LSTM(2, 3), { moth.randn(3, 1, 2) })
  add(nn.TransformerEncoderLayer(4, 2, 4), { moth.randn(2, 1, 4) }, { dynamic_shapes = { { [1] = "time" } } })
  add(function(i, x)
    return moth.while_loop(function(n) return n:lt(3) end, function(n, v)
      return n + 1, moth.cond(v:sum():gt(0), function(u) return u * 2 end, function(u) return u + 1 end, { v })
    end, { i, x })
  end, { moth.tensor(0), moth.randn(2) })
  os.remove(path)
  local folder = os.getenv("MOTH_ONNX_CASES")
  local pipe = folder and io.popen(("find '%s' -name '*.onnx' -size -8k | sort"):format(folder))
  for name in pipe and pipe:lines() or function() end do files[#files + 1] = name end
  for i, name in ipairs(files) do files[i] = damage.protobuf_seed(read_file(name)) end
end
local own = #seeds
for _, seed in ipairs(files) do seeds[#seeds + 1] = seed end

local M = {}

function M.make(c)
  local n = c:int(10)
  if n <= 4 then
    local bytes = model(c)
    if n == 1 then return damage.bytes(c, bytes) end
    if n == 2 then
      local seed = damage.protobuf_seed(bytes)
      return damage.protobuf(c, seed, { seed, c:pick(seeds) })
    end
    return bytes
  end
  local seed = (#files == 0 or c:one_in(5)) and seeds[c:int(own)] or c:pick(files)
  if n == 5 then
    local bytes = seed.text
    for _ = 1, c:int(1, 3) do bytes = damage.bytes(c, bytes) end
    return bytes
  end
  return damage.protobuf(c, seed, seeds)
end

function M.read(bytes, running, at)
  local f = assert(io.open(at, "wb"))
  f:write(bytes)
  f:close()
  local session = moth.onnx.InferenceSession(at)
  running()
  local _ = tostring(session)
  local inputs = {}
  for _, v in ipairs(session:get_inputs()) do
    local shape, n = {}, 1
    for i, size in ipairs(v.shape or {}) do
      shape[i] = type(size) == "number" and size or 2
      n = n * shape[i]
    end
    if n > 1e5 then return "loaded" end
    local ok, dtype = pcall(B.dtype, v.dtype)
    if ok then
      inputs[v.name] = moth.ones(shape, { dtype = dtype })
    elseif v.dtype == "string" then
      local texts = { kind = "strings", shape = shape, n = n }
      for i = 1, n do texts[i] = "a b" end
      inputs[v.name] = texts
    end
  end
  session:run(nil, inputs)
  session:run(nil, inputs)
  return "ran"
end

return M
