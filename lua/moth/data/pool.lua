--- The worker threads of a DataLoader, from the caller's side.
--
-- A pool serves epochs, also several at once (loops that nest). Each keeps num_workers x prefetch_factor requests on
-- their way and gives the answers in the order of the requests. Workers take requests from one channel, whoever is free
-- first; those of an IterableDataset, of which each worker has a share, from a channel each, in turn.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local each = require "moth.each"
local fetch = require "moth.data.fetch"
local system = require "moth.utils.system"
local transfer = require "moth.data.transfer"

local T = B.threads
local where = "[data.DataLoader]"
local GRACE = 2 -- seconds for workers to end in

local Pool = class("Pool")

local warned = {}
local function warn(message, ...)
  if warned[message] then return end
  warned[message] = true
  io.stderr:write("moth: warning: ", message:format(...), "\n")
end

local function processors()
  local n = 0
  local f = io.open("/proc/self/status")
  if not f then return math.huge end
  for a, b in (f:read("*a"):match("Cpus_allowed_list:%s*(%S+)") or ""):gmatch("(%d+)%-?(%d*)") do
    n = n + (b ~= "" and b - a + 1 or 1)
  end
  f:close()
  return n > 0 and n or math.huge
end

-- Starts a worker; its number counts from 0.
local function start_worker(self, number, graph, o)
  local thread, what, at = T.start("moth.data.worker", number, self.results, self.inboxes[number] or self.inboxes[0],
    self.results, graph, o)
  if not thread then check.fail("%s a worker cannot get the dataset: %s is %s", where, at, what) end
  self.threads[number] = thread
end

--- source: { dataset, collate_fn?, worker_init_fn? }, sent to the workers; o: { num_workers, prefetch_factor, timeout,
-- whole, iterable, batch_size?, drop_last, seed }
function Pool:__init(source, o)
  if o.num_workers > processors() then
    warn("%s num_workers = %d, but there are %d processors for this process: more workers than these only wait "
      .. "for each other", where, o.num_workers, processors())
  end
  local graph, sent, at = transfer.encode(source, "")
  if not graph then
    local what, hint = sent:match("^(.-)(; HINT: .*)$")
    check.fail("%s %s is %s: it cannot go to a worker%s", where, at:sub(2), what or sent, hint or "")
  end
  self.sent = sent
  self.n, self.timeout, self.iterable = o.num_workers, o.timeout, o.iterable
  self.limit = o.num_workers * o.prefetch_factor
  self.results, self.inboxes, self.threads = T.channel(), { [0] = T.channel() }, {}
  self.epochs, self.last, self.ready = setmetatable({}, { __mode = "v" }), 0, 0
  for id = 1, o.iterable and self.n - 1 or 0 do self.inboxes[id] = T.channel() end
  for id = 0, self.n - 1 do
    start_worker(self, id, graph, { id = id, num_workers = self.n, seed = fetch.seed(o.seed, 2 ^ 40 + id),
      dtype = moth.get_default_dtype(), whole = o.whole, iterable = o.iterable, batch_size = o.batch_size,
      drop_last = o.drop_last })
  end
end

--- Ends the workers: those that wait end at once, those that work are interrupted. One that does not end (it hangs in
-- C, or in a loop that calls nothing) is left to itself.
function Pool:stop()
  if not self.threads then return end
  local threads = self.threads
  self.threads = nil
  for id = 0, #self.inboxes do T.close(self.inboxes[id]) end
  local busy = false
  for id = 0, self.n - 1 do busy = busy or threads[id] and T.note(threads[id]) >= 0 end
  local limit = system.now() + GRACE
  for id = 0, self.n - 1 do
    local thread = threads[id]
    local ended = not thread or T.join(thread, busy and 0 or 0.1)
    while not ended and system.now() < limit do
      for k = id, self.n - 1 do if threads[k] then T.stop(threads[k]) end end
      ended = T.join(thread, 0.02)
    end
    if not ended and T.abandon(thread) then
      warn("%s a worker thread has not ended within %g s of its loader; it is left to itself, with its memory", where,
        GRACE)
    end
  end
  T.close(self.results)
end

-- ---- epochs --------------------------------------------------------------------------------------------

local Epoch = class("Epoch")

--- One epoch. next_request() gives the positions of the next batch, or nil; base: the seed of the epoch. first: the
-- number of batches that were given before (of an epoch that is resumed).
function Pool:epoch(next_request, base, first)
  self.last = self.last + 1
  local epoch = Epoch()
  epoch.pool, epoch.number, epoch.next_request, epoch.base = self, self.last, next_request, base
  epoch.sent, epoch.given, epoch.first = 0, 0, first or 0
  epoch.slots = {}   -- answers: number of the request -> { kind, … }
  epoch.workers = {} -- of an IterableDataset: those that have more samples, in turn
  for id = 0, self.iterable and self.n - 1 or -1 do epoch.workers[id + 1] = id end
  epoch.turn = 1
  self.epochs[self.last] = epoch
  return epoch
end

local function oldest(pool)
  local least = pool.last
  for number in each(pool.epochs) do least = math.min(least, number) end
  return least
end

-- Sends requests until as many are on their way as may be.
function Epoch:send()
  local pool = self.pool
  while not self.exhausted and self.sent - self.given < pool.limit do
    local request
    if not pool.iterable then request = self.next_request() end
    if pool.iterable and #self.workers == 0 or not pool.iterable and request == nil then
      self.exhausted = true
      return
    end
    self.sent = self.sent + 1
    local inbox = pool.inboxes[0]
    if pool.iterable then
      inbox = pool.inboxes[self.workers[(self.turn - 1) % #self.workers + 1]]
      self.turn = (self.turn - 1) % #self.workers + 2
    end
    local b = self.first + self.sent
    local ok, what, at = T.push(inbox, self.number, b, fetch.seed(self.base, b), request, oldest(pool), self.base)
    if ok == nil then check.fail("%s the sampler gave %s, which is %s", where, at, what) end
  end
end

-- Puts an answer where it belongs; raises what is wrong with the pool itself.
local function take(pool, got, kind, a, b, ...)
  if got == nil then check.fail("%s the loader's workers were stopped", where) end
  if got == false then return end
  if kind == "ready" then
    pool.ready = pool.ready + 1
    return
  elseif kind == "failed" then
    pool:stop()
    check.fail("%s worker %d could not start: %s", where, a, b)
  elseif kind == "ended" then
    pool:stop()
    check.fail("%s worker %d has ended%s", where, a, b and ": " .. b or " without a word")
  end
  local epoch = pool.epochs[a]
  if epoch then epoch.slots[b - epoch.first] = { kind = kind, n = select("#", ...), ... } end
end

local function too_late(pool, b)
  local who = "the workers have"
  for id = 0, pool.n - 1 do
    if T.note(pool.threads[id]) == b then who = ("worker %d has"):format(id) end
  end
  pool:stop()
  check.fail("%s %s not finished batch %d within %g s (timeout)", where, who, b, pool.timeout)
end

-- The answer to request number n of the epoch, once all workers have started: one that could not is an error even where
-- the others would do.
local function answer(self, n)
  local pool, since = self.pool, system.now()
  while not self.slots[n] or pool.ready < pool.n do
    if not pool.threads then check.fail("%s the loader's workers were stopped", where) end
    take(pool, T.pop(pool.results, 0.05))
    if pool.timeout > 0 and system.now() - since > pool.timeout then
      too_late(pool, self.first + n)
    end
  end
  local found = self.slots[n]
  self.slots[n] = nil
  return found
end

local function remove(list, value)
  for k = #list, 1, -1 do if list[k] == value then table.remove(list, k) end end
end

--- The values of the next batch, or nothing at the end. Raises the error of a worker.
function Epoch:next()
  while true do
    self:send()
    if self.given == self.sent then return nil end
    local found = answer(self, self.given + 1)
    self.given = self.given + 1
    local b, id = self.first + self.given, found[1]
    self:send()
    if found.kind == "error" then
      check.fail("%s in worker %d, batch %d: %s", where, id, b, found[2])
    elseif found.kind == "batch graph" then
      local values = transfer.decode(found[2], self.pool.sent)
      return unpack(values, 1, values.n)
    elseif found.kind == "batch" then
      return unpack(found, 2, found.n)
    end
    local before = #self.workers
    remove(self.workers, id) -- "done": this worker has no more samples
    if #self.workers < before then self.turn = 1 end
  end
end

return Pool
