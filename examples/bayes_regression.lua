--- Bayesian linear regression: the distribution of the weights given the data, by variational inference, beside the
-- exact one. The guess is a normal distribution whose parameters are trained on samples with gradients (rsample).
--
--     moth examples/bayes_regression.lua [steps]
local moth = require "moth"
local D = moth.distributions
local steps = moth.cli({ { "[N]", "steps", 400, min = 1 } }).n

moth.manual_seed(4)
local noise, n = 0.5, 40
local x = moth.cat({ moth.rand(n, 1) * 4 - 2, moth.ones(n, 1) }, 2):double() -- a slope and an offset
local truth = moth.tensor({ 1.5, -0.7 }, { dtype = moth.float64 })
local y = D.Normal(x:matmul(truth), noise):sample()

-- What is believed before: each weight is normal around 0. Afterwards, exactly: a normal with this precision.
local prior = D.MultivariateNormal(moth.zeros(2):double(), moth.eye(2):double())
local precision = x.T:matmul(x) / noise ^ 2 + moth.eye(2):double()
local mean = moth.linalg.solve(precision, x.T:matmul(y) / noise ^ 2)
local exact = D.MultivariateNormal { loc = mean, precision_matrix = precision }

-- The guess: a mean and a lower triangle with a positive diagonal.
local loc = moth.zeros(2):double():requires_grad_()
local free = moth.zeros(2, 2):double():requires_grad_()
local triangle = D.transform_to(D.constraints.lower_cholesky)
local function guess() return D.MultivariateNormal { loc = loc, scale_tril = triangle(free) } end

local opt = moth.optim.Adam({ loc, free }, { lr = 0.05 })
print(("before: KL to the exact posterior %.3f"):format(D.kl_divergence(guess(), exact):item()))
for _ = 1, steps do
  opt:zero_grad()
  local q = guess()
  local w = q:rsample { 16 } -- (16, 2)
  local fit = D.Normal(w:matmul(x.T), noise):log_prob(y):sum(-1):mean()
  local loss = D.kl_divergence(q, prior) - fit -- the negative evidence lower bound
  loss:backward()
  opt:step()
end

local q = guess()
print(("after:  KL to the exact posterior %.3f"):format(D.kl_divergence(q, exact):item()))
for i, name in ipairs { "slope", "offset" } do
  print(("%-6s %.2f in truth, exactly %.2f +- %.2f, guessed %.2f +- %.2f"):format(name, truth[i]:item(), mean[i]:item(),
    exact.stddev[i]:item(), q.mean[i]:item(), q.stddev[i]:item()))
end
