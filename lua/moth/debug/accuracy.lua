--- The error of each call of a function, by backend of moth.compile or by dtype, beside float64.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"

local M = {}

local dtypes = { float32 = true, float16 = true, bfloat16 = true }

local function cast(tensors, dtype)
  local list = {}
  for i, t in ipairs(tensors) do
    list[i] = B.tensor_dtype(t).is_floating_point and t:detach():to(dtype) or t:detach()
  end
  return list
end

local function largest(t)
  if not B.tensor_dtype(t).is_floating_point or B.numel(t) == 0 then return 0 end
  return moth.where(t:isfinite(), t, 0):abs():max():item()
end

-- The largest difference, in units of the largest element of the exact result; where that is 0, of what the call reads.
local function distance(value, exact, read)
  if not B.tensor_dtype(exact).is_floating_point or B.numel(exact) == 0 then return 0 end
  local a, b = value:detach():double(), exact:double()
  if a:equal(b) then return 0 end
  if not a:isfinite():equal(b:isfinite()) then return math.huge end
  local scale = largest(b)
  for _, t in ipairs(scale == 0 and read or {}) do scale = math.max(scale, largest(t)) end
  return largest(a - b) / (scale == 0 and 1 or scale)
end

-- What the calls of program p give under a backend or in a dtype: a table from value to tensor.
local function values_of(program, p, tensors, backend)
  if dtypes[backend] then return program.values(p, cast(tensors, moth[backend])) end
  if backend == "eager" then return program.values(p, tensors) end
  local all = {}
  for _, call in ipairs(p.calls) do
    for _, v in ipairs(call.results) do all[#all + 1] = v end
  end
  local f = moth.compile(program.compile { inputs = p.inputs, calls = p.calls, outputs = all }, { backend = backend })
  local results = { moth.no_grad(f, unpack(tensors)) }
  local values = {}
  for i, v in ipairs(all) do values[v] = results[i] end
  return values
end

local Report = {}
Report.__index = Report

local function label(backend) return type(backend) == "string" and backend or type(backend) end

function Report:__tostring()
  local lines = { "the largest error of each call beside float64, in units of its result's largest element" }
  local head = ("%4s %-24s"):format("", "op")
  for _, b in ipairs(self.backends) do head = head .. (" %10s"):format(label(b)) end
  lines[2] = head
  for _, row in ipairs(self) do
    local line = ("%4d %-24s"):format(row.at, row.op)
    for _, b in ipairs(self.backends) do line = line .. (" %10.2g"):format(row.error[b]) end
    lines[#lines + 1] = line .. "  " .. row.place
  end
  for _, b in ipairs(self.backends) do
    local w = self.worst[b]
    lines[#lines + 1] = w and ("%s: the error grows most at call %d, %s, from %.2g to %.2g"):format(label(b),
      w.at, w.op, w.before, w.error) or label(b) .. ": exact"
  end
  return table.concat(lines, "\n")
end

-- Where the error grows most over the largest one of what a call reads.
local function worst(program, p, rows, backend)
  local error_of, found = {}, nil
  for i, call in ipairs(p.calls) do
    local before, now = 0, rows[i].error[backend]
    program.each_value(call.args, function(v) before = math.max(before, error_of[v] or 0) end)
    for _, v in ipairs(call.results) do error_of[v] = now end
    if now - before > 0 and (not found or now - before > found.error - found.before) then
      found = { at = i, op = call.target, place = call.place, before = before, error = now }
    end
  end
  return found
end

--- accuracy(f, x, …, { backends = { "eager", "inductor" } }): runs f(x, …) under each of `backends` (moth.compile's, by
-- name or function; "eager"; or "float32", "bfloat16", "float16": all floating tensors in that dtype), and gives a list
-- of the calls of ops, { at, op, place, error = { backend = number } }, which prints; worst[backend]: the call at which
-- the error grows most, { at, op, place, before, error }. An error is the largest difference from the same call in
-- float64, divided by the largest element of its result.
function M.accuracy(f, ...)
  if not check.is_callable(f) then
    check.fail("[debug.accuracy] expected a function or a module, got %s", require("moth.class").name(f))
  end
  local inputs = { ... }
  local o = type(inputs[#inputs]) == "table" and not check.is_callable(inputs[#inputs]) and table.remove(inputs) or nil
  o = check.options("debug.accuracy", o, "backends")
  local backends = o.backends or { "eager", "inductor" }
  if type(backends) ~= "table" or #backends == 0 then
    check.fail("[debug.accuracy] option 'backends': expected a list of names, got %s", type(backends))
  end
  for i, t in ipairs(inputs) do
    if not B.is_tensor(t) then check.fail("[debug.accuracy] input %d: expected a tensor, got %s", i, type(t)) end
  end
  local program = require "moth.compile.program"
  local graph = moth.no_grad(function() return (moth.compile.capture(f, inputs)) end)
  local once, seen = {}, {}
  for _, t in ipairs(inputs) do
    if not seen[t] then once[#once + 1] = t end
    seen[t] = true
  end
  local p, tensors = program.of(graph, once)
  local exact = program.values(p, cast(tensors, moth.float64))
  local report = setmetatable({ backends = backends, worst = {} }, Report)
  for i, call in ipairs(p.calls) do
    report[i] = { at = i, op = call.target, place = call.place, error = {} }
  end
  for _, backend in ipairs(backends) do
    local values = values_of(program, p, tensors, backend)
    for i, call in ipairs(p.calls) do
      local most, read = 0, {}
      program.each_value(call.args, function(v) read[#read + 1] = exact[v] end)
      for _, v in ipairs(call.results) do most = math.max(most, distance(values[v], exact[v], read)) end
      report[i].error[backend] = most
    end
    report.worst[backend] = worst(program, p, report, backend)
  end
  return report
end

return M
