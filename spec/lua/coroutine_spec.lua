-- Modes across coroutines, and Ctrl-C.
local moth = require "moth"

local build = os.getenv("MOTH_BUILD") or "build"

--- The modes by their effects on ops, not by flags.
local function records() return (moth.ones(1, { requires_grad = true }) * 2):requires_grad() end
local function low() return tostring(moth.ones(2, 2):mm(moth.ones(2, 2)):dtype()) == "moth.bfloat16" end

describe("a coroutine #quick", function()
  it("that yields inside a scope keeps its modes, and leaves others alone", function()
    local seen = {}
    local co = coroutine.wrap(function()
      moth.no_grad(function()
        seen[#seen + 1] = records()
        coroutine.yield()
        seen[#seen + 1] = records()
        moth.enable_grad(function()
          coroutine.yield()
          seen[#seen + 1] = records()
        end)
        seen[#seen + 1] = records()
        coroutine.yield()
      end)
      seen[#seen + 1] = records()
    end)
    for _ = 1, 3 do
      co()
      assert.is_true(records())
      assert.is_true(moth.is_grad_enabled())
    end
    moth.no_grad(function()
      co()
      assert.is_false(records())
    end)
    assert.same({ false, false, true, false, false }, seen)
    assert.is_true(records())
  end)

  it("without a scope runs under the modes of whoever resumes it", function()
    local inner = coroutine.wrap(function() while true do coroutine.yield(records()) end end)
    assert.is_true(inner())
    assert.is_false(moth.no_grad(inner))
    assert.is_true(inner())
    local outer = coroutine.wrap(function()
      moth.no_grad(function()
        coroutine.yield()
        while true do coroutine.yield(inner()) end
      end)
    end)
    outer()
    assert.is_true(inner()) -- outer is suspended in its scope
    assert.is_false(outer())
    assert.is_true(inner())
    assert.is_false(outer())
    assert.is_true(records())
  end)

  it("keeps autocast, fake mode, dispatch modes and scopes for itself", function()
    local names = {}
    local function within(scope)
      return coroutine.wrap(function()
        scope(function() while true do coroutine.yield(low(), moth.ones(2), records()) end end)
      end)
    end
    local cast = within(moth.autocast)
    local fake = within(moth.fake_mode)
    local mode = within(function(fn)
      moth.dispatch_mode(function(func, args)
        names[#names + 1] = func.name
        return func(unpack(args, 1, args.n))
      end, fn)
    end)
    local scope = within(moth.scope)
    local kept
    for _ = 1, 3 do
      assert.is_true((cast()))
      assert.is_false(low())
      local _, t = fake()
      assert.error(function() t:item() end)
      local _, made = scope()
      kept = made
      local n = #names
      mode()
      assert.is_true(#names > n)
      n = #names
      assert.same({ 1, 1 }, moth.ones(2):totable())
      assert.equal(n, #names)
    end
    assert.same({ 1, 1 }, kept:totable()) -- its scope is still open
  end)

  it("that fails or is dropped inside a scope leaves nothing behind", function()
    for _ = 1, 20 do
      local co = coroutine.create(function() moth.no_grad(function() coroutine.yield() error("out", 0) end) end)
      assert.is_true(coroutine.resume(co))
      local dropped = coroutine.wrap(function() moth.no_grad(function() records() coroutine.yield() end) end)
      dropped()
      dropped = nil -- luacheck: ignore
      local ok, err = coroutine.resume(co)
      assert.is_false(ok)
      assert.equal("out", err)
      assert.is_true(records())
    end
    collectgarbage()
    collectgarbage()
    assert.is_true(records())
    assert.is_true(coroutine.wrap(records)())
  end)

  it("may be resumed by a hook and a dispatch mode, whose modes come back", function()
    local co = coroutine.wrap(function() moth.no_grad(function() while true do coroutine.yield(records()) end end) end)
    local x = moth.ones(2, { requires_grad = true })
    local y = x * 2
    local got
    y:register_hook(function() got = co() end)
    y:sum():backward()
    assert.is_false(got)
    assert.same({ 2, 2 }, x.grad:totable())
    local r = moth.dispatch_mode(function(func, args)
      co()
      return func(unpack(args, 1, args.n))
    end, function() return (x * 3):requires_grad() and records() end)
    assert.is_true(r)
    assert.is_true(records())
  end)
end)

describe("Ctrl-C", function()
  --- The end of what `moth` prints when code is sent SIGINT (`signals` times) once it says that it is ready.
  local function interrupt(code, signals)
    local script = os.tmpname()
    local f = assert(io.open(script, "w"))
    f:write(code)
    f:close()
    local pipe = io.popen(([[%s/moth %s > %s.out 2>&1 & pid=$!
      for i in $(seq 200); do grep -qs ready %s.out && break; sleep 0.05; done
      for i in $(seq %d); do sleep 0.3; kill -INT $pid; done
      (sleep 20; kill -9 $pid) 2>/dev/null >&2 & watch=$!
      wait $pid; status=$?; kill $watch; cat %s.out; rm -f %s.out; echo status=$status]]):format(
      build, script, script, script, signals or 1, script, script))
    local text = pipe:read("*a")
    pipe:close()
    os.remove(script)
    return text
  end
  local ready = 'local moth = require "moth" print("ready") io.stdout:flush() '

  it("raises an error in a compiled loop that calls ops", function()
    local text = interrupt(ready .. [[
      local x = moth.ones(3)
      local ok, err = pcall(function() while true do x = x + 0 end end)
      print(ok, err, x:sum():item())]])
    assert.matches("false\t[^\n]*interrupted\t3\nstatus=0", text)
    text = interrupt(ready .. "local x = moth.ones(3) while true do x = x + 0 end")
    assert.matches("moth: [^\n]*interrupted\nstack traceback:.*status=1", text)
  end)

  it("raises it in an interpreted loop, and in a backward's hook", function()
    assert.matches("interrupted.*status=1", interrupt(ready .. "jit.off() while true do end"))
    assert.matches("interrupted.*status=1", interrupt(ready .. [[
      local x = moth.ones(3, { requires_grad = true })
      local y = x * 2
      y:register_hook(function(g) while true do g = g + 0 end end)
      y:sum():backward()]]))
  end)

  it("ends the process the second time", function()
    local text = interrupt(ready .. "while true do end", 2)
    assert.matches("status=130", text)
  end)
end)

describe("coroutines", function()
  it("keep a mode that they began in, though it is closed outside #quick", function()
    local calls = 0
    local co = coroutine.wrap(function()
      return moth.no_grad(function()
        coroutine.yield()
        local y = moth.ones(1) + 1
        coroutine.yield()
        return (y + 1):item()
      end)
    end)
    moth.dispatch_mode(function(f, args)
      calls = calls + 1
      return f(unpack(args, 1, args.n))
    end, function() co() end)
    collectgarbage()
    moth.ones(2) -- released values are removed when a handle is made
    collectgarbage()
    co()
    assert.equal(3, co())
    assert.is_true(calls > 0)
  end)

  it("take a mode with them when they are dropped inside of it #quick", function()
    local co = coroutine.wrap(function()
      moth.dispatch_mode(function() error("not any more") end, function() coroutine.yield() end)
    end)
    co()
    co = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal(2, moth.ones(2):sum():item())
  end)
end)
