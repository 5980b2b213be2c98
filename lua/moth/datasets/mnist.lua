--- MNIST (LeCun, Cortes, Burges) and FashionMNIST (Xiao, Rasul, Vollgraf 2017): 28x28 grey images, 10 classes.
--
--     local train = moth.datasets.FashionMNIST("./data", { train = true, download = true, transform = t })
--     local x, y = train:get(1)     -- y from 1 to 10; train.classes[y] is its name
--
-- The four IDX files, gzipped or not, are looked for in the folder given (./data without one), then in $MOTH_DATA,
-- in each by itself and in a subfolder such as mnist or FashionMNIST/raw. What is missing is downloaded into the
-- first of these where o.download says so, and compared with a SHA-256 sum. Where there are the t10k files only,
-- they are split: the first 8,000 images are the training set, the last 2,000 the test set.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local ImageDataset = require "moth.datasets.images"

local sources = {
  MNIST = {
    folders = { "mnist", "MNIST", "MNIST/raw" },
    mirrors = { "https://ossci-datasets.s3.amazonaws.com/mnist/",
      "https://storage.googleapis.com/cvdf-datasets/mnist/" },
    classes = { "0", "1", "2", "3", "4", "5", "6", "7", "8", "9" },
    sha256 = {
      ["train-images-idx3-ubyte"] = "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
      ["train-labels-idx1-ubyte"] = "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
      ["t10k-images-idx3-ubyte"] = "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
      ["t10k-labels-idx1-ubyte"] = "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    },
  },
  FashionMNIST = {
    folders = { "fashion_mnist", "fashion-mnist", "FashionMNIST", "FashionMNIST/raw", "fashion" },
    mirrors = { "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
      "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/" },
    classes = { "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
      "Ankle boot" },
    sha256 = {
      ["train-images-idx3-ubyte"] = "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
      ["train-labels-idx1-ubyte"] = "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
      ["t10k-images-idx3-ubyte"] = "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
      ["t10k-labels-idx1-ubyte"] = "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    },
  },
}
local SPLIT = 8000 -- of the 10,000 test images, where they are all there is

-- ---- finding ---------------------------------------------------------------------------------------

local function exists(path)
  local f = io.open(path, "rb")
  if f then f:close() end
  return f ~= nil
end

local function places(source, root)
  local out = {}
  for _, base in ipairs({ root or "data", os.getenv("MOTH_DATA") }) do
    out[#out + 1] = base
    for _, folder in ipairs(source.folders) do out[#out + 1] = base .. "/" .. folder end
  end
  return out
end

-- The paths of a part ("train" or "t10k"): images and labels out of one folder.
local function find(source, root, part)
  for _, place in ipairs(places(source, root)) do
    for _, suffix in ipairs({ ".gz", "" }) do
      local images = ("%s/%s-images-idx3-ubyte%s"):format(place, part, suffix)
      local labels = ("%s/%s-labels-idx1-ubyte%s"):format(place, part, suffix)
      if exists(images) and exists(labels) then return images, labels end
    end
  end
end

-- ---- downloading -----------------------------------------------------------------------------------

local function quoted(s) return "'" .. s:gsub("'", "'\\''") .. "'" end
local function run(command) return os.execute(command .. " 2>/dev/null") == 0 end

local function fetch(url, path)
  local tool = ("curl -fsSL --connect-timeout 10 --max-time 600 -o %s %s"):format(quoted(path), quoted(url))
  if run("command -v curl >/dev/null") then return run(tool) end
  return run(("wget -q -T 30 -t 2 -O %s %s"):format(quoted(path), quoted(url)))
end

-- Downloads a file of a source into `folder`, if it comes with the right sum from one of the mirrors. Returns why
-- it did not, or nil.
local function download(source, folder, file)
  local path, why = folder .. "/" .. file .. ".gz", "no mirror could be reached: this machine is offline, or has " ..
    "neither curl nor wget"
  for _, mirror in ipairs(source.mirrors) do
    local part = ("%s.%d.part"):format(path, math.floor(os.clock() * 1e6) % 1e6)
    if fetch(mirror .. file .. ".gz", part) then
      if B.sha256_file(part) == source.sha256[file] then
        local ok, err = os.rename(part, path)
        if ok then return nil end
        why = err
      else
        why = mirror .. file .. ".gz has another SHA-256 sum than expected"
      end
    end
    os.remove(part)
  end
  return why
end

local function download_all(name, source, root)
  local base = root or "data"
  local folder, fresh = base .. "/" .. source.folders[1], not run("test -d " .. quoted(base))
  if not run("mkdir -p " .. quoted(folder)) then check.fail("datasets.%s: cannot make %s", name, folder) end
  for _, part in ipairs({ "train", "t10k" }) do
    for _, kind in ipairs({ "images-idx3-ubyte", "labels-idx1-ubyte" }) do
      local file = part .. "-" .. kind
      local why = not exists(folder .. "/" .. file .. ".gz") and download(source, folder, file)
      if why then
        run("rmdir " .. quoted(folder)) -- if it is empty
        if fresh then run("rmdir " .. quoted(base)) end
        check.fail("datasets.%s: cannot download %s.gz: %s", name, file, why)
      end
    end
  end
end

-- ---- reading ---------------------------------------------------------------------------------------

local function read(name, images_path, labels_path)
  local images, labels = B.load_idx(images_path), B.load_idx(labels_path)
  if images:dim() ~= 3 or images:dtype() ~= moth.uint8 then
    check.fail("datasets.%s: %s holds no grey images, but %s of shape %s", name, images_path,
      tostring(images:dtype()), tostring(images:size()))
  end
  if labels:dim() ~= 1 or labels:size(1) ~= images:size(1) then
    check.fail("datasets.%s: %s does not hold one label per image of %s", name, labels_path, images_path)
  end
  return images, labels:to(moth.int64) + 1 -- the file's classes count from 0
end

local function define(name)
  local source = sources[name]
  local cls = class(name, ImageDataset)

  --- @tparam[opt] string root a folder @tparam[opt] table o train (true), transform, target_transform, download
  function cls:__init(root, o)
    if type(root) == "table" then root, o = root.root, root end
    o = check.options("datasets." .. name, o, "train transform target_transform download root")
    local train = o.train ~= false
    local images_path, labels_path = find(source, root, train and "train" or "t10k")
    local only_t10k = not find(source, root, "train") and find(source, root, "t10k") ~= nil
    if not images_path and not only_t10k and o.download then
      download_all(name, source, root)
      images_path, labels_path = find(source, root, train and "train" or "t10k")
    end
    if only_t10k then images_path, labels_path = find(source, root, "t10k") end
    if not images_path then
      check.fail("datasets.%s: no files found in %s\nHINT: put the IDX files there, set MOTH_DATA, or give " ..
        "download = true", name, table.concat(places(source, root), ", "))
    end
    local images, labels = read(name, images_path, labels_path)
    if only_t10k then
      local n = images:size(1)
      local cut = math.floor(n * SPLIT / 10000)
      local first, count = train and 1 or cut + 1, train and cut or n - cut
      images, labels = images:narrow(1, first, count), labels:narrow(1, first, count)
      self.note = ("only the t10k files are there: their %s %d images"):format(train and "first" or "last", count)
    end
    self.path, self.train = images_path, train
    ImageDataset.__init(self, images, labels, { transform = o.transform, target_transform = o.target_transform,
      classes = source.classes })
  end

  --- Are there files for it (without downloading)?
  function cls.available(root) return find(source, root, "t10k") ~= nil or find(source, root, "train") ~= nil end

  return cls
end

return { MNIST = define("MNIST"), FashionMNIST = define("FashionMNIST") }
