--- Runs the specs in a process of its own and tells how it went.
--
--     luajit spec/runner.lua [--build=build] [--preload=libasan.so] [--wrap="valgrind -q"] [-- busted arguments]
--         [--with NAME=VALUE … -- busted arguments] …
--
-- Each --with starts a further run, with more in its environment; the totals are of all runs. The further ones, one
-- after the other, run beside the first (MOTH_TEST_JOBS=1: behind it); what they print comes when that has ended.
-- busted reports through spec/reporter.lua, which also keeps its counts and the spec now running in a
-- file: if the process dies, what it was at is known. The last line is always
-- `N passed, M failed, K skipped`; the exit status is 0 only if nothing failed and something passed.
-- MOTH_TEST_TIMEOUT (seconds, 1500) ends a run that hangs.

local options = { build = "build" }
local rest = {}
local i = 1
while arg[i] do
  local key, value = arg[i]:match("^%-%-(%l+)=(.*)$")
  if arg[i] == "--" then
    for k = i + 1, #arg do rest[#rest + 1] = arg[k] end
    break
  elseif key == "build" or key == "preload" or key == "wrap" then
    options[key] = value
  else
    io.stderr:write("runner: unknown argument " .. arg[i] .. "\n")
    os.exit(2, true)
  end
  i = i + 1
end

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- The runs: busted's arguments and environment of each.
local runs = { { args = {}, env = {} } }
do
  local run, in_env = runs[1], false
  for _, a in ipairs(rest) do
    if a == "--with" then
      run, in_env = { args = {}, env = {} }, true
      runs[#runs + 1] = run
    elseif in_env and a == "--" then
      in_env = false
    elseif in_env then
      local name, value = a:match("^([%w_]+)=(.*)$")
      run.env[name or error("runner: --with takes NAME=VALUE, got " .. a, 0)] = value
    else
      run.args[#run.args + 1] = a
    end
  end
end

local build = options.build
local timeout = tonumber(os.getenv("MOTH_TEST_TIMEOUT")) or 1500

--- The exit status and signal of a wait status, as os.execute gives it (or 5.2's triple).
local function outcome(status, how, code)
  if type(status) == "number" then
    if status % 128 ~= 0 then return nil, status % 128 end
    code = math.floor(status / 256)
  elseif how == "signal" then
    return nil, code
  end
  if code > 128 and code < 160 then return nil, code - 128 end
  return code
end

local total = { passed = 0, failed = 0, skipped = 0 }

local function perform(run)
  local state_file = os.tmpname()
  local environment = {
    MOTH_BUILD = build,
    MOTH_STATE = state_file,
    MOTH_LUAJIT_WARNING = "0",
    LUA_PATH = ("lua/?.lua;lua/?/init.lua;%s/gen/?.lua;spec/?.lua;;"):format(build),
    LUA_CPATH = build .. "/?.so;;",
    XDG_CACHE_HOME = (build:sub(1, 1) == "/" and "" or os.getenv("PWD") .. "/") .. build .. "/cache", -- not the user's
    -- The last one: of the thread-local data of a library loaded late ASan guesses the place by a header of an older
    -- glibc, and takes its own for one where a block stands at 16 bytes past a page; the search for leaks then walks
    -- from an address that is none ("Tracer caught signal 11"). Other blocks it passes over: nothing is looked at less.
    ASAN_OPTIONS = os.getenv("ASAN_OPTIONS")
      or "detect_leaks=1:allocator_may_return_null=1:intercept_tls_get_addr=0",
    UBSAN_OPTIONS = os.getenv("UBSAN_OPTIONS") or "print_stacktrace=1:halt_on_error=1",
    TSAN_OPTIONS = os.getenv("TSAN_OPTIONS") or "halt_on_error=0:exitcode=66",
  }
  if options.preload and options.preload ~= "" then environment.LD_PRELOAD = options.preload end
  local title = {}
  for name, value in pairs(run.env) do
    environment[name] = value
    title[#title + 1] = name .. "=" .. value
  end
  table.sort(title)
  if #title > 0 then io.write("with ", table.concat(title, " "), "\n") end
  io.flush()

  local command = { "exec timeout --foreground -k 5", tostring(timeout), "env" }
  for name, value in pairs(environment) do command[#command + 1] = name .. "=" .. quote(value) end
  command[#command + 1] = options.wrap or ""
  command[#command + 1] = quote(os.getenv("LUAJIT") or arg[-1] or "luajit")
  command[#command + 1] = quote(os.getenv("BUSTED") or "/usr/bin/busted")
  command[#command + 1] = "--ignore-lua -o spec/reporter.lua"
  for _, a in ipairs(run.args) do command[#command + 1] = quote(a) end

  local code, signal = outcome(os.execute(table.concat(command, " ")))

  local state = { passed = 0, failed = 0, skipped = 0 }
  local file = io.open(state_file)
  if file then
    for key, value in file:read("*a"):gmatch("(%l+)=([^\n]*)\n") do state[key] = tonumber(value) or value end
    file:close()
  end
  os.remove(state_file)

  local function complain(...)
    state.failed = state.failed + 1
    io.write("✗ ", string.format(...), "\n")
  end

  local at = state.at and state.at ~= "" and (" in: " .. state.at) or ""
  if signal then
    complain("the process died of signal %d%s", signal, at)
  elseif code == 124 then
    complain("no end after %d s%s", timeout, at)
  elseif not state.done then
    complain("the process ended early with exit status %d%s", code, at)
  elseif code ~= 0 and state.failed == 0 then
    complain("all specs passed, but the exit status is %d: see the tool's report above", code)
  elseif state.passed + state.failed == 0 then
    complain("no spec ran")
  end
  for key in pairs(total) do total[key] = total[key] + state[key] end
end

--- Starts the runs from the second on in a process of their own.
local function beside()
  local command = { quote(os.getenv("LUAJIT") or arg[-1] or "luajit"), quote(arg[0]) }
  for key, value in pairs(options) do command[#command + 1] = quote("--" .. key .. "=" .. value) end
  command[#command + 1] = "--"
  local at
  for k, a in ipairs(rest) do if not at and a == "--with" then at = k end end
  for k = at, #rest do command[#command + 1] = quote(rest[k]) end
  return assert(io.popen("MOTH_TEST_JOBS=1 " .. table.concat(command, " ") .. " 2>&1"))
end

local empty = #runs[1].args == 0 and #runs > 1 -- of a process that runs what follows the first
local others = not empty and #runs > 1 and os.getenv("MOTH_TEST_JOBS") ~= "1" and beside()
for k, run in ipairs(runs) do
  if not (empty and k == 1) and not (others and k > 1) then perform(run) end
end
if others then
  local text = others:read("*a")
  others:close()
  local shown, passed, failed, skipped = text:match("^(.*)\n(%d+) passed, (%d+) failed, (%d+) skipped\n$")
  io.write(shown or text, "\n")
  total.passed = total.passed + (tonumber(passed) or 0)
  total.failed = total.failed + (tonumber(failed) or 1)
  total.skipped = total.skipped + (tonumber(skipped) or 0)
end
io.write(("%d passed, %d failed, %d skipped\n"):format(total.passed, total.failed, total.skipped))
os.exit(total.failed == 0 and 0 or 1, true)
