--- Finds the formulas of numbers that differ between records at several sizes.
--
-- What is known is a list of formulas with their values at these sizes: the open dimensions, the expressions that
-- symbols (moth.compile.symbols) tell, and all that is found, call by call. A number is one of them, or follows from
-- them in one step: a multiple and an offset, a sum or a product of two, a quotient, a root, a fraction.
--
-- A formula that is right at a few sizes may be another one elsewhere: math.min(n, 4096) is n at all sizes that are
-- recorded. For each expression that symbols tell of, `turns` looks for sizes at which it leaves the formula that is
-- found without it: they are recorded, too.
local check = require "moth.utils.check"
local each = require "moth.each"
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

-- ---- formulas of numbers -----------------------------------------------------------------------------

-- To some units in the last place: 1 / sqrt(n) for n ^ -0.5.
local TOLERANCE = 1e-15
-- Known formulas of which products are tried; quotients: the largest divisor, and what is divided by it.
local MOST_FACTORS, MOST_DIVISOR, MOST_TIMES = 48, 72, 4

local combined = sizes.combined

local function gcd(a, b)
  a, b = math.abs(a), math.abs(b)
  while b > 0 do a, b = b, a % b end
  return a
end

local function is_whole(values)
  for _, v in ipairs(values) do
    if v ~= math.floor(v) or math.abs(v) > 2 ^ 52 then return false end
  end
  return true
end

local function key_of(values)
  local list = {}
  for i, v in ipairs(values) do list[i] = ("%.17g"):format(v) end
  return table.concat(list, " ")
end

-- k and c, where values are k * m + c.
local function affine(values, m)
  local i = 2
  while m[i] == m[1] do i = i + 1 end
  if not m[i] then return nil end
  local k = (values[i] - values[1]) / (m[i] - m[1])
  local c = values[1] - k * m[1]
  for j, v in ipairs(values) do
    if k * m[j] + c ~= v then return nil end
  end
  if k ~= 0 then return k, c end
end

-- Whether a formula has sums, products and quotients alone.
local function is_plain(f)
  if type(f) ~= "table" then return true end
  local plain = not f.op
  for _, term in ipairs(plain and f.terms or {}) do
    for i = 2, #term do plain = plain and is_plain(term[i]) end
  end
  return plain
end

local Known = {}
Known.__index = Known

--- What is known at points { name = size }, the example's first: the dimensions, and `expressions` of them.
function M.known(points, names, expressions)
  local self = setmetatable({ points = points, list = {}, by_values = {}, answers = {}, missed = {} }, Known)
  for _, name in ipairs(names) do self:add { kind = "size", terms = { { 1, name } }, add = 0 } end
  self.first = #self.list -- that many are dimensions
  for _, e in ipairs(expressions or {}) do self:add(e) end
  return self
end

function Known:add(f)
  local values = {}
  for i, point in ipairs(self.points) do values[i] = sizes.evaluate(f, point) end
  local key = key_of(values)
  local other = self.by_values[key]
  if type(f) ~= "table" or other and (is_plain(other) or not is_plain(f)) then return end
  self.by_values[key] = f
  values.f, values.whole, values.plain = f, is_whole(values), is_plain(f)
  self.list[#self.list + 1] = values
end

--- Takes note of the results' sizes in programs at the points.
function Known:see(programs)
  for k, node in ipairs(programs[1].nodes) do
    for r, meta in ipairs(node.metas) do
      local numel = 1
      for d = #meta.shape, 1, -1 do
        local values = {}
        for i, program in ipairs(programs) do
          local other = program.nodes[k]
          local shape = other and other.op == node.op and other.metas[r] and other.metas[r].shape
          if not shape or #shape ~= #meta.shape then return end
          values[i] = shape[d]
        end
        local f = self:solve(values)
        numel = f and numel and combined("mul", numel, f)
        if type(numel) == "table" then self:add(numel) end
      end
    end
  end
end

-- What all differences of values are multiples of.
local function step_of(values)
  local all = 0
  for _, v in ipairs(values) do
    all = gcd(all, v - values[1])
    if all == 1 then break end
  end
  return all
end

-- floor((a * m + c) / d), times a number and plus one, where the points leave one c only.
local function quotient(values, m, all)
  local far = 1
  for i, n in ipairs(m) do
    if math.abs(n - m[1]) > math.abs(m[far] - m[1]) then far = i end
  end
  local slope = (values[far] - values[1]) / all / (m[far] - m[1])
  local slack = 1 / math.abs(m[far] - m[1])
  for d = 2, MOST_DIVISOR do -- a / d is near the slope between the two points that lie farthest apart
    local least, most = math.floor((slope - slack) * d), math.ceil((slope + slack) * d)
    for a = math.max(1, least), math.min(MOST_TIMES, most) do
      local low, high = -math.huge, math.huge
      for i, v in ipairs(gcd(a, d) == 1 and values or {}) do
        local from = d * (v - values[1]) / all - a * m[i]
        low, high = math.max(low, from), math.min(high, from + d - 1)
        if low > high then break end
      end
      if low == high then
        local inner = combined("mul", m.f, a)
        if inner.div then inner = { terms = { { 1, inner } }, add = 0 } end
        inner = { kind = "size", terms = inner.terms, add = inner.add + low, div = d }
        if all == 1 then
          inner.add = inner.add + d * values[1]
          return inner
        end
        return combined("add", combined("mul", inner, all), values[1])
      end
    end
  end
end

-- (p * m * m + q * m + c) / 2
local function square(values, m)
  local three = { 1 }
  for i, n in ipairs(m) do
    if n ~= m[three[1]] and n ~= m[three[2] or 1] and #three < 3 then three[#three + 1] = i end
  end
  local i, j, k = unpack(three)
  if not k then return nil end
  local first, second = (values[j] - values[i]) / (m[j] - m[i]), (values[k] - values[j]) / (m[k] - m[j])
  local p = 2 * (second - first) / (m[k] - m[i])
  local q = 2 * first - p * (m[i] + m[j])
  local c = 2 * values[i] - (p * m[i] + q) * m[i]
  for n, v in ipairs(values) do
    if (p * m[n] + q) * m[n] + c ~= 2 * v then return nil end
  end
  if p % 1 ~= 0 or q % 1 ~= 0 or p == 0 then return nil end
  local f = combined("add", combined("add", combined("mul", combined("mul", m.f, m.f), p), combined("mul", m.f, q)), c)
  return { kind = "size", terms = f.terms, add = f.add, div = 2 }
end

-- A product of known ones.
function Known:product(values, list, most, depth)
  for i = 1, most do
    local m, rest, whole = list[i], {}, true
    for k, v in ipairs(values) do
      rest[k] = v / m[k]
      whole = whole and rest[k] % 1 == 0 -- nor NaN
      if not whole then break end
    end
    local f = whole and self.by_values[key_of(rest)]
    for j = 1, whole and not f and most or 0 do
      local k, c = affine(rest, list[j])
      if k and k % 1 == 0 then
        f = combined("add", combined("mul", list[j].f, k), c)
        break
      end
    end
    if whole and not f and depth < 3 then f = self:product(rest, list, most, depth + 1) end
    if f then return combined("mul", m.f, f) end
  end
end

-- A formula of whole numbers; plain: of formulas that are plain.
function Known:whole(values, plain)
  local list, exact = {}, nil
  for _, m in ipairs(self.list) do
    if m.whole and (m.plain or not plain) then list[#list + 1] = m end
  end
  for _, m in ipairs(list) do
    local k, c = affine(values, m)
    if k and k % 1 == 0 then return combined("add", combined("mul", m.f, k), c) end
    exact = exact or k and (c / k) % 1 == 0 and (1 / k) % 1 == 0 and { m, 1 / k, c / k }
  end
  if exact then -- all sizes are multiples
    local over = combined("add", exact[1].f, exact[3])
    if over.div or over.op then over = { terms = { { 1, over } }, add = 0 } end
    return { kind = "size", terms = over.terms, add = over.add, div = exact[2] }
  end
  local most = math.min(#list, MOST_FACTORS)
  local product = self:product(values, list, most, 1)
  if product then return product end
  for i = 1, most do
    for _, sign in ipairs { 1, -1 } do
      local rest = {}
      for k, v in ipairs(values) do rest[k] = v - sign * list[i][k] end
      for j = 1, most do
        local k, c = affine(rest, list[j])
        if k and k % 1 == 0 then
          return combined("add", combined("add", combined("mul", list[i].f, sign), combined("mul", list[j].f, k)), c)
        end
      end
    end
  end
  local all = step_of(values)
  for i, m in ipairs(list) do
    local f = m.plain and (square(values, m) or quotient(values, m, all))
    for k = 1, (f or i > self.first) and 0 or math.min(4, #values - 1) do -- a rest: by how much it rises, mostly
      local slope = (values[k + 1] - values[k]) / (m[k + 1] - m[k])
      if slope % 1 == 0 and slope ~= 0 then
        local rest = {}
        for j, v in ipairs(values) do rest[j] = v - slope * m[j] end
        f = f or quotient(rest, m, step_of(rest))
        if f then return combined("add", combined("mul", m.f, slope), f) end
      end
    end
    if f then return f end
  end
end

local function agrees(f, points, values, tolerance)
  for i, point in ipairs(points) do
    local v = sizes.evaluate(f, point)
    local close = v == values[i] or math.abs(v - values[i]) <= tolerance * math.abs(v)
    if not close then return false end -- nor NaN
  end
  return true
end

-- What makes numbers of whole ones: the inverse, and the formula.
local maps = {
  { function(v) return v end, function(f) return f end },
  { function(v) return 1 / v end, function(f) return combined("div", 1, f) end },
  { function(v) return v * v end, function(f) return combined("sqrt", f) end },
  { function(v) return 1 / (v * v) end, function(f) return combined("div", 1, combined("sqrt", f)) end },
}

-- A root, a reciprocal or a fraction of a formula of whole numbers.
function Known:fraction(values)
  for _, map in ipairs(maps) do
    local inner, factors = {}, { 1, 2 }
    for i, v in ipairs(values) do inner[i] = map[1](v) end
    for i = 1, math.min(#self.list, MOST_FACTORS) do
      local m, j = self.list[i], 2
      while m[j] and (m[j] == m[1] or inner[j] == inner[1]) do j = j + 1 end
      local slope = m[j] and m.whole and (inner[j] - inner[1]) / (m[j] - m[1])
      if slope and math.abs(slope) > 1e-9 and math.abs(slope) < 1e9 then
        factors[#factors + 1], factors[#factors + 2] = 1 / slope, 2 / slope
      end
    end
    for _, k in ipairs(factors) do
      local near_ones, good = {}, true
      for i, v in ipairs(inner) do
        local n = math.floor(v * k + 0.5)
        good = good and math.abs(v * k - n) < 1e-6 * math.max(1, math.abs(n)) and math.abs(n) < 2 ^ 52
        near_ones[i] = n
      end
      local f = good and self:find(near_ones)
      if type(f) == "table" then
        f = map[2](f)
        if map ~= maps[1] and agrees(f, self.points, values, TOLERANCE) then return f end
        f = combined("mul", f, values[1] / sizes.evaluate(f, self.points[1]))
        if agrees(f, self.points, values, TOLERANCE) then return f end
      end
    end
  end
end

-- (k * m + c) / (q + d) of known m and q, where more points than there are numbers to find agree on k and c.
function Known:ratio(values)
  local most = #values >= 6 and math.min(#self.list, MOST_FACTORS) or 0
  local function rounded(v)
    local whole = math.floor(v + 0.5)
    return math.abs(v - whole) < 1e-11 * math.max(1, math.abs(v)) and whole or v
  end
  for i = 1, most do
    local q = self.list[i]
    for d = -1, q.whole and 1 or -2 do
      local rest = {}
      for p, v in ipairs(values) do rest[p] = v * (q[p] + d) end
      for j = 1, most do
        local m, low, high = self.list[j], 1, 1
        for p, v in ipairs(m) do
          if v < m[low] then low = p end
          if v > m[high] then high = p end
        end
        local k = rounded((rest[high] - rest[low]) / (m[high] - m[low]))
        local c, agree = rounded(rest[low] - k * m[low]), true
        for p, v in ipairs(rest) do agree = agree and near(v, k * m[p] + c) end -- nor NaN
        if agree then
          return combined("div", combined("add", combined("mul", m.f, k), c), combined("add", q.f, d))
        end
      end
    end
  end
end

-- A formula of whole numbers that is known, or follows; a plain one, if there is.
function Known:find(values)
  local key = key_of(values)
  local f = self.by_values[key]
  if f and is_plain(f) then return f end
  if self.missed[key] == #self.list then return nil end
  f = self:whole(values, true) or f or self:whole(values)
  self.missed[key] = not f and #self.list or nil
  return f
end

--- The formula of values at the points, or nil; a number, where all are equal.
function Known:solve(values)
  local same = true
  for i = 2, #values do same = same and values[i] == values[1] end
  if same then return values[1] end
  local key = key_of(values)
  local f = self.answers[key]
  if f ~= nil then return f or nil end
  if is_whole(values) then f = self:find(values) end
  local fraction = not f and self:fraction(values)
  f = f or fraction and agrees(fraction, self.points, values, 0) and fraction or self.by_values[key]
  for _, known in ipairs(f and {} or self.list) do -- to some units in the last place
    local same_values = true
    for i, v in ipairs(values) do same_values = same_values and near(known[i], v) end
    f = f or same_values and known.f or nil
  end
  f = f or fraction or self:ratio(values)
  self.answers[key] = f or false
  if f then
    f.kind = "size"
    self:add(f)
  end
  return f
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
  local without = M.known(points, names)
  for _, e in ipairs(expressions) do
    local values = {}
    for i, point in ipairs(points) do values[i] = sizes.evaluate(e, point) end
    local f = without:solve(values)
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
    if v.terms or v.op then
      local text = (v.op or v.div) and sizes.text(v)
      if text and not known[text] then list[#list + 1], known[text] = v, true end
      for _, term in ipairs(v.terms or {}) do
        for i = 2, #term do look(term[i]) end
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
