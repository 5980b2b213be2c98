--- Exported programs (moth.export.save): the container in C, the program in its metadata in Lua; those that load are
-- run.
local B = require "moth_lua"
local moth = require "moth"
local each = require "moth.each"
local damage = require "fuzz.damage"
local nn = moth.nn

local seeds, jsons = {}, {}
local path = os.tmpname()

local function word(n) -- eight bytes, the least first
  local out = ""
  for _ = 1, 8 do out, n = out .. string.char(n % 256), math.floor(n / 256) end
  return out
end

local function quote(s) return (require("cjson").encode(s)) end

-- A file without a seal: what is behind it is asked.
local function file_of(seed, graph)
  local meta = {}
  for key, value in each(seed.metadata) do
    if key == "graph" then value = graph or value end
    if key ~= "moth.sha256" then meta[#meta + 1] = quote(key) .. ":" .. quote(value) end
  end
  table.sort(meta)
  local head = '{"__metadata__":{' .. table.concat(meta, ",") .. "}" .. seed.entries .. "}"
  head = head .. (" "):rep(-#head % 8)
  return word(#head) .. head .. seed.data
end

local function add(fn, args, o)
  if type(fn) == "table" then fn:eval() end
  moth.export.save(moth.export(fn, args, o), path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  local n = 0
  for i = 8, 1, -1 do n = n * 256 + text:byte(i) end
  local seed = { data = text:sub(9 + n) }
  seed.entries = text:sub(9, 8 + n):match('^{"__metadata__":%b{}(.*)}%s*$') or ""
  seed.metadata = select(3, B.load_safetensors(path))
  if text:sub(9, 8 + n):find('"__metadata__":{.*{.*}', 1) then -- the metadata hold braces: behind the last of them
    local at = text:find('"%},"', 9 + #'{"__metadata__"')
    seed.entries = at and text:sub(at + 2, 8 + n):match("^(.*)}%s*$") or ""
  end
  seeds[#seeds + 1], jsons[#jsons + 1] = seed, damage.json_seed(seed.metadata.graph)
  jsons[#jsons].of = seed
end

moth.manual_seed(1)
add(nn.Linear(3, 2), { moth.randn(2, 3) }, { dynamic_shapes = { { [1] = moth.Dim("batch", { min = 1, max = 64 }) } } })
add(function(x) return { y = x:relu() * 2, rest = { x:sum(), "text", 1, true } } end, { moth.randn(2, 2) })
add(function(t) return t.a:to(moth.float64) + t.b:sum(), t.a:gt(1) end,
  { { a = moth.ones({ 3 }, { dtype = moth.int64 }), b = moth.randn(2):to(moth.float16) } })
add(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)),
  { moth.randn(1, 1, 6, 6) })
add(nn.LSTM(2, 3), { moth.randn(3, 1, 2) })
add(function(x) return x:view(x:size(1) * x:size(2), -1) / math.sqrt(x:size(1)) end, { moth.randn(2, 3, 4) },
  { dynamic_shapes = { { [1] = "b", [2] = moth.Dim("time", { multiple_of = 1 }) } } })
add(function(x, i) return moth.cat({ x:index_select(1, i), x:transpose(1, 2) }, 1):topk(2) end,
  { moth.randn(2, 2), moth.ones({ 2 }, { dtype = moth.int64 }) })
add(function(x) return x:to("cpu"):cumsum(1), moth.full({ 2, x:size(1) }, 1 / 0), moth.randint(1, 5, { 2 }) end,
  { moth.randn(3, 2) })
add(function(i, x)
  return moth.while_loop(function(n) return n:lt(3) end, function(n, v)
    return n + 1, moth.cond(v:sum():gt(0), function(u) return u * 2 end, function(u) return u + 1 end, { v })
  end, { i, x })
end, { moth.tensor(0), moth.randn(2) })
add(nn.TransformerEncoderLayer(4, 2, 4), { moth.randn(2, 1, 4) }, { dynamic_shapes = { { [1] = "time" } } })
os.remove(path)

-- The seeds for exchange: JSON of small programs.
local M = {}

function M.make(c)
  local n = c:int(10)
  if n == 1 then return damage.bytes(c, file_of(c:pick(seeds))) end
  local json = c:pick(jsons)
  if n == 2 then return file_of(json.of, damage.bytes(c, json.text):gsub("[%z\128-\255]", "?")) end
  if n == 3 then -- other tensors than those of the program
    return file_of({ metadata = json.of.metadata, entries = c:pick(seeds).entries, data = c:pick(seeds).data }, nil)
  end
  return file_of(json.of, damage.json(c, json, jsons))
end

local function input_of(meta, dims)
  local shape = {}
  for i, n in ipairs(meta.shape) do shape[i] = type(n) == "number" and n or dims[n] end
  return moth.ones(shape, { dtype = meta.dtype })
end

function M.read(bytes, running, at)
  local f = assert(io.open(at, "wb"))
  f:write(bytes)
  f:close()
  local ep = moth.export.load(at)
  running()
  local _ = tostring(ep)
  local inputs, n = {}, 1
  for i, meta in ipairs(ep.program.inputs) do
    for _, size in ipairs(meta.shape) do n = n * (ep.program.example[size] or size) end
    if n > 1e6 then return "loaded" end
    inputs[i] = input_of(meta, ep.program.example)
  end
  local ok, err = pcall(function() return ep.program:run(ep.tensors, ep.program.example, inputs, "cpu") end)
  if ok then return "ran" end
  error(err, 0)
end

return M
