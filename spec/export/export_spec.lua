-- Exported programs: the same bits as the function, sizes by formulas, files that are checked, control flow.
local moth = require "moth"
local nn = moth.nn
local dir = os.tmpname()

local function path(name) return dir .. "_" .. name end

local function saved(ep, name)
  moth.export.save(ep, path(name))
  return moth.export.load(path(name))
end

local function same(a, b)
  local x, y = moth.tree.flatten(a), moth.tree.flatten(b)
  assert.equal(#x, #y)
  for i = 1, #x do assert.is_true(moth.is_tensor(x[i]) and moth.equal(x[i], y[i]) or x[i] == y[i]) end
end

-- Exported, written, read: the results of the function to the bit, at the example's sizes and at others.
local function agrees(fn, args, dynamic, more)
  local ep = moth.export(fn, args, { dynamic_shapes = dynamic })
  local loaded = saved(ep, "agrees.mth2")
  assert.equal(tostring(ep), tostring(loaded))
  for _, list in ipairs { args, more } do
    moth.no_grad(function()
      local expected = { fn(unpack(list)) }
      same(expected, { ep(unpack(list)) })
      same(expected, { loaded(unpack(list)) })
    end)
  end
  return loaded
end

local function fails(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  assert.truthy(message:find(pattern), message)
  return message
end

describe("moth.export", function()
  teardown(function() os.remove(dir) end)

  it("gives a program of ops, with sizes and places, that runs as the module does #quick #M414 #M415 #M416", function()
    local net = nn.Sequential(nn.Conv2d(1, 4, 3, { padding = 1 }), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
      nn.Flatten(), nn.Linear(64, 10)):eval()
    local ep = agrees(net, { moth.randn(2, 1, 8, 8) }, { { [1] = moth.Dim("batch", { min = 1, max = 64 }) } },
      { moth.randn(5, 1, 8, 8) })
    local text = tostring(ep)
    assert.truthy(text:find("%4 = max_pool2d(%3", 1, true))
    assert.truthy(text:find("float32[batch, 64]", 1, true))
    assert.truthy(text:find("export_spec.lua:%d+"))
    assert.same({ "0.bias", "0.weight", "1.bias", "1.weight", "5.bias", "5.weight" }, ep.signature.parameters)
    assert.same({ "1.running_mean", "1.running_var" }, ep.signature.buffers)
    local given = moth.export(function(x) return x end, { moth.ones(2) }).signature.outputs[1] -- an input, given back
    assert.same({ "float32", { 2 } }, { given.dtype, given.shape })
    assert.same({ 1, 64, multiple_of = 1 }, ep.ranges.batch)
    assert.equal("conv2d", ep.graph:find("conv2d").target)
  end)

  it("runs by plan and by generated kernels, and trains as a module", function()
    local net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    local x = moth.randn(3, 4)
    net:eval()
    local ep = saved(moth.export(net, { x }), "train.mth2")
    for _, backend in ipairs { "eager", "blocks" } do
      assert.is_true(moth.equal(net(x), ep:compile({ backend = backend })(x)))
    end
    local module = ep:module()
    assert.equal(4, #module:parameters())
    module(x):sum():backward()
    net(x):sum():backward()
    assert.is_true(moth.equal(net[1].weight.grad, module["0"].weight.grad))
    local opt = moth.optim.SGD(module:parameters(), { lr = 0.1 })
    local before = module(x):detach()
    opt:step()
    assert.is_false(moth.equal(before, module(x):detach()))
    same(module:state_dict()["0.weight"], module["0"].weight:detach())
  end)

  it("prune takes out calls that make what nothing reads, but not writes and draws", function()
    local program = moth.export(function(x)
      local _ = x:exp():sum()
      x:t():add_(1)
      moth.rand(2)
      return x
    end, { moth.randn(2, 2) }).program
    program:prune()
    local left = {}
    for i, node in ipairs(program.nodes) do left[i] = node.op end
    assert.equal("t add permute rand copy_", table.concat(left, " "))
  end)

  it("follows sizes: sums, products, quotients, roots #M418", function()
    agrees(function(x, y)
      local b, t = x:size(1), x:size(2)
      return x:reshape({ b * t, 3 }), moth.cat({ x, y }, 2), x / t, x:sum() / math.sqrt(b),
        moth.arange(1, t), x:narrow(2, 1, math.floor((t + 1) / 2))
    end, { moth.randn(2, 4, 3), moth.randn(2, 5, 3) },
      { { [1] = "batch", [2] = "time" }, { [1] = "batch", [-2] = "other" } },
      { moth.randn(6, 9, 3), moth.randn(6, 2, 3) })
    agrees(nn.Conv2d(1, 2, 3, { stride = 2 }), { moth.randn(1, 1, 16, 16) },
      { { [3] = moth.Dim("h", { min = 8, max = 64 }) } }, { moth.randn(1, 1, 31, 16) })
    agrees(nn.LSTM(3, 4, 2, { batch_first = true }):eval(), { moth.randn(4, 2, 3) }, { { [1] = "b", [2] = "t" } },
      { moth.randn(2, 7, 3) })
    local gpt = moth.models.GPT { vocab_size = 20, block_size = 16, n_layer = 1, n_head = 2, n_embd = 8 }:eval()
    agrees(gpt, { moth.randint(1, 21, { 2, 5 }) },
      { { [1] = "batch", [2] = moth.Dim("time", { min = 2, max = 16 }) } }, { moth.randint(1, 21, { 3, 12 }) })
  end)

  it("refuses what the program was not made for, and says why #quick #M418", function()
    local ep = moth.export(function(x, scale, o) return { y = x * scale, n = o.n } end,
      { moth.ones(2, 3), 2, { n = "text" } }, { dynamic_shapes = { { [1] = moth.Dim("rows", { min = 1, max = 8 }) } } })
    same({ y = moth.ones(4, 3) * 2, n = "text" }, ep(moth.ones(4, 3), 2, { n = "text" }))
    fails("rows is 9, outside its range of 1 to 8", ep, moth.ones(9, 3), 2, { n = "text" })
    fails("dimension 2 is 4, and the program was exported for 3", ep, moth.ones(2, 4), 2, { n = "text" })
    fails("another dtype; expected float32 %[rows, 3%], got float64", ep, moth.ones(2, 3):double(), 2, { n = "text" })
    fails("argument 2 was 2 .*got 3", ep, moth.ones(2, 3), 3, { n = "text" })
    fails("not of the form.*argument 2 is missing", ep, moth.ones(2, 3))
    fails("takes 3 arguments, got 4", ep, moth.ones(2, 3), 2, { n = "text" }, 1)
    fails("expected a tensor, got string", ep, "x", 2, { n = "text" })
  end)

  it("dynamic_shapes: a name stands for the Dim that has it; what fits nothing is refused #quick #M417", function()
    local function f(t) return t.a + t.b:sum() end
    local t, S = { a = moth.ones(2, 3), b = moth.ones(4) }, moth.Dim("s", { max = 5 })
    local ep = moth.export(f, { t }, { dynamic_shapes = { { a = { [2] = "n" }, b = { "s" } } } })
    assert.same({ 2, 9 }, ep({ a = moth.ones(2, 9), b = moth.ones(7) }):size())
    ep = moth.export(function(u) return u.a * u.b end, { { a = moth.ones(4), b = moth.ones(1, 4) } },
      { dynamic_shapes = { { a = { "s" }, b = { [2] = S } } } })
    fails("s is 6, outside its range", ep, { a = moth.ones(6), b = moth.ones(1, 6) })
    for said, dims in pairs { ["t has no c"] = { c = { S } }, ["t is a table: .* got Dim"] = S,
      ["t is a table: .* got string"] = "s", ["t_a: expected a table .* got string"] = { a = "s" } } do
      fails(said, moth.export, f, { t }, { dynamic_shapes = { dims } })
    end
    fails("n is a number, which has no dimensions", moth.export, function(n, u) return u * n end, { 2, moth.ones(2) },
      { dynamic_shapes = { { S } } })
  end)

  it("names a branch on elements or on sizes, with its line, and what to write #quick #M417 #M432 #M435", function()
    fails("item, at .*export_spec.lua:%d+.*moth%.cond", moth.export,
      function(x) if x:sum():item() > 0 then return x end return -x end, { moth.ones(2) })
    fails("tostring, as print calls it, at .*export_spec.lua:%d+", moth.export, function(x)
      assert(tostring(x))
      return x
    end, { moth.ones(2) })
    for _, look in ipairs { "item", "totable", "tostring" } do -- at the input itself
      fails("export_spec.lua:%d+.*moth%.cond", moth.export,
        function(x) return look == "tostring" and x + #tostring(x) or x * #{ x[look](x) } end, { moth.tensor(1) })
    end
    fails("with n = 2 it is neg at .*export_spec.lua:%d+, with n = %d it is add", moth.export,
      function(x) return x:size(1) > 2 and x + 1 or -x end, { moth.ones(2) }, { dynamic_shapes = { { [1] = "n" } } })
    fails("HINT: modules and parameters are made outside of the function", moth.export,
      function(x) return moth.nn.Linear(2, 2)(x) end, { moth.ones(2) })
    fails("in no way", moth.export, function(x) return x * math.sin(x:size(1)) end, { moth.ones(2) },
      { dynamic_shapes = { { [1] = "n" } } })
  end)

  it("keeps moth.cond and moth.while_loop as programs of their own #M417", function()
    local w = moth.tensor { 3, 4 }
    local function f(x)
      return moth.cond(x:sum():gt(0), function(y) return y * w end, function(y)
        return moth.cond(y:max():lt(-5), function(z) return z end, function(z) return z - 1 end, { y })
      end, { x })
    end
    for _, values in ipairs { { 1, 2 }, { -1, -2 }, { -7, -8 } } do
      local x = moth.tensor(values)
      same(f(x), moth.export(f, { moth.ones(2) })(x))
      same(f(x), saved(moth.export(f, { moth.ones(2) }), "cond.mth2")(x))
    end
    local function loop(n, s)
      return moth.while_loop(function(i) return i:lt(n) end, function(i, t) return i + 1, t * 2 end,
        { moth.zeros({}), s })
    end
    assert.equal(8, (select(2, loop(moth.tensor(3), moth.ones({})))):item())
    fails("operands", moth.cond, moth.tensor(true), f, f, moth.ones(1))
    fails("different ones", moth.export, function(x)
      return moth.cond(x:sum():gt(0), function(y) return y end, function(y) return y:sum() end, { x })
    end, { moth.ones(2) })
    fails("one element", moth.cond, moth.ones(2), f, f, {})
  end)

  it("branches and loops follow sizes, one in another, too #M417 #M418", function()
    local w = moth.randn(3, 3)
    local function f(x)
      local n, y = moth.while_loop(function(n) return n:lt(2) end, function(n, y)
        return n + 1, moth.cond(y:sum():gt(0), function(z)
          return z:reshape({ -1, 3 }):matmul(w):view(z:size(1), z:size(2), 3) - z:size(2)
        end, function(z)
          return moth.cond(z:max():lt(-5), function(v) return v / v:size(2) end, function(v)
            return v + moth.arange(v:size(1)):view(-1, 1, 1)
          end, { z })
        end, { y })
      end, { moth.zeros({}), x })
      return y, n
    end
    local x = moth.rand(2, 4, 3)
    local ep = moth.export(f, { x }, { dynamic_shapes = { { [1] = "b", [2] = "t" } } })
    local loaded = saved(ep, "sizes.mth2")
    local onnx = path("sizes.onnx")
    moth.onnx.export(ep, nil, onnx)
    local session, read = moth.onnx.InferenceSession(onnx), moth.onnx.load(onnx)
    for _, size in ipairs { { 2, 4 }, { 1, 1 }, { 5, 2 }, { 3, 7 } } do
      for _, shift in ipairs { 1, -1, -9 } do
        local v = moth.rand(size[1], size[2], 3) + shift
        local expected = { f(v) }
        same(expected, { ep(v) })
        same(expected, { loaded(v) })
        same(expected, { read(v) })
        same(expected, session:run(nil, { x = v }))
      end
    end
    local text = fails("a tensor without values.*fields of objects: add it to the operands", moth.export, function(v)
      local o = setmetatable({ z = v * 2 }, {})
      return moth.cond(v:sum():gt(0), function(y) return y + o.z end, function(y) return y end, { v })
    end, { x })
    assert.truthy(text:find("export_spec.lua:%d+"))
  end)

  it("a program of large inputs is read, looked at and recorded anew without memory for them #M414", function()
    local ep = saved(moth.export(function(x) return x:view(-1) * 2, x:sum(1) end, { moth.zeros(1000000, 4) },
      { dynamic_shapes = { { [1] = "n" } } }), "large.mth2")
    collectgarbage()
    local before = moth.memory.stats().live
    moth.memory.reset_peak()
    local again = moth.export.load(path("large.mth2"))
    assert.equal(tostring(ep), tostring(again))
    assert.equal(2, #again:record_again().outputs)
    assert.is_true(moth.memory.stats().peak < before + 1e6)
  end)

  it("loops with more values than an op has results #M417", function()
    local function f(x)
      return moth.while_loop(function(n) return n:lt(4) end,
        function(n, a, b, c, d, e) return n + 1, b, c, d, e, a + e end,
        { moth.tensor(0), x, x * 2, x * 3, x * 4, x * 5 })
    end
    local x = moth.rand(3)
    local ep = saved(moth.export(f, { x }), "many.mth2")
    same({ f(x) }, { ep(x) })
    local onnx = path("many.onnx")
    moth.onnx.export(ep, nil, onnx)
    same({ f(x) }, moth.onnx.InferenceSession(onnx):run(nil, { x = x }))
  end)

  it("does not look at elements, which the tensors of a record may have any of #quick", function()
    local a, b = moth.rand(2, 3), moth.rand(2, 3)
    agrees(nn.BCELoss(), { a, b }, { { [1] = "n" }, { [1] = "n" } }, { moth.rand(5, 3), moth.rand(5, 3) })
    agrees(function(x, y) return moth.nn.functional.binary_cross_entropy(x:sigmoid(), y) end, { a, b })
    agrees(function(x) return moth.where(x:gt(0.5), x, 0 / 0):isnan() end, { a }, { { [1] = "n" } },
      { moth.rand(5, 3) })
  end)

  it("results beside tensors: constants, numbers that sizes tell, in tables that sizes do not #M418", function()
    local both = { dynamic_shapes = { { "b", "t" } } }
    local function f(x, n) return x, { rows = x:size(1), all = x:numel(), mean = 1 / x:size(2), n = n }, -1 / 0 end
    local ep = moth.export(f, { moth.ones(3, 4), 0 / 0 }, both)
    local file = path("sizes.mth2")
    moth.export.save(ep, file)
    for _, program in ipairs { ep, moth.export.load(file), ep:decompose(), ep:module() } do
      local _, out, least = program(moth.ones(5, 7), 0 / 0)
      assert.same({ 5, 35, 1 / 7, true, -1 / 0 }, { out.rows, out.all, out.mean, out.n ~= out.n, least })
    end
    fails("argument 2 was nan", ep, moth.ones(5, 7), 1)
    fails("value 2 .* is true with b = 3, t = 4, but false with", moth.export,
      function(x) return x, x:size(1) < 4 end, { moth.ones(3, 4) }, both)
    fails("keys of the results depend on a size", moth.export, function(x)
      return x, { [x:size(1)] = x }
    end, { moth.ones(3, 4) }, both)
    fails("texts and numbers as keys, got true", moth.export, print, { { [true] = moth.ones(2) } })
  end)

  it("runs with the default dtype of its record, wherever it is loaded", function()
    local function f(x) return x + moth.ones(2), x:to(moth.int64) * 0.5 end
    moth.set_default_dtype(moth.float64)
    local ok, ep = pcall(moth.export, f, { moth.ones(2, { dtype = moth.float32 }) })
    moth.set_default_dtype(moth.float32)
    assert.is_true(ok, ep)
    local file, x = path("double.mth2"), moth.ones(2)
    moth.export.save(ep, file)
    fails("ones .* was recorded where the default dtype was float64", moth.edge.export, ep, path("double.mte"))
    for _, p in ipairs { ep, moth.export.load(file), ep:decompose(), ep:compile() } do
      local a, b = p(x)
      assert.same({ "float64", "float64", 2, 0.5 }, { a:dtype().name, b:dtype().name, a[2]:item(), b[2]:item() })
    end
    assert.equal(moth.float32, moth.get_default_dtype())
  end)

  it("says what a shape rule says, with the line, and what to do about sizes that depend on elements #quick", function()
    fails("export_spec.lua:%d+: %[add%] shapes %[2, 2%] and %[5%] cannot be broadcast", moth.export,
      function(x) return x + moth.ones(5) end, { moth.ones(2, 2) })
    fails("sizes of its result depend on elements, at .*export_spec.lua:%d+.*moth%.where", moth.export,
      function(x) return x:masked_select(x:gt(0)) end, { moth.ones(2) })
  end)

  it("keeps autocast, writes to inputs, random ops and shared tensors", function()
    local lin = nn.Linear(3, 3)
    local ep = agrees(function(x) return moth.autocast(function() return lin(x) end), x:sum() end, { moth.randn(2, 3) })
    assert.truthy(tostring(ep):find("bfloat16[2, 3]", 1, true))
    local add = saved(moth.export(function(x) x:add_(1) return x:sum() end, { moth.zeros(2) }), "write.mth2")
    local x = moth.zeros(2)
    assert.equal(2, add(x):item())
    assert.equal(1, x[1]:item())
    local drop = saved(moth.export(function(y) return y:dropout(0.5) end, { moth.ones(64) }), "drop.mth2")
    moth.manual_seed(3)
    local first = drop(moth.ones(64))
    moth.manual_seed(3)
    assert.is_true(moth.equal(first, moth.ones(64):dropout(0.5)))
    local tied = nn.Module()
    tied.a, tied.b = lin, nn.Linear(3, 3)
    tied.b.weight = lin.weight
    tied.forward = function(self, v) return self.b(self.a(v)) end
    agrees(tied, { moth.randn(1, 3) })
  end)

  it("files are checked: another op, a damaged value, another version #M416", function()
    local file = path("file.mth2")
    moth.export.save(moth.export(function(x) return (x + 1):relu() end, { moth.ones(2) }), file)
    local tensors, metadata = moth.load_safetensors(file)
    local function with(old, new)
      local m = { format = metadata.format, moth = "0.0.9", graph = metadata.graph }
      if old == "format" then m.format = new else
        local n
        m.graph, n = m.graph:gsub(old, new)
        assert.is_true(n > 0, old)
      end
      local other = path("other.mth2")
      moth.save_safetensors(tensors, other, m)
      return pcall(moth.export.load, other)
    end
    local function refused(pattern, ...)
      local ok, message = with(...)
      assert.is_false(ok)
      assert.truthy(message:find(pattern), message)
    end
    assert.is_true((with("export_spec", "export_spec")))
    refused("does not have", '"relu"', '"nothing"')
    refused("had other arguments", "relu%(Tensor self%)", "relu(Tensor self, float by)")
    refused("before it is made", '{"v":"1"}', '{"v":"7"}')
    refused("is not what the file says", '"dtype":"float32","shape":%[2%]}%],"op":"relu"',
      '"dtype":"int64","shape":[2]}],"op":"relu"')
    refused("damaged", '"nodes":%[', '"nodes":7,"x":[')
    refused("a list is damaged", '{"v":"1"}', '{"l":[],"c":1000000}') -- what is not there takes no time
    refused("a size of the input .* is damaged", '("inputs":.-"shape":)%[2%]', '%1[{"terms":[]}]')
    refused("no input has the dimension n", '"dims":{},"example":{}',
      '"dims":{"n":{"min":0,"multiple_of":1}},"example":{"n":3}')
    refused("its format is 'moth.export 9', written by moth 0.0.9", "format", "moth.export 9")
    refused("no file of export.save", "format", "pt")
    fails("moth.load reads it", function()
      moth.save({ 1 }, file)
      moth.export.load(file)
    end)
  end)

  it("moth.jit.trace and script are older names of it #M297 #M425 #M426", function()
    local net = nn.Sequential(nn.Linear(3, 2), nn.ReLU()):eval()
    local x = moth.randn(4, 3)
    local traced = moth.jit.trace(net, { x })
    assert.is_true(moth.equal(net(x), traced(x)))
    moth.jit.save(traced, path("jit.mth2"))
    assert.is_true(moth.equal(net(x), moth.jit.load(path("jit.mth2"))(x)))
    local scripted = moth.jit.script(net)
    assert.is_true(moth.equal(net(x), scripted(x)))
    assert.equal(scripted, moth.jit.script(scripted))
    assert.is_true(moth.equal(net(x), moth.compile(scripted)(x)))
    local fresh = moth.compile(moth.jit.script(net)) -- not called before
    assert.is_true(moth.equal(net(x), fresh(x)))
    local inside = moth.compile(function(y) return moth.export(net, { y })(y) + net(y) end)
    assert.is_true(moth.equal(net(x) * 2, inside(x)))
    fails("differs from the function's", moth.jit.trace, function(y) return y * os.clock() end, x)
  end)

  it("decompose replaces what is made of other ops: all of it, or what is named; others are refused #quick", function()
    local net = nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.LayerNorm(3)):eval()
    local ep = moth.export(net, { moth.randn(2, 4) }, { dynamic_shapes = { { [1] = "n" } } })
    local text = tostring(ep:decompose())
    assert.truthy(text:find("rsqrt(", 1, true) and text:find("gelu(", 1, true))
    assert.is_nil(text:find("layer_norm(", 1, true))
    assert.truthy(tostring(ep:decompose { layer_norm = true }):find("native_layer_norm(", 1, true))
    local x = moth.randn(5, 4)
    assert.is_true(moth.allclose(net(x), ep:decompose()(x)))
    fails("gelu is a kernel", ep.decompose, ep, { gelu = true })
    fails("there is no op 'nope'", ep.decompose, ep, { nope = true })
  end)

  it("decompose does not settle what strides decide #quick", function()
    local x = moth.randn(4, 6)
    for _, f in ipairs { function(t) return t:reshape(-1) end, function(t) return t:unfold(1, 2, 1) end,
      function(t) return t:contiguous():view(2, -1) end } do
      local ep = moth.export(f, { moth.randn(6, 4) }):decompose()
      same({ f(x:t()) }, { ep(x:t()) })
    end
    local z = moth.randn(3, 3):to(moth.complex64)
    same({ moth.linalg.matrix_rank(z) }, { moth.export(moth.linalg.matrix_rank, { z }):decompose()(z) })
  end)

  it("decompose keeps positions: ops that count them from 0 within are recorded from 1 #quick", function()
    local rows, values = moth.tensor { 1, 3, 5, 7 }, moth.tensor { 0, 3.5, 8, 5 }
    local ep = moth.export(function(s, v) return moth.searchsorted(s, v), moth.quantile(v, 0.3) end, { rows, values })
    local parts = ep:decompose({ searchsorted = true, quantile = true }):decompose { native_searchsorted = true }
    assert.is_nil(tostring(parts):find("searchsorted(", 1, true))
    local at, q = parts(rows, values)
    assert.same({ 1, 3, 5, 3 }, at:totable())
    assert.is_true(math.abs(q:item() - 3.15) < 1e-6)
  end)

  it("a scalar tensor as an index is refused, with what to write", function()
    local x, at = moth.randn(3, 5), moth.tensor(2):long()
    for _, f in ipairs { function(t, i) return t[i] end, function(t, i) return t[{ {}, i }] end,
      function(t, i) t = t * 1; t[{ i, {} }] = 2; return t end } do
      local ok, message = pcall(moth.export, f, { x, at })
      assert.is_false(ok)
      assert.matches("export_spec.lua:%d+: index: .*i:view%(1%)", message)
    end
    local ep = moth.export(function(t, i) return t[{ {}, i:view(1) }]:squeeze(2) end, { x, at })
    assert.is_true(moth.equal(x:select(2, 4), ep(x, moth.tensor(4):long())))
  end)
end)
