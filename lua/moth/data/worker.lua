--- What a worker thread of a DataLoader runs, in a Lua state of its own: see pool.lua.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local each = require "moth.each"
local fetch = require "moth.data.fetch"
local trace = require "moth.lang.trace"
local transfer = require "moth.data.transfer"

local T = B.threads

local function traced(e) return trace.traceback(type(e) == "string" and e or tostring(e)) end

-- Tensors that default_collate made are nobody else's: they are released at once, not at the next garbage collection.
-- Returns their bytes.
local function free(v)
  local n = 0
  if B.is_tensor(v) then
    n = v:numel() * B.tensor_dtype(v).itemsize
    v:free()
  elseif type(v) == "table" and getmetatable(v) == nil then
    for _, value in each(v) do n = n + free(value) end
  end
  return n
end

-- The samples of such a batch are garbage of about its size. The usual rule would let each worker keep as much of it as
-- half of what the process uses.
local COLLECT = 32 * 2 ^ 20

-- Sends the values of a batch; objects, which a message can't carry, as a graph.
local function send(self, kind, epoch, b, ...)
  local done, what = T.push(self.results, kind, epoch, b, self.id, ...)
  if done ~= nil then return done end
  local graph, why, where = transfer.encode({ n = select("#", ...), ... }, "batch", self.sent)
  if not graph then check.fail("[data.DataLoader] %s of a batch is %s", where or "a value", why or what) end
  return T.push(self.results, kind .. " graph", epoch, b, self.id, graph)
end

local function make(self, epoch, b, seed, positions, oldest, base)
  T.set_note(b)
  if self.source.iterable then
    local of = self.iterators
    for e in each(of) do if e < oldest then of[e] = nil end end
    if not of[epoch] then
      local own = fetch.seed(seed, 2 ^ 32)
      fetch.reseed(own)
      fetch.set_info { id = self.id, num_workers = self.num_workers, seed = own, dataset = self.source.dataset }
      of[epoch] = fetch.iterate(self.source, self.id, self.num_workers, own, base)
    end
    fetch.reseed(seed)
    local values = { n = 0 }
    local function take(...) values = { n = select("#", ...), ... } end
    take(of[epoch]())
    if values[1] == nil then return send(self, "done", epoch, b) end
    return send(self, "batch", epoch, b, unpack(values, 1, values.n))
  end
  fetch.reseed(seed)
  local fresh = not self.source.whole and not self.source.collate_fn
  local function deliver(...)
    local open = send(self, "batch", epoch, b, ...)
    if fresh then
      for k = 1, select("#", ...) do self.bytes = self.bytes + free((select(k, ...))) end
      if self.bytes > COLLECT then
        collectgarbage()
        self.bytes = 0
      end
    end
    return open
  end
  return deliver(fetch.map(self.source, positions))
end

local function serve(self, got, ...)
  if got == nil then return false end
  if got == false then return true end
  local epoch, b = ...
  local ok, e = xpcall(make, traced, self, ...)
  T.set_note(-1)
  if ok then return e end
  return T.push(self.results, "error", epoch, b, self.id, tostring(e))
end

local function start(self, graph, o)
  local source
  source, self.sent = transfer.decode(graph)
  source.whole, source.iterable, source.batch_size, source.drop_last = o.whole, o.iterable, o.batch_size, o.drop_last
  self.source = source
  fetch.set_info { id = o.id, num_workers = o.num_workers, seed = o.seed, dataset = source.dataset }
  fetch.reseed(o.seed)
  if source.worker_init_fn then source.worker_init_fn(o.id) end
end

return function(inbox, results, graph, o)
  moth.set_num_threads(1)
  moth.set_default_dtype(o.dtype)
  moth.set_grad_enabled(false)
  os.exit = function(status) -- luacheck: ignore
    error(("os.exit(%s) in a worker would end the whole process; HINT: call error()"):format(tostring(status or "")), 2)
  end
  local self = { results = results, id = o.id, num_workers = o.num_workers, iterators = {}, bytes = 0 }
  T.set_note(-1)
  local ok, e = xpcall(start, traced, self, graph, o)
  if not ok then
    T.push(results, "failed", o.id, tostring(e))
    return
  end
  T.push(results, "ready", o.id)
  repeat until not serve(self, T.pop(inbox, 1))
end
