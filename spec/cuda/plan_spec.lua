-- Plans of graphs with tensors on CUDA: kernels are dispatched, views are headers; results and gradients are eager's.
local moth = require "moth"

if not moth.cuda.is_available() then
  describe("plans on CUDA", function() pending("no CUDA: " .. moth.cuda.why(), function() end) end)
  return
end

describe("plans on CUDA", function()
  for _, backend in ipairs { "blocks", "inductor" } do
    it("give eager's results and gradients, by " .. backend, function()
      local w = moth.randn(6, 5):cuda()
      local function f(x)
        local z = (x:matmul(w) + 1):relu():reshape(-1, 5, 2) * 2
        return z:transpose(2, 3):softmax(-1):sum(1), z:view(-1), (x * 2 + 1):tanh()
      end
      local compiled, x = moth.compile(f, { backend = backend }), moth.randn(4, 6):cuda()
      for _ = 1, 3 do
        local want, got = { f(x) }, { compiled(x) }
        for k = 1, 3 do assert.is_true(moth.equal(want[k], got[k])) end
      end
      local leaf = moth.randn(4, 6):cuda():requires_grad_(true)
      local function loss(t) return (f(t)):square():sum() end
      local cl = moth.compile(loss, { backend = backend })
      for _ = 1, 2 do
        leaf.grad = nil
        loss(leaf):backward()
        local want = leaf.grad:clone()
        leaf.grad = nil
        cl(leaf):backward()
        assert.is_true(moth.equal(want, leaf.grad))
      end
    end)
  end

  it("have parts on the CPU and on CUDA", function()
    local function f(x, y) return (x * 2 + 1):relu():sum() + (y * 3):tanh():cpu():sum() end
    local compiled = moth.compile(f, { backend = "blocks" })
    local x, y = moth.randn(50), moth.randn(30):cuda()
    for _ = 1, 3 do assert.is_true(moth.equal(f(x, y), compiled(x, y))) end
  end)
end)
