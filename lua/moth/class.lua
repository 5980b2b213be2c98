--- Classes: `local class = require "moth.class"`.
--
--     local Point = class("Point")
--     function Point:__init(x, y) self.x, self.y = x, y end
--     local p = Point(1, 2)
--     local Pixel = Point:subclass("Pixel")   -- or class("Pixel", Point)
--     Pixel(1, 2):is_a(Point)                 --> true
--
-- A class is the metatable of its instances, so metamethods are written as methods (`Point:__tostring`). A subclass
-- inherits the metamethods that its base had when it was made. `Class.__new(cls)`, if defined, makes the instance
-- before `__init` runs, with state that must exist even if `__init` does not call the base's.
-- `class.sequence(Class, at)`: for its instances `#x` is x:size(), and x[i] is at(x, i).
local each = require "moth.each"

--- The base of all classes.
local Object = { __name = "Object" }
Object.__index = Object

--- Is `self` an instance of `cls` or of one of its subclasses?
function Object:is_a(cls)
  local c = getmetatable(self)
  while c do
    if c == cls then return true end
    c = rawget(c, "super")
  end
  return false
end

--- A new instance of cls, with its __init called: what Class(…) does.
local function construct(cls, ...)
  local new = cls.__new
  local object = new and new(cls) or {}
  if rawget(cls, "__sequence") then -- Lua 5.1 calls __len of userdata only; the fields are its environment
    object = debug.setfenv(newproxy(), object)
    debug.setmetatable(object, cls)
  else
    setmetatable(object, cls)
  end
  local init = cls.__init
  if init then init(object, ...) end
  return object
end

local function name_of(cls) return "class " .. cls.__name end

-- Fields that are read though they are nowhere are nil. A name that is called as a method is an error that says so; a
-- name that was read as a field three times is none.
local reads, unknown = {}, 0
--- missing(key), for a class with an __index of its own: raises the error of `object:key()`, if that is what the code
-- does that called it, or returns nil.
local function missing(key)
  local n = reads[key] or 0
  if n == 3 or unknown > 1e4 or type(key) ~= "string" then return nil end
  reads[key] = 3 -- while method looks
  local wrong = require("moth.lang.hints").method(key)
  reads[key] = wrong and n or n + 1
  if wrong then require("moth.utils.check").fail("%s", wrong) end
  if n == 0 then unknown = unknown + 1 end
end
local function look(_, key)
  local value = Object[key]
  if value ~= nil then return value end
  return (missing(key))
end

--- A new class. @tparam string name @param[opt] base its super class
local function class(name, base)
  local fail = require("moth.utils.check").fail -- not at the top: check needs the binding
  if type(name) ~= "string" then fail("class: expected a name, got %s", type(name)) end
  if base ~= nil and (type(base) ~= "table" or type(rawget(base, "__name")) ~= "string") then
    fail("class: expected a class as base of '%s', got %s", name, type(base))
  end
  base = base or Object
  local cls = { super = base }
  for key, value in each(base) do
    if type(key) == "string" and key:find("^__") then cls[key] = value end
  end
  cls.__name, cls.__init, cls.__new = name, nil, nil -- __init and __new are inherited by __index
  if base.__index == base then cls.__index = cls end
  return setmetatable(cls, { __index = base == Object and look or base, __call = construct, __tostring = name_of })
end

--- A subclass of `self`.
function Object:subclass(name) return class(name, self) end

local M = { Object = Object, construct = construct, missing = missing }

local fields = debug.getfenv

local function length(self) return self:size() end
local function set(self, key, value) fields(self)[key] = value end

--- Gives instances of cls and of its subclasses `#x` as x:size() and x[i] as at(x, i). They are userdata, otherwise
-- like other instances. Call it before cls has instances or subclasses.
function M.sequence(cls, at)
  cls.__sequence, cls.__len, cls.__newindex = true, length, set
  function cls.__index(self, key)
    local value = fields(self)[key]
    if value ~= nil then return value end
    if type(key) == "number" then return at(self, key) end
    return getmetatable(self)[key]
  end
  return cls
end

--- The fields of an instance as a table, for code that walks objects.
function M.fields(x) return type(x) == "userdata" and fields(x) or x end

--- `class.is_a(x, cls)` takes any value; `class.name(x)` is the name of an instance's class, else its Lua type.
function M.is_a(x, cls)
  local kind = type(x)
  return (kind == "table" or kind == "userdata") and type(getmetatable(x)) == "table" and Object.is_a(x, cls)
end
--- The name of a value's class, or its type.
function M.name(x)
  local kind = type(x)
  local mt = (kind == "table" or kind == "userdata") and getmetatable(x)
  return mt and type(mt) == "table" and rawget(mt, "__name") or type(x)
end

return setmetatable(M, { __call = function(_, name, base, ...)
  if select("#", ...) > 0 then require("moth.utils.check").fail("class: too many arguments; class(name, base)") end
  return class(name, base)
end })
