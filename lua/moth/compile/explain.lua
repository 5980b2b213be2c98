--- moth.compile.explain and moth.compile.capture.
local B = require "moth_lua"
local check = require "moth.utils.check"
local trace = require "moth.lang.trace"
local graphs = require "moth.compile.graph"
local within = require "moth.dispatch.within"
local each = require "moth.each"
local C = B.compile

local M = {}

local Report = {}
Report.__index = Report

local WIDTH = 110 -- of a line that is printed
local MANY = 12 -- graphs and breaks that are printed

local function count_text(n, what) return ("%d %s%s"):format(n, what, n == 1 and "" or "s") end

-- "mul add*2 relu", in the order of their first calls.
local function names_text(names)
  local order, count, parts = {}, {}, {}
  for _, name in ipairs(names) do
    if not count[name] then order[#order + 1] = name end
    count[name] = (count[name] or 0) + 1
  end
  for i, name in ipairs(order) do parts[i] = count[name] > 1 and ("%s*%d"):format(name, count[name]) or name end
  return table.concat(parts, " ")
end

local function cut(text)
  return #text <= WIDTH and text or text:sub(1, WIDTH - 3):gsub("[\128-\191]*$", "") .. "..."
end

-- What kind of op a call is: of its record, else "custom".
local function kind_of(target)
  if B.defined_ops and target:find("::", 1, true) then return "custom" end
  local record = require("moth.dispatch.ops").get((target:gsub("_$", ""))) or require("moth.dispatch.ops").get(target)
  return record and record.kind or target:find("^backward") and "backward" or "other"
end

-- The lines of a program that a graph comes from: "model.lua:12-20".
local function places_text(g)
  local file, low, high
  for node in g:nodes() do
    local at, line = node.place:match("^(.*):(%d+)$")
    line = tonumber(line)
    if at then
      if file and at ~= file then return ("%s:%d ..."):format(file, low) end
      file, low, high = at, math.min(low or line, line), math.max(high or line, line)
    end
  end
  if not file then return "" end
  return low == high and ("%s:%d"):format(file, low) or ("%s:%d-%d"):format(file, low, high)
end

function Report:__tostring()
  local kinds = {}
  for _, kind in ipairs(self.kinds) do kinds[#kinds + 1] = ("%d %s"):format(self.kinds[kind], kind) end
  local lines = { ("%s, %s, %s%s"):format(count_text(self.graph_count, "graph"),
    count_text(self.graph_break_count, "break"), count_text(self.op_count, "op"),
    #kinds > 0 and ": " .. table.concat(kinds, ", ") or "") }
  local function add(text, ...) lines[#lines + 1] = cut(text:format(...)) end
  for i, g in ipairs(self.graphs) do
    if i > MANY then
      add("  ... and %s", count_text(self.graph_count - MANY, "graph"))
      break
    end
    local names = self.ops[i]
    add("  graph %d: %s, %s, for %s", i, count_text(#names, "op"), self.places[i],
      g.dynamic and "any sizes" or "these sizes")
    add("    %s", names_text(names))
    local kernels = self.kernels[i]
    for k, list in ipairs(kernels) do
      if k > 3 then
        add("    ... and %s", count_text(#kernels - 3, "kernel"))
        break
      end
      add("    one kernel: %s", names_text(list))
    end
    for k, text in ipairs(self.guards[i]) do
      if k > 6 then
        add("    ... and %s", count_text(#self.guards[i] - 6, "comparison"))
        break
      end
      add("    %s %s", k == 1 and "kernels are for" or "           and", text)
    end
  end
  for i, reason in ipairs(self.break_reasons) do
    if i > MANY then
      add("  ... and %s", count_text(self.graph_break_count - MANY, "break"))
      break
    end
    add("  break %d: %s", i, reason)
  end
  for i, reason in ipairs(self.recompile_reasons) do
    if i > 3 then
      add("  ... and %s", count_text(#self.recompile_reasons - 3, "difference"))
      break
    end
    add("  compiled again: %s", reason)
  end
  return table.concat(lines, "\n")
end

-- The texts of a trace's notes: breaks, or differences that made another record.
local function notes(t, breaks)
  local list = {}
  for _, note in ipairs(t and C.notes(t) or {}) do
    if note.is_break == breaks then list[#list + 1] = note.text end
  end
  return list
end

--- Runs fn(...) once, compiled, and tells what became of it: graphs (a list), graph_count, graph_break_count,
-- op_count, ops_per_graph, break_reasons (texts with file:line), recompile_reasons (of a compiled fn: the differences
-- between its calls so far), kinds (of ops, and by name how many); for each graph ops (names), places ("file:first-last
-- line"), kernels (lists of ops) and guards (texts: for which sizes the kernels are; others get their own). print()
-- fits a screen; print(report.graphs[1]) shows a graph. compile(fn, note): a callable that calls note(graph), its box,
-- and the box of fn.
function M.explain(compile, fn, ...)
  if not check.is_callable(fn) then
    check.fail("[compile.explain] expected a function or a module, got %s", type(fn))
  end
  local list = {}
  local targets, places, kernels, guards = {}, {}, {}, {}
  local call, box, known = compile(fn, function(g) -- as it was recorded: a backend may change it
    list[#list + 1], targets[#list + 1], places[#list + 1], kernels[#list + 1] = g, {}, places_text(g), {}
    guards[#list] = {}
    for node in g:nodes() do
      if node.op == "call" then table.insert(targets[#list], node.target) end
    end
  end)
  graphs.watch_kernels(function(ops) -- of the graph, or of those that it has become
    if #list > 0 then table.insert(kernels[#list], ops) end
  end, function(texts)
    for _, text in ipairs(#list > 0 and texts or {}) do table.insert(guards[#list], text) end
  end)
  local ok, message = xpcall(call, trace.keep, ...)
  graphs.watch_kernels(nil)
  if not ok then trace.rethrow(message) end
  local report = { graphs = list, graph_count = #list, op_count = 0, ops_per_graph = {}, ops = {}, kinds = {},
    places = places, kernels = kernels, guards = guards, break_reasons = notes(box.trace, true),
    recompile_reasons = notes(known and known.trace, false) }
  for i, names in ipairs(targets) do
    for _, name in ipairs(names) do
      local kind = kind_of(name)
      if not report.kinds[kind] then table.insert(report.kinds, kind) end
      report.kinds[kind] = (report.kinds[kind] or 0) + 1
    end
    report.ops[i], report.ops_per_graph[i] = names, #names
    report.op_count = report.op_count + #names
  end
  table.sort(report.kinds, function(a, b)
    local m, n = report.kinds[a], report.kinds[b]
    return m > n or m == n and a < b
  end)
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
  local paused = C.recording() and C.pause("compile.capture")
  if C.recording() then check.fail("[compile.capture] another graph is being recorded") end
  if paused then
    return within(function() return paused end, C.resume, nil, M.capture, fn, args)
  end
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
  return graphs.new(within(C.begin, C.finish, t, function()
    add({ fn(unpack(args, 1, args.n or #args)) }, outputs)
    return C.graph_noted(outputs, inputs)
  end))
end

return M
