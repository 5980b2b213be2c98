--- Adding up a million small numbers: the error of a running total in each dtype, and of moth's sum.
--
--     moth examples/dtype_precision.lua [--quick]
local moth = require "moth"

local n, value = moth.cli({ { "--quick", "a short run" } }).quick and 20000 or 1000000, 1e-4

print(("%d times %g is %g\n"):format(n, value, n * value))
print("dtype      one after the other    moth's sum     smallest step at 1     smallest normal number")
for _, name in ipairs { "float32", "float16", "bfloat16" } do
  local dtype = moth[name]
  local x = moth.full({ n }, value, { dtype = dtype })
  local exact = x:to(moth.float64):sum():item() -- the sum of the numbers after rounding to this dtype
  -- The naive way: a running total of that dtype. cumsum would be wiser; here each addition rounds.
  local total, one = moth.zeros({}, { dtype = dtype }), x[1]
  for _ = 1, n do total:add_(one) end
  local function off(t) return ("%9.4f (%+6.2f %%)"):format(t:item(), 100 * (t:item() / exact - 1)) end
  print(("%-9s  %s  %s  %10.2g  %18.2g"):format(name, off(total), off(x:sum { dtype = moth.float32 }),
    moth.finfo(dtype).eps, moth.finfo(dtype).tiny))
end

print("\nA naive total stops growing once half its last digit is more than the summand: in bfloat16, 8 bits long,")
print("that is soon. moth adds float16 and bfloat16 in float32, and every dtype in blocks, pairwise.")
print("\nUnderflow: 1e-4 squared is 1e-8, below what float16 can hold:")
for _, name in ipairs { "float32", "float16", "bfloat16" } do
  local x = moth.full({}, value, { dtype = moth[name] })
  print(("  %-9s %g"):format(name, (x * x):item()))
end
