--- moth.profiler: where the time and the memory of a program go (PyTorch's torch.profiler).
--
--     local profiler = require "moth.profiler"
--     local prof = profiler.profile({ record_shapes = true }, function()
--       profiler.record_function("forward", function() return model(x) end)
--     end)
--     print(prof:key_averages():table { sort_by = "cpu_time_total", row_limit = 10 })
--     prof:export_chrome_trace("trace.json")          -- for ui.perfetto.dev or chrome://tracing
--     prof:report("report.html")                      -- a page: timeline, flame graph, table
--
-- Calls of ops, nodes of backward, compiled segments, batches of loaders, steps of optimizers and named ranges of all
-- threads are recorded. While nothing is recorded, a call pays for one test.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"
local trace = require "moth.lang.trace"
local range = require "moth.profiler.range"
local recording = require "moth.profiler.recording"
local averages = require "moth.profiler.averages"
local each = require "moth.each"
local C = B.profile

local M = {}

local Profile = class "profile"

local options = "activities record_shapes profile_memory with_stack with_flops with_modules schedule on_trace_ready "
  .. "max_events places"
local flags = { "record_shapes", "profile_memory", "with_stack", "with_modules" }

local function checked(o)
  o = check.options("profiler.profile", o, options)
  for _, name in ipairs(flags) do
    if o[name] ~= nil and type(o[name]) ~= "boolean" then
      check.fail("[profiler.profile] option '%s': expected true or false, got %s", name, type(o[name]))
    end
  end
  for _, name in ipairs { "schedule", "on_trace_ready" } do
    if o[name] ~= nil and not check.is_callable(o[name]) then
      check.fail("[profiler.profile] option '%s': expected a function, got %s", name, type(o[name]))
    end
  end
  if o.activities ~= nil and type(o.activities) ~= "table" then
    check.fail("[profiler.profile] option 'activities': expected a list of 'cpu' and 'cuda', got %s",
      type(o.activities))
  end
  for _, name in ipairs(o.activities or {}) do
    if name ~= "cpu" and name ~= "cuda" then
      check.fail("[profiler.profile] option 'activities': expected 'cpu' or 'cuda', got %s", tostring(name))
    end
  end
  if o.max_events ~= nil then check.integer("[profiler.profile]", "max_events", o.max_events, 1) end
  return o
end

function Profile:__init(o)
  self.options = checked(o)
  self.step_num = 0
end

-- ---- recording ------------------------------------------------------------------------------------------

-- Devices are recorded unless "cpu" alone is asked for; CUDA is not opened for that, unless "cuda" is asked for.
local function records_devices(o)
  if not o.activities then return true end
  local asked
  for _, name in ipairs(o.activities) do asked = asked or name == "cuda" end
  if asked then require("moth").cuda.is_available() end
  return asked or false
end

local function open(self)
  local o = self.options
  local frames = o.with_stack and 12 or o.places == false and 0 or 1
  C.start(o.max_events or 1000000, (o.record_shapes or o.with_flops) and true or false, o.profile_memory or false,
    frames, records_devices(o))
  self.open = true
  if o.with_modules then require("moth.nn.module").__record(require("moth.profiler.modules")) end
end

local function close(self)
  if not self.open then return end
  self.open = false
  if self.options.with_modules then require("moth.nn.module").__record(false) end
  local handle = C.stop()
  if not handle then return end
  self.recording = recording.new(handle)
  if not self.options.schedule then self.recording.steps = math.max(self.step_num, 1) end
  self.recording.memory, self.recording.flops = self.options.profile_memory, self.options.with_flops
end

local function ready(self)
  if self.options.on_trace_ready then self.options.on_trace_ready(self) end
end

-- What the schedule says of the step that begins: "none", "warmup", "record" or "save" (the last one of a cycle).
local function begin_step(self)
  local schedule = self.options.schedule
  self.action = schedule and schedule(self.step_num) or "record"
  local records = self.action == "record" or self.action == "save"
  if records and not self.open then open(self) end
  if self.open and schedule then
    self.token = C.begin(recording.kinds.step, "ProfilerStep#" .. (self.step_num + 1))
  end
end

local function end_step(self)
  if self.token then C.finish(self.token) end
  self.token = nil
end

--- Begins to record, or the first step of the schedule.
function Profile:start()
  if self.started then check.fail("[profiler.start] the profile has begun already") end
  self.started, self.step_num = true, 0
  begin_step(self)
end

--- The next step of the schedule begins. Without a schedule, the steps are marked.
function Profile:step()
  if not self.started then
    check.fail("[profiler.step] the profile has not begun: call start() or give it a function")
  end
  end_step(self)
  local last = self.action == "save"
  if last then
    close(self)
    ready(self)
  end
  self.step_num = self.step_num + 1
  begin_step(self)
  if not self.options.schedule and self.open then
    self.token = C.begin(recording.kinds.step, "ProfilerStep#" .. (self.step_num + 1))
  end
end

--- Ends it; on_trace_ready(profile) is called if something was recorded since it was last.
function Profile:stop()
  if not self.started then return end
  end_step(self)
  self.started = false
  if not self.open then return end
  close(self)
  ready(self)
end

local function recorded(self, name)
  if not self.recording then check.fail("[profiler.%s] nothing has been recorded: the profile has not ended", name) end
  return self.recording
end

-- ---- results --------------------------------------------------------------------------------------------

--- Sums by name: a list of rows, which prints as a table; see averages.lua. Options: group_by_input_shape,
-- group_by_stack_n.
function Profile:key_averages(o)
  local r = recorded(self, "key_averages")
  o = check.options("profiler.key_averages", type(o) == "boolean" and { group_by_input_shape = o } or o,
    "group_by_input_shape group_by_stack_n")
  if o.group_by_input_shape and not self.options.record_shapes then
    check.fail("[profiler.key_averages] grouping by shapes needs profile{record_shapes = true}")
  end
  return averages.of(r, o)
end

--- The table of all names: key_averages():table(o).
function Profile:table(o) return self:key_averages():table(o) end

--- The n rows with most time of their own (3); where a CUDA device was at work, of its time: kernels, if CUPTI names
-- them.
function Profile:top(n)
  n = n == nil and 3 or check.integer("[profiler.top]", "n", n, 1)
  local list, out = self:key_averages(), {}
  if self.recording.nwork > 0 then
    local kernels = {}
    for _, row in ipairs(list) do
      if row.is_kernel or self.recording.by_events then kernels[#kernels + 1] = row end
    end
    list = kernels
    table.sort(list, function(a, b)
      local x, y = a.self_cuda_time_total, b.self_cuda_time_total
      if x ~= y then return x > y end
      return a.key < b.key
    end)
  end
  for k = 1, math.min(n, #list) do out[k] = list[k] end
  return out
end

--- All events, in the order of their beginnings for each thread: a list of { name, kind, thread, start, duration,
-- self_time (us), parent (the event that encloses it), bytes, shapes, stack }; then what devices did, of kind "kernel",
-- "copy" or "fill": { name, kind, device, stream, start, duration, parent (the call that launched it), bytes }.
function Profile:events()
  local r, out, all = recorded(self, "events"), {}, {}
  local names = {}
  for name, k in each(recording.kinds) do names[k] = name end
  for _, t in ipairs(r.tracks) do
    local mine = {}
    all[#all + 1] = mine
    for i = 0, t.n - 1 do
      local e = recording.event(t, i)
      mine[i] = { name = r:name_of(e), kind = names[e.kind], thread = t.id, start = t.start[i] / 1e3,
        duration = (t.stop[i] - t.start[i]) / 1e3, self_time = t.own[i] / 1e3, parent = mine[t.parent[i]],
        bytes = tonumber(e.bytes), shapes = recording.shapes(t, e.shapes), failed = e.failed ~= 0,
        stack = r:stack(r:place_of(t, i)) }
      out[#out + 1] = mine[i]
    end
  end
  for k = 0, r.nwork - 1 do
    local w = r.work[k]
    local launcher = w.thread >= 0 and all[w.thread + 1][w.event] or nil
    out[#out + 1] = { name = r:name_of_work(w), kind = ({ [0] = "kernel", "copy", "fill" })[w.kind],
      device = "cuda:" .. w.device, stream = tonumber(w.stream), start = tonumber(w.start) / 1e3,
      duration = tonumber(w.stop - w.start) / 1e3, parent = launcher, bytes = tonumber(w.bytes),
      stack = launcher and launcher.stack }
  end
  return out
end

--- Writes the events as a Chrome trace (JSON). A path that ends in .gz is compressed by gzip; one that ends in .pftrace
-- is Perfetto's own format, smaller, which ui.perfetto.dev reads where JSON is too large (a million events).
function Profile:export_chrome_trace(path)
  local r = recorded(self, "export_chrome_trace")
  if type(path) ~= "string" then check.fail("[profiler.export_chrome_trace] expected a path, got %s", type(path)) end
  local plain = path:gsub("%.gz$", "")
  if plain:find("%.pftrace$") then C.write_perfetto(r.handle, plain) else C.write_chrome(r.handle, plain) end
  if plain == path then return end
  if os.execute("gzip -1 -f " .. system.quoted(plain)) ~= 0 then
    check.fail("[profiler.export_chrome_trace] gzip could not compress '%s'", plain)
  end
end

--- Writes a page with timeline, flame graph and table, one file that needs nothing else.
function Profile:report(path)
  return require("moth.profiler.report").write(recorded(self, "report"), path)
end

--- Writes a flame graph as SVG.
function Profile:flame_graph(path)
  return require("moth.profiler.flame").write(recorded(self, "flame_graph"), path)
end

--- Times in which no op ran for longer than least_us (10), the longest first: a list of { start, duration (us), before,
-- after (names of the events beside it), place }, which prints as a table.
function Profile:gaps(o) return require("moth.profiler.gaps").of(recorded(self, "gaps"), o) end

--- Bytes by module (profile{with_modules = true, profile_memory = true}): a list of { name, count, bytes, time },
-- which prints as a table.
function Profile:memory_by_module()
  local r = recorded(self, "memory_by_module")
  if not (self.options.with_modules and self.options.profile_memory) then
    check.fail("[profiler.memory_by_module] needs profile{with_modules = true, profile_memory = true}")
  end
  return require("moth.profiler.modules").memory(r)
end

--- The time of each part of the steps: loader, forward, backward, optimizer, communication (waits for other ranks),
-- other, in ms; see breakdown.lua.
function Profile:step_breakdown()
  return require("moth.profiler.breakdown").of(recorded(self, "step_breakdown"))
end

function Profile:__tostring()
  if not self.recording then return "<profile: nothing recorded>" end
  return self:key_averages():table()
end

-- ---- the module's functions -------------------------------------------------------------------------------

--- profile(options, fn) or profile(fn): calls fn(profile) while it records, and returns the profile. profile(options)
-- returns one with start(), step() and stop(). Options: activities ({ "cpu", "cuda" }), record_shapes, profile_memory,
-- with_stack (up to 12 Lua frames of each call; else its line), with_modules (a range for each module's forward),
-- with_flops (columns of GB/s and GFLOP/s; a table { peak, bw } of moth.benchmark.machine(): that of the roofline,
-- too), schedule, on_trace_ready, max_events (1e6; then it stops to record, and says so).
function M.profile(o, fn)
  if fn == nil and check.is_callable(o) then o, fn = nil, o end
  local prof = Profile(o)
  if fn == nil then return prof end
  if not check.is_callable(fn) then check.fail("[profiler.profile] expected a function, got %s", type(fn)) end
  prof:start()
  local ok, e = xpcall(fn, trace.keep, prof)
  local stopped, why = pcall(prof.stop, prof)
  if not ok then trace.rethrow(e) end
  if not stopped then error(why, 0) end
  return prof
end

--- fn(...), and its results, as a range of that name with the time of what it calls. Costs nothing to speak of while
-- nothing is recorded.
M.record_function = signature("profiler.record_function(string name, callable fn, ...)", function(name, fn, ...)
  return range(recording.kinds.range, name, fn, ...)
end)

--- A schedule for profile: of each cycle, `wait` steps pass, `warmup` steps pass, `active` steps are recorded;
-- `repeats` cycles (0: on and on; also ["repeat"]), after skip_first steps.
function M.schedule(o)
  o = check.options("profiler.schedule", o, "wait warmup active repeats repeat skip_first")
  local function count(name, least, otherwise)
    if o[name] == nil and otherwise then return otherwise end
    return check.integer("[profiler.schedule]", name, o[name], least)
  end
  local wait, warmup, active = count("wait", 0), count("warmup", 0), count("active", 1)
  local repeats = count(o["repeat"] ~= nil and "repeat" or "repeats", 0, 0)
  local skip, cycle = count("skip_first", 0, 0), wait + warmup + active
  return function(step)
    if step < skip then return "none" end
    step = step - skip
    if repeats > 0 and step >= repeats * cycle then return "none" end
    local at = step % cycle
    if at < wait then return "none" end
    if at < wait + warmup then return "warmup" end
    return at == cycle - 1 and "save" or "record"
  end
end

--- A handler for on_trace_ready: writes <dir>/<worker_name>.<time>.pt.trace.json, which TensorBoard's profiler plugin
-- reads. worker_name: by default <host>_<pid>.
M.tensorboard_trace_handler = signature("profiler.tensorboard_trace_handler(path dir, string worker_name?, "
  .. "bool use_gzip=false)", function(dir, name, gzip) return require("moth.profiler.handler")(dir, name, gzip) end)

--- step_breakdown(step, { steps = 10, warmup = 2 }): calls step() so often, and says where its time goes: a table of
-- milliseconds a step { total, loader, forward, backward, optimizer, communication, other }, which prints.
M.step_breakdown = signature("profiler.step_breakdown(callable step, *, count steps=10, size warmup=2)",
  function(step, steps, warmup)
    for _ = 1, warmup do step() end
    local prof = M.profile({ places = false }, function(p)
      for k = 1, steps do
        step()
        if k < steps then p:step() end
      end
    end)
    return require("moth.profiler.breakdown").of(prof.recording, steps)
  end)

return M
