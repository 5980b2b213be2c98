-- moth.profiler: what is recorded, its sums, and the files that it writes.
local moth = require "moth"
local cjson = require "cjson"
local nn, optim, profiler = moth.nn, moth.optim, moth.profiler

local function read(path)
  local f = assert(io.open(path))
  local text = f:read("*a")
  f:close()
  os.remove(path)
  return text
end

local function row(list, key)
  for _, r in ipairs(list) do if r.key == key then return r end end
end

local function busy(x)
  for _ = 1, 20 do x = x:mm(x):tanh() end
  return x
end

describe("profiler.profile #quick", function()
  it("records calls, those that they make within them, and nodes of backward #M474", function()
    local x = moth.randn(8, 8, { requires_grad = true })
    local inside
    local prof = profiler.profile(function(p)
      inside = p
      x:matmul(x):sum():backward()
    end)
    assert.equal(inside, prof)
    local by_name = {}
    for _, e in ipairs(prof:events()) do by_name[e.name] = by_name[e.name] or e end
    assert.equal("moth::matmul", by_name["moth::mm"].parent.name)
    assert.equal("node", by_name.MmBackward0.kind)
    assert.is_nil(by_name.MmBackward0.parent)
    assert.truthy(by_name["AccumulateGrad"] or by_name["AccumulateGrad0"])
    for _, e in ipairs(prof:events()) do
      assert.is_true(e.duration >= 0 and e.self_time >= 0)
      if e.parent then
        assert.is_true(e.start >= e.parent.start and e.start + e.duration <= e.parent.start + e.parent.duration)
      end
    end
    assert.equal(0, #profiler.profile(function() end):events())
    moth.ones(2) -- nothing is recorded any more
    assert.equal(0, #profiler.profile(function() end):events())
  end)

  it("record_function is a range with the time of what it calls; it passes results and errors #M475", function()
    local x = moth.randn(32, 32)
    local prof = profiler.profile(function()
      local a, b = profiler.record_function("part", function(u, v) busy(u) return v, nil, 3 end, x, 7)
      assert.same({ 7, nil }, { a, b })
      assert.error_matches(function() profiler.record_function("bad", function() error("no such thing") end) end,
        "no such thing")
      x:exp()
    end)
    local list = prof:key_averages()
    local part, mm = row(list, "part"), row(list, "moth::mm")
    assert.equal(1, part.count)
    assert.is_true(part.cpu_time_total > mm.cpu_time_total)
    assert.is_true(part.self_cpu_time_total < part.cpu_time_total)
    for _, e in ipairs(prof:events()) do
      if e.name == "moth::exp" then assert.is_nil(e.parent) end -- the failed range has ended
      if e.name == "moth::mm" then assert.equal("part", e.parent.name) end
    end
    assert.equal(5, profiler.record_function("nothing runs", function(v) return v end, 5))
  end)

  it("a table with its columns, sorted and cut #M476 #M477", function()
    local x = moth.randn(16, 16)
    local list = profiler.profile(function() busy(x):matmul(x) end):key_averages()
    local text = list:table { sort_by = "cpu_time_total", row_limit = 2 }
    local lines = {}
    for line in text:gmatch("[^\n]+") do lines[#lines + 1] = line end
    assert.equal("Name Self CPU % Self CPU CPU total % CPU total CPU time avg # of Calls", (lines[2]:gsub("%s+", " ")))
    assert.truthy(lines[6]:find("^%-%-%-"))
    local row_of_mm = "\nmoth::mm%s+[%d.]+%%%s+[%d.]+[mu]?s%s+[%d.]+%%%s+[%d.]+[mu]?s%s+[%d.]+[mu]?s%s+21\n"
    assert.truthy(list:table():find(row_of_mm))
    assert.truthy(text:find("Self CPU time total: ", 1, true))
    local own, total = 0, row(list, "moth::matmul").cpu_time_total
    for _, r in ipairs(list) do own = own + r.self_cpu_time_total end
    assert.is_close(list.self_cpu_time_total, own)
    assert.is_true(total >= row(list, "moth::matmul").self_cpu_time_total)
    for _, by in ipairs { "self_cpu_time_total", "cuda_time_total", "cuda_memory_usage", "cpu_memory_usage",
      "count" } do
      assert.truthy(list:table { sort_by = by })
    end
    assert.error_matches(function() list:table { sort_by = "cpu_time_totl" } end, "cpu_time_total")
  end)

  it("agrees with a clock outside: the best of five is within 3 % of it", function()
    local ffi = require "ffi"
    pcall(ffi.cdef, "struct profiler_time { long s, ns; }; int clock_gettime(int clock, struct profiler_time *t);")
    local at = ffi.new "struct profiler_time"
    local function now()
      ffi.C.clock_gettime(1, ffi.cast("void *", at))
      return tonumber(at.s) * 1e6 + tonumber(at.ns) / 1e3
    end
    local x, best = moth.randn(256, 256), 1
    for _ = 1, 5 do
      local t
      local prof = profiler.profile(function()
        t = now()
        for _ = 1, 30 do x:mm(x):free() end
        t = now() - t
      end)
      best = math.min(best, math.abs(1 - prof:key_averages().self_cpu_time_total / t))
    end
    assert.is_true(best < 0.03, best)
  end)

  it("counts the time of a name within itself once", function()
    local prof = profiler.profile(function()
      profiler.record_function("a", function() profiler.record_function("a", busy, moth.randn(32, 32)) end)
    end)
    local a = row(prof:key_averages(), "a")
    assert.equal(2, a.count)
    assert.is_true(a.cpu_time_total < 1.5 * row(prof:key_averages(), "moth::mm").cpu_time_total
      + 2 * a.self_cpu_time_total + row(prof:key_averages(), "moth::tanh").cpu_time_total)
  end)

  it("bytes of each call #M478", function()
    local keep = {}
    local prof = profiler.profile({ profile_memory = true }, function()
      keep[1] = moth.zeros(1024, 1024)
      keep[2] = keep[1] + 1
    end)
    local list = prof:key_averages()
    assert.is_close(4 * 2 ^ 20, row(list, "moth::add").cpu_memory_usage, { rtol = 0, atol = 2 ^ 17 })
    assert.truthy(list:table():find("4.%d%d Mb"))
    assert.truthy(list:table():find("CPU Mem", 1, true))
  end)

  it("shapes, by which rows may be grouped #M479", function()
    local a, b = moth.randn(4, 8), moth.randn(8, 2)
    local prof = profiler.profile({ record_shapes = true, with_flops = true }, function()
      a:mm(b)
      a:mm(b)
      b:t():mm(a:t())
      moth.cat({ a, a })
    end)
    local list = prof:key_averages { group_by_input_shape = true }
    local counts = {}
    for _, r in ipairs(list) do counts[r.key .. r.input_shapes] = r.count end
    assert.equal(2, counts["moth::mm[[4, 8], [8, 2]]"])
    assert.equal(1, counts["moth::mm[[2, 8], [8, 4]]"])
    assert.equal(1, counts["moth::cat[[4, 8], [4, 8]]"])
    assert.equal(3 * 2 * 4 * 8 * 2, row(prof:key_averages(), "moth::mm").flops)
    assert.truthy(list:table():find("GFLOP/s", 1, true))
    assert.error_matches(function()
      profiler.profile(function() end):key_averages { group_by_input_shape = true }
    end, "record_shapes")
  end)

  it("the line of each call, or with_stack its frames; nodes have those of their forward #M480", function()
    local x = moth.randn(4, { requires_grad = true })
    local function inner()
      local y = x:exp()
      return y
    end
    local prof = profiler.profile({ with_stack = true }, function()
      local y = inner()
      y:sum():backward()
    end)
    local line = debug.getinfo(inner, "S").linedefined
    for _, e in ipairs(prof:events()) do
      if e.name == "moth::exp" or e.name == "ExpBackward0" then
        assert.truthy(e.stack[1]:find("profiler_spec.lua:" .. line + 1 .. "$"), e.stack[1])
        assert.truthy(e.stack[2]:find("profiler_spec.lua:" .. line + 5 .. "$"), e.stack[2])
      end
    end
  end)

  it("a schedule: which steps are recorded, and when the handler is called #M482 #M484", function()
    local seen, names = 0, {}
    local prof = profiler.profile({
      schedule = profiler.schedule { wait = 1, warmup = 1, active = 3, repeats = 2 },
      on_trace_ready = function(p)
        seen = seen + 1
        for _, e in ipairs(p:events()) do if e.kind == "step" then names[#names + 1] = e.name end end
      end,
    }, function(p)
      for _ = 1, 15 do
        moth.ones(2)
        p:step()
      end
    end)
    assert.equal(2, seen)
    assert.same({ "ProfilerStep#3", "ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#8", "ProfilerStep#9",
      "ProfilerStep#10" }, names)
    assert.equal(3, row(prof:key_averages(), "moth::ones").count)
    assert.error_matches(function() profiler.schedule { wait = 1, warmup = 1 } end, "active")
    assert.error_matches(function() profiler.schedule { wait = 1, warmup = 1, active = 0 } end, "active")
  end)

  it("start, step, stop by hand; one recording at a time", function()
    local prof = profiler.profile { record_shapes = true }
    prof:start()
    moth.ones(2)
    assert.error_matches(function() profiler.profile(function() end) end, "a recording is open")
    prof:stop()
    prof:stop()
    assert.equal(1, #prof:events())
    assert.error_matches(function() profiler.profile({}):key_averages() end, "nothing has been recorded")
    assert.error_matches(function() profiler.profile { record_shape = true } end, "record_shapes")
    assert.error_matches(function() profiler.profile({ activities = { "gpu" } }) end, "'cpu' or 'cuda'")
    assert.error_matches(function() profiler.profile(function() error("of the program") end) end, "of the program")
    assert.is_false(require("moth_lua").profile.running())
  end)

  it("stops to record at max_events, and says so", function()
    local prof = profiler.profile({ max_events = 10 }, function() for _ = 1, 50 do moth.ones(1) end end)
    assert.equal(10, #prof:events())
    assert.truthy(tostring(prof):find("40 events were not recorded"))
    local x = moth.ones(1)
    local many = profiler.profile(function() for _ = 1, 70000 do x:add_(1) end end) -- more than a chunk
    assert.equal(70000, row(many:key_averages(), "moth::add_").count)
  end)
end)

describe("traces #quick", function()
  it("are Chrome's: complete events that nest, threads with names, arrows to backward #M481", function()
    local x = moth.randn(8, 8, { requires_grad = true })
    local path = os.tmpname()
    local name = 'a "name" with \\ and \n</script><img onerror=1>' .. string.char(1)
    local prof = profiler.profile({ record_shapes = true }, function()
      profiler.record_function(name, function() x:matmul(x):sum():backward() end)
    end)
    prof:export_chrome_trace(path)
    local text = read(path)
    assert.is_nil(text:find("</script", 1, true))
    local trace = cjson.decode(text)
    local open, found, arrows = {}, {}, {}
    for _, e in ipairs(trace.traceEvents) do
      if e.ph == "X" then
        found[e.name] = e
        local from, to = math.floor(e.ts * 1000 + 0.5), math.floor((e.ts + e.dur) * 1000 + 0.5)
        while #open > 0 and open[#open][2] <= from do open[#open] = nil end
        if #open > 0 then assert.is_true(to <= open[#open][2], e.name) end
        open[#open + 1] = { from, to }
        assert.is_number(e.pid)
        assert.is_number(e.tid)
      elseif e.ph == "s" or e.ph == "f" then
        arrows[e.ph .. e.id] = true
      end
    end
    assert.truthy(found[name:gsub("%c", "%0")])
    assert.same({ { 8, 8 }, { 8, 8 } }, found["moth::mm"].args["Input Dims"])
    assert.equal("backward", found.MmBackward0.cat)
    local both = 0
    for key in pairs(arrows) do if key:sub(1, 1) == "s" and arrows["f" .. key:sub(2)] then both = both + 1 end end
    assert.equal(2, both) -- mm and sum
    assert.error_matches(function() prof:export_chrome_trace("/no/such/folder/t.json") end, "cannot be written")
  end)

  it("go to a folder by the handler, compressed if asked #M483", function()
    local dir = os.tmpname()
    os.remove(dir)
    local function some() moth.ones(2) end
    profiler.profile({ on_trace_ready = profiler.tensorboard_trace_handler(dir, "w", true) }, some)
    profiler.profile({ on_trace_ready = profiler.tensorboard_trace_handler(dir) }, some)
    local names = require("moth.utils.system").list(dir)
    assert.equal(2, #names)
    table.sort(names)
    assert.truthy(table.concat(names, " "):find("w%.%d+%.pt%.trace%.json%.gz"))
    assert.truthy(table.concat(names, " "):find("_%d+%.%d+%.pt%.trace%.json"))
    os.execute("rm -r " .. dir)
  end)
end)

describe("the parts of a step #quick", function()
  local model = nn.Sequential(nn.Linear(8, 16), nn.Sequential(nn.ReLU(), nn.Linear(16, 2)))
  local opt = optim.SGD(model:parameters(), { lr = 0.1 })
  local loader = moth.data.DataLoader(moth.data.TensorDataset(moth.randn(40, 8)), { batch_size = 10 })

  local function epoch(p)
    for x in loader:iter() do
      opt:zero_grad()
      model(x):sum():backward()
      opt:step()
      if p then p:step() end
    end
  end

  it("loader, forward, backward, optimizer #M243 #M454", function()
    local b = profiler.profile(epoch):step_breakdown()
    assert.equal(4, b.steps)
    local sum = 0
    for _, part in ipairs { "loader", "forward", "backward", "optimizer" } do
      assert.is_true(b[part] > 0, part)
      sum = sum + b[part]
    end
    assert.is_close(b.total, sum + b.other)
    local text = tostring(profiler.step_breakdown(function() epoch() end, { steps = 2, warmup = 0 }))
    assert.truthy(text:find("total .* 2 steps\nloader "), text)
    local list = profiler.profile(epoch):key_averages()
    assert.equal(5, row(list, "dataloader.next").count)
    assert.equal(4, row(list, "Optimizer.step#SGD").count)
  end)

  it("waiting for other ranks is communication #M454", function()
    require("distributed.ranks").threads("distributed.each_profile", 2)
  end)

  it("modules by their paths, with their memory #M490", function()
    local prof = profiler.profile({ with_modules = true, profile_memory = true }, epoch)
    local by_name = {}
    for _, r in ipairs(prof:memory_by_module()) do by_name[r.name] = r end
    assert.equal(4, by_name["1.1 (Linear)"].count)
    assert.is_true(by_name.Sequential.bytes >= by_name["1.1 (Linear)"].bytes)
    assert.truthy(tostring(prof:memory_by_module()):find("0 %(Linear%)"))
    local failing = nn.Linear(3, 3)
    local after = profiler.profile({ with_modules = true }, function()
      assert.is_false(pcall(failing, moth.ones(2, 2)))
      moth.ones(2)
    end)
    for _, e in ipairs(after:events()) do
      if e.name == "moth::ones" then assert.is_nil(e.parent) end
    end
  end)

  it("top and gaps #M487 #M488", function()
    local prof = profiler.profile(function()
      local t, x = os.clock(), moth.randn(16, 16)
      busy(x)
      while os.clock() - t < 0.02 do t = t end
      x:exp()
    end)
    assert.equal(3, #prof:top(3))
    local gap -- not always the longest: other programs run, too
    for _, g in ipairs(prof:gaps()) do gap = g.before == "moth::exp" and g or gap end
    assert.equal("moth::tanh", gap.after)
    assert.is_true(gap.duration > 5000)
    assert.truthy(gap.place:find("profiler_spec.lua"))
    assert.truthy(tostring(prof:gaps { least_us = 100 }):find("in gaps"))
  end)

  it("the older spelling #M489", function()
    local prof = moth.autograd.profiler.profile(epoch)
    assert.truthy(row(prof:key_averages(), "AddmmBackward0") or row(prof:key_averages(), "LinearBackward0"))
  end)

  it("compiled segments, and what they run", function()
    local f = moth.compile(function(x) return (x * 2 + 1):exp():sum() end, { backend = "blocks" })
    local x = moth.randn(100, 100)
    for _ = 1, 3 do f(x):item() end
    local prof = profiler.profile(function() f(x):item() end)
    assert.truthy(row(prof:key_averages(), "compiled segment"))
  end)

  it("of all threads", function()
    local set = moth.data.Dataset:subclass("Set")
    function set.size() return 8 end
    function set.get(_, i) return moth.full({ 4 }, i):exp() end
    local prof = profiler.profile(function()
      for _ in moth.data.DataLoader(set(), { batch_size = 2, num_workers = 1 }):iter() do moth.ones(1) end
    end)
    local threads = {}
    for _, e in ipairs(prof:events()) do threads[e.thread] = (threads[e.thread] or 0) + 1 end
    local n = 0
    for _ in pairs(threads) do n = n + 1 end
    assert.is_true(n >= 2)
    assert.equal(8, row(prof:key_averages(), "moth::exp").count)
  end)

  it("moth.tic waits for the devices #M493", function()
    local t = moth.tic()
    busy(moth.randn(8, 8))
    assert.is_true(t:toc() > 0)
  end)
end)

describe("the launcher", function()
  local build = os.getenv("MOTH_BUILD") or "build"
  local function run(command)
    local pipe = io.popen(command .. " 2>&1; echo status $?")
    local text = pipe:read("*a")
    pipe:close()
    return text
  end

  it("profiles a script that knows nothing of it, also one that fails #M494", function()
    local script, page = os.tmpname(), os.tmpname() .. ".html"
    local f = io.open(script, "w")
    f:write('local moth = require "moth"\nmoth.ones(3):exp()\nif ... then error("stops") end\n')
    f:close()
    local text = run(("%s/moth --profile=%s %s"):format(build, page, script))
    assert.truthy(text:find("moth::exp", 1, true), text)
    assert.truthy(text:find("status 0", 1, true))
    assert.truthy(read(page):find("moth::exp", 1, true))
    text = run(("%s/moth --profile=%s %s x"):format(build, page, script))
    assert.truthy(text:find("stops", 1, true))
    assert.truthy(text:find("moth::exp", 1, true))
    assert.truthy(text:find("status 1", 1, true))
    os.remove(script)
    os.remove(page)
  end)

  it("writes names of any bytes as UTF-8", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local prof = moth.profiler.profile(function()
      for _, name in ipairs { "a\255\195b\228\184\173", ("é"):rep(600), "x\228\184" } do
        moth.profiler.record_function(name, function() return moth.ones(2):add(1) end)
      end
    end)
    prof:export_chrome_trace(path)
    local file = assert(io.open(path, "rb"))
    local text = file:read("*a")
    file:close()
    assert.is_true(require("moth_lua").is_text(text))
    assert.is_truthy(text:find("a\239\191\189\239\191\189b\228\184\173", 1, true))
    assert.is_truthy(text:find("x\239\191\189", 1, true))
  end)
end)
