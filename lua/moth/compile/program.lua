--- A graph as a list of calls in Lua tables, which can be cut down, run, and written as Lua source.
--
-- A program is { inputs = { values }, calls = { … }, outputs = { values } }; a call { target, args, results = { values
-- }, place, no_grad, autocast, out = values, at = which of the graph's calls it was }; a value { name, meta }. The cuts
-- that are tried share these values, whose elements are known once; a graph in C has no part of it as another graph.
local B = require "moth_lua"
local check = require "moth.utils.check"
local C = B.compile

local M = {}

local Value = {}

local function is_value(v) return type(v) == "table" and getmetatable(v) == Value end
M.is_value = is_value

-- Calls fn with each value among args.
local function each_value(args, fn)
  for i = 1, args.n or #args do
    local v = args[i]
    if is_value(v) then
      fn(v)
    elseif type(v) == "table" and getmetatable(v) == nil then
      each_value(v, fn)
    end
  end
end
M.each_value = each_value

-- The calls' values, by the ids of nodes.
local function read_args(list, values)
  local out = { n = list.n or #list }
  for i = 1, out.n do
    local v = list[i]
    if type(v) == "table" and v.node then
      out[i] = values[v.node][v.result]
    elseif type(v) == "table" and v.number then
      out[i] = v.value
    elseif type(v) == "table" and getmetatable(v) == nil then
      out[i] = read_args(v, values)
    else
      out[i] = v
    end
  end
  return out
end

--- The program of a graph, and the tensors that are its inputs: `inputs`, and behind them those that the graph holds.
function M.of(graph, inputs)
  local p = { inputs = {}, calls = {}, outputs = {} }
  local values, tensors, attrs, count = {}, { unpack(inputs) }, {}, 0
  for _, id in ipairs(C.graph_nodes(graph.handle)) do
    local f = C.graph_node(graph.handle, id)
    values[id] = {}
    if f.kind == "placeholder" or f.kind == "get_attr" then
      local v = setmetatable({ name = f.name, meta = f.metas[1] }, Value)
      values[id][1] = v
      local list = f.tensor and attrs or p.inputs
      list[#list + 1] = v
      tensors[#tensors + 1] = f.tensor
    elseif f.kind == "call" then
      local call = { target = f.target, args = read_args(f.args, values), results = {}, place = f.place,
        no_grad = f.no_grad, autocast = f.autocast, at = #p.calls + 1 }
      call.out = f.out and read_args(f.out, values)
      for i, meta in ipairs(f.metas) do
        count = count + 1
        call.results[i] = setmetatable({ name = "y" .. count, meta = meta }, Value)
        values[id][i] = call.results[i]
      end
      p.calls[#p.calls + 1] = call
    else
      p.outputs = read_args(f.args, values)
    end
  end
  for _, v in ipairs(attrs) do p.inputs[#p.inputs + 1] = v end
  return p, tensors
end

-- ---- cutting ------------------------------------------------------------------------------------

--- The first n calls; outputs: what later calls or the outputs use of it.
function M.prefix(p, n)
  local q = { inputs = p.inputs, calls = {}, outputs = {} }
  local made = {}
  for i = 1, n do
    q.calls[i] = p.calls[i]
    for _, v in ipairs(p.calls[i].results) do made[v] = true end
  end
  local function use(v)
    if made[v] then
      made[v] = nil
      q.outputs[#q.outputs + 1] = v
    end
  end
  for i = n + 1, #p.calls do
    each_value(p.calls[i].args, use)
    each_value(p.calls[i].out or {}, use)
  end
  each_value(p.outputs, use)
  return q
end

--- What is needed for `outputs`, with the results of the calls in `given` as inputs.
function M.slice(p, outputs, given)
  local needed, calls, inputs, kept = {}, {}, {}, {}
  for _, v in ipairs(outputs) do needed[v] = true end
  local function need(v) needed[v] = true end
  for i = #p.calls, 1, -1 do
    local call, wanted = p.calls[i], false
    for _, v in ipairs(call.results) do wanted = wanted or needed[v] end
    if wanted and not given[call] then
      table.insert(calls, 1, call)
      each_value(call.args, need)
      each_value(call.out or {}, need)
      for _, v in ipairs(call.results) do kept[v] = true end
    end
  end
  for _, v in ipairs(p.inputs) do if needed[v] then inputs[#inputs + 1] = v end end
  for _, call in ipairs(p.calls) do
    for _, v in ipairs(call.results) do
      if needed[v] and not kept[v] then inputs[#inputs + 1] = v end
    end
  end
  local left = {}
  for _, v in ipairs(outputs) do if kept[v] then left[#left + 1] = v end end
  return { inputs = inputs, calls = calls, outputs = left }
end

-- ---- source ---------------------------------------------------------------------------------------

local function number(v)
  if v ~= v then return "0 / 0" end
  if v == math.huge then return "1 / 0" end
  if v == -math.huge then return "-1 / 0" end
  if v == 0 and 1 / v < 0 then return "-0.0" end
  local text = ("%.14g"):format(v)
  return tonumber(text) == v and text or ("%.17g"):format(v)
end

local function literal(v, names)
  if is_value(v) then return names(v) end
  if type(v) == "number" then return number(v) end
  if type(v) == "string" then return ("%q"):format(v) end
  if type(v) == "boolean" or v == nil then return tostring(v) end
  if type(v) == "table" and getmetatable(v) == nil then
    local parts = {}
    for i = 1, v.n or #v do parts[i] = literal(v[i], names) end
    return "{ " .. table.concat(parts, ", ") .. " }"
  end
  if B.is_dtype(v) then return tostring(v) end
  if B.is_device(v) then return ("%q"):format(tostring(v)) end
  return "nil" -- a generator: the default one
end

local function arguments(call, names)
  local parts, n = {}, call.args.n
  while n > 0 and call.args[n] == nil do n = n - 1 end
  for i = 1, n do parts[i] = literal(call.args[i], names) end
  if call.out then parts[#parts + 1] = "{ out = " .. literal(call.out[1], names) .. " }" end
  return table.concat(parts, ", ")
end

local MANY = 120 -- Lua has 200 local variables, and 60 of a function outside

--- The program as the source of a function `f` of the inputs: lines "  …".
function M.source(p)
  local many = #p.calls + #p.inputs > MANY
  local function names(v) return many and "v." .. v.name or v.name end
  local lines, params, results = {}, {}, {}
  for i, v in ipairs(p.inputs) do params[i] = v.name end
  if many then
    lines[1] = "local function f(...)"
    lines[2] = "  local v, given = {}, { ... }"
    for i, v in ipairs(p.inputs) do lines[#lines + 1] = ("  v.%s = given[%d]"):format(v.name, i) end
  else
    lines[1] = ("local function f(%s)"):format(table.concat(params, ", "))
  end
  for _, call in ipairs(p.calls) do
    local left = {}
    for i, v in ipairs(call.results) do left[i] = names(v) end
    local text = ("ops[%q](%s)"):format(call.target, arguments(call, names))
    if call.target:find("^[%a_][%w_]*$") then text = text:gsub('^ops%["([%w_]+)"%]', "ops.%1") end
    if call.autocast then
      text = ('moth.autocast({ dtype = moth.%s }, function() return %s end)'):format(call.autocast.cpu, text)
    end
    if call.no_grad then text = ("moth.no_grad(function() return %s end)"):format(text) end
    lines[#lines + 1] = ("  %s%s = %s%s"):format(many and "" or "local ", table.concat(left, ", "), text,
      call.place ~= "" and " -- " .. call.place or "")
  end
  for i, v in ipairs(p.outputs) do results[i] = names(v) end
  lines[#lines + 1] = many and ("  return unpack({ %s }, 1, %d)"):format(table.concat(results, ", "), #results)
    or "  return " .. table.concat(results, ", ")
  lines[#lines + 1] = "end"
  return table.concat(lines, "\n")
end

--- The program as a function.
function M.compile(p)
  local text = "local moth, ops = ...\n" .. M.source(p) .. "\nreturn f\n"
  local chunk, message = loadstring(text, "=graph")
  if not chunk then check.fail("[compile.minify] the graph has no source: %s\n%s", message, text) end
  return chunk(require "moth", B.ops)
end

-- A copy that later writes do not change.
local function snapshot(t)
  local own = C.copies({ B.alias(t, false) })[1]
  if B.requires_grad(t) then own:requires_grad_(true) end
  return own
end

--- Runs the program call by call on copies of the tensors; what each value was when it was made.
function M.values(p, tensors)
  local everything = { inputs = p.inputs, calls = p.calls, outputs = {} }
  local run, kept = {}, {}
  for i, t in ipairs(C.copies(tensors)) do
    run[p.inputs[i]] = t
    kept[p.inputs[i]] = tensors[i]
  end
  for _, call in ipairs(everything.calls) do
    local inputs, given, seen = {}, {}, {}
    local function add(v)
      if seen[v] then return end
      seen[v] = true
      inputs[#inputs + 1], given[#given + 1] = v, run[v]
    end
    each_value(call.args, add)
    each_value(call.out or {}, add)
    local results = { M.compile({ inputs = inputs, calls = { call }, outputs = call.results })(unpack(given)) }
    for i, v in ipairs(call.results) do
      run[v] = results[i]
      kept[v] = snapshot(results[i])
    end
  end
  return kept
end

return M
