--- Doc comments, read from the sources of functions and classes (LDoc's form).
local each = require "moth.each"
local signature = require "moth.utils.signature"
local M = {}

local cache = setmetatable({}, { __mode = "v" }) -- path -> its lines

--- The lines of a file, or nil.
function M.lines(path)
  local lines = cache[path]
  if lines then return lines end
  local f = io.open(path)
  if not f then return nil end
  lines = {}
  for line in f:lines() do lines[#lines + 1] = line end
  f:close()
  cache[path] = lines
  return lines
end

-- Replaces LDoc's tags by words.
local function plain_words(line)
  if not line:find("^@") then return line end
  line = line:gsub("@tparam%[?[^%] ]*%]? table o ", "o: "):gsub("@tparam%[?[^%] ]*%]? (%S+) ([%w_]+)", "%2 (%1)")
  return (line:gsub("@param%[?[^%] ]*%]? ([%w_]+)", "%1:"):gsub("^@return ", "returns "))
end

--- The comment that ends above line `at`, without dashes: paragraphs joined into one line, indented lines unchanged.
-- only_doc: nil where it does not begin with three dashes.
function M.above(lines, at, only_doc)
  local first = at - 1
  while first >= 1 and lines[first]:find("^%s*%-%-") do first = first - 1 end
  if only_doc and not (lines[first + 1] or ""):find("^%s*%-%-%-") then return nil end
  local out, open = {}, false
  for i = first + 1, at - 1 do
    local line = lines[i]:gsub("^%s*%-%-%-?%s?", "")
    local prose = line:find("^[^%s@]") ~= nil
    if prose and open then out[#out] = out[#out] .. " " .. line else out[#out + 1] = plain_words(line) end
    open = prose or line:find("^@") ~= nil
  end
  return #out > 0 and table.concat(out, "\n") or nil
end

-- The comment above a group without blank lines, to which line `at` belongs: of functions of one line each, of those
-- that a `for` makes, or of a function with a local before it.
local function above_group(lines, at)
  at = at - 1
  while lines[at] do
    local line = lines[at]
    if line:find "^%s*%-%-" then return M.above(lines, at + 1, true) end
    if line:find "%f[%w]do$" then
      while at > 1 and not lines[at]:find "^%s*for " do at = at - 1 end
    elseif not (line:find "^%s*function .* end$" or line:find "^%s*[%w_.]+ = .* end[%w_., \"]*%)$"
      or line:find "^%s*local [%w_]+ = ") then
      return nil
    end
    at = at - 1
  end
end

--- The comment at the head of a file.
function M.head(lines)
  local last = 1
  while lines[last] and lines[last]:find("^%s*%-%-") do last = last + 1 end
  return M.above(lines, last)
end

-- The line where a function begins; for one made with a signature, the line of that statement.
local function first_line(lines, at, signed)
  for i = at, signed and math.max(at - 8, 1) or at + 1, -1 do
    local line = lines[i] or ""
    for _, maker in ipairs { "signature", "define%(", "method%(", "both%(", "%.init%(" } do
      if line:find(maker) then return i end
    end
  end
  return at
end

--- A function: { head = its signature or first line, doc, place }; nil if it has no source.
function M.of_function(f)
  local signed, given = signature.of(f)
  f = given or f
  local info = debug.getinfo(f, "S")
  local path = info.source:match("^@(.*)")
  if info.what == "C" or not path then return nil end
  local found = { place = ("%s:%d"):format(path, info.linedefined) }
  local lines = M.lines(path)
  if lines then
    found.head = signed or (lines[info.linedefined] or ""):gsub("^%s+", "")
    local first = first_line(lines, info.linedefined, signed)
    found.doc = M.above(lines, info.linedefined, true) or M.above(lines, first) or above_group(lines, first)
  end
  return found
end

-- The file of a loaded module, which is a table of functions or a class; or nil.
local function file_of(module)
  for name, loaded in each(package.loaded) do -- under several names, one of them that of its file
    local path = loaded == module and package.searchpath(name, package.path)
    local lines = path and M.lines(path)
    if lines and not (lines[1] or ""):find('^require "moth"$') then return path, lines end
  end
end

--- A class, from the file that has it alone, or that of its __init (or forward): { head = "class Linear(…)", doc,
-- place }.
function M.of_class(cls, name)
  local f = rawget(cls, "__init") or rawget(cls, "forward") or rawget(cls, "step")
  local signed, given = signature.of(f)
  f = given or f
  -- An __init shared by several classes is made elsewhere: use the file of the class's own method.
  local own_work = rawget(cls, "forward") or rawget(cls, "step_group")
  if given and own_work and debug.getinfo(given, "S").source ~= debug.getinfo(own_work, "S").source then
    f = own_work
  end
  local info = type(f) == "function" and debug.getinfo(f, "S")
  local path = info and info.source:match("^@(.*)")
  local lines, line, own = path and M.lines(path), info and info.linedefined, nil
  -- The call, then the comments at the head of its file and above its __init.
  local arguments = (signed or lines and lines[line] or ""):match(signed and "%b()" or "__init(%b())") or "(…)"
  local file, file_lines = file_of(cls)
  if lines and (not file or file == path) then
    own = M.above(lines, first_line(lines, line, signed))
  else
    path, lines, line = file, file_lines, 1
  end
  if not lines then return { head = "class " .. name } end
  local head = M.head(lines)
  return { head = "class " .. name .. arguments, doc = table.concat({ head or own or "", head and own or nil }, "\n"),
    place = ("%s:%d"):format(path, line) }
end

--- The comment above the line that names a function which is made elsewhere: `M.name = …`, `define("name", …)`; in the
-- file of a module, or of the function f.
function M.of_field(module, name, f)
  local _, lines = file_of(module)
  local own = debug.getinfo(select(2, signature.of(f)) or f, "S").source:match("^@(.*)")
  for _, list in ipairs { lines or {}, own and M.lines(own) or {} } do
    for at, line in ipairs(list) do
      local field = line:match "^%s*[%w_]+%.([%w_]+).-=" or line:match "^%s+([%w_]+) = "
      local called = line:match '^%s*[%w_.:]+[( ]"([%w_]+)' or line:match '= [%w_.]+%("([%w_]+)"'
      if field == name or called == name then
        local doc = M.above(list, at, true)
        if doc then return doc end
      end
    end
  end
end

--- The comment at the head of the file that gives this module, or nil.
function M.of_module(module)
  local _, lines = file_of(module)
  return lines and M.head(lines)
end

return M
