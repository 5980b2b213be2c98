--- moth.compile.explain and moth.compile.capture.
local B = require "moth_lua"
local check = require "moth.utils.check"
local trace = require "moth.lang.trace"
local graphs = require "moth.compile.graph"
local each = require "moth.each"
local C = B.compile

local M = {}

local Report = {}
Report.__index = Report

function Report:__tostring()
  local lines = { ("%d graph%s, %d break%s, %d ops"):format(self.graph_count, self.graph_count == 1 and "" or "s",
    self.graph_break_count, self.graph_break_count == 1 and "" or "s", self.op_count) }
  for i, g in ipairs(self.graphs) do lines[#lines + 1] = ("  graph %d: %d ops"):format(i, g:count()) end
  for i, reason in ipairs(self.break_reasons) do lines[#lines + 1] = ("  break %d: %s"):format(i, reason) end
  return table.concat(lines, "\n")
end

--- Runs fn(...) once, compiled, and tells what became of it: graphs (a list), graph_count, graph_break_count, op_count,
-- ops_per_graph, break_reasons (texts with file:line). print() fits a screen; print(report.graphs[1]) shows a graph.
function M.explain(compile, fn, ...)
  if not check.is_callable(fn) then
    check.fail("[compile.explain] expected a function or a module, got %s", type(fn))
  end
  local list = {}
  local call, box = compile(fn, function(g)
    list[#list + 1] = g
    return g:interpreter()
  end)
  call(...)
  local report = { graphs = list, graph_count = #list, op_count = 0, ops_per_graph = {}, break_reasons = {} }
  for i, g in ipairs(list) do
    report.ops_per_graph[i] = g:count()
    report.op_count = report.op_count + report.ops_per_graph[i]
  end
  for _, note in ipairs(box.trace and C.notes(box.trace) or {}) do
    if note.is_break then report.break_reasons[#report.break_reasons + 1] = note.text end
  end
  report.graph_break_count = #report.break_reasons
  return setmetatable(report, Report)
end

--- The graph of fn(unpack(args)), without running it: no op computes, nothing is written. args' tensors are its inputs,
-- in their order; other tensors that it uses, such as parameters, it holds (get_attr). What would break the graph is an
-- error.
function M.capture(fn, args)
  if not check.is_callable(fn) then
    check.fail("[compile.capture] expected a function or a module, got %s", type(fn))
  end
  if type(args) ~= "table" then check.fail("[compile.capture] expected a list of arguments, got %s", type(args)) end
  for key in each(args) do
    if type(key) ~= "number" and key ~= "n" then
      check.fail("[compile.capture] the arguments are a list, which has no field '%s'", tostring(key))
    end
  end
  if C.recording() then check.fail("[compile.capture] another graph is being recorded") end
  local inputs, outputs, seen = {}, {}, {}
  local function add(v, list)
    if B.is_tensor(v) then
      if list == outputs or not seen[v] then list[#list + 1] = v end
      seen[v] = list == inputs or seen[v]
    elseif type(v) == "table" and getmetatable(v) == nil then
      for i = 1, v.n or #v do add(v[i], list) end
    end
  end
  add(args, inputs)
  local t = C.trace_new("capture", 1000, true, 0, true)
  B.open_modes()
  local ok, call = pcall(C.begin, t)
  if not ok then
    B.close_modes()
    error(call, 0)
  end
  local results
  ok, results = xpcall(function()
    results = { fn(unpack(args, 1, args.n or #args)) }
    add(results, outputs)
    return C.graph_noted(outputs, inputs)
  end, trace.keep)
  C.finish(call)
  B.close_modes()
  if not ok then trace.rethrow(results) end
  return graphs.new(results)
end

return M
