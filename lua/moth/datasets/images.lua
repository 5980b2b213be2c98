--- A data set of uint8 images in memory with a transform: the base of MNIST, FashionMNIST, Digits and Synthetic.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Dataset = require("moth.data.dataset").Dataset

local ImageDataset = class("ImageDataset", Dataset)

--- images: uint8 (N, H, W) or (N, H, W, C); labels: int64 (N), positions; classes: their names.
-- A transform that works on batches (see moth.transforms) makes get_batch available, and the loader fast.
ImageDataset.__init = signature.init("datasets.ImageDataset(Tensor images, Tensor labels, *, callable transform?, \z
  callable target_transform?, string[] classes?)", function(self, o)
  local images, labels = o.images, o.labels
  if images:size(1) ~= labels:size(1) then
    check.fail("%s: %d images, but %d labels", self.__name, images:size(1), labels:size(1))
  end
  self.images, self.labels, self.classes = images, labels, o.classes
  self.transform, self.target_transform = o.transform, o.target_transform
  local t = self.transform
  local batchable = t == nil or (type(t) == "table" and t.batchable and t:batchable())
  if batchable and not self.target_transform then self.get_batch = ImageDataset.transformed end
end)

--- The number of images.
function ImageDataset:size() return self.images:size(1) end

--- Image and label (a number) of sample i, transformed.
function ImageDataset:get(i)
  local x, y = self.images:select(1, self:check_position(i)), self.labels:select(1, i):item()
  if self.transform then x = self.transform(x) end
  if self.target_transform then y = self.target_transform(y) end
  return x, y
end

--- Images and labels at `positions` (int64), transformed as one batch. Becomes get_batch where the transform allows it.
function ImageDataset:transformed(positions)
  local x = self.images:index_select(1, positions)
  if self.transform then x = self.transform:batch(x) end
  return x, moth.index_select(self.labels, 1, positions)
end

function ImageDataset.__tostring(self)
  return ("%s: %d images of %s, %d classes%s"):format(self.__name, self:size(),
    tostring(self.images:select(1, 1):size()), #(self.classes or {}), self.note and "; " .. self.note or "")
end

return ImageDataset
