--- nn.ModuleDict: modules by name. `dict.left`, `dict:get("left")`, `for name, m in dict:named_children() do`.
local class = require "moth.class"
local check = require "moth.utils.check"
local Ordered = require "moth.nn.ordered"
local Module = require "moth.nn.module"
local each = require "moth.each"

local ModuleDict = class("ModuleDict", Module)

--- @tparam[opt] table t { name = module, … } (taken in alphabetical order) or { { name, module }, … }
function ModuleDict:__init(t)
  self:update(t or {})
end

--- Adds the modules of a table { name = module } (in alphabetical order) or of a list { { name, module }, … }.
function ModuleDict:update(t)
  if type(t) ~= "table" or Module.is(t) then
    check.fail("[nn.ModuleDict] expected a table of modules, got %s", class.name(t))
  end
  if Ordered.is(t) then
    for name, m in Ordered.items(t) do self:add_module(name, m) end
    return self
  end
  local names = {}
  for name in each(t) do
    if type(name) == "string" then names[#names + 1] = name end
  end
  table.sort(names)
  for _, name in ipairs(names) do
    if not Module.is(t[name]) then
      check.fail("[nn.ModuleDict] '%s' must be a module, got %s", name, class.name(t[name]))
    end
  end
  for i, pair in ipairs(t) do
    if type(pair) ~= "table" or type(pair[1]) ~= "string" then
      check.fail("[nn.ModuleDict] element %d is no { name, module } but %s", i, class.name(pair))
    end
    self:add_module(pair[1], pair[2])
  end
  for _, name in ipairs(names) do self:add_module(name, t[name]) end
  return self
end

--- The module of a name, or nil.
function ModuleDict:get(name) return rawget(self:registry("_modules"), name) end
--- The names, in order; values(): the modules.
function ModuleDict:keys() return Ordered.keys(self:registry("_modules")) end
function ModuleDict:values() return Ordered.values(self:registry("_modules")) end
--- `for name, value in dict:items() do`
function ModuleDict:items() return Ordered.items(self:registry("_modules")) end
--- The number of modules.
function ModuleDict:size() return #self:keys() end

--- Removes the entry of a name and returns it.
function ModuleDict:pop(name)
  local value = self:get(name)
  if value == nil then check.fail("[nn.ModuleDict] pop: there is no '%s'", tostring(name)) end
  self[name] = nil
  return value
end

--- Removes all.
function ModuleDict:clear()
  for _, name in ipairs(self:keys()) do self[name] = nil end
end

return ModuleDict
