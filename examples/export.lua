--- A model as files for others: a CNN is exported as moth's own program and as ONNX, and both are read back.
--
--     luajit examples/export.lua [--keep]          -- --keep: leaves model.mth2 and model.onnx in the current folder
local moth = require "moth"
local nn = moth.nn
moth.manual_seed(0)

local net = nn.Sequential(
  nn.Conv2d(3, 8, 3, { stride = 2, padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
  nn.Conv2d(8, 16, 3, { stride = 2, padding = 1 }), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
  nn.Flatten(), nn.Linear(16, 10))
net:eval()
local dummy = moth.randn(1, 3, 224, 224)
local want = moth.no_grad(net, dummy)

local function difference(y) return ("%.1e"):format((y - want):abs():max():item()) end

-- The program: any batch from 1 to 64.
local batch = moth.Dim("batch", { min = 1, max = 64 })
local ep = moth.export(net, { dummy }, { dynamic_shapes = { { [1] = batch } } })
print(ep)
local keep = moth.cli({ { "--keep", "leaves model.mth2 and model.onnx in the current folder" } }).keep
local program = keep and "model.mth2" or os.tmpname()
moth.export.save(ep, program)
local same = moth.export.load(program)
print("program, read back: equal to the bit: " .. tostring(moth.equal(same(dummy), want)))
print("for a batch of 3: " .. tostring(same(moth.randn(3, 3, 224, 224)):size()))

-- ONNX: for onnxruntime and others, and moth's own session.
local file = keep and "model.onnx" or os.tmpname()
moth.onnx.export(net, dummy, file, { input_names = { "input" }, output_names = { "output" },
  dynamic_axes = { input = { [1] = "batch" } } })
local session = moth.onnx.InferenceSession(file)
for _, v in ipairs(session:get_inputs()) do print("takes", v.name, v.type, table.concat(v.shape, " ")) end
print("ONNX, by moth: off by " .. difference(session:run(nil, { input = dummy })[1]))

-- An ONNX file is a program, too: trained on, compiled, saved.
local back = moth.onnx.load(file)
print("ONNX as a program: off by " .. difference(back(dummy)))
print("compiled: off by " .. difference(back:compile()(dummy)))

-- onnxruntime, where Python has it.
local input, output = os.tmpname(), os.tmpname()
moth.save(dummy, input .. ".npy")
local ok = os.execute(([[python3 -c "
import numpy, onnxruntime
y = onnxruntime.InferenceSession('%s').run(None, {'input': numpy.load('%s.npy')})[0]
numpy.save('%s.npy', y)" 2>/dev/null]]):format(file, input, output))
if ok == 0 or ok == true then
  print("ONNX, by onnxruntime: off by " .. difference(moth.load(output .. ".npy")))
else
  print("ONNX, by onnxruntime: not run, Python does not have it")
end
for _, name in ipairs { input, input .. ".npy", output, output .. ".npy" } do os.remove(name) end
if program ~= "model.mth2" then
  os.remove(program)
  os.remove(file)
end
