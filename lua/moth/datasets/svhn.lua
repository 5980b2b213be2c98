--- SVHN (Netzer and others 2011): house numbers, 32x32 colour images of digits (format 2).
--
--     local train = moth.datasets.SVHN("./data", { split = "train", transform = t })   -- or "test", "extra"
--
-- The files train_32x32.mat, test_32x32.mat and extra_32x32.mat are looked for as MNIST's are. Class 1 is the digit 0,
-- which the files call 10.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local mat = require "moth.io.mat"
local places = require "moth.datasets.places"
local signature = require "moth.utils.signature"
local ImageDataset = require "moth.datasets.images"

local md5 = { train = "e26dedcc434d2e4c54c9b2d4a06d8373", test = "eb5a983be6a315427106f1b164d9cef3",
  extra = "a93ce644f1a588dc4d68dda5feec44a7" }
local folders = { "svhn", "SVHN" }

local SVHN = class("SVHN", ImageDataset)

--- split: "train", "test" or "extra". check: compare the file with its published sum.
SVHN.__init = signature.init("datasets.SVHN(path root?, 'train'|'test'|'extra' split='train', callable transform?, \z
  callable target_transform?, *, bool check=true)", function(self, o)
  local name = o.split .. "_32x32.mat"
  local path = places.find("datasets.SVHN", o.root, folders, { { name } },
    "download http://ufldl.stanford.edu/housenumbers/" .. name)[1]
  if o.check then places.verify("datasets.SVHN", path, places.bytes(path), md5[o.split]) end
  local ok, t = pcall(mat.read, path, { "X", "y" })
  if not ok then check.fail("datasets.SVHN: %s", t) end
  local x, y = t.X, t.y
  if x:dim() ~= 4 or x:size(3) ~= 3 or x:dtype() ~= moth.uint8 or y:numel() ~= x:size(4) then
    check.fail("datasets.SVHN: %s: expected X of bytes (32, 32, 3, N) and y (N, 1), got %s and %s", path,
      tostring(x:size()), tostring(y:size()))
  end
  local labels = y:reshape(-1):to(moth.int64)
  if labels:numel() > 0 and (labels:min():item() < 0 or labels:max():item() > 10) then
    check.fail("datasets.SVHN: %s has labels that are no digits", path)
  end
  local classes = {}
  for k = 0, 9 do classes[k + 1] = tostring(k) end
  self.split, self.path = o.split, path
  ImageDataset.__init(self, x:permute(4, 1, 2, 3):contiguous(), labels:remainder(10) + 1, { transform = o.transform,
    target_transform = o.target_transform, classes = classes })
end)

return SVHN
