-- Gathering, scattering, masks, cat and triangles on the device against the CPU: sizes beyond one block, hot places,
-- repeated indices, every dtype, awkward addresses. Moves are exact; sums are the same in every run.
local moth = require "moth"
local fails = require "fails"

local all = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool" }
local tolerance = { float32 = 1e-4, float64 = 1e-10, float16 = 2e-2, bfloat16 = 1e-1 }

local function random(dtype, ...)
  local t = moth.randint(-9, 10, { ... }):to "float32"
  return (dtype == "bool" and t:gt(0) or t):to(dtype)
end
local function same(what, a, b)
  b = b:cpu()
  assert.same(a:size(), b:size(), what)
  assert(moth.equal(a:to "float64", b:to "float64"), what .. ": the values differ")
end
local function cuda(t) return t:to "cuda" end
-- The same elements with gaps between them, and at an address that is no multiple of 16.
local function awkward(t)
  local wide = moth.zeros(t:numel() * 2 + 1, { dtype = t:dtype(), device = t:device() }):narrow(1, 2, t:numel() * 2)
  local view = wide:view(t:numel(), 2):select(2, 1)
  view:copy_(t:reshape(-1))
  return view:as_strided(t:size(), (function()
    local stride, s = {}, 2
    for i = t:dim(), 1, -1 do
      stride[i] = s
      s = s * t:size(i)
    end
    return stride
  end)(), 1)
end

describe("index ops on CUDA", function()
  if not moth.cuda.is_available() then
    it("are the CPU's", function() pending(moth.cuda.why()) end)
    return
  end

  it("gather, scatter and index_select move every dtype", function()
    for _, dtype in ipairs(all) do
      for _, shape in ipairs { { 5, 7, 3 }, { 33, 65, 2 }, { 1, 2049, 1 } } do
        local x, dim = random(dtype, unpack(shape)), 2
        local index = moth.randint(1, shape[2] + 1, { shape[1], 2 * shape[2] - 3, shape[3] })
        for name, make in pairs { whole = cuda, awkward = function(t) return awkward(cuda(t)) end } do
          local what = ("%s %s %d"):format(dtype, name, shape[2])
          local y = make(x)
          same("gather " .. what, x:gather(dim, index), y:gather(dim, cuda(index)))
          same("gather " .. what, x:gather(dim, index), y:gather(dim, cuda(index:to "int32")))
          local rows = index:select(1, 1):select(2, 1)
          same("index_select " .. what, x:index_select(dim, rows), y:index_select(dim, cuda(rows)))
          local src = random(dtype, unpack(index:size()))
          same("scatter " .. what, x:scatter(dim, index, src), y:scatter(dim, cuda(index), make(src)))
          same("scatter " .. what, x:scatter(dim, index, 1), y:scatter(dim, cuda(index), 1))
          local slices = random(dtype, shape[1], rows:numel(), shape[3])
          same("index_copy " .. what, x:index_copy(dim, rows, slices), y:index_copy(dim, cuda(rows), make(slices)))
        end
      end
    end
  end)
  it("sums by index: hot places, chains of chunks, rows of every width", function()
    for _, dtype in ipairs(all) do
      for _, places in ipairs { 1, 3, 1000 } do
        local x, n = random(dtype, places), 777
        local index, src = moth.randint(1, places + 1, { n }), random(dtype, n)
        same("scatter_add " .. dtype .. places, x:scatter_add(1, index, src),
          cuda(x):scatter_add(1, cuda(index), awkward(cuda(src))))
        for _, width in ipairs { 1, 3, 8, 16 } do
          local table_, rows = random(dtype, 2, places, width), random(dtype, 2, n, width)
          if dtype ~= "float16" and dtype ~= "bfloat16" then -- sums of these are rounded
            same(("index_add %s %d %d"):format(dtype, places, width), table_:index_add(2, index, rows),
              cuda(table_):index_add(2, cuda(index), cuda(rows)))
          end
        end
      end
    end
  end)
  it("sums of fractions: close to the CPU's, and the same bits in every run", function()
    for dtype, e in pairs(tolerance) do
      local index, src = moth.randint(1, 21, { 5000 }), moth.randn(5000, 4):to(dtype)
      local x = moth.zeros(20, 4, { dtype = dtype })
      local a, b = x:index_add(1, index, src), cuda(x):index_add(1, cuda(index), cuda(src))
      assert(moth.allclose(a:to "float64", b:cpu():to "float64", { rtol = e, atol = 10 * e }), dtype)
      for _ = 1, 3 do
        assert(moth.equal(b:cpu(), cuda(x):index_add(1, cuda(index), cuda(src)):cpu()), dtype)
      end
    end
  end)
  it("sums by atomics where any order will do: every dtype, hot places, gaps in the source", function()
    local was = moth.are_deterministic_algorithms_enabled()
    moth.use_deterministic_algorithms(false)
    local ok, e = pcall(function()
      for _, dtype in ipairs(all) do
        for _, places in ipairs { 1, 5, 1000 } do
          local x, n = random(dtype, places), 777
          local index, src = moth.randint(1, places + 1, { n }), random(dtype, n)
          same("scatter_add " .. dtype .. places, x:scatter_add(1, index, src),
            cuda(x):scatter_add(1, cuda(index), awkward(cuda(src))))
          if dtype ~= "float16" and dtype ~= "bfloat16" then
            local table_, rows = random(dtype, 2, places, 3), random(dtype, 2, n, 3)
            same(("index_add %s %d"):format(dtype, places), table_:index_add(2, index, rows),
              cuda(table_):index_add(2, cuda(index), cuda(rows)))
          end
        end
      end
      local grads = {} -- embedding's gradient: whole numbers, so that any order gives the same
      for i, device in ipairs { "cpu", "cuda" } do
        local w = moth.ones(50, 16, { device = device, requires_grad = true })
        moth.embedding(w, moth.arange(0, 300):remainder(50):add(1):to(moth.int64):to(device)):sum():backward()
        grads[i] = w.grad
      end
      same("embedding", grads[1], grads[2])
      local bad = moth.tensor({ 1, 9 }, { dtype = moth.int64 }):to "cuda"
      fails("index 9 is out of range", function()
        moth.zeros(3, { device = "cuda" }):index_add(1, bad, moth.ones(2, { device = "cuda" })):cpu()
      end)
    end)
    moth.use_deterministic_algorithms(was)
    assert(ok, e)
  end)
  it("positions in several dimensions: every dtype, gaps, wide rows, hot places, from the end", function()
    for _, dtype in ipairs(all) do
      for _, case in ipairs {
        { { 5, 7, 3 }, { 2 }, { 40 } }, { { 5, 7, 16 }, { 1, 2 }, { 300, 2 } },
        { { 5, 33, 2, 3 }, { 2, 4 }, { 7, 5, 2 } }, { { 3, 65, 4 }, { 1, 3 }, { 9, 2 } },
        { { 4, 1, 300 }, { 1 }, { 3, 2 } }, { { 2049, 2 }, { 1, 2 }, { 2050, 2 } },
        { { 3, 4 }, { 1 }, {} }, { { 3, 4 }, { 2 }, { 0 } }, { { 3, 0 }, { 1 }, { 2 } },
      } do
        local x, dims = random(dtype, unpack(case[1])), case[2]
        local sizes = moth.tensor(dims):long()
        for j, d in ipairs(dims) do sizes[j] = x:size(d) end
        local at = (moth.rand(case[3]) * (#dims > 1 and sizes or sizes[1])):floor():long() + 1
        at = moth.where(moth.rand(at:size()):lt(0.5), at, at - 1 - (#dims > 1 and sizes or sizes[1]))
        local got = x:gather_nd(dims, at)
        local function gaps(t) return t:numel() > 0 and awkward(cuda(t)) or cuda(t) end
        for name, make in pairs { whole = cuda, awkward = gaps } do
          local what = ("%s %s %s %s"):format(name, dtype, x:size(), at:size())
          same("gather_nd " .. what, got, make(x):gather_nd(dims, cuda(at)))
          same("gather_nd " .. what, got, make(x):gather_nd(dims, cuda(at:to "int32")))
          for _, accumulate in ipairs { false, dtype ~= "float16" and dtype ~= "bfloat16" or nil } do
            for _, src in ipairs { random(dtype, unpack(got:size())), random(dtype, 1) } do
              local y = make(x:clone())
              y:scatter_nd_(dims, cuda(at), make(src), accumulate)
              same("scatter_nd_ " .. what, x:clone():scatter_nd_(dims, at, src, accumulate), y)
            end
          end
        end
      end
    end
    local x = cuda(moth.arange(4))
    x:scatter_nd_(1, cuda(moth.tensor { 2, 3, 4 }:long()), x:narrow(1, 1, 3)) -- overlapping: read before written
    assert.same({ 0, 0, 1, 2 }, x:cpu():tolist())
    local y, m = cuda(moth.zeros(2, 3)), moth.tensor { true, false }
    y[{ m, moth.tensor { -1 }:long() }] = 5 -- key and value from the cpu
    assert.same({ { 0, 0, 5 }, { 0, 0, 0 } }, y:cpu():tolist())
  end)
  it("index out of range: the op, the index and the range", function()
    local x = moth.zeros(3, 2, { device = "cuda" })
    local bad = moth.tensor({ 1, 4 }, { dtype = moth.int64 }):to "cuda"
    for name, fn in pairs {
      gather = function() x:gather(1, bad:view(2, 1)) end,
      scatter = function() x:scatter(1, bad:view(2, 1), 1) end,
      scatter_add = function() x:scatter_add(1, bad:view(2, 1), x) end,
      index_select = function() x:index_select(1, bad) end,
      index_add = function() x:index_add(1, bad, x:narrow(1, 1, 2)) end,
      index_copy = function() x:index_copy(1, bad, x:narrow(1, 1, 2)) end,
      gather_nd = function() x:gather_nd(1, bad) end,
      scatter_nd_ = function() x:scatter_nd_(1, bad, x:narrow(1, 1, 2)) end,
    } do
      fails("%[" .. name .. "%] index 4 is out of range: expected 1 to 3", function()
        fn()
        x:cpu()
      end)
    end
  end)
  it("masks: sizes around tiles and warps, sparse and full", function()
    for _, n in ipairs { 0, 1, 31, 32, 33, 1024, 8191, 8193, 20001 } do
      for _, share in ipairs { 0, 0.02, 0.5, 1 } do
        local mask = moth.rand(n):lt(share)
        for _, dtype in ipairs { "float32", "float64", "float16", "int8" } do
          local x, what = random(dtype, n), ("%d %g %s"):format(n, share, dtype)
          same("masked_select " .. what, x:masked_select(mask), cuda(x):masked_select(cuda(mask)))
          local src = random(dtype, n)
          same("masked_scatter " .. what, x:masked_scatter(mask, src), cuda(x):masked_scatter(cuda(mask), cuda(src)))
        end
        same("nonzero", mask:nonzero(), cuda(mask):nonzero())
      end
    end
    local m = moth.rand(7, 65, 19):lt(0.3)
    same("nonzero", m:nonzero(), cuda(m):nonzero())
    same("nonzero", m:transpose(1, 3):nonzero(), cuda(m):transpose(1, 3):nonzero())
    same("nonzero", (m:to "float32" * 0.5):nonzero(), cuda(m:to "float32" * 0.5):nonzero())
    same("awkward", m:view(-1):narrow(1, 4, 8000):nonzero(), cuda(m):view(-1):narrow(1, 4, 8000):nonzero())
    local x, row = moth.randn(5, 9), moth.randn(9):gt(0)
    same("broadcast", x:masked_select(row), cuda(x):masked_select(cuda(row)))
    fails("mask selects 3 elements, but source has only 2", function()
      moth.zeros(3, { device = "cuda" }):masked_scatter(moth.ones(3, { device = "cuda" }):gt(0),
        moth.ones(2, { device = "cuda" }))
      moth.zeros(1, { device = "cuda" }):cpu()
    end)
  end)
  it("cat: many inputs, odd rows, mixed dtypes and layouts", function()
    for _, dtype in ipairs(all) do
      for _, dim in ipairs { 1, 2, 3 } do
        local a, b = {}, {}
        for i = 1, 70 do
          local shape = { 3, 5, 4 }
          shape[dim] = i % 4
          a[i] = random(dtype, unpack(shape))
          b[i] = i % 7 == 3 and a[i]:numel() > 0 and awkward(cuda(a[i])) or cuda(a[i])
        end
        same(("cat %s %d"):format(dtype, dim), moth.cat(a, dim), moth.cat(b, dim))
      end
    end
    local a, b = moth.randn(3, 1000), moth.randint(0, 9, { 3, 513 })
    same("mixed", moth.cat({ a, b, a }, 2), moth.cat({ cuda(a), cuda(b), cuda(a) }, 2))
  end)
  it("complex numbers as bools: parts of 0, NaN, any layout", function()
    for _, dtype in ipairs { "complex64", "complex128" } do
      local x = moth.complex(moth.tensor({ { 0, 1, 0, -0.0 }, { 2, 0, 0, 3 } }):double(),
        moth.tensor({ { 0, 0, 1, 0 }, { 2, 0 / 0, 0, 0 } }):double()):to(moth[dtype])
      same("bool", x:bool(), cuda(x):bool())
      same("bool", x:t():bool(), cuda(x):t():bool())
      local whole = moth.zeros({ 3, 2, 4 }, { dtype = moth.bool })
      local copy = cuda(whole)
      same("copy_", whole:transpose(2, 3):copy_(x:t()), copy:transpose(2, 3):copy_(cuda(x):t()))
    end
  end)

  it("tril, triu, eye, linspace, flip", function()
    for _, dtype in ipairs(all) do
      for _, shape in ipairs { { 3, 5 }, { 2, 33, 17 }, { 0, 4 }, { 64, 64 } } do
        local x = random(dtype, unpack(shape))
        for _, k in ipairs { 0, 1, -2, 100, -100 } do
          same("tril", x:tril(k), cuda(x):tril(k))
          same("triu", x:triu(k), cuda(x):triu(k))
        end
        if x:numel() > 0 then same("triu", x:triu(1), awkward(cuda(x)):triu(1)) end
        same("flip", x:flip { 1 }, cuda(x):flip { 1 })
        same("flip", x:flip { 2, 1 }, cuda(x):flip { 2, 1 })
      end
      same("eye", moth.eye(33, 20, { dtype = dtype }), moth.eye(33, 20, { dtype = dtype, device = "cuda" }))
      for _, n in ipairs { 0, 1, 2, 11, 300 } do
        local from = (dtype == "bool" or dtype:find "^uint") and 0 or -3
        same("linspace", moth.linspace(from, 7, n, { dtype = dtype }),
          moth.linspace(from, 7, n, { dtype = dtype, device = "cuda" }))
      end
    end
  end)
  it("as_strided backward: windows that overlap, places read many times", function()
    for _, g in ipairs { { { 4, 3 }, { 5, 1 }, 2 }, { { 40, 5 }, { 1, 1 }, 0 }, { { 3, 100 }, { 0, 1 }, 1 } } do
      local grads = {}
      for _, device in ipairs { "cpu", "cuda" } do
        local x = moth.zeros(120, { device = device, requires_grad = true })
        local w = moth.arange(1, g[1][1] * g[1][2] + 1):to(device):to("float32"):view(unpack(g[1]))
        local y = x:as_strided(g[1], g[2], g[3]) * w
        y:sum():backward()
        grads[#grads + 1] = x.grad
      end
      same("as_strided", grads[1], grads[2])
    end
  end)
end)
