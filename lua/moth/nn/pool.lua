--- Pooling as modules, made from one table: nn.MaxPool2d(2), nn.AvgPool2d(3, 2, { padding = 1 }),
-- nn.AdaptiveAvgPool2d({ 7, -1 }); nn.MaxUnpool1d, 2d, 3d; nn.Unfold, nn.Fold.
--
-- A row has the function, the number of arguments before its options, the parameters as a signature, and the options
-- to print.
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local functional = require "moth.nn.functional"
local sizes = require "moth.nn.sizes"

local max = "int|int[] kernel_size, int|int[] stride?, int|int[] padding=0, int|int[] dilation=1, \z
  bool return_indices=false, bool ceil_mode=false"
local avg = "int|int[] kernel_size, int|int[] stride?, int|int[] padding=0, bool ceil_mode=false, \z
  bool count_include_pad=true"
local fold = "int|int[] kernel_size, int|int[] dilation=1, int|int[] padding=0, int|int[] stride=1"
local lp = "number norm_type, int|int[] kernel_size, int|int[] stride?, bool ceil_mode=false"
local fractional = "int|int[] kernel_size, int|int[] output_size?, number|number[] output_ratio?, \z
  bool return_indices=false, Tensor _random_samples?"
local lp_shown = { "stride", "ceil_mode" }
local max_shown = { "stride", "padding", "dilation", "ceil_mode" }
local fold_shown = { "dilation", "padding", "stride" }
local rows = {
  { "MaxPool1d", "max_pool1d", 1, max, shown = max_shown },
  { "MaxPool2d", "max_pool2d", 1, max, shown = max_shown },
  { "AvgPool1d", "avg_pool1d", 1, avg, shown = { "stride", "padding" }, tuple = true },
  { "MaxPool3d", "max_pool3d", 1, max, shown = max_shown },
  { "AvgPool2d", "avg_pool2d", 1, avg .. ", count divisor_override?", shown = { "stride", "padding" } },
  { "AvgPool3d", "avg_pool3d", 1, avg .. ", count divisor_override?", shown = { "stride", "padding" } },
  { "AdaptiveAvgPool1d", "adaptive_avg_pool1d", 1, "int|int[] output_size" },
  { "AdaptiveAvgPool2d", "adaptive_avg_pool2d", 1, "int|int[] output_size" },
  { "AdaptiveAvgPool3d", "adaptive_avg_pool3d", 1, "int|int[] output_size" },
  { "AdaptiveMaxPool1d", "adaptive_max_pool1d", 1, "int|int[] output_size, bool return_indices=false" },
  { "AdaptiveMaxPool2d", "adaptive_max_pool2d", 1, "int|int[] output_size, bool return_indices=false" },
  { "AdaptiveMaxPool3d", "adaptive_max_pool3d", 1, "int|int[] output_size, bool return_indices=false" },
  { "LPPool1d", "lp_pool1d", 2, lp, shown = lp_shown },
  { "LPPool2d", "lp_pool2d", 2, lp, shown = lp_shown },
  { "LPPool3d", "lp_pool3d", 2, lp, shown = lp_shown },
  { "FractionalMaxPool2d", "fractional_max_pool2d", 1, fractional, silent = true },
  { "FractionalMaxPool3d", "fractional_max_pool3d", 1, fractional, silent = true },
  { "Unfold", "unfold", 1, fold, shown = fold_shown },
  { "Fold", "fold", 2, "int|int[] output_size, " .. fold, shown = fold_shown },
}

local function show(v, tuple)
  if tuple and type(v) == "table" and #v == 1 then return ("(%d,)"):format(v[1]) end
  if tuple and type(v) == "number" then return ("(%d,)"):format(v) end
  if type(v) == "boolean" then return v and "True" or "False" end
  if v == nil then return "None" end
  if type(v) ~= "table" then return tostring(v) end
  local list = {}
  for i, x in ipairs(v) do list[i] = x == -1 and "None" or tostring(x) end
  return "(" .. table.concat(list, ", ") .. ")"
end

local function check_size(where, name, v)
  local list = type(v) == "table" and v or { v }
  if #list == 0 then check.fail("[%s] %s is an empty list", where, name) end
  for _, x in ipairs(list) do check.integer(where, name, x, name == "output_size" and -1 or 0) end
end

local function make(row)
  local name, n = row[1], row[3]
  local where = "nn." .. name
  local cls, fn = class(name, Module), functional[row[2]]
  local text = ("%s(%s)"):format(where, row[4])
  local _, parameters = signature.parameters(text)
  local leading = { parameters[1].name, n == 2 and parameters[2].name or nil }

  cls.__init = signature.init(text, function(self, o)
    self.options = {}
    for i, p in ipairs(parameters) do
      local v = o[p.name]
      if p.type:find("^int") and v ~= nil then check_size(where, p.name, v) end
      if p.name == "_random_samples" then self:register_buffer(p.name, v) else self[p.name] = v end
      if i > n then self.options[p.name] = v end
    end
    if parameters[2] and parameters[2].name == "stride" and not self.stride then self.stride = self.kernel_size end
    if row.silent and (o.output_size == nil) == (o.output_ratio == nil) then
      check.fail("[%s] give output_size or output_ratio", where)
    end
  end)

  if #parameters == n then
    function cls:forward(x) return fn(x, self[leading[1]]) end
  elseif n == 2 then
    function cls:forward(x) return fn(x, self[leading[1]], self[leading[2]], self.options) end
  else
    function cls:forward(x) return fn(x, self[leading[1]], self.options) end
  end

  function cls:extra_repr()
    local parts = {}
    if row.silent then return "" end
    local function add(field) parts[#parts + 1] = ("%s=%s"):format(field, show(self[field], row.tuple)) end
    for _, argument in ipairs(leading) do add(argument) end
    for _, option in ipairs(row.shown or {}) do add(option) end
    return table.concat(parts, ", ")
  end

  return cls
end

local M = {}
for _, row in ipairs(rows) do M[row[1]] = make(row) end

--- nn.MaxUnpool1d, 2d, 3d: the inverse of MaxPool with return_indices, as far as there is one.
for n = 1, 3 do
  local name = ("MaxUnpool%dd"):format(n)
  local cls, fn = class(name, Module), functional[("max_unpool%dd"):format(n)]
  cls.__init = signature.init(("nn.%s(count|count[] kernel_size, count|count[] stride?, size|size[] padding=0)"):format(
    name), function(self, o)
    local where = "nn." .. name
    self.kernel_size = sizes.of(where, "kernel_size", o.kernel_size, n)
    self.stride = sizes.of(where, "stride", o.stride or o.kernel_size, n)
    self.padding = sizes.of(where, "padding", o.padding, n)
  end)
  local read = signature(("nn.%s:forward(Tensor input, Tensor indices, int[] output_size?)"):format(name),
    function(...) return ... end)
  --- x, the positions of pooling, output_size: sizes where pooling has left out a rest
  function cls:forward(...)
    local x, indices, output_size = read(...)
    return fn(x, indices, self.kernel_size, self.stride, self.padding, output_size)
  end
  function cls:extra_repr()
    return ("kernel_size=%s, stride=%s, padding=%s"):format(show(self.kernel_size, true), show(self.stride, true),
      show(self.padding, true))
  end
  M[name] = cls
end

return M
