--- The images that the examples of classifiers train on: those asked for, else those that are there.
local moth = require "moth"
local data, datasets, T = moth.data, moth.datasets, moth.transforms
local M = {}

--- What --dataset may be.
M.kinds = { fashion = "FashionMNIST", mnist = "MNIST", digits = "Digits", synthetic = "Synthetic", idx = "IDX" }

local function say(...) io.stderr:write(string.format(...), "\n") end

-- Training and test images of a kind, raw.
local function pair(kind, root)
  local make = datasets[M.kinds[kind]]
  if kind == "digits" then return make { size = 28 }, make { split = "test", size = 28 } end
  if kind == "synthetic" then return make(), make { train = false } end
  if kind == "idx" then
    local function part(name)
      local path = (root or "data") .. "/" .. name
      return make(path .. "-images-idx3-ubyte", path .. "-labels-idx1-ubyte")
    end
    return part "train", part "t10k"
  end
  if kind == "mnist" and not make.available(root, "train") and make.available(root, "test") then
    say "Only MNIST's test images are here: the first 8,000 of them train, the last 2,000 test."
    local all = make(root, { split = "test" })
    return data.Subset(all, moth.arange(1, 8001)), data.Subset(all, moth.arange(8001, 10001))
  end
  return make(root, { download = true }), make(root, { train = false, download = true })
end

-- FashionMNIST or MNIST where their files are, FashionMNIST where it can be fetched, else moth's own digits.
local function what_is_there(root)
  for _, kind in ipairs { "fashion", "mnist" } do
    if datasets[M.kinds[kind]].available(root) then return pair(kind, root) end
  end
  local ok, train, test = pcall(pair, "fashion", root)
  if ok then return train, test end
  local why = tostring(train):gsub("^.-FashionMNIST: ", ""):gsub("\n.*", "")
  say("No FashionMNIST here (%s): training on the digits that come with moth.", why)
  return pair("digits", root)
end

--- Training and test set, and the set of which they may be parts, for its classes; normalised by the statistics of the
-- training images. kind: one of M.kinds, or nothing: what is there. root: a folder, before $MOTH_DATA. Says on stderr
-- which set it is.
function M.open(kind, root)
  local train, test
  if kind then train, test = pair(kind, root) else train, test = what_is_there(root) end
  local whole = train.dataset or train
  say("%s", tostring(whole))
  local mean, std = datasets.stats(whole)
  local t = T.Compose { T.ToTensor(), T.Normalize({ mean }, { std }) }
  whole.transform, (test.dataset or test).transform = t, t
  return train, test, whole
end

return M
