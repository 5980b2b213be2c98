-- Reads the .npy files of names.txt and writes each again; the same with the members of stored.npz and deflated.npz;
-- reads no_NAME.npy and .npz and says why they are refused. Usage: moth numpy_bridge.lua FOLDER NAME…
local moth = require "moth"
local cjson = require "cjson"
local folder = arg[1]
local said = {}
for name in io.lines(folder .. "/names.txt") do
  moth.save(moth.load(("%s/%s.npy"):format(folder, name)), ("%s/back_%s.npy"):format(folder, name))
end
for _, kind in ipairs { "stored", "deflated" } do
  for name, t in pairs(moth.load(("%s/%s.npz"):format(folder, kind))) do
    moth.save(t, ("%s/%s_%s.npy"):format(folder, kind, name))
  end
end
said.many = 0
for name, t in pairs(moth.load(folder .. "/many.npz")) do
  local k = tonumber(name:match "arr%.(%d+)/x y")
  if t:size(1) == k % 3 and (t:numel() == 0 or t[{ 1, 1 }]:item() == k) then said.many = said.many + 1 end
end
for i = 2, #arg do
  for _, ending in ipairs { "npy", "npz" } do
    local file = ("no_%s.%s"):format(arg[i], ending)
    local ok, why = pcall(moth.load, folder .. "/" .. file)
    said[file] = ok and "it is read" or why
  end
end
print(cjson.encode(said))
