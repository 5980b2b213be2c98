-- Convolution and pooling against PyTorch: random geometries, results and gradients. Writes all of them to a
-- safetensors file; conv.py computes the same and compares.
-- Usage: luajit spec/parity/conv.lua float64|float32 FILE [COUNT]
local moth = require "moth"
local dtype, path, count = moth[arg[1]], arg[2], tonumber(arg[3] or 200)

math.randomseed(5)
local function pick(a, b) return math.random(a, b) end
local out, meta = {}, {}

-- Results and gradients of fn over inputs, under names that begin with `name`.
local function record(name, inputs, fn)
  for _, x in ipairs(inputs) do x:requires_grad_(true) end
  local y = fn(unpack(inputs))
  local g = moth.randn(y:size(), { dtype = dtype })
  y:backward(g)
  out[name .. ".y"], out[name .. ".g"] = y:detach(), g
  for i, x in ipairs(inputs) do
    out[name .. ".x" .. i], out[name .. ".d" .. i] = x:detach(), x.grad
  end
end

local function randn(...) return moth.randn({ ... }, { dtype = dtype }) end

for i = 1, count do
  local groups = pick(1, 3)
  local c, k = groups * pick(1, 9), groups * pick(1, 9)
  local kernel, stride, dilation = { pick(1, 4), pick(1, 5) }, { pick(1, 3), pick(1, 3) }, { pick(1, 2), pick(1, 3) }
  local padding = { pick(0, 4), pick(0, 3) }
  local least = { dilation[1] * (kernel[1] - 1) + 1, dilation[2] * (kernel[2] - 1) + 1 }
  local h = math.max(1, least[1] - 2 * padding[1] + pick(0, 17))
  local w = math.max(1, least[2] - 2 * padding[2] + pick(0, 40))
  local n = pick(1, 5)
  local name = ("conv%d"):format(i)
  record(name, { randn(n, c, h, w), randn(k, c / groups, kernel[1], kernel[2]), randn(k) }, function(x, weight, b)
    return moth.conv2d(x, weight, b, stride, padding, dilation, groups)
  end)
  meta[name] = moth.tensor({ stride[1], stride[2], padding[1], padding[2], dilation[1], dilation[2], groups })

  name = ("back%d"):format(i)
  local extra = { pick(0, stride[1] - 1), pick(0, stride[2] - 1) }
  local oh = (h - 1) * stride[1] - 2 * padding[1] + dilation[1] * (kernel[1] - 1) + extra[1] + 1
  local ow = (w - 1) * stride[2] - 2 * padding[2] + dilation[2] * (kernel[2] - 1) + extra[2] + 1
  if oh > 0 and ow > 0 then
    record(name, { randn(n, c, h, w), randn(c, k / groups, kernel[1], kernel[2]), randn(k) }, function(x, weight, b)
      return moth.conv_transpose2d(x, weight, b, stride, padding, extra, groups, dilation)
    end)
    meta[name] = moth.tensor({ stride[1], stride[2], padding[1], padding[2], dilation[1], dilation[2], groups, extra[1],
      extra[2] })
  end

  local size = { pick(1, 5), pick(1, 5) }
  local pad = { pick(0, math.floor(size[1] / 2)), pick(0, math.floor(size[2] / 2)) }
  local ph, pw, ceil, include = size[1] + pick(0, 15), size[2] + pick(0, 30), pick(0, 1), pick(0, 1)
  for _, kind in ipairs { "max", "avg" } do
    name = kind .. i
    record(name, { randn(n, c, ph, pw) }, function(x)
      if kind == "max" then return moth.max_pool2d(x, size, stride, pad, 1, ceil == 1) end
      return moth.avg_pool2d(x, size, stride, pad, ceil == 1, include == 1)
    end)
    meta[name] = moth.tensor({ size[1], size[2], stride[1], stride[2], pad[1], pad[2], ceil, include })
  end
  for _, kind in ipairs { "adaptive_avg", "adaptive_max" } do
    name = kind .. i
    record(name, { randn(n, c, ph, pw) }, function(x) return moth[kind .. "_pool2d"](x, size) end)
    meta[name] = moth.tensor({ size[1], size[2] })
  end
end
for name, t in pairs(meta) do out[name .. ".meta"] = t:to(moth.float64) end
moth.save_safetensors(out, path)
