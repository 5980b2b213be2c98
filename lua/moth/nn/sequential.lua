--- nn.Sequential: runs its children in order.
--
--     local seq = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
--     seq[1]              -- the first: Lua counts from 1 …
--     seq:state_dict()    -- … but names are PyTorch's: "0.weight", "0.bias", "2.weight", …
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local Module = require "moth.nn.module"
local ModuleList = require "moth.nn.module_list"

local Sequential = class("Sequential", Module)

--- Modules, or one list of them, or one list of { name, module } pairs.
function Sequential:__init(...)
  local list = { ... }
  if select("#", ...) == 1 and type(list[1]) == "table" and not Module.is(list[1]) then list = list[1] end
  ModuleList.check_list("Sequential", list)
  if list[select("#", ...)] == nil and select("#", ...) > 1 and #list < select("#", ...) then
    check.fail("[nn.Sequential] element %d is nil; where a module is left out, write nn.Identity()", #list + 1)
  end
  for i, m in ipairs(list) do
    if type(m) == "table" and not Module.is(m) and type(m[1]) == "string" then
      self:add_module(m[1], m[2])
    else
      if not Module.is(m) then
        check.fail("[nn.Sequential] element %d is no module but %s", i, class.name(m))
      end
      self:append(m)
    end
  end
end

-- Indexing, size, iteration and appending are those of ModuleList.
Sequential.__index, Sequential.__newindex = ModuleList.__index, ModuleList.__newindex
Sequential.size, Sequential.iter, Sequential.append = ModuleList.size, ModuleList.iter, ModuleList.append
Sequential.extend, Sequential.registry = ModuleList.extend, ModuleList.registry
Sequential.insert, Sequential.pop = ModuleList.insert, ModuleList.pop

-- Modules of moth.nn without children and hooks retain neither their input nor their output, so Sequential may free
-- the tensors between them. plain[cls]: whether a class is moth.nn's own.
local plain = setmetatable({}, { __mode = "k", __index = function(t, cls)
  local nn = require "moth.nn"
  t[cls] = rawget(nn, cls.__name) == cls
  return t[cls]
end })

local function keeps_nothing(m)
  return not m._hooks and plain[getmetatable(m)] and not next(m._modules) and not rawget(m, "forward")
end

--- x -> last(… second(first(x))). The first child may take several values.
-- A result between two children that retain nothing is freed here, not by the collector; autograd retains its own.
function Sequential:forward(...)
  local list, n = self, #self
  if n == 0 then return ... end
  if n == 1 then return list[1](...) end
  local x = list[1](...)
  -- Identity and in-place modules return their input: it is the caller's, not ours to free.
  local ours = keeps_nothing(list[1]) and not rawequal(x, (...))
  for i = 2, n do
    local clean = keeps_nothing(list[i])
    local y = list[i](x)
    local same = rawequal(x, y)
    if ours and clean and not same and B.is_tensor(x) then B.free(x) end
    x, ours = y, clean and (ours or not same)
  end
  return x
end

Sequential.children_in_order = ModuleList.children_in_order

return Sequential
