-- Networks of images give the scores that torchvision 0.29 gives with the same weights, made here by a formula; the
-- names and shapes of all sizes and three training steps are spec/parity/models.lua.
local moth = require "moth"
local models = moth.models

-- Every tensor of a network by its place among the sorted names: a wave, scaled as a beginning would be.
local function fill(net)
  local values, names = {}, {}
  for name, t in net:state_dict():items() do
    values[name] = t
    names[#names + 1] = name
  end
  table.sort(names)
  moth.no_grad(function()
    for i, name in ipairs(names) do
      local t = values[name]
      if t:is_floating_point() and not name:match "relative_coords_table$" then
        local w = (moth.arange(0, t:numel(), { dtype = moth.float64 }) * 0.37 + (i - 1)):sin():view(t:size())
        local d, inner = t:dim(), t:numel() / t:size(1)
        if name:find "running_mean" then
          w = w * 0.1
        elseif d == 4 or d > 1 and t:size(d) * (d == 3 and t:size(2) or 1) > 1 then
          w = w * math.sqrt(3 / inner)
        else
          w = name:match "bias$" and w * 0.1 or w * 0.3 + 1
        end
        t:copy_(w)
      end
    end
  end)
  return #names
end

describe("a network of images", function()
  local x = (moth.arange(0, 2 * 3 * 64 * 72, { dtype = moth.float64 }) * 1.7):sin():view(2, 3, 64, 72)
  for name, want in pairs {
    mobilenet_v3_small = { 244, -0.4967407047, -0.738276912764, 1.13216331859, 0.127448547191 },
    regnet_y_400mf = { 384, -2.13937540987, -2.05224044927, -1.32574812414, -0.178600470008 },
    efficientnet_b0 = { 360, 6.93134188068, -1.05148615677, -5.31821700725, 8.8309565608 },
    convnext_tiny = { 182, -1.62263301621, -0.52982186228, 1.5685588498, 1.07233396594 },
    swin_t = { 185, 0.674614311996, 1.2521140675, -0.40638363865, -1.44776581619 },
    swin_v2_t = { 233, -0.0896208344684, 1.10418256021, 0.423407546212, -1.03536634036 },
    densenet121 = { 727, -13.7649078749, -5.03674784235, 17.0054255514, -5.43218451302 },
  } do
    it("has torchvision's names and scores: " .. name, function()
      local net = models[name] { num_classes = 7 }:double():eval()
      assert.equal(want[1], fill(net))
      local scores = moth.no_grad(function() return net(x) end)
      assert.equal("[2, 7]", tostring(scores:size()))
      for i = 1, 4 do assert.is_near(want[i + 1], scores[1][i]:item(), 1e-7 * math.abs(want[i + 1])) end
    end)
  end

  it("trains: branches are dropped by samples, statistics follow", function()
    local drop = require("moth.models.blocks").StochasticDepth(0.5)
    local y = drop(moth.ones(200, 3))
    local sums = y:sum(2)
    assert.is_true(sums:eq(0):logical_or(sums:eq(6)):all():item())
    assert.is_true(sums:eq(0):any():item() and sums:eq(6):any():item())
    assert.is_true(moth.equal(drop:eval()(moth.ones(2, 3)), moth.ones(2, 3)))
    for _, name in ipairs { "mobilenet_v3_small", "swin_t" } do
      local net = models[name] { num_classes = 2, in_channels = 1 }
      net(moth.randn(2, 1, 40, 33)):sum():backward()
      for parameter, p in net:named_parameters() do assert.is_not_nil(p.grad, parameter) end
    end
  end)

  it("refuses options that it lacks", function()
    local ok, e = pcall(models.swin_t, { classes = 3 })
    assert.is_false(ok)
    assert.matches("unknown option 'classes'", e, 1, true)
  end)
end)
