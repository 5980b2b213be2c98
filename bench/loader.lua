--- Samples per second of a DataLoader with small samples (28 x 28 bytes, normalized in get), beside PyTorch's: first
-- PyTorch, then moth.
--   build/moth bench/loader.lua [number of workers, 2] [epochs, 4]
local moth = require "moth"
local data = moth.data
local now = require("moth.utils.system").now

local workers, epochs = tonumber(arg[1] or 2), tonumber(arg[2] or 4)
local x = moth.randint(0, 256, { 20000, 28, 28 }):to(moth.uint8)
local y = moth.randint(1, 11, { 20000 })
local Small = data.Dataset:subclass("Small")
function Small.size() return 20000 end
function Small.get(_, i) return x[i]:float():div_(255):sub_(0.28):div_(0.35), y[i] end

local function ours()
  local loader = data.DataLoader(Small(), { batch_size = 64, shuffle = true, num_workers = workers })
  local start, n = now(), 0
  for a in loader:iter() do n = n + a:size(1) end
  return n / (now() - start)
end

local pipe = io.popen("python3 " .. arg[0]:gsub("%.lua$", ".py") .. " " .. workers .. " " .. epochs .. " 2>/dev/null")
local theirs = {}
for line in pipe:lines() do theirs[#theirs + 1] = tonumber(line) end
pipe:close()

local best, other = 0, 0
for e = 1, epochs do
  best, other = math.max(best, ours()), math.max(other, theirs[e] or 0)
end
print(("%d workers: moth %.0f samples/s"):format(workers, best))
if other > 0 then
  print(("%d workers: PyTorch %.0f samples/s; moth has %.1f times as many"):format(workers, other, best / other))
end
