--- Files of models that infer, for bench/inference.py: exports them, and runs one of them when it is asked to.
--     bench/inference.lua export folder [model …]     writes model.onnx, .mth2 and .mte
--     bench/inference.lua run folder model how        how: session, compiled, plan, edge; a line with a number runs it
local moth = require "moth"
local models = moth.models

local task, folder, name, how = arg[1], arg[2], arg[3], arg[4]

local function image(n) return { moth.randn(1, 3, n, n) } end

local given = {
  mobilenet_v2 = function() return image(224) end, resnet18 = function() return image(224) end,
  resnet50 = function() return image(224) end, unet = function() return image(128) end,
  bert = function() return { moth.randint(1, 1000, { 1, 128 }, { dtype = moth.int64 }) } end,
}

local makers = {
  mobilenet_v2 = function() return models.mobilenet_v2() end,
  resnet18 = function() return models.resnet18() end,
  resnet50 = function() return models.resnet50() end,
  unet = function() return models.UNet { channels = 32 } end,
  bert = function()
    return models.BERT { vocab_size = 2000, hidden_size = 256, num_hidden_layers = 4, num_attention_heads = 4, intermediate_size = 1024  }
  end,
}

-- Statistics as training leaves them: not 0 and 1, which are no norm.
local function trained(model)
  for key, b in model:named_buffers() do
    if key:find "running_mean" then b:normal_(0, 0.1) end
    if key:find "running_var" then b:uniform_(0.5, 1.5) end
  end
  return model:eval()
end

local function export(which)
  moth.manual_seed(1)
  local model, args = makers[which](), given[which]()
  local ep = moth.export(trained(model), args)
  local path = folder .. "/" .. which
  moth.onnx.export(ep, args, path .. ".onnx")
  moth.export.save(ep, path .. ".mth2")
  moth.edge.export(ep, path .. ".mte")
end

-- A function of inputs in a list.
local function runner(path)
  if how == "edge" then
    local model = moth.edge.load(path .. ".mte")
    return function(args) return model(unpack(args)) end
  end
  if how == "plan" then
    local ep = moth.export.load(path .. ".mth2")
    return function(args) return moth.no_grad(ep, unpack(args)) end
  end
  local session = moth.onnx.InferenceSession(path .. ".onnx", { compile = how == "compiled" })
  local input = session:get_inputs()[1].name
  return function(args) return session:run(nil, { [input] = args[1] })[1] end
end

local function peak()
  for line in io.lines "/proc/self/status" do
    local kb = line:match "^VmHWM:%s*(%d+)"
    if kb then return tonumber(kb) / 1024 end
  end
end

if task == "export" then
  for i = 3, #arg do export(arg[i]) end
  return
end

moth.set_num_threads(1)
moth.manual_seed(2)
local began = peak()
local args = given[name]()
local ffi = require "ffi"
ffi.cdef [[typedef struct { long seconds, nanoseconds; } MothBenchTime; int clock_gettime(int, MothBenchTime *);]]
local now = ffi.new "MothBenchTime[1]"
-- Of this thread: other programs count little.
local function clock()
  ffi.C.clock_gettime(3, now)
  return tonumber(now[0].seconds) + tonumber(now[0].nanoseconds) * 1e-9
end
local fn = runner(folder .. "/" .. name)
for _ = 1, 3 do fn(args) end
io.write("ready\n")
io.flush()
for line in io.lines() do
  local times = {}
  for i = 1, tonumber(line) do
    local start = clock()
    fn(args)
    times[i] = (clock() - start) * 1e3
  end
  table.sort(times)
  io.write(("%.4f %.1f\n"):format(times[math.ceil(#times / 2)], peak() - began))
  io.flush()
end
