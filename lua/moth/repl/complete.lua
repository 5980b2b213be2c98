--- Completion: the names that may follow what has been typed, through tables, metatables and lists of lazily loaded
-- fields. A metatable may say `__names(x)`: a list of the fields of x that cannot be seen otherwise.
local each = require "moth.each"
local M = {}

local keywords = { "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in",
  "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while" }

local function add_names(set, t)
  if type(t) ~= "table" then return end
  for k in each(t) do if type(k) == "string" then set[k] = true end end
end

--- All fields of a value that can be found without calling its __index: { name = true }.
function M.fields(value)
  local set, seen = {}, {}
  while value ~= nil and not seen[value] do
    seen[value] = true
    add_names(set, value)
    local mt = debug.getmetatable(value)
    if type(mt) ~= "table" then break end
    local names = rawget(mt, "__names")
    if names then
      local ok, list = pcall(names, value)
      for _, n in ipairs(ok and list or {}) do set[n] = true end
    end
    value = rawget(mt, "__index")
    if type(value) == "function" then value = mt end -- a class that is its instances' metatable
    if type(value) ~= "table" then break end
  end
  return set
end

--- The value that a path "a.b.c" names in a table of names, or nil.
function M.resolve(env, path)
  local value = env
  for name in path:gmatch("[%a_][%w_]*") do
    local ok, next_value = pcall(function() return value[name] end)
    if not ok or next_value == nil then return nil end
    value = next_value
  end
  return value
end

local function sorted(set, prefix, before, fits)
  local list = {}
  for name in each(set) do
    if name:sub(1, #prefix) == prefix and (prefix ~= "" or not name:find("^_")) and name:find("^[%a_][%w_]*$")
      and (not fits or fits(name)) then
      list[#list + 1] = before .. name
    end
  end
  table.sort(list)
  return list
end

--- The words that `text` (what stands before the cursor, back to a separator) may become.
function M.candidates(session, text)
  local path, sign, prefix = text:match("^%??([%a_][%w_%.]*)([%.:])([%w_]*)$")
  local mark = text:match("^%??")
  if path then
    local value = M.resolve(session.locals.env, path)
    if value == nil then return {} end
    local set = M.fields(value)
    return sorted(set, prefix, mark .. path .. sign, sign == ":" and function(name)
      local ok, f = pcall(function() return value[name] end)
      return ok and (type(f) == "function" or type(f) == "table" and getmetatable(f) and getmetatable(f).__call)
    end or nil)
  end
  prefix = text:match("^%??([%a_][%w_]*)$") or (text:match("^%??$") and "")
  if not prefix then return {} end
  local set = {}
  for _, n in ipairs(session.locals:names()) do set[n] = true end
  add_names(set, session.locals.globals)
  if mark == "" then for _, k in ipairs(keywords) do set[k] = true end end
  return sorted(set, prefix, mark)
end

return M
