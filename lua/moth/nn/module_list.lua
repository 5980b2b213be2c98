--- nn.ModuleList: modules by position. `for i, m in ipairs(list) do`, `list[1]`, `list[-1]`, `#list`; `list[{ 2, -1 }]`
-- is a list of the same modules, from the second to the last.
local class = require "moth.class"
local check = require "moth.utils.check"
local Ordered = require "moth.nn.ordered"
local Module = require "moth.nn.module"
local each = require "moth.each"

local ModuleList = class("ModuleList", Module)

--- @tparam[opt] table list modules
function ModuleList:__init(list, ...)
  if Module.is(list) then check.fail("[nn.ModuleList] expected a list of modules; write nn.ModuleList{ … }") end
  if select("#", ...) > 0 then check.fail("[nn.ModuleList] too many arguments; write nn.ModuleList{ … }") end
  self:extend(list or {})
end

-- Children are stored twice: by name in the registry, as in all modules, and by position at self[1], self[2], …, so
-- that #list and ipairs(list) work and forward builds no list. `mirror` copies registry to positions at once; `adopt`
-- copies positions to registry (after list[2] = m, table.remove(list)) when the module is next walked.

local function mirror(self)
  local values = Ordered.values(rawget(self, "_modules"))
  for i = 1, math.max(#values, #self) do rawset(self, i, values[i]) end
end

-- The registry for the modules by position: names are kept; modules without one get PyTorch's name for the position.
local function renamed(self, n, map)
  local named, out = {}, Ordered.new()
  for name, m in Ordered.items(map) do
    if not name:find("^%d+$") then named[m] = name end
  end
  for i = 1, n do
    local m = rawget(self, i)
    out[named[m] or tostring(i - 1)] = m
  end
  rawset(self, "_modules", out)
end

local function adopt(self)
  local map, n = rawget(self, "_modules"), #self
  local names, same = Ordered.keys(map), true
  for i = 1, math.max(n, #names) do same = same and rawequal(rawget(self, i), names[i] and rawget(map, names[i])) end
  if same then return end
  for key in each(self) do
    if type(key) == "number" and (key < 1 or key > n) then
      check.fail("%s: there is a module at position %s and none before it", self.__name, tostring(key))
    end
  end
  for i = 1, n do
    local m = rawget(self, i)
    if not Module.is(m) then check.fail("%s: element %d is no module but %s", self.__name, i, class.name(m)) end
  end
  if n ~= #names then return renamed(self, n, map) end
  for i, name in ipairs(names) do map[name] = rawget(self, i) end
end

function ModuleList:registry(name)
  adopt(self)
  return Module.registry(self, name)
end

-- The modules from one position to another, as { first, last } or { { first, last } }. Numbered ones of a ModuleList
-- get new names, those of a Sequential keep theirs, as in PyTorch.
local function slice(self, key)
  if #key == 1 and type(key[1]) == "table" then key = key[1] end
  local n, bounds = #self, { 1, -1 }
  for i = 1, 2 do
    local at = key[i] == nil and bounds[i] or key[i]
    if #key > 2 or type(at) ~= "number" or at ~= math.floor(at) then
      check.fail("%s: a slice is written list[{ first, last }], both ends included", self.__name)
    end
    bounds[i] = at < 0 and n + 1 + at or at
  end
  local cls = self.__numbered and ModuleList or require "moth.nn.sequential"
  local out, names = cls(), Ordered.keys(self:registry("_modules"))
  for i = math.max(bounds[1], 1), math.min(bounds[2], n) do
    out:add_module(self.__numbered and names[i]:find("^%d+$") and tostring(#out) or names[i], rawget(self, i))
  end
  out.training = self.training
  return out
end
ModuleList.__numbered = true

function ModuleList.__index(self, key)
  if key == 0 then
    check.fail("%s[0]: moth counts from 1; the first module is [1] (its name in a state dict is '0')", self.__name)
  end
  if type(key) == "number" then return key < 0 and rawget(self, #self + 1 + key) or nil end
  if type(key) == "table" then return slice(self, key) end
  local value = getmetatable(self)[key]
  if value ~= nil then return value end
  adopt(self)
  return Module.__index(self, key)
end

--- list[i] = module replaces (or, one beyond the end, appends).
function ModuleList.__newindex(self, key, value)
  if type(key) ~= "number" then
    adopt(self)
    Module.__newindex(self, key, value)
    return mirror(self)
  end
  local n = #self
  if key < 0 then key = n + 1 + key end
  if not Module.is(value) then check.fail("%s[%d]: expected a module, got %s", self.__name, key, class.name(value)) end
  if key == n + 1 then return self:append(value) end
  if key < 1 or key > n then check.fail("%s[%d]: there are %d modules", self.__name, key, n) end
  rawset(self, key, value)
end

--- The children as a list, repeated ones too.
function ModuleList:children_in_order() return { unpack(self) } end

--- The number of modules.
function ModuleList:size() return #self end

--- `for i, m in list:iter() do`, or ipairs(list)
function ModuleList:iter() return ipairs(self) end

--- Raises unless a plain table has integer keys only, without a hole.
function ModuleList.check_list(name, list)
  if getmetatable(list) ~= nil then return end
  local hole = check.hole(list)
  if hole then
    check.fail("[nn.%s] the list has a hole: it has element %s and none before it%s", name, tostring(hole),
      name == "ParameterList" and "" or "; where a module is left out, write nn.Identity()")
  end
  for key in each(list) do
    if type(key) ~= "number" then check.fail("[nn.%s] unknown option '%s'", name, tostring(key)) end
  end
end

--- Adds a module at the end, under PyTorch's name for its position ("0", "1", …). Returns the list.
function ModuleList:append(m)
  if not Module.is(m) then check.fail("%s: expected a module, got %s", self.__name, class.name(m)) end
  self:add_module(tostring(#self), m)
  return self
end

--- Adds the modules of a list at the end. Returns this list.
function ModuleList:extend(list)
  if type(list) ~= "table" then
    check.fail("[nn.%s] expected a list of modules, got %s", self.__name, class.name(list))
  end
  ModuleList.check_list(self.__name, list)
  for _, m in ipairs(list) do self:append(m) end
  return self
end

local function replace_all(self, list)
  for i = 1, math.max(#list, #self) do rawset(self, i, list[i]) end
  adopt(self)
end

local function position(self, i, n)
  if type(i) ~= "number" or i ~= math.floor(i) then
    check.fail("[nn.%s] expected a position, got %s", self.__name, tostring(i))
  end
  local at = i < 0 and #self + 1 + i or i
  if at < 1 or at > n then check.fail("[nn.%s] position %d: there are %d modules", self.__name, i, #self) end
  return at
end

--- Puts a module before position i (one beyond the end: appends).
function ModuleList:insert(i, m)
  if not Module.is(m) then check.fail("[nn.%s] insert: expected a module, got %s", self.__name, class.name(m)) end
  local list = { unpack(self) }
  table.insert(list, position(self, i, #list + 1), m)
  replace_all(self, list)
  return self
end

--- Removes the module at a position, the last if not given, and returns it.
function ModuleList:pop(i)
  local list = { unpack(self) }
  local m = table.remove(list, position(self, i or -1, #list))
  replace_all(self, list)
  return m
end

return ModuleList
