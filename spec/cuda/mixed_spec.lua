-- Tensors of two devices in one call: an error that names both, never a silent copy.
local moth = require "moth"
local fails = require "fails"

describe("tensors of two devices", function()
  it("are refused by the op, which names both #M025 #M471", function()
    if not moth.cuda.is_available() then return pending(moth.cuda.why()) end
    local a, b = moth.ones(2, 3), moth.ones(2, 3, { device = "cuda" })
    local message = "mixed_spec.lua:%d+: %[OP%] Expected all tensors to be on the same device, but found .*; "
      .. "move them with x:to%(device%).*"
    for op, f in pairs {
      add = function() return a + b end,
      matmul = function() return a:matmul(b:t()) end,
      linear = function() return moth.nn.Linear(3, 1)(b) end,
      where = function() return moth.where(a:gt(0), b, 0) end,
      cross_entropy = function() return moth.cross_entropy(b, moth.tensor({ 1, 2 }, { dtype = moth.int64 })) end,
    } do
      local text = message:gsub("OP", op)
      local function call()
        local y = f()
        return y
      end
      fails(text, call)
      local found = select(2, pcall(call)):match("but found (.-);")
      assert.is_truthy(found:find("cpu", 1, true) and found:find("cuda", 1, true), found)
    end
    assert.is_true((a + b:cpu()):equal(moth.full({ 2, 3 }, 2)))
    assert.is_true(b:cpu():equal(b:clone():copy_(a):cpu())) -- copy_ is what copies
  end)

  it("may be argument and out of what copies between devices", function()
    if not moth.cuda.is_available() then return pending(moth.cuda.why()) end
    local ops = require "moth_lua".ops
    local a, b = moth.randn(3, 4), moth.empty(3, 4, { device = "cuda" })
    ops.to_copy(a, { out = b }) -- a result on the cpu, copied
    assert.is_true(b:cpu():equal(a))
    local c = moth.empty(3, 4)
    ops.to_copy(b, { device = "cpu", out = c })
    assert.is_true(c:equal(a))
    local square = moth.empty(3, 3, { device = "cuda" })
    ops.mm(b, b:t(), { out = square }) -- written to directly
    assert.is_true(square:cpu():allclose(a:mm(a:t()), { rtol = 1e-4, atol = 1e-5 }))
    local wide = moth.zeros(3, 7, { device = "cuda" })
    ops.softmax(b, 2, { out = wide:narrow(2, 2, 4) }) -- not dense: through a copy
    assert.is_true(wide:narrow(2, 2, 4):cpu():allclose(a:softmax(2), { rtol = 1e-4, atol = 1e-5 }))
    assert.equal(0, wide:narrow(2, 6, 2):abs():sum():item())
  end)
end)
