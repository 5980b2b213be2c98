--- The table of activations, from which moth.nn.activation makes classes, and the functional forms with an `inplace`
-- argument, F.relu(x, true).
--
-- A row says which op runs and which parameters there are, as a signature (moth.utils.signature).
local B = require "moth_lua"
local signature = require "moth.utils.signature"
local ops = B.ops

local M = { forms = {} }

M.rows = {
  { "ReLU", "relu", "bool inplace=false", doc = "max(x, 0)" },
  { "LeakyReLU", "leaky_relu", "number negative_slope=0.01, bool inplace=false",
    doc = "x, or negative_slope x below 0" },
  { "ELU", "elu", "number alpha=1, bool inplace=false", doc = "x, or alpha (exp(x) - 1) below 0" },
  { "GELU", "gelu", "'none'|'tanh' approximate='none'",
    doc = "x Φ(x), by erf, or by tanh with approximate = \"tanh\"" },
  { "SiLU", "silu", "bool inplace=false", doc = "x sigmoid(x)" },
  { "Mish", "mish", "bool inplace=false", doc = "x tanh(softplus(x))" },
  { "Softplus", "softplus", "number beta=1, number threshold=20", doc = "log(1 + exp(beta x)) / beta" },
  { "Hardtanh", "hardtanh", "number min_val=-1, number max_val=1, bool inplace=false",
    doc = "x cut to [min_val, max_val]" },
  { "Sigmoid", "sigmoid", "", doc = "1 / (1 + exp(-x))" },
  { "LogSigmoid", "log_sigmoid", "", doc = "log(sigmoid(x))" },
  { "Tanh", "tanh", "", doc = "tanh(x)" },
  { "ReLU6", "relu6", "bool inplace=false", doc = "x cut to [0, 6]" },
  { "SELU", "selu", "bool inplace=false", doc = "1.0507 (x, or 1.6733 (exp(x) - 1) below 0)" },
  { "CELU", "celu", "number alpha=1, bool inplace=false", doc = "x, or alpha (exp(x / alpha) - 1) below 0" },
  { "Hardsigmoid", "hardsigmoid", "bool inplace=false", doc = "relu6(x + 3) / 6" },
  { "Hardswish", "hardswish", "bool inplace=false", doc = "x relu6(x + 3) / 6" },
  { "Softsign", "softsign", "", doc = "x / (1 + |x|)" },
  { "GLU", "glu", "Dim dim=-1", doc = "the first half along dim times the sigmoid of the second" },
  { "Hardshrink", "hardshrink", "number lambd=0.5", doc = "x, 0 where |x| <= lambd" },
  { "Softshrink", "softshrink", "number lambd=0.5", doc = "x moved towards 0 by lambd" },
  { "Tanhshrink", "tanhshrink", "", doc = "x - tanh(x)" },
  { "Threshold", "threshold", "number threshold, number value, bool inplace=false",
    doc = "x, value where x <= threshold" },
  { "Softmin", "softmin", "Dim dim", doc = "softmax(-x) along dim" },
  { "Softmax", "softmax", "Dim dim", doc = "exp(x) normalised to sum 1 along dim (counted from 1)" },
  { "LogSoftmax", "log_softmax", "Dim dim", doc = "log(softmax(x)) along dim" },
}

-- The in-place form of an op that has none. The gradient needs the old x, so the op runs on a copy under autograd.
local function in_place(fn, fn_)
  return fn_ or function(x, ...)
    return x:copy_(fn(B.requires_grad(x) and B.grad_enabled() and x:clone() or x, ...))
  end
end

for _, row in ipairs(M.rows) do
  local op, parameters = row[2], row[3]
  local before = parameters:match("^(.-),? ?bool inplace=false$")
  if before then
    local fn, n = ops[op], select(2, before:gsub("%S+ %S+", ""))
    row.inplace = in_place(fn, ops[op .. "_"])
    M.forms[op] = signature(("F.%s(Tensor input, %s)"):format(op, parameters), function(x, a, b, c)
      if n == 0 then return (a and row.inplace or fn)(x) end
      if n == 1 then return (b and row.inplace or fn)(x, a) end
      return (c and row.inplace or fn)(x, a, b)
    end)
  end
end

--- x, value where x <= threshold, in place.
M.forms.threshold_ = signature("F.threshold_(Tensor input, number threshold, number value)", function(x, at, value)
  return M.forms.threshold(x, at, value, true)
end)

return M
