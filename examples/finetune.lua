--- Fine-tuning on a folder of images: a network trained on many pictures learns another kind from few, first by its
-- last layer alone and then as a whole, with a rate for each part.
--
--     moth examples/finetune.lua [--images FOLDER] [--before 400] [--steps 150] [--few 2] [--batch 50] [--lr 0.003]
--                                [--curve c.svg] [--checkpoint FILE] [--picture some.png]
--
-- --images: a folder with a folder of .png or .jpg files for each class. Without it, one is made: MNIST's digits
-- ($MOTH_DATA/mnist) in a mirror, --few of each; or, where MNIST is not there, UCI's digits.
-- --before: steps of the network that others learn from; --steps: of the new one, after a third as many of its last
-- layer alone.
local moth = require "moth"
local nn, optim, data, datasets, T = moth.nn, moth.optim, moth.data, moth.datasets, moth.transforms
local training = require "moth.examples.training"
local o = training.options { before = 400, steps = 150, few = 2, batch = 50, lr = 3e-3, images = "", picture = "" }
moth.manual_seed(1)

local to_tensor = T.Compose { T.ToTensor(), T.Normalize({ 0.1307 }, { 0.3081 }) }

-- ---- the pictures --------------------------------------------------------------------------------------

local function make_folder(path) os.execute(("mkdir -p '%s'"):format(path)) end
local mnist = datasets.MNIST.available(nil, "test")
local source = mnist and datasets.MNIST(nil, { train = false }) or datasets.Digits { size = 28 }
print(mnist and "pictures: MNIST's test images" or "pictures: UCI's digits; MNIST is not in $MOTH_DATA")

local many = math.floor(source:size() * 0.8) -- of these the first network learns; the folder is made of the others

local folder = o.images
if folder == "" then
  folder = os.tmpname()
  os.remove(folder)
  local count = {}
  for i = many + 1, source:size() do
    local image, class = source:get(i)
    local k = (count[class] or 0) + 1
    count[class] = k
    local place = ("%s/%s/%d"):format(folder, k <= o.few and "train" or "test", class - 1)
    if k == 1 or k == o.few + 1 then make_folder(place) end
    if k <= o.few + 100 then
      local picture = image:view(1, 28, 28):to(moth.float32) / 255
      moth.plot.save_image(picture:flip { 3 }, ("%s/%d.png"):format(place, i))
    end
  end
end
local train = datasets.ImageFolder(o.images ~= "" and folder or folder .. "/train", { channels = 1,
  transform = T.Compose { T.Resize { 28, 28 }, T.RandomAffine(8, { translate = { 0.08, 0.08 } }), to_tensor } })
local test = datasets.ImageFolder(o.images ~= "" and folder or folder .. "/test", { channels = 1,
  transform = T.Compose { T.Resize { 28, 28 }, to_tensor } })
print(tostring(train))

-- ---- the network ---------------------------------------------------------------------------------------

local Net = nn.class "Net"
function Net:__init(classes)
  self.features = nn.Sequential(nn.Conv2d(1, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, 1, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
  self.head = nn.Linear(32 * 7 * 7, classes)
end
function Net:forward(x) return self.head(self.features(x)) end

local function accuracy(net, loader)
  net:eval()
  local right, n = 0, 0
  moth.no_grad(function()
    for x, y in loader:iter() do
      right, n = right + net(x):argmax(2):eq(y):sum():item(), n + y:numel()
    end
  end)
  net:train()
  return 100 * right / n
end

-- A function that gives batch after batch, without end.
local function batches(set, size)
  local loader = data.DataLoader(set, { batch_size = size, shuffle = true, drop_last = true, num_workers = 2 })
  local next_batch
  return function()
    local x, y
    if next_batch then x, y = next_batch() end
    if not x then
      next_batch = loader:iter()
      x, y = next_batch()
    end
    return x, y
  end
end

local function step(net, opt, x, y)
  opt:zero_grad()
  local loss = nn.functional.cross_entropy(net(x), y)
  loss:backward()
  opt:step()
  return loss:item()
end

-- The network that somebody else made.
local net = Net(10)
local before = optim.AdamW(net:parameters(), { lr = 2e-3 })
source.transform = to_tensor
local next_batch = batches(data.Subset(source, moth.arange(1, many + 1)), 64)
for _ = 1, o.before do step(net, before, next_batch()) end

-- ---- fine-tuning ---------------------------------------------------------------------------------------

local tests = data.DataLoader(test, { batch_size = 200, num_workers = 2 })
local fresh = Net(#train.classes)
net.head = nn.Linear(32 * 7 * 7, #train.classes)
for _, p in ipairs(net.features:parameters()) do p:requires_grad_(false) end
-- Their statistics, too, stay those of the many pictures.
local function freeze_statistics()
  for _, m in ipairs(net.features:modules()) do
    if m:is_a(nn.BatchNorm2d) then m:eval() end
  end
end

local size = math.min(o.batch, train:size())
next_batch = batches(train, size)
local opt = optim.AdamW({ { params = net.head:parameters() } }, { lr = o.lr })
local function tune()
  net:train()
  freeze_statistics()
  return step(net, opt, next_batch())
end
print(("last layer before: %.1f %%"):format(accuracy(net, tests)))
local first = math.floor(o.steps / 3)
for _ = 1, first do tune() end
local other = optim.AdamW(fresh:parameters(), { lr = o.lr })
for _ = 1, first do step(fresh, other, next_batch()) end
print(("last layer after %d steps: %.1f %%, a new network: %.1f %%"):format(first, accuracy(net, tests),
  accuracy(fresh, tests)))

for _, p in ipairs(net.features:parameters()) do p:requires_grad_(true) end
opt:add_param_group { params = net.features:parameters(), lr = o.lr / 10 }
training.run(o, { net = net, opt = opt }, tune)
local tuned = accuracy(net, tests)

for _ = 1, o.steps do step(fresh, other, next_batch()) end
print(("%d pictures of each class, all layers: fine-tuned %.1f %%, a new network %.1f %% right"):format(
  math.floor(train:size() / #train.classes), tuned, accuracy(fresh, tests)))
if o.picture ~= "" then
  local x, y = data.DataLoader(test, { batch_size = 48, shuffle = true }):iter()()
  net:eval()
  local guess = moth.no_grad(net.forward, net, x):argmax(2)
  local seen = (x * 0.3081 + 0.1307):expand({ x:size(1), 3, 28, 28 }):clone()
  local wrong = guess:ne(y):view(-1, 1, 1):to(moth.float32) * 0.5 -- in red
  seen:select(2, 1):copy_(seen:select(2, 1) + wrong)
  moth.plot.images(seen:clamp(0, 1), { nrow = 12 }):save(o.picture)
end
if o.images == "" then os.execute(("rm -r '%s'"):format(folder)) end
