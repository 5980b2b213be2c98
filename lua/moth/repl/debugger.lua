--- `%debug` after an error: the frames with their local variables, and expressions that see those of a frame.
--
-- While a chunk of the prompt runs, an error's frames are kept (also of errors that moth.no_grad and its like catch and
-- raise again); their values live until the next error, or `%debug off`.
local show = require "moth.repl.show"
local trace = require "moth.lang.trace"
local B = require "moth_lua"
local M = {}

local DEPTH = 100 -- of endless recursion the innermost frames are enough

-- The variables that a frame sees: upvalues, and locals above them; their names in order.
local function variables(level)
  local values, names = {}, {}
  local function note(name, value)
    if name:sub(1, 1) == "(" then return end
    if values[name] == nil then names[#names + 1] = name end
    values[name] = { value }
  end
  local f = debug.getinfo(level + 1, "f").func
  local i = 1
  while true do
    local name, value = debug.getlocal(level + 1, i)
    if not name then break end
    note(name, value)
    i = i + 1
  end
  for k = 1, math.huge do
    local name, value = debug.getupvalue(f, k)
    if not name then break end
    if name ~= "" and not values[name] then note(name, value) end
  end
  return values, names
end

local function is_own(source) return source:find("moth/repl/", 1, true) or source:find("moth/lang/trace", 1, true) end

-- The frames above the handler, the innermost first, down to the prompt's.
local function frames()
  local list, level = {}, 3
  while #list < DEPTH do
    local info = debug.getinfo(level, "Sln")
    if not info or info.source:find("moth/repl/init.lua", 1, true) then break end
    if info.what ~= "C" and not is_own(info.source) and not info.source:find("dispatch/within", 1, true) then
      local values, names = variables(level)
      list[#list + 1] = { place = ("%s:%d"):format(info.short_src, info.currentline), name = info.name or "?",
        values = values, names = names, source = info.source, line = info.currentline }
    end
    level = level + 1
  end
  return list
end

--- Calls a chunk of the session; an error of it is raised again, and its frames are kept in session.failed.
function M.call(session, chunk)
  if session.undebugged or session.mark then return chunk() end -- a typing error in %debug keeps the frames
  local function pack(ok, ...)
    trace.observer = nil
    if ok then return ... end
    trace.rethrow((...))
  end
  trace.observer = function(message) session.failed = { message = message, frames = frames(), at = 1 } end
  return pack(xpcall(chunk, trace.keep))
end

local function brief(value)
  local text = B.is_tensor(value) and B.format(value) or show.result(value):gsub("%s*\n%s*", " ")
  return #text > 60 and text:sub(1, 57):gsub("[\128-\255]+$", "") .. "…" or text
end

local function failed(session)
  local f = session.failed
  if not f then error("%debug: there was no error yet", 0) end
  if #f.frames == 0 then error("%debug: the error has no frame of Lua", 0) end
  return f
end

local function source_line(frame)
  local file = frame.source:match("^@(.*)")
  local handle = file and io.open(file)
  if not handle then return nil end
  local at = 0
  for line in handle:lines() do
    at = at + 1
    if at == frame.line then
      handle:close()
      return line:gsub("^%s+", "")
    end
  end
  handle:close()
end

-- Has expressions see the variables of the selected frame first.
local function select_frame(session, at)
  local f = failed(session)
  if at < 1 or at > #f.frames then error(("%%debug: there are frames 1 to %d"):format(#f.frames), 0) end
  f.at = at
  session.locals.frame = f.frames[at].values
  session.mark = ("debug %d"):format(at)
end

local function list(session)
  local f = failed(session)
  session.out:write(tostring(f.message), "\n")
  for i, frame in ipairs(f.frames) do
    session.out:write(("%s %2d  %s in %s\n"):format(i == f.at and ">" or " ", i, frame.place, frame.name))
    local line = source_line(frame)
    if line then session.out:write("        ", line, "\n") end
    local parts = {}
    for _, name in ipairs(frame.names) do
      local value = frame.values[name][1]
      if type(value) ~= "function" and #parts < 8 then parts[#parts + 1] = name .. " = " .. brief(value) end
    end
    if #parts > 0 then session.out:write("        ", table.concat(parts, ", "), "\n") end
  end
end

local function print_locals(session)
  local f = failed(session)
  local frame = f.frames[f.at]
  session.out:write(("%d  %s in %s\n"):format(f.at, frame.place, frame.name))
  for _, name in ipairs(frame.names) do
    session.out:write(("  %-16s %s\n"):format(name, brief(frame.values[name][1])))
  end
end

function M.leave(session) session.locals.frame, session.mark = nil, nil end

--- The command: "", a frame's number, "off" or "on".
function M.command(session, what)
  if what == "off" then
    M.leave(session)
    session.failed, session.undebugged = nil, true
  elseif what == "on" then
    session.undebugged = nil
  elseif what == "end" then
    M.leave(session)
  else
    local at = what == "" and failed(session).at or tonumber(what)
      or error("usage: %debug, %debug N (a frame), %debug end, %debug off, %debug on", 0)
    select_frame(session, at)
    if what == "" then list(session) else print_locals(session) end
  end
end

--- One frame towards the caller (1) or towards the error (-1).
function M.move(session, step)
  select_frame(session, failed(session).at + step)
  print_locals(session)
end

M.locals = print_locals
return M
