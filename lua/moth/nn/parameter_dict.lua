--- nn.ParameterDict: parameters by name. `dict.left`, `dict:get("left")`, `for name, p in dict:named_parameters() do`.
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local Ordered = require "moth.nn.ordered"
local Module = require "moth.nn.module"
local Parameter = require "moth.nn.parameter"
local each = require "moth.each"

local ParameterDict = class("ParameterDict", Module)

--- @tparam[opt] table t { name = parameter, … } (taken in alphabetical order) or { { name, parameter }, … }
function ParameterDict:__init(t, ...)
  if select("#", ...) > 0 then check.fail("[nn.ParameterDict] too many arguments; write nn.ParameterDict{ … }") end
  self:update(t or {})
end

local function as_parameter(name, value)
  if Parameter.is(value) then return value end
  if B.is_tensor(value) then return Parameter(value) end
  check.fail("[nn.ParameterDict] '%s' must be a parameter or a tensor, got %s", name, class.name(value))
end

--- Adds the entries of a table; tensors become parameters. Returns the dictionary.
function ParameterDict:update(t)
  if type(t) ~= "table" or Module.is(t) then
    check.fail("[nn.ParameterDict] expected a table of parameters, got %s", class.name(t))
  end
  local list = {}
  if Ordered.is(t) then
    for name, p in Ordered.items(t) do list[#list + 1] = { name, p } end
  else
    for i, pair in ipairs(t) do
      if type(pair) ~= "table" or type(pair[1]) ~= "string" then
        check.fail("[nn.ParameterDict] element %d is no { name, parameter } but %s", i, class.name(pair))
      end
      list[#list + 1] = pair
    end
    local names = {}
    for name in each(t) do
      if type(name) == "string" then names[#names + 1] = name end
    end
    table.sort(names)
    for _, name in ipairs(names) do list[#list + 1] = { name, t[name] } end
  end
  for _, pair in ipairs(list) do self:register_parameter(pair[1], as_parameter(pair[1], pair[2])) end
  return self
end

--- The parameter of a name, or nil.
function ParameterDict:get(name) return rawget(self:registry("_parameters"), name) end
--- The names, in order; values(): the parameters.
function ParameterDict:keys() return Ordered.keys(self:registry("_parameters")) end
function ParameterDict:values() return Ordered.values(self:registry("_parameters")) end
--- `for name, value in dict:items() do`
function ParameterDict:items() return Ordered.items(self:registry("_parameters")) end
--- The number of parameters.
function ParameterDict:size() return #self:keys() end

--- Removes the entry of a name and returns it.
function ParameterDict:pop(name)
  local value = self:get(name)
  if value == nil then check.fail("[nn.ParameterDict] pop: there is no '%s'", tostring(name)) end
  self[name] = nil
  return value
end

--- Removes all.
function ParameterDict:clear()
  for _, name in ipairs(self:keys()) do self[name] = nil end
end

--- A parameter as a line of the printed module.
local function line(p)
  local device = B.tensor_device(p)
  return ("Parameter containing: [%s of size %s%s]"):format(tostring(B.tensor_dtype(p)), table.concat(B.size(p), "x"),
    tostring(device) == "cpu" and "" or (" (%s)"):format(tostring(device)))
end
ParameterDict.line = line

function ParameterDict:extra_repr()
  local lines = {}
  for name, p in Ordered.items(self:registry("_parameters")) do
    lines[#lines + 1] = ("(%s): %s"):format(name, line(p))
  end
  return table.concat(lines, "\n")
end

return ParameterDict
