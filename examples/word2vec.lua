--- Words as vectors by skip-gram with negative samples: each word tells its neighbours from drawn ones. The gradients
-- are rows of the table only, which optim.SparseAdam takes.
--
--     moth examples/word2vec.lua [--steps 400] [--dim 16] [--curve w2v.svg] [--checkpoint w2v.mth]
local moth = require "moth"
local training = require "moth.examples.training"
local nn, F = moth.nn, moth.nn.functional
local o = training.options { steps = 400, dim = 16, batch = 128, negatives = 4, lr = 0.02 }
moth.manual_seed(1)

-- Sentences of three kinds; words of one kind stand beside each other.
local kinds = {
  { "cat", "dog", "cow", "hen", "eats", "sleeps", "runs", "fur" },
  { "sun", "rain", "wind", "snow", "falls", "blows", "shines", "sky" },
  { "bread", "cheese", "soup", "salt", "bakes", "boils", "tastes", "pan" },
}
local words, id = {}, {}
for _, kind in ipairs(kinds) do
  for _, word in ipairs(kind) do
    words[#words + 1] = word
    id[word] = #words
  end
end
local pairs_of = {}
local g = moth.Generator():manual_seed(2)
for _ = 1, 300 do
  local kind = kinds[moth.randint(1, 4, { 1 }, { generator = g }):item()]
  local order = moth.randperm(#kind, { generator = g }):totable()
  for k = 1, 5 do pairs_of[#pairs_of + 1] = { id[kind[order[k]]], id[kind[order[k + 1]]] } end
end
local all = moth.tensor(pairs_of, { dtype = moth.int64 })

local input = nn.Embedding(#words, o.dim, { sparse = true })
local output = nn.Embedding(#words, o.dim, { sparse = true })
local opt = moth.optim.SparseAdam({ input.weight, output.weight }, { lr = o.lr })
local first, last = training.run(o, { input = input, output = output, opt = opt }, function()
  local batch = all:index_select(1, moth.randint(1, all:size(1) + 1, { o.batch }))
  local centre = input(batch:select(2, 1)):unsqueeze(3) -- (N, dim, 1)
  local drawn = moth.randint(1, #words + 1, { o.batch, o.negatives })
  local near = output(batch:select(2, 2)):unsqueeze(2):matmul(centre)
  local far = output(drawn):matmul(centre)
  opt:zero_grad()
  local loss = -(F.logsigmoid(near):mean() + F.logsigmoid(-far):mean() * o.negatives)
  loss:backward()
  opt:step()
  return loss:item()
end)

local unit = F.normalize(input.weight:detach(), { dim = 2 })
local near, right = (unit:matmul(unit:t()) - moth.eye(#words) * 2):argmax(2):totable(), 0
for i, word in ipairs(words) do
  if math.floor((near[i] - 1) / 8) == math.floor((i - 1) / 8) then right = right + 1 end
  if i % 8 == 1 then print(("nearest to %-6s %s"):format(word, words[near[i]])) end
end
print(("loss %.3f -> %.3f; %d of %d words are nearest to one of their kind"):format(first, last, right, #words))
