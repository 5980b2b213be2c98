-- An op whose kernels are written in C and CUDA C: compiled when it is loaded, checked, used in training.
--
--     build/moth examples/ext_add/ext_add.lua
local moth = require "moth"

local here = arg[0]:match("^(.*)/[^/]*$") or "."
local cuda = moth.cuda.is_available()
local ext = moth.cpp_extension.load { name = "ext_add", extra_cflags = { "-Wall" },
  sources = cuda and { here .. "/add.c", here .. "/add.cu" } or { here .. "/add.c" } }

print(moth.ops.describe "ext_add::add")

local device = cuda and "cuda" or "cpu"
local a, b = moth.randn(1000, { device = device }), moth.randn(1000, { device = device })
print(("on %s the same as a + b: %s"):format(device, moth.equal(ext.add(a, b), a + b)))

-- An op of one's own is an op: autograd, fake tensors and modes know it.
local w = moth.zeros(3, { requires_grad = true })
local target = moth.tensor { 1, 2, 3 }
for _ = 1, 100 do
  local loss = ((ext.add(w, w) - target) ^ 2):sum()
  loss:backward()
  moth.no_grad(function() w:sub_(w.grad * 0.05) end)
  w.grad = nil
end
print("w + w after training: " .. table.concat((w + w):detach():round():totable(), " "))
print("a fake result: " .. tostring(moth.fake_mode(function() return ext.add(moth.ones(2, 3), moth.ones(2, 3)) end)))
print(select(2, pcall(ext.add, moth.ones(2), moth.ones(3))))
