--- Runs an example again and again in one process, until it has called backward a thousand times, and tells what the
-- process holds after the second run and after the last:
--
--     luajit spec/steady.lua examples/hooks.lua [options of the example]
--
-- prints `steps 1000 runs 5 tensors A B lua A B rss A B`: bytes of tensors, of Lua, of the process, for
-- spec/memory_spec.lua.
-- luacheck: ignore 122
local B = require "moth_lua"
local live = require "live"

local STEPS, MOST = 1000, 60 -- an example that does not train is run so often
local path = table.remove(arg, 1)
arg[0] = path
local given = { unpack(arg) }

local steps = 0
local function counted(name)
  local fn = B[name]
  B[name] = function(...)
    steps = steps + 1
    return fn(...)
  end
end
counted "backward"
counted "grad"

local out = io.stdout
local silent = assert(io.open("/dev/null", "w"))
io.output(silent)
io.stdout = silent
_G.print = function() end

local function held()
  local tensors = live()
  local rss
  for line in io.lines("/proc/self/status") do rss = rss or tonumber(line:match("^RssAnon:%s*(%d+)")) end
  return { tensors = tensors, lua = collectgarbage("count") * 1024, rss = rss * 1024 }
end

local chunk = assert(loadfile(path))
local runs, early = 0, nil
while (steps < STEPS or runs < 4) and runs < MOST do
  for i = 1, math.max(#arg, #given) do arg[i] = given[i] end
  chunk()
  runs = runs + 1
  if runs == 2 then early = held() end
end
local late = held()
local function pair(name) return ("%s %.0f %.0f"):format(name, early[name], late[name]) end
out:write(("steps %d runs %d %s %s %s\n"):format(steps, runs, pair "tensors", pair "lua", pair "rss"))
