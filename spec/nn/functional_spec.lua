-- Functional forms and modules beyond convolution: sizes of images, dropout of channels, losses of pairs and triples.
-- Their values against PyTorch: spec/parity/modules.lua; the ops that they are made of: spec/ops.
local moth = require "moth"
local nn, F = moth.nn, moth.nn.functional
local function close(a, b) assert.is_true(moth.allclose(a, b, 1e-5, 1e-6)) end

describe("interpolate #quick", function()
  it("of an empty batch makes no table of positions, however large the size", function()
    for mode, shape in require "moth.each" { nearest = { 0, 2, 3 }, linear = { 0, 2, 3 }, bilinear = { 0, 2, 3, 3 } } do
      local x = moth.zeros(shape):requires_grad_()
      local size = #shape == 3 and { 2 ^ 40 } or { 2 ^ 40, 2 }
      local y = F.interpolate(x, { size = size, mode = mode })
      assert.equal(2 ^ 40, y:size(3))
      y:sum():backward()
      assert.equal(tostring(x:size()), tostring(x.grad:size()))
    end
  end)
  it("nearest, linear, with corners, by size or factor", function()
    local x = moth.tensor { { { 1, 3 } } }
    assert.same({ { { 1, 1, 3, 3 } } }, F.interpolate(x, { scale_factor = 2 }):totable())
    assert.same({ { { 1, 1.5, 2.5, 3 } } }, F.interpolate(x, { size = 4, mode = "linear" }):totable())
    close(F.interpolate(x, { size = 3, mode = "linear", align_corners = true }), moth.tensor { { { 1, 2, 3 } } })
    local image = moth.randn(2, 3, 4, 6)
    close(F.interpolate(image, { size = { 2, 3 }, mode = "area" }), F.avg_pool2d(image, 2))
    close(nn.Upsample { scale_factor = { 2, 1 }, mode = "bilinear" } (image),
      F.interpolate(image, { size = { 8, 6 }, mode = "bilinear" }))
    assert.equal("Upsample(scale_factor=2.0, mode='nearest')", tostring(nn.Upsample { scale_factor = 2 }))
    -- a constant image stays constant
    close(F.interpolate(moth.full({ 1, 1, 3, 5 }, 7), { size = { 10, 2 }, mode = "bilinear" }),
      moth.full({ 1, 1, 10, 2 }, 7))
  end)

  it("says what it cannot do", function()
    local x = moth.ones(1, 1, 4)
    for _, case in ipairs {
      { { mode = "nearest" }, "size or scale_factor" }, { { size = 2, scale_factor = 2 }, "size or scale_factor" },
      { { size = 2, mode = "cubic" }, "mode is" }, { { size = 2, mode = "bilinear" }, "for 4 dimensions" },
      { { size = { 2, 2 } }, "2 numbers for 1" }, { { size = 2, align_corners = true }, "align_corners" },
      { { size = 0 }, "at least 1" },
    } do assert.error_matches(function() F.interpolate(x, case[1]) end, case[2]) end
  end)

  it("images of uint8, rounded", function()
    local x = moth.tensor({ { { { 0, 255 }, { 10, 20 } } } }, { dtype = moth.uint8 })
    local y = F.interpolate(x, { size = { 2, 3 }, mode = "bilinear", align_corners = true })
    assert.equal(moth.uint8, y:dtype())
    assert.same({ { { { 0, 128, 255 }, { 10, 15, 20 } } } }, y:totable())
    local sharp = F.interpolate(x, { size = { 5, 5 }, mode = "bicubic" }) -- beyond 0 and 255: cut, not wrapped
    assert.equal(0, sharp[{ 1, 1, 1, 1 }]:item())
    assert.equal(255, sharp[{ 1, 1, 1, 5 }]:item())
  end)

  it("convolution and maxima of integers are exact, or refused", function()
    local x = moth.arange(16):view(1, 1, 4, 4) -- int64
    local ones = moth.ones({ 1, 1, 2, 2 }, { dtype = moth.int64 })
    assert.same({ { { { 10, 18 }, { 42, 50 } } } }, F.conv2d(x, ones, nil, 2):totable())
    assert.equal(moth.int64, F.conv2d(x, ones):dtype())
    assert.same({ 1, 3, 5, 3 }, F.conv_transpose1d(moth.tensor({ { { 1, 2, 3 } } }, { dtype = moth.int64 }),
      ones:view(1, 1, 4)[{ {}, {}, { 1, 2 } }]):flatten():totable())
    for _, dtype in ipairs { moth.int8, moth.uint8, moth.int32 } do
      local y, at = F.max_pool2d(x:to(dtype), 2, { return_indices = true })
      assert.equal(dtype, y:dtype())
      assert.same({ 5, 7, 13, 15 }, y:flatten():totable())
      assert.same({ 6, 8, 14, 16 }, at:flatten():totable())
    end
    assert.error_matches(function() F.conv2d(x * 1e15, ones) end, "F.conv2d%] sums of integers may exceed 2%^53")
    assert.error_matches(function() F.max_pool2d(x * 1e15, 2) end, "F.max_pool2d%].*2%^53")
  end)

  it("pixel_shuffle and back", function()
    local x = moth.arange(8):to(moth.float32):view(1, 4, 1, 2)
    assert.same({ { { { 0, 2, 1, 3 }, { 4, 6, 5, 7 } } } }, F.pixel_shuffle(x, 2):totable())
    close(nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(x)), x)
    assert.error_matches(function() F.pixel_shuffle(x, 3) end, "multiple of 9")
  end)
end)

describe("dropout of channels #quick", function()
  it("takes or leaves whole channels, and scales", function()
    moth.manual_seed(1)
    local y = nn.Dropout2d(0.5)(moth.ones(20, 10, 3, 4))
    local low, high = y:flatten(3):amin(3), y:flatten(3):amax(3)
    assert.is_true(moth.equal(low, high))
    local share = low:eq(0):to(moth.float32):mean():item()
    assert.is_true(share > 0.3 and share < 0.7)
    assert.equal(2, high:amax():item())
    local x = moth.randn(2, 3, 4)
    assert.is_true(moth.equal(nn.Dropout1d(0.9):eval()(x), x))
    assert.error_matches(function() F.dropout3d(x) end, "4 or 5 dimensions")
  end)

  it("gumbel_softmax draws categories in their proportions, with a derivative", function()
    moth.manual_seed(2)
    local p = moth.tensor { 0.2, 0.5, 0.3 }
    local y = F.gumbel_softmax(p:log():expand(4000, 3), { hard = true })
    assert.is_true(moth.allclose(y:mean(1), p, 0, 0.03))
    close(y:sum(2), moth.ones(4000))
    local x = moth.randn(5, 3, { requires_grad = true })
    local drawn = F.gumbel_softmax(x, { tau = 0.5, hard = true }) * moth.arange(3)
    drawn:sum():backward()
    assert.is_true(x.grad:abs():sum():item() > 0)
  end)
end)

describe("losses of pairs and triples #quick", function()
  it("are what they say", function()
    local a, b = moth.tensor { { 1, 0 }, { 0, 2 } }, moth.tensor { { 1, 1 }, { 0, 1 } }
    close(F.cosine_similarity(a, b), moth.tensor { math.sqrt(0.5), 1 })
    close(nn.CosineSimilarity()(a, b), F.cosine_similarity(a, b))
    close(nn.PairwiseDistance { p = 1 } (a, b), moth.tensor { 1, 1 })
    assert.is_near(0.25, nn.SmoothL1Loss()(a, b):item(), 1e-6)
    assert.is_near(0.25, nn.HuberLoss()(a, b):item(), 1e-6)
    assert.is_near(0.25, nn.MarginRankingLoss { margin = 1 } (moth.tensor { 1, 2 }, moth.tensor { 0.5, 3 },
      moth.tensor { 1, -1 }):item(), 1e-6)
    assert.is_near(1 - (1 + math.sqrt(0.5)) / 2, nn.CosineEmbeddingLoss()(a, b, moth.ones(2)):item(), 1e-6)
    assert.is_near(math.log(2), nn.SoftMarginLoss()(moth.zeros(3), moth.ones(3)):item(), 1e-6)
    assert.is_near(0.5 * math.log(2 * math.pi), nn.GaussianNLLLoss { full = true } (a, a, moth.ones(2, 2)):item(), 1e-6)
    local zero = moth.zeros(2, 2)
    assert.is_near(math.sqrt(2), nn.TripletMarginLoss { margin = 0 } (zero + 1, zero, zero + 1):item(), 1e-4)
    assert.equal("[2]", tostring(nn.TripletMarginLoss { reduction = "none" } (a, b, zero):size()))
    local log = moth.tensor { { 0.5, 0.5 } }:log()
    assert.is_near(math.log(2), nn.KLDivLoss { reduction = "batchmean" } (log, moth.tensor { { 1, 0 } }):item(), 1e-6)
    assert.error_matches(function() nn.MSELoss { reduction = "batchmean" } end, "reduction")
  end)

  it("BCELoss is stable at 0 and 1, and refuses logits", function()
    local x = moth.tensor({ 0, 1, 0.5 }, { requires_grad = true })
    local loss = nn.BCELoss { reduction = "none" } (x, moth.tensor { 1, 1, 0 })
    assert.is_true(moth.allclose(loss, moth.tensor { 100, 0, math.log(2) }, 1e-5, 1e-6))
    loss:sum():backward()
    assert.is_true(x.grad:isfinite():all():item())
    assert.error_matches(function() nn.BCELoss()(moth.tensor { 2 }, moth.tensor { 1 }) end, "with_logits")
    local logits, y = moth.randn(4), moth.rand(4)
    close(F.binary_cross_entropy(logits:sigmoid(), y), F.binary_cross_entropy_with_logits(logits, y))
  end)
end)
