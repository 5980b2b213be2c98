--- "Did you mean" for calls of what is nil: the error has the name only, so the object is looked up by what was typed.
local check = require "moth.utils.check"
local complete = require "moth.repl.complete"
local each = require "moth.each"

local function sorted(set)
  local list = {}
  for name in each(set) do list[#list + 1] = name end
  table.sort(list)
  return list
end

--- "; did you mean 'forward'?" for the error of a typed text, or "".
return function(session, text, message)
  if message:find "^[^\n]*did you mean" then return "" end
  local kind, name = message:match("^[^\n]*attempt to [%a ]+ (%a+) '([%w_]+)' %(a nil value%)")
  if kind == "global" then
    local names = sorted(complete.fields(session.locals.globals))
    for _, n in ipairs(session.locals:names()) do names[#names + 1] = n end
    return check.suggest(name, names)
  end
  if not kind or not text then return "" end
  for first in text:gmatch("()[%a_][%w_%.:%[%]'\"]*") do
    local path = text:match("^([%a_][%w_%.:%[%]'\"]*)[%.:]" .. name .. "%f[^%w_]", first)
    local value = path and complete.resolve(session.locals.env, path)
    if value ~= nil then return check.suggest(name, sorted(complete.fields(value))) end
  end
  return ""
end
