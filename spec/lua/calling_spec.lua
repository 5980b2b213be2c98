-- How ops read their arguments from Lua: positions, names, both in one table; and under which name they fail.
local moth = require "moth"

local function fails(pattern, fn, ...)
  local ok, message = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
  assert.matches("calling_spec%.lua:%d+:", message)
end

local function shape(x) return x:size():numel() == 0 and { 0 } or { unpack(x:size()) } end

describe("the arguments of an op", function()
  local a, b = moth.ones(2, 3), moth.zeros(2, 3)

  it("may stand in one table, a list first", function()
    assert.same({ 2, 6 }, shape(moth.cat{ a, b, dim = 2 }))
    assert.same({ 2, 6 }, shape(moth.cat{ { a, b }, dim = 2 }))
    assert.same({ 4, 3 }, shape(moth.cat{ a, b }))
    assert.same({ 2, 3, 2 }, shape(moth.stack{ a, b, dim = 3 }))
    assert.same({ 2, 1 }, shape(a:sum{ 2, keepdim = true }))
    assert.same({ 1, 1 }, shape(a:sum{ 1, 2, keepdim = true }))
    assert.equal(moth.int64, moth.zeros{ 2, dtype = moth.int64 }:dtype())
    assert.same({ 2, 3 }, shape(moth.zeros{ 2, 3, dtype = moth.int64 }))
    assert.is_true(moth.randn{ 2, requires_grad = true }:requires_grad())
  end)

  it("may stand in one table where no list is due: the next ones by position", function()
    assert.equal(moth.float64, moth.linspace{ 0, 1, 5, dtype = moth.float64 }:dtype())
    assert.equal(7, moth.full{ { 2, 2 }, 7, dtype = moth.int8 }:max():item())
    assert.same({ 2, 1 }, shape(moth.argmax{ a, 2, keepdim = true }))
    assert.same({ 2, 1 }, shape(moth.argmax(a, { 2, keepdim = true })))
  end)

  it("are errors where they have no meaning", function()
    fails("%[ones%] unknown option 'bogus'; ones%(", moth.ones, { 2, bogus = 1 })
    fails("%[ones%] unknown option 'dtyp'; did you mean 'dtype'%?", moth.ones, { 2, dtyp = moth.int8 })
    fails("%[zeros%] option 'requires_grad': expected true or false, got number", moth.zeros, 2, { requires_grad = 1 })
    fails("%[zeros%] option 'pin_memory': expected true or false", moth.zeros, 2, { pin_memory = "yes" })
    fails("a list has no named fields", moth.cat, { a, b, dim = 1 }, 1)
    fails("too many arguments", moth.relu, { a, 1, 2, self = a })
    fails("'self' is given twice", moth.relu, { a, self = a })
    fails("element 2 is number, not a tensor", moth.cat, { a, 5, dim = 1 })
    fails("expected a tensor, got table", moth.relu, setmetatable({}, { __name = "Thing" }))
  end)

  it("have no holes", function()
    fails("hole: it has element 3", moth.zeros, { [1] = 2, [3] = 3 })
    fails("expected an integer, got nil", moth.zeros, { 1, nil, nil, 4 })
    fails("hole", moth.cat, { [1] = a, [3] = b })
    fails("argument 'other': expected a tensor or a number, got nil", moth.add, a, nil)
    assert.same({ 3 }, shape(moth.zeros(3, nil))) -- an options table that is handed on, and was not given
  end)

  it("take integers of 64 bits as cdata", function()
    assert.same({ 2, 3 }, shape(moth.zeros(2LL, 3)))
    assert.same({ 2, 3 }, shape(moth.zeros({ 2ULL, 3 })))
    assert.same({ 2 }, shape(a:sum(2LL)))
    assert.equal(6, a:add(5LL):max():item())
    assert.equal(9007199254740993LL, moth.full({ 1 }, 9007199254740993LL, { dtype = moth.int64 }):item())
    assert.equal(-9007199254740993LL, moth.full({}, -9007199254740993LL, { dtype = moth.int64 }):item())
    fails("beyond 2%^53.*18014398509481984LL", moth.randperm, 2 ^ 54)
    fails("expected a number, got cdata", moth.full, { 1 }, 18446744073709551615ULL, { dtype = moth.int64 })
    fails("expected an integer, got cdata", moth.zeros, require("ffi").new("int[2]"))
  end)
end)

describe("the name in an error", function()
  it("is that of the call, not of what it is made of", function()
    fails("^[^%[]*%[conv1d%].*got input: float32 %[1, 2, 5%] cpu", moth.conv1d, moth.zeros(1, 2, 5),
      moth.zeros(1, 3, 3))
    fails("^[^%[]*%[batch_norm%] running_mean", moth.batch_norm, moth.ones(2, 3), nil, nil)
    fails("^[^%[]*%[add_%]", moth.ones(2).add_, moth.ones(2), moth.ones(3))
  end)
end)
