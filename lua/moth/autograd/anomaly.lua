--- Anomaly detection: which op's derivative fails, or makes NaN, and where the program called that op.
local B = require "moth_lua"
local check = require "moth.utils.check"
local trace = require "moth.lang.trace"
local within = require "moth.dispatch.within"

local M = {}

local function forward_of(frames)
  return frames and "The forward call was made here:\n" .. frames:gsub("[^\n]+", "  %0"):gsub("\n$", "")
    or "The forward call was made before anomaly detection was on."
end

-- "nan", "inf" or nil: what the elements of a gradient have that they should not.
local function wrong(t, inf)
  local d = B.tensor_dtype(t)
  if not (d.is_floating_point or d.is_complex) then return nil end
  t = B.batch_values(t) -- of all elements, inside vmap
  if d.is_floating_point then
    local value = B.ops.sum(B.ops.mul(t, 0)):item()
    if value == value then return nil end -- NaN if and only if an element is NaN or infinite
  end
  if B.ops.any(B.ops.isnan(t)):item() then return "nan" end
  return inf and B.ops.any(B.ops.isinf(t)):item() and "inf" or nil
end

local by_node -- names of arguments with a derivative, by the names of nodes

-- The argument whose gradient is output i (from 1) of a node, as the op's record names it, or nil.
local function argument(node, i)
  if not by_node then
    by_node = {}
    local ops = require "moth.dispatch.ops"
    for _, name in ipairs(ops.list()) do
      local op = ops.get(name)
      local list = {}
      for _, a in ipairs(op.args) do
        if a.type == "TENSOR" or a.type == "OPERAND" then list[#list + 1] = a.name end
      end
      if op.node then by_node[op.node] = list end
    end
  end
  local list = by_node[node:name()]
  return list and list[i]
end

-- A function for B.watch_anomalies, and the table where it notes the first node that has failed.
local function watcher(check_inf)
  local w = { failed = nil }
  return function(node, frames, output, gradient)
    if not output then
      w.failed = w.failed or ("in %s. %s"):format(node:name(), forward_of(frames))
      return
    end
    local what = wrong(gradient, check_inf)
    if not what then return end
    local name = argument(node, output + 1)
    error(("Function '%s' returned %s values in its %dth output%s. %s"):format(node:name(), what, output,
      name and (" (the gradient of %s)"):format(name) or "", forward_of(frames)), 0)
  end, w
end

local function options_of(name, o)
  o = check.options(name, o, "check_nan check_inf")
  for _, key in ipairs { "check_nan", "check_inf" } do
    if o[key] ~= nil and type(o[key]) ~= "boolean" then
      check.fail("[%s] option '%s': expected true or false, got %s", name, key, type(o[key]))
    end
  end
  return o.check_nan ~= false, o.check_inf or false
end

--- Runs fn(...), forward and backward. An error of backward says which op's derivative it came from and where that op
-- was called; a derivative that gives NaN is such an error. detect_anomaly(fn, …) or detect_anomaly(options, fn, …):
-- check_nan (true), check_inf (false). It keeps the frames of each op that is
-- recorded.
function M.detect_anomaly(options, fn, ...)
  if check.is_callable(options) then return M.detect_anomaly({}, options, fn, ...) end
  local check_nan, check_inf = options_of("detect_anomaly", options)
  if not check.is_callable(fn) then check.fail("[detect_anomaly] expected a function, got %s", type(fn)) end
  local found, w = watcher(check_inf)
  local function pack(...) return { n = select("#", ...), ... } end
  local results = pack(xpcall(within, trace.keep, function() return B.watch_anomalies(found, check_nan, check_inf) end,
    B.close_frame, nil, fn, ...))
  if results[1] then return unpack(results, 2, results.n) end
  local err = results[2]
  if w.failed and type(err) == "string" and not err:find(w.failed, 1, true) then err = err .. "\n" .. w.failed end
  trace.rethrow(err)
end

local on -- the open watcher of set_detect_anomaly

--- The same from now on, until set_detect_anomaly(false). NaN is an error of backward; other errors do not name the
-- forward call.
function M.set_detect_anomaly(mode, options)
  local check_nan, check_inf = options_of("set_detect_anomaly", options)
  if on then B.close_frame(on.frame) end
  on = nil
  if mode then on = { frame = B.watch_anomalies(watcher(check_inf), check_nan, check_inf), check_nan = check_nan } end
end

function M.is_anomaly_enabled() return on ~= nil end
function M.is_anomaly_check_nan_enabled() return on ~= nil and on.check_nan end

return M
