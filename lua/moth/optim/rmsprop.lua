--- optim.RMSprop: steps divided by a running root mean square of the gradients (Hinton 2012).
--
-- Arguments: params, lr = 1e-2, alpha = 0.99, eps = 1e-8, weight_decay = 0, momentum = 0, centered = false;
-- maximize = false
--
-- For each parameter x with gradient g:
--   1. g = -g if maximize; g = g + weight_decay x
--   2. v = alpha v + (1 - alpha) g^2
--   3. centered: a = alpha a + (1 - alpha) g; r = sqrt(v - a^2) + eps, else r = sqrt(v) + eps
--   4. with momentum b = momentum b + g / r, x = x - lr b; else x = x - lr g / r
local B = require "moth_lua"
local keep = require("moth.tensor.scope").keep
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Optimizer = require "moth.optim.optimizer"

local RMSprop = class("RMSprop", Optimizer)

RMSprop.__init = Optimizer.init("optim.RMSprop", "number lr=1e-2, number alpha=0.99, number eps=1e-8, \z
  number weight_decay=0, number momentum=0, bool centered=false, *, bool maximize=false", function(_, o)
  check.number("optim.RMSprop", "alpha", o.alpha, 0)
end)

function RMSprop:step_group(group)
  for _, p in ipairs(group.params) do
    local grad = B.get_grad(p)
    if grad then
      local s, g = self.state[p], grad
      if not s.square_avg then
        s.square_avg = keep(moth.zeros_like(p))
        if group.momentum ~= 0 then s.momentum_buffer = keep(moth.zeros_like(p)) end
        if group.centered then s.grad_avg = keep(moth.zeros_like(p)) end
      end
      if group.maximize then g = g:neg() end
      if group.weight_decay ~= 0 then g = g:add(p, group.weight_decay) end
      s.square_avg:mul_(group.alpha):addcmul_(g, g, 1 - group.alpha)
      local root = s.square_avg
      if group.centered then
        s.grad_avg:lerp_(g, 1 - group.alpha)
        root = root:addcmul(s.grad_avg, s.grad_avg, -1)
      end
      root = root:sqrt():add_(group.eps)
      if group.momentum ~= 0 then
        s.momentum_buffer:mul_(group.momentum):addcdiv_(g, root)
        p:sub_(s.momentum_buffer, group.lr)
      else
        p:addcdiv_(g, root, -group.lr)
      end
    end
  end
end

return RMSprop
