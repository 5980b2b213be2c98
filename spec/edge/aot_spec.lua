-- moth.aot_compile: a shared library that C calls without Lua, with the bits of generated kernels (T2).
local moth = require "moth"
local ffi = require "ffi"
local nn = moth.nn
local stem = os.tmpname()

local function bytes(t)
  t = t:contiguous()
  return ffi.string(t:data(), t:numel() * t:element_size())
end

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

local function read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read("*a")
  f:close()
  return text
end

local function run(command)
  local pipe = assert(io.popen("{ unset LD_PRELOAD; " .. command .. "; } 2>&1; echo rc=$?"))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

local build = package.cpath:match("([^;]*)/%?%.so") or "build"

-- Compiles the program, runs it from a C program that is linked with it, and compares with kernels in this process.
local function agrees(model, x)
  local ep = moth.export(model:eval(), { x })
  moth.aot_compile(ep, { out = stem .. ".so" })
  local want = moth.no_grad(function() return ep:compile({ backend = "inductor" })(x) end)
  write(stem .. ".in", bytes(x))
  local name = stem:match("[^/]*$")
  local said = run(('gcc -Wall -DHEADER=\'"%s.h"\' -I%s -o %s.run spec/edge/aot.c %s.so -L%s -lmoth '
    .. '-Wl,-rpath,"$(cd %s && pwd)" && %s.run %s.in %s.out')
    :format(name, stem:match("^(.*)/"), stem, stem, build, build,
      stem, stem, stem))
  assert.equal("rc=0\n", said)
  assert.is_true(read(stem .. ".out") == bytes(want))
  assert.is_close(want, moth.no_grad(function() return model(x) end))
end

describe("moth.aot_compile", function()
  teardown(function() os.execute(("rm -f %s %s.*"):format(stem, stem)) end)

  it("makes a library and a header for C, with the bits of moth.compile #M419 #noasan", function()
    moth.manual_seed(3)
    agrees(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8),
      nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3), nn.Softmax(2)), moth.randn(2, 1, 8, 8))
    agrees(moth.models.minigpt { vocab = 20, d_model = 16, n_layer = 1, n_head = 2 }, moth.randint(1, 21, { 2, 5 }))
    assert.truthy(read(stem .. ".h"):find("int moth_aoti_run(MothModel *m", 1, true))
    assert.is_nil(run("nm -D " .. stem .. ".so"):find("lua_"))
  end)

  it("makes a library for arm64, which needs no libmoth #M419 #M421 #noasan", function()
    local archive = build .. "/edge-spec-arm64/libmoth_edge.a"
    if not io.open(archive) then return pending("make deps-edge edge-test: no compiler for arm64") end
    if run("command -v qemu-aarch64"):find "rc=1" then return pending("make deps-edge: no qemu-aarch64") end
    moth.manual_seed(4)
    local model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    local x = moth.randn(2, 1, 8, 8)
    local ep = moth.export(model:eval(), { x })
    moth.aot_compile(ep, { out = stem .. ".so", target = "aarch64-linux-gnu", library = archive })
    write(stem .. ".in", bytes(x))
    local said = run(("aarch64-linux-gnu-gcc -DHEADER='\"%s.h\"' -I%s -o %s.run spec/edge/aot.c %s.so -lm && "
      .. "qemu-aarch64 -L /usr/aarch64-linux-gnu %s.run %s.in %s.out"):format(
      stem:match("[^/]*$"), stem:match("^(.*)/"), stem, stem, stem, stem, stem))
    assert.equal("rc=0\n", said)
    local want = moth.no_grad(model, x)
    local got = moth.empty(want:size())
    ffi.copy(got:data(), read(stem .. ".out"), want:numel() * 4)
    assert.is_true((got - want):abs():max():item() < 1e-5)
  end)

  it("says what it cannot compile #M419", function()
    local x = moth.randn(2, 3)
    local ep = moth.export(nn.Linear(3, 2), { x }, { dynamic_shapes = { { [1] = "batch" } } })
    assert.error_matches(function() moth.aot_compile(ep, { out = stem .. ".so" }) end, "fixed sizes")
    assert.error_matches(function() moth.aot_compile(x, { out = stem .. ".so" }) end, "expected an exported program")
    ep = moth.export(function(a)
      return moth.cond(a:sum():gt(0), function(b) return b + 1 end, function(b) return b - 1 end, { a })
    end, { x })
    assert.error_matches(function() moth.aot_compile(ep, { out = stem .. ".so" }) end, "moth.edge.export keeps")
    ep = moth.export(nn.Linear(3, 2), { x })
    assert.error_matches(function() moth.aot_compile(ep, { out = stem .. ".so", name = "a b" }) end, "a C name")
    assert.error_matches(function() moth.aot_compile(ep, { out = stem .. ".so", target = "aarch64-linux-gnu" }) end,
      "make edge CROSS=aarch64")
  end)
end)
