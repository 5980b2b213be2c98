-- Slices by an index (kernels/cpu/index.c) that counts up in runs, or not, beside the same made slice by slice; and
-- pad, which is made of such indices, beside its formula.
local moth = require "moth"
local F = moth.nn.functional

local dtypes = { "uint8", "int16", "float32", "float64", "int64", "bool", "bfloat16" }
local function numbers(n, dtype) return (moth.arange(0, n) % 101 - 3):abs():to(moth[dtype]) end
local function positions(list) return moth.tensor(list, { dtype = moth.int64 }) end

-- Indices into 40 slices: all of one run, runs with edges that turn back, runs that repeat, none, of nothing.
local function indices()
  local whole, mirrored, again, scattered = {}, {}, {}, {}
  for i = 1, 40 do whole[i] = i end
  for i = 4, 2, -1 do mirrored[#mirrored + 1] = i end
  for i = 1, 40 do mirrored[#mirrored + 1] = i end
  for i = 39, 35, -1 do mirrored[#mirrored + 1] = i end
  for _ = 1, 3 do for i = 11, 30 do again[#again + 1] = i end end
  for i = 1, 57 do scattered[i] = (i * 17) % 40 + 1 end
  return { whole, mirrored, again, scattered, { 40 }, {} }
end

describe("slices by an index #quick", function()
  local threads = moth.get_num_threads()
  after_each(function() moth.set_num_threads(threads) end)

  it("are selected, in each dtype and number of threads", function()
    for n = 1, 2 do
      moth.set_num_threads(n)
      for _, dtype in ipairs(dtypes) do
        for _, sizes in ipairs { { 1, 1 }, { 3, 1 }, { 2, 5 }, { 1, 300 } } do
          local x = numbers(sizes[1] * 40 * sizes[2], dtype):view(sizes[1], 40, sizes[2])
          for _, list in ipairs(indices()) do
            local y = x:index_select(2, positions(list))
            assert.same({ sizes[1], #list, sizes[2] }, { y:size(1), y:size(2), y:size(3) })
            for j, at in ipairs(list) do assert.is_true(moth.equal(y:select(2, j), x:select(2, at)), dtype) end
          end
        end
      end
    end
  end)

  it("of many elements, by two threads as by one", function()
    local x = moth.randn(3, 100001)
    local index = moth.cat({ moth.arange(500, 1, -1), moth.arange(1, 100002), moth.arange(100001, 99000, -1) })
    local g = moth.randn(3, index:size(1))
    local function both()
      return x:index_select(2, index), moth.zeros(3, 100001):index_add(2, index, g)
    end
    moth.set_num_threads(1)
    local selected, added = both()
    moth.set_num_threads(2)
    local selected_2, added_2 = both()
    assert.is_true(moth.equal(selected, selected_2))
    assert.is_true(moth.equal(added, added_2))
    assert.is_true(moth.equal(selected, x:gather(2, index:unsqueeze(1):expand(3, -1))))
  end)

  it("are gathered by an index that was expanded, or of short lines", function()
    for _, dtype in ipairs(dtypes) do
      local x = numbers(5 * 40 * 3, dtype):view(5, 40, 3)
      for _, list in ipairs(indices()) do
        local at, n = positions(list), #list
        local want = x:index_select(2, at)
        assert.is_true(moth.equal(want, x:gather(2, at:view(1, n, 1):expand(5, n, 3))), dtype)
        assert.is_true(moth.equal(want, x:gather(2, at:view(1, n, 1):expand(5, n, 3):contiguous())))
        assert.is_true(moth.equal(want:narrow(1, 1, 4), x:gather(2, at:view(1, n, 1):expand(4, n, 3))))
        assert.is_true(moth.equal(want:narrow(3, 1, 2), x:gather(2, at:view(1, n, 1):expand(5, n, 2))))
        assert.is_true(moth.equal(want:permute(3, 1, 2), x:permute(3, 1, 2):gather(3, at:expand(3, 5, n))))
      end
      for n = 1, 5 do
        local rows = numbers(7 * 6, dtype):view(7, 6)
        local at = (moth.arange(0, 7 * n) * 5 % 6 + 1):view(7, n)
        local got, put = rows:gather(2, at), moth.zeros(7, 6):to(rows:dtype()):scatter(2, at, rows:narrow(2, 1, n))
        local want = moth.zeros(7, 6):to(rows:dtype())
        for i = 1, 7 do
          for j = 1, n do
            local k = at[{ i, j }]:item()
            assert.equal(rows[{ i, k }]:item(), got[{ i, j }]:item())
            want[{ i, k }] = rows[{ i, j }]:item()
          end
        end
        assert.is_true(moth.equal(want, put))
        assert.is_true(moth.equal(got:t(), rows:t():gather(1, at:t())))
      end
    end
    local z = moth.complex(moth.randn(9), moth.randn(9))
    assert.is_true(moth.equal(moth.view_as_real(z:gather(1, positions { 9, 1 })),
      moth.view_as_real(z):index_select(1, positions { 9, 1 })))
    local wide = positions({ 1, 2 }):view(2, 1):expand(2, 3)
    assert.error_matches(function() moth.randn(1, 3):gather(1, wide) end,
      "index 2 is out of range: expected 1 to 1 %(dimension 1")
    assert.error_matches(function() moth.zeros(1, 3):scatter(1, wide, 1) end, "index 2 is out of range")
  end)

  it("are added in the order of the index", function()
    for _, dtype in ipairs { "float32", "float64", "int32", "uint8", "float16", "bool" } do
      for _, sizes in ipairs { { 1, 1 }, { 3, 1 }, { 2, 5 }, { 2, 300 } } do
        for _, list in ipairs(indices()) do
          local x = numbers(sizes[1] * 40 * sizes[2], dtype):view(sizes[1], 40, sizes[2])
          local g = numbers(sizes[1] * #list * sizes[2], dtype):view(sizes[1], #list, sizes[2])
          local wide = dtype == "float16" and moth.float32 or x:dtype()
          local want = x:to(wide, { copy = true })
          for j, at in ipairs(list) do want:select(2, at):add_(g:select(2, j):to(wide)) end
          assert.is_true(moth.equal(want:to(x:dtype()), x:index_add(2, positions(list), g)), dtype)
        end
      end
    end
  end)
end)

describe("pad #quick", function()
  local function source(mode, p, n)
    if mode == "replicate" then return math.max(0, math.min(p, n - 1)) end
    if mode == "circular" then return p % n end
    return n - 1 - math.abs(n - 1 - math.abs(p))
  end
  -- x (two dimensions), padded element by element
  local function padded(x, pad, mode)
    local rows, columns = {}, {}
    for k, list in ipairs { columns, rows } do
      local n, before, after = x:size(3 - k), pad[2 * k - 1] or 0, pad[2 * k] or 0
      -- mirrors and edges are those of the whole dimension; what goes around is what is left of it
      local cut, left = 0, n
      if mode == "circular" then cut, left = math.max(-before, 0), n - math.max(-before, 0) - math.max(-after, 0) end
      for p = -before, n + after - 1 do list[#list + 1] = source(mode, p - cut, left) + cut + 1 end
    end
    local out = {}
    for i, r in ipairs(rows) do
      out[i] = {}
      for j, c in ipairs(columns) do out[i][j] = x[{ r, c }]:item() end
    end
    return out
  end

  it("by its formula, of odd sizes and strides, growing and cutting, in each dtype", function()
    local inputs = { numbers(63, "float32"):view(7, 9), numbers(63, "float32"):view(9, 7):t(),
      numbers(126, "float32"):view(7, 18)[{ {}, { 1, 18, 2 } }] }
    for _, dtype in ipairs(dtypes) do inputs[#inputs + 1] = numbers(63, dtype):view(7, 9) end
    for _, x in ipairs(inputs) do
      for _, mode in ipairs { "reflect", "replicate", "circular" } do
        for _, pad in ipairs { { 3, 2 }, { 0, 0, 1, 6 }, { 8, 8, 6, 6 }, { 2, 0, 0, 3 }, { -2, 3, 1, -4 }, { 0, 0 } } do
          assert.same(padded(x, pad, mode), F.pad(x, pad, mode):totable(), mode)
        end
      end
    end
    local x = moth.randn(2, 3)
    assert.same(padded(x, { 5, 7, 3, 4 }, "replicate"), F.pad(x, { 5, 7, 3, 4 }, "replicate"):totable())
    assert.same({ 0, 7 }, { F.pad(moth.zeros(0, 4), { 1, 2 }, "reflect"):size(1),
      F.pad(moth.zeros(0, 4), { 1, 2 }, "reflect"):size(2) })
    assert.is_true(moth.equal(F.pad(moth.tensor { 1, 0 / 0, 3 }, { 1, 1 }, "reflect"):isnan():sum(), moth.tensor(3)))
  end)

  it("is the same of several dimensions whether a derivative is recorded, which takes other ops", function()
    for _, shape in ipairs { { 2, 3, 4, 5 }, { 1, 3, 4, 5, 3 } } do
      local x = moth.randn(shape)
      for _, t in ipairs { x, x:transpose(-1, -2):contiguous():transpose(-1, -2), x:double() } do
        for _, mode in ipairs { "reflect", "replicate", "circular" } do
          for _, pad in ipairs { { 2, 1, 0, 3 }, { 0, 2, 1, 1, 2, 0 }, { 1, 0, 0, 0, 0, 2 }, { 0, 0, 2, 2 } } do
            local recorded = F.pad(t:clone():requires_grad_(), pad, mode)
            assert.is_true(recorded:detach():equal(F.pad(t, pad, mode)), mode)
            assert.is_true(recorded:detach():equal(moth.func.vmap(function(y) return F.pad(y, pad, mode) end)(t)), mode)
          end
        end
      end
    end
  end)

  it("cuts one side and grows the other from what the whole dimension has there", function()
    local x = moth.tensor { 1, 2, 3, 4 }
    for _, row in ipairs {
      { "reflect", { -3, 1 }, { 4, 3 } }, { "reflect", { 1, -3 }, { 2, 1 } },
      { "reflect", { -1, 3 }, { 2, 3, 4, 3, 2, 1 } }, { "reflect", { 3, -2 }, { 4, 3, 2, 1, 2 } },
      { "reflect", { -4, 1 }, { 3 } }, { "reflect", { -5, 3 }, { 2, 1 } }, { "reflect", { 2, -4 }, { 3, 2 } },
      { "reflect", { -2, -1 }, { 3 } }, { "replicate", { -3, 4 }, { 4, 4, 4, 4, 4 } },
      { "replicate", { -5, 3 }, { 4, 4 } }, { "replicate", { 3, -5 }, { 1, 1 } }, { "replicate", { -3, 0 }, { 4 } },
      { "circular", { -3, 1 }, { 4, 4 } }, { "circular", { 1, -3 }, { 1, 1 } },
      { "circular", { -1, 3 }, { 2, 3, 4, 2, 3, 4 } },
    } do
      local mode, pad, want = unpack(row)
      local function f(t) return F.pad(t, pad, mode) end
      local compiled = moth.compile(f)
      for _, dtype in ipairs(dtypes) do
        assert.is_true(moth.equal(moth.tensor(want):to(moth[dtype]), f(x:to(moth[dtype]))), mode .. " " .. dtype)
      end
      assert.same(want, compiled(x):totable(), mode .. " compiled")
      local image = x:view(1, 1, 4):expand(2, 3, 4)
      assert.same(want, F.pad(image, { pad[1], pad[2], 1, 1 }, mode)[{ 1, 1 }]:totable(), mode)
      local turned = F.pad(image:transpose(1, 3), { 0, 0, 0, 0, pad[1], pad[2] }, mode)
      assert.same(want, turned:select(3, 1):select(2, 1):totable(), mode)
      local leaf = x:double():requires_grad_()
      assert.is_true(moth.autograd.gradcheck(f, { leaf }), mode)
    end
    assert.error_matches(function() F.pad(x, { -2, 3 }, "circular") end, "what is left of the dimension, got 3 for 2")
    assert.error_matches(function() F.pad(x, { -5, 4 }, "reflect") end, "smaller than the dimension")
    assert.error_matches(function() F.pad(x, { -5, 0 }, "replicate") end, "negative size")
  end)

  it("adds up in its derivative what came from one element", function()
    for _, mode in ipairs { "constant", "reflect", "replicate", "circular" } do
      local x = moth.randn(5, 6, { requires_grad = true })
      local pad = { 4, 5, -1, 3 }
      local y = F.pad(x, pad, mode)
      local g = moth.randn_like(y)
      local got = moth.autograd.grad(y, { x }, g)
      got = type(got) == "table" and got[1] or got
      local want = moth.zeros(5, 6)
      local place = moth.arange(1, 31):view(5, 6):float()
      local at = mode == "constant" and F.pad(place, pad) or F.pad(place, pad, mode)
      for i = 1, y:size(1) do
        for j = 1, y:size(2) do
          local k = at[{ i, j }]:item()
          if k > 0 then want:view(-1):narrow(1, k, 1):add_(g[{ i, j }]:item()) end
        end
      end
      assert.is_true(moth.allclose(want, got, 1e-5, 1e-5), mode)
    end
  end)
end)

describe("index_add of single elements #quick", function()
  local threads = moth.get_num_threads()
  after_each(function() moth.set_num_threads(threads) end)

  it("in the order of the index, for few and many places, of sources that stand still and strided ones", function()
    for _, dtype in ipairs { "float32", "float64", "float16", "int64", "int32", "uint8", "bool" } do
      for _, n in ipairs { 1, 3, 700 } do
        for _, count in ipairs { 0, 1, 63, 4001 } do
          local index = (moth.arange(0, count) * 7919) % n + 1
          local sources = { numbers(count, dtype), numbers(2 * count, dtype):view(count, 2):select(2, 1),
            moth.ones(1):to(moth[dtype]):expand(count) }
          for k, source in ipairs(count > 0 and sources or { sources[1] }) do
            local start = numbers(n, dtype)
            local want, wide = start:totable(), dtype:find "^float" or dtype == "int64" or dtype == "int32"
            local list, at = source:totable(), index:totable()
            for j = 1, count do
              if dtype == "bool" then want[at[j]] = want[at[j]] or list[j] else want[at[j]] = want[at[j]] + list[j] end
            end
            local got = start:index_add(1, index:int(), source)
            if wide and dtype ~= "float16" then
              assert.same(want, got:totable(), dtype .. " " .. n .. " " .. count .. " " .. k)
            elseif dtype == "uint8" then
              for i = 1, n do want[i] = want[i] % 256 end
              assert.same(want, got:totable())
            elseif dtype == "bool" then
              assert.same(want, got:totable())
            else
              assert.is_true(moth.equal(moth.tensor(want):half(), got))
            end
            assert.is_true(moth.equal(got, start:clone():index_add_(1, index, source)))
          end
        end
      end
    end
  end)

  it("counts the same by two threads as by one, and says which index is outside", function()
    local x = (moth.arange(0, 300007) * 31) % 1000 + 1
    moth.set_num_threads(1)
    local one = moth.bincount(x)
    moth.set_num_threads(2)
    assert.is_true(moth.equal(one, moth.bincount(x)))
    assert.same({ 301, 1000, 300007 }, { one[1]:item(), one:numel(), one:sum():item() })
    local zeros, ones = moth.zeros(10, { dtype = moth.int64 }), moth.ones(400, { dtype = moth.int64 })
    local bad = moth.ones(400, { dtype = moth.int64 })
    bad[300] = 11
    assert.error_matches(function() zeros:index_add(1, bad, ones) end, "index 11 is out of range: expected 1 to 10")
    assert.error_matches(function() zeros:index_add_(1, bad, ones) end, "index 11 is out of range")
    assert.same({ 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, zeros:totable())
    assert.equal(5, moth.tensor(2):index_add(1, moth.tensor({ 1 }, { dtype = moth.int64 }), moth.tensor(3)):item())
  end)
end)
