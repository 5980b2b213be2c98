--- nn.Buffer: a tensor that a module registers as a buffer when it is assigned to a field.
--
--     self.mean = nn.Buffer(moth.zeros(8))
--     self.scratch = nn.Buffer(moth.zeros(8), { persistent = false })   -- not in the state dict
local B = require "moth_lua"
local signature = require "moth.utils.signature"

local persistent = setmetatable({}, { __mode = "k" })
local Buffer = {}

--- Is `x` a buffer that was made by nn.Buffer?
function Buffer.is(x) return persistent[x] ~= nil end
--- Whether a buffer is in state dicts.
function Buffer.is_persistent(x) return persistent[x] end

--- Makes a tensor a buffer as another is one, if that is one; returns it.
function Buffer.like(t, other)
  if persistent[other] ~= nil then persistent[t] = persistent[other] end
  return t
end

--- A buffer that shares the storage of a tensor.
Buffer.new = signature("nn.Buffer(Tensor data, bool persistent=true)", function(t, is_persistent)
  local b = B.detach(t, true)
  persistent[b] = is_persistent
  return b
end)

return setmetatable(Buffer, { __call = function(_, ...) return Buffer.new(...) end })
