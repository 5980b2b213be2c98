-- Max pooling of images whose windows all lie inside of them, where rows of windows go straight into the results by
-- whole vectors: against maxima of shifted slices, at sizes around a vector's, and at every level of kernels; its
-- gradient against a scatter_add.
local moth = require "moth"
local B = require "moth_lua"

-- { planes, height, width, { kernel }, { stride }, { dilation } }
local shapes = {
  { 3, 28, 28, { 2, 2 }, { 2, 2 }, { 1, 1 } }, { 1, 2, 2, { 2, 2 }, { 2, 2 }, { 1, 1 } },
  { 5, 7, 33, { 2, 2 }, { 2, 2 }, { 1, 1 } }, { 2, 4, 64, { 2, 2 }, { 2, 2 }, { 1, 1 } },
  { 2, 9, 40, { 3, 3 }, { 2, 2 }, { 1, 1 } }, { 4, 6, 35, { 2, 3 }, { 1, 1 }, { 2, 1 } },
  { 1, 5, 70, { 1, 4 }, { 3, 3 }, { 1, 2 } }, { 2, 8, 18, { 2, 2 }, { 3, 1 }, { 1, 1 } },
  { 3, 5, 34, { 2, 2 }, { 2, 2 }, { 1, 1 } }, { 3, 9, 65, { 2, 2 }, { 2, 2 }, { 1, 1 } },
  { 40, 3, 3, { 2, 2 }, { 2, 2 }, { 1, 1 } }, { 7, 3, 3, { 3, 3 }, { 1, 1 }, { 1, 1 } },
  { 2, 3, 600, { 2, 2 }, { 2, 2 }, { 1, 1 } },
}

local function expected(x, h, w, kernel, stride, dilation)
  local best
  local oh, ow = #h, #w
  for r = 0, kernel[1] - 1 do
    for k = 0, kernel[2] - 1 do
      local top, left = 1 + r * dilation[1], 1 + k * dilation[2]
      local rows = x:narrow(2, top, (oh - 1) * stride[1] + 1):index_select(2, moth.tensor(h, { dtype = moth.int64 }))
      local part = rows:narrow(3, left, (ow - 1) * stride[2] + 1)
      part = part:index_select(3, moth.tensor(w, { dtype = moth.int64 }))
      best = best and moth.maximum(best, part) or part
    end
  end
  return best
end

local function starts(size, kernel, stride, dilation)
  local list = {}
  for at = 1, size - (kernel - 1) * dilation, stride do list[#list + 1] = at end
  return list
end

describe("max_pool2d inside of its images", function()
  for _, level in ipairs(require "levels") do
    it("is the maximum of shifted slices, " .. level, function()
      local best = B.cpu_level()
      finally(function() B.cpu_level(best) end)
      B.cpu_level(level)
      for _, dtype in ipairs { moth.float32, moth.float64, moth.bfloat16 } do
        for i, s in ipairs(shapes) do
          local planes, height, width, kernel, stride, dilation = unpack(s)
          local x = moth.randn(planes, height, width):to(dtype)
          x:view(-1)[1 + i % x:numel()] = 0 / 0
          local y, at = moth.max_pool2d_with_indices(x, kernel, stride, 0, dilation)
          local h = starts(height, kernel[1], stride[1], dilation[1])
          local w = starts(width, kernel[2], stride[2], dilation[2])
          local want = expected(x, h, w, kernel, stride, dilation)
          local name = ("%s, shape %d"):format(tostring(dtype), i)
          assert.same(want:size(), y:size(), name)
          assert.is_true(moth.allclose(y, want, 0, 0, true), name)
          local taken = x:view(planes, -1):gather(2, at:view(planes, -1)):view(y:size())
          assert.is_true(moth.allclose(taken, want, 0, 0, true), name)
          local g = moth.randint(-8, 9, y:size()):to(dtype) -- sums of small whole numbers are exact
          local into = moth.zeros(planes, height * width, { dtype = dtype })
          into = into:scatter_add(2, at:view(planes, -1), g:view(planes, -1)):view(x:size())
          -- positions of a caller's own, most of them outside of their windows
          local own = moth.randint(1, height * width + 1, y:size())
          local sums = moth.zeros(planes, height * width, { dtype = dtype })
          sums = sums:scatter_add(2, own:view(planes, -1), g:view(planes, -1)):view(x:size())
          local back = moth.ops.moth.max_pool2d_backward(g, own, x:size(), kernel, stride, 0, dilation)
          assert.is_true(back:equal(sums), name)
          x:requires_grad_(true)
          moth.max_pool2d(x, kernel, stride, 0, dilation):backward(g)
          assert.is_true(x.grad:equal(into), name)
        end
      end
    end)
  end
end)
