--- Training from a stream of .tar files: shards of pictures and classes are written, then read by two workers, shuffled
-- on the way, decoded and never unpacked. Files from elsewhere do as well: --shards "train-{000..009}.tar".
--
--     moth examples/webdataset.lua [--shards PATTERN] [--classes 10] [--steps 300] [--batch 64] [--lr 0.002]
--                                  [--curve c.svg] [--checkpoint FILE]
local moth = require "moth"
local nn, optim, data, datasets, T = moth.nn, moth.optim, moth.data, moth.datasets, moth.transforms
local training = require "moth.examples.training"
local o = training.options { steps = 300, batch = 64, lr = 2e-3, classes = 10, shards = "" }
moth.manual_seed(1)

-- ---- shards --------------------------------------------------------------------------------------------

-- One member of a tar file.
local function member(name, bytes)
  local function octal(n, width) return ("%0" .. width - 1 .. "o\0"):format(n) end
  local head = name .. ("\0"):rep(100 - #name) .. octal(420, 8) .. octal(0, 8) .. octal(0, 8) .. octal(#bytes, 12)
    .. octal(0, 12)
  local rest = "0" .. ("\0"):rep(100) .. "ustar\00000" .. ("\0"):rep(247)
  local sum = 8 * 32
  for i = 1, #head do sum = sum + head:byte(i) end
  for i = 1, #rest do sum = sum + rest:byte(i) end
  return head .. ("%06o\0 "):format(sum) .. rest .. bytes .. ("\0"):rep(-#bytes % 512)
end

local function contents(path)
  local f = assert(io.open(path, "rb"))
  local bytes = f:read "*a"
  f:close()
  return bytes
end

local mnist = datasets.MNIST.available(nil, "test")
local source = mnist and datasets.MNIST(nil, { train = false }) or datasets.Digits { size = 28 }
local test_from = math.floor(source:size() * 0.9)
local folder
if o.shards == "" then
  folder = os.tmpname()
  os.remove(folder)
  os.execute(("mkdir '%s'"):format(folder))
  o.shards = folder .. "/train-{0..3}.tar"
  local picture, written = folder .. "/one.png", math.min(4000, test_from)
  for shard = 0, 3 do
    local f = assert(io.open(("%s/train-%d.tar"):format(folder, shard), "wb"))
    for i = shard + 1, written, 4 do
      local image, class = source:get(i)
      moth.plot.save_image(image:view(1, 28, 28):to(moth.float32) / 255, picture)
      f:write(member(("%06d.png"):format(i), contents(picture)), member(("%06d.cls"):format(i), tostring(class - 1)))
    end
    f:write(("\0"):rep(1024))
    f:close()
  end
  print(("%d samples of %s in 4 shards"):format(written, mnist and "MNIST" or "UCI's digits"))
end

-- ---- training ------------------------------------------------------------------------------------------

local normalize = T.Compose { T.Grayscale(), T.Resize { 28, 28 }, T.ToTensor(), T.Normalize({ 0.1307 }, { 0.3081 }) }
local stream = data.WebDataset(o.shards, { shardshuffle = true }):shuffle(500):decode():to_tuple("png;jpg", "cls")
  :map_tuple(normalize)
local loader = data.DataLoader(stream, { batch_size = o.batch, num_workers = 2 })

local next_batch, epoch, samples = nil, 0, 0
local function batch()
  local x, y
  if next_batch then x, y = next_batch() end
  if not x then
    epoch = epoch + 1
    next_batch = loader:iter()
    x, y = next_batch()
  end
  samples = samples + y:numel()
  return x, y
end

local net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
  nn.Linear(32 * 7 * 7, o.classes))
local opt = optim.AdamW(net:parameters(), { lr = o.lr })
local began = os.clock()
training.run(o, { net = net, opt = opt }, function()
  local x, y = batch()
  opt:zero_grad()
  local loss = nn.functional.cross_entropy(net(x), y)
  loss:backward()
  opt:step()
  return loss:item()
end)
next_batch = nil
print(("%d samples in %d epochs, %.0f of them a second of processor time"):format(samples, epoch,
  samples / (os.clock() - began)))

if folder then -- the pictures that were not written
  local ids = moth.arange(test_from + 1, source:size() + 1)
  source.transform = T.Compose { T.ToTensor(), T.Normalize({ 0.1307 }, { 0.3081 }) }
  local right, n = 0, 0
  moth.no_grad(function()
    for x, y in data.DataLoader(data.Subset(source, ids), { batch_size = 200 }):iter() do
      right, n = right + net(x):argmax(2):eq(y):sum():item(), n + y:numel()
    end
  end)
  print(("accuracy on %d others: %.1f %%"):format(n, 100 * right / n))
  os.execute(("rm -r '%s'"):format(folder))
end
