-- The backend where none is given: plans first, generated kernels once a segment has run often enough; and what that
-- does where there is no compiler or no folder for what it makes.
local moth = require "moth"
require "compile.support"
local toolchain = require "moth.utils.toolchain"
local compile = moth.compile
local build = os.getenv("MOTH_BUILD") or "build"
local with_cc = toolchain.cc() and it or pending

-- The call at which kernels were generated, of `most`; all calls' results are those of f.
local function switched(f, make, most, o)
  compile.reset()
  local compiled, at = compile(f, o), nil
  for n = 1, most do
    local before = compile.counters().groups
    local x = make()
    local got, want = compiled(x), f(x)
    if compile.counters().groups == 0 then
      assert.is_true(moth.equal(got, want)) -- plans have the bits of the calls
    else
      assert.is_true(moth.allclose(got, want, { rtol = 1e-4, atol = 1e-4 }))
    end
    if not at and compile.counters().groups > before then at = n end
  end
  return at
end

local function chain(x) return ((x * 2 + 1):relu() * x):tanh():sum() end

describe("compile: the default backend #M291", function()
  with_cc("runs plans first, and generates kernels once a segment has run often enough", function()
    local function make() return moth.randn(600, 600) end
    local at = switched(chain, make, 16)
    assert.is_true(at > 2 and at < 14, tostring(at))
    assert.equal(at, switched(chain, make, 16)) -- now that the cache has them, too
    assert.is_nil(switched(chain, function() return moth.randn(8, 8) end, 40))
    assert.is_nil(switched(function(x) return x:matmul(x) end, make, 16))
    assert.equal(0, compile.counters().recompiles)
    assert.equal(1, switched(chain, make, 2, { backend = "inductor" }))
    assert.is_nil(switched(chain, make, 16, { backend = "blocks" }))
  end)

  with_cc("does so for gradients, several sizes, and each segment by itself", function()
    local w = moth.randn(600, 600):requires_grad_(true)
    local looks = false
    local function f(x)
      local y = (x * w):tanh() + x
      if looks then y:sum():item() end
      return ((y * 2):sigmoid() * w):sum()
    end
    compile.reset()
    local compiled = compile(f)
    for n = 1, 40 do
      looks = n > 20
      local x = moth.randn(n % 3 + 1, 1, 600)
      local want = moth.autograd.grad(f(x), w)
      assert.is_true(moth.allclose(want, moth.autograd.grad(compiled(x), w), { rtol = 1e-4, atol = 1e-4 }))
    end
    assert.is_true(compile.counters().groups > 3)
    assert.equal(0, compile.counters().skipped)
  end)

  with_cc("explain shows the kernels that there will be", function()
    assert.equal(1, #compile.explain(chain, moth.randn(9)).kernels[1])
  end)

  it("is measured when small tensors have run for a while, larger ones by the code that stays", function()
    local was, text = io.stderr, nil
    local function uncompiled(n)
      local count = 0
      compile.reset()
      local compiled = compile(function(x)
        count = count + (compile.is_compiling() and 0 or 1)
        return (x + 1) * 2
      end)
      for _ = 1, 60 do compiled(moth.ones(n)) end
      return count
    end
    compile.config.measure = true
    io.stderr = { write = function(_, line) text = line end } -- luacheck: ignore
    local ok, small, large = pcall(function() return uncompiled(16), uncompiled(4096) end)
    compile.config.measure, io.stderr = false, was -- luacheck: ignore
    assert(ok, small)
    assert.is_true(small > 10 and large == 0, ("%d, %d, %s"):format(small, large, tostring(text)))
  end)
end)

describe("compile: the default backend #noasan", function()
  local dir
  before_each(function()
    dir = os.tmpname()
    os.remove(dir)
    os.execute("mkdir -m 700 " .. dir)
    local f = assert(io.open(dir .. "/p.lua", "w"))
    f:write [[
local moth = require "moth"
moth.compile.config.measure = false
local f = moth.compile(function(x) return (x * 2 + 1):relu():sum() end)
local x = moth.ones(700, 700)
for _ = 1, 15 do assert(f(x):item() == 3 * 700 * 700) end
print(moth.compile.counters().groups)
]]
    f:close()
  end)
  after_each(function() os.execute("chmod -R u+w " .. dir .. "; rm -rf " .. dir) end)

  local function shell(command)
    local pipe = assert(io.popen("{ " .. command .. "; } 2>&1"))
    local text = pipe:read("*a")
    pipe:close()
    return text
  end
  local function command(variables)
    return ("env -u LD_PRELOAD XDG_CACHE_HOME=%s/cache MOTH_LUAJIT_WARNING=0 env %s %s/moth %s/p.lua"):format(dir,
      variables or "", build, dir)
  end
  local function run(variables) return shell(command(variables)) end

  it("works where there is no compiler, with one line", function()
    assert.equal("moth: compile: there is no C compiler: pointwise calls run in blocks; MOTH_CC names one\n0\n",
      run("PATH=/nonexistent/bin"))
    assert.equal("moth: MOTH_CC=/none is no compiler that runs\n0\n", run("MOTH_CC=/none"))
    assert.matches("^moth: compile: the C compiler failed, pointwise calls run in blocks: [^\n]*\n0\n$",
      run("MOTH_CC=/bin/false PATH=/bin:/usr/bin"):gsub("^moth: MOTH_CC=/bin/false is no compiler that runs\n",
        "moth: compile: the C compiler failed, pointwise calls run in blocks: \n"))
  end)

  with_cc("works where nothing can be kept, with one line", function()
    assert.equal("moth: /proc/none/moth/kernels: it cannot be made; what is compiled is not kept\n1\n",
      run("XDG_CACHE_HOME=/proc/none"))
    assert.matches("^moth: [^\n]*what is compiled is not kept\n1\n$", run("-u XDG_CACHE_HOME HOME=/proc"))
  end)

  with_cc("works in two processes at once, and where a library was cut short", function()
    assert.equal("1\n1\n", shell(("%s & %s & wait"):format(command(), command())))
    shell(("for f in %s/cache/moth/kernels/*.so; do truncate -s 3000 $f; done"):format(dir))
    assert.equal("1\n", run())
  end)
end)
