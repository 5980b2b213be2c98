--- Activations as modules, made from one table: nn.ReLU(), nn.GELU{ approximate = "tanh" }, nn.LeakyReLU(0.2), …
--
-- A row says which op runs and which options there are, in the order in which they may be given by position.
-- `inplace` is an option of those whose op has an in-place form.
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local ops = B.ops

local rows = {
  { "ReLU", "relu", inplace = true, doc = "max(x, 0)" },
  { "LeakyReLU", "leaky_relu", { "negative_slope", 0.01 }, inplace = true, doc = "x, or negative_slope x below 0" },
  { "ELU", "elu", { "alpha", 1 }, inplace = true, doc = "x, or alpha (exp(x) - 1) below 0" },
  { "GELU", "gelu", { "approximate", "none" }, doc = "x Φ(x), by erf, or by tanh with approximate = \"tanh\"" },
  { "SiLU", "silu", inplace = true, doc = "x sigmoid(x)" },
  { "Mish", "mish", doc = "x tanh(softplus(x))" },
  { "Softplus", "softplus", { "beta", 1 }, { "threshold", 20 }, doc = "log(1 + exp(beta x)) / beta" },
  { "Hardtanh", "hardtanh", { "min_val", -1 }, { "max_val", 1 }, inplace = true, doc = "x cut to [min_val, max_val]" },
  { "Sigmoid", "sigmoid", doc = "1 / (1 + exp(-x))" },
  { "LogSigmoid", "log_sigmoid", doc = "log(sigmoid(x))" },
  { "Tanh", "tanh", doc = "tanh(x)" },
  { "ReLU6", "relu6", inplace = true, doc = "x cut to [0, 6]" },
  { "SELU", "selu", inplace = true, doc = "1.0507 (x, or 1.6733 (exp(x) - 1) below 0)" },
  { "CELU", "celu", { "alpha", 1 }, inplace = true, doc = "x, or alpha (exp(x / alpha) - 1) below 0" },
  { "Hardsigmoid", "hardsigmoid", inplace = true, doc = "relu6(x + 3) / 6" },
  { "Hardswish", "hardswish", inplace = true, doc = "x relu6(x + 3) / 6" },
  { "Softsign", "softsign", doc = "x / (1 + |x|)" },
  { "GLU", "glu", { "dim", -1 }, doc = "the first half along dim times the sigmoid of the second" },
  { "Hardshrink", "hardshrink", { "lambd", 0.5 }, doc = "x, 0 where |x| <= lambd" },
  { "Softshrink", "softshrink", { "lambd", 0.5 }, doc = "x moved towards 0 by lambd" },
  { "Tanhshrink", "tanhshrink", doc = "x - tanh(x)" },
  { "Threshold", "threshold", { "threshold" }, { "value" }, doc = "x, value where x <= threshold" },
  { "Softmin", "softmin", { "dim" }, doc = "softmax(-x) along dim" },
  { "Softmax", "softmax", { "dim" }, doc = "exp(x) normalised to sum 1 along dim (counted from 1)" },
  { "LogSoftmax", "log_softmax", { "dim" }, doc = "log(softmax(x)) along dim" },
}

-- A number, dimension or word as PyTorch's listing shows it.
local function show(name, value)
  if type(value) == "string" then return ("%s='%s'"):format(name, value) end
  if name == "dim" then return ("dim=%d"):format(value > 0 and value - 1 or value) end
  return value == math.floor(value) and ("%s=%.1f"):format(name, value) or ("%s=%.14g"):format(name, value)
end

local function check_value(where, name, value)
  if name == "approximate" then
    if value ~= "none" and value ~= "tanh" then
      check.fail("%s: approximate is 'none' or 'tanh', got %s", where, tostring(value))
    end
  elseif name == "dim" then
    if type(value) ~= "number" or value == 0 or value ~= math.floor(value) then
      check.fail("%s: dim is a dimension, counted from 1 (or from the end by -1), got %s", where, tostring(value))
    end
  else
    check.number(where, name, value)
  end
end

local function make(row)
  local name, op = row[1], row[2]
  local options, allowed = {}, row.inplace and "inplace" or ""
  for i = 3, #row do
    options[i - 2] = row[i]
    allowed = row[i][1] .. " " .. allowed
  end
  local cls = class(name, Module)
  cls.doc = row.doc

  function cls:__init(...)
    local n, o = select("#", ...), {}
    local last = n > 0 and (select(n, ...))
    if type(last) == "table" then n, o = n - 1, check.options("nn." .. name, last, allowed) end
    if n > #options then check.fail("nn.%s: too many arguments; the options are: %s", name, allowed) end
    for i, option in ipairs(options) do
      local value = option[2]
      if i <= n then value = (select(i, ...)) elseif o[option[1]] ~= nil then value = o[option[1]] end
      check_value("nn." .. name, option[1], value)
      self[option[1]] = value
    end
    if row.inplace then self.inplace = o.inplace == true end
  end

  if name == "GELU" then
    function cls:forward(x) return self.approximate == "tanh" and ops.gelu_tanh(x) or ops.gelu(x) end
  else
    local first, second = options[1] and options[1][1], options[2] and options[2][1]
    local fn, fn_ = ops[op] or require("moth.nn.functional")[op], row.inplace and ops[op .. "_"]
    function cls:forward(x)
      local run = self.inplace and fn_ or fn
      if second then return run(x, self[first], self[second]) end
      if first then return run(x, self[first]) end
      return run(x)
    end
  end

  function cls:extra_repr()
    local parts = {}
    for i, option in ipairs(options) do parts[i] = show(option[1], self[option[1]]) end
    if self.inplace then parts[#parts + 1] = "inplace=True" end
    return table.concat(parts, ", ")
  end

  return cls
end

local M = {}
for _, row in ipairs(rows) do M[row[1]] = make(row) end
return M
