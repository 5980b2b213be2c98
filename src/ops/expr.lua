-- The language of expressions in records: composites (`expr`), conditions (`check`) and derivatives (`grad`).
--
-- An expression is Lua without jumps: one expression, or lines of `local a = …` with a last `return a, b, …`. It is
-- evaluated over proxies, once; each call makes a node of a graph. emit.lua writes the graph as C, lua/moth/records
-- computes it. Names are the op's arguments, all ops, the named expressions of define.lua, `inf`, `none`, and these
-- functions of values that are known when the op is called (numbers, lists of sizes, strings; positions count from 0):
--
--   when(condition, a, b)     only the branch taken is computed
--   given(x)                  an optional argument was given
--   eq ne lt le gt ge         of numbers and strings (of tensors and operands they are the ops; equal(x, 2) compares an
--                             operand that is a number)
--   both either negate        of conditions
--   is_float(x) is_complex(x) is_number(x) same_dtype(x, y) records(x) is_contiguous(x) viewable(x, size)
--   beside(x, zeros(…))       a new tensor like x: fake if x is, of x's subclass
--   written(x, part, value)   x, a new tensor, with value copied into part(x), a view of it
--   x.shape x.ndim x.numel x.dtype x.device; list[i], from the end by -1
--   fold(x, n, function(y, k) … end)  x, replaced n times by the function's result; k counts from 0
--   tensors(x, y, …)          as an argument Tensor[]
--   list(a, b, …) join(l, m) first_n(l, n) drop_n(l, n) replace(l, i, v) insert(l, i, v) ones_n(n) range(a, b)
--   merged(l, from, to): elements from … to as one, their product
--   inferred(sizes, n): a size of -1 so that they multiply to n; others(n, dims): those of n that are not in dims
--   inverse(permutation) wide(shape, shape) kept(shape, dims) last_n(l, n)
--   dtype_named("int64"); as_number(x): an operand that is a number
--   reach(size, stride, offset): the elements of storage up to the last of that geometry; power_of(x, y)
--   length(l) product(l) least(l) largest(l) doublings(n): how many make n or more of 1; wrap(dim, n) working(x) eps_of(x) real_of(x) complex_of(x)
--   default_to(x, y) default_dtype()
--   whole(x): the number is an integer; bit(n, i): bit i of n is set; is_float and is_int take dtypes, too
--   overlaps(size, stride): several elements may lie in one place
--   expands(shape, shape): the first can be broadcast to the second
--   window_out(size, kernel, stride, padding, dilation, ceil_mode): the sizes of a convolution's result, where ceil_mode
--                             is none, or of a pooling; an error if a window does not fit
-- and, as a line of `check` alone, what fails with a message of its own:
--   in_range(value, dtype, "the value"), picks(self, dim, index), covers(src, index)
--
--   floor_divide remainder    of numbers too
--
-- Lua's `if`, `and`, `<`, `==` cannot be seen by proxies: a text that has them is refused.
local source = require "moth.lang.source"
local M = {}

local Node = {}
M.Node = Node

local graph -- the nodes of the expression being evaluated, in order of creation

local function is_node(x) return getmetatable(x) == Node end
M.is_node = is_node

local function fail(message, ...) error(message:format(...), 0) end

local function key_of(x)
  if is_node(x) then return "#" .. x.id end
  return type(x) .. ":" .. tostring(x)
end

-- A node; equal nodes are shared, except with `alone`. kind: tensor, number, list, string, condition, any (an Operand:
-- tensor or number).
local function make(what, kind, args, more, alone)
  local parts = { what, kind, more or "", alone and "alone " .. #graph or "" }
  for _, a in ipairs(args) do parts[#parts + 1] = key_of(a) end
  local key = table.concat(parts, " ")
  local known = graph.by_key[key]
  if known then return known end
  local node = setmetatable({ id = #graph + 1, what = what, kind = kind, args = args, more = more, c = false, field = false,
    on_write = false, count = false, values = false, whole = false, position = false, acc = false, k = false, is_dtype = false }, Node) -- all fields: others are asked of Node.__index
  graph[#graph + 1], graph.by_key[key] = node, node
  return node
end

-- ---- operators ----------------------------------------------------------------------------------

local function kind(x)
  if is_node(x) then return x.kind end
  return type(x)
end

local function is_tensor(x) local k = kind(x) return k == "tensor" or k == "any" end

--- What a value is: tensor, any (a tensor or a number), number, list, condition, none …
M.kind_of = kind

local plain = {
  add = function(a, b) return a + b end, sub = function(a, b) return a - b end, mul = function(a, b) return a * b end,
  div = function(a, b) return a / b end, floor_divide = function(a, b) return math.floor(a / b) end,
  remainder = function(a, b) return a % b end,
}
local function arithmetic(name)
  return function(a, b)
    if is_tensor(a) or is_tensor(b) then return make("op", "tensor", { a, b }, name) end
    if not is_node(a) and not is_node(b) then
      return plain[name](a, b)
    end
    if kind(a) ~= "number" or kind(b) ~= "number" then fail("%s of a %s and a %s", name, kind(a), kind(b)) end
    return make("number_" .. name, "number", { a, b })
  end
end
local add, sub, mul, div = arithmetic "add", arithmetic "sub", arithmetic "mul", arithmetic "div"
Node.__add, Node.__sub, Node.__mul, Node.__div = add, sub, mul, div
function Node.__unm(a) -- Lua passes the operand twice
  if is_tensor(a) then return make("op", "tensor", { a }, "neg") end
  return sub(0, a)
end
function Node.__concat() fail("texts cannot be joined") end

local fields = { shape = "list", ndim = "number", numel = "number", dtype = "number", device = "number", stride = "list",
  offset = "number" }
function Node.__index(node, field)
  local own = rawget(Node, field)
  if own then return own end
  local special = rawget(node, "field")
  local known = special and special(field)
  if known then return known end
  if node.kind == "list" then return make("at", "number", { node, field }) end
  if fields[field] and is_tensor(node) then return make(field, fields[field], { node }) end
  fail("a %s has no field '%s'", node.kind, tostring(field))
end

-- ---- functions ----------------------------------------------------------------------------------

local function function_of(name, result, ...)
  local expected = { ... }
  return function(...)
    local args = { ... }
    for i, e in ipairs(expected) do
      local k = kind(args[i])
      if e == "tensor" and k == "any" then k = "tensor" end
      if e == "tensor or dtype" and (k == "tensor" or k == "any" or k == "number") then k = e end
      if e ~= k and e ~= "value" then fail("%s: argument %d is a %s, expected a %s", name, i, k, e) end
    end
    return make(name, result, args)
  end
end

local constant = {
  eq = function(a, b) return a == b end, ne = function(a, b) return a ~= b end,
  lt = function(a, b) return a < b end, le = function(a, b) return a <= b end,
  gt = function(a, b) return a > b end, ge = function(a, b) return a >= b end,
}
-- An enum argument is compared with one of its words.
local function enum_is(name, a, word)
  if name ~= "eq" and name ~= "ne" then fail("words can be equal or not, no more") end
  for i, value in ipairs(a.values) do
    if value == word then return make("cond_" .. name, "condition", { a, i - 1 }) end
  end
  fail("'%s' is none of the words %s", tostring(word), table.concat(a.values, ", "))
end

local function comparison(name)
  return function(a, b)
    if is_tensor(a) or is_tensor(b) then return make("op", "tensor", { a, b }, name) end
    if kind(a) == "enum" then return enum_is(name, a, b) end
    if kind(b) == "enum" then return enum_is(name, b, a) end
    if kind(a) == "string" or kind(b) == "string" then
      if name ~= "eq" and name ~= "ne" then fail("texts can be equal or not, no more") end
      return make("text_" .. name, "condition", { a, b })
    end
    if not is_node(a) and not is_node(b) then return constant[name](a, b) end
    return make("cond_" .. name, "condition", { a, b })
  end
end

-- x as a condition: itself, or whether a number is not 0.
local function condition(x)
  if kind(x) == "condition" or kind(x) == "boolean" then return x end
  if kind(x) == "number" then return make("cond_ne", "condition", { x, 0 }) end
  fail("a condition is expected, got a %s", kind(x))
end

-- Opcodes 0 to 15 of LuaJIT compare and test.
local function has_jumps(fn)
  local ok, util = pcall(require, "jit.util")
  if not ok then return false end
  local pc = 0
  while true do
    local ins = util.funcbc(fn, pc)
    if not ins then return false end
    if ins % 256 < 16 then return true end
    pc = pc + 1
  end
end
local no_jumps = "an expression has no if, and, or, comparison: use when(condition, a, b), both, eq …"

-- Calls that make a tensor.
local function makes(x) return is_node(x) and (x.what == "op" or x.what == "beside") end

local functions = {
  when = function(c, a, b)
    c = condition(c)
    if type(c) == "boolean" then return c and a or b end
    local k = kind(a) == "any" and "tensor" or kind(a)
    local other = kind(b) == "any" and "tensor" or kind(b)
    if k == "none" then k = other elseif other == "none" then other = k end
    if k ~= other and not (is_tensor(a) or is_tensor(b)) then
      fail("when: the branches are a %s and a %s", k, other)
    end
    return make("when", (is_tensor(a) or is_tensor(b)) and "tensor" or k, { c, a, b })
  end,
  given = function(x) return make("given", "condition", { x }) end,
  both = function(a, b)
    a, b = condition(a), condition(b)
    if a == false or b == false then return false end
    if a == true then return b end
    return b == true and a or make("both", "condition", { a, b })
  end,
  either = function(a, b)
    a, b = condition(a), condition(b)
    if a == true or b == true then return true end
    if a == false then return b end
    return b == false and a or make("either", "condition", { a, b })
  end,
  negate = function(a)
    a = condition(a)
    if type(a) == "boolean" then return not a end
    return make("negate", "condition", { a })
  end,
  is_float = function_of("is_float", "condition", "tensor or dtype"),
  is_int = function_of("is_int", "condition", "tensor or dtype"),
  is_complex = function_of("is_complex", "condition", "tensor or dtype"),
  bit = function_of("bit", "condition", "number", "number"),
  whole = function_of("whole", "condition", "number"),
  expands = function_of("expands", "condition", "list", "list"),
  largest = function_of("largest", "number", "list"),
  default_dtype = function_of("default_dtype", "number"),
  window_out = function_of("window_out", "list", "list", "list", "list", "list", "list", "value"),
  in_range = function_of("in_range", "need", "value", "number", "string"),
  picks = function_of("picks", "need", "tensor", "number", "tensor"),
  covers = function_of("covers", "need", "tensor", "tensor"),
  is_number = function_of("is_number", "condition", "value"),
  same_dtype = function_of("same_dtype", "condition", "tensor", "tensor"),
  records = function_of("records", "condition", "value"),
  equal = function(a, b)
    if not is_node(a) and not is_node(b) then return a == b end
    return make("cond_eq", "condition", { a, b })
  end,
  is_contiguous = function_of("is_contiguous", "condition", "tensor"),
  viewable = function_of("viewable", "condition", "tensor", "list"),
  beside = function(x, made)
    if not is_tensor(x) or not makes(made) then fail("beside: expected a tensor and the call of an op") end
    return make("beside", "tensor", { x, unpack(made.args) }, made.more)
  end,
  written = function(x, part, value)
    if not makes(x) then fail("written: the first argument must be the call of an op that makes a tensor") end
    if has_jumps(part) then fail(no_jumps) end
    local fresh = make(x.what, x.kind, x.args, x.more, true) -- not shared with other uses
    local matched = make("matched", "tensor", { fresh, value })
    local copied = make("op", "tensor", { part(matched), value }, "copy_")
    return make("written", "tensor", { matched, copied })
  end,
  fold = function(start, count, fn)
    if not is_tensor(start) or kind(count) ~= "number" or type(fn) ~= "function" then
      fail("fold: expected a tensor, a number and a function")
    end
    if has_jumps(fn) then fail(no_jumps) end
    local acc, k = make("param", "tensor", {}, nil, true), make("param", "number", {}, nil, true)
    local made = fn(acc, k)
    if not is_tensor(made) then fail("fold: the function gives a %s, expected a tensor", kind(made)) end
    local node = make("fold", "tensor", { start, count, made }, nil, true)
    node.acc, node.k = acc, k
    return node
  end,
  tensors = function(...)
    for i, x in ipairs({ ... }) do if not is_tensor(x) then fail("tensors: argument %d is a %s", i, kind(x)) end end
    return make("tensors", "tensors", { ... })
  end,
  is_on_cpu = function_of("is_on_cpu", "condition", "tensor"),
  inferred = function_of("inferred", "list", "list", "number"),
  merged = function_of("merged", "list", "list", "number", "number"),
  others = function_of("others", "list", "number", "list"),
  is_list = function_of("is_list", "condition", "value"),
  same_list = function_of("same_list", "condition", "list", "list"),
  overlaps = function_of("overlaps", "condition", "list", "list"),
  list = function(...)
    for i = 1, select("#", ...) do
      local k = kind((select(i, ...)))
      if k == "list" or k == "tensor" then fail("list: argument %d is a %s, expected a number", i, k) end
    end
    return make("list", "list", { ... })
  end,
  join = function_of("join", "list", "list", "list"),
  first_n = function_of("first_n", "list", "list", "number"),
  last_n = function_of("last_n", "list", "list", "number"),
  drop_n = function_of("drop_n", "list", "list", "number"),
  replace = function_of("replace", "list", "list", "number", "number"),
  insert = function_of("insert", "list", "list", "number", "number"),
  remove = function_of("remove", "list", "list", "number"),
  ones_n = function_of("ones_n", "list", "number"),
  range = function_of("range", "list", "number", "number"),
  inverse = function_of("inverse", "list", "list"),
  wide = function_of("wide", "list", "list", "list"),
  kept = function_of("kept", "list", "list", "value"),
  length = function(list)
    if kind(list) ~= "list" and kind(list) ~= "tensors" then fail("length: argument 1 is a %s, expected a list", kind(list)) end
    return make("length", "number", { list })
  end,
  product = function_of("product", "number", "list"),
  least = function_of("least", "number", "list"),
  doublings = function_of("doublings", "number", "number"),
  reach = function_of("reach", "number", "list", "list", "number"),
  power_of = function_of("power_of", "number", "number", "number"),
  wrap = function_of("wrap", "number", "number", "number"),
  working = function_of("working", "number", "tensor"),
  real_of = function_of("real_of", "number", "tensor"),
  complex_of = function_of("complex_of", "number", "tensor"),
  eps_of = function_of("eps_of", "number", "tensor"),
  log_of = function(x)
    if type(x) == "number" then return math.log(x) end
    return make("log_of", "number", { x })
  end,
  dtype_named = function(name) return make("dtype_named", "number", {}, name) end,
  as_number = function(x) return make("as_number", "number", { x }) end,
  default_to = function(x, y) return make("default_to", kind(x) == "none" and kind(y) or kind(x), { x, y }) end,
}
for _, name in ipairs({ "eq", "ne", "lt", "le", "gt", "ge" }) do functions[name] = comparison(name) end
functions.floor_divide, functions.remainder = arithmetic "floor_divide", arithmetic "remainder"
local of_numbers_too = { eq = 1, ne = 1, lt = 1, le = 1, gt = 1, ge = 1, floor_divide = 1, remainder = 1 }

-- A call of an op: a node for each result.
local function call_of(name, op)
  return function(...)
    local args, n = { ... }, select("#", ...)
    if not op.helper and n > #op.args then fail("%s takes %d arguments, got %d", name, #op.args, n) end
    for i = 1, n do if args[i] == nil then args[i] = make("none", "none", {}) end end
    if op.returns_self and makes(args[1]) then -- writes to a tensor that is made for it
      local list = { args[1] }
      for i = 2, n do if is_tensor(args[i]) then list[#list + 1] = args[i] end end
      args[1] = make("matched", "tensor", list)
    end
    if op.nresults == 1 then return make("op", "tensor", args, name) end
    local all, results = make("ops", "tensor", args, name), {}
    all.count = op.nresults
    for i = 1, op.nresults do results[i] = make("result", "tensor", { all }, i - 1) end
    return unpack(results)
  end
end

-- ---- evaluating ---------------------------------------------------------------------------------

local function compiled(text, place)
  local chunk, err = source.chunk(text, "=" .. place)
  if not chunk then fail("%s", err) end
  if has_jumps(chunk) then fail(no_jumps) end
  return chunk
end

--- A new, empty graph, in which names(name) gives the nodes of arguments and the like; ops: by name; define: named
-- expressions ({ "a, b", "text" } by name).
function M.graph(names, ops, define)
  local g = { by_key = {}, names = names, ops = ops }
  local env = {}
  local stack = {}
  setmetatable(env, { __index = function(_, name)
    local value = names(name)
    if value ~= nil then return value end
    if name == "inf" then return math.huge end
    if name == "none" then return make("none", "none", {}) end
    if name == "op" then -- ops whose names are arguments, too: op.mean
      return setmetatable({}, { __index = function(_, op_name)
        if not ops[op_name] then fail("there is no op '%s'", op_name) end
        return call_of(op_name, ops[op_name])
      end })
    end
    local defined = define[name]
    if defined then
      return function(...)
        if stack[name] then fail("'%s' is defined by itself", name) end
        stack[name] = true
        local args, k = { ... }, 0
        local own = {}
        for param in defined[1]:gmatch("[%w_]+") do
          k = k + 1
          own[param] = args[k]
          if own[param] == nil then own[param] = make("none", "none", {}) end
        end
        local inner = setmetatable({}, { __index = function(_, key)
          if own[key] ~= nil then return own[key] end
          if names(key) ~= nil and not ops[key] and not functions[key] then
            fail("'%s' in the definition of '%s' is no parameter", key, name)
          end
          return env[key]
        end })
        local chunk = compiled(defined[2], "define " .. name)
        local results = { setfenv(chunk, inner)() }
        stack[name] = nil
        return unpack(results)
      end
    end
    local fn = functions[name]
    if fn and (not ops[name] or of_numbers_too[name]) then return fn end
    if ops[name] then return call_of(name, ops[name]) end
    if fn then return fn end
    fail("'%s' is no argument, op or function", name)
  end })
  g.env = env

  --- The values of the text: nodes or numbers.
  function g.evaluate(text, place)
    local before = graph
    graph = g
    local results = { pcall(setfenv(compiled(text, place), env)) }
    graph = before
    if not results[1] then error(results[2], 0) end
    table.remove(results, 1)
    return results
  end

  function g.node(what, node_kind, args, more)
    local before = graph
    graph = g
    local node = make(what, node_kind, args or {}, more)
    graph = before
    return node
  end

  return g
end

return M
