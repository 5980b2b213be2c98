--- Some ops below the roofline of this machine: GB/s, GFLOP/s, and whether memory or arithmetic bounds them.
-- More than 100 % of the roof: the tensors were still in a cache.
--     bench_roofline.lua [n 2048] [threads 1]
local moth = require "moth"
local o = moth.cli { { "[N]", "rows of the matrices", 2048 }, { "[THREADS]", "", 1 } }
local n, threads = o.n, o.threads
local device = moth.cuda.is_available() and "cuda" or "cpu"
moth.manual_seed(0)
local like = { device = device }
local x, y = moth.randn({ n, n }, like), moth.randn({ n, n }, like)
local v = moth.randn({ n, 1 }, like)
local all = 4 * n * n -- bytes of a matrix

-- Name, function, operations, bytes: what must be read and written once.
local cases = {
  { "x + y", function() return x + y end, n * n, 3 * all },
  { "relu(x)", function() return x:relu() end, n * n, 2 * all },
  { "tanh(x)", function() return x:tanh() end, 20 * n * n, 2 * all },
  { "x:sum()", function() return x:sum() end, n * n, all },
  { "softmax", function() return x:softmax(2) end, 5 * n * n, 2 * all },
  { "x:t() + y", function() return x:t() + y end, n * n, 3 * all },
  { "matrix * vector", function() return x:mm(v) end, 2 * n * n, all + 8 * n },
  { "matrix * matrix", function() return x:mm(y) end, 2 * n ^ 3, 3 * all },
}
local list = moth.benchmark.machine { n = math.min(n, 1024), bytes = 64 * n * n, device = device,
  num_threads = threads }
for i, case in ipairs(cases) do
  local timer = moth.benchmark.Timer { fn = function() case[2]():free() end, sub_label = case[1],
    num_threads = threads }
  list[i] = { timer:timeit(n >= 512 and 20 or 5), flops = case[3], bytes = case[4] }
end
print(moth.benchmark.roofline(list))
