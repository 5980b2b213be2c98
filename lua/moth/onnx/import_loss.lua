--- ONNX's losses, and its operators of training.
local moth = require "moth"
local import = require "moth.onnx.import"
local rule = import.rule

-- log_prob (N, C, …), target (N, …).
local function loss(c, log_prob, target, weight)
  local at = target:to(moth.int64)
  local kept
  if c.ignore_index ~= nil then
    kept = at:ne(c.ignore_index)
    at = moth.where(kept, at, moth.zeros_like(at))
  end
  local value = -log_prob:gather(2, (at + 1):unsqueeze(2)):squeeze(2)
  local of
  if weight then of = weight:index_select(1, at:reshape { -1 } + 1):reshape(at:size()) end
  if kept then of = (of or moth.ones_like(value)) * kept:to(value:dtype()) end
  if of then value = value * of end
  if c.reduction == "none" then return value end
  if c.reduction == "sum" then return value:sum() end
  return of and value:sum() / of:sum() or value:mean()
end

rule("NegativeLogLikelihoodLoss", "ignore_index reduction='mean'", loss)
rule("SoftmaxCrossEntropyLoss", "ignore_index reduction='mean'", function(c, x, target, weight)
  local log_prob = x:log_softmax(2)
  return loss(c, log_prob, target, weight), log_prob
end)

-- ---- training ------------------------------------------------------------------------------------

local TRAINING = { domain = "ai.onnx.preview.training" }

-- Inputs: rate, step, then tensors, their gradients and states, each group as long as the first.
local function grouped(states, fn)
  return function(c, rate, step, ...)
    local list, out = { ... }, {}
    local n = #list / (states + 2)
    for i = 1, n do
      local args = {}
      for k = 0, states + 1 do args[k + 1] = list[k * n + i] end
      local results = { fn(c, rate, step, unpack(args)) }
      for k, v in ipairs(results) do out[(k - 1) * n + i] = v end
    end
    return unpack(out)
  end
end

rule("Momentum", "alpha beta mode norm_coefficient=0", grouped(1, function(c, rate, step, x, g, v)
  g = g + x * c.norm_coefficient
  local beta = moth.where(step:eq(0), 1, c.beta):to(x:dtype())
  v = v * c.alpha + g * beta
  if c.mode == "nesterov" then g = g + v * c.alpha else g = v end
  return x - g * rate, v
end), TRAINING)

rule("Adagrad", "decay_factor=0 epsilon=1e-6 norm_coefficient=0", grouped(1, function(c, rate, step, x, g, h)
  rate = rate / (step:to(rate:dtype()) * c.decay_factor + 1)
  g = g + x * c.norm_coefficient
  h = h + g * g
  return x - g * rate / (h:sqrt() + c.epsilon), h
end), TRAINING)

rule("Adam", "alpha=0.9 beta=0.999 epsilon=1e-6 norm_coefficient=0 norm_coefficient_post=0",
  grouped(2, function(c, rate, step, x, g, v, h)
    g = g + x * c.norm_coefficient
    v, h = v * c.alpha + g * (1 - c.alpha), h * c.beta + g * g * (1 - c.beta)
    local t = step:to(moth.float64)
    local corrected = rate * ((1 - moth.pow(c.beta, t)):sqrt() / (1 - moth.pow(c.alpha, t))):to(x:dtype())
    local scaled = moth.where(step:gt(0), corrected, rate)
    local y = x - scaled * v / (h:sqrt() + c.epsilon)
    return y * (1 - c.norm_coefficient_post), v, h
  end), TRAINING)
