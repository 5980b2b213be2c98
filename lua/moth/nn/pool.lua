--- Pooling as modules, made from one table: nn.MaxPool2d(2), nn.AvgPool2d(3, { stride = 2, padding = 1 }),
-- nn.AdaptiveAvgPool2d({ 7, -1 }); and nn.Unfold, nn.Fold.
--
-- A row says which function runs, its leading arguments, and the options, each with the value that the listing shows
-- where there is none (false: it is not shown then).
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local functional = require "moth.nn.functional"

local max_options = { { "stride" }, { "padding", 0 }, { "dilation", 1 }, { "return_indices", false },
  { "ceil_mode", false } }
local avg_options = { { "stride" }, { "padding", 0 }, { "ceil_mode", false }, { "count_include_pad", true },
  { "divisor_override", false } }
local max_shown = { "stride", "padding", "dilation", "ceil_mode" }
local fold_options = { { "dilation", 1 }, { "padding", 0 }, { "stride", 1 } }
local rows = {
  { "MaxPool1d", "max_pool1d", { "kernel_size" }, max_options, shown = max_shown },
  { "MaxPool2d", "max_pool2d", { "kernel_size" }, max_options, shown = max_shown },
  { "AvgPool1d", "avg_pool1d", { "kernel_size" }, { unpack(avg_options, 1, 4) }, shown = { "stride", "padding" },
    tuple = true },
  { "AvgPool2d", "avg_pool2d", { "kernel_size" }, avg_options, shown = { "stride", "padding" } },
  { "AdaptiveAvgPool1d", "adaptive_avg_pool1d", { "output_size" }, {} },
  { "AdaptiveAvgPool2d", "adaptive_avg_pool2d", { "output_size" }, {} },
  { "AdaptiveMaxPool2d", "adaptive_max_pool2d", { "output_size" }, { { "return_indices", false } } },
  { "Unfold", "unfold", { "kernel_size" }, fold_options, shown = { "dilation", "padding", "stride" } },
  { "Fold", "fold", { "output_size", "kernel_size" }, fold_options, shown = { "dilation", "padding", "stride" } },
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
  if #list == 0 then check.fail("%s: %s is missing", where, name) end
  for _, x in ipairs(list) do check.integer(where, name, x, name == "output_size" and -1 or 0) end
  return v
end

local function make(row)
  local name, leading, options = row[1], row[3], row[4]
  local where = "nn." .. name
  local cls, fn = class(name, Module), functional[row[2]]
  local allowed = {}
  for i, option in ipairs(options) do allowed[i] = option[1] end
  allowed = table.concat(allowed, " ")

  -- Leading arguments, then options in a table, or the first of them (stride, padding, …) by position.
  function cls:__init(...)
    local given, n, o = { ... }, select("#", ...), nil
    local last = given[n]
    if n > #leading and type(last) == "table" and #last == 0 then n, o = n - 1, last end
    o = check.options(where, o, allowed)
    if n > #leading + math.min(#options, 3) then
      check.fail("%s: too many arguments; the options are: %s", where, allowed)
    end
    for i, argument in ipairs(leading) do self[argument] = check_size(where, argument, given[i]) end
    self.options = {}
    for i, option in ipairs(options) do
      local value = o[option[1]]
      if value == nil and i <= 3 and #leading + i <= n then value = given[#leading + i] end
      if type(option[2]) == "boolean" then
        if value == nil then value = option[2] end
      elseif value == nil then
        value = option[2]
      else
        check_size(where, option[1], value)
      end
      self[option[1]], self.options[option[1]] = value, value
    end
    if self.stride == nil and leading[1] == "kernel_size" then self.stride = self.kernel_size end
    if self.options.divisor_override == false then self.options.divisor_override = nil end
  end

  if #options == 0 then
    function cls:forward(x) return fn(x, self[leading[1]]) end
  elseif leading[2] then
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
