-- x[key] and x[key] = v: random keys against a model in plain Lua that lists the places they name, then the rules one
-- by one, derivatives, dtypes, layouts, errors.
local moth = require "moth"
local fails = require "fails"
local D = { dtype = moth.float64 }
local gradcheck, gradgradcheck = moth.autograd.gradcheck, moth.autograd.gradgradcheck
local function int(t, dtype) return moth.tensor(t, { dtype = dtype or moth.int64 }) end
local function bool(...) return moth.tensor { ... } end
local function same(want, t) assert.same(want, t:tolist()) end
local function sized(want, t) assert.same(want, { unpack(t:size()) }) end
local function leaf(...) return moth.randn(..., D):requires_grad_() end

-- ---- the model -------------------------------------------------------------------------------------

-- All indices of a shape, row by row.
local function each(shape, fn)
  local at = {}
  local function go(d)
    if d > #shape then return fn(at) end
    for i = 1, shape[d] do
      at[d] = i
      go(d + 1)
    end
  end
  go(1)
end
local function element(t, at)
  for _, i in ipairs(at) do t = t[i] end
  return t
end
local function nonzero(mask, shape)
  local columns = {}
  for d = 1, #shape do columns[d] = { shape = { 0 } } end
  each(shape, function(at)
    if not element(mask, at) then return end
    for d = 1, #shape do
      local c = columns[d]
      c.shape[1] = c.shape[1] + 1
      c[c.shape[1]] = at[d]
    end
  end)
  return columns
end

-- Entries { kind, … }, for each dimension and new axis: the shape of x[key], and which element of x (from 1, row by
-- row) each of its elements is.
local function model(size, entries)
  local dims, list, d, apart = {}, {}, 0, nil -- of the result: { size, at(i) -> { [d] = position } }; index tensors
  local front, state = 1, "before"
  for _, e in ipairs(entries) do
    if e.kind == "new" then
      dims[#dims + 1] = { n = 1 }
    elseif e.kind == "mask" then
      for k, column in ipairs(nonzero(e.data, e.shape)) do
        list[#list + 1] = { d = d + k, data = column, shape = column.shape }
      end
      d = d + #e.shape
    else
      d = d + 1
      if e.kind == "number" then
        dims[#dims + 1] = { n = 1, d = d, at = { e.at }, gone = true }
      elseif e.kind == "slice" then
        local at = {}
        for i = e.first, e.last, e.step do at[#at + 1] = i end
        dims[#dims + 1] = { n = #at, d = d, at = at }
      else
        list[#list + 1] = { d = d, data = e.data, shape = e.shape }
      end
    end
    local tensor = e.kind == "mask" or e.kind == "tensor"
    if tensor and state == "before" then
      state, front = "in", #dims + 1
    elseif tensor and state == "after" then
      apart = true
    elseif not tensor and e.kind ~= "number" and state == "in" then
      state = "after"
    end
  end
  if apart then front = 1 end
  local shapes = {}
  for i, t in ipairs(list) do shapes[i] = t.shape end
  local joint = moth.broadcast_shapes(unpack(shapes))
  local all, result = {}, {}
  for i = 1, #dims + 1 do
    if i == front then for k = 1, #joint do all[#all + 1] = { n = joint[k], joint = k } end end
    if dims[i] then all[#all + 1] = dims[i] end
  end
  local sizes, places = {}, {}
  for i, x in ipairs(all) do
    sizes[i] = x.n
    if not x.gone then result[#result + 1] = x.n end
  end
  each(sizes, function(at)
    local where, k = {}, {}
    for i, x in ipairs(all) do
      if x.joint then k[x.joint] = at[i] elseif x.d then where[x.d] = x.at[at[i]] end
    end
    for _, t in ipairs(list) do
      local own = {}
      for i = 1, #t.shape do own[i] = t.shape[i] == 1 and 1 or k[#joint - #t.shape + i] end
      where[t.d] = element(t.data, own)
    end
    local place = 0
    for i = 1, #size do
      local p = where[i] or error "no position"
      place = place * size[i] + (p < 0 and p + size[i] or p - 1)
    end
    places[#places + 1] = place + 1
  end)
  return result, places
end

local seed = tonumber(os.getenv("MOTH_SEED")) or 1234
local function rand(a, b) -- the same numbers in every run
  seed = (seed * 1103515245 + 12345) % 2147483648
  return a + math.floor(seed / 65536) % (b - a + 1)
end

local function nested(shape, fn, d)
  d = d or 1
  if d > #shape then return fn() end
  local t = {}
  for i = 1, shape[d] do t[i] = nested(shape, fn, d + 1) end
  return t
end

-- A random key of a tensor, and the model's entries of it.
local function random_key(size)
  local key, entries, d, rest = {}, {}, 1, nil
  local broadcast = ({ {}, { 1 }, { 2 }, { 3 }, { 2, 2 }, { 1, 3 } })[rand(1, 6)]
  while d <= #size do
    local n, kind = size[d], rand(1, 12)
    if kind == 1 then
      local at = rand(1, n)
      key[#key + 1], entries[#entries + 1] = rand(0, 1) == 0 and at or at - n - 1, { kind = "number", at = at }
    elseif kind <= 3 then
      local first = rand(1, n)
      local last, step = rand(first, n), rand(1, 2)
      key[#key + 1] = { first, last, step }
      entries[#entries + 1] = { kind = "slice", first = first, last = last, step = step }
    elseif kind <= 5 then
      key[#key + 1], entries[#entries + 1] = {}, { kind = "slice", first = 1, last = n, step = 1 }
    elseif kind <= 8 then
      local shape = {}
      for i = rand(1, 5) == 1 and #broadcast or 1, #broadcast do
        shape[#shape + 1] = rand(1, 4) == 1 and 1 or broadcast[i]
      end
      local data = nested(shape, function()
        local at = rand(1, n)
        return rand(0, 1) == 0 and at or at - n - 1
      end)
      key[#key + 1] = int(data, ({ moth.int64, moth.int32, moth.int8 })[rand(1, 3)])
      entries[#entries + 1] = { kind = "tensor", data = data, shape = shape }
      if #shape == 0 then entries[#entries] = { kind = "number", at = data } end
    elseif kind <= 10 then
      local shape = { n, rand(1, 2) == 1 and size[d + 1] or nil }
      local left = #broadcast == 1 and broadcast[1] or 100
      local data = nested(shape, function()
        left = left - 1
        return left >= 0 and (left < 50 or rand(1, 2) == 1)
      end)
      key[#key + 1], entries[#entries + 1] = moth.tensor(data), { kind = "mask", data = data, shape = shape }
      d = d + #shape - 1
    elseif kind == 11 then
      key[#key + 1], entries[#entries + 1] = moth.newaxis, { kind = "new" }
      d = d - 1
    else
      rest = true
      break
    end
    d = d + 1
  end
  if rest then
    if rand(1, 2) == 1 then key[#key + 1] = "..." end
    for i = d, #size do entries[#entries + 1] = { kind = "slice", first = 1, last = size[i], step = 1 } end
  end
  return key, entries
end

local function zeros(shape, dtype) return moth.zeros(shape, { dtype = dtype or moth.float64 }) end

describe("random keys", function()
  local cases = math.min(tonumber(os.getenv("MOTH_CASES")) or 400, 4000)
  local function run(fn)
    local ran = 0
    for _ = 1, cases do
      local size = {}
      for i = 1, rand(1, 4) do size[i] = rand(1, 4) end
      local start = seed
      local key, entries = random_key(size)
      local ok, shape, places = pcall(model, size, entries)
      local fine, err = pcall(fn, size, key, ok and shape, places)
      if not fine then error(("seed %d, size [%s]: %s"):format(start, table.concat(size, ", "), tostring(err)), 0) end
      ran = ran + (ok and 1 or 0)
    end
    assert.is_true(ran > cases / 2)
  end
  -- Row by row, or with the dimensions laid out in another order.
  local function filled(size)
    local x = moth.arange(1, moth.zeros(size):numel() + 1):to "float64":view(size)
    return rand(1, 2) == 1 and #size > 1 and x:transpose(1, -1):contiguous():transpose(1, -1) or x
  end

  it("are read", function()
    run(function(size, key, shape, places)
      local x = filled(size)
      if not shape then return fails("do not broadcast together", function() return x[key] end) end
      local y = x[key]
      assert.same(shape, { unpack(y:size()) })
      assert.same(places, y:reshape(-1):tolist())
    end)
  end)
  it("are written and added to", function()
    run(function(size, key, shape, places)
      local x = filled(size)
      if not shape then return fails("do not broadcast together", function() x[key] = 1 end) end
      local row = {}
      for i = 1, #shape do row[i] = rand(1, 4) == 1 and 1 or shape[i] end
      for _ = 1, rand(0, #row) * (rand(1, 4) == 1 and 1 or 0) do table.remove(row, 1) end
      local v = (moth.rand(row) * 1000):floor()
      local values, want, sums = v:expand(shape):reshape(-1):tolist(), x:reshape(-1):tolist(), x:reshape(-1):tolist()
      for i, place in ipairs(places) do
        want[place] = values[i]
        sums[place] = sums[place] + values[i]
      end
      local y = x:clone():copy_(x)
      y:index_put_(key, v, true)
      assert.same(sums, y:reshape(-1):tolist())
      assert.same(sums, moth.index_put(x, key, v, { accumulate = true }):reshape(-1):tolist())
      x[key] = v
      assert.same(want, x:reshape(-1):tolist())
      for _, place in ipairs(places) do want[place] = -1 end
      x[key] = -1
      assert.same(want, x:reshape(-1):tolist())
    end)
  end)
  it("have derivatives by x and by the value, twice", function()
    cases = math.ceil(cases / 20)
    run(function(size, key, shape, places)
      if not shape then return end
      local x = leaf(size)
      assert.is_true(gradcheck(function(t) return t[key] ^ 2 end, { x }))
      assert.is_true(gradgradcheck(function(t) return t[key] ^ 2 end, { x }))
      local seen, twice = {}, false
      for _, place in ipairs(places) do
        twice = twice or seen[place]
        seen[place] = true
      end
      local v = leaf(shape)
      local function put(t, u)
        local y = t * t
        if twice then return y:index_put_(key, u * u, true) end -- else which value stays is left open
        y[key] = u * u
        return y * y
      end
      assert.is_true(gradcheck(put, { x, v }))
      assert.is_true(gradgradcheck(put, { x, v }))
    end)
  end)
end)

describe("masks #quick", function()
  it("of the first dimensions, of the last, of some in between", function()
    local x = moth.arange(12):view(3, 4):float()
    local rows = bool(true, false, true)
    x[rows] = 0
    same({ { 0, 0, 0, 0 }, { 4, 5, 6, 7 }, { 0, 0, 0, 0 } }, x)
    x[{ rows, {} }] = moth.tensor { { 1, 2, 3, 4 }, { 5, 6, 7, 8 } }
    same({ { 1, 2, 3, 4 }, { 4, 5, 6, 7 }, { 5, 6, 7, 8 } }, x)
    x[{ {}, bool(false, true, false, true) }] = moth.tensor { 10, 20 }
    same({ { 1, 10, 3, 20 }, { 4, 10, 6, 20 }, { 5, 10, 7, 20 } }, x)
    x[{ rows, 3 }] = -1
    same({ 10, -1, 20 }, x[{ 3, { 2, 4 } }])
    local y = zeros { 2, 3, 2 }
    y[bool(true, false):unsqueeze(2):expand(2, 3)] = moth.tensor { 1, 2 }
    same({ { { 1, 2 }, { 1, 2 }, { 1, 2 } }, { { 0, 0 }, { 0, 0 }, { 0, 0 } } }, y)
    sized({ 6, 2 }, y[moth.ones(2, 3):gt(0)])
  end)
  it("that do not fit are errors, and nothing is written", function()
    local x = moth.zeros(3, 4)
    for _, m in ipairs { moth.ones(2):gt(0), moth.ones(4):gt(0), moth.ones(3, 3):gt(0), moth.ones(4, 3):gt(0),
      moth.ones(3, 4, 1):gt(0) } do
      fails("mask of shape .* does not fit", function() return x[m] end)
      fails("mask of shape .* does not fit", function() x[m] = 1 end)
    end
    fails("not fit from dimension 2 on, where the sizes are %[4%]", function() return x[{ 1, moth.ones(3):gt(0) }] end)
    assert.equal(0, x:sum():item())
  end)
  it("take values of their number of places, or one", function()
    local x = moth.zeros(2, 3)
    local m = moth.tensor { { true, false, true }, { true, false, false } }
    x[m] = moth.tensor { 1, 2, 3 }
    same({ { 1, 0, 2 }, { 3, 0, 0 } }, x)
    x[m] = moth.tensor { { 4 } }
    same({ { 4, 0, 4 }, { 4, 0, 0 } }, x)
    for _, v in ipairs { moth.ones(4), moth.ones(2), moth.ones(3, 1), moth.ones(2, 3), moth.zeros(0) } do
      fails("value of shape .* does not broadcast to the 3 elements of the mask", function() x[m] = v end)
    end
    fails("value of shape %[2%] cannot be broadcast to its place, of shape %[1, 3%]", function()
      x[bool(true, false)] = moth.ones(2)
    end)
    x[m:logical_not()] = 1
    x[x:gt(9)] = moth.zeros(0)
    same({ { 4, 1, 4 }, { 4, 1, 1 } }, x)
  end)
  it("of no dimensions take none and add one", function()
    local x = moth.tensor(5)
    same({ 5 }, x[x:gt(1)])
    same({}, x[x:gt(9)])
    x[x:gt(9)] = 1
    x[x:eq(5)] = 7
    assert.equal(7, x:item())
    sized({ 1, 3 }, moth.zeros(3)[moth.tensor(true)])
  end)
end)

describe("index tensors #quick", function()
  local x
  before_each(function() x = moth.arange(12):view(3, 4):float() end)
  it("count from the end by negative positions", function()
    same({ 11, 4 }, x[{ int { -1, 2 }, int { -1, 1 } }])
    same({ { 8, 9, 10, 11 } }, x[int { -1 }])
    x[int { -3 }] = 0
    same({ 0, 0, 0, 0 }, x[1])
    same({ { 4 }, { 8 } }, x[{ { 2, 3 }, int { -4 } }])
    same({ 2, 3 }, moth.take_along_dim(int { { 1, 2, 3 } }, int { { 2, -1 } }, 2)[1])
  end)
  it("go in front where a slice or a new axis stands between them", function()
    local y = moth.zeros(2, 3, 4, 5)
    local i, j = int { { 1, 2, 1 } }, int { { 1 }, { 2 } }
    sized({ 2, 3, 3, 5 }, y[{ i, {}, j }])
    sized({ 2, 2, 3, 5 }, y[{ {}, i, j }])
    sized({ 1, 3, 4 }, y[{ i, 1, {}, 1 }])
    sized({ 2, 3, 5 }, y[{ i, 1, j }])
    sized({ 2, 3, 1, 4, 5 }, y[{ i, moth.newaxis, j }])
  end)
  it("with 0 or out of range are errors that name position, dimension and size", function()
    for at, message in pairs {
      [0] = "position 0 in dimension 2: moth counts from 1",
      [5] = "position 5 is out of range for dimension 2 of size 4",
      [-5] = "position %-5 is out of range for dimension 2 of size 4",
    } do
      local err = fails(message, function() return x[{ 1, int { 1, at } }] end)
      assert.truthy(err:find "^spec/lua/index_spec.lua:%d+: index: ", err)
      fails(message, function() x[{ {}, int { { at } } }] = 1 end)
      fails(message, function() x[{ 2, at }] = 1 end)
      fails(message, function() return x[{ "...", at }] end)
    end
    same({ 8, 9, 10, 11 }, x[3])
    fails("position %-1 is out of range for dimension 1 of size 0", function()
      return moth.zeros(0)[moth.tensor({ -1 }, { dtype = moth.int8 })]
    end)
    fails("position 0 in dimension 1", function() return moth.zeros(300)[moth.tensor({ 0 }, { dtype = moth.int8 })] end)
  end)
  it("of one element and no dimensions are numbers", function()
    assert.is_true(x[int(2)]:shares_storage(x))
    x[int(2)][int(-1)] = -7
    assert.equal(-7, x[{ 2, 4 }]:item())
  end)
  it("of uint8 are an error: they might be meant as a mask; of floats, too", function()
    fails("uint8 tensor is neither a mask", function() return x[int({ 1, 0, 1 }, moth.uint8)] end)
    fails("uint8 tensor is neither a mask", function() x[int({ 1, 0, 1 }, moth.uint8)] = 1 end)
    fails("integers %(i:long%(%)%) or bool, got float32", function() return x[moth.tensor { 1, 2 }] end)
  end)
  it("name a place twice: the last value stays, sums take all", function()
    local y = moth.zeros(3)
    y[int { 2, 2, 1 }] = moth.tensor { 1, 2, 3 }
    same({ 3, 2, 0 }, y)
    y:index_put_(int { 2, 2, 1 }, moth.tensor { 1, 2, 3 }, true)
    same({ 6, 5, 0 }, y)
    assert.equal(y, y:index_put_({ int { 3 } }, 1))
    same({ 6, 5, 2 }, moth.index_put(y, int { 3 }, 1, { accumulate = true }))
    same({ 6, 5, 1 }, y)
    y:index_put_({ { 1, 2 } }, 1, true)
    same({ 7, 6, 1 }, y)
    fails("unknown option 'acumulate'.*did you mean", function() y:index_put_({ 1 }, 1, { acumulate = true }) end)
  end)
  it("take every dtype, with values converted as copy_ does", function()
    local all = { "float64", "float32", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64" }
    for _, dtype in ipairs(all) do
      local y = moth.zeros({ 3, 2 }, { dtype = dtype })
      y[int { 3, 1 }] = moth.tensor { 2.75, 1 }
      local v = moth.tensor { 2.75 }:to(dtype):item()
      same({ { v, 1 }, { 0, 0 }, { v, 1 } }, y)
      same({ { v, 1 }, { 0, 0 } }, y[{ int { 3, 2 }, {} }])
      y:index_put_({ int { 1, 1, 1 }, int { 2, 2, 1 } }, 2, true)
      same({ { v + 2, 5 }, { 0, 0 } }, y[{ { 1, 2 } }])
      y[{ int { 1, 2 }, int { 1, 2 } }] = 2.75
      y[y:eq(0)] = 2.75
      same({ { v, 5 }, { v, v } }, y[{ { 1, 2 } }])
      y[{ int { 1, 2 }, int { 1, 2 } }] = 3
      y[{ 2, 1 }] = 0
      same({ { 3, 5 }, { 0, 3 } }, y[{ { 1, 2 } }])
    end
    local b = moth.zeros({ 3 }, { dtype = moth.bool })
    b[int { 1, 3 }] = true
    same({ true, false, true }, b)
    b[b:clone()] = false
    same({ false, false, false }, b)
    local sums = moth.zeros({ 1 }, { dtype = moth.float16 })
    sums:index_put_(moth.ones({ 4096 }, { dtype = moth.int64 }), 1, true)
    same({ 4096 }, sums)
  end)
  it("of many elements: all of a large tensor, in parts and whole", function()
    local n = 70001
    local perm = moth.randperm(n)
    local y = moth.arange(n)
    assert.is_true(moth.equal(y[perm], perm - 1))
    local back = moth.zeros({ n }, { dtype = moth.int64 })
    back[perm] = y[perm]
    assert.is_true(moth.equal(back, y))
    local rows = moth.randn(n, 3)
    assert.is_true(moth.equal(rows[{ perm, int { 2 } }], rows:select(2, 2)[perm]))
    assert.is_true(moth.equal(rows[{ perm - n - 1 }], rows[perm]))
  end)
  it("of tensors without elements", function()
    local none, empty = int {}, moth.zeros(0, 3)
    sized({ 0, 4 }, x[none])
    sized({ 2, 0 }, empty[{ {}, int { 1, 2 } }]:t())
    x[none] = 5
    x[{ none, none }] = moth.zeros(0)
    assert.equal(66, x:sum():item())
    fails("position 1 is out of range for dimension 1 of size 0", function() return empty[int { 1 }] end)
    fails("do not broadcast together", function() return x[{ int { 1, 2 }, int { 1, 2, 3 } }] end)
    fails("value of shape %[3%] cannot be broadcast to its place, of shape %[2%]", function()
      x[{ int { 1, 2 }, int { 1, 2 } }] = moth.ones(3)
    end)
  end)
end)

describe("keys #quick", function()
  local x
  before_each(function() x = moth.arange(24):view(2, 3, 4):float() end)
  it("hold '...' for the dimensions left, and new axes", function()
    same({ { 0, 4, 8 }, { 12, 16, 20 } }, x[{ "...", 1 }])
    same({ 20, 21, 22, 23 }, x[{ -1, "...", -1, {} }])
    same({ 4, 5, 6, 7 }, x[{ 1, 2, "..." }])
    sized({ 2, 1, 3, 4 }, x[{ {}, moth.newaxis }])
    sized({ 2, 3, 4, 1 }, x[{ "...", "newaxis" }])
    x[{ "...", { 1, 4, 3 } }] = 0
    same({ 0, 1, 2, 0 }, x[{ 1, 1 }])
    assert.is_true(x[{}]:shares_storage(x))
    assert.is_false(rawequal(x[{}], x))
    x[{}] = 1
    assert.equal(24, x:sum():item())
    moth.zeros(1)[{ "...", {} }] = 1
  end)
  it("that mean nothing are errors, read and written", function()
    for message, key in pairs {
      ["takes 4 dimensions of a tensor that has 3"] = { 1, 1, 1, 1 },
      ["more dimensions than the 3"] = { {}, {}, {}, {} },
      ["entry 1 of the key is nil"] = { nil, 2 }, ["entry 2 of the key is nil"] = { 1, nil, 2 },
      ["the key 'dim'"] = { dim = 1 }, ["none of them nil or named"] = { { nil, 2 } },
      ["nil or named"] = { { first = 1 } }, ["a position is an integer, got 1.5"] = { 1.5 },
      ["expected a number, .*got 'all'"] = { "all" }, ["got boolean"] = { true }, ["stands twice"] = { "...", "..." },
      ["integers, got a tensor"] = { { int { 1 } } }, ["got 4 entries"] = { { 1, 2, 1, 1 } },
      ["out of range for dimension 3 of size 4"] = { 1, {}, { 2, 5 } }, ["step of a slice"] = { { 1, 2, -1 } },
    } do
      fails(message, function() return x[key] end)
      fails(message, function() x[key] = 1 end)
    end
    fails("expected a number, a tensor or a list of them, got nil", function() return x[nil] end)
    fails("got boolean", function() return x[true] end)
    fails("expected a number or a tensor to assign, got nil", function() x[1] = nil end)
    fails("of shape %[3%] cannot be broadcast to its place, of shape %[3, 4%]", function() x[1] = moth.ones(3) end)
    fails("of shape %[2, 3, 4%] cannot be broadcast to its place, of shape %[3, 4%]", function() x[1] = x end)
  end)
end)

describe("assignment and autograd #quick", function()
  it("to a leaf, or to its view, is an error; under no_grad it is none", function()
    local x, i = moth.zeros(3, 2):requires_grad_(), int { 1 }
    for _, key in ipairs { { i }, { i, i }, { bool(true, false, true) }, { 1 }, { { 1, 2 } } } do
      fails("leaf Variable that requires grad", function() x[key] = 1 end)
      fails("leaf Variable that requires grad", function() x[1][i] = 1 end)
    end
    moth.no_grad(function() x[{ i, i }] = 1 end)
    assert.equal(1, x:sum():item())
  end)
  it("to a view of what has a history reaches the base", function()
    local x, v = leaf { 4, 3 }, leaf { 2 }
    local function put(t, u)
      local base = t * 2
      base:t()[{ int { 1, -1 }, int { 2, 3 } }] = u * u
      base[{ {}, 2 }][bool(true, false, false, true)] = u
      return base * base
    end
    assert.is_true(gradcheck(put, { x, v }))
    assert.is_true(gradgradcheck(put, { x, v }))
  end)
  it("counts a version: what backward needs and was overwritten is an error", function()
    local x = leaf { 3 }
    local y = x * 1
    local z = y * y
    y[int { 1 }] = 0
    fails("modified", function() z:sum():backward() end)
  end)
  it("reads a value that overlaps before it writes", function()
    local x = moth.arange(4)
    x[int { 2, 3, 4 }] = x[{ { 1, 3 } }]
    same({ 0, 0, 1, 2 }, x)
    local y = moth.arange(4):view(2, 2)
    y[{ int { 1, 2 } }] = y:t()
    same({ { 0, 2 }, { 1, 3 } }, y)
    local z = int { 2, 3, 1 }
    z[z] = z
    same({ 1, 2, 3 }, z)
    fails("several elements in one place", function() moth.zeros(1):expand(3)[int { 1 }] = 1 end)
  end)
  it("shapes are known without data", function()
    moth.fake_mode(function()
      local y = moth.zeros(3, 4, 5)
      local i = moth.zeros({ 2, 1 }, { dtype = moth.int64 })
      sized({ 2, 1, 4 }, y[{ i, {}, i }])
      y[{ i, {}, i }] = moth.zeros(4)
      fails("cannot be broadcast", function() y[{ i, {}, i }] = moth.zeros(3) end)
      fails("depends on data", function() return y[{ y[{ {}, 1, 1 }]:gt(0) }] end)
    end)
  end)
end)

describe("take_along_dim #quick", function()
  local x = moth.randn(3, 4, D)
  it("broadcasts x and index but in dim", function()
    local i = int { { 1, 4, -1 } }
    assert.is_true(moth.equal(x:take_along_dim(i, 2), x[{ {}, int { 1, 4, 4 } }]))
    assert.is_true(moth.equal(x:take_along_dim(i, { dim = -1 }), x[{ {}, int { 1, 4, 4 } }]))
    assert.is_true(moth.equal(x:narrow(1, 1, 1):take_along_dim(x:argmax(2, true), 2),
      x:narrow(1, 1, 1):expand(3, 4):gather(2, x:argmax(2, true))))
    assert.is_true(moth.equal(x:take_along_dim(int { { 5, -1 } }), moth.stack { x[{ 2, 1 }], x[{ 3, 4 }] }))
    local y = leaf { 3, 4 }
    assert.is_true(gradcheck(function(t) return t:take_along_dim(i, 2) ^ 2 end, { y }))
    assert.is_true(gradgradcheck(function(t) return t:take_along_dim(i, 2) ^ 2 end, { y }))
  end)
  it("says what does not fit", function()
    fails("as many dimensions", function() return x:take_along_dim(int { 1 }, 2) end)
    fails("do not broadcast but in dimension 2", function() return x:take_along_dim(int { { 1 }, { 2 } }, 2) end)
    fails("index 0 is out of range", function() return x:take_along_dim(int { { 0 } }, 2) end)
    fails("'indices': expected a tensor", function() return x:take_along_dim(1, 2) end)
  end)
end)
