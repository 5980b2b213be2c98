--- The graph of a compiled segment: nodes in program order, to be looked at, changed and run.
--
--     local g = moth.compile.capture(model, { x })
--     print(g)
--     for node in g:nodes() do print(node.op, node.target, node:users()) end
--     local y = g:interpreter()(x)
--
-- A node has op ("placeholder", "get_attr", "call", "output"), name, target (the op's name), args (constants, nodes,
-- results of nodes, lists), place ("file:line"), meta { shape, stride, dtype, device, requires_grad } and metas (one
-- for each result); node[2] is its second result, to be used as an argument.
--
-- Numbers. In the graph that a backend gets, arguments that differ from call to call (`x * k`, a learning rate, a
-- count of steps) are not constants but numbers of the graph: among node.args stands an object { name = "k1",
-- index = 1, value = what it was when the graph was made, varied = whether it has differed between calls so far }. The
-- function that the backend returns is called with the graph's inputs, and then, if the graph has numbers, with a list
-- of theirs: code(x1, …, xn, { k1, …, km }). What relies on a value pins it: v = number:pin() returns it, and the
-- backend is asked again where it is another; g:pin_numbers() pins all.
--
-- Sizes. g.dynamic is true where the graph holds for other sizes of the inputs than those in meta (moth.compile's
-- option dynamic, or a third shape). Sizes that ops get as arguments are then numbers, too, whose values may be lists.
-- Whoever needs the sizes calls g:pin_sizes(), and gets a graph of its own for each set of sizes. A graph that is not
-- dynamic is for its sizes alone. The interpreter takes any numbers and sizes; left out, numbers are as recorded. In C:
-- graph/graph.h, moth_segment_numbers, moth_graph_pin.
--
-- The whole step. backward() and autograd.grad of a value of the graph are calls, too: `backward_pass` (roots,
-- gradients, leaves without .grad, leaves with .grad, these gradients, which it adds to, retain_graph) and
-- `gradient_pass` (outputs, gradients, inputs, {}, {}, retain_graph) run the engine over the histories that the calls
-- before have recorded; the `gradient_of`(leaf) behind them gives each new gradient. src/graph/backward.c
local B = require "moth_lua"
local check = require "moth.utils.check"
local C = B.compile

local Graph, Node, Number = {}, {}, {}
Number.__index = Number
Number.__module_name = "moth.compile.Number"
function Graph.__index(g, key)
  if key == "dynamic" then return select(2, C.graph_facts(g.handle)) end
  return Graph[key]
end
Graph.__module_name = "moth.compile.Graph"

local M = {}

--- The object of a graph of the binding.
function M.new(handle)
  return setmetatable({ handle = handle, cache = setmetatable({}, { __mode = "v" }), known = {} }, Graph)
end

--- x, which must be a graph; `name` is the function that asks.
function M.check(name, x)
  if type(x) ~= "table" or getmetatable(x) ~= Graph then
    check.fail("[%s] expected a graph of moth.compile, got %s", name, type(x))
  end
  return x
end

--- Is x a node of a graph?
function M.is_node(x) return type(x) == "table" and getmetatable(x) == Node end

--- Is x a number of a graph?
function M.is_number(x) return type(x) == "table" and getmetatable(x) == Number end

local function number_of(g, index, value, varied)
  local number = g.known[index]
  if not number then
    number = setmetatable({ graph = g, index = index, name = "k" .. index, value = value,
      varied = varied or false }, Number)
    g.known[index] = number
  end
  return number
end

--- What is made of the graph holds for the number's value only, which is returned.
function Number.pin(number)
  C.graph_pin(number.graph.handle, number.index)
  return number.value
end

function Number.__tostring(number) return number.name end

local function node_of(g, id)
  local node = g.cache[id]
  if not node then
    node = setmetatable({ graph = g, id = id }, Node)
    g.cache[id] = node
  end
  return node
end

-- A value as an argument shows it: the node, or for a result but the first { node =, result = } with node's fields.
local Result = { __index = function(r, key) return r.node[key] end }
local function value_of(g, v)
  if type(v) ~= "table" then return v end
  if v.node then
    local node = node_of(g, v.node)
    return v.result == 1 and node or node[v.result]
  end
  if v.number then return number_of(g, v.number, v.value, v.varied) end
  local list = { n = v.n }
  for i = 1, v.n or #v do list[i] = value_of(g, v[i]) end
  return list
end

--- The number of the graph that stands among the binding's arguments as v.
function Graph:number(v) return number_of(self, v.number, v.value, v.varied) end

local function facts(node)
  return C.graph_node(node.graph.handle, node.id) or check.fail("the node %d is not in its graph any more", node.id)
end

local fields = {
  op = function(f) return f.kind end, name = function(f) return f.name end, target = function(f) return f.target end,
  place = function(f) return f.place end, meta = function(f) return f.metas[1] end,
  metas = function(f) return f.metas end, tensor = function(f) return f.tensor end,
  args = function(f, node) return value_of(node.graph, f.args) end,
}

function Node.__index(node, key)
  if fields[key] then return fields[key](facts(node), node) end
  if type(key) == "number" then
    local f = facts(node)
    if key < 1 or key > #f.metas then check.fail("%s has %d results, not %s", f.name, #f.metas, tostring(key)) end
    return key == 1 and node or setmetatable({ node = node, result = key }, Result)
  end
  return Node[key] or check.fail("a node has no '%s'; there are op, name, target, args, place, meta, metas, tensor",
    tostring(key))
end

function Node.__newindex(_, key)
  check.fail("a node's '%s' cannot be set; graph:call(), node:replace_all_uses_with(), node:replace_input() and "
    .. "node:erase() change a graph", tostring(key))
end

function Node.__tostring(node)
  local f = facts(node)
  return ("%s %s"):format(f.kind, f.target or f.name)
end

-- The node and the number of a value.
local function parts(g, v, what)
  local node, result = v, 1
  if type(v) == "table" and getmetatable(v) == Result then node, result = v.node, v.result end
  if not M.is_node(node) then check.fail("[graph.%s] expected a node, got %s", what, type(v)) end
  if node.graph ~= g then check.fail("[graph.%s] the node is of another graph", what) end
  return node.id, result
end

--- The nodes that use this one, in order.
function Node.users(node)
  local out = {}
  for other in node.graph:nodes() do
    local function uses(v)
      if type(v) ~= "table" then return false end
      if v == node or (getmetatable(v) == Result and v.node == node) then return true end
      for i = 1, not M.is_node(v) and getmetatable(v) == nil and (v.n or #v) or 0 do
        if uses(v[i]) then return true end
      end
      return false
    end
    if uses(other.args) then out[#out + 1] = other end
  end
  return out
end

--- Its users get `value`, a node or a result, in its place; sizes and dtype must be the same.
function Node.replace_all_uses_with(node, value)
  local id, result = parts(node.graph, value, "replace_all_uses_with")
  C.graph_replace(node.graph.handle, node.id, 1, id, result)
end

--- It uses `to` where it uses `from`.
function Node.replace_input(node, from, to)
  local a, b = parts(node.graph, from, "replace_input")
  local c, d = parts(node.graph, to, "replace_input")
  C.graph_replace(node.graph.handle, a, b, c, d, node.id)
end

--- Takes it out of the graph; an error if a node uses it.
function Node.erase(node) C.graph_erase(node.graph.handle, node.id) end

--- Iterates over the nodes, in program order.
function Graph:nodes()
  local ids, i = C.graph_nodes(self.handle), 0
  return function()
    i = i + 1
    return ids[i] and node_of(self, ids[i])
  end
end

--- The node with this name, op's or input's: the n-th such (1).
function Graph:find(name, n)
  n = n or 1
  for node in self:nodes() do
    if node.target == name or node.name == name then
      n = n - 1
      if n == 0 then return node end
    end
  end
end

--- A call of an op, put in front of the output, or of o.before: fn is the op's function (moth.relu) or name, its
-- arguments are nodes, numbers (of the graph, too), strings, tables.
function Graph:call(fn, ...)
  local before = 0
  local args = { n = select("#", ...), ... }
  local last = args[args.n]
  if type(last) == "table" and getmetatable(last) == nil and M.is_node(last.before) then
    before = parts(self, last.before, "call")
    local rest = {}
    for k, v in require("moth.each")(last) do if k ~= "before" then rest[k] = v end end
    args[args.n] = rest
    if next(rest) == nil then args.n = args.n - 1 end
  end
  if type(fn) == "string" then
    local name = fn
    fn = B.ops[name] or check.fail("[graph.call] there is no op named '%s'", name)
  end
  if not check.is_callable(fn) then check.fail("[graph.call] expected an op, got %s", type(fn)) end
  local fakes, ids, results = {}, {}, {}
  local function stand_in(v)
    if type(v) ~= "table" then return v end
    if M.is_node(v) or getmetatable(v) == Result then
      local id, result = parts(self, v, "call")
      local fake = C.graph_fake(self.handle, id, result)
      fakes[#fakes + 1], ids[#ids + 1], results[#results + 1] = fake, id, result
      return fake
    end
    if M.is_number(v) then check.fail("[graph.call] a number of the graph is an argument by itself, not in a list") end
    if getmetatable(v) ~= nil then return v end
    local copy = {}
    for k, x in require("moth.each")(v) do copy[k] = stand_in(x) end
    return copy
  end
  local given = { n = args.n }
  for i = 1, args.n do
    if M.is_number(args[i]) then given[i] = args[i].value else given[i] = stand_in(args[i]) end
  end
  local id = C.graph_insert(self.handle, before, fakes, ids, results, fn, given)
  for i = 1, args.n do
    if M.is_number(args[i]) then C.graph_set_number(self.handle, id, i, args[i].index) end
  end
  return node_of(self, id)
end

--- The graph's numbers, in the order in which the compiled function gets their values.
function Graph:numbers()
  for node in self:nodes() do
    if node.op == "call" then local _ = node.args end -- which makes those among them
  end
  local list = {}
  for i = 1, (C.graph_facts(self.handle)) do list[i] = self.known[i] or number_of(self, i) end
  return list
end

--- What is made of the graph holds for its numbers' values only.
function Graph:pin_numbers() C.graph_pin(self.handle, 0) end

--- What is made of the graph holds for the sizes of its inputs, and of arguments, only.
function Graph:pin_sizes() C.graph_pin(self.handle) end

local kernels = setmetatable({}, { __mode = "k" }) -- handle of a graph -> list of lists of names

local watcher, guards_watcher
--- Has fn called with the ops of each kernel that is noted from now on, and guards with texts of what kernels rely on;
-- nil: nobody.
function M.watch_kernels(fn, guards) watcher, guards_watcher = fn, guards end

--- Whether guards are watched.
function M.is_watched() return guards_watcher ~= nil end

--- For backends: kernels of the graph are for sizes for which these texts hold. moth.compile.explain shows it.
function Graph.add_guards(_, list)
  if guards_watcher then guards_watcher(list) end
end

--- For backends: calls of these ops have become one kernel. moth.compile.explain shows it.
function Graph:add_kernel(ops)
  if watcher then watcher(ops) end
  kernels[self.handle] = kernels[self.handle] or {}
  table.insert(kernels[self.handle], ops)
end

--- The kernels that a backend has made of the graph: lists of the ops' names.
function Graph:kernels() return kernels[self.handle] or {} end

--- Removes calls whose results nobody uses, that write to nothing and draw no random numbers; returns how many.
function Graph:eliminate_dead_code() return C.graph_eliminate(self.handle) end

--- An error if a node uses what is not made before it.
function Graph:lint() C.graph_check(self.handle) end

--- The number of calls.
function Graph:count()
  local n = 0
  for node in self:nodes() do if node.op == "call" then n = n + 1 end end
  return n
end

local function run(handle, ...)
  local n = select("#", ...)
  local inputs, numbers = { ... }, nil
  if type(inputs[n]) == "table" then inputs[n], numbers = nil, inputs[n] end
  return unpack(C.graph_run(handle, inputs, numbers))
end

--- A function of the graph's inputs, and a list of its numbers if they are not the recorded ones, that runs the nodes
-- one by one and returns the outputs.
function Graph:interpreter()
  local handle = self.handle
  return function(...) return run(handle, ...) end
end

--- The same as g:interpreter()(…).
function Graph:__call(...) return run(self.handle, ...) end

function Graph:__tostring() return C.graph_text(self.handle) end

M.Graph = Graph
return M
