--- relu(x)^2 as one kernel: blocks, masks, a grid.
local moth = require "moth"
local tl = moth.kernel.lang

local relu_squared = moth.kernel.jit(function(x_ptr, out_ptr, n, BLOCK)
  local offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
  local mask = offs < n
  local x = tl.load(x_ptr + offs, { mask = mask, other = 0 })
  tl.store(out_ptr + offs, tl.where(x > 0, x * x, 0), { mask = mask })
end, { constexpr = { "BLOCK" }, name = "relu_squared" })

local device = moth.cuda.is_available() and "cuda" or "cpu"
for _, n in ipairs { 1, 5, 1023, 1024, 1025, moth.cli({ { "[N]", "elements", 1000000, min = 1 } }).n } do
  local x = moth.randn(n):to(device)
  local out = moth.empty_like(x)
  relu_squared{ moth.kernel.cdiv(n, 1024) }(x, out, n, { BLOCK = 1024 })
  local right = moth.equal(out, x:relu():square())
  print(("%8d elements on %s: %s"):format(n, device, right and "equal to relu(x)^2" or "WRONG"))
  assert(right)
end
