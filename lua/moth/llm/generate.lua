--- moth.generate: a prompt's continuation, piece by piece.
--
--     for piece in moth.generate(model, tokenizer, "Once upon", { max_tokens = 50, temperature = 0.8 }) do
--       io.write(piece)
--     end
local moth = require "moth"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Scheduler = require "moth.llm.schedule"
local Text = require "moth.llm.text"

local M = {}

--- The options of requests in general: those of Scheduler:add of a prompt's ids, with the ids that end an answer.
-- eos: an id or a list, from 1, or nil.
function M.request(ids, o, eos)
  return { ids = ids, max_tokens = o.max_tokens, temperature = o.temperature, top_k = o.top_k, top_p = o.top_p,
    repetition_penalty = o.repetition_penalty, seed = o.seed, stop_ids = type(eos) == "number" and { eos } or eos }
end

-- The ids of a prompt: a text, or a list of ids.
local function ids_of(tokenizer, prompt, where)
  local ids = type(prompt) == "string" and tokenizer:encode(prompt, true) or prompt
  if #ids == 0 then check.fail("[%s] the prompt is empty, and the tokenizer puts no token before it", where) end
  return ids
end
M.ids_of = ids_of

--- An iterator over the pieces of text that the model writes behind a prompt: a text, or a list of ids from 1. Pieces
-- are whole UTF-8 characters.
--
-- max_tokens = 128, temperature = 1 (0: always the most probable token), top_k, top_p = 1, repetition_penalty = 1, stop (a
-- text or several: where one comes up the answer ends before it), seed (a generator of its own), eos (an id or several,
-- from 1, that end it; left out: the model's). The pieces come as they are computed; a loop may be left at any time.
M.generate = signature("generate(Module model, any tokenizer, string|int[] prompt, *, count max_tokens=128, \z
  number temperature=1, count top_k?, number top_p=1, number repetition_penalty=1, string|string[] stop?, int seed?, \z
  count|count[] eos?)", function(model, tokenizer, prompt, max_tokens, temperature, top_k, top_p, repetition_penalty,
    stop, seed, eos)
  local where = "generate"
  if type(tokenizer) ~= "table" or type(tokenizer.encode) ~= "function" then
    check.fail("[generate] expected a tokenizer as moth.tokenizer.load gives it, got %s", type(tokenizer))
  end
  local ids = ids_of(tokenizer, prompt, where)
  if type(stop) == "string" then stop = { stop } end
  local pieces, text = {}, Text(tokenizer, stop)
  local most = math.min(#ids + max_tokens, (model.max_length or math.huge) + 1)
  local scheduler = Scheduler(model, { max_tokens = most, max_seqs = 1, share_prefix = "none" })
  local o = { max_tokens = max_tokens, temperature = temperature, top_k = top_k, top_p = top_p,
    repetition_penalty = repetition_penalty, seed = seed }
  local request = M.request(ids, o, eos or model.config.eos)
  local ended = false
  request.on_token = function(id)
    pieces[#pieces + 1] = text:add(id)
    return not text.stopped
  end
  request.on_end = function(reason)
    ended = true
    pieces[#pieces + 1] = text:finish()
    if reason == "error" then check.fail("[generate] the model's logits have a NaN or an infinity") end
  end
  scheduler:add(request)
  return function()
    while true do
      while pieces[1] do
        local piece = table.remove(pieces, 1)
        if piece ~= "" then return piece end
      end
      if ended then return nil end
      moth.no_grad(scheduler.step, scheduler)
    end
  end
end)

return M
