-- The lab of the course as a whole, on the digits that come with moth: no data, no network, seconds.
local ffi = require "ffi"
local moth = require "moth"
local nn, optim, data, datasets, T = moth.nn, moth.optim, moth.data, moth.datasets, moth.transforms

local luajit = os.getenv("LUAJIT") or "luajit"

-- The lines that a script writes to stdout.
local function run(command, program)
  local pipe = assert(io.popen((program or luajit) .. " " .. command .. " 2>/dev/null"))
  local lines = {}
  for line in pipe:lines() do lines[#lines + 1] = line end
  pipe:close()
  return lines
end

local function lab(options) return run("examples/fashion_mnist.lua --dataset digits --device cpu " .. options) end

-- A folder with the four IDX files of real images, with the names of MNIST's: the digits as 28x28.
local function idx_folder()
  local folder = os.tmpname()
  os.remove(folder)
  assert(os.execute(("mkdir '%s'"):format(folder)) == 0)
  finally(function() os.execute(("rm -r '%s'"):format(folder)) end)
  local function write(name, dims, bytes)
    local f = assert(io.open(folder .. "/" .. name, "wb"))
    f:write("\0\0\8", string.char(#dims))
    for _, n in ipairs(dims) do f:write("\0\0", string.char(math.floor(n / 256), n % 256)) end
    f:write(ffi.string(bytes:contiguous():data(), bytes:numel()))
    f:close()
  end
  for part, split in pairs { train = "train", t10k = "test" } do
    local ds = datasets.Digits { split = split, size = 28 }
    local n = ds:size()
    write(part .. "-images-idx3-ubyte", { n, 28, 28 }, ds.images)
    write(part .. "-labels-idx1-ubyte", { n }, (ds.labels - 1):to(moth.uint8))
  end
  return folder
end

local function temporary()
  local path = os.tmpname()
  finally(function() os.remove(path) end)
  return path
end

local number = "%d+%.%d%d%d%d"
local epoch_line = ("^Epoch [ %%d]%%d/2 Train Loss: %s Acc: %s Test Loss: %s Acc: %s$"):format(number, number, number,
  number)

describe("the lab", function()
  it("is one script with the lab's lines #M518 #M519 #M520 #M525 #M528", function()
    local path = temporary()
    local lines = lab("--limit 640 --epochs 2 --save " .. path)
    assert.equal("Training on: cpu", lines[1])
    assert.equal("FashionClassifier(", lines[2])
    assert.equal("    (1): Linear(in_features=784, out_features=256, bias=True)", lines[5])
    assert.equal("Parameters: 269,322", lines[14])
    assert.matches(epoch_line, lines[15])
    assert.matches("^Epoch  1/2 ", lines[15])
    assert.matches(epoch_line, lines[16])
    assert.matches("^Model saved%. Final test accuracy: 0%.%d%d%d%d$", lines[#lines])
    local checkpoint = moth.load(path)
    assert.equal(tonumber(lines[#lines]:match("[%d.]+$")), tonumber(("%.4f"):format(checkpoint.test_acc)))
    assert.same({ "net.1.weight", "net.1.bias", "net.4.weight", "net.4.bias", "net.7.weight", "net.7.bias" },
      checkpoint.model:keys())
    assert.equal(6, #checkpoint.optimizer.state)
    assert.equal(20, checkpoint.optimizer.state[1].step)
    local before = tonumber(lines[15]:match("Train Loss: ([%d.]+)"))
    assert.is_true(tonumber(lines[16]:match("Train Loss: ([%d.]+)")) < before)
  end)

  it("divides MNIST's test images where they are all there is, and says so", function()
    if not datasets.MNIST.available(nil, "t10k") or datasets.MNIST.available(nil, "train") then
      return pending("needs a $MOTH_DATA with MNIST's t10k files alone")
    end
    local pipe = assert(io.popen(luajit .. " examples/fashion_mnist.lua --dataset mnist --device cpu --epochs 1 " ..
      "--limit 640 --save " .. temporary() .. " 2>&1"))
    local text = pipe:read("*a")
    pipe:close()
    assert.matches("Only MNIST's test images are here: the first 8,000 of them train, the last 2,000 test.\n" ..
      "MNIST: 10000 images of [28, 28], 10 classes\n", text, 1, true)
    assert.is_true(tonumber(text:match("Final test accuracy: ([%d.]+)")) > 0.6)
  end)

  it("falls back to the digits and says so in a line, the small CNN as well", function()
    local pipe = assert(io.popen(("env -u MOTH_DATA PATH=/nowhere %s examples/fashion_cnn.lua --device cpu " ..
      "--epochs 1 --limit 64 --data /nowhere 2>&1"):format(luajit:find("/") and luajit or "$(which " .. luajit .. ")")))
    local text = pipe:read("*a")
    pipe:close()
    assert.matches("^No FashionMNIST here %(cannot [^\n]+%): training on the digits that come with moth%.\n"
      .. "Digits: 1438 images of %[28, 28%], 10 classes\n", text)
    assert.matches("\nFinal test accuracy: 0%.%d+\n$", text)
  end)

  it("learns the digits: over 0.95 of those held out, with a curve and a picture", function()
    local lines = lab("--save " .. temporary())
    assert.is_true(tonumber(lines[#lines]:match("accuracy: ([%d.]+)$")) > 0.95, lines[#lines])
    local text = table.concat(lines, "\n")
    assert.matches("Epoch 20/20 ", text, 1, true)
    assert.matches("Test accuracy by epoch:\n +[%d.]+ ┤", text)
    assert.matches("Test image 1: predicted 4 %([%d.]+ %%%), labelled 4\n", text)
  end)

  -- The rows' figures are FashionMNIST's, whose 60,000 and 10,000 images are not here: the next one compares them where
  -- they are. Without them: real images from IDX files go the same way, in the same form, to the same final bound.
  it("goes the rows' way on IDX files of other real images #M521 #M522 #M523 #M524", function()
    local lines = run(("examples/fashion_mnist.lua --dataset idx --data %s --epochs 10 --device cpu --save %s"):format(
      idx_folder(), temporary()))
    local losses, accuracies = {}, {}
    for _, line in ipairs(lines) do
      local epoch, loss, accuracy = line:match("^Epoch +(%d+)/10 Train Loss: [%d.]+ Acc: [%d.]+ Test Loss: ([%d.]+) "
        .. "Acc: ([%d.]+)$")
      if epoch then losses[tonumber(epoch)], accuracies[tonumber(epoch)] = tonumber(loss), tonumber(accuracy) end
    end
    assert.equal(10, #losses)
    assert.is_true(losses[1] > losses[2] and losses[2] > losses[3] and losses[3] > losses[10])
    assert.is_true(accuracies[1] < accuracies[3] and accuracies[10] >= 0.875, accuracies[10])
  end)

  it("has the figures of the course on FashionMNIST itself #slow #M521 #M522 #M523 #M524", function()
    if not datasets.FashionMNIST.available(nil, "train") then return pending("FashionMNIST is not in $MOTH_DATA") end
    local text = table.concat(run("examples/fashion_mnist.lua --dataset fashion --save " .. temporary()), "\n")
    for epoch, wanted in pairs { [1] = { 0.5298, 0.8109, 0.4213, 0.8505 }, [2] = { 0.3876, 0.8590, 0.3887, 0.8586 },
      [3] = { 0.3510, 0.8712, 0.3601, 0.8684 }, [10] = { 0.2623, 0.9019, 0.3294, 0.8832 } } do
      local row = { text:match(("Epoch %2d/10 Train Loss: (%%S+) Acc: (%%S+) Test Loss: (%%S+) Acc: (%%S+)"):format(
        epoch)) }
      for k, tolerance in ipairs { 0.03, 0.015, 0.03, 0.015 } do
        assert.is_near(wanted[k], tonumber(row[k]), tolerance, ("epoch %d, column %d"):format(epoch, k))
      end
    end
  end)

  -- The row's bound is for FashionMNIST; without it, the same script on IDX files of other real images.
  it("has a CNN with over 90 % of the test images right #M531", function()
    local fashion = datasets.FashionMNIST.available(nil, "train")
    local lines = run("examples/fashion_cnn.lua --device cpu " .. (fashion and "--dataset fashion" or
      "--dataset idx --epochs 2 --lr 3e-3 --data " .. idx_folder()))
    assert.is_true(tonumber(lines[#lines]:match("^Final test accuracy: ([%d.]+)$")) > 0.9, lines[#lines])
  end)

  it("normalises by what stats says: mean and deviation of all pixels #M533", function()
    local sum, squares, n = 0, 0, 0
    for _, split in ipairs { "train", "test" } do
      for _, v in ipairs(datasets.Digits({ split = split }).images:flatten():totable()) do
        sum, squares, n = sum + v / 255, squares + (v / 255) ^ 2, n + 1
      end
    end
    assert.equal(1797 * 64, n)
    assert.is_near(4.8842 / 16, sum / n, 1e-3) -- of all the 1,797 as they were published, 0 to 16
    local both = data.ConcatDataset { datasets.Digits(), datasets.Digits { split = "test" } }
    local mean, std = datasets.stats(both)
    assert.is_near(sum / n * 255, mean, 1e-9)
    assert.is_near(math.sqrt(squares / n - (sum / n) ^ 2) * 255, std, 1e-9)
    if datasets.FashionMNIST.available(nil, "train") then -- the row's own figures
      mean, std = datasets.stats(datasets.FashionMNIST(nil, { train = true }))
      assert.same({ "0.2860", "0.3530" }, { ("%.4f"):format(mean), ("%.4f"):format(std) })
    end
  end)

  it("prints gradient norms before and after clipping #M532", function()
    local text = table.concat(lab("--limit 320 --epochs 1 --clip 0.5 --save " .. temporary()), "\n")
    local before, after = text:match("Gradient norm %(mean of 5 steps%): (%S+) before clipping, (%S+) after")
    assert.is_true(tonumber(before) > 0.5)
    assert.is_true(tonumber(after) <= 0.5001)
  end)

  it("has a stage that overfits one batch, and StepLR to compare #M541 #M530", function()
    local lines = lab("--limit 64 --stage overfit")
    local loss = tonumber(lines[#lines]:match("without dropout: ([%d.]+)"))
    assert.is_true(loss < 0.05)
    lines = lab("--limit 64 --epochs 1 --hidden 8 --steplr --save " .. temporary())
    assert.matches("Test accuracy: 0%.%d+ without StepLR, 0%.%d+ with it", table.concat(lines, "\n"))
  end)

  it("train and evaluate on the digits #M526 #M527 #M540", function()
    moth.manual_seed(42)
    local t = T.Compose({ T.ToTensor(), T.Normalize({ 0.31 }, { 0.38 }) })
    local train = data.DataLoader(datasets.Digits { transform = t }, { batch_size = 64, shuffle = true })
    local test = data.DataLoader(datasets.Digits { train = false, transform = t }, { batch_size = 64 })
    local model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 10))
    local criterion, optimizer = nn.CrossEntropyLoss(), optim.Adam(model:parameters(), { lr = 3e-3 })
    local losses = {}
    for _ = 1, 3 do
      local sum = 0
      for images, labels in train:iter() do
        optimizer:zero_grad()
        local outputs = model(images)
        local loss = criterion(outputs, labels)
        loss:backward()
        optimizer:step()
        sum = sum + loss:item()
      end
      losses[#losses + 1] = sum / train:size()
    end
    assert.is_true(losses[1] < 2.2 and losses[2] < losses[1] and losses[3] < losses[2])
    model:eval()
    local correct = moth.no_grad(function()
      local n = moth.zeros({ dtype = moth.int64 })
      for images, labels in test:iter() do n:add_(model(images):argmax(2):eq(labels):sum()) end
      return n:item()
    end)
    assert.is_true(correct / 359 > 0.8)
  end)

  it("gives the same bits when it is run again", function()
    local function weights()
      moth.manual_seed(42)
      local ds = datasets.Digits { transform = T.ToTensor() }
      local loader = data.DataLoader(ds, { batch_size = 128, shuffle = true })
      local model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.Linear(16, 10))
      local optimizer = optim.AdamW(model:parameters())
      for _, x, y in loader() do
        optimizer:zero_grad()
        nn.functional.cross_entropy(model(x), y):backward()
        optimizer:step()
      end
      return nn.utils.parameters_to_vector(model:parameters())
    end
    assert.is_true(weights():equal(weights()))
  end)
end)

describe("the lab's exercises #quick", function()
  it("shapes: a linear layer, a mean, attention #M534", function()
    local x = moth.randn(32, 128, 512)
    assert.equal("[32, 128, 1024]", tostring(nn.Linear(512, 1024)(x):size()))
    assert.equal("[32, 512]", tostring(x:mean(2):size()))
    local weights = x:matmul(x:transpose(2, 3)):div(math.sqrt(512)):softmax(3)
    assert.equal("[32, 128, 512]", tostring(weights:matmul(x):size()))
  end)

  it("what autograd does: error, 1/12 each, error #M535 #M097", function()
    assert.error(function() moth.randn(3, 4):mean():backward() end)
    local x = moth.randn(3, 4, { requires_grad = true })
    x:mean():backward()
    assert.is_true(x.grad:allclose(moth.full({ 3, 4 }, 1 / 12)))
    local y = moth.no_grad(function() return x:mean() end)
    assert.error(function() y:backward() end)
  end)

  it("two backwards without zero_grad add up", function() -- of row M538, whose third answer is about compile
    local p = nn.Parameter(moth.tensor({ 2, 3 }))
    for _ = 1, 2 do (p * p):sum():backward() end
    assert.same({ 8, 12 }, p.grad:totable())
  end)
end)

describe("small examples", function()
  it("regression in twelve lines #M215 #M536", function()
    local lines = run("examples/regression12.lua")
    assert.equal(10, #lines)
    local first, last = tonumber(lines[1]:match("loss ([%d.]+)")), tonumber(lines[10]:match("loss ([%d.]+)"))
    assert.matches("^epoch 90 loss", lines[10])
    assert.is_true(last < first / 5)
  end)

  it("one batch is overfitted #M529", function()
    local lines = run("examples/overfit_batch.lua")
    assert.is_true(tonumber(lines[#lines]:match("-> ([%d.]+) after 100 steps")) < 0.05)
  end)

  it("AdamW in Lua matches optim.AdamW #M207", function()
    assert.matches("the same algorithm", run("examples/adamw.lua")[1], 1, true)
  end)

  it("a two-layer model, a weighted sampler, four silent bugs #M176 #M230 #M537", function()
    assert.matches("output shape: [32, 10]", table.concat(run("examples/simple_model.lua"), "\n"), 1, true)
    local lines = run("examples/weighted_sampler.lua")
    assert.is_near(10, tonumber(lines[1]:match("([%d.]+) %%")), 0.5)
    assert.is_near(50, tonumber(lines[2]:match("([%d.]+) %%")), 5)
    lines = run("examples/silent_bugs.lua")
    assert.is_true(tonumber(lines[5]:match("norm ([%d.]+)")) > 2 * tonumber(lines[2]:match("norm ([%d.]+)")))
    assert.matches("two passes agree: true", lines[7], 1, true)
    assert.matches("does not require grad", lines[#lines], 1, true)
  end)

  it("an optimizer of one's own agrees with optim.SGD #M206", function()
    for _, level in ipairs(require "levels") do
      local text = run(("MOTH_CPU=%s %s examples/custom_optimizer.lua"):format(level, luajit), "")[1]
      assert.matches("after 10 steps; MySGD and optim.SGD agree to the bit", text, 1, true)
    end
  end)

  it("its self-check: devices, two backwards, compile and export #M538", function()
    -- 1. tensors on two devices are refused by name; one is moved to the other's
    moth.library.register_backend("labdev", {
      add = function(args, results) results[1]:copy_(args[1]:cpu() + args[2]:cpu()) end,
    })
    local a, b = moth.randn(3, 4), moth.randn(3, 4):to "labdev"
    local ok, message = pcall(function() return a + b end)
    assert.is_false(ok)
    assert.matches("same device", message)
    assert.is_true(moth.allclose(a + b:cpu(), (a:to(b:device()) + b):cpu()))
    -- 2. gradients add up until they are set to zero
    local w = moth.ones(3, { requires_grad = true })
    for _ = 1, 2 do (w * 2):sum():backward() end
    assert.same({ 4, 4, 4 }, w.grad:totable())
    -- 3. compile goes on in Lua where a value decides; export refuses that, and its program needs no Lua
    local function f(x) if x:sum():item() > 0 then return x * 2 end return x - 1 end
    assert.same({ 2, 2 }, moth.compile(f)(moth.ones(2)):totable())
    ok, message = pcall(moth.export, f, { moth.ones(2) })
    assert.is_false(ok)
    assert.matches("cond", message)
    local path = temporary()
    moth.export.save(moth.export(function(x) return x * 2 end, { moth.ones(2) }), path)
    assert.same({ 6, 6 }, moth.export.load(path)(moth.full({ 2 }, 3)):totable())
  end)
end)
