--- Automatic differentiation in a hundred lines: a Value is a number that remembers how it was made. The same small
-- network is trained with it and with moth; the gradients agree.
--
--     moth examples/micrograd.lua [--quick]
local moth = require "moth"

-- ---- the engine ------------------------------------------------------------------------------------

local Value = {}
Value.__index = Value

-- parents: the Values that it was computed from; pull(out): adds out.grad times the local derivative to their grads.
local function value(data, parents, pull)
  return setmetatable({ data = data, grad = 0, parents = parents or {}, pull = pull }, Value)
end

local function lift(x) return type(x) == "number" and value(x) or x end

function Value.__add(a, b)
  a, b = lift(a), lift(b)
  return value(a.data + b.data, { a, b }, function(out)
    a.grad = a.grad + out.grad
    b.grad = b.grad + out.grad
  end)
end

function Value.__mul(a, b)
  a, b = lift(a), lift(b)
  return value(a.data * b.data, { a, b }, function(out)
    a.grad = a.grad + b.data * out.grad
    b.grad = b.grad + a.data * out.grad
  end)
end

function Value.__pow(a, k) -- k is a number
  return value(a.data ^ k, { a }, function(out) a.grad = a.grad + k * a.data ^ (k - 1) * out.grad end)
end

function Value:tanh()
  local t = math.tanh(self.data)
  return value(t, { self }, function(out) self.grad = self.grad + (1 - t * t) * out.grad end)
end

function Value.__unm(a) return a * -1 end
function Value.__sub(a, b) return lift(a) + -lift(b) end
function Value.__div(a, b) return lift(a) * lift(b) ^ -1 end
function Value:__tostring() return ("Value(%.6g, grad %.6g)"):format(self.data, self.grad) end

-- A Value's gradient is complete once all Values computed from it have pulled: so go backwards from the last one.
function Value:backward()
  local order, seen = {}, {}
  local function visit(v)
    if seen[v] then return end
    seen[v] = true
    for _, p in ipairs(v.parents) do visit(p) end
    order[#order + 1] = v
  end
  visit(self)
  self.grad = 1
  for i = #order, 1, -1 do
    local v = order[i]
    if v.pull then v.pull(v) end
  end
end

-- ---- the same expression in both -------------------------------------------------------------------

print("An expression with shared parts, by hand-made Values and by moth:")
local function expression(a, b)
  local c = a * b + b ^ 3
  local d = c + c + 1 + (-a)
  local e = (d * 2 + (b + a):tanh()) / 4
  return c / e + e * e
end
local a, b = value(-1.5), value(2)
local out = expression(a, b)
out:backward()
local function leaf(x) return moth.tensor(x, { dtype = moth.float64, requires_grad = true }) end
local ta, tb = leaf(-1.5), leaf(2)
local tout = expression(ta, tb)
tout:backward()
print(("  value %.10f  d/da %.10f  d/db %.10f"):format(out.data, a.grad, b.grad))
print(("  moth  %.10f  d/da %.10f  d/db %.10f"):format(tout:item(), ta.grad:item(), tb.grad:item()))
local worst = math.max(math.abs(out.data - tout:item()), math.abs(a.grad - ta.grad:item()),
  math.abs(b.grad - tb.grad:item()))

-- ---- a network -------------------------------------------------------------------------------------

local hidden, steps = 8, moth.cli({ { "--quick", "a short run" } }).quick and 5 or 200
moth.manual_seed(1)
local x = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } } -- exclusive or
local y = { -1, 1, 1, -1 }
local w1 = moth.randn(hidden, 3, { dtype = moth.float64 }) -- the last column is the bias
local w2 = moth.randn(hidden + 1, { dtype = moth.float64 }) * 0.5

-- Values that start at moth's numbers.
local v1, v2, all = {}, {}, {}
for i = 1, hidden do
  v1[i] = {}
  for j = 1, 3 do
    v1[i][j] = value(w1[{ i, j }]:item())
    all[#all + 1] = v1[i][j]
  end
end
for i = 1, hidden + 1 do
  v2[i] = value(w2[i]:item())
  all[#all + 1] = v2[i]
end

local function network(point)
  local sum = v2[hidden + 1]
  for i = 1, hidden do sum = sum + v2[i] * (v1[i][1] * point[1] + v1[i][2] * point[2] + v1[i][3]):tanh() end
  return sum
end

local tx, ty = moth.tensor(x, { dtype = moth.float64 }), moth.tensor(y, { dtype = moth.float64 })
w1, w2 = w1:requires_grad_(true), w2:detach():requires_grad_(true)
local lr, first, last = 0.2, nil, nil
for _ = 1, steps do
  local loss = value(0)
  for k = 1, 4 do loss = loss + (network(x[k]) - y[k]) ^ 2 / 4 end
  for _, v in ipairs(all) do v.grad = 0 end
  loss:backward()

  w1.grad, w2.grad = nil, nil
  local h = (tx:matmul(w1[{ {}, { 1, 2 } }]:t()) + w1[{ {}, 3 }]):tanh()
  local moths = (h:matmul(w2[{ { 1, hidden } }]) + w2[hidden + 1] - ty):square():mean()
  moths:backward()

  for i = 1, hidden do
    for j = 1, 3 do worst = math.max(worst, math.abs(v1[i][j].grad - w1.grad[{ i, j }]:item())) end
    worst = math.max(worst, math.abs(v2[i].grad - w2.grad[i]:item()))
  end
  for _, v in ipairs(all) do v.data = v.data - lr * v.grad end
  moth.no_grad(function()
    w1:sub_(w1.grad, lr)
    w2:sub_(w2.grad, lr)
  end)
  first, last = first or loss.data, loss.data
end
print(("\nExclusive or with %d hidden units: loss %.4f -> %.4f after %d steps"):format(hidden, first, last, steps))
print(("largest difference of a gradient from moth's, over all steps: %.1e (%s)"):format(worst,
  worst < 1e-9 and "they agree" or "they differ"))
