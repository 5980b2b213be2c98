--- The prompt: `moth` without a script, or require("moth.repl").run() under any LuaJIT.
--
-- A line is an expression, whose values are shown, or statements; unfinished ones ask for more lines. `local`
-- variables of the outermost level live on (moth.repl.locals). `?name` explains, `%` begins a command (`%help`).
-- Completion is in moth.repl.complete, showing in moth.repl.show.
--
-- `host` is what the launcher does better than Lua: read_line(prompt) -> line, nil at the end, false when
-- interrupted; call(fn) -> true, results … or false, message with traceback; load_history, save_history, columns.
local locals = require "moth.repl.locals"
local show = require "moth.repl.show"
local terminal = require "moth.repl.terminal"
local M = {}

-- What does without a launcher.
local plain = {
  read_line = function(prompt)
    io.write(prompt)
    io.flush()
    return io.read("*l")
  end,
  call = function(fn) return xpcall(fn, debug.traceback) end,
}

local function pack(...) return { n = select("#", ...), ... } end

--- Compiles what was typed: a chunk in the session's environment, or nil, "more" | a message.
-- An expression's chunk returns its values.
function M.compile(session, text)
  local expression = text:match("^%s*=%s*(.*)") or text
  local chunk, message = loadstring("return " .. expression, "=stdin")
  if not chunk and expression == text then
    local rewritten, names = locals.rewrite(text)
    chunk, message = loadstring(rewritten, "=stdin")
    if chunk then session.locals:declare(names) end
  end
  if chunk then return setfenv(chunk, session.locals.env) end
  return nil, message:find("'<eof>'$") and "more" or message
end

--- A session: environment with its locals, host, place to write to.
function M.session(host, out)
  host = host or plain
  return { host = host, locals = locals.new(), out = out or io.stdout, colour = terminal.colour(out or io.stdout) }
end

--- Runs a chunk and shows what it returns; the first value is kept in `_`. True if there was no error.
function M.evaluate(session, chunk)
  local results = pack(session.host.call(chunk))
  if not results[1] then
    session.out:flush()
    local text = tostring(results[2]):gsub("\n%s*%[C%]: in function 'call'.*$", "") -- what stands below the prompt
    text = text:gsub("\nstack traceback:%s*$", ""):gsub("\nstack traceback:\n%s*%[builtin#%d+%]: at [^\n]*$", "")
    io.stderr:write(session.colour("error", text), "\n")
    return false
  end
  for i = 2, results.n do
    local ok, text = session.host.call(function() return show.value(results[i], session.colour) end)
    session.out:write(tostring(text), "\n")
    if not ok then return false end
  end
  if results.n > 1 then session.locals:set("_", results[2]) end
  return true
end

local function remember(session, text)
  if session.host.add_history then session.host.add_history((text:gsub("\n", " "))) end
end

-- Reads lines until they make a chunk: the chunk, or nil, a message; or "end", "nothing".
local function read_chunk(session)
  local line = session.host.read_line(session.colour("prompt", "> "))
  if line == nil then return "end" end
  if not line or line:match("^%s*$") then return "nothing" end
  local command = require("moth.repl.commands").find(line)
  if command then
    remember(session, line)
    return function() return command(session) end
  end
  local text = line
  while true do
    local chunk, message = M.compile(session, text)
    if chunk or message ~= "more" then
      remember(session, text)
      return chunk, message
    end
    line = session.host.read_line(session.colour("prompt", ">> "))
    if line == nil then return "end" end
    if not line then return "nothing" end
    text = text .. "\n" .. line
  end
end

--- Reads and evaluates until the input ends.
function M.run(host)
  local session = M.session(host)
  host = session.host
  if host.start then
    local function complete(text) return require("moth.repl.complete").candidates(session, text) end
    host.start(complete, require("moth.repl.history").path())
  end
  local ok, moth = pcall(require, "moth")
  if ok then session.locals:set("moth", moth) end
  session.out:write(("moth %s, %s. ?name explains, %%help lists commands, Ctrl-D ends.\n"):format(
    ok and moth.version or "", jit.version))
  while true do
    local chunk, message = read_chunk(session)
    if chunk == "end" then break end
    if type(chunk) == "function" then
      M.evaluate(session, chunk)
    elseif message then
      io.stderr:write(session.colour("error", "moth: " .. message), "\n")
    end
  end
  if host.stop then host.stop() end
end

return M
