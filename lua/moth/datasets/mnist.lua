--- MNIST (LeCun, Cortes, Burges), FashionMNIST (Xiao, Rasul, Vollgraf 2017) and KMNIST (Clanuwat and others 2018):
-- 28x28 grey images, 10 classes.
--
--     local train = moth.datasets.FashionMNIST("./data", { split = "train", download = true, transform = t })
--     local x, y = train:get(1)     -- y from 1 to 10; train.classes[y] is its name
--
-- split = "train" has the 60,000 training images, "test" (or "t10k", as its files are called) the 10,000 test images;
-- train = true and false mean the same. The IDX files, gzipped or not, are looked for in the given folder (default
-- ./data), then in $MOTH_DATA, in each directly and in a subfolder such as mnist or FashionMNIST/raw.
-- Missing files are downloaded into the first of these if o.download is set.
-- A file is read only if its checksum is the published one (check = false reads any; datasets.IDX reads others).
local B = require "moth_lua"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local md5 = require "moth.utils.md5"
local ImageDataset = require "moth.datasets.images"
local IDX = require "moth.datasets.idx"
local is_train = require "moth.datasets.split"
local look = require "moth.datasets.places"
local sources = require "moth.datasets.sources"
local system = require "moth.utils.system"

local kinds = { "images-idx3-ubyte", "labels-idx1-ubyte" }

-- ---- finding ---------------------------------------------------------------------------------------

local function places(source, root) return look.all(root, source.folders) end

-- The paths of a part ("train" or "t10k"): images and labels from one folder.
local function find(source, root, part)
  for _, place in ipairs(places(source, root)) do
    for _, suffix in ipairs({ ".gz", "" }) do
      local images = ("%s/%s-%s%s"):format(place, part, kinds[1], suffix)
      local labels = ("%s/%s-%s%s"):format(place, part, kinds[2], suffix)
      if system.exists(images) and system.exists(labels) then return images, labels end
    end
  end
end

-- ---- downloading -----------------------------------------------------------------------------------

local quoted = system.quoted
local function run(command) return os.execute(command .. " 2>/dev/null") == 0 end

-- Connecting, or waiting for a byte, takes so many seconds at most.
local PATIENCE = 5

-- Downloads a file. Returns true, or nil and what the program for it says.
local function fetch(url, path)
  local tool = ("curl -fsSL --connect-timeout %d --speed-time %d --speed-limit 1 --max-time 600 -o"):format(PATIENCE,
    PATIENCE)
  if not run("command -v curl >/dev/null") then
    if not run("command -v wget >/dev/null") then return nil, "neither curl nor wget is there; HINT: make deps" end
    tool = ("wget -nv -t 1 -T %d -O"):format(PATIENCE)
  end
  local pipe = io.popen(("{ %s %s %s; } 2>&1; echo $?"):format(tool, quoted(path), quoted(url)))
  local said = pipe:read("*a")
  pipe:close()
  local text, status = said:match("^(.-)%s*(%d+)\n$")
  if status == "0" then return true end
  return nil, (text or said):match("[^\n]*$")
end

-- Downloads a file of a source into `folder` from the first mirror that gives the right checksum. Returns nil, or why
-- it failed.
local function download(source, folder, file)
  local path, why = folder .. "/" .. file .. ".gz", nil
  for _, mirror in ipairs(source.mirrors) do
    local part = ("%s.%d.part"):format(path, math.floor(os.clock() * 1e6) % 1e6)
    local ok, said = fetch(mirror .. file .. ".gz", part)
    if not ok then
      why = why or "no mirror could be reached: " .. said
    else
      local sound
      if source.packed then
        local bytes = look.bytes(part)
        sound = md5("", bytes:data(), bytes:numel()) == source.packed[file]
      else
        sound = B.sha256_file(part) == source.sha256[file]
      end
      if sound then
        ok, why = os.rename(part, path)
        if ok then return nil end
      else
        why = mirror .. file .. (".gz has another %s sum than expected"):format(source.packed and "MD5" or "SHA-256")
      end
    end
    os.remove(part)
  end
  return why
end

-- Downloads the missing parts. Returns nil, or why it failed.
local function download_missing(source, root)
  local base = root or "data"
  local folder, fresh = base .. "/" .. source.folders[1], not run("test -d " .. quoted(base))
  if not run("mkdir -p " .. quoted(folder)) then return "cannot make the folder " .. folder end
  for _, part in ipairs({ "train", "t10k" }) do
    for _, kind in ipairs(find(source, root, part) and {} or kinds) do
      local file = part .. "-" .. kind
      local why = not system.exists(folder .. "/" .. file .. ".gz") and download(source, folder, file)
      if why then
        run("rmdir " .. quoted(folder)) -- if it is empty
        if fresh then run("rmdir " .. quoted(base)) end
        return ("cannot download %s.gz: %s"):format(file, why)
      end
    end
  end
end

-- ---- checking --------------------------------------------------------------------------------------

-- The name of the file with a checksum of a kind ("sha256", "md5"), as "MNIST's t10k-images-idx3-ubyte", or nil.
local function owner(kind, sum)
  for name, source in each(sources) do
    for file, known in each(source[kind]) do
      if known == sum then return name .. "'s " .. file end
    end
  end
end

-- MD5 of the unpacked IDX file of a uint8 tensor; its header, dtype and shape, is made again.
local function sum_of(tensor)
  local head = { "\0\0\8", string.char(tensor:dim()) }
  for d = 1, tensor:dim() do
    local n = tensor:size(d)
    for shift = 24, 0, -8 do head[#head + 1] = string.char(math.floor(n / 2 ^ shift) % 256) end
  end
  return md5(table.concat(head), tensor:data(), tensor:numel())
end

-- Raises unless `path` holds the file of a source of which the sums of the packed files are known; unpacked ones are
-- known by their shapes.
local function verify_packed(where, source, path, file)
  if path:find "%.gz$" then return look.verify(where, path, look.bytes(path), source.packed[file]) end
  local shape = B.named(B.load_idx, where)(path):size()
  local n = file:find "^train" and 60000 or 10000
  if shape[1] ~= n or file:find "images" and (shape[2] ~= 28 or shape[3] ~= 28) then
    check.fail("%s: %s is not the published file: its shape is %s\nHINT: check = false reads it nevertheless", where,
      path, tostring(shape))
  end
end

-- Raises unless `path` holds the file `wanted` ("MNIST's train-images-idx3-ubyte").
local function verify(where, path, wanted)
  if owner("sha256", B.sha256_file(path)) == wanted then return end
  local tensor = B.named(B.load_idx, where)(path)
  local sum = tensor:dtype().name == "uint8" and sum_of(tensor) or "of no bytes"
  local is = owner("md5", sum)
  if is == wanted then return end
  check.fail("%s: %s is not %s: %s\nHINT: %s; check = false reads it nevertheless, and datasets.IDX(images, labels) " ..
    "any files of this format", where, path, wanted, is and "it is " .. is or
    "its sum (MD5 " .. sum .. ", unpacked) is that of no file of MNIST or FashionMNIST",
    is and "give the folder of the right set" or "it may be damaged: remove it and give download = true")
end

-- ---- the sets --------------------------------------------------------------------------------------

-- "train" or "t10k" for the options `train` and `split`.
local function part_of(where, o) return is_train(where, o) and "train" or "t10k" end

-- The error message for missing files of `part`: why, and what to do.
local function absent(source, root, part, failed)
  local other = part == "train" and "t10k" or "train"
  local lies = find(source, root, other)
  local there = lies and ("; the %s files are there (%s): split = \"%s\" reads them"):format(other, lies,
    other == "train" and "train" or "test") or ""
  if failed then return failed .. there end
  return ("no %s files found in %s%s\nHINT: put %s-%s and %s-%s (or .gz) there, set MOTH_DATA, or give download = true")
    :format(part, table.concat(places(source, root), ", "), there, part, kinds[1], part, kinds[2])
end

local function define(name)
  local source, where = sources[name], "datasets." .. name
  local cls = class(name, ImageDataset)

  --- @tparam[opt] string root a folder
  -- @tparam[opt] table o split ("train"; "test") or train (true), transform, target_transform, download (false), check
  -- (true), synthetic (false: made-up images where there are no files and none can be downloaded)
  cls.__init = signature.init(where .. "(path root?, bool train?, callable transform?, callable target_transform?, \z
    bool download=false, *, string split?, bool check=true, bool synthetic=false)", function(self, o)
    local root, part, failed = o.root, part_of(where, o), nil
    local images_path, labels_path = find(source, root, part)
    if not images_path and o.download then
      failed = download_missing(source, root)
      images_path, labels_path = find(source, root, part)
    end
    self.train, self.split = part == "train", part == "train" and "train" or "test"
    local made = { transform = o.transform, target_transform = o.target_transform, classes = source.classes }
    if not images_path then
      local why = absent(source, root, part, failed)
      if not o.synthetic then check.fail("%s: %s", where, why) end
      local other = require("moth.datasets.synthetic")({ train = self.train })
      made.classes, self.note, self.why = other.classes, other.note, why
      return ImageDataset.__init(self, other.images, other.labels, made)
    end
    if o.check and source.packed then
      verify_packed(where, source, images_path, ("%s-%s"):format(part, kinds[1]))
      verify_packed(where, source, labels_path, ("%s-%s"):format(part, kinds[2]))
    elseif o.check then
      verify(where, images_path, ("%s's %s-%s"):format(name, part, kinds[1]))
      verify(where, labels_path, ("%s's %s-%s"):format(name, part, kinds[2]))
    end
    self.path = images_path
    local images, labels = IDX.read(where, images_path, labels_path)
    ImageDataset.__init(self, images, labels, made)
  end)

  --- Whether there are files of a split (by default of any). Downloads nothing.
  cls.available = signature(where .. ".available(path root?, string split?)", function(root, split)
    if split == nil then return find(source, root, "t10k") ~= nil or find(source, root, "train") ~= nil end
    return find(source, root, part_of(where, { split = split })) ~= nil
  end)

  return cls
end

return { MNIST = define("MNIST"), FashionMNIST = define("FashionMNIST"), KMNIST = define("KMNIST") }
