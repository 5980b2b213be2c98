--- fn(…) without LuaJIT's compiler, which takes longer for code that runs once than it saves.
local trace = require "moth.lang.trace"

return function(fn, ...)
  if not jit.status() then return fn(...) end
  jit.off()
  local results = { xpcall(fn, trace.keep, ...) }
  jit.on()
  if not results[1] then trace.rethrow(results[2]) end
  return unpack(results, 2, table.maxn(results))
end
