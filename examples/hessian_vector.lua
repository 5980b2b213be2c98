--- The Hessian of a model's loss without the matrix: its products with vectors, by forward over reverse mode, its
-- greatest eigenvalue by power iteration, and a Newton step by conjugate gradients.
--
--     moth examples/hessian_vector.lua
local moth = require "moth"
local nn, func = moth.nn, moth.func

moth.manual_seed(0)
local model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)):double()
local xs = moth.randn(64, 6, { dtype = moth.float64 })
local ys = xs:sin():sum(2, true)

-- The parameters as one vector.
local names, sizes, parts = {}, {}, {}
for name, p in model:named_parameters() do
  names[#names + 1], sizes[#sizes + 1], parts[#parts + 1] = name, p:size(), p:detach():reshape(-1)
end
local theta = moth.cat(parts)
local function loss(vector)
  local params, at = {}, 1
  for i, name in ipairs(names) do
    local n = parts[i]:numel()
    params[name] = vector:narrow(1, at, n):view(sizes[i])
    at = at + n
  end
  -- a little decay makes the Hessian positive where the loss is flat
  return nn.functional.mse_loss(func.functional_call(model, params, xs), ys) + vector:square():sum() * 0.05
end

local gradient = func.grad(loss)
local function hvp(v)
  local _, product = func.jvp(gradient, { theta }, { v })
  return product
end

local v = moth.randn(theta:numel(), { dtype = moth.float64 })
local H = func.hessian(loss)(theta)
print(("the product is that with the matrix of %d x %d: %s"):format(H:size(1), H:size(2),
  tostring(moth.allclose(hvp(v), H:matmul(v), { atol = 1e-10 }))))

local value
for _ = 1, 200 do
  v = v / v:norm()
  local w = hvp(v)
  value, v = (v * w):sum():item(), w
end
print(("the eigenvalue of greatest size: %.4f"):format(value))

-- Newton's step solves H s = g; a multiple of the identity keeps it a way down.
local damping, g = 1, gradient(theta)
local s, r = moth.zeros_like(g), g
local d, rr = r, (r * r):sum():item()
for _ = 1, 200 do
  local q = hvp(d) + damping * d
  local alpha = rr / (d * q):sum():item()
  s, r = s + alpha * d, r - alpha * q
  local new = (r * r):sum():item()
  if new < 1e-20 then break end
  d, rr = r + (new / rr) * d, new
end
print(("the loss before %.4f, after one step %.4f"):format(loss(theta):item(), loss(theta - s):item()))
