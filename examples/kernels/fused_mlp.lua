--- gelu(x W1 + b1) W2 + b2 in one kernel: what is between the layers never leaves the program.
local moth = require "moth"
local tl = moth.kernel.lang

local mlp = moth.kernel.jit(function(x_ptr, w1_ptr, b1_ptr, w2_ptr, b2_ptr, out_ptr, rows, HIDDEN, IN, OUT, BLOCK, STEP)
  local r = tl.expand(tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), 2)
  local i, o = tl.arange(0, IN), tl.arange(0, OUT)
  local x = tl.load(x_ptr + r * IN + i, { mask = r < rows })
  local acc = tl.zeros({ BLOCK, OUT }) + tl.load(b2_ptr + o)
  for from = 0, HIDDEN - 1, STEP do
    local h = from + tl.arange(0, STEP)
    local inside = h < HIDDEN
    local w1 = tl.load(w1_ptr + tl.expand(i, 2) * HIDDEN + h, { mask = tl.expand(inside, 1) })
    local hidden = tl.gelu(tl.dot(x, w1) + tl.load(b1_ptr + h, { mask = inside }))
    local w2 = tl.load(w2_ptr + tl.expand(h, 2) * OUT + o, { mask = tl.expand(inside, 2) })
    acc = tl.dot(hidden, w2, acc)
  end
  tl.store(out_ptr + r * OUT + o, acc, { mask = r < rows })
end, { constexpr = { "HIDDEN", "IN", "OUT", "BLOCK", "STEP" }, name = "fused_mlp" })

local device = moth.cuda.is_available() and "cuda" or "cpu"
local rows, inputs, hidden, outputs = moth.cli({ { "[N]", "rows", 1000, min = 1 } }).n, 32, 100, 16
local function random(...) return moth.randn(...):mul(0.2):to(device) end
local x, w1, b1 = random(rows, inputs), random(inputs, hidden), random(hidden)
local w2, b2 = random(hidden, outputs), random(outputs)
local out = moth.empty(rows, outputs):to(device)
mlp{ moth.kernel.cdiv(rows, 16) }(x, w1, b1, w2, b2, out, rows,
  { HIDDEN = hidden, IN = inputs, OUT = outputs, BLOCK = 16, STEP = 32 })
local expected = (x:mm(w1) + b1):gelu():mm(w2) + b2
moth.testing.assert_close(out, expected, { rtol = 1e-4, atol = 1e-4 })
print(("%d rows, %d -> %d -> %d on %s: as the four ops"):format(rows, inputs, hidden, outputs, device))
