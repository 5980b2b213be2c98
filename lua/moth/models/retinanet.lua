--- models.retinanet_resnet50_fpn: a detector of one stage (Lin et al. 2017), with torchvision's names: a ResNet, a
-- pyramid of five maps, and on each, for nine anchors a place, scores of classes and a box.
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

-- Four convolutions and one more, on each map: -> (N, places * anchors, width).
local Head = nn.class("RetinaNet.Head")
function Head:__init(channels, anchors, width, last, bias)
  local list = {}
  for i = 1, 4 do list[i] = nn.Sequential(nn.Conv2d(channels, channels, 3, { padding = 1 }), nn.ReLU()) end
  self.conv, self.last, self.width = nn.Sequential(list), last, width
  self[last] = nn.Conv2d(channels, anchors * width, 3, { padding = 1 })
  for _, m in self:named_modules() do
    if m.__name == "Conv2d" then
      nn.init.normal_(m.weight, 0, 0.01)
      nn.init.zeros_(m.bias)
    end
  end
  nn.init.constant_(self[last].bias, bias)
end
function Head:forward(maps)
  local out = {}
  for i, x in ipairs(maps) do
    x = self[self.last](self.conv(x))
    out[i] = x:view(x:size(1), -1, self.width, x:size(3), x:size(4)):permute(1, 4, 5, 2, 3)
      :reshape(x:size(1), -1, self.width)
  end
  return out
end

local RetinaNet = nn.class("RetinaNet")
function RetinaNet:__init(o)
  local vision = moth.vision
  local body = moth.models.resnet50 { norm_layer = vision.FrozenBatchNorm2d }
  body.fc, body.avgpool = nil, nil
  self.backbone = nn.ModuleDict { body = body,
    fpn = vision.FeaturePyramidNetwork({ 512, 1024, 2048 }, 256, { extra = "p6p7" }) }
  local sizes, ratios = {}, {}
  for i, s in ipairs { 32, 64, 128, 256, 512 } do
    sizes[i] = { s, math.floor(s * 2 ^ (1 / 3)), math.floor(s * 2 ^ (2 / 3)) }
    ratios[i] = { 0.5, 1, 2 }
  end
  self.anchors, self.coder = vision.AnchorGenerator(sizes, ratios), vision.BoxCoder()
  -- At first each class has a probability of 1 %.
  self.head = nn.ModuleDict { classification_head = Head(256, 9, o.num_classes, "cls_logits", -math.log(99)),
    regression_head = Head(256, 9, 4, "bbox_reg", 0) }
  self.options = o
end

local mean, std = { 0.485, 0.456, 0.406 }, { 0.229, 0.224, 0.225 }
-- Images (3, H, W) from 0 to 1 as one batch: scaled so that the shorter side is min_size unless the longer one were
-- above max_size, filled up by zeros to multiples of 32. Also the size of each.
local function batch(self, images)
  local o, list, height, width = self.options, {}, 0, 0
  for i, image in ipairs(images) do
    if not moth.is_tensor(image) or image:dim() ~= 3 or image:size(1) ~= 3 or not image:is_floating_point() then
      check.fail("[models.RetinaNet] images[%d] must be a floating tensor of the shape (3, H, W), values from 0 to 1, \z
        got %s", i, moth.is_tensor(image) and tostring(image:dtype()) .. " " .. tostring(image:size()) or type(image))
    end
    local on = { dtype = image:dtype(), device = image:device() }
    image = (image - moth.tensor(mean, on):view(3, 1, 1)) / moth.tensor(std, on):view(3, 1, 1)
    local h, w = image:size(2), image:size(3)
    local scale = math.min(o.min_size / math.min(h, w), o.max_size / math.max(h, w))
    list[i] = nn.functional.interpolate(image:unsqueeze(1), { math.floor(h * scale), math.floor(w * scale) },
      { mode = "bilinear", align_corners = false })[1]
    height, width = math.max(height, list[i]:size(2)), math.max(width, list[i]:size(3))
  end
  local out = list[1]:new_zeros { #list, 3, math.ceil(height / 32) * 32, math.ceil(width / 32) * 32 }
  for i, image in ipairs(list) do
    out[i]:narrow(2, 1, image:size(2)):narrow(3, 1, image:size(3)):copy_(image)
  end
  return out, list
end

-- Boxes of an image of h x w in one of its scaled form, or back.
local function scaled(boxes, from, to)
  local x, y = to:size(-1) / from:size(-1), to:size(-2) / from:size(-2)
  return boxes * boxes:new_tensor { x, y, x, y }
end

-- The losses: { classification, bbox_regression }.
local function losses(self, logits, codes, anchors, targets)
  local vision, classes, regression = moth.vision, 0, 0
  for i, target in ipairs(targets) do
    local matched = vision.match(target.boxes, anchors)
    local found = matched:gt(0):nonzero():flatten()
    local which, n = matched:index_select(1, found), math.max(1, found:size(1))
    local wanted = moth.zeros_like(logits[i])
    wanted:index_put_({ found, target.labels:index_select(1, which) }, moth.ones({}, { dtype = wanted:dtype() }))
    local counted = matched:ge(0):nonzero():flatten()
    classes = classes + vision.sigmoid_focal_loss(logits[i]:index_select(1, counted),
      wanted:index_select(1, counted), { reduction = "sum" }) / n
    local code = self.coder:encode(target.boxes:index_select(1, which), anchors:index_select(1, found))
    regression = regression + (codes[i]:index_select(1, found) - code):abs():sum() / n
  end
  return { classification = classes / #targets, bbox_regression = regression / #targets }
end

-- What is seen in one image: per map the best candidates, then what does not overlap better ones.
local function detections(self, logits, codes, anchors, i, image)
  local vision, o = moth.vision, self.options
  local boxes, scores, labels = {}, {}, {}
  for level, map in ipairs(logits) do
    local all = map[i]:sigmoid():flatten()
    local at = all:gt(o.score_thresh):nonzero():flatten()
    local score, best = all:index_select(1, at):topk(math.min(o.topk_candidates, at:size(1)))
    at = at:index_select(1, best) - 1
    local anchor = at:floor_divide(map:size(3)) + 1
    boxes[level] = vision.clip_boxes_to_image(self.coder:decode(codes[level][i]:index_select(1, anchor),
      anchors[level]:index_select(1, anchor)), { image:size(2), image:size(3) })
    scores[level], labels[level] = score, at % map:size(3) + 1
  end
  boxes, scores, labels = moth.cat(boxes, 1), moth.cat(scores, 1), moth.cat(labels, 1)
  local keep = vision.batched_nms(boxes, scores, labels, o.nms_thresh)
  keep = keep:narrow(1, 1, math.min(o.detections_per_img, keep:size(1)))
  return { boxes = boxes:index_select(1, keep), scores = scores:index_select(1, keep),
    labels = labels:index_select(1, keep) }
end

-- What a target has to be, so that no loss is infinite.
local function check_target(i, target, classes)
  local function fail(...) check.fail("[models.RetinaNet] targets[%d] must have " .. ..., i, select(2, ...)) end
  local boxes, labels = target.boxes, target.labels
  if not moth.is_tensor(boxes) or boxes:dim() ~= 2 or boxes:size(2) ~= 4 or not moth.is_tensor(labels)
    or labels:numel() ~= boxes:size(1) then
    fail "boxes (M, 4) and labels (M)"
  elseif boxes:size(1) == 0 then
    return
  elseif labels:is_floating_point() or labels:dtype() == moth.bool then
    fail("labels of integers, got %s", tostring(labels:dtype()))
  elseif labels:min():item() < 1 or labels:max():item() > classes then
    fail("labels from 1 to %d, got %d to %d", classes, labels:min():item(), labels:max():item())
  end
  local sides = boxes:narrow(2, 3, 2) - boxes:narrow(2, 1, 2)
  if not sides:gt(0):logical_and(sides:isfinite()):all():item() then
    fail "boxes (x1, y1, x2, y2) with x1 < x2 and y1 < y2"
  end
end

--- images: a list of (3, H, W), values from 0 to 1, of any sizes. While training, with targets, a list of
-- { boxes = (M, 4), labels = (M) from 1 } -> { classification, bbox_regression }, two losses to be added. Else a list
-- of { boxes, scores, labels }, best first.
function RetinaNet:forward(images, targets)
  if type(images) ~= "table" or #images == 0 then
    check.fail("[models.RetinaNet] expected a list of images (3, H, W)")
  end
  if self.training and (type(targets) ~= "table" or #targets ~= #images) then
    check.fail("[models.RetinaNet] while training, targets must have { boxes, labels } for each of %d images", #images)
  end
  for i, target in ipairs(self.training and targets or {}) do
    check_target(i, type(target) == "table" and target or {}, self.options.num_classes)
  end
  local x, list = batch(self, images)
  local body = self.backbone.body
  local c2 = body.layer1(body.maxpool(body.relu(body.bn1(body.conv1(x)))))
  local c3 = body.layer2(c2)
  local c4 = body.layer3(c3)
  local maps = self.backbone.fpn { c3, c4, body.layer4(c4) }
  local logits, codes = self.head.classification_head(maps), self.head.regression_head(maps)
  local anchors = self.anchors(x:size(3), x:size(4), maps)
  if self.training then
    local moved = {}
    for i, target in ipairs(targets) do
      moved[i] = { boxes = scaled(target.boxes:to(images[i]:dtype()), images[i], list[i]), labels = target.labels }
    end
    return losses(self, moth.cat(logits, 2), moth.cat(codes, 2), moth.cat(anchors, 1), moved)
  end
  local out = {}
  for i, image in ipairs(list) do
    out[i] = detections(self, logits, codes, anchors, i, image)
    out[i].boxes = scaled(out[i].boxes, image, images[i])
  end
  return out
end

--- RetinaNet on a ResNet-50 with a pyramid (Lin et al. 2017). num_classes with the background, the first
-- in torchvision's files (labels are theirs + 1). min_size, max_size: what the sides of an image are scaled to.
return { retinanet_resnet50_fpn = signature("models.retinanet_resnet50_fpn(*, count num_classes=91, \z
  count min_size=800, count max_size=1333, number score_thresh=0.05, number nms_thresh=0.5, \z
  count detections_per_img=300, count topk_candidates=1000)",
  function(num_classes, min_size, max_size, score_thresh, nms_thresh, detections_per_img, topk_candidates)
    return RetinaNet { num_classes = num_classes, min_size = min_size, max_size = max_size,
      score_thresh = score_thresh, nms_thresh = nms_thresh, detections_per_img = detections_per_img,
      topk_candidates = topk_candidates }
  end) }
