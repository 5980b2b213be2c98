--- moth.distributions.constraints: sets of values that parameters and samples must lie in.
--
--     constraints.positive:check(moth.tensor{ -1, 2 })             --> false, true
--     constraints.interval(0, 1), constraints.independent(constraints.real, 1)
--
-- check(value) gives a bool for each element, or for each event where a constraint is one of vectors or matrices
-- (event_dim 1 or 2).
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

local Constraint = class("Constraint")
M.Constraint = Constraint
Constraint.event_dim, Constraint.is_discrete = 0, false

--- @tparam string name what it says behind "must be" @tparam function test value -> bool tensor
Constraint.__init = signature.init("constraints.Constraint(string name, function test, *, size event_dim=0, \z
  bool is_discrete=false)", function(self, o)
    self.name, self.test, self.event_dim, self.is_discrete = o.name, o.test, o.event_dim, o.is_discrete
  end)
--- A bool for each element of a tensor, or for each event of a constraint on vectors or matrices.
Constraint.check = signature.method("check(Tensor value)", function(self, value)
  if B.dim(value) < self.event_dim then
    check.fail("[check] expected a tensor of at least %d dimensions, got %s", self.event_dim, B.format(value))
  end
  return (self.test(value))
end)
function Constraint:__tostring() return ("Constraint(%s)"):format(self.name) end

local function define(key, name, test, o) M[key] = Constraint(name, test, o) end
local function both(a, b) return a:logical_and(b) end
local function is_whole(x) return x:eq(x:floor()) end

define("real", "a number, not NaN", function(x) return x:eq(x) end)
define("positive", "positive", function(x) return x:gt(0) end)
define("nonnegative", "at least 0", function(x) return x:ge(0) end)
define("unit_interval", "in [0, 1]", function(x) return both(x:ge(0), x:le(1)) end)
define("boolean", "0 or 1", function(x) return x:eq(0):logical_or(x:eq(1)) end, { is_discrete = true })
define("nonnegative_integer", "an integer of at least 0", function(x) return both(x:ge(0), is_whole(x)) end,
  { is_discrete = true })
define("positive_integer", "an integer of at least 1", function(x) return both(x:ge(1), is_whole(x)) end,
  { is_discrete = true })

-- Whether all elements of the last n dimensions hold.
local function all_of(ok, n)
  for _ = 1, n do ok = ok:all(-1) end
  return ok
end
local function sum_is_one(x) return (x:sum(-1) - 1):abs():le(1e-6 + 4 * moth.finfo(x:dtype()).eps * x:size(-1)) end
define("simplex", "probabilities of sum 1 along the last dimension", function(x)
  return both(x:ge(0):all(-1), sum_is_one(x))
end, { event_dim = 1 })
define("one_hot", "a single 1 and zeros along the last dimension", function(x)
  return both(x:eq(0):logical_or(x:eq(1)):all(-1), x:sum(-1):eq(1))
end, { event_dim = 1, is_discrete = true })

local function is_lower(x) return all_of(x:tril():eq(x), 2) end
local function diagonal(x) return x:diagonal(0, -2, -1) end
-- false for matrices that are not square, too
local function square(test)
  return function(x)
    if x:size(-1) ~= x:size(-2) then
      local size = x:size()
      size[#size], size[#size - 1] = nil, nil
      return moth.zeros(size, { dtype = "bool", device = x:device() })
    end
    return test(x)
  end
end
local function is_symmetric(x) return all_of((x - x.mT):abs():le(1e-6 + 1e-5 * x:abs():amax()), 2) end
local function has_cholesky(x)
  local _, info = moth.linalg.cholesky_ex(x)
  return both(is_symmetric(x), info:eq(0))
end
define("square", "a square matrix", square(function(x) return all_of(x:eq(x), 2) end), { event_dim = 2 })
define("symmetric", "a symmetric matrix", square(is_symmetric), { event_dim = 2 })
define("lower_triangular", "a lower triangular matrix", is_lower, { event_dim = 2 })
define("lower_cholesky", "a lower triangular matrix with a positive diagonal", square(function(x)
  return both(is_lower(x), diagonal(x):gt(0):all(-1))
end), { event_dim = 2 })
define("corr_cholesky", "a lower triangular matrix with a positive diagonal and rows of norm 1", square(function(x)
  local near = ((x * x):sum(-1) - 1):abs():le(10 * moth.finfo(x:dtype()).eps * x:size(-1))
  return both(both(is_lower(x), diagonal(x):gt(0):all(-1)), near:all(-1))
end), { event_dim = 2 })
define("positive_semidefinite", "a symmetric matrix without negative eigenvalues", square(function(x)
  return both(is_symmetric(x), moth.linalg.eigvalsh(x):ge(-1e-6):all(-1))
end), { event_dim = 2 })
define("positive_definite", "a symmetric positive-definite matrix", square(has_cholesky), { event_dim = 2 })

local function shown(v)
  if type(v) == "number" then return ("%g"):format(v) end
  v = B.batch_values(v)
  return B.numel(v) == 1 and ("%g"):format(v:detach():item()) or "its bound"
end
local function bounded(text, what, test, o)
  local key = text:match("^[%w_]+")
  --- A constraint of this form, with bounds of one's own; print it for what it means.
  M[key] = signature(text, function(a, b)
    local c = Constraint(what:format(shown(a), b and shown(b)), function(x) return test(x, a, b) end, o)
    if text:find("number lower_bound", 1, true) then c.lower_bound, c.upper_bound = a, b else c.upper_bound = a end
    return c
  end)
end
bounded("interval(Tensor|number lower_bound, Tensor|number upper_bound)", "in [%s, %s]",
  function(x, a, b) return both(x:ge(a), x:le(b)) end)
bounded("half_open_interval(Tensor|number lower_bound, Tensor|number upper_bound)", "in [%s, %s)",
  function(x, a, b) return both(x:ge(a), x:lt(b)) end)
bounded("integer_interval(Tensor|number lower_bound, Tensor|number upper_bound)", "an integer in [%s, %s]",
  function(x, a, b) return both(both(x:ge(a), x:le(b)), is_whole(x)) end, { is_discrete = true })
bounded("greater_than(Tensor|number lower_bound)", "above %s", function(x, a) return x:gt(a) end)
bounded("greater_than_eq(Tensor|number lower_bound)", "at least %s", function(x, a) return x:ge(a) end)
bounded("less_than(Tensor|number upper_bound)", "below %s", function(x, a) return x:lt(a) end)
bounded("multinomial(Tensor|number upper_bound)", "counts of at least 0 with the sum %s along the last dimension",
  function(x, n) return both(x:ge(0):all(-1), x:sum(-1):eq(n)) end, { event_dim = 1, is_discrete = true })

signature.type("Constraint", function(v) return class.is_a(v, Constraint) end, "a constraint")
--- A constraint of events of n more dimensions: all their elements hold.
M.independent = signature("independent(Constraint base, size reinterpreted_batch_ndims)", function(base, n)
  local c = Constraint(base.name, function(x) return (all_of(base.test(x), n)) end,
    { event_dim = base.event_dim + n, is_discrete = base.is_discrete })
  c.base, c.reinterpreted_batch_ndims = base, n
  return c
end)
M.real_vector = M.independent(M.real, 1)

return M
