--- The next token of a sequence from its logits, by its own options and generator: neighbours in a batch change
-- nothing.
local moth = require "moth"
local each = require "moth.each"
local generate = require "moth.models.generate"

local M = {}

local MANY = 256 -- of the most probable tokens, which nearly always reach top_p

-- Draws from the first tokens of a list of falling probabilities: as many as reach p, of at most k, and of least times
-- the first; nil: they do not.
local function draw(probs, ids, total, p, least, complete, generator)
  local list, n, sum = probs:totable(), 0, 0
  for i = 1, #list do
    if list[i] < least * list[1] then
      complete = true
      break
    end
    n, sum = i, sum + list[i]
    if sum >= p * total then break end
  end
  if sum < p * total and not complete then return nil end
  local u = moth.rand(1, { generator = generator, dtype = moth.float64 }):item() * sum
  for i = 1, n do
    u = u - list[i]
    if u < 0 then return ids[i]:item() end
  end
  return ids[n]:item()
end

-- Logits with what is added to those of some ids: logit_bias (a table by id), and for each token of the answer
-- presence_penalty once and frequency_penalty as often as it is there.
local function biased(logits, o)
  local by = {}
  for id, bias in each(o.logit_bias or {}) do by[id] = bias end
  local presence, frequency = o.presence_penalty or 0, o.frequency_penalty or 0
  if presence ~= 0 or frequency ~= 0 then
    local there = {}
    for _, id in ipairs(o.new or {}) do
      by[id] = (by[id] or 0) - frequency - (there[id] and 0 or presence)
      there[id] = true
    end
  end
  local ids, more = {}, {}
  for id, bias in each(by) do ids[#ids + 1], more[#more + 1] = id, bias end
  if #ids == 0 then return logits end
  local device = logits:device()
  return logits:to(moth.float32):index_add(1, moth.tensor(ids, { dtype = moth.int64, device = device }),
    moth.tensor(more, { dtype = moth.float32, device = device }))
end

--- logits (V); o: temperature (0: the most probable), top_k, top_p, min_p, repetition_penalty, logit_bias,
-- presence_penalty, frequency_penalty (of o.new, the tokens of the answer), constraint (constraint.lua; o.ends: ids
-- that end a text); ids: the tokens so far, a list
-- @return the id, from 1; nil where a logit is NaN
function M.next(logits, o, ids, generator)
  if o.logit_bias or o.presence_penalty or o.frequency_penalty then logits = biased(logits, o) end
  if o.constraint then logits = o.constraint:mask(logits, o.ends) end
  local top = logits:max():item()
  if top ~= top or top == math.huge or top == -math.huge then return nil end
  if o.repetition_penalty and o.repetition_penalty ~= 1 then
    local seen = moth.tensor({ ids }, { dtype = moth.int64, device = logits:device() })
    logits = generate.penalised(logits:unsqueeze(1), seen, o.repetition_penalty):select(1, 1)
  end
  local temperature = o.temperature or 1
  if generate.is_greedy(temperature) then return logits:argmax():item() end
  logits = logits:to(moth.float32)
  logits = (logits - logits:max()) / temperature
  local V, p, least = logits:size(1), o.top_p or 1, o.min_p or 0
  local k = math.min(o.top_k or V, V)
  if k == V and p >= 1 and least == 0 then
    return moth.multinomial(logits:softmax(1), 1, { generator = generator }):item()
  end
  local total = k == V and logits:exp():sum():item() or nil
  for _, many in ipairs { total and math.min(k, MANY) or k, k } do
    local best, at = moth.topk(logits, many)
    local probs = best:exp()
    local id = draw(probs, at, total or probs:sum():item(), p, least, many == k, generator)
    if id then return id end
  end
end

return M
