-- MOTH_KERNEL_CHECK: compiled kernels refuse accesses outside of their tensors, as the interpreter does; and launches
-- with nothing to do.
local moth = require "moth"
local kernels = require "kernel.kernels"
local toolchain = require "moth.utils.toolchain"
local tl = moth.kernel.lang

local compiled = toolchain.cc() and it or pending

local twice = moth.kernel.jit(function(x, o, n, BLOCK)
  local i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
  local m = i < n
  tl.store(o + i, tl.load(x + i, { mask = m }) * 2, { mask = m })
end, { constexpr = { "BLOCK" }, name = "twice" })
local moved = moth.kernel.jit(function(x, o, by)
  tl.store(o + tl.program_id(1), tl.load(x + by))
end, { name = "moved" })
local counts = moth.kernel.jit(function(o, x) tl.atomic_add(o + tl.program_id(1), tl.load(x)) end, { name = "counts" })
local waits = moth.kernel.jit(function(x, o) while tl.load(x + 8) == 0 do tl.store(o, 1) end end, { name = "waits" })
local sums = moth.kernel.jit(function(x, o, rows, columns)
  local at = tl.arange(0, 4)
  tl.store(o + at, tl.sum(tl.load(x + tl.expand(at, 2) * columns + at), 2), { mask = at < rows })
end, { name = "sums" })

-- Under the check, compiled and interpreted.
local function both(f)
  kernels.with({ MOTH_KERNEL_CHECK = "1" }, f)
  kernels.with({ MOTH_KERNEL_INTERPRET = "1" }, f)
end

local function fails(pattern, f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  assert.matches(pattern, message)
end

describe("kernels that check their accesses", function()
  compiled("raise an error that names line, program, tensor and place", function()
    both(function()
      local x, o = moth.ones(100), moth.zeros(100)
      twice{ 7 }(x, o, 100, { BLOCK = 16 })
      assert.equal(200, o:sum():item())
      fails("check_spec.lua:%d+: %[kernel%] twice, program %(6, 0, 0%): store to o%[99%].* is outside of the tensor "
        .. "%[99%]: its elements reach from 0 to 98", twice{ 7 }, x, moth.empty(99), 100, { BLOCK = 16 })
      fails("load of x%[99%].* tensor %[99%]", twice{ 7 }, moth.ones(99), o, 100, { BLOCK = 16 })
      fails("load of x%[0%].* tensor %[0%]: it has no elements", twice{ 1 }, moth.empty(0), o, 100, { BLOCK = 16 })
      fails("load of x%[%-1%]", moved{ 1 }, x, o, -1)
      fails("program %(0, 2, 0%): store to o%[2%]", moved{ 1, 3 }, x, moth.empty(2), 0)
      fails("atomic on o%[2%]", counts{ 1, 3 }, moth.zeros(2), x)
      fails("load of x%[8%]", waits{ 1 }, moth.zeros(8), o)
    end)
  end)

  compiled("measure views by their sizes and strides, and write nothing outside", function()
    both(function()
      local x = moth.ones(4, 8)
      sums{ 1 }(x:narrow(2, 1, 4), moth.empty(4), 4, 8)
      sums{ 1 }(x:narrow(2, 5, 4), moth.empty(4), 4, 8)
      fails("load of x%[28%].* %[4, 4%]: its elements reach from 0 to 27", sums{ 1 }, x:narrow(2, 1, 4), moth.empty(4),
        4, 9)
      local all = moth.zeros(10)
      fails("store to o%[5%]", twice{ 1 }, moth.ones(16), all:narrow(1, 1, 5), 10, { BLOCK = 16 })
      assert.equal(0, all:narrow(1, 6, 5):sum():item())
      for _, dtype in ipairs { moth.float16, moth.bfloat16, moth.bool, moth.int8, moth.float64 } do
        local y = moth.ones(5, { dtype = dtype })
        fails("load of x%[5%]", moved{ 1 }, y, moth.zeros(1, { dtype = dtype }), 5)
        moved{ 1 }(y, moth.zeros(1, { dtype = dtype }), 4)
      end
    end)
  end)

  it("run without elements, and not without memory", function()
    local function run()
      local none, o = moth.empty(0), moth.zeros(8)
      twice{ 1 }(none, moth.empty(0), 0, { BLOCK = 16 })
      twice{ 0 }(none, o, 8, { BLOCK = 16 })
      twice{ 1 }(none, o, 0, { BLOCK = 16 })
      local x = moth.ones(8)
      x:untyped_storage():resize_(0)
      twice{ 0 }(x, o, 8, { BLOCK = 16 })
      fails("%[kernel%] twice: argument 1 %(x%): .* was released by resize_%(0%)", twice{ 1 }, x, o, 8, { BLOCK = 16 })
      fails("was released by resize_%(0%)", twice{ 1 }, o, x, 8, { BLOCK = 16 })
      assert.equal(0, o:sum():item())
      x:untyped_storage():resize_(32)
      x:fill_(3)
      twice{ 1 }(x, o, 8, { BLOCK = 16 })
      assert.equal(48, o:sum():item())
    end
    run()
    both(run)
  end)
end)
