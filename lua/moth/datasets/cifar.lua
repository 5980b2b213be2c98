--- CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 32x32 colour images, 10 and 100 classes.
--
--     local train = moth.datasets.CIFAR10("./data", { transform = t })
--     local x, y = train:get(1)     -- uint8 (32, 32, 3) or what the transform makes of it; train.classes[y]
--
-- The files are those of the python version (cifar-10-batches-py, cifar-100-python) or of the binary one
-- (cifar-10-batches-bin, cifar-100-binary), unpacked. The python files are pickles: they are read, not run.
local ffi = require "ffi"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local ImageDataset = require "moth.datasets.images"
local interop = require "moth.io.interop"
local is_train = require "moth.datasets.split"
local places = require "moth.datasets.places"

local PIXELS = 3 * 32 * 32

local function words(text)
  local list = {}
  for word in text:gmatch "%S+" do list[#list + 1] = word end
  return list
end

local sources = {
  CIFAR10 = {
    folders = { "cifar-10-batches-py", "cifar-10-batches-bin", "cifar-10", "cifar10", "CIFAR10" },
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz", labels = 1,
    train = { words "data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5",
      words "data_batch_1.bin data_batch_2.bin data_batch_3.bin data_batch_4.bin data_batch_5.bin" },
    test = { { "test_batch" }, { "test_batch.bin" } },
    classes = words "airplane automobile bird cat deer dog frog horse ship truck",
    md5 = { data_batch_1 = "c99cafc152244af753f735de768cd75f", data_batch_2 = "d4bba439e000b95fd0a9bffe97cbabec",
      data_batch_3 = "54ebc095f3ab1f0389bbae665268c751", data_batch_4 = "634d18415352ddfa80567beed471001a",
      data_batch_5 = "482c414d41f54cd18b22e5b47cb7c3cb", test_batch = "40351d587109b95175f43aff81a1287e" },
  },
  CIFAR100 = {
    folders = { "cifar-100-python", "cifar-100-binary", "cifar-100", "cifar100", "CIFAR100" },
    url = "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz", labels = 2,
    train = { { "train" }, { "train.bin" } }, test = { { "test" }, { "test.bin" } },
    md5 = { train = "16019d7e3df5f24257cddd939b257f8d", test = "f0ef6b0ae62326f3e7ffdfab6717acfc" },
    classes = words [[apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly
      camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur
      dolphin elephant flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard
      lobster man maple_tree motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear
      pickup_truck pine_tree plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark
      shrew skunk skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
      television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman worm]],
    coarse = words [[aquatic_mammals fish flowers food_containers fruit_and_vegetables household_electrical_devices
      household_furniture insects large_carnivores large_man-made_outdoor_things large_natural_outdoor_scenes
      large_omnivores_and_herbivores medium_mammals non-insect_invertebrates people reptiles small_mammals trees
      vehicles_1 vehicles_2]],
  },
}

-- ---- files -------------------------------------------------------------------------------------------

-- The binary form: for each image its labels (CIFAR-100: the coarse one first), then its planes. which: the label.
local function read_binary(where, path, bytes, source, which)
  local row = source.labels + PIXELS
  local n = bytes:numel() / row
  if n < 1 or n % 1 ~= 0 then
    check.fail("%s: %s has %d bytes, which are no whole images of %d", where, path, bytes:numel(), row)
  end
  local rows = bytes:view(n, row)
  return rows:narrow(2, source.labels + 1, PIXELS), rows:select(2, which):to(moth.int64)
end

-- The python form: a dictionary with the array `data` and a list of labels.
local function read_pickle(where, path, keys)
  local ok, t = pcall(interop.load, "records", path)
  if not ok then check.fail("%s: %s", where, (tostring(t):gsub("^[^\n]-:%d+: ", ""))) end
  local array = type(t) == "table" and t.data
  local labels
  for _, key in ipairs(keys) do labels = labels or type(t) == "table" and t[key] end
  local shape = type(array) == "table" and array[2]
  if type(shape) ~= "table" or shape[2] ~= PIXELS or array[3] ~= "u1" or array[4] ~= false or type(labels) ~= "table"
    or type(array[5]) ~= "string" or #array[5] ~= shape[1] * PIXELS or #labels ~= shape[1] then
    check.fail("%s: %s holds no 'data' of bytes (N, %d) with a '%s' for each", where, path, PIXELS, keys[1])
  end
  local images = moth.empty({ shape[1], PIXELS }, { dtype = moth.uint8 })
  ffi.copy(images:data(), array[5], #array[5])
  return images, moth.tensor(labels, { dtype = moth.int64 })
end

local function define(name)
  local source, where = sources[name], "datasets." .. name
  local cls = class(name, ImageDataset)

  --- split: "train" or "test". check: compare the files with their published sums, where there are such. coarse: of
  -- CIFAR-100, the 20 superclasses.
  cls.__init = signature.init(where .. "(path root?, bool train?, callable transform?, callable target_transform?, *, \z
    string split?, bool check=true, bool coarse=false)", function(self, o)
    local train = is_train(where, o)
    if o.coarse and not source.coarse then check.fail("%s: coarse is an option of CIFAR100", where) end
    local sets = train and source.train or source.test
    local paths, form = places.find(where, o.root, source.folders, sets, "unpack " .. source.url)
    local classes = o.coarse and source.coarse or source.classes
    local images, labels = {}, {}
    for k, path in ipairs(paths) do
      local bytes = places.bytes(path)
      local sum = source.md5[sets[form][k]]
      if o.check and sum then places.verify(where, path, bytes, sum) end
      if form == 1 then
        images[k], labels[k] = read_pickle(where, path, source.labels == 1 and { "labels" }
          or { o.coarse and "coarse_labels" or "fine_labels" })
      else
        images[k], labels[k] = read_binary(where, path, bytes, source, o.coarse and 1 or source.labels)
      end
      if labels[k]:min():item() < 0 or labels[k]:max():item() >= #classes then
        check.fail("%s: %s has labels beyond the %d classes", where, path, #classes)
      end
    end
    local all = moth.cat(images):view(-1, 3, 32, 32):permute(1, 3, 4, 2):contiguous()
    self.train, self.split, self.path = train, train and "train" or "test", paths[1]
    ImageDataset.__init(self, all, moth.cat(labels) + 1, { transform = o.transform,
      target_transform = o.target_transform, classes = classes })
  end)

  return cls
end

return { CIFAR10 = define "CIFAR10", CIFAR100 = define "CIFAR100" }
