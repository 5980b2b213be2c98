--- The fuzzer of the Lua surface: random programs (spec/fuzz/program.lua) of lines from a source.
--
--     luajit spec/fuzz/api.lua [calls|surface|hooks|files …]
--
-- MOTH_SEED (1) and MOTH_CASES (10000 lines) or MOTH_SECONDS say what is run; an episode is 60 lines, with
-- a pool of its own, that seed and number of the episode repeat: MOTH_EPISODE=17 runs that one alone, MOTH_PRINT=1
-- prints its lines, for spec/fuzz/shrink.lua to cut down.
-- In every fourth episode nothing requires grad, and all memory must come back.
-- MOTH_DEVICE=cuda puts the tensors there. A finding is one line; each is told once, by op and kind. The line that runs
-- is kept in the file $MOTH_FUZZ_STATE, for when the process dies; spec/fuzz/run.lua reads it and goes on behind that
-- episode (MOTH_FROM). A file as argument (spec/fuzz/api.lua program.txt) is run line by line instead; it exits with 1
-- if it finds something.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local Chance = require "fuzz.chance"
local P = require "fuzz.program"

local LINES = 60
local seed = tonumber(os.getenv("MOTH_SEED")) or 1
local cases = tonumber(os.getenv("MOTH_CASES")) or os.getenv("MOTH_SECONDS") and math.huge or 10000
local seconds = tonumber(os.getenv("MOTH_SECONDS")) or math.huge
local only = tonumber(os.getenv("MOTH_EPISODE"))
local loud = os.getenv("MOTH_PRINT")
local device = os.getenv("MOTH_DEVICE") or "cpu"

-- Sizes of 2^40 must fail by themselves; what a call may really take is bounded by this, where ASan does not.
if not os.getenv("ASAN_OPTIONS") then
  ffi.cdef "struct fuzz_limit { unsigned long now, most; }; int setrlimit(int what, const struct fuzz_limit *);"
  ffi.C.setrlimit(9, ffi.new("struct fuzz_limit", 3 * 2 ^ 30, 3 * 2 ^ 30))
end

local state = os.getenv("MOTH_FUZZ_STATE") and assert(io.open(os.getenv("MOTH_FUZZ_STATE"), "w"))
local function tell(text)
  if not state then return end
  state:seek("set", 0)
  state:write(text, "\n", (" "):rep(40), "\n")
  state:flush()
end

local function live()
  for _ = 1, 3 do
    collectgarbage()
    moth.zeros(1)
  end
  collectgarbage()
  return moth.memory.stats().live
end

local known, findings = {}, 0
-- A finding is told once: by its place in moth's Lua, or by its text without what varies.
local function report(what, line, where)
  local key = what:match("lua/moth/[%w_/]+%.lua:%d+: ")
    or what:gsub("0x%x+", "#"):gsub("%d+", "#"):gsub("%b[]", ""):sub(1, 160)
  if known[key] then return end
  known[key] = true
  findings = findings + 1
  print(("✗ %s %s\n    %s"):format(where, what, line))
  io.stdout:flush()
end

-- A program out of a file.
if arg[1] and arg[1]:find("%.txt$") then
  local program = P.new(device, os.getenv("MOTH_PLAIN"))
  local strict = os.getenv("MOTH_STRICT")
  program.raises = os.getenv("MOTH_RAISES")
  local before = live()
  for line in io.lines(arg[1]) do
    local text, pure = line:gsub("%s*%-%- impure$", "")
    tell(line)
    local wrong, failed, err = program:run(text, pure == 0, strict)
    if loud then print(text, failed and P.text_of(err) or "") end
    if wrong then report(wrong, line, arg[1]) end
  end
  program:drop()
  local after = live()
  if after > before then report(("leak: %d bytes of tensors stay"):format(after - before), "(at the end)", arg[1]) end
  os.exit(findings == 0 and 0 or 1, true)
end

local names = #arg > 0 and arg or { "calls" }
local calls, raised, episode = 0, 0, only or tonumber(os.getenv("MOTH_FROM")) or 0
local by_name = {}
local begun = os.time()
while only and episode == only or not only and calls < cases and os.time() - begun < seconds do
  local name = names[episode % #names + 1]
  local source = require("fuzz." .. name)
  local plain = episode % 4 == 3 and name ~= "hooks" -- the recorder keeps what it noted last
  -- The bytes of tensors that stay after the episode's lines.
  local function run(quiet)
    local c = Chance.new(seed, episode)
    local program = P.new(device, plain)
    local before = live()
    for i = 1, LINES do
      local text, pure, what, strict = source(c, program, i)
      local line = pure and text or text .. " -- impure"
      tell(("MOTH_SEED=%d MOTH_EPISODE=%d %s line %d\n%s"):format(seed, episode, name, i, line))
      local wrong, failed, err = program:run(text, pure, strict)
      if not quiet then
        if loud then print(line .. (failed and loud == "2" and " --> " .. P.text_of(err) or "")) end
        calls = calls + 1
        if failed then raised = raised + 1 end
        by_name[what] = by_name[what] or { 0, 0 }
        by_name[what][failed and 2 or 1] = by_name[what][failed and 2 or 1] + 1
        if wrong then
          report(what .. ": " .. wrong, line,
            ("MOTH_SEED=%d MOTH_EPISODE=%d %s line %d:"):format(seed, episode, name, i))
        end
      end
    end
    program:drop()
    tell(("MOTH_SEED=%d MOTH_EPISODE=%d %s at its end"):format(seed, episode, name))
    return live() - before
  end
  -- A module may keep a tensor from its first use on: a leak is what stays each time.
  if run() > 0 and plain and live() and run(true) > 0 then
    report(("leak: %d bytes of tensors stay"):format(run(true)), "(the whole episode)",
      ("MOTH_SEED=%d MOTH_EPISODE=%d %s"):format(seed, episode, name))
  end
  episode = episode + 1
end
if os.getenv("MOTH_NEVER") then -- which ops never succeed
  for what, n in require("moth.each")(by_name) do if n[1] == 0 then print("never succeeds:", what, n[2]) end end
end
print(("%s %d lines in %d episodes of %s on %s (%d raised), %.0f s: %d findings"):format(findings == 0 and "✓" or "✗",
  calls, only and 1 or episode, table.concat(names, ", "), device, raised, os.clock(), findings))
B.empty_cache()
tell(findings == 0 and "ended" or "done")
os.exit(findings == 0 and 0 or 1, true)
