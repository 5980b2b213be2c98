--- Failures of compiled segments: what MOTH_COMPILE_CHECK finds, with the first call that differs; scripts that
-- reproduce them (config.repro_after).
local B = require "moth_lua"
local graphs = require "moth.compile.graph"
local system = require "moth.utils.system"
local toolchain = require "moth.utils.toolchain"
local C = B.compile

local M = {}

-- Backends whose results have the bits of the calls themselves; those of others are within the bounds of
-- src/graph/check.c.
local exact = { eager = true, aot_eager = true, blocks = true }

local pending -- { graph, inputs, backend }: of the failure whose error is being raised
local trying = false -- attempts of the minifier: their failures are not looked into

--- Environment variables that are a switch: unset, empty and 0 are false.
function M.is_set(name)
  return (system.getenv(name) or "0") ~= "0"
end

--- Where segments that fail are reproduced: "dynamo" or "aot", as PyTorch's; nil: nowhere.
function M.repro_after()
  return system.getenv "MOTHDYNAMO_REPRO_AFTER" or system.getenv "TORCHDYNAMO_REPRO_AFTER"
end

--- Tells the trace how its segments are compared. backend: a name or a function.
function M.arm(t, backend)
  C.trace_check(t, exact[backend] or false, function(handle, inputs, text)
    pending = { graph = graphs.new(handle), inputs = C.copies(inputs), backend = backend, differs = true }
    error("[compile] check: " .. text, 0)
  end)
end

--- A backend has raised an error for this graph.
function M.raised(graph, inputs, backend, config)
  if trying or config.repro_after then
    pending = { graph = graph, inputs = C.copies(inputs), backend = backend }
  end
end

local count = 0

local function save(p)
  local folder = system.getenv("MOTH_COMPILE_DEBUG_DIR") or "moth_compile_debug"
  os.execute("mkdir -p " .. toolchain.quoted(folder))
  local path
  repeat
    count = count + 1
    path = ("%s/repro_%d.lua"):format(folder, count)
    local there = io.open(path)
    if there then there:close() end
  until not there
  require("moth.compile.minify").minify(p.graph, p.inputs,
    { backend = p.backend, check = p.differs or false, save = path })
  return path
end

--- The message of an error that a compiled call raises, with what can be found out now that the call is over.
function M.refine(message, config)
  local p = pending
  if not p or trying then return message end
  pending = nil
  if type(message) ~= "string" then return message end
  if p.differs then
    local first = require("moth.compile.minify").first_difference
    local ok, call, n = pcall(first, p.graph, p.inputs, p.backend)
    if ok and call then
      message = ("%s; the first call that differs: %s, at %s (call %d of %d)"):format(message, call.target, call.place,
        call.at, n)
    end
  end
  if config.repro_after then
    local ok, path = pcall(save, p)
    message = ("%s; %s %s"):format(message, ok and "reproduced by" or "it could not be reduced:", tostring(path))
  end
  return message
end

--- Runs fn(unpack(inputs)) compiled with o.backend; o.check = false: without comparing. The error's message and the
-- failure { graph, inputs, … }, if a segment has one; nil where nothing fails.
function M.attempt(fn, inputs, o)
  local moth = require "moth"
  local config = moth.compile.config
  local check, suppress = config.check, config.suppress_errors
  trying, pending = true, nil
  config.check, config.suppress_errors = o.check ~= false, false
  local ok, message = pcall(function() moth.compile(fn, { backend = o.backend })(unpack(inputs)) end)
  local p = pending
  trying, pending = false, nil
  config.check, config.suppress_errors = check, suppress
  if not ok then return tostring(message), p end
end

return M
