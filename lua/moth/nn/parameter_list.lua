--- nn.ParameterList: parameters by position. `for i, p in ipairs(list) do`, `list[1]`, `list[-1]`, `#list`.
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local Ordered = require "moth.nn.ordered"
local Module = require "moth.nn.module"
local ModuleList = require "moth.nn.module_list"
local Parameter = require "moth.nn.parameter"
local ParameterDict = require "moth.nn.parameter_dict"

local ParameterList = class("ParameterList", Module)

--- @tparam[opt] table list parameters; tensors become parameters
function ParameterList:__init(list, ...)
  if select("#", ...) > 0 then check.fail("[nn.ParameterList] too many arguments; write nn.ParameterList{ … }") end
  self:extend(list or {})
end

-- Parameters are stored twice, as the modules of a ModuleList: by name in the registry and by position at self[1] ….
-- What was assigned to a position (or removed from one) goes to the registry when the list is next walked.
local function adopt(self)
  local map, n = rawget(self, "_parameters"), #self
  local same = n == #Ordered.keys(map)
  for i = 1, n do same = same and rawequal(rawget(self, i), rawget(map, tostring(i - 1))) end
  if same then return end
  local out = Ordered.new()
  for i = 1, n do
    local p = rawget(self, i)
    if not B.is_tensor(p) then check.fail("%s: element %d is no parameter but %s", self.__name, i, class.name(p)) end
    if not Parameter.is(p) then
      p = Parameter(p)
      rawset(self, i, p)
    end
    out[tostring(i - 1)] = p
  end
  rawset(self, "_parameters", out)
end

function ParameterList:registry(name)
  adopt(self)
  return Module.registry(self, name)
end

function ParameterList:put_registered(registry, name, value)
  Module.put_registered(self, registry, name, value)
  local i = registry == "_parameters" and tonumber(name)
  if i then rawset(self, i + 1, value) end
end

function ParameterList.__index(self, key)
  if key == 0 then check.fail("%s[0]: moth counts from 1; the first parameter is [1]", self.__name) end
  if type(key) == "number" then return key < 0 and rawget(self, #self + 1 + key) or nil end
  return Module.__index(self, key)
end

function ParameterList.__newindex(self, key, value)
  if type(key) ~= "number" then return Module.__newindex(self, key, value) end
  local n = #self
  if key < 0 then key = n + 1 + key end
  if key == n + 1 then return self:append(value) end
  check.fail("%s[%s]: there are %d parameters", self.__name, tostring(key), n)
end

--- The number of parameters.
function ParameterList:size() return #self end
--- `for i, p in list:iter() do`, or ipairs(list)
function ParameterList:iter() return ipairs(self) end

--- Adds a parameter at the end. Returns the list.
function ParameterList:append(p)
  if not B.is_tensor(p) then check.fail("[nn.ParameterList] expected a parameter, got %s", class.name(p)) end
  if not Parameter.is(p) then p = Parameter(p) end
  local n = #self
  rawset(self, n + 1, p)
  self._parameters[tostring(n)] = p
  return self
end

--- Adds the parameters of a list at the end. Returns this list.
function ParameterList:extend(list)
  if type(list) ~= "table" or Module.is(list) and not list:is_a(ParameterList) then
    check.fail("[nn.ParameterList] expected a list of parameters, got %s", class.name(list))
  end
  ModuleList.check_list("ParameterList", list)
  for _, p in ipairs(list) do self:append(p) end
  return self
end

function ParameterList:extra_repr()
  local lines = {}
  for i, p in ipairs(self) do lines[i] = ("(%d): %s"):format(i - 1, ParameterDict.line(p)) end
  return table.concat(lines, "\n")
end

return ParameterList
