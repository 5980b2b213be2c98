--- Damaged model files: ONNX models through InferenceSession and onnx.load, exported programs through export.load;
-- those that open are run. A source of lines for spec/fuzz/api.lua. MOTH_ONNX_CASES: a folder of more ONNX files, such
-- as spec/parity/onnx_cases.py writes.
local B = require "moth_lua"
local moth = require "moth"
local Chance = require "fuzz.chance"
local nn = moth.nn

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

local path = os.tmpname()
local models, programs, files = {}, {}, {}

local function add(fn, args, o)
  if type(fn) == "table" then fn:eval() end
  local ep = moth.export(fn, args, o)
  moth.onnx.export(ep, nil, path)
  models[#models + 1] = read(path)
  moth.export.save(ep, path)
  local names, tensors, metadata = B.load_safetensors(path)
  for i, t in ipairs(tensors) do tensors[i] = t:clone() end
  programs[#programs + 1] = { names = names, tensors = tensors, metadata = metadata }
end
moth.manual_seed(1)
add(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)),
  { moth.randn(1, 1, 6, 6) })
add(nn.LSTM(2, 3), { moth.randn(3, 1, 2) })
add(nn.TransformerEncoderLayer(4, 2, 4), { moth.randn(2, 1, 4) }, { dynamic_shapes = { { [1] = "time" } } })
add(function(i, x)
  return moth.while_loop(function(n) return n:lt(3) end, function(n, v)
    return n + 1, moth.cond(v:sum():gt(0), function(u) return u * 2 end, function(u) return u + 1 end, { v })
  end, { i, x })
end, { moth.tensor(0), moth.randn(2) })
do
  local folder = os.getenv("MOTH_ONNX_CASES")
  local pipe = folder and io.popen(("ls '%s'/*.onnx"):format(folder))
  for name in pipe and pipe:lines() or function() end do files[#files + 1] = name end
end

local damages = {
  function(c, s) return s:sub(1, c:int(0, #s)) end,
  function(c, s)
    local at = c:int(0, #s)
    return s:sub(1, at) .. string.char(c:pick({ 0, 1, 127, 128, 255, c:int(0, 255) })) .. s:sub(at + 2)
  end,
  function(c, s) -- one more or less: lengths, sizes, types
    local at = c:int(1, math.max(#s, 1))
    return s:sub(1, at - 1) .. string.char(((s:byte(at) or 0) + c:pick({ 1, -1, 8, -8 })) % 256) .. s:sub(at + 1)
  end,
  function(c, s)
    local at = c:int(0, #s)
    local long = { "\255\255\255\255\255\255\255\255\127", "\255\255\255\255\7", "\128\128\128\128\128" }
    return s:sub(1, at) .. c:pick(long) .. s:sub(at + 2)
  end,
  function(c, s)
    local at, from = c:int(0, #s), c:int(0, #s)
    return s:sub(1, at) .. s:sub(from, from + c:int(0, 200)) .. s:sub(at + 1)
  end,
  function(c, s)
    local at = c:int(0, #s)
    return s:sub(1, at) .. s:sub(at + c:int(0, 8))
  end,
}

local in_json = { -- of the program as text
  function(c, s)
    local numbers = { "0", "-1", "99999999999999999999", "1e5", "7", "null", "true", "[]", "{}", '""', '"x"' }
    return (s:gsub("%d+", function(n) return c:one_in(40) and c:pick(numbers) or n end))
  end,
  function(c, s)
    local words = { '"relu"', '"x"', "0", '"cat"', '"1"' }
    return (s:gsub('"[%w_]+"', function(n) return c:one_in(60) and c:pick(words) or n end))
  end,
}

local function write(text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
  return path
end

local function damaged_model(n)
  local d = Chance.new(n)
  local text = (#files > 0 and not d:one_in(8)) and read(d:pick(files)) or d:pick(models)
  for _ = 1, d:int(1, 3) do text = d:pick(damages)(d, text) end
  return write(text)
end

local function damaged_program(n)
  local d = Chance.new(n)
  local p = d:pick(programs)
  local metadata = { { "moth.sha256", ("0"):rep(64) } }
  for key, value in require("moth.each")(p.metadata) do
    if key == "graph" then
      local change = d:one_in(3) and d:pick(damages) or d:pick(in_json)
      value = change(d, value):gsub("[\128-\255%z]", "?")
    end
    if key ~= "moth.sha256" then metadata[#metadata + 1] = { key, value } end
  end
  B.save_safetensors(path, p.names, p.tensors, metadata, true)
  return path
end

-- Runs a session on zeros.
local function run(session)
  local inputs = {}
  for _, v in ipairs(session:get_inputs()) do
    local shape = {}
    for i, size in ipairs(v.shape or {}) do shape[i] = type(size) == "number" and size or 2 end
    if pcall(moth.zeros, shape, { dtype = v.dtype }) then inputs[v.name] = moth.zeros(shape, { dtype = v.dtype }) end
  end
  session:run(nil, inputs)
  return session:run(nil, inputs)
end

local readers = { "moth.onnx.InferenceSession(damaged_model(%d))", "run(moth.onnx.InferenceSession(damaged_model(%d)))",
  "run(moth.onnx.InferenceSession(damaged_model(%d)))", "moth.onnx.load(damaged_model(%d))",
  "moth.export.load(damaged_program(%d))", "moth.export.load(damaged_program(%d))" }

return function(c, program)
  program.env.damaged_model, program.env.damaged_program, program.env.run = damaged_model, damaged_program, run
  return ("K(1, %s)"):format(c:pick(readers):format(c:int(2 ^ 30))), false, "model"
end
