-- A callable that is slower compiled than uncompiled turns itself off, and says so once.
local moth = require "moth"
local B = require "moth_lua"
local compile = moth.compile
local C = B.compile

-- What fn writes to stderr, by a stand-in for it.
local function stderr(fn)
  local real, text = io.stderr, {}
  io.stderr = { write = function(_, s) text[#text + 1] = s end } -- luacheck: ignore
  local ok, e = pcall(fn)
  io.stderr = real -- luacheck: ignore
  assert(ok, e)
  return table.concat(text)
end

-- A clock that the spec advances: `took` says what a call takes, compiled and not.
local function with_clock(took, fn)
  local real, now = C.clock, 0
  C.clock = function() return now end
  local ok, e = pcall(fn, function() now = now + took[C.recording() and 1 or 2] end)
  C.clock = real
  assert(ok, e)
end

describe("compile: the pace #quick", function()
  local was = compile.config.measure
  before_each(function()
    compile.config.measure = true
    compile.reset()
  end)
  after_each(function() compile.config.measure = was end)

  it("a callable that is slower turns itself off, once, with a counter", function()
    with_clock({ 120, 100 }, function(tick)
      local compiling = 0
      local compiled = compile(function(x)
        tick()
        if compile.is_compiling() then compiling = compiling + 1 end
        return (x * 2 + 1):relu()
      end, { backend = "blocks" })
      local text = stderr(function()
        for _ = 1, 80 do assert.equal(3, compiled(moth.ones(2))[1]:item()) end
      end)
      assert.matches("pace_spec%.lua:%d+ takes 0%.12 us compiled and 0%.1 us uncompiled: "
        .. "on tensors of up to 64 elements it runs uncompiled", text)
      assert.equal(1, select(2, text:gsub("warning", "")))
      assert.equal(1, compile.counters().turned_off)
      assert.is_true(compiling < 50)
      compile.reset()
      assert.equal(0, compile.counters().turned_off)
    end)
  end)

  it("is turned off for the sizes at which it is slower", function()
    with_clock({ 120, 100 }, function(tick)
      local slow = true
      local compiled = compile(function(x)
        if slow or not compile.is_compiling() then tick() end
        return (x * 2 + 1):relu()
      end, { backend = "blocks", dynamic = true })
      local function calls(n)
        local before = compile.counters().calls
        for _ = 1, 80 do compiled(moth.ones(n)) end
        return compile.counters().calls - before
      end
      stderr(function() assert.is_true(calls(3) < 60) end)
      slow = false
      assert.is_true(calls(5000) > 60)
      assert.equal(80, calls(5000))
      assert.equal(0, calls(3))
      assert.equal(1, compile.counters().turned_off)
    end)
  end)

  it("one that is not stays compiled", function()
    with_clock({ 100, 100 }, function(tick)
      local compiled = compile(function(x)
        tick()
        return (x * 2 + 1):relu()
      end, { backend = "blocks" })
      assert.equal("", stderr(function()
        for _ = 1, 80 do compiled(moth.ones(2)) end
      end))
      local last = compile.counters().calls
      compiled(moth.ones(2))
      assert.equal(last + 1, compile.counters().calls)
    end)
  end)

  it("is not measured with config.measure = false, or for functions as backends", function()
    with_clock({ 200, 100 }, function(tick)
      local function f(x)
        tick()
        return (x * 2 + 1):relu()
      end
      local function calls(o, x)
        compile.reset()
        local compiled = compile(f, o)
        for _ = 1, 100 do compiled(x) end
        return compile.counters().calls
      end
      assert.equal(100, calls({ backend = "eager" }, moth.ones(2)))
      assert.equal(100, calls({ backend = function(g) return g:interpreter() end }, moth.ones(2)))
      compile.config.measure = false
      local n = calls({ backend = "blocks" }, moth.ones(2))
      compile.config.measure = true
      assert.equal(100, n)
      assert.equal(0, compile.counters().turned_off)
    end)
  end)

  it("takes errors as they come", function()
    local compiled = compile(function(x)
      if x:size(1) == 3 then error("three", 0) end
      return (x * 2 + 1):relu()
    end, { backend = "blocks" })
    for n = 1, 90 do
      local ok, e = pcall(compiled, moth.ones(n % 2 + 2))
      assert.equal(n % 2 == 0, ok)
      assert.is_true(ok or e == "three")
    end
  end)
end)
