--- The part of moth.vision about regions of feature maps: roi_align (He et al. 2017), of one map or of a pyramid.
local moth = require "moth"
local nn = require "moth.nn"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local M = {}

-- Boxes with the number of their image before them, (K, 5), from 1; in float64, where positions of pixels stay exact in
-- large batches.
local function numbered(name, input, boxes)
  if type(boxes) == "table" then
    local rows = {}
    if #boxes ~= input:size(1) then
      check.fail("[vision.%s] expected a tensor of boxes for each of %d images, got %d", name, input:size(1), #boxes)
    end
    for i, b in ipairs(boxes) do
      if not moth.is_tensor(b) or b:dim() ~= 2 or b:size(2) ~= 4 then
        check.fail("[vision.%s] boxes[%d] must be a tensor of the shape (L, 4)", name, i)
      end
      b = b:detach():to(moth.float64)
      rows[i] = moth.cat({ b:new_full({ b:size(1), 1 }, i), b }, 2)
    end
    return moth.cat(rows, 1)
  end
  if boxes:dim() ~= 2 or boxes:size(2) ~= 5 then
    check.fail("[vision.%s] boxes must have the shape (K, 5), with the image's position (from 1) first, or be a list \z
      of (L, 4), got %s", name, tostring(boxes:size()))
  end
  boxes = boxes:detach():to(moth.float64)
  local which = boxes:select(2, 1)
  if boxes:size(1) == 0 then return boxes end
  local low, high = which:min():item(), which:max():item()
  if not (low >= 1 and high <= input:size(1)) or not moth.equal(which, which:floor()) then
    check.fail("[vision.%s] positions of images (from 1) must be whole numbers in 1 to %d, got %g to %g", name,
      input:size(1), low, high)
  end
  return boxes
end

-- Along one side: where the samples of each bin lie, as the two pixels around (from 0) and the weight of the second;
-- and 1 where a sample lies in the map, else 0. start, extent: (K); -> (K, bins * samples).
local function samples(start, extent, bins, count, size)
  local steps = (moth.arange(0, bins * count, { dtype = start:dtype(), device = start:device() }) + 0.5) / count
  local at = start:unsqueeze(2) + steps * (extent / bins):unsqueeze(2)
  local inside = at:ge(-1):logical_and(at:le(size)):to(start:dtype())
  at = at:clamp(0, size - 1)
  local low = at:floor():clamp(0, math.max(size - 2, 0))
  return low, (low + 1):clamp_max(size - 1), at - low, inside
end

-- Regions that share the counts of samples: a bag for each bin, of four pixels for each sample.
local function align(rows, h, w, boxes, image, ph, pw, gh, gw)
  if boxes.x:size(1) * ph * gh * pw * gw > 2 ^ 28 then
    check.fail("[vision.roi_align] %d boxes with %g x %g samples for each of %d x %d bins are too many; HINT: give \z
      sampling_ratio, or clip the boxes to the image", boxes.x:size(1), gh, gw, ph, pw)
  end
  local k = boxes.x:size(1)
  local y0, y1, fy, my = samples(boxes.y, boxes.h, ph, gh, h)
  local x0, x1, fx, mx = samples(boxes.x, boxes.w, pw, gw, w)
  local index, weight = {}, {}
  for _, y in ipairs { { y0, (1 - fy) * my }, { y1, fy * my } } do
    for _, x in ipairs { { x0, (1 - fx) * mx }, { x1, fx * mx } } do
      index[#index + 1] = (image * h + y[1]:unsqueeze(3)) * w + x[1]:unsqueeze(2)
      weight[#weight + 1] = y[2]:unsqueeze(3) * x[2]:unsqueeze(2)
    end
  end
  local function bag(list) -- (K, ph * gh, pw * gw, 4) -> (K * ph * pw, gh * gw * 4)
    return moth.stack(list, 4):view(k, ph, gh, pw, gw, 4):permute(1, 2, 4, 3, 5, 6):reshape(k * ph * pw, -1)
  end
  local bags = nn.functional.embedding_bag(bag(index):to(moth.int64) + 1, rows, { mode = "sum",
    per_sample_weights = (bag(weight) / (gh * gw)):to(rows:dtype()) })
  return bags:view(k, ph, pw, -1):permute(1, 4, 2, 3)
end

local function pair(name, size)
  if type(size) == "number" then return size, size end
  if #size ~= 2 then check.fail("[vision.%s] output_size must be a number or { height, width }", name) end
  return size[1], size[2]
end

local function roi_align(name, input, boxes, output_size, scale, sampling_ratio, aligned)
  if input:dim() ~= 4 then
    check.fail("[vision.%s] input must have the shape (N, C, H, W), got %s", name, tostring(input:size()))
  end
  if not input:is_floating_point() then
    check.fail("[vision.%s] input must have floats, as means are; got %s\nHINT: input:float()", name,
      tostring(input:dtype()))
  end
  local ph, pw = pair(name, output_size)
  if ph < 1 or pw < 1 then check.fail("[vision.%s] output_size must be at least 1, got %d x %d", name, ph, pw) end
  local b = numbered(name, input, boxes)
  local k, c, h, w = b:size(1), input:size(2), input:size(3), input:size(4)
  if k == 0 then return input:new_zeros { 0, c, ph, pw } end
  if not b:isfinite():all():item() then check.fail("[vision.%s] boxes have nan or infinity", name) end
  local offset = aligned and 0.5 or 0
  local at = { x = b:select(2, 2) * scale - offset, y = b:select(2, 3) * scale - offset }
  at.w, at.h = b:select(2, 4) * scale - offset - at.x, b:select(2, 5) * scale - offset - at.y
  if not aligned then at.w, at.h = at.w:clamp_min(1), at.h:clamp_min(1) end
  local image = (b:select(2, 1) - 1):view(k, 1, 1)
  local rows = input:permute(1, 3, 4, 2):reshape(-1, c)
  if sampling_ratio > 0 then return align(rows, h, w, at, image, ph, pw, sampling_ratio, sampling_ratio) end
  -- As many samples as pixels: regions with the same counts at once.
  local gh, gw = (at.h / ph):ceil():totable(), (at.w / pw):ceil():totable()
  local groups, order, parts = {}, {}, {}
  for i = 1, k do
    local key = gh[i] .. " " .. gw[i]
    if not groups[key] then
      groups[key] = { gh = gh[i], gw = gw[i], list = {} }
      groups[#groups + 1] = groups[key]
    end
    table.insert(groups[key].list, i)
  end
  for i, g in ipairs(groups) do
    local which = moth.tensor(g.list, { dtype = moth.int64, device = input:device() })
    for _, n in ipairs(g.list) do order[#order + 1] = n end
    if g.gh <= 0 or g.gw <= 0 then
      parts[i] = input:new_zeros { #g.list, c, ph, pw }
    else
      local some = {}
      for key, v in require "moth.each"(at) do some[key] = v:index_select(1, which) end
      parts[i] = align(rows, h, w, some, image:index_select(1, which), ph, pw, g.gh, g.gw)
    end
  end
  local back = {}
  for i, n in ipairs(order) do back[n] = i end
  return moth.cat(parts, 1):index_select(1, moth.tensor(back, { dtype = moth.int64, device = input:device() }))
end

--- Means of features in regions, read between pixels, for each of output_size = { height, width } bins.
-- input (N, C, H, W); boxes: (K, 5), the position of the image (from 1) and x1, y1, x2, y2, or a list of (L, 4), one
-- for each image -> (K, C, height, width). spatial_scale: of the boxes' coordinates; sampling_ratio: samples along a
-- side of a bin (-1: as many as pixels); aligned: pixels' centres lie at halves (as Detectron2; not the default).
-- Gradients go to input.
M.roi_align = signature("vision.roi_align(Tensor input, Tensor|list boxes, int|int[] output_size, \z
  number spatial_scale=1, int sampling_ratio=-1, bool aligned=false)",
  function(...) return roi_align("roi_align", ...) end)

local RoIAlign = nn.class("vision.RoIAlign")
--- roi_align as a module: (input, boxes) -> (K, C, height, width).
M.RoIAlign = RoIAlign
RoIAlign.__init = signature.init("vision.RoIAlign(int|int[] output_size, number spatial_scale=1, \z
  int sampling_ratio=-1, bool aligned=false)", function(self, o)
  for key, v in require "moth.each"(o) do self[key] = v end
end)
function RoIAlign:forward(input, boxes)
  return roi_align("RoIAlign", input, boxes, self.output_size, self.spatial_scale, self.sampling_ratio, self.aligned)
end
return M
