--- Named ranges of a profile.
local C = require("moth_lua").profile
local trace = require "moth.lang.trace"

local running, begin, finish, nvtx = C.running, C.begin, C.finish, C.nvtx
local marks = C.nvtx_wanted -- MOTH_NVTX=1: ranges go to NVIDIA's tools, too

local function ended(at, ok, ...)
  if marks then nvtx "pop" end
  if at then finish(at) end
  if not ok then trace.rethrow((...)) end
  return ...
end

local M = {}

--- The kinds of events: MothEventKind.
M.kinds = { op = 0, node = 1, range = 2, module = 3, step = 4, loader = 5, optimizer = 6, compiled = 7,
  collective = 8 }

-- fn(...), within a range of this kind and name where a profile is recorded; its results.
local function call(_, kind, name, fn, ...)
  local at = running() and begin(kind, name)
  if marks then nvtx("push", name) elseif not at then return fn(...) end
  return ended(at, xpcall(fn, trace.keep, ...))
end

return setmetatable(M, { __call = call })
