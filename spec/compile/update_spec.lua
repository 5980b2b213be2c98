-- Writes to inputs in the kernels of "inductor": optimizer steps that are written out, running averages; copies that
-- nobody needs. What is read of an input is what it was before the write.
local moth = require "moth"
local S = require "compile.support"
local inductor = require "moth.compile.inductor"
local toolchain = require "moth.utils.toolchain"

-- f's results and arguments, compiled and not, three times: the same bits. Returns how many groups were made.
local function check(f, make)
  local compiled = moth.compile(f, { backend = "inductor" })
  local function run(fn) return S.outcome(fn, function() moth.manual_seed(3) return make() end) end
  local want, groups = run(f), inductor.counters.groups
  for _ = 1, 3 do assert.are.equal(want, run(compiled)) end
  return inductor.counters.groups - groups
end

local function two() return { moth.randn(5, 7), moth.randn(5, 7) } end
local function square() return { moth.randn(6, 6), moth.randn(6, 6) } end

describe("writes to inputs in generated kernels", function()
  if not toolchain.cc() then return end

  it("make AdamW, written out, one kernel #M302", function()
    local n = check(function(p, g, m, v)
      m:mul_(0.9):add_(g, { alpha = 0.1 })
      v:mul_(0.999):addcmul_(g, g, { value = 0.001 })
      p:mul_(0.99):addcdiv_(m, v:sqrt():add_(1e-8), { value = -0.01 })
    end, function() return { moth.randn(50, 3), moth.randn(50, 3), moth.zeros(50, 3), moth.rand(50, 3) } end)
    assert.are.equal(1, n)
  end)

  it("come behind all that reads the input", function()
    check(function(x, y) -- a maximum by columns and a transpose of the old values
      local s = (x * 2):amax(1)
      local z = (y + x:t()[{ {}, {} }]) * 2
      x:mul_(3):add_(y)
      return s, z, x:t() + 1
    end, square)
    check(function(x, y)
      x:copy_(x:t() * 2 + y)
      y:add_(x:t()):mul_(2)
    end, square)
    check(function(x, y) -- two inputs exchange what they are
      local a, b = x * 2 + 1, y * 3 + 1
      x:copy_(b)
      y:copy_(a)
    end, two)
    check(function(x, y)
      x:add_(x:amax(2, true)):mul_(2)
      y:sub_(x[1]):mul_(x)
      return x:amax()
    end, two)
    check(function(x, y) x:mul_(2):add_(x[{ 1 }]) return y * x end, two)
  end)

  it("go to strided inputs, parts of them and other dtypes", function()
    check(function(x, y) x:mul_(2):add_(y:t()) end, function() return { moth.randn(5, 7):t(), moth.randn(5, 7) } end)
    check(function(x, y)
      local part = x[{ {}, { 2, 4 } }]
      part:mul_(2):add_(y[{ {}, { 1, 3 } }])
      x:select(1, 2):zero_()
    end, two)
    check(function(x, y) x:add_(y):mul_(2) end, function()
      return { moth.randn(5, 7):to(moth.bfloat16), moth.randn(5, 7):to(moth.float64) }
    end)
    check(function(x, y) x:add_(y):mul_(2) end, function() return { moth.randn(0, 7), moth.randn(1, 7) } end)
  end)

  it("write to leaves with gradients, through backward", function()
    local function step(w, x)
      local loss = ((x * w):tanh() * 2):sum()
      local g = moth.autograd.grad(loss, { w })[1]
      moth.no_grad(function() w:sub_(g * 0.1) end)
      return loss:detach()
    end
    local function run(f)
      moth.manual_seed(4)
      local w, x = moth.randn(5, 7):requires_grad_(true), moth.randn(5, 7)
      local losses = {}
      for i = 1, 4 do losses[i] = f(w, x) end
      return w:detach(), losses
    end
    local want, losses = run(step)
    local got, mine = run(moth.compile(step, { backend = "inductor" }))
    assert.is_true(moth.allclose(got, want, { rtol = 1e-6, atol = 1e-7 }))
    for i = 1, 4 do assert.is_true(moth.allclose(mine[i], losses[i], { rtol = 1e-5 })) end
  end)
end)

describe("copies in generated kernels", function()
  if not toolchain.cc() then return end

  it("stay where the copied is used, written to or returned", function()
    check(function(x) local y = x:mm(x:t()) local z = y:clone() z:add_(1):mul_(2) return y, z end, two)
    check(function(x) local y = x:mm(x:t()) local z = y:clone() return z * 2 + 1 end, two)
    check(function(x) local y = x:mm(x:t()) local z = y:clone() return z, (z * 2):exp() end, two)
    check(function(x) local y = x:mm(x:t()) return y, y:clone(), y * 2 + 1 end, two)
    check(function(x) local y = x:mm(x:t()):t() return y:clone(), (y:clone() * 2):exp() end, two)
  end)
end)
