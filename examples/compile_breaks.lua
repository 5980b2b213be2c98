--- What moth.compile makes of a function: its breaks with their reasons and lines, its graphs, and one of them changed.
local moth = require "moth"
local compile = moth.compile
moth.manual_seed(0)

local w = moth.randn(4, 4, { requires_grad = true })
local largest = 0
local function f(x)
  local y = (x:matmul(w) * 2 + 1):relu()
  local top = y:max():item() -- 1: Lua needs the number
  if top > largest then largest = top end
  local rows = y:sum(2):gt(0):nonzero() -- 2: the size of the result depends on elements
  return y * rows:size(1)
end

local x = moth.randn(3, 4)
local report = compile.explain(f, x)
print(report)
print("\nthe first graph:\n" .. tostring(report.graphs[1]))

-- The same without breaks: what is not needed in between comes last, or stays a tensor.
local function g(t)
  local y = (t:matmul(w) * 2 + 1):relu()
  return y * y:sum(2):gt(0):sum(), y:max()
end
print("\nwithout: " .. tostring(compile.explain(g, x)))
print("equal results: " .. tostring(moth.equal((f(x)), (compile(g, { fullgraph = true })(x)))))

-- A backend sees each graph once, may change it, and returns what runs it.
local halved = compile(g, { backend = function(graph)
  local relu = graph:find("relu")
  local gelu = graph:call("gelu", relu.args[1], { before = relu })
  relu:replace_all_uses_with(gelu)
  graph:eliminate_dead_code()
  return graph:interpreter()
end })
print("relu became gelu: " .. tostring(moth.equal((halved(x)), (g(x))) and "no" or "yes"))
local c = compile.counters()
print(("%d graphs, %d breaks, %d ops recorded, %d followed"):format(c.graphs, c.graph_breaks, c.recorded, c.followed))
