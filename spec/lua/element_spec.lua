-- Elements and properties that compiled code reads and writes through the FFI: the same as by the functions of the
-- binding and ops, with the same errors, in the interpreter and compiled.
local moth = require "moth"
local B = require "moth_lua"
local element = require "moth.tensor.element"
local index = require "moth.tensor.index"
local ffi = require "ffi"
local ops, methods = B.ops, require("moth.tensor").methods

local dtypes = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool",
  "uint16", "uint32", "uint64" }

-- fn in the interpreter, then often enough that it is compiled.
local function both(fn)
  jit.off(fn, true)
  fn()
  jit.on(fn, true)
  for _ = 1, 80 do fn() end
end

local function outcome(fn, ...)
  local ok, v = pcall(fn, ...)
  if type(v) == "cdata" then v = tostring(v) end
  if ok and v ~= v then v = "nan" end
  return tostring(ok) .. " " .. (ok and tostring(v) or tostring(v):gsub("^[^:]*:%d+: ", ""))
end

local function tensors()
  local list = {}
  for _, dtype in ipairs(dtypes) do
    local t = moth.tensor({ { 0, 1, 2 }, { 3, 4, 5 } }, { dtype = dtype })
    for _, x in ipairs({ t, t:t(), t[2], t[{ {}, 2 }], t:expand(2, 2, 3), t[1][1], t:view(6), t:view(1, 2, 1, 3),
      t[{ { 1, 1 }, { 2, 2 } }], moth.empty({ 0, 2 }, { dtype = dtype }) }) do
      list[#list + 1] = x
    end
  end
  return list
end

local positions = { 1, 2, 3, -1, -2, -3, 0, 4, -4, 1.5, 0 / 0, 1 / 0, -1 / 0, 2 ^ 31, 2 ^ 32 + 1, -2 ^ 31, 2 ^ 53,
  1e300 }

describe("item with positions", function()
  it("is the item of that element, for every dtype, view and position", function()
    for _, x in ipairs(tensors()) do
      local n = x:dim()
      for _, i in ipairs(positions) do
        for _, j in ipairs(n > 1 and { 1, -1, 2, 3, 4, 0.5 } or { 1 }) do
          local key = ({ {}, { i }, { i, j }, { 1, i, j }, { 1, i, 1, j } })[n + 1]
          local expected = outcome(function() return x[key]:item() end)
          local function check()
            local got = outcome(function() return x:item(unpack(key)) end)
            if expected:find("^true") then
              assert.equal(expected, got)
            elseif n > 0 then
              assert.truthy(got:find("^false %[item%] .*position"), got)
            end
          end
          check()
        end
      end
    end
  end)

  it("is the only one without positions", function()
    for _, x in ipairs(tensors()) do
      local expected = outcome(function()
        if x:numel() ~= 1 then moth.zeros(2):item() end
        return ops.reshape(x, { 1 })[1]:item()
      end)
      both(function()
        local got = outcome(function() return x:item() end)
        assert.equal(expected:sub(1, 12), got:sub(1, 12))
      end)
    end
  end)

  it("has all integers, special floats and booleans", function()
    local big = moth.tensor({ 9007199254740993LL, -9007199254740993LL, 9007199254740992LL }, { dtype = moth.int64 })
    local special = moth.tensor({ 0 / 0, 1 / 0, -1 / 0, -0.0 + 0 })
    local truths = moth.tensor { true, false }
    both(function()
      assert.equal("9007199254740993LL", tostring(big:item(1)))
      assert.equal("-9007199254740993LL", tostring(big:item(-2)))
      assert.equal(2 ^ 53, big:item(3))
      local nan = special:item(1)
      assert.is_true(nan ~= nan and type(nan) == "number")
      assert.equal(1 / 0, special:item(2))
      assert.equal(-1 / 0, special:item(3))
      assert.is_true(truths:item(1))
      assert.is_false(truths:item(2))
    end)
  end)

  it("reads a NaN with a payload as a NaN", function()
    local bits = ffi.new("uint32_t[6]", { 0xffffffff, 0xfff12345, 0x7f812345, 0xffffffff, 0xffffffff, 0xfffb1234 })
    local x = moth.from_ptr(bits, { 3 }, { dtype = moth.float32 })
    local y = moth.from_ptr(ffi.cast("double *", bits) + 1, { 2 }, { dtype = moth.float64, owner = bits })
    both(function()
      for i = 1, 3 do
        local v = x:item(i)
        assert.equal("number", type(v))
        assert.is_true(v ~= v)
        assert.is_true(y:item(i % 2 + 1) ~= 0)
      end
    end)
  end)

  it("says what is wrong", function()
    local x = moth.zeros(2, 3)
    assert.error_matches(function() x:item(1) end, "%[item%] expected 2 positions, one for each dimension, got 1")
    assert.error_matches(function() x:item(1, 2, 3, 4, 5) end, "%[item%] expected 2 positions")
    assert.error_matches(function() x:item(nil, 2) end, "%[item%] argument 2: expected a position, got nil")
    assert.error_matches(function() x:item(1, "2") end, "%[item%].*number")
    local _, message = pcall(function() x:item(1, 4) end)
    assert.truthy(message:find("element_spec.lua:%d+: %[item%] position 4 is out of range for dimension 2 of size 3"))
    assert.error_matches(function() x:item(0, 1) end, "%[item%] position 0 in dimension 1: moth counts from 1")
    assert.error_matches(function() moth.fake_mode(function() return moth.zeros(2) end):item(1) end, "fake")
    x:free()
    assert.error_matches(function() x:item(1, 1) end, "%[item%].*released by free")
    assert.error_matches(function() methods.item(3) end, "%[item%].*expected a tensor, got number")
    assert.error_matches(function() methods.item(newproxy(true), 1) end, "%[item%].*expected a tensor, got userdata")
    assert.error_matches(function() methods.item({ 1 }, 1) end, "%[item%].*expected a tensor, got table")
    assert.error_matches(function() methods.item("x", 1) end, "%[item%].*expected a tensor, got string")
  end)
end)

describe("x[i] = v and x[{ i, j }] = v", function()
  local values = { 0, 1, 2.5, -1, 127, 128, 255, 256, -129, 32768, 2 ^ 31, 2 ^ 53, 2 ^ 53 + 2, 2 ^ 63, 1e39,
    3.4028235e38, 3.4028235677973366e38, -1e39, 1 / 0, -1 / 0, 0 / 0, -0.0, 1e-50 }
  local function text(t)
    local list = {}
    for i, v in ipairs(ops.reshape(t, { -1 }):tolist()) do
      list[i] = tostring(v) .. (type(v) == "number" and v ~= v and "" or v == 0 and 1 / v or "")
    end
    return table.concat(list, " ") .. " version " .. t:version()
  end

  it("write what fill_ writes, or say the same", function()
    for k, first in ipairs(tensors()) do
      for m, v in ipairs(values) do
        for _, i in ipairs(m == 2 and positions or { 2, -1, (m + k) % 5 }) do
          local n = first:dim()
          local key = ({ { i }, { i }, { i, 1 }, { 2, 1, i }, { 1, i, 1, 1 } })[n + 1]
          if n == 1 and k % 2 == 0 then key = i end
          local a, b = ops.clone(first), ops.clone(first)
          local expected = outcome(index.set, a, key, v)
          local got = outcome(function() b[key] = v end)
          assert.equal(expected, got)
          assert.equal(text(a), text(b))
        end
      end
    end
  end)

  it("write through views, and count the version of all that share the elements", function()
    local x = moth.zeros(4, 5)
    local row, column, flat = x[2], x[{ {}, 3 }], x:view(20)
    both(function()
      local version = x:version()
      row[4], column[-1], flat[1] = 7, 8, 9
      assert.equal(version + 3, x:version())
      assert.equal(7, x:item(2, 4))
      assert.equal(8, x:item(4, 3))
      assert.equal(9, x:item(1, 1))
    end)
  end)

  it("leave keys that are no positions to the rest of indexing", function()
    local x = moth.zeros(3, 3)
    x[{ 1 }] = 5
    x[{ 2, {} }] = 6
    x[{ -1, moth.tensor(2, { dtype = moth.int64 }) }] = 7
    assert.same({ { 5, 5, 5 }, { 6, 6, 6 }, { 0, 7, 0 } }, x:tolist())
    assert.error_matches(function() x[{ 1, 2, nil, 4 }] = 1 end, "entry 3 of the key is nil")
    assert.error_matches(function() x[{ 1, "2" }] = 1 end, "index: expected a number, a slice")
    assert.error_matches(function() x[{ 1, 1, 1 }] = 1 end, "index: the key takes 3 dimensions of a tensor that has 2")
    assert.error_matches(function() x[{ 1, 4 }] = 1 end, "position 4 is out of range for dimension 2 of size 3")
  end)

  it("are seen by autograd", function()
    local w = moth.ones(3):requires_grad_()
    assert.error_matches(function() w[1] = 2 end, "leaf")
    moth.no_grad(function() w[1] = 2 end)
    assert.equal(2, w:item(1))
    local y = w * 2
    y[2] = 10
    y:sum():backward()
    assert.same({ 2, 0, 2 }, w.grad:tolist())
    local base = moth.zeros(3)
    local view = base[{ { 1, 2 } }]
    base:mul_(w:detach():requires_grad_())
    view[1] = 4 -- the base's history reaches the view
    assert.is_true(view:requires_grad())
    local x = moth.ones(3)
    local z = (w * x):sum()
    x[1] = 3
    assert.error_matches(function() z:backward() end, "modified")
  end)

  it("are seen by modes, in every coroutine", function()
    local x = moth.zeros(3)
    local function write() x[1] = 1 end
    both(write)
    assert.equal(2, moth.dispatch.count(write)) -- select, fill_
    local co = coroutine.wrap(function()
      moth.fake_mode(function()
        coroutine.yield()
        return moth.zeros(1)
      end)
    end)
    co()
    x[2] = 5 -- not in the coroutine's mode
    assert.equal(5, x:item(2))
    co()
    assert.error_matches(function() moth.fake_mode(function() return moth.zeros(2) end)[3] = 1 end, "out of range")
  end)

  it("are calls that a subclass sees", function()
    local names = {}
    local Seen = moth.tensor_subclass("Seen", {
      dispatch = function(_, func, _, args)
        names[#names + 1] = func.name
        return func(unpack(args, 1, args.n))
      end,
    })
    local x = moth.make_subclass(Seen, moth.zeros(3))
    x[1] = 2
    assert.equal(2, x:item(1))
    assert.is_true(#names > 0)
  end)

  it("are errors where the storage was released", function()
    local x = moth.ones(3)
    x:untyped_storage():resize_(0)
    both(function()
      assert.is_false(pcall(function() x[1] = 1 end))
      assert.is_false(pcall(x.item, x, 1))
    end)
    x:untyped_storage():resize_(12)
    x[1] = 2
    assert.equal(2, x:item(1))
  end)

  it("do not write to what was freed", function()
    local x = moth.zeros(3)
    x:free()
    both(function() assert.is_false(pcall(function() x[1] = 1 end)) end)
  end)
end)

describe("facts", function()
  local asked = { dim = "dim", ndim = "dim", numel = "numel", nelement = "numel", storage_offset = "storage_offset",
    itemsize = "itemsize", element_size = "itemsize", version = "version", is_contiguous = "is_contiguous",
    is_fake = "is_fake", requires_grad = "requires_grad", dtype = "tensor_dtype", device = "tensor_device" }

  it("are the binding's", function()
    local list = tensors()
    list[#list + 1] = moth.fake_mode(function() return moth.zeros(2, 3) end)
    list[#list + 1] = moth.ones(2):requires_grad_()
    list[#list + 1] = list[#list] * 2
    for _, x in ipairs(list) do
      for name, of in pairs(asked) do
        local expected = B[of](x)
        both(function() assert.equal(expected, x[name](x)) end)
      end
      for d = -5, 5 do
        assert.equal(outcome(function() return (B.size(x, d)) end):gsub("%[size%] ", ""),
          (outcome(function() return x:size(d) end):gsub("%[size%] ", "")))
        assert.equal(outcome(function() return (B.stride(x, d)) end):gsub("%[stride%] ", ""),
          (outcome(function() return x:stride(d) end):gsub("%[stride%] ", "")))
      end
      if x:dim() > 0 then assert.equal(x:size(1), #x) end
    end
  end)

  it("are errors for what is no tensor, for too many arguments and after free", function()
    local x = moth.zeros(2)
    for name in pairs(asked) do
      assert.error_matches(function() methods[name](3) end, name)
      assert.error_matches(function() methods[name](newproxy(true)) end, name)
      assert.error_matches(function() x[name](x, 1) end, name)
    end
    x:free()
    for name in pairs(asked) do assert.error_matches(function() x[name](x) end, "released by free") end
  end)
end)

describe("a loop over elements", function()
  -- The links of the traces that are recorded while fn runs.
  local function links(fn)
    local found = {}
    local function note(what, trace) if what == "stop" then found[#found + 1] = trace end end
    jit.flush()
    jit.attach(note, "trace")
    fn()
    jit.attach(note)
    for i, trace in ipairs(found) do found[i] = require("jit.util").traceinfo(trace).linktype end
    return found
  end

  it("is one compiled loop", function()
    if not jit.status() then return end
    local x, m = moth.arange(200), moth.zeros(200, 2)
    local bodies = {
      function(i) return x:item(i) end, function(i) return m:item(i, 2) end, function(i) x[i] = i end,
      function(i) m[{ i, 1 }] = i end, function() return #x + x:dim() + x:size(1) end,
      function() return x:dtype() == moth.float32 and x:requires_grad() end,
    }
    for n, body in ipairs(bodies) do
      local loop = loadstring("local body = ... return function() for i = 1, 200 do body(i) end end")(body)
      local list = links(loop)
      assert.is_true(#list >= 1, "loop " .. n .. " was not compiled")
      for _, link in ipairs(list) do assert.is_true(link ~= "stitch", "loop " .. n .. " leaves compiled code") end
    end
  end)
end)

it("element.get and set leave what is no tensor alone", function()
  assert.is_nil(element.get("x", 1))
  assert.is_false(element.set(newproxy(true), 1, 2))
end)
