--- nn.ModuleList: modules by position. `for i, m in list:iter() do`, `list[1]`, `list[-1]`, `list:size()`.
local class = require "moth.class"
local check = require "moth.utils.check"
local Ordered = require "moth.nn.ordered"
local Module = require "moth.nn.module"

local ModuleList = class("ModuleList", Module)

--- @tparam[opt] table list modules
function ModuleList:__init(list)
  if Module.is(list) then check.fail("nn.ModuleList: expected a list of modules; write nn.ModuleList{ … }") end
  self:extend(list or {})
end

function ModuleList.__index(self, key)
  if type(key) ~= "number" then return Module.__index(self, key) end
  local list = self:children_in_order()
  return list[key < 0 and #list + 1 + key or key]
end

--- list[i] = module replaces (or, one beyond the end, appends).
function ModuleList.__newindex(self, key, value)
  if type(key) ~= "number" then return Module.__newindex(self, key, value) end
  local names = self._modules:keys()
  if key < 0 then key = #names + 1 + key end
  if not Module.is(value) then check.fail("%s[%d]: expected a module, got %s", self.__name, key, class.name(value)) end
  if key == #names + 1 then return self:append(value) end
  if not names[key] then check.fail("%s[%d]: there are %d modules", self.__name, key, #names) end
  self._modules[names[key]] = value
end

--- The children as a list, repeated ones too.
function ModuleList:children_in_order() return Ordered.values(rawget(self, "_modules")) end

function ModuleList:size() return #self:children_in_order() end

--- `for i, m in list:iter() do`
function ModuleList:iter() return ipairs(self:children_in_order()) end

--- Adds a module at the end, under PyTorch's name for its place ("0", "1", …). Returns the list.
function ModuleList:append(m)
  if not Module.is(m) then check.fail("%s: expected a module, got %s", self.__name, class.name(m)) end
  local n = Ordered.len(rawget(self, "_modules"))
  self:add_module(tostring(n), m)
  return self
end

function ModuleList:extend(list)
  for _, m in ipairs(list) do self:append(m) end
  return self
end

return ModuleList
