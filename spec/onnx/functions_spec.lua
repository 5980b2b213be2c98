-- Functions with writes in place, branches, loops and positions: each as a file, at sizes far from the example's.
local moth = require "moth"
local F = moth.nn.functional

local function at(...) return moth.tensor({ ... }, { dtype = moth.int64 }) end

local right = {
  ["inplace views"] = function(x)
    local y = x * 2
    y[1] = 0
    y[-1]:add_(1)
    y:t()[2]:mul_(3)
    return y
  end,
  ["reshape write"] = function(x)
    local y = x * 1
    y:reshape(-1):narrow(1, 2, x:size(1)):fill_(2)
    return y
  end,
  ["view even rows"] = function(x)
    local y = x * 1
    y:slice(1, 0, 3, 2):neg_()
    return y
  end,
  ["diag of part"] = function(x)
    local y = x * 1
    y:narrow(1, 1, 3):diagonal():add_(9)
    return y
  end,
  diagonals = function(x)
    local y = x * 1
    y:diagonal(1):neg_()
    return x:diagonal(), y, y:diagonal(-1), x:matmul(x:t()):diagonal()
  end,
  ["chunk add"] = function(x)
    local y = x * 1
    local a, b = unpack(y:chunk(2, 2))
    a:add_(b)
    b:mul_(a)
    return y
  end,
  ["copy_ broadcast"] = function(x)
    local y = moth.zeros(x:size(1), 4)
    y:copy_(x[1])
    y:select(2, 1):copy_(x:sum(2))
    return y
  end,
  masked = function(x)
    local y = x * 1
    y:masked_fill_(y:gt(0), -1)
    y[y:lt(-0.5)] = 3
    return y
  end,
  ["index put"] = function(x)
    local y = x * 1
    y[at(1, 3)] = 7
    y[{ {}, at(1, 2) }] = x[{ {}, { 3, 4 } }]
    return y
  end,
  index_add = function(x)
    local y = x * 1
    y:index_add_(1, at(1, 1, 2), moth.ones(3, 4))
    return y
  end,
  ["scatter row by argmax"] = function(x)
    local i = x:argmax(2, true)
    return moth.zeros_like(x):scatter_(2, i, 1)
  end,
  ["gather by argsort"] = function(x)
    local _, i = x:sort(2)
    return x:gather(2, i), i
  end,
  ["topk ids"] = function(x)
    local w, i = x:topk(2, 2)
    return w, i, i:float() * 2
  end,
  ["argmax arithmetic"] = function(x)
    local i = x:argmax(1)
    return i, x:index_select(1, i), (i - 1) * 4 + 1
  end,
  ["cat of ids"] = function(x)
    local i = moth.cat({ x:argmax(1), x:argmin(1) }, 1)
    return x:index_select(1, i)
  end,
  ["where of ids"] = function(x)
    local i = moth.where(x[1]:gt(0), x:argmax(1), x:argmin(1))
    return i, x:gather(1, i:unsqueeze(1))
  end,
  ["pad of ids"] = function(x)
    local i = F.pad(x:argmax(1), { 1, 1 }, "constant", 1)
    return x:index_select(1, i)
  end,
  ["max with ids"] = function(x)
    local m, i = x:max(1)
    return m, i, x:index_select(1, i):sum()
  end,
  median = function(x)
    local m, i = x:median(1)
    return m, i
  end,
  cummax = function(x)
    local m, i = x:cummax(1)
    return m, i
  end,
  ["sort desc ids"] = function(x)
    local s, i = x:sort(1, true)
    return s, i, x:gather(1, i)
  end,
  ["arange positions"] = function(x) return x:index_select(1, moth.arange(x:size(1), 1, -1)) end,
  ["flip roll"] = function(x) return x:flip(1), x:roll(1, 1), x:roll(-2, 2) end,
  ["one hot"] = function(x) return F.one_hot(x:argmax(2), 4) end,
  nll = function(x) return F.cross_entropy(x, x:argmax(2)) end,
  bucket = function(x) return moth.searchsorted(moth.tensor { -1, 0, 1 }, x) end,
  take_along = function(x) return x:take_along_dim(x:argsort(1), 1) end,
  ["cond write"] = function(x)
    local y = x * 1
    moth.cond(x:sum():gt(0), function(a)
      a[1] = 5
      return a * 1
    end, function(a)
      a:t()[1]:neg_()
      return a * 2
    end, { y })
    return y
  end,
  ["cond ids"] = function(x)
    return (moth.cond(x:sum():gt(0), function(a) return a:argmax(1) end, function(a) return a:argmin(1) end, { x }))
  end,
  ["cond ids used"] = function(x)
    local i = moth.cond(x:sum():gt(0), function(a) return a:argmax(1) end, function(a) return a:argmin(1) end, { x })
    return x:index_select(1, i)
  end,
  ["while write"] = function(x)
    local _, y = moth.while_loop(function(i) return i:lt(4) end, function(i, a)
      a:narrow(1, 1, 2):add_(1)
      a:mul_(0.5)
      return i + 1, a
    end, { moth.tensor(0), x * 1 })
    return y
  end,
  where = function(x) return moth.where(x:gt(0), x, x:t():t() * 0) end,
  pads = function(x)
    return F.pad(x, { 1, 2, 0, 3 }), F.pad(x:unsqueeze(1), { 1, 1 }, "replicate"),
      F.pad(x:unsqueeze(1), { 2, 1 }, "reflect"), F.pad(x, { -1, 0, -1, 0 }),
      F.pad(x, { -3, 1, 2, -2 }, "reflect"), F.pad(x, { 1, -3 }, "replicate")
  end,
  ["tril write"] = function(x)
    local m = moth.ones(x:size(1), x:size(1)):tril()
    m[1] = 0
    m:select(2, 1):fill_(1)
    return m:matmul(x)
  end,
  ["repeat interleave"] = function(x) return x:repeat_interleave(2, 1), x:tile(2, 1) end,
  unfold = function(x) return x:unfold(2, 2, 1) end,
  ["index 2"] = function(x) return x[{ at(1, 2, 3), at(4, -1, 1) }] end,
  ["gather neg"] = function(x) return x:index_select(1, at(1, 3)), x[-1], x[{ { -2, -1 } }] end,
  ["cumsum ids"] = function(x)
    local c = x:gt(0):to(moth.int64):cumsum(1)
    return c, x:gather(1, c:clamp(1, x:size(1)))
  end,
  scatter_add = function(x)
    local y = moth.zeros(4)
    y:scatter_add_(1, x:argmax(2), x:sum(2))
    return y
  end,
  index_copy = function(x)
    local y = x * 1
    y:index_copy_(1, at(2, 1), x:narrow(1, 2, 2))
    return y
  end,
  ["put take"] = function(x)
    local y = x * 1
    y:put_(at(1, 6), moth.tensor { 8, 9 })
    return y, x:take(at(2, 5))
  end,
  ["ids min of ids"] = function(x)
    return moth.minimum(x:argmax(1), x:argmin(1)), moth.stack({ x:argmax(1), x:argmin(1) }, 1)
  end,
  ["eq of ids"] = function(x) return x:argmax(2):eq(2):float(), x:argmax(2):eq(x:argmin(2)) end,
  ["expand write"] = function(x)
    local y = x:sum(1, true):expand(x:size(1), 4):clone()
    y[2] = 0
    return y
  end,
  ["swap rows"] = function(x)
    local y = x * 1
    local t = y[1]:clone()
    y[1] = y[2]
    y[2] = t
    return y
  end,
}

describe("moth.onnx.export of functions", function()
  local path = os.tmpname()
  teardown(function() os.remove(path) end)

  for name, fn in require "moth.each"(right) do
    it(name, function()
      local n = moth.Dim("n", { min = 3, max = 5000 })
      local ep = moth.export(fn, { moth.randn(4, 4) }, { dynamic_shapes = { { [1] = n } } })
      moth.onnx.export(ep, nil, path, { index_base = 1 })
      local session = moth.onnx.InferenceSession(path)
      for _, rows in ipairs { 3, 7, 130 } do
        local x = moth.randn(rows, 4)
        local want, program = { fn(x) }, { ep(x) }
        local file = session:run(nil, { [session:get_inputs()[1].name] = x })
        assert.equal(#want, #file)
        for i, t in ipairs(want) do
          assert.is_true(moth.equal(t, program[i]), "the program, result " .. i)
          assert.same({ t:size(), t:dtype() }, { file[i]:size(), file[i]:dtype() })
          assert.is_true(moth.allclose(t, file[i], 1e-5, 1e-5), "the file, result " .. i)
        end
      end
    end)
  end
end)
