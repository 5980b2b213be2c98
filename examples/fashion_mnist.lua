-- The lab: a fully connected network classifies 28x28 images into ten classes.
--
--     luajit examples/fashion_mnist.lua [options]
local moth = require "moth"
local nn, optim, data = moth.nn, moth.optim, moth.data
local pictures = require "moth.examples.pictures"
local curve = require("moth.repl.picture").curve

-- ---- options ---------------------------------------------------------------------------------------

local options = moth.cli {
  { "--dataset fashion|mnist|digits|idx", "idx: files of one's own in --data with the names of MNIST's; left out: \z
    fashion or mnist where their files are, else fashion where it can be downloaded, else the 1,797 digits that come \z
    with moth. Where MNIST's t10k files are all there is, they are divided: 8,000 train, 2,000 test" },
  { "--data DIR", "where data sets are looked for (and downloaded to), before $MOTH_DATA" },
  { "--epochs N", "", default = "10; digits: 20" }, { "--lr X", "", default = "1e-3; digits: 5e-4" },
  { "--batch-size N", "", 64 }, { "--hidden N", "", 256 }, { "--seed N", "", 42 },
  { "--device NAME", "cpu, cuda", moth.cuda.is_available() and "cuda" or "cpu" },
  { "--limit N", "only the first N training images", 0 },
  { "--clip X", "clips the norm of the gradients, and prints it before and after", 0 },
  { "--steplr", "trains with and without a tenth of the rate after every 5 epochs" },
  { "--stage overfit|full|tune", "overfit: one batch for 100 steps, is the loop right at all? full: the lab; tune: a \z
    few epochs at several learning rates, compared on held-out images", "full" },
  { "--save FILE", "the checkpoint", "fashion_classifier_checkpoint.mth" },
}

moth.manual_seed(options.seed)
local device = moth.device(options.device)
print("Training on: " .. tostring(device))

-- ---- data ------------------------------------------------------------------------------------------

local train_data, test_data, whole = pictures.open(options.dataset, options.data)
local few = train_data:size() < 5000
options.epochs = options.epochs or few and 20 or 10
options.lr = options.lr or few and 5e-4 or 1e-3
if options.limit > 0 and options.limit < train_data:size() then
  train_data = data.Subset(train_data, moth.arange(1, options.limit + 1))
end
local train_loader = data.DataLoader(train_data, { batch_size = options.batch_size, shuffle = true })
local test_loader = data.DataLoader(test_data, { batch_size = options.batch_size })

-- ---- model -----------------------------------------------------------------------------------------

local FashionClassifier = nn.class("FashionClassifier")

function FashionClassifier:__init(hidden_dim)
  self.net = nn.Sequential(
    nn.Flatten(), -- (B, 1, 28, 28) -> (B, 784)
    nn.Linear(784, hidden_dim),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(hidden_dim, hidden_dim),
    nn.ReLU(),
    nn.Dropout(0.2),
    nn.Linear(hidden_dim, 10)
  )
end

function FashionClassifier:forward(x) return self.net(x) end

local function new_model()
  moth.manual_seed(options.seed)
  return FashionClassifier(options.hidden):to(device)
end

local criterion = nn.CrossEntropyLoss()

-- ---- training and evaluation -----------------------------------------------------------------------

-- The sums of an epoch, on the device: reading a number at every step would wait for the device.
local function new_totals()
  return { loss = moth.zeros({ dtype = moth.float64, device = device }),
    correct = moth.zeros({ dtype = moth.int64, device = device }), count = 0 }
end

local function add(totals, loss, outputs, labels)
  local n = labels:size(1)
  totals.loss:add_(loss:detach(), n)
  totals.correct:add_(outputs:argmax(2):eq(labels):sum())
  totals.count = totals.count + n
end

local function means(totals) return totals.loss:item() / totals.count, totals.correct:item() / totals.count end

--- One pass over the loader. Returns mean loss and accuracy (and, with --clip, the norms of the gradients).
local function train_one_epoch(model, loader, optimizer, label)
  model:train()
  local totals, norms = new_totals(), { before = 0, after = 0 }
  local parameters = model:parameters()
  local bar = moth.utils.progress(loader:size(), { label = label, unit = "batch" })
  for images, labels in loader:iter() do
    images, labels = images:to(device), labels:to(device)
    optimizer:zero_grad()
    local outputs = model(images)
    local loss = criterion(outputs, labels)
    loss:backward()
    if options.clip > 0 then
      norms.before = norms.before + nn.utils.clip_grad_norm_(parameters, options.clip):item()
      norms.after = norms.after + nn.utils.grad_norm(parameters):item()
    end
    optimizer:step()
    add(totals, loss, outputs, labels)
    bar:update()
  end
  bar:finish()
  local loss, accuracy = means(totals)
  return loss, accuracy, norms
end

--- Mean loss and accuracy without training.
local function evaluate(model, loader)
  model:eval()
  return moth.no_grad(function()
    local totals = new_totals()
    for images, labels in loader:iter() do
      images, labels = images:to(device), labels:to(device)
      local outputs = model(images)
      add(totals, criterion(outputs, labels), outputs, labels)
    end
    return means(totals)
  end)
end

-- ---- stages ----------------------------------------------------------------------------------------

local function overfit()
  local model = new_model()
  local optimizer = optim.Adam(model:parameters(), { lr = options.lr })
  local images, labels = data.DataLoader(train_data, { batch_size = options.batch_size, shuffle = true }):iter()()
  images, labels = images:to(device), labels:to(device)
  model:train()
  for step = 1, 100 do
    optimizer:zero_grad()
    local loss = criterion(model(images), labels)
    loss:backward()
    optimizer:step()
    if step % 10 == 0 then print(("Step %3d/100 Loss: %.4f"):format(step, loss:item())) end
  end
  model:eval()
  local loss = moth.no_grad(function() return criterion(model(images), labels):item() end)
  print(("Loss on the one batch, without dropout: %.4f (%s)"):format(loss,
    loss < 0.05 and "model and loop can learn" or "it should be near zero: something is wrong"))
end

local function train(model, steplr)
  local optimizer = optim.Adam(model:parameters(), { lr = options.lr })
  local scheduler = steplr and optim.lr_scheduler.StepLR(optimizer, { step_size = 5, gamma = 0.1 })
  local test_accuracy, losses, accuracies = nil, {}, {}
  for epoch = 1, options.epochs do
    local label = ("Epoch %2d/%d"):format(epoch, options.epochs)
    local train_loss, train_accuracy, norms = train_one_epoch(model, train_loader, optimizer, label)
    local test_loss
    test_loss, test_accuracy = evaluate(model, test_loader)
    print(("%s Train Loss: %.4f Acc: %.4f Test Loss: %.4f Acc: %.4f"):format(label, train_loss, train_accuracy,
      test_loss, test_accuracy))
    if options.clip > 0 then
      local steps = train_loader:size()
      print(("Gradient norm (mean of %d steps): %.4f before clipping, %.4f after clipping to %g"):format(steps,
        norms.before / steps, norms.after / steps, options.clip))
    end
    if scheduler then scheduler:step() end
    losses[epoch], accuracies[epoch] = train_loss, test_accuracy
    io.stdout:flush()
  end
  if options.epochs > 1 then
    local size = { columns = 60, lines = 6 }
    print("Train loss by epoch:\n" .. curve(losses, nil, size))
    print("Test accuracy by epoch:\n" .. curve(accuracies, nil, size))
  end
  return optimizer, test_accuracy
end

-- One test image as characters, with the model's prediction.
local function show(model, i)
  local x, y = test_data:get(i)
  local low, high = x:min():item(), x:max():item()
  local shades, image = " .:-=+*#%@", x:select(1, 1):sub(low):mul(255 / math.max(high - low, 1e-9)):totable()
  for r = 1, 28, 2 do
    local row = {}
    for c = 1, 28 do
      local grey = (image[r][c] + image[r + 1][c]) / 2
      local k = 1 + math.floor(grey / 256 * #shades)
      row[c] = shades:sub(k, k)
    end
    print("  " .. table.concat(row))
  end
  model:eval()
  local share, class = moth.no_grad(function()
    return model(x:unsqueeze(1):to(device)):softmax(2):max(2)
  end)
  print(("Test image %d: predicted %s (%.1f %%), labelled %s\n"):format(i, whole.classes[class:item()],
    100 * share:item(), whole.classes[y]))
end

local function full()
  local model = new_model()
  print(model)
  print("Parameters: " .. moth.fmt.commas(model:num_parameters()))
  local optimizer, accuracy = train(model, false)
  if options.steplr then
    local without = accuracy
    model = new_model()
    print("With StepLR(step_size = 5, gamma = 0.1):")
    optimizer, accuracy = train(model, true)
    print(("Test accuracy: %.4f without StepLR, %.4f with it"):format(without, accuracy))
  end
  show(model, 1)
  moth.save({ model = model:state_dict(), optimizer = optimizer:state_dict(), test_acc = accuracy }, options.save)
  print(("Model saved. Final test accuracy: %.4f"):format(accuracy))
end

local function tune()
  local epochs, best, best_lr = math.min(options.epochs, 3), -1, nil
  local larger, held = data.random_split(train_data, { 0.9, 0.1 }, { generator = moth.Generator(options.seed) })
  local loader = data.DataLoader(larger, { batch_size = options.batch_size, shuffle = true })
  local held_out = data.DataLoader(held, { batch_size = options.batch_size })
  for _, lr in ipairs({ 1e-2, 3e-3, 1e-3, 3e-4, 1e-4 }) do
    local model = new_model()
    local optimizer = optim.Adam(model:parameters(), { lr = lr })
    for epoch = 1, epochs do
      train_one_epoch(model, loader, optimizer, ("lr %g, epoch %d/%d"):format(lr, epoch, epochs))
    end
    local loss, accuracy = evaluate(model, held_out)
    print(("lr %-6g held-out loss %.4f accuracy %.4f after %d epochs"):format(lr, loss, accuracy, epochs))
    if accuracy > best then best, best_lr = accuracy, lr end
  end
  print(("Best: --lr %g"):format(best_lr))
end

local stages = { overfit = overfit, full = full, tune = tune }
stages[options.stage]()
