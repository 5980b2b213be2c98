--- The engine of language models in moth.serve (moth/serve/engine.lua says how it is called): a scheduler, a tokenizer,
-- the pieces of the answers; vectors of texts, which encoders give, too.
local ffi = require "ffi"
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local class = require "moth.class"
local base64 = require "moth.utils.base64"
local Embedder = require "moth.llm.embed"
local Proposer = require "moth.llm.propose"
local Scheduler = require "moth.llm.schedule"
local Text = require "moth.llm.text"
local Constraint = require "moth.llm.constraint"
local grammar = require "moth.llm.grammar"
local json_schema = require "moth.llm.json_schema"
local ordered = require "moth.utils.ordered_json"
local tools = require "moth.llm.tools"
local generate = require "moth.llm.generate"
local template = require "moth.llm.template"

local Engine = class "llm.Engine"

-- Without the place that raised it, and with the field as the client knows it.
local function told(message) return (tostring(message):gsub("^[^%[\n]-:%d+: ", ""):gsub("^%[[%w.:]+%] ", "")) end

local names = "path max_tokens max_seqs step_tokens share_prefix device dtype quantize template draft \z
  draft_tokens lookup cache"

--- options: path (of a folder or a .gguf file); max_tokens (4096: of all sequences together), max_seqs (16),
-- step_tokens (256), share_prefix ("owner": nothing is shared between users), device, dtype, quantize (see
-- models.load), template (a chat template or the name of one; left out: the model's), draft (the path of a model that
-- proposes tokens), draft_tokens (4), lookup, cache (see llm.Scheduler).
function Engine:__init(options)
  check.options("[llm.Engine]", options, names)
  local dtype = options.dtype -- from another process, by its name
  if type(dtype) == "string" then dtype = moth[dtype:gsub("^moth%.", "")] or dtype end
  local loading = { device = options.device, dtype = dtype, quantize = options.quantize }
  local model, tokenizer, info = moth.models.load(options.path, loading)
  if not tokenizer then
    check.fail("[llm] %s has no tokenizer.json", options.path)
  end
  local draft = options.draft and Proposer.load(options.draft, loading, tokenizer)
  self.model, self.tokenizer, self.info = model, tokenizer, info
  self.template = options.template or info.chat_template
  self.requests, self.out, self.grammars, self.texts = {}, {}, {}, {}
  -- Where the folder asks for what is not known of vectors, that is said to who asks for one.
  local can_embed, embedder = pcall(Embedder, model, tokenizer, info.embedding or {})
  if can_embed then self.embedder = embedder else self.no_vectors = told(embedder) end
  self.most = model.max_length
  if type(model.step) == "function" and not model.headless then
    self.scheduler = Scheduler(model, { max_tokens = options.max_tokens or 4096, max_seqs = options.max_seqs or 16,
      step_tokens = options.step_tokens, share_prefix = options.share_prefix, draft = draft,
      draft_tokens = options.draft_tokens, lookup = options.lookup, cache = options.cache })
    self.most = math.min(self.most, self.scheduler.cache.total * self.scheduler.cache.block)
  elseif not can_embed then
    error(embedder, 0)
  end
  local longest = tokenizer:longest_token()
  self.signature = { platform = "moth_llm", steps = true, max_tokens = self.most, max_bytes = self.most * longest,
    writes = self.scheduler ~= nil, vectors = can_embed and { dimensions = embedder:size(),
      max_tokens = embedder.max_length, max_bytes = embedder.max_length * longest } or nil }
end

--- One token, so that the first request does not pay for what is made once.
function Engine:warm()
  local s = self.scheduler
  if not s then
    self.embedder:of { { 1 } }
    return
  end
  s:add { ids = { 1 }, max_tokens = 1, temperature = 0 }
  while s:step() > 0 do end -- luacheck: ignore 542
end

local function refuse(...) error("[llm] " .. (...):format(select(2, ...)), 0) end

-- A text that can't have few enough tokens is refused by its bytes: tokens take many times the memory.
local function check_bytes(self, name, bytes, signature)
  signature = signature or self.signature
  local most = signature.max_bytes
  if bytes > most then
    refuse("%s has %d bytes: this model's maximum context length is %d tokens, and no text of more than %d bytes has \z
      so few", name, bytes, signature.max_tokens, most)
  end
end

-- Refuses a list of too many ids; cut: it is not whole.
local function check_count(self, ids, cut)
  if #ids < self.most then return end
  refuse("a prompt of %s%d tokens: this model's maximum context length is %d%s, and a prompt must be shorter",
    cut and "at least " or "", #ids, self.most, self.most == self.model.max_length and ""
    or " here, for which there is memory (max_tokens of moth.serve.llm)")
end

-- The ids of a prompt, a text or ids from 0. embedder: what makes ids of it, if it is to become a vector.
local function prompt_ids(self, prompt, name, embedder)
  if type(prompt) == "string" then
    check_bytes(self, name, #prompt, embedder and self.signature.vectors)
    if embedder then return embedder:ids(prompt, embedder.max_length + 1) end
    local ids = self.tokenizer:encode(prompt, true, { enough = self.most, whole = true })
    check_count(self, ids, true)
    if #ids == 0 then refuse("%s is empty", name) end
    return ids
  end
  local ids, V = {}, self.model.config.vocab_size
  if not embedder then check_count(self, prompt) end
  for i, id in ipairs(prompt) do
    if id >= V then refuse("%s[%d]: there is no token %d; the last one is %d", name, i - 1, id, V - 1) end
    ids[i] = id + 1
  end
  return ids
end

-- A list of prompts' ids, and texts at which the answers end.
local function prompts_of(self, r)
  if r.kind == "chat" then
    local bytes = 0
    for _, m in ipairs(r.messages) do
      bytes = bytes + #(m.role or "") + #m.content
      for _, call in ipairs(m.tool_calls or {}) do
        local f = call["function"]
        bytes, f.arguments = bytes + #f.arguments, ordered.decode(f.arguments) -- as templates expect them
      end
    end
    check_bytes(self, "messages", bytes + #(r.tools or ""))
    local variables = {}
    for name, v in each(r.chat_template_kwargs or {}) do variables[name] = v end
    if r.tools then
      if not tools.form(self.template) then refuse "tools: this model's chat template knows no tools" end
      variables.tools = ordered.decode(r.tools)
    end
    if r.reasoning_effort then
      if not tostring(self.template):find("reasoning_effort", 1, true) then
        refuse "reasoning_effort: this model's chat template knows none"
      end
      variables.reasoning_effort = r.reasoning_effort
    end
    local ok, ids, stop = pcall(function()
      self.talk = self.talk or template.of(self.template, { tokenizer = self.tokenizer, where = "llm" })
      return generate.chat_ids(self.tokenizer, self.talk, r.messages, variables, self.most)
    end)
    if not ok then refuse("%s", told(ids)) end
    check_count(self, ids, true)
    if #ids == 0 then refuse("the chat template makes no text of these messages") end
    return { ids }, stop
  end
  if not r.prompts then return { prompt_ids(self, r.prompt, "prompt") }, {} end
  local list = {}
  for i, prompt in ipairs(r.prompts) do list[i] = prompt_ids(self, prompt, ("prompt[%d]"):format(i - 1)) end
  return list, {}
end

-- A model may have more ids than its tokenizer, which stand for nothing.
local function bytes_of(tokenizer, id) return tokenizer:token(id) and tokenizer:bytes(id) or "" end

local function top_of(tokenizer, logits, id, many)
  local log = logits:to(moth.float32):log_softmax(1)
  local top = {}
  if many > 0 then
    local best, at = moth.topk(log, math.min(many, log:size(1)))
    for k = 1, at:size(1) do top[k] = { bytes_of(tokenizer, at[k]:item()), best[k]:item() } end
  end
  return { token = bytes_of(tokenizer, id), logprob = log[id]:item(), top = top }
end

-- ---- what an answer may be -----------------------------------------------------------------------------

local GRAMMARS = 8 -- that are kept, with what may come in each of their states

-- The grammar of a schema's text, and the state before an answer. make(g): the node, where it is none of a schema.
local function grammar_of(self, schema, make)
  local kept = self.grammars
  for i, one in ipairs(kept) do
    if one.schema == schema then
      table.insert(kept, 1, table.remove(kept, i))
      return one.grammar, one.grammar:start(one.node)
    end
  end
  local g, json = grammar.new(), require "cjson"
  local ok, node = pcall(function()
    if make then return make(g) end
    if schema == "object" then return json_schema.object(g) end
    return json_schema.schema(g, json.decode(schema), json.encode, "response_format.json_schema.schema")
  end)
  if not ok then refuse("%s", told(node)) end
  table.insert(kept, 1, { schema = schema, grammar = g, node = node })
  kept[GRAMMARS + 1] = nil
  return g, g:start(node)
end

-- The grammar of a call that tool_choice asks for.
local function call_grammar(self, r)
  local name, form = type(r.tool_choice) == "table" and r.tool_choice.name, tools.form(self.template)
  return grammar_of(self, ("tools %s %s"):format(name or "", r.tools), function(g)
    local list = {}
    for _, tool in ipairs(tools.list(r.tools)) do
      if not name or tool.name == name then list[#list + 1] = tool end
    end
    return tools.node(g, list, form, "tools")
  end)
end

-- logit_bias by ids from 1.
local function biases(self, given)
  local out, V = {}, self.model.config.vocab_size
  for id, by in each(given) do
    if tonumber(id) >= V then refuse("logit_bias: there is no token %s; the last one is %d", id, V - 1) end
    out[tonumber(id) + 1] = by
  end
  return out
end

-- The prompt's text as a piece, with the logarithms of its tokens' probabilities if they are asked for; these come in
-- the step that reads the prompt.
local function echo(self, o, ids, prompt, r, put)
  local tokenizer = self.tokenizer
  if type(prompt) ~= "string" then
    local text, pieces = Text(tokenizer), {}
    for i, id in ipairs(ids) do pieces[i] = text:add(id) end
    prompt = table.concat(pieces) .. text:finish()
  end
  if not r.logprobs then return put(prompt) end
  local list = { { token = bytes_of(tokenizer, ids[1]) } }
  o.on_prompt = function(logits, i)
    if i < #ids then list[i + 1] = top_of(tokenizer, logits, ids[i + 1], r.logprobs) end
    if i == #ids then put(prompt, list) end
  end
end

local APART = 11400714819 -- between the seeds of a request's choices, so that those of seed + 1 are others

-- Takes texts, or lists of ids, that are to become vectors.
local function add_texts(self, id, r)
  if self.no_vectors then refuse("%s", self.no_vectors) end
  local embedder, lists, tokens = self.embedder, {}, 0
  local H = self.signature.vectors.dimensions
  if r.dimensions and r.dimensions > H then refuse("dimensions: there are %d", H) end
  for i, text in ipairs(r.prompts) do
    local name = ("input[%d]"):format(i - 1)
    local ids = prompt_ids(self, text, name, embedder)
    if #ids > embedder.max_length then
      refuse("%s has %d tokens: this model's maximum context length is %d", name, #ids, embedder.max_length)
    end
    lists[i], tokens = ids, tokens + #ids
  end
  self.texts[#self.texts + 1] = { id = id, lists = lists, at = 0, tokens = tokens, dimensions = r.dimensions }
end

local TEXTS, TOKENS = 64, 2048 -- that become vectors in one step

-- Vectors of some texts of the oldest request.
local function embed(self)
  local job, some, tokens = self.texts[1], {}, 0
  if not job then return end
  repeat
    some[#some + 1] = job.lists[job.at + #some + 1]
    tokens = tokens + #some[#some]
  until #some == TEXTS or tokens > TOKENS or job.at + #some == #job.lists
  local vectors = self.embedder:of(some)
  local H = job.dimensions
  if H then vectors = moth.nn.functional.normalize(vectors:narrow(2, 1, H), { dim = 2 }) end
  vectors = vectors:to("cpu"):contiguous()
  for i = 1, #some do
    local row = vectors:select(1, i):contiguous()
    local bytes = ffi.string(row:data(), 4 * row:numel())
    local is_last = job.at + i == #job.lists
    self.out[#self.out + 1] = { job.id, { index = job.at + i - 1, vector = base64.encode(bytes), done = is_last or nil,
      prompt_tokens = is_last and job.tokens or nil } }
  end
  job.at = job.at + #some
  if job.at == #job.lists then table.remove(self.texts, 1) end
end

--- Takes a request of openai.lua; what it raises goes to the client.
function Engine:add(id, r)
  if r.kind == "embedding" then return add_texts(self, id, r) end
  if not self.scheduler then refuse "this model gives vectors, /v1/embeddings, and writes nothing" end
  local prompts, stop = prompts_of(self, r)
  for _, s in ipairs(r.stop or {}) do stop[#stop + 1] = s end
  local n = r.n or 1
  local all = { parts = {}, left = #prompts * n, prompt_tokens = 0, completion_tokens = 0, proposed = 0,
    accepted = 0 }
  local most, ends = self.most, not r.ignore_eos and self.info.eos or nil
  if r.stop_token_ids then
    ends = { unpack(ends or {}) }
    for _, token in ipairs(r.stop_token_ids) do ends[#ends + 1] = token + 1 end
  end
  for _, ids in ipairs(prompts) do all.prompt_tokens = all.prompt_tokens + #ids end
  for index = 0, all.left - 1 do
    local ids = prompts[math.floor(index / n) + 1]
    local text, waiting = Text(self.tokenizer, stop), nil
    local o = generate.request(ids, r, ends, self.tokenizer, stop)
    local none = r.max_tokens == 0 -- only the prompt is asked for
    o.max_tokens = none and 1 or math.min(r.max_tokens or (r.kind == "chat" and 2 ^ 20 or 16), most - #ids)
    o.logit_bias = r.logit_bias and biases(self, r.logit_bias)
    if r.response_format or r.tool_choice then
      local g, start = (r.tool_choice and call_grammar or grammar_of)(self, r.tool_choice and r or r.response_format)
      o.constraint = Constraint(self.tokenizer, g, start, self.model.config.vocab_size)
    end
    local function put(piece, logprobs)
      self.out[#self.out + 1] = { id, { index = index, text = piece, tokens = 0, logprobs = logprobs } }
    end
    if r.echo then echo(self, o, ids, r.prompts and r.prompts[math.floor(index / n) + 1] or r.prompt, r, put) end
    if r.seed then o.seed = (r.seed + index % n * APART) % 2 ^ 53 end
    o.owner = r.owner
    if r.logprobs and not none then
      o.on_logits = function(logits, token) waiting = top_of(self.tokenizer, logits, token, r.logprobs) end
    end
    o.on_token = function(token)
      if none then return true end
      all.completion_tokens = all.completion_tokens + 1
      local piece = text:add(token)
      if piece ~= "" or waiting then
        self.out[#self.out + 1] = { id,
          { index = index, text = piece, tokens = 1, logprobs = waiting and { waiting } } }
      end
      return not text.stopped
    end
    o.on_end = function(reason, done)
      if reason == "cancel" then return end
      all.left = all.left - 1
      all.proposed, all.accepted = all.proposed + done.proposed, all.accepted + done.accepted
      local piece = { index = index, text = text:finish(), tokens = 0, finish_reason = none and "length" or reason }
      if all.left == 0 then
        piece.done, piece.prompt_tokens, piece.completion_tokens = true, all.prompt_tokens, all.completion_tokens
        if self.scheduler.proposer then piece.accepted, piece.refused = all.accepted, all.proposed - all.accepted end
        self.requests[id] = nil
      end
      self.out[#self.out + 1] = { id, piece }
    end
    local ok, request = pcall(self.scheduler.add, self.scheduler, o)
    if not ok then
      for _, other in ipairs(all.parts) do self.scheduler:cancel(other) end
      refuse("%s", told(request))
    end
    all.parts[#all.parts + 1] = request
  end
  self.requests[id] = all
end

function Engine:cancel(id)
  for i = #self.texts, 1, -1 do
    if self.texts[i].id == id then table.remove(self.texts, i) end
  end
  local all = self.requests[id]
  for _, request in ipairs(all and all.parts or {}) do self.scheduler:cancel(request) end
  self.requests[id] = nil
end

-- A step that raises: none of its requests can go on.
local function failed(why, emit, id)
  io.stderr:write(tostring(why), "\n")
  emit(id, { error = told(why), status = 500, done = true })
end

--- One step of all; emit(id, piece) for each part of an answer. false: nothing is left to do.
function Engine:step(emit)
  local s, ok, left = self.scheduler, true, 0
  if s then ok, left = pcall(s.step, s) end
  if not ok then
    for id, all in each(self.requests) do
      for _, request in ipairs(all.parts) do s:cancel(request) end
      failed(left, emit, id)
    end
    self.requests, self.out = {}, {}
    left = s:step()
  end
  local job = self.texts[1]
  local embedded, why = pcall(embed, self)
  if not embedded then
    table.remove(self.texts, 1)
    failed(why, emit, job.id)
  end
  local out = self.out
  self.out = {}
  for _, o in ipairs(out) do emit(o[1], o[2]) end
  return left > 0 or #self.texts > 0
end

function Engine:state()
  local s = self.scheduler
  if not s then return { texts = #self.texts } end
  return { blocks = s.cache.total, blocks_used = s.cache:used(), sequences = #s.active, waiting = #s.waiting,
    new_tokens_total = s.stats.new_tokens, prompt_tokens_total = s.stats.prompt_tokens,
    shared_tokens_total = s.stats.shared_tokens, preemptions_total = s.stats.preemptions,
    proposed_tokens_total = s.stats.proposed, accepted_tokens_total = s.stats.accepted }
end

return { load = Engine }
