--- Writes animated GIFs (GIF89a) of frames of pixels, with a palette of 252 colours: 6 reds, 7 greens, 6 blues.
local bit = require "bit"
local ffi = require "ffi"
local B = require "moth_lua"
local M = {}

local function u16(n) return string.char(n % 256, math.floor(n / 256) % 256) end

local palette
local function colours()
  if palette then return palette end
  local list = {}
  for r = 0, 5 do
    for g = 0, 6 do
      for b = 0, 5 do
        list[#list + 1] = string.char(r * 51, math.floor(g * 42.5 + 0.5), b * 51)
      end
    end
  end
  palette = table.concat(list) .. ("\0"):rep(3 * (256 - #list))
  return palette
end

-- LZW of bytes with codes of 9 to 12 bits, in blocks of at most 255 bytes.
local function compressed(pixels, n)
  local out, bits, held = {}, 0, 0
  local size, next_code, codes = 9, 258, {}
  local function put(code)
    held, bits = held + bit.lshift(code, bits), bits + size
    while bits >= 8 do
      out[#out + 1] = string.char(bit.band(held, 255))
      held, bits = bit.rshift(held, 8), bits - 8
    end
  end
  put(256) -- clear
  local prefix = pixels[0]
  for i = 1, n - 1 do
    local key = prefix * 256 + pixels[i]
    local known = codes[key]
    if known then
      prefix = known
    else
      put(prefix)
      if next_code == 4096 then
        put(256)
        size, next_code, codes = 9, 258, {}
      else
        if next_code == bit.lshift(1, size) then size = size + 1 end
        codes[key], next_code = next_code, next_code + 1
      end
      prefix = pixels[i]
    end
  end
  put(prefix)
  put(257) -- end
  if bits > 0 then out[#out + 1] = string.char(bit.band(held, 255)) end
  local bytes, blocks = table.concat(out), {}
  for at = 1, #bytes, 255 do
    local part = bytes:sub(at, at + 254)
    blocks[#blocks + 1] = string.char(#part) .. part
  end
  return table.concat(blocks) .. "\0"
end

--- frames: uint8 (T, H, W, 3) on the CPU; fps: frames a second.
function M.encode(frames, fps)
  local T, H, W = B.size(frames, 1), B.size(frames, 2), B.size(frames, 3)
  local parts = { "GIF89a", u16(W), u16(H), "\247\0\0", colours(), -- 256 colours
    "\33\255\11NETSCAPE2.0\3\1\0\0\0" } -- for ever
  local delay = math.max(1, math.floor(100 / fps + 0.5)) -- hundredths of a second
  local bytes = B.bytes(frames)
  local from, pixels = ffi.cast("const uint8_t *", bytes), ffi.new("uint8_t[?]", H * W)
  for t = 0, T - 1 do
    local at = t * H * W * 3
    for i = 0, H * W - 1 do
      local r, g, b = from[at + 3 * i], from[at + 3 * i + 1], from[at + 3 * i + 2]
      pixels[i] = math.floor(r / 51 + 0.5) * 42 + math.floor(g / 42.5 + 0.5) * 6 + math.floor(b / 51 + 0.5)
    end
    parts[#parts + 1] = "\33\249\4\0" .. u16(delay) .. "\0\0\44\0\0\0\0" .. u16(W) .. u16(H) .. "\0\8"
    parts[#parts + 1] = compressed(pixels, H * W)
  end
  return table.concat(parts) .. ";"
end

return M
