-- Sorting on the device is the CPU's, positions of equal elements included: rows that fit into a block, rows of which
-- the first are picked, rows that are sorted all at once; NaN, infinities and both zeros; every dtype.
local moth = require "moth"

local all = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool" }

local function random(dtype, ...)
  local t = moth.randint(-60, 61, { ... }):to "float32" / 4
  if dtype == "bool" then return t:gt(0) end
  t = t:to(dtype)
  if t:is_floating_point() and t:numel() > 20 then
    local flat = t:view(-1)
    for i, x in ipairs { 0 / 0, math.huge, -math.huge, -0.0, 0 } do flat[{ { i, -1, 7 } }] = x end
  end
  return t
end
local function same(what, dtype, a, b)
  b = b:cpu()
  assert.same(a:size(), b:size(), what)
  a, b = a:double(), b:double()
  local nan = a:isnan()
  assert(moth.equal(nan, b:isnan()), ("%s %s: NaN elsewhere"):format(what, dtype))
  assert(moth.equal(a:masked_fill(nan, 0), b:masked_fill(nan, 0)), ("%s %s: the values differ"):format(what, dtype))
end
local function both(what, dtype, x, f)
  local v, p = f(x)
  local w, q = f(x:cuda())
  same(what .. ", values", dtype, v, w)
  same(what .. ", positions", dtype, p, q)
end

describe("sorting on CUDA", function()
  if not moth.cuda.is_available() then
    it("is the CPU's", function() pending(moth.cuda.why()) end)
    return
  end
  local shapes = { { 1 }, { 2 }, { 33 }, { 1024 }, { 1025 }, { 7, 5 }, { 3, 1100 }, { 40, 3, 2 }, { 2, 1300, 3 },
    { 0, 4 }, { 4, 0 } }

  it("sort: every dtype, dimension and direction", function()
    for _, dtype in ipairs(all) do
      for _, shape in ipairs(shapes) do
        local x = random(dtype, unpack(shape))
        for dim = 1, #shape do
          for _, descending in ipairs { false, true } do
            both(("sort of %s along %d"):format(table.concat(shape, "x"), dim), dtype, x,
              function(t) return t:sort(dim, descending) end)
          end
        end
      end
      both("sort of a 0-dim", dtype, random(dtype, 3)[1], function(t) return t:sort() end)
      both("sort of a view", dtype, random(dtype, 9, 14), function(t) return t:t():narrow(1, 3, 10):sort(2) end)
    end
  end)
  it("topk: few of short and long rows, many, all; largest and smallest", function()
    for _, dtype in ipairs(all) do
      for _, shape in ipairs { { 12 }, { 5, 9 }, { 2, 2100 }, { 3, 1500, 2 } } do
        local x = random(dtype, unpack(shape))
        for dim = 1, #shape do
          local n = shape[dim]
          for _, k in ipairs { 0, 1, math.min(n, 7), math.floor(n / 5), math.ceil(n / 2), n } do
            for _, largest in ipairs { true, false } do
              both(("topk %d of %s along %d"):format(k, table.concat(shape, "x"), dim), dtype, x,
                function(t) return t:topk(k, dim, largest) end)
            end
          end
        end
      end
    end
  end)
  it("many equal elements: the first are taken, in order", function()
    for _, n in ipairs { 1000, 3000 } do
      local x = moth.zeros(2, n)
      x[{ 1, { 5, -1, 3 } }] = 1
      both("topk", "float32", x, function(t) return t:topk(20) end)
      both("topk", "float32", x, function(t) return t:topk(20, 2, false) end)
      both("sort", "float32", x, function(t) return t:sort() end)
    end
  end)
  it("argsort, kthvalue and median go through it", function()
    local x = random("float32", 3, 1200)
    same("argsort", "float32", x:argsort(2, true), x:cuda():argsort(2, true))
    both("kthvalue", "float32", x, function(t) return t:kthvalue(17) end)
  end)
  it("gradients go back to where elements came from", function()
    for _, f in ipairs { function(t) return (t:sort(1)) end, function(t) return (t:topk(4, 2)) end } do
      local grads = {}
      for i, device in ipairs { "cpu", "cuda" } do
        local x = moth.linspace(-3, 4, 60):view(5, 12):cos():to(device):detach():requires_grad_(true)
        local y = f(x)
        local sum = (y * moth.linspace(1, 2, y:numel()):view(unpack(y:size())):to(device)):sum()
        sum:backward()
        grads[i] = x.grad
      end
      same("gradient", "float32", grads[1], grads[2])
    end
  end)
  it("randperm of any size and dtype is the CPU's permutation", function()
    for _, n in ipairs { 0, 1, 2, 3, 100, 4097, 50000 } do
      for _, dtype in ipairs { "int64", "int32", "float64" } do
        local g, h = moth.Generator(5), moth.Generator(5)
        local a, b = moth.randperm(n, { dtype = dtype, generator = g }),
          moth.randperm(n, { dtype = dtype, generator = h, device = "cuda" })
        same("randperm " .. n, dtype, a, b)
        assert.equal(dtype, tostring(b:dtype()):gsub("^moth%.", ""))
      end
    end
  end)
end)
