--- How many bytes of tensors are alive when everything that can be collected was.
local moth = require "moth"

return function()
  for _ = 1, 4 do
    collectgarbage()
    moth.zeros(1) -- lets go of Lua functions that C held
  end
  collectgarbage()
  return moth.memory.stats().live
end
