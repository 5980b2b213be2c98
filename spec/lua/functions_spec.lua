-- Functions made of ops in Lua: against loops over tables, or against other ops.
local moth = require "moth"
local D = { dtype = moth.float64 }
local function int(t) return moth.tensor(t, { dtype = moth.int64 }) end
local function close(a, b) assert.is_true(moth.allclose(a, b, 1e-10, 1e-12), tostring(a) .. "\n" .. tostring(b)) end

describe("einsum #quick", function()
  local a, b = moth.randn(3, 4, D), moth.randn(4, 5, D)
  local x, y = moth.randn(2, 3, 4, D), moth.randn(2, 4, 5, D)

  it("is a sum of products over letters", function()
    for _, case in ipairs {
      { "ij,jk->ik", { a, b }, a:mm(b) }, { "ij,jk", { a, b }, a:mm(b) }, { "ij->ji", { a }, a:t() },
      { "ij->", { a }, a:sum() }, { "ij->j", { a }, a:sum(1) }, { "ba", { a }, a:t() },
      { "ij,ij->ij", { a, a }, a * a }, { "ij,ij", { a, a }, (a * a):sum() },
      { "ii->i", { b:narrow(2, 1, 4) }, b:narrow(2, 1, 4):diagonal() },
      { "ii", { b:narrow(2, 1, 4) }, b:narrow(2, 1, 4):trace() },
      { "bij,bjk->bik", { x, y }, x:bmm(y) }, { "...ij,...jk->...ik", { x, y }, x:bmm(y) },
      { "...ij,jk->...ik", { x, b }, x:matmul(b) }, { " b i j , b j k -> b k i ", { x, y }, x:bmm(y):transpose(2, 3) },
      { "i,j->ij", { a[1], b[1] }, a[1]:outer(b[1]) }, { "i,i", { a[1], a[2] }, a[1]:dot(a[2]) },
      { "bij,bjk,k->bi", { x, y, b[1] }, (x:bmm(y) * b[1]):sum(3) },
      { "ij,kj->ik", { a[{ {}, { 1, 1 } }], a }, (a[{ {}, { 1, 1 } }]:expand(3, 4)):mm(a:t()) },
    } do close(moth.einsum(case[1], unpack(case[2])), case[3]) end
  end)

  it("has derivatives", function()
    local p, q = moth.randn(3, 4, D):requires_grad_(true), moth.randn(4, 2, D):requires_grad_(true)
    assert.is_true(moth.autograd.gradcheck(function(u, v) return moth.einsum("ij,jk->k", u, v) end, { p, q }))
  end)

  it("says what is wrong with an equation", function()
    for equation, message in pairs {
      ["ij,jk->ix"] = "'x' of the result", ["ij->i"] = "for 1 tensors", ["ijk,jk->i"] = "names 3 dimensions",
      ["ij,jk->ii"] = "twice", ["i1,jk->i"] = "is no letter", ["ij,ik->jk"] = "of 3 and of 4 elements",
    } do assert.error_matches(function() moth.einsum(equation, a, b) end, message) end
  end)
end)

describe("functions of several tensors #quick", function()
  it("meshgrid, cartesian_prod, broadcast_tensors", function()
    local gx, gy = moth.meshgrid(moth.tensor { 1, 2, 3 }, moth.tensor { 4, 5 })
    assert.same({ { 1, 1 }, { 2, 2 }, { 3, 3 } }, gx:totable())
    assert.same({ { 4, 5 }, { 4, 5 }, { 4, 5 } }, gy:totable())
    gx = moth.meshgrid({ moth.tensor { 1, 2, 3 }, moth.tensor { 4, 5 } }, { indexing = "xy" })
    assert.same({ { 1, 2, 3 }, { 1, 2, 3 } }, gx:totable())
    assert.same({ { 1, 3 }, { 1, 4 }, { 2, 3 }, { 2, 4 } },
      moth.cartesian_prod(moth.tensor { 1, 2 }, moth.tensor { 3, 4 }):totable())
    local p, q = moth.broadcast_tensors(moth.ones(3, 1), moth.zeros(4))
    assert.equal("[3, 4]", tostring(p:size()))
    assert.equal("[3, 4]", tostring(q:size()))
    assert.error_matches(function() moth.meshgrid(moth.ones(2, 2)) end, "2 dimensions")
    assert.error_matches(function() moth.meshgrid(moth.ones(2), { indexing = "yx" }) end, "indexing")
  end)

  it("hstack, vstack, dstack", function()
    local a, b = moth.tensor { 1, 2 }, moth.tensor { 3, 4 }
    assert.same({ 1, 2, 3, 4 }, moth.hstack(a, b):totable())
    assert.same({ { 1, 2 }, { 3, 4 } }, moth.vstack({ a, b }):totable())
    assert.same({ { { 1, 3 }, { 2, 4 } } }, moth.dstack(a, b):totable())
    assert.same({ { 1, 2, 1, 2 } }, moth.hstack(a:view(1, 2), a:view(1, 2)):totable())
  end)
end)

describe("as_tensor #quick", function()
  it("copies values, and a tensor only for another dtype; its gradient goes through", function()
    local x = moth.ones(2, { requires_grad = true })
    assert.is_true(rawequal(x, moth.as_tensor(x)))
    assert.is_true(rawequal(x, moth.as_tensor(x, { dtype = moth.float32 })))
    moth.as_tensor(x, { dtype = moth.float64 }):sum():backward()
    assert.same({ 1, 1 }, x.grad:tolist())
    assert.equal(moth.int64, moth.as_tensor { 1, 2, dtype = moth.int64 }:dtype())
    assert.error_matches(function() moth.as_tensor(x, { dtyp = moth.int8 }) end, "%[as_tensor%] unknown option 'dtyp'")
  end)
end)

describe("statistics and elements #quick", function()
  it("median, var_mean, aminmax, diff", function()
    assert.equal(2, moth.tensor { 3, 1, 2, 7 }:median():item())
    local values, at = moth.tensor { { 3, 1, 2 }, { 9, 8, 7 } }:median(2)
    assert.same({ 2, 8 }, values:totable())
    assert.same({ 3, 2 }, at:totable())
    local x = moth.randn(3, 4, D)
    local v, m = moth.var_mean(x, 2)
    close(v, x:var(2))
    close(m, x:mean(2))
    close((moth.std_mean(x)), x:std())
    local low, high = moth.aminmax(x, { dim = 1 })
    close(low, x:amin(1))
    close(high, x:amax(1))
    assert.same({ 3, 5 }, moth.diff(moth.tensor { 1, 4, 9 }):totable())
    assert.same({ 2 }, moth.diff(moth.tensor { 1, 4, 9 }, 2):totable())
    assert.same({}, moth.diff(moth.tensor { 1 }):totable())
  end)

  it("unique, bincount, isin", function()
    local x = moth.tensor { { 3, 1, 3 }, { 2, 1, 1 } }
    local values, inverse, counts = moth.unique(x, { return_inverse = true, return_counts = true })
    assert.same({ 1, 2, 3 }, values:totable())
    assert.same({ 3, 1, 2 }, counts:totable())
    assert.is_true(moth.equal(values:index_select(1, inverse:view(-1)):view(2, 3), x))
    assert.same({}, moth.unique(moth.zeros(0)):totable())
    assert.same({ 1, 0, 2 }, moth.bincount(int { 1, 3, 3 }):totable())
    assert.same({ 1, 0, 5, 0 },
      moth.bincount(int { 1, 3, 3 }, { weights = moth.tensor { 1, 2, 3 }, minlength = 4 }):totable())
    local sums = moth.bincount(int { 1, 3, 3 }, int { 1, 2, 3 })
    assert.equal(moth.float64, sums:dtype())
    assert.same({ 1, 0, 5 }, sums:totable())
    assert.error_matches(function() moth.bincount(int { 0 }) end, "count from 1")
    assert.error_matches(function() moth.bincount(moth.ones(2)) end, "integer")
    assert.same({ false, true, true }, moth.isin(moth.tensor { 1, 2, 3 }, { 2, 3 }):totable())
  end)

  it("repeat_ and tile return the only handle of their memory", function()
    local x = moth.tensor { { 1, 2, 3 } }
    assert.same({ { 1, 2, 3, 1, 2, 3 }, { 1, 2, 3, 1, 2, 3 } }, x:repeat_(2, 2):totable())
    assert.same({ 7 }, moth.tensor(7):tile(1):totable())
    assert.equal(0, x:repeat_(0, 2):numel())
    collectgarbage()
    collectgarbage "stop"
    local before = moth.memory.stats().live
    local y = x:tile(1000, 3)
    assert.is_true(moth.memory.stats().live >= before + y:numel() * 4)
    y:free()
    assert.is_true(moth.memory.stats().live < before + 4096)
    collectgarbage "restart"
    local w = moth.tensor({ 1, 2 }, { requires_grad = true })
    w:repeat_(3):mul_(2):sum():backward()
    assert.same({ 6, 6 }, w.grad:totable())
  end)

  it("repeat_interleave by a tensor", function()
    local x = moth.tensor { { 1, 2 }, { 3, 4 }, { 5, 6 } }
    assert.same({ { 3, 4 }, { 3, 4 }, { 5, 6 } }, x:repeat_interleave(int { 0, 2, 1 }, 1):totable())
    assert.same({ 10, 10, 20, 20 }, moth.repeat_interleave(moth.tensor { 10, 20 }, int { 2 }):totable())
    assert.same({}, moth.repeat_interleave(moth.tensor { 10, 20 }, int { 0, 0 }):totable())
    assert.error_matches(function() x:repeat_interleave(int { 1, 2 }, 1) end, "each of 3 slices")
    assert.error_matches(function() x:repeat_interleave(int { 1, -2, 1 }, 1) end, "negative")
  end)

  it("einsum sums integers as int64, logspace makes the dtype asked for", function()
    local x = moth.tensor({ 100, 100 }, { dtype = moth.int8 })
    for _, y in ipairs({ moth.einsum("i->", x), moth.einsum("i,i->", x, x) / 100, moth.einsum("i,j->", x, x) / 200 }) do
      assert.equal(200, y:item())
    end
    assert.equal(moth.int64, moth.einsum("i->", x):dtype())
    assert.equal(moth.int8, moth.einsum("i,j->ij", x, x):dtype())
    assert.equal(3, moth.einsum("i->", moth.ones(3, { dtype = moth.bool })):item())
    local powers = moth.logspace(0, 15, 16, { dtype = moth.int64 })
    assert.equal(moth.int64, powers:dtype())
    for i = 1, 16 do assert.equal(10 ^ (i - 1), powers[i]:item()) end
    assert.same({ 1, 2, 4, 8, 16 }, moth.logspace(0, 4, 5, 2, { dtype = moth.uint8 }):tolist())
    assert.same({ 1, 3, 10 }, moth.logspace(0, 1, 3, { dtype = moth.int32 }):tolist())
  end)

  it("nan_to_num, logspace, cdist, flips, other names", function()
    assert.same({ 0, 5, -6, 1 },
      moth.nan_to_num(moth.tensor { 0 / 0, math.huge, -math.huge, 1 }, { posinf = 5, neginf = -6 }):totable())
    assert.equal(moth.finfo(moth.float32).max, moth.nan_to_num(moth.tensor { math.huge }):item())
    close(moth.logspace(0, 2, 3, D), moth.tensor({ 1, 10, 100 }, D))
    local x, y = moth.randn(3, 2, D), moth.randn(4, 2, D)
    local d = moth.cdist(x, y)
    for i = 1, 3 do for k = 1, 4 do close(d[i][k], (x[i] - y[k]):norm()) end end
    close(moth.fliplr(x), x:flip(2))
    close(x:swapaxes(1, 2), x:t())
    close(x:clip { min = 0 }, x:clamp { min = 0 })
    close(moth.take_along_dim(x, x:argsort(2), 2), (x:sort(2)))
  end)
end)
