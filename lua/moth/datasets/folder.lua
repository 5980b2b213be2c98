--- Images in folders, one for each class: root/cat/1.jpg, root/dog/2.png.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local strings = require "moth.data.strings"
local system = require "moth.utils.system"
local Dataset = require("moth.data.dataset").Dataset

local known = { jpg = true, jpeg = true, png = true }

-- Adds the images below a folder.
local function collect(path, label, files, labels)
  for _, name in ipairs(system.list(path) or {}) do
    local full = path .. "/" .. name
    if known[(name:match("%.(%w+)$") or ""):lower()] then
      files[#files + 1], labels[#labels + 1] = full, label
    elseif not name:find(".", 1, true) then
      collect(full, label, files, labels)
    end
  end
end

local ImageFolder = class("ImageFolder", Dataset)

--- Sample i: the image, uint8 (H, W, C) or what transform makes of it, and the position of its class in `classes`,
-- the names of the folders in alphabetical order. channels: 3 (RGB), 1, 4, or 0: as in the file.
ImageFolder.__init = signature.init("datasets.ImageFolder(path root, *, callable transform?, \z
  callable target_transform?, size channels=3)", function(self, o)
  local names = system.list(o.root)
  if not names then check.fail("[datasets.ImageFolder] there is no folder %s", o.root) end
  local files, labels = {}, {}
  self.root, self.classes, self.class_to_idx = o.root, {}, {}
  for _, name in ipairs(names) do
    local before = #files
    collect(o.root .. "/" .. name, #self.classes + 1, files, labels)
    if #files > before then
      self.classes[#self.classes + 1] = name
      self.class_to_idx[name] = #self.classes
    end
  end
  if #files == 0 then
    check.fail("[datasets.ImageFolder] %s has no folders with .jpg, .jpeg or .png files", o.root)
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
