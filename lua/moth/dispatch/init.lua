--- Observing and changing the dispatch of calls: modes, counting, tracing, fake tensors, autocast.
local B = require "moth_lua"
local within = require "moth.dispatch.within"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local M = {}

--- Every op called in fn(...) goes to handler(func, args, kwargs), which returns its result: func is callable and has
-- name, schema and index_base; kwargs.out is the target of an out call. The handler's own ops are not intercepted.
-- func(unpack(args, 1, args.n)) repeats the call. Index tensors count from func.index_base: 1, or 0 in calls from C
-- (of composites and derivatives), where func, unlike moth's function of that name, counts from 0, too.
function M.dispatch_mode(handler, fn, ...)
  return within(B.push_mode, B.pop_mode, handler, fn, ...)
end

--- The number of ops that reach a backend while fn(...) runs (composites count as their parts), and the number of each.
function M.count(fn, ...)
  local total, by_name
  within(B.push_count, function(counts) total, by_name = B.pop_count(counts) end, nil, fn, ...)
  return total, by_name
end

--- The lines that MOTH_LOGS=dispatch would print while fn(...) runs: op, keys, arguments, the record's file and line,
-- the node that backward will run, the kernel with its source, the user's line.
function M.trace(fn, ...)
  local lines = {}
  within(B.push_trace, B.pop_trace, lines, fn, ...)
  return lines
end

-- A line of a trace, for the binding: text of the call, the op's name, the device of its kernel, whether it is recorded
-- for backward, "file:line: " of the caller.
function M.line(text, name, device, recorded, where)
  local op = require("moth.dispatch.ops").get(name) or check.fail("[dispatch.line] there is no op named '%s'", name)
  local kernel = op.kernels.composite or op.kernels[device] or op.kernels.all or op.kernels.shape -- a view is all shape
  local parts = { ("%s  (%s)"):format(text, op.place) }
  if recorded and op.node then parts[#parts + 1] = op.node end
  if kernel then parts[#parts + 1] = ("%s (%s)"):format(kernel[1], kernel[2]) end
  if where ~= "" then parts[#parts + 1] = "called at " .. where:gsub(": $", "") end
  return table.concat(parts, "  ")
end

local Table = {}

function Table:__tostring()
  local lines = { self.name }
  local function add(key, ...) lines[#lines + 1] = ("  %-10s %s"):format(key, string.format(...)) end
  if self.autocast then add("Autocast", "%s", self.autocast) end
  if self.autograd then add("Autograd", "%s of %s", self.autograd.node, table.concat(self.autograd.of, ", ")) end
  if self.composite then add("Composite", "%s (%s)", self.composite.symbol, self.composite.place) end
  if self.fake then add("Fake", "%s (%s)", self.fake.symbol, self.fake.place) end
  for _, device in ipairs(self.devices) do
    local k = self[device]
    add(device, "%s%s%s", k.symbol, k.place and " (" .. k.place .. ")" or "", k.note and "; " .. k.note or "")
    if k.dtypes then lines[#lines + 1] = "             " .. table.concat(k.dtypes, " ") end
  end
  return table.concat(lines, "\n")
end

-- The autocast policies of the records, in words.
local policies = { low = "to the lower dtype", high = "to float32", widest = "to the widest dtype of the arguments" }

--- The functions that a call of an op may reach, by dispatch key and dtype; prints as a list. A field for each key of
-- the op: autocast (text), autograd { node, of }, composite, fake { symbol, place }, and by device { symbol, place,
-- dtypes }.
function M.table(name)
  local have, op = B.kernels(name), require("moth.dispatch.ops").get(name)
  local function source(k) return k and { symbol = k[1], place = k[2] } or nil end
  local t = { name = name, autocast = policies[op.amp], composite = source(op.kernels.composite),
    fake = source(op.kernels.shape), devices = {} }
  if op.node then
    t.autograd = { node = op.node, of = {} }
    for _, a in ipairs(op.args) do
      local grad = type(op.grad) == "table" and op.grad[a.name]
      if grad and grad ~= "no" then t.autograd.of[#t.autograd.of + 1] = a.name end
    end
  end
  for device in each(have) do t.devices[#t.devices + 1] = device end
  if op.kernels.cuda and not have.cuda then t.devices[#t.devices + 1] = "cuda" end
  table.sort(t.devices)
  local dtypes = require("moth.dispatch.ops").dtypes(name)
  for _, device in ipairs(t.devices) do
    local own = op.kernels[device] or op.kernels.all
    local k = source(own) or { symbol = "registered in Lua" }
    k.dtypes = own and dtypes
    k.note = not have[device] and "not opened: moth.cuda.why() says why" or nil
    t[device] = k
  end
  return setmetatable(t, Table)
end

--- In fn(...) every new tensor is fake: it has shape, dtype and device, but no memory. Real tensors may be used and are
-- not changed: in-place ops do not write to them, backward does not change their .grad.
function M.fake_mode(fn, ...)
  return within(B.set_fake, B.set_fake, true, fn, ...)
end

--- moth.amp.autocast.
M.autocast = require("moth.amp.autocast").autocast

return signature.all(M, { "dispatch_mode(function handler, callable fn, ...)", "dispatch.count(callable fn, ...)",
  "dispatch.trace(callable fn, ...)", "dispatch.table(string name)",
  "dispatch.line(string text, string name, string device, bool recorded, string where)",
  "fake_mode(callable fn, ...)" })
