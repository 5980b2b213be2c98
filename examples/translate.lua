--- A transformer translates: numbers written in digits ("407") into words ("four zero seven"), turned around.
--
--     moth examples/translate.lua [--steps 300] [--curve t.svg] [--checkpoint t.mth]
local moth = require "moth"
local training = require "moth.examples.training"
local nn, F = moth.nn, moth.nn.functional
local o = training.options { steps = 300, batch = 32, width = 32, lr = 3e-3, longest = 5 }
moth.manual_seed(1)

-- Ids of both languages: 1 padding, 2 begin, 3 end, then the digits.
local PAD, BEGIN, END, FIRST = 1, 2, 3, 4
local names = { "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine" }

local function batch(n)
  local from, to = {}, {}
  for i = 1, n do
    local length, digits = math.random(2, o.longest), {}
    for k = 1, length do digits[k] = math.random(0, 9) end
    from[i], to[i] = {}, { BEGIN }
    for k = 1, o.longest do from[i][k] = digits[k] and digits[k] + FIRST or PAD end
    for k = length, 1, -1 do table.insert(to[i], digits[k] + FIRST) end
    table.insert(to[i], END)
    for k = #to[i] + 1, o.longest + 2 do to[i][k] = PAD end
  end
  return moth.tensor(from, { dtype = moth.int64 }), moth.tensor(to, { dtype = moth.int64 })
end

local Model = nn.class "Model"
function Model:__init()
  self.digits, self.words = nn.Embedding(FIRST + 10, o.width), nn.Embedding(FIRST + 10, o.width)
  self.place = nn.Embedding(o.longest + 2, o.width)
  self.transformer = nn.Transformer { d_model = o.width, nhead = 4, num_encoder_layers = 1, num_decoder_layers = 1,
    dim_feedforward = 2 * o.width, dropout = 0, batch_first = true }
  self.out = nn.Linear(o.width, FIRST + 10)
end
function Model:embed(table_of, ids)
  return table_of(ids) + self.place(moth.arange(1, ids:size(2) + 1, { dtype = moth.int64 }))
end
function Model:forward(from, to)
  local mask = nn.Transformer.generate_square_subsequent_mask(to:size(2))
  local padding = from:eq(PAD)
  return self.out(self.transformer(self:embed(self.digits, from), self:embed(self.words, to), { tgt_mask = mask,
    src_key_padding_mask = padding, memory_key_padding_mask = padding }))
end

math.randomseed(1)
local model = Model()
local opt = moth.optim.AdamW(model:parameters(), { lr = o.lr })
local sched = moth.optim.lr_scheduler.SequentialLR(opt, { moth.optim.lr_scheduler.LinearLR(opt, 0.1, 1, 20),
  moth.optim.lr_scheduler.CosineAnnealingLR(opt, o.steps) }, { 20 })
training.run(o, { model = model, opt = opt, sched = sched }, function()
  local from, to = batch(o.batch)
  local n = to:size(2)
  opt:zero_grad()
  local logits = model(from, to:narrow(2, 1, n - 1))
  local loss = F.cross_entropy(logits:reshape(-1, FIRST + 10), to:narrow(2, 2, n - 1):reshape(-1),
    { ignore_index = PAD })
  loss:backward()
  opt:step()
  sched:step()
  return loss:item()
end)

-- Word by word, the most probable one.
model:eval()
local from, want = batch(50)
local to = moth.full({ 50, 1 }, BEGIN, { dtype = moth.int64 })
moth.no_grad(function()
  for _ = 1, o.longest + 1 do to = moth.cat({ to, model(from, to):select(2, -1):argmax(2, true) }, 2) end
end)
local right = 0
for i = 1, 50 do
  local digits, said, same = {}, {}, true
  for _, d in ipairs(from[i]:totable()) do if d ~= PAD then digits[#digits + 1] = d - FIRST end end
  for k, w in ipairs(want[i]:totable()) do
    if w ~= PAD then same = same and to[i][k]:item() == w end
  end
  for k = 2, #digits + 1 do said[#said + 1] = names[to[i][k]:item() - FIRST + 1] or "?" end
  if same then right = right + 1 end
  if i <= 3 then print(("%-6s %s"):format(table.concat(digits), table.concat(said, " "))) end
end
print(("%d of 50 numbers are right"):format(right))
