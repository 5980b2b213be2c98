--- moth.distributions.transforms: functions with inverses and the logarithms of their derivatives' determinants.
--
--     local t = transforms.ExpTransform()
--     local y = t(x)                              -- exp(x)
--     t.inv(y), t:log_abs_det_jacobian(x, y)      -- x; log |dy/dx|, without the dimensions of one event
--
-- A class has forward(x), backward(y), log_det(x, y), its domain and codomain (constraints, whose event_dim says how
-- many dimensions the function mixes), and sign: 1 where it grows, -1 where it falls, of functions of one number.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local constraints = require "moth.distributions.constraints"
local util = require "moth.distributions.util"

local M = {}
local real, real_vector = constraints.real, constraints.real_vector

local Transform = class("Transform")
M.Transform = Transform
Transform.bijective, Transform.domain, Transform.codomain = true, real, real
Transform.__init = signature.init("transforms.Transform()", function() end)

function Transform.__index(self, key)
  local cls = getmetatable(self)
  local value = cls[key]
  if value ~= nil or type(key) ~= "string" then return value end
  if key == "inv" then
    value = M.Inverse(self)
    rawset(self, "inv", value)
    return value
  end
  local get = cls["get_" .. key]
  return get and get(self)
end
local function tensor(name, x)
  if not B.is_tensor(x) then check.fail("[%s] expected a tensor, got %s", name, class.name(x)) end
  return x
end
function Transform:__call(x) return (self:forward(tensor(class.name(self), x))) end
function Transform:__tostring() return class.name(self) .. "()" end
-- Transforms of one class without parameters are equal; others compare what is in `same`.
function Transform:__eq(other)
  if getmetatable(self) ~= getmetatable(other) then return false end
  for _, key in ipairs(self.same or {}) do
    local a, b = self[key], other[key]
    if B.is_tensor(a) and B.is_tensor(b) then
      if not moth.equal(a, b) then return false end
    elseif a ~= b then
      return false
    end
  end
  return true
end
signature.type("Transform", function(v) return class.is_a(v, Transform) end, "a transform")

--- log |dy/dx|, summed over the dimensions that the function mixes.
Transform.log_abs_det_jacobian = signature.method("log_abs_det_jacobian(Tensor x, Tensor y)", function(self, x, y)
  return (self:log_det(x, y))
end)
--- The shape of f(x), and of the inverse.
function Transform.forward_shape(_, shape) return shape end
function Transform.inverse_shape(_, shape) return shape end
function Transform:forward() check.fail("[%s] it has no function", class.name(self)) end
function Transform:backward() check.fail("[%s] it has no inverse", class.name(self)) end
function Transform:log_det() check.fail("[%s] it has no log_abs_det_jacobian", class.name(self)) end

--- The inverse of a transform; `t.inv` makes it.
local Inverse = class("Inverse", Transform)
M.Inverse = Inverse
Inverse.same = { "of" }
Inverse.__init = signature.init("transforms.Inverse(Transform transform)", function(self, o)
  self.of, self.inv = o.transform, o.transform
end)
function Inverse:get_domain() return self.of.codomain end
function Inverse:get_codomain() return self.of.domain end
function Inverse:get_bijective() return self.of.bijective end
function Inverse:get_sign() return self.of.sign end
function Inverse:forward(y) return self.of:backward(y) end
function Inverse:backward(x) return self.of:forward(x) end
function Inverse:log_det(y, x) return -self.of:log_det(x, y) end
function Inverse:forward_shape(shape) return self.of:inverse_shape(shape) end
function Inverse:inverse_shape(shape) return self.of:forward_shape(shape) end
function Inverse.__index(self, key) -- the transform is asked, not the base class
  local get = Inverse["get_" .. tostring(key)]
  if get then return get(self) end
  return Inverse[key]
end

-- A class without arguments.
local function plain(name, fields)
  local cls = class(name, Transform)
  M[name] = cls
  for key, value in require("moth.each")(fields) do cls[key] = value end
  cls.__init = signature.init(("transforms.%s()"):format(name), function() end)
  return cls
end
plain("ExpTransform", { codomain = constraints.positive, sign = 1,
  forward = function(_, x) return x:exp() end,
  backward = function(_, y) return y:log() end,
  log_det = function(_, x) return x end,
})
plain("SigmoidTransform", { codomain = constraints.unit_interval, sign = 1,
  forward = function(_, x)
    local f = util.finfo(x)
    return x:sigmoid():clamp(f.tiny, 1 - f.eps)
  end,
  backward = function(_, y)
    local f = util.finfo(y)
    y = y:clamp(f.tiny, 1 - f.eps)
    return y:log() - (-y):log1p()
  end,
  log_det = function(_, x) return -moth.F.softplus(-x) - moth.F.softplus(x) end,
})
plain("TanhTransform", { codomain = constraints.interval(-1, 1), sign = 1,
  forward = function(_, x) return x:tanh() end,
  backward = function(_, y) return y:atanh() end,
  log_det = function(_, x) return (math.log(2) - x - moth.F.softplus(x * -2)) * 2 end,
})
plain("SoftplusTransform", { codomain = constraints.positive, sign = 1,
  forward = function(_, x) return moth.F.softplus(x) end,
  backward = function(_, y) return (-((-y):expm1())):log() + y end,
  log_det = function(_, x) return -moth.F.softplus(-x) end,
})
plain("AbsTransform", { codomain = constraints.positive, bijective = false,
  forward = function(_, x) return x:abs() end,
  backward = function(_, y) return y end,
})
plain("SoftmaxTransform", { domain = real_vector, codomain = constraints.simplex, bijective = false,
  forward = function(_, x) return x:softmax(-1) end,
  backward = function(_, y) return y:log() end,
})
-- K numbers to K + 1 probabilities: each takes a part of what those before it left.
plain("StickBreakingTransform", { domain = real_vector, codomain = constraints.simplex,
  forward = function(_, x)
    local k = B.size(x, -1)
    local left = moth.arange(k, 0, -1, util.options(x))
    local z = (x - left:log()):sigmoid()
    local rest = (1 - z):cumprod(-1)
    return moth.F.pad(z, { 0, 1 }, "constant", 1) * moth.F.pad(rest, { 1, 0 }, "constant", 1)
  end,
  backward = function(_, y)
    local k = B.size(y, -1) - 1
    local head = y:narrow(-1, 1, k)
    local rest = (1 - head:cumsum(-1)):clamp(util.finfo(y).tiny)
    return head:log() - rest:log() + moth.arange(k, 0, -1, util.options(y)):log()
  end,
  log_det = function(_, x, y)
    local k = B.size(x, -1)
    local z = x - moth.arange(k, 0, -1, util.options(x)):log()
    return (moth.F.logsigmoid(z) - z + y:narrow(-1, 1, k):log()):sum(-1)
  end,
  forward_shape = function(_, shape)
    return util.shape(util.part(shape, 1, #shape - 1), { shape[#shape] + 1 })
  end,
  inverse_shape = function(_, shape)
    return util.shape(util.part(shape, 1, #shape - 1), { shape[#shape] - 1 })
  end,
})
local matrix = constraints.independent(real, 2)
local function diagonal(x) return x:diagonal(0, -2, -1) end
plain("LowerCholeskyTransform", { domain = matrix, codomain = constraints.lower_cholesky,
  forward = function(_, x) return x:tril(-1) + diagonal(x):exp():diag_embed() end,
  backward = function(_, y) return y:tril(-1) + diagonal(y):log():diag_embed() end,
  log_det = function(_, x) return diagonal(x):sum(-1) end,
})
plain("PositiveDefiniteTransform", { domain = matrix, codomain = constraints.positive_definite, bijective = false,
  forward = function(_, x)
    local lower = x:tril(-1) + diagonal(x):exp():diag_embed()
    return lower:matmul(lower.mT)
  end,
  backward = function(_, y)
    local lower = moth.linalg.cholesky(y)
    return lower:tril(-1) + diagonal(lower):log():diag_embed()
  end,
})

-- loc + scale x; event_dim: how many dimensions count as one event.
local Affine = class("AffineTransform", Transform)
M.AffineTransform = Affine
Affine.same = { "loc", "scale", "event_dim" }
Affine.__init = signature.init("transforms.AffineTransform(Tensor|number loc, Tensor|number scale, size event_dim=0)",
  function(self, o)
    self.loc, self.scale, self.event_dim = o.loc, o.scale, o.event_dim
    self.domain = constraints.independent(real, o.event_dim)
    self.codomain = self.domain
  end)
function Affine:get_sign()
  if type(self.scale) == "number" then return self.scale > 0 and 1 or -1 end
  return self.scale:sign()
end
function Affine:forward(x) return x * self.scale + self.loc end
function Affine:backward(y) return (y - self.loc) / self.scale end
function Affine:log_det(x)
  local y = type(self.scale) == "number" and x:full_like(math.log(math.abs(self.scale)))
    or self.scale:abs():log():expand(moth.broadcast_shapes(B.size(x), B.size(self.scale)))
  return util.sum_last(y, self.event_dim)
end

local Power = class("PowerTransform", Transform)
M.PowerTransform = Power
Power.domain, Power.codomain, Power.same = constraints.positive, constraints.positive, { "exponent" }
Power.__init = signature.init("transforms.PowerTransform(Tensor|number exponent)", function(self, o)
  self.exponent = o.exponent
end)
function Power:get_sign()
  if type(self.exponent) == "number" then return self.exponent > 0 and 1 or -1 end
  return self.exponent:sign()
end
function Power:forward(x) return x:pow(self.exponent) end
function Power:backward(y) return y:pow(1 / self.exponent) end
function Power:log_det(x, y) return (y * self.exponent / x):abs():log() end

local Reshape = class("ReshapeTransform", Transform)
M.ReshapeTransform = Reshape
Reshape.__init = signature.init("transforms.ReshapeTransform(size[] in_shape, size[] out_shape)", function(self, o)
  self.in_shape, self.out_shape = util.shape(o.in_shape), util.shape(o.out_shape)
  if util.numel(o.in_shape) ~= util.numel(o.out_shape) then
    check.fail("[transforms.ReshapeTransform] %s and %s have different numbers of elements", tostring(self.in_shape),
      tostring(self.out_shape))
  end
  self.domain, self.codomain = constraints.independent(real, #o.in_shape), constraints.independent(real, #o.out_shape)
end)
local function reshaped(size, from, to) return util.shape(util.part(size, 1, #size - #from), to) end
function Reshape:forward(x) return x:reshape(reshaped(B.size(x), self.in_shape, self.out_shape)) end
function Reshape:backward(y) return y:reshape(reshaped(B.size(y), self.out_shape, self.in_shape)) end
function Reshape:log_det(x)
  local size = B.size(x)
  return moth.zeros(util.part(size, 1, #size - #self.in_shape), util.options(x))
end
function Reshape:forward_shape(shape) return reshaped(shape, self.in_shape, self.out_shape) end
function Reshape:inverse_shape(shape) return reshaped(shape, self.out_shape, self.in_shape) end

-- Several, the first one first.
local Compose = class("ComposeTransform", Transform)
M.ComposeTransform = Compose
Compose.__init = signature.init("transforms.ComposeTransform(list parts)", function(self, o)
  self.parts = o.parts
  local inside, out, codomain, domain, bijective = 0, 0, real, real, true
  for i, t in ipairs(o.parts) do
    if not class.is_a(t, Transform) then
      check.fail("[transforms.ComposeTransform] part %d: expected a transform, got %s", i, class.name(t))
    end
    bijective = bijective and t.bijective
  end
  for i = #o.parts, 1, -1 do -- event dimensions of what goes in
    local t = o.parts[i]
    inside = math.max(t.domain.event_dim, inside + t.domain.event_dim - t.codomain.event_dim)
  end
  for _, t in ipairs(o.parts) do
    out = math.max(t.codomain.event_dim, out + t.codomain.event_dim - t.domain.event_dim)
  end
  if o.parts[1] then domain, codomain = o.parts[1].domain, o.parts[#o.parts].codomain end
  self.domain = constraints.independent(domain, inside - domain.event_dim)
  self.codomain = constraints.independent(codomain, math.max(out, codomain.event_dim) - codomain.event_dim)
  self.bijective = bijective
end)
function Compose:get_sign()
  local sign = 1
  for _, t in ipairs(self.parts) do
    if t.sign == nil then return nil end
    sign = t.sign * sign
  end
  return sign
end
function Compose:forward(x)
  for _, t in ipairs(self.parts) do x = t:forward(x) end
  return x
end
function Compose:backward(y)
  for i = #self.parts, 1, -1 do y = self.parts[i]:backward(y) end
  return y
end
function Compose:log_det(x, y)
  if #self.parts == 0 then return x:zeros_like() end
  local sum, ndim = nil, self.domain.event_dim
  for i, t in ipairs(self.parts) do
    local value = i < #self.parts and t:forward(x) or y
    local own = util.sum_last(t:log_det(x, value), ndim - t.domain.event_dim)
    sum = sum and sum + own or own
    ndim, x = ndim + t.codomain.event_dim - t.domain.event_dim, value
  end
  return sum
end
function Compose:forward_shape(shape)
  for _, t in ipairs(self.parts) do shape = t:forward_shape(shape) end
  return shape
end
function Compose:inverse_shape(shape)
  for i = #self.parts, 1, -1 do shape = self.parts[i]:inverse_shape(shape) end
  return shape
end
function Compose:__eq(other)
  if getmetatable(self) ~= getmetatable(other) or #self.parts ~= #other.parts then return false end
  for i, t in ipairs(self.parts) do if t ~= other.parts[i] then return false end end
  return true
end

-- The same function, of events of n more dimensions.
local Independent = class("IndependentTransform", Transform)
M.IndependentTransform = Independent
Independent.same = { "base_transform", "n" }
Independent.__init = signature.init("transforms.IndependentTransform(Transform base_transform, \z
  size reinterpreted_batch_ndims)", function(self, o)
  local t, n = o.base_transform, o.reinterpreted_batch_ndims
  self.base_transform, self.n, self.bijective = t, n, t.bijective
  self.domain, self.codomain = constraints.independent(t.domain, n), constraints.independent(t.codomain, n)
end)
function Independent:forward(x) return self.base_transform:forward(x) end
function Independent:backward(y) return self.base_transform:backward(y) end
function Independent:log_det(x, y) return util.sum_last(self.base_transform:log_det(x, y), self.n) end
function Independent:forward_shape(shape) return self.base_transform:forward_shape(shape) end
function Independent:inverse_shape(shape) return self.base_transform:inverse_shape(shape) end

-- n (n - 1) / 2 numbers to the Cholesky factor of a correlation matrix of n rows.
plain("CorrCholeskyTransform", { domain = real_vector, codomain = constraints.corr_cholesky,
  forward = function(_, x)
    local k = B.size(x, -1)
    local n = math.floor(math.sqrt(0.25 + 2 * k) + 0.5)
    if n * (n - 1) / 2 ~= k then
      check.fail("[transforms.CorrCholeskyTransform] %d numbers are no triangle n (n - 1) / 2", k)
    end
    local eps = util.finfo(x).eps
    local r = x:tanh():clamp(-1 + eps, 1 - eps)
    local places, at = {}, 0 -- 0 reads a zero in front
    for i = 1, n do
      for j = 1, n do
        if j < i then at = at + 1 end
        places[#places + 1] = j < i and at + 1 or 1
      end
    end
    local size = B.size(x)
    local lead = util.part(size, 1, #size - 1)
    local index = moth.tensor(places, { dtype = "int64", device = B.tensor_device(x) })
    local lower = moth.F.pad(r, { 1, 0 }):index_select(-1, index):reshape(util.shape(lead, { n, n }))
    local rest = (1 - lower:square()):sqrt():cumprod(-1) -- of the row's unit length, behind each place
    return (lower + moth.eye(n, util.options(x))) * moth.F.pad(rest:narrow(-1, 1, n - 1), { 1, 0 }, "constant", 1)
  end,
  backward = function(_, y)
    local n = B.size(y, -1)
    local left = (1 - y:square():cumsum(-1)):clamp(util.finfo(y).tiny)
    local before = moth.F.pad(left:narrow(-1, 1, n - 1), { 1, 0 }, "constant", 1):sqrt()
    local at = {}
    for i = 2, n do for j = 1, i - 1 do at[#at + 1] = (i - 1) * n + j end end
    local index = moth.tensor(at, { dtype = "int64", device = B.tensor_device(y) })
    return (y / before):flatten(-2):index_select(-1, index):atanh()
  end,
  log_det = function(_, x, y)
    local left = (1 - y:square():cumsum(-1)):clamp(util.finfo(y).tiny):log() -- behind each place
    local sum = left:tril(-2):sum { dim = { -2, -1 } } * 0.5
    return sum - (x + moth.F.softplus(x * -2) - math.log(2)):sum(-1) * 2
  end,
  forward_shape = function(_, shape)
    local n = math.floor(math.sqrt(0.25 + 2 * shape[#shape]) + 0.5)
    return util.shape(util.part(shape, 1, #shape - 1), { n, n })
  end,
  inverse_shape = function(_, shape)
    local n = shape[#shape]
    return util.shape(util.part(shape, 1, #shape - 2), { n * (n - 1) / 2 })
  end,
})

return M
