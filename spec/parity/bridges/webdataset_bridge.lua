-- The samples of each archive, their bytes in hexadecimal, or why it is refused.
-- Usage: moth webdataset_bridge.lua FILE…
local moth = require "moth"
local cjson = require "cjson"
local said = {}
for i = 1, #arg do
  local ok, list = pcall(function()
    local out = {}
    for sample in moth.data.WebDataset(arg[i]):iter() do
      local plain = {}
      for k, v in pairs(sample) do
        if k == "__key__" then plain[k] = v end
        if not k:find "^__" then
          plain[k] = v:gsub(".", function(c) return ("%02x"):format(c:byte()) end)
        end
      end
      out[#out + 1] = plain
    end
    return out
  end)
  said[arg[i]] = list
  if not ok then said[arg[i]] = tostring(list) end
end
print(cjson.encode(said))
