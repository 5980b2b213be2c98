--- Text from a language model: model:generate(…) of models.GPT and models.Llama.
--
-- The model has decode(idx, cache, mask) -> logits (B, T, V) of tokens behind those in the cache (nil: none),
-- new_cache(B, length), and max_length, the most tokens that it can look at.
local moth = require "moth"
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local M = {}

local parameters = "Tensor idx, size max_new_tokens, number temperature=1, count top_k?, Generator generator?, *, \z
  number top_p=1, number min_p=0, number repetition_penalty=1, bool do_sample=true, count|count[] eos_token_id?, \z
  count pad_token_id?, Tensor attention_mask?, function streamer?, bool use_cache=true, \z
  string cache?"

--- Scores of tokens that were there are divided by the penalty, negative ones multiplied. Padding was not there.
function M.penalised(logits, idx, penalty, mask)
  if mask then idx = moth.where(mask, idx, idx:narrow(2, idx:size(2), 1)) end
  local scores = logits:gather(2, idx)
  return logits:scatter(2, idx, moth.where(scores:lt(0), scores * penalty, scores / penalty))
end

-- Below it the most probable token is taken: divided by less, logits are infinite, and their softmax NaN.
local LEAST = 1e-5
function M.is_greedy(temperature) return temperature < LEAST end

local function keep_largest(logits, k)
  if k >= logits:size(2) then return logits end
  local least = moth.topk(logits, k, 2):narrow(2, k, 1)
  return logits:masked_fill(logits:lt(least), -math.huge)
end

-- The most probable tokens whose probabilities together reach p, one at least.
local function keep_nucleus(logits, p)
  local sorted, at = logits:sort(2, true)
  local probs = sorted:softmax(2)
  local before = probs:cumsum(2) - probs
  return logits:scatter(2, at, sorted:masked_fill(before:ge(p), -math.huge))
end

-- Tokens that are at least so many times as probable as the most probable one.
local function keep_likely(logits, p)
  return logits:masked_fill(logits:lt(logits:max(2, true) + math.log(p)), -math.huge)
end

--- Logits (B, V) by temperature, top_k, top_p, min_p: tokens that are left out have -inf.
function M.filtered(logits, o)
  if o.temperature ~= 1 then logits = logits / o.temperature end
  if o.top_k then logits = keep_largest(logits, o.top_k) end
  if o.top_p < 1 then logits = keep_nucleus(logits, o.top_p) end
  return (o.min_p or 0) > 0 and keep_likely(logits, o.min_p) or logits
end

-- The next token of each row, (B, 1), from logits (B, V).
local function pick(logits, idx, mask, o)
  if logits:dtype() ~= moth.float64 then logits = logits:to(moth.float32) end
  if o.repetition_penalty ~= 1 then logits = M.penalised(logits, idx, o.repetition_penalty, mask) end
  if not o.do_sample or M.is_greedy(o.temperature) then return logits:argmax(2, true) end
  logits = M.filtered(logits, o)
  return moth.multinomial(logits:softmax(2), 1, { generator = o.generator })
end

--- Raises where the options by which tokens are drawn are none; where: the function that got them.
function M.check_sampling(where, o)
  check.number(where, "temperature", o.temperature, 0)
  if not (o.top_p > 0 and o.top_p <= 1) then
    check.fail("[%s] top_p must be above 0 and at most 1, got %g", where, o.top_p)
  end
  if not (o.min_p >= 0 and o.min_p <= 1) then
    check.fail("[%s] min_p must be from 0 to 1, got %g", where, o.min_p)
  end
  if not (o.repetition_penalty > 0 and o.repetition_penalty < math.huge) then
    check.fail("[%s] repetition_penalty must be above 0 and finite, got %g", where, o.repetition_penalty)
  end
end

local function check_options(where, model, o)
  if o.idx:dim() ~= 2 or o.idx:size(2) == 0 then
    check.fail("[%s] idx must be tokens (B, T) with T of at least 1, got %s", where, tostring(o.idx:size()))
  end
  M.check_sampling(where, o)
  if o.cache and not o.use_cache then check.fail("[%s] cache: there is none with use_cache = false", where) end
  local mask = o.attention_mask
  if mask and tostring(mask:size()) ~= tostring(o.idx:size()) then
    check.fail("[%s] attention_mask must have the shape of idx, %s, got %s", where, tostring(o.idx:size()),
      tostring(mask:size()))
  end
  if mask and o.idx:size(2) + o.max_new_tokens > model.max_length then
    check.fail("[%s] with an attention_mask, %d tokens are the most there can be", where, model.max_length)
  end
  if mask and not mask:select(2, -1):ne(0):all():item() then
    check.fail("[%s] the attention_mask leaves out a last token: pad on the left", where)
  end
end

-- The ends: a list of ids.
local function ends_of(o)
  if type(o.eos_token_id) == "number" then return { o.eos_token_id } end
  return o.eos_token_id or {}
end

local function run(model, o)
  local idx, ends = o.idx, ends_of(o)
  local rows, length = idx:size(1), idx:size(2) + o.max_new_tokens
  local mask = o.attention_mask and o.attention_mask:ne(0)
  local finished = #ends > 0 and moth.zeros({ rows, 1 }, { dtype = moth.bool, device = idx:device() })
  local pad = o.pad_token_id or ends[1]
  local cache = o.use_cache and model:new_cache(rows, math.min(length, model.max_length), o.cache) or nil
  local new = idx
  for _ = 1, o.max_new_tokens do
    if idx:size(2) > model.max_length then cache = nil end -- positions have moved: all is computed anew
    local seen = cache and new or idx
    if not cache and seen:size(2) > model.max_length then
      seen = seen:narrow(2, seen:size(2) - model.max_length + 1, model.max_length)
    end
    local logits = model:decode(seen, cache, mask, true):select(2, -1)
    new = pick(logits, idx, mask, o)
    if finished then
      new = moth.where(finished, pad, new)
      for _, id in ipairs(ends) do finished = finished:logical_or(new:eq(id)) end
    end
    idx = moth.cat({ idx, new }, 2)
    if mask then mask = moth.cat({ mask, moth.ones_like(new):ne(0) }, 2) end
    if o.streamer then
      local ids = new:view(-1):totable()
      if o.streamer(rows == 1 and ids[1] or ids) == false then break end
    end
    if finished and finished:all():item() then break end
  end
  return idx
end

--- Gives a class of models the method generate.
function M.install(cls, name)
  local where = ("models.%s:generate"):format(name)
  local read = signature(("%s(%s)"):format(where, parameters), function(...)
    local o = {}
    o.idx, o.max_new_tokens, o.temperature, o.top_k, o.generator, o.top_p, o.min_p, o.repetition_penalty,
      o.do_sample, o.eos_token_id, o.pad_token_id, o.attention_mask, o.streamer, o.use_cache,
      o.cache = ...
    return o
  end)
  --- generate(idx, max_new_tokens, …): extends idx (B, T), ids from 1, by tokens drawn from the model's probabilities.
  --
  -- temperature = 1 (0: the most probable token), top_k = nil (that many of the most probable), top_p = 1 (so many of
  -- them that their probabilities reach it), min_p = 0 (those of at least so many times the largest probability),
  -- repetition_penalty = 1 (divides scores of tokens that are there),
  -- do_sample = true (false: always the most probable), eos_token_id (an id or several: a row ends behind it;
  -- pad_token_id follows, by default that id), attention_mask (B, T) (false where tokens are padding, on the left),
  -- streamer (a function of each new id, or of the list of them; false ends), use_cache = true (false: all tokens are
  -- computed anew each time), cache ("float32", "float16", "bfloat16" or "q8_0": what keys and values are held as; left
  -- out: as the model's), generator.
  -- @return (B, T + new tokens)
  function cls:generate(...)
    local o = read(...)
    check_options(where, self, o)
    local training = self.training
    self:eval()
    local ok, result = xpcall(function() return moth.no_grad(run, self, o) end, require("moth.lang.trace").keep)
    if training then self:train() end
    if not ok then require("moth.lang.trace").rethrow(result) end
    return result
  end
end

-- ---- keys and values of earlier tokens ---------------------------------------------------------------

-- What a cache may hold, whatever the model computes in, by names and by llama.cpp's short ones; q8_0: blocks of 34
-- bytes for 32 elements, as in GGUF's files.
local held = { float32 = "float32", float16 = "float16", bfloat16 = "bfloat16", q8_0 = "uint8" }
local short = { f32 = "float32", f16 = "float16", bf16 = "bfloat16" }

--- The dtype of a cache of `kind`, a name or nil (like's), and elements of a row of it for `dim` of keys. Raises where
-- keys and values of dim elements cannot be held so.
function M.held_as(where, kind, dim, like)
  if kind == nil then return like:dtype(), function(n) return n end end
  local dtype = held[short[kind] or kind]
  if not dtype then
    check.fail("[%s] cache: expected 'float32', 'float16', 'bfloat16' or 'q8_0', got '%s'", where, tostring(kind))
  end
  if kind ~= "q8_0" then return moth[dtype], function(n) return n end end
  if dim % 32 ~= 0 then
    check.fail("[%s] cache: q8_0 is of 32 elements each, and this model's heads have %d; take 'float16'", where, dim)
  end
  return moth.uint8, function(n) return n / 32 * 34 end
end

local Cache = require "moth.class" "KVCache"
M.Cache = Cache

--- An empty cache of `length` tokens at most: for each layer keys and values, (batch, heads, length, dim), on like's
-- device and of its dtype. value_dim: of values (left out: dim; 0: there are none, as keys are values, too). kind: what
-- they are held as (see held_as); they are given in like's dtype.
function Cache:__init(layers, batch, heads, length, dim, like, value_dim, kind)
  self.n, self.length, self.keys, self.values = 0, length, {}, {}
  local dtype, row = M.held_as("KVCache", kind, dim, like)
  local o = { dtype = dtype, device = B.tensor_device(like) }
  self.dtype, self.is_other, self.is_blocks = B.tensor_dtype(like), dtype ~= like:dtype(), dtype == moth.uint8
  for i = 1, layers do
    self.keys[i] = moth.empty({ batch, heads, length, row(dim) }, o)
    self.values[i] = value_dim ~= 0 and moth.empty({ batch, heads, length, row(value_dim or dim) }, o) or nil
  end
end

-- Writes keys or values (batch, heads, T, dim) as blocks of Q8_0: a row of the batch is a block of a pool.
local function write_blocks(self, all, new)
  local batch, T = new:size(1), new:size(3)
  local o = { dtype = moth.int64, device = new:device() }
  local slots = moth.arange(0, batch, o):unsqueeze(2) * self.length + moth.arange(self.n + 1, self.n + T + 1, o)
  local tokens = new:transpose(2, 3):reshape(batch * T, new:size(2), new:size(4))
  local none = moth.empty({ batch, new:size(2), self.length, 0 }, { dtype = moth.uint8, device = new:device() })
  all:kv_write_(none, tokens, tokens:narrow(3, 1, 0), slots:reshape(-1))
end

-- Writes new ones of T tokens behind n others; returns all.
local function put(self, all, new, n, T)
  if self.is_blocks then write_blocks(self, all, new) else all:narrow(3, n + 1, T):copy_(new) end
  all = all:narrow(3, 1, n + T)
  if not self.is_other then return all end
  return self.is_blocks and moth.unpack_blocks(all, "Q8_0", self.dtype) or all:to(self.dtype)
end

--- Writes k and v (batch, heads, T, dim; v may be nil) of layer i behind those that are there; returns all of them.
function Cache:append(i, k, v)
  local n, T = self.n, k:size(3)
  if n + T > self.length then
    check.fail("[KVCache] %d tokens are more than its length, %d", n + T, self.length)
  end
  return put(self, self.keys[i], k, n, T), v and put(self, self.values[i], v, n, T)
end

--- Counts T tokens, once all layers have appended theirs.
function Cache:advance(T) self.n = self.n + T end

--- What attention of T tokens behind `past` others may look at: is_causal and attn_mask (bool) of
-- scaled_dot_product_attention. mask: bool (B, past + T), or nil; window: a token sees that many, itself included.
function M.attention_mask(T, past, mask, device, window)
  if not mask and past == 0 and not window then return true, nil end
  local seen
  if T > 1 or window then
    local at = moth.arange(1, past + T + 1, { dtype = moth.int64, device = device })
    local keys, queries = at:unsqueeze(1), at:narrow(1, past + 1, T):unsqueeze(2)
    seen = keys:le(queries)
    if window then seen = seen:logical_and(keys:gt(queries - window)) end
  end
  if mask then
    local keys = mask:unsqueeze(2):unsqueeze(2)
    seen = seen and seen:logical_and(keys) or keys
  end
  return false, seen
end

--- Rows of x (1, tokens, C): those of a list of positions.
function M.rows(x, rows)
  return x:select(1, 1):index_select(1, moth.tensor(rows, { dtype = moth.int64, device = x:device() }))
end

--- Positions from 1 of T tokens behind `past` others: (T), or (B, T) with a mask, which padding does not count in.
function M.positions(T, past, mask, device)
  if not mask then return moth.arange(past + 1, past + T + 1, { dtype = moth.int64, device = device }) end
  return mask:to(moth.int64):cumsum(2):clamp(1):narrow(2, past + 1, T)
end

return M
