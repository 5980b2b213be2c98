--- Numbers drawn from distributions by math.random, for moth.transforms.
local random = math.random

local M = {}

-- From the gamma distribution (Marsaglia and Tsang, 2000).
local function gamma(a)
  if a < 1 then return gamma(a + 1) * random() ^ (1 / a) end
  local d = a - 1 / 3
  local c = 1 / math.sqrt(9 * d)
  while true do
    local x = math.sqrt(-2 * math.log(1 - random())) * math.cos(2 * math.pi * random())
    local v = (1 + c * x) ^ 3
    if v > 0 and math.log(1 - random()) < 0.5 * x * x + d - d * v + d * math.log(v) then return d * v end
  end
end

--- From the beta distribution of a and a.
function M.beta(a)
  local x, y = gamma(a), gamma(a)
  return x / (x + y)
end

--- n shares from the Dirichlet distribution of n times a.
function M.dirichlet(a, n)
  local list, sum = {}, 0
  for k = 1, n do
    list[k] = gamma(a)
    sum = sum + list[k]
  end
  for k = 1, n do list[k] = list[k] / sum end
  return list
end

return M
