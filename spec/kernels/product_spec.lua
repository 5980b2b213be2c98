-- Products where there is no BLAS (kernels/cpu/typed/product.h, rows.h), for each instruction set of this processor:
-- against sums of elementwise products, at sizes on both sides of tiles, panels and pieces.
local shapes = { { 1, 1, 1 }, { 3, 5, 2 }, { 17, 49, 33 }, { 20, 1, 5 }, { 33, 24, 1 }, { 5, 7, 9 }, { 40, 10, 513 },
  { 130, 27, 200 }, { 19, 400, 257 } }

local code = [[
local moth = require "moth"
local shapes, worst = { %s }, 0
moth.manual_seed(1)
local function check(m, n, k, dtype, layout)
  local a = layout %% 2 == 0 and moth.randn(m, k) or moth.randn(k, m):t()
  local b = layout < 2 and moth.randn(k, n) or moth.randn(n, k):t()
  local c = moth.randn(m, n):to(dtype)
  a, b = a:to(dtype), b:to(dtype)
  local want = (a:double():unsqueeze(3) * b:double():unsqueeze(1)):sum(2)
  local scale = 1 / math.sqrt(k)
  local got = moth.addmm(c, a, b, 2, -3):double()
  local function error_of(x, y) return ((x - y):abs():max() * scale):item() end
  worst = math.max(worst, dtype == "float16" and 0 or error_of(got, c:double() * 2 - want * 3))
  return error_of(moth.mm(a, b):double(), want)
end
for _, s in ipairs(shapes) do
  for layout = 0, 3 do
    for _, dtype in ipairs { "float32", "float64" } do
      worst = math.max(worst, check(s[1], s[2], s[3], dtype, layout))
    end
    assert(check(s[1], s[2], s[3], "float16", layout) < 0.02)
  end
end
print(worst < 2e-5 and "right" or worst, moth.cpu_level())
]]

describe("products without a BLAS", function()
  it("are right on each instruction set", function()
    local list = {}
    for i, s in ipairs(shapes) do list[i] = "{" .. table.concat(s, ",") .. "}" end
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write(code:format(table.concat(list, ",")))
    f:close()
    for _, level in ipairs(require "levels") do
      local pipe = io.popen(("MOTH_BLAS=none MOTH_ONEDNN=0 MOTH_CPU=%s %s %s 2>&1"):format(level,
        os.getenv("LUAJIT") or "luajit", path))
      local said = pipe:read("*a")
      pipe:close()
      assert.equal(("right\t%s\n"):format(level), said)
    end
    os.remove(path)
  end)
end)
