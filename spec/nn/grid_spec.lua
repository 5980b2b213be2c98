-- grid_sample against a plain formula: one number at a time, in all modes and paddings, and its derivatives.
local moth = require "moth"
local F = moth.nn.functional
local double = { dtype = moth.float64 }

local function reflected(x, low, high)
  if high <= low then return 0 end
  local span = high - low
  local off = math.abs(x - low)
  local flips, rest = math.floor(off / span), off % span
  return flips % 2 == 0 and low + rest or high - rest
end
local function clamp(x, low, high) return math.max(low, math.min(high, x)) end

-- Taps { position, weight } along a dimension of n elements for a coordinate.
local function taps_of(x, n, mode, padding, corners)
  local at = corners and (x + 1) * (n - 1) / 2 or ((x + 1) * n - 1) / 2
  local function pad(p)
    if padding == "zeros" then return p end
    if padding == "reflection" then
      p = corners and reflected(p, 0, n - 1) or reflected(p, -0.5, n - 0.5)
    end
    return clamp(p, 0, n - 1)
  end
  if mode == "bicubic" then
    local first, taps = math.floor(at), {}
    local t, a = at - first, -0.75
    local function near(d) return ((a + 2) * d - (a + 3)) * d * d + 1 end
    local function far(d) return ((d - 5) * d + 8) * d * a - 4 * a end
    for k, w in ipairs { far(t + 1), near(t), near(1 - t), far(2 - t) } do taps[k] = { pad(first + k - 2), w } end
    return taps
  end
  at = pad(at)
  if mode == "nearest" then
    local low = math.floor(at)
    local up = at - low > 0.5 or (at - low == 0.5 and low % 2 == 1)
    return { { up and low + 1 or low, 1 } }
  end
  local first = math.floor(at)
  return { { first, 1 - (at - first) }, { first + 1, at - first } }
end

-- The value of image n, channel c at the coordinates { x, y, z }.
local function value(image, sizes, place, mode, padding, corners)
  local total = 0
  local function walk(d, at, weight) -- d counts the image's dimensions from the last
    if d == 0 then
      local v = image
      for _, i in ipairs(at) do v = v[i + 1] end
      total = total + v * weight
      return
    end
    local k = #sizes - d + 1
    for _, tap in ipairs(taps_of(place[d], sizes[k], mode, padding, corners)) do
      if tap[1] >= 0 and tap[1] <= sizes[k] - 1 then
        local more = { unpack(at) }
        more[k] = tap[1]
        walk(d - 1, more, weight * tap[2])
      end
    end
  end
  walk(#sizes, {}, 1)
  return total
end

local function check(x, grid, mode, padding, corners)
  local y = F.grid_sample(x, grid, mode, padding, corners)
  local sizes, n = { unpack(x:size(), 3) }, x:dim() - 2
  local flat, places = y:reshape(x:size(1), x:size(2), -1):totable(), grid:reshape(x:size(1), -1, n):totable()
  local images = x:totable()
  for b = 1, x:size(1) do
    for c = 1, x:size(2) do
      for p = 1, #places[b] do
        local want = value(images[b][c], sizes, places[b][p], mode, padding, corners)
        if math.abs(want - flat[b][c][p]) > 1e-9 then
          error(("%s %s %s: image %d, channel %d, place %d: %.12g, expected %.12g"):format(mode, padding,
            tostring(corners), b, c, p, flat[b][c][p], want))
        end
      end
    end
  end
end

describe("grid_sample", function()
  for _, padding in ipairs { "zeros", "border", "reflection" } do
    it("has the values of the formula, padding " .. padding, function()
      moth.manual_seed(3)
      for _, corners in ipairs { true, false } do
        for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
          check(moth.randn(2, 3, 4, 5, double), moth.rand(2, 3, 7, 2, double) * 4 - 2, mode, padding, corners)
          check(moth.randn(1, 2, 1, 3, double), moth.rand(1, 4, 9, 2, double) * 6 - 3, mode, padding, corners)
        end
        for _, mode in ipairs { "bilinear", "nearest" } do
          check(moth.randn(2, 2, 3, 2, 4, double), moth.rand(2, 2, 3, 4, 3, double) * 4 - 2, mode, padding, corners)
        end
      end
    end)
    it("has derivatives of first and second order, padding " .. padding, function()
      moth.manual_seed(5)
      for _, mode in ipairs { "bilinear", "bicubic" } do
        local x = moth.randn(1, 2, 4, 5, double):requires_grad_()
        local grid = (moth.rand(1, 2, 3, 2, double) * 2.2 - 1.1):requires_grad_()
        local function fn(a, b) return F.grid_sample(a, b, mode, padding) end
        assert.is_true(moth.autograd.gradcheck(fn, { x, grid }))
        assert.is_true(moth.autograd.gradgradcheck(fn, { x, grid }))
      end
      local x = moth.randn(1, 2, 3, 2, 4, double):requires_grad_()
      local grid = (moth.rand(1, 2, 1, 2, 3, double) * 1.8 - 0.9):requires_grad_()
      local function fn(a, b) return F.grid_sample(a, b, "bilinear", padding, true) end
      assert.is_true(moth.autograd.gradcheck(fn, { x, grid }))
      assert.is_true(moth.autograd.gradgradcheck(fn, { x, grid }))
    end)
  end

  it("reads nothing beyond the edge, and takes NaN for -1", function()
    local x = moth.full({ 1, 1, 2, 2 }, 0 / 0)
    local far = F.grid_sample(x, moth.full({ 1, 1, 1, 2 }, 5))
    assert.equal(0, far:item())
    local y = moth.arange(4):float():reshape(1, 1, 2, 2)
    local nan = F.grid_sample(y, moth.full({ 1, 1, 1, 2 }, 0 / 0), "bilinear", "border", true)
    assert.equal(0, nan:item())
    for _, padding in ipairs { "zeros", "border", "reflection" } do
      for _, mode in ipairs { "bilinear", "nearest", "bicubic" } do
        local z = F.grid_sample(y, moth.tensor { { { { 1e30, -1e30 }, { math.huge, -math.huge } } } }, mode, padding)
        assert.is_true(z:isfinite():all():item())
      end
    end
  end)

  it("takes strided and empty tensors, other dtypes, many places, whatever the number of threads", function()
    moth.manual_seed(1)
    local x, grid = moth.randn(3, 5, 6, 7), moth.rand(3, 60, 61, 2) * 2.4 - 1.2
    local want = F.grid_sample(x, grid)
    assert.is_true(F.grid_sample(x:transpose(3, 4):contiguous():transpose(3, 4), grid):equal(want))
    assert.is_true(F.grid_sample(x, grid:transpose(2, 3):contiguous():transpose(2, 3)):equal(want))
    assert.is_true(F.grid_sample(x:double(), grid:double()):allclose(want:double(), 1e-4, 1e-5))
    assert.is_true(F.grid_sample(x:half(), grid:half()):float():allclose(want, 3e-2, 3e-2))
    assert.equal(0, F.grid_sample(x, grid:narrow(2, 1, 0)):numel())
    assert.equal(0, F.grid_sample(x:narrow(1, 1, 0), grid:narrow(1, 1, 0)):numel())
    local threads = moth.get_num_threads()
    local function gradients()
      local a, b = x:clone():requires_grad_(), grid:clone():requires_grad_()
      F.grid_sample(a, b, "bicubic"):square():sum():backward()
      return a.grad, b.grad
    end
    moth.set_num_threads(1)
    local a1, b1 = gradients()
    moth.set_num_threads(3)
    local a3, b3 = gradients()
    moth.set_num_threads(threads)
    assert.is_true(a1:equal(a3) and b1:equal(b3))
  end)
end)
