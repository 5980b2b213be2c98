-- What kernels compute, compiled and interpreted, against moth's ops.
local moth = require "moth"
local both = require("kernel.kernels").both
local cdiv = moth.kernel.cdiv
local tl = moth.kernel.lang

local function same(expected, got, what) assert.is_true(moth.equal(expected, got), what) end
local function close(expected, got, what, tolerance)
  local d = (expected:double() - got:double()):abs()
  local bound = (expected:double():abs() * (tolerance or 1e-5) + (tolerance or 1e-5))
  assert.is_true(d:le(bound):all():item(), what)
end

-- A kernel of one tensor, element by element.
local function map(f)
  return moth.kernel.jit(function(x, out, n, BLOCK)
    local offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    local mask = offs < n
    tl.store(out + offs, f(tl.load(x + offs, { mask = mask })), { mask = mask })
  end, { constexpr = { "BLOCK" } })
end

describe("a kernel", function()
  it("is relu_squared at every size #M138 #M142 #M143 #M144 #M148", function()
    local k = moth.kernel.jit(function(x_ptr, out_ptr, n, BLOCK)
      local offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
      local mask = offs < n
      local x = tl.load(x_ptr + offs, { mask = mask, other = 0 })
      tl.store(out_ptr + offs, tl.where(x:gt(0), x * x, 0.0), { mask = mask })
    end, { constexpr = { "BLOCK" } })
    both(function(way)
      for _, n in ipairs(way == "compiled" and { 0, 1, 5, 1023, 1024, 1025, 1000000 } or { 0, 1, 5, 130 }) do
        local x, out = moth.randn(n), moth.full({ n + 8 }, 7)
        k{ cdiv(n, 128) }(x, out, n, { BLOCK = 128 })
        same(x:relu():square(), out[{ { 1, n } }], way .. n)
        same(moth.full({ 8 }, 7), out[{ { n + 1, n + 8 } }], way .. n)
      end
    end)
  end)

  it("reads and writes every dtype", function()
    local k = map(function(x) return x * 2 + 1 end)
    both(function(way)
      for _, name in ipairs { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32",
        "int64" } do
        local x = moth.randint(-20, 20, { 37 }):to(moth[name])
        local out = moth.empty_like(x)
        k{ 3 }(x, out, 37, { BLOCK = 16 })
        same(x * 2 + 1, out, way .. name)
      end
      for _, name in ipairs { "uint16", "uint32", "uint64" } do
        local x = moth.randint(0, 20, { 37 })
        local from, to = x:to(moth[name]), moth.zeros({ 37 }, { dtype = moth[name] })
        k{ 3 }(from, to, 37, { BLOCK = 16 })
        same(x * 2 + 1, to:to(moth.int64), way .. name)
      end
      local b = moth.tensor({ true, false, true })
      local out = moth.empty_like(b)
      map(function(x) return not x end){ 1 }(b, out, 3, { BLOCK = 4 })
      same(b:logical_not(), out, way)
    end)
  end)

  it("converts between dtypes as moth does", function()
    both(function(way)
      for _, from in ipairs { "float32", "float64", "int32", "uint8", "bool" } do
        for _, to in ipairs { "float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "bool" } do
          local x = moth.tensor({ 0, 1, 0.4, 2.6, 100.3, 65504 }):to(moth[from])
          local out = moth.empty({ 6 }, { dtype = moth[to] })
          map(function(v) return v end){ 1 }(x, out, 6, { BLOCK = 8 })
          local defined = to ~= "int8" or from == "uint8" or from == "bool"
          if defined then same(x:to(moth[to]), out, way .. from .. to) end
        end
      end
    end)
  end)

  it("has the functions of one number", function()
    local function check(name, f, op, x)
      local k = map(f)
      both(function(way)
        for _, dtype in ipairs { moth.float32, moth.float64 } do
          local v = x:to(dtype)
          local out = moth.empty_like(v)
          k{ 2 }(v, out, v:numel(), { BLOCK = 32 })
          close(op(v), out, way .. name, 1e-6)
        end
      end)
    end
    local x = moth.linspace(-3, 3, 50)
    check("exp", function(v) return tl.exp(v) end, moth.exp, x)
    check("exp of math", function(v) return math.exp(v) end, moth.exp, x)
    check("tanh", function(v) return v:tanh() end, moth.tanh, x)
    check("erf", function(v) return tl.erf(v) end, moth.erf, x)
    check("gelu", function(v) return tl.gelu(v) end, moth.gelu, x)
    check("sigmoid", function(v) return tl.sigmoid(v) end, moth.sigmoid, x)
    check("silu", function(v) return tl.silu(v) end, moth.silu, x)
    check("sin", function(v) return tl.sin(v) + tl.cos(v) end, function(v) return v:sin() + v:cos() end, x)
    check("floor", function(v) return tl.floor(v) - tl.ceil(v) end, function(v) return v:floor() - v:ceil() end, x)
    check("round", function(v) return tl.round(v) + tl.trunc(v) end, function(v) return v:round() + v:trunc() end, x)
    check("sqrt", function(v) return tl.sqrt(tl.abs(v)) end, function(v) return v:abs():sqrt() end, x)
    check("rsqrt", function(v) return tl.rsqrt(v) end, moth.rsqrt, x:abs() + 1)
    check("log", function(v) return tl.log(v) + tl.log2(v) + tl.log1p(v) end, function(v)
      return v:log() + v:log2() + v:log1p()
    end, x:abs() + 0.1)
    check("pow", function(v) return v ^ 3 + v ^ 2 end, function(v) return v ^ 3 + v:square() end, x)
    check("power", function(v) return tl.abs(v) ^ 0.5 end, function(v) return v:abs() ^ 0.5 end, x)
    check("clamp", function(v) return tl.clamp(v, -1, 2) end, function(v) return v:clamp(-1, 2) end, x)
    check("minimum", function(v) return tl.minimum(v, 1) + tl.maximum(-v, 0.5) end, function(v)
      return v:clamp({ max = 1 }) + (-v):clamp({ min = 0.5 })
    end, x)
    check("division", function(v) return 1 / (v - 7) % 3 end, function(v) return (1 / (v - 7)):remainder(3) end, x)
    check("nan", function(v) return tl.where(tl.isnan(tl.log(v)), 1, 0) + tl.where(tl.isinf(1 / (v * 0)), 1, 0) end,
      function(v) return v:lt(0):to(v:dtype()) + 1 end, moth.tensor { -1, 2, 3 })
  end)

  it("computes with integers in 64 bits, by Lua's rules", function()
    local k = moth.kernel.jit(function(x, out, n)
      local i = tl.arange(0, 8)
      local v = tl.load(x + i)
      tl.store(out + i, v % n)
      tl.store(out + 8 + i, tl.floordiv(v, n))
      tl.store(out + 16 + i, tl.cdiv(v, 3))
      tl.store(out + 24 + i, v * 100003)
      tl.store(out + 32 + i, tl.bitwise_xor(tl.bitwise_and(v, 6), 1))
      tl.store(out + 40 + i, tl.maximum(v, 0) + tl.minimum(v, 0))
    end)
    both(function(way)
      local x = moth.tensor({ -7, -3, -1, 0, 1, 3, 7, 2147483647 }, { dtype = moth.int32 })
      local out = moth.empty({ 48 }, { dtype = moth.int64 })
      k{ 1 }(x, out, 3)
      local v, expected = x:totable(), {}
      for i, a in ipairs(v) do
        expected[i], expected[i + 8], expected[i + 16] = a % 3, math.floor(a / 3), math.ceil(a / 3)
        expected[i + 24], expected[i + 40] = a * 100003, a
        expected[i + 32] = require("bit").bxor(require("bit").band(a, 6), 1)
      end
      same(moth.tensor(expected, { dtype = moth.int64 }), out, way)
    end)
  end)

  it("has programs of three dimensions, counted from 0 #M139 #M146 #M147", function()
    local k = moth.kernel.jit(function(out)
      local x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
      local nx, ny = tl.num_programs(0), tl.num_programs(1)
      tl.store(out + (z * ny + y) * nx + x, x + 10 * y + 100 * z + 1000 * tl.num_programs(2))
    end)
    assert.equal(1, moth.kernel.cdiv(5, 1024))
    both(function(way)
      local out = moth.zeros({ 24 })
      k{ 2, 3, 4 }(out)
      local expected = {}
      for z = 0, 3 do for y = 0, 2 do for x = 0, 1 do expected[#expected + 1] = x + 10 * y + 100 * z + 4000 end end end
      same(moth.tensor(expected), out, way)
      out:zero_()
      k[{ function() return { 1, 0 } end }](out)
      same(moth.zeros(24), out, way)
      k[{ 1 }](out)
      assert.equal(1000, out[1]:item())
    end)
  end)

  it("has blocks of two dimensions, by strides of any tensor #M140", function()
    local k = moth.kernel.jit(function(x, out, rows, columns, sr, sc, M, N)
      local r, c = tl.expand(tl.arange(0, M), 2), tl.expand(tl.arange(0, N), 1)
      local mask = r < rows and c < columns
      local v = tl.load(x + r * sr + c * sc, { mask = mask, other = -1 })
      tl.store(out + c * rows + r, v + tl.trans(tl.trans(v)), { mask = mask })
    end, { constexpr = { "M", "N" } })
    both(function(way)
      for _, x in ipairs { moth.randn(5, 7), moth.randn(7, 5):t(), moth.randn(10, 21)[{ { 1, 10, 2 }, { 1, 21, 3 } }],
        moth.randn(1, 7):expand(5, 7) } do
        local out = moth.zeros(7, 5)
        k{ 1 }(x, out, 5, 7, x:stride(1), x:stride(2), { M = 8, N = 8 })
        same((x * 2):t(), out, way)
      end
    end)
  end)

  it("reduces along a dimension and over all #M150", function()
    local k = moth.kernel.jit(function(x, out, KIND, DIM, M, N)
      local r, c = tl.arange(0, M), tl.arange(0, N)
      local v = tl.load(x + tl.expand(r, 2) * N + c)
      local y
      if KIND == "sum" then y = tl.sum(v, DIM)
      elseif KIND == "prod" then y = tl.prod(v, DIM)
      elseif KIND == "max" then y = tl.max(v, DIM)
      elseif KIND == "min" then y = tl.min(v, DIM)
      elseif KIND == "argmax" then y = tl.argmax(v, DIM)
      elseif KIND == "argmin" then y = tl.argmin(v, DIM)
      elseif KIND == "any" then y = tl.any(v > 1, DIM)
      else y = tl.all(v < 1, DIM) end
      if DIM == nil then
        tl.store(out, y)
      elseif DIM == 1 then
        tl.store(out + c, y)
      else
        tl.store(out + r, y)
      end
    end, { constexpr = { "KIND", "DIM", "M", "N" } })
    both(function(way)
      for _, size in ipairs { { 3, 5 }, { 1, 9 }, { 8, 1 }, { 16, 33 } } do
        for _, kind in ipairs { "sum", "prod", "max", "min", "argmax", "argmin", "any", "all" } do
          for dim = 1, 2 do
            local x = moth.randn(size)
            local out = moth.zeros({ size[3 - dim] })
            k{ 1 }(x, out, { KIND = kind, DIM = dim, M = size[1], N = size[2] })
            local expected
            if kind == "any" then
              expected = x:gt(1):any(dim)
            elseif kind == "all" then
              expected = x:lt(1):all(dim)
            elseif kind == "max" or kind == "min" then
              expected = kind == "max" and x:amax(dim) or x:amin(dim)
            else
              expected = x[kind](x, dim)
            end
            if kind:find("^arg") then expected = expected - 1 end
            close(expected:float(), out, way .. kind .. dim .. size[1])
          end
        end
      end
    end)
  end)

  it("reduces over all elements, and NaN wins", function()
    local k = moth.kernel.jit(function(x, out, M, N)
      local v = tl.load(x + tl.expand(tl.arange(0, M), 2) * N + tl.arange(0, N))
      tl.store(out, tl.sum(v))
      tl.store(out + 1, tl.max(v))
      tl.store(out + 2, tl.min(v))
      tl.store(out + 3, v:max(2, true):sum())
      local w = tl.load(x + tl.arange(0, N))
      tl.store(out + 4, tl.argmax(w))
    end, { constexpr = { "M", "N" } })
    both(function(way)
      local x, out = moth.randn(7, 11), moth.zeros(5)
      k{ 1 }(x, out, { M = 7, N = 11 })
      close(moth.stack { x:sum(), x:amax(), x:amin(), x:amax(2):sum(), (x[1]:argmax() - 1):float() }, out, way)
      x[1][3] = 0 / 0
      k{ 1 }(x, out, { M = 7, N = 11 })
      assert.equal(4, out:isnan():sum():item(), way)
      assert.equal(2, out[5]:item(), way)
    end)
  end)

  it("scans both ways", function()
    local k = moth.kernel.jit(function(x, out, M, N)
      local r, c = tl.expand(tl.arange(0, M), 2), tl.arange(0, N)
      local v, size = tl.load(x + r * N + c), M * N
      tl.store(out + r * N + c, tl.cumsum(v, 2))
      tl.store(out + size + r * N + c, tl.cumsum(v, { dim = 1, reverse = true }))
      tl.store(out + 2 * size + r * N + c, tl.cummax(v, 1))
      tl.store(out + 3 * size + r * N + c, tl.cumprod(v, -1))
    end, { constexpr = { "M", "N" } })
    both(function(way)
      local x, out = moth.randn(6, 10), moth.zeros(4, 6, 10)
      k{ 1 }(x, out, { M = 6, N = 10 })
      close(x:cumsum(2), out[1], way)
      close(x:flip(1):cumsum(1):flip(1), out[2], way)
      local best = x:clone()
      for i = 2, 6 do best[i] = moth.maximum(best[i], best[i - 1]) end
      close(best, out[3], way)
      close(x:cumprod(2), out[4], way)
    end)
  end)

  it("multiplies blocks of every shape #M151", function()
    local k = moth.kernel.jit(function(a, b, out, M, N, K)
      local m, n, kk = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
      local x = tl.load(a + tl.expand(m, 2) * K + kk)
      local y = tl.load(b + tl.expand(kk, 2) * N + n)
      tl.store(out + tl.expand(m, 2) * N + n, tl.dot(x, y) + tl.dot(x, y, tl.full({ M, N }, 1.5)))
    end, { constexpr = { "M", "N", "K" } })
    both(function(way)
      for _, s in ipairs { { 1, 1, 1 }, { 3, 5, 7 }, { 4, 16, 8 }, { 16, 64, 3 }, { 8, 32, 16 }, { 2, 24, 5 } } do
        for _, dtype in ipairs { "float32", "float64", "float16", "int32" } do
          local a = moth.randint(-3, 4, { s[1], s[3] }):to(moth[dtype])
          local b = moth.randint(-3, 4, { s[3], s[2] }):to(moth[dtype])
          local out = moth.zeros(s[1], s[2])
          k{ 1 }(a, b, out, { M = s[1], N = s[2], K = s[3] })
          same(a:float():mm(b:float()) * 2 + 1.5, out, way .. dtype)
        end
      end
    end)
  end)

  it("adds up what programs find by atomics", function()
    local k = moth.kernel.jit(function(x, counts, best, sum, n, BLOCK)
      local offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
      local mask = offs < n
      local v = tl.load(x + offs, { mask = mask, other = 0 })
      tl.atomic_add(counts + v, 1, { mask = mask })
      tl.atomic_max(best, tl.max(v))
      tl.atomic_add(sum, tl.sum(v))
      tl.atomic_min(best + 1 + tl.arange(0, BLOCK) * 0, -v, { mask = mask })
      tl.atomic_cas(best + 2, 0, 5)
      tl.atomic_or(best + 3, tl.max(v))
    end, { constexpr = { "BLOCK" } })
    both(function(way)
      local x = moth.randint(0, 10, { 1000 })
      local counts = moth.zeros({ 10 }, { dtype = moth.int32 })
      local best, sum = moth.zeros({ 4 }, { dtype = moth.int64 }), moth.zeros({ 1 })
      k{ cdiv(1000, 64) }(x, counts, best, sum, 1000, { BLOCK = 64 })
      same(moth.bincount(x + 1, { minlength = 10 }):int(), counts, way)
      assert.same({ 9, -9, 5 }, { best[1]:item(), best[2]:item(), best[3]:item() }, way)
      assert.equal(x:sum():item(), sum:item(), way)
    end)
  end)

  it("leaves alone what the mask leaves out: an empty tensor, what is behind the end of a page #noasan", function()
    local k = map(function(x) return x + 1 end)
    both(function() k{ 4 }(moth.empty(0), moth.empty(0), 0, { BLOCK = 64 }) end)
    local build = os.getenv("MOTH_BUILD") or "build"
    local pipe = io.popen(([[MOTH_GUARD=1 MOTH_LUAJIT_WARNING=0 %s/moth -e '
      local tl = moth.kernel.lang
      local k = moth.kernel.jit(function(x, out, n, BLOCK)
        local i = tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i, { mask = i < n }), { mask = i < n })
      end, { constexpr = { "BLOCK" } })
      for n = 1, 40 do
        local x, out = moth.randn(n), moth.empty(n)
        k{ 1 }(x, out, n, { BLOCK = 4096 })
        assert(moth.equal(x, out))
      end
      print "whole"' 2>&1]]):format(build))
    local text = pipe:read("*a")
    pipe:close()
    assert.equal("whole\n", text)
  end)

  it("sees its own stores, in order, also through tensors that share memory", function()
    local shift = moth.kernel.jit(function(x, out, N)
      local i = tl.arange(0, N)
      local v = tl.load(x + i)
      tl.store(out + i + 1, v)
      tl.store(out + i, v + tl.load(x + i) * 100)
    end, { constexpr = { "N" } })
    local function expected(x)
      x = { unpack(x) }
      local v = { unpack(x, 1, 8) }
      for i = 1, 8 do x[i + 1] = v[i] end
      local w = { unpack(x, 1, 8) }
      for i = 1, 8 do x[i] = v[i] + w[i] * 100 end
      return x
    end
    both(function(way)
      local x = moth.tensor { 1, 2, 3, 4, 5, 6, 7, 8, 9 }
      local wanted = expected(x:totable())
      shift{ 1 }(x, x, { N = 8 })
      assert.same(wanted, x:totable(), way)
      local y = moth.arange(0, 12)
      shift{ 1 }(y[{ { 2, 10 } }], y[{ { 2, 10 } }], { N = 8 })
      assert.equal(0, y[1]:item(), way)
    end)
  end)

  it("leaves the floating-point unit as it was, at every instruction set #noasan", function()
    local build = os.getenv("MOTH_BUILD") or "build"
    for _, level in ipairs(require "levels") do
      local pipe = io.popen(([[MOTH_CPU=%s MOTH_LUAJIT_WARNING=0 %s/moth -e '
        local tl = moth.kernel.lang
        local k = moth.kernel.jit(function(x, out, M, N)
          local v = tl.load(x + tl.expand(tl.arange(0, M), 2) * N + tl.arange(0, N))
          tl.store(out + tl.arange(0, N), tl.argmax(v, 1))
          tl.store(out + tl.arange(0, N), tl.any(v > 1, 1))
          tl.store(out + tl.arange(0, M), tl.all(v > 1, 2))
        end, { constexpr = { "M", "N" } })
        for _, size in ipairs { { 3, 5 }, { 1, 9 }, { 8, 1 }, { 16, 33 } } do
          k{ 1 }(moth.randn(size), moth.zeros(40), { M = size[1], N = size[2] })
          assert(math.ldexp(1, 2) == 4)
        end
        print "whole"' 2>&1]]):format(level, build))
      local text = pipe:read("*a")
      pipe:close()
      assert.equal("whole\n", text, level)
    end
  end)

  it("gives one result for any number of threads and in any run", function()
    local k = moth.kernel.jit(function(x, out, N)
      local v = tl.load(x + tl.program_id(0) * N + tl.arange(0, N))
      tl.store(out + tl.program_id(0), tl.sum(tl.exp(v)) / tl.max(v))
    end, { constexpr = { "N" } })
    local x, first = moth.randn(50, 1000), nil
    local threads = moth.get_num_threads()
    finally(function() moth.set_num_threads(threads) end)
    for n = 1, 3 do
      moth.set_num_threads(n)
      local out = moth.zeros(50)
      k{ 50 }(x, out, { N = 1000 })
      first = first or out
      same(first, out)
    end
    local other = moth.zeros(50)
    assert.equal(k:source_of(x, other, { N = 1000 }), k:source_of(x, other, { N = 1000 }))
  end)

  it("compiles a variant for each constexpr and dtype, once #M145", function()
    local k = map(function(x) return x end)
    local x = moth.randn(10)
    for _ = 1, 3 do k{ 1 }(x, moth.empty(10), 10, { BLOCK = 16 }) end
    assert.equal(1, k.nvariants)
    k{ 1 }(x, moth.empty(10), 10, { BLOCK = 32 })
    k{ 1 }(x:double(), moth.empty(10), 10, { BLOCK = 32 })
    assert.equal(3, k.nvariants)
  end)

  it("reads outer variables as they are at the launch", function()
    local scale, dtype = 2, tl.float64
    local k = moth.kernel.jit(function(out)
      local i = tl.arange(0, 4)
      tl.store(out + i, (i:to(dtype) + 0.5) * scale)
    end)
    both(function(way)
      local out = moth.zeros(4)
      scale = 2
      k{ 1 }(out)
      assert.same({ 1, 3, 5, 7 }, out:totable(), way)
      scale = 4
      k{ 1 }(out)
      assert.same({ 2, 6, 10, 14 }, out:totable(), way)
    end)
  end)

  it("makes what it writes to newer, so that backward does not use it for what was saved", function()
    local double = moth.kernel.jit(function(x, from, N)
      local i = tl.arange(0, N)
      tl.store(x + i, tl.load(from + i) * 2)
    end, { constexpr = { "N" } })
    local w = moth.ones({ 4 }, { requires_grad = true })
    local x, from = moth.ones(4), moth.ones(4)
    local loss = (w * x):sum()
    local before = from:version()
    double{ 1 }(x, from, { N = 4 })
    assert.equal(before, from:version())
    require "fails"("modified|changed", loss.backward, loss)
  end)

  it("tells constants apart that compare as equal, and knows NaN again", function()
    local z = 0
    local k = moth.kernel.jit(function(out, C) tl.store(out, 1 / z) tl.store(out + 1, 1 / C) end,
      { constexpr = { "C" } })
    local out = moth.zeros(2)
    k{ 1 }(out, 0)
    z = -0.0
    k{ 1 }(out, 0)
    assert.same({ -math.huge, math.huge }, out:totable())
    k{ 1 }(out, -0.0)
    assert.same({ -math.huge, -math.huge }, out:totable())
    z = 0 / 0
    for _ = 1, 5 do k{ 1 }(out, 0 / 0) end
    assert.equal(4, k.nvariants)
    local text = moth.kernel.jit(function(o, A, B) tl.store(o, A == "a" and B == "b,cstringc" and 1 or 2) end,
      { constexpr = { "A", "B" } })
    text{ 1 }(out, "a,cstringb", "c")
    text{ 1 }(out, "a", "b,cstringc")
    assert.equal(1, out[1]:item())
  end)

  it("refuses launches that nothing can run, and names that it has not", function()
    local k = map(function(x) return x end)
    local x = moth.ones(4)
    local function fails(text, grid) require "fails"(text, k[grid], x, x, 4, { BLOCK = 4 }) end
    fails("up to three integers, got inf", { math.huge })
    fails("a grid of %d+ programs; there may be 2^53", { 2 ^ 31, 2 ^ 31, 2 ^ 31 })
    fails("num_warps is 1 to 32, got %-1", { 1, num_warps = -1 })
    fails("num_warps is 1 to 32, got a", { 1, num_warps = "a" })
    require "fails"("has no 'lanch'; did you mean 'launch'", function() k:lanch({ 1 }, x, x, 4, 4) end)
    local compiled = moth.compile(function(y) k{ 1 }(y + 1, y, 4, { BLOCK = 4 }) end, { fullgraph = true })
    require "fails"("the graph breaks: the launch of kernel .*kernel_spec", compiled, x)
  end)
end)
