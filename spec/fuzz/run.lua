--- Runs the fuzzer of the Lua surface in processes of its own: one that dies is a finding, after which the next begins
-- behind it.
--
--     luajit spec/fuzz/run.lua [--build=build] [--preload=libasan.so] [NAME=VALUE …] [-- calls surface hooks]
--     luajit spec/fuzz/run.lua [--build=build] [--preload=libasan.so] [NAME=VALUE …] -- parsers onnx
--
-- The first is spec/fuzz/api.lua, whose episodes are 60 lines; the second spec/fuzz/parsers.lua, whose are one input.
-- MOTH_SEED, MOTH_CASES (lines), MOTH_SECONDS and MOTH_DEVICE are handed on. Exits with 0 if nothing was found.
local build, preload, environment, names = "build", nil, {}, {}
local i = 1
while arg[i] do
  local name, value = arg[i]:match("^([%w_]+)=(.*)$")
  if arg[i] == "--" then
    for k = i + 1, #arg do names[#names + 1] = arg[k] end
    break
  elseif arg[i]:find("^%-%-build=") then build = arg[i]:match("=(.*)$")
  elseif arg[i]:find("^%-%-preload=") then preload = arg[i]:match("=(.*)$")
  elseif name then environment[name] = value
  else
    io.stderr:write("fuzz: unknown argument " .. arg[i] .. "\n")
    os.exit(2)
  end
  i = i + 1
end

local function quote(s) return "'" .. s:gsub("'", "'\\''") .. "'" end
local state, errors = os.tmpname(), os.tmpname()
local asan = preload or (os.getenv("LD_PRELOAD") or ""):find("asan")
local defaults = {
  LUA_PATH = ("lua/?.lua;lua/?/init.lua;%s/gen/?.lua;spec/?.lua;;"):format(build), LUA_CPATH = build .. "/?.so;;",
  MOTH_FUZZ_STATE = state,
  ASAN_OPTIONS = asan and
    "detect_leaks=0:allocator_may_return_null=1:intercept_tls_get_addr=0:max_allocation_size_mb=1024" or nil,
  UBSAN_OPTIONS = "print_stacktrace=1:halt_on_error=1", LD_PRELOAD = preload,
}
for name, value in pairs(environment) do defaults[name] = value end

local function read(path)
  local f = io.open(path)
  local text = f and f:read("*a") or ""
  if f then f:close() end
  return text
end

local function given(name) return tonumber(defaults[name] or os.getenv(name)) end
local seconds, begun = given("MOTH_SECONDS") or math.huge, os.time()
local wanted = given("MOTH_CASES") or seconds < math.huge and math.huge or 10000
local parsers = names[1] == "parsers"
local script, host = "spec/fuzz/api.lua", os.getenv("LUAJIT") or arg[-1] or "luajit"
if parsers then
  table.remove(names, 1)
  script, host = "spec/fuzz/parsers.lua", build .. "/moth" -- which ends an input that takes long as Ctrl-C does
end
local deaths, failed, from, per = 0, false, 0, parsers and 1 or 60
while from * per < wanted and os.time() - begun < seconds and deaths < 25 do
  defaults.MOTH_FROM = tostring(from)
  if wanted < math.huge then defaults.MOTH_CASES = tostring(parsers and wanted or wanted - from * per) end
  if seconds < math.huge then defaults.MOTH_SECONDS = tostring(seconds - (os.time() - begun)) end
  local parts = { "exec env" }
  for name, value in pairs(defaults) do parts[#parts + 1] = name .. "=" .. quote(value) end
  parts[#parts + 1] = ("%s %s %s 2>%s"):format(quote(host), script, table.concat(names, " "), errors)
  io.stdout:flush()
  local status = os.execute(table.concat(parts, " "))
  if status == 0 or status == true then break end
  failed = true
  local told, text = read(errors), read(state)
  if text:find("^done") then break end
  -- ASan also warns of each allocation that it refuses: what counts comes behind
  local at = told:find("==ERROR", 1, true) or told:find("runtime error", 1, true) or 1
  for line in told:sub(at, at + 2500):gmatch("[^\n]+") do print("  " .. line) end
  deaths = deaths + 1
  print(("✗ the process died (%s) at %s"):format(tostring(status), (text:gsub("\n +\n.*$", ""))))
  from = (tonumber(text:match("MOTH_EPISODE=(%d+)")) or from) + 1
end
os.remove(state)
os.remove(errors)
os.exit(failed and 1 or 0)
