-- Values of tensors: making, changing, reducing, comparing and reading them. Titles name the rows of the mission.
local ffi = require "ffi"
local moth = require "moth"
local testing = require "moth.utils.testing"

local fails = require "fails"
local live = require "live"

local function same(expected, t)
  assert.same(expected, moth.is_tensor(t) and t:detach():totable() or t)
end
local function shape(expected, t) assert.equal("[" .. table.concat(expected, ", ") .. "]", tostring(t:size())) end

describe("tensor", function()
  it("keeps the sign of a zero", function() -- LuaJIT on arm64 takes the constant -0.0 for an integer
    for _, dtype in ipairs { moth.float16, moth.bfloat16, moth.float32, moth.float64 } do
      assert.equal(-math.huge, 1 / moth.tensor({ tonumber("-0") }, { dtype = dtype }):item())
    end
  end)

  it("in-place methods return self and take alpha #M028 #M029", function()
    local v, g = moth.tensor { 1, 2 }, moth.tensor { 10, 20 }
    assert.is_true(rawequal(v, v:mul_(0.5):add_(g)))
    same({ 10.5, 21 }, v)
    v:add_(g, { alpha = -0.5 })
    same({ 5.5, 11 }, v)
    v:sub_(1):div_(2):clamp_(0, 4):neg_():abs_():masked_fill_(moth.tensor { true, false }, 9)
    same({ 9, 4 }, v)
    v:copy_(g)
    same({ 10, 20 }, v)
    v:fill_(3):zero_()
    same({ 0, 0 }, v)
    -- a target that overlaps its operand
    local x = moth.arange(5):float()
    x:narrow(1, 2, 4):add_(x:narrow(1, 1, 4))
    same({ 0, 1, 3, 5, 7 }, x)
    x = moth.arange(4):float():view(2, 2)
    x:copy_(x:t())
    same({ { 0, 2 }, { 1, 3 } }, x)
    moth.transpose(x, 1, 2, { out = x })
    same({ { 0, 1 }, { 2, 3 } }, x)
    moth.mm(x, x, { out = x })
    same({ { 2, 3 }, { 6, 11 } }, x)
    fails("can't be cast", function() moth.ones(2):long():add_(0.5) end)
  end)

  it("like, numel, size #M030 #M031", function()
    local p = moth.randn(1, 128):double()
    for _, f in ipairs { moth.empty_like, moth.zeros_like, moth.ones_like, moth.rand_like, moth.randn_like } do
      local q = f(p)
      shape({ 1, 128 }, q)
      assert.equal(moth.float64, q:dtype())
    end
    assert.equal(128, p:numel())
    assert.equal(2, p:dim())
    assert.equal("[1, 128]", tostring(p:size()))
    assert.equal("[1, 128]", tostring(p.shape))
    assert.equal(128, p:size(2))
    assert.equal(128, p:size(-1))
    fails("out of range", function() p:size(3) end)
    fails("out of range", function() p:size(0) end)
    fails("out of range", function() p:size(1.5) end)
    assert.is_true(p:size() == moth.ones(1, 128):size())
  end)

  it("item #M032", function()
    assert.equal(2.5, moth.tensor(2.5):item())
    assert.equal(true, moth.tensor(true):item())
    assert.equal(7, moth.tensor({ { 7 } }, { dtype = moth.int64 }):item())
    fails("one element|2 elements", function() moth.ones(2):item() end)
    fails("one element|0 elements", function() moth.ones(0):item() end)
    local big = moth.tensor(2 ^ 53, { dtype = moth.int64 })
    assert.equal("number", type(big:item()))
    local more = (big + 1):item()
    assert.equal("cdata", type(more))
    assert.is_true(more == 9007199254740993LL)
    assert.is_true((-(big + 3)):item() == -9007199254740995LL)
    local least = moth.tensor(-2 ^ 62, { dtype = moth.float64 }):long() * 2
    assert.is_true(least:item() == -9223372036854775807LL - 1)
  end)

  it("reductions #M033 #M034", function()
    local x = moth.tensor { { 1, 5, 3 }, { 9, 2, 9 } }
    same({ 2, 1 }, x:argmax(2))
    assert.equal(moth.int64, x:argmax(2):dtype())
    assert.equal(1, x:argmax(2):eq(moth.tensor({ 2, 3 }, { dtype = moth.int64 })):sum():item())
    assert.equal(29, x:sum():item())
    same({ { 9 }, { 20 } }, x:sum { dim = 2, keepdim = true })
    same({ 10, 7, 12 }, x:sum(1))
    assert.equal(9, x:max():item())
    local v, i = x:max(2)
    same({ 5, 9 }, v)
    same({ 2, 1 }, i)
    same({ { 1, 4, 3 }, { 4, 2, 4 } }, x:min(moth.tensor(4)))
    assert.near(x:var():sqrt():item(), x:std():item(), 1e-6)
    assert.equal(3, x:mean(2)[1]:item())
    assert.equal(2430, x:prod():item())
    assert.is_true(x:gt(0):all():item())
    assert.is_false(x:gt(9):any():item())
    assert.near(math.sqrt(201), x:norm():item(), 1e-4)
    assert.equal(moth.int64, moth.ones({ 2 }, { dtype = moth.int8 }):sum():dtype())
    fails("unknown option 'dims'", function() x:sum { dims = 2 } end)
    shape({ 32, 512 }, moth.zeros(32, 128, 512):mean(2))
  end)

  it("tensor(): numbers, nested tables, options #M037 #M038 #quick", function()
    assert.equal(0, moth.tensor(2.0):dim())
    assert.is_true(moth.tensor(2.0, { requires_grad = true }):requires_grad())
    same({ 1, 2 }, moth.tensor { 1.0, 2.0 })
    assert.equal(moth.float32, moth.tensor { 1, 2 }:dtype())
    assert.equal(moth.bool, moth.tensor { true, false }:dtype())
    assert.equal(moth.int8, moth.tensor({ 1, 2 }, { dtype = moth.int8 }):dtype())
    shape({ 2, 2, 1 }, moth.tensor { { { 1 }, { 2 } }, { { 3 }, { 4 } } })
    shape({ 0 }, moth.tensor {})
    shape({ 2, 0 }, moth.tensor { {}, {} })
    fails("ragged", function() moth.tensor { { 1, 2 }, { 3 } } end)
    fails("ragged", function() moth.tensor { { 1, 2 }, 3 } end)
    fails("ragged|expected a number", function() moth.tensor { 1, { 2 } } end)
    fails("mixes", function() moth.tensor { 1, true } end)
    fails("expected a number or boolean, got string", function() moth.tensor { 1, "a" } end)
    fails("got nil", function() moth.tensor(nil) end)
    fails("got userdata", function() moth.tensor(io.stdout) end)
    fails("unknown option 'a'", function() moth.tensor { a = 1 } end)
    fails("not integral", function() moth.tensor({ 1.5 }, { dtype = moth.int64 }) end)
    fails("unknown option 'dtpye'", function() moth.tensor({ 1 }, { dtpye = 1 }) end)
    local deep = 1
    for _ = 1, 80 do deep = { deep } end
    fails("nested more than", function() moth.tensor(deep) end)
    local loop = {}
    loop[1] = loop
    fails("nested more than", function() moth.tensor(loop) end)
    -- copies
    local x = moth.ones(2)
    assert.is_false(moth.tensor(x):shares_storage(x))
    for _, f in ipairs { moth.randn, moth.rand, moth.zeros, moth.ones, moth.empty } do
      local t = f(5, { dtype = moth.double, requires_grad = true })
      assert.equal(moth.float64, t:dtype())
      assert.is_true(t:requires_grad() and t:is_leaf())
      shape({ 5 }, t)
      shape({}, f())
      shape({ 2, 3 }, f { 2, 3 })
      shape({ 2, 3 }, f(2, 3))
      fails("must not be negative", f, -1)
      fails("integ", f, 2.5)
    end
  end)

  it("devices #M040 #M041 #M042 #M043", function()
    assert.equal("cpu", moth.device("cpu").type)
    assert.equal(0, moth.device("cpu").index)
    for _, name in ipairs { "mps", "xla", "cud", "", "cuda:x" } do
      assert.is_false(pcall(moth.device, name), name)
    end
    for _, name in ipairs { "mps", "xla" } do
      fails("device '" .. name .. "': expected cpu, cuda, cuda:N, meta or a registered backend; backend not built",
        moth.device, name)
    end
    assert.equal("cpu", moth.backends()[1])
    assert.equal(moth.cuda.is_available(), table.concat(moth.backends(), " "):find("cuda") ~= nil)
    assert.equal("boolean", type(moth.cuda.is_available()))
    if not moth.cuda.is_available() then
      fails("cuda|CUDA", function() moth.ones(1):cuda() end)
      assert.equal("string", type(moth.cuda.why()))
    end
    local x = moth.ones(1)
    assert.is_false(x:is_pinned())
    x:pin_memory()
    assert.is_true(rawequal(x, x:cpu()))
  end)

  it("foreign memory #M044", function()
    local p = ffi.new("uint8_t[12]", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
    local x = moth.from_ptr(p, { 3, 4 }, { dtype = moth.uint8, owner = p })
    same({ { 1, 2, 3, 4 }, { 5, 6, 7, 8 }, { 9, 10, 11, 12 } }, x)
    p[0] = 100
    assert.equal(100, x[1][1]:item())
    x[1][2] = 55
    assert.equal(55, p[1])
    assert.equal(moth.int64, x:long():dtype())
    -- the owner lives as long as any view
    local gone = false
    local owner = newproxy(true)
    getmetatable(owner).__gc = function() gone = true end
    local y = moth.from_ptr(p, { 4 }, { dtype = moth.uint8, owner = owner })
    owner = nil -- luacheck: ignore
    local v = y:narrow(1, 2, 2)
    y = nil -- luacheck: ignore
    live()
    assert.is_false(gone)
    assert.equal(55, v[1]:item())
    v = nil -- luacheck: ignore
    live()
    assert.is_true(gone)
    -- a file in memory
    pcall(ffi.cdef, "void *mmap(void *at, size_t n, int protection, int flags, int fd, long offset);"
      .. "int munmap(void *at, size_t n); int open(const char *path, int flags, ...); int close(int fd);")
    local path = os.tmpname()
    local f = io.open(path, "wb")
    f:write("\1\0\2\0\255\127")
    f:close()
    local fd = ffi.C.open(path, 0)
    local unmapped = false
    do
      local map = ffi.gc(ffi.cast("int16_t *", ffi.C.mmap(nil, 6, 1, 2, fd, 0)), function(at)
        ffi.C.munmap(at, 6)
        unmapped = true
      end)
      ffi.C.close(fd)
      os.remove(path)
      local mapped = moth.from_ptr(map, { 3 }, { dtype = moth.uint16, owner = map })
      map = nil -- luacheck: ignore
      live()
      assert.is_false(unmapped)
      same({ 1, 2, 32767 }, mapped:long())
    end
    -- typed pointers
    local t = moth.tensor { 1.5, 2.5 }
    local q = t:data()
    assert.equal("ctype<float *>", tostring(ffi.typeof(q)))
    assert.equal(2.5, q[1])
    t = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal(1.5, q[0])
    fails("detach", function() return moth.ones(1, { requires_grad = true }):data() end)
    for _, bad in ipairs { { -1 }, { 2 ^ 61, 8 }, { 0 / 0 }, { "a" }, { 2.5 } } do
      assert.is_false(pcall(moth.from_ptr, p, bad, { dtype = moth.float64 }))
    end
  end)

  it("seeds #M045", function()
    moth.manual_seed(42)
    local a, r = moth.randn(5), math.random()
    moth.manual_seed(42)
    assert.is_true(moth.equal(a, moth.randn(5)))
    assert.equal(r, math.random())
    assert.is_false(moth.equal(a, moth.randn(5)))
    local g = moth.Generator(42)
    moth.manual_seed(1)
    assert.is_true(moth.equal(a, moth.randn(5, { generator = g })))
    local s = moth.get_rng_state()
    local b = moth.rand(7)
    moth.set_rng_state(s)
    assert.is_true(moth.equal(b, moth.rand(7)))
    local seed = moth.seed() -- of no other run
    assert.equal(seed, moth.initial_seed())
    b, r = moth.rand(7), math.random()
    moth.manual_seed(seed)
    assert.is_true(moth.equal(b, moth.rand(7)) and r == math.random())
    assert.not_equal(seed, moth.seed())
    assert.equal(g:seed(), g:initial_seed())
    assert.not_equal(42, g:initial_seed())
    fails("seed", moth.manual_seed, -1)
    fails("seed", moth.manual_seed, "a")
    -- positions count: drawing in parts gives other numbers, all of them uniform
    local u = moth.rand(100000)
    assert.near(0.5, u:mean():item(), 0.01)
    assert.is_true(u:ge(0):all():item() and u:lt(1):all():item())
    local n = moth.randn(100000)
    assert.near(0, n:mean():item(), 0.02)
    assert.near(1, n:std():item(), 0.02)
    local k = moth.randint(-3, 4, { 10000 })
    assert.equal(-3, k:min():item())
    assert.equal(3, k:max():item())
    local perm = moth.randperm(100)
    assert.equal(5050, perm:sum():item())
    assert.equal(1, perm:min():item())
  end)

  it("describe, shares_storage #M046 #M047", function()
    local x = moth.randn(2, 3)
    assert.truthy(moth.describe(x:t()):find("shape [3, 2], stride [1, 3], offset 0, not contiguous", 1, true))
    for _, f in ipairs { "t", "detach", "contiguous" } do assert.is_true(x[f](x):shares_storage(x), f) end
    assert.is_true(x:view(6):shares_storage(x) and x:reshape(6):shares_storage(x)
      and x:to(moth.float32):shares_storage(x))
    for _, y in ipairs { x:clone(), x:t():contiguous(), x:t():reshape(6), x:double(), x[moth.tensor({ 1 },
      { dtype = moth.int64 })],
      x:index_select(1, moth.tensor({ 1 }, { dtype = moth.int64 })), x + 0, x[x:gt(0)] } do
      assert.is_false(y:shares_storage(x))
    end
  end)

  it("sums stay accurate #M049", function()
    local n = 1000000
    local x = moth.full({ n }, 0.1)
    assert.near(n * x[1]:item(), x:sum():item(), 0.1) -- relative 1e-6
    local h = moth.full({ n }, 0.1, { dtype = moth.float16 })
    assert.near(n * h[1]:item(), h:sum { dtype = moth.float32 }:item(), 0.1)
    assert.near(h[1]:item(), h:mean():item(), 1e-4)
    local b = moth.full({ n }, 0.1, { dtype = moth.bfloat16 })
    assert.near(b[1]:item(), b:mean():item(), 1e-3)
    local big = moth.tensor { 1, 1e8, 1, -1e8 }
    assert.is_true(math.abs(big:double():sum():item() - 2) < 1e-6)
  end)

  it("softmax and logsumexp of 1e4 are finite #M053", function()
    local x = moth.tensor { 1e4, -1e4, 9999 }
    testing.assert_close(x:softmax(1):sum(), moth.tensor(1))
    assert.is_true(x:log_softmax(1):isfinite():all():item())
    testing.assert_close(x:logsumexp(1), moth.tensor(1e4 + math.log(1 + math.exp(-1))))
    assert.equal(-math.huge, moth.full({ 3 }, -math.huge):logsumexp(1):item())
  end)

  it("NaN and Inf go through all that computes #M054", function()
    local nan, inf = 0 / 0, math.huge
    local x = moth.tensor { 1, nan, inf, -inf }
    local function isnan(t) return t:isnan():any():item() end
    same({ false, true, false, false }, x:isnan())
    same({ false, false, true, true }, x:isinf())
    same({ true, false, false, false }, x:isfinite())
    for _, f in ipairs { "sum", "mean", "prod", "max", "min", "var", "std",
      "norm" } do assert.is_true(isnan(x[f](x)), f) end
    for _, f in ipairs { "relu", "sigmoid", "tanh", "exp", "log", "abs", "neg", "sqrt", "floor", "round", "erf",
      "gelu", "silu",
      "softplus", "hardtanh", "elu", "leaky_relu", "square", "sin", "frac", "log1p", "expm1", "reciprocal", "mish",
      "log_sigmoid", "trunc", "atan" } do
      assert.is_true(isnan(x[f](x)[2]), f)
    end
    assert.is_true(isnan(x:clamp(-1, 1)[2]))
    assert.is_true(isnan(x:maximum(5)[2]) and isnan(x:minimum(5)[2]) and isnan(moth.maximum(moth.ones(4), x)[2]))
    assert.is_true(isnan(x:softmax(1)) and isnan(x:cumsum(1)[4]) and isnan(x * 0))
    assert.equal(2, x:argmax():item())
    assert.equal(2, x:argmin():item())
    local v, i = x:max(1)
    assert.is_true(isnan(v))
    assert.equal(2, i:item())
    same({ false, false, false, false }, x:eq(nan))
    same({ true, true, true, true }, x:ne(nan))
    same({ false, false, false, false }, x:lt(nan))
    assert.is_true(isnan(moth.tensor { { nan, 1 }, { 1, 1 } }:mm(moth.zeros(2, 2))))
    assert.is_true(isnan(moth.tensor { inf } - inf))
    -- a long vector with one NaN in each place of a vector register
    for n = 1, 70 do
      local y = moth.zeros(70)
      y[n] = nan
      assert.is_true(isnan(y:max()) and isnan(y:min()) and isnan(y:sum()), tostring(n))
      assert.equal(n, y:argmax():item())
    end
  end)

  it("assert_close says what differs #M055", function()
    local a = moth.tensor { { 1, 2 }, { 3, 4 } }
    assert.is_true(testing.assert_close(a, a + 1e-7))
    local err = fails("2 of 4 elements differ %(50.0 %%%)", testing.assert_close, a, moth.tensor { { 1, 2.5 }, { 3.1,
      4 } })
    assert.truthy(err:find("greatest absolute difference: 0.5 at [1, 2]", 1, true))
    assert.truthy(err:find("greatest relative difference: 0.2 at [1, 2]", 1, true))
    fails("shapes are not equal: %[2, 2%] and %[4%]", testing.assert_close, a, a:view(4))
    fails("dtypes are not equal: float32 and float64", testing.assert_close, a, a:double())
    assert.is_true(testing.assert_close(a, a:double(), { check_dtype = false }))
    local nan = moth.tensor { 0 / 0 }
    fails("1 of 1", testing.assert_close, nan, nan)
    assert.is_true(testing.assert_close(nan, nan, { equal_nan = true }))
    assert.is_true(testing.assert_close(moth.tensor { 1 / 0 }, moth.tensor { 1 / 0 }))
    fails("differ", testing.assert_close, moth.tensor { 1 / 0 }, moth.tensor { -1 / 0 })
    fails("differ", testing.assert_close, moth.tensor { 1 / 0 }, moth.tensor { 1 })
    assert.is_true(testing.assert_close(a:bfloat16(), (a * 1.01):bfloat16()))
    fails("differ", testing.assert_close, a:half(), (a * 1.01):half())
    assert.is_true(testing.assert_close(a, a * 1.01, { rtol = 0.02, atol = 0 }))
    fails("both, or neither", testing.assert_close, a, a, { rtol = 1 })
    fails("unknown option", testing.assert_close, a, a, { tol = 1 })
    fails("my text", testing.assert_close, a, a + 1, { message = "my text" })
    assert.is_true(testing.assert_close(moth.tensor(3), 3))
    fails("differ", testing.assert_close, 1e6, 1e6 + 0.5) -- close by the tolerance of float32
    assert.is_true(testing.assert_close(0.1 + 0.2, 0.3))
    assert.is_true(testing.assert_close(moth.ones(0), moth.ones(0)))
    local big = moth.tensor(2 ^ 53, { dtype = moth.int64 })
    fails("differ", testing.assert_close, big, big + 1)
    fails("must be a tensor", testing.assert_close, a, print)
    local where = fails("differ", function() testing.assert_close(a, a + 1) end)
    assert.truthy(where:find("^spec/core/tensor_values_spec.lua:%d+: "), where)
    -- The same as an assertion of busted's.
    assert.is_close(a, a + 1e-7)
    assert.is_not_close(a, a + 1)
    assert.are_not.close(a, a:double())
    assert.is_close(a, a:double(), { check_dtype = false })
    assert.error_matches(function() assert.is_close(a, moth.tensor { { 1, 2.5 }, { 3, 4 } }) end,
      "1 of 4 elements differ.*greatest absolute difference: 0.5 at %[1, 2%]")
    assert.error_matches(function() assert.is_not_close(a, a) end, "Expected tensors that are not close")
    assert.error_matches(function() assert.is_close(a, a, { tol = 1 }) end, "unknown option 'tol'")
    assert.error_matches(function() assert.is_not_close(a, print) end, "must be a tensor")
  end)

  it("make_tensor depends on its arguments only", function()
    for _, d in ipairs { "float32", "float16", "bfloat16", "float64", "int8", "uint8", "int64", "bool" } do
      moth.manual_seed(1)
      local a = testing.make_tensor({ 3, 4 }, d, 5)
      moth.manual_seed(2)
      moth.rand(3)
      assert.is_true(moth.equal(a, testing.make_tensor({ 3, 4 }, d, 5)))
      assert.is_false(moth.equal(a, testing.make_tensor({ 3, 4 }, d, 6)))
      assert.equal(d, a:dtype().name)
      assert.is_false(testing.make_tensor({ 3, 4 }, d, 5, { noncontiguous = true }):is_contiguous())
      assert.is_true(testing.make_tensor({ 50 }, d, 5, { exclude_zero = true }):ne(0):all():item())
    end
    assert.is_true(testing.make_tensor({ 2 }, moth.float32, 1, { requires_grad = true }):requires_grad())
  end)

  it("allclose, equal #M056", function()
    local a = moth.tensor { 1, 1000 }
    assert.is_true(moth.allclose(a, a * 1.0005, 1e-3, 1e-3))
    assert.is_false(moth.allclose(a, a * 1.005, 1e-3, 1e-3))
    assert.is_true(a:allclose(a * 1.0005, { rtol = 1e-3, atol = 1e-3 }))
    local nan = moth.tensor { 0 / 0 }
    assert.is_false(nan:allclose(nan))
    assert.is_true(nan:allclose(nan, { equal_nan = true }))
    assert.is_false(moth.tensor { 1 / 0 }:allclose(moth.tensor { 5 }))
    assert.is_false(moth.equal(a, a:view(1, 2)))
    assert.is_true(moth.equal(a, a:clone()))
  end)

  it("totable #M058", function()
    same({ { 1, 2 }, { 3, 4 } }, moth.tensor { { 1, 3 }, { 2, 4 } }:t())
    same({}, moth.ones(0))
    same({ {}, {} }, moth.ones(2, 0))
    assert.equal(3, moth.tensor(3):totable())
    fails("detach", function() moth.ones(1, { requires_grad = true }):totable() end)
  end)

  it("creation #M059", function()
    same({ 0, 0.25, 0.5, 0.75, 1 }, moth.linspace(0, 1, 5))
    same({ { 1, 0 }, { 0, 1 } }, moth.eye(2))
    same({ 1.5, 1.5 }, moth.full({ 2 }, 1.5))
    same({ 5, 3, 1 }, moth.arange(5, 0, -2))
    same({ 0, 0.5, 1 }, moth.arange(0, 1.25, 0.5))
    assert.equal(moth.float32, moth.arange(0, 1.5, 0.5):dtype())
    same({ 3, 1 }, moth.tensor { 1, 2, 3 }:index_select(1, moth.tensor({ 3, 1 }, { dtype = moth.int64 })))
    same({ { 2 }, { 3 } }, moth.tensor { { 1, 2 }, { 3, 4 } }:gather(2, moth.tensor({ { 2 }, { 1 } },
      { dtype = moth.int64 })))
    same({ { 1, 1 }, { 2, 2 } }, moth.tensor({ { 1 }, { 2 } }):expand(2, 2))
    local parts = moth.arange(5):split(2)
    assert.equal(3, #parts)
    same({ 4 }, parts[3])
    assert.equal(2, #moth.arange(5):chunk(2))
    same({ 1, 2, 1, 2 }, moth.tensor({ 1, 2 }):repeat_(2))
  end)
end)
