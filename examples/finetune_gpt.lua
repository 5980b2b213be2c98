-- Fine-tuning a language model to chat: a MiniGPT that has read a text learns to answer questions, the loss taken of
-- its answers alone; the result is one GGUF file, for examples/chat.lua, `moth chat` and `moth serve`.
--
--     moth examples/finetune_gpt.lua [--model FOLDER_OR_GGUF] [--text FILE] [--before 100] [--steps 400] [--batch 8]
--                                    [--lr 0.002] [--save chat.gguf]
--
-- --model: a GPT-2 or Llama that goes on from its weights, with its tokenizer. Without it a MiniGPT reads --text,
-- letter by letter, for --before steps first.
local moth = require "moth"
local nn, optim = moth.nn, moth.optim
local training = require "moth.examples.training"
local o = training.options { model = "", text = "", before = 100, steps = 400, batch = 8, lr = 2e-3,
  save = "chat.gguf" }
moth.manual_seed(1)

-- What is to be learned: replace it by your own.
local talks = {
  { "hello", "Hello! How are you?" }, { "who are you?", "I am MiniGPT." },
  { "what is a moth?", "An insect of the night." }, { "what is two and two?", "Four." },
  { "what is the capital of france?", "Paris." },
  { "what is the capital of italy?", "Rome." }, { "good night", "Sleep well!" }, { "thank you", "You are welcome." },
}

-- ---- the model and its tokenizer -----------------------------------------------------------------------

-- A token for each byte, and those that stand around the lines of a talk.
local function letters()
  local vocab, extra = {}, 0
  for b = 0, 255 do -- byte-level vocabularies write blanks and control bytes as other characters
    local plain = b >= 33 and b <= 126 or b >= 161 and b <= 172 or b >= 174
    local c = plain and b or 256 + extra
    if not plain then extra = extra + 1 end
    vocab[c < 128 and string.char(c) or string.char(0xc0 + math.floor(c / 64), 0x80 + c % 64)] = b
  end
  local added = {}
  for i, token in ipairs { "<|im_start|>", "<|im_end|>" } do
    added[i] = { id = 255 + i, content = token, special = true }
  end
  return moth.data.Tokenizer { model = { type = "BPE", vocab = vocab, merges = {} }, added_tokens = added,
    pre_tokenizer = { type = "ByteLevel", add_prefix_space = false } }
end

local net, tokenizer, template
if o.model ~= "" then
  local info
  net, tokenizer, info = moth.models.load(o.model)
  template = info.chat_template
  for _, p in ipairs(net:parameters()) do p:requires_grad_(true) end
else
  tokenizer, template = letters(), moth.llm.template.known.chatml
  net = moth.models.minigpt { vocab = tokenizer:size(), d_model = 96, n_layer = 3, n_head = 4, block_size = 256 }
  net.config.eos = { tokenizer:id "<|im_end|>" }
end
local talk = moth.llm.template.of(template, { tokenizer = tokenizer })

-- ---- reading ---------------------------------------------------------------------------------------------

local function step(opt, x, targets)
  opt:zero_grad()
  local logits = net(x)
  logits = logits:reshape(-1, logits:size(3))
  local loss = nn.functional.cross_entropy(logits, targets:reshape(-1), { ignore_index = 0 })
  loss:backward()
  nn.utils.clip_grad_norm_(net:parameters(), 1)
  opt:step()
  return loss:item()
end

local opt = optim.AdamW(net:parameters(), { lr = o.lr })
local function line(list) return moth.tensor(list, { dtype = moth.int64 }) end
if o.model == "" then
  local text = "the sea is calm tonight, the tide is full, the moon lies fair upon the straits. "
  if o.text ~= "" then
    local f = assert(io.open(o.text, "rb"))
    text = f:read "*a"
    f:close()
  end
  local ids = line(tokenizer:encode(text:rep(math.ceil(2000 / #text))))
  local loss
  for _ = 1, o.before do
    local rows = {}
    for b = 1, o.batch do rows[b] = ids:narrow(1, moth.randint(1, ids:size(1) - 64, { 1 }):item(), 65) end
    local x = moth.stack(rows, 1)
    loss = step(opt, x:narrow(2, 1, 64), x:narrow(2, 2, 64))
  end
  if loss then print(("after reading: loss %.3f"):format(loss)) end
end

-- ---- fine-tuning ------------------------------------------------------------------------------------------

-- The last answer of a talk, with what was said before it: ids, and targets, which are 0 (left out) before the answer.
local function lesson(messages)
  local answer = table.remove(messages).content
  local ids, targets = tokenizer:encode((talk(messages))), {}
  for k = 1, #ids do targets[k] = 0 end
  local from = #ids
  local new = tokenizer:encode((template and "" or " ") .. answer)
  new[#new + 1] = net.config.eos and net.config.eos[1] or tokenizer:encode("\n")[1]
  for k, id in ipairs(new) do ids[from + k], targets[from + k - 1] = id, id end
  ids[#ids] = nil
  return ids, targets
end

local function said(list, pair)
  list[#list + 1] = { role = "user", content = pair[1] }
  list[#list + 1] = { role = "assistant", content = pair[2] }
end

training.run(o, { net = net, opt = opt }, function()
  local rows, goals, longest = {}, {}, 0
  for b = 1, o.batch do
    local messages = {}
    for _ = 1, moth.randint(1, 3, { 1 }):item() do said(messages, talks[moth.randint(1, #talks + 1, { 1 }):item()]) end
    rows[b], goals[b] = lesson(messages)
    longest = math.max(longest, #rows[b])
  end
  for b = 1, o.batch do
    for k = #rows[b] + 1, longest do rows[b][k], goals[b][k] = 1, 0 end
  end
  return step(opt, line(rows), line(goals))
end)

net:eval()
local right = 0
for _, pair in ipairs(talks) do
  local answer = {}
  for piece in moth.llm.Chat(net, tokenizer, { template = template, temperature = 0, max_tokens = 40 }):say(pair[1]) do
    answer[#answer + 1] = piece
  end
  if table.concat(answer):match "^%s*(.-)%s*$" == pair[2] then right = right + 1 end
end
print(("%d of %d answers are right"):format(right, #talks))
moth.models.save_gguf(net, o.save, { tokenizer = tokenizer, chat_template = template })
print("saved " .. o.save .. ": moth examples/chat.lua --model " .. o.save)
