--- EMNIST (Cohen and others 2017): 28x28 grey images of digits and letters, in six divisions.
--
--     local train = moth.datasets.EMNIST("./data", "balanced", { transform = t })
--
-- The IDX files, gzipped or not, emnist-balanced-train-images-idx3-ubyte and so on, are looked for as MNIST's are. The
-- images lie as the files have them, rows and columns exchanged, as in torchvision: x:transpose(-1, -2) turns them. The
-- division "letters" counts its classes from 1 in the files: class 1 of 27 is "N/A", as in torchvision.
local class = require "moth.class"
local check = require "moth.utils.check"
local places = require "moth.datasets.places"
local signature = require "moth.utils.signature"
local IDX = require "moth.datasets.idx"
local ImageDataset = require "moth.datasets.images"

local digits, upper, lower = "0123456789", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"
-- Characters of the classes, numbers of the training and test images.
local divisions = {
  byclass = { digits .. upper .. lower, 697932, 116323 },
  bymerge = { digits .. upper .. "abdefghnqrt", 697932, 116323 },
  balanced = { digits .. upper .. "abdefghnqrt", 112800, 18800 }, letters = { lower, 124800, 20800 },
  digits = { digits, 240000, 40000 }, mnist = { digits, 60000, 10000 },
}
local folders = { "emnist", "EMNIST", "EMNIST/raw", "gzip" }

local EMNIST = class("EMNIST", ImageDataset)

--- split: the division. check: compare the number of images with the published one.
EMNIST.__init = signature.init("datasets.EMNIST(path root?, 'byclass'|'bymerge'|'balanced'|'letters'|'digits'|'mnist' \z
  split, bool train=true, callable transform?, callable target_transform?, *, bool check=true)", function(self, o)
  local division, name = divisions[o.split], ("emnist-%s-%s"):format(o.split, o.train and "train" or "test")
  local images, labels = name .. "-images-idx3-ubyte", name .. "-labels-idx1-ubyte"
  local sets = { { images .. ".gz", labels .. ".gz" }, { images, labels } }
  local paths = places.find("datasets.EMNIST", o.root, folders, sets,
    "unpack https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip")
  local x, y = IDX.read("datasets.EMNIST", paths[1], paths[2])
  local expected = division[o.train and 2 or 3]
  if o.check and x:size(1) ~= expected then
    check.fail("datasets.EMNIST: %s has %d images, expected %d\nHINT: check = false reads it nevertheless", paths[1],
      x:size(1), expected)
  end
  local classes = o.split == "letters" and { "N/A" } or {}
  for c in division[1]:gmatch "." do classes[#classes + 1] = c end
  if y:numel() > 0 and y:max():item() > #classes then
    check.fail("datasets.EMNIST: %s has the label %d, counted from 0, but there are %d classes", paths[2],
      y:max():item() - 1, #classes)
  end
  self.train, self.split, self.path = o.train, o.split, paths[1]
  ImageDataset.__init(self, x, y, { transform = o.transform, target_transform = o.target_transform, classes = classes })
end)

return EMNIST
