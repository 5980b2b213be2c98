--- moth.datasets: sets of images. Classes count from 0 in files and from 1 here: labels are 1..10.
local B = require "moth_lua"
local moth = require "moth"
local signature = require "moth.utils.signature"
require "moth.data.dataset" -- the type Dataset

local M = {}

--- The mean and the standard deviation of the pixels, from 0 to 1: stats(train) -> 0.2860, 0.3530 for FashionMNIST.
-- Uses the raw `images` (uint8) of a data set that has them, else the first values of its samples.
M.stats = signature("datasets.stats(Dataset dataset)", function(ds)
  local n, sum, squares, scale = 0, 0, 0, 1
  local function add(x)
    x = x:to(moth.float64)
    n, sum, squares = n + x:numel(), sum + x:sum():item(), squares + x:square():sum():item()
  end
  local images = ds.images
  if images then
    if not B.tensor_dtype(images).is_floating_point then scale = 1 / 255 end
    for first = 1, images:size(1), 1000 do
      add(images:narrow(1, first, math.min(1000, images:size(1) - first + 1)))
    end
  else
    for i = 1, ds:size() do add((ds:get(i))) end
  end
  local mean = sum / n
  return mean * scale, math.sqrt(math.max(squares / n - mean * mean, 0)) * scale
end)

local files = {
  MNIST = { "mnist", "MNIST" }, FashionMNIST = { "mnist", "FashionMNIST" }, Synthetic = { "synthetic" },
  KMNIST = { "mnist", "KMNIST" }, EMNIST = { "emnist" }, CIFAR10 = { "cifar", "CIFAR10" },
  CIFAR100 = { "cifar", "CIFAR100" }, SVHN = { "svhn" },
  Digits = { "digits" }, ImageDataset = { "images" }, IDX = { "idx" }, ImageFolder = { "folder" },
}

return require("moth.lang.lazy")(M, "moth.datasets.", files)
