--- The part of moth.vision about anchors: boxes on a grid, which of them belong to an object, and a box as its distance
-- from one.
local moth = require "moth"
local check = require "moth.utils.check"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local boxes = require "moth.vision.boxes"
local M = {}

local Generator = class("vision.AnchorGenerator")
--- Boxes around each place of each map: sizes and aspect_ratios (height by width) have a list for each map.
M.AnchorGenerator = Generator
Generator.__init = signature.init("vision.AnchorGenerator(list sizes, list aspect_ratios)", function(self, o)
  if #o.sizes ~= #o.aspect_ratios then
    check.fail("[vision.AnchorGenerator] expected as many lists of sizes as of aspect_ratios, got %d and %d", #o.sizes,
      #o.aspect_ratios)
  end
  for _, field in ipairs { "sizes", "aspect_ratios" } do
    for i, list in ipairs(o[field]) do
      if type(list) ~= "table" or type(list[1]) ~= "number" then
        check.fail("[vision.AnchorGenerator] %s[%d] must be a list of numbers, for a map, got %s", field, i,
          type(list))
      end
    end
  end
  self.sizes, self.aspect_ratios = o.sizes, o.aspect_ratios
end)
--- How many boxes a place of each map has.
function Generator:num_anchors_per_location()
  local out = {}
  for i, sizes in ipairs(self.sizes) do out[i] = #sizes * #self.aspect_ratios[i] end
  return out
end
--- The boxes for an image of height x width and these maps (N, C, H, W): a tensor (H * W * anchors, 4) for each.
function Generator:__call(height, width, maps)
  if #maps ~= #self.sizes then
    check.fail("[vision.AnchorGenerator] expected %d maps, got %d", #self.sizes, #maps)
  end
  local out = {}
  for i, map in ipairs(maps) do
    local h, w = map:size(-2), map:size(-1)
    local on = { dtype = map:dtype(), device = map:device() }
    local cells = {}
    for _, ratio in ipairs(self.aspect_ratios[i]) do
      for _, size in ipairs(self.sizes[i]) do
        local dx, dy = size / math.sqrt(ratio) / 2, size * math.sqrt(ratio) / 2
        cells[#cells + 1] = { -dx, -dy, dx, dy }
      end
    end
    local x = (moth.arange(0, w, on) * math.floor(width / w)):unsqueeze(1):expand(h, w)
    local y = (moth.arange(0, h, on) * math.floor(height / h)):unsqueeze(2):expand(h, w)
    local at = moth.stack({ x, y, x, y }, 3):view(-1, 1, 4)
    out[i] = (at + moth.tensor(cells, on):round():unsqueeze(1)):view(-1, 4)
  end
  return out
end

local Coder = class("vision.BoxCoder")
--- Boxes by their distance from others (Girshick et al. 2014): of the centres in units of the sides, and logarithms of
-- the ratios of the sides, times weights (x, y, width, height; 1 if not given).
M.BoxCoder = Coder
Coder.__init = signature.init("vision.BoxCoder(list weights?)", function(self, o)
  self.weights = o.weights or { 1, 1, 1, 1 }
  if #self.weights ~= 4 then check.fail("[vision.BoxCoder] weights must be 4 numbers, got %d", #self.weights) end
end)
-- That there is an anchor for each of `rows`.
local function check_rows(name, what, rows, anchors)
  if rows:dim() ~= 2 or anchors:dim() ~= 2 or rows:size(2) ~= 4 or anchors:size(2) ~= 4
    or rows:size(1) ~= anchors:size(1) then
    check.fail("[vision.BoxCoder] %s: expected %s and anchors (N, 4), got %s and %s", name, what,
      tostring(rows:size()), tostring(anchors:size()))
  end
end
local function centred(b)
  local w, h = b:select(2, 3) - b:select(2, 1), b:select(2, 4) - b:select(2, 2)
  return b:select(2, 1) + w * 0.5, b:select(2, 2) + h * 0.5, w, h
end
--- (reference (N, 4), anchors (N, 4)) -> (N, 4): how each reference lies to its anchor.
function Coder:encode(reference, anchors)
  check_rows("encode", "reference", reference, anchors)
  local gx, gy, gw, gh = centred(reference)
  local x, y, w, h = centred(anchors)
  local k = self.weights
  return moth.stack({ (gx - x) / w * k[1], (gy - y) / h * k[2], (gw / w):log() * k[3], (gh / h):log() * k[4] }, 2)
end
--- (codes (N, 4), anchors (N, 4)) -> boxes (N, 4).
function Coder:decode(codes, anchors)
  check_rows("decode", "codes", codes, anchors)
  local x, y, w, h = centred(anchors:to(codes:dtype()))
  local k, most = self.weights, math.log(1000 / 16)
  x, y = codes:select(2, 1) / k[1] * w + x, codes:select(2, 2) / k[2] * h + y
  w, h = (codes:select(2, 3) / k[3]):clamp_max(most):exp() * w, (codes:select(2, 4) / k[4]):clamp_max(most):exp() * h
  return moth.stack({ x - w * 0.5, y - h * 0.5, x + w * 0.5, y + h * 0.5 }, 2)
end

--- Which of boxes (M, 4) each of anchors (N, 4) belongs to -> (N) of int64: the position of the box of the largest
-- overlap, if it is at least `high`; 0, background, below `low`; -1, neither, between. Each box gets the anchors that
-- overlap it best, whatever the overlap, too (low_quality).
M.match = signature("vision.match(Tensor boxes, Tensor anchors, number high=0.5, number low=0.4, \z
  bool low_quality=true)", function(gt, anchors, high, low, low_quality)
  if low > high then check.fail("[vision.match] low (%g) must not be above high (%g)", low, high) end
  if gt:size(1) == 0 then return moth.zeros({ anchors:size(1) }, { dtype = moth.int64, device = anchors:device() }) end
  local overlap = boxes.box_iou(gt, anchors)
  local best, which = overlap:max(1)
  local out = moth.where(best:ge(high), which, moth.where(best:lt(low), 0, -1))
  if low_quality then
    local top = overlap:eq(overlap:amax(2, { keepdim = true })):any(1)
    out = moth.where(top, which, out)
  end
  return out
end)
return M
