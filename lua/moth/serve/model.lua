--- One served model: its queue, its batches, its engine and what follows when that ends.
--
-- Requests wait in one bounded queue. An engine that is free takes all that waits, up to max_size rows of equal shapes
-- and dtypes, the oldest first. With max_delay_ms it waits so long for more, from the oldest request on.
--
-- An engine that ends or says nothing for step_timeout seconds is started again after 1, 2, 4 … 30 seconds; what it
-- computed gets 503. Requests of a batch in which an engine ended are computed alone if they come again, and refused
-- once an engine has ended with them twice (kept ten minutes, by a digest).
local B = require "moth_lua"
local class = require "moth.class"
local each = require "moth.each"
local engine = require "moth.serve.engine"
local frames = require "moth.serve.frames"
local front = require "moth.serve.front"
local kserve = require "moth.serve.kserve"
local values = require "moth.serve.values"
local Worker = require "moth.serve.worker"

local REMEMBER = 600 -- seconds for which a request is held against itself
local LONGEST = 30 -- seconds between starts

local Model = class "Model"

--- o: name, description (of the engine), batching { max_size, max_delay_ms }, limits { queue, wait_ms }, step_timeout,
-- load_timeout, drain, reload ("start_first" or "stop_first"), metrics (metrics.lua).
function Model:__init(o)
  for key, value in each(o) do self[key] = value end
  self.queue, self.rows = {}, 0
  self.running = {} -- requests of an engine of steps, by number
  self.next_id = 1
  self.suspects = {}
  self.leaving = {} -- workers that were replaced, and still answer
  self.pause = 1
end

-- ---- requests ----------------------------------------------------------------------------------------

local Entry = class "Entry"

function Entry:finish(status, value)
  if self.status then return end
  self.status, self.value = status, value
  self.changed:signal()
end

local function digest(entry)
  if not entry.digest then entry.digest = B.sha256(entry.key .. table.concat(entry.parts)) end
  return entry.digest
end

-- How often an engine has ended with a request.
function Model:guilt(entry)
  if next(self.suspects) == nil then return 0 end
  local note = self.suspects[digest(entry)]
  if not note then return 0 end
  if front.now() > note.ends then
    self.suspects[entry.digest] = nil
    return 0
  end
  return note.count
end

-- Notes the requests that a worker was computing when it ended; equal ones once.
function Model:accuse(worker, batch)
  for _, entry in ipairs(batch) do
    local note = self.suspects[digest(entry)] or { count = 0 }
    if note.worker ~= worker then note.count = note.count + 1 end
    note.worker, note.ends = worker, front.now() + REMEMBER
    self.suspects[entry.digest] = note
  end
end

-- Whether a request may be queued; else a status, why, and Retry-After.
function Model:admit(entry)
  if self.stopped then return nil, 503, "the server stops" end
  if self:guilt(entry) >= 2 then
    return nil, 422, "an engine has ended twice while it computed this request; it is refused for ten minutes"
  end
  if not self:is_ready() then
    if self.worker and self.worker.state == "loading" or self.switching then return true end
    return nil, 503, "the model's engine has ended and is started again", self:retry_after()
  end
  return true
end

function Model:retry_after() return math.max(1, math.ceil((self.next_start or 0) - front.now())) end

-- All workers that have not ended, for ipairs.
function Model:workers()
  local list = {}
  for _, worker in ipairs { self.worker or false, self.coming or false, unpack(self.leaving) } do
    if worker and worker.state ~= "ended" then list[#list + 1] = worker end
  end
  return list
end

--- How many requests wait.
function Model:waiting()
  local n = #self.queue
  for _, entry in each(self.worker and self.worker.requests or {}) do n = n + (#entry.pieces == 0 and 1 or 0) end
  return n
end

--- Seconds for which the oldest request waits for its first answer, or an engine of steps says nothing while it has
-- something to do.
function Model:lag()
  local worker, now = self.worker, front.now()
  local lag = self.queue[1] and now - self.queue[1].arrived or 0
  if not worker or not worker.requests or next(worker.requests) == nil then return lag end
  lag = math.max(lag, now - worker.heard)
  for _, entry in each(worker.requests) do
    if #entry.pieces == 0 then lag = math.max(lag, now - entry.arrived) end
  end
  return lag
end

function Model:is_ready() return self.worker ~= nil and self.worker.state == "ready" end

local REPLACED = "the model was replaced by one of another signature"

--- Computes a request: parts (bytes of its inputs), key (dtypes and shapes but for the batch), rows, signature (by
-- which it was read), request (whose is_gone says whether its client has left). Returns 200 and { outputs = { { dtype,
-- shape, bytes } }, wait, seconds, size (of its batch) }, or a status, why and Retry-After.
function Model:compute(entry)
  setmetatable(entry, Entry)
  local ok, status, why, retry = self:admit(entry)
  if not ok then return status, why, retry end
  if entry.signature ~= self.signature then return 503, REPLACED, 1 end -- while it was read
  if #self.queue >= self.limits.queue then
    return 429, ("%d requests wait already"):format(#self.queue), 1
  end
  entry.changed, entry.arrived = front.condition(), front.now()
  self.queue[#self.queue + 1] = entry
  self.rows = self.rows + entry.rows
  self:dispatch()
  while not entry.status do
    local left = entry.arrived + self.limits.wait_ms / 1000 - front.now()
    if entry.sent then
      entry.changed:wait()
    elseif not entry.changed:wait(left) and not entry.sent and not entry.status and left <= 0 then
      self:drop(entry)
      return 503, ("waited %d ms in the queue"):format(self.limits.wait_ms), 1
    end
  end
  return entry.status, entry.value, entry.retry
end

function Model:drop(entry)
  for i, other in ipairs(self.queue) do
    if other == entry then
      table.remove(self.queue, i)
      self.rows = self.rows - entry.rows
      return
    end
  end
end

-- ---- batches -----------------------------------------------------------------------------------------

-- Takes the oldest request from the queue, and those that fit into its batch.
function Model:take()
  local queue, batch, left = self.queue, {}, {}
  local first, rows, most = nil, 0, self.batching.max_size
  for _, entry in ipairs(queue) do
    local fits
    if not first then
      fits = true
    else
      fits = self.signature.batch and not first.alone and entry.key == first.key and rows + entry.rows <= most
        and self:guilt(entry) == 0
    end
    if fits and entry.request and entry.request:is_gone() then
      entry:finish(499, "the client has left")
      self.rows = self.rows - entry.rows
    elseif fits then
      if not first then
        first = entry
        first.alone = self:guilt(entry) > 0
      end
      batch[#batch + 1], rows = entry, rows + entry.rows
    else
      left[#left + 1] = entry
    end
  end
  self.queue, self.rows = left, self.rows - rows
  return batch, rows
end

-- Gives a free engine what waits.
function Model:dispatch()
  local worker = self.worker
  if #self.queue == 0 or not worker or worker.state ~= "ready" or worker.batch or self.signature.steps then return end
  local delay = self.batching.max_delay_ms / 1000
  if delay > 0 and self.rows < self.batching.max_size then
    local left = self.queue[1].arrived + delay - front.now()
    if left > 1e-4 then
      if not self.waiting then
        self.waiting = true
        front.spawn(function()
          front.sleep(left)
          self.waiting = false
          self:dispatch()
        end)
      end
      return
    end
  end
  local batch, rows = self:take()
  if #batch == 0 then return end
  worker.batch, worker.asked, worker.heard = batch, 1, front.now()
  local header = { rows = {}, batched = self.signature.batch ~= nil, inputs = {} }
  for i, entry in ipairs(batch) do
    entry.sent = front.now()
    header.rows[i] = entry.rows
  end
  local parts = {}
  for k, input in ipairs(batch[1].inputs) do
    local shape = { unpack(input.shape) }
    if header.batched then shape[1] = rows end
    header.inputs[k] = { dtype = input.dtype, shape = shape }
    for _, entry in ipairs(batch) do parts[#parts + 1] = entry.parts[k] end
  end
  self.metrics:batch(self.name, rows)
  worker:send(frames.BATCH, 0, engine.pack(header, parts))
end

-- The results of a worker's batch, to its requests.
function Model:distribute(worker, at, size)
  local batch = worker.batch
  worker.batch, worker.asked = nil, 0
  local header, from, left = engine.unpack(at, size)
  local bytes = require("ffi").string(from, left)
  local rows, total = {}, 0
  for i, entry in ipairs(batch) do
    rows[i] = header.errors[tostring(i)] and 0 or entry.rows
    total = total + rows[i]
  end
  local starts, place = {}, 0
  for k, output in ipairs(header.outputs) do
    starts[k] = place
    place = place + output.bytes
  end
  local before = 0
  for i, entry in ipairs(batch) do
    local message = header.errors[tostring(i)]
    if message then
      entry:finish(500, message)
    else
      local outputs = {}
      for k, output in ipairs(header.outputs) do
        local shape, first, n = output.shape, starts[k], output.bytes
        if worker.signature.batch and total > 0 then -- none of the model: a reload may have come between
          shape = { unpack(shape) }
          shape[1] = entry.rows
          n = output.bytes / total * entry.rows
          first = starts[k] + output.bytes / total * before
        end
        outputs[k] = { dtype = output.dtype, shape = shape, bytes = bytes:sub(first + 1, first + n) }
      end
      if entry.alone then self.suspects[digest(entry)] = nil end -- it was computed by itself, and nothing ended
      entry:finish(200, { outputs = outputs, wait = entry.sent - entry.arrived, seconds = header.seconds,
        size = total })
    end
    before = before + rows[i]
  end
end

-- ---- steps -------------------------------------------------------------------------------------------

--- Hands a request to an engine of steps. Returns an entry, whose next(seconds) gives its pieces, or nil, a status, why
-- and Retry-After.
function Model:begin(request)
  local entry = setmetatable({ key = "steps", rows = 1, parts = { require("cjson").encode(request) }, pieces = {},
    first = 1 }, Entry)
  local ok, status, why, retry = self:admit(entry)
  if not ok then return nil, status, why, retry end
  local worker = self.worker
  if not self:is_ready() then return nil, 503, "the model is loading", 1 end
  if worker.asked >= self.limits.queue then
    return nil, 429, ("%d requests wait already"):format(worker.asked), 1
  end
  local id = self.next_id
  self.next_id = id + 1
  entry.id, entry.worker, entry.changed, entry.arrived = id, worker, front.condition(), front.now()
  worker.requests[id] = entry
  if worker.asked == 0 then worker.heard = front.now() end
  worker.asked = worker.asked + 1
  worker:send(frames.REQUEST, id, entry.parts[1])
  return entry
end

--- The next piece; nil: none in that time.
function Entry:next(seconds)
  while self.first > #self.pieces do
    if not self.changed:wait(seconds) and self.first > #self.pieces then return nil end
  end
  local piece = self.pieces[self.first]
  self.pieces[self.first], self.first = false, self.first + 1
  return piece
end

local function over(worker, id)
  if worker.requests[id] then
    worker.requests[id] = nil
    worker.asked = worker.asked - 1
  end
end

--- Ends a request of which no more is wanted.
function Model:cancel(entry)
  if entry.worker.requests[entry.id] then
    over(entry.worker, entry.id)
    entry.worker:send(frames.CANCEL, entry.id, "")
    self:settle(entry.worker)
  end
end

local function add_piece(worker, id, piece)
  local entry = worker.requests[id]
  if not entry then return end
  entry.pieces[#entry.pieces + 1] = piece
  if piece.done then over(worker, id) end
  entry.changed:signal()
end

-- ---- the engine's life ---------------------------------------------------------------------------------

-- Ends a worker that is replaced, once it has answered.
function Model.settle(_, worker)
  if worker.leaving and worker.asked == 0 then worker:stop() end
end

function Model:hear(worker, kind, id, at, size)
  local text = function() return require("ffi").string(at, size) end
  if kind == frames.READY then
    worker.signature = require("cjson").decode(text())
    worker.state, worker.since = "ready", front.now()
    worker.loaded:signal()
  elseif kind == frames.FAILED then
    worker.why = text()
  elseif kind == frames.RESULT and worker.batch then
    self:distribute(worker, at, size)
    self:settle(worker)
    self:dispatch()
  elseif kind == frames.PIECE then
    add_piece(worker, id, require("cjson").decode(text()))
    self:settle(worker)
  elseif kind == frames.ALIVE then
    self.metrics:gauges(self.name, require("cjson").decode(text()))
  end
end

-- Makes a worker that has loaded the model's own.
function Model:install(worker)
  if not values.same(self.signature, worker.signature) then
    for _, entry in ipairs(self.queue) do
      entry.retry = 1
      entry:finish(503, REPLACED)
    end
    self.queue, self.rows, self.signature = {}, 0, worker.signature
  end
  self.worker = worker
  local most = worker.signature.batch and worker.signature.batch.max
  self.batching = { max_size = math.min(self.batching_asked.max_size, most or math.huge),
    max_delay_ms = self.batching_asked.max_delay_ms }
  self:dispatch()
end

-- Starts a worker, and waits until it is ready; nil and why.
function Model:launch()
  local worker
  worker = Worker(self.name, self.description, function(...) self:hear(...) end,
    function(...) self:lost(...) end)
  worker.loaded, worker.requests = front.condition(), {}
  self.coming = worker
  local ok, message = pcall(worker.start, worker)
  if not ok then
    self.coming, worker.state = nil, "ended"
    return nil, (tostring(message):gsub("^[^\n:]-%.lua:%d+: ", ""))
  end
  local deadline = front.now() + self.load_timeout
  while worker.state == "loading" do
    if not worker.loaded:wait(deadline - front.now()) then
      if front.now() >= deadline then worker:kill(("loading took longer than %g s"):format(self.load_timeout)) end
    end
  end
  if self.coming == worker then self.coming = nil end
  if worker.state ~= "ready" then return nil, worker.why end
  local dtype = not worker.signature.steps and kserve.unknown_dtype(worker.signature)
  if not dtype then return worker end
  worker:stop()
  return nil, ("it has tensors of %s, which cannot be served"):format(dtype)
end

-- A worker has ended.
function Model:lost(worker, why, before)
  worker.loaded:signal()
  if before == "loading" then return end
  local batch = worker.batch or {}
  for _, entry in each(worker.requests) do batch[#batch + 1] = entry end
  local counts = not worker.leaving or #batch > 0
  self:accuse(worker, batch)
  local said = self.stopped and "the server stops" or "the model's engine has ended"
  for _, entry in ipairs(batch) do
    entry.retry = 1
    if entry.pieces then
      entry.pieces[#entry.pieces + 1] = { error = said, status = 503, done = true }
      entry.changed:signal()
    else
      entry:finish(503, said)
    end
  end
  worker.batch, worker.requests, worker.asked = nil, {}, 0
  if worker ~= self.worker or self.stopped then return end
  if counts then front.log(("moth serve: the engine of %s has ended: %s\n"):format(self.name, why)) end
  self.metrics:restart(self.name)
  self.worker = nil
  for _, entry in ipairs(self.queue) do
    entry.retry = 1
    entry:finish(503, "the model's engine has ended")
  end
  self.queue, self.rows = {}, 0
  if worker.since and front.now() - worker.since > 60 then self.pause = 1 end
  front.spawn(function() self:restart() end)
end

-- Starts engines until one is ready, longer and longer apart.
function Model:restart()
  while not self.stopped and not self.worker and not self.switching do
    self.next_start = front.now() + self.pause
    front.sleep(self.pause)
    self.pause = math.min(2 * self.pause, LONGEST)
    if self.stopped or self.worker or self.switching then return end
    local worker, why = self:launch()
    if worker then
      self:install(worker)
      return
    end
    front.log(("moth serve: the engine of %s does not start: %s\n"):format(self.name, why))
  end
end

--- Starts the first engine; nil and why it does not load.
function Model:start()
  local worker, why = self:launch()
  if not worker then return nil, why end
  self:install(worker)
  front.spawn(function() self:watch() end)
  return true
end

-- Ends workers that have something to answer and say nothing.
function Model:watch()
  while not self.stopped do
    front.sleep(math.min(1, self.step_timeout / 4))
    for _, worker in ipairs(self:workers()) do
      if worker.asked > 0 and front.now() - worker.heard > self.step_timeout then
        worker:kill(("no answer for %g s"):format(self.step_timeout))
      end
    end
  end
end

--- Loads the model again in a new engine, and switches to it; the old one answers what it has. nil and why the old one
-- stays. Those who ask during a reload share one that follows it: the file may be another by then.
function Model:reload()
  if not self.switching then return self:replace() end
  local next_one = self.next_reload
  if not next_one then
    next_one = { over = front.condition() }
    self.next_reload = next_one
    while self.switching do front.sleep(0.01) end
    self.next_reload = nil
    next_one.result = { self:replace() }
    next_one.over:signal()
  end
  while not next_one.result do next_one.over:wait() end
  return unpack(next_one.result, 1, 2)
end

function Model:replace()
  self.switching = true
  local old = self.worker
  local function leave()
    if not old or old.state == "ended" then return end
    local others = {}
    for _, worker in ipairs(self.leaving) do
      if worker.state ~= "ended" then others[#others + 1] = worker end
    end
    others[#others + 1] = old
    old.leaving, self.leaving = true, others
    self:settle(old)
  end
  if self.reload_first == "stop_first" then
    self.worker = nil
    leave()
    while old and old.state ~= "ended" do front.sleep(0.01) end
  end
  local worker, why = self:launch()
  self.switching = false
  if self.stopped then
    if worker then worker:stop() end
    return nil, "the server stops"
  end
  if not worker then
    if not self.worker then front.spawn(function() self:restart() end) end
    return nil, why
  end
  self.pause = 1
  self:install(worker)
  if self.reload_first ~= "stop_first" then leave() end
  return true
end

--- Whether requests wait or are computed.
function Model:is_busy()
  if #self.queue > 0 then return true end
  for _, worker in ipairs(self:workers()) do
    if worker.asked > 0 then return true end
  end
  return false
end

--- Ends the engines; what still waits gets 503.
function Model:stop()
  self.stopped = true
  for _, entry in ipairs(self.queue) do entry:finish(503, "the server stops") end
  self.queue = {}
  local workers = self:workers()
  for _, worker in ipairs(workers) do
    if worker.asked > 0 or worker.state == "loading" then
      worker:kill "the server stops"
    else
      worker:stop()
    end
  end
  for _, worker in ipairs(workers) do
    while worker.state ~= "ended" do front.sleep(0.005) end
  end
end

return Model
