-- Generated kernels stay in their buffers, also where a part has no elements or a dimension is one.
local moth = require "moth"
local kernels = require "kernel.kernels"
local lower = require "moth.compile.lower"
require "compile.support"
local toolchain = require "moth.utils.toolchain"
local F = moth.nn.functional

local fused = toolchain.cc() and it or pending

-- Programs with parts that may be empty: of x, a whole value beside them, and a dimension d of it whose size is n.
local programs = {
  roll = function(x, d, n) return x:roll(0, d), x:roll(n, d), x:roll(-2 * n, d), x:roll(1, d) end,
  narrow = function(x, d, n) return x:narrow(d, 1, 0), x:narrow(d, n, 0) * 2, x:narrow(d, 1, n) end,
  slice = function(x, d, n) return x:transpose(1, d)[{ { 1, 0 } }], x:transpose(1, d)[{ { 1, n } }] end,
  cat = function(x, d, n)
    local none = x:narrow(d, 1, 0)
    return moth.cat({ none, x }, d), moth.cat({ x, none, x + 1 }, d), moth.cat({ none, none }, d),
      moth.cat({ x:narrow(d, 1, n), none * 2 }, d) * 3
  end,
  split = function(x, d, n)
    local a, b = unpack(x:split({ 0, n }, d))
    return a * 2, b * 2
  end,
  pad = function(x) return F.pad(x, { 0, 0 }), F.pad(x, { -1, 0 }), F.pad(x, { 1, -1 }) end,
  stack = function(x, d) return moth.stack({ x:narrow(d, 1, 0), x:narrow(d, 1, 0) }, 1), moth.stack({ x, x }, d) end,
  unfold = function(x, d, n) return x:unfold(d, n, 1), x:unfold(d, 1, n) * 2 end,
  flip = function(x, d) return x:flip(d), x:narrow(d, 1, 0):flip(d) end,
  as_strided = function(x) return moth.as_strided(x, { 0 }, { 1 }), moth.as_strided(x, { 0, 3 }, { 1, 1 }) + 1 end,
  expand = function(x, d) return x:narrow(d, 1, 0):unsqueeze(1):expand(2, -1, -1), x:unsqueeze(1):expand(0, -1, -1) end,
  reduce = function(x, d) return x:narrow(d, 1, 0):sum(d), x:narrow(d, 1, 0):sum(), x:narrow(d, 1, 0):prod(1) end,
}

-- Compiles as if values without elements could be in a kernel, in which they were taken for whole ones once.
local function planted(f)
  local numel = lower.numel
  lower.numel = function(shape) return math.max(1, numel(shape)) end
  local ok, message = pcall(f)
  lower.numel = numel
  return ok, tostring(message)
end

describe("the check of accesses to memory", function()
  local function rolled(x) return (x:abs() + 0.1):roll(1, 1) * 1, x:relu() end
  local right = "%[compile%] the generated kernel of abs .*roll .*: store to result 1 %(float32 %[0, 20000%] cpu%), "
    .. "element %d+ %(from 0%), program 0, is outside of its memory, which has 0 elements"

  fused("finds a kernel that writes beside a result without elements, and nothing is written", function()
    local x = moth.randn(1, 20000)
    kernels.with({ MOTH_KERNEL_CHECK = "1" }, function()
      local compiled = moth.compile(rolled, { backend = "inductor" })
      local ok, message = planted(function() compiled(x) end)
      assert.is_false(ok)
      assert.matches("^[^ ]*bounds_spec.lua:%d+: " .. right, message)
      assert.is_false((pcall(compiled, x))) -- again, by the plan that there is
    end)
    moth.compile.config.check = true
    local ok, message = planted(function() moth.compile(rolled, { backend = "inductor" })(x) end)
    moth.compile.config.check = false
    assert.is_false(ok)
    assert.matches(right, message)
  end)

  fused("finds nothing where kernels are right, by rows, columns and several programs", function()
    local function f(x)
      local y = (x * 2):exp()
      return y:sum(1), y:sum(2), y:sum(), y:softmax(2), y:t() * 2 + y:t():contiguous(), moth.cat({ y, x }, 2) + 1
    end
    kernels.with({ MOTH_KERNEL_CHECK = "1" }, function()
      local compiled = moth.compile(f, { backend = "inductor", dynamic = true })
      local sizes = { { 3, 5 }, { 40, 3000 }, { 3000, 40 }, { 1, 200000 }, { 200000, 1 }, { 0, 3 }, { 3, 0 } }
      for _, size in ipairs(sizes) do
        local x = moth.rand(size)
        local got = { compiled(x) }
        for i, want in ipairs { f(x) } do
          assert.is_true(moth.allclose(got[i], want, { rtol = 1e-4, equal_nan = true }))
        end
      end
    end)
  end)
end)

describe("generated kernels stay in their buffers", function()
  local tiers = require "moth.compile.tiers"
  local runs = tiers.runs
  setup(function() tiers.runs = function() return 2 end end)
  teardown(function() tiers.runs = runs end)
  for name, program in pairs(programs) do
    fused("where parts of " .. name .. " are empty", function()
      for _, shape in ipairs { { 1, 1200 }, { 1200, 1 }, { 1, 1 }, { 3, 5 } } do
        for d = 1, 2 do
          local function f(x)
            local y = x:abs() + 0.5
            local out = { program(y, d, shape[d]) }
            out[#out + 1] = y:tanh() -- a neighbour in memory
            out[#out + 1] = x:relu() * 2
            return unpack(out)
          end
          local x = moth.randn(unpack(shape))
          local want = { f(x) }
          for _, backend in ipairs { "inductor", "default" } do
            local compiled = moth.compile(f, { backend = backend ~= "default" and backend or nil })
            for _ = 1, backend == "default" and 4 or 2 do
              for i, got in ipairs { compiled(x) } do
                assert.same(want[i]:size(), got:size())
                assert.is_true(moth.allclose(got, want[i]), ("%s, result %d of [%s], %s"):format(name, i,
                  table.concat(shape, ", "), backend))
              end
            end
          end
        end
      end
    end)
  end
end)
