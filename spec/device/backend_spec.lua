-- A type of device from a file of C (examples/pretend), whose memory the host cannot read: whoever does crashes.
local moth = require "moth"
local fails = require "fails"

local function kept(t) return t:cpu():totable() end

describe("a device of one's own #noasan", function()
  local dir, pretend
  setup(function()
    dir = os.tmpname()
    os.remove(dir)
    pretend = moth.cpp_extension.load { name = "pretend", sources = { "examples/pretend/pretend.c" },
      build_directory = dir, extra_cflags = { "-std=c17", "-Wall", "-Wextra", "-Werror" } }
  end)
  teardown(function() os.execute("rm -rf " .. dir) end)

  local function there(v, o) return moth.tensor(v, o):to("pretend") end

  it("takes tensors of all dtypes and layouts, and gives them back", function()
    for _, dtype in ipairs { "float64", "float32", "float16", "bfloat16", "int64", "uint8", "bool", "complex64" } do
      local x = moth.tensor({ 1, 0, 3 }):to(dtype)
      assert.equal("pretend", tostring(x:to("pretend"):device()))
      assert.is_true(moth.equal(x, x:to("pretend"):cpu()), dtype)
    end
    local x = moth.arange(24):view(2, 3, 4)
    for _, y in ipairs { x:permute(3, 1, 2), x:select(2, 2), x:narrow(3, 2, 2), x[{ 1, {}, 2 }], x:narrow(1, 1, 0) } do
      assert.is_true(moth.equal(y, y:to("pretend"):cpu()))
    end
    local d = x:to("pretend")
    assert.is_true(moth.equal(x:permute(3, 1, 2), d:permute(3, 1, 2):cpu()))
    assert.is_true(moth.equal(x:permute(3, 1, 2):contiguous(), d:permute(3, 1, 2):contiguous():cpu()))
    assert.is_true(moth.equal(x:float(), d:float():cpu()))
    assert.same({ 5, 5, 5 }, kept(there({ 0, 0, 0 }):copy_(moth.tensor(5))))
    assert.equal(23, d[{ 2, 3, 4 }]:item())
    assert.same({ 3 }, moth.empty(3, { device = "pretend" }):size())
  end)

  it("runs its kernels, and leaves other ops to the CPU", function()
    local before = pretend.launches():item()
    local x, y = there { 1, 2, 3 }, there { 10, 20, 30 }
    assert.same({ 11, 22, 33 }, kept(x + y))
    assert.equal(before + 1, pretend.launches():item())
    assert.same({ 2, 3, 4 }, kept(x + 1)) -- a number: its kernel hands it on
    assert.equal(before + 1, pretend.launches():item())
    assert.same({ 3, 1, 2 }, kept((select(2, there({ 2, 3, 1 }):sort()))))
    assert.same({ { 2 }, { 3 } }, kept(there({ 0, 4, 5 }):nonzero())) -- its size depends on elements
    assert.same({ 4, 5 }, kept(there({ 0, 4, 5 }):masked_select(there({ 0, 4, 5 }):gt(1))))
    assert.same({ 1, 2, 1, 2 }, kept(moth.cat { there { 1, 2 }, there { 1, 2 } }))
    assert.same({}, kept(there({ 1 }):narrow(1, 1, 0):exp()))
    assert.same({ -1, 2, -1, 4 }, kept((function()
      local t = there { 1, 2, 3, 4 }
      t:slice(1, 0, 4, 2):fill_(-1) -- writes to a strided view: what lies between stays
      return t
    end)()))
    assert.same({ 1, 3 }, kept(moth.add(there { 0, 1 }, there { 1, 2 }, { out = there { 0, 0 } })))
    moth.manual_seed(3)
    local noise = moth.randn(4)
    moth.manual_seed(3)
    assert.is_true(moth.equal(noise, moth.randn(4, { device = "pretend" }):cpu()))
  end)

  it("has derivatives, conversions by autocast, fakes and what is compiled", function()
    local w = moth.tensor({ 1, 2 }, { requires_grad = true })
    local d = w:to("pretend")
    ;(d * d):exp():sum():backward()
    local v = moth.tensor({ 1, 2 }, { requires_grad = true })
    ;(v * v):exp():sum():backward()
    assert.is_true(moth.equal(v.grad, w.grad))
    assert.same({ 2, 3 }, moth.fake_mode(function() return (moth.empty(2, 3, { device = "pretend" }) + 1):size() end))
    local f = moth.compile(function(t) return (t * 2 + 1):relu() end)
    for _ = 1, 3 do assert.same({ 3, 0 }, kept(f(there { 1, -3 }))) end
    assert.same({ 3, 12 }, kept(moth.func.vmap(function(t) return t * 3 end)(there { 1, 4 })))
  end)

  it("is spoken of in errors", function()
    local row = there { { 1, 2 } }
    fails("%[mm%] self and mat2 shapes cannot be multiplied.-pretend:0", moth.mm, row, row)
    fails("%[add%].-pretend:0", function() return there { 1 } + moth.tensor { 1 } end)
    fails("%[searchsorted%]", moth.searchsorted, there { 1, 2 }, there { { 1 }, { 2 } }, { side = "no" })
    fails("the device 'pretend' has no %d+ bytes left", moth.empty, 2 ^ 30, { device = "pretend" })
    fails("there is one device of this type", moth.ones, 1, { device = "pretend:1" })
    local ok, message = pcall(moth.cpp_extension.load_inline, { name = "twice_pretend", build_directory = dir,
      c_sources = 'MOTH_LIBRARY(twice_pretend, m) { moth_impl(m, "add", "nowhere", moth_call_on_cpu); }' })
    assert.is_false(ok)
    assert.matches("there is no type of device 'nowhere'", message)
    ok, message = pcall(moth.cpp_extension.load_inline, { name = "half_a_device", build_directory = dir,
      c_sources = 'MOTH_LIBRARY(half_a_device, m) { moth_def_backend(m, &(MothBackend){.name = "half"}); }' })
    assert.is_false(ok)
    assert.matches("a device needs a name and the functions alloc, free, to_host and from_host", message)
  end)
end)
