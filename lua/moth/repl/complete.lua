--- Completion of names through tables, metatables and lists of lazily loaded fields. A metatable may have
-- `__names(x)`: a list of fields of x that are not in its tables.
local each = require "moth.each"
local system = require "moth.utils.system"
local M = {}

local keywords = { "and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in",
  "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while" }

local function add_names(set, t)
  if type(t) ~= "table" then return end
  for k in each(t) do if type(k) == "string" then set[k] = true end end
end

--- All fields of a value that are known without calling its __index: { name = true }.
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

-- The steps of a path after its first name: a pattern, and a function from its match to the key.
local steps = {
  { "^[%.:]([%a_][%w_]*)", tostring }, { "^%[(%-?%d+)%]", tonumber }, { "^%['([^'\\]*)'%]", tostring },
  { '^%["([^"\\]*)"%]', tostring },
}

-- The key at index `at` of a path and the index after it, or nil.
local function step(path, at)
  for _, s in ipairs(steps) do
    local _, last, key = path:find(s[1], at)
    if last then return s[2](key), last + 1 end
  end
end

-- The keys of a path such as a.b[1]['c']:d, or nil.
local function keys_of(path)
  local first, at = path:match("^([%a_][%w_]*)()")
  local keys = { first }
  while at and at <= #path do keys[#keys + 1], at = step(path, at) end
  return at and keys
end
M.keys = keys_of

--- The value of a path "a.b[1].c" in the table `env`, or nil.
function M.resolve(env, path)
  local value = env
  local keys = keys_of(path)
  if not keys then return nil end
  for _, name in ipairs(keys) do
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

-- The index at which the string that is still open at the end of `line` begins, or nil.
local function open_string(line)
  local at = 1
  while true do
    local first, quote
    first, at, quote = line:find("([\"'])", at)
    if not first then return nil end
    local from = at + 1
    repeat
      at = line:find("[\\" .. quote .. "]", at + 1)
      if not at then return from end
      local escaped = line:sub(at, at) == "\\"
      if escaped then at = at + 1 end
    until not escaped
    at = at + 1
  end
end

-- The paths of files that begin with `path`; folders end in "/".
local function files(path)
  local folder, prefix = path:match("^(.*/)([^/]*)$")
  folder, prefix = folder or "", prefix or path
  local listed = (folder == "" and "." or folder):gsub("^~/", (os.getenv("HOME") or "~") .. "/")
  local pipe = io.popen(("ls -1Ap -- %s 2>/dev/null"):format(system.quoted(listed)))
  local list = {}
  for name in pipe:lines() do
    local hidden = prefix == "" and name:sub(1, 1) == "."
    if name:sub(1, #prefix) == prefix and not hidden then list[#list + 1] = folder .. name end
  end
  pipe:close()
  return list
end

-- The path from index `first` to the end of the line: the path of the object, "." or ":", and the typed part of the
-- field's name; or nil.
local function path_from(line, first)
  local at = line:match("^[%a_][%w_]*()", first)
  while at do
    local sign, prefix = line:match("^([%.:])([%w_]*)$", at)
    if sign then return line:sub(first, at - 1), sign, prefix end
    at = select(2, step(line, at))
  end
end

local function typed_path(line)
  for first = 1, #line do
    if line:find("^[%a_]", first) and (first == 1 or not line:find("^[%w_%.:]", first - 1)) then
      local path, sign, prefix = path_from(line, first)
      if path then return line:sub(1, first - 1):match("%??$"), path, sign, prefix end
    end
  end
end

local function callable(value)
  return function(name)
    local ok, f = pcall(function() return value[name] end)
    return ok and (type(f) == "function" or type(f) == "table" and getmetatable(f) and getmetatable(f).__call)
  end
end

--- Completions of the end of `line`: the number of its last characters to replace, and a list of replacements.
function M.proposals(session, line)
  local path = line:match("^%s*%%run%s+(.*)$")
  if path then return #path, files(path) end
  local mark, value, sign, prefix
  mark, path, sign, prefix = typed_path(line)
  if path then
    value = M.resolve(session.locals.env, path)
    if value == nil then return 0, {} end
    local typed = mark .. path .. sign
    return #typed + #prefix, sorted(M.fields(value), prefix, typed, sign == ":" and callable(value) or nil)
  end
  local from = open_string(line)
  if from then return #line - from + 1, files(line:sub(from)) end
  mark, prefix = line:match("(%??)([%a_][%w_]*)$")
  if not prefix then
    if line:find("[^%s%(%[{=,?]$") then return 0, {} end
    mark, prefix = line:match("%??$"), ""
  end
  local set = {}
  for _, n in ipairs(session.locals:names()) do set[n] = true end
  add_names(set, session.locals.globals)
  if mark == "" then for _, k in ipairs(keywords) do set[k] = true end end
  return #mark + #prefix, sorted(set, prefix, mark)
end

--- The completions of `text` (the word before the cursor, as the line editor splits it), given the whole line up to the
-- cursor.
function M.candidates(session, text, line)
  line = line or text
  local n, list = M.proposals(session, line)
  local more = n - #text -- characters before `text` that are replaced, too, but that the editor keeps
  for i, word in ipairs(list) do list[i] = more > 0 and word:sub(more + 1) or text:sub(1, -more) .. word end
  return list
end

return M
