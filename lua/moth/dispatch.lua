--- Looking into and changing the way of calls: modes, counting, tracing, fake tensors, autocast.
local B = require "moth_lua"
local M = {}

-- Runs fn, then leave, whether fn failed or not; gives back what fn gave.
local function scoped(leave, ok, ...)
  local extra = leave()
  if not ok then error((...), 0) end
  return extra, ...
end

local function results(_, ...) return ... end

--- Every op called in fn(...) goes to handler(func, args, kwargs), which returns its result: func is callable and has
-- name and schema; kwargs.out is the target of an out call. The handler's own ops are not seen.
function M.dispatch_mode(handler, fn, ...)
  if type(handler) ~= "function" or type(fn) ~= "function" then
    error("dispatch_mode: expected (handler, function), got " .. type(handler) .. " and " .. type(fn), 2)
  end
  local ref = B.push_mode(handler)
  return results(scoped(function() B.pop_mode(ref) end, pcall(fn, ...)))
end

--- How many ops reach a backend while fn(...) runs (composites count as their parts); and how many of each.
function M.count(fn, ...)
  B.push_count()
  local total, each
  local function finish(ok, ...)
    total, each = B.pop_count()
    if not ok then error((...), 0) end
  end
  finish(pcall(fn, ...))
  return total, each
end

--- The lines that MOTH_LOGS=dispatch would print while fn(...) runs: op, keys, arguments, place of the record.
function M.trace(fn, ...)
  local lines = {}
  local ref = B.push_trace(lines)
  scoped(function() B.pop_trace(ref) end, pcall(fn, ...))
  return lines
end

--- The kernels of an op by backend: { cpu = true, … }; printed as a line.
function M.table(name)
  local have, keys = B.kernels(name), {}
  for k in pairs(have) do keys[#keys + 1] = k end
  table.sort(keys)
  return setmetatable(have, { __tostring = function() return name .. ": " .. table.concat(keys, ", ") end })
end

--- In fn(...) every tensor made is fake: it has shape, dtype and device, and no memory.
function M.fake_mode(fn, ...)
  local was = B.set_fake(true)
  return results(scoped(function() B.set_fake(was) end, pcall(fn, ...)))
end

--- In fn(...) ops that gain by it run in bfloat16 (or options.dtype), by the policy in their records.
-- autocast(fn, …) or autocast({dtype=, enabled=}, fn, …).
function M.autocast(options, fn, ...)
  if type(options) == "function" then return M.autocast({}, options, fn, ...) end
  local dtype = options.dtype or B.dtype("bfloat16")
  if options.enabled == false then dtype = nil end
  local was = B.set_autocast(dtype)
  return results(scoped(function() B.set_autocast(was) end, pcall(fn, ...)))
end

return M
