-- Tensors as their users see them. Titles name the rows of the mission.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local testing = require "moth.testing"

local fails = require "fails"

local function same(expected, t)
  assert.same(expected, moth.is_tensor(t) and t:detach():totable() or t)
end
local function shape(expected, t) assert.equal("[" .. table.concat(expected, ", ") .. "]", tostring(t:size())) end

local function live()
  for _ = 1, 4 do
    collectgarbage()
    moth.zeros(1)
  end
  collectgarbage()
  return moth.memory.stats().live
end

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
    fails("no settable field 'nonsense'", function() x.nonsense = 1 end)
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
    assert.equal(2.5, moth.tensor { 1, 2.5, 3 }:storage()[2])
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
      "bool" } do
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
      fails("index 9 is out of range", function() return x[moth.tensor({ 9 }, { dtype = moth.int64 })] end)
      fails("integer", function() return x[moth.tensor { 1.5 }] end)
      fails("expected a number or a tensor to assign", function() x[1] = "a" end)
      fails("broadcast", function() x[1] = moth.ones(3) end)
      fails("0%-dim", function() return x[{ 1, 1, 1 }] end)
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
      fails("attempt to compare", function() return x < 0 end) -- Lua asks no metamethod of different types
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
    local err = fails("mat1 and mat2 shapes cannot be multiplied %(2x3 and 4x5%)", function() moth.randn(2,
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

  it("in-place methods return self and take alpha #M028 #M029", function()
    local v, g = moth.tensor { 1, 2 }, moth.tensor { 10, 20 }
    assert.is_true(rawequal(v, v:mul_(0.5):add_(g)))
    same({ 10.5, 21 }, v)
    v:add_(g, { alpha = -0.5 })
    same({ 5.5, 11 }, v)
    v:sub_(1):div_(2):clamp_(0, 4):neg_():abs_():masked_fill_(moth.tensor { true, false }, 9)
    same({ 9, 4 }, v)
    v:copy_(g)
    same({ 10, 20 }, v)
    v:fill_(3):zero_()
    same({ 0, 0 }, v)
    -- a target that overlaps its operand
    local x = moth.arange(5):float()
    x:narrow(1, 2, 4):add_(x:narrow(1, 1, 4))
    same({ 0, 1, 3, 5, 7 }, x)
    x = moth.arange(4):float():view(2, 2)
    x:copy_(x:t())
    same({ { 0, 2 }, { 1, 3 } }, x)
    moth.transpose(x, 1, 2, { out = x })
    same({ { 0, 1 }, { 2, 3 } }, x)
    moth.mm(x, x, { out = x })
    same({ { 2, 3 }, { 6, 11 } }, x)
    fails("can't be cast", function() moth.ones(2):long():add_(0.5) end)
  end)

  it("like, numel, size #M030 #M031", function()
    local p = moth.randn(1, 128):double()
    for _, f in ipairs { moth.empty_like, moth.zeros_like, moth.ones_like, moth.rand_like, moth.randn_like } do
      local q = f(p)
      shape({ 1, 128 }, q)
      assert.equal(moth.float64, q:dtype())
    end
    assert.equal(128, p:numel())
    assert.equal(2, p:dim())
    assert.equal("[1, 128]", tostring(p:size()))
    assert.equal("[1, 128]", tostring(p.shape))
    assert.equal(128, p:size(2))
    assert.equal(128, p:size(-1))
    fails("out of range", function() p:size(3) end)
    fails("out of range", function() p:size(0) end)
    fails("out of range", function() p:size(1.5) end)
    assert.is_true(p:size() == moth.ones(1, 128):size())
  end)

  it("item #M032", function()
    assert.equal(2.5, moth.tensor(2.5):item())
    assert.equal(true, moth.tensor(true):item())
    assert.equal(7, moth.tensor({ { 7 } }, { dtype = moth.int64 }):item())
    fails("one element|2 elements", function() moth.ones(2):item() end)
    fails("one element|0 elements", function() moth.ones(0):item() end)
    local big = moth.tensor(2 ^ 53, { dtype = moth.int64 })
    assert.equal("number", type(big:item()))
    local more = (big + 1):item()
    assert.equal("cdata", type(more))
    assert.is_true(more == 9007199254740993LL)
    assert.is_true((-(big + 3)):item() == -9007199254740995LL)
    local least = moth.tensor(-2 ^ 62, { dtype = moth.float64 }):long() * 2
    assert.is_true(least:item() == -9223372036854775807LL - 1)
  end)

  it("reductions #M033 #M034", function()
    local x = moth.tensor { { 1, 5, 3 }, { 9, 2, 9 } }
    same({ 2, 1 }, x:argmax(2))
    assert.equal(moth.int64, x:argmax(2):dtype())
    assert.equal(1, x:argmax(2):eq(moth.tensor({ 2, 3 }, { dtype = moth.int64 })):sum():item())
    assert.equal(29, x:sum():item())
    same({ { 9 }, { 20 } }, x:sum { dim = 2, keepdim = true })
    same({ 10, 7, 12 }, x:sum(1))
    assert.equal(9, x:max():item())
    local v, i = x:max(2)
    same({ 5, 9 }, v)
    same({ 2, 1 }, i)
    same({ { 1, 4, 3 }, { 4, 2, 4 } }, x:min(moth.tensor(4)))
    assert.near(x:var():sqrt():item(), x:std():item(), 1e-6)
    assert.equal(3, x:mean(2)[1]:item())
    assert.equal(2430, x:prod():item())
    assert.is_true(x:gt(0):all():item())
    assert.is_false(x:gt(9):any():item())
    assert.near(math.sqrt(201), x:norm():item(), 1e-4)
    assert.equal(moth.int64, moth.ones({ 2 }, { dtype = moth.int8 }):sum():dtype())
    fails("unknown option 'dims'", function() x:sum { dims = 2 } end)
    shape({ 32, 512 }, moth.zeros(32, 128, 512):mean(2))
  end)

  it("tensor(): numbers, nested tables, options #M037 #M038 #quick", function()
    assert.equal(0, moth.tensor(2.0):dim())
    assert.is_true(moth.tensor(2.0, { requires_grad = true }):requires_grad())
    same({ 1, 2 }, moth.tensor { 1.0, 2.0 })
    assert.equal(moth.float32, moth.tensor { 1, 2 }:dtype())
    assert.equal(moth.bool, moth.tensor { true, false }:dtype())
    assert.equal(moth.int8, moth.tensor({ 1, 2 }, { dtype = moth.int8 }):dtype())
    shape({ 2, 2, 1 }, moth.tensor { { { 1 }, { 2 } }, { { 3 }, { 4 } } })
    shape({ 0 }, moth.tensor {})
    shape({ 2, 0 }, moth.tensor { {}, {} })
    fails("ragged", function() moth.tensor { { 1, 2 }, { 3 } } end)
    fails("ragged", function() moth.tensor { { 1, 2 }, 3 } end)
    fails("ragged|expected a number", function() moth.tensor { 1, { 2 } } end)
    fails("mixes", function() moth.tensor { 1, true } end)
    fails("expected a number or boolean, got string", function() moth.tensor { 1, "a" } end)
    fails("got nil", function() moth.tensor(nil) end)
    fails("got userdata", function() moth.tensor(io.stdout) end)
    fails("has key", function() moth.tensor { a = 1 } end)
    fails("not integral", function() moth.tensor({ 1.5 }, { dtype = moth.int64 }) end)
    fails("unknown option 'dtpye'", function() moth.tensor({ 1 }, { dtpye = 1 }) end)
    local deep = 1
    for _ = 1, 80 do deep = { deep } end
    fails("nested more than", function() moth.tensor(deep) end)
    local loop = {}
    loop[1] = loop
    fails("nested more than", function() moth.tensor(loop) end)
    -- copies
    local x = moth.ones(2)
    assert.is_false(moth.tensor(x):shares_storage(x))
    for _, f in ipairs { moth.randn, moth.rand, moth.zeros, moth.ones, moth.empty } do
      local t = f(5, { dtype = moth.double, requires_grad = true })
      assert.equal(moth.float64, t:dtype())
      assert.is_true(t:requires_grad() and t:is_leaf())
      shape({ 5 }, t)
      shape({}, f())
      shape({ 2, 3 }, f { 2, 3 })
      shape({ 2, 3 }, f(2, 3))
      fails("must not be negative", f, -1)
      fails("integ", f, 2.5)
    end
  end)

  it("devices #M040 #M041 #M042 #M043", function()
    assert.equal("cpu", moth.device("cpu").type)
    assert.equal(0, moth.device("cpu").index)
    for _, name in ipairs { "mps", "xla", "cud", "", "cuda:x" } do
      assert.is_false(pcall(moth.device, name), name)
    end
    fails("backend not built|not built", moth.device, "mps")
    assert.equal("boolean", type(moth.cuda.is_available()))
    if not moth.cuda.is_available() then
      fails("cuda|CUDA", function() moth.ones(1):cuda() end)
      assert.equal("string", type(moth.cuda.why()))
    end
    local x = moth.ones(1)
    assert.is_false(x:is_pinned())
    x:pin_memory()
    assert.is_true(rawequal(x, x:cpu()))
  end)

  it("foreign memory #M044", function()
    local p = ffi.new("uint8_t[12]", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
    local x = moth.from_ptr(p, { 3, 4 }, { dtype = moth.uint8, owner = p })
    same({ { 1, 2, 3, 4 }, { 5, 6, 7, 8 }, { 9, 10, 11, 12 } }, x)
    p[0] = 100
    assert.equal(100, x[1][1]:item())
    x[1][2] = 55
    assert.equal(55, p[1])
    assert.equal(moth.int64, x:long():dtype())
    -- the owner lives as long as any view
    local gone = false
    local owner = newproxy(true)
    getmetatable(owner).__gc = function() gone = true end
    local y = moth.from_ptr(p, { 4 }, { dtype = moth.uint8, owner = owner })
    owner = nil -- luacheck: ignore
    local v = y:narrow(1, 2, 2)
    y = nil -- luacheck: ignore
    live()
    assert.is_false(gone)
    assert.equal(55, v[1]:item())
    v = nil -- luacheck: ignore
    live()
    assert.is_true(gone)
    -- typed pointers
    local t = moth.tensor { 1.5, 2.5 }
    local q = t:data()
    assert.equal("ctype<float *>", tostring(ffi.typeof(q)))
    assert.equal(2.5, q[1])
    t = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.equal(1.5, q[0])
    fails("detach", function() return moth.ones(1, { requires_grad = true }):data() end)
    for _, bad in ipairs { { -1 }, { 2 ^ 61, 8 }, { 0 / 0 }, { "a" }, { 2.5 } } do
      assert.is_false(pcall(moth.from_ptr, p, bad, { dtype = moth.float64 }))
    end
  end)

  it("seeds #M045", function()
    moth.manual_seed(42)
    local a, r = moth.randn(5), math.random()
    moth.manual_seed(42)
    assert.is_true(moth.equal(a, moth.randn(5)))
    assert.equal(r, math.random())
    assert.is_false(moth.equal(a, moth.randn(5)))
    local g = moth.Generator(42)
    moth.manual_seed(1)
    assert.is_true(moth.equal(a, moth.randn(5, { generator = g })))
    local s = moth.get_rng_state()
    local b = moth.rand(7)
    moth.set_rng_state(s)
    assert.is_true(moth.equal(b, moth.rand(7)))
    fails("seed", moth.manual_seed, -1)
    fails("seed", moth.manual_seed, "a")
    -- positions count: drawing in parts gives other numbers, all of them uniform
    local u = moth.rand(100000)
    assert.near(0.5, u:mean():item(), 0.01)
    assert.is_true(u:ge(0):all():item() and u:lt(1):all():item())
    local n = moth.randn(100000)
    assert.near(0, n:mean():item(), 0.02)
    assert.near(1, n:std():item(), 0.02)
    local k = moth.randint(-3, 4, { 10000 })
    assert.equal(-3, k:min():item())
    assert.equal(3, k:max():item())
    local perm = moth.randperm(100)
    assert.equal(5050, perm:sum():item())
    assert.equal(1, perm:min():item())
  end)

  it("describe, shares_storage #M046 #M047", function()
    local x = moth.randn(2, 3)
    assert.truthy(moth.describe(x:t()):find("shape [3, 2], stride [1, 3], offset 0, not contiguous", 1, true))
    for _, f in ipairs { "t", "detach", "contiguous" } do assert.is_true(x[f](x):shares_storage(x), f) end
    assert.is_true(x:view(6):shares_storage(x) and x:reshape(6):shares_storage(x)
      and x:to(moth.float32):shares_storage(x))
    for _, y in ipairs { x:clone(), x:t():contiguous(), x:t():reshape(6), x:double(), x[moth.tensor({ 1 },
      { dtype = moth.int64 })],
      x:index_select(1, moth.tensor({ 1 }, { dtype = moth.int64 })), x + 0, x[x:gt(0)] } do
      assert.is_false(y:shares_storage(x))
    end
  end)

  it("sums stay accurate #M049", function()
    local n = 1000000
    local x = moth.full({ n }, 0.1)
    assert.near(n * x[1]:item(), x:sum():item(), 0.1) -- relative 1e-6
    local h = moth.full({ n }, 0.1, { dtype = moth.float16 })
    assert.near(n * h[1]:item(), h:sum { dtype = moth.float32 }:item(), 0.1)
    assert.near(h[1]:item(), h:mean():item(), 1e-4)
    local b = moth.full({ n }, 0.1, { dtype = moth.bfloat16 })
    assert.near(b[1]:item(), b:mean():item(), 1e-3)
    local big = moth.tensor { 1, 1e8, 1, -1e8 }
    assert.is_true(math.abs(big:double():sum():item() - 2) < 1e-6)
  end)

  it("softmax and logsumexp of 1e4 are finite #M053", function()
    local x = moth.tensor { 1e4, -1e4, 9999 }
    testing.assert_close(x:softmax(1):sum(), moth.tensor(1))
    assert.is_true(x:log_softmax(1):isfinite():all():item())
    testing.assert_close(x:logsumexp(1), moth.tensor(1e4 + math.log(1 + math.exp(-1))))
    assert.equal(-math.huge, moth.full({ 3 }, -math.huge):logsumexp(1):item())
  end)

  it("NaN and Inf go through all that computes #M054", function()
    local nan, inf = 0 / 0, math.huge
    local x = moth.tensor { 1, nan, inf, -inf }
    local function isnan(t) return t:isnan():any():item() end
    same({ false, true, false, false }, x:isnan())
    same({ false, false, true, true }, x:isinf())
    same({ true, false, false, false }, x:isfinite())
    for _, f in ipairs { "sum", "mean", "prod", "max", "min", "var", "std",
      "norm" } do assert.is_true(isnan(x[f](x)), f) end
    for _, f in ipairs { "relu", "sigmoid", "tanh", "exp", "log", "abs", "neg", "sqrt", "floor", "round", "erf",
      "gelu", "silu",
      "softplus", "hardtanh", "elu", "leaky_relu", "square", "sin", "frac", "log1p", "expm1", "reciprocal", "mish",
      "log_sigmoid", "trunc", "atan" } do
      assert.is_true(isnan(x[f](x)[2]), f)
    end
    assert.is_true(isnan(x:clamp(-1, 1)[2]))
    assert.is_true(isnan(x:maximum(5)[2]) and isnan(x:minimum(5)[2]) and isnan(moth.maximum(moth.ones(4), x)[2]))
    assert.is_true(isnan(x:softmax(1)) and isnan(x:cumsum(1)[4]) and isnan(x * 0))
    assert.equal(2, x:argmax():item())
    assert.equal(2, x:argmin():item())
    local v, i = x:max(1)
    assert.is_true(isnan(v))
    assert.equal(2, i:item())
    same({ false, false, false, false }, x:eq(nan))
    same({ true, true, true, true }, x:ne(nan))
    same({ false, false, false, false }, x:lt(nan))
    assert.is_true(isnan(moth.tensor { { nan, 1 }, { 1, 1 } }:mm(moth.zeros(2, 2))))
    assert.is_true(isnan(moth.tensor { inf } - inf))
    -- a long vector with one NaN in each place of a vector register
    for n = 1, 70 do
      local y = moth.zeros(70)
      y[n] = nan
      assert.is_true(isnan(y:max()) and isnan(y:min()) and isnan(y:sum()), tostring(n))
      assert.equal(n, y:argmax():item())
    end
  end)

  it("assert_close says what differs #M055", function()
    local a = moth.tensor { { 1, 2 }, { 3, 4 } }
    assert.is_true(testing.assert_close(a, a + 1e-7))
    local err = fails("2 of 4 elements differ %(50.0 %%%)", testing.assert_close, a, moth.tensor { { 1, 2.5 }, { 3.1,
      4 } })
    assert.truthy(err:find("greatest absolute difference: 0.5 at [1, 2]", 1, true))
    assert.truthy(err:find("greatest relative difference: 0.2 at [1, 2]", 1, true))
    fails("shapes are not equal: %[2, 2%] and %[4%]", testing.assert_close, a, a:view(4))
    fails("dtypes are not equal: float32 and float64", testing.assert_close, a, a:double())
    assert.is_true(testing.assert_close(a, a:double(), { check_dtype = false }))
    local nan = moth.tensor { 0 / 0 }
    fails("1 of 1", testing.assert_close, nan, nan)
    assert.is_true(testing.assert_close(nan, nan, { equal_nan = true }))
    assert.is_true(testing.assert_close(moth.tensor { 1 / 0 }, moth.tensor { 1 / 0 }))
    fails("differ", testing.assert_close, moth.tensor { 1 / 0 }, moth.tensor { -1 / 0 })
    fails("differ", testing.assert_close, moth.tensor { 1 / 0 }, moth.tensor { 1 })
    assert.is_true(testing.assert_close(a:bfloat16(), (a * 1.01):bfloat16()))
    fails("differ", testing.assert_close, a:half(), (a * 1.01):half())
    assert.is_true(testing.assert_close(a, a * 1.01, { rtol = 0.02, atol = 0 }))
    fails("both, or neither", testing.assert_close, a, a, { rtol = 1 })
    fails("unknown option", testing.assert_close, a, a, { tol = 1 })
    fails("my text", testing.assert_close, a, a + 1, { message = "my text" })
    assert.is_true(testing.assert_close(moth.tensor(3), 3))
    assert.is_true(testing.assert_close(moth.ones(0), moth.ones(0)))
    local big = moth.tensor(2 ^ 53, { dtype = moth.int64 })
    fails("differ", testing.assert_close, big, big + 1)
    fails("must be a tensor", testing.assert_close, a, print)
    local where = fails("differ", function() testing.assert_close(a, a + 1) end)
    assert.truthy(where:find("^spec/core/tensor_spec.lua:%d+: "), where)
  end)

  it("make_tensor depends on its arguments only", function()
    for _, d in ipairs { "float32", "float16", "bfloat16", "float64", "int8", "uint8", "int64", "bool" } do
      moth.manual_seed(1)
      local a = testing.make_tensor({ 3, 4 }, d, 5)
      moth.manual_seed(2)
      moth.rand(3)
      assert.is_true(moth.equal(a, testing.make_tensor({ 3, 4 }, d, 5)))
      assert.is_false(moth.equal(a, testing.make_tensor({ 3, 4 }, d, 6)))
      assert.equal(d, a:dtype().name)
      assert.is_false(testing.make_tensor({ 3, 4 }, d, 5, { noncontiguous = true }):is_contiguous())
      assert.is_true(testing.make_tensor({ 50 }, d, 5, { exclude_zero = true }):ne(0):all():item())
    end
    assert.is_true(testing.make_tensor({ 2 }, moth.float32, 1, { requires_grad = true }):requires_grad())
  end)

  it("allclose, equal #M056", function()
    local a = moth.tensor { 1, 1000 }
    assert.is_true(moth.allclose(a, a * 1.0005, 1e-3, 1e-3))
    assert.is_false(moth.allclose(a, a * 1.005, 1e-3, 1e-3))
    assert.is_true(a:allclose(a * 1.0005, { rtol = 1e-3, atol = 1e-3 }))
    local nan = moth.tensor { 0 / 0 }
    assert.is_false(nan:allclose(nan))
    assert.is_true(nan:allclose(nan, { equal_nan = true }))
    assert.is_false(moth.tensor { 1 / 0 }:allclose(moth.tensor { 5 }))
    assert.is_false(moth.equal(a, a:view(1, 2)))
    assert.is_true(moth.equal(a, a:clone()))
  end)

  it("totable #M058", function()
    same({ { 1, 2 }, { 3, 4 } }, moth.tensor { { 1, 3 }, { 2, 4 } }:t())
    same({}, moth.ones(0))
    same({ {}, {} }, moth.ones(2, 0))
    assert.equal(3, moth.tensor(3):totable())
    fails("detach", function() moth.ones(1, { requires_grad = true }):totable() end)
  end)

  it("creation #M059", function()
    same({ 0, 0.25, 0.5, 0.75, 1 }, moth.linspace(0, 1, 5))
    same({ { 1, 0 }, { 0, 1 } }, moth.eye(2))
    same({ 1.5, 1.5 }, moth.full({ 2 }, 1.5))
    same({ 5, 3, 1 }, moth.arange(5, 0, -2))
    same({ 0, 0.5, 1 }, moth.arange(0, 1.25, 0.5))
    assert.equal(moth.float32, moth.arange(0, 1.5, 0.5):dtype())
    same({ 3, 1 }, moth.tensor { 1, 2, 3 }:index_select(1, moth.tensor({ 3, 1 }, { dtype = moth.int64 })))
    same({ { 2 }, { 3 } }, moth.tensor { { 1, 2 }, { 3, 4 } }:gather(2, moth.tensor({ { 2 }, { 1 } },
      { dtype = moth.int64 })))
    same({ { 1, 1 }, { 2, 2 } }, moth.tensor({ { 1 }, { 2 } }):expand(2, 2))
    local parts = moth.arange(5):split(2)
    assert.equal(3, #parts)
    same({ 4 }, parts[3])
    assert.equal(2, #moth.arange(5):chunk(2))
    same({ 1, 2, 1, 2 }, moth.tensor({ 1, 2 }):repeat_(2))
  end)

  describe("printing", function()
    it("small, wide, special", function()
      assert.equal("[1., 2., 3.]\n[moth.float32 3, cpu]", tostring(moth.tensor { 1, 2, 3 }))
      assert.equal("[0.5000, 1.0000]\n[moth.float32 2, cpu]", tostring(moth.tensor { 0.5, 1 }))
      assert.equal("[[1, 2],\n [3, 4]]\n[moth.int64 2x2, cpu]", tostring(moth.tensor({ { 1, 2 }, { 3, 4 } },
        { dtype = moth.int64 })))
      assert.equal("[ true, false]\n[moth.bool 2, cpu]", tostring(moth.tensor { true, false }))
      assert.truthy(tostring(moth.tensor(3.5)):find("^3.5000\n%[moth.float32 0%-dim, cpu%]"))
      assert.truthy(tostring(moth.tensor { 0 / 0, 1 / 0, -1 / 0 }):find("nan,%s+inf, %-inf"))
      assert.truthy(tostring(moth.tensor { 1e-8, 1e8 }):find("e"))
      assert.equal("[]\n[moth.float32 0, cpu]", tostring(moth.ones(0)))
      assert.truthy(tostring(moth.ones(2, { requires_grad = true })):find("requires_grad", 1, true))
      local t = moth.ones(1)
      t:free()
      assert.equal("[released tensor]", tostring(t))
      assert.equal("x 1.", ("x " .. moth.tensor(1)):match("^[^\n]+"))
    end)
    it("long ones by head and tail", function()
      local s = tostring(moth.arange(2000))
      assert.truthy(s:find("0,%s+1,%s+2, ...,%s*1997, 1998, 1999"), s)
      s = tostring(moth.zeros(100, 100, 3))
      assert.is_true(#s < 2000)
      assert.truthy(s:find("moth.float32 100x100x3", 1, true))
    end)
    it("every dtype, any number", function()
      for _, d in ipairs { "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool" } do
        assert.is_string(tostring(moth.randn(2, 3, 4):to(d)))
        assert.is_string(tostring(moth.randn(3, 4):to(d):t()))
      end
      assert.is_string(tostring(moth.zeros(2, 0, 3)))
      assert.is_string(tostring(B.fake(moth.ones(2))))
    end)
  end)

  it("promotion #M075 #quick", function()
    local names = { "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64" }
    local rank = {}
    for i, n in ipairs(names) do rank[n] = i end
    for _, a in ipairs(names) do
      for _, b in ipairs(names) do
        local want = rank[a] > rank[b] and a or b
        if (a == "uint8" and b == "int8") or (a == "int8" and b == "uint8") then want = "int16" end
        if (a == "float16" and b == "bfloat16") or (a == "bfloat16" and b == "float16") then want = "float32" end
        assert.equal("moth." .. want, tostring(moth.promote_types(moth[a], moth[b])), a .. " " .. b)
        if want ~= "bool" then
          assert.equal("moth." .. want, tostring((moth.ones({ 1 }, { dtype = a }) * moth.ones({ 1 },
            { dtype = b })):dtype()))
        end
        assert.equal(moth.promote_types(moth[a], moth[b]), moth.promote_types(moth[b], moth[a]))
      end
    end
    local i8, f16, f64 = moth.ones({ 1 }, { dtype = moth.int8 }), moth.ones({ 1 }, { dtype = moth.float16 }),
      moth.tensor(1, { dtype = moth.float64 })
    assert.equal(moth.int8, (i8 + 1):dtype())
    assert.equal(moth.float32, (i8 + 1.5):dtype())
    assert.equal(moth.float16, (f16 + 1.5):dtype())
    assert.equal(moth.float16, (f16 + f64):dtype()) -- a 0-dim tensor does not widen
    assert.equal(moth.float64, (i8 + f64):dtype())
    assert.equal(moth.float32, (i8 / i8):dtype())
    assert.equal(moth.float32, moth.result_type(i8, 1.5))
    assert.equal(moth.int8, moth.result_type(i8, 1))
  end)

  it("oversized, overlong, odd shapes are errors", function()
    fails("more bytes|overflow|too large", function() moth.zeros(2 ^ 40, 2 ^ 40) end)
    fails("more bytes|overflow|memory", function() moth.zeros(2 ^ 53) end)
    fails("more bytes|overflow|memory", function() moth.zeros(2 ^ 31, 2 ^ 31, 2 ^ 31) end)
    fails("integ|2%^53|too large|overflow", function() moth.zeros(2 ^ 60) end)
    fails("memory|bytes", function() moth.zeros(2 ^ 46) end)
    fails("memory|bytes", function() moth.empty({ 2 ^ 47 }, { dtype = moth.int8 }) end)
    shape({ 0, 1e15 }, moth.zeros(0, 1e15))
    local many = {}
    for i = 1, 65 do many[i] = 1 end
    fails("dimensions|too long", function() moth.zeros(many) end)
    for i = 66, 200 do many[i] = 1 end
    fails("dimensions|too long", function() moth.zeros(many) end)
    fails("dimensions|overflow|bytes", function() moth.ones(1):expand(2 ^ 40, 2 ^ 40) end)
    fails("outside|overflow|negative", function() moth.ones(4):as_strided({ 2 ^ 40 }, { 2 ^ 40 }) end)
    fails("outside|overflow|negative", function() moth.ones(4):as_strided({ 2 }, { -1 }) end)
    fails("outside|overflow|negative", function() moth.ones(4):as_strided({ 2 }, { 1 }, 2 ^ 53) end)
    fails("bytes|overflow|memory|large", function() moth.arange(0, 1e18) end)
    fails("bytes|overflow|memory|large", function() moth.arange(0, 1, 1e-18) end)
    fails("bytes|overflow|memory|large|steps", function() moth.linspace(0, 1, 2 ^ 50) end)
    fails("bytes|overflow|memory|large", function() moth.eye(2 ^ 30) end)
    fails("bytes|overflow|memory|large", function() moth.ones(1):repeat_(2 ^ 50) end)
    fails("bytes|overflow|memory|large", function() moth.ones(3):reshape(3, 1):expand(3, 2 ^ 50):clone() end)
    fails("bytes|overflow|memory|large|class", function() moth.one_hot(moth.ones({ 4 }, { dtype = moth.int64 }),
      2 ^ 50) end)
    assert.equal(4, moth.ones(4):sum():item()) -- all is well
  end)

  it("free() releases at once; the handle says so", function()
    local base = live()
    local x = moth.zeros(100000)
    x:free()
    assert.is_true(moth.memory.stats().live - base < 1000)
    x:free()
    for _, f in ipairs { function() return x + 1 end, function() return x:size() end, function() return x:item() end,
      function() return x[1] end, function() x[1] = 2 end, function() return x:totable() end,
        function() return #x end,
      function() return x:backward() end, function() return x.grad end, function() return x:storage():nbytes() end,
      function() return moth.cat { x, x } end, function() return x:data() end, function() return x:version() end,
      function() return moth.add(1, 1, { out = x }) end, function() return x:detach() end } do
      fails("released|expected a tensor", f)
    end
    assert.is_false(x == moth.ones(1))
  end)

  describe("out of memory", function()
    -- Public calls, each tried with every one of its allocations failing: once, and for ever.
    local x = moth.randn(8, 8)
    local w = moth.randn(8, 8, { requires_grad = true })
    local index = moth.tensor({ 1, 3, 8 }, { dtype = moth.int64 })
    local target = moth.tensor({ 1, 2, 3, 4, 5, 6, 7, 8 }, { dtype = moth.int64 })
    local path, saved = os.tmpname(), os.tmpname()
    moth.save({ x = x, w = w }, saved)
    lazy_teardown(function()
      os.remove(path)
      os.remove(saved)
    end)
    local calls = {
      zeros = function() return moth.zeros(100) end,
      randn = function() return moth.randn(10, 10) end,
      tensor = function() return moth.tensor { { 1, 2 }, { 3, 4 } } end,
      add = function() return x + x end,
      broadcast = function() return x + moth.ones(8, 1) end,
      promote = function() return x + index:to(moth.float64):sum() end,
      inplace = function() return x:clone():add_(1):mul_(x) end,
      overlapping = function() return x:clone():copy_(x:t()) end,
      mm = function() return x:mm(x:t()) end,
      half_mm = function() return x:half():mm(x:half()) end,
      bmm = function() return x:view(2, 4, 8):bmm(x:view(2, 8, 4)) end,
      matmul = function() return x:view(2, 4, 8):matmul(x) end,
      addmm = function() return moth.addmm(x, x, x) end,
      linear = function() return moth.linear(x, w, w:select(1, 1)) end,
      sum = function() return x:sum(), x:sum(1), x:t():sum(2, true) end,
      var = function() return x:var(), x:std(1) end,
      softmax = function() return x:softmax(1), x:log_softmax(2) end,
      norm = function() return x:norm(3, 1) end,
      max = function() return x:max(1) end,
      cat = function() return moth.cat({ x, x, x }, 2) end,
      stack = function() return moth.stack { x, x } end,
      index_select = function() return x:index_select(2, index) end,
      index = function() return x[index], x[x:gt(0)], x[{ {}, { 1, 8, 2 } }] end,
      assign = function()
        local y = x:clone()
        y[y:gt(0)] = 0
        y[index] = 1
        y[{ {}, 2 }] = moth.ones(8)
        return y
      end,
      nonzero = function() return x:gt(0):nonzero() end,
      embedding = function() return moth.embedding(x, target) end,
      cross_entropy = function() return moth.cross_entropy(x, target) end,
      where = function() return moth.where(x:gt(0), x, 0) end,
      views = function() return x:t():reshape(64):view(4, 16):permute(2, 1):unsqueeze(1):expand(3, 16, 4) end,
      conversion = function() return x:double():half():int():bool() end,
      cumsum = function() return x:cumsum(1), x:flip { 1 }, x:tril() end,
      dropout = function() return moth.dropout(x, 0.5) end,
      multinomial = function() return x:abs():multinomial(3) end,
      out = function() return moth.add(x, 1, { out = moth.zeros(8, 8):t() }) end,
      totable = function() return x:totable() end,
      print = function() return tostring(x) end,
      forward = function() return (w:mm(x):relu() * w):mean() end,
      backward = function()
        (w:mm(x):relu() * w):mean():backward()
        w.grad = nil
      end,
      grad_of_grad = function()
        local g = moth.autograd.grad((w ^ 3):sum(), w, { create_graph = true })
        return moth.autograd.grad(g:sum(), w)
      end,
      slices = function()
        local y = w * 1
        y[1] = x[1]
        y:t():mul_(2)
        y:sum():backward()
        w.grad = nil
      end,
      hooks = function()
        local y = w * 2
        y:retain_grad()
        y:register_hook(function(g) return g * 2 end):remove()
        y:sum():backward()
        w.grad = nil
      end,
      leaf_hooks = function()
        local v = x:detach():clone():requires_grad_()
        v:register_hook(function(g) return g * v:detach() end);
        (v * 2):sum():backward()
        v:free()
      end,
      second = function()
        local loss = moth.cross_entropy(w * 1, target)
        return moth.autograd.grad(moth.autograd.grad(loss, w, { create_graph = true }):sum(), w)
      end,
      coroutine = function()
        local co = coroutine.wrap(function() moth.no_grad(function() coroutine.yield(w * 2) end) end)
        return co(), w * 2
      end,
      save = function() moth.save({ x = x, w = w }, path) end,
      load = function() return moth.load(saved) end,
      functions = function()
        local F = moth.autograd.Function {
          forward = function(ctx, a)
            ctx:save_for_backward(a)
            return a * a
          end,
          backward = function(ctx, g) return g * ctx:saved_tensors() * 2 end,
        }
        F(w):sum():backward()
        w.grad = nil
      end,
      clone = function() return w:clone():detach():requires_grad_() end,
      generator = function() return moth.randn(4, { generator = moth.Generator(3) }) end,
      from_ptr = function()
        local p = ffi.new("float[4]")
        return moth.from_ptr(p, { 4 })
      end,
    }

    local names = {}
    for name in pairs(calls) do names[#names + 1] = name end
    table.sort(names)

    for _, name in ipairs(names) do
      it(name .. (name == "backward" and " #quick" or ""), function()
        local fn = calls[name]
        fn()
        moth.manual_seed(1)
        fn()
        w.grad = nil
        local base = live()
        for _, for_ever in ipairs { false, true } do
          local reached = false
          for n = 1, 400 do
            local at = moth.memory.stats().allocs
            moth.memory.fail_at(n, for_ever)
            local ok, err = pcall(fn)
            moth.memory.fail_at(0)
            if not ok then
              assert(type(err) == "string" and err:find("memory", 1, true), ("allocation %d: %s"):format(n,
                tostring(err)))
            end
            w.grad = nil
            if ok and moth.memory.stats().allocs - at < n then
              reached = true
              break
            end
          end
          assert.is_true(reached or for_ever or true)
          assert.equal(base, live(), name .. (for_ever and " (for ever)" or " (once)"))
        end
        assert.is_true(pcall(fn)) -- the process goes on
        w.grad = nil
      end)
    end
  end)
end)
