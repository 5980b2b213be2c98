--- Writes PNG (ISO/IEC 15948): 8 bits a channel, or 16 of uint16, compressed by zlib, which is opened when needed.
local ffi = require "ffi"
local check = require "moth.utils.check"
local layout = require "moth.data.layout"
local open_library = require "moth.utils.library"
local B = require "moth_lua"
local ops = B.ops
local M = {}

ffi.cdef [[
unsigned long moth_png_crc32(unsigned long, const uint8_t *, unsigned) __asm__("crc32");
unsigned long moth_png_bound(unsigned long) __asm__("compressBound");
int moth_png_compress(uint8_t *, unsigned long *, const uint8_t *, unsigned long, int) __asm__("compress2");
]]

local zlib
local function library()
  zlib = zlib or open_library("libz.so.1", "png", "zlib1g")
  return zlib
end

local function big_endian(n)
  return string.char(math.floor(n / 16777216) % 256, math.floor(n / 65536) % 256, math.floor(n / 256) % 256, n % 256)
end

local function chunk(kind, data)
  local body = kind .. data
  local crc = tonumber(library().moth_png_crc32(0, ffi.cast("const uint8_t *", body), #body))
  return big_endian(#data) .. body .. big_endian(crc)
end

local function deflate(data)
  local lib = library()
  local size = ffi.new("unsigned long[1]", lib.moth_png_bound(#data))
  local out = ffi.new("uint8_t[?]", tonumber(size[0]))
  local status = lib.moth_png_compress(out, size, ffi.cast("const uint8_t *", data), #data, 6)
  if status ~= 0 then check.fail("png: zlib's compress2 failed with %d", status) end
  return ffi.string(out, tonumber(size[0]))
end

local colour_type = { 0, nil, 2, 6 }

--- PNG of raw rows: width * channels bytes each, channels 1 (grey), 3 (RGB) or 4 (RGBA); bits: 8, or 16 (the high byte
-- first).
function M.from_bytes(bytes, width, height, channels, bits)
  bits = bits or 8
  local rows, stride = {}, width * channels * bits / 8
  for r = 0, height - 1 do rows[r + 1] = "\0" .. bytes:sub(r * stride + 1, (r + 1) * stride) end -- filter 0: none
  local header = big_endian(width) .. big_endian(height) .. string.char(bits, colour_type[channels], 0, 0, 0)
  return "\137PNG\r\n\26\n" .. chunk("IHDR", header) .. chunk("IDAT", deflate(table.concat(rows))) .. chunk("IEND", "")
end

-- The image (H, W), (C, H, W) or, where the sizes tell it, (H, W, C), of 1, 3 or 4 channels, on the CPU, as (H, W, C).
local function image_of(image)
  if not B.is_tensor(image) then check.fail("expected an image tensor, got %s", type(image)) end
  local x = ops.to(B.alias(image, false), { device = "cpu" })
  if B.dim(x) == 2 then x = ops.unsqueeze(x, 1) end
  local last = B.dim(x) == 3 and layout.of(B.size(x, 1), B.size(x, 3)) == "last"
  if B.dim(x) ~= 3 or not colour_type[B.size(x, last and 3 or 1)] or B.numel(x) == 0 then
    check.fail("expected an image (H, W), (C, H, W) or (H, W, C) of 1, 3 or 4 channels, with elements, got %s",
      B.format(image))
  end
  return last and x or ops.permute(x, { 2, 3, 1 })
end

--- Such an image, of floats in 0 to 1 (clamped), uint16 in 0 to 65535 or other integers in 0 to 255 (clamped), as uint8
-- (H, W, C) on the CPU.
function M.pixels(image)
  local x = image_of(image)
  local dtype = B.tensor_dtype(x)
  if dtype.is_floating_point then
    x = ops.where(ops.isnan(x), 0, ops.to(x, { dtype = "float32" }))
    local low, high = B.extremes(x)
    if low and high < math.huge and high > 2 then
      check.warn("[image] the floats are from %g to %g, and those above 1 are white; divide images of 0 to 255 by \z
        255, or make them uint8", low, high)
    end
    x = ops.floor(ops.clamp(x, 0, 1) * 255 + 0.5)
  elseif dtype.name == "bool" then
    x = ops.to(x, { dtype = "uint8" }) * 255
  elseif dtype.name == "uint16" then
    x = ops.floor(ops.to(x, { dtype = "float32" }) / 257 + 0.5)
  else
    x = ops.clamp(x, 0, 255)
  end
  return ops.contiguous(ops.to(x, { dtype = "uint8" }))
end

--- A tensor as PNG, of 16 bits if it is uint16: bytes, width, height, channels.
function M.encode(image)
  local deep = B.is_tensor(image) and B.tensor_dtype(image).name == "uint16"
  local x = deep and ops.contiguous(image_of(image)) or M.pixels(image)
  local height, width, channels = B.size(x, 1), B.size(x, 2), B.size(x, 3)
  local bytes = B.bytes(x)
  if deep and ffi.abi("le") then bytes = bytes:gsub("(.)(.)", "%2%1") end
  return M.from_bytes(bytes, width, height, channels, deep and 16 or 8), width, height, channels
end

return M
