-- moth.vision: values that torchvision 0.29 gives; all of its cases are spec/parity/vision.lua.
local moth = require "moth"
local vision = moth.vision

local function fails(text, fn, ...)
  local ok, e = pcall(fn, ...)
  assert.is_false(ok)
  assert.matches(text, tostring(e), 1, true)
end
local function near(want, got)
  assert.equal(#want, got:numel())
  for i, x in ipairs(want) do assert.is_near(x, got:flatten()[i]:item(), 1e-5) end
end
local a = moth.tensor { { 0, 0, 10, 10 }, { 20, 20, 30, 40 } }
local b = moth.tensor { { 5, 5, 15, 15 }, { 20, 20, 30, 40 }, { 0, 0, 10, 10 } }

describe("moth.vision #quick", function()
  it("measures boxes and what they share", function()
    near({ 100, 200 }, vision.box_area(a))
    near({ 1 / 7, 0, 1, 0, 1, 0 }, vision.box_iou(a, b))
    near({ -0.079365, -0.75, 1, -0.657143, 1, -0.75 }, vision.generalized_box_iou(a, b))
    near({ 0.031746, -0.41, 1, -0.337838, 1, -0.41 }, vision.distance_box_iou(a, b))
    near({ 0.031746, -0.411689, 1, -0.339527, 1, -0.411689 }, vision.complete_box_iou(a, b))
    assert.equal("[0, 3]", tostring(vision.box_iou(moth.zeros(0, 4), b):size()))
    near({ 0.5 }, vision.box_iou(moth.tensor({ { 0, 0, 2, 1 } }, { dtype = moth.uint8 }),
      moth.tensor({ { 0, 0, 1, 1 } }, { dtype = moth.uint8 })))
    fails("must have the shape (N, 4)", vision.box_area, moth.zeros(3))
    fails("as many boxes1", vision.generalized_box_iou_loss, a, b)
  end)

  it("changes the form of boxes, cuts them, finds small ones", function()
    near({ 5, 5, 10, 10, 25, 30, 10, 20 }, vision.box_convert(a, "xyxy", "cxcywh"))
    for _, form in ipairs { "xywh", "cxcywh" } do
      assert.is_true(moth.equal(a, vision.box_convert(vision.box_convert(a, "xyxy", form), form, "xyxy")))
    end
    near({ 0, 0, 10, 10, 20, 20, 25, 30 }, vision.clip_boxes_to_image(a, { 30, 25 }))
    assert.same({ 2 }, vision.remove_small_boxes(moth.tensor { { 0, 0, 9, 20 }, { 0, 0, 10, 10 } }, 10):totable())
    local masks = moth.zeros(2, 6, 8)
    masks[1]:narrow(1, 3, 2):narrow(2, 4, 4):fill_(1)
    near({ 3, 2, 6, 3, 0, 0, 0, 0 }, vision.masks_to_boxes(masks))
    fails("unknown form", vision.box_convert, a, "xyxy", "xywhr")
  end)

  it("drops boxes that overlap better ones, by groups too", function()
    local boxes = moth.tensor { { 0, 0, 10, 10 }, { 1, 0, 11, 10 }, { 50, 50, 60, 60 }, { 0, 0, 10, 10 } }
    local scores = moth.tensor { 0.5, 0.9, 0.1, 0.5 }
    assert.same({ 2, 3 }, vision.nms(boxes, scores, 0.5):totable())
    assert.same({ 2, 1, 4, 3 }, vision.nms(boxes, scores, 1):totable())
    local groups = moth.tensor({ 1, 2, 2, 1 }, { dtype = moth.int64 })
    assert.same({ 2, 1, 3 }, vision.batched_nms(boxes, scores, groups, 0.5):totable())
    assert.same({}, vision.nms(moth.zeros(0, 4), moth.zeros(0), 0.5):totable())
    fails("one for each box", vision.nms, boxes, moth.zeros(3), 0.5)
  end)

  it("reads regions between pixels, with gradients of the features", function()
    local x = moth.arange(0, 32, { dtype = moth.float64 }):view(1, 2, 4, 4):requires_grad_()
    local rois = moth.tensor({ { 1, 0, 0, 2, 2 }, { 1, -3, 1, 9, 3 } }, { dtype = moth.float64 })
    -- A ramp: means of samples at halves of bins.
    local y = vision.roi_align(x, rois:narrow(1, 1, 1), 2, 1, 2)
    near({ 2.5, 3.5, 6.5, 7.5, 18.5, 19.5, 22.5, 23.5 }, y)
    for _, ratio in ipairs { 2, -1 } do
      local function read(t) return vision.roi_align(t, rois, { 2, 3 }, 0.7, ratio, true) end
      assert.is_true(moth.autograd.gradcheck(read, { x }))
    end
    local same = vision.roi_align(x, { rois:narrow(2, 2, 4) }, { 2, 3 })
    assert.is_true(moth.equal(same, vision.roi_align(x, rois, { 2, 3 })))
    assert.equal("[0, 2, 3, 3]", tostring(vision.RoIAlign(3)(x, moth.zeros(0, 5)):size()))
    fails("give sampling_ratio", vision.roi_align, x, moth.tensor { { 1, 0, 0, 1e9, 1e9 } }, 2)
    fails("positions of images (from 1)", vision.roi_align, x, moth.zeros(1, 5), 2)
    fails("a tensor of boxes for each of 1 images", vision.roi_align, x, {}, 2)
    fails("positions of images (from 1) must be whole", vision.roi_align, x, moth.tensor { { 0 / 0, 0, 0, 2, 2 } }, 2)
    fails("positions of images (from 1) must be whole", vision.roi_align, moth.cat { x, x },
      moth.tensor { { 1.5, 0, 0, 2, 2 } }, 2)
    for _, ratio in ipairs { -1, 2 } do
      fails("boxes have nan or infinity", vision.roi_align, x, { moth.tensor { { 0, 0 / 0, 2, 2 } } }, 2, 1, ratio)
    end
    fails("output_size must be at least 1, got 0 x 2", vision.roi_align, x, { moth.ones(1, 4) }, { 0, 2 })
    fails("input must have floats, as means are; got moth.int64", vision.roi_align, x:to(moth.int64),
      { moth.ones(1, 4) }, 2)
  end)

  it("has losses of detectors", function()
    local logits, targets = moth.tensor { 2, -1, 0.5 }, moth.tensor { 1, 0, 1 }
    near({ 0.000451, 0.016991, 0.016894 }, vision.sigmoid_focal_loss(logits, targets))
    local x = moth.tensor({ { 0, 0, 9, 9 } }, { dtype = moth.float64 }):requires_grad_()
    local y = moth.tensor({ { 1, 2, 9, 12 } }, { dtype = moth.float64 })
    for _, kind in ipairs { "generalized", "distance" } do
      local loss = vision[kind .. "_box_iou_loss"]
      assert.is_true(moth.autograd.gradcheck(function(t) return loss(t, y, "sum") end, { x }))
    end
    assert.equal(0, vision.complete_box_iou_loss(moth.zeros(0, 4), moth.zeros(0, 4), "mean"):item())
    fails("alpha", vision.sigmoid_focal_loss, logits, targets, 2)
  end)

  it("matches anchors with boxes, and codes boxes by anchors", function()
    local anchors = vision.AnchorGenerator({ { 4 } }, { { 1 } })(8, 8, { moth.zeros(1, 1, 2, 2) })[1]
    near({ -2, -2, 2, 2, 2, -2, 6, 2, -2, 2, 2, 6, 2, 2, 6, 6 }, anchors)
    local gt = moth.tensor { { 2, 2, 6, 6 }, { 0, -2, 4, 1 } }
    assert.same({ 2, 2, 0, 1 }, vision.match(gt, anchors):totable())
    assert.same({ 0, 0, 0, 1 }, vision.match(gt, anchors, 0.9, 0.8, false):totable())
    assert.same({ 0, 0, 0, 0 }, vision.match(moth.zeros(0, 4), anchors):totable())
    local coder, some = vision.BoxCoder { 10, 10, 5, 5 }, moth.tensor { { 1, 2, 5, 9 } }
    fails("sizes[1] must be a list of numbers, for a map, got number", vision.AnchorGenerator, { 32 }, { { 1 } })
    fails("weights must be 4 numbers, got 2", vision.BoxCoder, { 1, 1 })
    fails("encode: expected reference and anchors (N, 4), got [1, 4] and [2, 4]", coder.encode, coder, some, gt)
    assert.is_true(moth.allclose(some, coder:decode(coder:encode(some, gt:narrow(1, 1, 1)), gt:narrow(1, 1, 1))))
  end)
end)

describe("models.retinanet_resnet50_fpn", function()
  it("trains on boxes and gives boxes, scores, labels of images of any sizes", function()
    moth.manual_seed(0)
    local net = moth.models.retinanet_resnet50_fpn { num_classes = 3, min_size = 64, max_size = 64, score_thresh = 0 }
    local images = { moth.rand(3, 40, 60), moth.rand(3, 64, 32) }
    local target = { boxes = moth.tensor { { 5, 5, 30, 30 } }, labels = moth.tensor({ 2 }, { dtype = moth.int64 }) }
    local nothing = { boxes = moth.zeros(0, 4), labels = moth.zeros({ 0 }, { dtype = moth.int64 }) }
    local losses = net(images, { target, nothing })
    moth.add(losses.classification, losses.bbox_regression):backward()
    assert.is_true(net.backbone.body.conv1.weight.grad:abs():max():item() > 0)
    local found = moth.no_grad(function() return net:eval()(images) end)
    assert.equal(2, #found)
    assert.is_true(found[1].labels:min():item() >= 1 and found[1].labels:max():item() <= 3)
    assert.is_true(found[2].boxes:select(2, 3):max():item() <= 32 + 1e-4)
    fails("expected a list of images", net, moth.rand(3, 8, 8))
    fails("values from 0 to 1", net, { moth.zeros({ 3, 8, 8 }, { dtype = moth.uint8 }) })
    net:train()
    fails("targets must have { boxes, labels } for each of 2 images", net, images)
    local function refused(what, boxes, labels)
      fails("targets[2] must have " .. what, net, images, { nothing, { boxes = moth.tensor(boxes), labels = labels } })
    end
    refused("boxes (M, 4) and labels (M)", { { 5, 5, 30, 30 } }, moth.tensor({ 2, 2 }, { dtype = moth.int64 }))
    refused("labels of integers, got moth.float32", { { 5, 5, 30, 30 } }, moth.tensor { 2 })
    refused("labels from 1 to 3, got 0 to 0", { { 5, 5, 30, 30 } }, moth.tensor({ 0 }, { dtype = moth.int64 }))
    for _, box in ipairs { { 5, 5, 5, 30 }, { 5, 5, 0 / 0, 30 }, { 5, 9, 7, 8 }, { 1, 1, 2, 1 / 0 } } do
      refused("boxes (x1, y1, x2, y2) with x1 < x2", { box }, target.labels)
    end
    target.boxes = target.boxes:to(moth.int64) -- 40 pixels become 64: what is scaled is not whole
    assert.equal(losses.bbox_regression:item(), net(images, { target, nothing }).bbox_regression:item())
  end)
end)
