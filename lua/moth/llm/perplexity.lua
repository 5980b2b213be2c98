--- llm.perplexity: how well a language model foresees a text, counted as llama.cpp's llama-perplexity counts.
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Cache = require "moth.llm.cache"

local ROWS = 256 -- of logits at once

-- The token that stands before a text, or nil.
local function begin_of(tokenizer)
  local plain, whole = tokenizer:encode("x", false, { whole = true }), tokenizer:encode("x", true, { whole = true })
  return whole[1] ~= plain[1] and whole[1] or nil
end

-- The logarithms of the probabilities of ids[i], i > from, one by one, added up: their sum and that of their squares.
local function chunk(model, cache, ids, from)
  local seq = { ids = ids, n = 0, blocks = {} }
  cache:reserve(seq, #ids)
  local sum, squares = 0, 0
  while seq.n < #ids - 1 do -- the last token's logits foresee nothing here
    local count, rows, targets = math.min(ROWS, #ids - 1 - seq.n), {}, {}
    for i = 1, count do
      local at = seq.n + i
      if at >= from then rows[#rows + 1], targets[#targets + 1] = i, ids[at + 1] end
    end
    local logits = cache:run(model, { { seq = seq, count = count } }, rows)
    if #rows > 0 then
      local target = moth.tensor(targets, { dtype = moth.int64, device = logits:device() })
      local nll = moth.nn.functional.cross_entropy(logits:to(moth.float32), target, { reduction = "none" })
        :to(moth.float64)
      sum, squares = sum + nll:sum():item(), squares + (nll * nll):sum():item()
    end
    seq.n = seq.n + count
  end
  cache:release(seq)
  return sum, squares
end

--- The perplexity of a text (or a list of ids, from 1): exp of the mean of -log p. The text is cut into pieces of
-- `context` tokens, and of each the second half is foreseen, with the first before it; a rest that is no whole piece is
-- left out. Where the tokenizer puts a token before texts, that is each piece's first. chunks: so many at most;
-- on_chunk(i, of, perplexity so far). cache: what keys and values are held as (see llm.Scheduler).
-- @return { perplexity =, error =, tokens =, chunks = }; error: the standard error; tokens: those that were foreseen
return signature("llm.perplexity(Module model, any tokenizer, string|int[] text, *, count context=512, \z
  count chunks?, function on_chunk?, string cache?)", function(model, tokenizer, text, context, chunks, on_chunk, kind)
  local where = "llm.perplexity"
  if type(model.step) ~= "function" or type(model.cache_sizes) ~= "function" then
    check.fail("[%s] expected a language model such as models.GPT or models.Llama", where)
  end
  local n = math.min(context, model.max_length)
  if n < context then check.warn("[%s] context: %d, the model's longest, in place of %d", where, n, context) end
  if n < 4 then check.fail("[%s] context: expected at least 4, got %d", where, n) end
  local ids = type(text) == "string" and tokenizer:encode(text, true, { whole = true }) or text
  local most = math.floor(#ids / n)
  if most < 1 then check.fail("[%s] the text has %d tokens, and no whole piece of %d", where, #ids, n) end
  most = math.min(most, chunks or most)
  local first = begin_of(tokenizer)
  local sizes, like = model:cache_sizes()
  local cache = Cache(sizes, like, n, false, kind)
  local sum, squares, count = 0, 0, 0
  for i = 1, most do
    local own = table.move(ids, (i - 1) * n + 1, i * n, 1, {})
    if first then own[1] = first end
    local half = math.floor(n / 2)
    local more, more_squares = chunk(model, cache, own, half + 1)
    sum, squares, count = sum + more, squares + more_squares, count + n - half - 1
    if on_chunk then on_chunk(i, most, math.exp(sum / count)) end
  end
  local mean = sum / count
  local spread = math.sqrt(math.max(squares / count - mean * mean, 0) / math.max(count - 1, 1))
  return { perplexity = math.exp(mean), error = spread * math.exp(mean), tokens = count, chunks = most }
end)
