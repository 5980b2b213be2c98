--- Many strings in two tensors: workers of a loader share them without a copy.
--
--     local names = strings.pack { "a.png", "b.png" }
--     strings.get(names, 2)                             --> b.png
local ffi = require "ffi"
local moth = require "moth"

local M = {}

--- A uint8 tensor with the bytes of a string (at least one element).
function M.bytes(text)
  local t = moth.zeros(math.max(#text, 1), { dtype = moth.uint8 })
  ffi.copy(t:data(), text, #text)
  return t
end

--- { bytes, ends }: the strings one after the other, and where each ends.
function M.pack(list)
  local at, ends = 0, {}
  for k, s in ipairs(list) do
    at = at + #s
    ends[k] = at
  end
  return { bytes = M.bytes(table.concat(list)), ends = moth.tensor(ends, { dtype = moth.int64 }) }
end

--- The bytes from `from` (0: the first) up to `to`, not included.
function M.cut(bytes, from, to)
  return ffi.string(ffi.cast("const char *", bytes:data()) + from, to - from)
end

--- The i-th string; an empty tensor of ends has none.
function M.get(strings, i)
  local ends = strings.ends
  return M.cut(strings.bytes, i == 1 and 0 or ends[i - 1]:item(), ends[i]:item())
end

return M
