--- Classes: `local class = require "moth.class"`.
--
--     local Point = class("Point")
--     function Point:__init(x, y) self.x, self.y = x, y end
--     local p = Point(1, 2)
--     local Pixel = Point:subclass("Pixel")   -- or class("Pixel", Point)
--     Pixel(1, 2):is_a(Point)                 --> true
--
-- A class is the metatable of its instances, so metamethods are written as methods (`Point:__tostring`).
-- A subclass has those that its base had when it was made. `Class.__new(cls)`, where there is one, makes
-- the bare instance before `__init` runs: state that must be there even if `__init` calls no base.
local each = require "moth.each"

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

local function construct(cls, ...)
  local new = cls.__new
  local object = setmetatable(new and new(cls) or {}, cls)
  local init = cls.__init
  if init then init(object, ...) end
  return object
end

local function name_of(cls) return "class " .. cls.__name end

--- A new class. @tparam string name @param[opt] base its super class
local function class(name, base)
  local fail = require("moth.utils.check").fail -- here: check needs the binding, and few programs come this way
  if type(name) ~= "string" then fail("class: expected a name, got %s", type(name)) end
  if base ~= nil and (type(base) ~= "table" or type(rawget(base, "__name")) ~= "string") then
    fail("class: expected a class as base of '%s', got %s", name, type(base))
  end
  base = base or Object
  local cls = { super = base }
  for key, value in each(base) do
    if type(key) == "string" and key:find("^__") then cls[key] = value end
  end
  cls.__name, cls.__init, cls.__new = name, nil, nil -- the last two are found through the base
  if base.__index == base then cls.__index = cls end
  return setmetatable(cls, { __index = base, __call = construct, __tostring = name_of })
end

--- A subclass of `self`.
function Object:subclass(name) return class(name, self) end

--- `class.is_a(x, cls)` takes any value; `class.name(x)` is the name of an instance's class, else its Lua type.
local M = { Object = Object }
function M.is_a(x, cls) return type(x) == "table" and Object.is_a(x, cls) end
function M.name(x)
  local mt = type(x) == "table" and getmetatable(x)
  return mt and type(mt) == "table" and rawget(mt, "__name") or type(x)
end

return setmetatable(M, { __call = function(_, name, base, ...)
  if select("#", ...) > 0 then require("moth.utils.check").fail("class: too many arguments; class(name, base)") end
  return class(name, base)
end })
