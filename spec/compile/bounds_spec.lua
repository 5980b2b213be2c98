-- Generated kernels stay in their buffers, also where a part has no elements or a dimension is one.
local moth = require "moth"
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

describe("generated kernels stay in their buffers", function()
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
          local compiled = moth.compile(f, { backend = "inductor" })
          for _ = 1, 2 do
            for i, got in ipairs { compiled(x) } do
              assert.same(want[i]:size(), got:size())
              assert.is_true(moth.allclose(got, want[i]), ("%s, result %d of [%s]"):format(name, i,
                table.concat(shape, ", ")))
            end
          end
        end
      end
    end)
  end
end)
