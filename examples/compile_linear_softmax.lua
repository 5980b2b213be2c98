--- What becomes of Linear(64, 600) and softmax: a call of the library's product, and a kernel. The generated code
-- stands on stderr:    MOTH_LOGS=output_code moth examples/compile_linear_softmax.lua [backend inductor]
local moth = require "moth"
local nn = moth.nn
moth.manual_seed(0)

local linear = nn.Linear(64, 600)
local function f(x) return moth.softmax(linear(x), 2) end
local backend = moth.cli({ { "[BACKEND]", "of moth.compile", "inductor" } }).backend
local fast = moth.compile(f, { backend = backend, fullgraph = true })
local x = moth.randn(32, 64)
local y = moth.no_grad(function()
  fast(x)
  return fast(x)
end)
moth.testing.assert_close(y, moth.no_grad(f, x), { rtol = 1e-5, atol = 1e-7 })
print(moth.compile.capture(f, { x }))
print(moth.no_grad(function() return moth.compile.explain(fast, x) end))
print(("rows add up to %.4f"):format(y:sum(2):mean():item()))
