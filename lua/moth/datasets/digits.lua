--- datasets.Digits: 1,797 handwritten digits of 8x8 pixels, which come with moth: no download.
--
--     local train = moth.datasets.Digits { transform = t }
--     local test = moth.datasets.Digits { split = "test", size = 28, transform = t }
--
-- Optical Recognition of Handwritten Digits (test part), UCI Machine Learning Repository, E. Alpaydin and C. Kaynak;
-- CC BY 4.0. The file lies beside this one.
local moth = require "moth"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local ImageDataset = require "moth.datasets.images"
local is_train = require "moth.datasets.split"

local path = debug.getinfo(1, "S").source:match("^@(.*)%.lua$") .. ".csv.gz"
local SIDE, DARKEST = 8, 16

-- All images as bytes, uint8 (1797, 8, 8), and their classes (from 1). Several people wrote them, one after the other.
local function read()
  local rows = moth.data.CSV(path, { header = false }):numbers { dtype = moth.float64 }
  local pixels = (rows:narrow(2, 1, SIDE * SIDE) * 255 / DARKEST + 0.5):floor():to(moth.uint8)
  return pixels:view(-1, SIDE, SIDE), rows:select(2, SIDE * SIDE + 1):to(moth.int64) + 1
end

local Digits = class("Digits", ImageDataset)

--- Handwritten digits that come with moth, uint8 (0 to 255); label 1 is the digit 0. UCI's Optical Recognition of
-- Handwritten Digits (test part), E. Alpaydin and C. Kaynak, CC BY 4.0. Each fifth of the 1,797 is in the "test"
-- split (359), the others in "train". size: the side of the images; other than 8, they are resized (bilinear).
Digits.__init = signature.init("datasets.Digits(*, bool train?, string split?, count size=8, callable transform?, \z
  callable target_transform?)", function(self, o)
  self.train = is_train("datasets.Digits", o)
  self.split = self.train and "train" or "test"
  local images, labels = read()
  local held = moth.arange(1, images:size(1) + 1):remainder(5):eq(0)
  local which = (self.train and held:logical_not() or held):nonzero():flatten()
  images, labels = images:index_select(1, which), labels:index_select(1, which)
  if o.size ~= SIDE then
    images = moth.nn.functional.interpolate(images:float():unsqueeze(2), { size = { o.size, o.size },
      mode = "bilinear" }):squeeze(2):round():to(moth.uint8)
  end
  local names = {}
  for i = 1, 10 do names[i] = tostring(i - 1) end
  ImageDataset.__init(self, images, labels, { transform = o.transform, target_transform = o.target_transform,
    classes = names })
end)

return Digits
