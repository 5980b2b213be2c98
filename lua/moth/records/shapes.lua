--- The functions of shape rules (src/ops/expr.lua) on Lua values, for rules that run without C (moth.library): as
-- src/dispatch/pattern.c has them.
local B = require "moth_lua"
local M = {}

local function text_of(sizes) return "[" .. table.concat(sizes, ", ") .. "]" end
local function fail(...) error((...):format(select(2, ...)), 0) end

function M.bit(n, i) return math.floor(n / 2 ^ i) % 2 == 1 end
function M.whole(x) return type(x) ~= "number" or x == math.floor(x) end
function M.default_dtype() return (B.default_dtype()).name end

function M.largest(list)
  return #list > 0 and math.max(unpack(list)) or 0
end

function M.expands(from, shape)
  for i = 1, #from do
    local size = from[#from + 1 - i]
    if i > #shape or (size ~= 1 and size ~= shape[#shape + 1 - i]) then return false end
  end
  return true
end

-- A window of elements `step` apart may step over all of a small image.
local function check_windows(size, kernel, stride, padding, step, count)
  for o = 0, step > 1 and count - 1 or -1 do
    local start = o * stride - padding
    local before = start < 0 and math.ceil(-start / step) or 0
    if before >= kernel or start + before * step >= size then
      fail("window %d steps over all %d elements: its dilation of %d is too large for its padding of %d", o + 1, size,
        step, padding)
    end
  end
end

function M.window_out(size, kernel, stride, padding, dilation, ceil_mode)
  local out, pooling, up = {}, ceil_mode ~= nil, ceil_mode == true
  for i, n in ipairs(size) do
    local k, step, p = kernel[i], stride[i], padding[i]
    if n < 1 then fail("an image must not be empty, got %s", text_of(size)) end
    if k < 1 then fail("a window must not be empty, got %s", text_of(kernel)) end
    if pooling and 2 * p > k then fail("padding must be at most half of kernel_size, %d, got %d", k, p) end
    local span = dilation[i] * (k - 1) + 1
    local left = n + 2 * p - span + (up and step - 1 or 0)
    if left < 0 then
      fail("the window's extent %d (size %d, dilation %d) is larger than the padded input %d in the %s dimension", span,
        k, dilation[i], n + 2 * p, i == #size and "last" or "second last")
    end
    out[i] = math.floor(left / step) + 1
    if up and (out[i] - 1) * step >= n + p then out[i] = out[i] - 1 end
    if pooling then check_windows(n, k, step, p, dilation[i], out[i]) end
  end
  return out
end

function M.in_range(value, dtype, what)
  if type(value) ~= "number" then return end
  local ok, err = pcall(B.ops.full, {}, value, { dtype = B.dtype(dtype) }) -- its rule asks the same
  if not ok then error((tostring(err):gsub("^.-%[full%] the value", what)), 0) end
end

local function dims(t) return math.max(1, B.dim(t)) end

function M.picks(self, dim, index)
  local have, want = B.size(self), B.size(index)
  if dims(self) ~= dims(index) then
    fail("index must have as many dimensions as self: expected %d, got %d", #have, #want)
  end
  for k = 1, B.numel(index) > 0 and math.min(#have, #want) or 0 do
    if k ~= dim + 1 and want[k] > have[k] then
      fail("index must not be larger than self but in dimension %d: its size is %d in dimension %d, where self has \z
        size %d", dim + 1, want[k], k, have[k])
    end
  end
end

function M.covers(src, index)
  if not B.is_tensor(src) then return end
  local have, want = B.size(src), B.size(index)
  if dims(src) ~= dims(index) then
    fail("src must have as many dimensions as index: expected %d, got %d", #want, #have)
  end
  for k = 1, B.numel(index) > 0 and math.max(#have, #want) or 0 do
    if (want[k] or 1) > (have[k] or 1) then
      fail("src must not be smaller than index: its size is %d in dimension %d, where index has size %d",
        have[k] or 1, k, want[k] or 1)
    end
  end
end

return M
