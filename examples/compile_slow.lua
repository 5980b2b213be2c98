--- A function that compiling makes slower: how that is seen, found and mended. It asks for a number in each turn of a
-- loop, so that the graph breaks there; and each turn has another size, so that nothing that was recorded fits again.
--
--     moth examples/compile_slow.lua [--quick]
local moth = require "moth"
local compile = moth.compile
moth.manual_seed(0)
compile.config.measure = false -- else moth would see it itself, and run the function uncompiled

local n, turns = 64, moth.cli({ { "--quick", "a short run" } }).quick and 3 or 30
local w = moth.randn(n, n) / 8

-- Grows a row of states, and stops where they no longer change.
local function slow(x)
  local states = x
  for _ = 1, 8 do
    local last = states:narrow(1, states:size(1), 1)
    local new = (last:matmul(w) + last):tanh()
    if (new - last):abs():max():item() < 1e-6 then break end -- 1: Lua needs the number, and the graph ends
    states = moth.cat({ states, new }, 1) -- 2: one row longer in each turn
  end
  return states:mean(1)
end

-- The same: a fixed number of turns, in which those behind the last change add nothing (where), and a sum in place of
-- the list that grows.
local function mended(x)
  local state, sum, count = x, x, moth.ones({ 1, 1 })
  local going = moth.ones({ 1, 1 })
  for _ = 1, 8 do
    local new = (state:matmul(w) + state):tanh()
    going = going * (new - state):abs():amax():ge(1e-6):float()
    sum, count, state = sum + going * new, count + going, moth.where(going:gt(0), new, state)
  end
  return (sum / count):squeeze(1)
end

local x = moth.randn(1, n)
local now = moth.utils.system.now
local function ms(f)
  moth.no_grad(f, x)
  local best = math.huge
  for _ = 1, turns do
    local start = now()
    moth.no_grad(f, x)
    best = math.min(best, now() - start)
  end
  return best * 1e3
end

-- Prints both times, and what explain sees.
local function look(name, f)
  compile.reset()
  local before, after = ms(f), ms(compile(f))
  local c = compile.counters()
  print(("%s: uncompiled %.3f ms, compiled %.3f ms; the calls that compiled took %.1f ms"):format(name, before, after,
    (c.call_seconds - c.hit_seconds) * 1e3))
  local report = compile.explain(f, x)
  print(("  graphs %d, breaks %d"):format(report.graph_count, report.graph_break_count))
  for _, reason in ipairs(report.break_reasons) do print("  break: " .. reason) end
end

look("slow", slow)
look("mended", mended)
print("the same values: " .. tostring(moth.allclose(slow(x), compile(mended, { fullgraph = true })(x), 1e-4, 1e-5)))
