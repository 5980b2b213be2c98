--- Runs the specs in processes of their own and tells how it went.
--
--     luajit spec/runner.lua [--build=build] [--preload=libasan.so] [--wrap="valgrind -q"] [-- busted arguments]
--         [--with NAME=VALUE … -- busted arguments] …
--
-- Each file or folder of the arguments has a process: no spec collects another's garbage, and one that dies takes
-- nothing with it. Each --with starts a further list, with more in its environment; the totals are of all lists.
-- MOTH_TEST_JOBS processes (the number of processors, at most 4) run at a time; then what a process prints comes when
-- it has ended.
-- busted reports through spec/reporter.lua, which also keeps its counts and the spec now running in a
-- file: if the process dies, what it was at is known. The last line is always
-- `N passed, M failed, K skipped`; the exit status is 0 only if nothing failed and something passed.
-- MOTH_TEST_TIMEOUT (seconds, 1500) ends a process that hangs.
local lfs = require "lfs" -- busted needs it, too

local options = { build = "build" }
local rest = {}
local i = 1
while arg[i] do
  local key, value = arg[i]:match("^%-%-(%l+)=(.*)$")
  if arg[i] == "--" then
    for k = i + 1, #arg do rest[#rest + 1] = arg[k] end
    break
  elseif key == "build" or key == "preload" or key == "wrap" or key == "worker" then
    options[key] = value
  else
    io.stderr:write("runner: unknown argument " .. arg[i] .. "\n")
    os.exit(2, true)
  end
  i = i + 1
end

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

-- The runs: busted's arguments and environment of each.
local runs = {}
do
  local lists = { { args = {}, env = {} } }
  local list, in_env = lists[1], false
  for _, a in ipairs(rest) do
    if a == "--with" then
      list, in_env = { args = {}, env = {} }, true
      lists[#lists + 1] = list
    elseif in_env and a == "--" then
      in_env = false
    elseif in_env then
      local name, value = a:match("^([%w_]+)=(.*)$")
      list.env[name or error("runner: --with takes NAME=VALUE, got " .. a, 0)] = value
    else
      list.args[#list.args + 1] = a
    end
  end
  if #lists > 1 and #lists[1].args == 0 then table.remove(lists, 1) end
  for _, each in ipairs(lists) do
    local flags, paths = {}, {}
    for _, a in ipairs(each.args) do
      local to = lfs.attributes(a, "mode") and paths or flags
      to[#to + 1] = a
    end
    for k = 1, math.max(#paths, 1) do
      local args = { unpack(flags) }
      args[#args + 1] = paths[k]
      runs[#runs + 1] = { args = args, env = each.env }
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

--- Runs busted; `quiet`: what it prints comes at the end. @return whether it was interrupted (Ctrl-C)
local function perform(run, quiet)
  local state_file = os.tmpname()
  local environment = {
    MOTH_BUILD = build,
    MOTH_STATE = state_file,
    MOTH_LUAJIT_WARNING = "0",
    LUA_PATH = ("lua/?.lua;lua/?/init.lua;%s/gen/?.lua;spec/?.lua;;"):format(build),
    LUA_CPATH = build .. "/?.so;;",
    XDG_CACHE_HOME = (build:sub(1, 1) == "/" and "" or lfs.currentdir() .. "/") .. build .. "/cache", -- not the user's
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
  title = #title > 0 and "with " .. table.concat(title, " ") .. "\n" or ""
  local output_file = quiet and os.tmpname()
  if not quiet then io.write(title) end
  io.flush()

  local command = { "exec timeout --foreground -k 5", tostring(timeout), "env" }
  for name, value in pairs(environment) do command[#command + 1] = name .. "=" .. quote(value) end
  command[#command + 1] = options.wrap or ""
  command[#command + 1] = quote(os.getenv("LUAJIT") or arg[-1] or "luajit")
  command[#command + 1] = quote(os.getenv("BUSTED") or "/usr/bin/busted")
  command[#command + 1] = "--ignore-lua -o spec/reporter.lua"
  for _, a in ipairs(run.args) do command[#command + 1] = quote(a) end
  if quiet then command[#command + 1] = ">" .. quote(output_file) .. " 2>&1" end

  local code, signal = outcome(os.execute(table.concat(command, " ")))

  local state = { passed = 0, failed = 0, skipped = 0 }
  local file = io.open(state_file)
  if file then
    for key, value in file:read("*a"):gmatch("(%l+)=([^\n]*)\n") do state[key] = tonumber(value) or value end
    file:close()
  end
  os.remove(state_file)

  local text = {}
  if quiet then
    file = io.open(output_file)
    text[1] = title .. (file and file:read("*a") or "")
    if file then file:close() end
    os.remove(output_file)
  end
  local function complain(...)
    state.failed = state.failed + 1
    text[#text + 1] = "✗ " .. string.format(...) .. "\n"
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
  end
  for key in pairs(total) do total[key] = total[key] + state[key] end
  io.write(table.concat(text))
  io.flush()
  return signal == 2
end

-- Several processes take the runs in order from a folder, each by making a folder in it, which only one can do.
local function cores()
  local pipe = io.popen("getconf _NPROCESSORS_ONLN")
  local n = tonumber(pipe:read("*l"))
  pipe:close()
  return n or 1
end

local jobs = math.min(tonumber(os.getenv("MOTH_TEST_JOBS")) or math.min(cores(), 4), #runs)
local claims = options.worker
if not claims then
  claims = os.tmpname()
  os.remove(claims)
  assert(lfs.mkdir(claims))
end

local workers = {}
if not options.worker then
  local command = { quote(os.getenv("LUAJIT") or arg[-1] or "luajit") }
  for _, a in ipairs({ arg[0], "--worker=" .. claims, unpack(arg) }) do command[#command + 1] = quote(a) end
  for k = 2, jobs do workers[k - 1] = assert(io.popen(table.concat(command, " "), "w")) end
end
for k, run in ipairs(runs) do
  if not lfs.attributes(claims .. "/stop") and lfs.mkdir(claims .. "/" .. k) then
    if perform(run, jobs > 1) then lfs.mkdir(claims .. "/stop") end
  end
end

local function line(t) return ("%d passed, %d failed, %d skipped\n"):format(t.passed, t.failed, t.skipped) end

if options.worker then
  local file = assert(io.open(claims .. "/totals", "a"))
  file:write(line(total))
  file:close()
  os.exit(0, true)
end
for _, worker in ipairs(workers) do worker:close() end
local file, ended = io.open(claims .. "/totals"), 0
for text in file and file:lines() or function() end do
  local passed, failed, skipped = text:match("^(%d+) passed, (%d+) failed, (%d+) skipped$")
  total.passed, total.failed = total.passed + tonumber(passed), total.failed + tonumber(failed)
  total.skipped = total.skipped + tonumber(skipped)
  ended = ended + 1
end
if file then file:close() end
if ended < #workers then
  total.failed = total.failed + 1
  io.write("✗ a process that runs specs ended early\n")
end
for k in lfs.dir(claims) do if k ~= "." and k ~= ".." then os.remove(claims .. "/" .. k) end end
lfs.rmdir(claims)
if total.passed + total.failed == 0 then
  total.failed = 1
  io.write("✗ no spec ran\n")
end
io.write(line(total))
os.exit(total.failed == 0 and 0 or 1, true)
