-- Loops written for AVX-512 (kernels/cpu/lanes.h) give the bits of the formulas in kernels/math_f32.h, which
-- the other levels run, but where the compiler joins another product with another sum than here: not when it
-- optimises, and then by one unit in the last place.
local moth = require "moth"
local B = require "moth_lua"

local ffi = require "ffi"
local function bits(x) return ffi.cast("uint32_t *", x:data()) end

-- Floats by their bits: every 2^32 / n-th one from `first` on, so that all exponents, both signs, denormals, infinities
-- and NaN are there.
local function patterns(first, n)
  local x = moth.empty(n)
  local p, step = bits(x), 2 ^ 32 / n
  for i = 0, n - 1 do p[i] = first + i * step end
  return x
end

local function is_nan(u) return bit.band(u, 0x7fffffff) > 0x7f800000 end

-- fn() at the next lower level of this build.
local function below(fn)
  local best, levels = B.cpu_level(), require "levels"
  B.cpu_level(levels[#levels - 1])
  local ok, y = pcall(fn)
  B.cpu_level(best)
  return ok and y or error(y, 0)
end

describe("loops for AVX-512", function()
  local cases = os.getenv("MOTH_CASES") and 2 ^ 24 or 2 ^ 20
  for _, name in ipairs { "exp" } do
    it(name .. " has the bits of the formula", function()
      if B.cpu_level() ~= "avx512" then return pending("this machine has no AVX-512") end
      for _, first in ipairs { 0, 12345 % (2 ^ 32 / cases) } do
        local x = patterns(first, cases)
        local fast, slow = x[name](x), below(function() return x[name](x) end)
        local f, g, differ, worst = bits(fast), bits(slow), 0, 0
        for i = 0, cases - 1 do
          if f[i] ~= g[i] and not (is_nan(f[i]) and is_nan(g[i])) then
            differ = differ + 1
            worst = math.max(worst, math.abs(tonumber(f[i]) - tonumber(g[i])))
          end
        end
        assert.is_true(worst <= 1 and differ < cases / 1000, ("%d differ, by %d units at most"):format(differ, worst))
      end
      -- Whatever the length and the place in memory, and nothing is written beyond the end.
      local x = moth.randn(200) * 40
      local all = below(function() return x[name](x) end)
      for n = 0, 50 do
        for start = 1, 3 do
          local out = moth.full({ 100 }, -1)
          local part, place = x[{ { start, start + n - 1 } }], out[{ { start, start + n - 1 } }]
          moth[name](part, { out = place })
          assert.is_true(moth.allclose(place, all[{ { start, start + n - 1 } }], 2e-7, 0))
          assert.equal(100 - n, out:eq(-1):sum():item())
        end
      end
    end)
  end
end)
