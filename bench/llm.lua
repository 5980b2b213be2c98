--- Language models: tokens a second of a GPT-2 (124 M parameters, random) beside PyTorch's, eager, in turn; paged
-- attention beside contiguous; tokenizers beside the tokenizers package. Medians of the rounds, and the load.
--   luajit bench/llm.lua [--threads=1,2] [--tokens=24] [--rounds=5] [--no-torch] [--tokenizer=FILE] [--text=FILE]
local moth = require "moth"
local now = moth.utils.system.now

local o = moth.cli { { "--threads N,…", "", { 1, 2 }, type = "integer[]" }, { "--tokens N", "", 24 },
  { "--rounds N", "", 5 }, { "--torch", "beside PyTorch", true },
  { "--tokenizer FILE", "", "spec/data/fixtures/tokenizer_gpt2.json" }, { "--text FILE", "" } }

local function median(list)
  local sorted = { unpack(list) }
  table.sort(sorted)
  return sorted[math.floor(#sorted / 2) + 1]
end
local function load()
  local f = io.open "/proc/loadavg"
  local text = f and f:read "*l" or ""
  if f then f:close() end
  return text:match "^%S+" or "-"
end

-- ---- the other process -------------------------------------------------------------------------------

local ask = function() return nil end
if o.torch then
  local fifo = os.tmpname()
  os.execute(("rm %s && mkfifo %s"):format(fifo, fifo))
  local pipe = io.popen("python3 bench/llm_torch.py < " .. fifo .. " 2>/dev/null")
  local to = assert(io.open(fifo, "w"))
  os.remove(fifo)
  function ask(...)
    to:write(table.concat({ ... }, " "), "\n")
    to:flush()
    local line = pipe:read "*l" or "none"
    return tonumber(line), line
  end
end

local function row(name, moths, theirs, unit)
  print(("| %s | %.3g %s | %s | %s | %s |"):format(name, moths, unit, theirs and ("%.3g"):format(theirs) or "-",
    theirs and ("%.2f"):format(moths / theirs) or "-", load()))
end
print "| row | moth | PyTorch, eager (transformers) | ratio | load |\n|---|---|---|---|---|"

-- ---- decoding ----------------------------------------------------------------------------------------

moth.manual_seed(1)
local net = moth.models.GPT { vocab_size = 50257 }:eval()
local PROMPT = 32

-- Seconds of `tokens` steps of sequences that run together, behind their prompts.
local function decode(batch, tokens)
  local s = moth.llm.Scheduler(net, { max_seqs = batch, max_tokens = batch * (PROMPT + tokens + 16),
    step_tokens = 1024, share_prefix = "none" })
  for b = 1, batch do
    local ids = {}
    for i = 1, PROMPT do ids[i] = (i * 7919 + b * 104729) % 50257 + 1 end
    s:add { ids = ids, max_tokens = tokens + 1, temperature = 0 }
  end
  s:step() -- the prompts
  local begun = now()
  while s:step() > 0 do end -- luacheck: ignore 542
  return now() - begun
end

for _, threads in ipairs(o.threads) do
  moth.set_num_threads(threads)
  local one
  for _, batch in ipairs { 1, 8 } do
    local own, others = {}, {}
    decode(batch, 2)
    ask("decode", threads, batch, PROMPT, 2)
    for r = 1, o.rounds do
      own[r] = decode(batch, o.tokens)
      others[r] = ask("decode", threads, batch, PROMPT, o.tokens)
    end
    local speed = batch * o.tokens / median(own)
    row(("decode, %s thread%s, %d sequence%s"):format(threads, threads == "1" and "" or "s", batch,
      batch == 1 and "" or "s"), speed, #others > 0 and batch * o.tokens / median(others) or nil, "tokens/s")
    if batch == 1 then one = speed else row("  8 sequences, times one's", speed / one, nil, "x") end
  end
end

-- ---- attention of one token of each layer's cache, contiguous and in blocks ---------------------------

moth.set_num_threads(1)
local int = { dtype = moth.int64 }
for _, length in ipairs { 256, 1024 } do
  local LAYERS, H, P, D = 12, 12, 16, 64 -- all layers' caches, in turn: none stays in the processor's
  local caches = {}
  for i = 1, LAYERS do
    caches[i] = { moth.randn(1, H, length, D), moth.randn(1, H, length, D), moth.randn(length / P, H, P, D),
      moth.randn(length / P, H, P, D) }
  end
  local q, blocks = moth.randn(1, H, 1, D), moth.randperm(length / P):view(1, -1)
  local lengths, counts, flat = moth.tensor({ length }, int), moth.tensor({ 1 }, int), q:view(1, H, D)
  local a, b = {}, {}
  for r = 1, 4 * o.rounds do
    local begun = now()
    for i = 1, LAYERS do moth.scaled_dot_product_attention(q, caches[i][1], caches[i][2]) end
    local between = now()
    for i = 1, LAYERS do moth.paged_attention(flat, caches[i][3], caches[i][4], blocks, lengths, counts) end
    a[r], b[r] = (between - begun) / LAYERS, (now() - between) / LAYERS
  end
  print(("| attention of a token to %d: paged %.3g ms, contiguous %.3g ms | %.2f of contiguous | | | %s |"):format(
    length, median(b) * 1e3, median(a) * 1e3, median(b) / median(a), load()))
end

-- ---- tokenizers --------------------------------------------------------------------------------------

local path = o.text
if not path then
  path = os.tmpname()
  os.execute(("cat docs/*.md lua/moth/*/*.lua src/*/*.c | head -c 2000000 | iconv -c -t utf-8 > %s"):format(path))
end
local f = assert(io.open(path, "rb"))
local text = f:read "*a"
f:close()
local own, others = {}, {}
for r = 1, 3 do
  local tokenizer = moth.tokenizer.load(o.tokenizer) -- without words in its cache
  local begun = now()
  tokenizer:encode(text)
  own[r] = now() - begun
  others[r] = ask("encode", o.tokenizer, path)
end
row(("tokenizer, %.1f MB, cold"):format(#text / 1e6), #text / median(own) / 1e6,
  #others > 0 and #text / median(others) / 1e6 or nil, "MB/s")
if not o.text then os.remove(path) end
