--- Keeps an answer within a grammar: before a token is drawn, all that cannot come have the logit -inf.
--
--     local c = Constraint(tokenizer, g, g:start(node), V)
--     logits = c:mask(logits, ends)               -- ends: ids that may come where the text may end, as a set
--     local goes_on = c:accept(id)                -- false: nothing can follow
--
-- What may come of a state is found once, by going through the vocabulary in its order, where neighbours begin alike.
local ffi = require "ffi"
local moth = require "moth"
local class = require "moth.class"
local each = require "moth.each"

local Constraint = class "llm.Constraint"

local MASKS = 64 -- of states that are kept, for each grammar

-- The tokens of a tokenizer in the order of their bytes: texts, ids, how many bytes each shares with the one before.
local vocabularies = setmetatable({}, { __mode = "k" })
local function vocabulary_of(tokenizer)
  local known = vocabularies[tokenizer]
  if known then return known end
  local unique, of = {}, {} -- sorting texts alone takes a fifth of the time
  for id = 1, tokenizer:size() do
    local s = tokenizer:token(id) and not tokenizer.special[id] and tokenizer:bytes(id) or ""
    if of[s] then
      table.insert(of[s], id)
    elseif s ~= "" then
      unique[#unique + 1], of[s] = s, { id }
    end
  end
  table.sort(unique)
  local texts, ids, shared, before = {}, {}, {}, ""
  for _, s in ipairs(unique) do
    local n = 0
    while n < #before and n < #s and before:byte(n + 1) == s:byte(n + 1) do n = n + 1 end
    for _, id in ipairs(of[s]) do
      local i = #texts + 1
      texts[i], ids[i], shared[i], n = s, id, n, #s
    end
    before = s
  end
  known = { texts = texts, ids = ids, shared = shared }
  vocabularies[tokenizer] = known
  return known
end

--- V: of the logits.
function Constraint:__init(tokenizer, grammar, state, V)
  self.tokenizer, self.grammar, self.state, self.V = tokenizer, grammar, state, V
end

-- Sets the bytes of all tokens that may come.
local function fill(self, p)
  local words, grammar, V = vocabulary_of(self.tokenizer), self.grammar, self.V
  local texts, ids, shared = words.texts, words.ids, words.shared
  local path, alive = { [0] = self.state }, 0 -- states behind the first bytes of the last token; of how many
  for i = 1, #texts do
    local n = shared[i]
    if alive >= n then
      local s = texts[i]
      alive = n
      local state = path[n]
      while alive < #s do
        state = grammar:advance(state, s:byte(alive + 1))
        if not state then break end
        alive = alive + 1
        path[alive] = state
      end
      if alive == #s and ids[i] <= V then p[ids[i] - 1] = 1 end
    end
  end
end

local function mask_of(self)
  local state, grammar = self.state, self.grammar
  if state.mask and state.mask:size(1) == self.V then return state.mask end
  local mask = moth.zeros(self.V, { dtype = moth.bool })
  fill(self, ffi.cast("uint8_t *", mask:data()))
  local kept = grammar.masked or {}
  grammar.masked = kept
  local at = (kept.n or 0) % MASKS + 1
  if kept[at] then kept[at].mask = nil end
  kept[at], kept.n, state.mask = state, at, mask
  return mask
end

--- Logits (V) with -inf for what cannot come.
function Constraint:mask(logits, ends)
  local mask = mask_of(self)
  local allowed = mask
  for id in each(ends) do
    if id <= self.V then
      if allowed == mask then allowed = mask:clone() end
      allowed[id] = self.state.ends
    end
  end
  return logits:masked_fill(allowed:to(logits:device()):logical_not(), -math.huge)
end

--- Takes the token that was drawn. false: nothing can follow it.
function Constraint:accept(id)
  local grammar = self.grammar
  self.state = grammar:walk(self.state, self.tokenizer:bytes(id))
  if grammar:is_full() then grammar:forget() end
  return self.state ~= nil and #self.state.stacks > 0
end

return Constraint
