--- fn(…) without LuaJIT's compiler, which takes longer for code that runs once than it saves.
local within = require "moth.dispatch.within"

local function nothing() end

return function(fn, ...)
  if not jit.status() then return fn(...) end
  jit.off()
  return within(nothing, function() jit.on() end, nil, fn, ...)
end
