-- Convolutions of small images, which the CPU makes by products with columns: kernels/cpu/conv_columns.c.
local moth = require "moth"
local F = moth.nn.functional

-- images, channels, results, height, width, kernel, stride, padding, dilation, groups
local shapes = {
  { 37, 16, 24, 4, 4, 3, 1, 1, 1, 1 }, -- images side by side, a last chunk of fewer
  { 5, 32, 48, 2, 2, 3, 1, 1, 1, 1 }, -- each kernel position reads some pixel
  { 40, 32, 16, 1, 1, 3, 1, 1, 1, 1 }, -- one position does
  { 9, 48, 64, 7, 5, 3, 2, 1, 1, 2 }, { 3, 32, 32, 6, 9, 4, 2, 1, 1, 1 }, { 2, 64, 64, 11, 13, 3, 1, 2, 2, 1 },
  { 1, 128, 96, 14, 14, 3, 1, 1, 1, 1 }, { 3, 64, 128, 29, 28, 3, 2, 1, 1, 1 }, { 19, 32, 32, 8, 8, 5, 1, 2, 1, 1 },
  { 2, 16, 16, 1, 1, 2, 1, 2, 4, 1 }, -- none does
  { 0, 32, 32, 4, 4, 3, 1, 1, 1, 1 },
  { 3, 16, 16, 12, 13, 9, 1, 0, 1, 2 }, -- wide kernels, whose derivative goes so
}

-- conv2d by its definition, differentiable.
local function reference(o, x, w, b)
  local n, c, k, size, stride, padding, dilation, groups = o[1], o[2], o[3], o[6], o[7], o[8], o[9], o[10]
  local padded = F.pad(x, { padding, padding, padding, padding })
  local h = math.floor((o[4] + 2 * padding - dilation * (size - 1) - 1) / stride)
  local width = math.floor((o[5] + 2 * padding - dilation * (size - 1) - 1) / stride)
  local rows, cols = moth.arange(0, h + 1) * stride, moth.arange(0, width + 1) * stride
  local sum = b:view(k, 1, 1)
  for i = 0, size - 1 do
    for j = 0, size - 1 do
      local part = padded:index_select(3, (rows + i * dilation):long() + 1)
        :index_select(4, (cols + j * dilation):long() + 1):reshape(n, groups, c / groups, h + 1, width + 1)
      local weight = w:select(3, i + 1):select(3, j + 1):reshape(groups, k / groups, c / groups)
      sum = sum + moth.einsum("gkc,ngchw->ngkhw", weight, part):reshape(n, k, h + 1, width + 1)
    end
  end
  return sum
end

local function operands(o, dtype)
  local function make(...) return moth.randn(...):to(dtype):requires_grad_(true) end
  return make(o[1], o[2], o[4], o[5]), make(o[3], o[2] / o[10], o[6], o[6]), make(o[3])
end

local function both(f, x, w, b, g)
  x.grad, w.grad, b.grad = nil, nil, nil
  local y = f(x, w, b)
  y:backward(g)
  return { y:detach(), x.grad, w.grad, b.grad }
end

local function conv(o)
  return function(x, w, b)
    return F.conv2d(x, w, b, { stride = o[7], padding = o[8], dilation = o[9], groups = o[10] })
  end
end

describe("convolutions of small images", function()
  local threads = moth.get_num_threads()
  before_each(function() moth.manual_seed(11) end)
  after_each(function() moth.set_num_threads(threads) end)

  it("agree with their definition, whatever the dtype", function()
    for _, o in ipairs(shapes) do
      for dtype, near in pairs { [moth.float32] = 1e-5, [moth.float64] = 1e-13, [moth.bfloat16] = 1e-2,
        [moth.float16] = 2e-3 } do
        local x, w, b = operands(o, dtype)
        local wide = {}
        for i, t in ipairs { x, w, b } do wide[i] = t:detach():double():requires_grad_(true) end
        local y = conv(o)(x, w, b)
        local g = moth.randn(y:size()):to(dtype)
        local got = both(conv(o), x, w, b, g)
        local want = both(function(...) return reference(o, ...) end, wide[1], wide[2], wide[3], g:double())
        for i = 1, 4 do
          assert.equal(tostring(want[i]:size()), tostring(got[i]:size()))
          if want[i]:numel() > 0 then
            local off = (got[i]:double() - want[i]):abs():max():item() / math.max(want[i]:abs():max():item(), 1e-3)
            assert.is_true(off <= near, ("result %d of %s %s is off by %g"):format(i, table.concat(o, " "),
              tostring(dtype), off))
          end
        end
      end
    end
  end)

  it("have the same bits for any number of threads and any layout", function()
    for _, o in ipairs(shapes) do
      if o[1] > 0 then
        local x, w, b = operands(o, moth.float32)
        local g = moth.randn(conv(o)(x, w, b):size())
        local first
        for _, count in ipairs { 1, 3 } do
          moth.set_num_threads(count)
          local got = both(conv(o), x, w, b, g)
          first = first or got
          for i = 1, 4 do assert.is_true(got[i]:equal(first[i]), table.concat(o, " ")) end
        end
        local function channels_last(t) return t:permute { 1, 3, 4, 2 }:contiguous():permute { 1, 4, 2, 3 } end
        local got = both(conv(o), channels_last(x:detach()):requires_grad_(true), w, b, channels_last(g))
        for i = 1, 3 do assert.is_true(got[i]:equal(first[i]), i .. " of " .. table.concat(o, " ")) end
      end
    end
  end)
end)
