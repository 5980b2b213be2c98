-- A small language model with weights of 8 and 4 bits: tokens per second, bytes, and what is lost in perplexity.
-- moth examples/quant_llm.lua [--steps=400] [--layers=4] [--width=256] [--text=FILE]; with $MOTH_DATA it learns Tiny
-- Shakespeare, else a text that it makes itself.
local moth = require "moth"
local optim, q = moth.optim, moth.quantization
local now = moth.utils.system.now
moth.set_num_threads(1)

local options = moth.cli {
  { "--steps N", "", 400 }, { "--layers N", "", 4 }, { "--width N", "", 256 }, { "--context N", "", 64 },
  { "--batch N", "", 16 }, { "--seed N", "", 1 },
  { "--text FILE", "left out: $MOTH_DATA/tinyshakespeare.txt, or a text that it makes itself" },
}

local function read(path)
  local f = io.open(path, "rb")
  local text = f and f:read("*a")
  if f then f:close() end
  return text
end
local function own_text()
  local who = { "the king", "a fox", "my lord", "the sea", "no man" }
  local what = { "sleeps", "comes home", "is gone", "sings" }
  local parts = {}
  for i = 1, 4000 do
    parts[i] = who[(i * 7 + math.floor(i / 3)) % #who + 1] .. " " .. what[(i * i + math.floor(i / 5)) % #what + 1]
  end
  return table.concat(parts, ".\n")
end
local data = os.getenv("MOTH_DATA")
local text = options.text and assert(read(options.text), "cannot read " .. options.text)
  or data and read(data .. "/tinyshakespeare.txt")
print(text and ("%d characters"):format(#text) or "no --text and no $MOTH_DATA/tinyshakespeare.txt: its own text")
text = text or own_text()

-- Bytes in order of their codes are tokens 1, 2, …; a call takes some thousand values.
local pieces = {}
for i = 1, #text, 4000 do pieces[#pieces + 1] = moth.tensor({ text:byte(i, i + 3999) }, { dtype = moth.int64 }) end
local bytes_of_text = moth.cat(pieces)
local rank, count = moth.zeros({ 256 }, { dtype = moth.int64 }), 0
for _, b in ipairs(moth.unique(bytes_of_text):tolist()) do
  count = count + 1
  rank[b + 1] = count
end
local ids = rank:index_select(1, bytes_of_text + 1)
local split = math.floor(ids:numel() * 0.9)
local train, valid = ids:narrow(1, 1, split), ids:narrow(1, split + 1, ids:numel() - split)

moth.manual_seed(options.seed)
local model = moth.models.GPT { vocab_size = count, n_layer = options.layers, n_head = 4, n_embd = options.width,
  block_size = 2 * options.context }
local T = options.context

local function batch(from, rows)
  local start = moth.randint(1, from:numel() - T, { rows }):tolist()
  local x, y = {}, {}
  for i, s in ipairs(start) do x[i], y[i] = from:narrow(1, s, T), from:narrow(1, s + 1, T) end
  return moth.stack(x), moth.stack(y)
end

local opt = optim.AdamW(model:parameters(), { lr = 1e-3 })
for step = 1, options.steps do
  local x, y = batch(train, options.batch)
  local _, loss = model(x, y)
  opt:zero_grad()
  loss:backward()
  opt:step()
  if step % 100 == 0 or step == options.steps then print(("step %d  loss %.3f"):format(step, loss:item())) end
end
model:eval()

local x, y = batch(valid, 128)
local function perplexity(m)
  return moth.no_grad(function()
    local _, loss = m(x, y)
    return math.exp(loss:item())
  end)
end

-- One token after the other, from a cache of keys and values.
local function tokens_per_second(m)
  return moth.no_grad(function()
    local best, n = 0, T
    for _ = 1, 3 do
      local cache = m:new_cache(1, T + 8)
      local idx = x:narrow(1, 1, 1):narrow(2, 1, 8)
      m:decode(idx, cache)
      idx = idx:narrow(2, 8, 1)
      local start = now()
      for _ = 1, n - 1 do idx = m:decode(idx, cache, nil, true):argmax(3) end
      best = math.max(best, (n - 1) / (now() - start))
    end
    return best
  end)
end

local function bytes(m)
  local n = 0
  for _, t in m:state_dict():items() do n = n + t:numel() * t:element_size() end
  return n
end

local made = { { "float32", model }, { "int8", q.quantize_weights(model, { bits = 8 }) },
  { "int4", q.quantize_weights(model, { bits = 4, group = 32 }) } }
local base, speed = perplexity(model), nil
local row = "%-10s  %5.2f  %8s  %7s  %10.4f  %+.4f"
print "\nweights        MB  tokens/s  speedup  perplexity    loss"
for _, pair in ipairs(made) do
  local rate, p = tokens_per_second(pair[2]), perplexity(pair[2])
  speed = speed or rate
  print(row:format(pair[1], bytes(pair[2]) / 2 ^ 20, ("%.0f"):format(rate), ("%.2fx"):format(rate / speed), p,
    p - base))
end
-- llama.cpp's files hold blocks of 32 values, which are multiplied as they are
for _, kind in ipairs { "Q8_0", "Q4_0" } do
  local name = os.tmpname()
  local path = name .. ".gguf"
  moth.models.save_gguf(model, path, { type = kind })
  local size, loaded = #read(path), (moth.models.load(path))
  local rate, p = tokens_per_second(loaded), perplexity(loaded)
  os.remove(path)
  os.remove(name)
  print(row:format("GGUF " .. kind, size / 2 ^ 20, ("%.0f"):format(rate), ("%.2fx"):format(rate / speed), p, p - base))
end

print "\nthe worst layers of int4:"
local rows = tostring(q.compare(model, made[3][2], x))
local n = 0
for line in rows:gmatch("[^\n]+") do
  n = n + 1
  if n <= 4 then print(line) end
end
