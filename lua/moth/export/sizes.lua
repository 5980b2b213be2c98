--- Sizes that change from call to call: dimensions with names and ranges, and formulas of them.
--
-- A graph is recorded at several sizes of each dimension. A number that differs between these records is a formula of
-- the dimensions:
--
--     { terms = { { 2, "batch" }, { 1, "batch", "time" } }, add = 1, div = 2, of = "rsqrt" }
--
-- is 1 / sqrt(floor((2 * batch + batch * time + 1) / 2)); div is left out where it is 1, of where it is none.
local check = require "moth.utils.check"
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

--- The sizes at which a dimension is recorded beside that of the example: near ones tell what is rounded, a far one the
-- slope. Sizes below 2 are left out, which ops treat in ways of their own.
function M.probes(range, example)
  local list = {}
  local function try(n)
    if n >= 2 and n ~= example and M.fits(range, n) then list[#list + 1] = n end
  end
  local every = range.multiple_of or 1
  local base = math.max(example, every == 1 and 2 or every)
  for step = 1, 8 do try(base + step * every) end
  try(base + 21 * every)
  if #list < 4 then
    for step = 1, 8 do try(base - step * every) end
  end
  if base ~= example then try(base) end
  return list
end

-- ---- formulas ------------------------------------------------------------------------------------

local maps = {
  reciprocal = { function(v) return 1 / v end, function(v) return 1 / v end },
  sqrt = { math.sqrt, function(v) return v * v end },
  rsqrt = { function(v) return 1 / math.sqrt(v) end, function(v) return 1 / (v * v) end },
}

--- The value of a formula, where dims are { name = size }.
function M.evaluate(f, dims)
  local sum = f.add or 0
  for _, term in ipairs(f.terms) do
    local product = term[1]
    for i = 2, #term do product = product * dims[term[i]] end
    sum = sum + product
  end
  if f.div then sum = math.floor(sum / f.div) end
  if f.of then return maps[f.of][1](sum) end
  return sum
end

--- A formula as text: "2*batch + 1".
function M.text(f)
  local parts = {}
  for _, term in ipairs(f.terms) do
    local names = table.concat(term, "*", 2)
    parts[#parts + 1] = term[1] == 1 and names or ("%d*%s"):format(term[1], names)
  end
  if (f.add or 0) ~= 0 or #parts == 0 then parts[#parts + 1] = ("%d"):format(f.add or 0) end
  local text = table.concat(parts, " + "):gsub("%+ %-", "- ")
  if f.div then text = ("(%s)//%d"):format(text, f.div) end
  if f.of then text = ("%s(%s)"):format(f.of, text) end
  return text
end

--- Whether a table, read from a file, is a formula of these dimensions.
function M.is_formula(f, dims)
  if type(f) ~= "table" or type(f.terms) ~= "table" or f.of ~= nil and not maps[f.of] then return false end
  if f.add ~= nil and type(f.add) ~= "number" or f.div ~= nil and (type(f.div) ~= "number" or f.div < 1) then
    return false
  end
  for _, term in ipairs(f.terms) do
    if type(term) ~= "table" or type(term[1]) ~= "number" or #term < 2 or #term > 3 then return false end
    for i = 2, #term do
      if not dims[term[i]] then return false end
    end
  end
  return true
end

local function agrees(f, points, values)
  for i, dims in ipairs(points) do
    if M.evaluate(f, dims) ~= values[i] then return false end
  end
  return true
end

-- The indices of the points at which only `name` differs from the first, the example.
local function along(points, names, name)
  local list = {}
  for i = 2, #points do
    local only = points[i][name] ~= points[1][name]
    for _, other in ipairs(names) do
      if other ~= name and points[i][other] ~= points[1][other] then only = false end
    end
    if only then list[#list + 1] = i end
  end
  return list
end

-- a1 * d1 + a2 * d2 + … + add
local function linear(points, values, names)
  local terms, add = {}, values[1]
  for _, name in ipairs(names) do
    local i = along(points, names, name)[1]
    if i then
      local slope = (values[i] - values[1]) / (points[i][name] - points[1][name])
      if slope ~= math.floor(slope) then return nil end
      if slope ~= 0 then
        terms[#terms + 1] = { slope, name }
        add = add - slope * points[1][name]
      end
    end
  end
  local f = { terms = terms, add = add }
  return #terms > 0 and agrees(f, points, values) and f or nil
end

-- a * d1 * d2 + add, for each pair.
local function product(points, values, names)
  for i = 1, #names do
    for j = i, #names do
      local a, b = names[i], names[j]
      for k = 2, #points do
        local step = points[k][a] * points[k][b] - points[1][a] * points[1][b]
        local slope = step ~= 0 and (values[k] - values[1]) / step
        if slope and slope == math.floor(slope) and slope ~= 0 then
          local f = { terms = { { slope, a, b } }, add = values[1] - slope * points[1][a] * points[1][b] }
          if agrees(f, points, values) then return f end
        end
      end
    end
  end
end

-- floor((a * d + add) / div): what a stride makes of a size. The probes must leave one value of `add` only.
local function quotient(points, values, names)
  for _, name in ipairs(names) do
    for a = 1, 4 do
      for div = 2, 8 do
        local low, high = -math.huge, math.huge
        for i, dims in ipairs(points) do
          local least = div * values[i] - a * dims[name]
          low, high = math.max(low, least), math.min(high, least + div - 1)
        end
        local f = { terms = { { a, name } }, add = low, div = div }
        if low == high and agrees(f, points, values) then return f end
      end
    end
  end
end

-- (a * d + add) / div, without a rest at all points: of a dimension whose sizes are multiples of some number.
local function fraction(points, values, names)
  for _, name in ipairs(names) do
    local i = along(points, names, name)[1]
    if i then
      local a, div = values[i] - values[1], points[i][name] - points[1][name]
      local x, y = math.abs(a), math.abs(div)
      while y > 0 do x, y = y, x % y end
      if div < 0 then x = -x end
      a, div = a / x, div / x
      local f = { terms = { { a, name } }, add = div * values[1] - a * points[1][name], div = div }
      if a ~= 0 and agrees(f, points, values) then return f end
    end
  end
end

local function whole(points, values, names, ranges)
  for _, v in ipairs(values) do
    if v ~= math.floor(v) then return nil end
  end
  local f = linear(points, values, names) or product(points, values, names) or quotient(points, values, names)
  if f then return f end
  for _, name in ipairs(names) do
    if ranges and ranges[name] and (ranges[name].multiple_of or 1) > 1 then return fraction(points, values, names) end
  end
end

--- The formula that gives values[i] at points[i] = { name = size }, the first of which is the example; nil: none of
-- those that there are. All values equal: that number.
function M.fit(points, values, names, ranges)
  local same = true
  for i = 2, #values do same = same and values[i] == values[1] end
  if same then return values[1] end
  local f = whole(points, values, names, ranges)
  if f then return f end
  for _, of in ipairs { "reciprocal", "sqrt", "rsqrt" } do
    local inner = {}
    for i, v in ipairs(values) do
      local n = maps[of][2](v)
      local near = math.floor(n + 0.5)
      inner[i] = math.abs(n - near) < 1e-6 * math.max(1, math.abs(n)) and near or n
    end
    f = whole(points, inner, names, ranges)
    if f then
      f.of = of
      if agrees(f, points, values) then return f end
    end
  end
end

return M
