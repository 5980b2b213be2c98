-- A character model: GPT on any text file. moth examples/char_gpt.lua --text FILE; --resume continues from the
-- checkpoint, to the bit; --sample only writes text with it.
local moth = require "moth"
local nn, optim = moth.nn, moth.optim
local now = moth.utils.system.now

local options = moth.cli {
  { "--text FILE", "left out: $MOTH_DATA/tinyshakespeare.txt, or a small text of its own" },
  { "--save FILE", "the checkpoint", "char_gpt.mth" }, { "--resume", "continues from it, to the bit" },
  { "--sample", "only writes text with it" }, { "--length N", "of that text", 300 }, { "--temperature X", "", 0.8 },
  { "--steps N", "", 2000 }, { "--stop N", "leaves after this step, as if interrupted", 0 },
  { "--log N", "steps between two lines", 100 }, { "--layers N", "", 4 }, { "--width N", "", 256 },
  { "--heads N", "", 8 }, { "--context N", "", 128 }, { "--batch N", "", 16 }, { "--lr X", "", 1e-3 },
  { "--warmup N", "", 100 }, { "--clip X", "", 1 }, { "--dropout X", "", 0 }, { "--seed N", "", 1 },
}

local function read(path)
  local f = path and io.open(path, "rb")
  local text = f and f:read("*a")
  if f then f:close() end
  return text
end
local data = os.getenv("MOTH_DATA")
local text = options.text and assert(read(options.text), "cannot read " .. options.text)
  or data and read(data .. "/tinyshakespeare.txt")
if not text then
  print("no --text FILE and no $MOTH_DATA/tinyshakespeare.txt: a small built-in text is used")
  local lines = { "the sea is calm tonight,", "the tide is full, the moon lies fair", "upon the straits;",
    "come to the window, sweet is the night air.", "listen! you hear the grating roar",
    "of pebbles which the waves draw back,",
    "begin, and cease, and then again begin." }
  local parts = {}
  for i = 1, 700 do parts[i] = lines[(i * i + i) % #lines + 1] end
  text = table.concat(parts, "\n")
end

-- Characters in order of their codes are tokens 1, 2, …
local token, chars, seen = {}, {}, {}
for c in text:gmatch(".") do seen[c] = true end
for c in text:gmatch("\n") do seen[c] = true end
for i = 0, 255 do
  local c = string.char(i)
  if seen[c] then chars[#chars + 1] = c; token[c] = #chars end
end
local ids = {}
for i = 1, #text do ids[i] = token[text:sub(i, i)] end
local all = moth.tensor(ids, { dtype = moth.int64 })
local split = math.floor(#text * 0.9)
local train, valid = all:narrow(1, 1, split), all:narrow(1, split + 1, #text - split)

moth.manual_seed(options.seed)
local model = moth.models.GPT{ vocab_size = #chars, n_layer = options.layers, n_head = options.heads,
  n_embd = options.width, block_size = options.context, dropout = options.dropout }
local optimizer = optim.AdamW(model:parameters(), { lr = options.lr, betas = { 0.9, 0.99 }, weight_decay = 0.1 })
local S = optim.lr_scheduler
local scheduler = S.LambdaLR(optimizer, { lr_lambda = function(step) -- warm-up, then half a cosine to a tenth
  if step < options.warmup then return (step + 1) / options.warmup end
  local share = math.min(1, (step - options.warmup) / math.max(1, options.steps - options.warmup))
  return 0.1 + 0.45 * (1 + math.cos(math.pi * share))
end })
local generator = moth.Generator(options.seed)
local first = 1

local function save(step)
  moth.save({ model = model:state_dict(), optimizer = optimizer:state_dict(), scheduler = scheduler:state_dict(),
    step = step, batches = generator:get_state(), generator = moth.get_rng_state() }, options.save)
end
if options.resume or options.sample then
  local c = moth.load(options.save)
  model:load_state_dict(c.model)
  optimizer:load_state_dict(c.optimizer)
  scheduler:load_state_dict(c.scheduler)
  generator:set_state(c.batches)
  moth.set_rng_state(c.generator)
  first = c.step + 1
end

local offsets = moth.arange(0, options.context, { dtype = moth.int64 })
local function batch(from)
  local start = moth.randint(1, from:size(1) - options.context, { options.batch, 1 }, { generator = generator })
  local index = start + offsets
  return from:index_select(1, index:view(-1)):view(options.batch, -1),
    from:index_select(1, (index + 1):view(-1)):view(options.batch, -1)
end

local function evaluate()
  local state, sum = generator:get_state(), 0
  generator:manual_seed(99) -- the same batches each time
  model:eval()
  moth.no_grad(function()
    for _ = 1, 5 do sum = sum + select(2, model(batch(valid))):item() end
  end)
  model:train()
  generator:set_state(state)
  return sum / 5
end

if not options.sample then
  local clock, since = now(), first
  for step = first, options.steps do
    local _, loss = model(batch(train))
    optimizer:zero_grad()
    loss:backward()
    nn.utils.clip_grad_norm_(model:parameters(), options.clip)
    optimizer:step()
    scheduler:step()
    if step % options.log == 0 or step == options.steps or step == options.stop then
      local seconds = now() - clock
      print(("step %d  train %.4f  validation %.4f  %d tokens/s"):format(step, loss:item(), evaluate(),
        (step - since + 1) * options.batch * options.context / seconds))
      save(step)
      clock, since = now(), step + 1
      if step == options.stop then return end
    end
  end
end

local start = moth.tensor({ { token["\n"] or 1 } }, { dtype = moth.int64 })
local out = {}
local written = model:generate(start, options.length, { temperature = options.temperature, generator = generator })
for i = 2, options.length + 1 do out[#out + 1] = chars[written[1][i]:item()] end
print(table.concat(out))
