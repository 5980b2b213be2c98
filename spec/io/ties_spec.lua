-- Tensors that share memory when they are saved share it when they are loaded.
local moth = require "moth"

local function saved(value, ending)
  local path = os.tmpname() .. ending
  finally(function() os.remove(path) end)
  moth.save(value, path)
  local file = assert(io.open(path, "rb"))
  local bytes = file:seek("end")
  file:close()
  return moth.load(path), bytes
end

for _, ending in ipairs { ".pt", ".moth" } do
  describe("shared memory in " .. ending, function()
    it("stays: one tensor twice, and its views", function()
      local w = moth.arange(12):float():view(3, 4)
      local r = saved({ a = w, b = w, c = w:detach(), t = w:t(), row = w[2], part = w[{ {}, { 2, 3 } }] }, ending)
      for name, t in pairs { a = w, b = w, c = w, t = w:t(), row = w[2], part = w[{ {}, { 2, 3 } }] } do
        assert.is_true(r[name]:equal(t), name)
      end
      r.a:zero_()
      for _, name in ipairs { "b", "c", "t", "row", "part" } do assert.equal(0, r[name]:abs():sum():item(), name) end
      r.part:fill_(1)
      assert.equal(6, r.t:sum():item())
    end)

    it("stays where no tensor has all elements, and where it is transposed or complex", function()
      local flat = moth.arange(10):float()
      local z = moth.view_as_complex(moth.rand(3, 2))
      local m = moth.rand(2, 3):t()
      local r = saved({ one = flat:narrow(1, 1, 6), two = flat:narrow(1, 4, 6), z = z, tail = z:narrow(1, 2, 2), m = m,
        same = m }, ending)
      assert.is_true(r.one:equal(flat:narrow(1, 1, 6)) and r.two:equal(flat:narrow(1, 4, 6)) and r.m:equal(m))
      assert.is_true(r.z:equal(z) and r.tail:equal(z:narrow(1, 2, 2)))
      r.one:fill_(7)
      assert.same({ 7, 7, 7, 6, 7, 8 }, r.two:tolist())
      r.z:zero_()
      assert.equal(0, r.tail:abs():sum():item())
      r.m:zero_()
      assert.equal(0, r.same:sum():item())
    end)

    it("is none where elements lie apart, are expanded or empty; each keeps requires_grad", function()
      local flat = moth.arange(1000):float()
      local x = moth.ones(2, { requires_grad = true })
      local r, bytes = saved({ half = flat:narrow(1, 1, 3), rest = flat:narrow(1, 4, 3), wide = moth.ones(1):expand(5),
        none = moth.zeros(0), x = x, detached = x:detach() }, ending)
      r.half:zero_()
      assert.same({ 3, 4, 5 }, r.rest:tolist())
      assert.same({ 1, 1, 1, 1, 1 }, r.wide:tolist())
      assert.equal(0, r.none:numel())
      assert.same({ true, false }, { r.x:requires_grad(), r.detached:requires_grad() })
      assert.is_true(bytes < 3500) -- not the storage
    end)

    it("stays in a model", function()
      local m = moth.nn.Sequential(moth.nn.Linear(40, 40, { bias = false }), moth.nn.Linear(40, 40, { bias = false }))
      m[2].weight = m[1].weight
      local sd, bytes = saved(m:state_dict(), ending)
      sd["0.weight"]:zero_()
      assert.equal(0, sd["1.weight"]:abs():sum():item())
      assert.is_true(bytes < 40 * 40 * 4 * 2)
    end)
  end)
end

describe("moth's files with views", function()
  it("are refused where a view does not lie in its base", function()
    local view = require("moth.io.ties").view
    local base = moth.arange(6):float()
    assert.same({ 2, 4 }, view(base, { 2 }, { 2 }, 2):tolist())
    for _, w in ipairs { { { 2 }, { 2 }, 4 }, { { 7 }, { 1 }, 0 }, { { 2 }, { 1, 1 }, 0 }, { { -1 }, { 1 }, 0 },
      { { 2 }, { -1 }, 2 }, { { 2 ^ 60 }, { 2 ^ 60 }, 0 }, { { 2 }, { 1 }, -1 }, { "x", {}, 0 },
      { { 1.5 }, { 1 }, 0 } } do
      assert.is_nil(view(base, w[1], w[2], w[3]))
    end
  end)
end)

describe("save_safetensors", function()
  it("refuses tensors that share memory, by name", function()
    local w = moth.ones(4)
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    assert.error_matches(function() moth.save_safetensors({ a = w, b = w:view(2, 2) }, path) end,
      "'a' and 'b' share memory")
    moth.save_safetensors({ a = w:narrow(1, 1, 2), b = w:narrow(1, 3, 2), c = w:clone() }, path)
    assert.equal(2, moth.load(path).b:numel())
  end)
end)
