--- Discrete Fourier transforms, with PyTorch's names and arguments: fft(x, n, dim, norm) of one dimension, fft2 and
-- fftn(x, s, dim, norm) of several. Dimensions count from 1.
--
-- n, s: the sizes that are transformed; longer dimensions are cut, shorter ones get zeros at the end.
-- norm: "backward" (the inverse is divided by the number of elements), "ortho" (both by its square root), "forward".
-- Real tensors of the transforms that take complex ones become complex; integers the default float dtype.
local B = require "moth_lua"
local ops = B.ops
local wide = require("moth.amp.autocast").wide
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

local function real_name(x) return B.tensor_dtype(x).name == "float64" and "float64" or "float32" end

-- x in a dtype that transforms take.
local function inexact(x)
  local d = B.tensor_dtype(x)
  if d.is_complex or d.name == "float32" or d.name == "float64" then return x end
  if d.is_floating_point then
    local cast = wide(x)
    if B.tensor_dtype(cast) ~= d then return cast end
    check.fail("[fft] expected float32, float64 or a complex dtype, got %s; use x:float()", d.name)
  end
  return ops.to(x, { dtype = B.default_dtype().name == "float64" and "float64" or "float32" })
end
local function complex_of(x)
  x = inexact(x)
  if B.tensor_dtype(x).is_complex then return x end
  return ops.to(x, { dtype = real_name(x) == "float64" and "complex128" or "complex64" })
end
local function real_of(name, x)
  local d = B.tensor_dtype(x)
  if d.is_complex then check.fail("[%s] expected a real tensor, got %s", name, d.name) end
  return inexact(x)
end

-- x with n elements along dim.
local function resized(x, dim, n)
  local size = B.size(x)
  local had = size[dim]
  if n == had then return x end
  if n < had then return (ops.narrow(x, dim, 1, n)) end
  size[dim] = n - had
  return (ops.cat({ x, ops.zeros(size, { dtype = B.tensor_dtype(x), device = B.tensor_device(x) }) }, dim))
end

-- What a transform of `count` elements is multiplied by.
local function scale_of(norm, count, inverse)
  if norm == "ortho" then return 1 / math.sqrt(count) end
  return (norm == "forward") ~= inverse and 1 / count or 1
end

-- The dimensions, from 1, and their sizes; nil: as it is.
local function places(name, x, s, dim)
  local n, dims, sizes = B.dim(x), {}, {}
  if s ~= nil and dim == nil and #s > n then
    check.fail("[%s] s has %d sizes, but the tensor has %d dimensions", name, #s, n)
  end
  if dim == nil then
    local first = s and n - #s or 0
    for i = first + 1, n do dims[#dims + 1] = i end
  else
    local seen = {}
    for i, d in ipairs(dim) do
      local p = d < 0 and d + n + 1 or d
      if p < 1 or p > n then
        check.fail("[%s] dimension out of range: expected 1 to %d (or %d to -1), got %d", name, n, -n, d)
      end
      if seen[p] then check.fail("[%s] dimension %d appears twice", name, p) end
      seen[p], dims[i] = true, p
    end
  end
  if s ~= nil and #s ~= #dims then check.fail("[%s] s has %d sizes, dim %d", name, #s, #dims) end
  for i = 1, #dims do
    local size = s and s[i]
    if size == -1 then size = nil end
    if size and size < 1 then check.fail("[%s] s: a size is at least 1 (or -1, as it is), got %d", name, size) end
    sizes[i] = size
  end
  return dims, sizes
end

local function product(x, dims)
  local n = 1
  for _, d in ipairs(dims) do n = n * B.size(x, d) end
  return n
end

local function some(name, dims)
  if #dims == 0 then check.fail("[%s] expected at least one dimension", name) end
end

-- complex to complex
local function c2c(inverse)
  return function(_, x, dims, sizes, norm)
    x = inexact(x)
    local real = not B.tensor_dtype(x).is_complex and not inverse and #dims > 0
    if not real then x = complex_of(x) end
    for i, d in ipairs(dims) do x = resized(x, d, sizes[i] or B.size(x, d)) end
    if real then return (ops.native_fft_r2c(x, dims, scale_of(norm, product(x, dims), inverse), false)) end
    return (ops.native_fft_c2c(x, dims, scale_of(norm, product(x, dims), inverse), inverse and 1 or -1))
  end
end
-- real to half of the complex ones; ihfft: conjugated, with the factor of an inverse
local function r2c(inverse)
  return function(name, x, dims, sizes, norm)
    some(name, dims)
    x = real_of(name, x)
    for i, d in ipairs(dims) do x = resized(x, d, sizes[i] or B.size(x, d)) end
    local y = ops.native_fft_r2c(x, dims, scale_of(norm, product(x, dims), inverse))
    return inverse and ops.conj(y) or y
  end
end
-- half of the complex ones to real; hfft: of conjugates, with the factor of a forward transform
local function c2r(inverse)
  return function(name, x, dims, sizes, norm)
    some(name, dims)
    x = complex_of(x)
    local d = dims[#dims]
    local last = sizes[#dims] or 2 * (B.size(x, d) - 1)
    if last < 1 then check.fail("[%s] expected at least 1 element, got n = %d; give n", name, last) end
    for i = 1, #dims - 1 do x = resized(x, dims[i], sizes[i] or B.size(x, dims[i])) end
    x = resized(x, d, math.floor(last / 2) + 1)
    if not inverse then x = ops.conj(x) end
    local count = product(x, dims) / B.size(x, d) * last
    return (ops.native_fft_c2r(x, dims, scale_of(norm, count, inverse), last))
  end
end

local function written(out, y)
  if out == nil then return y end
  return (ops.copy_(out, y))
end

local norms = "'backward'|'ortho'|'forward' norm='backward', *, Tensor out?"
local function define(suffix_of, kernel)
  local one, two, all = suffix_of "", suffix_of "2", suffix_of "n"
  --- Along one dimension, of n elements (cut, or with zeros behind): fft and ifft of complex tensors, rfft of real
  -- ones (n / 2 + 1 results), irfft back to n real ones, hfft and ihfft of a signal's half with real spectrum. norm:
  -- the module's text.
  M[one] = signature(("%s(Tensor input, count n?, Dim dim=-1, %s)"):format(one, norms), function(x, n, dim, norm, out)
    local dims, sizes = places(one, x, n and { n }, { dim })
    return written(out, kernel(one, x, dims, sizes, norm))
  end)
  local function several(name, default)
    local text = ("%s(Tensor input, int|int[] s?, Dim|Dim[] dim?, %s)"):format(name, norms)
    --- Along several dimensions: the last two (…2), those of dim, or all (…n); s: their sizes. Otherwise as that of
    -- one.
    M[name] = signature(text, function(x, s, dim, norm, out)
      if type(dim) == "number" then dim = { dim } end
      if type(s) == "number" then s = { s } end
      local dims, sizes = places(name, x, s, dim or default)
      return written(out, kernel(name, x, dims, sizes, norm))
    end)
  end
  several(two, { -2, -1 })
  several(all)
end

define(function(s) return "fft" .. s end, c2c(false))
define(function(s) return "ifft" .. s end, c2c(true))
define(function(s) return "rfft" .. s end, r2c(false))
define(function(s) return "irfft" .. s end, c2r(true))
define(function(s) return "hfft" .. s end, c2r(false))
define(function(s) return "ihfft" .. s end, r2c(true))

-- ---- frequencies ------------------------------------------------------------------------------------------

local function frequencies(n, d, first, count, o)
  local k = ops.arange(first, first + count, { dtype = o.dtype or B.default_dtype(), device = o.device })
  return (ops.div(k, n * d))
end
local made = "*, dtype dtype?, device device?, bool requires_grad=false"
--- The frequencies of fft's n elements, cycles per unit if samples are d units apart: 0, 1, …, -1, each by n d.
M.fftfreq = signature(("fftfreq(count n, number d=1, %s)"):format(made), function(n, d, dtype, device, requires_grad)
  local o, half = { dtype = dtype, device = device }, math.floor((n - 1) / 2) + 1
  local y = ops.cat({ frequencies(n, d, 0, half, o), frequencies(n, d, half - n, n - half, o) }, 1)
  return requires_grad and B.set_requires_grad(y, true) or y
end)
--- Those of rfft: n / 2 + 1 of them, none negative.
M.rfftfreq = signature(("rfftfreq(count n, number d=1, %s)"):format(made), function(n, d, dtype, device, requires_grad)
  local y = frequencies(n, d, 0, math.floor(n / 2) + 1, { dtype = dtype, device = device })
  return requires_grad and B.set_requires_grad(y, true) or y
end)

local function shifted(name, halves)
  return signature(name .. "(Tensor input, Dim|Dim[] dim?)", function(x, dim)
    if type(dim) == "number" then dim = { dim } end
    local dims, shifts = (places(name, x, nil, dim)), {}
    for i, d in ipairs(dims) do shifts[i] = halves(B.size(x, d)) end
    if #dims == 0 then return x end
    return (ops.roll(x, shifts, dims))
  end)
end
--- The zero frequency in the middle of each dimension, and back.
M.fftshift = shifted("fftshift", function(n) return math.floor(n / 2) end)
--- What fftshift did, undone.
M.ifftshift = shifted("ifftshift", function(n) return -math.floor(n / 2) end)

return M
