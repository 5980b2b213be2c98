--- moth.generate: a prompt's continuation, piece by piece.
--
--     for piece in moth.generate(model, tokenizer, "Once upon", { max_tokens = 50, temperature = 0.8 }) do
--       io.write(piece)
--     end
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Scheduler = require "moth.llm.schedule"
local Text = require "moth.llm.text"
local template = require "moth.llm.template"

local M = {}

--- The options of requests in general: those of Scheduler:add of a prompt's ids, with the ids that end an answer.
-- eos: an id or a list, from 1, or nil.
function M.request(ids, o, eos)
  return { ids = ids, max_tokens = o.max_tokens, temperature = o.temperature, top_k = o.top_k, top_p = o.top_p,
    repetition_penalty = o.repetition_penalty, seed = o.seed, stop_ids = type(eos) == "number" and { eos } or eos }
end

local options = "*, count max_tokens=128, number temperature=1, count top_k?, number top_p=1, \z
  number repetition_penalty=1, string|string[] stop?, int seed?, count|count[] eos?"

local function options_of(...)
  local o = {}
  o.max_tokens, o.temperature, o.top_k, o.top_p, o.repetition_penalty, o.stop, o.seed, o.eos = ...
  if type(o.stop) == "string" then o.stop = { o.stop } end
  return o
end

local function check_tokenizer(where, tokenizer)
  if type(tokenizer) ~= "table" or type(tokenizer.encode) ~= "function" or type(tokenizer.bytes) ~= "function" then
    check.fail("[%s] expected a tokenizer as moth.tokenizer.load gives it, got %s", where, type(tokenizer))
  end
end

-- An iterator over the pieces of a request's answer. done(text) is called at its end.
local function pieces_of(where, scheduler, request, text, done)
  local pieces, ended = {}, false
  request.on_token = function(id)
    pieces[#pieces + 1] = text:add(id)
    return not text.stopped
  end
  request.on_end = function(reason)
    ended = true
    pieces[#pieces + 1] = text:finish()
    if reason == "error" then check.fail("[%s] the model's logits have a NaN or an infinity", where) end
  end
  local entry, all = scheduler:add(request), {}
  entry.said = all
  return function()
    while true do
      while pieces[1] do
        local piece = table.remove(pieces, 1)
        all[#all + 1] = piece
        if piece ~= "" then return piece end
      end
      if ended then
        if done then done(table.concat(all)) end
        done = nil
        return nil
      end
      scheduler:step()
    end
  end, entry
end

--- An iterator over the pieces of text that the model writes behind a prompt: a text, or a list of ids from 1. Pieces
-- are whole UTF-8 characters.
--
-- max_tokens = 128, temperature = 1 (0: always the most probable token), top_k, top_p = 1, repetition_penalty = 1, stop
-- (a text or several: where one comes up the answer ends before it), seed (a generator of its own), eos (an id or
-- several, from 1, that end it; left out: the model's). The pieces come as they are computed; a loop may be left at any
-- time.
M.generate = signature("generate(Module model, any tokenizer, string|int[] prompt, " .. options .. ")",
function(model, tokenizer, prompt, ...)
  local o = options_of(...)
  check_tokenizer("generate", tokenizer)
  local ids = type(prompt) == "string" and tokenizer:encode(prompt, true) or prompt
  if #ids == 0 then check.fail("[generate] the prompt is empty, and the tokenizer puts no token before it") end
  local most = math.min(#ids + o.max_tokens, (model.max_length or math.huge) + 1)
  local scheduler = Scheduler(model, { max_tokens = most, max_seqs = 1, share_prefix = "none" })
  return (pieces_of("generate", scheduler, M.request(ids, o, o.eos or model.config.eos), Text(tokenizer, o.stop)))
end)

-- ---- chats -------------------------------------------------------------------------------------------

local Chat = require "moth.class" "llm.Chat"
M.Chat = Chat

--- A conversation with a model: what was said is kept, and its keys and values in the cache.
--
--     local chat = moth.llm.Chat(model, tokenizer, { system = "Be brief.", template = info.chat_template })
--     for piece in chat:say "Hello" do io.write(piece) end
--
-- template: the name of a chat template (llm.template.names), the text of one that is known, or a function
-- (messages) -> text, stop strings; left out: "gpt-2". Other options are those of moth.generate.
Chat.__init = signature.init("llm.Chat(Module model, any tokenizer, *, string system?, any template?, " ..
  options:sub(4) .. ")", function(self, o)
  check_tokenizer("llm.Chat", o.tokenizer)
  if type(o.stop) == "string" then o.stop = { o.stop } end
  self.model, self.tokenizer, self.options = o.model, o.tokenizer, o
  self.template = template.of(o.template, "llm.Chat")
  self.messages = {}
  if o.system then self.messages[1] = { role = "system", content = o.system } end
  self.scheduler = Scheduler(o.model, { max_tokens = o.model.max_length, max_seqs = 1 })
end)

--- What the model answers to a text, piece by piece. Where a conversation has become too long for the model, what was
-- said first is left out.
Chat.say = signature.method("llm.Chat:say(string text)", function(self, text)
  local o, messages, running = self.options, self.messages, self.running
  if running and not running.reason then -- a loop that was left: what was said of it stays
    self.scheduler:cancel(running)
    messages[#messages + 1], self.running = { role = "assistant", content = table.concat(running.said) }, nil
  end
  messages[#messages + 1] = { role = "user", content = text }
  local most, ids, stops = self.model.max_length, nil, nil
  local function fits()
    local prompt
    prompt, stops = self.template(messages)
    ids = self.tokenizer:encode(prompt, prompt:sub(1, 1) ~= "<")
    return #ids + math.min(o.max_tokens, most / 2) <= most
  end
  while not fits() do
    local first = messages[1].role == "system" and 2 or 1
    if #messages <= first then
      messages[#messages] = nil
      check.fail("[llm.Chat:say] %d tokens are too many: the model can look at %d", #ids, most)
    end
    table.remove(messages, first)
  end
  local all = { unpack(stops or {}) }
  for _, stop in ipairs(o.stop or {}) do all[#all + 1] = stop end
  local request = M.request(ids, o, o.eos or self.model.config.eos)
  request.max_tokens = math.min(o.max_tokens, most - #ids)
  local function answered(answer) messages[#messages + 1] = { role = "assistant", content = answer } end
  local next_piece, entry = pieces_of("llm.Chat:say", self.scheduler, request, Text(self.tokenizer, all), answered)
  self.running = entry
  return next_piece
end)

return M
