--- A language model from a file of tokens that is mapped, not read: any text, byte by byte, becomes a .bin file of
-- 16-bit tokens; workers cut it into blocks.
--
--     moth examples/token_stream.lua [text file] [--steps 60]
local moth = require "moth"
local data, nn, optim = moth.data, moth.nn, moth.optim
local F = nn.functional

local options = moth.cli { { "[FILE]", "any text; left out: this file" }, { "--steps N", "", 60 } }
local text_path, steps = options.file, options.steps

-- 1 tokenize: byte b is token b, 0 to 255
local f = assert(io.open(text_path or arg[0], "rb"))
local text = f:read("*a")
f:close()
local bin = os.tmpname()
f = assert(io.open(bin, "wb"))
for from = 1, #text, 4096 do
  f:write((text:sub(from, from + 4095):gsub(".", "%0\0"))) -- little-endian, two bytes each
end
f:close()

-- 2 the stream: x are block_size tokens from a position on, y the ones that follow; positions, so from 1
moth.manual_seed(0)
local block = 32
local stream = data.TokenStream(bin, { block_size = block, dtype = moth.uint16 })
local loader = data.DataLoader(stream, { batch_size = 32, shuffle = true, num_workers = 2, drop_last = true, seed = 1 })
print(("%d tokens, %d blocks of %d"):format(#text, stream:size(), block))

-- 3 a model that looks at the last token: a table of what follows what, and a hidden layer
local model = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 256))
local opt = optim.AdamW(model:parameters(), { lr = 1e-2 })
local step, first, last = 0, nil, nil
while step < steps do
  for x, y in loader:iter() do
    step = step + 1
    opt:zero_grad()
    local loss = F.cross_entropy(model(x):view(-1, 256), y:view(-1))
    loss:backward()
    opt:step()
    last = loss:item()
    first = first or last
    if step % 20 == 0 then print(("step %d: loss %.3f"):format(step, last)) end
    if step >= steps then break end
  end
end
print(("loss %.2f -> %.2f nats a byte"):format(first, last))
os.remove(bin)
