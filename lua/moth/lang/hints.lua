--- What to write instead, for mistakes whose message LuaJIT makes: methods that an object lacks, methods called with a
-- dot, tensors compared by operators. Classes ask for a method's error (moth.class); the launcher and the prompt for
-- the hint of an error that nobody caught.
local bit = require "bit"
local util = require "jit.util"
local each = require "moth.each"
local M = {}

-- The instructions of `o:x()`: the object is copied to where the first argument is, then the method is read from it.
local function decode(f, pc)
  local word = util.funcbc(f, pc)
  if not word then return nil end
  return bit.band(word, 0xff), bit.band(bit.rshift(word, 8), 0xff), bit.rshift(word, 24),
    bit.band(bit.rshift(word, 16), 0xff), bit.rshift(word, 16)
end
local MOV, GET, APART
do
  local f = loadstring "local o = ... local r = o:x() return r"
  for pc = 2, util.funcinfo(f).bytecodes - 1 do
    local op, a, b, c = decode(f, pc)
    local before, slot, _, _, from = decode(f, pc - 1)
    if not GET and util.funck(f, -c - 1) == "x" and b == from then MOV, GET, APART = before, op, slot - a end
  end
end

-- Whether the line of `f` that runs calls the method `key` of something, and does not read it as a field as well, as
-- `if o.x then o:x() end` does. @treturn int the slot of the object, or nil; and that of its copy, the first argument
local function called(f, line, key)
  if not GET then return nil end
  local found, copy
  for pc = 1, util.funcinfo(f).bytecodes - 1 do
    if util.funcinfo(f, pc).currentline == line then
      local op, a, b, c = decode(f, pc)
      if op == GET and util.funck(f, -c - 1) == key then
        local before, slot, _, _, from = decode(f, pc - 1)
        if not (before == MOV and slot == a + APART and from == b) then return nil end
        if not found then found, copy = b, slot end
      end
    end
  end
  return found, copy
end

--- The error of `object:key(…)`, if that is what the Lua code does just now with a key that its object lacks; nil for a
-- field that is read. It is called by __index, of which there may be three in a chain.
function M.method(key)
  local object
  for level = 3, 6 do
    local info = debug.getinfo(level, "fl")
    local slot = info and info.currentline > 0 and called(info.func, info.currentline, key)
    if slot then
      object = select(2, debug.getlocal(level, slot + 1))
      break
    end
  end
  local check, class = require "moth.utils.check", require "moth.class"
  if not class.is_a(object, class.Object) or object[key] ~= nil then return nil end
  local names = {}
  for name in each(require("moth.repl.complete").fields(object)) do
    if name:sub(1, 1) ~= "_" then names[#names + 1] = name end
  end
  table.sort(names)
  return ("%s has no method '%s'%s"):format(class.name(object), key, check.suggest(key, names))
end

-- The name of the method that was called with a dot, in whose frame the error is: its first parameter is `self`.
local function dotted()
  for level = 3, 10 do
    local info = debug.getinfo(level, "n")
    if not info then return nil end
    local name, value = debug.getlocal(level, 1)
    if name == "self" then
      local class = require "moth.class"
      local has = class.is_a(value, class.Object) and value[info.name] ~= nil
      return info.namewhat ~= "method" and not has and info.name or nil
    end
  end
end

--- For methods that are often called with a dot: an error unless `self` is an object. `example`: "opt:step()".
function M.need_self(self, example)
  if type(self) == "table" then return end
  require("moth.utils.check").fail("a method was called with a dot and has no self; write a colon: %s", example)
end

-- "; did you mean 'x'?" for a method that is nil, of an object of any kind: the call is in the innermost Lua frame.
local function meant(key)
  for level = 3, 10 do
    local info = debug.getinfo(level, "fl")
    if not info then return nil end
    if info.currentline > 0 then
      local _, copy = called(info.func, info.currentline, key)
      local object = copy and select(2, debug.getlocal(level, copy + 1))
      if object == nil then return nil end
      local check = require "moth.utils.check"
      local names = {}
      for name in each(require("moth.repl.complete").fields(object)) do names[#names + 1] = name end
      table.sort(names)
      local text = check.suggest(key, names)
      return text ~= "" and text or nil
    end
  end
end

-- "; did you mean 'x'?" for a name that is nowhere: of the variables that the innermost Lua frame sees, and globals.
local function meant_name(name)
  local names = {}
  for key in each(_G) do names[#names + 1] = key end
  for level = 3, 10 do
    local info = debug.getinfo(level, "fl")
    if not info then break end
    if info.currentline > 0 then
      for _, variables in ipairs { { debug.getlocal, level }, { debug.getupvalue, info.func } } do
        local get, of = unpack(variables)
        for i = 1, 250 do
          local variable, value = get(of, i)
          if not variable then break end
          if value ~= nil and variable:find "^[%a_]" then names[#names + 1] = variable end
        end
      end
      break
    end
  end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  return require("moth.utils.check").suggest(name, names)
end

--- What to put behind the message of an error, "\nHINT: …" or "; did you mean …", or "". A message handler calls it, so
-- that the frames are there.
function M.of(message)
  if message:find "attempt to compare.*userdata" then
    return "\nHINT: a tensor is compared by methods: x:lt(0), x:le, x:gt, x:ge, x:eq, x:ne; they give a bool tensor"
  end
  local global = message:match "global '([%w_]+)' %(a nil value%)$"
  if global then return require("moth.lang.torch7").hint_of_global(global) or meant_name(global) end
  local name_called, kind = message:match "attempt to call %a+ '([%w_]+)' %(a (%w+) value%)$" -- net:training()
  local torch7 = name_called and kind ~= "nil" and require("moth.lang.torch7").hint(name_called)
  if torch7 then return torch7 end
  if not (message:find "local 'self' %(a %w+ value%)" or message:find "attempt to call method .* %(a nil value%)"
    or message:find "a tensor has no method or field") then return "" end
  local key = message:match "attempt to call method '([%w_]+)' %(a nil value%)$"
  local other = key and meant(key)
  if other then return other end
  local name = dotted()
  return name and ("\nHINT: call '%s' with a colon, object:%s(…): with a dot it has no self"):format(name, name) or ""
end

return M
