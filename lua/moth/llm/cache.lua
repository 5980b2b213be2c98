--- Keys and values of many sequences in blocks of 16 tokens: pools that are made once, a free list, and blocks that
-- sequences with an equal beginning share.
--
-- A sequence is a table { ids = list, n = tokens in the cache, blocks = list, owner = string }. Full blocks stand in a
-- tree of their ids, a tree for each owner, for others that begin alike; those that nobody uses any more are given away
-- last, the oldest first.
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local attention = require "moth.models.attention"
local generate = require "moth.models.generate"

local Cache = class "PagedCache"

local BLOCK = 16

-- sizes: { layers, heads, dim, value_dim } of keys and values (value_dim: left out, as dim; 0: keys are values, too);
-- like: a tensor of their device and, unless cache says another one, dtype.
Cache.__init = signature.init("llm.PagedCache(table sizes, Tensor like, count max_tokens=4096, bool share=true, \z
  string cache?)",
function(self, o)
  local sizes, blocks = o.sizes, math.ceil(o.max_tokens / BLOCK)
  local dtype, row = generate.held_as("llm.PagedCache", o.cache, sizes.dim, o.like)
  local function shape(dim) return { blocks, sizes.heads, BLOCK, row(dim) } end
  self.block, self.total, self.share = BLOCK, blocks, o.share
  self.keys, self.values, self.free = {}, {}, {}
  local options = { dtype = dtype, device = o.like:device() }
  for i = 1, sizes.layers do
    self.keys[i] = moth.zeros(shape(sizes.dim), options)
    self.values[i] = moth.zeros(shape(sizes.value_dim or sizes.dim), options)
  end
  for i = 1, blocks do self.free[i] = blocks + 1 - i end
  self.count, self.node, self.roots, self.kept = {}, {}, {}, 0 -- by block: users, place in the tree
  self.oldest = {} -- a ring of the nodes that nobody uses: this end, in the order in which they were left
  self.oldest.after, self.oldest.before = self.oldest, self.oldest
end)

local function unlink(node)
  node.before.after, node.after.before = node.after, node.before
  node.before, node.after = nil, nil
end

--- Blocks that are free or could be; blocks that sequences use.
function Cache:available() return #self.free + self.kept end
function Cache:used() return self.total - self:available() end
--- Blocks that n tokens need.
function Cache.blocks_of(_, n) return math.ceil(n / BLOCK) end

local function take(self)
  local block = table.remove(self.free)
  if block then return block end
  local node = self.oldest.after
  if node == self.oldest then return nil end
  unlink(node)
  self.kept = self.kept - 1
  local parent = node.parent
  parent.children[node.key] = nil
  if parent.owner and next(parent.children) == nil then self.roots[parent.owner] = nil end
  self.node[node.block] = nil
  return node.block
end

--- Gives a sequence blocks for n tokens; false if there are not as many: then it has what it had.
function Cache:reserve(seq, n)
  local need = self:blocks_of(n) - #seq.blocks
  if need > self:available() then return false end
  for _ = 1, need do
    local block = take(self)
    self.count[block] = 1
    seq.blocks[#seq.blocks + 1] = block
  end
  return true
end

local function key_of(ids, block) return table.concat(ids, ",", (block - 1) * BLOCK + 1, block * BLOCK) end

--- Gives a sequence that has no blocks those that another one with the same beginning filled; the last token is left
-- out, as its logits are asked for. Sets seq.n.
function Cache:match(seq)
  local node = self.roots[seq.owner or ""]
  seq.n = 0
  if not self.share or not node then return end
  for j = 1, math.floor((#seq.ids - 1) / BLOCK) do
    node = node.children[key_of(seq.ids, j)]
    if not node then break end
    if node.after then
      unlink(node)
      self.kept = self.kept - 1
    end
    self.count[node.block] = (self.count[node.block] or 0) + 1
    seq.blocks[j], seq.n, seq.node, seq.filed = node.block, j * BLOCK, node, j
  end
end

--- Notes the blocks that a sequence has filled, for others.
function Cache:file(seq)
  if not self.share then return end
  local owner = seq.owner or ""
  for j = (seq.filed or 0) + 1, math.floor(seq.n / BLOCK) do
    local parent, block = seq.node, seq.blocks[j]
    if not parent then
      parent = self.roots[owner] or { children = {}, owner = owner }
      self.roots[owner] = parent
    end
    local key = key_of(seq.ids, j)
    local node = parent.children[key]
    if not node then
      node = { block = block, parent = parent, key = key, children = {} }
      parent.children[key], self.node[block] = node, node
    end
    -- Another one's block with the same ids: this sequence goes on with that.
    if node.block ~= block then
      self.free[#self.free + 1], self.count[block] = block, nil
      if node.after then
        unlink(node)
        self.kept = self.kept - 1
      end
      self.count[node.block], seq.blocks[j] = (self.count[node.block] or 0) + 1, node.block
    end
    seq.node, seq.filed = node, j
  end
end

--- Takes back the blocks behind the first n tokens, which hold nothing that stays.
function Cache:cut(seq, n)
  for _ = #seq.blocks, math.max(self:blocks_of(n), seq.filed or 0) + 1, -1 do
    local block = table.remove(seq.blocks)
    self.count[block], self.free[#self.free + 1] = nil, block
  end
end

--- Takes a sequence's blocks back; those that stand in the tree are kept as long as there are others. The last ones
-- first, so that a block is given away before those it stands on.
function Cache:release(seq)
  for j = #seq.blocks, 1, -1 do
    local block = seq.blocks[j]
    self.count[block] = self.count[block] - 1
    local node = self.node[block]
    if self.count[block] == 0 then
      self.count[block] = nil
      if node then
        local last = self.oldest.before
        node.before, node.after, last.after, self.oldest.before = last, self.oldest, node, node
        self.kept = self.kept + 1
      else
        self.free[#self.free + 1] = block
      end
    end
  end
  seq.blocks, seq.n, seq.node, seq.filed = {}, 0, nil, nil
end

-- ---- a step of some sequences ---------------------------------------------------------------------------

local Pages = class "PagedCache.Step"

--- What the layers of a model need to compute the next tokens of sequences: parts, a list of { seq =, count = }, each
-- with the count of tokens behind seq.n. Has tokens and positions (1, all tokens), counted from 1.
function Cache:step(parts)
  local tokens, positions, slots, tables, lengths, counts, longest = {}, {}, {}, {}, {}, {}, 1
  for _, part in ipairs(parts) do longest = math.max(longest, self:blocks_of(part.seq.n + part.count)) end
  for s, part in ipairs(parts) do
    local seq = part.seq
    for t = seq.n + 1, seq.n + part.count do
      local at = #tokens + 1
      tokens[at], positions[at] = seq.ids[t], t
      slots[at] = (seq.blocks[math.floor((t - 1) / BLOCK) + 1] - 1) * BLOCK + (t - 1) % BLOCK + 1
    end
    local row = {}
    for j = 1, longest do row[j] = seq.blocks[j] or 1 end
    tables[s], lengths[s], counts[s] = row, seq.n + part.count, part.count
  end
  if #tokens == 0 then check.fail("[llm.PagedCache] a step of no tokens") end
  local o = { dtype = moth.int64, device = self.keys[1]:device() }
  local step = Pages()
  step.cache, step.tokens, step.positions = self, moth.tensor({ tokens }, o), moth.tensor({ positions }, o)
  step.slots, step.table = moth.tensor(slots, o), moth.tensor(tables, o)
  step.lengths, step.counts = moth.tensor(lengths, o), moth.tensor(counts, o)
  step.parts = parts -- for models that keep a state of their own
  step.all_lengths, step.all_counts, step.longest = lengths, counts, math.max(unpack(lengths))
  return step
end

--- Logits of a model behind some tokens of a step of parts: rows, positions among all of them.
function Cache:run(model, parts, rows)
  local training = model.training
  if training then model:eval() end
  local ok, logits = xpcall(function() return moth.no_grad(model.step, model, self:step(parts), rows) end,
    require("moth.lang.trace").keep)
  if training then model:train() end
  if not ok then require("moth.lang.trace").rethrow(logits) end
  return logits
end

-- Keys or values of layer i of sequence s from a token on, (1, heads, tokens, dim), copied out of their blocks, of this
-- dtype.
local function gathered(self, pool, s, first, dtype)
  local from = math.floor((first - 1) / BLOCK)
  local length = self.all_lengths[s]
  local blocks = self.table:select(1, s):narrow(1, from + 1, math.ceil(length / BLOCK) - from)
  local t = pool:index_select(1, blocks)
  t = (t:dtype() == moth.uint8 and moth.unpack_blocks(t, "Q8_0", dtype) or t:to(dtype)):transpose(1, 2)
  return t:reshape(1, t:size(1), -1, t:size(4)):narrow(3, first - from * BLOCK, length - first + 1)
end

-- Attention that paged_attention has not, one sequence after the other.
local function attend_each(self, q, keys, values, o, alibi)
  local parts, at = {}, 1
  for s, count in ipairs(self.all_counts) do
    local first, seen = attention.window(count, self.all_lengths[s], o.window, q:device())
    local own = q:narrow(1, at, count):transpose(1, 2):unsqueeze(1)
    local k, v = gathered(self, keys, s, first, q:dtype()), gathered(self, values, s, first, q:dtype())
    if alibi then
      local positions = moth.arange(first, self.all_lengths[s] + 1, { dtype = moth.int64, device = q:device() })
      seen = attention.biased(alibi, positions, seen, q:dtype())
    end
    local y
    if o.cap then
      y = attention.capped(own, k, v, seen, o.scale or q:size(3) ^ -0.5, o.cap)
    else
      y = moth.scaled_dot_product_attention(own, k, v, { attn_mask = seen, scale = o.scale, enable_gqa = true })
    end
    parts[s], at = y:select(1, 1):transpose(1, 2), at + count
  end
  return moth.cat(parts, 1)
end

--- Writes k and v (tokens, heads, dim; v nil: keys are values, too) of layer i; attention of q to all there are by
-- then: (1, tokens, heads x dim).
-- o: scale; window, the number of tokens that one sees; cap, of the scores; sinks, alibi: see
-- models/attention.lua
function Pages:attend(i, q, k, v, o, alibi)
  local keys, values = self.cache.keys[i], self.cache.values[i]
  keys:kv_write_(values, k, v or k:narrow(3, 1, 0), self.slots)
  if not v then values = keys end
  local y
  if alibi or o and o.cap then
    y = attend_each(self, q, keys, values, o, alibi)
  else
    o = o or {}
    y = moth.paged_attention(q, keys, values, self.table, self.lengths, self.counts, { scale = o.scale, sinks = o.sinks,
      window = o.window })
  end
  return y:reshape(1, y:size(1), y:size(2) * y:size(3))
end

return Cache
