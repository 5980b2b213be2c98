--- The loop of a server's front: coroutines that wait for descriptors, times and each other, by Linux' epoll.
--
--     local loop = require "moth.serve.loop"
--     loop.spawn(function() loop.sleep(1) … end)
--     loop.run()                                     -- until loop.stop()
--
-- What waits is a task: a coroutine that is parked until it is woken or its deadline has come. A descriptor stays
-- registered while tasks wait for it again and again, so that a wait is no call of the system; readiness that nobody
-- waits for takes it out.
local ffi = require "ffi"
local bit = require "bit"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local now = require("moth.utils.system").now

pcall(ffi.cdef, ([[
typedef struct { uint32_t events; %s int32_t fd, rest; } moth_epoll_event;
typedef struct { uint64_t bits[16]; } moth_sigset;
int moth_epoll_create(int flags) __asm__("epoll_create1");
int moth_epoll_ctl(int epoll, int what, int fd, moth_epoll_event *event) __asm__("epoll_ctl");
int moth_epoll_wait(int epoll, moth_epoll_event *events, int most, int ms) __asm__("epoll_wait");
int moth_signalfd(int fd, const moth_sigset *set, int flags) __asm__("signalfd");
int moth_sigmask(int how, const moth_sigset *set, moth_sigset *before) __asm__("pthread_sigmask");
int sigemptyset(moth_sigset *set); int sigaddset(moth_sigset *set, int number);
int moth_close(int fd) __asm__("close");
ssize_t moth_read(int fd, void *to, size_t size) __asm__("read");]])
  :format(ffi.arch == "x64" and "" or "uint32_t gap;"))

local C = ffi.C
local IN, OUT, ERR, HUP = 1, 4, 8, 16
local ADD, DEL, MOD = 1, 2, 3
local CLOEXEC, NONBLOCK = 0x80000, 0x800
local MOST = 256 -- events at a time

local M = { now = now }

local epoll, descriptors -- fd -> { events that are registered, r = task, w = task }
local ready, n_ready -- tasks to resume, in order
local times, timed -- a heap: times, and whose they are
local current -- the task that runs
local event, events

local function open()
  if epoll then return end
  if ffi.os ~= "Linux" then check.fail("[serve] needs Linux (epoll)") end
  event, events = ffi.new "moth_epoll_event", ffi.new("moth_epoll_event[?]", MOST)
  epoll = C.moth_epoll_create(CLOEXEC)
  if epoll < 0 then check.fail("[serve] epoll_create1: error %d", ffi.errno()) end
  descriptors, ready, n_ready, times, timed = {}, {}, 0, {}, {}
end

-- ---- tasks -------------------------------------------------------------------------------------------

local function push(task)
  n_ready = n_ready + 1
  ready[n_ready] = task
end

local function wake(task, value)
  if not task.parked then return end
  task.parked, task.value = false, value
  push(task)
end

-- Puts a task's time into the heap.
local function remind(time, task)
  local i = #times + 1
  while i > 1 do
    local up = bit.rshift(i, 1)
    if times[up] <= time then break end
    times[i], timed[i] = times[up], timed[up]
    i = up
  end
  times[i], timed[i] = time, task
  task.reminder = time
end

-- Takes the first of the heap.
local function take()
  local n = #times
  local task, time, last = timed[1], times[n], timed[n]
  times[n], timed[n] = nil, nil
  n = n - 1
  local i = 1
  while 2 * i <= n do
    local down = 2 * i
    if down < n and times[down + 1] < times[down] then down = down + 1 end
    if times[down] >= time then break end
    times[i], timed[i] = times[down], timed[down]
    i = down
  end
  if n > 0 then times[i], timed[i] = time, last end
  return task
end

-- Waits to be woken; false: the time is over. A task has one reminder as a rule: where that comes before its deadline,
-- it is put off, so that waits with far deadlines cost nothing.
local function park(seconds)
  local task = current
  task.parked = true
  if seconds then
    task.deadline = now() + seconds
    if not task.reminder or task.deadline < task.reminder then remind(task.deadline, task) end
  else
    task.deadline = nil
  end
  return coroutine.yield()
end

local function expire()
  local time = now()
  while times[1] and times[1] <= time do
    local at = times[1]
    local task = take()
    if task.reminder == at then task.reminder = nil end
    if task.parked and task.deadline then
      if task.deadline <= time then
        wake(task, false)
      elseif not task.reminder then
        remind(task.deadline, task)
      end
    end
  end
end

local function resume(task)
  current = task
  local ok, message = coroutine.resume(task.co, task.value)
  current = nil
  if not ok then io.stderr:write("moth serve: ", debug.traceback(task.co, tostring(message)), "\n") end
end

--- Runs a function as a task; an error in it is printed.
function M.spawn(fn)
  open()
  push { co = coroutine.create(fn) }
end

function M.sleep(seconds) park(seconds) end

--- Lets other tasks run.
function M.pause()
  push(current)
  coroutine.yield()
end

local Condition = class "Condition"

--- Wakes all that wait.
function Condition:signal()
  for i = 1, #self do
    local task = self[i]
    self[i] = nil
    wake(task, true)
  end
end

--- Waits until it is signalled; false: the time is over.
function Condition:wait(seconds)
  if seconds and seconds <= 0 then return false end
  local task = current
  self[#self + 1] = task
  if park(seconds) then return true end
  for i = 1, #self do
    if self[i] == task then
      table.remove(self, i)
      break
    end
  end
  return false
end

M.condition = Condition

-- ---- descriptors -------------------------------------------------------------------------------------

local function register(fd, d, wanted)
  local what = wanted == 0 and DEL or d.events == 0 and ADD or MOD
  event.events, event.fd = wanted, fd
  d.events = wanted
  return C.moth_epoll_ctl(epoll, what, fd, event) == 0
end

--- Waits until a descriptor can be read ("r") or written ("w"); false: the time is over. One task each.
function M.wait(fd, what, seconds)
  if seconds and seconds <= 0 then return false end
  local d = descriptors[fd]
  if not d then
    d = { events = 0 }
    descriptors[fd] = d
  end
  local wanted = bit.bor(d.events, what == "w" and OUT or IN)
  if wanted ~= d.events and not register(fd, d, wanted) then -- a plain file, which is always ready
    descriptors[fd] = nil
    return true
  end
  d[what] = current
  local ok = park(seconds)
  d[what] = nil
  return ok
end

--- Before a descriptor is closed; what waits for it is woken.
function M.forget(fd)
  local d = descriptors and descriptors[fd]
  if not d then return end
  if d.events ~= 0 then register(fd, d, 0) end
  descriptors[fd] = nil
  if d.r then wake(d.r, true) end
  if d.w then wake(d.w, true) end
end

local function notice(fd, what)
  local d = descriptors[fd]
  if not d then return end
  local kept = d.events
  if bit.band(what, IN + ERR + HUP) ~= 0 then
    if d.r then wake(d.r, true) else kept = bit.band(kept, bit.bnot(IN)) end
  end
  if bit.band(what, OUT + ERR + HUP) ~= 0 then
    if d.w then wake(d.w, true) else kept = bit.band(kept, bit.bnot(OUT)) end
  end
  if kept ~= d.events then register(fd, d, kept) end
end

-- ---- signals -----------------------------------------------------------------------------------------

local caught = { [1] = "SIGHUP", [2] = "SIGINT", [15] = "SIGTERM" }
local BLOCK, UNBLOCK = 0, 1
local blocked

--- Calls fn("SIGTERM"), "SIGINT" or "SIGHUP" when that signal comes, from now on.
function M.on_signal(fn)
  open()
  blocked = ffi.new "moth_sigset"
  C.sigemptyset(blocked)
  for number in each(caught) do C.sigaddset(blocked, number) end
  C.moth_sigmask(BLOCK, blocked, nil)
  local fd = C.moth_signalfd(-1, blocked, CLOEXEC + NONBLOCK)
  M.spawn(function()
    local info = ffi.new "uint32_t[32]" -- signalfd_siginfo: the number is first
    while true do
      M.wait(fd, "r")
      while tonumber(C.moth_read(fd, info, 128)) == 128 do fn(caught[info[0]]) end
    end
  end)
  M.signals = fd
end

-- ---- the loop ----------------------------------------------------------------------------------------

-- Milliseconds until something is to be done.
local function patience()
  if n_ready > 0 then return 0 end
  if not times[1] then return 1000 end
  return math.max(0, math.min(1000, math.ceil((times[1] - now()) * 1000)))
end

local function step()
  local list, n = ready, n_ready
  ready, n_ready = {}, 0
  for i = 1, n do resume(list[i]) end
  if M.stopped then return end
  local found = C.moth_epoll_wait(epoll, events, MOST, patience())
  for i = 0, found - 1 do notice(events[i].fd, events[i].events) end
  expire()
end

--- Runs tasks until stop().
function M.run()
  open()
  M.stopped = false
  while not M.stopped do step() end
end

function M.stop() M.stopped = true end

--- Forgets all tasks; signals do again what they did before.
function M.close()
  if not epoll then return end
  if M.signals then C.moth_close(M.signals) end
  if blocked then C.moth_sigmask(UNBLOCK, blocked, nil) end
  C.moth_close(epoll)
  epoll, descriptors, ready, n_ready, times, timed, blocked, M.signals = nil, nil, nil, nil, nil, nil, nil, nil
end

return M
