-- Ctrl-C in the middle of long ops: under build/moth a timer's signal goes to the handler of SIGINT.

local child = require "child"
local preload = os.getenv("LD_PRELOAD") or ""

local prelude = [[
local moth = require "moth"
local ffi = require "ffi"
ffi.cdef "struct pair { long a, b; }; struct timer { struct pair interval, value; };"
ffi.cdef "int setitimer(int which, const struct timer *new, struct timer *old);"
ffi.cdef "int sigaction(int signal, const void *new, void *old); int clock_gettime(int clock, struct pair *out);"
local SIGINT, SIGALRM, AFTER = 2, 14, 0.05
local handler = ffi.new("char[512]")
ffi.C.sigaction(SIGINT, nil, handler)
local function now()
  local t = ffi.new("struct pair")
  ffi.C.clock_gettime(1, t)
  return tonumber(t.a) + tonumber(t.b) * 1e-9
end
local function interrupted(fn, ...)
  local timer = ffi.new("struct timer")
  ffi.C.sigaction(SIGALRM, handler, nil) -- it sets itself back at the first signal
  timer.value.b = AFTER * 1e6
  local begin = now()
  ffi.C.setitimer(0, timer, nil)
  local ok, e = pcall(fn, ...)
  local took = now() - begin
  timer.value.b = 0
  ffi.C.setitimer(0, timer, nil)
  return ok, e, took
end
local function try(name, make, fn)
  if arg[1] and not arg[1]:find(name, 1, true) then return end
  local args = { make() }
  collectgarbage() collectgarbage()
  local before = moth.memory.stats().live
  local ok, e, took = interrupted(fn, unpack(args))
  if not ok and not tostring(e):find("interrupted", 1, true) then print(name, e) end
  if ok and took > 2 * AFTER then print(name, "was not interrupted, and took " .. took) end
  if not ok and took > AFTER + 3 then print(name, "stopped after " .. took) end
  collectgarbage() collectgarbage()
  local more = moth.memory.stats().live - before
  if not ok and math.abs(more) > 1e6 then print(name, "holds bytes: " .. more) end
  if moth.ones(1000, 100):mm(moth.ones(100, 3)):sum():item() ~= 300000 then print(name, "the next result is wrong") end
end
]]

local ops = [[
local r = moth.randn
local function ids(n, high) return moth.randint(1, high, { n }) end
try("mm", function() return r(4000, 4000) end, function(x) return x:mm(x) end)
try("mm float64", function() return r(3000, 3000, { dtype = moth.float64 }) end, function(x) return x:mm(x) end)
try("mm int64", function() return moth.ones(600, 600, { dtype = moth.int64 }) end, function(x) return x:mm(x) end)
try("bmm", function() return r(40, 1000, 1000) end, function(x) return x:bmm(x) end)
try("conv2d", function() return r(16, 64, 96, 96), r(96, 64, 3, 3) end, function(x, w) return moth.conv2d(x, w) end)
try("conv2d backward", function()
  return r(8, 64, 96, 96, { requires_grad = true }), r(64, 64, 3, 3, { requires_grad = true })
end, function(x, w) moth.conv2d(x, w):sum():backward() end)
try("attention", function() return r(2, 8, 2000, 64) end, function(q)
  return moth.nn.functional.scaled_dot_product_attention(q, q, q)
end)
try("sort, a row", function() return r(5e6) end, function(x) return x:sort() end)
try("sort, rows", function() return r(20, 3e5) end, function(x) return x:sort() end)
try("topk", function() return r(1, 4e7) end, function(x) return x:topk(100000) end)
try("lgamma", function() return moth.rand(4e7) end, function(x) return x:lgamma() end)
try("pow, strided", function() return moth.rand(6000, 6000):t() end, function(x) return x:pow(x) end)
try("softmax", function() return r(1e6, 50) end, function(x) return x:softmax(2) end)
try("randn", function() return 6e7 end, function(n) return r(n) end)
try("randperm", function() return 2e7 end, function(n) return moth.randperm(n) end)
try("multinomial", function() return moth.rand(20, 10000) end, function(x) return x:multinomial(5000) end)
try("gather", function() return r(3e7), ids(3e7, 3e7) end, function(x, i) return x:gather(1, i) end)
try("scatter_add", function() return moth.zeros(1e6), ids(3e7, 1e6), moth.ones(3e7) end, function(z, i, s)
  return z:scatter_add(1, i, s)
end)
try("nonzero", function() return r(4e7):gt(0) end, function(x) return x:nonzero() end)
local chain = moth.compile(function(x) return (x:lgamma() * 2):lgamma() + x:lgamma() end, { backend = "blocks" })
chain(moth.rand(10))
try("compiled, in blocks", function() return moth.rand(3e7) end, chain)
local plan = moth.compile(function(x) return (x * 2):mm(x) + 1 end, { backend = "blocks" })
plan(moth.rand(10, 10))
try("compiled, a kernel", function() return moth.rand(4000, 4000) end, plan)
try("cumsum, a row", function() return moth.ones(6e7) end, function(x) return x:cumsum(1) end)
try("unique", function() return ids(5e6, 1e6) end, function(x) return x:unique() end)
]]

-- A compressed file that expands to a gigabyte: members of 10 MB of zeros behind a header.
local files = [[
local path = os.tmpname()
local function member(bytes)
  local pipe = io.popen("gzip -1 > " .. path, "w")
  pipe:write(bytes)
  pipe:close()
end
local function read() local f = io.open(path, "rb") local s = f:read("*a") f:close() return s end
member("\0\0\8\1\59\154\202\0") -- an IDX header: one dimension of 1e9 bytes
local head = read()
member(("\0"):rep(1e7))
local part = read()
local f = io.open(path, "wb")
f:write(head, part:rep(100))
f:close()
try("load_idx", function() return path end, function(p) return require "moth_lua".load_idx(p) end)
os.remove(path)
]]

-- A kernel of the program's own: programs that have run have written, others have not.
local kernels = [[
local tl = moth.kernel.lang
local slow = moth.kernel.jit(function(x, n, B)
  local i = tl.program_id(0) * B + tl.arange(0, B)
  local a = tl.load(x + i)
  for _ = 1, n do a = a * 0.5 + 1 end
  tl.store(x + i, a)
end, { constexpr = { "B" } })
local x = moth.zeros(64 * 40000)
slow{ 1 }(x, 2, { B = 64 })
x:zero_()
try("kernel", function() return x end, function(t) slow{ 40000 }(t, 200000, { B = 64 }) end)
local first, count = x[1]:item(), x:gt(0):sum():item()
assert(first > 1.9 and count > 0 and count % 64 == 0 and count < x:numel(), count)
slow{ 40000 }(x, 2, { B = 64 })
assert(x:min():item() >= 1)
]]

-- Ops that write to tensors run to their end.
local writers = [[
local x, y, z = moth.full({ 3e7 }, 4), moth.full({ 3e7 }, 1.5), moth.full({ 3e7 }, 2 / 3)
local ok, e = interrupted(function() while true do x:pow_(y) x:pow_(z) end end)
assert(not ok and e:find "interrupted", tostring(e))
assert(x:max():item() == x:min():item())
local out = moth.empty(3e7)
x = moth.full({ 3e7 }, 2)
ok, e = interrupted(function() while true do moth.lgamma(x, { out = out }) end end)
assert(not ok and e:find "interrupted", tostring(e))
assert(out:abs():max():item() == 0)
local w = moth.nn.Parameter(moth.zeros(3e7))
w.grad = moth.ones(3e7)
local opt = moth.optim.Adam({ w }, { lr = 1 })
ok, e = interrupted(function() for _ = 1, 1000 do opt:step() end end)
assert(not ok and e:find "interrupted", tostring(e))
assert(w:max():item() == w:min():item())
]]

-- Loops that LuaJIT has compiled and that call nothing: on one line, over lines, nested, recursive.
local loops = [[
for _, code in ipairs { "while true do end", "local s = 0 while true do s = s + 1 end",
  "local s = 0\nwhile true do\n s = s + 1\n if s % 3 == 0 then\n s = s + 2\n end\n end",
  "for i = 1, 1e15 do end", "local s = 0 for i = 1, 1e9 do for j = 1, 1e9 do s = s + j end end",
  "local function f(n) return n == 0 and 0 or f(n - 1) end while true do f(50) end",
  "local x = require('ffi').new('double[8]') while true do\n for i = 0, 7 do x[i] = x[i] + 1 end\n end" } do
  local ok, e = interrupted(assert(loadstring(code)))
  assert(not ok and e:find "interrupted", code)
end
]]

local function run(env, code, names)
  return (child(prelude .. code .. "print 'done'\n", { env = env, args = names and "'" .. names .. "'" }))
end

describe("Ctrl-C #noasan", function()
  it("ends long ops in the middle, and what they held is released", function()
    if preload ~= "" then return pending("sanitizers are too slow for this") end
    assert.equal("done\n", run("MOTH_NUM_THREADS=2", ops, "mm int64; sort, a row; lgamma; cumsum, a row"))
  end)
  it("ends compiled loops that call nothing", function()
    if preload ~= "" then return pending("sanitizers are too slow for this") end
    assert.equal("done\n", run("", loops))
  end)
  it("ends a script with the status 130", function()
    local text, status = child('require("ffi").cdef "int raise(int)" require("ffi").C.raise(2) while true do end')
    assert.matches("^moth: .*interrupted\nstack traceback", text)
    assert.equal(130, status)
  end)
  it("ends each op of a list #slow", function()
    if preload ~= "" then return pending("sanitizers are too slow for this") end
    assert.equal("done\n", run("MOTH_NUM_THREADS=2", ops))
  end)
  it("ends a launch of many programs between two of them", function()
    if preload ~= "" then return pending("sanitizers are too slow for this") end
    for threads = 1, 2 do assert.equal("done\n", run("MOTH_NUM_THREADS=" .. threads, kernels)) end
  end)
  it("ends the reading of a file that expands to a gigabyte", function()
    if preload ~= "" then return pending("sanitizers are too slow for this") end
    assert.equal("done\n", run("", files))
  end)
  it("ends them on one thread #slow", function()
    if preload ~= "" then return pending("sanitizers are too slow for this") end
    assert.equal("done\n", run("MOTH_NUM_THREADS=1", ops, "mm; softmax; sort, a row"))
  end)
  it("lets ops that write to what is there come to their end", function()
    if preload ~= "" then return pending("sanitizers are too slow for this") end
    assert.equal("done\n", run("", writers))
  end)
end)
