--- Pooling as modules, made from one table: nn.MaxPool2d(2), nn.AvgPool2d(3, 2, { padding = 1 }),
-- nn.AdaptiveAvgPool2d({ 7, -1 }); and nn.Unfold, nn.Fold.
--
-- A row has the function, the number of arguments before its options, the parameters as a signature, and the options
-- to print.
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Module = require "moth.nn.module"
local functional = require "moth.nn.functional"

local max = "int|int[] kernel_size, int|int[] stride?, int|int[] padding=0, int|int[] dilation=1, \z
  bool return_indices=false, bool ceil_mode=false"
local avg = "int|int[] kernel_size, int|int[] stride?, int|int[] padding=0, bool ceil_mode=false, \z
  bool count_include_pad=true"
local fold = "int|int[] kernel_size, int|int[] dilation=1, int|int[] padding=0, int|int[] stride=1"
local max_shown = { "stride", "padding", "dilation", "ceil_mode" }
local fold_shown = { "dilation", "padding", "stride" }
local rows = {
  { "MaxPool1d", "max_pool1d", 1, max, shown = max_shown },
  { "MaxPool2d", "max_pool2d", 1, max, shown = max_shown },
  { "AvgPool1d", "avg_pool1d", 1, avg, shown = { "stride", "padding" }, tuple = true },
  { "AvgPool2d", "avg_pool2d", 1, avg .. ", count divisor_override?", shown = { "stride", "padding" } },
  { "AdaptiveAvgPool1d", "adaptive_avg_pool1d", 1, "int|int[] output_size" },
  { "AdaptiveAvgPool2d", "adaptive_avg_pool2d", 1, "int|int[] output_size" },
  { "AdaptiveMaxPool2d", "adaptive_max_pool2d", 1, "int|int[] output_size, bool return_indices=false" },
  { "Unfold", "unfold", 1, fold, shown = fold_shown },
  { "Fold", "fold", 2, "int|int[] output_size, " .. fold, shown = fold_shown },
}

local function show(v, tuple)
  if tuple and type(v) == "number" then return ("(%d,)"):format(v) end
  if type(v) == "boolean" then return v and "True" or "False" end
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
      self[p.name] = v
      if i > n then self.options[p.name] = v end
    end
    if parameters[2] and parameters[2].name == "stride" and not self.stride then self.stride = self.kernel_size end
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
    local function add(field) parts[#parts + 1] = ("%s=%s"):format(field, show(self[field], row.tuple)) end
    for _, argument in ipairs(leading) do add(argument) end
    for _, option in ipairs(row.shown or {}) do add(option) end
    return table.concat(parts, ", ")
  end

  return cls
end

local M = {}
for _, row in ipairs(rows) do M[row[1]] = make(row) end
return M
