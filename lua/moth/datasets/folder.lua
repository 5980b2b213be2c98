--- Images in folders, one for each class: root/cat/1.jpg, root/dog/2.png.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local strings = require "moth.data.strings"
local system = require "moth.utils.system"
local Dataset = require("moth.data.dataset").Dataset

local readable = { "jpg", "jpeg", "png", "webp" }
-- Images that moth does not read: left out in silence, they would make a class smaller.
local unread = { gif = "GIF", tif = "TIFF", tiff = "TIFF", bmp = "BMP", ppm = "PNM", pgm = "PNM", pbm = "PNM",
  avif = "AVIF", heic = "HEIC", jp2 = "JPEG 2000", jxl = "JPEG XL" }

-- The folders below a path, and itself.
local function folders(path, list)
  list[#list + 1] = path
  for _, name in ipairs(system.list(path) or {}) do
    local full = path .. "/" .. name
    if not unread[(name:match "%.(%w+)$" or ""):lower()] and system.list(full) then folders(full, list) end
  end
  return list
end

-- Adds the images of a folder and of those below it, as torchvision orders them: folder by folder.
local function collect(self, path, label, files, labels)
  local list = folders(path, {})
  table.sort(list)
  for _, folder in ipairs(list) do
    for _, name in ipairs(system.list(folder)) do
      local ending, full = (name:match "%.(%w+)$" or ""):lower(), folder .. "/" .. name
      if self.known[ending] then
        files[#files + 1], labels[#labels + 1] = full, label
      elseif unread[ending] and not self.chosen then
        check.fail("[datasets.ImageFolder] %s is %s, which moth does not read\nHINT: convert it to PNG, JPEG or WebP; \z
          extensions = { \"jpg\", \"png\" } leaves out all others", full, unread[ending])
      end
    end
  end
end

local ImageFolder = class("ImageFolder", Dataset)

--- Sample i: the image, uint8 (H, W, C) (uint16 where a PNG has 16 bits) or what transform makes of it, and the
-- position of its class in `classes`, the names of the folders in alphabetical order. channels: 3 (RGB), 1, 4, or 0: as
-- in the file. extensions: which files are taken; without, images in formats that moth does not read are an error.
-- allow_empty: classes without an image, too.
ImageFolder.__init = signature.init("datasets.ImageFolder(path root, *, callable transform?, \z
  callable target_transform?, size channels=3, string[] extensions?, bool allow_empty=false)", function(self, o)
  local names = system.list(o.root)
  if not names then check.fail("[datasets.ImageFolder] there is no folder %s", o.root) end
  self.known, self.chosen = {}, o.extensions ~= nil
  for _, ending in ipairs(o.extensions or readable) do self.known[ending:lower():gsub("^%.", "")] = true end
  local files, labels, empty = {}, {}, {}
  self.root, self.classes, self.class_to_idx = o.root, {}, {}
  for _, name in ipairs(names) do
    local path, before = o.root .. "/" .. name, #files
    if system.list(path) then
      self.classes[#self.classes + 1] = name
      self.class_to_idx[name] = #self.classes
      collect(self, path, #self.classes, files, labels)
      if #files == before then empty[#empty + 1] = name end
    end
  end
  if #files == 0 then
    check.fail("[datasets.ImageFolder] %s has no folders with .%s files", o.root,
      table.concat(o.extensions or readable, ", ."))
  elseif #empty > 0 and not o.allow_empty then
    check.fail("[datasets.ImageFolder] %s: no images in the folders of the classes %s\nHINT: remove them, or \z
      allow_empty = true keeps them as classes", o.root, table.concat(empty, ", "))
  end
  self.files, self.labels = strings.pack(files), moth.tensor(labels, { dtype = moth.int64 })
  self.transform, self.target_transform, self.channels = o.transform, o.target_transform, o.channels
end)

--- The number of images.
function ImageFolder:size() return self.labels:size(1) end
--- The path of image i.
function ImageFolder:path(i) return strings.get(self.files, self:check_position(i)) end
function ImageFolder:get(i)
  local x, y = B.media.read_image(self:path(i), self.channels), self.labels[i]:item()
  if self.transform then x = self.transform(x) end
  if self.target_transform then y = self.target_transform(y) end
  return x, y
end
function ImageFolder.__tostring(self)
  return ("ImageFolder: %d images in %s, %d classes"):format(self:size(), self.root, #self.classes)
end

return ImageFolder
