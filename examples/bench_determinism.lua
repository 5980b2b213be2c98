--- What determinism costs. On the CPU nothing: all ops give the same bits in every run, for any number of threads. On
-- CUDA, index_add, scatter_add and embedding's gradient sort first; use_deterministic_algorithms(false) allows sums by
-- atomic adds instead, whose order, and so whose last bits, differ from run to run.
--
--     moth examples/bench_determinism.lua [--quick]
local moth = require "moth"
local quick = moth.cli({ { "--quick", "a short run" } }).quick

local device = moth.cuda.is_available() and "cuda" or "cpu"
local rows, picks, width = quick and 500 or 50000, quick and 2000 or 500000, 64
moth.manual_seed(0)
local index = moth.randint(1, rows, { picks }, { dtype = moth.int64, device = device })
local source = moth.randn(picks, width, { device = device })
local table_of = moth.zeros(rows, width, { device = device })

local cases = {
  { "index_add", function() return table_of:index_add(1, index, source) end },
  { "scatter_add", function() return table_of:scatter_add(1, index:view(-1, 1):expand(picks, width), source) end },
  { "embedding's gradient", function()
    local w = table_of:detach():requires_grad_()
    moth.nn.functional.embedding(index, w):backward(source)
    return w.grad
  end },
}

print(("%s, %d rows of %d into %d"):format(device, picks, width, rows))
print(("%-22s %14s %14s %8s %s"):format("", "deterministic", "any order", "ratio", "two runs to the bit"))
for _, case in ipairs(cases) do
  local times, same = {}, {}
  for k, on in ipairs { true, false } do
    moth.use_deterministic_algorithms(on)
    same[k] = case[2]():equal(case[2]())
    times[k] = moth.benchmark.Timer({ fn = case[2] }):blocked_autorange({ min_run_time = quick and 0.01 or 0.5 }).median
  end
  moth.use_deterministic_algorithms(true)
  print(("%-22s %11.3f ms %11.3f ms %8.2f %s, %s"):format(case[1], times[1] * 1e3, times[2] * 1e3, times[1] / times[2],
    tostring(same[1]), tostring(same[2])))
end
