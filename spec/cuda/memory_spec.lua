-- Copies from, to and between devices; pinned memory; functions that read tensors' bytes.
local moth = require "moth"
local fails = require "fails"
local cuda = moth.cuda

local function there() return cuda.is_available() or pending(cuda.why()) end
local function emulated()
  return cuda.is_available() and cuda.get_device_name():find("emulated") or pending("only the emulation shows it")
end

local layouts = {
  whole = function(x) return x end,
  transposed = function(x) return x:t() end,
  part = function(x) return x[{ { 2, 5 }, { 1, 7, 2 } }] end,
  row = function(x) return x[3] end,
  number = function(x) return x[3][2] end,
  expanded = function(x) return x[3]:expand(4, 8) end,
  empty = function(x) return x[{ { 1, 0 } }] end,
}

describe("copies of CUDA tensors", function()
  it("keep values between any two devices, dtypes and layouts", function()
    if not there() then return end
    local devices = { "cpu", "cuda:0" }
    if cuda.device_count() > 1 then devices[3] = "cuda:1" end
    local dtypes = { "float32", "float64", "float16", "int64", "uint8", "bool" }
    local base = moth.arange(0, 48, 1, { dtype = moth.float32 }):reshape(6, 8)
    for _, from in ipairs(devices) do
      for _, to in ipairs(devices) do
        for _, a in ipairs(dtypes) do
          for _, b in ipairs { a, "float32", "int64" } do
            for name, layout in pairs(layouts) do
              local source = layout(base):to(moth[a])
              local there_ = layout(base:to(moth[a]):to(from))
              local expected = source:to(moth[b])
              local message = ("%s %s %s to %s %s"):format(name, a, from, b, to)
              local got = there_:to { device = to, dtype = b }
              assert.equal(b, got:dtype().name)
              assert.same(expected:totable(), got:cpu():totable(), message)
              -- into a strided place of another device
              local size = got:size()
              size[#size + 1] = 2
              local wide = moth.zeros(size, { dtype = moth[b], device = to })
              local place = wide:select(#size, 2)
              place:copy_(there_)
              assert.same(expected:totable(), wide:cpu():select(#size, 2):totable(), message .. ", strided")
            end
          end
        end
      end
    end
  end)

  it("broadcast on their way", function()
    if not there() then return end
    local x = moth.zeros({ 3, 4 }, { device = "cuda" })
    x:copy_(moth.tensor { 1, 2, 3, 4 })
    assert.same({ { 1, 2, 3, 4 }, { 1, 2, 3, 4 }, { 1, 2, 3, 4 } }, x:totable())
    local y = moth.zeros(2, 3):copy_(moth.tensor({ { 5 }, { 6 } }, { device = "cuda" }))
    assert.same({ { 5, 5, 5 }, { 6, 6, 6 } }, y:totable())
    fails("broadcast", function() x:copy_(moth.ones(5)) end)
  end)

  it("are differentiable", function()
    if not there() then return end
    local x = moth.tensor({ 1, 2, 3 }, { requires_grad = true })
    local y = x:cuda(cuda.device_count() - 1)
    y:mul(y):to("cuda:0"):sum():backward()
    assert.equal("cpu", x.grad:device().type)
    assert.same({ 2, 4, 6 }, x.grad:totable())
  end)

  it("a number on the cpu joins pointwise ops on the device", function()
    if not there() then return end
    local x = moth.tensor({ 1, 2, 3 }, { device = "cuda" })
    local two = moth.tensor(2, { requires_grad = true })
    local y = x * two
    assert.equal("cuda", y:device().type)
    assert.same({ 2, 4, 6 }, y:detach():totable())
    assert.same({ 2, 4, 6 }, (two:detach() * x):totable())
    assert.same({ 0.5, 1, 1.5 }, x:div(moth.tensor(2, { dtype = moth.int64 })):totable())
    y:sum():backward()
    assert.equal("cpu", two.grad:device().type)
    assert.equal(6, two.grad:item())
    x:add_(moth.tensor(1))
    assert.same({ 2, 3, 4 }, x:totable())
    assert.same({ 2, 9, 9 }, moth.where(x:lt(3), x, moth.tensor(9)):totable())
    fails("Expected all tensors to be on the same device, but found self on cpu and other on cuda:0",
      function() moth.tensor(1):add_(moth.tensor(2, { device = "cuda" })) end)
    fails("found self on cuda:0 and other on cpu", function() return x + moth.ones(3) end)
    fails("found self on cuda:0 and mat2 on cpu", function() return x:matmul(moth.ones(3)) end)
    fails("found tensors on cuda:0 and tensors on cpu", function() return moth.cat { x, moth.ones(3) } end)
    if cuda.device_count() > 1 then
      fails("found self on cuda:0 and other on cuda:1", function() return x + x:cuda(1) end)
    end
  end)

  it("serve what reads bytes: item, totable, printing, storage, save, indexing", function()
    if not there() then return end
    local x = moth.arange(1, 7, 1, { device = "cuda" }):reshape(2, 3)
    assert.equal(4, x[2][1]:item())
    assert.same({ { 1, 4 }, { 2, 5 }, { 3, 6 } }, x:t():totable())
    assert.matches("cuda", tostring(x))
    assert.matches("4,", tostring(x))
    assert.equal(6, x:storage()[6])
    assert.same({ 1, 2, 3, 4, 5, 6 }, x:storage():totable())
    assert.matches("mean 3.5", x:stats())
    fails("x:cpu%(%)", function() return x:data_pointer() end)
    local path = os.tmpname()
    moth.save({ x = x, y = x:t() }, path)
    local back = moth.load(path)
    os.remove(path)
    assert.equal("cpu", back.x:device().type)
    assert.same(x:totable(), back.x:totable())
    assert.same(x:t():totable(), back.y:totable())
    x[1] = 0
    x[{ 2, { 2, 3 } }] = { 8, 9 }
    x[{ {}, 1 }] = moth.tensor { -1, -2 } -- from the cpu
    assert.same({ { -1, 0, 0 }, { -2, 8, 9 } }, x:totable())
    local picked = x[moth.tensor({ 2, 2 }, { dtype = moth.int64 })] -- positions on the cpu
    assert.same({ { -2, 8, 9 }, { -2, 8, 9 } }, picked:totable())
    x[x:gt(7)] = 1
    assert.same({ { -1, 0, 0 }, { -2, 1, 1 } }, x:totable())
    x[moth.tensor({ 1 }, { dtype = moth.int64 })] = { { 4, 4, 4 } }
    assert.same({ 4, 4, 4 }, x[1]:totable())
    assert.same({ 1, 2 }, moth.tensor({ 1, 2 }, { device = "cuda" }):totable())
    assert.is_true(moth.equal(x, x:clone()))
    assert.is_true(moth.allclose(x, x + 1e-9))
    assert.equal("cuda", moth.zeros_like(x):device().type)
    assert.equal("cuda", x:new_zeros(2):device().type)
    assert.equal(0, x:get_device())
    assert.equal(-1, back.x:get_device())
    assert.is_true(x:is_cuda())
  end)
end)

describe("pinned memory", function()
  it("holds copies of tensors, and says so", function()
    if not there() then return end
    local x = moth.randn(3, 5)
    local p = x:t():pin_memory()
    assert.is_true(p:is_pinned())
    assert.is_true(p[2]:is_pinned()) -- views are
    assert.is_false(x:is_pinned())
    assert.is_true(rawequal(p, p:pin_memory()))
    assert.same(x:t():totable(), p:totable())
    assert.is_true(moth.tensor({ 1, 2 }, { pin_memory = true }):is_pinned())
    local made = moth.full({ 2, 3 }, 7, { pin_memory = true, requires_grad = true })
    assert.is_true(made:is_pinned() and made:requires_grad())
    assert.equal(42, made:sum():item())
    for _, f in ipairs { moth.empty, moth.zeros, moth.randn } do
      assert.is_true(f({ 5 }, { pin_memory = true }):is_pinned())
    end
    assert.is_false(moth.empty({ 5 }, { pin_memory = false }):is_pinned())
    fails("only tensors on the cpu", moth.empty, { 5 }, { pin_memory = true, device = "cuda" })
    assert.equal(0, moth.empty({ 0, 3 }):pin_memory():numel())
    fails("only tensors on the cpu", function() x:cuda():pin_memory() end)
  end)

  it("is copied from and to without waiting, in the stream's order", function()
    if not there() then return end
    for i = 1, 20 do
      local x = moth.full({ 5000 }, i):pin_memory()
      local y = x:to { device = "cuda", non_blocking = true }
      local z = x:cuda { non_blocking = true }
      x:free() -- its block waits for the copies: the next one has another
      local other = moth.full({ 5000 }, -1):pin_memory()
      assert.equal(5000 * i, y:sum():item())
      assert.equal(5000 * i, z:sum():item())
      assert.equal(-5000, other:sum():item())
      local back = moth.zeros(5000):pin_memory()
      back:copy_(y, { non_blocking = true })
      cuda.current_stream():synchronize()
      assert.equal(5000 * i, back:sum():item())
      local ordinary = y:to { device = "cpu", non_blocking = true } -- ordinary memory: it waits
      assert.equal(5000 * i, ordinary:sum():item())
    end
  end)

  it("read too early holds what was there before", function()
    if not emulated() then return end
    local wrong = 0
    for _ = 1, 30 do
      local x = moth.ones({ 100 }, { device = "cuda" })
      local back = moth.zeros(100):pin_memory()
      back:copy_(x, { non_blocking = true })
      if back:sum():item() ~= 100 then wrong = wrong + 1 end
      cuda.synchronize()
      assert.equal(100, back:sum():item())
    end
    assert.is_true(wrong > 0)
  end)

  it("is kept for reuse", function()
    if not there() then return end
    collectgarbage()
    collectgarbage()
    cuda.synchronize()
    cuda.empty_pinned_cache()
    local live, cached = cuda.pinned_memory()
    local x = moth.ones(1000):pin_memory() -- 4096 bytes
    assert.same({ live + 4096, cached }, { cuda.pinned_memory() })
    local p = x:data_ptr()
    x:free()
    assert.same({ live, cached + 4096 }, { cuda.pinned_memory() })
    assert.equal(p, moth.ones(900):pin_memory():data_ptr())
    local y = moth.ones(10)
    moth.memory.fail_at(1, true)
    local ok, message = pcall(y.pin_memory, y)
    moth.memory.fail_at(0)
    assert.is_false(ok)
    assert.matches("out of pinned memory", message)
  end)

  it("is what a loader gives that is asked for it", function()
    if not there() then return end
    local data = moth.data
    local ds = data.TensorDataset(moth.randn(10, 3), moth.arange(1, 11, 1))
    local n = 0
    for x, y in data.DataLoader(ds, { batch_size = 4, pin_memory = true }):iter() do
      assert.is_true(x:is_pinned() and y:is_pinned())
      n = n + x:size(1)
    end
    assert.equal(10, n)
  end)
end)
