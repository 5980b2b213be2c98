-- The language of expressions in records (src/ops/expr.lua): the C code (emit.lua) computes in each branch only what
-- that needs, and makes tensors on behalf of others fake if those are; lists and numbers agree with the evaluation in
-- Lua.
local B = require "moth_lua"
local moth = require "moth"
local records = require "moth.records"
local each = require "moth.each"
local ops = B.ops

local function called(fn)
  local _, counts = moth.dispatch.count(fn)
  return counts
end

describe("expressions as C", function()
  it("compute in a branch only what it needs", function()
    local x = moth.randn(5, { requires_grad = true })
    local y = (2 ^ x):sum()
    local seen = called(function() y:backward() end)
    assert.is_nil(seen.ge) -- of the base 0, and of bases that are tensors
    assert.is_nil(seen.logical_and)
    assert.is_true(seen.mul > 0)
    local base = moth.rand(5, { requires_grad = true })
    local z = (base ^ x):sum()
    assert.equal(1, called(function() z:backward() end).ge)
    assert.is_nil(called(function() moth.norm(moth.randn(3), 3) end).amax)
    assert.equal(1, called(function() moth.norm(moth.randn(3), math.huge) end).amax)
    assert.is_nil(called(function() moth.reshape(moth.randn(2, 3), { 6 }) end).clone)
    assert.equal(1, called(function() moth.reshape(moth.randn(2, 3):t(), { 6 }) end).clone)
  end)

  it("give the argument itself where that is the result", function()
    local x = moth.randn(2, 3)
    assert.is_true(x:contiguous():data_ptr() == x:data_ptr())
    assert.is_true(x:to("float32"):data_ptr() == x:data_ptr())
    assert.is_true(x:flatten(2, 2):data_ptr() == x:data_ptr())
    assert.is_false(x:to("float32", { copy = true }):data_ptr() == x:data_ptr())
  end)

  it("make tensors for the sake of others as those are", function()
    local fake = moth.dispatch.fake_mode(function() return moth.randn(3, { requires_grad = true }) end)
    local names = { "zeros_like", "ones_like", "empty_like", "rand_like", "randn_like" }
    for _, name in ipairs(names) do assert.is_true(B.is_fake(moth[name](fake)), name) end
    assert.is_true(B.is_fake(moth.diag(fake)))
    assert.is_true(B.is_fake(moth.one_hot(fake:to(moth.int64), 4)))
    assert.is_false(B.is_fake(moth.zeros_like(moth.randn(2))))
  end)

  it("write into parts of tensors that nobody else sees", function()
    local v = moth.tensor({ 1, 2 }, { requires_grad = true })
    local m = moth.diag(v, 1)
    assert.same({ { 0, 1, 0 }, { 0, 0, 2 }, { 0, 0, 0 } }, m:detach():tolist())
    m:sum():backward()
    assert.same({ 1, 1 }, v.grad:tolist())
    assert.same({ 1, 2 }, v:detach():tolist())
    assert.same({ { 0, 0, 0 }, { 0, 0, 0 }, { 0, 0, 0 } }, moth.zeros_like(m:detach()):tolist())
  end)
end)

describe("expressions that are computed at once", function()
  local none = { name = "test", args = { { name = "x", type = "TENSOR" }, { name = "n", type = "INT" } } }
  local x = moth.randn(2, 3, 4)
  local function value(text, n) return (records.graph.evaluate(none, text, { x = x, n = n })) end

  it("know lists, which count from 0", function()
    for text, want in each {
      ["x.shape"] = { 2, 3, 4 }, ["first_n(x.shape, 2)"] = { 2, 3 }, ["last_n(x.shape, 1)"] = { 4 },
      ["drop_n(x.shape, 1)"] = { 3, 4 }, ["join(list(1), x.shape)"] = { 1, 2, 3, 4 },
      ["replace(x.shape, -1, 9)"] = { 2, 3, 9 }, ["insert(x.shape, 1, 7)"] = { 2, 7, 3, 4 },
      ["remove(x.shape, 0)"] = { 3, 4 }, ["ones_n(2)"] = { 1, 1 }, ["range(1, 4)"] = { 1, 2, 3 },
      ["inverse(list(2, 0, 1))"] = { 1, 2, 0 }, ["wide(list(3, 1), list(2, 1, 5))"] = { 2, 3, 5 },
      ["kept(x.shape, list(1))"] = { 2, 1, 4 }, ["merged(x.shape, 0, 1)"] = { 6, 4 },
      ["inferred(list(2, -1), 6)"] = { 2, 3 }, ["others(4, list(2, 0))"] = { 1, 3 },
      ["when(gt(n, 1), list(n), x.shape)"] = { 5 },
    } do
      assert.same(want, value(text, 5), text)
    end
  end)

  it("know numbers and conditions", function()
    for text, want in each {
      ["x.shape[-1]"] = 4, ["x.ndim"] = 3, ["x.numel"] = 24, ["product(x.shape)"] = 24, ["length(x.shape)"] = 3,
      ["floor_divide(0 - n, 2)"] = -3, ["remainder(0 - n, 3)"] = 1, ["power_of(n, 2)"] = 25, ["larger(n, 9)"] = 9,
      ["reach(list(2, 3), list(4, 1), 5)"] = 12, ["when(both(given(n), eq(n, 5)), 1, 0)"] = 1,
      ["when(is_contiguous(x), 1, 0)"] = 1, ["when(viewable(transpose(x, 0, 1), list(-1)), 1, 0)"] = 0,
      ["wrap(-1, 3)"] = 2, ["when(is_float(x), 1, 0)"] = 1, ["as_number(n) / 2"] = 2.5,
    } do
      assert.equal(want, value(text, 5), text)
    end
  end)

  it("compute the branch that is taken alone, and equal calls once", function()
    local seen = called(function() value("when(gt(n, 1), exp(x) + exp(x), log(x))", 5) end)
    assert.equal(1, seen.exp)
    assert.is_nil(seen.log)
  end)

  it("repeat what makes a tensor of a tensor, and join tensors", function()
    assert.is_true(moth.allclose(x * 8 + 11, value("fold(x, n - 2, function(y, k) return y * 2 + k + 1 end)", 5)))
    assert.is_true(rawequal(x, value("fold(x, n - 5, function(y) return y * 2 end)", 5)))
    local nested = "fold(x, 2, function(y, k) return fold(y, k + 1, function(z, j) return z + j * 10 + k end) end)"
    assert.is_true(moth.allclose(x + 12, value(nested, 5)))
    assert.is_true(moth.equal(moth.cat({ x, x * 2 }, 2), value("cat(tensors(x, x * 2), 1)", 5)))
    for text, want in each { ["doublings(n)"] = 3, ["doublings(1)"] = 0, ["doublings(8)"] = 3, ["power_of(2, n)"] = 32,
      ["least(x.shape)"] = 2 } do
      assert.equal(want, value(text, 5), text)
    end
    for n = 0, 9 do -- the same as C
      local y = moth.rand(2, n)
      assert.is_true(moth.equal(moth.cumprod(y, 2), records.run(moth.ops.get "cumprod", { self = y, dim = 1 })), n)
    end
  end)

  it("say what is wrong with a text", function()
    for text, message in each {
      ["exq(x)"] = "'exq' is no argument, op or function", ["x and x"] = "has no if, and, or, comparison",
      ["x < x"] = "has no if", ["x.shpae"] = "has no field 'shpae'", ["x .. x"] = "cannot be joined",
      ["relu(x, 1)"] = "relu takes 1 arguments, got 2", ["x.shape + 1"] = "of a list and a number",
      ["written(x, function(w) return w end, x)"] = "the call of an op that makes a tensor",
      ["first_n(x, 1)"] = "argument 1 is a tensor, expected a list",
      ["fold(x, x, function(y) return y end)"] = "fold: expected a tensor, a number and a function",
      ["fold(x, 2, function(y, k) return k end)"] = "the function gives a number, expected a tensor",
      ["fold(x, 2, function(y, k) return k > 1 and y or x end)"] = "has no if, and, or, comparison",
      ["tensors(x, n)"] = "tensors: argument 2 is a number",
      ["when(x, 1, 2)"] = "a condition is expected, got a tensor",
    } do
      local ok, err = pcall(value, text, 5)
      assert.is_false(ok, text)
      assert.matches(message, tostring(err), 1, true)
    end
  end)

  it("call ops with positions from 0", function()
    assert.same(ops.argmax(x, 2):tolist(), (value("argmax(x, 1, false, 1)")):tolist())
    assert.same(ops.sub(ops.argmax(x, 2), 1):tolist(), (value("argmax(x, 1, false, 0)")):tolist())
    assert.same(ops.select(x, 3, 2):tolist(), (value("select(x, 2, 1)")):tolist())
  end)
end)
