--- moth.transforms: from images to a network's input.
--
--     local T = moth.transforms
--     local t = T.Compose{ T.ToTensor(), T.Normalize({0.2860}, {0.3530}) }
--     local x = t(image)          -- uint8 (28, 28) -> float32 (1, 28, 28)
--
-- A transform is called with one image, or with all that belongs to one: masks, boxes, labels (transforms/samples.lua).
-- Those that have `batch(images)` do the same to a whole batch at once, (N, …) -> (N, …); a Compose has it if all its
-- parts do, and a data set then transforms batches, not samples.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local layout = require "moth.data.layout"
local make = require "moth.data.transforms.define"
local samples = require "moth.data.transforms.samples"
local signature = require "moth.utils.signature"
local each = require "moth.each"

local M = {}

local Transform = class("Transform")
M.Transform = Transform

Transform.__init = signature.init("transforms.Transform()", function() end)

--- Whether it works on whole batches: subclasses that do define batch(images).
function Transform:batchable() return self.batch ~= nil end

-- ---- composing -------------------------------------------------------------------------------------

local Compose = class("Compose", Transform)

--- Applies transforms in order: T.Compose{ a, b, … }. A part may be any function.
Compose.__init = signature.init("transforms.Compose(list transforms)", function(self, o)
  local list = o.transforms
  self.transforms = list
  for i, t in ipairs(list) do
    if type(t) ~= "function" and not class.is_a(t, Transform) then
      check.fail("transforms.Compose: element %d is no transform but %s", i, class.name(t))
    end
  end
end)

function Compose:batchable()
  for _, t in ipairs(self.transforms) do
    if type(t) == "function" or not t:batchable() then return false end
  end
  return true
end

-- The values through the transforms of a list from i on.
local function chain(list, i, ...)
  local t = list[i]
  if t == nil then return ... end
  return chain(list, i + 1, t(...))
end

function Compose.__call(self, ...) return chain(self.transforms, 1, ...) end

--- All transforms of a batch, one after the other.
function Compose:batch(x)
  for _, t in ipairs(self.transforms) do x = t:batch(x) end
  return x
end

function Compose.__tostring(self)
  local lines = {}
  for i, t in ipairs(self.transforms) do lines[i] = "    " .. tostring(t) end
  return "Compose(\n" .. table.concat(lines, "\n") .. "\n)"
end

local function check_list(name, list)
  for i, t in ipairs(list) do
    if not check.is_callable(t) then
      check.fail("transforms.%s: element %d is no transform but %s", name, i, type(t))
    end
  end
  if #list == 0 then check.fail("transforms.%s: the list of transforms is empty", name) end
end
local function listed(self)
  local parts = {}
  for i, t in ipairs(self.transforms) do parts[i] = tostring(t) end
  return table.concat(parts, ", ")
end

--- All of a list with probability p, or none.
local RandomApply = class("RandomApply", Transform)
RandomApply.__init = signature.init("transforms.RandomApply(list transforms, number p=0.5)", function(self, o)
  self.transforms, self.p = o.transforms, o.p
  check_list("RandomApply", o.transforms)
  make.probability(self)
end)
function RandomApply.__call(self, ...)
  if math.random() >= self.p then return ... end
  return chain(self.transforms, 1, ...)
end
function RandomApply.__tostring(self) return ("RandomApply(%s, p=%g)"):format(listed(self), self.p) end

--- One of a list; p: how likely each is, as weights.
local RandomChoice = class("RandomChoice", Transform)
RandomChoice.__init = signature.init("transforms.RandomChoice(list transforms, number[] p?)", function(self, o)
  self.transforms, self.p = o.transforms, o.p
  check_list("RandomChoice", o.transforms)
  if o.p and #o.p ~= #o.transforms then
    check.fail("transforms.RandomChoice: %d transforms and %d weights", #o.transforms, #o.p)
  end
end)
function RandomChoice.__call(self, ...)
  local p = self.p
  if not p then return self.transforms[math.random(1, #self.transforms)](...) end
  local sum = 0
  for _, weight in ipairs(p) do sum = sum + weight end
  local left, chosen = math.random() * sum, #p
  for k, weight in ipairs(p) do
    left = left - weight
    if left < 0 then
      chosen = k
      break
    end
  end
  return self.transforms[chosen](...)
end
function RandomChoice.__tostring(self) return ("RandomChoice(%s)"):format(listed(self)) end

--- All of a list in a random order.
local RandomOrder = class("RandomOrder", Transform)
RandomOrder.__init = signature.init("transforms.RandomOrder(list transforms)", function(self, o)
  self.transforms = o.transforms
  check_list("RandomOrder", o.transforms)
end)
function RandomOrder.__call(self, ...)
  local list = {}
  for k, at in ipairs(make.shuffled(#self.transforms)) do list[k] = self.transforms[at] end
  return chain(list, 1, ...)
end
function RandomOrder.__tostring(self) return ("RandomOrder(%s)"):format(listed(self)) end

-- ---- transforms --------------------------------------------------------------------------------------

local ToTensor = class("ToTensor", Transform)
--- layout: where images have their channels: "HWC", "CHW", or "auto": as the sizes tell; where they do not, an error.
ToTensor.__init = signature.init("transforms.ToTensor('auto'|'HWC'|'CHW' layout='auto')",
  function(self, o) self.layout = o.layout end)

-- Scales integers to floats from 0 to 1; floats stay.
local function scaled(x)
  local dtype = B.tensor_dtype(x)
  if dtype.is_floating_point then return x end
  return x:to(moth.get_default_dtype()):div_(dtype.name == "uint16" and 65535 or 255)
end

-- Whether the channels of an image, or of images behind one dimension more, come first.
local function channels_first(self, x)
  if self.layout ~= "auto" then return self.layout == "CHW" end
  return layout.find("transforms.ToTensor", x, "write transforms.ToTensor \"HWC\" or transforms.ToTensor \"CHW\"")
    == "first"
end

local function need(where, x, ...)
  if not B.is_tensor(x) then check.fail("transforms.%s: expected a tensor, got %s", where, type(x)) end
  for i = 1, select("#", ...) do
    if B.dim(x) == (select(i, ...)) then return end
  end
  check.fail("transforms.%s: cannot take an image of shape %s", where, tostring(x:size()))
end

-- fn(planes) of the images among the values of a call, which become (C, H, W).
local function each_image(where, given, fn, n, ...)
  local sample = samples.open(where, given, n, ...)
  for _, leaf in ipairs(sample.leaves) do
    if leaf.kind == "image" then
      local y = fn(leaf.planes)
      leaf.result = B.is_tensor(leaf.value) and y or samples.Image(y, "CHW")
    end
  end
  return sample:results()
end

--- uint8 (H, W), (H, W, C) or (C, H, W) in 0..255, or uint16 in 0..65535 -> float (1, H, W) or (C, H, W) in 0..1
function ToTensor.__call(self, x, ...)
  if select("#", ...) > 0 or type(x) == "table" then
    local given = self.layout ~= "auto" and self.layout or nil
    return each_image("ToTensor", given, function(y) return scaled(y:contiguous()) end, 1 + select("#", ...), x, ...)
  end
  need("ToTensor", x, 2, 3)
  if B.dim(x) == 2 then x = x:unsqueeze(1) elseif not channels_first(self, x) then x = x:permute(3, 1, 2) end
  return scaled(x:contiguous())
end

--- Images (N, H, W), (N, H, W, C) or (N, C, H, W) of such integers -> float (N, C, H, W) in [0, 1].
function ToTensor.batch(self, x)
  need("ToTensor (batch)", x, 3, 4)
  if B.dim(x) == 3 then x = x:unsqueeze(2) elseif not channels_first(self, x) then x = x:permute(1, 4, 2, 3) end
  return scaled(x:contiguous())
end

function ToTensor.__tostring() return "ToTensor()" end

local Normalize = class("Normalize", Transform)

--- (x - mean) / std per channel; mean and std are lists with one number per channel.
Normalize.__init = signature.init("transforms.Normalize(number|number[] mean, number|number[] std)", function(self, o)
  local mean, std = o.mean, o.std
  if type(mean) == "number" then mean = { mean } end
  if type(std) == "number" then std = { std } end
  if #mean ~= #std or #mean == 0 then
    check.fail("transforms.Normalize: expected two lists of one number per channel")
  end
  for i, s in ipairs(std) do
    check.number("transforms.Normalize", ("mean[%d]"):format(i), mean[i])
    if check.number("transforms.Normalize", ("std[%d]"):format(i), s) == 0 then
      check.fail("transforms.Normalize: std[%d] is 0", i)
    end
  end
  self.mean, self.std = mean, std
  self.shift = moth.tensor(mean):view(#mean, 1, 1)
  self.scale = moth.tensor(std):view(#std, 1, 1)
end)

local function normalize(self, x, channel)
  if not B.is_tensor(x) or B.dim(x) < 3 or not B.tensor_dtype(x).is_floating_point then
    check.fail("transforms.Normalize: expected a float tensor (…, C, H, W); put ToTensor before it")
  end
  if x:size(channel) ~= #self.mean then
    check.fail("transforms.Normalize: %d means for %d channels", #self.mean, x:size(channel))
  end
  if #self.mean == 1 then return x:sub(self.mean[1]):div_(self.std[1]) end
  return x:sub(self.shift):div_(self.scale)
end

--- float (C, H, W) -> the same shape
function Normalize.__call(self, x, ...)
  if select("#", ...) == 0 and type(x) ~= "table" then return normalize(self, x, 1) end
  return each_image("Normalize", nil, function(y) return normalize(self, y, -3) end, 1 + select("#", ...), x, ...)
end
--- The same of (N, C, H, W).
function Normalize:batch(x) return normalize(self, x, 2) end

function Normalize.__tostring(self)
  return ("Normalize(mean={%s}, std={%s})"):format(table.concat(self.mean, ", "), table.concat(self.std, ", "))
end

local Lambda = class("Lambda", Transform)

--- A function of one image; o.batch is the same function of whole batches, if there is one.
Lambda.__init = signature.init("transforms.Lambda(callable fn, *, callable batch?)", function(self, o)
  self.fn = o.fn
  if o.batch then self.batch = function(_, x) return o.batch(x) end end
end)

function Lambda.__call(self, ...) return self.fn(...) end
function Lambda.__tostring() return "Lambda()" end

M.Compose, M.ToTensor, M.Normalize, M.Lambda = Compose, ToTensor, Normalize, Lambda
M.RandomApply, M.RandomChoice, M.RandomOrder = RandomApply, RandomChoice, RandomOrder
M.Image, M.Mask, M.BoundingBoxes = samples.Image, samples.Mask, samples.BoundingBoxes
local F, boxes = require "moth.data.transforms.functional", require "moth.data.transforms.boxes"
for _, name in ipairs { "convert_bounding_box_format", "clamp_bounding_boxes", "sanitize_bounding_boxes" } do
  F[name] = boxes[name]
end
M.functional = F
for _, file in ipairs { "place", "look", "policies", "mix" } do
  for name, T in each(require("moth.data.transforms." .. file)(Transform)) do M[name] = T end
end
return M
