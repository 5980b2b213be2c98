--- Samples per second of a loader for several numbers of workers, and the same as CSV for a plot.
--
--     moth examples/loader_sweep.lua [--samples 4000] [--workers 0,1,2,4] [--csv sweep.csv]
local moth = require "moth"
local data, T = moth.data, moth.transforms
local now = require("moth.utils.system").now

local options = moth.cli { { "--samples N", "of an epoch", 4000 }, { "--csv FILE", "the numbers" },
  { "--workers N,…", "numbers of workers", { 0, 1, 2, 4 }, type = "integer[]" } }

moth.manual_seed(0)
local images = moth.randint(0, 256, { 256, 48, 48, 3 }):to(moth.uint8)
local augment = T.Compose { T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ColorJitter { brightness = 0.2 },
  T.ToTensor() }
local Images = data.Dataset:subclass("Images")
function Images:__init(n) self.n = n end
function Images:size() return self.n end
function Images.get(_, i) return augment(images[i % 256 + 1]), i % 10 + 1 end

local rows, first = { "workers,samples_per_second" }, nil
for _, n in ipairs(options.workers) do
  local loader = data.DataLoader(Images(options.samples), { batch_size = 64, num_workers = n, seed = 1,
    persistent_workers = true })
  local count, sum, start
  for _ = 1, 2 do -- in the first epoch workers start and compile
    count, sum, start = 0, 0, now()
    for x in loader:iter() do
      count, sum = count + x:size(1), sum + x:sum():item()
    end
  end
  local speed = count / (now() - start)
  first = first or { sum = sum, speed = speed }
  assert(sum == first.sum, "the batches differ")
  rows[#rows + 1] = ("%d,%.1f"):format(n, speed)
  print(("%2d workers: %7.0f samples/s, %.2f times the first"):format(n, speed, speed / first.speed))
end
print("the samples were the same bits each time")

if options.csv then
  local f = assert(io.open(options.csv, "w"))
  f:write(table.concat(rows, "\n"), "\n")
  f:close()
  print("written: " .. options.csv)
end
