-- Convolutions of one channel by one kernel: kernels/cpu/typed/depthwise.h.
local moth = require "moth"
local F = moth.nn.functional

-- By its definition, in float64, for stride and dilation {y, x}.
local function reference(x, w, b, stride, padding, dilation)
  local h, wide = x:size(3) + 2 * padding, x:size(4) + 2 * padding
  local padded = F.pad(x:double(), { padding, padding, padding, padding })
  local kh, kw, channels = w:size(3), w:size(4), x:size(2)
  local oh = math.floor((h - dilation[1] * (kh - 1) - 1) / stride[1]) + 1
  local ow = math.floor((wide - dilation[2] * (kw - 1) - 1) / stride[2]) + 1
  local rows, cols = moth.arange(0, oh) * stride[1], moth.arange(0, ow) * stride[2]
  local y = b:double():view(1, channels, 1, 1)
  for i = 0, kh - 1 do
    for j = 0, kw - 1 do
      local part = padded:index_select(3, (rows + i * dilation[1]):long() + 1)
        :index_select(4, (cols + j * dilation[2]):long() + 1)
      y = y + part * w:double():select(3, i + 1):select(3, j + 1):view(1, channels, 1, 1)
    end
  end
  return y
end

describe("depthwise convolutions", function()
  before_each(function() moth.manual_seed(8) end)

  it("agree with their definition, whatever rows are left", function()
    for _, k in ipairs { 3, 5, 7 } do
      for _, size in ipairs {
        { 7, 7 }, { 8, 16 }, { 9, 17 }, { 10, 33 }, { 11, 5 }, { 12, 40 }, { 13, 12 }, { 22, 31 },
      } do
        for _, how in ipairs { { 1, 1, 1, 1 }, { 1, 1, 1, 2 }, { 1, 1, 2, 1 }, { 2, 1, 1, 1 }, { 2, 2, 1, 1 } } do
          local padding = k
          local x, w, b = moth.randn(2, 3, size[1], size[2]), moth.randn(3, 1, k, k), moth.randn(3)
          local stride, dilation = { how[1], how[2] }, { how[3], how[4] }
          local got = F.conv2d(x, w, b, { stride = stride, padding = padding, dilation = dilation, groups = 3 })
          local want = reference(x, w, b, stride, padding, dilation)
          local off = (got:double() - want):abs():max():item()
          local case = table.concat({ k, size[1], size[2], unpack(how) }, " ")
          assert.is_true(off < 1e-4, case .. ": off by " .. off)
        end
      end
    end
  end)
end)
