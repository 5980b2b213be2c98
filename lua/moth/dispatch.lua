--- Looking into and changing the way of calls: modes, counting, tracing, fake tensors, autocast.
local B = require "moth_lua"
local within = require "moth.within"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local M = {}

--- Every op called in fn(...) goes to handler(func, args, kwargs), which returns its result: func is callable and has
-- name and schema; kwargs.out is the target of an out call. The handler's own ops are not seen.
function M.dispatch_mode(handler, fn, ...)
  return within(B.push_mode, B.pop_mode, handler, fn, ...)
end

--- How many ops reach a backend while fn(...) runs (composites count as their parts); and how many of each.
function M.count(fn, ...)
  local total, by_name
  within(B.push_count, function() total, by_name = B.pop_count() end, nil, fn, ...)
  return total, by_name
end

--- The lines that MOTH_LOGS=dispatch would print while fn(...) runs: op, keys, arguments, place of the record.
function M.trace(fn, ...)
  local lines = {}
  within(B.push_trace, B.pop_trace, lines, fn, ...)
  return lines
end

--- The kernels of an op by backend: { cpu = true, … }; printed as a line.
function M.table(name)
  local have, keys = B.kernels(name), {}
  for k in each(have) do keys[#keys + 1] = k end
  table.sort(keys)
  return setmetatable(have, { __tostring = function() return name .. ": " .. table.concat(keys, ", ") end })
end

--- In fn(...) every tensor made is fake: it has shape, dtype and device, and no memory.
function M.fake_mode(fn, ...)
  return within(B.set_fake, B.set_fake, true, fn, ...)
end

--- In fn(...) ops that gain by it run in bfloat16 (or options.dtype), by the policy in their records.
-- autocast(fn, …) or autocast({dtype=, enabled=}, fn, …).
function M.autocast(options, fn, ...)
  if check.is_callable(options) then return M.autocast({}, options, fn, ...) end
  check.options("autocast", options or 0, "dtype enabled")
  if not check.is_callable(fn) then check.fail("autocast: expected a function, got %s", type(fn)) end
  if options.enabled ~= nil and type(options.enabled) ~= "boolean" then
    check.fail("autocast: option 'enabled': expected true or false, got %s", type(options.enabled))
  end
  local dtype = options.dtype or B.dtype("bfloat16")
  if options.enabled == false then dtype = nil end
  return within(B.set_autocast, B.set_autocast, dtype, fn, ...)
end

return signature.all(M, { "dispatch_mode(function handler, callable fn, ...)", "dispatch.count(callable fn, ...)",
  "dispatch.trace(callable fn, ...)", "dispatch.table(string name)", "fake_mode(callable fn, ...)" })
