-- uint16, uint32, uint64: dtypes for storage and exchange, as PyTorch has them.
local ffi = require "ffi"
local S = require "ops.support"
local moth = require "moth"

local names = { "uint16", "uint32", "uint64" }
local top = { uint16 = "65535", uint32 = "4294967295", uint64 = "18446744073709551615ULL" }

describe("unsigned dtypes #quick", function()
  for _, name in ipairs(names) do
    local dtype = moth[name]
    local o = { dtype = dtype, device = S.device }
    local function positions(list) return moth.tensor(list, { dtype = moth.int64, device = S.device }) end

    it(name .. " can be made, read, converted and printed", function()
      assert.equal(name, dtype.name)
      assert.equal(0, moth.iinfo(dtype).min)
      assert.equal(dtype.itemsize * 8, moth.iinfo(dtype).bits)
      local x = moth.tensor({ 0, 1, 40000 }, o)
      assert.equal(dtype, x:dtype())
      assert.same({ 0, 1, 40000 }, x:tolist())
      assert.equal(40000, x[3]:item())
      assert.is_truthy(tostring(x):find(name, 1, true))
      assert.is_truthy(tostring(x):find("40000", 1, true))
      for _, other in ipairs({ "float32", "float64", "int32", "int64", "uint16", "uint32", "uint64", "bfloat16" }) do
        local y = x:to(moth[other])
        assert.equal(moth[other], y:dtype())
        if other ~= "bfloat16" then assert.same({ 0, 1, 40000 }, y:to(dtype):tolist()) end
      end
      local largest = moth.tensor(-1, { dtype = moth.int64 }):to(dtype)
      assert.equal(top[name], tostring(largest:item()))
      assert.same({ 0, 0 }, moth.zeros(2, o):tolist())
      assert.same({ 1, 1 }, moth.ones(2, o):tolist())
      assert.same({ 7, 7 }, moth.full(2, 7, o):tolist())
      assert.same({ 5, 5 }, moth.empty(2, o):fill_(5):tolist())
      assert.same({ 3, 3, 3 }, moth.empty(3, o):copy_(moth.full(3, 3.9, { device = S.device })):tolist())
      assert.same({ 0, 1, 40000 }, x:clone():tolist())
      assert.error_matches(function() moth.full(2, -1, o) end, "out of the range of " .. name)
    end)

    it(name .. " can be viewed, joined, compared, chosen from and written to", function()
      local x = moth.tensor({ { 1, 2, 3 }, { 4, 5, 60000 } }, o)
      assert.same({ { 1, 4 }, { 2, 5 }, { 3, 60000 } }, x:t():contiguous():tolist())
      assert.same({ 4, 5, 60000 }, x[2]:tolist())
      assert.same({ { 2 }, { 5 } }, x[{ {}, { 2, 2 } }]:tolist())
      assert.same({ 1, 2, 3, 4, 5, 60000 }, moth.cat({ x[1], x[2] }):tolist())
      assert.equal(60000, moth.stack({ x, x })[{ 2, 2, 3 }]:item())
      assert.same({ { false, true, false }, { false, false, false } }, x:eq(2):tolist())
      assert.same({ { true, false, true }, { true, true, true } }, x:ne(2):tolist())
      assert.is_true(moth.equal(x, x:clone()))
      assert.same({ 60000 }, x[x:eq(60000)]:tolist())
      assert.same({ { 4, 5, 60000 } }, x:index_select(1, positions({ 2 })):tolist())
      assert.same({ { 3 }, { 4 } }, x:gather(2, positions({ { 3 }, { 1 } })):tolist())
      assert.same({ { 3, 2, 1 }, { 60000, 5, 4 } }, x:flip(2):tolist())
      assert.same({ { 1, 0, 0 }, { 4, 5, 0 } }, x:tril():tolist())
      assert.same({ { 1, 2, 7 }, { 7, 5, 60000 } }, x:scatter(2, positions({ { 3 }, { 1 } }), 7):tolist())
      assert.same({ { 1, 8, 3 }, { 4, 8, 60000 } },
        x:index_copy(2, positions({ 2 }), moth.full({ 2, 1 }, 8, o)):tolist())
      assert.same({ { 1, 9, 9 }, { 9, 9, 9 } }, x:masked_scatter(x:ne(1), moth.full(5, 9, o)):tolist())
      assert.same({ { 9, 2, 3 }, { 9, 9, 9 } }, x:masked_fill(x:ne(2):logical_and(x:ne(3)), 9):tolist())
      assert.same({ { 0, 2, 0 }, { 0, 0, 0 } }, moth.where(x:eq(2), x, 0):tolist())
      assert.error_matches(function() x:index_put_({ positions({ 1, 1 }) }, x[1], { accumulate = true }) end,
        "accumulate is not implemented for " .. name)
      x[{ 1, 1 }] = 77
      assert.equal(77, x[{ 1, 1 }]:item())
      assert.same({ 3, 2 }, { x:reshape(3, 2):size(1), x:expand(2, 2, 3):size(1) })
    end)

    it(name .. " promotes with floats alone, and arithmetic says that there is none", function()
      local x = moth.tensor({ 1, 2 }, o)
      assert.equal(moth.float32, moth.promote_types(dtype, moth.float32))
      assert.equal(moth.float16, moth.promote_types(dtype, moth.float16))
      assert.same({ 2.5, 3.5 }, (x + 1.5):tolist())
      assert.same({ 1, 1 }, (x + moth.tensor({ 0, -1 }, { device = S.device })):tolist())
      for _, other in ipairs({ "int8", "uint8", "int64", "bool", name == "uint16" and "uint32" or "uint16" }) do
        assert.error_matches(function() moth.promote_types(dtype, moth[other]) end, "have no common dtype")
        local y = moth.ones(2, { dtype = moth[other], device = S.device })
        assert.error_matches(function() return x:eq(y) end, "have no common dtype")
        assert.error_matches(function() moth.cat({ x, y }) end, "have no common dtype")
      end
      for op, fn in pairs({ add = function() return x + x end, mul = function() return x * 2 end,
        lt = function() return x:lt(2) end, sum = function() return x:sum() end,
        argmax = function() return x:argmax() end,
        sort = function() return x:sort() end, mm = function() return x:reshape(1, 2):mm(x:reshape(2, 1)) end,
        cumsum = function() return x:cumsum(1) end, nonzero = function() return x:nonzero() end,
        arange = function() return moth.arange(0, 3, 1, o) end,
        randint = function() return moth.randint(0, 3, { 2 }, o) end }) do
        assert.error_matches(fn, ("%%[%s%%] not implemented for %s; convert with x:to%%(moth%%.int"):format(op, name))
      end
    end)

    it(name .. " goes through pointers and files", function()
      local x = moth.tensor({ 1, 2, 65535 }, { dtype = dtype })
      assert.equal(65535, tonumber(x:data()[2]))
      local memory = ffi.new(name .. "_t[3]", { 7, 8, 9 })
      local y = moth.from_ptr(memory, { 3 }, { dtype = dtype })
      assert.same({ 7, 8, 9 }, y:tolist())
      y[2] = 65000
      assert.equal(65000, tonumber(memory[1]))
      local path = os.tmpname()
      for _, form in ipairs({ ".safetensors", ".npy" }) do
        local file = path .. form
        moth.save(form == ".npy" and x or { x = x }, file)
        local back = moth.load(file)
        if form ~= ".npy" then back = back.x end
        assert.equal(dtype, back:dtype())
        assert.same({ 1, 2, 65535 }, back:tolist())
        os.remove(file)
      end
      os.remove(path)
    end)
  end
end)
