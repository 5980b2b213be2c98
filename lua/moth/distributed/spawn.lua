--- Programs in several processes, from within a program: `moth run` without a command line.
--
--     moth.multiprocessing.spawn("train.lua", { nprocs = 2 })       -- runs the script with its rank as argument
--     moth.multiprocessing.spawn(function(rank, lr)                 -- a function without upvalues
--       local dist = require "moth.distributed"
--       dist.init_process_group()
--       …
--     end, { nprocs = 2, args = { 0.1 } })
--
-- Each process has RANK, WORLD_SIZE and the other variables of the launcher. When one fails the others are stopped, and
-- spawn raises an error that names it.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

local PROGRAM = [[
local code, args = unpack(require("string.buffer").decode(%q), 1, 2)
assert(loadstring(code))(tonumber(os.getenv "RANK"), unpack(args))
]]

local function written(fn, args)
  local upvalue = debug.getupvalue(fn, 1)
  if upvalue then
    check.fail("[multiprocessing.spawn] fn uses '%s' from outside: a process of its own does not have it; pass it in \z
      args, or require it within", upvalue)
  end
  local ok, bytes = pcall(function() return require("string.buffer").encode { string.dump(fn), args } end)
  if not ok then
    check.fail("[multiprocessing.spawn] args: expected plain values (%s)", (tostring(bytes):gsub("^.-: ", "")))
  end
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(PROGRAM:format(bytes))
  f:close()
  return path
end

--- Runs fn(rank, unpack(args)), or a script with the rank and args as its arguments, in nprocs processes; returns when
-- all have ended. fn: a function without upvalues, or a path. Errors: a process failed; fn has upvalues.
M.spawn = signature("multiprocessing.spawn(function|string fn, *, count nprocs=1, list args?, size max_restarts=0)",
function(fn, o)
  local args, own = o.args or {}, type(fn) == "function"
  local path = own and written(fn, args) or fn
  local first = require("moth.distributed.run").interpreter()
  first[#first + 1] = path
  local options = require("moth.distributed.launch.options").parse { "--nproc-per-node", tostring(o.nprocs),
    "--max-restarts", tostring(o.max_restarts), path }
  local agent = require "moth.distributed.launch.agent"(options, function(rank)
    local words = { unpack(first) }
    if own then return words end
    words[#words + 1] = tostring(rank)
    for _, a in ipairs(args) do words[#words + 1] = tostring(a) end
    return words
  end)
  local ok, code = pcall(agent.run, agent)
  if own then os.remove(path) end
  if not ok then check.fail("[multiprocessing.spawn] %s", tostring(code)) end
  if code ~= 0 then
    check.fail("[multiprocessing.spawn] %s", agent.failure and agent:cause(agent.failure) or "stopped by a signal")
  end
end, true)

return M
