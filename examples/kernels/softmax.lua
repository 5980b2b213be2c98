--- Softmax of rows in one kernel: a row is read once and written once.
local moth = require "moth"
local tl = moth.kernel.lang
local now = require("moth.utils.system").now

local softmax = moth.kernel.jit(function(x_ptr, out_ptr, stride, columns, BLOCK)
  local row, offs = tl.program_id(0), tl.arange(0, BLOCK)
  local mask = offs < columns
  local x = tl.load(x_ptr + row * stride + offs, { mask = mask, other = -math.huge })
  local e = tl.exp(x - tl.max(x, 0))
  tl.store(out_ptr + row * stride + offs, e / tl.sum(e, 0), { mask = mask })
end, { constexpr = { "BLOCK" }, name = "softmax" })

local device = moth.cuda.is_available() and "cuda" or "cpu"
local o = moth.cli { { "[ROWS]", "", 1024 }, { "[COLUMNS]", "", 4096 } }
local rows, columns = o.rows, o.columns
local x = moth.randn(rows, columns):to(device)
local out = moth.empty_like(x)

local function run()
  softmax{ rows }(x, out, columns, columns, { BLOCK = moth.kernel.next_power_of_2(columns) })
end
local function seconds(f)
  f()
  local best = math.huge
  for _ = 1, 5 do
    local start = now()
    f()
    if device == "cuda" then moth.cuda.synchronize() end
    best = math.min(best, now() - start)
  end
  return best
end

run()
moth.testing.assert_close(out, moth.nn.functional.softmax(x, 2))
local bytes = 2 * 4 * rows * columns
local kernel, op, parts = seconds(run), seconds(function() return x:softmax(2) end), seconds(function()
  local e = (x - x:amax({ dim = 2, keepdim = true })):exp()
  return e / e:sum({ dim = 2, keepdim = true })
end)
print(("softmax of %d rows of %d on %s, as F.softmax"):format(rows, columns, device))
for _, one in ipairs { { "this kernel", kernel }, { "moth's own op", op }, { "four ops", parts } } do
  print(("%-14s %8.3f ms  %6.1f GB/s"):format(one[1], one[2] * 1e3, bytes / one[2] / 1e9))
end
