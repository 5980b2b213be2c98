--- What travels between the stages of a pipeline: lists of tensors, any of which may be missing. A message has a head,
-- which says dtypes and shapes, and then the tensors. Heads have a tag of their own, so that they are received early.
local check = require "moth.utils.check"
local class = require "moth.class"
local messages = require "moth.distributed.messages"
local moth = require "moth"

local TENSORS, DIMS = 8, 8
local WORDS = 1 + TENSORS * (2 + DIMS)
local HEAD, DATA = 2 ^ 20, 2 ^ 20 + 1

local names = { "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64", "bool",
  "uint16", "uint32", "uint64", "complex64", "complex128" }
local codes = {}
for i, name in ipairs(names) do codes[name] = i end

local Edges = class("Edges")

--- group: of the pipeline's ranks.
function Edges:__init(group)
  self.group, self.queues, self.sent = group, {}, {}
end

local function finish(sent)
  sent.work:wait()
  sent.tensor:free()
end

local function drop_done(self)
  local left = {}
  for _, w in ipairs(self.sent) do
    if w.work:is_completed() then finish(w) else left[#left + 1] = w end
  end
  self.sent = left
end

local function send(self, t, to, tag)
  local work = messages.isend(t, self.group.ranks[to + 1], { group = self.group, tag = tag })
  table.insert(self.sent, { work = work, tensor = t })
end

--- Sends a list of n tensors, with gaps, to a rank of the group.
function Edges:send(list, n, to)
  drop_done(self)
  local head = { n }
  for i = 1, WORDS - 1 do head[i + 1] = 0 end
  if n > TENSORS then check.fail("[distributed.pipeline] %d results of a stage are more than %d", n, TENSORS) end
  local own = {}
  for i = 1, n do
    local t = list[i]
    if t then
      if t:dim() > DIMS then
        check.fail("[distributed.pipeline] a result of a stage has more than %d dimensions", DIMS)
      end
      t = t:detach():contiguous()
      local at = 2 + (i - 1) * (2 + DIMS)
      head[at], head[at + 1] = codes[t:dtype().name], t:dim()
      for d, size in ipairs(t.shape) do head[at + 1 + d] = size end
      own[#own + 1] = t
    end
  end
  send(self, moth.tensor(head, { dtype = moth.int64 }), to, HEAD)
  for _, t in ipairs(own) do send(self, t, to, DATA) end
end

--- Announces a receive from a rank, in the order of its sends; `key` names it.
function Edges:expect(key, from)
  local queue = self.queues[from]
  if not queue then
    queue = { first = 1, last = 0, here = {} }
    self.queues[from] = queue
  end
  local head = moth.empty({ WORDS }, { dtype = moth.int64 })
  queue.last = queue.last + 1
  queue[queue.last] = { key = key, head = head,
    work = messages.irecv(head, self.group.ranks[from + 1], { group = self.group, tag = HEAD }) }
end

-- Begins to receive the tensors of the first message whose head is there.
local function begin(self, queue, from)
  local m = queue[queue.first]
  m.work:wait()
  queue[queue.first] = nil
  queue.first = queue.first + 1
  local head, works, list = m.head:totable(), {}, {}
  for i = 1, head[1] do
    local at = 2 + (i - 1) * (2 + DIMS)
    if head[at] > 0 then
      local shape = {}
      for d = 1, head[at + 1] do shape[d] = head[at + 1 + d] end
      list[i] = moth.empty(shape, { dtype = moth[names[head[at]]] })
      works[#works + 1] = messages.irecv(list[i], self.group.ranks[from + 1], { group = self.group, tag = DATA })
    end
  end
  queue.here[m.key] = { list = list, n = head[1], works = works }
end

--- Receives what has come, without waiting.
function Edges:progress()
  for from, queue in require "moth.each"(self.queues) do
    while queue.first <= queue.last and queue[queue.first].work:is_completed() do begin(self, queue, from) end
  end
end

--- The list of a message, and its number of places; waits for it.
function Edges:take(key, from)
  local queue = self.queues[from]
  while not queue.here[key] do begin(self, queue, from) end
  local m = queue.here[key]
  queue.here[key] = nil
  for _, w in ipairs(m.works) do w:wait() end
  return m.list, m.n
end

--- Waits until all that was sent may be changed.
function Edges:flush()
  for _, w in ipairs(self.sent) do finish(w) end
  self.sent = {}
end

return Edges
