-- Optimizer steps: one call updates all parameters of a group, in place. What `update` says is what compilers fuse, and,
-- but for sgd_step and adam_step, what the kernels are written from (steps.lua): a new step is a record.
local function as_many(name)
  return { "equal(length(" .. name .. "), length(params))",
    name .. " must be as many as params: expected {length(params)}, got {length(" .. name .. ")}" }
end
local function one_number(name)
  return { "either(is_number(" .. name .. "), equal(" .. name .. ".numel, 1))",
    name .. " must be a tensor of one element, got the shape {" .. name .. ".shape}" }
end
local function no_bool(name)
  return { "either(is_number(" .. name .. "), negate(equal(" .. name .. ".dtype, dtype_named('bool'))))",
    name .. " must be a number, got a tensor of bool", "type" }
end
local function zero_dim(name)
  return { ("either(negate(given(%s)), equal(%s.ndim, 0))"):format(name, name),
    ("%s must be a 0-dim tensor, got {%s.ndim} dimensions"):format(name, name) }
end
local scale_0, found_0 = zero_dim "grad_scale", zero_dim "found_inf"
local function none_or_as_many(name)
  return { ("either(equal(length(%s), 0), equal(length(%s), length(params)))"):format(name, name),
    name .. " must be as many as params, or none: expected {length(params)}, got {length(" .. name .. ")}" }
end
-- The conditions of a step: lists that are as many as the parameters, and numbers, each "lr" or "step".
local function step_checks(lists, numbers)
  local out = { as_many "grads" }
  for name in lists:gmatch("[%w_?]+") do
    out[#out + 1] = name:find("?", 1, true) and none_or_as_many(name:sub(1, -2)) or as_many(name)
  end
  for name in numbers:gmatch("[%w_]+") do
    out[#out + 1] = one_number(name)
    out[#out + 1] = no_bool(name)
  end
  out[#out + 1], out[#out + 2] = scale_0, found_0
  if numbers:find("step", 1, true) then
    out[#out + 1] = { "either(negate(is_number(step)), ge(as_number(step), 1))", "step counts from 1, got {as_number(step)}" }
  end
  return out
end
-- The patterns of lists, each with a parameter's shape and dtype.
local function like_params(lists)
  local dims = { params = "* : float", grads = "* : params", grad_scale = "*Z : float", found_inf = "*Y : float" }
  for name in lists:gmatch("[%w_]+") do dims[name] = "* : params" end
  return dims
end

return {
{ "sgd_step(Tensor[]! params, Tensor[] grads, Tensor[]! momentum_buffers, Operand lr, float momentum, float dampening, float weight_decay, bool nesterov, bool maximize, bool first, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = { params = "* : float", grads = "* : params", momentum_buffers = "* : params", grad_scale = "*Z : float", found_inf = "*Y : float" },
  check = {
    as_many "grads", one_number "lr", no_bool "lr", scale_0, found_0,
    { "either(negate(nesterov), both(gt(momentum, 0), equal(dampening, 0)))", "nesterov needs a momentum and no dampening" },
    { "either(equal(momentum, 0), equal(length(momentum_buffers), length(params)))",
      "momentum_buffers must be as many as params: expected {length(params)}, got {length(momentum_buffers)}" },
  },
  over = { param = "params", grad = "grads", buffer = "momentum_buffers" },
  update = { "param, buffer", [[
    local g = when(maximize, neg(grad), grad)
    local d = when(given(grad_scale), g * grad_scale, g) + param * weight_decay
    local b = when(given(buffer), when(first, d, buffer * momentum + d * (1 - dampening)), d)
    local x = param - when(given(buffer), when(nesterov, d + b * momentum, b), d) * as_number(lr)
    return unless_found(found_inf, param, x), unless_found(found_inf, buffer, b)]] },
  grad = "none",
  reference = "sgd_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {}, 0.1, 0, 0, 0.01, false, false, true",
    "{randn(3,4)}, {randn(3,4)}, {randn(3,4)}, 0.1, 0.9, 0, 0.01, true, false, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, 0.1, 0.9, 0.1, 0, false, true, true",
    "{randn(7)}, {randn(7)}, {randn(7)}, 0.1, 0.9, 0, 0.1, false, false, false, rand()",
    "{randn(7)}, {randn(7)}, {randn(7)}, 0.1, 0.9, 0, 0.1, false, false, false, nil, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {}, 0.1, 0, 0, 0, false, false, true", "shape" },
    { "{randn(2)}, {}, {}, 0.1, 0, 0, 0, false, false, true", "as many" },
    { "{randn(2)}, {randn(2)}, {}, 0.1, 0, 0, 0, false, false, true, randn(2)", "0%-dim" },
    { "{randn(2)}, {randn(2)}, {}, randn(2), 0, 0, 0, false, false, true", "one element" },
  },
  doc = "One SGD step over all parameters, in place. momentum_buffers may be empty without momentum; \z
    `first` fills them with the gradient. grad_scale, a 0-dim float tensor, multiplies the gradients; where found_inf, \z
    another, is not 0, nothing is written. They and lr, where that is a tensor of one element, are read on the device that they lie on." },
{ "adam_step(Tensor[]! params, Tensor[] grads, Tensor[]! exp_avgs, Tensor[]! exp_avg_sqs, Tensor[]! max_exp_avg_sqs, Operand lr, float beta1, float beta2, float eps, float weight_decay, Operand step, bool decoupled, bool amsgrad, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = {
    params = "* : float", grads = "* : params", exp_avgs = "* : params", exp_avg_sqs = "* : params",
    max_exp_avg_sqs = "* : params", grad_scale = "*Z : float", found_inf = "*Y : float",
  },
  check = {
    as_many "grads", as_many "exp_avgs", as_many "exp_avg_sqs", one_number "lr", no_bool "lr", one_number "step", no_bool "step",
    scale_0, found_0, { "either(negate(is_number(step)), ge(as_number(step), 1))", "step counts from 1, got {as_number(step)}" },
    { "either(negate(amsgrad), equal(length(max_exp_avg_sqs), length(params)))",
      "max_exp_avg_sqs must be as many as params: expected {length(params)}, got {length(max_exp_avg_sqs)}" },
  },
  over = {
    param = "params", grad = "grads", exp_avg = "exp_avgs", exp_avg_sq = "exp_avg_sqs", max_exp_avg_sq = "max_exp_avg_sqs",
  },
  update = { "param, exp_avg, exp_avg_sq, max_exp_avg_sq", [[
    local scaled = when(given(grad_scale), grad * grad_scale, grad)
    local g0 = when(maximize, neg(scaled), scaled)
    local g = when(decoupled, g0, g0 + param * weight_decay)
    local rate, t = as_number(lr), as_number(step)
    local p = when(decoupled, param * (1 - rate * weight_decay), param)
    local m = exp_avg + (g - exp_avg) * (1 - beta1)
    local v = exp_avg_sq * beta2 + g * g * (1 - beta2)
    local top = when(amsgrad, maximum(max_exp_avg_sq, v), v)
    local root = sqrt(top) / power_of(1 - power_of(beta2, t), 0.5) + eps
    local x = p - m / root * (rate / (1 - power_of(beta1, t)))
    return unless_found(found_inf, param, x), unless_found(found_inf, exp_avg, m), unless_found(found_inf, exp_avg_sq, v),
      when(amsgrad, unless_found(found_inf, max_exp_avg_sq, top), top)]] },
  grad = "none",
  reference = "adam_step",
  samples = {
    "{randn(3,4)}, {randn(3,4)}, {randn(3,4)}, {rand(3,4)}, {}, 0.01, 0.9, 0.99, 1e-8, 0.1, 3, false, false, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, {rand(7)}, {}, 0.01, 0.9, 0.99, 1e-8, 0.1, 1, true, false, true",
    "{randn(7)}, {randn(7)}, {randn(7)}, {rand(7)}, {rand(7)}, 0.01, 0.9, 0.99, 1e-8, 0, 2, false, true, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, {rand(7)}, {}, 0.01, 0.9, 0.99, 1e-8, 0.1, 2, true, false, false, rand()",
    "{randn(7)}, {randn(7)}, {randn(7)}, {rand(7)}, {}, 0.01, 0.9, 0.99, 1e-8, 0.1, 2, true, false, false, nil, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {randn(2)}, {randn(2)}, {}, 0.1, 0.9, 0.99, 1e-8, 0, 1, false, false, false", "shape" },
    { "{randn(2)}, {}, {}, {}, {}, 0.1, 0.9, 0.99, 1e-8, 0, 1, false, false, false", "as many" },
    { "{randn(2)}, {randn(2)}, {randn(2)}, {rand(2)}, {}, 0.1, 0.9, 0.99, 1e-8, 0, 1, false, false, false, \z
       tensor(2, {dtype=int64})", "float" },
    { "{randn(2)}, {randn(2)}, {randn(2)}, {rand(2)}, {}, 0.1, 0.9, 0.99, 1e-8, 0, 0, false, false, false", "from 1" },
    { "{randn(2)}, {randn(2)}, {randn(2)}, {rand(2)}, {}, 0.1, 0.9, 0.99, 1e-8, 0, rand(2), false, false, false",
      "one element" },
  },
  doc = "One Adam (decoupled = false) or AdamW step over all parameters, in place; `step` counts from 1. \z
    grad_scale, found_inf, and lr and step as tensors, as for sgd_step." },
{ "adagrad_step(Tensor[]! params, Tensor[] grads, Tensor[]! sums, Operand lr, float lr_decay, float weight_decay, float eps, Operand step, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = like_params "sums",
  check = step_checks("sums", "lr step"),
  over = { param = "params", grad = "grads", sum = "sums" },
  update = { "param, sum", [[
    local g = step_grad(grad, grad_scale, maximize) + param * weight_decay
    local s = sum + g * g
    local rate = as_number(lr) / (1 + (as_number(step) - 1) * lr_decay)
    local x = param - g / (sqrt(s) + eps) * rate
    return unless_found(found_inf, param, x), unless_found(found_inf, sum, s)]] },
  grad = "none",
  reference = "adagrad_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {rand(3,4), rand(5)}, 0.1, 0, 0, 1e-10, 1, false",
    "{randn(7)}, {randn(7)}, {rand(7)}, 0.1, 0.1, 0.1, 1e-10, 3, true, rand()",
    "{randn(7)}, {randn(7)}, {rand(7)}, 0.1, 0, 0, 1e-10, 1, false, nil, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, 0.1, 0, 0, 1e-10, 1, false", "shape" }, { "{randn(2)}, {randn(2)}, {}, 0.1, 0, 0, 1e-10, 1, false", "as many" },
  },
  doc = "One Adagrad step over all parameters, in place: sum += g^2, param -= lr / (1 + (step - 1) lr_decay) g / (sqrt(sum) + eps)." },
{ "adadelta_step(Tensor[]! params, Tensor[] grads, Tensor[]! square_avgs, Tensor[]! acc_deltas, Operand lr, float rho, float eps, float weight_decay, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = like_params "square_avgs acc_deltas",
  check = step_checks("square_avgs acc_deltas", "lr"),
  over = { param = "params", grad = "grads", square_avg = "square_avgs", acc_delta = "acc_deltas" },
  update = { "param, square_avg, acc_delta", [[
    local g = step_grad(grad, grad_scale, maximize) + param * weight_decay
    local v = square_avg * rho + g * g * (1 - rho)
    local delta = sqrt(acc_delta + eps) / sqrt(v + eps) * g
    local acc = acc_delta * rho + delta * delta * (1 - rho)
    local x = param - delta * as_number(lr)
    return unless_found(found_inf, param, x), unless_found(found_inf, square_avg, v), unless_found(found_inf, acc_delta, acc)]] },
  grad = "none",
  reference = "adadelta_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {rand(3,4), rand(5)}, {rand(3,4), rand(5)}, 1, 0.9, 1e-6, 0, false",
    "{randn(7)}, {randn(7)}, {rand(7)}, {rand(7)}, 0.5, 0.9, 1e-6, 0.1, true, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, {rand(2)}, 1, 0.9, 1e-6, 0, false", "shape" }, { "{randn(2)}, {randn(2)}, {rand(2)}, {}, 1, 0.9, 1e-6, 0, false", "as many" },
  },
  doc = "One Adadelta step over all parameters, in place." },
{ "adamax_step(Tensor[]! params, Tensor[] grads, Tensor[]! exp_avgs, Tensor[]! exp_infs, Operand lr, float beta1, float beta2, float eps, float weight_decay, Operand step, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = like_params "exp_avgs exp_infs",
  check = step_checks("exp_avgs exp_infs", "lr step"),
  over = { param = "params", grad = "grads", exp_avg = "exp_avgs", exp_inf = "exp_infs" },
  update = { "param, exp_avg, exp_inf", [[
    local g = step_grad(grad, grad_scale, maximize) + param * weight_decay
    local m = exp_avg + (g - exp_avg) * (1 - beta1)
    local top = maximum(exp_inf * beta2, abs(g) + eps)
    local x = param - m / top * (as_number(lr) / (1 - power_of(beta1, as_number(step))))
    return unless_found(found_inf, param, x), unless_found(found_inf, exp_avg, m), unless_found(found_inf, exp_inf, top)]] },
  grad = "none",
  reference = "adamax_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {rand(3,4), rand(5)}, 0.01, 0.9, 0.99, 1e-8, 0, 3, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, {rand(7)}, 0.01, 0.9, 0.99, 1e-8, 0.1, 1, true, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, {rand(2)}, 0.01, 0.9, 0.99, 1e-8, 0, 3, false", "shape" }, { "{randn(2)}, {randn(2)}, {rand(2)}, {}, 0.01, 0.9, 0.99, 1e-8, 0, 3, false", "as many" },
  },
  doc = "One Adamax step over all parameters, in place; `step` counts from 1." },
{ "nadam_step(Tensor[]! params, Tensor[] grads, Tensor[]! exp_avgs, Tensor[]! exp_avg_sqs, Operand lr, float beta1, float beta2, float eps, float weight_decay, float momentum_decay, Operand step, Operand mu_product, bool decoupled, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = like_params "exp_avgs exp_avg_sqs",
  check = step_checks("exp_avgs exp_avg_sqs", "lr step mu_product"),
  over = { param = "params", grad = "grads", exp_avg = "exp_avgs", exp_avg_sq = "exp_avg_sqs" },
  update = { "param, exp_avg, exp_avg_sq", [[
    local g0 = step_grad(grad, grad_scale, maximize)
    local g = when(decoupled, g0, g0 + param * weight_decay)
    local rate, t = as_number(lr), as_number(step)
    local p = when(decoupled, param * (1 - rate * weight_decay), param)
    local m = exp_avg + (g - exp_avg) * (1 - beta1)
    local v = exp_avg_sq * beta2 + g * g * (1 - beta2)
    local mu = beta1 * (1 - 0.5 * power_of(0.96, t * momentum_decay))
    local mu_next = beta1 * (1 - 0.5 * power_of(0.96, (t + 1) * momentum_decay))
    local product = as_number(mu_product)
    local root = sqrt(v) / power_of(1 - power_of(beta2, t), 0.5) + eps
    local x = p - g / root * (rate * (1 - mu) / (1 - product)) - m / root * (rate * mu_next / (1 - product * mu_next))
    return unless_found(found_inf, param, x), unless_found(found_inf, exp_avg, m), unless_found(found_inf, exp_avg_sq, v)]] },
  grad = "none",
  reference = "nadam_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {rand(3,4), rand(5)}, 0.01, 0.9, 0.99, 1e-8, 0, 0.004, 2, 0.4, false, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, {rand(7)}, 0.01, 0.9, 0.99, 1e-8, 0.1, 0.004, 1, 0.5, true, true, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, {rand(2)}, 0.01, 0.9, 0.99, 1e-8, 0, 0.004, 2, 0.4, false, false", "shape" }, { "{randn(2)}, {randn(2)}, {rand(2)}, {}, 0.01, 0.9, 0.99, 1e-8, 0, 0.004, 2, 0.4, false, false", "as many" },
  },
  doc = "One NAdam step over all parameters, in place; mu_product is the product of the momenta of all steps, this one included." },
{ "radam_step(Tensor[]! params, Tensor[] grads, Tensor[]! exp_avgs, Tensor[]! exp_avg_sqs, Operand lr, float beta1, float beta2, float eps, float weight_decay, Operand step, bool decoupled, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = like_params "exp_avgs exp_avg_sqs",
  check = step_checks("exp_avgs exp_avg_sqs", "lr step"),
  over = { param = "params", grad = "grads", exp_avg = "exp_avgs", exp_avg_sq = "exp_avg_sqs" },
  update = { "param, exp_avg, exp_avg_sq", [[
    local g0 = step_grad(grad, grad_scale, maximize)
    local g = when(decoupled, g0, g0 + param * weight_decay)
    local rate, t = as_number(lr), as_number(step)
    local p = when(decoupled, param * (1 - rate * weight_decay), param)
    local m = exp_avg + (g - exp_avg) * (1 - beta1)
    local v = exp_avg_sq * beta2 + g * g * (1 - beta2)
    local bias2 = 1 - power_of(beta2, t)
    local longest = 2 / (1 - beta2) - 1
    local length_t = longest - 2 * t * power_of(beta2, t) / bias2
    local rectified = power_of((length_t - 4) * (length_t - 2) * longest / ((longest - 4) * (longest - 2) * length_t), 0.5)
    local first = m * (rate / (1 - power_of(beta1, t)))
    local later = first / (sqrt(v) + eps) * (rectified * power_of(bias2, 0.5))
    local x = p - when(gt(length_t, 5), later, first)
    return unless_found(found_inf, param, x), unless_found(found_inf, exp_avg, m), unless_found(found_inf, exp_avg_sq, v)]] },
  grad = "none",
  reference = "radam_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {rand(3,4), rand(5)}, 0.01, 0.9, 0.99, 1e-8, 0, 3, false, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, {rand(7)}, 0.01, 0.9, 0.99, 1e-8, 0.1, 9, true, true, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, {rand(2)}, 0.01, 0.9, 0.99, 1e-8, 0, 3, false, false", "shape" }, { "{randn(2)}, {randn(2)}, {rand(2)}, {}, 0.01, 0.9, 0.99, 1e-8, 0, 3, false, false", "as many" },
  },
  doc = "One RAdam step over all parameters, in place; `step` counts from 1." },
{ "rmsprop_step(Tensor[]! params, Tensor[] grads, Tensor[]! square_avgs, Tensor[]! momentum_buffers, Tensor[]! grad_avgs, Operand lr, float alpha, float eps, float weight_decay, float momentum, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = like_params "square_avgs momentum_buffers grad_avgs",
  check = step_checks("square_avgs momentum_buffers? grad_avgs?", "lr"),
  over = { param = "params", grad = "grads", square_avg = "square_avgs", buffer = "momentum_buffers", grad_avg = "grad_avgs" },
  update = { "param, square_avg, buffer, grad_avg", [[
    local g = step_grad(grad, grad_scale, maximize) + param * weight_decay
    local v = square_avg * alpha + g * g * (1 - alpha)
    local a = when(given(grad_avg), grad_avg + (g - grad_avg) * (1 - alpha), g)
    local d = g / (sqrt(when(given(grad_avg), v - a * a, v)) + eps)
    local b = when(given(buffer), buffer * momentum + d, d)
    local x = param - b * as_number(lr)
    return unless_found(found_inf, param, x), unless_found(found_inf, square_avg, v), unless_found(found_inf, buffer, b), unless_found(found_inf, grad_avg, a)]] },
  grad = "none",
  reference = "rmsprop_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {rand(3,4), rand(5)}, {}, {}, 0.01, 0.9, 1e-8, 0, 0, false",
    "{randn(7)}, {randn(7)}, {rand(7) + 1}, {randn(7)}, {rand(7)}, 0.01, 0.9, 1e-8, 0.1, 0.9, true, rand()",
    "{randn(7)}, {randn(7)}, {rand(7) + 1}, {randn(7)}, {}, 0.01, 0.9, 1e-8, 0.1, 0.9, false",
    "{randn(7)}, {randn(7)}, {rand(7) + 1}, {}, {rand(7)}, 0.01, 0.9, 1e-8, 0.1, 0, false" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, {}, {}, 0.01, 0.9, 1e-8, 0, 0, false", "shape" }, { "{randn(2), randn(2)}, {randn(2), randn(2)}, {rand(2), rand(2)}, {}, {rand(2)}, 0.01, 0.9, 1e-8, 0, 0, false", "as many" },
  },
  doc = "One RMSprop step over all parameters, in place: with momentum_buffers by momentum, with grad_avgs centered." },
{ "rprop_step(Tensor[]! params, Tensor[] grads, Tensor[]! prevs, Tensor[]! step_sizes, float eta_minus, float eta_plus, float least, float most, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = like_params "prevs step_sizes",
  check = step_checks("prevs step_sizes", ""),
  over = { param = "params", grad = "grads", prev = "prevs", step_size = "step_sizes" },
  update = { "param, prev, step_size", [[
    local g = step_grad(grad, grad_scale, maximize)
    local product = g * prev
    local scaled = where(gt(product, 0), step_size * eta_plus, where(lt(product, 0), step_size * eta_minus, step_size))
    local size = clamp(scaled, least, most)
    local d = where(lt(product, 0), 0, g)
    local x = param - sign(d) * size
    return unless_found(found_inf, param, x), unless_found(found_inf, prev, d), unless_found(found_inf, step_size, size)]] },
  grad = "none",
  reference = "rprop_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {randn(3,4), tensor{0,0,0,0,0}}, {rand(3,4), rand(5)}, 0.5, 1.2, 1e-6, 50, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, {rand(7)}, 0.5, 1.2, 0.3, 0.6, true, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, {rand(2)}, 0.5, 1.2, 1e-6, 50, false", "shape" }, { "{randn(2)}, {randn(2)}, {rand(2)}, {}, 0.5, 1.2, 1e-6, 50, false", "as many" },
  },
  doc = "One Rprop step over all parameters, in place." },
{ "asgd_step(Tensor[]! params, Tensor[] grads, Tensor[]! axs, Operand eta, Operand mu, float lambd, float weight_decay, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = like_params "axs",
  check = step_checks("axs", "eta mu"),
  over = { param = "params", grad = "grads", ax = "axs" },
  update = { "param, ax", [[
    local g = step_grad(grad, grad_scale, maximize) + param * weight_decay
    local rate = as_number(eta)
    local x = param * (1 - lambd * rate) - g * rate
    local mean = ax + (x - ax) * as_number(mu)
    return unless_found(found_inf, param, x), unless_found(found_inf, ax, mean)]] },
  grad = "none",
  reference = "asgd_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {randn(3,4), randn(5)}, 0.1, 1, 1e-4, 0, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, 0.1, 0.25, 0.01, 0.1, true, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, 0.1, 1, 1e-4, 0, false", "shape" }, { "{randn(2)}, {randn(2)}, {}, 0.1, 1, 1e-4, 0, false", "as many" },
  },
  doc = "One step of averaged SGD over all parameters, in place: eta is the rate, ax follows the parameter by the share mu." },
{ "lion_step(Tensor[]! params, Tensor[] grads, Tensor[]! exp_avgs, Operand lr, float beta1, float beta2, float weight_decay, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = like_params "exp_avgs",
  check = step_checks("exp_avgs", "lr"),
  over = { param = "params", grad = "grads", exp_avg = "exp_avgs" },
  update = { "param, exp_avg", [[
    local g = step_grad(grad, grad_scale, maximize)
    local rate = as_number(lr)
    local d = sign(exp_avg * beta1 + g * (1 - beta1))
    local x = param * (1 - rate * weight_decay) - d * rate
    local m = exp_avg * beta2 + g * (1 - beta2)
    return unless_found(found_inf, param, x), unless_found(found_inf, exp_avg, m)]] },
  grad = "none",
  reference = "lion_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {randn(3,4), randn(5)}, 0.01, 0.9, 0.99, 0, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, 0.01, 0.9, 0.99, 0.1, true, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, 0.01, 0.9, 0.99, 0, false", "shape" }, { "{randn(2)}, {randn(2)}, {}, 0.01, 0.9, 0.99, 0, false", "as many" },
  },
  doc = "One Lion step over all parameters, in place." },
{ "native_lamb_directions(Tensor[]! params, Tensor[] grads, Tensor[]! exp_avgs, Tensor[]! exp_avg_sqs, Tensor[]! directions, float beta1, float beta2, float eps, float weight_decay, Operand step, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect",
  dims = like_params "exp_avgs exp_avg_sqs directions",
  check = step_checks("exp_avgs exp_avg_sqs directions", "step"),
  over = { param = "params", grad = "grads", exp_avg = "exp_avgs", exp_avg_sq = "exp_avg_sqs", direction = "directions" },
  update = { "exp_avg, exp_avg_sq, direction", [[
    local m, v, d = lamb_direction(param, grad, exp_avg, exp_avg_sq, beta1, beta2, eps, weight_decay, step, maximize, grad_scale)
    return unless_found(found_inf, exp_avg, m), unless_found(found_inf, exp_avg_sq, v), unless_found(found_inf, direction, d)]] },
  grad = "none",
  reference = "native_lamb_directions",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {rand(3,4), rand(5)}, {randn(3,4), randn(5)}, 0.9, 0.99, 1e-6, 0, 3, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, {rand(7)}, {randn(7)}, 0.9, 0.99, 1e-6, 0.1, 1, true, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, {rand(2)}, {rand(2)}, 0.9, 0.99, 1e-6, 0, 3, false", "shape" }, { "{randn(2)}, {randn(2)}, {rand(2)}, {rand(2)}, {}, 0.9, 0.99, 1e-6, 0, 3, false", "as many" },
  },
  doc = "The directions of a LAMB step of all parameters, which are not written to; the means of Adam are." },
{ "lamb_step(Tensor[]! params, Tensor[] grads, Tensor[]! exp_avgs, Tensor[]! exp_avg_sqs, Operand lr, float beta1, float beta2, float eps, float weight_decay, Operand step, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect", kernel = "all devices",
  dims = like_params "exp_avgs exp_avg_sqs",
  check = step_checks("exp_avgs exp_avg_sqs", "lr step"),
  over = { param = "params", grad = "grads", exp_avg = "exp_avgs", exp_avg_sq = "exp_avg_sqs" },
  update = { "param, exp_avg, exp_avg_sq", [[
    local m, v, d = lamb_direction(param, grad, exp_avg, exp_avg_sq, beta1, beta2, eps, weight_decay, step, maximize, grad_scale)
    local of_x, of_d = linalg_vector_norm(param), linalg_vector_norm(d)
    local ratio = where(logical_and(gt(of_x, 0), gt(of_d, 0)), of_x / of_d, 1)
    local x = param - d * ratio * as_number(lr)
    return unless_found(found_inf, param, x), unless_found(found_inf, exp_avg, m), unless_found(found_inf, exp_avg_sq, v)]] },
  grad = "none",
  reference = "lamb_step",
  samples = {
    "{randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {randn(3,4), randn(5)}, {rand(3,4), rand(5)}, 0.1, 0.9, 0.99, 1e-6, 0, 3, false",
    "{randn(7)}, {randn(7)}, {randn(7)}, {rand(7)}, 0.1, 0.9, 0.99, 1e-6, 0.1, 1, true, rand()",
    "{zeros(3), zeros(0)}, {randn(3), zeros(0)}, {randn(3), zeros(0)}, {rand(3), zeros(0)}, 0.1, 0.9, 0.99, 1e-6, 0, 1, false" },
  errors = {
    { "{randn(2)}, {randn(3)}, {rand(2)}, {rand(2)}, 0.1, 0.9, 0.99, 1e-6, 0, 3, false", "shape" }, { "{randn(2)}, {randn(2)}, {rand(2)}, {}, 0.1, 0.9, 0.99, 1e-6, 0, 3, false", "as many" },
  },
  doc = "One LAMB step over all parameters, in place: by native_lamb_directions and a norm of each parameter and direction." },
{ "adafactor_step(Tensor[]! params, Tensor[] grads, Tensor[]! row_vars, Tensor[]! col_vars, Tensor[]! variances, float lr, float beta2_decay, float eps1, float eps2, float d, float weight_decay, float step, bool maximize, Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect", kernel = "all devices",
  dims = { params = "* : float", grads = "* : params", variances = "* : params",
    grad_scale = "*Z : float", found_inf = "*Y : float" },
  check = step_checks("row_vars? col_vars? variances?", ""),
  over = { param = "params", grad = "grads", row_var = "row_vars", col_var = "col_vars", variance = "variances" },
  update = { "param, row_var, col_var, variance", [[
    local g = step_grad(grad, grad_scale, maximize)
    local root, share = power_of(param.numel, 0.5), power_of(step, beta2_decay)
    local least = when(lt(eps1, 0), eps_of(param), eps1)
    local size = clamp(linalg_vector_norm(param) / root, eps2) * smaller(lr, power_of(step, -0.5))
    local square = g * g
    local old_row, old_col = when(given(row_var), row_var, param), when(given(col_var), col_var, param)
    local old = when(given(variance), variance, param)
    local row = when(given(row_var), lerp(row_var, op.mean(square, list(-1), true), share), param)
    local col = when(given(col_var), lerp(col_var, op.mean(square, list(-2), true), share), param)
    local own = when(given(variance), lerp(variance, square, share), param)
    local v = when(given(variance), own, matmul(row, col) / clamp(op.mean(row, list(-2), true), least))
    local u = rsqrt(clamp(v, least * least)) * g
    local x = param * (1 - lr * weight_decay) - u * (size / clamp(linalg_vector_norm(u) / (root * d), 1))
    return unless_found(found_inf, param, x), unless_found(found_inf, old_row, row), unless_found(found_inf, old_col, col),
      unless_found(found_inf, old, own)]] },
  grad = "none",
  reference = "adafactor_step",
  tolerance = { float16 = { 1e-2, 1e-2 }, bfloat16 = { 3e-2, 3e-2 }, why = "squares and norms of the parameter's dtype" },
  samples = {
    "{randn(3,4), randn(2,5)}, {randn(3,4), randn(2,5)}, {rand(3,1), rand(2,1)}, {rand(1,4), rand(1,5)}, {}, 0.01, -0.8, -1, 1e-3, 1, 0, 3, false",
    "{randn(7), randn()}, {randn(7), randn()}, {}, {}, {rand(7), rand()}, 0.5, -0.5, 1e-4, 1e-3, 1.5, 0.1, 2, true",
    "{randn(3,4)}, {randn(3,4)}, {rand(3,1)}, {rand(1,4)}, {}, 0.01, -0.8, 1e-8, 1e-3, 1, 0.1, 1, false, rand()",
    "{randn(7)}, {randn(7)}, {}, {}, {rand(7)}, 0.5, -0.5, 1e-4, 1e-3, 1.5, 0.1, 2, true, nil, rand()" },
  errors = {
    { "{randn(2)}, {randn(3)}, {}, {}, {rand(2)}, 0.01, -0.8, -1, 1e-3, 1, 0, 3, false", "shape" },
    { "{randn(2)}, {}, {}, {}, {rand(2)}, 0.01, -0.8, -1, 1e-3, 1, 0, 3, false", "as many" },
  },
  doc = "One Adafactor step over all parameters, in place: of matrices (row_vars, col_vars) or of vectors (variances). \z
    eps1 below 0: the epsilon of the dtype." },
{ "muon_step(Tensor[]! params, Tensor[] grads, Tensor[]! momentum_buffers, float lr, float weight_decay, float momentum, bool nesterov, float ns_a, float ns_b, float ns_c, float eps, int ns_steps, enum('original','match_rms_adamw','spectral_unclamped') adjust_lr='original', Tensor? grad_scale=none, Tensor? found_inf=none) -> ()",
  kind = "effect", kernel = "all devices",
  dims = { params = "A B : float", grads = "A B : params", momentum_buffers = "A B : params", grad_scale = "*Z : float", found_inf = "*Y : float" },
  check = step_checks("momentum_buffers", ""),
  over = { param = "params", grad = "grads", buffer = "momentum_buffers" },
  update = { "param, buffer", [[
    local g = when(given(grad_scale), grad * grad_scale, grad)
    local b = lerp(buffer, g, 1 - momentum)
    local rows, columns = param.shape[0], param.shape[1]
    local tall, low = gt(rows, columns), to(when(nesterov, lerp(g, b, momentum), b), dtype_named("bfloat16"))
    local flat = when(tall, transpose(low, 0, 1), low)
    local u = fold(flat / clamp(linalg_vector_norm(flat), eps), ns_steps, function(x, i)
      local gram = matmul(x, transpose(x, 0, 1))
      return addmm(x, addmm(gram, gram, gram, ns_b, ns_c), x, ns_a)
    end)
    local scale = when(eq(adjust_lr, "original"), power_of(larger(1, rows / columns), 0.5),
      when(eq(adjust_lr, "match_rms_adamw"), 0.2 * power_of(larger(rows, columns), 0.5), power_of(rows / columns, 0.5)))
    local x = param * (1 - lr * weight_decay) - to(when(tall, transpose(u, 0, 1), u), param.dtype) * (lr * scale)
    return unless_found(found_inf, param, x), unless_found(found_inf, buffer, b)]] },
  grad = "none",
  reference = "muon_step", tolerance = { float64 = { 3e-2, 3e-2 }, float32 = { 3e-2, 3e-2 }, float16 = { 3e-2, 3e-2 }, bfloat16 = { 3e-2, 3e-2 }, why = "products in bfloat16" },
  samples = {
    "{randn(3,4), randn(5,2)}, {randn(3,4), randn(5,2)}, {randn(3,4), randn(5,2)}, 0.1, 0.1, 0.9, true, 3.4445, -4.775, 2.0315, 1e-7, 5",
    "{randn(4,3)}, {randn(4,3)}, {randn(4,3)}, 0.1, 0, 0.9, false, 3, -3.2, 1.2, 1e-7, 2, 'match_rms_adamw', rand()",
    "{randn(2,3)}, {randn(2,3)}, {randn(2,3)}, 0.1, 0, 0.9, false, 3, -3.2, 1.2, 1e-7, 2, 'spectral_unclamped', nil, rand()" },
  errors = {
    { "{randn(2)}, {randn(2)}, {randn(2)}, 0.1, 0, 0.9, false, 3, -3.2, 1.2, 1e-7, 2", "dim" },
    { "{randn(2,2)}, {randn(2,2)}, {}, 0.1, 0, 0.9, false, 3, -3.2, 1.2, 1e-7, 2", "as many" },
  },
  doc = "One Muon step over all parameters, matrices, in place: ns_steps of Newton and Schulz with three coefficients make the \z
    momentum nearly orthogonal; adjust_lr: by what lr is multiplied for a shape." },
}
