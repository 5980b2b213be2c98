-- Results of a megabyte and more are written by stretches (kernels/cpu/typed/prelude.h): the same bits as by parts that
-- are too small for that, at sizes around the bound, of each width, and at every level of kernels.
local moth = require "moth"
local B = require "moth_lua"

local BOUND, PART = 2 ^ 20, 2 ^ 13
local fns = {
  add = function(a, b) return a + b end,
  scale = function(a) return a * 3 end,
  gt = function(a, b) return a:gt(b) end,
  where = function(a, b) return moth.where(a:gt(b), a, b) end,
  abs = function(a) return a:abs() end,
  exp = function(a) return a:exp() end,
  to_int16 = function(a) return a:to(moth.int16) end,
  to_float64 = function(a) return a:to(moth.float64) end,
}

describe("a result of many bytes", function()
  for _, level in ipairs(require "levels") do
    it("is that of its parts, " .. level, function()
      local best = B.cpu_level()
      finally(function() B.cpu_level(best) end)
      B.cpu_level(level)
      for _, dtype in ipairs { moth.float32, moth.float64, moth.bfloat16, moth.int32, moth.uint8 } do
        for _, more in ipairs { -1, 0, 1, 517 } do
          local n = BOUND / moth.zeros(1, { dtype = dtype }):element_size() + more
          local a, b = (moth.rand(n) * 40):to(dtype), (moth.rand(n) * 40):to(dtype)
          for name, f in pairs(fns) do
            local whole = f(a, b)
            for from = 1, n, PART do
              local part = { { from, math.min(from + PART - 1, n) } }
              if not moth.equal(whole[part], f(a[part], b[part])) then
                error(("%s of %d %s: elements from %d on differ"):format(name, n, tostring(dtype), from))
              end
            end
          end
        end
      end
    end)
  end
end)
