--- A small GPT on the characters of a text, in several processes: gradients of several small batches add up before
-- they are sent (no_sync), are sent in half precision, and clipped.
--
--     moth run --nproc-per-node 2 examples/ddp_gpt.lua [--steps 60] [--text FILE]
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn

local options = moth.cli { { "--steps N", "", 60 }, { "--text FILE", "left out: one of its own" } }
dist.init_process_group("gloo")
local rank = dist.get_rank()

local text
if options.text then
  local f = assert(io.open(options.text))
  text = f:read "*a"
  f:close()
else
  text = ("the quick brown fox jumps over the lazy dog. pack my box with five dozen liquor jugs. "):rep(40)
end
local ids = {}
for i = 1, #text do ids[i] = text:byte(i) + 1 end
local tokens = moth.tensor(ids, { dtype = moth.int64 })

local WIDTH, BLOCK, PARTS = 48, 32, 2
local GPT = nn.class("GPT")
function GPT:__init()
  self.token, self.place = nn.Embedding(256, WIDTH), nn.Embedding(BLOCK, WIDTH)
  self.layers = nn.ModuleList {}
  for _ = 1, 2 do
    self.layers:append(nn.TransformerEncoderLayer(WIDTH, 4,
      { dim_feedforward = 4 * WIDTH, dropout = 0, batch_first = true, norm_first = true }))
  end
  self.head = nn.Linear(WIDTH, 256)
end
function GPT:forward(x)
  local mask = nn.Transformer.generate_square_subsequent_mask(x:size(2))
  local h = self.token(x) + self.place(moth.arange(1, x:size(2) + 1))
  for _, layer in ipairs(self.layers) do h = layer(h, mask) end
  return self.head(h)
end

moth.manual_seed(1)
local model = GPT()
local net = nn.parallel.DistributedDataParallel(model, { gradient_as_bucket_view = true })
net:register_comm_hook(dist.hooks.fp16)
local opt = moth.optim.AdamW(net:parameters(), { lr = 3e-3 })

local function batch()
  local x, y = {}, {}
  for i = 1, 8 do
    local at = moth.randint(1, #text - BLOCK, { 1 }):item()
    x[i], y[i] = tokens:narrow(1, at, BLOCK), tokens:narrow(1, at + 1, BLOCK)
  end
  return moth.stack(x), moth.stack(y)
end
local function backward()
  local x, y = batch()
  local loss = nn.functional.cross_entropy(net(x):reshape(-1, 256), y:reshape(-1)) / PARTS
  loss:backward()
  return loss:item()
end

moth.manual_seed(100 + rank) -- other pieces of the text on each rank
for step = 1, options.steps do
  opt:zero_grad()
  local sum = 0
  net:no_sync(function() for _ = 1, PARTS - 1 do sum = sum + backward() end end)
  sum = sum + backward() -- the gradients of all parts travel with this one
  nn.utils.clip_grad_norm_(net:parameters(), 1)
  opt:step()
  if rank == 0 and step % 10 == 0 then print(("step %d: loss %.3f"):format(step, sum)) end
end
dist.destroy_process_group()
