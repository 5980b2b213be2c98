--- Speculative decoding (Leviathan et al. 2023): the next tokens as a smaller model, the draft, or the text itself
-- would have them, for llm.Scheduler, whose model then looks at all of them in one step.
--
-- Each token is still drawn from the model's own logits by the request's own generator: a proposal that is the token
-- that was drawn only saves a step. So the text, not just its distribution, is the one without proposals. A draft
-- draws with the numbers that the model will draw with, so that the two agree as often as their distributions do.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local Cache = require "moth.llm.cache"
local sample = require "moth.llm.sample"

local Proposer = class "llm.Proposer"

--- o: draft (a model), draft_tokens (how many it proposes), lookup (how many come of the text itself), max_tokens and
-- share (of the draft's cache), step_tokens (that the draft reads in one step)
function Proposer:__init(where, model, o)
  local draft = o.draft
  self.V, self.draft, self.draft_tokens, self.lookup, self.step_tokens = model.config.vocab_size, draft, o.draft_tokens,
    o.lookup, o.step_tokens
  if not draft then return end
  if type(draft.step) ~= "function" or type(draft.cache_sizes) ~= "function" then
    check.fail("[%s] draft: expected a language model such as models.Llama, got %s", where, class.name(draft))
  end
  local sizes, like = draft:cache_sizes()
  self.cache, self.spare = Cache(sizes, like, o.max_tokens, o.share, o.cache), moth.Generator(0)
end

--- The draft of a path, loaded as models.load does with these options; an error where its tokens are others than the
-- tokenizer's.
function Proposer.load(path, loading, tokenizer)
  local draft, own = moth.models.load(path, loading)
  for id = 1, own and math.min(own:size(), tokenizer:size()) or 0 do
    if own:token(id) ~= tokenizer:token(id) then
      check.fail("[llm] draft %s: token %d is '%s' there and '%s' in the model: a draft needs the same tokenizer", path,
        id - 1, tostring(own:token(id)), tostring(tokenizer:token(id)))
    end
  end
  return draft
end

local LONGEST, SHORTEST = 4, 2 -- tokens in a row that were there before; a single one says too little

--- What followed the last tokens of a list where they stood before, the latest place first: at most `most` ids.
function Proposer.looked_up(ids, most)
  local last = #ids
  for n = math.min(LONGEST, last - 1), SHORTEST, -1 do
    for at = last - n, 1, -1 do -- where the tokens before may begin
      local k = 0
      while k < n and ids[at + k] == ids[last - n + 1 + k] do k = k + 1 end
      if k == n then
        local out = {}
        for i = at + n, at + n + most - 1 do out[#out + 1] = ids[i] or out[i - last] end -- and round again
        return out
      end
    end
  end
  return {}
end

-- A request's own in the draft's cache. nil: it cannot have as many tokens, or has one that the draft does not know.
local function drafted(self, r, most)
  local d, V = r.draft, self.draft.config.vocab_size
  if not d then
    d = { ids = r.ids, blocks = {}, owner = r.owner, known = 0,
      options = setmetatable({ constraint = false }, { __index = r }) }
    self.cache:match(d)
    r.draft = d
  end
  while d.known < #r.ids and r.ids[d.known + 1] <= V do d.known = d.known + 1 end
  if d.known < #r.ids or #r.ids + most - 1 > self.draft.max_length then return nil end
  return self.cache:reserve(d, #r.ids + most - 1) and d or nil
end

-- Proposals of the draft for a list of { seq =, most = }. It reads what it has not seen of each, then goes on.
local function draw(self, list)
  local parts, running, rows, at, left = {}, {}, {}, 0, self.step_tokens
  for _, one in ipairs(list) do
    local r = one.seq
    local d = left > 0 and drafted(self, r, one.most)
    if d then
      local count = math.min(left, #r.ids - d.n)
      parts[#parts + 1], at, left = { seq = d, count = count }, at + count, left - count
      if d.n + count == #r.ids then
        running[#running + 1], rows[#rows + 1] = one, at
        one.proposed, one.state = {}, r.generator:get_state()
      end
    end
  end
  local first = true
  while #parts > 0 do
    local logits = self.cache:run(self.draft, parts, rows)
    for _, part in ipairs(parts) do
      part.seq.n = part.seq.n + part.count
      if first then self.cache:file(part.seq) end -- of tokens that are certain
    end
    local go_on = {}
    parts, rows, first = {}, {}, false
    for i, one in ipairs(running) do
      local r = one.seq
      self.spare:set_state(one.state)
      local id = moth.no_grad(sample.next, logits:select(1, i), r.draft.options, r.ids, self.spare)
      one.state = self.spare:get_state()
      if id and id <= self.V then
        one.proposed[#one.proposed + 1], r.ids[#r.ids + 1] = id, id
        if #one.proposed < one.most then
          go_on[#go_on + 1], parts[#parts + 1], rows[#rows + 1] = one, { seq = r.draft, count = 1 }, #rows + 1
        end
      end
    end
    running = go_on
  end
end

--- Proposes for a list of { seq = request, most = tokens }: each gets proposed, a list of ids, which stand behind the
-- request's ids, too, or nil.
function Proposer:propose(list)
  local others = {}
  for _, one in ipairs(list) do
    local r, most = one.seq, one.most
    local found = self.lookup and self.looked_up(r.ids, math.min(most, self.lookup)) or {}
    if #found > 0 then
      one.proposed = found
      for _, id in ipairs(found) do r.ids[#r.ids + 1] = id end
    elseif self.draft then
      one.most = math.min(most, self.draft_tokens)
      others[#others + 1] = one
    end
  end
  if #others > 0 then draw(self, others) end
end

--- Once the request has the tokens that it goes on with: what the draft has seen of others is forgotten.
function Proposer:settle(r)
  local d = r.draft
  if not d then return end
  d.n, d.known = math.min(d.n, #r.ids - 1), math.min(d.known, #r.ids)
  self.cache:cut(d, #r.ids)
end

--- Gives a request's blocks back.
function Proposer:forget(r)
  if r.draft then self.cache:release(r.draft) end
  r.draft = nil
end

return Proposer
