--- Lab: run, dump the code, find the fusion. The generated kernel names in comments the ops that it does.
--     lab_compile.lua [backend inductor]
local moth = require "moth"
local backend = moth.cli({ { "[BACKEND]", "of moth.compile", "inductor" } }).backend
moth.manual_seed(0)

-- 1. Run it as it is, and count what runs.
local function f(x) return ((x * 2 + 1):relu() * x:sigmoid()):tanh() end
local x = moth.randn(64, 1000)
local calls, by_name = moth.dispatch.count(f, x)
local names = {}
for name in pairs(by_name) do names[#names + 1] = name end
table.sort(names)
print(("1. eager: %d ops, a pass over memory each: %s"):format(calls, table.concat(names, " ")))

-- 2. Capture it: the graph, with the line of each op.
local graph = moth.compile.capture(f, { x })
print("2. " .. tostring(graph))

-- 3. Compile it: equal results.
local fast = moth.compile(f, { backend = backend, fullgraph = true })
local y = moth.no_grad(function() return fast(x) end)
moth.testing.assert_close(y, f(x))
print(("3. compiled in %.2f s: equal results"):format(moth.compile.counters().compile_seconds))

-- 4. Dump the code: MOTH_LOGS=output_code prints it to stderr. A process of its own, so that this one need not.
local program = [[
local moth = require "moth"
local f = moth.compile(function(x) return ((x * 2 + 1):relu() * x:sigmoid()):tanh() end, { backend = arg[1] })
moth.no_grad(function() f(moth.randn(64, 1000)) end)
]]
local path = os.tmpname()
local file = assert(io.open(path, "w"))
file:write(program)
file:close()
local pipe = io.popen("readlink /proc/" .. moth.utils.system.pid() .. "/exe") -- moth itself
local moth_program = pipe:read("*l")
pipe:close()
pipe = io.popen(("MOTH_LOGS=output_code '%s' %s %s 2>&1"):format(moth_program, path, backend))
local code = pipe:read("*a")
pipe:close()
os.remove(path)
-- The kernels stand behind the functions of one number that they call; a comment names the ops of each, with lines.
local at = (code:find("\n/%*[^\n]*%*/\nstatic ") or 0) + 1
local kernels, done = code:sub(at), {}
for _, name in ipairs(names) do
  if kernels:find("%f[%w_]" .. name .. "%f[^%w_]") or kernels:find("m_" .. name .. "_", 1, true) then
    done[#done + 1] = name
  end
end
print("4. the generated code:\n" .. kernels:gsub("%s+$", ""))
print(("   it does: %s"):format(#done > 0 and table.concat(done, " ") or "nothing; there is no compiler, or no kernel"))

-- 5. What it gains.
local Timer = moth.benchmark.Timer
local function timed(name, call)
  return Timer { fn = function() moth.no_grad(call, x) end, label = "f", sub_label = "64 x 1000", description = name }
    :timeit(50)
end
print "5. times:"
moth.benchmark.compare { timed("eager", f), timed("compiled", fast) }
