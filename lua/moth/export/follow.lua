--- Finds the formulas of numbers that differ between records, where the program's own expressions of sizes are known.
--
-- A formula that is fitted to a few sizes may be another one elsewhere: math.min(n, 4096) is n at all sizes that are
-- recorded. For each expression that symbols (moth.compile.symbols) tell of, `turns` looks for sizes at which it leaves
-- the formula that fits: they are recorded, too, and a number that no formula fits there is the expression.
local check = require "moth.utils.check"
local each = require "moth.each"
local fit = require("moth.export.fit").fit
local sizes = require "moth.compile.sizes"

local M = {}

local function near(a, b) return a == b or math.abs(a - b) <= 1e-12 * math.abs(a) end

-- Sizes to compare formulas at: all small ones, then ever rarer ones, beside powers of two.
local function samples(range, example)
  local list, known = {}, {}
  local every = range.multiple_of or 1
  local function try(n)
    n = n - n % every
    if not known[n] and sizes.fits(range, n) then list[#list + 1], known[n] = n, true end
  end
  for n = 0, 3000 do try(n) end
  local n = 3000
  while n < 2 ^ 33 do
    n = math.floor(n * 1.09) + 1
    try(n)
    try(n + every)
  end
  for k = 4, 33 do
    for off = -1, 1 do try(2 ^ k + off * every) end
    try(10 ^ (k / 4) - 10 ^ (k / 4) % 1)
  end
  if range.max then try(range.max) end
  table.sort(list, function(a, b) return math.abs(a - example) < math.abs(b - example) end)
  return list
end

--- The example's sizes, but n for `name`.
function M.at(example, name, n)
  local point = {}
  for other, size in each(example) do point[other] = size end
  point[name] = n
  return point
end

local at = M.at

--- Whether all guards hold at a point.
function M.holds(guards, point)
  for _, g in ipairs(guards or {}) do
    if not sizes.guard_holds(g, point) then return false, g end
  end
  return true
end

--- The sizes near the example at which guards hold: "n = 2 to 4096".
function M.range_text(guards, ranges, example)
  local parts, names = {}, {}
  for name in each(ranges) do names[#names + 1] = name end
  table.sort(names)
  for _, name in ipairs(names) do
    local ends = {}
    for _, way in ipairs { -1, 1 } do
      local last, out = example[name], nil
      for _, n in ipairs(samples(ranges[name], example[name])) do
        if (n - example[name]) * way > 0 and not out then
          if M.holds(guards, at(example, name, n)) then last = n else out = n end
        end
      end
      while out and math.abs(out - last) > 1 do
        local middle = math.floor((out + last) / 2)
        if M.holds(guards, at(example, name, middle)) then last = middle else out = middle end
      end
      ends[#ends + 1] = not out and way == 1 and not ranges[name].max and "any" or ("%d"):format(last)
    end
    parts[#parts + 1] = ("%s = %s to %s"):format(name, ends[1], ends[2])
  end
  return table.concat(parts, ", ")
end

--- What a program's guards are, what follows of them, and what to write instead.
function M.guards_text(program, consequence)
  local list = {}
  for i, g in ipairs(program.guards) do list[i] = sizes.guard_text(g) end
  return ("the program was recorded where %s, and %s\nHINT: give the dimensions ranges by moth.Dim(name, { min = …, "
    .. "max = … }): it holds at least for %s"):format(table.concat(list, " and "), consequence,
    M.range_text(program.guards, program.dims, program.example))
end

--- An error, for files that cannot check guards.
function M.refuse_guards(where, program)
  if program.guards then
    check.fail("[%s] %s", where, M.guards_text(program, "what reads the file would not check it"))
  end
end

-- Expressions as variables: the formula of one of them that gives the values.
local function of_expression(points, values, e)
  local made, first = {}, nil
  for i, point in ipairs(points) do
    local v = sizes.evaluate(e, point)
    if v ~= math.floor(v) or math.abs(v) > 2 ^ 52 then return nil end
    made[i] = { e = v }
    first = first or v
  end
  local f = fit(made, values, { "e" }, {})
  if type(f) ~= "table" or f.of or f.scale then return nil end
  local function put(g)
    local out = { terms = {}, add = g.add, div = g.div }
    for i, term in ipairs(g.terms) do
      out.terms[i] = { term[1] }
      for k = 2, #term do out.terms[i][k] = term[k] == "e" and e or put(term[k]) end
    end
    return out
  end
  return put(f)
end

--- The formula of values at points, or nil; expressions: those of the program, in their order.
function M.solve(points, values, names, ranges, expressions)
  local f = fit(points, values, names, ranges)
  local exact = f ~= nil
  for i, point in ipairs(exact and points or {}) do exact = exact and sizes.evaluate(f, point) == values[i] end
  if exact then return f end
  for _, e in ipairs(expressions or {}) do -- to the bit, where the formula that fits is not: n / 5, not 0.2 * n
    local same = true
    for i, point in ipairs(points) do
      local v = sizes.evaluate(e, point)
      same = same and (v == values[i] or f == nil and near(v, values[i]))
    end
    if same then return e end
  end
  if f ~= nil then return f end
  for _, e in ipairs(expressions or {}) do
    f = of_expression(points, values, e)
    if f then return f end
    local quotients, whole = {}, true -- times another formula: the bytes of min(n, 64) rows of n
    for i, point in ipairs(points) do
      local v = sizes.evaluate(e, point)
      whole = whole and v ~= 0 and values[i] % v == 0
      quotients[i] = values[i] / v
    end
    f = whole and fit(points, quotients, names, ranges)
    if f then return sizes.combined("mul", f, e) end
    for _, sign in ipairs { 1, -1 } do
      local rest = {}
      for i, point in ipairs(points) do rest[i] = values[i] - sign * sizes.evaluate(e, point) end
      f = fit(points, rest, names, ranges)
      if f then return sizes.combined("add", f, sizes.combined("mul", e, sign)) end
    end
  end
end

--- Sizes to record, too: where expressions leave the formulas that fit them at these points. guards hold there.
function M.turns(expressions, points, names, ranges, guards)
  local example, found, known = points[1], {}, {}
  local function add(name, n)
    local point = at(example, name, n)
    if not known[name .. n] and M.holds(guards, point) then
      found[#found + 1], known[name .. n] = point, true
    end
  end
  local lists = {}
  for _, name in ipairs(names) do lists[name] = samples(ranges[name], example[name]) end
  for _, e in ipairs(expressions) do
    local values = {}
    for i, point in ipairs(points) do values[i] = sizes.evaluate(e, point) end
    local f = fit(points, values, names, ranges)
    for _, name in ipairs(f ~= nil and names or {}) do
      local count, last = 0, 0
      for _, n in ipairs(lists[name]) do -- three that follow one another, then ever larger ones
        local point = at(example, name, n)
        local a, b = sizes.evaluate(e, point), sizes.evaluate(f, point)
        if a == a and not near(a, b) and (count < 3 or n > 1.7 * last) and M.holds(guards, point) then
          add(name, n)
          count, last = count + 1, n
          if count == 7 then break end
        end
      end
    end
  end
  return found
end

--- The expressions in a program's arguments and results: those that are more than sums and products.
function M.expressions_of(program)
  local list, known = {}, {}
  local function look(v)
    if type(v) ~= "table" then return end
    if v.kind == "size" then
      local text = (v.op or v.div or v.of) and sizes.text(v)
      if text and not known[text] then list[#list + 1], known[text] = v, true end
      for _, term in ipairs(v.terms or {}) do
        for i = 2, #term do
          local factor = term[i]
          if type(factor) == "table" then look(setmetatable({ kind = "size" }, { __index = factor })) end
        end
      end
    elseif v.kind == "list" then
      for i = 1, v.n do look(v[i]) end
    elseif v.kind == "program" then
      for _, e in ipairs(M.expressions_of(v.program)) do look(e) end
    end
  end
  for _, node in ipairs(program.nodes) do
    for i = 1, node.args.n do look(node.args[i]) end
  end
  for _, leaf in ipairs(program.results and program.results.leaves or {}) do look(leaf.constant) end
  return list
end

return M
