-- Positions count from 0 in ONNX files: which inputs and results are positions (src/ops/positions.lua).
local moth = require "moth"
local nn, F = moth.nn, moth.nn.functional

describe("positions in ONNX files", function()
  local path, table_, x, i, j, mask

  before_each(function()
    moth.manual_seed(1)
    path, table_ = os.tmpname(), nn.Embedding(12, 3)
    x = moth.tensor { { 1, 5, 2, 0 }, { 9, 0, -1, 4 }, { 3, 2, 8, 7 } }
    i, j, mask = moth.tensor { 1, 3, 2 }:long(), moth.tensor { 2, 4, 4 }:long(), moth.tensor { 1, 0, 1 }:bool()
  end)
  after_each(function() os.remove(path) end)

  -- inputs, results: the places of those that are positions, "1 2".
  local function check(f, args, inputs, results)
    local function from_zero(list, which)
      local out = {}
      for k, t in ipairs(list) do out[k] = (" " .. which .. " "):find(" " .. k .. " ") and t - 1 or t end
      return out
    end
    local names, feed = {}, {}
    local given, want = from_zero(args, inputs), from_zero({ f(unpack(args)) }, results)
    for k, t in ipairs(given) do names[k] = "x" .. k; feed["x" .. k] = t end
    moth.onnx.export(f, args, path, { input_names = names })
    local got = moth.onnx.InferenceSession(path):run(nil, feed)
    for k, t in ipairs(want) do
      assert.equal(t:dtype(), got[k]:dtype())
      assert.equal(tostring(t:size()), tostring(got[k]:size()))
      assert.is_true(moth.allclose(t:double(), got[k]:double()), ("result %d of %s"):format(k, debug.traceback()))
    end
  end

  local function fails(pattern, f, args)
    local ok, message = pcall(moth.onnx.export, f, args, path)
    assert.is_false(ok)
    assert.matches(pattern, message)
  end

  it("of inputs: through casts, joins, choices, padding and index tensors", function()
    local e = table_
    for _, dtype in ipairs { "int64", "int32", "int8", "uint8" } do
      check(function(ids) return e(ids:long()) end, { i:to(moth[dtype]) }, "1", "")
    end
    check(function(a, b) return e(moth.cat { a, b }) end, { i, j }, "1 2", "")
    check(function(a, b) return e(moth.stack { a, b }) end, { i, j }, "1 2", "")
    check(function(a, b, m) return e(moth.where(m, a, b)) end, { i, j, mask }, "1 2", "")
    check(function(a, m) return e(moth.where(m, a, 1)) end, { i, mask }, "1", "")
    check(function(a, m) return e(a:masked_fill(m, 5)) end, { i, mask }, "1", "")
    check(function(a) return e(F.pad(a, { 1, 2 }, "constant", 1)) end, { i }, "1", "")
    check(function(a) return e(moth.cat { moth.ones(2):long(), a }) end, { i }, "1", "")
    check(function(t, a, b) return t[{ a, b }] end, { x, i, j }, "2 3", "")
    check(function(t, a) return t[{ {}, a }] end, { x, j }, "2", "")
    check(function(t, a) return moth.take_along_dim(t, a:unsqueeze(2), 2) end, { x, j }, "2", "")
    check(function(a) return F.one_hot(a:flip(1), 5) end, { j }, "1", "")
    check(function(t, a) return F.cross_entropy(t, a:long()) end, { x, i:int() }, "2", "")
    check(function(a) return e((a - 1) * 2 + 1) end, { i }, "1", "")
    check(function(a) return e(a + 2) end, { i }, "1", "")
    check(function(a) return e(a + moth.tensor { 0, 3, 6 }:long()) end, { i }, "1", "")
    check(function(a) local y = moth.ones(2, 3):long(); y[1] = a; return e(y) end, { i }, "1", "")
    check(function(t, a)
      return moth.cond(t:sum():gt(0), function(b) return e(b) end, function(b) return e(b) * 2 end, { a })
    end, { x, i }, "2", "")
  end)

  it("of inputs that are compared, and of those that are numbers", function()
    local e = table_
    check(function(a) return e(a), a:ne(1), a:eq(2):sum() end, { i }, "1", "")
    check(function(t, a) return t:argmax(2):eq(a):float():mean() end, { x, i }, "2", "")
    check(function(a, b) return a:eq(b), e(a) end, { i, j }, "1 2", "")
    check(function(a) return e(a + 1) end, { i }, "", "")
    check(function(a) return e(a:long()) end, { i:float() }, "", "")
    check(function(a, b) return moth.cat { a, b } * 2, a:unsqueeze(1) end, { i, j }, "", "")
    check(function(a, t) return e(a), moth.cat { a, t:argmax(2) } end, { i, x }, "1", "2")
  end)

  it("of results: the ops that give them, and what hands them on", function()
    local function second(name, ...)
      local more = { ... }
      check(function(t) return t[name](t, unpack(more)) end, { x }, "", "2")
    end
    for name in ("max min sort median nanmedian mode cummax cummin"):gmatch "%a+" do second(name, 2) end
    second("topk", 2, 2)
    second("kthvalue", 2, 2)
    check(function(t) return t:argmax(2):float(), t:argmin():int(), t:argsort(2):argsort(2) end, { x }, "", "1 2 3")
    check(function(t)
      return moth.cat { t:argmax(2), t:argmin(2) }, moth.stack({ t:argmax(2), t:argmin(2) }, 2)
    end, { x }, "", "1 2")
    check(function(t, m)
      return moth.where(m, t:argmax(2), 1), t:argmax(2):masked_fill(m, 2), t:argmax(2):clamp(2, 3)
    end, { x, mask }, "", "1 2 3")
    check(function(t) return F.pad(t:argmax(2), { 1, 1 }, "constant", 1), t:argsort(2):gather(2, t:argmax(2, true)),
      t:argsort(2):t():roll(1, 1), t:argmax(2):repeat_interleave(2) end, { x }, "", "1 2 3 4")
    check(function(t) return t:argmax(2):max(), t:argsort(2):sort(2), t:argmax(2) + 2 end, { x }, "", "1 2 3")
    local bounds = moth.tensor { 1, 3 }
    check(function(t) return moth.searchsorted(t:sort(2), t), moth.bucketize(t, bounds) end, { x }, "", "1 2")
    check(function(t) return moth.unravel_index(t:argmax(), { 3, 4 }) end, { x }, "", "1 2")
    check(function(t) local y = moth.zeros(2, 3):long(); y[1] = t:argmax(2); return y end, { x }, "", "1")
    check(function(t) return F.max_pool2d(t:view(1, 1, 3, 4), 2, { return_indices = true }) end, { x }, "", "2")
  end)

  it("of results that are numbers", function()
    check(function(t) return t:argmax(2) - 1, t:argmax(2) * 2, t:argmax(2):float():mean() end, { x }, "", "")
    check(function(t) return t:argmax(2) - t:argmin(2), -t:argmax(2), t:quantile(0.5, 2) end, { x }, "",
      "")
    check(function(t) return t + t:argmax(2):unsqueeze(2), t:argsort(2):float() - t, t:argmax(2):float() + 0.5 end,
      { x }, "", "3")
  end)

  it("both are errors that name both uses #quick", function()
    local e = table_
    local both = "as positions %(embedding at .*positions_spec.*as numbers %(mul at"
    fails(both, function(a) return e(a), a * 2 end, { i })
    fails("input b is used as positions .*%(sum at",
      function(a, b) return e(moth.cat { a, b }), b:float():sum() end, { i, j })
    fails("output 1 holds positions %(argmax at .* and numbers %(sum at",
      function(t) return moth.cat { t:argmax(2), t:sum(2):long() } end, { x })
  end)

  it("scatters the part of a tensor that the index covers; chooses one of two numbers in their dtype", function()
    local ids = moth.tensor { { 1, 3 }, { 4, 2 } }:long()
    for _, name in ipairs { "scatter", "scatter_add" } do
      check(function(t, a) return t[name](t * 2, 2, a, t) end, { x, ids }, "2", "")
      local f = io.open(path, "rb")
      assert.truthy(f:read("*a"):find("Slice", 1, true)) -- runtimes refuse updates that are larger than the index
      f:close()
    end
    check(function(m) return moth.where(m, 1, 0), moth.where(m, 1.5, 0), moth.where(m, true, false) end,
      { mask }, "", "")
  end)

  it("the order of positions does not depend on where they count from: the last token by argmax", function()
    check(function(a)
      local h = table_(a)
      return h[{ moth.arange(1, 3), a:argmax(2) }], a:argsort(2), a:argmin(1)
    end, { moth.tensor { { 1, 12, 3 }, { 7, 2, 12 } }:long() }, "1", "2 3")
  end)

  it("calls along dimension 1 of a scalar get a tensor of one element, as ONNX has no such dimension", function()
    local one, ones = moth.tensor(1):long(), moth.tensor { 1 }:long()
    for results, list in pairs {
      [""] = {
        function(t) return t:sum():cumsum(1), t:sum():softmax(1), t:sum():logsumexp(1), t:sum():flip(1) end,
        function(t) return t:sum():gather(1, one), t:sum():index_select(1, ones), t:sum():scatter(1, one, 3.5) end,
        function(t) return t:sum():sum(1), t:sum():amax(-1), t:sum():bool():all(1), F.one_hot(t:argmax(), 12) end,
        function(t) return t:sum():scatter_add(1, one, t:mean()), t:sum():index_fill(1, ones, 2) end,
        function(t) return t:sum():var(1, false) end,
      },
      ["1"] = { function(t) return t:sum():argmax(1) end, function(t) return t:sum():argsort(1) end },
      ["2"] = { function(t) return t:sum():sort(1) end, function(t) return t:sum():topk(1, 1) end,
        function(t) return t:sum():max(1) end, function(t) return t:sum():kthvalue(1, 1) end },
    } do
      for _, f in ipairs(list) do check(f, { x }, "", results) end
    end
  end)
end)
