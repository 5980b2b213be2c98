local moth = require "moth"
local memory = moth.memory

local function here(offset) -- "file:line" of the caller's line
  local info = debug.getinfo(2, "Sl")
  return ("%s:%d"):format(info.short_src, info.currentline + (offset or 0))
end

local function recorded(fn)
  memory.record_history(true)
  local ok, err = pcall(fn)
  memory.record_history(false)
  if not ok then error(err, 0) end
end

describe("the record of allocations", function()
  it("names the line of each live block, with the lines that called it #M337", function()
    recorded(function()
      local place = here(1)
      local x = moth.zeros(1000, 1000)
      local function make() return moth.ones(30) end
      local y = make()
      local s = memory.snapshot()
      local big = s:by_line("tensor")[1]
      assert.equal(place, big.line:match("^%S+:%d+"))
      assert.is_truthy(big.line:find("zeros", 1, true))
      assert.is_true(big.bytes >= 4e6 and big.bytes < 4.6e6)
      assert.equal(1, big.count)
      assert.is_true(#big.trace >= 2)
      assert.is_truthy(tostring(s):find(place, 1, true))
      local small
      for _, b in ipairs(s.blocks) do small = small or b.requested == 120 and b end
      assert.equal("tensor", small.kind)
      assert.equal("cpu", small.device)
      assert.is_truthy(small.trace[2]:find("history_spec.lua", 1, true)) -- the caller of make
      assert.is_truthy(x and y)
      x, y = nil, nil -- luacheck: ignore
      for _, group in ipairs(memory.snapshot():by_line("tensor")) do assert.not_equal(big.line, group.line) end
    end)
    assert.is_false(memory.is_recording())
    assert.error_matches(function() memory.snapshot() end, "call moth.memory.record_history%(true%) first")
  end)

  it("tells what one snapshot has and the other has not #M337", function()
    recorded(function()
      local x = moth.zeros(500, 100) -- luacheck: ignore
      local before = memory.snapshot()
      local place = here(1)
      local y = moth.ones(700, 100)
      x = nil -- luacheck: ignore
      local d = memory.diff(before, memory.snapshot())
      assert.equal(place, d.lines[1].line:match("^%S+:%d+"))
      assert.is_true(d.added_bytes >= 280000 and d.removed_bytes >= 200000)
      assert.is_truthy(tostring(d):find("added:", 1, true) and tostring(d):find("removed:", 1, true))
      assert.error_matches(function() memory.diff(before, 3) end, "argument 'after': expected a snapshot")
      return y
    end)
  end)

  it("keeps the last events and draws memory over time #M337", function()
    local path = os.tmpname() .. ".svg"
    finally(function() os.remove(path) end)
    recorded(function()
      local keep = {} -- luacheck: ignore
      for i = 1, 20 do
        keep[i] = moth.zeros(256, 256)
        moth.ones(256, 256):free()
      end
      local events, now, peak = memory.events(), 0, 0
      for _, e in ipairs(events) do
        now = now + e.bytes
        peak = math.max(peak, now)
      end
      assert.is_true(#events > 60 and peak > 20 * 262144 and peak < 25 * 262144)
      memory.timeline { title = "one & all" }:save(path)
    end)
    local text = assert(io.open(path)):read("*a")
    assert.is_truthy(text:find("<svg", 1, true) and text:find("history_spec.lua", 1, true)
      and text:find("one &amp; all", 1, true))
    memory.record_history(true, { max_entries = 10 })
    for _ = 1, 50 do moth.zeros(3):free() end
    assert.equal(10, #memory.events())
    memory.record_history(false)
    assert.error_matches(function() memory.record_history(true, { max_entreis = 3 }) end, "did you mean 'max_entries'")
  end)

  it("sees what backward and other threads' states leave alone", function()
    recorded(function()
      local w = moth.randn(64, 64, { requires_grad = true })
      local place = here(1)
      w:matmul(w):sum():backward()
      local found = false
      for _, g in ipairs(memory.snapshot():by_line("tensor")) do found = found or g.line:find(place, 1, true) == 1 end
      assert.is_true(found) -- the gradient
    end)
  end)
end)

describe("a limit of memory", function()
  local function limited(bytes, fn)
    collectgarbage()
    memory.set_limit(memory.stats().live + bytes)
    local ok, err = pcall(fn)
    memory.set_limit(false)
    if not ok then error(err, 0) end
  end

  it("collects garbage, tries again, then says who holds what #M343 #M344", function()
    limited(4e6, function()
      for _ = 1, 100 do moth.zeros(500, 500) end -- garbage is collected in time
      local keep = moth.zeros(500, 500)
      local ok, err = pcall(moth.zeros, 1000, 1000)
      assert.is_false(ok)
      assert.is_truthy(err:find("out of memory: could not allocate 4000000 bytes on cpu", 1, true), err)
      assert.is_truthy(err:find("are allowed", 1, true) and err:find("record_history(true)", 1, true), err)
      local half = moth.zeros(500, 500) -- still works
      return keep, half
    end)
    recorded(function()
      limited(4e6, function()
        local place = here(1)
        local keep = moth.zeros(600, 600)
        local ok, err = pcall(moth.zeros, 1000, 1000)
        assert.is_false(ok)
        assert.is_truthy(err:find("most is held by 1.", 1, true) and err:find(place, 1, true), err)
        return keep
      end)
    end)
    assert.is_false(memory.limit())
    assert.equal(4e6, moth.zeros(1000, 1000):untyped_storage():nbytes())
    assert.error_matches(function() memory.set_limit(-1) end, "expected a positive number")
  end)

  it("is rarely met: garbage is collected after some growth, which can be set; release() and scope free at once #M343",
    function()
    collectgarbage()
    collectgarbage("stop")
    local was = memory.set_gc_pressure(1e6)
    local before, most = memory.stats().live, 0
    for _ = 1, 60 do
      moth.zeros(250, 250) -- dropped
      most = math.max(most, memory.stats().live - before)
    end
    memory.set_gc_pressure(was)
    collectgarbage("restart")
    assert.equal(64 * 2 ^ 20, was)
    assert.is_true(most < 12e6, tostring(most))
    collectgarbage()
    before = memory.stats().live
    local loss = moth.zeros(500, 500)
    loss:release()
    moth.scope(function() return moth.zeros(500, 500):sum() end)
    assert.is_true(memory.stats().live - before < 1e6)
    assert.error_matches(function() loss:sum() end, "released")
  end)

  it("holds in backward, too, and what was freed there comes back", function()
    local w = moth.randn(300, 300, { requires_grad = true })
    limited(6e6, function()
      for _ = 1, 50 do
        w.grad = nil
        ((w:matmul(w)):tanh():matmul(w)):sum():backward()
      end
    end)
    assert.is_truthy(w.grad)
  end)
end)
