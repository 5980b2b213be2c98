--- biject_to(constraint), transform_to(constraint): a transform of numbers without constraints into the constraint's
-- set, so that an optimizer can move them freely. biject_to is one-to-one; transform_to has simpler formulas.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local constraints = require "moth.distributions.constraints"
local transforms = require "moth.distributions.transforms"

local M = {}

local function affine(loc, scale) return transforms.AffineTransform(loc, scale) end
local function chain(a, b) return transforms.ComposeTransform { a, b } end
local function positive() return transforms.ExpTransform() end
local function between(low, high)
  if low == 0 and high == 1 then return transforms.SigmoidTransform() end
  return chain(transforms.SigmoidTransform(), affine(low, high - low))
end
local by_constraint = {
  [constraints.real] = function() return transforms.ComposeTransform {} end,
  [constraints.positive] = positive, [constraints.nonnegative] = positive,
  [constraints.unit_interval] = transforms.SigmoidTransform,
  [constraints.lower_cholesky] = transforms.LowerCholeskyTransform,
  [constraints.corr_cholesky] = transforms.CorrCholeskyTransform,
  [constraints.positive_definite] = transforms.PositiveDefiniteTransform,
  [constraints.positive_semidefinite] = transforms.PositiveDefiniteTransform,
}
local simplex = { biject_to = transforms.StickBreakingTransform, transform_to = transforms.SoftmaxTransform }

local function find(name, c)
  if c == constraints.simplex then return simplex[name]() end
  local make = by_constraint[c]
  if make then return make() end
  if c.base then
    local inner = find(name, c.base)
    return c.reinterpreted_batch_ndims > 0 and transforms.IndependentTransform(inner, c.reinterpreted_batch_ndims)
      or inner
  end
  local low, high = c.lower_bound, c.upper_bound
  if not c.is_discrete and c.event_dim == 0 and (low or high) then
    if low and high then return between(low, high) end
    return chain(positive(), affine(low or high, low and 1 or -1))
  end
  check.fail("[%s] there is no transform to values that must be %s", name, c.name)
end
--- A one-to-one transform of all reals to the values that a constraint admits.
M.biject_to = signature("biject_to(Constraint constraint)", function(c) return (find("biject_to", c)) end)
--- A transform of all reals to the values that a constraint admits; not always one-to-one (softmax for a simplex).
M.transform_to = signature("transform_to(Constraint constraint)", function(c) return (find("transform_to", c)) end)

return M
