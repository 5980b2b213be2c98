-- The models of spec/edge/edge_spec.lua, their inputs and outputs, in a folder, for `make edge-test`.
local moth = require "moth"
local nn = moth.nn
local folder = assert(arg[1])
os.execute("mkdir -p " .. folder)

-- Written only if the content changes: make builds the library again where a model is newer.
local function write(name, text)
  local path = folder .. "/" .. name
  local old = io.open(path, "rb")
  local same = old and old:read("*a") == text
  if old then old:close() end
  if same then return end
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

local function bytes(t)
  t = t:contiguous()
  return require("ffi").string(t:data(), t:numel() * t:element_size())
end

local function put(name, model, x, dynamic)
  local ep = moth.export(model:eval(), { x }, { dynamic_shapes = dynamic })
  local path = os.tmpname()
  moth.edge.export(ep, path)
  local want = moth.no_grad(function() return ep(x) end) -- behind it: it may write to buffers
  local f = assert(io.open(path, "rb"))
  write(name .. ".mte", f:read("*a"))
  f:close()
  os.remove(path)
  write(name .. ".in", bytes(x))
  write(name .. ".out", bytes(want))
end

moth.manual_seed(1)
put("cnn", nn.Sequential(nn.Conv2d(1, 8, 3, { padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(true), nn.MaxPool2d(2),
  nn.Conv2d(8, 12, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(192, 10), nn.Softmax(2)),
  moth.randn(2, 1, 14, 14), { { [1] = moth.Dim("batch", { min = 1, max = 8 }) } })
-- A branch, a loop and a buffer that is written to.
local Steps = nn.class("Steps")
function Steps:__init()
  self.fc = nn.Linear(4, 4)
  self:register_buffer("seen", moth.ones(4))
end
function Steps:forward(x)
  self.seen:add_(x:mean(1))
  local y = moth.cond(x:sum():gt(0), function(a) return self.fc(a) end, function(a) return a * 2 end, { x })
  local _, z = moth.while_loop(function(i) return i:lt(5) end, function(i, a)
    return i + 1, a * 0.5 + self.fc(a):tanh()
  end, { moth.tensor(0), y })
  return z + self.seen
end
put("steps", Steps(), moth.rand(3, 4))
put("text", moth.models.minigpt { vocab = 50, d_model = 32, n_layer = 2, n_head = 4 }, moth.randint(1, 51, { 2, 7 }))
