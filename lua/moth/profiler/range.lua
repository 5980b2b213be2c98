--- Named ranges of a profile.
local C = require("moth_lua").profile
local trace = require "moth.lang.trace"

local running, begin, finish = C.running, C.begin, C.finish

local function ended(at, ok, ...)
  finish(at)
  if not ok then trace.rethrow((...)) end
  return ...
end

local M = {}

--- The kinds of events: MothEventKind.
M.kinds = { op = 0, node = 1, range = 2, module = 3, step = 4, loader = 5, optimizer = 6, compiled = 7 }

-- fn(...), within a range of this kind and name where a profile is recorded; its results.
local function call(_, kind, name, fn, ...)
  if not running() then return fn(...) end
  return ended(begin(kind, name), xpcall(fn, trace.keep, ...))
end

return setmetatable(M, { __call = call })
