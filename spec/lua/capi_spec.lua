-- moth.C: the C API through LuaJIT's FFI; capi.value, capi.own and their kin.
local ffi = require "ffi"
local moth = require "moth"
local B = require "moth_lua"

describe("moth.C #M511", function()
  local C, capi = moth.C, moth.capi

  it("has every exported function of the header and of the ops", function()
    local pipe = assert(io.popen(("nm -D --defined-only %s/libmoth.so"):format(os.getenv("MOTH_BUILD") or "build")))
    local exported = {}
    for name in pipe:read("*a"):gmatch(" T (moth_[%w_]+)") do exported[name] = true end
    pipe:close()
    local declared, count = require "moth.cdef", 0
    for name in declared:gmatch("[ %*](moth_[%w_]+)%(") do
      assert(exported[name], name .. " is declared, but not exported")
      assert(pcall(function() return C[name] end), name)
      count = count + 1
    end
    assert.is_true(count > 350, tostring(count))
    for _, record in ipairs(require "moth.ops_table") do
      assert(declared:find("moth_" .. record.name .. "(", 1, true), record.name)
    end
  end)

  it("takes handles and gives tensors", function()
    local x, out = moth.tensor({ { 1, 2 }, { 3, 4 } }), ffi.new("MothTensor *[1]")
    capi.check(C.moth_add(capi.value(x), capi.value(10), capi.value(1), out))
    local y = capi.own(out[0])
    assert.same({ { 11, 12 }, { 13, 14 } }, y:totable())
    assert.equal(2, C.moth_tensor_ndim(capi.tensor(y)))
    local dims, n = capi.ints({ 0 }) -- positions count from 0
    local over = ffi.new("MothValue", { u = { ints = dims }, tag = C.MOTH_V_INTS, n = n })
    capi.check(C.moth_sum(capi.tensor(x), over, false, capi.value(moth.float64), out))
    y = capi.own(out[0])
    assert.same({ 4, 6 }, y:totable())
    assert.equal(moth.float64, y:dtype())
    assert.is_nil(capi.own(nil))
  end)

  it("differentiates, and its tensors are as good as others", function()
    local x, out = moth.tensor({ 2, 3 }, { requires_grad = true }), ffi.new("MothTensor *[1]")
    capi.check(C.moth_mul(capi.value(x), capi.value(x), out))
    capi.own(out[0]):sum():backward()
    assert.same({ 4, 6 }, x.grad:totable())
  end)

  it("makes values of all kinds", function()
    for v, tag in pairs { [true] = C.MOTH_V_BOOL, [3] = C.MOTH_V_INT, [2.5] = C.MOTH_V_FLOAT, x = C.MOTH_V_STRING,
      [moth.int8] = C.MOTH_V_DTYPE, [moth.device("cpu")] = C.MOTH_V_DEVICE, [moth.ones(1)] = C.MOTH_V_TENSOR } do
      assert.equal(tag, capi.value(v).tag)
    end
    assert.equal(C.MOTH_V_NONE, capi.value(nil).tag)
    assert.equal(ffi.string(C.moth_dtype_name(capi.dtype("int16"))), "int16")
  end)

  it("says what is wrong", function()
    local out = ffi.new("MothTensor *[1]")
    local x, y = moth.ones(2, 3), moth.ones(2, 3)
    assert.error_matches(function()
      capi.check(C.moth_mm(capi.tensor(x), capi.tensor(y), out))
    end, "%[mm%].*2, 3")
    assert.error_matches(function() capi.tensor(3) end, "expected a tensor, got 3")
    assert.error_matches(function() capi.own(3) end, "expected a MothTensor")
    assert.error_matches(function() capi.value({}) end, "got table")
    y:free()
    assert.error_matches(function() capi.tensor(y) end, "released")
  end)

  it("never runs Lua inside of a compiled call", function()
    local x, out = moth.ones(2, { requires_grad = true }), ffi.new("MothTensor *[1]")
    x:register_hook(function(g) return g * 2 end)
    for _ = 1, 200 do
      capi.check(C.moth_mul(capi.value(x), capi.value(3), out))
      local y = capi.own(out[0])
      local roots = ffi.new("MothTensor *[1]", capi.tensor(y:sum()))
      local status = C.moth_backward(roots, nil, 1, false, false)
      assert.equal(C.MOTH_ERR_STATE, status)
    end
    assert.matches("no Lua state", ffi.string(C.moth_last_error()))
  end)

  it("gives back what it takes", function()
    collectgarbage() collectgarbage()
    local before = B.memory_stats().live
    local x, out = moth.ones(100), ffi.new("MothTensor *[1]")
    for _ = 1, 100 do
      capi.check(C.moth_exp(capi.tensor(x), out))
      capi.own(out[0])
    end
    x = nil -- luacheck: ignore 311
    collectgarbage() collectgarbage()
    assert.equal(before, B.memory_stats().live)
  end)
end)
