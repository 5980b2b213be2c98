-- Convolution and pooling as modules: listing, initialisation, shapes, functional forms, the CNN example.
local moth = require "moth"
local B = require "moth_lua"
local fails = require "fails"
local nn = moth.nn
local F = nn.functional

describe("convolution modules #quick", function()
  it("print as PyTorch does", function()
    local function shows(text, m) assert.equal(text, tostring(m)) end
    shows("Conv2d(1, 32, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))", nn.Conv2d(1, 32, 3, { padding = 1 }))
    shows("Conv2d(4, 8, kernel_size=(3, 5), stride=(2, 2), padding=valid, groups=2, bias=False)",
      nn.Conv2d(4, 8, { 3, 5 }, { stride = 2, padding = "valid", groups = 2, bias = false }))
    shows("Conv1d(3, 4, kernel_size=(3,), stride=(1,), dilation=(2,))", nn.Conv1d(3, 4, 3, { dilation = 2 }))
    shows("ConvTranspose2d(3, 4, kernel_size=(2, 2), stride=(2, 2), output_padding=(1, 1))",
      nn.ConvTranspose2d(3, 4, 2, { stride = 2, output_padding = 1 }))
    shows("MaxPool2d(kernel_size=2, stride=2, padding=0, dilation=1, ceil_mode=False)", nn.MaxPool2d(2))
    shows("AvgPool1d(kernel_size=(2,), stride=(2,), padding=(0,))", nn.AvgPool1d(2))
    shows("AvgPool2d(kernel_size=2, stride=1, padding=1)", nn.AvgPool2d(2, 1, 1))
    shows("AdaptiveAvgPool2d(output_size=(7, None))", nn.AdaptiveAvgPool2d({ 7, -1 }))
  end)

  it("of one pixel are products, whatever the groups, images and threads", function()
    moth.manual_seed(5)
    local threads = moth.get_num_threads()
    -- the last is too small
    for _, o in ipairs({ { 1, 64, 40, 1 }, { 9, 32, 33, 1 }, { 17, 64, 48, 2 }, { 3, 16, 17, 1 } }) do
      local n, c, k, groups = unpack(o)
      for _, dtype in ipairs({ moth.float32, moth.float64 }) do
        local like = { dtype = dtype }
        local x = moth.randn(n, c, 18, 17, like):requires_grad_(true)
        local w = moth.randn(k, c / groups, 1, 1, like):requires_grad_(true)
        local b, g = moth.randn(k, like):requires_grad_(true), moth.randn(n, k, 18, 17, like)
        local function all(f)
          x.grad, w.grad, b.grad = nil, nil, nil
          local y = f()
          y:backward(g)
          return { y:detach(), x.grad, w.grad, b.grad }
        end
        local want, first = all(function()
          local parts = {}
          for i = 1, groups do
            local from, to = c / groups, k / groups
            parts[i] = w:narrow(1, (i - 1) * to + 1, to):view(to, from)
              :matmul(x:narrow(2, (i - 1) * from + 1, from):reshape(n, from, -1))
          end
          return moth.cat(parts, 2):view(n, k, 18, 17) + b:view(k, 1, 1)
        end), nil
        for _, count in ipairs({ 1, 2, 3 }) do
          moth.set_num_threads(count)
          local got = all(function() return F.conv2d(x, w, b, { groups = groups }) end)
          for i = 1, 4 do
            assert.is_true(got[i]:allclose(want[i], 1e-3, dtype == moth.float32 and 1e-3 or 1e-9))
            assert.is_true(not first or got[i]:equal(first[i]))
          end
          first = got
        end
        moth.set_num_threads(threads)
      end
    end
  end)

  it("of few channels: row by row, positions apart, at the widths where vectors end", function()
    moth.manual_seed(7)
    -- images, channels, results, height, width, kernel, stride, padding, dilation
    for _, o in ipairs({ { 3, 1, 32, 28, 28, 3, 1, 1, 1 }, { 2, 1, 16, 9, 18, 3, 1, 0, 1 },
      { 2, 3, 30, 21, 33, 3, 1, 1, 1 }, { 2, 1, 27, 23, 47, 5, 2, 2, 1 }, { 1, 2, 24, 19, 66, 3, 1, 2, 2 },
      { 2, 1, 9, 5, 100, 3, 2, 1, 1 },
      { 2, 7, 17, 6, 50, 3, 1, 1, 1 } }) do
      local n, c, k, height, width, size, stride, padding, dilation = unpack(o)
      for _, dtype in ipairs({ moth.float32, moth.float64, moth.bfloat16 }) do
        local x = moth.randn(n, c, height, width):to(dtype):requires_grad_(true)
        local w = moth.randn(k, c, size, size):to(dtype):requires_grad_(true)
        local b = moth.randn(k):to(dtype):requires_grad_(true)
        local y = F.conv2d(x, w, b, { stride = stride, padding = padding, dilation = dilation })
        local wx, ww, wb = x:detach():double(), w:detach():double(), b:detach():double()
        for _, t in ipairs({ wx, ww, wb }) do t:requires_grad_(true) end
        local padded = F.pad(wx, { padding, padding, padding, padding })
        local rows, cols = moth.arange(y:size(3)), moth.arange(y:size(4))
        local want = wb:view(k, 1, 1)
        for i = 0, size - 1 do
          for j = 0, size - 1 do
            local part = padded:index_select(3, (rows * stride + i * dilation):long() + 1)
              :index_select(4, (cols * stride + j * dilation):long() + 1)
            want = want + moth.einsum("kc,nchw->nkhw", ww:select(3, i + 1):select(3, j + 1), part)
          end
        end
        local g = moth.randn(y:size()):to(dtype)
        y:backward(g)
        want:backward(g:double())
        local near = dtype == moth.float64 and 1e-9 or dtype == moth.float32 and 1e-4 or 2e-2
        for what, pair in pairs({ y = { y, want }, x = { x.grad, wx.grad }, w = { w.grad, ww.grad },
          b = { b.grad, wb.grad } }) do
          local off = (pair[1]:detach():double() - pair[2]:detach()):abs():max():item()
          local largest = pair[2]:detach():abs():max():item()
          assert.is_true(off <= near * largest, ("%s of %s %s is off by %g of %g"):format(what, table.concat(o, " "),
            tostring(dtype), off, largest))
        end
      end
    end
  end)

  it("max pooling takes whole vectors to the ends of rows, planes and memory", function()
    moth.manual_seed(6)
    for _, o in ipairs({ { 1, 2, 2 }, { 3, 5, 4 }, { 2, 28, 28 }, { 5, 14, 14 }, { 1, 7, 33 }, { 2, 66, 70 } }) do
      for _, stride in ipairs({ 1, 2, 3 }) do
        for _, dtype in ipairs({ moth.float32, moth.float64, moth.bfloat16 }) do
          local x = moth.randn(2, o[1], o[2], o[3]):to(dtype)
          x[1][1][2][2] = 0 / 0
          local y, at = F.max_pool2d(x, 2, { stride = stride, return_indices = true })
          local cols = moth.im2col(x:float(), 2, 1, 0, stride):view(2, o[1], 4, y:size(3), y:size(4))
          assert.is_true(moth.allclose(y:float(), cols:amax(3), 0, 0, true))
          assert.is_true(moth.allclose(x:flatten(3):gather(3, at:flatten(3)):float(), y:flatten(3):float(), 0, 0, true))
        end
      end
    end
  end)

  it("start uniform within 1 / sqrt(fan_in) #M174", function()
    moth.manual_seed(1)
    for _, m in ipairs { nn.Conv2d(16, 64, 3), nn.Conv2d(16, 64, 3, { groups = 4 }), nn.ConvTranspose2d(64, 16, 3) } do
      local bound = 1 / math.sqrt(B.size(m.weight, 2) * 9)
      local largest = m.weight:detach():abs():amax():item()
      assert.is_true(largest <= bound and largest > 0.98 * bound)
      assert.is_near(0, m.weight:detach():mean():item(), 0.1 * bound)
      assert.is_true(m.bias:detach():abs():amax():item() <= bound)
    end
    assert.is_nil(nn.Conv1d(2, 2, 1, { bias = false }).bias)
  end)

  it("give PyTorch's shapes #M184", function()
    local x = moth.randn(2, 4, 9, 10)
    local function gives(want, m) assert.equal(want, tostring(m(x):size())) end
    gives("[2, 8, 9, 10]", nn.Conv2d(4, 8, 3, { padding = "same" }))
    gives("[2, 8, 9, 10]", nn.Conv2d(4, 8, { 4, 2 }, { padding = "same", dilation = { 1, 3 } }))
    gives("[2, 8, 5, 3]", nn.Conv2d(4, 8, 3, { padding = 1, stride = { 2, 4 }, groups = 4 }))
    gives("[2, 6, 19, 21]", nn.ConvTranspose2d(4, 6, 3, { stride = 2, output_padding = { 0, 0 } }))
    gives("[2, 4, 5, 5]", nn.MaxPool2d(2, { ceil_mode = true }))
    gives("[2, 4, 4, 5]", nn.AvgPool2d(2))
    gives("[2, 4, 3, 10]", nn.AdaptiveAvgPool2d({ 3, -1 }))
    gives("[2, 4, 1, 1]", nn.AdaptiveMaxPool2d(1))
    gives("[2, 36, 56]", nn.Unfold(3))
    assert.equal("[3, 5, 7]", tostring(nn.Conv1d(4, 5, 3)(moth.randn(3, 4, 9)):size()))
    assert.equal("[3, 5, 19]", tostring(nn.ConvTranspose1d(4, 5, 3, { stride = 2 })(moth.randn(3, 4, 9)):size()))
  end)

  it("padding 'same' of an even kernel puts the odd zero at the end", function()
    local x, w = moth.arange(1, 5):view(1, 1, 4):float(), moth.ones(1, 1, 2)
    assert.same({ { { 3, 5, 7, 4 } } }, F.conv1d(x, w, { padding = "same" }):totable())
    fails("stride 1", F.conv1d, x, w, { padding = "same", stride = 2 })
    fails("'same' or 'valid'", F.conv1d, x, w, { padding = "full" })
  end)

  it("max pooling gives positions in the flattened image, from 1", function()
    local x = moth.tensor({ { { { 1, 2, 5, 3 }, { 4, 0, 1, 1 } } } })
    local y, at = F.max_pool2d(x, 2, { return_indices = true })
    assert.same({ { { { 4, 5 } } } }, y:totable())
    assert.same({ { { { 5, 3 } } } }, at:totable())
    local z, where = nn.MaxPool1d(2, { return_indices = true })(moth.tensor({ { 1, 2, 5, 3 } }))
    assert.same({ { 2, 5 } }, z:totable())
    assert.same({ { 2, 3 } }, where:totable())
    assert.same({ { { { 4 } } } }, select(2, F.adaptive_max_pool2d(x:neg(), 1, { return_indices = true })):add(-2)
      :totable())
  end)

  it("fold is the adjoint of unfold", function()
    local x = moth.randn(2, 3, 6, 5, { dtype = moth.float64 })
    local y = moth.randn(2, 27, 12, { dtype = moth.float64 })
    local a = (F.unfold(x, 3) * y):sum():item()
    assert.is_near(a, (x * F.fold(y, { 6, 5 }, 3)):sum():item(), 1e-10)
  end)

  it("a depthwise and a pointwise convolution make a separable one", function()
    local x = moth.randn(1, 4, 6, 6, { dtype = moth.float64 })
    local d, p = moth.randn(4, 1, 3, 3, { dtype = moth.float64 }), moth.randn(5, 4, 1, 1, { dtype = moth.float64 })
    local whole = p * d:view(1, 4, 9):view(1, 4, 3, 3)
    local y = F.conv2d(F.conv2d(x, d, { groups = 4 }), p)
    assert.is_true(y:allclose(F.conv2d(x, whole), 1e-10, 1e-10))
  end)

  it("wrong arguments are named", function()
    fails("argument 'kernel_size': expected an integer or a list", nn.Conv2d, 1, 2, "3")
    fails("groups", nn.Conv2d, 3, 4, 3, { groups = 2 })
    fails("kernel_size must have 2 numbers", nn.Conv2d, 1, 2, { 1, 2, 3 })
    fails("'kernel_size' is missing", nn.MaxPool2d)
    fails("unknown", nn.MaxPool2d, 2, { strides = 2 })
  end)

  it("works in autocast's low precision: float16 through float32", function()
    local x, w = moth.randn(2, 3, 8, 8), moth.randn(4, 3, 3, 3)
    local y = F.conv2d(x:half(), w:half())
    assert.equal(moth.float16, y:dtype())
    assert.is_true(y:float():allclose(F.conv2d(x, w), 0.02, 0.02))
  end)
end)

describe("the CNN example", function()
  it("trains on digits", function()
    local pipe = io.popen((os.getenv("LUAJIT") or "luajit")
      .. " examples/fashion_cnn.lua --dataset digits --limit 640 --epochs 2 --lr 3e-3 --device cpu 2>/dev/null")
    local text = pipe:read("*a")
    pipe:close()
    assert.matches("Conv2d(1, 32, kernel_size=(3, 3), stride=(1, 1), padding=(1, 1))", text, 1, true)
    assert.matches("Parameters: 421,642", text, 1, true)
    local first, second = text:match("Epoch  1/2 Train Loss: ([%d.]+).-Epoch  2/2 Train Loss: ([%d.]+)")
    assert.is_true(tonumber(second) < tonumber(first))
  end)
end)
