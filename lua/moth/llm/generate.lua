--- moth.generate: a prompt's continuation, piece by piece.
--
--     for piece in moth.generate(model, tokenizer, "Once upon", { max_tokens = 50, temperature = 0.8 }) do
--       io.write(piece)
--     end
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Scheduler = require "moth.llm.schedule"
local Text = require "moth.llm.text"
local check_sampling = require("moth.models.generate").check_sampling
local template = require "moth.llm.template"

local M = {}

--- The options of requests in general: those of Scheduler:add of a prompt's ids, with the ids that end an answer.
-- eos: an id or a list, from 1, or nil; stops: texts, of which special tokens are ids that end it, too.
function M.request(ids, o, eos, tokenizer, stops)
  local ends = type(eos) == "table" and { unpack(eos) } or { eos }
  for _, stop in ipairs(stops or {}) do
    local id = tokenizer:id(stop)
    if id and tokenizer.is_added[id] then ends[#ends + 1] = id end
  end
  return { ids = ids, max_tokens = o.max_tokens, temperature = o.temperature, top_k = o.top_k, top_p = o.top_p,
    min_p = o.min_p, repetition_penalty = o.repetition_penalty, presence_penalty = o.presence_penalty,
    frequency_penalty = o.frequency_penalty, seed = o.seed, stop_ids = ends }
end

local options = "*, count max_tokens=128, number temperature=1, count top_k?, number top_p=1, \z
  number min_p=0, number repetition_penalty=1, string|string[] stop?, int seed?, count|count[] eos?, \z
  Module draft?, count draft_tokens=4, count lookup?, string cache?"

local function options_of(...)
  local o = {}
  o.max_tokens, o.temperature, o.top_k, o.top_p, o.min_p, o.repetition_penalty, o.stop, o.seed, o.eos, o.draft,
    o.draft_tokens, o.lookup, o.cache, o.stats = ...
  if type(o.stop) == "string" then o.stop = { o.stop } end
  return o
end

local function check_stop(where, stops)
  for _, stop in ipairs(stops or {}) do
    if stop == "" then check.fail("[%s] stop: an empty text would end each answer before it begins", where) end
  end
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
-- max_tokens = 128, temperature = 1 (0: always the most probable token), top_k, top_p = 1, min_p = 0,
-- repetition_penalty = 1, stop (a text or several: where one comes up the answer ends before it), seed (a generator of
-- its own), eos (an id or several, from 1, that end it; left out: the model's). The pieces come as they are computed; a
-- loop may be left at any time.
--
-- Several tokens may come of one step of the model, and the text stays the same: draft (a smaller model of the same
-- tokens, which proposes draft_tokens = 4 at a time), lookup (so many are proposed where the last tokens stood before).
-- stats: a table that gets new_tokens, proposed, accepted, steps. cache: what keys and values are held as, "float32",
-- "float16", "bfloat16" or "q8_0" (8 bits, a scale for 32 of them); left out: as the model's.
M.generate = signature("generate(Module model, any tokenizer, string|int[] prompt, " .. options .. ", table stats?)",
function(model, tokenizer, prompt, ...)
  local o = options_of(...)
  check_tokenizer("generate", tokenizer)
  check_stop("generate", o.stop)
  local ids = type(prompt) == "string" and tokenizer:encode(prompt, true, { whole = true }) or prompt
  if #ids == 0 then check.fail("[generate] the prompt is empty, and the tokenizer puts no token before it") end
  local most = math.min(#ids + o.max_tokens, (model.max_length or math.huge) + 1)
  local scheduler = Scheduler(model, { max_tokens = most, max_seqs = 1, share_prefix = "none", draft = o.draft,
    draft_tokens = o.draft_tokens, lookup = o.lookup, cache = o.cache, stats = o.stats })
  return (pieces_of("generate", scheduler, M.request(ids, o, o.eos or model.config.eos, tokenizer, o.stop),
    Text(tokenizer, o.stop)))
end)

--- The ids of messages by a template of llm.template.of, and the texts that end an answer. enough: with more ids than
-- that the list is not whole.
function M.chat_ids(tokenizer, talk, messages, variables, enough)
  local text, stops, special = talk(messages, variables)
  if type(text) ~= "string" or stops ~= nil and type(stops) ~= "table" then
    check.fail("[llm.template] a template's function gives a text and a list of stop strings; got %s, %s", type(text),
      type(stops))
  end
  if special == nil then special = text:sub(1, 1) ~= "<" end -- a function of the user's
  return tokenizer:encode(text, special, { enough = enough, whole = true }), stops or {}
end

-- ---- chats -------------------------------------------------------------------------------------------

local Chat = require "moth.class" "llm.Chat"
M.Chat = Chat

--- A conversation with a model: what was said is kept, and its keys and values in the cache.
--
--     local chat = moth.llm.Chat(model, tokenizer, { system = "Be brief.", template = info.chat_template })
--     for piece in chat:say "Hello" do io.write(piece) end
--
-- template: a chat template's text (Jinja), the name of one (llm.template.names), or a function (messages) -> text,
-- stop strings; left out: the tokenizer's, or "gpt-2". template_kwargs: variables that it knows, such as
-- { enable_thinking = false }. Other options are those of moth.generate; scheduler.stats counts tokens.
Chat.__init = signature.init("llm.Chat(Module model, any tokenizer, *, string system?, any template?, \z
  table template_kwargs?, " ..
  options:sub(4) .. ")", function(self, o)
  check_tokenizer("llm.Chat", o.tokenizer)
  check_sampling("llm.Chat", o)
  if type(o.stop) == "string" then o.stop = { o.stop } end
  check_stop("llm.Chat", o.stop)
  self.model, self.tokenizer, self.options = o.model, o.tokenizer, o
  self.template = template.of(o.template or o.tokenizer.chat_template, { tokenizer = o.tokenizer,
    where = "llm.Chat" })
  self.messages = {}
  if o.system then self.messages[1] = { role = "system", content = o.system } end
  self.scheduler = Scheduler(o.model, { max_tokens = o.model.max_length, max_seqs = 1, draft = o.draft,
    draft_tokens = o.draft_tokens, lookup = o.lookup, cache = o.cache })
end)

--- What the model answers to a text, piece by piece. Where a conversation has become too long for the model, what was
-- said first is left out.
Chat.say = signature.method("llm.Chat:say(string text)", function(self, text)
  local o, messages, running = self.options, self.messages, self.running
  if running and not running.reason then -- a loop that was left: what was said of it stays
    self.scheduler:cancel(running)
    messages[#messages + 1], self.running = { role = "assistant", content = table.concat(running.said) }, nil
  end
  local kept, asked = { unpack(messages) }, { role = "user", content = text }
  kept[#kept + 1] = asked
  local most, ids, stops = self.model.max_length, nil, nil
  local function fits()
    ids, stops = M.chat_ids(self.tokenizer, self.template, kept, o.template_kwargs)
    return #ids + math.min(o.max_tokens, most / 2) <= most
  end
  while not fits() do
    local first = kept[1].role == "system" and 2 or 1
    if kept[first] == asked then
      check.fail("[llm.Chat:say] %d tokens are too many: the model can look at %d", #ids, most)
    end
    repeat table.remove(kept, first) until kept[first].role == "user" -- an answer goes with its question
  end
  messages, self.messages = kept, kept
  local all = { unpack(stops or {}) }
  for _, stop in ipairs(o.stop or {}) do all[#all + 1] = stop end
  local request = M.request(ids, o, o.eos or self.model.config.eos, self.tokenizer, all)
  request.max_tokens = math.min(o.max_tokens, most - #ids)
  local function answered(answer) messages[#messages + 1] = { role = "assistant", content = answer } end
  local next_piece, entry = pieces_of("llm.Chat:say", self.scheduler, request, Text(self.tokenizer, all), answered)
  self.running = entry
  return next_piece
end)

return M
