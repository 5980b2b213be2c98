--- Overfit one batch: the cheapest test of a model and its training loop. If the loss of a single batch does not
-- go to zero within a hundred steps, there is a bug. The images are UCI's digits, which come with moth.
local moth = require "moth"
local nn, optim, T = moth.nn, moth.optim, moth.transforms

moth.manual_seed(42)
local ds = moth.datasets.Digits { transform = T.Compose { T.ToTensor(), T.Normalize({ 0.31 }, { 0.38 }) } }
local images, labels = moth.data.DataLoader(ds, { batch_size = 64 }):iter()()

local model = nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
local optimizer = optim.Adam(model:parameters(), { lr = 1e-3 })
local criterion = nn.CrossEntropyLoss()

local first, last
for step = 1, 100 do
  optimizer:zero_grad()
  local loss = criterion(model(images), labels)
  loss:backward()
  optimizer:step()
  last = loss:item()
  first = first or last
  if step % 20 == 0 then print(("step %3d loss %.4f"):format(step, last)) end
end
print(("loss %.4f -> %.4f after 100 steps: %s"):format(first, last,
  last < 0.05 and "the loop learns" or "the loop has a bug"))
