--- Continuous batching: sequences join and leave a running batch at each step.
--
--     local s = moth.llm.Scheduler(model, { max_tokens = 8192, max_seqs = 16 })
--     s:add { ids = { 3, 1, 4 }, max_tokens = 20, temperature = 0, on_token = function(id) … end }
--     while s:step() > 0 do end
--
-- A step decodes a token of every sequence that has its prompt behind it; what is left of step_tokens goes to prompts,
-- the oldest first, in pieces, so that a long prompt does not stop the others. Without free blocks the youngest
-- sequence gives up its own and is computed again later. Greedy text does not depend on the neighbours but for the
-- rounding of products of other sizes. With a draft, or lookup, several tokens may come of one step (propose.lua).
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local Cache = require "moth.llm.cache"
local generate = require "moth.models.generate"
local Proposer = require "moth.llm.propose"
local sample = require "moth.llm.sample"

local Scheduler = class "llm.Scheduler"

--- model: models.GPT or models.Llama (has cache_sizes and step). max_tokens: of all sequences together, prompts and
-- answers; share_prefix: "owner" (sequences of one owner share the blocks of equal beginnings; across owners the time
-- of an answer would tell what others asked), "all", or "none". draft: a smaller model of the same ids, which proposes
-- draft_tokens at a time; lookup: so many are proposed where the last tokens stood before; stats has proposed and
-- accepted, and so have requests. cache: what keys and values are held as, "float32", "float16", "bfloat16" or "q8_0";
-- left out: as the model's.
Scheduler.__init = signature.init("llm.Scheduler(Module model, *, count max_tokens=4096, count max_seqs=16, \z
  count step_tokens=256, 'owner'|'all'|'none' share_prefix='owner', Module draft?, count draft_tokens=4, \z
  count lookup?, table stats?, string cache?)", function(self, o)
  if type(o.model.step) ~= "function" or type(o.model.cache_sizes) ~= "function" then
    check.fail("[llm.Scheduler] expected a language model such as models.GPT or models.Llama, got %s",
      class.name(o.model))
  end
  self.model, self.max_seqs, self.step_tokens, self.share_prefix = o.model, o.max_seqs, o.step_tokens, o.share_prefix
  for name, one in each { model = o.model, draft = o.draft } do
    if one.stateful and (o.draft or o.lookup) then
      check.fail("[llm.Scheduler] draft, lookup: the %s, %s, keeps a state, which cannot be cut back", name,
        class.name(one))
    end
  end
  if o.model.stateful and o.cache then
    check.fail("[llm.Scheduler] cache: %s has no keys and values, but a state", class.name(o.model))
  end
  if o.model.stateful then o.share_prefix = "none" end
  local sizes, like = o.model:cache_sizes()
  self.cache = Cache(sizes, like, o.max_tokens, o.share_prefix ~= "none", o.cache)
  if o.draft or o.lookup then
    o.share = o.share_prefix ~= "none"
    self.proposer = Proposer("llm.Scheduler", o.model, o)
  end
  self.active, self.waiting, self.arrivals = {}, {}, 0
  self.stats = o.stats or {} -- what is counted, in a table of the caller's or its own
  for _, name in ipairs { "steps", "prompt_tokens", "shared_tokens", "new_tokens", "preemptions", "proposed",
    "accepted" } do
    self.stats[name] = 0
  end
end)

local read = signature("llm.Scheduler:add(*, int[] ids, count max_tokens=128, number temperature=1, count top_k?, \z
  number top_p=1, number min_p=0, number repetition_penalty=1, number presence_penalty=0, \z
  number frequency_penalty=0, table logit_bias?, any constraint?, int seed?, int[] stop_ids?, \z
  string owner?, function on_token?, function on_end?, function on_logits?, function on_prompt?)", function(...)
  local r = {}
  r.ids, r.max_tokens, r.temperature, r.top_k, r.top_p, r.min_p, r.repetition_penalty, r.presence_penalty,
    r.frequency_penalty, r.logit_bias, r.constraint, r.seed, r.stop_ids, r.owner, r.on_token, r.on_end, r.on_logits,
    r.on_prompt = ...
  return r
end)

--- Takes a request: ids (from 1) and how to go on. on_token(id, request) is called with each new token (false: it
-- ends), on_end(reason, request) once: "stop" (a token of stop_ids, or on_token ended it), "length", "cancel", "error"
-- (a NaN among the logits). on_logits(logits, id) is called before on_token; on_prompt(logits, i) for each token i of
-- the prompt, once. presence_penalty, frequency_penalty: less for tokens of the answer, once and for each time;
-- logit_bias: by id; constraint: what the answer may be (constraint.lua). What could never fit is an error here.
-- @return the request: :cancel it, or read .new (a list of ids), .reason
function Scheduler:add(o)
  local r = read(o)
  local where = "llm.Scheduler:add"
  local V, most = self.model.config.vocab_size, self.model.max_length
  if #r.ids == 0 then check.fail("[%s] ids is empty", where) end
  for i, id in ipairs(r.ids) do
    if id < 1 or id > V or id % 1 ~= 0 then
      check.fail("[%s] ids[%d] is %s; this model's ids are from 1 to %d", where, i, tostring(id), V)
    end
  end
  generate.check_sampling(where, r)
  if #r.ids > most then
    check.fail("[%s] a prompt of %d tokens; the model can look at %d", where, #r.ids, most)
  end
  r.max_tokens = math.min(r.max_tokens, most - #r.ids + 1)
  if self.cache:blocks_of(#r.ids + r.max_tokens) > self.cache.total then
    check.fail("[%s] %d tokens and %d new ones can never fit: max_tokens of the cache is %d", where, #r.ids,
      r.max_tokens, self.cache.total * self.cache.block)
  end
  self.arrivals = self.arrivals + 1
  r.ids, r.prompt, r.new, r.arrival = table.move(r.ids, 1, #r.ids, 1, {}), #r.ids, {}, self.arrivals
  r.n, r.blocks, r.ends, r.proposed, r.accepted = 0, {}, {}, 0, 0
  if self.share_prefix == "all" then r.owner = nil end
  for _, id in ipairs(r.stop_ids or {}) do r.ends[id] = true end
  r.generator = moth.Generator(r.seed or moth.randint(1, 2 ^ 31, { 1 }):item())
  self.waiting[#self.waiting + 1] = r
  return r
end

--- Ends a request at the next step.
function Scheduler.cancel(_, request) request.cancelled = true end

local function remove(list, r)
  for i, other in ipairs(list) do
    if other == r then return table.remove(list, i) end
  end
end

local function release(self, r)
  self.cache:release(r)
  if self.proposer then self.proposer:forget(r) end
end

local function finish(self, r, reason)
  release(self, r)
  remove(self.active, r)
  remove(self.waiting, r)
  r.reason = reason
  if r.on_end then r.on_end(reason, r) end
end

local function drop_cancelled(self)
  for _, list in ipairs { self.active, self.waiting } do
    for i = #list, 1, -1 do
      if list[i].cancelled then finish(self, list[i], "cancel") end
    end
  end
end

-- Back among those that wait, in the order of their arrival.
local function preempt(self, r)
  self.stats.preemptions = self.stats.preemptions + 1
  release(self, r)
  remove(self.active, r)
  local at = 1
  while self.waiting[at] and self.waiting[at].arrival < r.arrival do at = at + 1 end
  table.insert(self.waiting, at, r)
end

-- Active sequences stand in the order of their arrival: the youngest is the last one.
local function activate(self, r)
  local at = #self.active + 1
  while at > 1 and self.active[at - 1].arrival > r.arrival do at = at - 1 end
  table.insert(self.active, at, r)
end

-- One token of all whose prompts are done. The youngest, whose blocks are taken where some are missing, come last.
local function plan_decoding(self, parts)
  local i = 1
  while self.active[i] do
    local r = self.active[i]
    if #r.ids - r.n == 1 then
      while not self.cache:reserve(r, r.n + 1) do
        local victim = self.active[#self.active]
        preempt(self, victim)
        if victim == r then return end
      end
      parts[#parts + 1] = { seq = r, count = 1 }
    end
    i = i + 1
  end
end

local function plan_prompts(self, parts)
  local left = math.max(self.step_tokens - #parts, #parts == 0 and 1 or 0)
  local function part_of(r)
    local count = math.min(left, #r.ids - r.n)
    if count > 0 and self.cache:reserve(r, r.n + count) then
      parts[#parts + 1] = { seq = r, count = count }
      left = left - count
    end
  end
  for _, r in ipairs(self.active) do
    if #r.ids - r.n > 1 then part_of(r) end
  end
  while left > 0 and #self.active < self.max_seqs and self.waiting[1] do
    local r = self.waiting[1]
    if self.cache:blocks_of(#r.ids + 1) > self.cache:available() then break end
    table.remove(self.waiting, 1)
    if not r.on_prompt then self.cache:match(r) end
    self.stats.shared_tokens = self.stats.shared_tokens + r.n
    activate(self, r)
    part_of(r)
  end
end

local function plan(self)
  local parts = {}
  plan_decoding(self, parts)
  plan_prompts(self, parts)
  -- Prompts that hold all blocks between them: the youngest gives way.
  while #parts == 0 and #self.active > 1 do
    preempt(self, self.active[#self.active])
    plan_prompts(self, parts)
  end
  return parts
end

local function accept(self, r, id, logits)
  if not id then return finish(self, r, "error") end
  if r.ends[id] then return finish(self, r, "stop") end
  self.stats.new_tokens = self.stats.new_tokens + 1
  r.ids[#r.ids + 1], r.new[#r.new + 1] = id, id
  if r.on_logits then r.on_logits(logits, id) end
  local go_on = not r.constraint or r.constraint:accept(id)
  if r.on_token and r.on_token(id, r) == false then go_on = false end
  if not go_on then return finish(self, r, "stop") end
  if #r.new >= r.max_tokens then finish(self, r, "length") end
end

-- Adds proposals to the parts of sequences that have only their last token to compute; they stand behind their ids.
local function propose(self, parts)
  local list = {}
  for _, part in ipairs(parts) do
    local r = part.seq
    -- The last token needs no proposal; the step stays within step_tokens.
    part.most = math.min(r.max_tokens - #r.new - 1, self.model.max_length - #r.ids,
      math.floor(self.step_tokens / #parts) - 1)
    if r.n + 1 == #r.ids and part.most > 0 then list[#list + 1] = part end
  end
  if #list > 0 then self.proposer:propose(list) end
  for _, part in ipairs(list) do
    local r, proposed = part.seq, part.proposed or {}
    while #proposed > 0 and not self.cache:reserve(r, r.n + 1 + #proposed) do
      proposed[#proposed], r.ids[#r.ids] = nil, nil
    end
    part.count = 1 + #proposed
  end
end

-- Takes the proposals from the ids again.
local function withdraw(parts)
  for _, part in ipairs(parts) do
    local ids = part.seq.ids
    for _ = 1, #(part.proposed or {}) do ids[#ids] = nil end
  end
end

-- The next tokens of a sequence, one at least, by the logits behind its last token and behind each proposal, from row
-- `first` on.
local function go_on(self, part, logits, first)
  local r, proposed = part.seq, part.proposed or {}
  self.stats.proposed, r.proposed = self.stats.proposed + #proposed, r.proposed + #proposed
  for i = 0, #proposed do
    local own = logits:select(1, first + i)
    local id = moth.no_grad(sample.next, own, r, r.ids, r.generator)
    local is_proposed = id ~= nil and id == proposed[i + 1]
    if is_proposed then self.stats.accepted, r.accepted = self.stats.accepted + 1, r.accepted + 1 end
    accept(self, r, id, own)
    if r.reason or r.cancelled or not is_proposed then break end
    r.n = r.n + 1
    self.cache:file(r)
  end
  if not self.proposer or r.reason then return end
  self.cache:cut(r, #r.ids)
  self.proposer:settle(r)
end

--- One step of the model.
-- @return the number of requests that are not at their end
function Scheduler:step()
  drop_cancelled(self)
  local parts = plan(self)
  if #parts == 0 then return #self.active + #self.waiting end
  self.stats.steps = self.stats.steps + 1
  local ok, logits, whose = xpcall(function()
    if self.proposer then propose(self, parts) end
    local rows, of, at = {}, {}, 0
    for _, part in ipairs(parts) do
      local r, proposed = part.seq, #(part.proposed or {})
      for i = 1, r.on_prompt and part.count or 0 do -- of tokens of the prompt, once
        local token = r.n + i
        if token > (r.asked or 0) and token <= r.prompt then
          r.asked, rows[#rows + 1], of[#rows + 1] = token, at + i, { r, token }
        end
      end
      at = at + part.count
      if r.n + part.count == #r.ids then
        of[#rows + 1] = { part }
        for i = at - proposed, at do rows[#rows + 1] = i end
      end
    end
    return self.cache:run(self.model, parts, rows), of
  end, require("moth.lang.trace").keep)
  withdraw(parts)
  if not ok then require("moth.lang.trace").rethrow(logits) end
  for _, part in ipairs(parts) do
    local r, count = part.seq, part.count - #(part.proposed or {})
    if r.n < r.prompt then self.stats.prompt_tokens = self.stats.prompt_tokens + count end
    r.n = r.n + count
    self.cache:file(r)
  end
  for row = 1, logits:size(1) do
    local of = whose[row]
    if of and of[2] then
      of[1].on_prompt(logits:select(1, row), of[2])
    elseif of then
      go_on(self, of[1], logits, row)
    end
  end
  return #self.active + #self.waiting
end

return Scheduler
