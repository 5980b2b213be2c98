--- `?name`: the kind of a value, its doc, and the place of its source.
--
-- Docs are the comments above a function, read from its source (LDoc's form); for an op, the doc in the op table; for
-- a class, the comment at the head of its file.
local each = require "moth.each"
local signature = require "moth.utils.signature"
local M = {}

local function read_lines(path)
  local f = io.open(path)
  if not f then return nil end
  local lines = {}
  for line in f:lines() do lines[#lines + 1] = line end
  f:close()
  return lines
end

-- Replaces LDoc's tags by words.
local function plain_words(line)
  if not line:find("^@") then return line end
  line = line:gsub("@tparam%[?[^%] ]*%]? table o ", "o: "):gsub("@tparam%[?[^%] ]*%]? (%S+) ([%w_]+)", "%2 (%1)")
  return (line:gsub("@param%[?[^%] ]*%]? ([%w_]+)", "%1:"):gsub("^@return ", "returns "))
end

-- The comment that ends above line `at`, without dashes: paragraphs joined into one line, indented lines unchanged.
local function comment_above(lines, at)
  local first = at - 1
  while first >= 1 and lines[first]:find("^%s*%-%-") do first = first - 1 end
  local out, open = {}, false
  for i = first + 1, at - 1 do
    local line = lines[i]:gsub("^%s*%-%-%-?%s?", "")
    local prose = line:find("^[^%s@]") ~= nil
    if prose and open then out[#out] = out[#out] .. " " .. line else out[#out + 1] = plain_words(line) end
    open = prose or line:find("^@") ~= nil
  end
  return #out > 0 and table.concat(out, "\n") or nil
end

local function head_comment(lines)
  local last = 1
  while lines[last] and lines[last]:find("^%s*%-%-") do last = last + 1 end
  return comment_above(lines, last)
end

-- The line where a function begins; for one made with a signature, the line of that statement.
local function first_line(lines, at, signed)
  for i = at, signed and math.max(at - 8, 1) or at + 1, -1 do
    if (lines[i] or ""):find("signature") or lines[i]:find("define%(") or lines[i]:find("%.init%(") then return i end
  end
  return at
end

--- Help on a Lua function: its first line or signature, comment and place.
function M.of_function(f)
  local signed, given = signature.of(f)
  f = given or f
  local info = debug.getinfo(f, "S")
  if info.what == "C" then return "a C function" end
  local path = info.source:match("^@(.*)")
  local lines = path and read_lines(path)
  local place = ("%s:%d"):format(path or info.short_src, info.linedefined)
  if not lines then return "a function of " .. place end
  local head = signed or (lines[info.linedefined] or ""):gsub("^%s+", "")
  local doc = comment_above(lines, first_line(lines, info.linedefined, signed))
  return head .. (doc and "\n" .. doc or "") .. "\n  defined at " .. place
end

local function op_name(name)
  local ops = require "moth.dispatch.ops"
  return ops.get(name) and name or ops.get((name:gsub("_$", ""))) and name:gsub("_$", "")
end

local function names_of(value)
  local list = {}
  for name in each(require("moth.repl.complete").fields(value)) do
    if not name:find("^_") then list[#list + 1] = name end
  end
  table.sort(list)
  return list
end

local function wrapped(list)
  local lines, line = {}, " "
  for _, name in ipairs(list) do
    if #line + #name > 98 then
      lines[#lines + 1] = line
      line = " "
    end
    line = line .. " " .. name
  end
  lines[#lines + 1] = line
  return table.concat(lines, "\n")
end

-- Help on a class, from the file of its __init (or forward).
local function of_class(cls, name)
  local f = rawget(cls, "__init") or rawget(cls, "forward") or rawget(cls, "step")
  local text = "class " .. name
  local signed, given = signature.of(f)
  f = given or f
  -- An __init shared by several classes is made elsewhere: use the file of the class's own method.
  local own_work = rawget(cls, "forward") or rawget(cls, "step_group")
  if given and own_work and debug.getinfo(given, "S").source ~= debug.getinfo(own_work, "S").source then
    f = own_work
  end
  if type(f) == "function" then
    local info = debug.getinfo(f, "S")
    local lines = info.source:find("^@") and read_lines(info.source:sub(2))
    if lines then
      -- The call, then the comment above its __init (or at the head of the file, if that has one class).
      local arguments = (signed or lines[info.linedefined] or ""):match(signed and "%b()" or "__init(%b())") or "(…)"
      local own, head = comment_above(lines, first_line(lines, info.linedefined, signed)), head_comment(lines)
      text = "class " .. name .. arguments .. "\n" .. table.concat({ head or own or "", head and own or nil }, "\n")
        .. ("\n  defined at %s:%d"):format(info.source:sub(2), info.linedefined)
    end
  end
  return text .. "\n  fields and methods:\n" .. wrapped(names_of(cls))
end

--- The text of `?path`, given the value at that path (or nil).
function M.text(path, value)
  local last = path:match("([%w_]+)$") or path
  local kind = type(value)
  local op = (value == nil or kind == "function" and not signature.of(value)) and op_name(last)
  if op then return require("moth.dispatch.ops").describe(op) end
  if value == nil then return nil end
  if kind == "function" then return M.of_function(value) end
  if kind == "table" and rawget(value, "__name") then return of_class(value, rawget(value, "__name")) end
  local mt = debug.getmetatable(value)
  if kind == "table" and not (type(mt) == "table" and rawget(mt, "__tostring")) then
    return path .. ": a table with\n" .. wrapped(names_of(value))
  end
  local shown = require("moth.repl.show").value(value)
  if kind == "table" or kind == "userdata" then return shown .. "\n  has\n" .. wrapped(names_of(value)) end
  return path .. " = " .. shown .. " (" .. kind .. ")"
end

--- Wraps lines longer than `columns` between words; continuations of an indented line are indented by two more.
function M.fitted(text, columns)
  local out = {}
  for line in (text .. "\n"):gmatch("(.-)\n") do
    local indent = line:match("^%s*")
    while #line > columns do
      local at = line:sub(1, columns):match("^.*() ")
      if not at or at <= #indent + 2 then break end
      out[#out + 1] = line:sub(1, at - 1)
      line = (indent ~= "" and indent .. "  " or "") .. line:sub(at + 1)
    end
    out[#out + 1] = line
  end
  return table.concat(out, "\n")
end

--- Only the doc of a function, a class, or the module at `path`; nil if it has none.
function M.doc(value, path)
  if type(value) == "function" or rawget(value, "__name") then
    local f = type(value) == "function" and value or rawget(value, "__init") or rawget(value, "forward")
    local signed, given = signature.of(f)
    local info = f and debug.getinfo(given or f, "S")
    local lines = info and info.what ~= "C" and info.source:find("^@") and read_lines(info.source:sub(2))
    if not lines then return nil end
    return comment_above(lines, first_line(lines, info.linedefined, signed)) or (f ~= value and head_comment(lines))
      or nil
  end
  if package.loaded[path] ~= value then return nil end
  for name, module in each(package.loaded) do -- under several names, one of them that of its file
    local file = module == value and package.searchpath(name, package.path)
    if file then return head_comment(read_lines(file)) end
  end
end

return M
