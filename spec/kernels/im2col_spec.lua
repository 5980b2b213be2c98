-- im2col and col2im of the CPU, whose rows are copied and added as vectors: kernels/cpu/im2col.c.
local moth = require "moth"

-- images, channels, height, width, kernel (y, x), dilation, padding, stride
local shapes = {
  { 2, 3, 5, 7, { 3, 2 }, { 1, 1 }, { 0, 0 }, { 1, 1 } }, { 1, 2, 9, 33, { 3, 3 }, { 1, 1 }, { 1, 1 }, { 1, 1 } },
  { 2, 1, 6, 40, { 2, 5 }, { 2, 3 }, { 1, 6 }, { 1, 2 } }, { 3, 2, 8, 19, { 3, 4 }, { 1, 2 }, { 2, 0 }, { 3, 3 } },
  { 1, 2, 4, 1, { 1, 1 }, { 1, 1 }, { 0, 2 }, { 1, 1 } }, -- windows in the padding alone
  { 1, 3, 6, 50, { 3, 1 }, { 1, 1 }, { 1, 0 }, { 1, 1 } }, { 0, 2, 4, 4, { 2, 2 }, { 1, 1 }, { 0, 0 }, { 1, 1 } },
}
local dtypes = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64" }

-- For each column and row the position in the flattened padded image, from 1.
local function places(o)
  local h, w, kernel, dilation, padding, stride = o[3], o[4], o[5], o[6], o[7], o[8]
  h, w = h + 2 * padding[1], w + 2 * padding[2]
  local rows = math.floor((h - dilation[1] * (kernel[1] - 1) - 1) / stride[1])
  local cols = math.floor((w - dilation[2] * (kernel[2] - 1) - 1) / stride[2])
  local y = (moth.arange(0, kernel[1]) * dilation[1]):view(-1, 1, 1, 1)
    + (moth.arange(0, rows + 1) * stride[1]):view(1, 1, -1, 1)
  local x = (moth.arange(0, kernel[2]) * dilation[2]):view(1, -1, 1, 1)
    + (moth.arange(0, cols + 1) * stride[2]):view(1, 1, 1, -1)
  return (y * w + x + 1):long():view(kernel[1] * kernel[2], -1), h, w
end

local function image(o, dtype)
  local x = moth.randint(-40, 40, { o[1], o[2], o[3], o[4] })
  return (dtype == "uint8" and x:abs() or x):to(moth[dtype])
end

describe("windows as columns", function()
  local threads = moth.get_num_threads()
  before_each(function() moth.manual_seed(3) end)
  after_each(function() moth.set_num_threads(threads) end)

  it("are the elements of the padded image, of each dtype", function()
    for i, o in ipairs(shapes) do
      local at, h, w = places(o)
      for _, dtype in ipairs(dtypes) do
        local x = image(o, dtype)
        local got = moth.im2col(x, o[5], o[6], o[7], o[8])
        local p = o[7]
        local padded = moth.zeros(o[1], o[2], h, w, { dtype = moth[dtype] })
        padded:narrow(3, p[1] + 1, o[3]):narrow(4, p[2] + 1, o[4]):copy_(x)
        local want = padded:view(o[1] * o[2], h * w):index_select(2, at:view(-1)):view(got:size())
        assert.is_true(moth.equal(want, got), i .. " " .. dtype)
      end
    end
  end)

  it("are added up where they came from", function()
    for i, o in ipairs(shapes) do
      local at, h, w = places(o)
      local p, n = o[7], at:numel()
      for _, dtype in ipairs(dtypes) do
        local c = moth.randint(dtype == "uint8" and 0 or -3, 4, { o[1], o[2] * at:size(1), at:size(2) }):to(moth[dtype])
        local got = moth.col2im(c, { o[3], o[4] }, o[5], o[6], o[7], o[8])
        local sums = moth.zeros(o[1] * o[2], h * w, { dtype = moth[dtype] })
        sums:index_add_(2, at:view(-1), c:view(o[1] * o[2], n))
        local want = sums:view(o[1], o[2], h, w):narrow(3, p[1] + 1, o[3]):narrow(4, p[2] + 1, o[4])
        assert.is_true(moth.equal(want:contiguous(), got), i .. " " .. dtype)
      end
    end
  end)

  it("have the same bits for any number of threads, and a derivative", function()
    local x = moth.randn(3, 8, 40, 37)
    local bits = {}
    for n = 1, 2 do
      moth.set_num_threads(n)
      local c = moth.im2col(x, 5, 1, 2, 1)
      bits[n] = { c, moth.col2im(c, { 40, 37 }, 5, 1, 2, 1) }
    end
    for i = 1, 2 do assert.is_true(moth.equal(bits[1][i], bits[2][i])) end
    local small = moth.randn(2, 2, 5, 6):double():requires_grad_(true)
    local function columns(t) return moth.im2col(t, { 2, 3 }, { 2, 1 }, { 1, 2 }, { 1, 2 }) end
    assert.is_true(moth.autograd.gradcheck(columns, { small }))
  end)
end)
