--- Anomaly detection: which op's derivative fails, or makes NaN, and where the program called that op.
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local trace = require "moth.lang.trace"
local graph = require "moth.autograd.graph"

local function place(node)
  return node:name() .. ", recorded at:\n" .. (node.metadata.traceback or "(outside of detect_anomaly)")
end

-- A traceback without moth's own lines.
local library = debug.getinfo(1, "S").short_src:match("^(.*)autograd[/\\]anomaly%.lua$")
local function traceback()
  local lines = {}
  for line in debug.traceback("", 3):gmatch("[^\n]+") do
    local own = library and line:find(library, 1, true) or line:find("[C]:", 1, true)
    if line:match("^%s") and not own then lines[#lines + 1] = "  " .. line:match("^%s*(.*)$") end
  end
  return table.concat(lines, "\n")
end

local function has_nan(t)
  local d = B.tensor_dtype(t)
  return (d.is_floating_point or d.is_complex) and B.ops.any(B.ops.isnan(t)):item()
end

--- Runs fn(...), forward and backward. An error of backward says which op's derivative it came from and where that op
-- was called; a derivative that gives NaN is such an error. detect_anomaly(fn, …) or detect_anomaly({ check_nan =
-- false }, fn, …). Slow: it keeps a traceback for each op.
local function detect_anomaly(options, fn, ...)
  if check.is_callable(options) then return detect_anomaly({}, options, fn, ...) end
  local check_nan = check.options("detect_anomaly", options or 0, "check_nan").check_nan ~= false
  if not check.is_callable(fn) then check.fail("[detect_anomaly] expected a function, got %s", type(fn)) end
  local failed
  local callbacks = {
    made = function(node) node.metadata.traceback = traceback() end,
    finish = function(node, grads, ok)
      if not ok then failed = failed or place(node) end
      if not (ok and check_nan) then return end
      for i, g in each(grads) do
        if B.is_tensor(g) and has_nan(g) then
          error(("function %s returned nan values in gradient %d; %s"):format(node:name(), i, place(node)), 0)
        end
      end
    end,
  }
  local function pack(...) return { n = select("#", ...), ... } end
  local results = pack(xpcall(graph.watch_nodes, trace.keep, callbacks, fn, ...))
  if results[1] then return unpack(results, 2, results.n) end
  local err = results[2]
  if failed and type(err) == "string" and not err:find(failed, 1, true) then err = err .. "\nin " .. failed end
  trace.rethrow(err)
end

return detect_anomaly
