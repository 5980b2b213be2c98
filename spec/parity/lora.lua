-- Reads PEFT's adapters of spec/parity/lora.py, and writes them and one of moth's own for PEFT to read. Usage:
-- python3 spec/parity/lora.py make DIR; luajit spec/parity/lora.lua DIR; python3 spec/parity/lora.py check DIR
local moth = require "moth"
local json = require "cjson"
local nn, lora, dir = moth.nn, moth.lora, arg[1]

local Net = nn.class "Net"
function Net:__init() self.emb, self.fc1, self.head = nn.Embedding(7, 6), nn.Linear(6, 8), nn.Linear(8, 3) end
function Net:forward(x) return self.head(self.fc1(self.emb(x)):relu()):sum(2) end

local x = moth.arange(1, 7):reshape(2, 3)
local function base()
  local net = Net()
  net:load_state_dict(moth.load(dir .. "/base.safetensors"))
  return net
end
local function write(name, net)
  lora.save(net:eval(), dir .. "/" .. name .. "_moth")
  local f = assert(io.open(dir .. "/" .. name .. "_moth.json", "w"))
  f:write(json.encode(net(x):detach():tolist()))
  f:close()
end
for _, name in ipairs { "plain", "rank" } do
  local net = lora.load(base(), dir .. "/" .. name):eval()
  local f = assert(io.open(dir .. "/" .. name .. ".json"))
  local want = moth.tensor(json.decode(f:read "*a"))
  f:close()
  assert(moth.allclose(net(x), want, { rtol = 1e-4, atol = 1e-5 }), name)
  write(name, net)
  assert(moth.allclose(lora.merge(net)(x), want, { rtol = 1e-4, atol = 1e-4 }), name)
end
local own = lora.wrap(base(), { r = 2, alpha = 3, target_modules = { "emb", "fc1" }, rank_pattern = { emb = 4 } })
moth.no_grad(function() for _, p in ipairs(own:parameters()) do if p:requires_grad() then p:normal_() end end end)
write("own", own)
