-- Streams and events of the CPU: queues that run beside the program, in order.
local moth = require "moth"
local child = require "child"
local ffi = require "ffi"

local C = moth.C
ffi.cdef "int usleep(unsigned microseconds);"

-- Queues a pause: usleep takes its number where a task takes its ctx, and returns 0 as MOTH_OK.
local nap = ffi.cast("int (*)(void *)", ffi.C.usleep)
local function sleep(s, seconds)
  local stream = ffi.cast("void **", s)[0]
  local submit = ffi.cast("int (*)(void *, int (*)(void *), void *, void *)", C.moth_stream_submit)
  assert(submit(stream, nap, nil, ffi.cast("void *", seconds * 1e6)) == 0)
end

local function fails(pattern, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(pattern, tostring(e), 1, true)
end

describe("a stream of the cpu #quick", function()
  it("queues what ops compute, and gives the values that calls without it give", function()
    local x, w = moth.randn(17, 33), moth.randn(33, 9)
    local function compute()
      local y = x:mm(w):relu()
      y:add_(1)
      local z = y:softmax(2)
      return z, y:t():contiguous(), moth.cat({ y, z }), y:sum { dim = 1 }, y[2]
    end
    local want = { compute() }
    local s = moth.Stream()
    local got = { moth.stream(s, compute) }
    assert.equal(#want, #got)
    for i = 1, #want do assert.is_true(moth.equal(want[i], got[i])) end
    s:synchronize()
    assert.is_true(s:query())
  end)

  it("does not wait at a call, and readers wait for what they read", function()
    local s, x = moth.cpu.Stream(), moth.ones(4)
    sleep(s, 0.1)
    local y = moth.cpu.stream(s, function() return x * 2 end)
    assert.is_false(s:query())
    assert.equal(2, y[1]:item()) -- an element
    sleep(s, 0.05)
    y = moth.stream(s, function() return x * 3 end)
    assert.equal(12, y:sum():item()) -- an op of the thread itself
    sleep(s, 0.05)
    y = moth.stream(s, function() return x * 4 end)
    assert.same({ 4, 4, 4, 4 }, y:totable())
    sleep(s, 0.05)
    y = moth.stream(s, function() return (x * 5):view(2, 2) end)
    assert.same({ 5, 5 }, y[2]:totable()) -- a view of a view
    sleep(s, 0.05)
    y = moth.stream(s, function() return x * 6 end)
    assert.equal(6, y:data()[3])
    sleep(s, 0.05)
    local z = moth.zeros(4)
    moth.stream(s, function() z:add_(7) end) -- in place
    assert.equal(7, z:min():item())
    sleep(s, 0.05)
    z = moth.zeros(2, 2)
    moth.stream(s, function() z[1]:fill_(8) end) -- through a view
    assert.same({ { 8, 8 }, { 0, 0 } }, z:totable())
  end)

  it("keeps tensors alive until its work is done", function()
    local s = moth.Stream()
    collectgarbage()
    collectgarbage()
    local before = moth.memory.stats().live
    sleep(s, 0.1)
    local y = moth.stream(s, function()
      local a = moth.full({ 1000, 1000 }, 3)
      local b = a * 2
      a:free()
      local c = b + 1
      b:free()
      return c:sum()
    end)
    collectgarbage()
    collectgarbage()
    assert.equal(7e6, y:item())
    s:synchronize()
    y:free()
    collectgarbage()
    moth.memory.empty_cache()
    moth.zeros(1)
    assert.is_true(moth.memory.stats().live - before < 2e6)
  end)

  it("raises the errors of its work where somebody waits, and skips what follows", function()
    local s, x, bad = moth.Stream(), moth.randn(3), moth.tensor({ 5 }, { dtype = moth.int64 })
    local y, z
    moth.stream(s, function()
      y = x:gather(1, bad) -- an index out of range
      z = x * 2
    end)
    fails("in queued work: [gather]", y.item, y)
    fails("in queued work: [gather]", z.totable, z)
    fails("out of range", s.synchronize, s)
    s:synchronize() -- once
    fails("[gather]", function() return y + 1 end) -- a result that was never computed stays an error
    assert.is_true(moth.equal(x * 2, moth.stream(s, function() return x * 2 end)))
    moth.stream(s, function() y = x:gather(1, bad) end)
    fails("out of range", moth.cpu.synchronize)
    -- Shapes are wrong at the call, as ever.
    fails("shapes cannot be multiplied", moth.stream, s, function() return moth.ones(2, 3):mm(moth.ones(2, 3)) end)
    s:synchronize()
  end)

  it("runs at once what has to look at values, and random ops in the order of calls", function()
    local s = moth.Stream()
    local x = moth.tensor { 0, 1, 0, 2 }
    sleep(s, 0.05)
    moth.stream(s, function()
      local y = x + 1
      assert.same({ { 1 }, { 2 }, { 3 }, { 4 } }, y:nonzero():totable())
      assert.equal(7, y:sum():item())
      if y[4]:item() ~= 3 then error "read too early" end
    end)
    moth.manual_seed(3)
    local want = { moth.rand(5), moth.rand(5), moth.randn(3) }
    moth.manual_seed(3)
    local got = moth.stream(s, function() return { moth.rand(5), moth.rand(5), moth.randn(3) } end)
    for i = 1, 3 do assert.is_true(moth.equal(want[i], got[i])) end
  end)

  it("trains as without it", function()
    local function train(scope)
      moth.manual_seed(1)
      local net = moth.nn.Sequential(moth.nn.Linear(6, 12), moth.nn.Tanh(), moth.nn.Linear(12, 3))
      local opt = moth.optim.Adam(net:parameters(), { lr = 0.05 })
      local x, y = moth.randn(20, 6), moth.randint(1, 4, { 20 })
      scope(function()
        for _ = 1, 5 do
          opt:zero_grad()
          moth.nn.functional.cross_entropy(net(x), y):backward()
          opt:step()
        end
      end)
      return net:parameters()
    end
    local want = train(function(fn) fn() end)
    local s = moth.Stream()
    local got = train(function(fn) moth.stream(s, fn) end)
    for i = 1, #want do assert.is_true(moth.equal(want[i], got[i])) end
  end)

  it("waits for events and other streams", function()
    local a, b, x = moth.Stream(), moth.Stream(), moth.zeros(3)
    local e1, e2 = moth.Event { enable_timing = true }, moth.Event { enable_timing = true }
    assert.is_true(e1:query()) -- never recorded
    e1:record(a)
    sleep(a, 0.1)
    moth.stream(a, function() x:add_(1) end)
    e2:record(a)
    assert.is_false(e2:query())
    fails("has not come", e1.elapsed_time, e1, e2)
    b:wait_event(e2)
    local y = moth.stream(b, function() return x * 10 end)
    local z = moth.zeros(1)
    b:record_event():wait() -- the thread waits
    assert.is_true(e2:query() and a:query() and b:query())
    assert.same({ 10, 10, 10 }, y:totable())
    assert.is_true(e1:elapsed_time(e2) >= 90)
    sleep(a, 0.05)
    moth.stream(a, function() z:add_(1) end)
    b:wait_stream(a)
    moth.stream(b, function() z:mul_(5) end)
    moth.cpu.current_stream():wait_stream(b)
    assert.equal(5, z:item())
    -- A stream may read what another writes, without waiting explicitly.
    sleep(a, 0.05)
    local p = moth.stream(a, function() return z + 1 end)
    local q = moth.stream(b, function() return p * 2 end)
    assert.equal(12, q:item())
    -- The error reaches the other stream.
    moth.stream(a, function() z:gather(1, moth.tensor({ 9 }, { dtype = moth.int64 })) end)
    b:wait_stream(a)
    q = moth.stream(b, function() return z + 1 end)
    fails("[gather]", b.synchronize, b)
    fails("[gather]", q.item, q)
    fails("[gather]", a.synchronize, a)
  end)

  it("says what it is, and checks what it is given", function()
    local s = moth.Stream { device = "cpu", priority = -1 }
    assert.equal("<moth.Stream device=cpu priority=-1>", tostring(s))
    assert.equal("cpu", s.device.type)
    assert.equal(-1, s.priority)
    assert.is_true(s == s and s ~= moth.Stream())
    assert.is_true(moth.cpu.current_stream() == moth.cpu.default_stream())
    moth.stream(s, function() assert.is_true(moth.cpu.current_stream() == s) end)
    assert.is_true(moth.cpu.current_stream() == moth.cpu.default_stream())
    assert.equal(3, moth.stream(nil, function(v) return v end, 3))
    fails("expected (stream, function)", moth.stream, s)
    fails("expected a moth.Stream", moth.stream, 5, function() end)
    fails("expected a moth.Event", s.wait_event, s, s)
    fails("enable_timing", function()
      local e = moth.Event()
      e:record(s)
      e:elapsed_time(e)
    end)
    assert.equal("<moth.Event>", tostring(moth.Event()))
    fails("moth.cuda.Stream", moth.cuda.stream, s, function() end)
    moth.ones(2):record_stream(s)
  end)

  it("belongs to the coroutine that opened it", function()
    local s, default = moth.Stream(), moth.cpu.default_stream()
    local co = coroutine.wrap(function()
      moth.stream(s, function()
        coroutine.yield(moth.cpu.current_stream() == s)
        coroutine.yield(moth.cpu.current_stream() == s)
      end)
      return moth.cpu.current_stream() == default
    end)
    assert.is_true(co())
    assert.is_true(moth.cpu.current_stream() == default)
    assert.is_true(co())
    assert.is_true(moth.cpu.current_stream() == default)
    assert.is_true(co())
    assert.is_true(moth.cpu.current_stream() == default)
  end)

  it("goes on after its handle is gone", function()
    local y
    do
      local s = moth.Stream()
      sleep(s, 0.05)
      y = moth.stream(s, function() return moth.ones(3) * 4 end)
    end
    collectgarbage()
    collectgarbage()
    assert.equal(12, y:sum():item())
  end)
end)

describe("queued work", function()
  local function run(script, wrap) return child(script, { env = wrap or "timeout -k 1 20" }) end
  local head = [[
    local moth, ffi = require "moth", require "ffi"
    ffi.cdef "int usleep(unsigned); int fork(void); int waitpid(int, int *, int); void _exit(int);"
    local nap = ffi.cast("int (*)(void *)", ffi.C.usleep)
    local submit = ffi.cast("int (*)(void *, int (*)(void *), void *, void *)", moth.C.moth_stream_submit)
    local function sleep(s, t) submit(ffi.cast("void **", s)[0], nap, nil, ffi.cast("void *", t * 1e6)) end
    local s = moth.Stream()
  ]]

  it("does not keep a process from ending", function()
    for i, last in ipairs { "", "os.exit(0)", "os.exit(0, true)" } do
      local text, status = run(head .. [[
        sleep(s, 0.2)
        for _ = 1, 100 do moth.stream(s, function() return moth.ones(100, 100):mm(moth.ones(100, 100)) end) end
      ]] .. (i == 2 and "for _ = 1, 100 do sleep(s, 100) end " or "") .. 'io.write "end" ' .. last)
      assert.equal("end", text)
      assert.equal(0, status)
    end
  end)

  it("fails in a child of fork, where new work runs", function()
    local text, status = run(head .. [[
      sleep(s, 0.3)
      local y = moth.stream(s, function() return moth.ones(3) * 2 end)
      local pid = ffi.C.fork()
      if pid == 0 then
        local ok, e = pcall(y.totable, y)
        local ok2 = pcall(s.synchronize, s)
        local z = moth.stream(s, function() return moth.ones(3) * 3 end)
        local good = not ok and not ok2 and tostring(e):find("before fork", 1, true) and z:sum():item() == 9
        ffi.C._exit(good and 7 or 8)
      end
      local st = ffi.new "int[1]"
      ffi.C.waitpid(pid, st, 0)
      io.write(bit.rshift(st[0], 8), " ", y:sum():item())
    ]])
    assert.equal("7 6", text)
    assert.equal(0, status)
  end)

  it("lets Ctrl-C end a wait", function()
    local text, status = run(head .. [[
      sleep(s, 10)
      ffi.cdef "int getpid(void);"
      os.execute(("{ sleep 1; kill -INT %d; } >/dev/null 2>&1 &"):format(ffi.C.getpid()))
      local ok, e = pcall(s.synchronize, s)
      io.write(tostring(ok), " ", tostring(e):match "interrupted")
      os.exit(3)
    ]], "env --default-signal=INT timeout -k 5 60") -- CI may have it ignored
    assert.equal("false interrupted", text)
    assert.equal(3, status)
  end)
end)

describe("streams in threads #threads", function()
  it("queue, wait and free at once", function()
    local preload = os.getenv "LD_PRELOAD" or ""
    local tsan = preload:find("tsan", 1, true) ~= nil
    ffi.cdef "int unsetenv(const char *name); int setenv(const char *name, const char *value, int overwrite);"
    local build = os.getenv "MOTH_BUILD" or "build"
    local function shell(command)
      ffi.C.unsetenv "LD_PRELOAD"
      local pipe = io.popen("{ " .. command .. "; } 2>&1; echo status=$?")
      local text, status = pipe:read "*a":match("^(.-)status=(%d+)%s*$")
      pipe:close()
      if preload ~= "" then ffi.C.setenv("LD_PRELOAD", preload, 1) end
      return text, tonumber(status)
    end
    local flags = "-std=gnu17 -g -O1 -D_GNU_SOURCE -Wall -Wextra"
    if tsan then flags = flags .. " -fsanitize=thread" end
    if preload:find("asan", 1, true) then flags = flags .. " -fsanitize=address,undefined" end
    local compiler = "gcc"
    if preload:find("clang", 1, true) then compiler, flags = "clang", flags .. " -shared-libsan" end
    local text, status = shell(([[mkdir -p %s/spec && %s %s -Isrc -I%s/gen -o %s/spec/streams_check \
      spec/device/streams_check.c -L%s -lmoth -lpthread -Wl,-rpath,%s]]):format(build, compiler, flags, build, build,
      build, build))
    assert.equal("", text)
    assert.equal(0, status)
    text, status = shell(("OMP_NUM_THREADS=1 LD_PRELOAD=%s timeout 120 %s/spec/streams_check"):format(
      tsan and "" or preload, build))
    assert.equal("ok\n", text)
    assert.equal(0, status)
  end)
end)
