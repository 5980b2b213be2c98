--- Values as the prompt shows them: strings quoted, tables by their keys (nested to a depth, long ones cut), objects by
-- their __tostring.
local each = require "moth.each"
local M = {}

--- Limits of the printed tables and strings.
M.limits = { depth = 3, entries = 40, width = 100, string = 2000 }

local function is_plain(t)
  local mt = getmetatable(t)
  return not (type(mt) == "table" and rawget(mt, "__tostring"))
end

local function quoted(s, colour)
  if #s > M.limits.string then
    return colour("string", ("%q"):format(s:sub(1, M.limits.string)):gsub("\\\n", "\\n")) .. ("… (%d bytes)"):format(#s)
  end
  return colour("string", (("%q"):format(s):gsub("\\\n", "\\n"):gsub("[%z\1-\31\127]", function(c)
    return ("\\%03d"):format(c:byte())
  end)))
end

local function number(x)
  if x == math.floor(x) and math.abs(x) < 1e15 then return ("%d"):format(x) end
  return ("%.14g"):format(x)
end

local function function_place(f)
  local info = debug.getinfo(f, "S")
  if info.what == "C" then return tostring(f):gsub("^function", "C function") end
  return ("function at %s:%d"):format(info.short_src, info.linedefined)
end

-- The keys 1..n first, then the others by kind and name.
local function keys_of(t)
  local n, list = #t, {}
  for k in each(t) do
    if not (type(k) == "number" and k >= 1 and k <= n and k == math.floor(k)) then list[#list + 1] = k end
  end
  table.sort(list, function(a, b)
    if type(a) ~= type(b) then return type(a) < type(b) end
    if type(a) == "number" or type(a) == "string" then return a < b end
    return tostring(a) < tostring(b)
  end)
  return n, list
end

local render

local function render_table(t, colour, depth, seen)
  if seen[t] then return colour("dim", "<seen above>") end
  if next(t) == nil then return "{}" end
  if depth >= M.limits.depth then return colour("dim", "{…}") end
  seen[t] = true
  local parts, shown, long = {}, 0, 0
  local n, rest = keys_of(t)
  local function add(text)
    parts[#parts + 1] = text
    shown, long = shown + 1, long + #text
  end
  for i = 1, math.min(n, M.limits.entries) do add(render(t[i], colour, depth + 1, seen)) end
  for _, k in ipairs(rest) do
    if shown >= M.limits.entries then break end
    local named = type(k) == "string" and k:find("^[%a_][%w_]*$")
    local key = named and k or "[" .. render(k, colour, depth + 1, seen) .. "]"
    add(colour("key", key) .. " = " .. render(rawget(t, k), colour, depth + 1, seen))
  end
  seen[t] = nil
  local left = n + #rest - shown
  if left > 0 then parts[#parts + 1] = colour("dim", ("… %d more"):format(left)) end
  local one = table.concat(parts, ", ")
  if long <= M.limits.width and not one:find("\n", 1, true) then return "{ " .. one .. " }" end
  return "{\n  " .. table.concat(parts, ",\n"):gsub("\n", "\n  ") .. "\n}"
end

function render(v, colour, depth, seen)
  local kind = type(v)
  if kind == "string" then return quoted(v, colour) end
  if kind == "number" then return colour("number", number(v)) end
  if kind == "function" then return colour("dim", (function_place(v))) end
  if kind == "table" and is_plain(v) then return render_table(v, colour, depth, seen) end
  return tostring(v)
end

--- One value as text. colour(kind, text), if given, decorates it.
function M.value(v, colour)
  return render(v, colour or function(_, text) return text end, 0, {})
end

-- The name of a loaded module, as "moth.nn", or nil.
local function module_name(t)
  local found
  for name, module in each(package.loaded) do
    if module == t and (not found or #name < #found) then found = name end
  end
  return found
end

--- A result as the prompt shows it: a string of several lines unquoted, a module by its name, else its value.
function M.result(v, colour)
  if type(v) == "string" and v:find("\n", 1, true) and #v <= M.limits.string and not v:find("[%z\1-\8\11-\31]") then
    return v
  end
  local name = type(v) == "table" and is_plain(v) and module_name(v)
  if name then return ("module %s: ?%s lists it"):format(name, name) end
  return M.value(v, colour)
end

return M
