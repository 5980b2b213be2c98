--- moth.nn.functional (moth.F): the stateless forms. Arguments come by position, in PyTorch's order, or by name in one
-- trailing table.
--
--     local F = moth.nn.functional
--     local h = F.gelu(F.linear(x, w, b), { approximate = "tanh" })
--     local loss = F.cross_entropy(logits, labels, { label_smoothing = 0.1 })
--
-- Most are ops of the table under the same name; the others add PyTorch's parameters to ops, except its deprecated
-- ones (size_average, reduce).
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"

local F = {}

-- Ops as they are: F.relu(x), F.softmax(x, dim), F.linear(input, weight, bias).
for _, name in ipairs({ "linear", "fake_quantize", "relu_", "leaky_relu_", "elu_", "silu_", "softplus", "hardtanh_",
  "sigmoid", "tanh",
  "softmax", "log_softmax", "relu6_", "selu_", "celu_", "hardsigmoid_", "hardswish_",
  "glu", "prelu", "layer_norm", "rms_norm", "group_norm", "batch_norm",
  "avg_pool1d", "avg_pool2d", "avg_pool3d",
  "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "scaled_dot_product_attention", "hardshrink",
  "softshrink", "tanhshrink" }) do
  F[name] = B.ops[name]
end
F.softsign, F.pad = moth.softsign, moth.pad -- of complex tensors, too
--- log(sigmoid(input)), without overflow.
F.logsigmoid = signature("F.logsigmoid(Tensor input)", B.ops.log_sigmoid)

-- F.relu(x, true) and other activations that can work in place.
for name, fn in each(require("moth.nn.functional_activation").forms) do F[name] = fn end

F.gelu = signature("F.gelu(Tensor input, 'none'|'tanh' approximate='none')", function(x, approximate)
  return (approximate == "tanh" and B.ops.gelu_tanh or B.ops.gelu)(x)
end)

--- softmax of -input along dim.
F.softmin = signature("F.softmin(Tensor input, Dim dim, *, dtype dtype?)", function(x, dim, dtype)
  return B.ops.softmax(B.ops.neg(x), dim, dtype)
end)

F.dropout = signature("F.dropout(Tensor input, number p=0.5, bool training=true, bool inplace=false, *, \z
  Generator generator?)", function(x, p, training, inplace, generator)
  local y = moth.dropout(x, p, training, generator)
  if inplace and training then return x:copy_(y) end
  return y
end)

--- positions (…) -> int64 (…, num_classes); num_classes = -1: the largest position.
F.one_hot = signature("F.one_hot(Tensor tensor, int num_classes=-1)", function(index, num_classes)
  if num_classes == -1 then num_classes = B.numel(index) > 0 and index:amax():item() or 0 end
  return moth.one_hot(index, num_classes)
end)

--- x / max(norm(x), eps) along dim
F.normalize = signature("F.normalize(Tensor input, number p=2, Dim dim=2, number eps=1e-12)", function(x, p, dim, eps)
  return x / x:norm(p, dim, true):clamp({ min = eps })
end)

--- x (N, C, …): normalises each channel of each sample by its own mean and variance and updates the running statistics
-- with their means over the samples; use_input_stats = false: normalises by the running statistics.
F.instance_norm = signature("F.instance_norm(Tensor input, Tensor running_mean?, Tensor running_var?, Tensor weight?, \z
  Tensor bias?, bool use_input_stats=true, number momentum=0.1, number eps=1e-5)",
  function(x, mean, var, weight, bias, own, momentum, eps)
    if (mean == nil) ~= (var == nil) then
      check.fail("[F.instance_norm] running_mean and running_var: give both, or none")
    end
    if not mean then
      if not own then check.fail("[F.instance_norm] use_input_stats = false needs running_mean and running_var") end
      return B.ops.instance_norm(x, weight, bias, eps)
    end
    if not own then return moth.batch_norm(x, mean, var, weight, bias, false, momentum, eps) end
    local size = B.size(x)
    local n, c = size[1], size[2]
    if not c then
      check.fail("[F.instance_norm] input: expected [samples, channels, ...], got a shape of %d dimensions", #size)
    end
    local flat = { 1, n * c, unpack(size, 3) }
    local means, vars = mean:detach():repeat_({ n }), var:detach():repeat_({ n })
    local function each_sample(w) return w and w:expand({ n, c }):reshape(-1) end
    local y = moth.batch_norm(x:reshape(flat), means, vars, each_sample(weight), each_sample(bias), true, momentum, eps)
    moth.no_grad(function()
      mean:copy_(means:view(n, c):mean(1))
      var:copy_(vars:view(n, c):mean(1))
    end)
    return y:view(size)
  end)

-- Convolution and pooling, losses, resizing, and the rest.
for _, part in ipairs({ "conv", "pool", "grid", "loss", "resize", "embedding", "more" }) do
  for name, fn in each(require("moth.nn.functional_" .. part)) do F[name] = fn end
end

for name, fn in each(require("moth.nn.functional_attention").F) do F[name] = fn end

return F
