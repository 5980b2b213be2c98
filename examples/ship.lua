-- From a trained model to an answer over HTTP: trained, quantized, exported, served, asked: moth examples/ship.lua
-- The float model and its int8 form are served side by side. Needs lua-http (Debian: lua-http).
local moth = require "moth"
local json = require "cjson"
local nn = moth.nn

-- Train: which of four quarters of the plane a point lies in.
moth.manual_seed(0)
local model = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
local optimizer = moth.optim.AdamW(model:parameters(), { lr = 0.01 })
local function points(n)
  local x = moth.randn(n, 2)
  return x, x:select(2, 1):gt(0):long() * 2 + x:select(2, 2):gt(0):long() + 1
end
for _ = 1, 150 do
  local x, y = points(128)
  optimizer:zero_grad()
  nn.functional.cross_entropy(model(x), y):backward()
  optimizer:step()
end
model:eval()

-- Quantize: weights as int8, activations at run time. A module, exported like any other.
local small = moth.quantization.quantize_dynamic(model, { nn.Linear }, { dtype = moth.int8 })

-- Export both.
local folder = os.tmpname()
os.remove(folder)
os.execute("mkdir " .. folder)
local x, y = points(32)
local batch = { { [1] = moth.Dim("batch", { max = 256 }) } }
for name, m in pairs { float = model, int8 = small } do
  local program = moth.export(m, { x }, { dynamic_shapes = batch })
  moth.export.save(program, ("%s/%s.mth2"):format(folder, name))
  print(name)
  moth.benchmark.latency(program, { seconds = 0.1 })
end

-- Serve both, and ask.
local models = { float = folder .. "/float.mth2", int8 = folder .. "/int8.mth2" }
local server = moth.serve.spawn { port = 0, models = models }
local right = {}
for _, name in ipairs { "float", "int8" } do
  local input = json.decode(server:get("/v2/models/" .. name).body).inputs[1]
  local answer = server:post(("/v2/models/%s/infer"):format(name), json.encode { inputs = { { name = input.name,
    shape = x:size(), datatype = input.datatype, data = x:totable() } } })
  local scores = moth.tensor(json.decode(answer.body).outputs[1].data):view(32, 4)
  right[name] = scores:argmax(2):eq(y):sum():item()
  print(("%s: status %d, %d of 32 right"):format(name, answer.status, right[name]))
end
print(server:get("/metrics").body:match 'moth_requests_total{model="int8",code="200"} %d+')
server:stop()
os.execute("rm -r " .. folder)
