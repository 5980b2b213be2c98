-- Reads theirs.safetensors and writes it as ours.safetensors; reads the files of the other names and says how many
-- tensors they have, or why they are refused. Usage: moth safetensors_bridge.lua FOLDER NAME…
local moth = require "moth"
local cjson = require "cjson"
local folder = arg[1]
local tensors, metadata = moth.load_safetensors(folder .. "/theirs.safetensors")
moth.save_safetensors(tensors, folder .. "/ours.safetensors", metadata)
local said = {}
for i = 2, #arg do
  local ok, got = pcall(moth.load_safetensors, ("%s/%s.safetensors"):format(folder, arg[i]))
  local n = 0
  for _ in pairs(ok and got or {}) do n = n + 1 end
  said[arg[i]] = ok and n or got
  if ok and not arg[i]:find "^hand" then moth.save(got, ("%s/%s.pt"):format(folder, arg[i])) end
end
print(cjson.encode(said))
