--- moth.plot: curves, histograms, image grids and confusion matrices as SVG (no library needed) or PNG (by cairo).
--
--     local plot = require("moth").plot
--     plot.lines({ { train, label = "train" }, { epochs, test, label = "test" } }, { title = "loss" }):save("loss.svg")
--     plot.hist(weight, { bins = 50 }):save("weight.png")
--     plot.images(batch, { nrow = 8 }):save("batch.png")
--
-- Every function returns a canvas (moth.plot.canvas): save(path), svg(), png().
local check = require "moth.utils.check"
local layout = require "moth.data.layout"
local signature = require "moth.utils.signature"
local class = require "moth.class"
local Axes = require "moth.plot.axes"
local Canvas = require "moth.plot.canvas"
local B = require "moth_lua"
local ops = B.ops

local M = {}

--- The colours of curves, in order.
M.colours = { "#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2" }

local function numbers(where, v)
  if B.is_tensor(v) then
    return B.totable(ops.flatten(ops.to(B.alias(v, false), { dtype = "float64", device = "cpu" })))
  end
  if type(v) ~= "table" then check.fail("%s: expected a tensor or a table of numbers, got %s", where, class.name(v)) end
  for i = 1, #v do
    if type(v[i]) ~= "number" then check.fail("%s: element %d is a %s", where, i, class.name(v[i])) end
  end
  return v
end

local general = "string title?, string xlabel?, string ylabel?, bool logx=false, bool logy=false, number width?, \z
  number height?"

-- A canvas of o.width x o.height points with axes for a range.
local function sheet(range, o)
  local width, height = o.width or 560, o.height or 380
  local canvas = Canvas(width, height)
  return canvas, Axes(canvas, 68, 34, width - 88, height - 84, range, o)
end

local function finite(v) return v - v == 0 end

-- The series as { x, y, label, colour }, in logarithms for logx, logy, and the range of all.
local function prepare(where, series, o)
  if B.is_tensor(series) or type(series) == "table" and type(series[1]) == "number" then series = { { series } } end
  if type(series) ~= "table" or #series == 0 then
    check.fail("%s: expected a list of curves { [x,] y, label = }", where)
  end
  local list, x0, x1, y0, y1 = {}, math.huge, -math.huge, math.huge, -math.huge
  for i, s in ipairs(series) do
    if B.is_tensor(s) or type(s) ~= "table" or type(s[1]) == "number" then s = { s } end
    local y = numbers(where, s[2] or s[1])
    local x = s[2] and numbers(where, s[1])
    if x and #x ~= #y then check.fail("%s: curve %d has %d x for %d y", where, i, #x, #y) end
    local one = { x = {}, y = {}, label = s.label, colour = s.colour or M.colours[(i - 1) % #M.colours + 1] }
    for k = 1, #y do
      local vx, vy = x and x[k] or k, y[k]
      if o.logx then vx = vx > 0 and math.log10(vx) or 0 / 0 end
      if o.logy then vy = vy > 0 and math.log10(vy) or 0 / 0 end
      one.x[k], one.y[k] = vx, vy
      if finite(vx) and finite(vy) then
        x0, x1, y0, y1 = math.min(x0, vx), math.max(x1, vx), math.min(y0, vy), math.max(y1, vy)
      end
    end
    list[i] = one
  end
  if x0 > x1 then check.fail("%s: there is no finite value", where) end
  local margin = (y1 - y0) * 0.04
  return list, { x0, x1, y0 - margin, y1 + margin }
end

local function legend(canvas, axes, list)
  local row = 0
  for _, s in ipairs(list) do
    if s.label then
      local x, y = axes.x + axes.w - 120, axes.y + 16 + 16 * row
      canvas:line({ x, y - 4, x + 18, y - 4 }, s.colour, 2)
      canvas:text(x + 24, y, s.label)
      row = row + 1
    end
  end
end

--- Curves: a list of { [x,] y, label =, colour = } (tensors or tables), or one y. Values that are not finite leave
-- gaps.
-- options: title, xlabel, ylabel, logx, logy, width (560), height (380).
function M.lines(series, o)
  local list, range = prepare("plot.lines", series, o)
  local canvas, axes = sheet(range, o)
  axes:draw()
  for _, s in ipairs(list) do
    local points = {}
    for k = 1, #s.y + 1 do
      if s.y[k] and finite(s.x[k]) and finite(s.y[k]) then
        points[#points + 1], points[#points + 2] = axes:place(s.x[k], s.y[k])
      else
        if #points == 2 then canvas:circle(points[1], points[2], 2, s.colour) end
        if #points > 2 then canvas:line(points, s.colour, 1.6) end
        points = {}
      end
    end
  end
  legend(canvas, axes, list)
  return canvas
end

--- Points: a list of { x, y, label =, colour = }. The options of lines, and size (radius, 2.5).
function M.scatter(series, o)
  local list, range = prepare("plot.scatter", series, o)
  local margin = (range[2] - range[1]) * 0.03
  range[1], range[2] = range[1] - margin, range[2] + margin
  local canvas, axes = sheet(range, o)
  axes:draw()
  for _, s in ipairs(list) do
    for k = 1, #s.y do
      if finite(s.x[k]) and finite(s.y[k]) then
        local px, py = axes:place(s.x[k], s.y[k])
        canvas:circle(px, py, o.size or 2.5, s.colour)
      end
    end
  end
  legend(canvas, axes, list)
  return canvas
end

--- A histogram with `bins` (30) bins of equal width. The options of lines, and colour, range ({ low, high }).
function M.hist(values, o)
  local bins = o.bins
  local list, low, high = numbers("plot.hist", values), math.huge, -math.huge
  for _, v in ipairs(list) do
    if finite(v) then low, high = math.min(low, v), math.max(high, v) end
  end
  if o.range then low, high = o.range[1], o.range[2] end
  if low > high then check.fail("plot.hist: there is no finite value") end
  if low == high then low, high = low - 0.5, high + 0.5 end
  local counts, top = {}, 0
  for i = 1, bins do counts[i] = 0 end
  for _, v in ipairs(list) do
    if finite(v) and v >= low and v <= high then
      local i = math.min(bins, math.floor((v - low) / (high - low) * bins) + 1)
      counts[i] = counts[i] + 1
      top = math.max(top, counts[i])
    end
  end
  local canvas, axes = sheet({ low, high, 0, top * 1.05 }, o)
  axes:draw()
  for i = 1, bins do
    local x0, y0 = axes:place(low + (high - low) * (i - 1) / bins, counts[i])
    local x1, y1 = axes:place(low + (high - low) * i / bins, 0)
    if counts[i] > 0 then canvas:rect(x0, y0, x1 - x0, y1 - y0, o.colour or M.colours[1], "#ffffff") end
  end
  canvas.counts = counts
  return canvas
end

-- Images (N, H, W), (N, C, H, W) or, where the sizes tell it, (N, H, W, C) as (N, C, H, W).
local function planar(where, images, x)
  if B.dim(x) == 3 then x = ops.unsqueeze(x, 2) end
  if B.dim(x) ~= 4 or B.numel(x) == 0 then
    check.fail("%s: expected images (N, C, H, W), (N, H, W, C) or (N, H, W), got %s", where, B.format(images))
  end
  if layout.of(B.size(x, 2), B.size(x, 4)) == "last" then return ops.permute(x, { 1, 4, 2, 3 }) end
  return x
end

--- A batch (N, C, H, W), (N, H, W, C) or (N, H, W) as one image (C, H', W'): `nrow` (8) images in a row, `padding` (2)
-- pixels of `pad_value` (0) between.
function M.make_grid(images, o)
  local x = planar("make_grid", images, ops.to(B.alias(images, false), { device = "cpu" }))
  local n, c, h, w = unpack(B.size(x))
  local per_row = math.min(o.nrow, n)
  local pad = o.padding
  local rows = math.ceil(n / per_row)
  local grid = ops.full({ c, rows * (h + pad) + pad, per_row * (w + pad) + pad }, o.pad_value,
    { dtype = B.tensor_dtype(x) })
  for i = 0, n - 1 do
    local top, left = math.floor(i / per_row) * (h + pad) + pad, i % per_row * (w + pad) + pad
    ops.copy_(ops.narrow(ops.narrow(grid, 2, top + 1, h), 3, left + 1, w), ops.select(x, 1, i + 1))
  end
  return grid
end

--- Images (N, C, H, W), (N, H, W, C) or (N, H, W) in a grid, `titles` (a list) below them.
-- options: nrow (8), titles, title, size (points an image, 64).
function M.images(images, o)
  local x = planar("plot.images", images, B.alias(images, false))
  local n, _, h, w = unpack(B.size(x))
  local per_row = math.min(o.nrow, n)
  local cell_w = o.size
  local cell_h = cell_w * h / w
  local step_y = cell_h + (o.titles and 20 or 6)
  local top = o.title and 34 or 10
  local canvas = Canvas(20 + per_row * (cell_w + 6), top + math.ceil(n / per_row) * step_y + 6)
  if o.title then canvas:text(canvas.width / 2, 22, o.title, { anchor = "middle", size = 14 }) end
  for i = 0, n - 1 do
    local px, py = 10 + i % per_row * (cell_w + 6), top + math.floor(i / per_row) * step_y
    canvas:image(px, py, cell_w, cell_h, ops.select(x, 1, i + 1))
    if o.titles and o.titles[i + 1] then
      canvas:text(px + cell_w / 2, py + cell_h + 13, o.titles[i + 1], { anchor = "middle", size = 10 })
    end
  end
  return canvas
end

--- Counts of (label, prediction) pairs as a (C, C) int64 tensor: rows are labels. Both tensors hold classes from 1.
function M.confusion(labels, predictions, classes)
  local a, b = numbers("plot.confusion", labels), numbers("plot.confusion", predictions)
  if #a ~= #b then check.fail("plot.confusion: %d labels for %d predictions", #a, #b) end
  local counts = {}
  for i = 1, classes do
    counts[i] = {}
    for k = 1, classes do counts[i][k] = 0 end
  end
  for i = 1, #a do
    if not (counts[a[i]] and counts[a[i]][b[i]]) then
      check.fail("plot.confusion: pair %d is (%s, %s); expected classes 1 to %d", i, a[i], b[i], classes)
    end
    counts[a[i]][b[i]] = counts[a[i]][b[i]] + 1
  end
  return require("moth").tensor(counts, { dtype = "int64" })
end

--- A (C, C) matrix of counts, rows labels, columns predictions; coloured by the share of the row.
-- options: classes (names), title.
function M.confusion_matrix(matrix, o)
  if B.dim(matrix) ~= 2 or B.size(matrix, 1) ~= B.size(matrix, 2) then
    check.fail("plot.confusion_matrix: expected a (C, C) tensor, got %s", B.format(matrix))
  end
  local counts = B.totable(ops.to(B.alias(matrix, false), { dtype = "float64", device = "cpu" }))
  local n, cell, left, top = #counts, 38, 110, o.title and 50 or 26
  local canvas = Canvas(left + n * cell + 20, top + n * cell + 90)
  if o.title then canvas:text(left + n * cell / 2, 24, o.title, { anchor = "middle", size = 14 }) end
  for i = 1, n do
    local sum = 0
    for k = 1, n do sum = sum + counts[i][k] end
    local name = o.classes and o.classes[i] or i
    canvas:text(left - 6, top + (i - 0.5) * cell + 4, name, { anchor = "end", size = 10 })
    canvas:text(left + (i - 0.5) * cell + 4, top + n * cell + 8, name, { anchor = "end", size = 10, turned = true })
    for k = 1, n do
      local share = sum > 0 and counts[i][k] / sum or 0
      local fade = math.floor(255 - 205 * share + 0.5)
      local colour = ("#%02x%02xff"):format(fade, fade)
      canvas:rect(left + (k - 1) * cell, top + (i - 1) * cell, cell, cell, colour, "#ffffff")
      canvas:text(left + (k - 0.5) * cell, top + (i - 0.5) * cell + 4, ("%d"):format(counts[i][k]),
        { anchor = "middle", size = 10, colour = share > 0.5 and "#ffffff" or "#202020" })
    end
  end
  canvas:text(20, top + n * cell / 2, "label", { anchor = "middle", size = 12, turned = true })
  canvas:text(left + n * cell / 2, top + n * cell + 84, "prediction", { anchor = "middle", size = 12 })
  return canvas
end

--- Writes an image tensor to a PNG file (needs no library but zlib).
function M.save_image(image, path)
  if B.dim(image) == 4 then image = M.make_grid(image) end
  local data = require("moth.plot.png").encode(image)
  local f, message = io.open(path, "wb")
  if not f then check.fail("save_image: %s", message) end
  f:write(data)
  f:close()
end

return signature.all(M, {
  "plot.lines(any series, *, " .. general .. ")",
  "plot.scatter(any series, *, " .. general .. ", number size=2.5)",
  "plot.hist(any values, *, " .. general .. ", count bins=30, string colour?, number[] range?)",
  "plot.make_grid(Tensor images, *, count nrow=8, size padding=2, number pad_value=0)",
  "plot.images(Tensor images, *, count nrow=8, table titles?, string title?, number size=64)",
  "plot.confusion(any labels, any predictions, count classes)",
  "plot.confusion_matrix(Tensor matrix, *, table classes?, string title?)",
  "plot.save_image(Tensor image, path path)",
}, true)
