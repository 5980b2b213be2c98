-- Formulas of dynamic dimensions: what is followed, what is refused, and that nothing is wrong at other sizes.
local moth = require "moth"
local dir = os.tmpname()

describe("sizes of exported programs", function()
  teardown(function()
    for _, ending in ipairs { "", ".mth2", ".mte", ".onnx" } do os.remove(dir .. ending) end
  end)

  -- Runs the program, its edge file and its ONNX file at other sizes. not_read: of ONNX, which has no ranges.
  local function follows(f, example, dims, sizes, not_read)
    local spec = {}
    for k, dim in pairs(dims) do spec[k] = dim end
    local ep = moth.export(f, { moth.randn(unpack(example)) }, { dynamic_shapes = { spec } })
    local mth, mte, onnx = dir .. ".mth2", dir .. ".mte", dir .. ".onnx"
    moth.export.save(ep, mth)
    moth.edge.export(ep, mte)
    moth.onnx.export(ep, nil, onnx)
    local ways = { ep, moth.export.load(mth), moth.edge.load(mte), not not_read and moth.onnx.load(onnx) or nil }
    for _, size in ipairs(sizes) do
      local x = moth.randn(unpack(size))
      local want = f(x)
      for i, way in ipairs(ways) do
        local got = way(x)
        assert.same(want:size(), got:size())
        assert.is_true(moth.allclose(want, got, 1e-6, 1e-6), i .. " of " .. tostring(ep))
      end
    end
    return ep
  end

  local function fails(pattern, ...)
    local ok, message = pcall(moth.export, ...)
    assert.is_false(ok)
    assert.truthy(message:find(pattern), message)
  end

  it("follows products of what strides leave, and divisions by large numbers #quick #M417", function()
    local net = moth.nn.Sequential()
    for i = 1, 3 do net:append(moth.nn.Conv2d(i == 1 and 3 or 2, 2, 3, { stride = 2, padding = 1 })) end
    moth.no_grad(function()
      follows(function(x)
        local y = net(x)
        local b, c, h, w = unpack(y:size())
        return y:reshape(b * c, h * w + 0) * h
      end, { 1, 3, 16, 16 }, { [1] = "b", [3] = "h", [4] = "w" }, { { 2, 3, 97, 20 }, { 1, 3, 32, 33 } })
      follows(function(x) -- as wide as high
        local y = net(x)
        return y:reshape(y:size(1), 2, y:size(3) * y:size(4) + 0) * (x:size(3) * y:size(3) * 2)
      end, { 1, 3, 16, 16 }, { [1] = "b", [3] = "s", [4] = "s" }, { { 2, 3, 20, 20 }, { 1, 3, 97, 97 } })
    end)
    follows(function(x)
      return (x:narrow(1, 1, math.floor(x:size(1) / 32)))
    end, { 64, 2 }, { [1] = "h" }, { { 128, 2 }, { 100, 2 }, { 33, 2 } })
    follows(function(x)
      local b, h, w, c = unpack(x:size())
      return x:view(b, h / 4, 4, w / 4, 4, c):transpose(3, 4):reshape(b * h / 4 * w / 4, 16, c)
    end, { 1, 8, 8, 3 }, { [1] = "b", [2] = moth.Dim("h", { multiple_of = 4 }),
      [3] = moth.Dim("w", { multiple_of = 4 }) }, { { 2, 12, 16, 3 } }, true)
  end)

  it("follows rests, paddings, squares, and fractions of them #M417", function()
    local one = { [1] = "n" }
    follows(function(x) return x * (x:size(1) % 3) end, { 9, 2 }, one, { { 4, 2 }, { 12, 2 }, { 101, 2 } })
    local ep = follows(function(x)
      return (moth.nn.functional.pad(x, { 0, 0, 0, -x:size(1) % 8 }))
    end, { 6, 2 }, one, { { 9, 2 }, { 16, 2 }, { 71, 2 } }, true)
    assert.truthy(tostring(ep):find("-1*n - 8*(-1*n)//8", 1, true))
    ep = moth.export(function(x) return (moth.nn.functional.pad(x, { 0, -x:size(1) % 64 })) end, { moth.ones(9) },
      { dynamic_shapes = { one } })
    for _, size in ipairs { 2, 64, 127, 128, 1000 } do
      assert.equal(math.ceil(size / 64) * 64, ep(moth.ones(size)):size(1))
    end
    follows(function(x) return x:sum() / (x:size(1) * (x:size(1) - 1) / 2) end, { 6, 2 }, one, { { 9, 2 }, { 30, 2 } })
    follows(function(x) return x * (0.5 / x:size(1)) + x * x:size(1) ^ -0.5 end, { 6, 2 }, one, { { 30, 2 } }, true)
    follows(function(x) return (x:sum() / (x:size(1) * x:size(2) * x:size(3))) end, { 9, 2, 3 },
      { [1] = "a", [2] = "b", [3] = "c" }, { { 4, 5, 6 } })
  end)

  it("a branch that only large sizes take, or size 1, is seen #M417 #M435", function()
    local n = { dynamic_shapes = { { [1] = "n" } } }
    fails("the calls depend on a size", function(x) return x:size(1) > 200 and x * 2 or x end, { moth.ones(3) }, n)
    local most = moth.export(function(x) return x * math.max(50, x:size(1)) end, { moth.ones(3) },
      { dynamic_shapes = { { [1] = moth.Dim("n", { max = 51 }) } } })
    assert.same({ 50, 51 }, { most(moth.ones(9))[1]:item(), most(moth.ones(51))[1]:item() })
    local function one(x) return x:size(1) == 1 and x * 2 or x end
    local ep = moth.export(one, { moth.ones(3) }, n)
    assert.error_matches(function() ep(moth.ones(1)) end, "n is 1, outside its range of 2 to any")
    fails("with n = 1 the function makes other calls.*min = 2", one, { moth.ones(3) },
      { dynamic_shapes = { { [1] = moth.Dim("n", { min = 1 }) } } })
    local function few(x) return x:size(1) < 5 and x * 2 or x * 3 end
    ep = moth.export(few, { moth.ones(9) }, n)
    assert.same({ 3, 3, 3, 3, 3 }, ep(moth.ones(5)):totable())
    assert.error_matches(function() ep(moth.ones(4)) end, "n is 4, outside its range of 5 to any")
    fails("with n = 4 the function makes other calls.*min = 5", few, { moth.ones(9) },
      { dynamic_shapes = { { [1] = moth.Dim("n", { min = 2 }) } } })
    ep = moth.export(function(x) return x:narrow(1, 1, math.min(x:size(1), 4)) end, { moth.ones(9) }, n)
    assert.same({ 3, 4, 4 }, { #ep(moth.ones(3)), #ep(moth.ones(4)), #ep(moth.ones(90)) })
    local net = moth.nn.Conv1d(1, 1, 7) -- what the op refuses there stays its own affair
    assert.error_matches(function() moth.export(net, { moth.ones(1, 1, 9) },
      { dynamic_shapes = { { [3] = "n" } } })(moth.ones(1, 1, 5)) end, "conv1d")
    local table_of = moth.randn(40, 2) -- a table of positions that ends
    local pe = moth.export(function(x) return x + table_of:narrow(1, 1, x:size(1)) end, { moth.ones(3, 2) }, n)
    assert.equal(19, pe(moth.ones(19, 2)):size(1))
  end)

  -- The program gives what the function does at all these sizes, or refuses those of `refused`.
  local function holds(f, at, refused, parts)
    local function column(n) return moth.arange(n):float() end
    local ep = moth.export(f, { column(4) }, { dynamic_shapes = { { [1] = moth.Dim("n", { min = 2 }) } } })
    local file = dir .. ".mth2"
    moth.export.save(ep, file)
    for _, program in ipairs { ep, moth.export.load(file), parts and ep:decompose() or nil } do
      for _, n in ipairs(at) do
        local want, got = f(column(n)), program(column(n))
        assert.same(want:size(), got:size())
        assert.is_true(moth.allclose(want, got, 1e-5, 1e-5), n .. " of " .. tostring(program))
      end
      for _, n in ipairs(refused or {}) do
        assert.error_matches(function() program(column(n)) end,
          "was recorded where .* at .*sizes_spec.lua:%d+; got n = ")
      end
    end
    return ep
  end

  it("follows min, max, floor, ceil, abs, rests and roots at sizes far from the example", function()
    local at = { 4, 2, 300, 2049, 4097, 12000, 100003 }
    holds(function(x) return x * math.min(x:size(1), 2048) end, at, nil, true)
    holds(function(x) return x * math.max(10, math.min(#x, 1000)) end, at)
    holds(function(x) return x + math.floor(x:size(1) / 5000) - math.ceil(x:numel() / 7000) end, at)
    holds(function(x) return x * math.abs(x.shape[1] - 3000) end, at)
    holds(function(x) return x * (x:size(1) % 5000) / math.log(x:size(1)) end, at)
    holds(function(x) return x * math.floor(math.sqrt(x:size(1))) end, at)
    holds(function(x) return x + math.fmod(#x, 7) - math.fmod(1000, #x) + math.fmod(-#x - 3, 5) end, at)
    holds(function(x) return x * math.fmod(#x - 3000, 7) + math.fmod(#x, -9) end, at)
    holds(function(x)
      local whole, rest = math.modf((#x - 3000) / 4)
      return x * whole + rest
    end, at)
    holds(function(x)
      local n = math.min(x:size(1), 4096)
      return x:narrow(1, x:size(1) - n + 1, n)
    end, at)
    holds(function(x)
      local y = x:narrow(1, 1, math.min(x:size(1), 1000))
      return moth.cat { y, y * y:size(1) + moth.arange(y:size(1)) }:view(2, -1)
    end, at)
    holds(function(x) return (moth.nn.functional.pad(x, { math.max(#x - 3000, 0), -#x % 4096 })) end, at)
    holds(function(x) return x[x:size(1)] + x[{ { 1, math.min(x:size(1), 1000) } }] end, at)
  end)

  it("a comparison of sizes is kept, and checked at each call #quick", function()
    holds(function(x) return x:size(1) > 4096 and x * 2 or x end, { 2, 300, 4096 }, { 4097, 100003 })
    holds(function(x) return x:size(1) == 300 and x * 2 or x end, { 2, 299, 301, 9000 }, { 300 })
    holds(function(x) return #x % 1000 ~= 0 and x * 2 or x end, { 2, 999, 9001 }, { 1000, 5000 })
    holds(function(x)
      local y = x:narrow(1, 1, math.min(x:size(1), 4096))
      return y:size(1) == x:size(1) and x or y
    end, { 2, 4096 }, { 4097 })
    local ep = moth.export(function(x) return x:numel() <= 64 and x * 2 or x end, { moth.ones(4) },
      { dynamic_shapes = { { [1] = moth.Dim("n", { max = 64 }) } } })
    assert.is_nil(ep.program.guards) -- the range says so
    ep = holds(function(x) return x:size(1) > 5000 and x * 2 or x end, { 2, 5000 }, { 5001 })
    assert.truthy(tostring(ep):find("where n <= 5000 at", 1, true))
    assert.error_matches(function() moth.onnx.export(ep, nil, dir) end,
      "n <= 5000 at .*it holds at least for n = 2 to 5000")
    moth.edge.export(ep, dir)
    local edge = moth.edge.load(dir)
    assert.equal(2, edge(moth.ones(5000))[1]:item() * 2)
    assert.error_matches(function() edge(moth.ones(5001)) end, "recorded where n <= 5000 at .*sizes_spec.lua:%d+")
  end)

  it("{ strict = true }: a comparison that the ranges leave open is an error; else it is listed, once", function()
    local function f(x) return x:size(1) ~= 300 and x * 2 or x end
    local function options(strict, max)
      return { strict = strict, dynamic_shapes = { { [1] = moth.Dim("n", { min = 2, max = max }) } } }
    end
    fails("where n ~= 300 at .*sizes_spec.lua:%d+.*max = .*n = 2 to 299", f, { moth.ones(4) }, options(true))
    assert.is_nil(moth.export(f, { moth.ones(4) }, options(true, 64)).program.guards)
    local stderr, said = io.stderr, {}
    io.stderr = { write = function(_, ...) said[#said + 1] = table.concat { ... } end } -- luacheck: ignore
    local ok, message = pcall(function()
      for _ = 1, 2 do moth.export(f, { moth.ones(4) }, options(false)) end
    end)
    io.stderr = stderr -- luacheck: ignore
    assert(ok, message)
    assert.equal(1, #said)
    assert.matches("warning.*sizes_spec.lua.*where n ~= 300 at", said[1])
  end)

  it("follows products of a minimum and a size; dimensions that must be equal are named", function()
    holds(function(x) return x:repeat_(math.min(x:size(1), 3)) end, { 2, 3, 9, 200 })
    holds(function(x)
      local n, k = x:size(1), math.min(x:size(1), 100)
      return (x:unsqueeze(2) * x:narrow(1, 1, k)):flatten():narrow(1, n, k)
    end, { 2, 99, 100, 101, 1000 })
    holds(function(x) -- quotients that are not whole at some sizes
      local t = x:size(1)
      local n = math.min(t, 64)
      return x[{ { math.max(1, t - 9), t } }] + x:narrow(1, t - n + 1, n):mean()
    end, { 2, 9, 10, 64, 65, 1000 })
    holds(function(x) -- as many as the convolutions of wav2vec leave
      local n = x:size(1) + 2000
      for _, k in ipairs { 10, 3, 3, 3, 3, 2, 2 } do n = math.floor((n - k) / (k == 10 and 5 or 2)) + 1 end
      return x * n
    end, { 2, 9, 1000, 16000, 100003 })
    local even = holds(function(x) return x + (x:size(1) % 2 == 0 and 1 or 0) end, { 2, 4, 10, 5000 }, { 3, 5001 })
    assert.equal(2, even.program.dims.n.min)
    fails("HINT: if m and n are one size always, give these dimensions the same name", moth.add,
      { moth.ones(5), moth.ones(5) }, { dynamic_shapes = { { [1] = "n" }, { [1] = "m" } } })
  end)

  it("guards are compiled, and are what their formulas say", function()
    local sizes = require "moth.compile.sizes"
    local n, m = { kind = "size", terms = { { 1, "end" } }, add = 0 }, { terms = { { 2, "m" } }, add = -3, div = 4 }
    local formulas = { n, m, 7, { terms = { { 1, "end", "m" } }, add = 1, of = "rsqrt", scale = 50 },
      { terms = { { 1, m }, { -2, "end" } }, of = "sqrt" }, { terms = { { 1, "m" } }, of = "reciprocal", scale = -2 } }
    for _, op in ipairs { "add", "sub", "mul", "div", "mod", "pow", "min", "max" } do
      formulas[#formulas + 1] = sizes.combined(op, n, m)
    end
    for _, op in ipairs { "floor", "ceil", "abs", "sqrt", "log", "exp", "unknown" } do
      formulas[#formulas + 1] = { op = op, a = formulas[10] }
    end
    local function name(d) return ("v[%q]"):format(d) end
    for _, op in ipairs { "lt", "le", "eq" } do
      for i, a in ipairs(formulas) do
        local b = formulas[(i * 5 + 2) % #formulas + 1]
        local list = { { op = op, a = a, b = b, holds = i % 2 == 0 } }
        for _, dims in ipairs { { ["end"] = 5, m = 9 }, { ["end"] = 1, m = 1 }, { ["end"] = 700, m = 4 } } do
          assert.equal(sizes.guard_holds(list[1], dims), sizes.broken(list, dims, name) == nil)
        end
      end
    end
    local ep = moth.export(function(x) return x * (x:size(1) == 300 and 2 or 1) end, { moth.ones(4) },
      { dynamic_shapes = { { [1] = "end" } } })
    assert.equal(301, ep(moth.ones(301)):sum():item())
    assert.error_matches(function() ep(moth.ones(300)) end, "end ~= 300 .*; got end = 300")
  end)

  it("symbols stand where numbers do; what wants plain ones says which dimension is open", function()
    local n = { dynamic_shapes = { { [1] = "n" } } }
    holds(function(x)
      local size = x:size(1)
      assert(("%d"):format(size) .. tostring(x:size()) .. table.concat(x:size(), ","))
      assert(type(size) == "number" and tonumber(size) == size and size ~= nil and size == size)
      local y = moth.zeros(size, 1):fill_(2 * size + 1)
      y = y + x:new_zeros(size, 1):tile(1, math.ceil(size / size))
      y[size] = size
      return y * (size ^ -0.5) + moth.full({ 1, size }, size / 2):t()
    end, { 2, 9, 5000 })
    fails("'for' limit must be a number.*n may have any size.*moth.while_loop", function(x)
      for _ = 1, math.ceil(x:size(1) / 1e6) do x = x + 1 end
      return x
    end, { moth.ones(4) }, n)
    local floor = math.floor
    assert.equal(floor, math.floor) -- as they were, also behind errors
    fails("number expected, got cdata", function(x) return x * floor(x:size(1) / 1e6) end, { moth.ones(4) }, n)
    for what, f in pairs {
      ["bit.band of a size that may change, n: write n %% 2 %^ k"] = function(x) return x * bit.band(#x, 7) end,
      ["bit.rshift of .* math.floor%(n / 2 %^ k%)"] = function(x) return x * bit.rshift(#x, 1) end,
      ["string.rep of a size"] = function(x) return x * #("a"):rep(#x) end,
      ["math.sin of a size"] = function(x) return x * math.sin(#x) end,
      ["math.log of a size with a base: write"] = function(x) return x * math.floor(math.log(#x, 2) / 50) end,
    } do
      fails(what .. ".*HINT", f, { moth.ones(4) }, n)
    end
  end)

  it("files without ranges and for C have the expressions", function()
    local function f(x) return x * math.min(x:size(1), 2048) + math.fmod(x:size(1) - 3000, 4000) end
    local ep = moth.export(f, { moth.ones(4) }, { dynamic_shapes = { { [1] = "n" } } })
    moth.onnx.export(ep, nil, dir .. ".onnx")
    local session = moth.onnx.InferenceSession(dir .. ".onnx", { record = false })
    moth.edge.export(ep, dir .. ".mte")
    local edge = moth.edge.load(dir .. ".mte")
    for _, n in ipairs { 4, 3001, 7000 } do
      local x = moth.ones(n)
      assert.is_true(moth.allclose(f(x), session:run(nil, { x = x })[1]))
      assert.is_true(moth.equal(f(x), edge(x)))
    end
    follows(function(x) return moth.nn.functional.pad(x, { 0, -x:size(1) % 4096 }) + math.floor(#x / 5000) end, { 9 },
      { [1] = "n" }, { { 4096 }, { 4097 }, { 12000 } }, true)
  end)

  it("guards of a file are tested as they are: many, deep, of any names", function()
    local sizes = require "moth.compile.sizes"
    local function dim(name) return ("v[%q]"):format(name) end
    local deep, many = "n", {}
    for _ = 1, 60 do deep = { kind = "size", terms = { { 1, deep } }, add = 1, div = 1, scale = 1 } end
    local guard = { op = "lt", a = deep, b = 65, holds = true }
    assert.is_nil(sizes.broken({ guard }, { n = 4 }, dim))
    local list = { guard }
    assert.equal(guard, sizes.broken(list, { n = 5 }, dim))
    for i = 1, 70000 do many[i] = { op = "le", a = "n", b = i + 10, holds = true } end
    assert.is_nil(sizes.broken(many, { n = 11 }, dim))
    assert.equal(many[1], sizes.broken(many, { n = 12 }, dim))
    local name = 'n"] = error("run") --\n\0'
    assert.is_nil(sizes.broken({ { op = "lt", a = name, b = 5, holds = true } }, { [name] = 4 }, dim))
  end)
end)
