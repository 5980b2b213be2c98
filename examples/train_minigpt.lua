--- A small GPT from a text corpus: the text becomes one .bin file of byte tokens, which is mapped; two workers cut
-- blocks out of it while the model trains; at the end it writes.
--
--     moth examples/train_minigpt.lua [--text FILE] [--steps 200] [--bin corpus.bin]
local moth = require "moth"
local data, optim = moth.data, moth.optim
local F = moth.nn.functional

local options = moth.cli { { "--text FILE", "left out: this file" }, { "--steps N", "", 200 },
  { "--bin FILE", "the tokens, which are left there" } }
local steps, block = options.steps, 64

-- 1 tokenize: byte b is token b, two bytes each
local f = assert(io.open(options.text or arg[0], "rb"))
local text = f:read("*a")
f:close()
if not options.text then text = text:rep(20) end -- this file is short
local bin = options.bin or os.tmpname()
f = assert(io.open(bin, "wb"))
for from = 1, #text, 4096 do f:write((text:sub(from, from + 4095):gsub(".", "%0\0"))) end
f:close()

-- 2 the stream of blocks, the model
moth.manual_seed(1)
local stream = data.TokenStream(bin, { block_size = block, dtype = moth.uint16 })
local loader = data.DataLoader(stream, { batch_size = 16, num_workers = 2, persistent_workers = true, seed = 1,
  sampler = data.RandomSampler(stream, { replacement = true, num_samples = 16 * steps }) })
local model = moth.models.GPT { vocab_size = 256, n_layer = 2, n_head = 4, n_embd = 64, block_size = block }
local opt = optim.AdamW(model:parameters(), { lr = 3e-3 })
print(("%d tokens, %d weights"):format(#text, model:num_parameters()))

-- 3 train
local first, last
for step, x, y in loader:enumerate() do
  opt:zero_grad()
  local loss = F.cross_entropy(model(x):view(-1, 256), y:view(-1))
  loss:backward()
  moth.nn.utils.clip_grad_norm_(model:parameters(), 1)
  opt:step()
  last = loss:item()
  first = first or last
  if step % 20 == 0 then print(("step %d: loss %.3f"):format(step, last)) end
end
print(("loss %.2f -> %.2f nats a byte"):format(first, last))

-- 4 write: tokens and positions differ by one
model:eval()
local ids = {}
for k = 1, 8 do ids[k] = text:byte(k) + 1 end
moth.no_grad(function()
  for _ = 1, 80 do
    local from = math.max(#ids - block + 1, 1)
    local context = moth.tensor({ unpack(ids, from) }, { dtype = moth.int64 }):view(1, -1)
    local logits = model(context)
    ids[#ids + 1] = moth.multinomial(F.softmax(logits[1][-1] / 0.7, 1), 1):item()
  end
end)
for k, id in ipairs(ids) do ids[k] = string.char(id - 1) end
print((table.concat(ids):gsub("[^%g%s]", "?")))
if not options.bin then os.remove(bin) end
