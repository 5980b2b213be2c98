-- Torch7's files: values, tensors and networks of a writer of our own (spec/torch7/writer.lua), in all forms; damage.
local moth = require "moth"
local writer = require "torch7.writer"
local damage = require "io.damage"
local nn = moth.nn
local F = moth.F
local T7 = moth.torch7

local forms = { binary = {}, ascii = { ascii = true }, ["32 bits"] = { long_size = 4 } }

local function loaded(value, form, options)
  local path = writer.file(value, form)
  local ok, v = pcall(T7.load, path, options or {})
  os.remove(path)
  if not ok then error(v, 0) end
  return v
end
local function object(name, fields) return writer.object_of(name, fields or {}) end
local function close(a, b) assert.is_close(a, b, { rtol = 1e-5, atol = 1e-6 }) end

for name, form in pairs(forms) do
  describe("a Torch7 file in " .. name, function()
    it("has plain values", function()
      for _, v in ipairs { 1.5, -0, 2 ^ 60, "", "a\nb\0c", true, false, math.huge } do
        assert.equal(v, loaded(v, form))
      end
      assert.is_nil(loaded(nil, form))
      local nan = loaded(0 / 0, form)
      assert.is_true(nan ~= nan)
      assert.same({ 1, { "x", [2.5] = true }, n = { [false] = 0 } }, loaded({ 1, { "x", [2.5] = true },
        n = { [false] = 0 } }, form))
    end)

    it("has tensors of all kinds", function()
      for _, dtype in ipairs { "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8" } do
        local t = moth.tensor { { 1, 2, 100 }, { 0, 7, 3 } }:to(moth[dtype])
        if dtype:find "float" then t = t / 4 end
        local got = loaded(t, form)
        assert.equal(moth[dtype], got:dtype())
        assert.is_true(moth.equal(t, got), dtype)
      end
      assert.equal(-2 ^ 31, loaded(moth.tensor({ -2 ^ 31 }, { dtype = moth.int64 }), form):item())
      assert.same({ 0 }, loaded(writer.view("Float", nil, {}, {}), form).shape)
      assert.same({ 3 }, loaded(writer.storage("Int", moth.arange(3):int()), form).shape)
      local cuda = writer.view("Cuda", nil, { 2 }, { 1 })
      cuda.storage = writer.storage("Float", moth.tensor { 1, 2 })
      cuda.storage.name = "torch.CudaStorage"
      assert.same({ 1, 2 }, loaded(cuda, form):tolist())
    end)

    it("shares what was shared", function()
      local s = writer.storage("Double", moth.arange(6):double())
      local inner = { 1 }
      local v = loaded({ writer.view("Double", s, { 2, 2 }, { 3, 1 }, 2), writer.view("Double", s, { 6 }, { 1 }), s,
        inner, inner }, form)
      assert.same({ { 1, 2 }, { 4, 5 } }, v[1]:tolist())
      v[2]:fill_(9)
      assert.same({ { 9, 9 }, { 9, 9 } }, v[1]:tolist())
      assert.equal(9, v[3][1]:item())
      assert.equal(v[4], v[5])
      local loop = {}
      loop.own = loop
      local w = loaded(loop, form)
      assert.equal(w, w.own)
    end)

    it("has networks", function()
      local conv, bn, fc = nn.Conv2d(2, 4, 3, { stride = 2, padding = 1 }), nn.BatchNorm2d(4), nn.Linear(16, 3)
      local x = moth.randn(5, 2, 8, 8)
      bn(conv(x)) -- running statistics
      bn:eval()
      local function w(m) return m.weight:detach(), m.bias:detach() end
      local cw, cb = w(conv)
      local bw, bb = w(bn)
      local fw, fb = w(fc)
      local net = loaded(object("nn.Sequential", { train = false, modules = {
        object("nn.SpatialConvolutionMM", { weight = cw:reshape(4, 18), bias = cb, nInputPlane = 2, nOutputPlane = 4,
          kW = 3, kH = 3, dW = 2, dH = 2, padW = 1, padH = 1 }),
        object("nn.SpatialBatchNormalization", { weight = bw, bias = bb, running_mean = bn.running_mean,
          running_var = bn.running_var, eps = 1e-5, momentum = 0.1, train = false }),
        object "cudnn.ReLU",
        object("nn.SpatialMaxPooling", { kW = 2, kH = 2, dW = 2, dH = 2, padW = 0, padH = 0, ceil_mode = true }),
        object("nn.View", { size = writer.storage("Long", moth.tensor({ 16 }, { dtype = moth.int64 })) }),
        object("nn.Dropout", { p = 0.5, train = false }),
        object("nn.Linear", { weight = fw, bias = fb }),
        object "nn.LogSoftMax" } }), form)
      assert.is_false(net.training)
      local wanted = fc(F.max_pool2d(bn(conv(x)):relu(), 2):flatten(2)):log_softmax(2)
      close(wanted, net(x))
        assert.equal(8, #net)
      wanted:sum():backward()
      local got = net:train()
      got:eval()
      got(x):sum():backward()
      close(conv.weight.grad, got[1].weight.grad)
    end)
  end)
end

describe("networks of Torch7", function()
  local x = moth.randn(4, 6)
  local function run(name, fields, input) return loaded(object(name, fields))(input or x) end

  it("branch and join", function()
    local a, b = nn.Linear(6, 2), nn.Linear(6, 3)
    local function linear(m) return object("nn.Linear", { weight = m.weight:detach(), bias = m.bias:detach() }) end
    close(moth.cat({ a(x), b(x) }, 2), run("nn.Concat", { dimension = 2, modules = { linear(a), linear(b) } }))
    local both = run("nn.ConcatTable", { modules = { linear(a), object "nn.Identity" } })
    close(a(x), both[1])
    assert.equal(x, both[2])
    local inner = object("nn.ConcatTable", { modules = { object "nn.Identity", object "nn.Tanh" } })
    close(x + x:tanh(), run("nn.Sequential", { modules = { inner, object "nn.CAddTable" } }))
    close(moth.cat({ x, x:tanh() }, 2), run("nn.Sequential", { modules = { inner,
      object("nn.JoinTable", { dimension = 1, nInputDims = 1 }) } }))
    close(a(x) * 2, run("nn.ParallelTable", { modules = { linear(a), object "nn.Abs" } }, { x, x })[1]
      * moth.tensor { 2 })
    close(moth.cat({ a(x), a(x + 1) }, 2), run("nn.Parallel", { inputDimension = 2, outputDimension = 2,
      modules = { linear(a), linear(a) } }, moth.stack({ x, x + 1 }, 2)))
    close(x[{ {}, 2 }], run("nn.Sequential", { modules = { object("nn.SplitTable", { dimension = 2 }),
      object("nn.SelectTable", { index = 2 }) } }))
    close(x * x - x, run("nn.CSubTable", {}, { x * x, x }))
  end)

  it("are graphs of nngraph", function()
    local fc = nn.Linear(6, 6)
    local function data(inputs, fields)
      fields.mapindex = {}
      for i, from in ipairs(inputs) do fields.mapindex[i], fields.mapindex[from] = from, i end
      return fields
    end
    local innode = { mapindex = {} }
    local split = data({ innode }, { nSplitOutputs = 2 })
    local a, b = data({ split }, { selectindex = 1 }), data({ split }, { selectindex = 2 })
    local layer = object("nn.Linear", { weight = fc.weight:detach(), bias = fc.bias:detach() })
    local linear = data({ b }, { module = layer })
    local sum = data({ a, linear }, { module = object "nn.CSubTable" })
    local nodes = {}
    for i, d in ipairs { innode, split, a, b, linear, sum, data({ sum }, {}) } do
      nodes[i] = object("nngraph.Node", { data = d, id = i })
    end
    for _, form in pairs(forms) do
      close(x - fc(x * 2), loaded(object("nn.gModule", { nInputs = 2, forwardnodes = nodes }), form) { x, x * 2 })
    end
    local two = { nodes[1], object("nngraph.Node", { data = data({ a, b }, {}) }) }
    assert.error_matches(function() loaded(object("nn.gModule", { forwardnodes = two })) end, "does not run before it")
  end)

  it("change shapes as View and Reshape do, with a batch and without", function()
    local function long(list) return writer.storage("Long", moth.tensor(list, { dtype = moth.int64 })) end
    local function shape(name, fields, input) return run(name, fields, input).shape end
    assert.same({ 4, 2, 3 }, shape("nn.View", { size = long { 2, 3 } }))
    assert.same({ 2, 3 }, shape("nn.View", { size = long { 2, 3 } }, x[1]))
    assert.same({ 24 }, shape("nn.View", { size = long { -1 } }))
    assert.same({ 4, 6 }, shape("nn.View", { size = long { -1 }, numInputDims = 2 }, moth.ones(4, 2, 3)))
    assert.same({ 4, 3, 2 }, shape("nn.Reshape", { size = long { 3, 2 }, nelement = 6 }))
    assert.same({ 3, 2 }, shape("nn.Reshape", { size = long { 3, 2 }, nelement = 6 }, x[1]))
    assert.same({ 6, 4 }, shape("nn.Transpose", { permutations = { { 1, 2 } } }))
    assert.same({ 4, 1, 6 }, shape("nn.Unsqueeze", { pos = 1, numInputDims = 1 }))
    assert.same({ 4, 5, 6 }, shape("nn.Replicate", { nfeatures = 5, dim = 1, ndim = 1 }))
  end)

  it("have layers with parameters", function()
    local table_ = nn.Embedding(5, 3)
    local ids = moth.tensor({ { 1, 5 }, { 2, 3 } }, { dtype = moth.int64 })
    close(table_(ids), run("nn.LookupTable", { weight = table_.weight:detach(), paddingValue = 0 }, ids))
    local bn = nn.BatchNorm1d(6)
    bn:eval()
    close(bn(x), run("nn.BatchNormalization", { running_mean = bn.running_mean, running_var = bn.running_var,
      eps = 1e-5, train = false }))
    close(bn(x), run("nn.BatchNormalization", { running_mean = bn.running_mean, eps = 1e-5, train = false,
      running_std = (bn.running_var + 1e-5):rsqrt() })) -- the first files
    local full = nn.ConvTranspose2d(2, 3, 3, { stride = 2, padding = 1, output_padding = 1 })
    local image = moth.randn(1, 2, 4, 4)
    close(full(image), run("nn.SpatialFullConvolution", { weight = full.weight:detach(), bias = full.bias:detach(),
      nInputPlane = 2, nOutputPlane = 3, kW = 3, kH = 3, dW = 2, dH = 2, padW = 1, padH = 1, adjW = 1, adjH = 1 },
      image))
    local w = moth.randn(4, 2 * 3) -- (outputs, kW × frame)
    local seq = moth.randn(7, 3)
    local wanted = {}
    for t = 1, 6 do wanted[t] = w:matmul(seq[{ { t, t + 1 } }]:reshape(-1)) end
    close(moth.stack(wanted), run("nn.TemporalConvolution", { weight = w, bias = moth.zeros(4), inputFrameSize = 3,
      outputFrameSize = 4, kW = 2, dW = 1 }, seq))
    close(moth.cat({ moth.full({ 4, 2 }, 7), x }, 2),
      run("nn.Padding", { dim = 1, pad = -2, nInputDim = 1, value = 7 }))
    close(F.avg_pool2d(image, 2), run("nn.SpatialAveragePooling", { kW = 2, kH = 2, dW = 2, dH = 2, padW = 0,
      padH = 0, divide = true, count_include_pad = true }, image))
    close(F.leaky_relu(x, 0.2), run("nn.LeakyReLU", { negval = 0.2 }))
    close(x * 3, run("nn.MulConstant", { constant_scalar = 3 }))
    close(x * w[1][1], run("nn.Mul", { weight = w[{ 1, { 1, 1 } }] }))
  end)

  it("have losses", function()
    local logits, labels = moth.randn(4, 3), moth.tensor({ 1, 3, 2, 2 }, { dtype = moth.int64 })
    local weights = moth.tensor { 1, 2, 3 }
    local nll = object("nn.ClassNLLCriterion", { weights = weights, sizeAverage = true })
    close(F.nll_loss(logits, labels, { weight = weights }), loaded(nll)(logits, labels))
    close(F.cross_entropy(logits, labels, { weight = weights }),
      loaded(object("nn.CrossEntropyCriterion", { nll = nll, lsm = object "nn.LogSoftMax" }))(logits, labels))
    close(F.mse_loss(x, x * 2, "sum"), loaded(object("nn.MSECriterion", { sizeAverage = false }))(x, x * 2))
  end)

  it("that moth has not are named, and read as tables on demand", function()
    local value = { net = object("nn.Sequential", { modules = { object("nn.FastLSTM", { weight = x }) } }) }
    assert.error_matches(function() loaded(value) end, "nn%.FastLSTM has no counterpart in moth%.nn\nHINT")
    local raw = loaded(value, {}, { modules = false })
    assert.equal("nn.FastLSTM", raw.net.modules[1].torch_typename)
    close(x, raw.net.modules[1].weight)
    assert.same({ torch_typename = "my.Class", a = 1 }, loaded(object("my.Class", { a = 1 })))
    assert.error_matches(function() loaded(object("nn.Linear", { weight = moth.ones(3) })) end, "'weight' is no tensor")
    assert.error_matches(function() loaded(object("nn.Linear", { weight = x, bias = moth.ones(3) })) end,
      "'bias' has 3 elements, %[4%] has 4")
    assert.error_matches(function() loaded(object("nn.Sequential", { modules = { 1 } })) end, "its part 1 is no module")
  end)
end)

describe("a file of Torch7", function()
  it("is found by moth.load, whatever it begins with", function()
    local path = writer.file({ a = moth.ones(2) }, {})
    assert.same({ 1, 1 }, moth.load(path).a:tolist())
    os.remove(path)
    path = writer.file(moth.ones(2), { ascii = true })
    assert.same({ 1, 1 }, moth.load(path, "cpu"):tolist())
    os.rename(path, path .. ".t7")
    local f = assert(io.open(path .. ".t7", "wb"))
    f:write(writer.write("text", {}))
    f:close()
    assert.equal("text", moth.load(path .. ".t7"))
    os.remove(path .. ".t7")
  end)

  it("runs nothing: functions are refused by name, or left out", function()
    local value = { model = { n = 1, hook = writer.func("\27LJ\2junk", { 1 }) } }
    assert.error_matches(function() loaded(value) end, "'model.hook' is a Lua function, as bytecode.*HINT")
    assert.same({ model = { n = 1 } }, loaded(value, {}, { functions = "skip" }))
  end)

  it("is refused at every truncation; a flipped bit is refused or read, in little memory", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local s = writer.storage("Float", moth.ones(2))
    local weight = writer.view("Float", s, { 1, 2 }, { 2, 1 })
    local value = { writer.func("ab", {}), "text", true, object("nn.Linear", { weight = weight }), moth.ones(1):long() }
    for _, form in pairs(forms) do
      local text = writer.write(value, form)
      local function try()
        local ok, e = pcall(T7.load, path, { functions = "skip" })
        if not ok then assert.matches("^[^\n]-torch7_spec%.lua:%d+: %[torch7%.load%]", e) end
        return ok
      end
      damage.truncations(path, text, function(n)
        assert.is_false(try(), ("%d bytes of %d"):format(n, #text))
      end)
      moth.memory.set_limit(moth.cpu.memory_allocated() + 2 ^ 20)
      local ok, e = pcall(damage.flips, path, text, try)
      moth.memory.set_limit(false)
      assert(ok, e)
    end
  end)

  it("of nested tables is read to a depth, then refused", function()
    local deep = {}
    for _ = 1, 900 do deep = { deep } end
    assert.is_table(loaded(deep)[1][1])
    local text, last = {}, 5000
    for i = 1, last do text[i] = ("3\n%d\n1\n1\n1\n"):format(i) end
    local path = writer.file(table.concat(text) .. "0\n", "raw")
    finally(function() os.remove(path) end)
    assert.error_matches(function() T7.load(path) end, "damaged: values nest deeper than 1000")
    assert.error_matches(function() T7.load "/nowhere.t7" end, "%[torch7.load%] /nowhere.t7: .*No such file")
  end)

  it("leads from its packages to moth's", function()
    for _, name in ipairs { "torch", "nn", "optim", "cutorch" } do
      assert.error_matches(function() require(name) end, "Torch7's '" .. name .. "' is moth.*docs/from%-torch7%.md")
    end
    assert.error_matches(function() nn.Sequential():add(nn.ReLU()) end, "Torch7's 'add' is append")
    assert.error_matches(function() nn.ReLU():backward() end, "loss:backward")
  end)
end)
