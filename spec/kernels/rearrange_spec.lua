-- Copies by any strides (kernels/cpu/rearrange.c) and cat, beside the same made element by element.
local moth = require "moth"

local function flat(t) return t:reshape(-1):totable() end

-- Element i (from 1) of each view, by sizes and strides, in row-major order.
local function by_strides(values, sizes, strides, offset)
  local out = {}
  local function go(dim, at)
    if dim > #sizes then
      out[#out + 1] = values[at + 1]
      return
    end
    for i = 0, sizes[dim] - 1 do go(dim + 1, at + i * strides[dim]) end
  end
  go(1, offset)
  return out
end

local dtypes = { "uint8", "int16", "float32", "float64", "int64", "bool", "bfloat16" }
local function numbers(n, dtype) return (moth.arange(0, n) % 101 - 3):abs():to(moth[dtype]) end

describe("copies by any strides #quick", function()
  it("permuted, cut, expanded, backwards, in each dtype", function()
    for _, dtype in ipairs(dtypes) do
      for _, sizes in ipairs { { 3, 5, 17, 2 }, { 2, 33, 16, 1 }, { 1, 4, 4, 19 }, { 5, 70, 4, 3 } } do
        local n = sizes[1] * sizes[2] * sizes[3] * sizes[4]
        local x = numbers(n, dtype)
        local values, whole = flat(x), x:view(unpack(sizes))
        for _, order in ipairs { { 1, 3, 2, 4 }, { 1, 3, 4, 2 }, { 4, 3, 2, 1 }, { 2, 1, 4, 3 }, { 3, 1, 2, 4 },
          { 2, 3, 4, 1 } } do
          local y = whole:permute(order)
          local s, st = {}, {}
          for d = 1, 4 do s[d], st[d] = y:size(d), y:stride(d) end
          assert.same(by_strides(values, s, st, 0), flat(y:contiguous()), dtype)
          local cut = y:narrow(3, 1, 1 + math.floor(s[3] / 2)):unsqueeze(2):expand(s[1], 3, s[2], -1, s[4])
          s = { s[1], 3, s[2], cut:size(4), s[4] }
          assert.same(by_strides(values, s, { st[1], 0, st[2], st[3], st[4] }, 0), flat(cut:contiguous()), dtype)
        end
        for d = 1, 4 do
          local back, strides = whole:flip(d), {}
          for k = 1, 4 do strides[k] = whole:stride(k) end
          local at = (sizes[d] - 1) * strides[d]
          strides[d] = -strides[d]
          assert.same(by_strides(values, sizes, strides, at), flat(back), dtype)
        end
        local last = whole:select(4, 1):unsqueeze(4):expand(-1, -1, -1, 21)
        local s, st = { sizes[1], sizes[2], sizes[3], 21 }, {}
        for d = 1, 4 do st[d] = last:stride(d) end
        assert.same(by_strides(values, s, st, 0), flat(last:clone()), dtype)
      end
    end
  end)

  it("complex numbers, and results that are not dense", function()
    local x = moth.complex(moth.randn(5, 7, 18), moth.randn(5, 7, 18))
    for _, z in ipairs { x, x:to(moth.complex128) } do
      local y = z:permute(3, 1, 2)
      assert.is_true(moth.equal(moth.view_as_real(y:contiguous()), moth.view_as_real(z):permute(3, 1, 2, 4)))
      local into = moth.zeros(18, 10, 7, { dtype = z:dtype() })
      into:narrow(2, 3, 5):copy_(y)
      assert.is_true(moth.equal(into:narrow(2, 3, 5):real(), y:real()))
      assert.equal(0, into:narrow(2, 1, 2):abs():sum():item() + into:narrow(2, 8, 3):abs():sum():item())
    end
    local to = moth.zeros(40, 50)
    to:t():copy_(moth.arange(1, 2001):view(50, 40))
    assert.equal(2, to[2][1]:item())
    assert.equal(41, to[1][2]:item())
  end)

  it("cat of rows of any size", function()
    for _, dtype in ipairs(dtypes) do
      for _, widths in ipairs { { 1, 1, 1 }, { 2, 2 }, { 3, 0, 5 }, { 16, 17 }, { 130, 1, 600 } } do
        for dim = 1, 3 do
          local parts, sizes, total = {}, { 3, 4, 2 }, 0
          for i, w in ipairs(widths) do
            sizes[dim] = w
            local n = sizes[1] * sizes[2] * sizes[3]
            parts[i] = numbers(n + i, dtype):narrow(1, 1 + i, n):view(unpack(sizes))
            total = total + w
          end
          sizes[dim] = total
          for _, strange in ipairs { false, true } do -- one of them not dense
            if strange then parts[2] = parts[2]:flip(dim):transpose(1, 2):contiguous():transpose(1, 2) end
            local y, at = moth.cat(parts, dim), 1
            assert.same(sizes, y:size())
            for i, w in ipairs(widths) do
              assert.is_true(moth.equal(parts[i], y:narrow(dim, at, w)), dtype)
              at = at + w
            end
          end
        end
      end
    end
  end)

  it("threads change nothing", function()
    local threads = moth.get_num_threads()
    finally(function() moth.set_num_threads(threads) end)
    local x = moth.randn(70, 33, 65)
    local function all()
      return { x:permute(3, 1, 2):contiguous(), x:permute(1, 3, 2):contiguous(), x:flip(3), x:flip(1),
        x:reshape(-1):flip(1), moth.cat({ x, x }, 3), moth.cat({ x, x }, 1),
        x:narrow(3, 1, 1):expand(70, 33, 65):contiguous() }
    end
    moth.set_num_threads(1)
    local one = all()
    moth.set_num_threads(2)
    for i, y in ipairs(all()) do assert.is_true(moth.equal(one[i], y), tostring(i)) end
    assert.is_true(moth.equal(one[5]:flip(1), x:reshape(-1)))
  end)
end)
