-- ONNX files: their graph, read back by a small reader of protocol buffers. That onnxruntime computes the same is
-- compared by `make parity` (spec/parity/onnx_files.lua).
local moth = require "moth"
local nn = moth.nn
local path = os.tmpname()

-- The fields of a message: { [number] = { values } }.
local function fields(s)
  local at, out = 1, {}
  local function varint()
    local v, scale = 0, 1
    while true do
      local b = s:byte(at)
      at = at + 1
      v = v + b % 128 * scale
      if b < 128 then return v end
      scale = scale * 128
    end
  end
  while at <= #s do
    local key = varint()
    local field, wire = math.floor(key / 8), key % 8
    local v
    if wire == 0 then v = varint()
    elseif wire == 2 then
      local n = varint()
      v, at = s:sub(at, at + n - 1), at + n
    else
      v, at = s:sub(at, at + (wire == 5 and 3 or 7)), at + (wire == 5 and 4 or 8)
    end
    out[field] = out[field] or {}
    table.insert(out[field], v)
  end
  return out
end

local function strings(list, field)
  local out = {}
  for i, s in ipairs(list or {}) do out[i] = fields(s)[field][1] end
  return out
end

-- { ops, inputs, outputs, initializers, shape = of the first input, opset }
local function written(...)
  moth.onnx.export(...)
  local f = io.open(path, "rb")
  local model = fields(f:read("*a"))
  f:close()
  local graph = fields(model[7][1])
  local shape = {}
  local kind = fields(fields(fields(graph[11][1])[2][1])[1][1])
  for i, dim in ipairs(fields(kind[2][1])[1]) do
    local d = fields(dim)
    shape[i] = d[1] and d[1][1] or d[2] and d[2][1] or "?"
  end
  return { ops = table.concat(strings(graph[1], 4), " "), inputs = strings(graph[11], 1),
    outputs = strings(graph[12], 1), initializers = strings(graph[5], 8), shape = shape,
    opset = fields(model[8][1])[2][1], ir = model[1][1] }
end

local function fails(pattern, ...)
  local ok, message = pcall(moth.onnx.export, ...)
  assert.is_false(ok)
  assert.truthy(message:find(pattern), message)
end

describe("moth.onnx.export", function()
  teardown(function() os.remove(path) end)

  it("writes a graph with the names and the dimensions that were given #quick #M422", function()
    local net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)):eval()
    local m = written(net, moth.randn(2, 1, 8, 8), path, { input_names = { "input" }, output_names = { "output" },
      dynamic_axes = { input = { [1] = "batch_size" } }, opset_version = 17 })
    assert.equal("Conv BatchNormalization Relu", m.ops:match("^%S+ %S+ %S+"))
    assert.truthy(m.ops:find("Reshape Gemm Identity$"))
    assert.same({ "input" }, m.inputs)
    assert.same({ "output" }, m.outputs)
    assert.same({ "batch_size", 1, 8, 8 }, m.shape)
    assert.equal(17, m.opset)
    assert.equal(8, m.ir)
    local names = {}
    for _, name in ipairs(m.initializers) do names[name] = true end
    for name in pairs(net:state_dict()) do
      assert.is_true(names[name] or name:find("num_batches") ~= nil, name)
    end
  end)

  it("newer opsets have more operators: Gelu 20, RMSNormalization and Attention 23 #quick", function()
    local norm = nn.RMSNorm(8)
    local function f(x)
      return nn.functional.scaled_dot_product_attention(x, x, norm(x):gelu(), { is_causal = true })
    end
    local x = moth.randn(1, 2, 3, 8)
    local found = {}
    for opset, ir in pairs { [17] = 8, [18] = 8, [20] = 9, [22] = 10, [23] = 11 } do
      local m = written(f, { x }, path, { opset_version = opset })
      assert.equal(opset, m.opset)
      assert.equal(ir, m.ir)
      found[opset] = m.ops
      assert.is_true(moth.allclose(f(x), moth.onnx.InferenceSession(path):run(nil, { x = x })[1], { atol = 1e-5 }))
    end
    assert.is_nil(found[18]:find("Gelu"))
    assert.truthy(found[22]:find("Gelu"))
    assert.is_nil(found[22]:find("Attention"))
    assert.equal("RMSNormalization Gelu Attention Identity", found[23])
  end)

  it("dimensions by the names of arguments, too; a name that is none is an error #quick #M422", function()
    local function f(ids, scale) return nn.functional.one_hot(ids, 5):float():matmul(scale) end
    local ids, scale = moth.randint(1, 6, { 2, 3 }), moth.randn(5, 2)
    local axes = { ids = { [1] = "batch", [2] = moth.Dim("time", { min = 2, max = 9 }) }, output = { [1] = "batch" } }
    local m = written(f, { ids, scale }, path, { dynamic_axes = axes })
    assert.same({ "batch", "time" }, m.shape)
    ids = moth.randint(1, 6, { 4, 7 })
    local got = moth.onnx.InferenceSession(path):run(nil, { ids = ids - 1, scale = scale })[1]
    assert.is_true(moth.allclose(f(ids, scale), got))
    fails("no argument id", f, { ids, scale }, path, { dynamic_axes = { id = { [1] = "batch" } } })
    fails("no argument id", f, { ids, scale }, path, { dynamic_axes = { id = { [1] = "batch" } },
      input_names = { "x", "y" } })
  end)

  it("takes an exported program; the input keeps the argument's name #quick #M423", function()
    local ep = moth.export(function(x) return x:softmax(2) end, { moth.randn(2, 3) })
    local m = written(ep, nil, path, { dynamo = true })
    assert.same({ "x" }, m.inputs)
    assert.equal("Softmax Identity", m.ops)
    fails("those it was exported with", ep, nil, path, { dynamic_axes = {} })
  end)

  it("positions count from 0 in the file: a pair of -1 and +1 is not there #quick", function()
    local table_ = nn.Embedding(10, 4)
    local m = written(function(idx) return table_(idx) end, moth.randint(1, 11, { 3 }), path)
    assert.equal("Gather Identity", m.ops)
    m = written(function(idx) return table_(idx) end, moth.randint(1, 11, { 3 }), path, { index_base = 1 })
    assert.equal("Sub Gather Identity", m.ops)
    m = written(function(x) return x:argmax(2) end, moth.randn(2, 3), path)
    assert.equal("ArgMax Identity", m.ops)
    m = written(function(x) return x:argmax(2) * 2 end, moth.randn(2, 3), path)
    assert.equal("ArgMax Add Mul Identity", m.ops)
    fails("index_base = 1", function(idx) return table_(idx), idx * 2 end, moth.randint(1, 11, { 3 }), path)
  end)

  it("writes in place are new values", function()
    local m = written(function(x) return (x + 1):relu_():mul_(2) end, moth.randn(3), path)
    assert.equal("Add Relu Mul Identity", m.ops)
    fails("writes to x", function(x) return x:relu_() end, moth.randn(3), path)
    local buffer = moth.zeros(3)
    fails("writes to constant_1, which is not", function(x) return x + buffer:view(3):add_(1) end, moth.randn(3), path)
  end)

  it("what shows the memory that was written to gets its new value", function()
    local function agrees(fn, x, more)
      local dynamic = more and { [1] = { [1] = moth.Dim("n", { min = 3 }) } }
      moth.onnx.export(fn, { x }, path, { dynamic_shapes = dynamic })
      local session = moth.onnx.InferenceSession(path)
      for _, given in ipairs { x, more } do
        local wanted, name = { fn(given) }, session:get_inputs()[1].name
        for i, y in ipairs(session:run(nil, { [name] = given })) do
          assert.is_true(moth.equal(wanted[i], y), ("result %d: %s"):format(i, tostring(y)))
        end
      end
    end
    agrees(function(x)
      local y = x:clone()
      y[1] = 0
      y[{ {}, 2 }] = x[1][2]
      y[{ { 2, 3 } }] = 1.5
      y[y:lt(0)] = 0
      y:t():add_(1)
      y[{ {}, { -2, -1 } }]:zero_()
      return y, x
    end, moth.randn(4, 5), moth.randn(6, 5))
    agrees(function(x)
      local y, z = x * 2, moth.zeros(4, 2, 3)
      local a, b = unpack(y:chunk(2))
      a:add_(b)
      z:select(2, -1):copy_(y)
      z:permute(3, 1, 2)[2]:mul_(3)
      y:view(2, 6):unsqueeze(2)[1]:sub_(a[1][1])
      local row, same = y:select(1, 2), y:detach()
      row:relu_():add_(1)
      y:fill_(2)
      return y, z, a, b, row, same, y:t():add_(1), y
    end, moth.randn(4, 3))
    agrees(function(x)
      local y, z = x + 1, (x + 1):t()
      y:diagonal():mul_(2)
      y:reshape(-1):sub_(3)
      z:reshape(-1):mul_(2) -- a copy
      y:slice(1, 0, 4, 2):neg_()
      y:as_strided({ 2, 2 }, { 4, 1 }, 1):add_(5)
      y:unfold(2, 2, 2)[1]:fill_(8)
      y:movedim(1, 2)[2]:copy_(x:sum(2))
      return y, z, y:view(-1)
    end, moth.randn(4, 4))
    agrees(function(x)
      local y = x:sum(1, true)
      local wide, i = y:expand(4, 3), moth.arange(3)
      y:add_(1)
      i:mul_(2):narrow(1, 2, 2):add_(1)
      return wide, i
    end, moth.randn(4, 3))
    local function at(...) return moth.tensor({ ... }, { dtype = moth.int64 }) end
    agrees(function(x)
      local y = x * 2
      y[at(1, -1)] = 7
      y[{ {}, at(2, 4) }] = x[{ {}, { 1, 2 } }]
      y[{ at(1, 3), at(2, -1) }] = moth.tensor { 5, 6 }
      return y, (x * 1):index_put_({ at(1, 1, 2) }, moth.ones(3, 5), true)
    end, moth.randn(4, 5), moth.randn(6, 5))
    agrees(function(x)
      local y, z = x:view(2, 2, 5) * 1, x:view(2, 2, 5) * 3
      y[{ {}, at(1, 2), at(5, 3) }] = 9
      z[{ at(1, 2), {}, at(5, 3) }] = moth.tensor { { 1, 2 }, { 3, 4 } }
      return y, z
    end, moth.randn(4, 5))
  end)

  it("elements above a number of bytes go into a file beside it #quick", function()
    local net, x = nn.Linear(64, 4):eval(), moth.randn(2, 64)
    local function size(name)
      local f = io.open(name, "rb")
      local n = f and f:seek("end")
      if f then f:close() end
      return n
    end
    for most, beside in pairs { [100] = true, [2000] = false } do
      os.remove(path .. ".data")
      moth.onnx.export(net, x, path, { external_data = most, input_names = { "x" } })
      assert.equal(beside, size(path .. ".data") ~= nil)
      assert.equal(beside, size(path) < 1000)
      assert.is_true(moth.allclose(net(x), moth.onnx.InferenceSession(path):run(nil, { x = x })[1]))
    end
    os.remove(path .. ".data")
    fails("expected a boolean or a number of bytes", net, x, path, { external_data = "yes" })
  end)

  it("what is computed of weights alone is computed once, if the file does not grow by it", function()
    local w, x = moth.randn(40, 40), moth.randn(3, 40)
    local m = written(function(a) return a:matmul(w:t() * 2) + w:sum() end, x, path)
    assert.equal("MatMul Add Identity", m.ops)
    m = written(function(a) return a:matmul(w:t()) + w:narrow(1, 1, 3) end, x, path)
    assert.equal("MatMul Add Identity", m.ops)
    m = written(function(a) return a:matmul(w:t()) + a:matmul(w) end, x, path)
    assert.equal("Transpose MatMul MatMul Add Identity", m.ops)
    m = written(function(a) return a + w:narrow(1, 1, 1):expand(500, 40) end, moth.randn(500, 40), path)
    assert.equal("Expand Add Identity", m.ops)
    local ids = moth.tensor({ 3, 1, 2 }, { dtype = moth.int64 })
    local function picked(a) return a:index_select(1, ids + 0) * ids:unsqueeze(2) end
    moth.onnx.export(picked, { x }, path)
    assert.is_true(moth.equal(picked(x), moth.onnx.load(path)(x)))
  end)

  it("ops without a rule are written as what they are made of; others are an error with op and line #M435", function()
    local m = written(function(x) return moth.mse_loss(x, x * 2) end, moth.randn(3), path)
    assert.truthy(m.ops:find("Mul"))
    fails("no rule for native_eigh.*export_spec.lua:%d+.*HINT", function(x) return moth.linalg.eigh(x) end,
      moth.eye(2), path)
    fails("writes to num_batches_tracked.*:eval%(%)", nn.BatchNorm1d(3), moth.randn(2, 3), path)
    fails("opset_version: 17 to 23", nn.ReLU(), moth.randn(2), path, { opset_version = 11 })
    fails("unknown option 'x'", nn.ReLU(), moth.randn(2), path, { x = 1 })
    fails("list of arguments", nn.ReLU(), 3, path)
    fails("No such file", nn.ReLU(), moth.randn(2), "/no/such/folder/x.onnx")
  end)

  it("weights are constants of products, where onnxruntime's quantisers look for them; none is there twice", function()
    local Net = nn.class("Net")
    function Net:__init()
      self.emb, self.head = nn.Embedding(9, 8), nn.Linear(8, 9, { bias = false })
      self.head.weight = self.emb.weight
      self.body = nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 12, batch_first = true, dropout = 0 })
      self.twice = nn.Linear(8, 8)
    end
    function Net:forward(x) return self.head(self.twice(self.twice(self.body(self.emb(x))))) end
    local net, x = Net():eval(), moth.tensor({ { 1, 5, 9 }, { 2, 2, 4 } }, { dtype = moth.int64 })
    moth.onnx.export(net, x, path, { index_base = 1 })
    assert.is_true(moth.allclose(net(x), moth.onnx.load(path)(x), 1e-5, 1e-5))
    local model, bytes = require("moth.onnx.reader").model(path), 0
    local made = {}
    for _, t in ipairs(model.graph.initializer) do made[t.name] = true end
    local turned = 0
    for _, n in ipairs(model.graph.node) do
      if n.op == "Transpose" and made[n.input[1]] then turned = turned + 1 end
      assert.is_false(n.op == "Slice" and made[n.input[1]])
    end
    assert.equal(1, turned) -- the embedding's, which is read as it is, too
    for _, p in ipairs(net:parameters()) do bytes = bytes + p:numel() * p:element_size() end
    local f = io.open(path, "rb")
    assert.is_true(f:seek("end") < bytes + 5000)
    f:close()
  end)

  it("each rule of the table is of an op that can be exported, and is text that runs", function()
    local count = 0
    for _, record in ipairs(require "moth.ops_table") do
      if record.onnx then
        count = count + 1
        assert.truthy(loadstring("return " .. record.onnx), record.name)
      end
    end
    assert.is_true(count > 120)
  end)

  it("names are those that were given, or an error #quick #M422", function()
    local net, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Softmax(2)):eval(), moth.ones(1, 2)
    moth.onnx.export(net, x, path, { input_names = { "relu" }, output_names = { "softmax" } }) -- as nodes are called
    local session = moth.onnx.InferenceSession(path)
    assert.equal("relu", session:get_inputs()[1].name)
    assert.equal("softmax", session:get_outputs()[1].name)
    assert.is_true(moth.allclose(net(x), session:run({ "softmax" }, { relu = x })[1]))
    fails("input_names: 2 names for 1 tensors", net, x, path, { input_names = { "a", "b" } })
    fails("output_names: the name a is there twice", net, x, path, { input_names = { "a" }, output_names = { "a" } })
    fails("the model gives no tensor", function() return 3 end, { x }, path)
    fails("complex numbers", function(v) return v:to(moth.complex64) end, { x }, path)
  end)

  it("writes what is filled, put and counted over sizes #M424", function()
    local function follows(f, args, more, o)
      o = o or {}
      o.dynamic_axes, o.input_names = { x = { [2] = "n" } }, { "x", args[2] and "i" }
      moth.onnx.export(f, args, path, o)
      local session = moth.onnx.InferenceSession(path)
      for _, list in ipairs { args, more } do
        local got = session:run(nil, { x = list[1], i = list[2] and list[2] - 1 })
        for k, want in ipairs { f(unpack(list)) } do
          assert.same(want:size(), got[k]:size())
          assert.is_true(moth.allclose(got[k]:to(moth.float32), want:to(moth.float32), 1e-6, 1e-6), "result " .. k)
        end
      end
    end
    follows(function(x)
      local n = x:size(2)
      return moth.linspace(-1, 1, n) + x, moth.linspace(0, n, 7)
    end, { moth.randn(2, 5) }, { moth.randn(2, 8) })
    follows(function(x, i)
      local y, z = x * 2, x:clone()
      y:index_put_({ i }, x:narrow(1, 1, 2), true)
      z:index_put_({ i }, moth.tensor(9.0))
      return y, z
    end, { moth.randn(3, 5), moth.tensor({ 1, 3 }, { dtype = moth.int64 }) },
      { moth.randn(3, 2), moth.tensor({ 2, 1 }, { dtype = moth.int64 }) })
    follows(function(x)
      local y = x:clone()
      y:fill_(3)
      y = y + x
      local z = y * 2
      z:zero_()
      return y, z + x
    end, { moth.randn(3, 5) }, { moth.randn(3, 2) })
    local function bits(x)
      local i = x:to(moth.int64)
      return i:bitwise_and(3), i:bitwise_or(4), i:bitwise_xor(7), i:bitwise_not(), i:gt(3):bitwise_and(i:lt(6))
    end
    follows(bits, { moth.rand(2, 5) * 9 }, { moth.rand(2, 3) * 9 }, { opset_version = 18 })
    assert.error_matches(function() moth.onnx.export(bits, moth.ones(2, 5), path) end, "opset_version = 18")
    follows(function(x) -- to the example's own size
      return (moth.nn.functional.interpolate(x:view(1, 1, 2, -1), { size = { 2, 5 }, mode = "bicubic" }))
    end, { moth.randn(2, 5) }, { moth.randn(2, 8) })
  end)

  it("attention of a mask's row that allows nothing is 0", function()
    local q = moth.arange(12):float():view(1, 1, 3, 4) / 10
    local mask = moth.tensor { { 1, 0, 1 }, { 0, 0, 0 }, { 1, 1, 1 } }:bool()
    local added = moth.zeros(3, 3)
    added[2] = -math.huge
    for _, given in ipairs { mask, added } do
      for _, opset in ipairs { 17, 23 } do
        local function f(x, m) return nn.functional.scaled_dot_product_attention(x, x, x, { attn_mask = m }) end
        moth.onnx.export(f, { q, given }, path, { opset_version = opset })
        local got = moth.onnx.InferenceSession(path):run(nil, { x = q, m = given })[1]
        assert.same({ 0, 0, 0, 0 }, got[1][1][2]:totable())
        assert.is_true(moth.allclose(f(q, given), got, { atol = 1e-6 }))
      end
    end
  end)

  it("interpolation to one element, by fractions, and of open heights", function()
    local x = { moth.randn(1, 2, 7, 4), moth.randn(1, 2, 8, 4), moth.randn(1, 2, 13, 4) }
    local function check(o, options)
      local function f(v) return nn.functional.interpolate(v, o) end
      options.input_names = { "v" }
      moth.onnx.export(f, { x[1] }, path, options)
      local session = moth.onnx.InferenceSession(path, { record = false })
      for i = 1, options.dynamic_axes and #x or 1 do
        local want, got = f(x[i]), session:run(nil, { v = x[i] })[1]
        assert.same(want:size(), got:size())
        assert.is_true(moth.allclose(want, got, { atol = 1e-5 }), o.mode .. " " .. i)
      end
    end
    for _, o in ipairs { { "bilinear", size = { 1, 1 } }, { "nearest", scale_factor = 0.5 },
      { "nearest-exact", size = { 5, 9 } }, { "bilinear", scale_factor = 0.3 }, { "bicubic", scale_factor = 1.5 },
      { "bilinear", scale_factor = 0.5, recompute_scale_factor = true },
      { "bilinear", scale_factor = 1.5, align_corners = true } } do
      o.mode = table.remove(o, 1)
      check(o, { dynamic_axes = { v = { [3] = "h" } } })
    end
    check({ mode = "bilinear", size = { 1, 3 } }, {})
    check({ mode = "nearest", scale_factor = 0.3 }, {})
  end)

  it("sizes in front of a tensor; squeeze of what may be 1; an upsampled map of open size", function()
    local F, file = moth.nn.functional, os.tmpname()
    local function at(f, dims, ...)
      moth.onnx.export(moth.export(f, { moth.randn(2, 8, 9) }, { dynamic_shapes = { dims } }), nil, file,
        { input_names = { "x" } })
      local session = moth.onnx.InferenceSession(file)
      for _, size in ipairs { ... } do
        local x = moth.randn(size)
        local want, got = f(x), session:run(nil, { x = x })[1]
        assert.same(want:size(), got:size())
        assert.is_true(moth.allclose(want, got, 1e-5, 1e-5))
      end
    end
    at(function(x) return x:size(2) * x - x:size(3) end, { [2] = "h" }, { 2, 3, 9 }, { 2, 100, 9 })
    at(function(x) return x:squeeze(2) * 2 end, { [2] = moth.Dim("h", { min = 2 }) }, { 2, 3, 9 })
    for _, f in ipairs { function(x) return x:squeeze(2) end, function(x) return x:squeeze() end } do
      assert.error_matches(function() at(f, { [2] = "h" }) end, "squeeze .*dimension 2, of size h, may be 1.*min = 2")
    end
    at(function(x)
      local u = F.interpolate(F.max_pool2d(x:unsqueeze(2), 2), { scale_factor = 2 })
      return F.pad(u, { 0, x:size(3) - u:size(4), 0, x:size(2) - u:size(3) }) + x:unsqueeze(2)
    end, { [2] = "h", [3] = "w" }, { 2, 33, 100 }, { 2, 4, 5 })
    os.remove(file)
  end)
end)
