--- When to use float16, when bfloat16: range, precision, small gradients.
--
--     moth examples/bf16_vs_fp16.lua
local moth = require "moth"
local amp = moth.amp

print("range and precision:")
for _, dtype in ipairs { moth.float32, moth.bfloat16, moth.float16 } do
  local f = moth.finfo(dtype)
  print(("  %-9s %2d bits  largest %8.3g  least normal %8.3g  1 + eps: eps = %.3g"):format(dtype.name, f.bits, f.max,
    f.tiny, f.eps))
end

local function as(value, dtype) return moth.tensor(value):to(dtype):float():item() end
print("\n70000, a sum of activations:    bfloat16 " .. as(70000, moth.bfloat16) .. "   float16 "
  .. as(70000, moth.float16))
print(("1.001, a weight after a step:   bfloat16 %.5f   float16 %.5f"):format(as(1.001, moth.bfloat16),
  as(1.001, moth.float16)))
print("1e-8, a small gradient:         bfloat16 " .. ("%.3g"):format(as(1e-8, moth.bfloat16)) .. "   float16 "
  .. as(1e-8, moth.float16) .. "   float16 of 65536 times it, divided again "
  .. ("%.3g"):format(as(1e-8 * 65536, moth.float16) / 65536))

-- The same gradient by autocast: of a weight behind a product in the lower dtype.
local function gradient(dtype, scaler)
  local w = moth.ones(1, 1, { requires_grad = true })
  local loss = amp.autocast({ dtype = dtype }, function() return (w:matmul(moth.ones(1, 1)):float() * 1e-8):sum() end)
  if scaler then
    scaler:scale(loss):backward()
    scaler:unscale_(moth.optim.SGD({ w }, { lr = 1 }))
  else
    loss:backward()
  end
  return w.grad:item(), amp.gradient_report { w }
end
print("\na gradient of 1e-8 in training:")
print(("  bfloat16              %.3g"):format((gradient(moth.bfloat16))))
local zero, report = gradient(moth.float16)
print(("  float16               %.3g   (%s)"):format(zero, tostring(report)))
print(("  float16, GradScaler   %.3g"):format((gradient(moth.float16, amp.GradScaler()))))

-- A sum of many small numbers: each addition is rounded.
local small = moth.full({ 10000 }, 0.001)

for _, dtype in ipairs { moth.float32, moth.bfloat16, moth.float16 } do
  local sum = moth.zeros({}, { dtype = dtype })
  local step = small[1]:to(dtype)
  for _ = 1, 10000 do sum = sum + step end
  print(("\n10000 x 0.001, added one by one in %-9s %.4f"):format(dtype.name, sum:float():item()))
end
print("sums, norms, losses and the optimizer therefore stay in float32 under autocast: moth.amp.lists().high")

print([[

bfloat16 where there is a choice: the range of float32, no scaler, no infinities.
float16  where the device has no bfloat16 (before compute capability 8.0), or three more bits of precision count;
         with moth.amp.GradScaler.]])
