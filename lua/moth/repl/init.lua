--- The prompt: `moth` without a script, or require("moth.repl").run() under any LuaJIT.
--
-- A line is an expression, whose values are shown, or statements; unfinished ones ask for more lines. `local`
-- variables of the outermost level live on (moth.repl.locals). `?name` explains, `%` begins a command (`%help`).
-- Completion is in moth.repl.complete, printing in moth.repl.show.
--
-- `host` has functions of the launcher: read_line(prompt) -> line, nil at the end, false when interrupted; call(fn) ->
-- true, results … or false, message with traceback; load_history, save_history, columns.
local debugger = require "moth.repl.debugger"
local locals = require "moth.repl.locals"
local show = require "moth.repl.show"
local source = require "moth.lang.source"
local terminal = require "moth.repl.terminal"
local M = {}

-- The host without a launcher.
local plain = {
  read_line = function(prompt)
    io.write(prompt)
    io.flush()
    return io.read("*l")
  end,
  call = function(fn)
    return xpcall(fn, function(message)
      if type(message) == "string" then message = message .. require("moth.lang.hints").of(message) end
      return require("moth.lang.trace").traceback(message)
    end)
  end,
}

local function pack(...) return { n = select("#", ...), ... } end

--- Compiles input: a chunk in the session's environment, or nil, "more" | a message.
-- An expression's chunk returns its values; it makes no tail call, so that errors point at the line typed.
function M.compile(session, text)
  local expression = text:match("^%s*=%s*(.*)") or text
  local chunk, message = source.statements("return " .. expression, "=stdin")
  if chunk then
    local values = setfenv(loadstring(("local r = (...)(%s\n) return r"):format(expression), "=stdin") or chunk,
      session.locals.env)
    return function()
      local r = values(pack)
      return unpack(r, 1, r.n)
    end
  elseif expression == text then
    local rewritten, names = locals.rewrite(text)
    chunk, message = source.statements(rewritten, "=stdin")
    if chunk then session.locals:declare(names) end
  end
  if chunk then return setfenv(chunk, session.locals.env) end
  return nil, message:find("'<eof>'$") and "more" or message
end

--- A session: host, environment with its locals, output file.
function M.session(host, out)
  host = host or plain
  return { host = host, locals = locals.new(), out = out or io.stdout, history = {},
    colour = terminal.colour(out or io.stdout) }
end

-- A message with its traceback, without the frames of the prompt itself and frames without information.
local function own_frames(text)
  local message, frames = text:match("^(.*)\nstack traceback:\n?(.*)$")
  if not message then return text end
  local kept = {}
  for frame in frames:gmatch("[^\n]+") do
    if frame:find("moth/repl/", 1, true) or frame:find("%[C%]: in function 'call'") then break end
    if not frame:find("%[C%]: in function 'error'") and not frame:find("^%s*%[[Cbuiltin#%d]+%]: at ") then
      kept[#kept + 1] = frame
    end
  end
  return #kept > 0 and message .. "\nstack traceback:\n" .. table.concat(kept, "\n") or message
end

--- Runs a chunk: true and its results as { n =, … }, the first of which is kept in `_`; or false and the message.
-- session.text is what was typed.
function M.call(session, chunk)
  local results = pack(session.host.call(function()
    local r = pack(debugger.call(session, chunk))
    return unpack(r, 1, r.n)
  end))
  if not results[1] then
    local message = own_frames(tostring(results[2]))
    local meant = require "moth.repl.meant"(session, session.text, message)
    if meant ~= "" then message = message:gsub("^[^\n]*", function(line) return line .. meant end, 1) end
    return false, message
  end
  if results.n > 1 then session.locals:set("_", results[2]) end
  return true, pack(unpack(results, 2, results.n))
end

--- Runs a chunk and shows what it returns. True if there was no error.
function M.evaluate(session, chunk)
  local ok, results = M.call(session, chunk)
  if not ok then
    session.out:flush()
    io.stderr:write(session.colour("error", results), "\n")
    return false
  end
  for i = 1, results.n do
    local shown, text = session.host.call(function() return show.result(results[i], session.colour) end)
    session.out:write(tostring(text), "\n")
    if not shown then return false end
  end
  return true
end

-- Adds input to the history as one line, or as several if joining them would change its meaning.
function M.remember(session, text)
  session.history[#session.history + 1] = text
  local add = session.host.add_history
  if not add then return end
  local one = locals.one_line(text)
  if one then return add(one) end
  for line in text:gmatch("[^\n]+") do add(line) end
end

-- What ends or explains other prompts does so here, unless the user has a variable of that name.
local words = { exit = "end", quit = "end", help = "%help" }
local function word_of(session, line)
  local name = line:match "^%s*(%a+)%s*;?%s*$" or line:match "^%s*(%a+)%s*%(%s*%)%s*;?%s*$"
  return name and words[name] and session.locals.env[name] == nil and words[name] or nil
end

-- Reads lines until they form a chunk: the chunk, or nil, a message; or "end", "nothing".
local function read_chunk(session)
  local function read(prompt)
    return session.host.read_line(session.quiet and "" or session.colour("prompt", prompt))
  end
  local line = read(session.mark and session.mark .. "> " or "> ")
  if line == nil and session.mark then -- Ctrl-D leaves %debug, and then the prompt
    debugger.leave(session)
    return "nothing"
  end
  if line == nil then return "end" end
  if not line or line:match("^%s*$") then return "nothing" end
  local word = word_of(session, line)
  if word == "end" then return "end" end
  local command = require("moth.repl.commands").find(word or line)
  if command then
    M.remember(session, line)
    return function() return command(session) end
  end
  local text = line
  while true do
    local chunk, message = M.compile(session, text)
    if chunk or message ~= "more" then
      M.remember(session, text)
      session.text = text
      return chunk, message
    end
    line = read ">> "
    if line == nil then return "end", "the input ends within what begins with '" .. text:match "[^\n]*" .. "'" end
    if not line then return "nothing" end
    text = text .. "\n" .. line
  end
end

--- Reads and evaluates until the input ends.
function M.run(host)
  local session = M.session(host)
  host, M.is_running = session.host, true
  if host.start then
    local function complete(...) return require("moth.repl.complete").candidates(session, ...) end
    host.start(complete, require("moth.repl.history").path())
  end
  local ok, moth = pcall(require, "moth")
  if ok then session.locals:set("moth", moth) end
  session.quiet = not require("moth.utils.system").is_terminal(0) -- a pipe gets results and nothing else
  if not session.quiet then
    session.out:write(("moth %s, %s. ?name explains, %%help lists commands, Ctrl-D ends.\n"):format(
      ok and moth.version or "", jit.version))
  end
  while true do
    local chunk, message = read_chunk(session)
    if chunk == "end" then
      if message then io.stderr:write(session.colour("error", "moth: " .. message), "\n") end
      break
    end
    if type(chunk) == "function" then
      if session.watch then require("moth.repl.reload").changed(session) end
      M.evaluate(session, chunk)
    elseif message then
      io.stderr:write(session.colour("error", "moth: " .. message), "\n")
    end
  end
  if host.stop then host.stop() end
end

return M
