--- Reads a kernel: the bytecode of its function is run over values that are known (constants, constexprs, tables of
-- options) and nodes of the tile IR (moth.codegen.tile). What depends on a node branches:
--
-- A branch on a scalar becomes `if`: both ways are read up to the instruction where they meet again (the nearest that
-- every way to the end passes), and a register that differs there becomes a variable. Where both ways only compute, and
-- little, it becomes `where`. That is also how `and`, `or` and `not` work on blocks; any other branch on a block is an
-- error. A loop's registers become variables whose types are found by reading its body until they stay as they are.
-- Values are those of value.lua; flow.lua says where ways meet, branch.lua reads branches and loops.
local tile = require "moth.codegen.tile"
local bytecode = require "moth.kernel.bytecode"
local dtypes = require "moth.codegen.dtypes"
local each = require "moth.each"
local flow = require "moth.kernel.flow"
local value = require "moth.kernel.value"

local M = {}

local Context = {}
Context.__index = Context
M.Context = Context
for name, method in each(require "moth.kernel.branch") do Context[name] = method end

local const, of_node = value.const, value.of_node
M.const, M.of_node, M.describe = const, of_node, value.describe

--- file:line of what is being read.
function Context:place()
  local frame = self.frame
  local i = frame and frame.p.code[frame.pc]
  local name = frame and frame.source or self.source
  return ("%s:%s"):format(name, i and i.line or frame and frame.first or "?")
end

--- Raises an error of the kernel: a text that begins with file and line.
function Context:fail(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  error(setmetatable({ text = ("%s: [kernel] %s: %s"):format(self:place(), self.name, message) }, M.Error), 0)
end
M.Error = { __tostring = function(e) return e.text end }

--- A value as a node.
function Context:node(v, what)
  if v.k == "node" then return v.node end
  if v.k == "const" and (type(v.v) == "number" or type(v.v) == "boolean") then return self.b:const(v.v) end
  self:fail("%s: expected a number or a block, got %s", what or "an operand", M.describe(v))
end

-- ---- instructions -------------------------------------------------------------------------------

--- The value of a register.
function Context:get(frame, reg)
  local v = frame.r[reg]
  if not v then return const(nil) end
  if v.k == "lost" then
    self:fail("%s here %s; give it one type on every way", v.name and "'" .. v.name .. "'" or "a variable", v.why)
  end
  return v
end

local lua_arith = {
  add = function(x, y) return x + y end, sub = function(x, y) return x - y end,
  mul = function(x, y) return x * y end, div = function(x, y) return x / y end,
  remainder = function(x, y) return x % y end, pow = function(x, y) return x ^ y end,
}
local lua_compare = {
  lt = function(x, y) return x < y end, le = function(x, y) return x <= y end,
  eq = function(x, y) return x == y end,
}

--- An operator of two values.
function Context:arith(name, x, y)
  if x.k == "const" and y.k == "const" and type(x.v) == "number" and type(y.v) == "number" then
    return const(lua_arith[name](x.v, y.v))
  end
  if x.k == "ptr" or y.k == "ptr" then
    local p, by = x, y
    if y.k == "ptr" and name == "add" then p, by = y, x end
    if p.k == "ptr" and by.k ~= "ptr" and (name == "add" or name == "sub") then
      local n = self:node(by, "an offset")
      if n.d.is_float or n.d.class == "bool" then
        self:fail("an offset of a pointer is an integer, got %s%s", tile.describe(n),
          n.d.is_float and "; integers divide by tl.floordiv or tl.cdiv, x:to(tl.int64) converts" or "")
      end
      return { k = "ptr", root = p.root, d = p.d, name = p.name, off = self.b:binary(name, p.off, n) }
    end
    self:fail("a pointer takes + and - of integers; got %s and %s", M.describe(x), M.describe(y))
  end
  local a, c = self:node(x), self:node(y)
  if name == "pow" and c.op == "const" and c.value == 2 then return of_node(self.b:unary("square", a)) end
  return of_node(self.b:binary(name, a, c))
end

--- A comparison: a boolean or a node.
function Context:compare(name, x, y)
  if x.k == "const" and y.k == "const" then
    if name == "eq" then return x.v == y.v end
    if type(x.v) == type(y.v) and (type(x.v) == "number" or type(x.v) == "string") then
      return lua_compare[name](x.v, y.v)
    end
  elseif name == "eq" then
    if x.k == "dtype" or y.k == "dtype" then return x.k == y.k and x.d == y.d end
    local function never(v) return v.k == "const" and (v.v == nil or type(v.v) == "string") end
    if never(x) or never(y) then return false end
  end
  if x.k == "ptr" or y.k == "ptr" then self:fail("pointers are not compared; compare the offsets") end
  return self.b:binary(name, self:node(x), self:node(y))
end

--- Whether a value counts as true: a boolean or a node.
function Context:truth(v)
  if v.k == "const" then return v.v ~= nil and v.v ~= false end
  if v.k == "node" and v.node.d.class == "bool" then return v.node end
  if v.k == "node" and #v.node.shape > 0 then
    self:fail("%s as a condition: every number counts as true in Lua; compare it (x ~= 0)", M.describe(v))
  end
  return true
end

--- A known value of Lua as a value of the kernel, or nil.
function Context:known(v, name)
  if type(v) == "number" or type(v) == "string" or type(v) == "boolean" or v == nil then return const(v) end
  if type(v) == "function" then return { k = "fn", f = v, name = name } end
  local d = self.lang.dtype(v)
  if d then return { k = "dtype", d = d } end
  if self.lang.modules[v] then return { k = "module", t = v, name = self.lang.modules[v] } end
end

function Context:upvalue(frame, index)
  local name, v = debug.getupvalue(frame.f, index + 1)
  name = frame.p.uvnames[index] or name
  local known = self:known(v, name)
  if not known then
    self:fail("'%s' is %s: of outer variables a kernel reads numbers, booleans, dtypes, functions and tl; pass it \z
      as an argument", name, type(v) == "table" and "a table" or self.lang.describe(v))
  end
  if type(v) ~= "function" and not self.lang.modules[v] then
    self.captures[#self.captures + 1] = { f = frame.f, index = index + 1, value = v }
  end
  return known
end

function Context:global(frame, name)
  local v = self.lang.globals[name]
  if v == nil then v = debug.getfenv(frame.f)[name] end
  local known = v ~= nil and self:known(v, name)
  if not known then
    self:fail(v == nil and "there is no variable '%s'" or "'%s' is no value that a kernel reads", name)
  end
  if type(v) ~= "function" and not self.lang.modules[v] then
    self.captures[#self.captures + 1] = { env = debug.getfenv(frame.f), name = name, value = v }
  end
  return known
end

function Context:field(v, key)
  if v.k == "module" then
    if type(key) ~= "string" then self:fail("%s[%s]: no such field", v.name, tostring(key)) end
    local found = self.lang.field(v.t, key)
    if found == nil then
      self:fail("%s has no '%s'%s", v.name, key, self.lang.suggest(v.t, key))
    end
    local known = self:known(found, v.name .. "." .. key)
    if not known then self:fail("%s.%s is no value that a kernel reads", v.name, key) end
    return known
  elseif v.k == "table" then
    return v.t[key] or const(nil)
  elseif v.k == "node" or v.k == "ptr" then
    if key == "dtype" then return { k = "dtype", d = v.k == "ptr" and v.d or v.node.d } end
    if key == "shape" then
      local t = {}
      for i, size in ipairs(v.k == "ptr" and v.off.shape or v.node.shape) do t[i] = const(size) end
      return { k = "table", t = t }
    end
    if type(key) == "string" and self.lang.builders[key] then return { k = "method", name = key } end
    self:fail("%s has no method '%s'%s", M.describe(v), tostring(key),
      type(key) == "string" and self.lang.suggest_method(key)
      or "; tl.expand(x, dim) adds a dimension, elements are reached by masks and offsets")
  end
  self:fail("%s has no field '%s'", M.describe(v), tostring(key))
end

--- Calls a function with values; a list of values.
function Context:call(frame, f, args, n)
  if f.k == "method" then return self.lang.build(self, f.name, args, n) end
  if f.k ~= "fn" then self:fail("%s is called", M.describe(f)) end
  local name = self.lang.names[f.f]
  if name then return self.lang.build(self, name, args, n) end
  return self:inline(frame, f, args, n)
end

function Context:inline(frame, f, args, n)
  local p, why = bytecode.of(f.f)
  if not p then
    self:fail("'%s' is no function that a kernel calls (%s); there are those of tl, of math, and plain Lua functions",
      f.name or "?", why)
  end
  local depth, outer = 0, frame
  while outer do
    if outer.f == f.f or depth > 32 then self:fail("'%s' calls itself; a kernel has no recursion", f.name or "?") end
    depth, outer = depth + 1, outer.outer
  end
  local inner = M.frame(f.f, p)
  inner.outer, inner.inlined = frame, true
  for i = 0, p.nparams - 1 do inner.r[i] = i < n and args[i + 1] or const(nil) end
  self.frame = inner
  local alive = self:run(inner, 1, #p.code + 1)
  self.frame = frame
  if not alive then self:fail("'%s' never returns", f.name or "?") end
  local nret, results = inner.r.nret or const(0), {}
  if nret.k ~= "const" then
    self:fail("'%s' returns more values on one way than on another; return as many on each", f.name or "?")
  end
  for i = 1, nret.v do results[i] = inner.r["ret" .. i] or const(nil) end
  return results
end

--- What is being run of a function.
function M.frame(f, p)
  flow.find_loops(p)
  local source = debug.getinfo(f, "S")
  return { f = f, p = p, r = {}, pc = 1, source = source.short_src, first = source.linedefined }
end

local binary = {}
for op, name in each { ADD = "add", SUB = "sub", MUL = "mul", DIV = "div", MOD = "remainder" } do
  binary[op .. "VV"], binary[op .. "VN"], binary[op .. "NV"] = { name, "VV" }, { name, "VN" }, { name, "NV" }
end

local primitives = { [0] = const(nil), const(false), const(true) }

-- The tests: a boolean or node that says whether to jump, and what register a jump brings.
local function test(c, frame, i)
  local function reg(n) return c:get(frame, n) end
  local op = i.op
  local order = ({ ISLT = { "lt" }, ISGE = { "lt", true }, ISLE = { "le" }, ISGT = { "le", true } })[op]
  local answer, negated, change
  if order then
    answer, negated = c:compare(order[1], reg(i.a), reg(i.d)), order[2] or false
  elseif op:find("^ISEQ") or op:find("^ISNE") then
    local kind = op:sub(5)
    local other = kind == "V" and reg(i.d) or kind == "S" and const(frame.p.kgc[i.d])
      or kind == "N" and const(frame.p.kn[i.d]) or primitives[i.d]
    answer, negated = c:compare("eq", reg(i.a), other), op:find("^ISNE") ~= nil
  else
    local v = reg(i.d)
    answer, negated = c:truth(v), op == "ISFC" or op == "ISF"
    if op == "ISTC" or op == "ISFC" then change = { i.a, v } end
  end
  if type(answer) == "boolean" then
    answer = answer ~= negated
  elseif negated then
    answer = c.b:unary("logical_not", answer)
  end
  return answer, change
end

-- Instructions that only compute: f(context, frame, instruction).
local simple = {
  MOV = function(_, frame, i) frame.r[i.a] = frame.r[i.d] or const(nil) end,
  KSTR = function(_, frame, i) frame.r[i.a] = const(frame.p.kgc[i.d]) end,
  KSHORT = function(_, frame, i) frame.r[i.a] = const(i.d < 32768 and i.d or i.d - 65536) end,
  KNUM = function(_, frame, i) frame.r[i.a] = const(frame.p.kn[i.d]) end,
  KPRI = function(_, frame, i) frame.r[i.a] = primitives[i.d] end,
  KNIL = function(_, frame, i)
    for reg = i.a, i.d do frame.r[reg] = const(nil) end
  end,
  UGET = function(c, frame, i) frame.r[i.a] = c:upvalue(frame, i.d) end,
  GGET = function(c, frame, i) frame.r[i.a] = c:global(frame, frame.p.kgc[i.d]) end,
  TGETS = function(c, frame, i) frame.r[i.a] = c:field(c:get(frame, i.b), frame.p.kgc[i.c]) end,
  TGETB = function(c, frame, i) frame.r[i.a] = c:field(c:get(frame, i.b), i.c) end,
  TGETV = function(c, frame, i)
    local key = c:get(frame, i.c)
    if key.k ~= "const" then c:fail("an index is a constant; elements are reached by masks and offsets") end
    frame.r[i.a] = c:field(c:get(frame, i.b), key.v)
  end,
  NOT = function(c, frame, i)
    local v = c:truth(c:get(frame, i.d))
    frame.r[i.a] = type(v) == "boolean" and const(not v) or of_node(c.b:unary("logical_not", v))
  end,
  UNM = function(c, frame, i)
    local v = c:get(frame, i.d)
    frame.r[i.a] = v.k == "const" and type(v.v) == "number" and const(-v.v) or of_node(c.b:unary("neg", c:node(v)))
  end,
  POW = function(c, frame, i) frame.r[i.a] = c:arith("pow", c:get(frame, i.b), c:get(frame, i.c)) end,
  TNEW = function(_, frame, i) frame.r[i.a] = { k = "table", t = {} } end,
  TDUP = function(_, frame, i)
    local t = {}
    for key, v in each(frame.p.kgc[i.d].table) do t[key] = const(v) end
    frame.r[i.a] = { k = "table", t = t }
  end,
  LOOP = function() end,
}
for op, how in each(binary) do
  simple[op] = function(c, frame, i)
    local x = c:get(frame, i.b)
    local y = how[2] == "VV" and c:get(frame, i.c) or const(frame.p.kn[i.c])
    if how[2] == "NV" then x, y = y, x end
    frame.r[i.a] = c:arith(how[1], x, y)
  end
end
local function set(key_of)
  return function(c, frame, i)
    local t = c:get(frame, i.b)
    if t.k ~= "table" then c:fail("%s is written to; a kernel writes by tl.store", M.describe(t)) end
    local key = key_of(c, frame, i)
    if t.at ~= c.b.list then
      c:fail("a table is changed under a condition or in a loop; use variables")
    end
    t.t[key] = c:get(frame, i.a)
  end
end
simple.TSETS = set(function(_, frame, i) return frame.p.kgc[i.c] end)
simple.TSETB = set(function(_, _, i) return i.c end)
simple.TSETV = set(function(c, frame, i)
  local key = c:get(frame, i.c)
  if key.k ~= "const" or key.v == nil then c:fail("an index is a constant") end
  return key.v
end)
function simple.TSETM(c, frame, i)
  local t = c:get(frame, i.a - 1)
  local first = frame.p.kn[i.d] -- 2^52 + the first index, in the low half
  first = first % 2 ^ 32
  for k, v in ipairs(frame.multiple) do t.t[first + k - 1] = v end
end
for _, op in ipairs { "TNEW", "TDUP" } do
  local make = simple[op]
  simple[op] = function(c, frame, i)
    make(c, frame, i)
    frame.r[i.a].at = c.b.list
  end
end

M.refused = {
  LEN = "the length operator; shapes are constants of the kernel, x.shape[1]",
  CAT = "joining strings", KCDATA = "a number of the FFI (1LL); write a plain number",
  USETV = "writing to an outer variable; a kernel writes by tl.store",
  FNEW = "a function inside the kernel; define it outside, as a local of its own",
  GSET = "writing to a global variable; a kernel writes by tl.store",
  VARG = "`...`; a kernel has named parameters", ISNEXT = "pairs; there is `for i = a, b do` and tl.static_range",
}
for _, op in ipairs { "USETS", "USETN", "USETP" } do M.refused[op] = M.refused.USETV end
M.refused.ITERN = M.refused.ISNEXT

-- The arguments of a call, a list and its length.
local function arguments(c, frame, i)
  local first = i.a + frame.p.call_gap
  local n = (i.op == "CALLM" or i.op == "CALLMT") and (i.op == "CALLM" and i.c or i.d)
    or (i.op == "CALL" and i.c or i.d) - 1
  local args = {}
  for k = 1, n do args[k] = c:get(frame, first + k - 1) end
  if i.op == "CALLM" or i.op == "CALLMT" then
    for k, v in ipairs(frame.multiple) do args[n + k] = v end
    n = n + #frame.multiple
  end
  return args, n
end

-- Ends the function with results.
function Context:finish(frame, results)
  if frame.inlined then
    if frame.loop then self:fail("`return` inside of a loop; set a variable and `break`") end
    for k, v in ipairs(results) do frame.r["ret" .. k] = v end
    frame.r.nret = const(#results)
    return #frame.p.code + 1
  end
  if #results > 0 then self:fail("a kernel returns nothing; it writes by tl.store") end
  if self.b.list.outer then self.b:put { op = "return" } end
  self.returns = self.returns + 1
end

-- `for` of numbers.
function Context:numeric_for(frame, i)
  local pc, p = frame.pc, frame.p
  local from, to, step = self:get(frame, i.a), self:get(frame, i.a + 1), self:get(frame, i.a + 2)
  local by = step.k == "const" and step.v
  if type(by) ~= "number" or by == 0 or by ~= math.floor(by) then
    self:fail("the step of a loop is a constant integer other than 0, got %s", M.describe(step))
  end
  local lo, hi = self:node(from, "the start of a loop"), self:node(to, "the end of a loop")
  if hi.op == "const" and hi.value == math.huge then hi = self.b:const(2 ^ 53) end
  for _, n in ipairs { lo, hi } do
    if #n.shape > 0 or n.d.is_float or n.d.class == "bool" then
      self:fail("a loop runs over integers, got %s", tile.describe(n))
    end
  end
  local index
  local loop = { first = pc + 1, last = i.to - 1, stop = i.to - 1, exit = flow.resolve(p, i.to) }
  self:loop(frame, loop, function()
    index = self.b:put { op = "index", d = dtypes.int64, shape = {}, weak = true }
    frame.r[i.a + 3] = of_node(index)
    return self:run(frame, pc + 1, loop.stop)
  end, function(list)
    frame.pc = pc
    self.b:put { op = "for", self.b:cast(lo, dtypes.int64), self.b:cast(hi, dtypes.int64), step = by, index = index,
      body = list }
  end)
  return i.to
end

-- while and repeat: a loop that is left by jumps, or by a return only: then nothing follows, and the result is nil.
function Context:jump_loop(frame, header)
  local p = frame.p
  local loop = { first = header, last = p.loops[header], header = header, stop = header,
    exit = flow.loop_exit(p, header) }
  local returns = self.returns
  self:loop(frame, loop, function() return self:run(frame, header, header, true) end, function(list)
    if not loop.broken and self.returns == returns then self:fail("this loop never ends") end
    self.b:put { op = "loop", body = list }
  end)
  return loop.broken and loop.exit or nil
end

-- `for i in tl.static_range(…)`: its body again and again.
function Context:unrolled(frame, jump)
  local p, at = frame.p, jump.to
  local i = p.code[at]
  local range = self:get(frame, i.a - 3)
  if range.k ~= "range" then
    self:fail("`for … in` takes tl.static_range(start, stop[, step]) here; a loop over numbers is \z
      `for i = a, b, step do`")
  end
  local body, iter = frame.pc + 1, p.code[at + 1]
  for k = range.from, range.to - (range.step > 0 and 1 or -1), range.step do
    for r = i.a, i.a + i.b - 2 do frame.r[r] = const(nil) end
    frame.r[i.a] = const(k)
    local outer = frame.loop
    frame.loop = { first = body, last = at - 1, exit = -1, unrolled = true, outer = outer }
    local alive = self:run(frame, iter.to, at)
    frame.loop = outer
    if not alive then return nil end
  end
  return flow.resolve(p, at + 2)
end

--- Reads from pc up to `stop`; false where no way leads there. `inside`: pc is the stop itself, not yet reached.
function Context:run(frame, pc, stop, inside)
  local p = frame.p
  self.frame = frame
  while true do
    local header = p.loops[pc]
    if pc == stop and not inside then return true end
    local loop = frame.loop
    if flow.leaves(frame, pc) then
      if loop.unrolled or flow.resolve(p, pc) ~= loop.exit then
        self:fail("`break` and `goto` leave the innermost loop only%s", loop.unrolled and "; an unrolled one not" or "")
      end
      self:carry(frame, loop, true)
      self.b:put { op = "break" }
      loop.broken = true
      return false
    end
    local i = p.code[pc]
    frame.pc = pc
    if not i then self:fail("the bytecode ends without a return") end
    self.steps = self.steps + 1
    if self.steps > 200000 then self:fail("the kernel is too long; unroll less") end
    if header and not (loop and loop.header == pc) then
      pc = self:jump_loop(frame, pc)
      if not pc then return false end
    elseif simple[i.op] then
      simple[i.op](self, frame, i)
      pc = pc + 1
    elseif bytecode.tests[i.op] then
      local answer, change = test(self, frame, i)
      local target = flow.resolve(p, p.code[pc + 1].to)
      if answer == true then
        if change then frame.r[change[1]] = change[2] end
        pc = target
      elseif answer == false then
        pc = pc + 2
      else
        pc = self:branch(frame, answer, target, stop, change)
      end
    elseif i.op == "JMP" then
      local to = p.code[i.to]
      if to and to.op == "ITERC" then
        pc = self:unrolled(frame, i)
        if not pc then return false end
      else
        pc = flow.resolve(p, i.to)
        -- backwards: the header that ends the body
        if pc == stop then return true end
      end
    elseif i.op == "FORI" then
      pc = self:numeric_for(frame, i)
    elseif i.op == "UCLO" then
      pc = i.to
    elseif i.op == "CALL" or i.op == "CALLM" then
      local args, n = arguments(self, frame, i)
      local results = self:call(frame, self:get(frame, i.a), args, n)
      self.frame = frame
      if i.b == 0 then
        frame.multiple = results
      else
        for k = 1, i.b - 1 do frame.r[i.a + k - 1] = results[k] or const(nil) end
      end
      pc = pc + 1
    elseif flow.returns[i.op] then
      local results = {}
      if i.op == "CALLT" or i.op == "CALLMT" then
        local args, n = arguments(self, frame, i)
        results = self:call(frame, self:get(frame, i.a), args, n)
        self.frame = frame
      else
        local n = i.op == "RETM" and i.d or i.d - 1
        for k = 1, n do results[k] = self:get(frame, i.a + k - 1) end
        if i.op == "RETM" then
          for _, v in ipairs(frame.multiple) do results[#results + 1] = v end
        end
      end
      pc = self:finish(frame, results)
      if not pc then return false end
    else
      self:fail("not allowed in a kernel: %s", M.refused[i.op] or i.op)
    end
    inside = false
  end
end

--- Reads a function into a program. o: f, proto, name, lang, values = { [1] = value of the first parameter, … }.
-- Errors are M.Error. Returns body, builder, captures.
function M.read(o)
  local c = setmetatable({ name = o.name, lang = o.lang, captures = {}, steps = 0, returns = 0 }, Context)
  local frame = M.frame(o.f, o.proto)
  c.source, c.frame = frame.source, frame
  c.b = tile.builder(function(...) c:fail(...) end, function() return c:place() end)
  if o.prepare then o.prepare(c) end
  for i = 1, o.proto.nparams do frame.r[i - 1] = o.values(c, i) end
  c:run(frame, 1, #o.proto.code + 1)
  return c.b.list, c.captures
end

return M
