-- Files of moth.edge.export: the bits of the program in this process, 1e-5 in the small library, also on arm64; files
-- that are damaged; what cannot be exported.
local moth = require "moth"
local ffi = require "ffi"
local nn = moth.nn
local file = os.tmpname()

local function exported(fn, args, dynamic, o)
  moth.edge.export(moth.export(fn, args, { dynamic_shapes = dynamic }), file, o)
  return moth.edge.load(file)
end

local function same(want, got)
  assert.equal(#want, #got)
  for i, t in ipairs(want) do
    assert.equal(t:dtype(), got[i]:dtype())
    assert.is_true(moth.equal(t, got[i]))
  end
end

-- The same bits as the function, at the example's sizes and at others.
local function agrees(fn, args, dynamic, more)
  local session = exported(fn, args, dynamic)
  for _, list in ipairs { args, more } do
    same({ moth.no_grad(fn, unpack(list)) }, { session(unpack(list)) })
  end
  return session
end

local function fails(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  assert.truthy(message:find(pattern), message)
end

local function read(path)
  local f = io.open(path, "rb")
  local text = f and f:read("*a")
  if f then f:close() end
  return text
end

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

describe("moth.edge", function()
  teardown(function() os.remove(file) end)

  it("gives the bits of the program, for any size of a dynamic dimension #quick #M420", function()
    local net = nn.Sequential(nn.Conv2d(1, 4, 3, { padding = 1 }), nn.GroupNorm(2, 4), nn.ReLU(true), nn.MaxPool2d(2),
      nn.Flatten(), nn.Linear(36, 5), nn.LogSoftmax(2)):eval()
    local session = agrees(net, { moth.randn(2, 1, 7, 7) }, { { [1] = moth.Dim("batch", { min = 1, max = 9 }) } },
      { moth.randn(5, 1, 7, 7) })
    fails("batch is 10, outside its range", session, moth.randn(10, 1, 7, 7))
    fails("dimension 3 is 8", session, moth.randn(2, 1, 8, 7))
    fails("expected a tensor of float32", session, moth.ones(2, 1, 7, 7, { dtype = moth.int64 }))
    fails("a fake tensor", session, moth.fake_mode(moth.ones, 2, 1, 7, 7))
    assert.truthy(tostring(session):find("(x1: float32[batch, 1, 7, 7]) -> output_1: float32", 1, true))
    local shared = agrees(function(x, y) return x + y end, { moth.ones(3, 2), moth.ones(3, 2) },
      { { [1] = "n" }, { [1] = "n" } }, { moth.ones(5, 2), moth.ones(5, 2) })
    fails("input y: n is 9 here, and 3 in another input", shared, moth.ones(3, 2), moth.ones(9, 2))
  end)

  it("computes with any expression of sizes, as older files have them, too", function()
    local n, m = moth.Dim("n", { min = 2 }), moth.Dim("m", { min = 2 })
    local dims = { { [1] = n, [2] = m } }
    for _, f in ipairs {
      function(x) return x:narrow(1, 1, math.min(x:size(1), x:size(2))) end,
      function(x) return moth.nn.functional.pad(x, { math.floor(x:size(2) / x:size(1)), 1 }) end,
      function(x) return x:clamp(-x:size(1) / 300, x:size(1) / 10) + x:size(1) / x:size(2) end,
      function(x) return x * math.exp(-#x / 64) + math.log(#x) * math.abs(#x - 40) + math.ceil(#x / 7) end,
      function(x) return moth.arange(0, x:size(2) / 2, 0.5) * #x ^ 0.5 / math.max(#x, 9) ^ 1.5 + x / math.sqrt(#x) end,
      function(x) return (x:topk(math.max(1, math.min(3, x:size(2) - 1)), 2)) end,
      function(x) -- row-major at some sizes alone
        local k = math.floor(x:size(2) / 2)
        local a = x:narrow(2, 1, 2 * k):reshape(x:size(1), k, 2, 1)
        return a:matmul(a:transpose(3, 4)):sum({ 3, 4 })
      end,
    } do
      local session = exported(f, { moth.randn(4, 6) }, dims)
      for _, size in ipairs { { 4, 6 }, { 2, 3 }, { 9, 4 }, { 300, 61 } } do
        local x = moth.randn(unpack(size))
        assert.is_true(moth.allclose(f(x), (session(x)), 1e-6, 1e-6))
      end
    end
    local files = require "moth.edge.file"
    local function f(x) return x * (3 / math.sqrt(2 * x:size(1) ^ 2 + math.floor(x:size(1) / 2) + 3)) end
    local made = files.lower(moth.export(f, { moth.ones(4) }, { dynamic_shapes = { { [1] = n } } }), {})
    local bits = tostring(ffi.new("union { double d; int64_t i; }", { d = 3 }).i):gsub("LL$", "")
    local count
    made.text, count = made.text:gsub('{"r":%[.-%]}',
      ('{"e":[[[2,0,0],[1,{"e":[[[1,0]],0,2,0]}]],3,1,3,%s]}'):format(bits))
    assert.equal(1, count)
    made.text = made.text:gsub('{"x":%[0,"dim"%]}', '{"e":[[[1,0]],0,1,0]}')
    made.format = "moth.edge 1"
    files.write(made, file)
    local session = moth.edge.load(file)
    for _, size in ipairs { 4, 5, 100 } do
      assert.is_true(moth.allclose(f(moth.ones(size)), (session(moth.ones(size)))))
    end
    for text, with in pairs { ['"floor"'] = '"round"', ['0,"dim"'] = '1,"dim"', ['3,3,2'] = '3,"mul",3,2',
      ['"sqrt"'] = '"sqrt","bits"', ['"sqrt","div"'] = '"sqrt"', ["%[%[%["] = "[[" } do
      made = files.lower(moth.export(f, { moth.ones(4) }, { dynamic_shapes = { { [1] = n } } }), {})
      made.text = text == "%[%[%[" and made.text:gsub('{"r":%[.-%]}', '{"e":[[2,0],3,1,3]}')
        or made.text:gsub('({"r":.-)' .. text, "%1" .. with, 1)
      files.write(made, file)
      fails("edge", moth.edge.load, file)
    end
  end)

  it("runs text models, whose numbers are formulas of the length #M420", function()
    local net = moth.models.minigpt { vocab = 20, d_model = 16, n_layer = 1, n_head = 2 }
    agrees(net:eval(), { moth.randint(1, 21, { 2, 6 }) },
      { { [1] = "batch", [2] = moth.Dim("time", { min = 2, max = 30 }) } }, { moth.randint(1, 21, { 3, 11 }) })
  end)

  it("copies what is written to, and gives views, inputs and constants as outputs", function()
    local held = moth.arange(3)
    local x = moth.tensor { { 3, -1, 2 }, { 0, 5, -4 } }
    local function fn(a)
      local b = a:transpose(1, 2)
      a:add_(1)
      return b, a:relu_(), a, held, a:sum(), a:gt(0)
    end
    local session = exported(fn, { x:clone() })
    same({ fn(x:clone()) }, { session(x) })
    assert.equal(-1, x[1][2]:item()) -- the caller's memory is not written to
    local function step(p, g)
      require("moth_lua").ops.sgd_step({ p }, { g }, {}, 0.1, 0, 0, 0, false, false, false) -- in a list
      return p * 1
    end
    local g = moth.ones(2, 3)
    session = exported(step, { x:clone(), g })
    same({ step(x:clone(), g) }, { session(x, g) })
  end)

  it("takes empty tensors, several inputs and outputs, and other dtypes", function()
    local function fn(a, i) return a:index_select(1, i) * 2, i:size(1) == 0 and i or i + 1, a:double():sum(2) end
    agrees(fn, { moth.randn(4, 3), moth.tensor({ 1, 4 }, { dtype = moth.int64 }) })
    agrees(function(a) return moth.cat({ a, a }, 1) + 1, a:sum() end, { moth.zeros(0, 3) })
    fails("index", exported(fn, { moth.randn(4, 3), moth.tensor({ 1, 4 }, { dtype = moth.int64 }) }), moth.randn(4, 3),
      moth.tensor({ 1, 5 }, { dtype = moth.int64 }))
  end)

  it("names outputs by the keys of the tables that they stand in, as ONNX files and moth serve do #M420", function()
    local function names(list, field)
      local out = {}
      for i, item in ipairs(list) do out[i] = field and item[field] or item.name end
      return table.concat(out, " ")
    end
    local path = os.tmpname()
    local function check(edge, onnx, fn)
      local ep = moth.export(fn, { moth.randn(2, 3) })
      moth.edge.export(ep, path)
      assert.equal(edge, names(moth.edge.load(path).outputs))
      moth.onnx.export(ep, nil, path)
      assert.equal(onnx, names(moth.onnx.InferenceSession(path):get_outputs()))
    end
    check("output_1 output_2", "output output_2", function(x) return x + 1, { x * 2 } end)
    check("features logits", "features logits", function(x) return { logits = x * 2, features = x + 1, epoch = 3 } end)
    check("output_1 output_2.a output_2.b.1 output_3.1.a", "output output_2.a output_2.b.1 output_3.1.a",
      function(x) return x - 1, { b = { x + 1 }, a = x * 2 }, { { a = x } } end)
    check("a.b a.b_2", "a.b a.b_2", function(x) return { ["a.b"] = x + 1, a = { b = x * 2 } } end)
    os.remove(path)
  end)

  it("runs branches and loops on elements", function()
    local net = nn.Linear(3, 3)
    local function branch(x)
      local y, z = moth.cond(x:sum():gt(0), function(a) return net(a), a end, function(a) return a * 2, a end, { x })
      return y, z, x:relu()
    end
    agrees(branch, { moth.rand(2, 3) }, { { [1] = "n" } }, { -moth.rand(4, 3) })
    agrees(function(x) -- in a branch
      return moth.cond(x:sum():gt(0), function(a)
        return moth.cond(a[1]:gt(1), function(b) return b * 10 end, function(b) return b * 100 end, { a })
      end, function(a) return a - 1 end, { x }) + 0.5
    end, { moth.tensor { 1, 2 } }, nil, { moth.tensor { 3, -2 } })
    agrees(function(x) -- more results than an op has
      return moth.cond(x:sum():gt(0), function(a) return a, a + 1, a + 2, a + 3, a + 4 end,
        function(a) return a, a - 1, a - 2, a - 3, a - 4 end, { x })
    end, { moth.rand(2) }, nil, { -moth.rand(2) })
    agrees(function(x) -- the test's, the body's and the program's own values; no round at all
      local scale = x:abs():sum() + 1
      local i, y = moth.while_loop(function(_, a) return a:abs():sum():lt(90) end,
        function(i, a) return i + 1, a * 2 + net(a):abs() end, { moth.tensor(0), x })
      return i, y, y / scale
    end, { moth.rand(3, 3) }, { { [1] = "n" } }, { moth.full({ 5, 3 }, 40) })
    agrees(function(x) -- writes to operands
      local y = x * 2
      local first = y:select(1, 1)
      local z = moth.cond(x:sum():gt(0), function(b) return b:add_(1) end, function(b) return b - 1 end, { first })
      local _, c = moth.while_loop(function(i) return i:lt(3) end, function(i, b)
        b[1] = 5
        b:mul_(2)
        return i + 1, b
      end, { moth.tensor(0), y:select(1, 2) })
      return y, z, c
    end, { moth.rand(3, 3) }, nil, { -moth.rand(3, 3) })
    agrees(function(x) -- values change places
      local _, a, b = moth.while_loop(function(i) return i:lt(3) end, function(i, a, b) return i + 1, b, a end,
        { moth.tensor(0), x, x * 2 })
      return a, b
    end, { moth.rand(3) }, nil, { moth.rand(3) })
  end)

  it("writes to buffers in memory of the model, which reset gives the file's elements again", function()
    local norm = nn.BatchNorm1d(3)
    local session = exported(norm, { moth.randn(4, 3) })
    local x, first = moth.randn(4, 3), nil
    for i = 1, 3 do
      local want = norm(x)
      first = first or session(x)
      same({ want }, { i == 1 and first or session(x) })
    end
    local Sum = nn.class("Sum")
    function Sum:__init() self:register_buffer("sum", moth.zeros(2)) end
    function Sum:forward(a)
      self.sum:add_(a:sum(1))
      return self.sum * 2, self.sum
    end
    local sum = Sum()
    session = exported(sum, { moth.ones(1, 2) }, { { [1] = "n" } })
    for n = 1, 3 do -- other sizes: the sum stays
      local a = moth.randn(n, 2)
      local want = { sum(a) }
      want[2] = want[2]:clone()
      same(want, { session(a) })
    end
    session:reset()
    assert.equal(4, session(moth.full({ 1, 2 }, 2))[1]:item())
  end)

  it("says at export what the library cannot run, with its place", function()
    local x = moth.randn(3)
    fails("%[edge%.export%] expected an exported program, got", moth.edge.export, x, file)
    fails("nonzero: sizes of its result depend on elements", exported, function(a) return a:nonzero() end, { x })
    local Twice = nn.class("Twice")
    function Twice:__init()
      self:register_buffer("all", moth.zeros(4))
      self:register_buffer("some", self.all:narrow(1, 1, 2))
    end
    function Twice:forward(a)
      self.all:add_(a)
      return self.some * 1
    end
    fails("give them memory of their own", exported, Twice(), { moth.ones(4) })
    fails("native_fft_r2c %(.*edge_spec.lua:%d+%): the edge library has no complex numbers", exported,
      function(a) return moth.fft.rfft(a):abs() end, { x })
    fails("input z is complex64: the edge library has no complex", exported, function(z) return z:abs() end,
      { moth.randn(2, { dtype = moth.complex64 }) })
    fails("got 2 names", exported, function(a) return a + 1 end, { x }, nil, { output_names = { "a", "b" } })
  end)

  -- A flipped byte is an error or another model, never a crash: long runs are `make fuzz`.
  it("refuses files that are damaged #quick", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    local session = exported(net, { moth.randn(2, 3) }, { { [1] = "batch" } })
    assert.equal(1, #session.outputs)
    local whole = read(file)
    local seed = 7
    local function random(n)
      seed = (seed * 16807) % 2147483647
      return seed % n
    end
    local refused = 0
    for _ = 1, 150 do
      local at = random(#whole) + 1
      local text = random(3) == 0 and whole:sub(1, at)
        or whole:sub(1, at - 1) .. string.char(random(256)) .. whole:sub(at + 1)
      write(file, text)
      local ok, loaded = pcall(moth.edge.load, file)
      if ok then
        pcall(loaded, moth.randn(2, 3))
      else
        refused = refused + 1
        assert.truthy(tostring(loaded):find("%[edge"), tostring(loaded))
      end
    end
    assert.is_true(refused > 50)
    write(file, "")
    fails("edge", moth.edge.load, file)
    fails("cannot open", moth.edge.load, file .. ".none")
    moth.export.save(moth.export(net, { moth.randn(2, 3) }), file)
    fails("moth.export.save: load it with moth and export it for edge", moth.edge.load, file)
  end)
end)

describe("the edge library", function()
  local build = (package.cpath:match("([^;]*)/%?%.so") or "build")
  local function built(folder) return read(build .. "/" .. folder .. "/edge-run") ~= nil end

  local function run(command)
    local pipe = assert(io.popen(command .. " 2>&1; echo rc=$?"))
    local text = pipe:read("*a")
    pipe:close()
    return text
  end

  -- The largest difference between outputs of edge-run and moth's, beside the largest element.
  local function difference(emulator, folder, name)
    local at = ("%s/edge-spec/%s"):format(build, name)
    local said = run(("%s %s/%s/edge-run %s.mte %s.in %s"):format(emulator, build, folder, at, at, file))
    assert.truthy(said:find("rc=0"), said)
    local want, got = read(at .. ".out"), read(file)
    assert.equal(#want, #got)
    local a, b, worst, most = ffi.cast("const float *", want), ffi.cast("const float *", got), 0, 0
    for i = 0, #want / 4 - 1 do
      worst, most = math.max(worst, math.abs(a[i] - b[i])), math.max(most, math.abs(a[i]))
    end
    return worst / most
  end

  it("runs the models as moth does #M420 #M421", function()
    if not built "edge-spec" then return pending("make edge-test: not built") end
    assert.is_true(difference("", "edge-spec", "cnn") < 1e-5)
    assert.is_true(difference("", "edge-spec", "text") < 1e-5)
    assert.is_true(difference("", "edge-spec", "steps") < 1e-5)
    local at = build .. "/edge-spec/"
    assert.truthy(run(("%sedge-run %scnn.mte"):format(at, at)):find("x1: float32 [2 (batch), 1, 14, 14]", 1, true))
    assert.truthy(run(("%sedge-run -d batch=9 %scnn.mte -"):format(at, at)):find("batch is 9, outside its range"))
    assert.truthy(run(("%sedge-run -d batch=x %scnn.mte"):format(at, at)):find("-d batch=x: expected a size", 1, true))
    assert.truthy(run(("%sedge-run README.md"):format(at)):find("this is no file of moth.edge.export", 1, true))
    exported(function(x) return x:erfinv() end, { moth.rand(3) })
    assert.truthy(run(("%sedge-run %s"):format(at, file)):find("this library has no op erfinv"))
    exported(function(x) return x:relu() end, { moth.rand(3, { dtype = moth.float64 }) })
    assert.truthy(run(("%sedge-run %s"):format(at, file)):find("float64; build it with OPS_OF naming"))
  end)

  -- What the generator says, and the sources it lists.
  local function generated(dtypes, models)
    local folder = file .. ".gen"
    local said = run(("mkdir -p %s/kernels && %s src/ops/gen.lua %s --edge '%s' '%s'"):format(folder,
      os.getenv "LUAJIT" or "luajit", folder, dtypes, models))
    local sources = read(folder .. "/sources.mk")
    os.execute("rm -r " .. folder)
    return said, sources
  end

  it("has the kernels that int8 models and those of 16 bits need, where OPS_OF names one", function()
    local q = moth.quantization
    local model = q.quantize_dynamic(nn.Sequential(nn.Linear(8, 4)):eval(), { nn.Linear })
    agrees(model, { moth.randn(2, 8) })
    local said, sources = generated("", file)
    assert.equal("rc=0\n", said)
    for _, name in ipairs { "int8.c", "int8_product.c" } do assert.truthy(sources:find(name, 1, true), name) end
    agrees(function(x) return (x * 2):tanh() end, { moth.randn(3):half() })
    said, sources = generated("", file)
    assert.equal("rc=0\n", said)
    assert.truthy(sources:find("_float16_generic.c", 1, true))
  end)

  it("is not built with dtypes that there are not, nor of ops that need LAPACK", function()
    assert.truthy(generated("float32 flot64", ""):find("the library has no dtype 'flot64'", 1, true))
    exported(function(x) return moth.linalg.cholesky(x) end, { moth.eye(3) })
    assert.truthy(generated("", file):find("'linalg_cholesky_ex' needs LAPACK", 1, true))
  end)

  it("is small, and has no names but its own #M420", function()
    if not built "edge-spec" then return pending("make edge-test: not built") end
    if build:find "asan" or build:find "ubsan" then return pending("sanitizers make it larger") end
    assert.is_true(#read(build .. "/edge-spec/edge-run") <= 400 * 1024)
    local names = run(("nm -g --defined-only %s/edge-spec/libmoth_edge.a"):format(build))
    for name in names:gmatch(" [A-Z] (%S+)") do
      assert.truthy(name:find("^moth_edge_"), name)
    end
  end)

  it("allocates nothing while a model runs #M420", function()
    if not built "edge-spec" then return pending("make edge-test: not built") end
    if build:find "asan" or build:find "ubsan" then return pending("sanitizers allocate themselves") end
    local wrap = "-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc"
    local library = build .. "/edge-spec/libmoth_edge.a"
    local said = run(("gcc -O1 -Isrc/edge %s -o %s.run spec/edge/no_malloc.c %s -lm"):format(wrap, file, library))
    assert.equal("rc=0\n", said)
    for _, name in ipairs { "cnn", "text", "steps" } do
      said = run(("%s.run %s/edge-spec/%s.mte"):format(file, build, name))
      assert.truthy(said:find("loading: [1-9]%d*, three runs: 0\n"), said)
    end
    said = run(("gcc -std=c99 -Wall -Wextra -Werror -I%s/edge-spec -o %s.run examples/c/edge.c %s -lm && "
      .. "%s.run %s/cnn.mte"):format(build, file, library, file, build .. "/edge-spec"))
    assert.truthy(said:find("output_1: float32, 20 elements: 0%.%d+"), said)
    os.remove(file .. ".run")
  end)

  it("runs on arm64 #M420 #M421", function()
    if not built "edge-spec-arm64" then return pending("make deps-edge edge-test: no compiler for arm64") end
    if run("command -v qemu-aarch64"):find "rc=1" then return pending("make deps-edge: no qemu-aarch64") end
    for _, name in ipairs { "cnn", "text", "steps" } do
      assert.is_true(difference("qemu-aarch64 -L /usr/aarch64-linux-gnu", "edge-spec-arm64", name) < 1e-5)
    end
  end)
end)
