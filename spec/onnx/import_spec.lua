-- moth.onnx.load and moth.onnx.InferenceSession. That all operators compute what ONNX says is compared by `make parity`
-- with ONNX's own node cases (spec/parity/onnx_cases.lua).
local moth = require "moth"
local nn = moth.nn
local files = require "onnx.files"
local messages = require "moth.onnx.messages"
local path = os.tmpname()

local graph, fails = files.graph, files.fails
local function write(opset, ...)
  files.write(path, opset, ...)
  return path
end
local function int64(list) return moth.tensor(list, { dtype = moth.int64 }) end

local function close(a, b, by)
  assert.same(b:size(), a:size())
  assert.is_true((a - b):abs():max():item() <= (by or 1e-6))
end

describe("moth.onnx", function()
  teardown(function() os.remove(path) end)

  it("a CNN that was exported gives the same by its own session, loaded, compiled and saved #M424", function()
    local net = nn.Sequential(nn.Conv2d(3, 4, 3, { stride = 4 }), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(4),
      nn.Flatten(), nn.Linear(4 * 14 * 14, 10)):eval()
    local x = moth.randn(1, 3, 224, 224)
    local want = moth.no_grad(net, x)
    moth.onnx.export(net, x, path, { input_names = { "x" }, output_names = { "y" },
      dynamic_axes = { x = { [1] = "batch" } } })
    local session = moth.onnx.InferenceSession(path)
    for _ = 1, 3 do close(session:run(nil, { x = x })[1], want) end -- the first as it comes, then the program
    assert.same({ name = "x", type = "tensor(float)", dtype = "float32", shape = { "batch", 3, 224, 224 } },
      session:get_inputs()[1])
    assert.same({ "batch", 10 }, session:get_outputs()[1].shape)
    local ep = moth.onnx.load(path)
    close(ep(x), want)
    assert.same({ 3, 10 }, ep(moth.randn(3, 3, 224, 224)):size())
    assert.equal("0.bias", ep.signature.parameters[1])
    close(ep:compile()(x), want)
    moth.export.save(ep, path)
    close(moth.export.load(path)(x), want)
  end)

  it("shapes and their arithmetic become numbers, and formulas of a program #quick", function()
    -- reshape(x, [shape(x)[0] * 2, -1]) and the size as a float
    local nodes = { { "Shape", { "x" }, { "s" } }, { "Gather", { "s", "zero" }, { "n" } },
      { "Mul", { "n", "two" }, { "n2" } }, { "Concat", { "n2", "open" }, { "shape" }, { { "axis", 0 } } },
      { "Reshape", { "x", "shape" }, { "y" } }, { "Cast", { "n" }, { "f" }, { { "to", 1 } } },
      { "Mul", { "y", "f" }, { "z" } }, { "Range", { "from", "end", "two_" }, { "r" } },
      { "Squeeze", { "n2" }, { "end" } } }
    table.insert(nodes, 8, table.remove(nodes))
    write(17, nodes, { { "x", "float32", { "n", 4 } } }, { { "z", "float32", {} }, { "r", "int64", {} } },
      { { "zero", int64 { 0 } }, { "two", int64 { 2 } }, { "open", int64 { -1 } }, { "from", int64(0) },
        { "two_", int64(2) } })
    local session, ep = moth.onnx.InferenceSession(path), moth.onnx.load(path)
    for _, n in ipairs { 1, 3, 3, 6 } do
      local x = moth.randn(n, 4)
      for _, results in ipairs { session:run({ "z", "r" }, { x = x }), { ep(x) } } do
        close(results[1], x:reshape { 2 * n, 2 } * n)
        assert.same((moth.arange(0, 2 * n, 2)):totable(), results[2]:totable())
      end
    end
    for node in ep.program:calls() do assert.is_nil(node.op:find("gather")) end
    fails("no dimension 'm'", moth.onnx.load, path, { dims = { m = 3 } })
    assert.same({ 3, 4 }, moth.onnx.load(path, { dims = { n = 3 } }).program.inputs[1].shape)
  end)

  it("branches and loops on elements: by values, and as cond and while_loop of a program #quick", function()
    local function value(name) return { name, "float32", { 2 } } end
    local plus = graph({ { "Add", { "x", "w" }, { "p" } } }, {}, { value "p" })
    local minus = graph({ { "Neg", { "x" }, { "m" } } }, {}, { value "m" })
    local body = graph({ { "Mul", { "state", "two" }, { "new" } }, { "ReduceSum", { "new" }, { "s" },
      { { "keepdims", 0 } } }, { "Less", { "s", "limit" }, { "more" } } },
      { { "i", "int64", {} }, { "go", "bool", {} }, value "state" }, { { "more", "bool", {} }, value "new" })
    write(17, { { "ReduceSum", { "x" }, { "sum" }, { { "keepdims", 0 } } }, { "Greater", { "sum", "nought" }, { "c" } },
      { "If", { "c" }, { "y" }, { { "then_branch", plus }, { "else_branch", minus } } },
      { "Loop", { "", "yes", "y" }, { "z" }, { { "body", body } } } }, { value "x" }, { value "z" },
      { { "w", moth.tensor { 1, 2 } }, { "nought", moth.tensor(0.) }, { "two", moth.tensor(2.) },
        { "limit", moth.tensor(100.) }, { "yes", moth.tensor(true) } })
    local session, ep = moth.onnx.InferenceSession(path), moth.onnx.load(path)
    for _, x in ipairs { moth.tensor { 1, 1 }, moth.tensor { -4, -1 } } do
      local z = x:sum():item() > 0 and x + moth.tensor { 1, 2 } or -x
      repeat z = z * 2 until z:sum():item() >= 100
      for _ = 1, 2 do assert.is_true(moth.equal(session:run(nil, { x = x })[1], z)) end
      assert.is_true(moth.equal(ep(x), z))
    end
    assert.truthy(tostring(ep):find("while_loop"))
    moth.onnx.export(ep, nil, path) -- and back
    local again = moth.onnx.InferenceSession(path)
    assert.is_true(moth.equal(again:run(nil, { x = moth.tensor { -4, -1 } })[1], ep(moth.tensor { -4, -1 })))
  end)

  it("a model whose sizes depend on elements runs, but is no program", function()
    write(17, { { "NonZero", { "x" }, { "y" } } }, { { "x", "float32", { "n" } } }, { { "y", "int64", {} } })
    local session = moth.onnx.InferenceSession(path)
    for _ = 1, 3 do assert.same({ { 1, 2 } }, session:run(nil, { x = moth.tensor { 0, 3, 4 } })[1]:totable()) end
    fails("nonzero", moth.onnx.load, path)
  end)

  it("steps of 0 are errors, not loops without an end #quick", function()
    write(17, { { "STFT", { "x", "step" }, { "y" } } }, { { "x", "float32", { 1, 8, 1 } } }, { { "y", "float32", {} } },
      { { "step", int64(0) } })
    local session = moth.onnx.InferenceSession(path)
    fails("every 0", session.run, session, nil, { x = moth.ones(1, 8, 1) })
    write(17, { { "MaxPool", { "x" }, { "y" }, { { "kernel_shape", { 2 } }, { "strides", { 0 } } } } },
      { { "x", "float32", { 1, 1, 8 } } }, { { "y", "float32", {} } })
    session = moth.onnx.InferenceSession(path)
    fails("at least 1", session.run, session, nil, { x = moth.ones(1, 1, 8) })
  end)

  it("what is not known is an error before anything runs, with the node and the operator #quick", function()
    local x = { { "x", "float32", { 2 } } }
    local y = { { "y", "float32", { 2 } } }
    write(17, { { "Frobnicate", { "x" }, { "y" } } }, x, y)
    fails("node 'Frobnicate_1': the operator Frobnicate is not known", moth.onnx.InferenceSession, path)
    fails("[onnx.load].*not known", moth.onnx.load, path)
    write(17, { { "Relu", { "x" }, { "y" }, { { "speed", 3 } } } }, x, y)
    fails("the operator Relu has no attribute 'speed'", moth.onnx.InferenceSession, path)
    write(17, { { "Relu", { "nothing" }, { "y" } } }, x, y)
    fails("'nothing' is used, but nothing makes it", moth.onnx.InferenceSession, path)
    write(17, { { "Reshape", { "x", "s" }, { "y" } } }, x, y, { { "s", int64 { 3 } } })
    local bad = moth.onnx.InferenceSession(path)
    fails("node 'Reshape_1' %(Reshape%)", bad.run, bad, nil, { x = moth.ones(2) })
    write(17, { { "Relu", { "x" }, { "y" } } }, x, y)
    local session = moth.onnx.InferenceSession(path)
    fails("the input x is missing", session.run, session, nil, {})
    fails("there is no input 'z'", session.run, session, nil, { x = moth.ones(2), z = moth.ones(2) })
    fails("expected float32 %[2%], got float32 %[3%]", session.run, session, nil, { x = moth.ones(3) })
    fails("expected float32 %[2%], got int64 %[2%]", session.run, session, nil, { x = int64 { 1, 2 } })
    fails("there is no result 'w'", session.run, session, { "w" }, { x = moth.ones(2) })
    fails("unknown option 'speed'", moth.onnx.InferenceSession, path, { speed = 1 })
    fails("No such file", moth.onnx.InferenceSession, "/no/such.onnx")
  end)

  it("tensors of all types, as bytes and as numbers; in a file beside the model, whose name may not lead away #quick",
    function()
      local types = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32",
        "uint32", "int64", "uint64", "bool" }
      local nodes, outs, constants = {}, {}, {}
      for i, dtype in ipairs(types) do
        constants[i] = { "c" .. i, moth.tensor({ 0, 1, 7 }):to(dtype) }
        nodes[i], outs[i] = { "Identity", { "c" .. i }, { "y" .. i } }, { "y" .. i, dtype, { 3 } }
      end
      write(17, nodes, {}, outs, constants)
      for i, t in ipairs(moth.onnx.InferenceSession(path):run(nil, {})) do
        assert.is_true(moth.equal(t, constants[i][2]), types[i])
      end
      local folder, file = path:match("^(.*/)([^/]*)$")
      local data = assert(io.open(folder .. file .. ".data", "wb"))
      data:write("\0\0\0\0\0\0\128\63\0\0\0\64")
      data:close()
      local function external(location, offset)
        local m = graph({ { "Identity", { "w" }, { "y" } } }, {}, { { "y", "float32", { 2 } } })
        m:add(5, messages.tensor("w", moth.ones(2), { location = location, offset = offset }))
        messages.write(messages.model(m, 17), path)
        return moth.onnx.InferenceSession(path):run(nil, {})[1]
      end
      assert.same({ 1, 2 }, external(file .. ".data", 4):totable())
      fails("does not fit", external, file .. ".data", 8)
      fails("only files beside the model", external, "../" .. file .. ".data", 4)
      fails("only files beside the model", external, "/etc/passwd", 0)
      local net = nn.Linear(20, 30)
      moth.onnx.export(net, moth.ones(1, 20), path, { external_data = true })
      local f = io.open(path, "rb")
      assert.is_true(f:seek("end") < 1200) -- 2400 bytes of the weight are not in it
      f:close()
      close(moth.onnx.load(path)(moth.ones(1, 20)), moth.no_grad(net, moth.ones(1, 20)))
      os.remove(folder .. file .. ".data")
    end)

  it("the guide has the lines for TensorRT and OpenVINO #quick #M427", function()
    local f = io.open("docs/onnx.md")
    local text = f:read("*a")
    f:close()
    local block = text:match("```sh\n(.-)```")
    assert.truthy(block:find("trtexec --onnx=model.onnx", 1, true))
    assert.truthy(block:find("benchmark_app -m model.onnx", 1, true))
  end)

  it("what a small file may ask for is bounded: functions of functions, sparse tensors, n-grams #quick", function()
    local proto = require "moth.tensorboard.proto"
    local function model(...)
      local f = assert(io.open(path, "wb"))
      f:write(proto.int(1, 8), proto.bytes(8, proto.int(2, 17)), ...)
      f:close()
      return path
    end
    local function node(op, domain) -- y = op(x)
      return proto.bytes(1, "x") .. proto.bytes(2, "y") .. proto.bytes(4, op) .. proto.bytes(7, domain)
    end
    local parts = {}
    for i = 1, 28 do -- each calls the next one twice
      local body = proto.bytes(7, node(i < 28 and "f" .. i + 1 or "Relu", i < 28 and "own" or ""))
      parts[i] = proto.bytes(25, proto.bytes(1, "f" .. i) .. proto.bytes(4, "x") .. proto.bytes(5, "y") .. body .. body
        .. proto.bytes(10, "own"))
    end
    fails("its functions make more than 262144 nodes", moth.onnx.InferenceSession,
      model(proto.bytes(7, proto.bytes(1, node("f1", "own")) .. proto.bytes(11, proto.bytes(1, "x"))
      .. proto.bytes(12, proto.bytes(1, "y"))), table.concat(parts)))

    local one = proto.int(1, 1) .. proto.int(2, 1) .. proto.bytes(8, "s") .. proto.bytes(9, "\0\0\128\63")
    local index = proto.int(1, 1) .. proto.int(2, 7) .. proto.int(7, 5)
    local function sparse(n)
      return model(proto.bytes(7, proto.bytes(15, proto.bytes(1, one) .. proto.bytes(2, index) .. proto.int(3, n))
        .. proto.bytes(12, proto.bytes(1, "s"))))
    end
    assert.equal(1, moth.onnx.InferenceSession(sparse(9)):run(nil, {})[1]:sum():item())
    fails("2.68435e%+08 elements is too large", moth.onnx.InferenceSession, sparse(2 ^ 28))

    local sizes = {}
    for i = 1, 30 do sizes[i] = proto.int(1, 2 ^ 40) end -- their product is infinite, and times 0 no number
    fails("elements is too large", moth.onnx.InferenceSession, model(proto.bytes(7, proto.bytes(5, table.concat(sizes)
      .. proto.int(1, 0) .. proto.int(2, 1) .. proto.bytes(4, ("\0"):rep(400)) .. proto.bytes(8, "s"))
      .. proto.bytes(12, proto.bytes(1, "s")))))

    local function tfidf(counts, indexes)
      write(17, { { "TfIdfVectorizer", { "x" }, { "y" }, { { "max_gram_length", 2 }, { "max_skip_count", 2 ^ 50 },
        { "min_gram_length", 1 }, { "mode", "TF" }, { "ngram_counts", counts }, { "ngram_indexes", indexes },
        { "pool_int64s", { 1, 2, 3, 4 } } } } }, { { "x", "int64", { 3 } } }, { { "y", "float32", { 3 } } }, {})
      return moth.onnx.InferenceSession(path):run(nil, { x = int64 { 1, 3, 4 } })[1]:totable()
    end
    assert.same({ 1, 0, 1 }, tfidf({ 0, 2 }, { 0, 1, 2 }))
    fails("ngram_counts must rise", tfidf, { 0, 2 ^ 50 }, { 0, 1, 2 })
    fails("ngram_counts must rise", tfidf, { -7, 2 }, { 0, 1, 2 })
    fails("the index 1125899906842624 of an n%-gram", tfidf, { 0, 2 }, { 0, 2 ^ 50, 2 })
  end)

  it("a damaged file is an error, whatever its bytes are", function()
    local net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)):eval()
    moth.onnx.export(net, moth.randn(1, 3), path)
    local f = io.open(path, "rb")
    local text = f:read("*a")
    f:close()
    math.randomseed(7)
    local errors = 0
    for i = 1, 300 do
      local damaged
      local at = math.random(#text)
      if i % 3 == 0 then damaged = text:sub(1, at)
      elseif i % 3 == 1 then damaged = text:sub(1, at - 1) .. string.char(math.random(0, 255)) .. text:sub(at + 1)
      else damaged = text:sub(1, at - 1) .. "\255\255\255\255\127" .. text:sub(at + 1) -- a length beyond the end
      end
      f = io.open(path, "wb")
      f:write(damaged)
      f:close()
      local ok, message = pcall(moth.onnx.InferenceSession, path)
      errors = errors + (ok and 0 or 1)
      if not ok then assert.truthy(tostring(message):find("[onnx", 1, true), message) end
    end
    assert.is_true(errors > 150)
  end)

  it("products of bytes go through int8 kernels, and are those of float64", function()
    moth.manual_seed(4)
    local function rule_of(op, inputs, outputs, constants, attributes)
      local values, given = {}, {}
      for _, v in ipairs(inputs) do
        values[#values + 1] = { v[1], v[2]:dtype().name, v[2]:size() }
        given[v[1]] = v[2]
      end
      local names = {}
      for _, v in ipairs(inputs) do names[#names + 1] = v[1] end
      for _, c in ipairs(constants) do names[#names + 1] = c[1] end
      write(17, { { op, names, { "y" }, attributes } }, values, { { "y", outputs[1], outputs[2] } }, constants)
      local session = moth.onnx.InferenceSession(path)
      local first = session:run(nil, given)[1]
      for _ = 1, 2 do assert.is_true(moth.equal(first, session:run(nil, given)[1])) end
      return first
    end
    local function bytes(dtype, ...)
      local low = dtype == moth.uint8 and 0 or -128
      return moth.randint(low, low + 256, { ... }):to(dtype)
    end
    local f64 = moth.float64
    for _, kinds in ipairs { { moth.uint8, moth.int8 }, { moth.int8, moth.int8 }, { moth.uint8, moth.uint8 } } do
      local a, b = bytes(kinds[1], 3, 5, 70), bytes(kinds[2], 70, 9)
      local za, zb = bytes(kinds[1], 1):reshape {}, bytes(kinds[2], 9)
      local y = rule_of("MatMulInteger", { { "a", a } }, { "int32", { 3, 5, 9 } },
        { { "b", b }, { "za", za }, { "zb", zb } })
      assert.is_true(moth.equal(y, (a:to(f64) - za:to(f64)):matmul(b:to(f64) - zb:to(f64)):to(moth.int32)))
      local x, w = bytes(kinds[1], 2, 4, 6, 7), bytes(kinds[2], 6, 2, 3, 3)
      local zw = moth.tensor(kinds[2] == moth.uint8 and 128 or 0, { dtype = kinds[2] })
      y = rule_of("ConvInteger", { { "x", x } }, { "int32", { 2, 6, 3, 7 } },
        { { "w", w }, { "za", za }, { "zw", zw } },
        { { "group", 2 }, { "strides", { 2, 1 } }, { "pads", { 1, 1, 0, 1 } } })
      local padded = moth.pad(x:to(f64) - za:to(f64), { 1, 1, 1, 0 })
      assert.is_true(moth.equal(y, moth.conv2d(padded, w:to(f64) - zw:to(f64), nil, { 2, 1 }, 0, 1, 2):to(moth.int32)))
    end
  end)

  it("a QDQ file runs by int8 kernels: no float weight is left in its program", function()
    moth.manual_seed(2)
    local q = moth.quantization
    local net = nn.Sequential(nn.Conv2d(3, 8, 3, { padding = 1 }), nn.ReLU(), nn.Flatten(),
      nn.Linear(8 * 36, 10)):eval()
    local x = moth.randn(4, 3, 6, 6)
    net.qconfig = q.get_default_qconfig()
    local p = q.prepare(net)
    p(x)
    local made = q.convert(p)
    moth.onnx.export(made, x, path, { input_names = { "x" }, output_names = { "y" } })
    local session = moth.onnx.InferenceSession(path)
    for _ = 1, 3 do
      local y = session:run(nil, { x = x })[1]
      assert.is_true(q.sqnr(made(x), y) > 60, q.sqnr(made(x), y))
    end
    local text = tostring(moth.onnx.load(path))
    assert.truthy(text:find "conv2d_int8")
    assert.truthy(text:find "linear_int8")
    assert.is_nil(text:find " linear%(")
  end)

  it("texts match regular expressions as a whole #quick", function()
    local function matches(list, pattern)
      local nodes = { { "Constant", {}, { "s" }, { { "value_strings", list } } },
        { "RegexFullMatch", { "s" }, { "y" }, { { "pattern", pattern } } } }
      return moth.onnx.InferenceSession(write(20, nodes, {}, { { "y", "bool", { #list } } })):run(nil, {})[1]:tolist()
    end
    assert.same({ true, false, true, false }, matches({ "ab12", "xab1", "ab", "ab\n" }, "ab[0-9]*"))
    assert.same({ true, true, false }, matches({ "a", "bb", "ab" }, "(?P<x>a)|(?<y>bb\\z)"))
    assert.same({ true, false }, matches({ "été 1", "\255" }, "^\\pL+ \\d$"))
    assert.same({ true, false, false }, matches({ "a\\pL 5", "a\\pL ٥", "x\na\\pL 5" }, "^a\\\\pL \\d"))
    fails("pattern '%(a': end pattern with unmatched parenthesis", matches, { "a" }, "(a")
    fails("onnx.RegexFullMatch.*retry%-limit", matches, { ("a"):rep(40) .. "!" }, "(a|a)*")
  end)

  it("a loop without steps collects none of what a step gives #quick", function()
    local body = files.graph({ { "Identity", { "going" }, { "again" } }, { "Add", { "s", "s" }, { "twice" } },
      { "Cast", { "twice" }, { "one" }, { { "to", messages.code "int64" } } } },
      { { "i", "int64", {} }, { "going", "bool", {} }, { "s", "float32", { 2, 3 } } },
      { { "again", "bool", {} }, { "twice", "float32", { 2, 3 } }, { "one", "int64", { 2, 3 } } })
    local session = moth.onnx.InferenceSession(write(17, { { "Loop", { "n", "", "x" }, { "y", "z" },
      { { "body", body } } } }, { { "n", "int64", {} }, { "x", "float32", { 2, 3 } } },
      { { "y", "float32", { 2, 3 } }, { "z", "int64", { "?", 2, 3 } } }))
    for _, n in ipairs { 0, 2, 0 } do
      local y, z = unpack(session:run(nil, { n = int64(n), x = moth.ones(2, 3) }))
      assert.same({ { 2, 3 }, { n, 2, 3 }, moth.int64 }, { y:size(), z:size(), z:dtype() })
    end
  end)

  it("a loop of as many steps as a value says is a loop of the program, and one within a branch", function()
    local x = { "x", "float32", { 2 } }
    local body = files.graph({ { "Identity", { "going" }, { "again" } }, { "Add", { "s", "twice" }, { "t" } } },
      { { "i", "int64", {} }, { "going", "bool", {} }, { "s", "float32", { 2 } } },
      { { "again", "bool", {} }, { "t", "float32", { 2 } } })
    local loop = files.graph({ { "Loop", { "n", "", "x" }, { "y" }, { { "body", body } } } }, {},
      { { "y", "float32", { 2 } } })
    local none = files.graph({ { "Neg", { "twice" }, { "m" } } }, {}, { { "m", "float32", { 2 } } })
    write(17, { { "Add", { "x", "x" }, { "twice" } }, { "ReduceSum", { "x" }, { "sum" }, { { "keepdims", 0 } } },
      { "Greater", { "sum", "nought" }, { "c" } },
      { "If", { "c" }, { "z" }, { { "then_branch", loop }, { "else_branch", none } } } },
      { { "n", "int64", {} }, x }, { { "z", "float32", { 2 } } }, { { "nought", moth.tensor(0.) } })
    local session, ep = moth.onnx.InferenceSession(path), moth.onnx.load(path)
    for _, n in ipairs { 0, 1, 5 } do
      for _, t in ipairs { moth.tensor { 1, 2 }, moth.tensor { -1, 0 } } do
        local want = t:sum():item() > 0 and t + t * 2 * n or t * -2
        assert.is_true(moth.equal(want, ep(int64(n), t)))
        assert.is_true(moth.equal(want, session:run(nil, { n = int64(n), x = t })[1]))
      end
    end
  end)

  it("ReverseSequence says which axis or length is wrong #quick", function()
    local function run(lengths, time)
      local session = moth.onnx.InferenceSession(write(17, { { "ReverseSequence", { "x", "n" }, { "y" },
        { { "time_axis", time or 0 }, { "batch_axis", 1 } } } },
        { { "x", "float32", { 2, 3 } }, { "n", "int64", { "k" } } }, { { "y", "float32", { 2, 3 } } }))
      return session:run(nil, { x = moth.arange(6):float():view(2, 3), n = int64(lengths) })[1]
    end
    assert.same({ { 3, 1, 5 }, { 0, 4, 2 } }, run({ 2, 1, 2 }):totable())
    fails("sequence_lens: sequence 0 has the length 9: expected 0 to 2", run, { 9, 1, 2 })
    fails("a length for each of the 3 sequences, got %[2%]", run, { 1, 2 })
    fails("time_axis and batch_axis are 0 and 1, one each.*got 1 and 1", run, { 1, 2, 1 }, 1)
  end)
end)
