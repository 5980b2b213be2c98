--- A kernel of Jupyter: the session of the prompt (moth.repl) behind the messages of Jupyter's protocol. `moth kernel
-- run FILE` (command.lua) starts it.
--
-- A cell is statements, the last of which may be an expression: its values are shown. `?name` and `%commands` stand at
-- the beginning of a cell. A value whose metatable has __mime(value) -> { [mime type] = text } is shown by it, as are
-- drawings of moth.plot; display(value) does so within a cell. Local variables live on, as at the prompt.
local ffi = require "ffi"
local cjson = require "cjson.safe"
local moth = require "moth"
local class = require "moth.class"
local each = require "moth.each"
local locals = require "moth.repl.locals"
local output = require "moth.jupyter.output"
local repl = require "moth.repl"
local show = require "moth.repl.show"
local source = require "moth.lang.source"
local wire = require "moth.jupyter.wire"
local zmq = require "moth.jupyter.zmq"

pcall(ffi.cdef, "void (*signal(int number, void (*handler)(int)))(int);")

local M = {}

local SIGINT, IGNORE = 2, ffi.cast("void (*)(int)", 1)

-- ---- sending ------------------------------------------------------------------------------------------

local function publish(kernel, kind, content)
  kernel.iopub:send(wire.parts(kernel.key, kernel.id, { kind }, kind, content, kernel.parent))
end
local function reply(kernel, socket, request, kind, content)
  content.status = content.status or "ok"
  socket:send(wire.parts(kernel.key, kernel.id, request.identities, kind, content, request))
end

-- ---- values -------------------------------------------------------------------------------------------

-- What a notebook shows of a value: by MIME type.
local function bundle(value)
  local mt = debug.getmetatable(value)
  local mime = type(mt) == "table" and rawget(mt, "__mime")
  local data = mime and mime(value) or {}
  data["text/plain"] = data["text/plain"] or mime and "<" .. class.name(value) .. ">" or wire.valid(show.result(value))
  return data
end

local function display(kernel, data, metadata)
  output.drain()
  publish(kernel, "display_data", { data = data, metadata = metadata or {}, transient = {} })
end

local function image_of(x)
  local bytes, width, height = require("moth.plot.png").encode(x)
  local scale = math.max(1, math.ceil(200 / math.max(width, height))) -- small ones are made larger
  return { ["image/png"] = require("moth.utils.base64").encode(bytes), ["text/plain"] = ("image %dx%d"):format(width,
    height) }, { ["image/png"] = { width = width * scale, height = height * scale } }
end

local function new_session(kernel, host)
  local session = repl.session(host, { write = function(_, ...) io.stdout:write(...) end,
    flush = function() io.stdout:flush() end })
  session.colour = function(_, text) return text end
  session.locals:set("moth", moth)
  session.locals:set("display", function(...)
    for i = 1, select("#", ...) do display(kernel, bundle((select(i, ...)))) end
  end)
  session.draw_image = function(x) display(kernel, image_of(x)) end
  session.load_text = function(text)
    kernel.payload = { { source = "set_next_input", text = wire.valid(text), replace = true } }
  end
  session.draw_curve = function(x, y)
    display(kernel, bundle(y == nil and moth.plot.lines(x) or moth.plot.lines { { x, y } }))
  end
  return session
end

-- ---- code ---------------------------------------------------------------------------------------------

-- A cell as a list of chunks, or nil and a message; "more": it is not complete. Leading commands come first; an
-- expression at the end is a chunk of its own.
local function compile(session, code)
  local chunks, rest = {}, code
  while true do
    local line, after = rest:match "^%s*([^\n]*)\n?(.*)$"
    local command = line:find "^[%%?!]" and require("moth.repl.commands").find(line)
    if not command then break end
    chunks[#chunks + 1] = function() return command(session) end
    rest = after
  end
  if not rest:find "%S" then return chunks end
  local whole, message = source.statements((locals.rewrite(rest)), "=stdin")
  local lines = {}
  for line in (rest .. "\n"):gmatch "(.-)\n" do lines[#lines + 1] = line end
  for k = #lines, 2, -1 do -- the shortest end that is an expression, behind statements
    local last = table.concat(lines, "\n", k)
    -- Where all of it is statements, too, the end is a call; a line that begins with a sign goes on with the last one.
    if last:find(whole and "^%s*[%a_]" or "^%s*[^%s-]") and source.statements("return " .. last, "=stdin") then
      local first = table.concat(lines, "\n", 1, k - 1)
      if source.statements((locals.rewrite(first)), "=stdin") then
        chunks[#chunks + 1] = repl.compile(session, first)
        chunks[#chunks + 1] = repl.compile(session, ("\n"):rep(k - 1) .. last)
        return chunks
      end
    end
  end
  local chunk, why = repl.compile(session, rest)
  if not chunk then return nil, why or message end
  chunks[#chunks + 1] = chunk
  return chunks
end

local function frames(message)
  local list = {}
  for line in (message .. "\n"):gmatch "(.-)\n" do list[#list + 1] = wire.valid(line) end
  return list
end

-- Runs a cell: true, or false and its message.
local function run(kernel, code, silent)
  local session = kernel.session
  session.text = code
  if session.watch then require("moth.repl.reload").changed(session) end
  if not silent then session.history[#session.history + 1] = code end
  local chunks, message = compile(session, code)
  if not chunks then return false, message == "more" and "the cell ends within what it begins" or message end
  for i, chunk in ipairs(chunks) do
    local ok, results = repl.call(session, chunk)
    ffi.C.signal(SIGINT, IGNORE) -- between cells
    output.drain()
    if not ok then return false, results end
    for k = 1, i == #chunks and not silent and results.n or 0 do
      local shown, data = session.host.call(function() return bundle(results[k]) end)
      ffi.C.signal(SIGINT, IGNORE)
      if not shown then return false, data end
      publish(kernel, "execute_result", { execution_count = kernel.count, data = data, metadata = {} })
    end
  end
  return true
end

-- ---- requests -----------------------------------------------------------------------------------------

local handlers = {}

function handlers.kernel_info_request()
  return "kernel_info_reply", { protocol_version = "5.3", implementation = "moth",
    implementation_version = moth.version, banner = ("moth %s, %s"):format(moth.version, jit.version),
    help_links = wire.EMPTY, language_info = { name = "lua", version = "5.1", mimetype = "text/x-lua",
      file_extension = ".lua", pygments_lexer = "lua", codemirror_mode = "lua" } }
end

function handlers.execute_request(kernel, request)
  local c = request.content
  local code = tostring(c.code or "")
  if not c.silent then
    kernel.count = kernel.count + 1
    publish(kernel, "execute_input", { code = code, execution_count = kernel.count })
  end
  kernel.asks = c.allow_stdin and { identities = request.identities, request = request }
  kernel.payload = nil
  local ok, message = run(kernel, code, c.silent)
  kernel.asks = nil
  if ok then
    return "execute_reply", { execution_count = kernel.count, payload = kernel.payload or wire.EMPTY,
      user_expressions = {} }
  end
  local lines = frames(message)
  local content = { ename = "Error", evalue = lines[1], traceback = lines }
  publish(kernel, "error", { ename = content.ename, evalue = content.evalue, traceback = content.traceback })
  content.status, content.execution_count = "error", kernel.count
  content.aborts = c.stop_on_error ~= false
  return "execute_reply", content
end

function handlers.complete_request(kernel, request)
  local code, position = request.content.code, request.content.cursor_pos
  local before = code:sub(1, wire.bytes_before(code, position))
  local line = before:match "[^\n]*$"
  local n, list = require("moth.repl.complete").proposals(kernel.session, line)
  local characters = wire.characters(line:sub(#line - n + 1))
  return "complete_reply", { matches = #list > 0 and list or wire.EMPTY, cursor_start = position - characters,
    cursor_end = position, metadata = {} }
end

function handlers.inspect_request(kernel, request)
  local code = request.content.code
  local at = wire.bytes_before(code, request.content.cursor_pos)
  local before, after = code:sub(1, at):match "[%w_%.:]*$", code:sub(at + 1):match "^[%w_]*"
  if before == "" and after == "" then -- within a call's arguments: the function
    before = code:sub(1, at):match "([%w_%.:]+)%s*%([^()]*$" or ""
  end
  local function about(name)
    local path = name:gsub(":", ".")
    local ok, text = pcall(require("moth.repl.ask").about, path, kernel.session.locals.env)
    return ok and path ~= "" and not text:find "^nothing is named", text
  end
  local found, text = about(before .. after)
  if not found then -- an option, as in Linear(3, 2, { bias = …
    local path = code:sub(1, at):match "([%w_%.:]+)%s*[({][^()]*$"
    if path then found, text = about(path) end
  end
  return "inspect_reply", { found = found, data = found and { ["text/plain"] = wire.valid(text) } or {},
    metadata = {} }
end

function handlers.is_complete_request(_, request)
  local code = request.content.code
  if code:find "^%s*[%%?]" or source.statements("return " .. code, "=stdin") then
    return "is_complete_reply", { status = "complete" }
  end
  local chunk, message = source.statements((locals.rewrite(code)), "=stdin")
  local status = chunk and "complete" or message:find "'<eof>'$" and "incomplete" or "invalid"
  return "is_complete_reply", { status = status, indent = status == "incomplete" and "  " or nil }
end

function handlers.history_request(kernel, request)
  local list, all = {}, kernel.session.history
  local n = request.content.hist_access_type == "tail" and tonumber(request.content.n) or #all
  for i = math.max(1, #all - n + 1), #all do list[#list + 1] = { 0, i, all[i] } end
  return "history_reply", { history = #list > 0 and list or wire.EMPTY }
end
function handlers.comm_info_request() return "comm_info_reply", { comms = {} } end
function handlers.interrupt_request() return "interrupt_reply", {} end
function handlers.shutdown_request(kernel, request)
  kernel.over = true
  return "shutdown_reply", { restart = request.content.restart or false }
end

-- Answers one message. aborts: a cell before it failed, so that this one, if it is a cell, is left out.
local function serve(kernel, socket, parts, aborts)
  local request, why = wire.parse(kernel.key, parts)
  if not request then
    io.stderr:write("moth kernel: ", why, "\n")
    return
  end
  local handler = handlers[request.type]
  if not handler then return end -- comm_open and the like
  kernel.parent = request
  publish(kernel, "status", { execution_state = "busy" })
  local kind, content
  if aborts and request.type == "execute_request" then
    kind, content = "execute_reply", { status = "aborted", execution_count = kernel.count }
  else
    local ok, a, b = pcall(handler, kernel, request)
    kind, content = a, b
    if not ok then
      kind = request.type:gsub("_request$", "_reply")
      content = { status = "error", ename = "Error", evalue = wire.valid(tostring(a)), traceback = wire.EMPTY }
    end
  end
  -- What waits already when a cell has failed; a front end that has the answer may go on.
  local waiting = {}
  while content.aborts and #zmq.poll({ socket }, 0) > 0 do waiting[#waiting + 1] = socket:receive() end
  content.aborts = nil
  reply(kernel, socket, request, kind, content)
  publish(kernel, "status", { execution_state = "idle" })
  for _, other in ipairs(waiting) do serve(kernel, socket, other, true) end
end

-- ---- standard input -----------------------------------------------------------------------------------

-- io.read asks the front end, where it allows that.
local function ask_front_end(kernel)
  local read = io.read
  io.read = function(...) -- luacheck: ignore
    if not kernel.asks then return read(...) end
    output.drain()
    kernel.stdin:send(wire.parts(kernel.key, kernel.id, kernel.asks.identities, "input_request",
      { prompt = "", password = false }, kernel.asks.request))
    while true do
      local parts = kernel.stdin:receive()
      local answer = parts and wire.parse(kernel.key, parts)
      if answer and answer.type == "input_reply" then
        local text = tostring(answer.content.value)
        return (...) == "*n" and tonumber(text) or (...) ~= "*n" and text or nil
      elseif not parts then
        error("interrupted", 0)
      end
    end
  end
end

--- Serves the front end that a connection file tells of, until it says shutdown. host: functions of the launcher.
function M.run(path, host)
  local f = assert(io.open(path))
  local c = assert(cjson.decode(f:read "*a"))
  f:close()
  local function address(name)
    local port = c[name .. "_port"]
    return c.transport == "ipc" and ("ipc://%s-%d"):format(c.ip, port) or ("tcp://%s:%d"):format(c.ip, port)
  end
  local kernel = { key = c.key or "", id = wire.id(), count = 0 }
  ffi.C.signal(SIGINT, IGNORE)
  require("jit.profile").start("li100000000", function() end) -- it lets Ctrl-C stop compiled loops, as at the prompt
  kernel.shell = zmq.socket(zmq.ROUTER, address "shell")
  kernel.control = zmq.socket(zmq.ROUTER, address "control")
  kernel.stdin, kernel.iopub = zmq.socket(zmq.ROUTER, address "stdin"), zmq.socket(zmq.PUB, address "iopub")
  local threads = require("moth_lua").threads
  local thread = threads.start("moth.jupyter.heartbeat", 1, threads.channel(), threads.channel(), address "hb")
  output.capture(function(name, text)
    publish(kernel, "stream", { name = name, text = wire.valid(text) })
  end)
  ask_front_end(kernel)
  kernel.session, repl.is_running = new_session(kernel, host), true
  require("moth.utils.progress").notebook = true
  publish(kernel, "status", { execution_state = "starting" })
  while not kernel.over do
    for _, socket in ipairs(zmq.poll { kernel.control, kernel.shell }) do
      local parts = socket:receive()
      if parts then serve(kernel, socket, parts) end
    end
  end
  output.close()
  for _, s in each { kernel.shell, kernel.control, kernel.stdin, kernel.iopub } do s:close() end
  zmq.close() -- waits until the last answer is sent
  threads.stop(thread)
  return 0
end

return M
