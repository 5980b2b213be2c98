--- Finds the formula (moth.compile.sizes) of a number that differs between records of a program at several sizes.
--
-- A formula is tried on what varies with one dimension alone; those of several dimensions are sums and products of
-- such. What is found gives the number at every size that was recorded, the far ones among them.
local sizes = require "moth.compile.sizes"

local M = {}

local evaluate = sizes.evaluate

-- To some units in the last place: 1 / sqrt(n) for n ^ -0.5.
local TOLERANCE = 1e-15

local function agrees(f, points, values, tolerance)
  for i, dims in ipairs(points) do
    local v = evaluate(f, dims)
    local near = v == values[i] or math.abs(v - values[i]) <= (tolerance or 0) * math.abs(v)
    if not near then return false end -- nor NaN
  end
  return true
end

local function gcd(a, b)
  a, b = math.abs(a), math.abs(b)
  while b > 0 do a, b = b, a % b end
  return a
end

-- ---- of one dimension --------------------------------------------------------------------------------

-- Where `name` alone differs from the example: { { size, value }, … } by size.
local function column(points, values, names, name)
  local list = { { points[1][name], values[1] } }
  for i = 2, #points do
    local only = points[i][name] ~= points[1][name]
    for _, other in ipairs(names) do
      if other ~= name and points[i][other] ~= points[1][other] then only = false end
    end
    if only then list[#list + 1] = { points[i][name], values[i] } end
  end
  table.sort(list, function(a, b) return a[1] < b[1] end)
  return list
end

local function varies(list)
  for _, at in ipairs(list) do
    if at[2] ~= list[1][2] then return true end
  end
  return false
end

local function checked(f, list, name)
  local dims = {}
  for _, at in ipairs(list) do
    dims[name] = at[1]
    if evaluate(f, dims) ~= at[2] then return nil end
  end
  return f
end

-- (a * d + add) / div; div only where all sizes are multiples of it.
local function line(list, name, every)
  local rise, run = list[2][2] - list[1][2], list[2][1] - list[1][1]
  local k = gcd(rise, run)
  rise, run = rise / k, run / k
  if rise == 0 or every % run ~= 0 then return nil end
  return checked({ terms = { { rise, name } }, add = run * list[1][2] - rise * list[1][1],
    div = run > 1 and run or nil }, list, name)
end

-- The longest part of a column whose sizes follow one another.
local function successive(list, every)
  local best, from = { 1, 1 }, 1
  for i = 2, #list do
    if list[i][1] ~= list[i - 1][1] + every then from = i end
    if i - from > best[2] - best[1] then best = { from, i } end
  end
  return { unpack(list, best[1], best[2]) }
end

-- Whether two formulas are one at the first n sizes.
local function alike_at(f, g, name, every, n)
  local dims = {}
  for i = 1, n do
    dims[name] = i * every
    if evaluate(f, dims) ~= evaluate(g, dims) then return false end
  end
  return true
end

-- k * floor((d + add) / div) + slope * d + offset: rises by the same from one period to the next, with one step in it.
-- The sizes have to leave one period only.
local function steps(list, name, every)
  local run = successive(list, every)
  local found, found_period
  for period = 2, #run - 2 do
    local same = true
    for i = 2, #run - period do
      same = same and run[i + period][2] - run[i][2] == run[period + 1][2] - run[1][2]
    end
    for at = 1, same and period or 0 do
      local slope, alike = nil, true
      for i = 1, period do
        local rise = run[i + 1][2] - run[i][2]
        if i ~= at then
          slope = slope or rise
          alike = alike and rise == slope
        end
      end
      local jump = run[at + 1][2] - run[at][2] - slope
      if alike and jump ~= 0 then
        local inner = { terms = { { 1, name } }, add = -run[at + 1][1] % (period * every), div = period * every }
        local f = { terms = { { jump, inner } }, add = 0 }
        if slope ~= 0 then
          f.terms[2] = slope % every == 0 and { slope / every, name }
            or { 1, { terms = { { slope, name } }, add = 0, div = every } }
        end
        f.add = run[1][2] - evaluate(f, { [name] = run[1][1] })
        if jump == 1 and slope == 0 then
          inner.add = inner.add + f.add * inner.div
          f = inner
        end
        if checked(f, list, name) then
          if found and not alike_at(found, f, name, every, period * found_period) then return nil end
          found, found_period = found or f, found_period or period
        end
      end
    end
  end
  return found
end

-- floor((a * d + add) / div), where the sizes leave one value of `add` only.
local function quotient(list, name)
  for a = 2, 4 do
    for div = 2, 8 do
      local low, high = -math.huge, math.huge
      for _, at in ipairs(list) do
        local least = div * at[2] - a * at[1]
        low, high = math.max(low, least), math.min(high, least + div - 1)
      end
      local f = { terms = { { a, name } }, add = low, div = div }
      if low == high and checked(f, list, name) then return f end
    end
  end
end

-- (a * d * d + b * d + add) / div
local function square(list, name, every)
  local run = successive(list, every)
  if #run < 3 then return nil end
  local first, second = run[2][2] - run[1][2], run[3][2] - 2 * run[2][2] + run[1][2]
  local d, e = run[1][1], every
  local b, add = 2 * e * first - 2 * second * d - e * second,
    2 * e * e * run[1][2] - 2 * e * first * d + second * d * d + e * second * d
  local k = gcd(gcd(second, b), gcd(add, 2 * e * e))
  local f = { terms = { { second / k, name, name } }, add = add / k, div = 2 * e * e > k and 2 * e * e / k or nil }
  if b ~= 0 then f.terms[2] = { b / k, name } end
  return second ~= 0 and checked(f, list, name) or nil
end

local function single(list, name, every)
  return line(list, name, every) or steps(list, name, every) or quotient(list, name) or square(list, name, every)
end

local function mapped(list, fn)
  local out = {}
  for i, at in ipairs(list) do
    local v = fn(at[2], at[1])
    if v ~= math.floor(v) then return nil end
    out[i] = { at[1], v }
  end
  return out
end

-- k * d * f(d), or k * f(d) * f(d): of an image as wide as high.
local function twice(list, name, every)
  local k = 0
  for _, at in ipairs(list) do k = gcd(k, at[2]) end
  local by_size = mapped(list, function(v, d) return v / d end)
  local f = by_size and single(by_size, name, every)
  if f then return { terms = { { 1, name, f } }, add = 0 } end
  for _, of in ipairs(k > 1 and { 1, k } or { 1 }) do
    local roots = mapped(list, function(v) return v > 0 and math.sqrt(v / of) or 0.5 end)
    f = roots and single(roots, name, every)
    if f then return checked({ terms = { { of, f, f } }, add = 0 }, list, name) end
  end
end

local function of_one(list, name, ranges)
  local every = ranges and ranges[name] and ranges[name].multiple_of or 1
  if #list < 2 then return nil end
  return single(list, name, every) or twice(list, name, every)
end

-- ---- of several dimensions ---------------------------------------------------------------------------

-- A formula of each dimension that the values vary with, of { { size, convert(value) }, … }.
local function units(points, values, names, ranges, convert)
  local list = {}
  for _, name in ipairs(names) do
    local of = column(points, values, names, name)
    if varies(of) then
      local f = of_one(convert(of), name, ranges)
      if not f then return nil end
      list[#list + 1] = { name = name, f = f, at = evaluate(f, points[1]) }
    end
  end
  return #list > 0 and list or nil
end

local function sum(points, values, names, ranges)
  local list = units(points, values, names, ranges, function(of) return of end)
  if not list then return nil end
  if #list == 1 then return agrees(list[1].f, points, values) and list[1].f or nil end
  local f = { terms = {}, add = values[1] }
  for _, unit in ipairs(list) do
    f.add = f.add - unit.at
    if unit.f.div then
      f.terms[#f.terms + 1] = { 1, unit.f }
    else
      for _, term in ipairs(unit.f.terms) do f.terms[#f.terms + 1] = term end
      f.add = f.add + unit.f.add
    end
  end
  return agrees(f, points, values) and f or nil
end

-- a * d1 * d2 + add, for each pair.
local function pair(points, values, names)
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

-- a * f1(d1) * f2(d2) * … + add, for small `add`: a token before those of an image, say.
local function product(points, values, names, ranges)
  for _, add in ipairs { 0, 1, -1, 2, -2 } do
    local list = units(points, values, names, ranges, function(of)
      local k, out = 0, {}
      for _, at in ipairs(of) do k = gcd(k, at[2] - add) end
      for i, at in ipairs(of) do out[i] = { at[1], (at[2] - add) / k } end
      return out
    end)
    local term, scale = { 1 }, values[1] - add
    for i, unit in ipairs(list or {}) do
      local plain = #unit.f.terms == 1 and #unit.f.terms[1] == 2 and unit.f.terms[1][1] == 1 and unit.f.add == 0
        and not unit.f.div
      term[i + 1] = plain and unit.f.terms[1][2] or unit.f
      scale = scale / unit.at
    end
    term[1] = scale
    local f = { terms = { term }, add = add }
    if list and scale == math.floor(scale) and agrees(f, points, values) then return f end
  end
end

-- A formula of whole numbers.
local function whole(points, values, names, ranges)
  for _, v in ipairs(values) do
    if v ~= math.floor(v) or math.abs(v) > 2 ^ 52 then return nil end
  end
  return sum(points, values, names, ranges) or pair(points, values, names) or product(points, values, names, ranges)
end

-- Numbers that may make whole ones of these: of what is linear in a dimension the slope does, and the other
-- dimensions' sizes that are in it.
local function factors(points, values, names)
  local list, all, slopes = { 1, 2 }, 1, {}
  for _, name in ipairs(names) do
    local of = column(points, values, names, name)
    if varies(of) then
      all = all * points[1][name]
      slopes[#slopes + 1] = { (of[2][2] - of[1][2]) / (of[2][1] - of[1][1]), points[1][name] }
    end
  end
  for _, slope in ipairs(slopes) do
    for _, k in ipairs { 1 / slope[1], 2 / slope[1], all / slope[2] / slope[1] } do
      if math.abs(k) > 1e-9 and math.abs(k) < 1e9 then list[#list + 1] = k end
    end
  end
  return list
end

--- The formula that gives values[i] at points[i] = { name = size }, the first of which is the example; nil: none of
-- those that there are. All values equal: that number. ranges: of the dimensions, by name.
function M.fit(points, values, names, ranges)
  local same = true
  for i = 2, #values do same = same and values[i] == values[1] end
  if same then return values[1] end
  local f = whole(points, values, names, ranges)
  if f then return f end
  for _, of in ipairs { "none", "reciprocal", "sqrt", "rsqrt" } do
    local inner = {}
    for i, v in ipairs(values) do inner[i] = of == "none" and v or sizes.maps[of][2](v) end
    for _, k in ipairs(factors(points, inner, names)) do
      local near = {}
      for i, v in ipairs(inner) do
        local n = math.floor(v * k + 0.5)
        near[i] = math.abs(v * k - n) < 1e-6 * math.max(1, math.abs(n)) and n or v * k
      end
      f = whole(points, near, names, ranges)
      if f then
        f.of = of ~= "none" and of or nil
        if f.of and agrees(f, points, values, TOLERANCE) then return f end
        f.scale = values[1] / evaluate(f, points[1])
        if agrees(f, points, values, TOLERANCE) then return f end
      end
    end
  end
end

return M
