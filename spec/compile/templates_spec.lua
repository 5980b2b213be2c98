-- Code for any sizes: random functions of open sizes with generated kernels, at sizes far from the first ones: the bits
-- of code that is made for each size; and how often graphs are taken apart. MOTH_CASES is how many are run (9), from
-- MOTH_FROM (1) on.
local child = require "child"
local moth = require "moth"
local S = require "compile.support"
local templates = require "moth.compile.templates"
local toolchain = require "moth.utils.toolchain"
local F = moth.nn.functional
local compile = moth.compile

local state
local function rnd(n)
  state = (state * 1664525 + 1013904223) % 2 ^ 32
  return math.floor(state / 2 ^ 16) % n + 1
end

moth.manual_seed(3)
local weight, bias, square = moth.randn(6), moth.randn(6), moth.randn(6, 6) * 0.4
local table_of = moth.randn(1200, 6)

-- Steps: functions of the tensor so far, [n, 6], of n and a number.
local steps = {
  function(x) return x * 2 + 1 end, function(x) return x:relu() - x:tanh() end,
  function(x) return x:softmax(-1) * x end, function(x) return x - x:mean(-1, true) end,
  function(x) return x - x:mean(1, true) end, function(x) return x / (x:square():sum(1, true) + 1):sqrt() end,
  function(x) return F.layer_norm(x, { 6 }, weight, bias) end, function(x) return x:matmul(square) end,
  function(x) return F.linear(x, square, bias) end, function(x) return F.gelu(x) + weight end,
  function(x, n) return x * (1 / (n + 1)) + n end,
  function(x, n) return x + moth.arange(n):float():view(n, 1) / (n + 1) end,
  function(x, n) return x + table_of:narrow(1, 1, n) end,
  function(x, n) return x + table_of:index_select(1, moth.arange(1, n + 1)) end,
  function(x) return x:t():contiguous():t() + 1 end, function(x) return (x:t() * 2):exp():log():t() end,
  function(x, n) return x:view(n, 2, 3):sum(2):repeat_(1, 2) * 0.5 end,
  function(x, n) return x:reshape(-1):view(n, 6):sigmoid() end,
  function(x, n) return moth.cat({ x:narrow(2, 1, 3) * 2, x:narrow(2, 4, 3) }, 2) + n end,
  function(x, n) return moth.cat({ x, x:exp():log() + 1 }, 1):narrow(1, math.floor(n / 2) + 1, n) end,
  function(x, n) return n > 1 and x:narrow(1, 2, n - 1):sum(1) + x or x * 3 end,
  function(x, n) return x:masked_fill(moth.ones(n, 6):tril():eq(0), -2):abs() end,
  function(x, n) return n > 64 and x * 0.5 or x + 0.25 end,
  function(x, n) return x + x:narrow(1, 1, math.min(n, 9)):sum() * (1 / 1024) end,
  function(x) return x:matmul(x:t()):softmax(-1):matmul(x) end,
  function(x) return x + x:amax(1, true) - x:amin(-1, true) end,
  function(x, n) return x * x:sum() / (n * 6) end,
  function(x, n) return F.pad(x, { 0, 0, 0, (math.ceil(n / 8) * 8 - n) }):narrow(1, 1, n) end,
  function(x, n) return x:unsqueeze(1):expand(3, n, 6):sum(1) end,
  function(x) return x:var(1, { keepdim = true, correction = 0 }) + x end,
  function(x) return x:logsumexp(-1, true) + x:clamp(-1, 1) end,
}

local lengths = { { 5, 6, 7, 33, 512, 1, 64, 65, 0 }, { 40, 41, 1000, 16, 15, 6, 12 }, { 6, 7, 12, 18, 36, 1025, 2 },
  { 1, 2, 3, 4, 600 } }

local function outcome(f, n, grad)
  moth.manual_seed(n + 7)
  local x = moth.randn(n, 6):requires_grad_(grad)
  local ok, y = pcall(f, x)
  if not ok then return { S.message(y) } end
  local list = { y:detach():clone() }
  if grad and y:requires_grad() then
    (y:square():mean() + y:sum()):backward()
    list[2] = x.grad
  end
  return list
end

local function is_same(a, b)
  if not moth.is_tensor(a) or not moth.is_tensor(b) then return a == b end
  return S.text(a) == S.text(b)
end

-- Sums are in another order: by the largest element.
local function is_close(a, b)
  if not moth.is_tensor(a) or a:numel() == 0 then return true end
  local most = a:abs():max():item()
  return most ~= most or most == math.huge or (a - b):abs():max():item() <= 0.02 * most + 0.01
end

-- fn(…), where nothing is known of other sizes.
local function by_size(fn, ...)
  local find, make = templates.find, templates.make
  templates.find, templates.make = function() end, function() end
  local results = { pcall(fn, ...) }
  templates.find, templates.make = find, make
  assert(results[1], results[2])
  return unpack(results, 2)
end

local function check(seed)
  state = seed * 2654435 % 2 ^ 32
  local list, names = {}, {}
  for i = 1, 2 + rnd(4) do
    names[i] = rnd(#steps)
    list[i] = steps[names[i]]
  end
  local function f(x)
    local n = x:size(1)
    for _, step in ipairs(list) do x = step(x, n) end
    return x
  end
  local grad = seed % 2 == 0
  local any = compile(f, { backend = "inductor", dynamic = seed % 3 ~= 0 or nil })
  local each = compile(f, { backend = "inductor", dynamic = seed % 3 ~= 0 or nil })
  for call, n in ipairs(lengths[seed % #lengths + 1]) do
    local eager, want, got = outcome(f, n, grad), by_size(outcome, each, n, grad), outcome(any, n, grad)
    for i = 1, math.max(#want, #got) do
      if not is_same(want[i], got[i]) or not is_close(eager[i], got[i]) then
        local text = "seed %d, steps %s, call %d, length %d, value %d: %s\n--- for each size:\n%s\n--- eager:\n%s"
        error(text:format(seed, table.concat(names, " "), call, n, i, tostring(got[i]):sub(1, 300),
          tostring(want[i]):sub(1, 300), tostring(eager[i]):sub(1, 300)), 0)
      end
    end
  end
end

-- How many groups of calls become kernels while f runs at these lengths, the first of which are two.
local function groups_of(f, grad, list)
  compile.reset()
  local compiled = compile(f, { backend = "inductor", dynamic = true })
  for _, n in ipairs { 100, 101 } do outcome(compiled, n, grad) end
  local before = compile.counters()
  for _, n in ipairs(list) do
    for i, v in ipairs(outcome(compiled, n, grad)) do assert.is_true(is_close(outcome(f, n, grad)[i], v)) end
  end
  assert.equal(before.graphs, compile.counters().graphs)
  return compile.counters().groups - before.groups
end

describe("compile: code for any sizes", function()
  if not toolchain.cc() then return end
  before_each(compile.reset)

  it("gives what is computed uncompiled", function()
    local count, from = tonumber(os.getenv "MOTH_CASES") or 9, tonumber(os.getenv "MOTH_FROM") or 1
    local failures = {}
    for seed = from, from + count - 1 do
      local ok, e = pcall(check, seed)
      if not ok then failures[#failures + 1] = e end
    end
    assert.equal("", table.concat(failures, "\n\n"))
  end)

  it("is made once for lengths 64 to 512", function()
    local list = {}
    for n = 64, 512, 14 do list[#list + 1] = n end
    for _, grad in ipairs { false, true } do
      assert.equal(0, groups_of(function(x) return ((x * 2 + 1):relu() * x):sum(2) end, grad, list))
      assert.equal(0, groups_of(function(x)
        local n = x:size(1)
        local mask = moth.ones(n, n):triu(1):eq(1)
        local scores = (x:matmul(x:t()) / math.sqrt(6)):masked_fill(mask, -1e3)
        return scores:softmax(-1):matmul(x) + moth.arange(n):float():view(n, 1)
      end, grad, list))
      assert.equal(0, groups_of(function(x)
        local n = x:size(1)
        local half = x:narrow(1, 1, math.floor(n / 2))
        return half:exp() * (1 / n) + half:mean(1, true)
      end, grad, list))
    end
  end)

  it("says where it holds: explain, MOTH_LOGS=guards", function()
    local text = child([[
      local moth = require "moth"
      local f = moth.compile(function(x) return (x * 2 + 1):relu():sum(2) end, { backend = "inductor", dynamic = true })
      f(moth.ones(9, 20))
      f(moth.ones(9, 21))
      print(moth.compile.explain(f, moth.ones(9, 22)))
    ]], { env = "MOTH_LOGS=guards" })
    assert.matches("kernels for any sizes where\n  x1:size%(2%) >= 16", text)
    assert.matches("kernels are for x1:size%(2%) >= 16", text)
  end)

  it("is not asked again where there is nothing to fuse", function()
    local make, count = templates.make, 0
    templates.make = function(...)
      count = count + 1
      return make(...)
    end
    local f = compile(function(x) return x:matmul(x:t()) end, { backend = "inductor", dynamic = true })
    for n = 7, 19 do f(moth.ones(n, 6)) end
    templates.make = make
    assert.equal(1, count)
  end)
end)
