-- Worker threads of a DataLoader: the same batches for any number of them, and what goes wrong in them.

local moth = require "moth"
local B = require "moth_lua"
local system = require "moth.utils.system"
local data = moth.data
local build = os.getenv("MOTH_BUILD") or "build"
local preload = os.getenv("LD_PRELOAD") or ""

local function epoch(loader)
  local out = {}
  for x, y in loader:iter() do out[#out + 1] = { x, y } end
  return out
end

local function rows(n) return data.TensorDataset(moth.arange(1, n + 1):float():view(n, 1), moth.arange(1, n + 1)) end

-- A dataset whose get is a function of this file.
local function dataset(n, get, fields)
  local D = data.Dataset:subclass("D")
  function D.size() return n end
  D.get = get
  local ds = D()
  for k, v in pairs(fields or {}) do ds[k] = v end
  return ds
end

-- Ends the workers of loops that were broken off.
local function settle()
  for _ = 1, 4 do collectgarbage() end
  return B.threads.running()
end

local function lines_of(path)
  local n = 0
  for _ in io.lines(path) do n = n + 1 end
  return n
end

describe("workers of a DataLoader #threads", function()
  before_each(function() moth.manual_seed(3) end)
  after_each(function() assert.equal(0, settle()) end)

  it("give the same batches for any number of workers, random numbers included #M220 #M221", function()
    local factor = 3
    local function noisy(x) return x * factor + moth.rand(2) end
    local function run(n, options)
      moth.manual_seed(7)
      options.num_workers = n
      local out = {}
      local ds = dataset(23, function(_, i) return noisy(moth.full({ 2 }, i)), i, math.random() end)
      for x, i, r in data.DataLoader(ds, options):iter() do
        out[#out + 1] = { x:totable(), i:totable(), r:totable() }
      end
      out.after = { moth.rand(1):item(), math.random() }
      return out
    end
    for _, make in ipairs({ function() return { batch_size = 4, shuffle = true } end,
      function() return { batch_size = 3, drop_last = true, generator = moth.Generator(2) } end,
      function() return { batch_size = 5, shuffle = true, seed = 4, prefetch_factor = 1 } end }) do
      local expected = run(0, make())
      for _, n in ipairs({ 1, 2, 5 }) do assert.same(expected, run(n, make())) end
    end
  end)

  it("two epochs draw different noise, the same seed the same", function()
    local function two(n)
      moth.manual_seed(1)
      local loader = data.DataLoader(dataset(4, function() return moth.rand(1) end), { num_workers = n })
      return { epoch(loader)[1][1]:item(), epoch(loader)[1][1]:item() }
    end
    local a = two(2)
    assert.is_not.equal(a[1], a[2])
    assert.same(a, two(2))
    assert.same(a, two(0))
  end)

  it("share the elements of tensors, and send back what has no copy #M223", function()
    local x = moth.zeros(5, 2)
    local ds = data.TensorDataset(x, moth.arange(1, 6))
    local function view(_, i) return { row = x[i], name = "n" .. i, list = { i, { i > 2 } } } end
    x:fill_(4) -- seen by workers, as it is not copied
    assert.same({ { 4, 4 }, { 4, 4 } }, epoch(data.DataLoader(ds, { batch_size = 2, num_workers = 2 }))[1][1]:totable())
    local first = function(samples) return samples[1][1] end
    local k = 0
    for sample in data.DataLoader(dataset(5, view), { num_workers = 2, collate_fn = first }):iter() do
      k = k + 1
      assert.equal(x[k]:data_ptr(), sample.row:data_ptr())
      sample.row:fill_(k)
      assert.same({ k, { k > 2 } }, sample.list)
      assert.equal("n" .. k, sample.name)
    end
    assert.same({ 1, 2, 3, 4, 5 }, x:select(2, 1):totable())
  end)

  it("share a mapped file: no worker reads or copies it #M250", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local f = assert(io.open(path, "wb"))
    f:write(("\1\2\3\4"):rep(3000))
    f:close()
    local x = moth.mmap(path, { dtype = moth.uint8 }):view(6, 2000)
    local first, k = function(samples) return samples[1] end, 0
    local mapped = dataset(6, function(_, i) return x[i] end)
    for row in data.DataLoader(mapped, { num_workers = 2, collate_fn = first }):iter() do
      k = k + 1
      assert.equal(x[k]:data_ptr(), row[1]:data_ptr())
      assert.equal(5000, row[1]:sum():item())
    end
    assert.equal(6, k)
  end)

  it("copy functions with their upvalues, objects, metatables, cycles and globals", function()
    local count, shared, Point = 10, { n = 0 }, moth.class("Point")
    function Point:__init(v) self.v = v end
    function Point.__add(a, b) return Point(a.v + b.v) end
    local fact
    fact = function(n) return n < 2 and 1 or n * fact(n - 1) end
    local function step() shared.n = shared.n + 1 count = count + 1 end
    local function look() return shared.n, count end
    local ring = { Point(2) }
    ring.self = ring
    local big, generator = 2 ^ 40 * 1LL + 1, moth.Generator(5)
    _G.moth_spec_global = function(v) return v + 0.25 end -- luacheck: ignore
    finally(function() _G.moth_spec_global = nil end)
    local ds = dataset(2, function(self, i)
      step()
      local n, c = look()
      local p = self.ring.self[1] + Point(i)
      return { p.v, fact(5), n, c, tostring(big + 1), moth_spec_global(i), -- luacheck: ignore
        moth.rand(1, { generator = generator }):item(), tostring(p:is_a(Point)), tostring(self.dtype) }
    end, { ring = ring, dtype = moth.int16 })
    local out = {}
    local one = function(samples) return samples[1][1] end
    for list in data.DataLoader(ds, { num_workers = 1, collate_fn = one }):iter() do out[#out + 1] = list end
    local first = moth.rand(1, { generator = moth.Generator(5) }):item()
    assert.same({ 3, 120, 1, 11, "1099511627778LL", 1.25, first, "true", "moth.int16" }, out[1])
    assert.same({ 4, 120, 2, 12 }, { unpack(out[2], 1, 4) })
    assert.equal(0, shared.n) -- the copies of the workers were changed
    assert.equal(10, count)
  end)

  it("give objects back as what they are in the caller", function()
    local Batch = moth.class("Batch")
    function Batch:__init(x) self.x = x end
    function Batch:total() return self.x:sum():item() end
    local loader = data.DataLoader(rows(4), { batch_size = 2, num_workers = 2, collate_fn = function(samples)
      return Batch(moth.stack { samples[1][1], samples[2][1] })
    end })
    local totals = {}
    for batch in loader:iter() do
      assert.equal(Batch, getmetatable(batch))
      totals[#totals + 1] = batch:total()
    end
    assert.same({ 3, 7 }, totals)
  end)

  it("say where what cannot go to a worker is", function()
    local function why(fields, options)
      options = options or {}
      options.num_workers = 1
      local ok, e = pcall(function()
        data.DataLoader(dataset(2, function(_, i) return i end, fields), options):iter()
      end)
      assert.is_false(ok)
      return e
    end
    local file = assert(io.open("/dev/null"))
    finally(function() file:close() end)
    assert.matches("dataset%.files%[2%] is an open file: it cannot go to a worker; HINT: open it in get",
      why { files = { "x", file } })
    local w = moth.ones(1, { requires_grad = true })
    assert.matches("dataset%.w is a tensor that requires a gradient", why { w = w })
    assert.matches("dataset%.run is a coroutine", why { run = coroutine.create(print) })
    assert.matches("dataset%.p is cdata", why { p = require("ffi").new("int[3]") })
    local held = { deep = { file } }
    assert.matches("collate_fn: its upvalue 'held'%.deep%[1%] is an open file",
      why({}, { collate_fn = function() return held end }))
    assert.matches("spec/data/workers_spec.lua:%d+:", why { f = file })
    _G.moth_spec_file = file -- luacheck: ignore
    finally(function() _G.moth_spec_file = nil file:close() end) -- luacheck: ignore
    local reads = dataset(1, function() return moth_spec_file end) -- luacheck: ignore
    local loader = data.DataLoader(reads, { num_workers = 1 })
    assert.error_matches(function() loader:iter()() end,
      "global 'moth_spec_file' is not known in a worker: moth_spec_file is an open file")
  end)

  it("an object says by worker_spec how it is made anew", function()
    local D = data.Dataset:subclass("D")
    function D.size() return 3 end
    function D.get() error("the caller's object") end
    function D.worker_spec() return "moth.data.sampler", "x" end
    local loader = data.DataLoader(D(), { num_workers = 1 })
    assert.error_matches(function() loader:iter()() end, "worker 0 could not start: .*attempt to call a table")
    function D.worker_spec() return 5 end
    assert.error_matches(function() loader:iter() end, "dataset is an object whose worker_spec returns no name")
  end)

  it("an error of a worker is raised in the caller with its traceback; the workers go on #M221", function()
    local function inner(i) if i == 3 then error("sample " .. i .. " is damaged") end return i end
    local loader = data.DataLoader(dataset(6, function(_, i) local v = inner(i) return v end),
      { batch_size = 2, num_workers = 2 })
    local next_batch = loader:iter()
    assert.same({ 1, 2 }, next_batch():totable())
    local ok, e = pcall(function() return next_batch() end)
    assert.is_false(ok)
    assert.matches("spec/data/workers_spec.lua:%d+: %[data.DataLoader%] in worker [01], batch 2: spec/data/work", e)
    assert.matches("sample 3 is damaged\nstack traceback:", e)
    assert.matches("in function 'inner'", e)
    assert.same({ 5, 6 }, next_batch():totable())
    assert.is_nil((next_batch()))
    loader = data.DataLoader(dataset(2, function() error({ code = 7 }) end), { num_workers = 1 })
    assert.error_matches(function() loader:iter()() end, "in worker 0, batch 1: table: 0x")
    loader = data.DataLoader(dataset(2, function() return moth.ones(2) + moth.ones(3) end), { num_workers = 1 })
    assert.error_matches(function() loader:iter()() end, "in worker 0, batch 1: .*%[2%].*%[3%]")
    loader = data.DataLoader(dataset(2, function(_, i) return i end), { num_workers = 1, collate_fn = function()
      return coroutine.create(print)
    end })
    assert.error_matches(function() loader:iter()() end, "batch%[1%] of a batch is a coroutine")
  end)

  it("os.exit in a worker is an error of the caller", function()
    local loader = data.DataLoader(dataset(2, function() os.exit(3) end), { num_workers = 2 })
    assert.error_matches(function() loader:iter()() end, "os.exit%(3%) in a worker would end the whole process")
  end)

  it("an error in worker_init_fn names the worker", function()
    local loader = data.DataLoader(rows(4), { num_workers = 2, worker_init_fn = function(id)
      if id == 1 then error("no disk") end
    end })
    assert.error_matches(function() epoch(loader) end, "worker 1 could not start: .*no disk")
  end)

  it("a worker that hangs is reported after the timeout, and stopped", function()
    local loader = data.DataLoader(dataset(4, function(_, i)
      while i == 3 do collectgarbage("count") end
      return i
    end), { num_workers = 2, timeout = 0.3 })
    local next_batch = loader:iter()
    next_batch()
    next_batch()
    local begin = system.now()
    assert.error_matches(function() next_batch() end, "worker [01] has not finished batch 3 within 0.3 s %(timeout%)")
    assert.is_true(system.now() - begin < 3)
    assert.error_matches(function() next_batch() end, "workers were stopped")
    assert.error_matches(function() data.DataLoader(rows(2), { timeout = -1 }) end, "timeout must be a number of sec")
  end)

  it("a loop that is broken off, or an error in it, ends the workers", function()
    local loader = data.DataLoader(rows(100), { num_workers = 2 })
    for _ in loader:iter() do break end -- luacheck: ignore
    assert.equal(0, settle())
    pcall(function() for _ in loader:iter() do error("mine") end end)
    assert.equal(0, settle())
    local busy = data.DataLoader(dataset(50, function(_, i) -- workers are in the middle of their work
      while i > 1 do moth.ones(10) end
      return i
    end), { num_workers = 2 })
    local begin = system.now()
    for _ in busy:iter() do break end -- luacheck: ignore
    assert.equal(0, settle())
    assert.is_true(system.now() - begin < 2)
    for _ = 1, 8 do loader:iter() end -- not even begun
    assert.is_true(B.threads.running() <= 8)
    for n = 1, 30 do -- compiled code keeps closures: iterators are none
      for _ in loader:iter() do if n % 2 == 0 then break end end
      for _ in loader:enumerate() do break end -- luacheck: ignore
    end
  end)

  it("two loaders at once, and loops that nest", function()
    local a = data.DataLoader(rows(6), { num_workers = 2, batch_size = 2 })
    local b = data.DataLoader(rows(9), { num_workers = 1, batch_size = 3, persistent_workers = true })
    local seen = {}
    local next_b = b:iter()
    for x in a:iter() do
      seen[#seen + 1] = x:sum():item() + next_b():sum():item()
      for y in a:iter() do seen[#seen + 1] = y:sum():item() end
      for y in b:iter() do seen[#seen + 1] = y:sum():item() end
    end
    assert.same({ 9, 3, 7, 11, 6, 15, 24, 22, 3, 7, 11, 6, 15, 24, 35, 3, 7, 11, 6, 15, 24 }, seen)
  end)

  it("a dataset may use a loader with workers itself", function()
    local loader = data.DataLoader(dataset(3, function(_, i)
      local sum = 0
      local inner = moth.data.TensorDataset(moth.arange(1, 5) * i)
      for x in moth.data.DataLoader(inner, { num_workers = 2 }):iter() do sum = sum + x:item() end
      return sum
    end), { num_workers = 2 })
    local out = {}
    for x in loader:iter() do out[#out + 1] = x:item() end
    assert.same({ 10, 20, 30 }, out)
  end)

  it("persistent workers stay, with what they know #M225", function()
    local function counting(self, i)
      self.calls = (self.calls or 0) + 1
      return i, self.calls, self.salt
    end
    local function calls(persistent)
      settle()
      local loader = data.DataLoader(dataset(3, counting, { salt = moth.rand(1) }),
        { num_workers = 1, persistent_workers = persistent })
      local out = {}
      for _ = 1, 3 do
        for _, n in loader:iter() do out[#out + 1] = n:item() end
        assert.equal(persistent and 1 or 0, B.threads.running())
      end
      return out
    end
    assert.same({ 1, 2, 3, 4, 5, 6, 7, 8, 9 }, calls(true))
    assert.same({ 1, 2, 3, 1, 2, 3, 1, 2, 3 }, calls(false))
  end)

  it("has prefetch_factor batches for each worker on their way, no more #M226", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local function get(self, i)
      local f = io.open(self.path, "a")
      f:write(i, "\n")
      f:close()
      return i
    end
    local loader = data.DataLoader(dataset(40, get, { path = path }), { num_workers = 2, prefetch_factor = 3 })
    local next_batch = loader:iter()
    next_batch()
    local limit = system.now() + 5
    while lines_of(path) < 7 and system.now() < limit do system.now() end
    for _ = 1, 2e6 do system.now() end
    assert.equal(7, lines_of(path)) -- 1 given, 6 wait
  end)

  it("worker_init_fn is called once in each; get_worker_info says who it is", function()
    assert.is_nil(data.get_worker_info())
    local loader = data.DataLoader(dataset(8, function(self, i)
      local info = moth.data.get_worker_info()
      return { i, info.id, info.num_workers, self.mine, moth.get_num_threads(), tostring(moth.is_grad_enabled()),
        tostring(moth.get_default_dtype()), info.dataset == self }
    end), { num_workers = 2, collate_fn = function(samples) return samples[1][1] end, worker_init_fn = function(id)
      moth.data.get_worker_info().dataset.mine = "worker " .. id
    end })
    moth.set_default_dtype(moth.float64)
    finally(function() moth.set_default_dtype(moth.float32) end)
    local n = 0
    for list in loader:iter() do
      n = n + 1
      local id = list[2]
      assert.is_true(id == 0 or id == 1)
      assert.same({ n, id, 2, "worker " .. id, 1, "false", "moth.float64", true }, list)
    end
    assert.equal(8, n)
  end)

  it("an IterableDataset is shared out among the workers, by itself or by the loader #M219", function()
    local Own = data.IterableDataset:subclass("Own")
    function Own.iter(_, info)
      local i = info.id + 1 - info.num_workers
      return function()
        i = i + info.num_workers
        if i <= 20 then return i, moth.full({ 2 }, i) end
      end
    end
    local Plain = data.IterableDataset:subclass("Plain")
    function Plain:iter()
      local i = 0
      return function()
        i = i + 1
        if i <= self.n then return i end
      end
    end
    local Asks = Plain:subclass("Asks")
    function Asks:iter()
      local info = moth.data.get_worker_info() or { id = 0, num_workers = 1 }
      local i = info.id - info.num_workers + 1
      return function()
        i = i + info.num_workers
        if i <= self.n then return i end
      end
    end
    for _, ds in ipairs({ Own(), Plain(), Asks() }) do
      ds.n = 20
      for n = 0, 3 do
        for _, persistent in ipairs({ false, true }) do
          local loader = data.DataLoader(ds, { batch_size = 3, num_workers = n, persistent_workers = persistent })
          local orders = {}
          for e = 1, 2 do
            local seen, order = {}, {}
            for x in loader:iter() do
              for _, v in ipairs(x:totable()) do
                assert.is_nil(seen[v])
                seen[v], order[#order + 1] = true, v
              end
            end
            assert.equal(20, #order)
            orders[e] = order
          end
          assert.same(orders[1], orders[2])
        end
      end
    end
    local loader = data.DataLoader(Plain(), { num_workers = 1 })
    assert.error_matches(function() return loader:size() end, "number of batches is not known")
    assert.error_matches(function() data.DataLoader(Plain(), { shuffle = true }) end, "in its own order")
  end)

  it("goes on where it stood, within an epoch", function()
    local function make(n) return data.DataLoader(dataset(20, function(_, i) return i, moth.rand(1) end),
      { batch_size = 3, shuffle = true, num_workers = n, generator = moth.Generator(4) }) end
    local function rest(next_batch)
      local out = {}
      for i, r in next_batch do out[#out + 1] = { i:totable(), r:totable() } end
      return out
    end
    local a, b = make(2), make(1)
    local next_batch = a:iter()
    next_batch()
    next_batch()
    b:load_state_dict(a:state_dict())
    local expected = rest(next_batch)
    assert.equal(5, #expected)
    assert.same(expected, rest(b:iter()))
    assert.same(rest(a:iter()), rest(b:iter()))
  end)

  it("a dataset may be a plain table, and a network a part of it", function()
    local net = moth.nn.Sequential(moth.nn.Linear(2, 3), moth.nn.BatchNorm1d(3)):requires_grad_(false):eval()
    local plain = { size = function() return 4 end }
    function plain.get(_, i) return net(moth.full({ 1, 2 }, i)):squeeze(1) end
    local function all(n)
      local out = {}
      for x in data.DataLoader(plain, { batch_size = 2, num_workers = n }):iter() do out[#out + 1] = x end
      return moth.cat(out)
    end
    assert.is_true(moth.equal(all(0), all(2)))
  end)

  it("a script is not run again in a worker: is_main says where one is #M224", function()
    assert.is_true(moth.is_main())
    for x in data.DataLoader(dataset(2, function() return moth.is_main() end), { num_workers = 1 }):iter() do
      assert.is_false(x[1]:item())
    end
  end)

  it("there is no fork: CUDA, open libraries and threads stay usable #M222", function()
    moth.randn(300, 300):mm(moth.randn(300, 300)) -- OpenMP's threads run
    local loader = data.DataLoader(rows(8), { batch_size = 4, num_workers = 2, multiprocessing_context = "fork" })
    assert.equal(2, #epoch(loader))
    assert.is_true(moth.randn(300, 300):mm(moth.randn(300, 300)):isfinite():all():item())
  end)

  it("no memory, threads or descriptors stay #slow", function()
    local function status(what)
      return tonumber(io.open("/proc/self/status"):read("*a"):match(what .. ":%s*(%d+)"))
    end
    local function descriptors()
      local pipe = io.popen("ls /proc/" .. system.pid() .. "/fd | wc -l")
      local n = tonumber(pipe:read("*a"))
      pipe:close()
      return n
    end
    local loader = data.DataLoader(dataset(6, function(_, i) return moth.full({ 100 }, i) end),
      { batch_size = 2, num_workers = 2 })
    local persistent = data.DataLoader(rows(64), { batch_size = 8, num_workers = 2, persistent_workers = true })
    local function some(n)
      for e = 1, n do
        for _ in loader:iter() do if e % 5 == 0 then break end end
        for _ in persistent:iter() do if e % 3 == 0 then break end end
      end
      assert.equal(2, settle())
    end
    local function threads() -- the system counts one for a moment after it was joined
      local least = math.huge
      for _ = 1, 20 do
        least = math.min(least, status("Threads"))
        os.execute("sleep 0.01")
      end
      return least
    end
    some(100)
    local rss, before, fds = status("VmRSS"), threads(), descriptors()
    some(900)
    if preload == "" then -- a sanitizer keeps notes of threads that have ended
      assert.is_true(status("VmRSS") - rss < 4000, ("%d kB, then %d"):format(rss, status("VmRSS")))
    end
    assert.equal(2, settle())
    assert.equal(before, threads())
    assert.is_true(descriptors() <= fds)
  end)
end)

-- ---- the end of the process ------------------------------------------------------------------------------

local head = [[
local moth = require "moth"
local data = moth.data
local function dataset(n, get)
  local D = data.Dataset:subclass("D")
  function D.size() return n end
  D.get = get
  return D()
end
local function kill(who) os.execute("kill -INT " .. require "moth.utils.system".pid()) end
]]

-- Output and status of a script under a command.
local function run(command, script)
  local path = os.tmpname()
  finally(function() os.remove(path) end)
  local f = assert(io.open(path, "w"))
  f:write(head, script)
  f:close()
  local begin = system.now()
  local pipe = io.popen(("{ %s %s; } 2>&1; echo status=$?"):format(command, path))
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  return text, tonumber(status), system.now() - begin
end
local launcher = build .. "/moth"

describe("the end of a process with workers #threads", function()
  if preload ~= "" then return end -- shells are not made for it

  local loop = "for x in data.DataLoader(ds, { num_workers = 2 }):iter() do "
  local ends = {
    { "a script ends within a loop", loop .. "break end\nprint 'over'", "over\n", 0 },
    { "os.exit", loop .. "print 'over' os.exit(3) end", "over\n", 3 },
    { "os.exit that closes", loop .. "print 'over' os.exit(4, true) end", "over\n", 4 },
    { "an error", loop .. "error 'mine' end", "mine", 1 },
    { "the error of a worker", "ds.get = function() error 'its own' end " .. loop .. "end",
      "in worker [01], batch 1: .*its own", 1 },
  }
  for _, command in ipairs({ launcher, "luajit" }) do
    for _, case in ipairs(ends) do
      it(("%s, by %s"):format(case[1], command), function()
        local text, status, took = run(command, "local ds = dataset(1000, function(_, i) if i > 3 then "
          .. "for _ = 1, 3000 do moth.ones(1000) end end return i end)\n" .. case[2])
        assert.matches(case[3], text)
        assert.equal(case[4], status)
        assert.is_true(took < 5)
      end)
    end
  end

  it("a worker that cannot be stopped does not keep the process", function()
    local text, status, took = run(launcher, [[
      local ds = dataset(9, function(_, i) while i > 1 do end return i end) -- a compiled loop that calls nothing
      for x in data.DataLoader(ds, { num_workers = 2 }):iter() do print "over" break end
      io.write "no newline"
      os.exit(5)]])
    assert.equal("over\nno newline", text)
    assert.equal(5, status)
    assert.is_true(took < 8)
    text, status = run(launcher, [[
      local ds = dataset(9, function(_, i) while i > 1 do end return i end)
      for x in data.DataLoader(ds, { num_workers = 1 }):iter() do
        os.execute "sleep 0.5" -- until its loop is compiled
        print "over"
        break
      end]])
    assert.matches("moth: warning: a worker thread has not ended within 2 s of its loader[^\n]*\n", text)
    assert.matches("over\n", text)
    assert.equal(0, status)
    text, status = run(launcher, [[
      local ds = dataset(9, function(_, i) while i > 1 do end return i end)
      local next_batch = data.DataLoader(ds, { num_workers = 1, timeout = 0.2 }):iter()
      next_batch()
      print(pcall(next_batch))]])
    assert.matches("worker 0 has not finished batch 2 within 0.2 s", text)
    assert.matches("it is left to itself", text)
    assert.equal(0, status)
  end)

  it("Ctrl-C ends it at once, wherever it comes", function()
    local slow = "local ds = dataset(100, function(_, i) for _ = 1, 1e5 do moth.ones(100) end return i end)\n"
    for _, place in ipairs({ "", "if moth.data.get_worker_info() == nil then return end\n" }) do
      local text, status, took = run(launcher, slow .. place .. [[
        local ffi = require "ffi"
        ffi.cdef "unsigned alarm(unsigned);"
        os.execute("(sleep 0.5; kill -INT " .. require "moth.utils.system".pid() .. ") &")
        for x in data.DataLoader(ds, { batch_size = 100, num_workers = 2 }):iter() do end]])
      if place == "" then
        assert.matches("interrupted", text)
        assert.equal(130, status)
      end
      assert.is_true(took < 4, tostring(took))
    end
  end)

  it("more workers than processors are worth a warning #M242", function()
    local text = run(launcher, [[
      for _ = 1, 2 do
        for x in data.DataLoader(dataset(3, function(_, i) return i end), { num_workers = 300 }):iter() do end
      end]])
    assert.matches("^moth: warning: %[data.DataLoader%] num_workers = 300, but there are %d+ processors[^\n]*\n$", text)
  end)
end)
