--- Runs functions under a mode; the base of all context managers.
local B = require "moth_lua"
local trace = require "moth.lang.trace"
local keep, rethrow = trace.keep, trace.rethrow

local function finish(leave, was, ok, ...)
  leave(was)
  B.close_modes()
  if not ok then rethrow((...)) end
  return ...
end

--- Calls enter(value), then fn(...), then leave with the result of enter, also after an error; returns fn's results.
-- If a coroutine yields inside, the mode stays with the coroutine.
return function(enter, leave, value, fn, ...)
  B.open_modes()
  local ok, was = pcall(enter, value)
  if not ok then
    B.close_modes()
    error(was, 0)
  end
  return finish(leave, was, xpcall(fn, keep, ...))
end
