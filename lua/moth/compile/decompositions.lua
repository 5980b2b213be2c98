--- moth.compile.decompositions: what ops are made of, and rules of the program's own.
--
--     print(moth.compile.decompositions.softmax)     -- the text in its record (docs/records.md)
--     moth.compile.decompositions.gelu = function(x) return x * moth.sigmoid(1.702 * x) end
--     moth.compile.decompositions.gelu = nil         -- as it was
--
-- The records' texts are what backends use. A function that is set is called instead of the op: its calls take the
-- call's place in the graphs that are compiled from then on, whatever the backend but "eager". It gets the op's
-- arguments and returns its results, of the same sizes and dtypes.
local B = require "moth_lua"
local check = require "moth.utils.check"
local graphs = require "moth.compile.graph"
local ops = require "moth.dispatch.ops"

local M = {}

local own = {}

-- What a record says of how its op is computed by others; nil: it is computed by a kernel of its own.
local function text(name)
  local r = ops.get(name)
  if not r then return nil end
  if r.expr or r.decompose then return r.expr or r.decompose end
  local parts = {}
  for _, key in ipairs { "map", "join", "contract", "finish" } do
    if type(r[key]) == "string" then parts[#parts + 1] = ("%s: %s"):format(key, r[key]) end
  end
  return #parts > 0 and table.concat(parts, "; ") or nil
end

M.table = setmetatable({}, {
  __index = function(_, name) return own[name] or text(name) end,
  __newindex = function(_, name, fn)
    if not ops.get(name) then check.fail("[compile.decompositions] there is no op named '%s'", tostring(name)) end
    if fn ~= nil and not check.is_callable(fn) then
      check.fail("[compile.decompositions] expected a function of %s's arguments, got %s", name, type(fn))
    end
    own[name] = fn
  end,
})

-- The calls that fn makes of fakes: { target, args, results }, and what it returns.
local function noted(fn, ...)
  local log, dispatch = {}, require "moth.dispatch"
  local given, n = { ... }, select("#", ...)
  local results = { dispatch.fake_mode(function()
    return dispatch.dispatch_mode(function(func, args)
      local out = { func(unpack(args, 1, args.n)) }
      log[#log + 1] = { target = func.name, args = args, results = out }
      return unpack(out)
    end, fn, unpack(given, 1, n))
  end) }
  return log, results
end

-- Puts the calls of fn in front of node, which is a call, and in its place.
local function replace(graph, node, fn)
  local fakes, values = {}, {} -- tensors, and what they are in the graph
  local function fake_of(v)
    if type(v) ~= "table" then return v end
    if graphs.is_number(v) then return v:pin() end
    if graphs.is_node(v) or rawget(v, "node") then
      fakes[#fakes + 1] = B.compile.graph_fake(graph.handle, M.place(v))
      values[#fakes] = v
      return fakes[#fakes]
    end
    local list = {}
    for i = 1, v.n or #v do list[i] = fake_of(v[i]) end
    return list
  end
  local name, given, args = node.target, {}, node.args
  graph:pin_sizes() -- fn may read those of the fakes
  local n = args.n
  for i = 1, n do given[i] = fake_of(args[i]) end
  while n > 0 and given[n] == nil do n = n - 1 end
  local log, results = noted(fn, unpack(given, 1, n))
  local function value_of(v)
    if B.is_tensor(v) then
      for i, t in ipairs(fakes) do if t == v then return values[i] end end
      check.fail("[compile.decompositions] the function of '%s' uses a tensor from outside", name)
    end
    if type(v) ~= "table" or getmetatable(v) ~= nil then return v end
    local list = {}
    for i = 1, v.n or #v do list[i] = value_of(v[i]) end
    return list
  end
  for _, call in ipairs(log) do
    local list = {}
    for i = 1, call.args.n do list[i] = value_of(call.args[i]) end
    list[call.args.n + 1] = { before = node }
    local made = graph:call(call.target, unpack(list, 1, call.args.n + 1))
    for i, t in ipairs(call.results) do
      fakes[#fakes + 1] = t
      values[#fakes] = made[i]
    end
  end
  local metas = node.metas
  if #results ~= #metas then
    check.fail("[compile.decompositions] the function of '%s' returned %d tensors, not %d", name, #results, #metas)
  end
  for i = 1, #metas do B.compile.graph_replace(graph.handle, node.id, i, M.place(value_of(results[i]))) end
  node:erase()
end

--- The id and number of a value of a graph.
function M.place(v)
  local inner = rawget(v, "node")
  if inner then return inner.id, rawget(v, "result") end
  return v.id, 1
end

--- Replaces the calls of a graph whose ops have rules of the program's own.
function M.apply(graph)
  if next(own) == nil then return end
  local list = {}
  for node in graph:nodes() do
    if node.op == "call" and own[node.target] then list[#list + 1] = node end
  end
  for _, node in ipairs(list) do replace(graph, node, own[node.target]) end
end

return M
