--- The joins of reductions and scans: they combine the states of two parts. A state is a list of tensors, s0, s1 … in a
-- record's `finish`.
--
--   sum prod max min any all    one value, or several, each by itself
--   argmax argmin               a value and the position that it comes from: the first of equal ones. NaN wins.
--   argmax_pool                 as argmax, but of several NaN the last. A position below 0 is none.
--   welford                     count, mean, sum of squared differences from the mean
--   lse                         the largest, and the sum of exp(x - largest)
local op = require("moth.records.graph").op

-- Several values are joined each by itself.
local function of_one(combine)
  return {
    one = function(...) return { ... } end,
    join = function(a, b)
      local out = {}
      for i = 1, #a do out[i] = combine(a[i], b[i]) end
      return out
    end,
  }
end

local function isnan(x) return op.ne(x, x) end
local function either(a, b) return op.logical_or(a, b) end
local function both(a, b) return op.logical_and(a, b) end
local function negate(a) return op.logical_not(a) end

local function of_position(better)
  return {
    positions = true, -- its `one` gets the position, too
    one = function(x, position) return { x, position } end,
    join = function(a, b)
      local x, y = a[1], b[1]
      local second = either(both(better(x, y), op.ge(b[2], 0)), op.lt(a[2], 0))
      return { op.where(second, y, x), op.where(second, b[2], a[2]) }
    end,
  }
end

local joins = {
  sum = of_one(op.add), prod = of_one(op.mul), max = of_one(op.maximum), min = of_one(op.minimum),
  any = of_one(op.logical_or), all = of_one(op.logical_and),
  argmax = of_position(function(x, y) return either(op.gt(y, x), both(isnan(y), negate(isnan(x)))) end),
  argmin = of_position(function(x, y) return either(op.lt(y, x), both(isnan(y), negate(isnan(x)))) end),
  argmax_pool = of_position(function(x, y) return either(op.gt(y, x), isnan(y)) end),
  welford = {
    one = function(x) return { op.ones_like(x), x, op.mul(x, 0) } end,
    join = function(a, b)
      local n = op.add(a[1], b[1])
      local d = op.sub(b[2], a[2])
      local share = op.div(b[1], n)
      local between = op.mul(op.mul(op.mul(d, d), a[1]), share)
      return { n, op.add(a[2], op.mul(d, share)), op.add(op.add(a[3], b[3]), between) }
    end,
  },
  lse = {
    one = function(x) return { x, op.ones_like(x) } end,
    join = function(a, b)
      local top = op.maximum(a[1], b[1])
      return { top, op.add(op.mul(a[2], op.exp(op.sub(a[1], top))), op.mul(b[2], op.exp(op.sub(b[1], top)))) }
    end,
  },
}
-- Of no elements.
joins.sum.identity, joins.prod.identity, joins.any.identity, joins.all.identity = 0, 1, 0, 1
return joins
