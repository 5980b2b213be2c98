--- Checks of users' arguments. An error points at the user's line that led here, not at moth's own.
local B = require "moth_lua"
local each = require "moth.each"
local M = {}

-- "@…/lua/moth/": the folder of moth's own Lua files.
local own = debug.getinfo(1, "S").source:match("^(.*[/\\])utils[/\\]check%.lua$") or "@?"

-- The message under the name of the function that the user called (src/lua/handle.c does so for ops).
local function renamed(message, name)
  if not name then return message end
  local was, rest = message:match("^%[([%w_.]+)%](.*)$")
  if not was and not message:find(name:match("[%w_]+$"), 1, true) then return ("[%s] %s"):format(name, message) end
  if not was or was == name then return message end
  local at = rest:find("; " .. was .. "(", 1, true)
  if at then rest = rest:sub(1, at + 1) .. name .. rest:sub(at + 2 + #was) end
  return "[" .. name .. "]" .. rest
end

--- Raises a formatted message at the nearest line that is not moth's own.
function M.fail(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  message = message .. require("moth.lang.trace").place()
  local level, name = 2, nil
  while true do
    local info = debug.getinfo(level, "Slf")
    if not info then error(renamed(message, name), 2) end
    if info.currentline > 0 and info.source:sub(1, #own) ~= own then
      error(("%s:%d: %s"):format(info.short_src, info.currentline, renamed(message, name)), 0)
    end
    name = B.names[info.func] or name
    level = level + 1
  end
end

local warned = {}

--- Writes a formatted warning with the nearest line that is not moth's own, once for each line.
function M.warn(message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  local level, info = 2, debug.getinfo(2, "Sl")
  while info and (info.currentline <= 0 or info.source:sub(1, #own) == own) do
    level = level + 1
    info = debug.getinfo(level, "Sl")
  end
  local place = info and ("%s:%d"):format(info.short_src, info.currentline) or "?"
  local key = place .. message:gsub("%d+", "")
  if warned[key] then return end
  warned[key] = true
  io.stderr:write("[moth] warning: ", place, ": ", message, "\n")
end

--- Whether a value can be called as a function: a function, a module, a class; a tensor cannot.
function M.is_callable(v)
  local mt = (type(v) == "table" or type(v) == "userdata" and not B.is_tensor(v)) and getmetatable(v)
  return type(v) == "function" or type(mt) == "table" and rawget(mt, "__call") ~= nil
end

--- Whether a table is plain data, not an object of a class; lists that moth returns count as plain.
function M.is_plain(t)
  local mt = getmetatable(t)
  return mt == nil or type(mt) == "table" and rawget(mt, "__list") == true
end

--- The first element of a plain table that has none before it, as in { a, nil, b }; nil: there is no hole.
function M.hole(t)
  if getmetatable(t) ~= nil then return nil end
  local n, last = 0, 0
  for key in each(t) do
    if type(key) == "number" then
      n = n + 1
      last = math.max(last, key)
    end
  end
  if n == last then return nil end
  for i = 1, last do
    if t[i] == nil then
      repeat i = i + 1 until t[i] ~= nil or i > last
      return math.min(i, last)
    end
  end
  return last
end

--- An integer of at least `min` (default 0); returns it.
function M.integer(where, name, value, min)
  min = min or 0
  if type(value) ~= "number" or value ~= math.floor(value) or value < min then
    M.fail("%s: %s must be an integer of at least %d, got %s", where, name, min, tostring(value))
  end
  return value
end

--- A number of at least `min` (if given); returns it.
function M.number(where, name, value, min)
  if type(value) ~= "number" or value ~= value or (min and value < min) then
    M.fail("%s: %s must be a number%s, got %s", where, name, min and (" of at least %g"):format(min) or "",
      tostring(value))
  end
  return value
end

--- A tensor; returns it.
function M.tensor(where, name, value)
  if not require("moth_lua").is_tensor(value) then
    M.fail("[%s] argument '%s': expected a tensor, got %s", where, name, type(value))
  end
  return value
end

-- The edit distance of a and b: letters added, removed or changed, or two neighbours swapped.
local function distance(a, b)
  local before, last = nil, {}
  for j = 0, #b do last[j] = j end
  for i = 1, #a do
    local now = { [0] = i }
    for j = 1, #b do
      local same = a:byte(i) == b:byte(j)
      now[j] = math.min(last[j] + 1, now[j - 1] + 1, last[j - 1] + (same and 0 or 1))
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        now[j] = math.min(now[j], before[j - 2] + 1)
      end
    end
    before, last = last, now
  end
  return last[#b]
end

--- "; did you mean 'x'?" for the name among `names` (a list) that looks most like `name`, or "".
function M.suggest(name, names)
  local torch7 = require "moth.lang.torch7".hint(name)
  if torch7 then return torch7 end
  local best, least = nil, math.max(1, math.floor(#name / 3)) + 0.5
  local lower = name:lower()
  for _, candidate in ipairs(names) do
    local other = candidate:lower()
    local d = distance(lower, other)
    if d > least and #name >= 4 and (other:find(lower, 1, true) or lower:find(other, 1, true)) and #other >= 4 then
      d = 1.25 + math.abs(#other - #name) / 100 -- one name contains the other
    end
    if d < least then best, least = candidate, d end
  end
  return best and ("; did you mean '%s'?"):format(best) or ""
end

--- The options table `o` (or an empty one), all of whose keys are in `allowed` ("a b c").
function M.options(where, o, allowed)
  if o == nil then return {} end
  if type(o) ~= "table" then
    M.fail("%s: expected a table of options (%s), got %s", where, allowed, type(o))
  end
  for key in each(o) do
    if type(key) ~= "string" or not (" " .. allowed .. " "):find(" " .. key .. " ", 1, true) then
      local names = {}
      for name in allowed:gmatch("%S+") do names[#names + 1] = name end
      M.fail("%s: unknown option '%s'%s; there are: %s", where, tostring(key), M.suggest(tostring(key), names), allowed)
    end
  end
  return o
end

return M
