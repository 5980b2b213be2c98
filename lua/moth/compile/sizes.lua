--- Sizes that change from call to call: dimensions with names and ranges, and formulas of them.
--
-- A graph is recorded at several sizes of each dimension. A number that differs between these records is a formula of
-- the dimensions (moth.export.follow finds it):
--
--     { terms = { { 2, "batch" }, { 1, "batch", "time" } }, add = 1, div = 2 }
--
-- is floor((2 * batch + batch * time + 1) / 2); div is left out where it is 1. A factor of a term may be a formula
-- itself. What such a form has not is a call:
--
--     { op = "min", a = formula, b = 4096 }
local check = require "moth.utils.check"
local each = require "moth.each"
local class = require "moth.class"
local signature = require "moth.utils.signature"

local M = {}

-- ---- dimensions ----------------------------------------------------------------------------------

local Dim = class("Dim")

--- A dimension that may have any size in a range: Dim("batch", { min = 1, max = 64 }); multiple_of = n: the multiples
-- of n among them.
Dim.__init = signature.init("Dim(string name, *, int min=0, int max?, int multiple_of=1)", function(self, o)
  if not o.name:find("^[%a_][%w_]*$") then
    check.fail("[Dim] expected a name of letters and digits, got '%s'", o.name)
  end
  if o.min < 0 or o.max and o.max < o.min then
    check.fail("[Dim] %s: the range is %d to %s: expected 0 <= min <= max", o.name, o.min, tostring(o.max))
  end
  if o.multiple_of < 1 then check.fail("[Dim] %s: multiple_of is %d: expected at least 1", o.name, o.multiple_of) end
  self.name, self.min, self.max, self.multiple_of = o.name, o.min, o.max, o.multiple_of
end)
function Dim:__tostring() return ("Dim(%s, %d to %s)"):format(self.name, self.min, self.max and self.max or "any") end
M.Dim = Dim

--- Whether a size is in the range of a dimension.
function M.fits(range, n)
  return n >= range.min and (range.max == nil or n <= range.max) and n % (range.multiple_of or 1) == 0
end

--- Sizes at which code may take another way: the ends of the range, and beside powers of two.
function M.corners(range)
  local list, known = {}, {}
  local every = range.multiple_of or 1
  local function try(n)
    n = n - n % every
    if n >= 2 and not known[n] and M.fits(range, n) then list[#list + 1], known[n] = n, true end
  end
  try(range.min)
  for k = 8, 16, 2 do
    try(2 ^ k - 1)
    try(2 ^ k + every)
  end
  if range.max and range.max <= 2 ^ 20 then try(range.max) end
  return list
end

local NEAR, WIDE, FAR, STEP = 8, 72, 1021, 13

--- The sizes at which a dimension is recorded beside that of the example, and from which of them on they are far ones:
-- near ones tell what is rounded, far ones the slope, and are so far that a branch on a size, and a division by a large
-- number, show. Sizes below 2 are left out, which ops treat in ways of their own. wide: as many near ones as a division
-- by 64 needs, and as many far ones as tell it from one by 63.
function M.probes(range, example, wide)
  local list, known = {}, { [example] = true }
  local function try(n)
    if n >= 2 and not known[n] and M.fits(range, n) then
      list[#list + 1] = n
      known[n] = true
    end
  end
  local every = range.multiple_of or 1
  local base = math.max(example, every == 1 and 2 or every)
  for step = 1, wide and WIDE or NEAR do try(base + step * every) end
  if #list < (wide and WIDE or 4) then
    for step = 1, wide and WIDE or NEAR do try(base - step * every) end
  end
  try(base)
  try(base + (wide and 3 * WIDE or 21) * every)
  local near = #list
  for k = wide and 5 or 0, 0, -1 do
    local far = base + math.ceil((FAR - k * STEP) / every) * every
    try(range.max and math.min(far, range.max - range.max % every) or far)
  end
  return list, near + 1
end

-- ---- formulas ------------------------------------------------------------------------------------

--- What calls in formulas compute.
M.operations = {
  add = function(a, b) return a + b end, sub = function(a, b) return a - b end, mul = function(a, b) return a * b end,
  div = function(a, b) return a / b end, mod = function(a, b) return a % b end, pow = function(a, b) return a ^ b end,
  min = math.min, max = math.max, floor = math.floor, ceil = math.ceil, abs = math.abs, sqrt = math.sqrt,
  log = function(v) return math.log(v) end, exp = math.exp, unknown = function() return 0 / 0 end,
}
local one_operand = { floor = true, ceil = true, abs = true, sqrt = true, log = true, exp = true }
local signs = { add = "+", sub = "-", mul = "*", div = "/", mod = "%", pow = "^" }

local unfolded = setmetatable({}, { __mode = "k" })

--- A formula as one operation, { op, a, b }, on formulas, numbers and names: that of its sum of terms is add, mul or
-- floor. A number or a name is itself.
function M.call(f)
  if type(f) ~= "table" or f.op then return f end
  local sum = unfolded[f]
  if sum then return sum end
  local function put(op, a, b) return a and { op = op, a = a, b = b } or b end
  sum = (f.add or 0) ~= 0 and f.add or nil
  for _, term in ipairs(f.terms) do
    local product = term[1] ~= 1 and term[1] or nil
    for i = 2, #term do product = put("mul", product, term[i]) end
    sum = put("add", sum, product)
  end
  sum = f.div and { op = "floor", a = { op = "div", a = sum or 0, b = f.div } } or M.call(sum or 0)
  unfolded[f] = sum
  return sum
end

--- A formula as a list: numbers, { dim = name }, and operations behind their operands.
function M.postfix(f, out)
  out, f = out or {}, M.call(f)
  if type(f) == "table" then
    M.postfix(f.a, out)
    if f.b then M.postfix(f.b, out) end
    out[#out + 1] = f.op
  else
    out[#out + 1] = type(f) == "string" and { dim = f } or f
  end
  return out
end

--- The value of a formula, where dims are { name = size }.
function M.evaluate(f, dims)
  f = M.call(f)
  if type(f) == "number" then return f end
  if type(f) == "string" then return dims[f] end
  return M.operations[f.op](M.evaluate(f.a, dims), f.b and M.evaluate(f.b, dims))
end

--- A shape of numbers, names of dimensions and formulas, with the sizes that dims has.
function M.shape_at(shape, dims)
  local out = {}
  for k, n in ipairs(shape) do out[k] = type(n) == "table" and M.evaluate(n, dims) or dims[n] or n end
  return out
end

--- A formula as text: "2*batch + 1".
function M.text(f)
  if type(f) == "number" then return ("%.14g"):format(f) end
  if f.op then
    local a, b = M.text(f.a), f.b and M.text(f.b)
    if signs[f.op] then return ("(%s %s %s)"):format(a, signs[f.op], b) end
    return b and ("%s(%s, %s)"):format(f.op, a, b) or ("%s(%s)"):format(f.op, a)
  end
  local parts = {}
  for _, term in ipairs(f.terms) do
    local factors = {}
    for i = 2, #term do
      local factor = term[i]
      if type(factor) == "table" then factor = (factor.div and "%s" or "(%s)"):format(M.text(factor)) end
      factors[i - 1] = factor
    end
    local names = table.concat(factors, "*")
    parts[#parts + 1] = term[1] == 1 and names or ("%.14g*%s"):format(term[1], names)
  end
  if (f.add or 0) ~= 0 or #parts == 0 then parts[#parts + 1] = ("%d"):format(f.add or 0) end
  local text = table.concat(parts, " + "):gsub("%+ %-", "- ")
  return f.div and ("(%s)//%d"):format(text, f.div) or text
end

-- What M.code's text calls functions.
M.code_names = "local floor, ceil, abs, sqrt = math.floor, math.ceil, math.abs, math.sqrt\n"
  .. "local min, max, log, exp = math.min, math.max, math.log, math.exp\n"

--- A formula as an expression of Lua behind M.code_names; name(dimension) gives what stands for one: itself, if left
-- out.
function M.code(f, name)
  f = M.call(f)
  if type(f) == "string" then return name and name(f) or f end
  if type(f) == "number" then
    if f ~= f or math.abs(f) == math.huge then return f ~= f and "(0/0)" or f > 0 and "(1/0)" or "(-1/0)" end
    return ("(%.17g)"):format(f)
  end
  local a, b = M.code(f.a, name), f.b and M.code(f.b, name)
  if f.op == "unknown" then return "(0/0)" end
  if signs[f.op] then return ("(%s %s %s)"):format(a, signs[f.op], b) end
  return b and ("%s(%s, %s)"):format(f.op, a, b) or ("%s(%s)"):format(f.op, a)
end

local MOST_FACTORS, MOST_DEPTH, MOST_CALLS = 8, 64, 20

-- ---- arithmetic of formulas ----------------------------------------------------------------------

local function plain(f)
  if type(f) == "number" then return f % 1 == 0 and { terms = {}, add = f } or nil end
  if f.div then return { terms = { { 1, f } }, add = 0 } end
  return not f.op and f or nil
end

local keeps_whole = { add = true, sub = true, mul = true, mod = true, min = true, max = true, abs = true }

--- Whether a formula, or a number, is a whole number at all sizes, as far as its form tells.
function M.is_whole(f)
  f = M.call(f)
  if type(f) ~= "table" then return type(f) == "string" or f % 1 == 0 end
  return f.op == "floor" or f.op == "ceil"
    or keeps_whole[f.op] and M.is_whole(f.a) and (f.b == nil or M.is_whole(f.b)) or false
end

local whole = M.is_whole

-- terms and a number as a formula, with one term of each kind.
local function gathered(terms, add)
  local out, at = {}, {}
  for _, term in ipairs(terms) do
    local names = {}
    for i = 2, #term do names[i - 1] = type(term[i]) == "table" and M.text(term[i]) or term[i] end
    table.sort(names)
    local key = table.concat(names, " * ")
    if at[key] then
      at[key][1] = at[key][1] + term[1]
    else
      at[key] = { unpack(term) }
      out[#out + 1] = at[key]
    end
  end
  for i = #out, 1, -1 do
    if out[i][1] == 0 then table.remove(out, i) end
  end
  return #out == 0 and add or { kind = "size", terms = out, add = add }
end

local polynomial = {}
function polynomial.add(a, b, sign)
  local terms = {}
  for _, term in ipairs(a.terms) do terms[#terms + 1] = term end
  for _, term in ipairs(b.terms) do terms[#terms + 1] = { (sign or 1) * term[1], unpack(term, 2) } end
  return gathered(terms, (a.add or 0) + (sign or 1) * (b.add or 0))
end
function polynomial.sub(a, b) return polynomial.add(a, b, -1) end
function polynomial.mul(a, b)
  local terms = {}
  local x, y = { { a.add or 0 }, unpack(a.terms) }, { { b.add or 0 }, unpack(b.terms) }
  for i, p in ipairs(x) do
    for k, q in ipairs(y) do
      if i + k > 2 and p[1] * q[1] ~= 0 then
        local term = { p[1] * q[1], unpack(p, 2) }
        for m = 2, #q do term[#term + 1] = q[m] end
        if #term > MOST_FACTORS then return nil end
        terms[#terms + 1] = term
      end
    end
  end
  return #terms <= 64 and gathered(terms, (a.add or 0) * (b.add or 0)) or nil
end
function polynomial.div(a, b)
  if #b.terms > 0 or b.add % 1 ~= 0 or b.add <= 0 or (a.add or 0) % b.add ~= 0 then return nil end
  local terms = {}
  for i, term in ipairs(a.terms) do
    if term[1] % b.add ~= 0 then return nil end
    terms[i] = { term[1] / b.add, unpack(term, 2) }
  end
  return gathered(terms, (a.add or 0) / b.add)
end

local function calls_in(f)
  if type(f) ~= "table" then return 0 end
  if f.op then return 1 + calls_in(f.a) + calls_in(f.b) end
  local n = 0
  for _, term in ipairs(f.terms) do
    for i = 2, #term do n = n + calls_in(term[i]) end
  end
  return n
end

--- Whether a formula of sizes may be negative, as far as its form tells.
function M.may_be_negative(f)
  f = M.call(f)
  if type(f) ~= "table" then return type(f) == "number" and f < 0 end
  local a, b = M.may_be_negative(f.a), M.may_be_negative(f.b)
  if f.op == "max" then return a and b end
  if f.op == "mod" then return b end
  if f.op == "abs" or f.op == "sqrt" or f.op == "exp" then return false end
  return f.op == "sub" or f.op == "log" or a or b
end

--- The formula of an operation on formulas or numbers.
function M.combined(op, a, b)
  if type(a) == "number" and (b == nil or type(b) == "number") then return M.operations[op](a, b) end
  if (op == "mul" or op == "div" or op == "pow") and b == 1 or (op == "add" or op == "sub") and b == 0 then return a end
  local x, y = plain(a), b ~= nil and plain(b)
  local made = polynomial[op] and x and y and polynomial[op](x, y)
  if made then return made end
  if op == "mod" and x and type(b) == "number" and b > 0 and b % 1 == 0 and whole(x) then
    local rest = M.combined("mul", M.combined("floor", { kind = "size", op = "div", a = a, b = b }), b)
    return M.combined("sub", a, rest)
  end
  if op == "pow" and x and (b == 1 or b == 2) then return b == 1 and a or M.combined("mul", a, a) end
  if (op == "floor" or op == "ceil") and a.op == "div" and type(a.b) == "number" and a.b > 0 and a.b % 1 == 0 then
    local over = plain(a.a)
    if over and whole(over) then
      return { kind = "size", terms = over.terms, add = (over.add or 0) + (op == "ceil" and a.b - 1 or 0), div = a.b }
    end
  end
  if (op == "floor" or op == "ceil") and x and whole(x) then return a end
  local f = { kind = "size", op = op, a = a, b = b }
  if calls_in(f) > MOST_CALLS then check.fail("[export] an expression of sizes is too long: %s", M.text(f)) end
  return f
end

-- A formula of whole numbers as { name = factor } and the least and greatest value of the rest; nil: it is not linear.
local function linear(f)
  if type(f) == "number" then return {}, f, f end
  if type(f) == "string" then return { [f] = 1 }, 0, 0 end
  if f.op then return nil end
  local factors, low, high = {}, f.add or 0, f.add or 0
  for _, term in ipairs(f.terms) do
    local k = term[1]
    local of, a, b = linear(term[2])
    if not of or #term > 2 then return nil end
    for name, factor in each(of) do factors[name] = (factors[name] or 0) + k * factor end
    low, high = low + math.min(k * a, k * b), high + math.max(k * a, k * b)
  end
  local div = f.div or 1
  for name, factor in each(factors) do factors[name] = factor / div end
  return factors, (low - (div - 1)) / div, high / div
end

-- The least and the greatest value of a formula, where dims are in their ranges.
local function bounds(f, ranges)
  if type(f) == "number" then return f, f end
  if type(f) == "string" then return ranges[f].min, ranges[f].max or math.huge end
  local function product(a, b, c, d)
    local list = { a * c, a * d, b * c, b * d }
    for i, v in ipairs(list) do
      if v ~= v then list[i] = 0 end -- 0 times infinity
    end
    return math.min(unpack(list)), math.max(unpack(list))
  end
  local call, low, high = M.call(f), -math.huge, math.huge
  if type(call) ~= "table" then return bounds(call, ranges) end
  local op, a, b = call.op, bounds(call.a, ranges)
  local c, d
  if call.b then c, d = bounds(call.b, ranges) end
  if op == "add" then low, high = a + c, b + d
  elseif op == "sub" then low, high = a - d, b - c
  elseif op == "mul" then low, high = product(a, b, c, d)
  elseif op == "div" and c > 0 and c == d then low, high = a / c, b / c
  elseif op == "div" and c > 0 then low, high = product(a, b, 1 / d, 1 / c)
  elseif op == "mod" and c > 0 then low, high = 0, d
  elseif op == "min" or op == "max" then low, high = M.operations[op](a, c), M.operations[op](b, d)
  elseif op == "floor" or op == "ceil" then low, high = M.operations[op](a), M.operations[op](b)
  elseif op == "sqrt" and a >= 0 then low, high = math.sqrt(a), math.sqrt(b)
  elseif op == "abs" and a >= 0 then low, high = a, b
  end
  local factors, least, most
  if f.terms then factors, least, most = linear(f) end -- 2 * h - 2 * (h // 2) is about h
  if not factors then return low, high end
  for name, k in each(factors) do
    local from, to = bounds(name, ranges)
    from, to = product(k, k, from, to)
    least, most = least + from, most + to
  end
  return math.max(low, math.ceil(least - 1e-9)), math.min(high, math.floor(most + 1e-9))
end

local affirmed = { lt = "<", le = "<=", eq = "==" }

--- A guard is { op = "lt", "le" or "eq", a, b = formulas, holds = boolean, at = line }: what a comparison gave.
function M.guard_holds(g, dims)
  local a, b = M.evaluate(g.a, dims), M.evaluate(g.b, dims)
  local is
  if g.op == "lt" then is = a < b elseif g.op == "le" then is = a <= b else is = a == b end
  return is == g.holds
end

local functions = setmetatable({}, { __mode = "k" }) -- of lists of guards

--- The first of the guards, a list that is not changed afterwards, that does not hold for v: sizes by the formulas'
-- names; nil: all do. name: as M.code has it.
function M.broken(guards, v, name)
  local f = functions[guards]
  if not f then
    local lines = { M.code_names .. "return function(v)" }
    for i, g in ipairs(guards) do
      lines[i + 1] = ("  if %s(%s %s %s) then return %d end"):format(g.holds and "not " or "", M.code(g.a, name),
        affirmed[g.op], M.code(g.b, name), i)
    end
    local chunk, why = loadstring(table.concat(lines, "\n") .. "\nend", "=guards")
    f = chunk and chunk() or name and function(dims) -- more, or deeper, than a function of Lua may be
      for i, g in ipairs(guards) do
        if not M.guard_holds(g, dims) then return i end
      end
    end or error(why)
    functions[guards] = f
  end
  return guards[f(v)]
end

--- Whether a guard holds at all sizes of these ranges, as far as can be told from the bounds of both sides.
function M.guard_decided(g, ranges)
  local low, high = bounds(M.combined("sub", g.a, g.b), ranges)
  if low ~= low or high ~= high then return false end
  if g.op == "lt" then
    if g.holds then return high < 0 end
    return low >= 0
  end
  if g.op == "le" then
    if g.holds then return high <= 0 end
    return low > 0
  end
  if g.holds then return low == 0 and high == 0 end
  return low > 0 or high < 0
end

local negated = { lt = ">=", le = ">", eq = "~=" }
local turned = { ["<"] = ">", ["<="] = ">=", [">"] = "<", [">="] = "<=" }

--- A guard as text: "n <= 4096 at model.lua:3", without the line where there is none.
function M.guard_text(g)
  local a, b, sign = M.text(g.a), M.text(g.b), (g.holds and affirmed or negated)[g.op]
  if type(g.a) == "number" then a, b, sign = b, a, turned[sign] or sign end
  return ("%s %s %s%s"):format(a, sign, b, g.at and " at " .. g.at or "")
end

-- ---- files ---------------------------------------------------------------------------------------

local older = { sqrt = true, rsqrt = true, reciprocal = true } -- of formats 1 and 2

--- A table of a file as a formula of these dimensions; nil: it is none.
function M.read(f, dims, depth, count)
  depth, count = depth or 1, count or 0
  if type(f) ~= "table" then return nil end
  if f.op ~= nil then
    local function operand(v) return type(v) == "number" and v or M.read(v, dims, 1, count + 1) end
    local a, b = operand(f.a), operand(f.b)
    local is = M.operations[f.op] and count < MOST_CALLS and a and (f.b ~= nil) == not one_operand[f.op]
      and (f.b == nil or b)
    return is and { kind = "size", op = f.op, a = a, b = b } or nil
  end
  local function number(v, least) return v == nil or type(v) == "number" and v >= (least or v) end
  if depth > MOST_DEPTH or type(f.terms) ~= "table" or not number(f.add) or not number(f.div, 1)
    or not number(f.scale) or f.of ~= nil and not older[f.of] then
    return nil
  end
  local out = { kind = "size", terms = {}, add = f.add, div = f.div }
  for i, term in ipairs(f.terms) do
    if type(term) ~= "table" or type(term[1]) ~= "number" or #term < 2 or #term > MOST_FACTORS + 1 then return nil end
    out.terms[i] = { term[1] }
    for k = 2, #term do
      local factor = dims[term[k]] and term[k] or M.read(term[k], dims, depth + 1, count)
      if not factor then return nil end
      out.terms[i][k] = factor
    end
  end
  if f.of == "sqrt" or f.of == "rsqrt" then out = M.combined("sqrt", out) end
  if f.of == "rsqrt" or f.of == "reciprocal" then out = M.combined("div", 1, out) end
  return f.scale and M.combined("mul", out, f.scale) or out
end

return M
