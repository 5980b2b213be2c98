--- ONNX's operators on images: Resize, GridSample, boxes.
local B = require "moth_lua"
local moth = require "moth"
local import = require "moth.onnx.import"
local rule = import.rule
local F = moth.nn.functional

-- ---- Resize --------------------------------------------------------------------------------------

-- Scales are float32, and so is what runtimes compute of them: 3 / 0.6 is 5 there, and 4.9999998 in double.
local box = require("ffi").new "float[1]"
local function single(v)
  box[0] = v
  return box[0]
end

-- Where the middle of element i (from 0) of the result lies; nil beyond it: "outside". The length of a result is a
-- whole number, as PyTorch's and onnxruntime's (the reference of ONNX takes scale * size for it).
local coordinates = {
  half_pixel = function(i, r) return single((i + 0.5) / r.scale) - 0.5 end,
  pytorch_half_pixel = function(i, r) return r.out == 1 and -0.5 or single((i + 0.5) / r.scale) - 0.5 end,
  asymmetric = function(i, r) return single(i / r.scale) end,
  align_corners = function(i, r) return r.out == 1 and 0 or single(i * (r.size - 1) / (r.out - 1)) end,
  half_pixel_symmetric = function(i, r)
    return r.size / 2 * (1 - r.out / r.length) + (i + 0.5) / r.scale - 0.5
  end,
  tf_crop_and_resize = function(i, r)
    local from, to = r.roi[1], r.roi[2]
    local x = r.out == 1 and (to - from) * (r.size - 1) / 2 or i * (to - from) * (r.size - 1) / (r.out - 1)
    return x + from * (r.size - 1)
  end,
}

-- The weight of an element at distance d.
local function cubic(d, a)
  d = math.abs(d)
  if d <= 1 then return ((a + 2) * d - (a + 3)) * d * d + 1 end
  return d < 2 and ((a * d - 5 * a) * d + 8 * a) * d - 4 * a or 0
end
local function triangle(d) return math.max(1 - math.abs(d), 0) end

-- Positions (from 0, unlimited) and weights of the elements that make the one at x.
local function neighbours(c, x, r)
  local low = math.floor(x)
  if c.mode == "nearest" then
    local rest, at = x - low, low
    local how = c.nearest_mode
    if rest ~= 0 and (how == "ceil" or how == "round_prefer_floor" and rest > 0.5
        or how == "round_prefer_ceil" and rest >= 0.5) then
      at = low + 1
    end
    return { at }, { 1 }
  end
  local weight, reach = triangle, 1
  if c.mode == "cubic" then
    reach = 2
    function weight(d) return cubic(d, c.cubic_coeff_a) end
  end
  local step = c.antialias == 1 and math.min(r.scale, 1) or 1
  reach = reach / step
  local list, weights, sum = {}, {}, 0
  for at = math.ceil(x - reach), math.floor(x + reach) do
    local w = weight((at - x) * step)
    if w ~= 0 and not (c.exclude_outside == 1 and (at < 0 or at >= r.size)) then
      list[#list + 1], weights[#list + 1] = at, w
      sum = sum + w
    end
  end
  if c.antialias == 1 or c.exclude_outside == 1 then
    for i, w in ipairs(weights) do weights[i] = w / sum end
  end
  return list, weights
end

-- One dimension, as a sum of selected elements with weights.
local function resized(c, x, dim, r)
  if r.out == 0 then return x:narrow(dim, 1, 0) end
  local places, most, outside = {}, 0, {}
  for i = 0, r.out - 1 do
    local at = coordinates[c.coordinate_transformation_mode](i, r)
    outside[i + 1] = r.roi and (at < 0 or at > r.size - 1) and 1 or 0
    local list, weights = neighbours(c, at, r)
    places[i + 1] = { list, weights }
    most = math.max(most, #list)
  end
  local shape = {}
  for i = 1, x:dim() do shape[i] = i == dim and r.out or 1 end
  local sum
  for k = 1, most do
    local index, weights, ones = {}, {}, true
    for i, place in ipairs(places) do
      local at = place[1][k] or place[1][1] or 0
      index[i] = math.max(0, math.min(at, r.size - 1)) + 1
      weights[i] = place[1][k] and place[2][k] or 0
      ones = ones and weights[i] == 1
    end
    local part = x:index_select(dim, import.tensor(index, "int64", x:device()))
    if not ones then part = part * import.tensor(weights, x:dtype().name, x:device()):reshape(shape) end
    sum = sum and sum + part or part
  end
  if r.roi then
    local beyond = import.tensor(outside, "int64", x:device()):reshape(shape):ne(0)
    sum = moth.where(beyond, moth.full({}, c.extrapolation_value, { dtype = x:dtype() }), sum)
  end
  return sum
end

-- Whether a kernel of moth's does all of it: sizes that follow from an exact scale.
local function quick(c, x, want)
  local mode = c.coordinate_transformation_mode
  if x:dim() < 3 or x:dim() > 5 or c.antialias == 1 or not x:is_floating_point() then return end
  local size = {}
  for d, r in ipairs(want) do
    if r and (d <= 2 or r.out ~= r.scale * r.size or r.out < 2 or r.roi) then return end
    if d > 2 then size[d - 2] = r and r.out or x:size(d) end
  end
  if c.mode == "nearest" and mode == "asymmetric" and c.nearest_mode == "floor" then
    return B.ops.upsample_nearest(x, size)
  end
  if c.mode ~= "linear" or c.exclude_outside == 1 then return end
  if mode == "half_pixel" or mode == "pytorch_half_pixel" then return B.ops.upsample_linear(x, size, false) end
  if mode == "align_corners" then return B.ops.upsample_linear(x, size, true) end
end

rule("Resize", "antialias=0 axes coordinate_transformation_mode='half_pixel' cubic_coeff_a=-0.75 exclude_outside=0 \z
  extrapolation_value=0 keep_aspect_ratio_policy='stretch' mode='nearest' nearest_mode='round_prefer_floor'",
  function(c, x, roi, scales, sizes)
    if c.opset < 11 then roi, scales = nil, roi end
    if not coordinates[c.coordinate_transformation_mode] then
      c:fail("coordinate_transformation_mode = '%s'", c.coordinate_transformation_mode)
    end
    local n = x:dim()
    local axes, want, region = c.axes, {}, roi and c:list(roi) or {}
    if not axes then
      axes = {}
      for i = 1, n do axes[i] = i - 1 end
    end
    local factor, targets = scales and scales:numel() > 0 and c:list(scales), sizes and c:list(sizes)
    if not factor and not targets then c:fail("it has neither scales nor sizes") end
    local ratio
    if targets and c.keep_aspect_ratio_policy ~= "stretch" then
      for i, a in ipairs(axes) do
        local this = targets[i] / x:size(c:dim(a, n))
        local smaller = c.keep_aspect_ratio_policy == "not_larger"
        ratio = ratio and (smaller and math.min(ratio, this) or not smaller and math.max(ratio, this)) or this
      end
    end
    for d = 1, n do want[d] = false end
    for i, a in ipairs(axes) do
      local d = c:dim(a, n)
      local size = x:size(d)
      local scale = factor and factor[i] or ratio or targets[i] / size
      local out = factor and math.floor(single(scale * size)) or ratio and math.floor(scale * size + 0.5) or targets[i]
      local r = { size = size, scale = scale, out = out, length = scale * size }
      if c.coordinate_transformation_mode == "tf_crop_and_resize" then
        r.roi = { region[i] or 0, region[#axes + i] or 1 }
      end
      if scale ~= 1 or out ~= size or r.roi and (r.roi[1] ~= 0 or r.roi[2] ~= 1) then want[d] = r end
    end
    local done = quick(c, x, want)
    if done then return done end
    local dtype = x:dtype()
    local wide = c.mode ~= "nearest" and x:to(moth.float64) or x
    for d = 1, n do
      if want[d] then wide = resized(c, wide, d, want[d]) end
    end
    if wide:dtype() == dtype then return wide end
    return (x:is_floating_point() and wide or wide:round()):to(dtype)
  end, { numbers = 234 })

rule("Upsample", "mode='nearest' scales", function(c, x, scales)
  local factor, size = c.scales or c:list(scales), {}
  if factor[1] ~= 1 or factor[2] ~= 1 then c:fail("of the first two dimensions") end
  for i = 3, x:dim() do size[i - 2] = math.floor(x:size(i) * factor[i]) end
  if c.mode == "nearest" then return B.ops.upsample_nearest(x, size) end
  local like = setmetatable({ mode = "linear", coordinate_transformation_mode = "asymmetric" }, { __index = c })
  for i = 3, x:dim() do
    x = resized(like, x, i, { size = x:size(i), scale = factor[i], out = size[i - 2], length = factor[i] * x:size(i) })
  end
  return x
end, { numbers = 2 })

-- ---- sampling ------------------------------------------------------------------------------------

local modes = { linear = "bilinear", bilinear = "bilinear", nearest = "nearest", cubic = "bicubic",
  bicubic = "bicubic" }

rule("GridSample", "align_corners=0 mode='linear' padding_mode='zeros'", function(c, x, grid)
  return F.grid_sample(x, grid, { mode = modes[c.mode] or c:fail("the mode '%s'", c.mode),
    padding_mode = c.padding_mode, align_corners = c.align_corners == 1 })
end)

rule("AffineGrid", "align_corners=0", function(c, theta, size)
  return F.affine_grid(theta, c:list(size), { align_corners = c.align_corners == 1 })
end, { numbers = 2 })

-- The samples of a box in a dimension, count * samples of them from `from` to `to`: their two neighbours, counted from
-- 1, how far each is from the first, and whether it lies in the image (1 or 0).
local function bilinear(from, to, count, samples, size)
  local low, high, rest, inside = {}, {}, {}, {}
  local bin = (to - from) / count
  for p = 0, count - 1 do
    for s = 0, samples - 1 do
      local v, i = from + p * bin + (s + 0.5) * bin / samples, #low + 1
      inside[i] = (v < -1 or v > size) and 0 or 1
      v = math.max(v, 0)
      local at = math.floor(v)
      if at >= size - 1 then at, v = size - 1, size - 1 end
      low[i], high[i], rest[i] = at + 1, math.min(at + 2, size), v - at
    end
  end
  return low, high, rest, inside
end

-- The mean of each part's samples as a matrix (parts, places) on a stretch of the places: { first, n, list }.
local function mean_of(low, high, rest, inside, count, samples, size)
  local first, last = size, 1
  for i = 1, #low do
    if inside[i] == 1 then first, last = math.min(first, low[i]), math.max(last, high[i]) end
  end
  first = math.min(first, last)
  local n, list = last - first + 1, {}
  for i = 1, count * n do list[i] = 0 end
  for i = 1, #low do
    if inside[i] == 1 then
      local row = math.floor((i - 1) / samples) * n - first + 1
      list[row + low[i]] = list[row + low[i]] + (1 - rest[i]) / samples
      list[row + high[i]] = list[row + high[i]] + rest[i] / samples
    end
  end
  return { first = first, n = n, list = list }
end

local MOST_SAMPLES = 2 ^ 20 -- of a region, in one direction

rule("RoiAlign", "coordinate_transformation_mode='half_pixel' mode='avg' output_height=1 output_width=1 \z
  sampling_ratio=0 spatial_scale=1", function(c, x, rois, batches)
  local boxes, batch, out = c:list(rois), c:list(batches), {}
  local offset = (c.opset >= 16 and c.coordinate_transformation_mode == "half_pixel") and 0.5 or 0
  local channels, height, width, device = x:size(2), x:size(3), x:size(4), x:device()
  local function vector(list, dtype) return import.tensor(list, dtype or x:dtype().name, device) end
  local h, w, images = c.output_height, c.output_width, {}
  for i, b in ipairs(batch) do
    local function samples_of(at, count)
      local from, to = boxes[i * 4 - 4 + at], boxes[i * 4 - 2 + at]
      from, to = from * c.spatial_scale - offset, to * c.spatial_scale - offset
      if offset == 0 then to = from + math.max(to - from, 1) end
      local samples = c.sampling_ratio > 0 and c.sampling_ratio or math.max(math.ceil((to - from) / count), 1)
      if samples * count > MOST_SAMPLES or from ~= from or to ~= to then
        c:fail("region %d, %g elements long, takes %g samples: at most %d", i, to - from, samples * count, MOST_SAMPLES)
      end
      return samples, from, to, count
    end
    local sx, x_from, x_to = samples_of(1, w)
    local sy, y_from, y_to = samples_of(2, h)
    local y0, y1, ry, iy = bilinear(y_from, y_to, h, sy, height)
    local x0, x1, rx, ix = bilinear(x_from, x_to, w, sx, width)
    if c.mode == "max" then
      local image = x:select(1, b + 1)
      local function corner(ys, xs, wy, wx)
        return image:index_select(2, vector(ys, "int64")):index_select(3, vector(xs, "int64")) * wy * wx
      end
      ry, iy = vector(ry):reshape { 1, -1, 1 }, vector(iy):reshape { 1, -1, 1 }
      rx, ix = vector(rx), vector(ix)
      local top = moth.maximum(moth.maximum(corner(y0, x0, (1 - ry) * iy, (1 - rx) * ix),
        corner(y0, x1, (1 - ry) * iy, rx * ix)), moth.maximum(corner(y1, x0, ry * iy, (1 - rx) * ix),
        corner(y1, x1, ry * iy, rx * ix)))
      out[i] = top:reshape { channels, h, sy, w, sx }:amax { 3, 5 }
    else -- two products with the part of the image, its channels last
      local rows, columns = mean_of(y0, y1, ry, iy, h, sy, height), mean_of(x0, x1, rx, ix, w, sx, width)
      images[b] = images[b] or x:select(1, b + 1):permute(2, 3, 1):contiguous()
      local part = images[b]:narrow(1, rows.first, rows.n):narrow(2, columns.first, columns.n)
      local y = vector(rows.list):reshape { h, rows.n }:matmul(part:reshape { rows.n, columns.n * channels })
      out[i] = vector(columns.list):reshape { w, columns.n }:matmul(y:reshape { h, columns.n, channels })
    end
  end
  if #out == 0 then return moth.zeros({ 0, channels, h, w }, { dtype = x:dtype(), device = device }) end
  local y = moth.stack(out, 1)
  return c.mode == "max" and y or y:permute(1, 4, 2, 3):contiguous()
end, { numbers = 23, makes = true })

rule("MaxRoiPool", "pooled_shape spatial_scale=1", function(c, x, rois)
  local list, out = c:list(rois), {}
  local function round(v) return v < 0 and -math.floor(0.5 - v) or math.floor(v + 0.5) end
  -- The largest of each part of dimension d between two places of the image; 0 where a part lies outside.
  local function parts(image, d, from, to, count)
    from, to = round(from * c.spatial_scale), round(to * c.spatial_scale)
    local wide, made, size = math.max(to - from + 1, 1) / count, {}, image:size(d)
    for k = 1, count do
      local low = math.min(math.max(math.floor((k - 1) * wide) + from, 0), size)
      local high = math.min(math.max(math.ceil(k * wide) + from, 0), size)
      made[k] = high > low and image:narrow(d, low + 1, high - low):amax(d, true)
        or moth.zeros_like(image:narrow(d, 1, 1))
    end
    return moth.cat(made, d)
  end
  local h, w = c.pooled_shape[1], c.pooled_shape[2]
  for i = 1, #list / 5 do
    local b, x1, y1, x2, y2 = unpack(list, i * 5 - 4, i * 5)
    if not (b >= 0 and b < x:size(1)) then c:fail("region %d is of image %g, of %d", i, b, x:size(1)) end
    out[i] = parts(parts(x:select(1, b + 1), 2, y1, y2, h), 3, x1, x2, w)
  end
  if #out > 0 then return moth.stack(out, 1) end
  return moth.zeros({ 0, x:size(2), h, w }, { dtype = x:dtype(), device = x:device() })
end, { numbers = 2, makes = true })

-- ---- boxes ---------------------------------------------------------------------------------------

-- { y1, x1, y2, x2, area } of a box.
local function box_of(list, at, centred)
  local a, b, p, q = list[at], list[at + 1], list[at + 2], list[at + 3]
  local y1, x1, y2, x2
  if centred then
    y1, x1, y2, x2 = b - q / 2, a - p / 2, b + q / 2, a + p / 2
  else
    y1, x1, y2, x2 = math.min(a, p), math.min(b, q), math.max(a, p), math.max(b, q)
  end
  return { y1, x1, y2, x2, (y2 - y1) * (x2 - x1) }
end

local function overlap(a, b)
  local h, w = math.min(a[3], b[3]) - math.max(a[1], b[1]), math.min(a[4], b[4]) - math.max(a[2], b[2])
  if h <= 0 or w <= 0 or a[5] <= 0 or b[5] <= 0 then return 0 end
  return h * w / (a[5] + b[5] - h * w)
end

rule("NonMaxSuppression", "center_point_box=0", function(c, boxes, scores, most, iou, least)
  local limit, threshold = c:number(most, 0), c:number(iou, 0)
  local floor = least and c:number(least)
  local size = scores:size()
  local places, values, out = c:list(boxes), c:list(scores), {}
  local n = size[3]
  for b = 0, size[1] - 1 do
    local list = {}
    for i = 0, n - 1 do list[i] = box_of(places, (b * n + i) * 4 + 1, c.center_point_box == 1) end
    for class = 0, size[2] - 1 do
      local order, base = {}, (b * size[2] + class) * n + 1
      for i = 0, n - 1 do
        if not floor or values[base + i] > floor then order[#order + 1] = i end
      end
      table.sort(order, function(p, q)
        local s, t = values[base + p], values[base + q]
        return s > t or s == t and p < q
      end)
      local kept = {}
      for _, i in ipairs(order) do
        if #kept >= limit then break end
        local free = true
        for _, k in ipairs(kept) do free = free and overlap(list[i], list[k]) <= threshold end
        if free then
          kept[#kept + 1] = i
          out[#out + 1], out[#out + 2], out[#out + 3] = b, class, i
        end
      end
    end
  end
  if #out == 0 then return moth.zeros({ 0, 3 }, { dtype = moth.int64, device = boxes:device() }) end
  return import.tensor(out, "int64", boxes:device()):reshape { -1, 3 }
end, { numbers = 12345, makes = true })
