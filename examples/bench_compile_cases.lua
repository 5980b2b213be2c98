--- Three functions, compiled and not: many element-wise ops gain, one large product does not, breaks every few ops
-- leave little.    bench_compile_cases.lua [elements 1000000] [n of the product 1024] [runs 20] [backend inductor]
local moth = require "moth"
local Timer = moth.benchmark.Timer
local o = moth.cli { { "[ELEMENTS]", "", 1000000 }, { "[N]", "rows of a matrix", 1024 }, { "[RUNS]", "", 20 },
  { "[BACKEND]", "", "inductor" } }
local elements, n, runs, backend = o.elements, o.n, o.runs, o.backend
local device = moth.cuda.is_available() and "cuda" or "cpu"
moth.manual_seed(0)

local function chain(x)
  local y = x * 2 + 1
  local z = y:tanh() * x:sigmoid()
  return (z - x * x / 2):relu() + (z * 0.5):sin()
end

local function product(a, b) return a:mm(b) end

-- The same ops, but Lua looks at a number after every second.
local function broken(x)
  local y = x * 2 + 1
  if y[1]:item() > 1e9 then return y end
  local z = y:tanh() * x:sigmoid()
  if z[1]:item() > 1e9 then return z end
  local u = (z - x * x / 2):relu()
  if u[1]:item() > 1e9 then return u end
  return u + (z * 0.5):sin()
end

local x = moth.randn({ elements }, { device = device })
local a, b = moth.randn({ n, n }, { device = device }), moth.randn({ n, n }, { device = device })
local cases = { { "10 element-wise ops", chain, x }, { "one product", product, a, b }, { "with breaks", broken, x } }
local results, said = {}, {}
moth.no_grad(function()
  for _, case in ipairs(cases) do
    local name, f = case[1], case[2]
    local fast = moth.compile(f, { backend = backend })
    local want = f(case[3], case[4])
    for _ = 1, 2 do moth.testing.assert_close(fast(case[3], case[4]), want, { rtol = 1e-5, atol = 1e-5 }) end
    local function measure(description, fn)
      return Timer { fn = function() fn(case[3], case[4]) end, label = device .. ", backend " .. backend,
        sub_label = name, description = description }:timeit(runs)
    end
    local slow, quick = measure("eager", f), measure("compiled", fast)
    results[#results + 1], results[#results + 2] = slow, quick
    said[#said + 1] = ("%-22s %5.2f times as fast, %d graph(s)"):format(name, slow.median / quick.median,
      moth.compile.explain(f, case[3], case[4]).graph_count)
  end
end)
moth.benchmark.compare(results)
print(table.concat(said, "\n"))
