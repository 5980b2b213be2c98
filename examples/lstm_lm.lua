--- A language model of bytes by an LSTM: parallel streams of a text, whose state goes on from batch to batch
-- (truncated backpropagation through time); at the end it writes.
--
--     moth examples/lstm_lm.lua [--text FILE] [--steps 200] [--curve lm.svg] [--checkpoint lm.mth]
local moth = require "moth"
local training = require "moth.examples.training"
local nn, F = moth.nn, moth.nn.functional
local o = training.options { steps = 200, text = arg[0], hidden = 96, length = 32, streams = 16, lr = 0.02 }
moth.manual_seed(1)

local f = assert(io.open(o.text, "rb"))
local text = f:read "*a"
f:close()
while #text < 4 * o.streams * o.length do text = text .. text end
local bytes = moth.tensor({ text:byte(1, math.min(#text, 7000)) }, { dtype = moth.int64 }) + 1 -- ids count from 1

local Model = nn.class "Model"
function Model:__init()
  self.embed = nn.Embedding(256, 32)
  self.lstm = nn.LSTM(32, o.hidden, { batch_first = true })
  self.out = nn.Linear(o.hidden, 256)
end
--- x (N, T), state -> logits (N, T, 256), new state
function Model:forward(x, state)
  local h, new = self.lstm(self.embed(x), state)
  return self.out(h), new
end

local model = Model()
local opt = moth.optim.AdamW(model:parameters(), { lr = o.lr })
local sched = moth.optim.lr_scheduler.OneCycleLR(opt, o.lr, o.steps + 1)
print(("%d bytes, %d weights"):format(bytes:numel(), model:num_parameters()))

-- Streams (N, length of one): stream n reads its own part of the text.
local each = math.floor((bytes:numel() - 1) / o.streams)
local x = bytes:narrow(1, 1, each * o.streams):view(o.streams, each)
local y = bytes:narrow(1, 2, each * o.streams):view(o.streams, each)
local chunks = math.floor(each / o.length)
local state
local first, last = training.run(o, { model = model, opt = opt, sched = sched }, function(i)
  local chunk = (i - 1) % chunks
  if chunk == 0 then state = nil end
  if state then state = { state[1]:detach(), state[2]:detach() } end
  opt:zero_grad()
  local logits, new = model(x:narrow(2, chunk * o.length + 1, o.length), state)
  local loss = F.cross_entropy(logits:reshape(-1, 256), y:narrow(2, chunk * o.length + 1, o.length):reshape(-1))
  loss:backward()
  nn.utils.clip_grad_norm_(model:parameters(), 1)
  opt:step()
  sched:step()
  state = new
  return loss:item()
end)
print(("perplexity %.1f -> %.1f"):format(math.exp(first), math.exp(last)))

local ids, at = { text:byte(1, 8) }, nil
moth.no_grad(function()
  model:eval()
  local logits
  for i = 1, 100 do
    local from = i == 1 and { unpack(ids) } or { ids[#ids] }
    logits, at = model((moth.tensor(from, { dtype = moth.int64 }) + 1):view(1, -1), at)
    ids[#ids + 1] = moth.multinomial(F.softmax(logits[1][-1] / 0.6, 1), 1):item() - 1
  end
end)
print((string.char(unpack(ids)):gsub("[^%g%s]", "?")))
