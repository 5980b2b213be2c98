--- datasets.IDX: grey images and their labels from any two IDX files.
--
--     local ds = moth.datasets.IDX("my-images.gz", "my-labels.gz", { classes = { "cat", "dog" }, transform = t })
--
-- MNIST's format: uint8 images (N, H, W), labels (N) that count from 0 in the file and from 1 in moth.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ImageDataset = require "moth.datasets.images"

local IDX = class("IDX", ImageDataset)

--- The images (uint8) and labels (int64, positions) in two files; `where` names the data set in errors.
function IDX.read(where, images_path, labels_path)
  local load = B.named(B.load_idx, where)
  local images, labels = load(images_path), load(labels_path)
  if images:dim() ~= 3 or images:dtype() ~= moth.uint8 then
    check.fail("%s: %s holds no grey images, but %s of shape %s", where, images_path,
      tostring(images:dtype()), tostring(images:size()))
  end
  if labels:dim() ~= 1 or labels:size(1) ~= images:size(1) then
    check.fail("%s: %s does not hold one label per image of %s", where, labels_path, images_path)
  end
  return images, labels:to(moth.int64) + 1
end

--- @tparam string images a file @tparam string labels a file
-- @tparam[opt] table o transform, target_transform, classes (names; by default "0" up to the largest label)
IDX.__init = signature.init("datasets.IDX(path images, path labels, *, callable transform?, \z
  callable target_transform?, string[] classes?)", function(self, o)
  local images_path, labels_path = o.images, o.labels
  local images, labels = IDX.read("datasets.IDX", images_path, labels_path)
  local classes, largest = o.classes, labels:numel() > 0 and labels:max():item() or 0
  if classes and largest > #classes then
    check.fail("datasets.IDX: %s has the label %d, counted from 0, but there are %d classes", labels_path, largest - 1,
      #classes)
  elseif not classes then
    classes = {}
    for i = 1, largest do classes[i] = tostring(i - 1) end
  end
  self.path = images_path
  ImageDataset.__init(self, images, labels, { transform = o.transform, target_transform = o.target_transform,
    classes = classes })
end)

return IDX
