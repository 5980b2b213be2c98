-- moth.train: the loop against one by hand; a run that is broken off and gone on with, to the bit; what surrounds it.
local moth = require "moth"
local nn, optim, data, train = moth.nn, moth.optim, moth.data, moth.train
local json = require "cjson"

local folders = {}
local function folder()
  local path = os.tmpname()
  os.remove(path)
  folders[#folders + 1] = path
  return path
end

local function read(path)
  local f = assert(io.open(path))
  local text = f:read "*a"
  f:close()
  return text
end

-- A model, its data and a trainer of them; all follow from the seed.
local function make(o, loader_options)
  moth.manual_seed(3)
  local x = moth.randn(22, 4)
  local y = x:sum { dim = 2, keepdim = true }
  local model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))
  local opt = optim.AdamW(model:parameters(), { lr = 0.05 })
  local options = { loss = nn.MSELoss(), progress = false, scheduler = optim.lr_scheduler.StepLR(opt, 2, 0.5) }
  for key, value in pairs(o or {}) do options[key] = value end
  local trainer = train.Trainer(model, opt, options)
  local loader = { batch_size = 4, shuffle = true }
  for key, value in pairs(loader_options or {}) do loader[key] = value end
  local set = data.TensorDataset(x, y)
  return trainer, data.DataLoader(set, loader), data.DataLoader(set, { batch_size = 8 }), x, y
end

local function same(a, b)
  for name, t in a.model:state_dict():items() do
    assert.is_true(moth.equal(t, b.model:state_dict()[name]), name)
  end
end

describe("a Trainer", function()
  after_each(function()
    for _, path in ipairs(folders) do os.execute("rm -rf " .. path) end
    folders = {}
  end)

  it("trains as a loop by hand, to the bit", function()
    local trainer, loader = make { max_epochs = 2, clip_norm = 1 }
    local logs = trainer:fit(loader)
    assert.equal(12, trainer.steps)
    local other, by_hand = make()
    local sum
    for _ = 1, 2 do
      sum = 0
      for x, y in by_hand:iter() do
        other.optimizer:zero_grad()
        local loss = moth.F.mse_loss(other.model(x), y)
        loss:backward()
        nn.utils.clip_grad_norm_(other.model:parameters(), 1)
        other.optimizer:step()
        sum = sum + loss:item() * x:size(1)
      end
      other.scheduler:step()
    end
    same(trainer, other)
    assert.is_true(math.abs(logs.train_loss - sum / 22) < 1e-5) -- of samples: the last batch has two
  end)

  it("adds up the gradients of several batches", function()
    local function plain(o, batch)
      moth.manual_seed(3)
      local x = moth.randn(20, 4)
      local model = nn.Linear(4, 1)
      local opt = optim.SGD(model:parameters(), { lr = 0.1 })
      o.loss, o.progress = nn.MSELoss(), false
      local trainer = train.Trainer(model, opt, o)
      trainer:fit(data.DataLoader(data.TensorDataset(x, x:sum { dim = 2, keepdim = true }), { batch_size = batch }))
      return trainer
    end
    local a, b = plain({ accumulate = 4, max_epochs = 2 }, 2), plain({ max_epochs = 2 }, 8)
    assert.equal(6, a.steps) -- 10 batches: 4, 4 and 2
    assert.is_close(b.model.weight, a.model.weight, { rtol = 1e-5, atol = 1e-6 })
  end)

  for name, o in pairs {
    ["after an epoch"] = { stop = 12 }, ["within an epoch"] = { stop = 8 },
    ["with workers and a generator"] = { stop = 8, loader = { num_workers = 1, seed = 5 } },
    ["with an averaged model and accumulated gradients"] = { stop = 5, options = { ema = 0.9, accumulate = 2 } },
    ["in float16"] = { stop = 8, options = { amp = "float16", clip_norm = 1, clip_value = 0.5 } },
    ["in bfloat16, with a schedule of steps"] = { stop = 8, options = { amp = true, scheduler_every = "step" } },
  } do
    it("goes on to the bit " .. name, function()
      local function with(more)
        local options = { max_epochs = 4, monitor = "val_loss" }
        for key, value in pairs(o.options or {}) do options[key] = value end
        for key, value in pairs(more) do options[key] = value end
        return make(options, o.loader)
      end
      local whole, loader, val = with { folder = folder() }
      local logs = whole:fit(loader, val)

      local path = folder()
      local stopped
      stopped, loader, val = with { folder = path, save_every = 1, callbacks = { { on_step = function(_, t)
        if t.steps == o.stop + 1 then error("pulled the plug", 0) end -- the step after the last that was saved
      end } } }
      assert.error_matches(function() stopped:fit(loader, val) end, "^pulled the plug$")

      local again
      again, loader, val = with { folder = path, resume = true, callbacks = { {} } }
      moth.manual_seed(99)
      local seen
      table.insert(again.callbacks, 1, { on_fit_start = function(_, t) seen = t.steps end })
      table.remove(again.callbacks, 2)
      local logs_again = again:fit(loader, val)
      assert.equal(o.stop, seen)
      same(whole, again)
      assert.same(logs, logs_again)
      assert.equal(whole.steps, again.steps)
      assert.same({ whole.checkpoint:best() == nil, select(2, whole.checkpoint:best()) },
        { again.checkpoint:best() == nil, select(2, again.checkpoint:best()) })
    end)
  end

  it("keeps the best epochs and the last, and says what the run was", function()
    local path = folder()
    local values, i = { 5, 2, 4, 1, 3 }, 0
    local trainer, loader = make { max_epochs = 5, folder = path, monitor = "score", keep_best = 2,
      config = { width = 8 }, loggers = { "csv", "jsonl", "tensorboard" }, log_every = 2, callbacks = { {
        on_epoch = function(_, _, logs)
          i = i + 1
          logs.score = values[i]
        end } } }
    trainer:fit(loader)
    local names = {}
    for name in io.popen("ls " .. path):lines() do names[#names + 1] = name:gsub("^events.*", "events") end
    local listed = table.concat(names, " ")
    assert.matches("^best%-0002.moth best%-0004.moth events", listed)
    assert.matches("last.moth log.csv log.jsonl run.json$", listed)
    local best, value = trainer.checkpoint:best()
    assert.same({ path .. "/best-0004.moth", 1 }, { best, value })
    assert.equal(4, moth.load(best).epoch)
    local run = json.decode(read(path .. "/run.json"))
    assert.same({ width = 8 }, run.config)
    assert.equal(moth.version, run.starts[1].moth)
    local head = read(path .. "/log.csv"):match "^[^\n]*"
    assert.equal("epoch,loss,lr,step,score,train_loss", head)
    assert.equal(0.05 / 4, json.decode(read(path .. "/log.jsonl"):match "([^\n]*)\n$").lr)
  end)

  it("stops early, also when it is gone on with", function()
    local path, values, i = folder(), { 3, 2, 2.5, 2.5, 1 }, 0
    local function options()
      return { max_epochs = 9, folder = path, resume = true, callbacks = { { on_epoch = function(_, _, logs)
        i = i + 1
        logs.score = values[i]
      end }, train.EarlyStopping { monitor = "score", patience = 2 } } }
    end
    local trainer, loader = make(options())
    trainer:fit(loader)
    assert.equal(4, trainer.epoch)
    trainer, loader = make(options())
    trainer:fit(loader)
    assert.equal(4, trainer.epoch)
    assert.error_matches(function()
      local t, l = make { callbacks = { train.EarlyStopping "acc" } }
      t:fit(l)
    end, "no figure 'acc' after this epoch; there are: train_loss")
  end)

  it("measures, with the averaged weights where there are some", function()
    moth.manual_seed(1)
    local model = nn.Linear(3, 2)
    local opt = optim.SGD(model:parameters(), { lr = 0.1 })
    local labels = moth.randint(1, 2, { 10 })
    local loader = data.DataLoader(data.TensorDataset(moth.randn(10, 3), labels), { batch_size = 3 })
    local trainer = train.Trainer(model, opt, { loss = nn.CrossEntropyLoss(), progress = false, ema = 0.5,
      max_steps = 6, max_epochs = 100, metrics = { acc = moth.metrics.Accuracy("multiclass", { num_classes = 2 }),
        each = moth.metrics.Recall("multiclass", { num_classes = 2, average = "none" }) } })
    local logs = trainer:fit(loader, loader)
    assert.equal(6, trainer.steps)
    assert.equal(2, #logs.val_each)
    local right, n = 0, 0
    for x, y in loader:iter() do
      right, n = right + trainer.averaged(x):argmax(2):eq(y):sum():item(), n + y:numel()
    end
    assert.is_true(math.abs(right / n - logs.val_acc) < 1e-6)
    assert.is_false(moth.equal(trainer.averaged.module.weight, model.weight))
  end)

  it("runs compiled, and a step of the user's own", function()
    local plain, loader = make { max_epochs = 1 }
    plain:fit(loader)
    local other
    other, loader = make { max_epochs = 1, compile = true }
    other.loss, other.step = nil, function(net, x, y) return moth.F.mse_loss(net(x), y) end
    other:fit(loader)
    for name, t in plain.model:state_dict():items() do
      assert.is_close(t:float(), other.model:state_dict()[name]:float(), { rtol = 1e-4, atol = 1e-5 })
    end
  end)

  it("shows a bar", function()
    local out = {}
    local file = { write = function(_, ...) out[#out + 1] = table.concat { ... } end, flush = function() end }
    local trainer, loader, val = make { max_epochs = 2, callbacks = { train.ProgressBar { out = file } } }
    trainer:fit(loader, val)
    assert.matches("epoch 1/2  train_loss [%d.e-]+  val_loss [%d.e-]+\n", table.concat(out))
  end)

  it("finds a learning rate and leaves all as it was", function()
    local trainer, loader = make()
    local rng, before = moth.get_rng_state(), {}
    for name, t in trainer.model:state_dict():items() do before[name] = t:clone() end
    local found = train.find_lr(trainer, loader, { num_steps = 30, max_lr = 10 })
    assert.is_true(#found.lrs > 5 and #found.lrs <= 30 and found.suggestion > 1e-7)
    for name, t in trainer.model:state_dict():items() do assert.is_true(moth.equal(before[name], t), name) end
    assert.same(rng, moth.get_rng_state())
    assert.equal(0.05, trainer.optimizer.param_groups[1].lr)
    assert.error_matches(function() train.find_lr(trainer, loader, { min_lr = 2 }) end, "0 < min_lr < max_lr")
  end)

  it("ends where max_steps says, within an epoch too, and more steps go on from there to the bit", function()
    local path = folder()
    local function run(steps, o)
      local seen = {}
      o.max_steps, o.callbacks = steps, { { on_epoch = function(_, _, logs) seen[#seen + 1] = logs.train_loss end } }
      local t, loader, val = make(o) -- six batches an epoch
      t:fit(loader, val)
      return t, seen
    end
    local whole, losses = run(15, {})
    assert.same({ 15, 3 }, { whole.steps, whole.epoch })
    local options = { folder = path, resume = true, monitor = "train_loss", keep_best = 5 }
    assert.equal(8, run(8, options).steps)
    local again, later = run(15, options)
    same(whole, again)
    assert.same({ losses[2], losses[3] }, later)
    local epochs = {}
    for _, kept in ipairs(again.checkpoint.kept) do epochs[#epochs + 1] = kept[1] end
    table.sort(epochs)
    assert.same({ 1, 2, 3 }, epochs)
    assert.equal(6, run(6, {}).steps) -- an epoch's end is one
    assert.equal(1, run(6, {}).scheduler.last_epoch)
    assert.equal(0, run(5, {}).scheduler.last_epoch)
  end)

  it("says what is wrong", function()
    local model = nn.Linear(2, 2)
    local opt = optim.SGD(model:parameters(), { lr = 1 })
    assert.error_matches(function() train.Trainer(model, opt) end, "give loss.*or step")
    assert.error_matches(function() train.Trainer(model, opt, { loss = nn.MSELoss(), loggers = { "csv" } }) end,
      "logger 'csv' writes into the folder")
    assert.error_matches(function() train.Trainer(model, opt, { loss = nn.MSELoss(), epochs = 3 }) end,
      "unknown option 'epochs'")
    local loader = data.DataLoader(data.TensorDataset(moth.ones(2, 2), moth.ones(2, 2)))
    local t = train.Trainer(model, opt, { loss = nn.MSELoss { reduction = "none" }, progress = false })
    assert.error_matches(function() t:fit(loader) end, "loss must be a tensor of one element, got %[1, 2%]")
    t = train.Trainer(model, opt, { loss = nn.MSELoss(), progress = false, resume = true })
    assert.error_matches(function() t:fit(loader) end, "resume = true needs a folder")
    assert.error_matches(function() t:load_state_dict { version = 0 } end, "expected a state of a Trainer of version 1")
    assert.error_matches(function() t:fit { { moth.ones(2, 2) } } end, "expected a loader.*DataLoader, got table")
    assert.error_matches(function() t:validate(3) end, "expected a loader.*DataLoader, got number")
    t = train.Trainer(model, opt, { loss = nn.MSELoss(), progress = false, max_steps = 3 })
    local few = data.DataLoader(loader.dataset, { batch_size = 3, drop_last = true })
    assert.error_matches(function() t:fit(few) end, "the loader gave no batch; with drop_last")
    assert.error_matches(function() make { metrics = moth.metrics.MeanMetric() } end, "a table of metrics by name")
    assert.error_matches(function() make { callbacks = { { on_steps = function() end } } } end,
      "callback 1 has on_steps, which nothing calls; there are: on_setup, ")
  end)

  it("averages gradients over ranks by one option, and goes on there", function()
    local path = folder()
    os.execute("mkdir " .. path)
    local ranks = require "distributed.ranks"
    ranks.agree({ size = 2, code = ([[
      local nn, data, train = moth.nn, moth.data, moth.train
      local function make(o)
        moth.manual_seed(1)
        local x = moth.randn(16, 3)
        local model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.3), nn.Linear(4, 1))
        moth.manual_seed(10 + rank) -- another dropout on each rank
        o.loss, o.progress, o.ddp = nn.MSELoss(), false, true
        o.metrics = { mae = moth.metrics.MeanAbsoluteError() }
        local set = data.TensorDataset(x, x:sum { dim = 2, keepdim = true })
        local t = train.Trainer(model, moth.optim.SGD(model:parameters(), { lr = 0.1 }), o)
        return t, data.DataLoader(set, { batch_size = 2, shuffle = true }), data.DataLoader(set, { batch_size = 4 })
      end
      local function run(o)
        local t, loader, val = make(o)
        local ok, logs = pcall(t.fit, t, loader, val)
        return ok, logs, t.model:state_dict()["0.weight"]
      end
      local _, logs, weight = run { max_epochs = 3, accumulate = 2 }
      local stop = { on_step = function(_, t) if t.steps == 4 then error("stop", 0) end end }
      assert(not run { max_epochs = 3, accumulate = 2, folder = %q, save_every = 1, callbacks = { stop } })
      dist.barrier()
      local ok, again, other = run { max_epochs = 3, accumulate = 2, folder = %q, resume = true,
        callbacks = { {} } }
      assert(ok, again)
      assert(moth.equal(weight, other) and again.train_loss == logs.train_loss and again.val_mae == logs.val_mae)
      print "fine"
      local all = dist.all_gather_object(weight)
      assert(moth.equal(all[1], all[2]))]]):format(path, path) }, "fine\n")
  end)

  it("counts each sample once where ranks have unequal shares, and splits no sampler that it does not know", function()
    require("distributed.ranks").agree({ size = 2, code = [[
      local nn, data, train = moth.nn, moth.data, moth.train
      local x = moth.arange(1, 8):reshape(7, 1):float()
      local model = nn.Linear(1, 1)
      local t = train.Trainer(model, moth.optim.SGD(model:parameters(), { lr = 0.1 }), { ddp = true, progress = false,
        loss = nn.MSELoss(), metrics = { mae = moth.metrics.MeanAbsoluteError() } })
      local set = data.TensorDataset(x, x)
      local mae = t:validate(data.DataLoader(set, { batch_size = 2 })).val_mae
      assert(math.abs(mae - (model(x) - x):abs():mean():item()) < 1e-5)
      assert(t:validate(data.DataLoader(data.Subset(set, { 3 }))).val_mae >= 0) -- rank 1 has none
      local weighted = data.WeightedRandomSampler(moth.ones(7), 7)
      local ok, message = pcall(t.fit, t, data.DataLoader(set, { sampler = weighted }))
      assert(not ok and message:find "a sampler of its own is not split", message)
      print "fine"]] }, "fine\n")
  end)

  it("that is told to end saves, ends well, and goes on to the bit", function()
    local child = require "spec.child"
    local function run(path, step)
      return child(([[
        local moth = require "moth"
        moth.manual_seed(3)
        local model = moth.nn.Linear(4, 1)
        local x = moth.randn(22, 4)
        local trainer = moth.train.Trainer(model, moth.optim.AdamW(model:parameters(), { lr = 0.05 }), {
          loss = moth.nn.MSELoss(), progress = false, max_epochs = 4, folder = %q, preempt = true, resume = true,
          callbacks = { { on_step = function(_, t)
            if t.steps == %d then os.execute "kill -TERM $PPID" end
          end } } })
        local logs = trainer:fit(moth.data.DataLoader(moth.data.TensorDataset(x, x:sum { dim = 2, keepdim = true }),
          { batch_size = 4, shuffle = true }))
        io.write(("%%d %%.17g"):format(trainer.steps, logs.train_loss))
        io.stdout:flush()
        os.execute "kill -TERM $PPID" -- as before
        os.execute "sleep 10"]]):format(path, step))
    end
    local whole, status = run(folder(), 100)
    assert.matches("^24 ", whole)
    assert.not_equal(0, status)
    local path = folder()
    assert.same({ "", 0 }, { run(path, 9) })
    assert.equal(whole, (run(path, 100)))
    assert.error_matches(function() make { preempt = true } end, "preempt = true needs a folder")
  end)
end)
