--- Input at the prompt that is not Lua: `?name`, `??word` and the commands that begin with `%`.
local B = require "moth_lua"
local each = require "moth.each"
local source = require "moth.lang.source"
local system = require "moth.utils.system"
local M = {}

local function compile(session, code, what)
  local chunk, message = require("moth.repl").compile(session, code)
  if not chunk then error(what .. ": " .. (message == "more" and "the expression is not complete" or message), 0) end
  return chunk
end

local function duration(seconds)
  for _, unit in ipairs { { 1, "s" }, { 1e-3, "ms" }, { 1e-6, "us" } } do
    if seconds >= unit[1] then return ("%.3g %s"):format(seconds / unit[1], unit[2]) end
  end
  return ("%.3g ns"):format(seconds * 1e9)
end

local clock = system.now

local commands = {}

local timing = "time an expression: once if it is slow, else the median of repeated runs"
commands.t = { "%t expr", timing, function(session, code)
  local chunk = compile(session, code, "%t")
  local function run(n)
    local start = clock()
    for _ = 1, n do chunk() end
    return clock() - start
  end
  local first, n = run(1), 1
  if first > 0.5 then
    session.out:write(duration(first), ", one run\n")
    return
  end
  while run(n) < 0.02 and n < 1e8 do n = n * 2 end
  local times = {}
  for i = 1, 11 do times[i] = run(n) / n end
  table.sort(times)
  session.out:write(("%s a run (median of 11 times %d; %s to %s)\n"):format(duration(times[6]), n, duration(times[1]),
    duration(times[11])))
end }

commands.timeit = { "%timeit expr", "the same", commands.t[3] }

commands.history = { "%history [N]", "the last N (20) inputs of this session", function(session, n)
  local list = session.history or {}
  if n ~= "" and not tonumber(n) then error("usage: %history [N]", 0) end
  for i = math.max(1, #list - (tonumber(n) or 20) + 1), #list do
    session.out:write(("%4d  %s\n"):format(i, (list[i]:gsub("\n", "\n      "))))
  end
end }

commands.reload = { "%reload name", "load a module again: its table gets the new fields, so that who has it sees them",
  function(_, name) require("moth.repl.reload").module(name) end }

local watching = "before each input, load modules again whose files have changed"
commands.autoreload = { "%autoreload [off]", watching, function(session, word)
  if word ~= "" and word ~= "on" and word ~= "off" then error("usage: %autoreload [off]", 0) end
  session.watch = word ~= "off" and require("moth.repl.reload").watch() or nil
end }

local function expanded(path) return (path:gsub("^~/", (os.getenv("HOME") or "~") .. "/")) end

-- The text of a file that a command takes.
local function text_of(command, path)
  local f, message = io.open(path)
  local text = f and f:read "*a"
  if f then f:close() end
  return text or error(("%%%s: %s"):format(command, message or path .. ": it is a folder"), 0)
end

commands.load = { "%load file", "the text of a file as input to edit: in the history, in a notebook in the cell",
  function(session, path)
    local text = text_of("load", expanded(path)):gsub("%s+$", "")
    if session.load_text then return session.load_text(text) end
    session.out:write(text, "\n")
    require("moth.repl").remember(session, text)
  end }

commands.prof = { "%prof expr", "profile an expression: the table of its ops; the page is in moth-profile.html",
  function(session, code)
    local prof = require("moth.profiler").profile({ with_modules = true }, compile(session, code, "%prof"))
    session.out:write(prof:key_averages():table { row_limit = 15 }, "\n")
    session.out:write("the page: ", prof:report("moth-profile.html"), "\n")
  end }

commands.who = { "%who", "the variables of this session, globals too", function(session)
  local show = require "moth.repl.show"
  for _, name in ipairs(session.locals:names()) do
    local value = session.locals.env[name]
    local text = B.is_tensor(value) and B.format(value) or show.result(value):gsub("%s*\n%s*", " ")
    session.out:write(("  %-16s %s\n"):format(name, #text > 80 and text:sub(1, 80) .. "…" or text))
  end
end }

commands.reset = { "%reset", "forget the variables of this session, globals too", function(session)
  session.locals:clear()
  session.locals:set("moth", require "moth")
end }

-- The words of a line, at blanks outside of quotes, which are left out: a "b c" 'd' are three.
local function words_of(line)
  local list, word, quote = {}, nil, nil
  for c in line:gmatch "." do
    if quote and c == quote then
      quote = nil
    elseif not quote and (c == '"' or c == "'") then
      quote, word = c, word or ""
    elseif not quote and c:find "%s" then
      list[#list + 1], word = word, nil
    else
      word = (word or "") .. c
    end
  end
  if quote then error("%run: a quote " .. quote .. " is not closed", 0) end
  list[#list + 1] = word
  return list
end

commands.run = { "%run file [args]", "run a script in this session, with arg as its arguments", function(session, words)
  local list = system.exists(expanded(words)) and { words } or words_of(words) -- a name with spaces
  local file = expanded(list[1])
  local locals = require "moth.repl.locals"
  local rewritten, names = locals.rewrite((text_of("run", file):gsub("^#[^\n]*", "")))
  local chunk, message = source.statements(rewritten, "@" .. file)
  if not chunk then error("%run: " .. message, 0) end
  session.locals:declare(names)
  local before = rawget(_G, "arg")
  _G.arg = { [0] = file, unpack(list, 2) }
  local ok, why = pcall(setfenv(chunk, session.locals.env), unpack(list, 2))
  _G.arg = before
  if not ok then error(why, 0) end
end }

local drawing = "a tensor as a picture: (H, W), (1 or 3, H, W), (H, W, 1 or 3), values 0 to 1 or 0 to 255; a sample, \z
  %image ds:get(1), with its label"
commands.image = { "%image expr", drawing, function(session, code)
  local function draw(x, ...)
    if session.draw_image then session.draw_image(x) -- a notebook
    else session.out:write(require("moth.repl.picture").image(x), "\n") end
    for k = 1, select("#", ...) do -- of a sample: its label
      session.out:write(require("moth.repl.show").value((select(k, ...))), "\n")
    end
  end
  draw(compile(session, code, "%image")())
end }

commands.plot = { "%plot expr", "a curve of a table or 1-D tensor; %plot x, y for both axes", function(session, code)
  local chunk = compile(session, code, "%plot")
  if session.draw_curve then return session.draw_curve(chunk()) end
  session.out:write(require("moth.repl.picture").curve(chunk()), "\n")
end }

commands.help = { "%help", "this list", function(session)
  session.out:write("  !command         run a command of the shell\n",
    "  ?name            doc, signature and place of an op, function, class, module or value\n",
    "  ??word           ops, functions, classes and modules that have the word in name or doc\n")
  local list = {}
  for _, c in each(commands) do list[#list + 1] = ("  %-16s %s\n"):format(c[1], c[2]) end
  table.sort(list)
  session.out:write(table.concat(list))
end }

local function debugger() return require "moth.repl.debugger" end
commands.debug = { "%debug [N]", "the frames of the last error with their variables; expressions then see those of one",
  function(session, what) debugger().command(session, what) end }
commands.up = { "%up", "in %debug: the frame that called this one", function(session) debugger().move(session, 1) end }
commands.down = { "%down", "in %debug: the frame that this one called",
  function(session) debugger().move(session, -1) end }
commands.locals = { "%locals", "in %debug: the variables of the frame",
  function(session) debugger().locals(session) end }

local function explain(session, path)
  local text = require("moth.repl.ask").about(path, session.locals.env)
  local columns = require("moth.repl.terminal").columns(session.out)
  session.out:write(require("moth.repl.help").fitted(text, columns), "\n")
end

--- The command on a line, as a function of the session, or nil if the line is Lua.
function M.find(line)
  if line:match("^%s*%?+%s*$") then line = "%help" end
  local word = line:match("^%s*%?%?%s*(.-)%s*$")
  if word and word ~= "" then
    return function(session)
      local columns = require("moth.repl.terminal").columns(session.out)
      session.out:write(require("moth.repl.index").search(word, columns), "\n")
    end
  end
  local shell = line:match "^%s*!%s*(.*)$"
  if shell then
    return function(session)
      if shell == "" then error("usage: !command: run a command of the shell", 0) end
      session.out:flush()
      local status = os.execute(shell)
      if status ~= 0 then error(("! ended with status %d"):format(status / 256), 0) end
    end
  end
  local path = line:match("^%s*%?%s*(.-)%s*$") or line:match("^%s*([%a_][%w_%.:%[%]'\"]*)%s*%?%s*$")
  if path and path ~= "" then return function(session) return explain(session, path) end end
  local name, rest = line:match("^%s*%%(%a+)%s*(.-)%s*$")
  if not name then return nil end
  return function(session)
    local command = commands[name] or error("there is no command %" .. name .. "; %help lists them", 0)
    if rest == "" and command[1]:find(" %l") then error("usage: " .. command[1] .. ": " .. command[2], 0) end
    return command[3](session, rest)
  end
end

return M
