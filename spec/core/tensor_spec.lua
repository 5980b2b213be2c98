-- Tensors as their users see them. Titles name the rows of the mission.
local moth = require "moth"
local testing = require "moth.utils.testing"

local fails = require "fails"
local live = require "live"

local function same(expected, t)
  assert.same(expected, moth.is_tensor(t) and t:detach():totable() or t)
end
local function shape(expected, t) assert.equal("[" .. table.concat(expected, ", ") .. "]", tostring(t:size())) end

describe("tensor", function()
  it("members can be read #M002 #quick", function()
    local x = moth.zeros(2, 3)
    assert.same({ 2, 3 }, { unpack(x:size()) })
    assert.same({ 3, 1 }, { unpack(x:stride()) })
    assert.equal(0, x:storage_offset())
    assert.equal(moth.float32, x:dtype())
    assert.equal(moth.device("cpu"), x:device())
    assert.equal("cpu", tostring(x:device()))
    assert.is_false(x:requires_grad())
    assert.equal(24, x:storage():nbytes())
    assert.equal(6, #x:storage():totable())
    fails("no method or field 'nonsense'", function() return x.nonsense end)
    fails("'nonsense' cannot be assigned", function() x.nonsense = 1 end)
  end)

  it("storages are shared and freed with the last view #M003 #M004", function()
    local base = live()
    local x = moth.zeros(1000)
    local v = x:narrow(1, 1, 10)
    assert.equal(x:storage():data_ptr(), v:storage():data_ptr())
    assert.is_true(v:shares_storage(x))
    x = nil -- luacheck: ignore
    assert.is_true(live() - base >= 4000)
    v = nil -- luacheck: ignore
    assert.equal(base, live())
    local s = tostring(moth.tensor { 1, 2.5, 3 }:storage())
    assert.equal(" 1\n 2.5\n 3\n[moth.Storage of float32, 3 elements]", s)
    local three = moth.tensor({ 1, 2.5, 3 }):narrow(1, 2, 1):storage()
    assert.same({ 3, 3, 12, 2.5 }, { #three, three:size(), three:nbytes(), three[2] })
  end)

  it("geometry: row-major, views, flat positions #M005 #M006 #M007 #M008 #quick", function()
    local x = moth.randn(3, 4)
    same({ 4, 1 }, { unpack(x:stride()) })
    assert.equal(0, x:storage_offset())
    local v = x:view(2, 6)
    assert.equal(x:storage():data_ptr(), v:storage():data_ptr())
    v[1][6] = 42
    assert.equal(42, x[2][2]:item())
    same({ 3, 1 }, { unpack(moth.empty(2, 3):stride()) })
    for _, y in ipairs { x, x:t(), x:narrow(1, 2, 2), x:t():narrow(1, 2, 2), x[{ {}, { 1, 4, 2 } }] } do
      local st = y:stride()
      for i = 1, y:size(1) do
        for j = 1, y:size(2) do
          local at = y:storage_offset() + (i - 1) * st[1] + (j - 1) * st[2] + 1
          assert.equal(y:storage()[at], y[i][j]:item())
          assert.equal(y:storage()[at], y[{ i, j }]:item())
          assert.equal(y[i][j]:data_ptr(), y:storage():data_ptr() + (at - 1) * y:itemsize()) -- #M039
        end
      end
    end
  end)

  it("transpose, contiguous, view, reshape, permute #M009 #M010 #M011 #M012 #M013 #M014 #M015 #quick", function()
    local x = moth.arange(6):view(2, 3)
    local t = x:transpose(1, 2)
    shape({ 3, 2 }, t)
    same({ 1, 3 }, { unpack(t:stride()) })
    assert.equal(x:data_ptr(), t:data_ptr())
    assert.is_false(t:is_contiguous())
    assert.is_true(x:is_contiguous())
    assert.is_true(rawequal(x, x:contiguous()) or x:contiguous():data_ptr() == x:data_ptr())
    local c = t:contiguous()
    assert.is_true(c:is_contiguous())
    assert.is_true(c:data_ptr() ~= t:data_ptr())
    same({ { 0, 3 }, { 1, 4 }, { 2, 5 } }, c)
    shape({ 6 }, x:view(-1))
    shape({ 6 }, x:view(6))
    fails("view size is not compatible with input tensor's size and stride", function() x:t():view(6) end)
    fails("invalid for input of size 6", function() x:view(4) end)
    assert.is_true(t:reshape(6):data_ptr() ~= x:data_ptr())
    assert.equal(x:data_ptr(), x:reshape(3, 2):data_ptr())
    same({ 0, 3, 1, 4, 2, 5 }, t:reshape(6))
    local y = moth.randn(2, 3, 4)
    shape({ 4, 2, 3 }, y:permute(3, 1, 2))
    same({ 1, 12, 4 }, { unpack(y:permute(3, 1, 2):stride()) })
    assert.is_true(y:permute(3, 1, 2):shares_storage(y))
    local a = moth.arange(12)
    assert.equal(moth.int64, a:dtype())
    same({ 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 }, a)
    same({ 4, 1 }, { unpack(a:reshape(3, 4):stride()) })
    shape({ 4, 3 }, a:reshape(3, 4):t())
    same({ 1, 4 }, { unpack(a:reshape(3, 4):t():stride()) })
    shape({ 2, 6 }, moth.randn(2, 3, 2):view(2, -1)) -- #M035
    fails("counts from 1", function() x:transpose(0, 1) end)
  end)

  it("dtypes and conversions #M016", function()
    for _, name in ipairs { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64",
      "bool", "uint16", "uint32", "uint64" } do
      local d = moth[name]
      assert.equal("moth." .. name, tostring(d))
      local x = moth.tensor({ 0, 1, 2 }):to(d)
      assert.equal(d, x:dtype())
      same(name == "bool" and { false, true, true } or { 0, 1, 2 }, x)
      assert.equal(d.itemsize, x:itemsize())
    end
    assert.equal(moth.float64, moth.ones(1):double():dtype())
    assert.equal(moth.float16, moth.ones(1):half():dtype())
    assert.equal(moth.int64, moth.ones(1):long():dtype())
    assert.equal(moth.uint8, moth.ones(1):byte():dtype())
    same({ -1, 1, 0, 2 }, moth.tensor { -1.7, 1.7, 0.2, 2.5 }:int())
    same({ 255, 0 }, moth.tensor({ -1, 256 }, { dtype = moth.int64 }):byte())
    same({ -128 }, moth.tensor({ 128 }, { dtype = moth.int64 }):char())
  end)

  describe("rounding", function()
    -- every float16 and bfloat16 bit pattern, and what floats round to
    local function bits(t) return t:data_pointer() end -- uint16_t*; it holds t
    it("finfo #M017", function()
      assert.near(6.1035e-05, moth.finfo(moth.float16).tiny, 1e-9)
      assert.equal(65504, moth.finfo(moth.float16).max)
      assert.equal(2 ^ -7, moth.finfo(moth.bfloat16).eps)
      assert.equal(2 ^ -23, moth.finfo(moth.float32).eps)
      assert.equal(-128, moth.iinfo(moth.int8).min)
      fails("float dtype", moth.finfo, moth.int8)
      fails("integer dtype", moth.iinfo, moth.float32)
    end)
    it("float16 and bfloat16 go to float32 and back unchanged, all 65536 of them #M017", function()
      for _, d in ipairs { moth.float16, moth.bfloat16 } do
        local x = moth.zeros({ 65536 }, { dtype = d })
        local p = bits(x)
        for i = 0, 65535 do p[i] = i end
        local wide = x:float()
        local again = wide:to(d)
        local w, back, nan = wide:data_pointer(), bits(again), wide:isnan():data_pointer()
        local mantissa = d == moth.float16 and 10 or 7
        for i = 0, 65535 do
          local e, m = math.floor(i / 2 ^ mantissa) % 2 ^ (15 - mantissa), i % 2 ^ mantissa
          local bias = 2 ^ (14 - mantissa) - 1
          local special = e == 2 ^ (15 - mantissa) - 1
          if special and m > 0 then
            assert(nan[i] == 1) -- a NaN with a payload must not be read by FFI: LuaJIT takes it for a tagged value
          else
            local v = special and math.huge or e == 0 and m * 2 ^ (1 - bias - mantissa)
              or (1 + m / 2 ^ mantissa) * 2 ^ (e - bias)
            if i >= 32768 then v = -v end
            assert(nan[i] == 0 and w[i] == v and back[i] == i, ("%s %d: %g, expected %g"):format(tostring(d), i,
              w[i], v))
          end
        end
      end
    end)
    it("to nearest even #M017 #quick", function()
      local f16 = moth.tensor { 1 + 2 ^ -11, 1 + 3 * 2 ^ -11, 1 + 2 ^ -11 + 2 ^ -20, 65519, 65520, 2 ^ -25,
        2 ^ -25 * 1.5, -65536, 2 ^ -24 }:half()
      same({ 1, 1 + 2 ^ -9, 1 + 2 ^ -10, 65504, math.huge, 0, 2 ^ -24, -math.huge, 2 ^ -24 }, f16)
      local b16 = moth.tensor { 1 + 2 ^ -8, 1 + 3 * 2 ^ -8, 1 + 2 ^ -8 + 2 ^ -20, 3.4e38, 3.3961775292304957e38,
        2 ^ -133 }:bfloat16()
      same({ 1, 1 + 2 ^ -6, 1 + 2 ^ -7, math.huge, math.huge, 2 ^ -133 }, b16)
      local nan = moth.tensor { 0 / 0 }
      for _, d in ipairs { moth.float16, moth.bfloat16, moth.float64 } do
        local v = nan:to(d):item()
        assert.is_true(v ~= v)
      end
    end)
  end)

  it("clone copies and is differentiable #M018", function()
    local x = moth.randn(2, 3)
    local y = x:clone()
    assert.is_false(y:shares_storage(x))
    assert.is_true(moth.equal(x, y))
    assert.is_true(x:t():clone():is_contiguous())
  end)

  it("clamp takes either limit #M019", function()
    local x = moth.tensor { -2, 0, 9 }
    same({ 0, 0, 9 }, x:clamp { min = 0 })
    same({ -2, 0, 6 }, x:clamp { max = 6 })
    same({ 0, 0, 6 }, x:clamp(0, 6))
    same({ 0, 0, 6 }, x:clamp_(0, 6))
    same({ 0, 0, 6 }, x)
  end)

  describe("indexing", function()
    local x
    before_each(function() x = moth.arange(12):view(3, 4):float() end)
    it("numbers, slices, tensors #quick", function()
      same({ 4, 5, 6, 7 }, x[2])
      same({ 8, 9, 10, 11 }, x[-1])
      assert.equal(6, x[2][3]:item())
      same({ 5, 6 }, x[{ 2, { 2, 3 } }])
      same({ { 0, 2 }, { 4, 6 }, { 8, 10 } }, x[{ {}, { 1, 4, 2 } }])
      same({ 2, 6, 10 }, x[{ {}, 3 }])
      same({ { 4, 5, 6, 7 }, { 8, 9, 10, 11 } }, x[{ { 2, -1 } }])
      same({ { 4, 5, 6, 7 } }, x[{ { 2 } }])
      shape({ 0, 4 }, x[{ { 2, 1 } }])
      same({ 9, 10, 11 }, x[x:gt(8)])
      same({ { 8, 9, 10, 11 }, { 0, 1, 2, 3 } }, x[moth.tensor({ 3, 1 }, { dtype = moth.int64 })])
      same({ { { 8, 9, 10, 11 } }, { { 0, 1, 2, 3 } } }, x[moth.tensor({ { 3 }, { 1 } }, { dtype = moth.int64 })])
      same({ { 0, 3 }, { 4, 7 }, { 8, 11 } }, x[{ {}, moth.tensor({ 1, 4 }, { dtype = moth.int64 }) }])
      same({ { 0, 1, 2, 3 }, { 8, 9, 10, 11 } }, x[moth.tensor { true, false, true }])
      assert.is_true(x[2]:shares_storage(x))
      local chunk = moth.arange(5) -- #M036
      same({ 0, 1, 2, 3 }, chunk[{ { 1, -2 } }])
      same({ 1, 2, 3, 4 }, chunk[{ { 2, -1 } }])
      assert.is_true(chunk[{ { 2, -1 } }]:shares_storage(chunk))
    end)
    it("assignment #M020", function()
      x[1] = 0
      same({ 0, 0, 0, 0 }, x[1])
      x[{ {}, 1 }] = moth.tensor { 7, 8, 9 }
      same({ 7, 8, 9 }, x[{ {}, 1 }])
      x[2][2] = -1
      assert.equal(-1, x[2][2]:item())
      x[{ 3, { 2, 4 } }] = { 1, 2, 3 }
      same({ 9, 1, 2, 3 }, x[3])
      local v = x:version()
      x[x:lt(0)] = 0
      assert.equal(0, x[2][2]:item())
      assert.is_true(x:version() > v)
      x[moth.tensor({ 1, 3 }, { dtype = moth.int64 })] = 5
      same({ { 5, 5, 5, 5 }, { 8, 0, 6, 7 }, { 5, 5, 5, 5 } }, x)
      x[{ {}, moth.tensor({ 4 }, { dtype = moth.int64 }) }] = 1
      same({ 1, 1, 1 }, x[{ {}, 4 }])
      x[x:eq(5)] = moth.tensor { 1, 2, 3, 4, 5, 6 }
      same({ 1, 2, 3, 1 }, x[1])
      x[x:eq(1)] = moth.tensor(40)
      assert.equal(40, x[1][1]:item())
      local y = moth.zeros({ 3 }, { dtype = moth.int64 })
      y[2] = 7
      same({ 0, 7, 0 }, y)
    end)
    it("errors name position and size, at the user's line", function()
      local err = fails("out of range", function() return x[4] end)
      assert.truthy(err:find("^spec/core/tensor_spec.lua:%d+: "), err)
      fails("counts from 1", function() return x[0] end)
      err = fails("out of range", function() return x[{ { 2, 5 } }] end)
      assert.truthy(err:find("^spec/core/tensor_spec.lua:%d+: "), err)
      fails("step", function() return x[{ { 1, 2, 0 } }] end)
      fails("integers", function() return x[{ { 1.5, 2 } }] end)
      fails("integ", function() return x[1.5] end)
      fails("expected a number", function() return x[{ print }] end)
      fails("mask", function() return x[moth.tensor { true, false }] end)
      fails("position 9 is out of range for dimension 1 of size 3", function()
        return x[moth.tensor({ 9 }, { dtype = moth.int64 })]
      end)
      fails("integer", function() return x[moth.tensor { 1.5 }] end)
      fails("expected a number or a tensor to assign", function() x[1] = "a" end)
      fails("broadcast", function() x[1] = moth.ones(3) end)
      fails("takes 3 dimensions of a tensor that has 2", function() return x[{ 1, 1, 1 }] end)
      fails("out of range", function() x[7] = 1 end)
      same({ 0, 1, 2, 3 }, x[1])
    end)
  end)

  describe("operators #M022", function()
    it("with scalars on either side #quick", function()
      local x = moth.tensor { 1, 2, 4 }
      same({ 3, 4, 6 }, x + 2)
      same({ 3, 4, 6 }, 2 + x)
      same({ 1, 0, -2 }, 2 - x)
      same({ -1, 0, 2 }, x - 2)
      same({ 2, 4, 8 }, x * 2)
      same({ 4, 2, 1 }, 4 / x)
      same({ 1, 4, 16 }, x ^ 2)
      same({ 2, 4, 16 }, 2 ^ x)
      same({ -1, -2, -4 }, -x)
      same({ 1, 2, 1 }, x % 3)
      same({ 2, 1 }, moth.tensor { -1, -2 } % 3)
      testing.assert_close(1 / (1 + moth.exp(-x)), x:sigmoid())
      assert.equal(3, #x)
      fails("argument 'other'", function() return x + "a" end)
      fails("argument 'other'", function() return x * {} end)
      fails("argument 'other'", function() return x + nil end)
    end)
    it("comparison of one element only #M021", function()
      local x = moth.tensor { 1, 2 }
      -- Lua asks no metamethod of different types: the launcher adds the hint, see launcher_spec.lua.
      fails("attempt to compare", function() return x < 0 end)
      fails("use x:lt%(y%)", function() return x < x end)
      fails("use x:le%(y%)", function() return x <= x end)
      assert.is_true(moth.tensor(1) < moth.tensor(2))
      same({ false, true }, x:gt(1))
      same({ true, false }, x:eq(1))
      assert.equal(moth.bool, x:ne(1):dtype())
      assert.is_true(x == x) -- identity
      assert.is_false(x == x:clone())
    end)
  end)

  it("matrix products #M023 #M024", function()
    shape({ 128, 512 }, moth.randn(128, 256):matmul(moth.randn(256, 512)))
    shape({ 5, 2, 3, 6 }, moth.randn(5, 1, 3, 4):matmul(moth.randn(2, 4, 6)))
    local err = fails("self and mat2 shapes cannot be multiplied %(2x3 and 4x5%)", function() moth.randn(2,
      3):mm(moth.randn(4, 5)) end)
    assert.truthy(err:find("^spec/core/tensor_spec.lua:%d+: "), err)
    shape({ 32, 128, 1024 }, moth.linear(moth.zeros(32, 128, 512), moth.zeros(1024, 512))) -- #M051
  end)

  it("to() #M026", function()
    local x = moth.ones(2)
    assert.is_true(rawequal(x, x:to(moth.float32)))
    assert.equal(moth.float64, x:to(moth.float64):dtype())
    assert.equal(moth.float64, x:to(moth.ones(1):double()):dtype())
    assert.equal(moth.bfloat16, x:to { device = "cpu", dtype = moth.bfloat16, non_blocking = true }:dtype())
    assert.equal(moth.int32, x:to("int32"):dtype())
    assert.is_true(rawequal(x, x:to("cpu")))
    assert.is_false(x:to { dtype = moth.float32, copy = true }:shares_storage(x))
    assert.is_true(rawequal(x, x:cpu()))
    fails("backend not built|no device|unknown device", function() x:to("tpu") end)
    fails("unknown option", function() x:to { dtyp = moth.int8 } end)
  end)

  describe("broadcasting #M027", function()
    it("shapes", function()
      assert.equal("[3, 4]", tostring(moth.broadcast_shapes({ 3, 1 }, { 4 })))
      assert.equal("[2, 3, 4]", tostring(moth.broadcast_shapes({ 3, 4 }, { 2, 1, 1 }, { 1 })))
      assert.equal("[0, 3]", tostring(moth.broadcast_shapes({ 0, 1 }, { 3 })))
      fails("cannot be broadcast", moth.broadcast_shapes, { 2, 3 }, { 4 })
      shape({ 3, 4 }, moth.ones(3, 1) + moth.ones(4))
      shape({ 5, 5 }, moth.ones(5) - moth.ones(5, 1)) -- the classic surprise
      local err = fails("cannot be broadcast", function() return moth.ones(2, 3) + moth.ones(4) end)
      assert.truthy(err:find("[2, 3]", 1, true) and err:find("[4]", 1, true))
      shape({ 0 }, moth.ones(0) + moth.ones(1))
    end)
    it("in place must keep the shape", function()
      fails("shape", function() moth.ones(3):add_(moth.ones(2, 3)) end)
      same({ { 2, 2 }, { 2, 2 } }, moth.ones(2, 2):add_(moth.ones(2)))
    end)
  end)
end)
