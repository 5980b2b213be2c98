--- nn.utils.parametrize: parameters that are computed from others each time they are read.
--
--     local P = nn.utils.parametrize
--     P.register_parametrization(layer, "weight", Symmetric())     -- a module; layer.weight is its result
--     layer.parametrizations.weight.original                       -- the parameter that is trained
--
-- The module gets a class of its own, whose fields of these names are computed; state dicts have
-- "parametrizations.weight.original", as PyTorch's.
--
-- What is written to a computed tensor in place would be lost, and is an error; assigning to the field goes through the
-- right_inverse of the parametrization.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ModuleDict = require "moth.nn.module_dict"
local ModuleList = require "moth.nn.module_list"
local Parameter = require "moth.nn.parameter"
local Ordered = require "moth.nn.ordered"
local each = require "moth.each"

local M = {}

local cache, depth = {}, 0 -- list -> value, within M.cached

-- ---- the list of a tensor's parametrizations ---------------------------------------------------------

local List = class("ParametrizationList", ModuleList)
List.__init = function(self, list, ...)
  if select("#", ...) > 0 then check.fail("[ParametrizationList] too many arguments") end
  ModuleList.__init(self, list)
  rawset(self, "_count", 1)
end

local function originals(self)
  if self._count == 1 then return { self.original } end
  local list = {}
  for i = 1, self._count do list[i] = self["original" .. (i - 1)] end
  return list
end

--- The value of the tensor.
function List:forward()
  local values, modules = originals(self), self:children_in_order()
  local x = modules[1](unpack(values, 1, #values))
  for i = 2, #modules do x = modules[i](x) end
  return x
end

-- What the originals must be for a value: through right_inverse, from the last to the first.
local function inverted(where, modules, value)
  for i = #modules, 1, -1 do
    local m = modules[i]
    if m.right_inverse then value = moth.no_grad(function() return m:right_inverse(value) end) end
    if type(value) ~= "table" then value = { value } end
    if i > 1 then
      if #value ~= 1 then check.fail("%s: only the first parametrization may have several originals", where) end
      value = value[1]
    end
  end
  return value
end

-- Makes the originals those of a value.
local function assign(self, value)
  local modules = self:children_in_order()
  for _, m in ipairs(modules) do
    if not m.right_inverse then
      check.fail("[nn.utils.parametrize] a value cannot be assigned: %s has no right_inverse(value), which gives the \z
        original for it", m.__name)
    end
  end
  local list = inverted("parametrize", modules, value)
  for i, t in ipairs(originals(self)) do moth.no_grad(function() t:copy_(list[i]) end) end
end

-- Whether x is a tensor that a module keeps, or shares its memory with one.
local function kept(x, list)
  for _, t in ipairs(originals(list)) do if x:shares_storage(t) then return true end end
  for _, m in ipairs(list:children_in_order()) do
    for _, fields in ipairs { m._parameters, m._buffers, m } do
      for _, t in each(fields) do if B.is_tensor(t) and x:shares_storage(t) then return true end end
    end
  end
  return false
end
-- The tensor's value, to which nothing can be written: it would be lost.
local function value_of(list)
  local x = list()
  return B.is_tensor(x) and not kept(x, list) and B.computed(x) or x
end

-- ---- classes with computed fields --------------------------------------------------------------------

local classes = setmetatable({}, { __mode = "k" }) -- class -> the same with computed fields

local function parametrized_class(base)
  if classes[base] then return classes[base] end
  local cls = class("Parametrized" .. base.__name, base)
  local index, newindex = base.__index, base.__newindex
  cls.__index = function(self, key)
    local lists = rawget(self, "_parametrized")
    local list = lists and lists[key]
    if list then
      if depth == 0 then return (value_of(list)) end
      cache[list] = cache[list] or value_of(list)
      return cache[list]
    end
    return index(self, key)
  end
  cls.__newindex = function(self, key, value)
    local lists = rawget(self, "_parametrized")
    local list = lists and lists[key]
    if list then return assign(list, value) end
    return newindex(self, key, value)
  end
  classes[base] = cls
  return cls
end

local function lists_of(module) return rawget(module, "_parametrized") end

--- Has the module parametrizations, or that tensor of it?
M.is_parametrized = signature("nn.utils.parametrize.is_parametrized(Module module, string tensor_name?)",
  function(module, name)
    local lists = lists_of(module)
    return lists ~= nil and (name == nil or lists[name] ~= nil)
  end)

--- The module's class before it had parametrizations.
M.type_before_parametrizations = signature("nn.utils.parametrize.type_before_parametrizations(Module module)",
  function(module) return lists_of(module) and getmetatable(module).super or getmetatable(module) end)

--- Makes module[tensor_name] the result of parametrization(original). Its right_inverse(value), if it has one, gives
-- the original for the value that the tensor has (a list: several originals). unsafe: shape and dtype may change.
-- Several parametrizations of a tensor follow one another. Returns the module.
M.register_parametrization = signature("nn.utils.parametrize.register_parametrization(Module module, \z
  string tensor_name, Module parametrization, *, bool unsafe=false)", function(module, name, parametrization, unsafe)
  local where = "[nn.utils.parametrize.register_parametrization]"
  local lists = lists_of(module)
  local list = lists and lists[name]
  local before
  if list then
    before = module[name]:detach()
    local value = inverted(where, { parametrization }, before)
    if #value ~= 1 then check.fail("%s only the first parametrization may have several originals", where) end
    assign(list, value[1])
    list:append(parametrization)
  else
    local registry = rawget(module:registry("_parameters"), name) and "_parameters"
      or rawget(module:registry("_buffers"), name) and "_buffers"
    if not registry then
      check.fail("%s %s has no parameter or buffer '%s'", where, module.__name, name)
    end
    local tensor = rawget(module[registry], name)
    before = tensor:detach():clone()
    list = List { parametrization }
    rawset(list, "_count", 1)
    local values = inverted(where, { parametrization }, before)
    list._count = #values
    for i, value in ipairs(values) do
      local key = #values == 1 and "original" or "original" .. (i - 1)
      if registry == "_buffers" then
        list:register_buffer(key, value)
      elseif #values == 1 and not unsafe and tostring(value:size()) == tostring(tensor:size()) then
        moth.no_grad(function() tensor:copy_(value) end)
        list[key] = tensor
      else
        list[key] = Parameter(value:clone(), { requires_grad = B.requires_grad(tensor) })
      end
    end
    module[registry][name] = nil
    if not lists then
      lists = {}
      rawset(module, "_parametrized", lists)
      setmetatable(module, parametrized_class(getmetatable(module)))
      module.parametrizations = ModuleDict()
    end
    module.parametrizations:add_module(name, list)
    lists[name] = list
  end
  if not unsafe then
    local after = moth.no_grad(function() return module[name] end)
    local text = B.is_tensor(after) and B.format(after) or class.name(after)
    if text ~= B.format(before) then
      check.fail("%s the parametrization changes '%s' from %s to %s; give unsafe = true if it is meant", where, name,
        B.format(before), text)
    end
  end
  return module
end)

--- Makes a tensor plain again. leave_parametrized: with the value that it has, else with that of the original.
M.remove_parametrizations = signature("nn.utils.parametrize.remove_parametrizations(Module module, \z
  string tensor_name, bool leave_parametrized=true)", function(module, name, leave)
  local lists = lists_of(module)
  local list = lists and lists[name]
  if not list then
    check.fail("[nn.utils.parametrize.remove_parametrizations] %s has no parametrized tensor '%s'", module.__name, name)
  end
  local first = originals(list)[1]
  if not leave and list._count > 1 then
    check.fail("[nn.utils.parametrize.remove_parametrizations] '%s' has several originals: its value must be kept",
      name)
  end
  local tensor = first
  if leave then
    local value = moth.no_grad(function() return module[name] end)
    if Parameter.is(first) and list._count == 1 and tostring(value:size()) == tostring(first:size()) then
      moth.no_grad(function() first:copy_(value) end)
    elseif Parameter.is(first) then
      tensor = Parameter(value:clone(), { requires_grad = B.requires_grad(first) })
    else
      tensor = value:clone()
    end
  end
  lists[name] = nil
  module.parametrizations:registry("_modules")[name] = nil
  if #Ordered.keys(module.parametrizations:registry("_modules")) == 0 then
    module._modules.parametrizations = nil
    rawset(module, "_parametrized", nil)
    setmetatable(module, getmetatable(module).super)
  end
  if Parameter.is(tensor) then module[name] = tensor else module:register_buffer(name, tensor) end
  return module
end)

--- fn(): parametrized tensors that are read in it are computed once.
M.cached = signature("nn.utils.parametrize.cached(callable fn)", function(fn)
  depth = depth + 1
  local function done(ok, ...)
    depth = depth - 1
    if depth == 0 then cache = {} end
    if not ok then error((...), 0) end
    return ...
  end
  return done(pcall(fn))
end)

--- Moves the parametrizations (of one tensor, or all) of a module to another one of the same kind, with their values.
M.transfer_parametrizations_and_params = signature("nn.utils.parametrize.transfer_parametrizations_and_params(\z
  Module from_module, Module to_module, string tensor_name?)", function(from, to, name)
  local lists = from.parametrizations and from.parametrizations:registry("_modules") or Ordered.new()
  for key, list in Ordered.items(lists) do
    if name == nil or key == name then
      for _, m in ipairs(list:children_in_order()) do M.register_parametrization(to, key, m, { unsafe = true }) end
      local theirs = originals(to.parametrizations:get(key))
      for i, t in ipairs(originals(list)) do moth.no_grad(function() theirs[i]:copy_(t) end) end
    end
  end
  return to
end)

return M
