-- Convolutions by shifts of planes (kernels/cpu/conv.c): rows share the padding between them, whatever kernel, stride,
-- dilation and padding are; against products of patches in float64, with both derivatives.
local moth = require "moth"
local F = moth.nn.functional

-- input, weight, stride, padding, dilation, groups
local cases = {
  { { 2, 3, 9, 28 }, { 5, 3, 3, 13 }, 1, { 1, 6 }, 1, 1 }, { { 1, 4, 12, 12 }, { 9, 4, 9, 9 }, 1, 4, 1, 1 },
  { { 2, 2, 6, 17 }, { 3, 2, 3, 5 }, 1, { 0, 2 }, 1, 1 }, { { 1, 2, 5, 17 }, { 3, 2, 3, 5 }, 1, { 2, 1 }, 1, 1 },
  { { 1, 2, 7, 10 }, { 3, 2, 2, 3 }, 1, { 1, 5 }, 1, 1 }, { { 2, 2, 11, 14 }, { 4, 2, 3, 3 }, 2, 1, 1, 1 },
  { { 2, 2, 11, 15 }, { 4, 2, 5, 7 }, { 1, 2 }, { 2, 3 }, 1, 1 },
  { { 1, 2, 11, 15 }, { 4, 2, 5, 7 }, { 2, 3 }, { 0, 8 }, 1, 1 },
  { { 2, 4, 9, 13 }, { 6, 2, 3, 3 }, 1, { 2, 4 }, { 2, 3 }, 2 },
  { { 1, 3, 4, 3 }, { 2, 3, 3, 7 }, 1, { 1, 4 }, 1, 1 },
  { { 1, 3, 6, 20 }, { 2, 3, 1, 4 }, { 1, 3 }, { 0, 3 }, { 1, 2 }, 1 },
  { { 2, 3, 30, 31 }, { 17, 3, 5, 5 }, 1, 2, 1, 1 },
}

local function by_patches(x, w, stride, padding, dilation, groups)
  local k, c, parts = w:size(1) / groups, w:size(2), {}
  for i = 1, groups do
    local patches = F.unfold(x:narrow(2, (i - 1) * c + 1, c), { w:size(3), w:size(4) }, dilation, padding, stride)
    parts[i] = w:narrow(1, (i - 1) * k + 1, k):reshape(k, -1):matmul(patches)
  end
  return moth.cat(parts, 2)
end

describe("convolution by shifts", function()
  for i, o in ipairs(cases) do
    it("is right, case " .. i, function()
      moth.manual_seed(i)
      for dtype, bound in pairs { float32 = 2e-4, float64 = 1e-11 } do
        local x, w = moth.randn(o[1], { dtype = moth[dtype] }), moth.randn(o[2], { dtype = moth[dtype] })
        local wide_x, wide_w = x:double(), w:double()
        for _, t in ipairs { x, w, wide_x, wide_w } do t:requires_grad_() end
        local got = F.conv2d(x, w, nil, o[3], o[4], o[5], o[6])
        local want = by_patches(wide_x, wide_w, o[3], o[4], o[5], o[6]):reshape(got:size())
        local g = moth.randn_like(got)
        local gx, gw = moth.autograd.grad(got, { x, w }, g)
        local wide_gx, wide_gw = moth.autograd.grad(want, { wide_x, wide_w }, g:double())
        for _, pair in ipairs { { got, want }, { gx, wide_gx }, { gw, wide_gw } } do
          local off = (pair[1]:double() - pair[2]):abs():max():item()
          assert.is_true(off <= bound, ("%s: off by %g"):format(dtype, off))
        end
      end
    end)
  end
end)
