--- The part of moth.vision about boxes (N, 4): areas, overlaps, forms, suppression of those that overlap better ones.
local ffi = require "ffi"
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local M = {}

-- The columns of boxes.
local function columns(name, what, boxes)
  if boxes:dim() ~= 2 or boxes:size(2) ~= 4 then
    check.fail("[vision.%s] %s must have the shape (N, 4), got %s", name, what, tostring(boxes:size()))
  end
  return boxes:select(2, 1), boxes:select(2, 2), boxes:select(2, 3), boxes:select(2, 4)
end

-- Numbers that products do not overflow: as torchvision, float16 as float32, integers as int64.
local function wide(t)
  if t:is_floating_point() then
    return (t:dtype() == moth.float16 or t:dtype() == moth.bfloat16) and t:to(moth.float32) or t
  end
  return t:to(moth.int64)
end

--- (x2 - x1)(y2 - y1) of boxes (N, 4) -> (N).
M.box_area = signature("vision.box_area(Tensor boxes)", function(boxes)
  local x1, y1, x2, y2 = columns("box_area", "boxes", wide(boxes))
  return (x2 - x1) * (y2 - y1)
end)

local forms = { xyxy = true, xywh = true, cxcywh = true }
--- Boxes (…, 4) in another form: xyxy (two corners), xywh (a corner, width, height), cxcywh (the centre instead).
M.box_convert = signature("vision.box_convert(Tensor boxes, string in_fmt, string out_fmt)", function(boxes, from, to)
  for _, form in ipairs { from, to } do
    if not forms[form] then
      check.fail("[vision.box_convert] unknown form '%s'; there are xyxy, xywh, cxcywh", form)
    end
  end
  if boxes:dim() == 0 or boxes:size(-1) ~= 4 then
    check.fail("[vision.box_convert] boxes must have 4 numbers in the last dimension, got %s", tostring(boxes:size()))
  end
  if from == to then return boxes:clone() end
  if not boxes:is_floating_point() and (from == "cxcywh" or to == "cxcywh") then
    boxes = boxes:to(moth.get_default_dtype()) -- centres lie between pixels
  end
  return require("moth.data.transforms.boxes").convert("box_convert", boxes, from:upper(), to:upper())
end)

-- The common area, the whole one, and both sets of columns, each pair of boxes1 and boxes2 or row by row.
local function shared(name, boxes1, boxes2, pairwise)
  boxes1, boxes2 = wide(boxes1), wide(boxes2)
  local p, q = { columns(name, "boxes1", boxes1) }, { columns(name, "boxes2", boxes2) }
  local area1, area2 = (p[3] - p[1]) * (p[4] - p[2]), (q[3] - q[1]) * (q[4] - q[2])
  if pairwise then
    area1 = area1:unsqueeze(2)
    for i = 1, 4 do p[i] = p[i]:unsqueeze(2) end
  elseif boxes1:size(1) ~= boxes2:size(1) then
    check.fail("[vision.%s] expected as many boxes1 as boxes2, got %d and %d", name, boxes1:size(1), boxes2:size(1))
  end
  local w = (p[3]:minimum(q[3]) - p[1]:maximum(q[1])):clamp_min(0)
  local h = (p[4]:minimum(q[4]) - p[2]:maximum(q[2])):clamp_min(0)
  local common = w * h
  return common, area1 + area2 - common, p, q
end

-- IoU; with kind, less a penalty: "generalized" (Rezatofighi et al. 2019), "distance" and "complete" (Zheng et al.
-- 2020). eps: added to what is divided by.
function M._overlap(name, kind, boxes1, boxes2, pairwise, eps, area_eps)
  local common, whole, p, q = shared(name, boxes1, boxes2, pairwise)
  local iou = common / (area_eps and whole + area_eps or whole)
  if not kind then return iou end
  local w, h = p[3]:maximum(q[3]) - p[1]:minimum(q[1]), p[4]:maximum(q[4]) - p[2]:minimum(q[2])
  if kind == "generalized" then
    local hull = (pairwise and w:clamp_min(0) or w) * (pairwise and h:clamp_min(0) or h)
    return iou - (hull - whole) / (area_eps and hull + area_eps or hull)
  end
  local dx, dy = p[1] + p[3] - q[1] - q[3], p[2] + p[4] - q[2] - q[4]
  local out = iou - (dx * dx + dy * dy) / 4 / (w * w + h * h + eps)
  if kind == "distance" then return out end
  local v = 4 / math.pi ^ 2 * (((q[3] - q[1]) / (q[4] - q[2])):atan() - ((p[3] - p[1]) / (p[4] - p[2])):atan()):pow(2)
  local alpha = moth.no_grad(function() return v / (1 - iou + v + eps) end)
  return out - alpha * v
end

--- The overlap of each of boxes1 (N, 4) with each of boxes2 (M, 4), intersection over union -> (N, M).
M.box_iou = signature("vision.box_iou(Tensor boxes1, Tensor boxes2)", function(a, b)
  return M._overlap("box_iou", nil, a, b, true)
end)
for _, kind in ipairs { "generalized", "distance", "complete" } do
  local name = kind .. "_box_iou"
  --- IoU less what boxes that do not overlap are apart, of each of boxes1 (N, 4) and boxes2 (M, 4) -> (N, M).
  M[name] = signature(("vision.%s(Tensor boxes1, Tensor boxes2)"):format(name), function(a, b)
    return M._overlap(name, kind, a, b, true, 1e-7)
  end)
end

--- Boxes (…, 4) cut to an image of size { height, width }.
M.clip_boxes_to_image = signature("vision.clip_boxes_to_image(Tensor boxes, list size)", function(boxes, size)
  if #size ~= 2 or type(size[1]) ~= "number" or type(size[2]) ~= "number" then
    check.fail("[vision.clip_boxes_to_image] size must be { height, width }")
  end
  if boxes:dim() == 0 or boxes:size(-1) ~= 4 then
    check.fail("[vision.clip_boxes_to_image] boxes must have 4 numbers in the last dimension, got %s",
      tostring(boxes:size()))
  end
  local parts = {}
  for i = 1, 4 do parts[i] = boxes:select(-1, i):clamp(0, i % 2 == 1 and size[2] or size[1]) end
  return moth.stack(parts, boxes:dim())
end)

--- Which of boxes (N, 4) have both sides at least min_size -> positions (K).
M.remove_small_boxes = signature("vision.remove_small_boxes(Tensor boxes, number min_size)", function(boxes, min_size)
  local x1, y1, x2, y2 = columns("remove_small_boxes", "boxes", boxes)
  return (x2 - x1):ge(min_size):logical_and((y2 - y1):ge(min_size)):nonzero():flatten()
end)

--- The box around what is not zero of each of masks (N, H, W) -> (N, 4) of float32; zeros for an empty mask.
M.masks_to_boxes = signature("vision.masks_to_boxes(Tensor masks)", function(masks)
  if masks:dim() ~= 3 then
    check.fail("[vision.masks_to_boxes] masks must have the shape (N, H, W), got %s", tostring(masks:size()))
  end
  local out = moth.zeros({ masks:size(1), 4 }, { dtype = moth.float32, device = masks:device() })
  for i = 1, masks:size(1) do
    local at = masks[i]:nonzero()
    if at:size(1) > 0 then
      local low, high = at:amin(1):totable(), at:amax(1):totable()
      out[i]:copy_(moth.tensor { low[2] - 1, low[1] - 1, high[2] - 1, high[1] - 1 })
    end
  end
  return out
end)

-- Positions of the boxes that are kept, from the best score down. boxes: (N, 4), float64, as scores (N) on the CPU.
local function suppress(boxes, scores, threshold)
  local order = select(2, scores:sort(1, { descending = true, stable = true }))
  local n = order:size(1)
  local sorted = boxes:index_select(1, order):contiguous()
  local b, dead, kept = ffi.cast("const double *", sorted:data_ptr()), ffi.new("uint8_t[?]", n), {}
  for i = 0, n - 1 do
    if dead[i] == 0 then
      kept[#kept + 1] = i + 1
      local x1, y1, x2, y2 = b[4 * i], b[4 * i + 1], b[4 * i + 2], b[4 * i + 3]
      local area = (x2 - x1) * (y2 - y1)
      for k = i + 1, n - 1 do
        local u1, v1, u2, v2 = b[4 * k], b[4 * k + 1], b[4 * k + 2], b[4 * k + 3]
        local w = math.min(x2, u2) - math.max(x1, u1)
        local h = math.min(y2, v2) - math.max(y1, v1)
        if w > 0 and h > 0 then
          local common = w * h
          if common > threshold * (area + (u2 - u1) * (v2 - v1) - common) then dead[k] = 1 end
        end
      end
    end
  end
  return order:index_select(1, moth.tensor(kept, { dtype = moth.int64 }))
end

local function checked(name, boxes, scores)
  columns(name, "boxes", boxes)
  if scores:dim() ~= 1 or scores:size(1) ~= boxes:size(1) then
    check.fail("[vision.%s] scores must have the shape (%d), one for each box, got %s", name, boxes:size(1),
      tostring(scores:size()))
  end
end

--- Non-maximum suppression: from the best score down, boxes (N, 4) whose overlap (IoU) with a kept one is above
-- iou_threshold are dropped -> positions of those kept (K), best first.
M.nms = signature("vision.nms(Tensor boxes, Tensor scores, number iou_threshold)", function(boxes, scores, threshold)
  checked("nms", boxes, scores)
  return moth.no_grad(function()
    return suppress(boxes:detach():cpu():to(moth.float64), scores:detach():cpu(), threshold):to(boxes:device())
  end)
end)

--- nms by groups: boxes of other idxs (N), classes or images, do not drop one another.
M.batched_nms = signature("vision.batched_nms(Tensor boxes, Tensor scores, Tensor idxs, number iou_threshold)",
  function(boxes, scores, idxs, threshold)
    checked("batched_nms", boxes, scores)
    if idxs:dim() ~= 1 or idxs:size(1) ~= boxes:size(1) then
      check.fail("[vision.batched_nms] idxs must have the shape (%d), one for each box, got %s", boxes:size(1),
        tostring(idxs:size()))
    end
    return moth.no_grad(function()
      local b = boxes:detach():cpu():to(moth.float64)
      if b:size(1) > 0 then -- each group at a place of its own
        b = b + (idxs:cpu():to(moth.float64) * (b:max() - b:min() + 1)):unsqueeze(2)
      end
      return suppress(b, scores:detach():cpu(), threshold):to(boxes:device())
    end)
  end)

return M
