-- Walks over the modules of many networks in fresh processes: LuaJIT's compiled loops by `pairs` and `next` ended about
-- one in fifteen of them (lua/moth/each.lua says why).
local program = [[
local moth = require "moth"
local nn = moth.nn
local layer, two = { dim_feedforward = 16, dropout = 0 }, { num_layers = 2, bidirectional = true }
local whole = { d_model = 8, nhead = 2, num_encoder_layers = 2, num_decoder_layers = 2, dim_feedforward = 16 }
for _ = 1, 6 do
  for _, m in ipairs { nn.TransformerEncoderLayer(8, 2, layer), nn.TransformerDecoderLayer(8, 2, layer),
    nn.Transformer(whole), nn.LSTM(8, 6, two), nn.GRU(8, 6, two), nn.LSTMCell(8, 6), nn.GRUCell(8, 6),
    nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2)) } do
    m:load_state_dict(m:state_dict())
    m:eval()
    for _, p in m:named_parameters() do assert(p:numel() > 0) end
    for _ in m:named_modules() do end
    for _ in m:named_buffers() do end
  end
end
]]

describe("walking over modules", function()
  it("does not end the process", function()
    local path = os.tmpname()
    local file = assert(io.open(path, "w"))
    file:write(program)
    file:close()
    finally(function() os.remove(path) end)
    local times = os.getenv("LD_PRELOAD") and 2 or 30 -- under a sanitizer each takes long
    for i = 1, times do
      local command = ("%s %s > /dev/null 2>&1"):format(os.getenv("LUAJIT") or "luajit", path)
      assert.equal(0, os.execute(command), "process " .. i)
    end
  end)

  it("is done by no loop that LuaJIT knows by name", function()
    local files = assert(io.popen("find lua -name '*.lua'"))
    local seen = 0
    for path in files:lines() do
      local n = 0
      for line in io.lines(path) do
        n = n + 1
        local name = line:gsub("%-%-.*", ""):match("for [%w_, ]+ in (%w+)")
        seen = seen + (name == "each" and 1 or 0)
        local known = name == "pairs" or name == "next"
        assert.is_false(known, ("%s:%d: write `in each(t)`, as moth.each says"):format(path, n))
      end
    end
    files:close()
    assert.is_true(seen > 50)
  end)
end)
