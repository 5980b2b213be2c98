--- Samples of several values for moth.transforms: what is an image, a mask, a set of boxes, and what is left alone.
--
--     local image, mask, boxes = t(image, T.Mask(mask), T.BoundingBoxes(boxes, "XYXY", { 480, 640 }))
--     local sample = t { image = image, mask = T.Mask(mask), label = 3 }
--
-- All that goes into one call is changed by the same draw. A tensor by itself is the image if it is the first one;
-- those after it are left alone, as are all if there is an Image. In a table with names, it is the field `image`.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local form = require "moth.data.transforms.form"
local signature = require "moth.utils.signature"

local M = {}

-- ---- kinds ---------------------------------------------------------------------------------------------

local Image, Mask, BoundingBoxes = class "Image", class "Mask", class "BoundingBoxes"
M.Image, M.Mask, M.BoundingBoxes = Image, Mask, BoundingBoxes

--- An image: `data` is its tensor. layout: "CHW" or "HWC", where its sizes do not tell.
Image.__init = signature.init("transforms.Image(Tensor data, 'CHW'|'HWC' layout?)", function(self, o)
  self.data, self.layout = o.data, o.layout
end)

--- A mask (H, W), or several (N, H, W), of any dtype: places change as in the image, values stay what they are.
Mask.__init = signature.init("transforms.Mask(Tensor data)", function(self, o) self.data = o.data end)

--- Boxes (N, 4) of an image of canvas_size = { height, width }. format: "XYXY", "XYWH", "CXCYWH", in pixels from 0.
-- clamping_mode: "none": boxes are not cut off at the border.
BoundingBoxes.__init = signature.init("transforms.BoundingBoxes(Tensor data, string format, count[] canvas_size, \z
  'soft'|'none' clamping_mode='soft')", function(self, o)
  self.data, self.format, self.canvas_size, self.clamping_mode = o.data, o.format:upper(), o.canvas_size,
    o.clamping_mode
  if #o.canvas_size ~= 2 then check.fail("[transforms.BoundingBoxes] canvas_size is { height, width }") end
  require("moth.data.transforms.boxes").convert("BoundingBoxes", o.data, self.format, "XYXY")
  if B.dim(o.data) == 1 then self.data = o.data:unsqueeze(1) end -- one box
end)

local function wrap(cls, fields) return setmetatable(fields, cls) end

--- A thing of the same kind with other data; canvas_size, format: of boxes.
function M.like(value, data, canvas_size, format)
  local kind = M.kind(value)
  if kind == "boxes" then
    return wrap(BoundingBoxes, { data = data, format = format or value.format,
      canvas_size = canvas_size or value.canvas_size, clamping_mode = value.clamping_mode })
  elseif kind == "mask" then
    return wrap(Mask, { data = data })
  elseif kind == "image" then
    return wrap(Image, { data = data, layout = value.layout })
  end
  return data
end

for kind, cls in each { Image = Image, Mask = Mask, BoundingBoxes = BoundingBoxes } do
  function cls.__tostring(self)
    local more = self.format and (", %s, %d x %d"):format(self.format, self.canvas_size[1], self.canvas_size[2]) or ""
    return ("%s(%s%s)"):format(kind, B.format(self.data), more)
  end
end

--- "tensor", "image", "mask", "boxes", or nil.
function M.kind(v)
  if B.is_tensor(v) then return "tensor" end
  local mt = type(v) == "table" and getmetatable(v)
  if not mt then return nil end
  return mt == Image and "image" or mt == Mask and "mask" or mt == BoundingBoxes and "boxes" or nil
end

-- ---- the values of a sample ---------------------------------------------------------------------------------

local Sample = {}
Sample.__index = Sample

local function is_container(v) return type(v) == "table" and getmetatable(v) == nil end

-- The names of a table: positions in order, then the others by their letters.
local function names_of(t)
  local names, n = {}, #t
  for k = 1, n do names[k] = k end
  for k in each(t) do
    if type(k) ~= "number" or k < 1 or k > n then names[#names + 1] = k end
  end
  table.sort(names, function(a, b)
    if type(a) == type(b) and type(a) == "number" then return a < b end
    if type(a) ~= type(b) then return type(a) == "number" end
    return tostring(a) < tostring(b)
  end)
  return names
end

local function collect(leaves, v, name)
  local kind = M.kind(v)
  if kind then
    leaves[#leaves + 1] = { value = v, kind = kind, name = name }
  elseif is_container(v) then
    for _, k in ipairs(names_of(v)) do collect(leaves, v[k], type(k) == "string" and k or name) end
  end
end

local image_names = { "image", "img", "images", "pixel_values", "input", "x" }

-- Which tensor by itself is the image.
local function choose(self)
  local plain, free = {}, nil
  for _, leaf in ipairs(self.leaves) do
    if leaf.kind == "image" then return end
    if leaf.kind == "tensor" then
      plain[#plain + 1] = leaf
      if not leaf.name then free = free or leaf end
    end
  end
  local found = free or (#plain == 1 and #self.leaves == 1 and plain[1]) or nil
  for _, name in ipairs(found and {} or image_names) do
    for _, leaf in ipairs(plain) do
      if leaf.name == name then found = found or leaf end
    end
  end
  if found then
    found.kind = "image"
  elseif #plain > 0 then
    check.fail("[transforms.%s] none of the fields is called 'image'\nHINT: say which is one by transforms.Image(x)",
      self.where)
  end
end

--- The values of a call. where: who is called; given: "CHW" or "HWC", where the images' sizes do not tell, or nil.
function M.open(where, given, n, ...)
  local self = setmetatable({ where = where, n = n, values = { ... }, leaves = {} }, Sample)
  for k = 1, n do collect(self.leaves, self.values[k]) end
  if #self.leaves == 0 then
    check.fail("[transforms.%s] expected an image, a mask or boxes, got %s", where,
      n == 0 and "nothing" or type(self.values[1]))
  end
  choose(self)
  for _, leaf in ipairs(self.leaves) do
    local v = leaf.value
    local data = B.is_tensor(v) and v or v.data
    if leaf.kind == "image" then
      leaf.planes, leaf.close = form.open(where, data, not B.is_tensor(v) and v.layout or given)
    elseif leaf.kind == "mask" then
      leaf.planes, leaf.close = form.open_mask(where, data)
    end
  end
  return self
end

--- Height and width, which all of the sample share.
function Sample:size()
  local h, w
  for _, leaf in ipairs(self.leaves) do
    local y, x
    if leaf.planes then
      local _
      _, y, x = form.sizes(leaf.planes)
    elseif leaf.kind == "boxes" then
      y, x = leaf.value.canvas_size[1], leaf.value.canvas_size[2]
    end
    if y and h and (y ~= h or x ~= w) then
      check.fail("[transforms.%s] images, masks and boxes of one sample must be of one size, got %d x %d and %d x %d",
        self.where, h, w, y, x)
    end
    if y then h, w = y, x end
  end
  if not h then check.fail("[transforms.%s] there is no image, mask or box in this sample", self.where) end
  return h, w
end

--- The first of a kind, or nil.
function Sample:first(kind)
  for _, leaf in ipairs(self.leaves) do
    if leaf.kind == kind then return leaf end
  end
end

--- The channels of the image.
function Sample:channels()
  local leaf = self:first "image"
  if not leaf then check.fail("[transforms.%s] there is no image in this sample", self.where) end
  return (form.sizes(leaf.planes))
end

local function rebuild(self, v)
  if M.kind(v) then
    self.at = self.at + 1
    local leaf = self.leaves[self.at]
    if leaf.result == nil then return v end
    return leaf.result
  elseif is_container(v) then
    local out = {}
    for _, k in ipairs(names_of(v)) do out[k] = rebuild(self, v[k]) end
    return out
  end
  return v
end

--- The values of the call with the results of its leaves in their places.
function Sample:results()
  self.at = 0
  local out = {}
  for k = 1, self.n do out[k] = rebuild(self, self.values[k]) end
  return unpack(out, 1, self.n)
end

--- Planes as a value of the leaf's kind and form.
function M.finish(leaf, planes)
  if not B.is_tensor(planes) then
    local list = {}
    for k, y in ipairs(planes) do list[k] = M.like(leaf.value, leaf.close(y)) end
    return list
  end
  return M.like(leaf.value, leaf.close(planes))
end

return M
