--- The forms of images for moth.transforms, and the one form in which all is computed: planes, (…, C, H, W).
--
-- An image is (H, W), (H, W, C) or (C, H, W) of integers, as files have it or as other programs do, or float (C, H, W),
-- as ToTensor makes it; with one dimension more it is a batch of such. Where the sizes do not tell where the channels
-- are (data/layout.lua), it is refused. A result has the form of what went in.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local layout = require "moth.data.layout"

local M = {}

function M.is_float(x) return B.tensor_dtype(x).is_floating_point end

--- Floats to compute with: float32 of integers, else as they are.
function M.floats(x) return M.is_float(x) and x or x:to(moth.float32) end

local bits = { uint8 = 8, int8 = 7, int16 = 15, uint16 = 16, int32 = 31, int64 = 63 }

--- The bits of the values of an integer dtype, and the largest value, which is white; of floats: nil, 1.
function M.bits(where, dtype)
  if dtype.is_floating_point then return nil, 1 end
  local n = bits[dtype.name]
  if not n then check.fail("[transforms.%s] no images of %s", where, dtype.name) end
  return n, 2 ^ n - 1
end
function M.white(where, x) return (select(2, M.bits(where, B.tensor_dtype(x)))) end

local function same(y) return y end

-- Whether the channels come first. given: "CHW", "HWC" or nil.
local function first(where, x, given)
  if given then return given == "CHW" end
  local n = B.dim(x)
  local c, w = B.size(x, n - 2), B.size(x, n)
  if not M.is_float(x) then
    return layout.find(("[transforms.%s]"):format(where), x, "say it by transforms.Image(x, \"CHW\"), or make it \z
      float (C, H, W) first, as transforms.ToTensor \"HWC\" does") == "first"
  end
  if c > 4 and layout.of(c, w) == "last" then
    check.fail("[transforms.%s] %s: the channels seem to come last, but floats are (C, H, W)\nHINT: x:permute(%s), \z
      ToTensor before it, or, where it does have %d channels, transforms.Image(x, \"CHW\")", where, B.format(x),
      n == 3 and "3, 1, 2" or "1, 4, 2, 3", c)
  end
  return true
end

--- The planes of an image, and a function that gives a result of planes the image's form.
function M.open(where, x, given)
  local n = B.is_tensor(x) and B.dim(x)
  if not n or n < 2 or n > 4 then
    check.fail("[transforms.%s] expected an image, uint8 (H, W), (H, W, C) or (C, H, W), or float (C, H, W), got %s",
      where, n and B.format(x) or type(x))
  end
  if n == 2 then
    return x:unsqueeze(1), function(y)
      if B.dim(y) ~= 3 then return y end
      return B.size(y, 1) == 1 and y:squeeze(1) or y:permute(2, 3, 1):contiguous()
    end
  end
  if first(where, x, given) then return x, same end
  if n == 3 then return x:permute(3, 1, 2), function(y) return y:permute(2, 3, 1):contiguous() end end
  return x:permute(1, 4, 2, 3), function(y) return y:permute(1, 3, 4, 2):contiguous() end
end

--- fn(planes, …) of an image: planes, or a list of them, in the image's form.
function M.call(where, fn, x, ...)
  local planes, close = M.open(where, x)
  local y = fn(planes, ...)
  if B.is_tensor(y) then return close(y) end
  for k = 1, #y do y[k] = close(y[k]) end
  return y
end

--- What M.open gives of a mask, whose last two dimensions are height and width.
function M.open_mask(where, x)
  if B.dim(x) < 2 then check.fail("[transforms.%s] a mask is (…, H, W), got %s", where, B.format(x)) end
  if B.dim(x) > 2 then return x, same end
  return x:unsqueeze(1), function(y) return y:squeeze(1) end
end

--- Channels, height and width of planes.
function M.sizes(x)
  local n = B.dim(x)
  return B.size(x, n - 2), B.size(x, n - 1), B.size(x, n)
end

return M
