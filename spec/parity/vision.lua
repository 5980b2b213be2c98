-- Computes spec/parity/vision.py's cases with moth.vision and models.retinanet_resnet50_fpn, and compares.
local moth = require "moth"
local compare = require "spec.parity.compare"
local vision, folder, tensor = moth.vision, arg[1], compare.tensor
moth.set_default_dtype(moth.float64)
local cases, v = compare.cases(folder .. "/cases.json"), {}
for name, p in pairs(cases.values) do v[name] = tensor(p) end
local function same(what, got, want, limit) compare.same(what, got, want, limit or 1e-11) end
local groups = v.groups:to(moth.int64) + 1
same("area", vision.box_area(v.boxes), v.area)
for _, name in ipairs { "box_iou", "generalized_box_iou", "distance_box_iou", "complete_box_iou" } do
  same(name, vision[name](v.boxes, v.others), v[name])
end
for _, t in ipairs { "0.1", "0.3", "0.5", "0.7" } do
  same("nms", vision.nms(v.boxes, v.scores, tonumber(t)) - 1, v["nms" .. t])
  same("batched_nms", vision.batched_nms(v.boxes, v.scores, groups, tonumber(t)) - 1, v["batched_nms" .. t])
end
for _, name in ipairs { "generalized_box_iou_loss", "distance_box_iou_loss", "complete_box_iou_loss" } do
  local x = v.boxes:narrow(1, 1, 23):clone():requires_grad_()
  local loss = vision[name](x, v.others)
  loss:sum():backward()
  same(name, loss, v[name])
  same(name .. "'s gradient", x.grad, v[name .. "_grad"])
end
for _, form in ipairs { "xywh", "cxcywh" } do
  same("to " .. form, vision.box_convert(v.boxes, "xyxy", form), v["to_" .. form])
  same("from " .. form, vision.box_convert(v.boxes, form, "xyxy"), v["from_" .. form])
end
same("clip", vision.clip_boxes_to_image(v.boxes - 5, { 30, 25 }), v.clip)
same("small", vision.remove_small_boxes(v.boxes, 9) - 1, v.small)
for i, o in ipairs { { 0.25, 2 }, { -1, 1.5 }, { 0.6, 0 } } do
  same("focal", vision.sigmoid_focal_loss(v.logits, v.targets, o[1], o[2], "mean"), v.focal[i])
end
v.rois:select(2, 1):add_(1)
for i, c in ipairs(cases.regions) do
  local x = v.x:clone():requires_grad_()
  local y = vision.roi_align(x, v.rois, c.size, c.scale, c.ratio, c.aligned)
  same("roi_align " .. i, y, tensor(c.y))
  moth.sum(y * moth.arange(0, y:numel()):to(moth.float64):sin():view(y:size())):backward()
  same("roi_align's gradient " .. i, x.grad, tensor(c.grad))
end

local net = moth.models.retinanet_resnet50_fpn { num_classes = 5, min_size = 96, max_size = 160 }:double()
net:load_state_dict(moth.load(folder .. "/retinanet.pth"))
local images = { tensor(cases.images[1]), tensor(cases.images[2]) }
for i, one in ipairs(moth.no_grad(function() return net:eval()(images) end)) do
  local want = cases.found[i]
  same("boxes", one.boxes, moth.tensor(want.boxes), 1e-6) -- theirs are scaled in float32
  same("scores", one.scores, moth.tensor(want.scores))
  same("labels", one.labels - 1, moth.tensor(want.labels))
end
local losses = net:train()(images, {
  { boxes = moth.tensor { { 5, 6, 60, 50 }, { 30, 20, 90, 70 } },
    labels = moth.tensor({ 2, 4 }, { dtype = moth.int64 }) },
  { boxes = moth.tensor { { 10, 10, 50, 100 } }, labels = moth.tensor({ 5 }, { dtype = moth.int64 }) } })
for name, want in pairs(cases.losses) do same(name, losses[name], moth.tensor(want), 1e-6) end
moth.add(losses.classification, losses.bbox_regression):backward()
same("the gradient", net.backbone.body.conv1.weight.grad:abs():sum(), moth.tensor(cases.grad), 1e-6)
compare.finish("vision", "torchvision")
