--- The parsers that are written in Lua, or behind a parser in C, with damaged bytes: thousands a second, in one
-- process.
--
--     build/asan/moth spec/fuzz/parsers.lua [graph|onnx|http|gguf|tokenizer|template|checkpoint …]
--
-- spec/fuzz/run.lua starts it again behind an input at which the process died. MOTH_SEED (1) and MOTH_CASES (10000, of
-- each parser) or MOTH_SECONDS say what is run; MOTH_EPISODE=17 runs the input 17 alone and MOTH_KEEP=path keeps its
-- bytes. A parser is a module of spec/fuzz/parse:
--
--     make(chance) -> bytes          an input
--     read(bytes, running, path) -> text   reads it and says what came of it; running() before it computes
--
-- Findings: an error that is none of moth's own (one of Lua's, or without a place or an op), more than 2 s of
-- processor time to read, more than 64 MB of tensors to read, memory that stays. An input that computes for longer, as
-- a model may, is interrupted and counted.
local ffi = require "ffi"
local moth = require "moth"
local Chance = require "fuzz.chance"
local P = require "fuzz.program"
local each = require "moth.each"

local SECONDS = 2      -- of processor time, for one input
local MEMORY = 64e6    -- bytes of tensors to read one
local ROUND = 2000     -- inputs from one look at memory to the next
local LUA_GROWTH = 48e3 -- KB; the traces of the JIT grow for long

local seed = tonumber(os.getenv("MOTH_SEED")) or 1
local cases = tonumber(os.getenv("MOTH_CASES")) or os.getenv("MOTH_SECONDS") and math.huge or 10000
local seconds = tonumber(os.getenv("MOTH_SECONDS")) or math.huge
local only, first = tonumber(os.getenv("MOTH_EPISODE")), tonumber(os.getenv("MOTH_FROM")) or 0
local keep = os.getenv("MOTH_KEEP")
local names = #arg > 0 and arg or { "graph", "onnx", "http", "gguf", "tokenizer", "template", "checkpoint" }

-- ---- what stops an input that takes long: as Ctrl-C does, then the process ----------------------------------------

ffi.cdef [[
typedef struct { int64_t every_s, every_us, s, us; } fuzz_timer;
int fuzz_setitimer(int which, const fuzz_timer *new, fuzz_timer *old) __asm__("setitimer");
typedef struct { uint64_t words[20]; } fuzz_action;
int fuzz_sigaction(int signal, const fuzz_action *new, fuzz_action *old) __asm__("sigaction");
typedef struct { uint64_t value; int signal, notify; uint64_t rest[6]; } fuzz_event;
int fuzz_timer_create(int clock, fuzz_event *event, void **timer) __asm__("timer_create");
typedef struct { int64_t every_s, every_ns, s, ns; } fuzz_spec;
int fuzz_timer_settime(void *timer, int flags, const fuzz_spec *new, fuzz_spec *old) __asm__("timer_settime");]]
local SIGINT, SIGVTALRM, VIRTUAL, PROCESSOR_TIME = 2, 26, 1, 2
local handler = ffi.new("fuzz_action")
ffi.C.fuzz_sigaction(SIGINT, nil, handler)
local timer = ffi.new("void *[1]")
do
  local event = ffi.new("fuzz_event")
  event.signal = handler.words[0] ~= 0 and SIGINT or SIGVTALRM -- outside of build/moth nothing handles it
  assert(ffi.C.fuzz_timer_create(PROCESSOR_TIME, event, timer) == 0, "no timer")
end
local gentle, hard, spec, virtual = SECONDS, 6 * SECONDS, ffi.new("fuzz_spec"), ffi.new("fuzz_timer")
local function limit(on)
  spec.s, virtual.s = on and gentle or 0, on and hard or 0
  ffi.C.fuzz_timer_settime(timer[0], 0, spec, nil)
  ffi.C.fuzz_setitimer(VIRTUAL, virtual, nil)
end

-- ---- findings ------------------------------------------------------------------------------------------------------

local state = os.getenv("MOTH_FUZZ_STATE") and assert(io.open(os.getenv("MOTH_FUZZ_STATE"), "w"))
if state then state:setvbuf("no") end
local function tell(text)
  if not state then return end
  state:seek("set", 0)
  state:write(text, "\n", (" "):rep(40), "\n")
end

local known, findings = {}, 0
local function report(parser, i, what)
  local key = parser .. (what:match("lua/moth/[%w_/]+%.lua:%d+: ")
    or what:gsub("0x%x+", "#"):gsub("%d+", "#"):gsub("%b[]", ""):gsub("'.-'", "'"):sub(1, 120))
  if known[key] then return end
  known[key], findings = true, findings + 1
  print(("✗ MOTH_SEED=%d MOTH_EPISODE=%d %s: %s"):format(seed, i, parser, what:sub(1, 600)))
  io.stdout:flush()
end

local function live()
  collectgarbage()
  moth.zeros(1)
  collectgarbage()
  return moth.memory.stats().live
end

-- ---- one input -----------------------------------------------------------------------------------------------------

local path = (io.open("/dev/shm/moth_fuzz", "w") and "/dev/shm/" or "/tmp/") .. ("moth_fuzz_%d_%s"):format(os.time(),
  tostring({}):match("0x%x+"))
os.remove("/dev/shm/moth_fuzz")
local computes

local function running() computes = true end
local function trace(err)
  if type(err) == "string" and P.complaint(err) then return err .. "\n" .. debug.traceback("", 2) end
  return err
end

local function one(parser, source, i, counts)
  local c = Chance.new(seed, i)
  local bytes = source.make(c, i)
  if only and keep then
    local f = assert(io.open(keep, "wb"))
    f:write(bytes)
    f:close()
  end
  tell(("MOTH_SEED=%d MOTH_EPISODE=%d %s, %d bytes"):format(seed, i, parser, #bytes))
  computes = false
  moth.memory.reset_peak()
  local before, begun = moth.memory.stats().live, os.clock()
  limit(true)
  local ok, said = xpcall(source.read, trace, bytes, running, path)
  limit(false)
  local took, peak = os.clock() - begun, moth.memory.stats().peak - before
  local result
  if ok then
    result = said
  elseif type(said) == "string" and said:find("interrupted", 1, true) then
    result = "interrupted"
    ffi.C.fuzz_sigaction(SIGINT, handler, nil)
    if not computes then report(parser, i, "reading takes for ever") end
  else
    result = "refused"
    local wrong = P.complaint(said)
    if wrong then report(parser, i, wrong .. ": " .. tostring(said)) end
  end
  if only or os.getenv("MOTH_PRINT") then print(i, tostring(said)) end
  if not computes and took > SECONDS then report(parser, i, ("reading takes %.1f s"):format(took)) end
  if not computes and peak > MEMORY then report(parser, i, ("reading takes %.0f MB"):format(peak / 1e6)) end
  counts[result] = (counts[result] or 0) + 1
end

local function run(parser)
  local source, counts = require("fuzz.parse." .. parser), {}
  local begun, cpu, i, done = os.time(), os.clock(), only or first, 0
  local base_live, base_lua
  while only and done < 1 or not only and i < cases and os.time() - begun < seconds / #names do
    one(parser, source, i, counts)
    i, done = i + 1, done + 1
    if done % ROUND == 0 then
      local now, lua = live(), collectgarbage("count")
      base_live, base_lua = base_live or now, base_lua or lua
      if now > base_live + 1e6 then report(parser, i, ("leak: %d bytes of tensors stay"):format(now - base_live)) end
      if lua > base_lua + LUA_GROWTH then report(parser, i, ("leak: %d KB of Lua's stay"):format(lua - base_lua)) end
    end
  end
  local parts = {}
  for what, n in each(counts) do parts[#parts + 1] = ("%d %s"):format(n, what) end
  table.sort(parts)
  print(("%s %s: %d inputs (%s), %.0f/s, %d s: %d findings"):format(findings == 0 and "✓" or "✗", parser, done,
    table.concat(parts, ", "), done / math.max(os.clock() - cpu, 0.01), os.time() - begun, findings))
  io.stdout:flush()
  os.remove(path)
end

for _, parser in ipairs(names) do run(parser) end
require("moth_lua").empty_cache()
tell(findings == 0 and "ended" or "done")
os.exit(findings == 0 and 0 or 1, true)
