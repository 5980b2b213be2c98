--- ONNX's operators on signals.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local rule = import.rule

-- The last dimension of 1 or 2, real and imaginary part, as a complex tensor. Transforms are computed in float64: sums
-- that cancel are 0 then.
local function complex_of(x)
  x = x:to(moth.float64)
  if x:size(-1) == 1 then return moth.complex(x:squeeze(-1), moth.zeros_like(x:squeeze(-1))) end
  return moth.view_as_complex(x:contiguous())
end

local function half(y, dim) return y:narrow(dim, 1, math.floor(y:size(dim) / 2) + 1) end

rule("DFT", "axis inverse=0 onesided=0", function(c, x, length, axis)
  local dim = c:dim(axis and c:number(axis) or c.axis or (c.opset >= 20 and -2 or 1), x)
  local n = length and c:number(length)
  local dtype = x:dtype()
  if c.inverse == 1 and c.onesided == 1 then
    n = n or 2 * (x:size(dim) - 1)
    return moth.fft.irfft(complex_of(x), n, dim):unsqueeze(-1):to(dtype)
  end
  n = n or x:size(dim)
  local y = moth.fft[c.inverse == 1 and "ifft" or "fft"](complex_of(x), n, dim)
  if c.onesided == 1 then y = half(y, dim) end
  return moth.view_as_real(y):to(dtype)
end, { numbers = 23 })

rule("STFT", "onesided=1", function(c, x, step, window, length)
  local n = length and c:number(length) or window and window:size(1) or x:size(2)
  local hop = c:number(step)
  if hop < 1 or n < 1 then c:fail("frames of %d every %d", n, hop) end
  if x:dim() == 2 then x = x:unsqueeze(-1) end
  local count = math.floor((x:size(2) - n) / hop) + 1
  local frames = {}
  for i = 0, count - 1 do frames[i + 1] = x:narrow(2, i * hop + 1, n) end
  local all = moth.stack(frames, 2) -- (N, frames, n, 1 or 2)
  if window then all = all * window:reshape { 1, 1, -1, 1 } end
  local y = moth.fft.fft(complex_of(all), n, 3)
  if c.onesided == 1 then y = half(y, 3) end
  return moth.view_as_real(y):to(x:dtype())
end, { numbers = 24 })

local function window(name, ...)
  local factors = { ... }
  rule(name .. "Window", "output_datatype=1 periodic=1", function(c, size)
    local n = c:number(size)
    local length = c.periodic == 1 and n or n - 1
    local at = moth.arange(0, n, { dtype = moth.float64, device = c.device }) * (2 * math.pi / length)
    local y = 0
    for k, factor in ipairs(factors) do y = y + (at * (k - 1)):cos() * factor end
    return y:to(B.dtype(c:element(c.output_datatype)))
  end, { numbers = 1, makes = true })
end
window("Hann", 0.5, -0.5)
window("Hamming", 25 / 46, -21 / 46)
window("Blackman", 0.42, -0.5, 0.08)

local MOST_CELLS = 2 ^ 22

rule("MelWeightMatrix", "output_datatype=1", function(c, bins, length, rate, low, high)
  local n, size = c:number(bins), c:number(length)
  local function mel(hertz) return 2595 * math.log10(1 + hertz / 700) end
  c:checked { n, size }
  if not (n >= 1 and size >= 0 and (size / 2 + 1) * n <= MOST_CELLS) then
    c:fail("a matrix of %g by %g", math.floor(size / 2) + 1, n)
  end
  local from = mel(c:number(low))
  local step = (mel(c:number(high)) - from) / (n + 2)
  local edges, rows = {}, math.floor(size / 2) + 1
  for i = 0, n + 1 do
    local hertz = 700 * (10 ^ ((from + i * step) / 2595) - 1)
    edges[i] = math.floor((size + 1) * hertz / c:number(rate))
  end
  local list = {}
  for i = 1, rows * n do list[i] = 0 end
  for i = 0, n - 1 do
    local a, b, d = edges[i], edges[i + 1], edges[i + 2]
    local function put(j, v)
      if j >= 0 and j < rows then list[j * n + i + 1] = v end
    end
    if a == b then put(b, 1) end
    for j = math.max(a, 0), math.min(b, rows - 1) do
      if b > a then put(j, (j - a) / (b - a)) end
    end
    for j = math.max(b, 0), math.min(d, rows) - 1 do put(j, (d - j) / (d - b)) end
  end
  return import.tensor(list, c:element(c.output_datatype)):reshape { rows, n }
end, { numbers = 12345 })
