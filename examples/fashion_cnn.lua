-- A small convolutional network on 28x28 images of ten classes.
--
--     luajit examples/fashion_cnn.lua [options]
local moth = require "moth"
local nn, optim, data = moth.nn, moth.optim, moth.data
local pictures = require "moth.examples.pictures"

local options = moth.cli {
  { "--dataset fashion|mnist|digits|idx", "idx: files of one's own in --data; left out: fashion or mnist where their \z
    files are, else fashion where it can be downloaded, else the 1,797 digits that come with moth" },
  { "--data DIR", "where data sets are looked for (and downloaded to), before $MOTH_DATA" },
  { "--epochs N", "", 5 }, { "--batch-size N", "", 64 }, { "--lr X", "", 1e-3 }, { "--seed N", "", 42 },
  { "--limit N", "only the first N training images", 0 },
  { "--device NAME", "cpu, cuda", moth.cuda.is_available() and "cuda" or "cpu" },
}

moth.manual_seed(options.seed)
local device = moth.device(options.device)

-- ---- data ------------------------------------------------------------------------------------------

local train_data, test_data = pictures.open(options.dataset, options.data)
if options.limit > 0 and options.limit < train_data:size() then
  train_data = data.Subset(train_data, moth.arange(1, options.limit + 1))
end
local train_loader = data.DataLoader(train_data, { batch_size = options.batch_size, shuffle = true })
local test_loader = data.DataLoader(test_data, { batch_size = 256 })

-- ---- model -----------------------------------------------------------------------------------------

local CNN = nn.class("CNN")

function CNN:__init()
  self.features = nn.Sequential(
    nn.Conv2d(1, 32, 3, { padding = 1 }), -- (B, 1, 28, 28) -> (B, 32, 28, 28)
    nn.ReLU(),
    nn.MaxPool2d(2), -- (B, 32, 14, 14)
    nn.Conv2d(32, 64, 3, { padding = 1 }),
    nn.ReLU(),
    nn.MaxPool2d(2) -- (B, 64, 7, 7)
  )
  self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Dropout(0.25),
    nn.Linear(128, 10))
end

function CNN:forward(x) return self.classifier(self.features(x)) end

local model = CNN():to(device)
print(model)
print("Parameters: " .. moth.fmt.commas(model:num_parameters()))

-- ---- training --------------------------------------------------------------------------------------

local criterion = nn.CrossEntropyLoss()
local optimizer = optim.Adam(model:parameters(), { lr = options.lr })

-- Mean loss and accuracy over a loader; with an optimizer it trains.
local function run(loader, train, label)
  model:train(train)
  local loss_sum = moth.zeros({ dtype = moth.float64, device = device })
  local correct, count = moth.zeros({ dtype = moth.int64, device = device }), 0
  local bar = train and moth.utils.progress(loader:size(), { label = label, unit = "batch" })
  for images, labels in loader:iter() do
    images, labels = images:to(device), labels:to(device)
    if train then optimizer:zero_grad() end
    local outputs = model(images)
    local loss = criterion(outputs, labels)
    if train then
      loss:backward()
      optimizer:step()
      bar:update()
    end
    loss_sum:add_(loss:detach(), labels:size(1))
    correct:add_(outputs:argmax(2):eq(labels):sum())
    count = count + labels:size(1)
  end
  if bar then bar:finish() end
  return loss_sum:item() / count, correct:item() / count
end

local accuracy
for epoch = 1, options.epochs do
  local label = ("Epoch %2d/%d"):format(epoch, options.epochs)
  local train_loss, train_accuracy = run(train_loader, true, label)
  local test_loss, test_accuracy = moth.no_grad(function() return run(test_loader, false) end)
  print(("%s Train Loss: %.4f Acc: %.4f Test Loss: %.4f Acc: %.4f"):format(label, train_loss, train_accuracy, test_loss,
    test_accuracy))
  io.stdout:flush()
  accuracy = test_accuracy
end
print(("Final test accuracy: %.4f"):format(accuracy))
