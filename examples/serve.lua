-- A model behind HTTP: exported, served by a process of its own, asked with curl: moth examples/serve.lua
-- What `moth serve digits=digits.mth2` does on the command line. Needs lua-http (Debian: lua-http) and curl.
local moth = require "moth"
local json = require "cjson"

moth.manual_seed(0)
local model = moth.nn.Sequential(moth.nn.Linear(16, 32), moth.nn.ReLU(), moth.nn.Linear(32, 4)):eval()

-- Any batch of up to 64 rows: requests that wait together are computed together.
local path = os.tmpname()
local batch = moth.Dim("batch", { max = 64 })
moth.export.save(moth.export(model, { moth.randn(2, 16) }, { dynamic_shapes = { { [1] = batch } } }), path)

local server = moth.serve.spawn { models = { digits = path }, port = 0 }
print("serving on " .. server.url:gsub("%d+$", "a free port"))

local JSON = "-H 'Content-Type: application/json' "
local function curl(words)
  local pipe = io.popen("curl --silent --show-error " .. words .. " 2>&1")
  local text = pipe:read "*a"
  pipe:close()
  return text
end

print("ready:  " .. curl(server.url .. "/v2/health/ready"))
print("model:  " .. curl(server.url .. "/v2/models/digits"))

-- A request of KServe's protocol. Two rows; the answer is that of model(x).
local x = moth.randn(2, 16)
local request = os.tmpname()
local file = io.open(request, "w")
file:write(json.encode { inputs = { { name = "x1", shape = { 2, 16 }, datatype = "FP32", data = x:totable() } } })
file:close()
local answer = json.decode(curl(JSON .. "--data @" .. request .. " " .. server.url .. "/v2/models/digits/infer"))
local y = moth.tensor(answer.outputs[1].data):view(2, 4)
print("answer:", y)
print("equal to the model's: ", moth.allclose(y, model(x), { atol = 1e-5 }))

-- A wrong request is told what is wrong, before it reaches the model.
print("wrong:  " .. curl(JSON
  .. "--data '{\"inputs\":[{\"name\":\"x1\",\"shape\":[2,15],\"datatype\":\"FP32\",\"data\":[]}]}' "
  .. server.url .. "/v2/models/digits/infer"))

local metrics = curl(server.url .. "/metrics")
print(metrics:match 'moth_requests_total{model="digits",code="200"} %d+')

server:stop()
os.remove(path)
os.remove(request)
