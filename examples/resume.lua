-- Training that is interrupted and continues from its checkpoint, to the bit: moth examples/resume.lua
-- The same training runs three times: whole; stopped in the middle of an epoch; and from the file to its end.
local moth = require "moth"
local nn, optim, data = moth.nn, moth.optim, moth.data

local kept = moth.cli({ { "[FILE]", "the checkpoint, which is left there" } }).file
local path = kept or os.tmpname()

-- `parts` are all objects that change during training; each has a state_dict.
local function make()
  moth.manual_seed(42)
  local x = moth.randn(100, 8)
  local dataset = data.TensorDataset(x, x:sum{ dim = 2, keepdim = true })
  local model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
  local optimizer = optim.AdamW(model:parameters(), { lr = 0.01 })
  return {
    model = model, optimizer = optimizer,
    scheduler = optim.lr_scheduler.CosineAnnealingLR(optimizer, { T_max = 40 }),
    loader = data.DataLoader(dataset, { batch_size = 16, shuffle = true, generator = moth.Generator(1) }),
  }
end

local function save(parts, step)
  local checkpoint = { step = step, rng = moth.get_rng_state() } -- rng: of dropout
  for name, part in pairs(parts) do checkpoint[name] = part:state_dict() end
  moth.save(checkpoint, path)
end

local function load(parts)
  local checkpoint = moth.load(path)
  for name, part in pairs(parts) do part:load_state_dict(checkpoint[name]) end
  moth.set_rng_state(checkpoint.rng)
  return checkpoint.step
end

-- Trains to step `last` and returns the loss there.
local function train(parts, step, last)
  while true do
    for x, y in parts.loader:iter() do
      parts.optimizer:zero_grad()
      local loss = nn.functional.mse_loss(parts.model(x), y)
      loss:backward()
      parts.optimizer:step()
      parts.scheduler:step()
      step = step + 1
      if step == last then return loss:item() end
    end
  end
end

local whole = make()
print(("whole:   loss %.9g at step 40"):format(train(whole, 0, 40)))

local first = make()
print(("stopped: loss %.9g at step 17, within epoch 3"):format(train(first, 0, 17)))
save(first, 17)

local second = make()
moth.manual_seed(7) -- another state, as a new process has
local step = load(second)
print(("resumed: loss %.9g at step 40"):format(train(second, step, 40)))

local equal = true
for name, t in whole.model:state_dict():items() do
  equal = equal and t:equal(second.model:state_dict()[name])
end
print("all weights are the same bits: " .. tostring(equal))
if not kept then os.remove(path) end
