--- module:clone(): a module like it with parameters and buffers of its own (Python's copy.deepcopy).
--
-- Every table and tensor reachable from its fields is copied once, so that sharing within the module (tied weights) is
-- kept. Functions, classes, generators and other values are shared with the original. Hooks are copied too.
local B = require "moth_lua"
local Ordered = require "moth.nn.ordered"
local Buffer = require "moth.nn.buffer"
local Parameter = require "moth.nn.parameter"
local each = require "moth.each"

local copy

local function copy_tensor(t)
  local data = B.ops.clone(B.alias(t, false))
  if Parameter.is(t) then return Parameter.new(data, { requires_grad = B.requires_grad(t) }) end
  return Buffer.like(data, t)
end

local function copy_table(t, seen)
  if rawget(t, "__name") ~= nil then return t end -- a class
  local out
  if Ordered.is(t) then
    out = Ordered.new()
    seen[t] = out
    for key, value in Ordered.items(t) do out[key] = copy(value, seen) end
    return out
  end
  out = setmetatable({}, getmetatable(t))
  seen[t] = out
  for key, value in each(t) do rawset(out, copy(key, seen), copy(value, seen)) end
  return out
end

function copy(v, seen)
  if seen[v] ~= nil then return seen[v] end
  if B.is_tensor(v) then
    seen[v] = copy_tensor(v)
    return seen[v]
  end
  return type(v) == "table" and copy_table(v, seen) or v
end

--- seen: { [part of the module] = what stands in its place }, which is not copied.
return function(module, seen) return copy(module, seen or {}) end
