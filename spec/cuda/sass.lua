--- Reads the machine code of a cubin, to count memory instructions: there is no disassembler at hand.
--
--     local kernels = require("cuda.sass").read("x.cubin")
--     kernels["_Z4copy..."].LDG[128]   --> how many 16-byte loads from global memory
--     kernels["_Z4copy..."].LDL        --> loads from local memory of any width, nil if none
--
-- An instruction is 16 bytes: its opcode is the lowest 12 bits, the width of a memory access is in bits
-- 73 to 75. Found by compiling kernels whose loads and stores are known, for sm_80, sm_90a and sm_100
-- (nvcc 13.0), and by ptxas' own count of spilled bytes: kernels_spec.lua repeats that.
local ffi = require "ffi"
local bit = require "bit"

local M = {}

local names = {
  [0x981] = "LDG", [0x986] = "STG", -- global
  [0x983] = "LDL", [0x387] = "STL", [0x987] = "STL", -- local: spills, arrays that are indexed
  [0x984] = "LDS", [0x388] = "STS", [0x988] = "STS", -- shared
}
local bits = { [0] = 8, 8, 16, 16, 32, 64, 128 }

--- Numbers of a file by their place.
local function reader(data)
  local base = ffi.cast("const uint8_t *", data)
  local function number(type, at, size)
    assert(at >= 0 and at + size <= #data, "the file ends early")
    return tonumber(ffi.cast(type, base + at)[0])
  end
  return {
    data = data, -- keeps it alive
    base = base,
    u16 = function(at) return number("const uint16_t *", at, 2) end,
    u32 = function(at) return number("const uint32_t *", at, 4) end,
    u64 = function(at) return number("const uint64_t *", at, 8) end,
  }
end

local function count(words, n)
  local counts = { instructions = n }
  for i = 0, n - 1 do
    local name = names[bit.band(words[i * 4], 0xfff)]
    if name then
      local width = bits[bit.band(bit.rshift(words[i * 4 + 2], 9), 7)] or 256
      local of = counts[name] or { all = 0 }
      counts[name] = of
      of.all = of.all + 1
      of[width] = (of[width] or 0) + 1
    end
  end
  return counts
end

--- A table from each kernel's (mangled) name to its counts.
function M.read(path)
  local file = assert(io.open(path, "rb"))
  local data = file:read("*a")
  file:close()
  assert(data:sub(1, 4) == "\127ELF", path .. " is not an ELF file")
  local r = reader(data)
  local sections, size, n = r.u64(0x28), r.u16(0x3a), r.u16(0x3c)
  local strings = r.u64(sections + r.u16(0x3e) * size + 0x18)
  local kernels = {}
  for i = 0, n - 1 do
    local at = sections + i * size
    local kernel = data:match("^%.text%.([^%z]+)", strings + r.u32(at) + 1)
    if kernel then
      local from, bytes = r.u64(at + 0x18), r.u64(at + 0x20)
      assert(from + bytes <= #data, path .. " ends early")
      kernels[kernel] = count(ffi.cast("const uint32_t *", r.base + from), bytes / 16)
    end
  end
  return kernels
end

--- The kernels whose names hold all of these parts.
function M.find(kernels, ...)
  local found = {}
  for name, counts in pairs(kernels) do
    local all = true
    for _, part in ipairs { ... } do all = all and name:find(part, 1, true) ~= nil end
    if all then found[#found + 1] = { name = name, counts = counts } end
  end
  return found
end

return M
