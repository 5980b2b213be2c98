-- Calls whose arguments are sizes that Lua has read of a tensor: compiled, they follow the lengths of each call, in
-- every backend, with and without gradients. Lengths go up, down and back, to 0 and 1, and equal others and constants.
local moth = require "moth"
local S = require "compile.support"
local toolchain = require "moth.utils.toolchain"
local F = moth.nn.functional
local compile = moth.compile

moth.manual_seed(1)
local weight, square = moth.randn(60, 3), moth.randn(40, 40)

-- Functions of x [n, 3], n, and y [m, 3], m.
local functions = {
  function(_, n) return moth.arange(n) end,
  function(_, n) return moth.arange(0, n * 2, 2):float() * 0.5 end,
  function(_, n) return moth.arange(math.floor(n / 2)) end,
  function(_, n) return moth.arange(math.min(n, 10)) end,
  function(_, n) return moth.arange(math.max(n, 10)) end,
  function(_, n) return moth.arange(n, 0, -1) end,
  function(_, n) return moth.eye(n), moth.eye(n, 3):matmul(moth.ones(3, 2)) end,
  function(_, n) return moth.zeros(n), moth.zeros(n, 2) + 1 end,
  function(_, n) return moth.ones { n, n }:tril() end,
  function(x, n) return x:matmul(x:t()):masked_fill(moth.ones(n, n):triu(1):eq(1), -1e3):softmax(-1) end,
  function(_, n) return moth.linspace(0, 1, n + 1), moth.linspace(1, n, 5) end,
  function(_, n) return moth.full({ n, 2 }, n) * 2, moth.full({ 3 }, n) end,
  function(x, n) return moth.ones(1, 3):expand(n, 3) + x end,
  function(_, n) return weight:narrow(1, 1, n) end,
  function(_, n) return weight:narrow(1, n + 1, 5) end,
  function(x, n) return weight:narrow(1, 3, n) + x end,
  function(x, n) return x:narrow(1, 1, math.floor(n / 2)):sum(1) end,
  function(x, n) return n > 0 and x:select(1, n) or x:sum(1) end,
  function(x, n) return n > 1 and x[{ { n - 1, n } }] * 2 or x end,
  function(_, n) return weight:select(1, n + 1) end,
  function(_, n) return moth.ones(1, 2):repeat_(n, 1), moth.arange(3):tile(n) end,
  function(x, n) return x * (1 / (n + 1)), x / math.sqrt(n + 1), x + n end,
  function(x, n) return x:abs():pow(n), (x * 10):clamp(0, n) end,
  function(x, n) return F.embedding(moth.arange(1, n + 1), weight) + x end,
  function(_, n) return F.embedding(moth.tensor { n + 1 }, weight) end,
  function(x, n) return x:view(n * 3), x:view(1, n, 3):transpose(2, 3) * 2 end,
  function(x, n) return moth.cat({ moth.zeros(n, 3), x }, 1) end,
  function(x, n) return F.pad(x, { 0, 0, 0, 12 - math.min(n, 12) }), F.pad(x, { n, 0 }) end,
  function(_, n) return moth.ones(5, 5):tril(n - 5), square:narrow(1, 1, 5):triu(n) end,
  function(x, n) return moth.arange(10):roll(n, 1), x:roll(math.floor(n / 2), 1) end,
  function(x, n) return n > 1 and x:split(math.ceil(n / 2), 1)[1] or x end,
  function(x, n) return n > 1 and x:chunk(2, 1)[2] * 2 or x end,
  function(x, n) return n > 1 and x:unfold(1, n - 1, 1) or x end,
  function(_, n) return square:as_strided({ n, 2 }, { 2, 1 }), square:as_strided({ 2, 2 }, { n, 1 }, n) end,
  function(x, n) return x:new_zeros(n, 2), x:new_full({ n }, n) end,
  function(_, n) return F.one_hot(moth.arange(1, n + 1), n + 1) end,
  function(_, n) return square:gather(2, moth.arange(1, n + 1):view(1, n):expand(2, n)) end,
  function(_, n) return square[{ moth.arange(1, n + 1) }]:sum(1) end,
  function(x, n) return n > 0 and F.layer_norm(x, { n, 3 }) or x end,
  function(x, n) return n > 0 and F.adaptive_avg_pool1d(square:narrow(1, 1, 2):unsqueeze(1), n) or x end,
  function(x, n) return n > 0 and F.interpolate(square:narrow(1, 1, 2):unsqueeze(1), { size = n }) or x end,
  function(_, n)
    local at = moth.arange(n):float():unsqueeze(2) * (moth.arange(0, 4, 2):float() * (-math.log(1e4) / 4)):exp()
    return moth.cat({ at:sin(), at:cos() }, 2)
  end,
  function(x, n)
    local a = moth.arange(n):float()
    return x:matmul(x:t()) + (a:view(1, n) - a:view(n, 1)):abs() * (-0.5 / (n + 1))
  end,
  function(x, n)
    if n == 0 then return x end
    local q = x:unsqueeze(1):unsqueeze(1)
    return F.scaled_dot_product_attention(q, q, q, { attn_mask = moth.ones(n, n):tril():bool() })
  end,
  function(_, n, _, m) return moth.zeros(n, m) + moth.arange(m):float() end,
  function(_, n, _, m) return moth.arange(n + m):float():narrow(1, m + 1, n) end,
  function(_, n, _, m) return moth.ones(math.abs(n - m), 2) * (n - m) end,
  function(x, n, y, m) return F.pad(x, { 0, 0, 0, math.max(m - n, 0) }):sum() + F.pad(y, { 0, 0, 0, n }):sum() end,
  function(x) return moth.arange(x:numel()):view(x:size()) * 2, moth.ones(x:size()) * x:dim() + x end,
  function(x, n) return n > 8 and x * 2 or n == 5 and x - 1 or x + moth.arange(3):float() end,
  function(x, n)
    local s = x:sum(1)
    for i = 1, n do s = s + x:select(1, i) * i end
    return s
  end,
  function(x, n)
    local z = moth.zeros(n + 2, 3)
    z:narrow(1, 2, n):copy_(x)
    return z
  end,
  function(_, n)
    local z = moth.zeros(70, 3)
    z:narrow(1, n + 1, 2):fill_(n)
    return z * 2
  end,
  function(x, n) return moth.zeros(60, 3):index_add(1, moth.arange(1, n + 1), x) end,
  function(_, n) return moth.ones(n):cumsum(1), moth.arange(n):flip { 1 } end,
  function(_, n) return moth.ones(n):diag(), square:diagonal(n) end,
  function(x, n) return F.linear(x, moth.ones(n, 3), moth.arange(n):float()) end,
  function(x, n) return n > 1 and x:sub(x:mean(1, true)):square():sum(1) / (n - 1) or x end,
  function(_, n) return moth.rand(n, 2), moth.randn(n) * n, moth.full({ n }, 0.5):bernoulli() end,
  function(_, n) return F.cross_entropy(moth.ones(n + 1, n + 2), moth.arange(1, n + 2)) end,
  function(x, n)
    local side = math.floor(n / 2)
    return n > 1 and F.conv1d(x:t():unsqueeze(1), moth.ones(2, 3, math.min(n, 3)), nil, { padding = side }) or x
  end,
}

local lengths = {
  { 8, 8, 9, 10, 11, 12, 8, 7 }, { 5, 5, 4, 3, 2, 1, 0, 1, 2, 5 }, { 0, 1, 2, 3, 4, 0 }, { 1, 1, 2, 3, 1, 0, 4, 1 },
  { 10, 10, 3, 4, 10, 12, 3, 20 }, { 3, 3, 4, 3, 5, 2, 3, 6, 6, 6 },
}

-- With the k-th function; inner: in a compiled function of its own.
local function check(k, options, seed, inner)
  local function f(x, y) return functions[k](x, x:size(1), y, y:size(1)) end
  local part = inner and compile(f, options) or f
  local compiled = compile(inner and function(x, y) return part(x, y) end or f, options)
  local list = lengths[seed % #lengths + 1]
  for i, n in ipairs(list) do
    local m = list[i * 7 % #list + 1]
    local function make()
      moth.manual_seed(n * 100 + m)
      local x, y = moth.randn(n, 3), moth.randn(m, 3)
      if seed % 3 ~= 0 then x:requires_grad_(true) end
      return { x, y }
    end
    local want, got = S.outcome(f, make), S.outcome(compiled, make)
    if want ~= got and not S.is_close(want, got) then
      error(("function %d, seed %d, lengths %s, call %d: compiled and eager differ:\n%s\n--- eager:\n%s"):format(k,
        seed, table.concat(list, " "), i, got:sub(1, 600), want:sub(1, 600)), 0)
    end
  end
end

local function all(options, from, step)
  for k = from, #functions, step or 1 do check(k, options, k * 5 + from, k % 4 == 0) end
end

describe("compile: what is made of sizes", function()
  before_each(function() weight:requires_grad_(false) end)

  for _, backend in ipairs { "blocks", "aot_eager", "eager" } do
    it("follows the lengths: " .. backend, function()
      all({ backend = backend }, 1)
      all({ backend = backend, dynamic = true }, 2)
      all({ backend = backend, dynamic = false }, 3, 3)
    end)
  end

  it("follows the lengths where kernels are generated", function()
    if not toolchain.cc() then return end
    local tiers = require "moth.compile.tiers"
    local runs = tiers.runs
    tiers.runs = function() return 3 end
    local ok, e = pcall(function()
      all({}, 1, 5)
      all({ dynamic = true }, 2, 5)
      all({ backend = "inductor" }, 3, 5)
      all({ backend = "inductor", dynamic = true }, 4, 5)
    end)
    tiers.runs = runs
    assert.is_true(ok, e)
  end)

  it("is eager at lengths far from the first, with branches, loops and rounding", function()
    local fmod, ceil, floor, min, max = math.fmod, math.ceil, math.floor, math.min, math.max
    local far = {
      function(x, n) return n > 4096 and x * 2 or n % 2 == 0 and x:narrow(1, 1, n / 2) or x + fmod(n, 13) end,
      function(x, n)
        for i = 1, min(n, 4) do x = x + x * (i * n) end
        return x:narrow(1, max(1, n - 9), min(n, 10)):sum(1)
      end,
      function(x, n)
        local c = ceil(n / 16)
        return F.pad(x, { 0, 0, 0, c * 16 - n }):view(c, 16, 3):mean(2)
      end,
      function(x, n)
        while n > 10 do
          x = x:narrow(1, 1, floor(n / 2)) + n
          n = floor(n / 2)
        end
        return x
      end,
      function(x, n) return n < 10 and x:sum() or n == 1000 and x:amax(1) or n < 100 and x:mean(1) or x:amin(1) end,
      function(x, n)
        local q = min(max(floor(n / 10), 1), 12)
        return x:narrow(1, 1, floor(n / q) * q):view(q, -1, 3):sum(1) * bit.band(n, 15)
      end,
      function(x, n) return x:roll(n % 7, 1) * max(n % 3 - 1, 0) + x / max(n % 5, 1) + math.abs(n - 500) end,
      function(x, n) return moth.cat({ x, moth.full({ floor(n / 3) + 1, 3 }, n) }, 1):clamp(-n / 100, n / 50) end,
    }
    local tiers = require "moth.compile.tiers"
    local runs = tiers.runs
    tiers.runs = function() return 3 end
    local ok, e = pcall(function()
      for k, f in ipairs(far) do
        for _, backend in ipairs { "blocks", toolchain.cc() and "inductor" or nil } do
          for _, mark in ipairs { false, true } do
            local compiled = compile(function(x) return f(x, x:size(1)) end,
              { backend = backend, dynamic = not mark or nil })
            for _, n in ipairs { 4, 5, 8191, 1000, 777, 1, 64, 2049, 2, 100 } do
              local x = moth.arange(3 * n):float():view(n, 3):sin()
              local want = f(x, n)
              if mark then compile.mark_dynamic(x, 1) end
              local got = compiled(x)
              assert(table.concat(want:size(), " ") == table.concat(got:size(), " ")
                and moth.allclose(want, got, 1e-4, 1e-3, true), ("function %d, %s, length %d"):format(k, backend, n))
            end
          end
        end
      end
    end)
    tiers.runs = runs
    assert.is_true(ok, e)
  end)

  it("compiles nothing for lengths that have come before", function()
    compile.reset()
    local function f(x)
      local n = x:size(1)
      return (x * 2 + moth.arange(n):float()):narrow(1, 1, math.floor(n / 2)):sum() * n
    end
    local compiled = compile(f, { backend = "blocks", dynamic = true })
    local function sweep()
      for n = 4, 40 do
        local x = moth.ones(n)
        assert.equal(f(x):item(), compiled(x):item())
      end
    end
    sweep()
    sweep()
    local hits = compile.counters().hits
    sweep()
    assert.equal(hits + 37, compile.counters().hits)
  end)

  it("is one graph from the first length on where a dimension is marked", function()
    local function count(mark, options)
      compile.reset()
      local f = compile(function(list) return list.x * 2 + moth.arange(list.x:size(1)):float() end, options)
      for n = 4, 12 do
        local x = moth.ones(n)
        if mark then assert.equal(x, compile.mark_dynamic(x, 1)) end
        assert.equal(n + 1, (f({ x = x }):max():item()))
      end
      return compile.counters().graphs
    end
    assert.equal(1, count(true, { backend = "blocks" }))
    assert.equal(2, count(false, { backend = "blocks" }))
    assert.equal(9, count(true, { backend = "blocks", dynamic = false }))
    assert.error_matches(function() compile.mark_dynamic(moth.ones(3), 2) end, "dim = 2 is out of range")
    assert.error_matches(function() compile.mark_dynamic(moth.ones(3), 0) end, "dim = 0 is out of range")
  end)

  it("is one graph for lengths that only change", function()
    compile.reset()
    local f = compile(function(x) return x + moth.arange(x:size(1)):float() end, { backend = "blocks" })
    for n = 4, 40 do assert.equal(2 * n - 1, (f(moth.full({ n }, n)):max():item())) end
    assert.is_true(compile.counters().graphs <= 4, compile.counters().graphs)
  end)
end)
