--- Rows of bench/rows.lua about convolution. Their floor is only the matrix products, image by image, and one pass over
-- operands and results.
local moth = require "moth"
local floor = require "bench.floor"

local rows = {}
local function row(r) rows[#rows + 1] = r end

local floor_of = floor.products

-- batch, channels, height and width, results' channels, kernel: padded so that the size stays
local shapes = {
  { 64, 1, 28, 32, 3 }, { 64, 32, 14, 64, 3 }, { 8, 64, 56, 64, 3 }, { 8, 256, 14, 256, 3 }, { 8, 256, 28, 128, 1 },
}
for at, s in ipairs(floor.has_blas and shapes or {}) do
  local n, c, size, k, kernel = unpack(s)
  local pixels, kk, pad = size * size, c * kernel * kernel, (kernel - 1) / 2
  local input, output, weight = n * pixels * c, n * pixels * k, k * kk
  local name = ("conv %dx%dx%d %d k%d"):format(n, c, size, k, kernel)
  local function operands()
    return moth.randn(n, c, size, size), moth.randn(k, c, kernel, kernel)
  end
  row { name = name, torch = { "conv", at }, make = function(threads)
    local x, w = operands()
    return {
      moth = function(times)
        for _ = 1, times do
          local y = moth.conv2d(x, w, nil, 1, pad)
          y:free()
        end
      end,
      floor = floor_of({ { k, pixels, kk, n } }, { { input + weight, output } }, threads),
      check = function()
        local want = w:view(k, kk):matmul(moth.im2col(x, kernel, 1, pad)):view(n, k, size, size)
        return moth.conv2d(x, w, nil, 1, pad):allclose(want, 1e-4, 1e-3)
      end,
    }
  end }
  row { name = name .. " back", torch = { "conv_backward", at }, make = function(threads)
    local x, w = operands()
    x:requires_grad_(true)
    w:requires_grad_(true)
    local y = moth.conv2d(x, w, nil, 1, pad)
    local g = moth.randn(y:size())
    return {
      moth = function(times)
        for _ = 1, times do
          x.grad, w.grad = nil, nil
          y:backward(g, { retain_graph = true })
        end
      end,
      floor = floor_of({ { kk, pixels, k, n }, { k, kk, pixels, n } },
        { { input + output + weight, input + weight } }, threads),
      check = function() return x.grad ~= nil end,
    }
  end }
end

row { name = "max_pool 64x32x28x28", torch = { "max_pool", 0 }, make = function(threads)
  local x = moth.randn(64, 32, 28, 28)
  return {
    moth = function(times)
      for _ = 1, times do
        local y = moth.max_pool2d(x, 2)
        y:free()
      end
    end,
    -- values, and positions, which are twice as large
    floor = floor_of({}, { { 64 * 32 * 28 * 28, 3 * 64 * 32 * 14 * 14 } }, threads),
    check = function() return moth.max_pool2d(x, 2):equal(x:view(64, 32, 14, 2, 14, 2):amax({ 4, 6 })) end,
  }
end }

if floor.has_blas then
  row { name = "CNN training step", torch = { "cnn_step", 0 }, make = function(threads)
    local step = require("bench.steps").cnn()
    local x, c1, p1, c2, p2 = 64 * 784, 64 * 32 * 784, 64 * 32 * 196, 64 * 64 * 196, 64 * 3136
    local parameters = 421642
    local first, last
    return {
      moth = function(times)
        for _ = 1, times do
          last = step()
          first = first or last
        end
      end,
      floor = floor_of({
        { 32, 784, 9, 64 }, { 32, 9, 784, 64 }, { 64, 196, 288, 64 }, { 288, 196, 64, 64 }, { 64, 288, 196, 64 },
        { 64, 128, 3136, 1 }, { 64, 3136, 128, 1 }, { 128, 3136, 64, 1 }, { 64, 10, 128, 3 },
      }, {
        { x, c1 }, { c1, c1 }, { c1, 3 * p1 }, { p1, c2 }, { c2, c2 }, { c2, 3 * p2 }, -- conv, ReLU, pool; twice
        { 3 * p2, c2 }, { 2 * c2, c2 }, { c2 + p1, p1 }, { 3 * p1, c1 }, { 2 * c1, c1 }, { c1 + x, 0 }, -- and back
        { 4 * parameters, 3 * parameters, 1 },
      }, threads),
      check = function() return last == last and first < 3 end,
    }
  end }
end

return rows
