-- Exported programs on CUDA: with writes to buffers and arguments, recorded there and loaded there.
local moth = require "moth"
local nn = require "moth.nn"

if not moth.cuda.is_available() then
  describe("exported programs on CUDA", function() pending("no CUDA: " .. moth.cuda.why(), function() end) end)
  return
end

local Net = nn.class("Net")
function Net:__init()
  self.norm = nn.BatchNorm1d(4)
  self:register_buffer("rows", moth.zeros(6, 4))
end
function Net:forward(x)
  local y = self.norm(x)
  self.rows:narrow(1, 2, 1):copy_(y:narrow(1, 1, 1))
  local z = moth.cond(x:sum():gt(100), function(v)
    v:add_(1)
    return v * 2
  end, function(v) return v - 1 end, { self.rows })
  y[1] = 0
  y:t():add_(1)
  x:mul_(2)
  return y, z, y:matmul(self.rows:t())
end

describe("exported programs on CUDA", function()
  it("write to arguments and buffers as the function does", function()
    local file = os.tmpname()
    finally(function() os.remove(file) end)
    local a, b, c = Net(), Net():to("cuda"), Net()
    local there = moth.export(b, { moth.randn(3, 4):cuda() })
    moth.export.save(moth.export(c, { moth.randn(3, 4) }), file)
    local loaded = moth.export.load(file, { map_location = "cuda" })
    for _ = 1, 2 do
      local x = moth.randn(3, 4)
      local p, q = x:cuda(), x:cuda()
      local want = { a(x) }
      for _, pair in ipairs { { there, p }, { loaded, q } } do
        for i, y in ipairs { pair[1](pair[2]) } do
          assert.equal("cuda", y:device().type)
          assert.is_true(moth.allclose(want[i], y:cpu(), 1e-5, 1e-5), "result " .. i)
        end
        assert.is_true(moth.allclose(x, pair[2]:cpu()))
        for _, name in ipairs { "rows", "norm.running_var", "norm.num_batches_tracked" } do
          assert.is_true(moth.allclose(a:state_dict()[name], pair[1].tensors[name]:cpu(), 1e-5, 1e-5), name)
        end
      end
    end
  end)
end)
