--- moth.compile: records the ops of a function while it runs, and runs them in segments.
--
--     local fast = moth.compile(model)          -- or a function
--     local y = fast(x)                          -- what model(x) gives
--     print(moth.compile.explain(model, x))      -- graphs, breaks with their reasons
--
-- Lua runs on each call; what is recorded is which ops it calls (src/graph/trace.h). docs/compile.md says what that is
-- good for, what breaks a graph, and what there is not yet.
local B = require "moth_lua"
local check = require "moth.utils.check"
local trace = require "moth.lang.trace"
local signature = require "moth.utils.signature"
local modes = require "moth.compile.modes"
local module = require "moth.compile.module"
local checks = require "moth.compile.check"
local graphs = require "moth.compile.graph"
local decompositions = require "moth.compile.decompositions"
local explain = require "moth.compile.explain"
local within = require "moth.dispatch.within"
local pace = require "moth.compile.pace"
local toolchain = require "moth.utils.toolchain"
local each = require "moth.each"
local generated = require "moth.compile.generated"
local C = B.compile
local keep, rethrow = trace.keep, trace.rethrow

local M = {}

--- Settings: verbose (each break is logged with a traceback), recompile_limit (ways that one callable may take before
-- it runs uncompiled), suppress_errors (where a backend fails, a warning, and the ops run one by one), check (each
-- compiled segment also runs call by call, on copies, and is compared: MOTH_COMPILE_CHECK=1), repro_after ("dynamo" or
-- "aot": a segment that fails is reduced, and a script that shows it written to moth_compile_debug; false), measure
-- (callables that turn out slower than uncompiled turn themselves off; true), cc (the C compiler for kernels, before
-- cc, gcc and clang; MOTH_CC goes before it).
local settings = { recompile_limit = 64, suppress_errors = false, measure = true,
  check = checks.is_set("MOTH_COMPILE_CHECK"), repro_after = checks.repro_after() or false }
C.set_check(settings.check)

local function unknown_setting(key)
  return check.fail("[compile.config] there is no '%s'; there are verbose, recompile_limit, suppress_errors, check, "
    .. "repro_after, measure, cc", tostring(key))
end

M.config = setmetatable({}, {
  __index = function(_, key)
    if key == "verbose" then return C.set_verbose() end
    if key == "cc" then return toolchain.config.cc end
    local value = settings[key]
    if value == nil then return unknown_setting(key) end
    return value
  end,
  __newindex = function(_, key, value)
    if key == "verbose" then
      C.set_verbose(value and true or false)
    elseif key == "cc" then
      if value ~= nil and type(value) ~= "string" then
        check.fail("[compile.config] cc is the command of a C compiler, got %s", type(value))
      end
      toolchain.config.cc = value
    elseif settings[key] == nil then
      unknown_setting(key)
    elseif key == "suppress_errors" or key == "check" or key == "measure" then
      settings[key] = value and true or false
      C.set_check(settings.check)
    elseif key == "repro_after" then
      if value and value ~= "dynamo" and value ~= "aot" then
        check.fail("[compile.config] repro_after is 'dynamo', 'aot' or false, got %s", tostring(value))
      end
      settings[key] = value or false
    elseif type(value) == "number" and value >= 1 and value == math.floor(value) and value < 2 ^ 31 then
      settings[key] = value
    else
      check.fail("[compile.config] recompile_limit is an integer of at least 1, got %s", tostring(value))
    end
  end,
})

local dynamics = { [true] = 1, [false] = 2 }
local switched_off = os.getenv("MOTH_COMPILE") == "off"

local function check_mode(mode)
  if mode == nil then return end
  for _, known in ipairs(modes.names) do
    if mode == known then return end
  end
  check.fail("[compile] option 'mode': expected default, reduce-overhead or max-autotune, got %s", tostring(mode))
end

-- The function of a backend, or nil where recorded ops run one by one.
local function check_backend(backend)
  if backend == nil then return require("moth.compile.tiers").backend end
  if backend == "eager" then return nil end
  if backend == "inductor" or backend == "blocks" then return require("moth.compile." .. backend).backend end
  if backend == "aot_eager" then return require("moth.compile.aot").eager end
  if type(backend) == "string" or not check.is_callable(backend) then
    check.fail("[compile] option 'backend': expected 'eager', 'aot_eager', 'blocks', 'inductor' or a function(graph, "
      .. "inputs), got %s",
      type(backend) == "string" and "'" .. backend .. "'" or type(backend))
  end
  return backend
end

local function flag(o, name)
  if o[name] ~= nil and type(o[name]) ~= "boolean" then
    check.fail("[compile] option '%s': expected true or false, got %s", name, type(o[name]))
  end
  return o[name]
end

-- The trace is an argument so that it lives through the call, also where nobody else holds the callable.
local function finish(_, call, ok, ...)
  local failed, message = C.finish(call)
  B.close_modes()
  if failed then rethrow(checks.refine(message, settings)) end
  if not ok then rethrow(checks.refine((...), settings)) end
  return ...
end

-- fn(...), recorded into a trace.
local function run(t, fn, ...)
  B.open_modes()
  local ok, call = pcall(C.begin, t)
  if not ok then
    B.close_modes()
    error(call, 0)
  end
  return finish(t, call, xpcall(fn, keep, ...))
end

local boxes = setmetatable({}, { __mode = "k" }) -- of all callables: reset() forgets what they know

-- The box of a callable, found among what its function holds (a table of them would keep all that hold themselves).
local function box_of(f)
  if type(f) == "table" and module.original(f) then f = module.call_of(f) end
  for i = 1, type(f) == "function" and debug.getinfo(f, "u").nups or 0 do
    local _, value = debug.getupvalue(f, i)
    if type(value) == "table" and boxes[value] then return value end
  end
end

local function name_of(fn)
  local info = type(fn) == "function" and debug.getinfo(fn, "S")
  if info then return ("%s:%d"):format(info.short_src, info.linedefined) end
  return type(fn) == "table" and tostring(fn.__name or "a callable") or "a callable"
end

local function new_trace(box)
  box.trace = C.trace_new(box.name, M.config.recompile_limit, box.fullgraph, box.dynamic, false,
    box.backend)
  checks.arm(box.trace, box.backend_given)
  return box.trace
end

-- A backend of moth's own may return nil: the segment's ops run one by one.
local function is_built_in(backend)
  for _, name in ipairs { "tiers", "inductor", "blocks" } do
    if backend == (package.loaded["moth.compile." .. name] or {}).backend then return true end
  end
  return modes.made[backend] or false
end

local function is_aot(backend)
  local aot = package.loaded["moth.compile.aot"]
  return aot and aot.made[backend]
end

-- What the recorder calls to have a segment compiled: the program's function gets a graph and the first inputs. nil,
-- with suppress_errors, has the segment's ops run one by one.
local function compiler(backend, given)
  return function(handle, inputs, settled)
    local g = graphs.new(handle)
    local ok, code, own, runs = xpcall(function()
      decompositions.apply(g)
      return backend(g, inputs, settled)
    end, keep)
    if ok and (is_built_in(backend) or is_aot(backend)) then return code, own, runs end
    if ok and not check.is_callable(code) then
      ok, code = false, "[compile] the backend must return a function of the graph's inputs, got " .. type(code)
    end
    if ok then return code end
    if not M.config.suppress_errors then
      checks.raised(graphs.new(handle), inputs, given, settings)
      rethrow(code)
    end
    io.stderr:write(("[moth] warning: compile: a backend failed, its ops run one by one: %s\n"):format(tostring(code)))
    return nil
  end
end

-- A callable's options and its trace, which is made when it is first called.
local function new_box(fn, o)
  local box = { fn = fn, options = o, name = name_of(fn), fullgraph = flag(o, "fullgraph") or false,
    dynamic = dynamics[flag(o, "dynamic")] or 0 }
  check_mode(o.mode)
  local backend = modes.backend(o.mode, check_backend(o.backend), o.backend)
  box.backend_given = o.backend or "inductor"
  box.backend = backend and compiler(backend, o.backend)
  boxes[box] = true
  box.measured = backend and is_built_in(backend)
  box.pace = box.measured and pace.new()
  return box
end

local function recorded(box, fn, ...) return run(box.trace or new_trace(box), fn, ...) end

local marked, any_marked = setmetatable({}, { __mode = "k" }), false -- tensors: mark_dynamic

-- Whether a value, or one in a list or table of values, is a tensor that is marked.
local function has_mark(v, depth)
  if type(v) ~= "table" then return marked[v] or false end
  for _, item in each(depth < 4 and getmetatable(v) == nil and v or {}) do
    if has_mark(item, depth + 1) then return true end
  end
  return false
end

-- The sizes of a callable that gets a marked tensor are open from then on.
local function open_marked(box, ...)
  for i = 1, select("#", ...) do
    if has_mark((select(i, ...)), 0) then
      box.dynamic = dynamics[true]
      if box.trace then C.trace_open(box.trace) end
      return
    end
  end
end

local function compiled(fn, box)
  return function(...)
    local known = box.pace
    if known and known.some_off and settings.measure and pace.is_off(known, ...) then return fn(...) end
    if C.recording() then return fn(...) end -- a part of the graph that is being recorded
    if any_marked and box.dynamic == 0 then open_marked(box, ...) end
    if box.pace and settings.measure and not settings.check and box.trace then
      return pace.call(box, recorded, fn, ...)
    end
    return recorded(box, fn, ...)
  end
end

--- fn, a function or a module, compiled: a callable with the same results, gradients and effects. A compiled module
-- gives the fields and methods of the module. Options: fullgraph = true makes a break of the graph an error; dynamic =
-- true compares no sizes, false has each shape recorded of its own (nil: from the third on, sizes are not compared);
-- backend: "eager", the recorded ops one by one; "aot_eager"; "blocks", plans; "inductor", plans with kernels that are
-- generated in C; a function(graph, inputs) that returns what runs it; nil: moth.compile.tiers. mode: "default".
local function compile(fn, o, ...)
  if select("#", ...) > 0 then check.fail("[compile] takes two arguments, a function and a table of options") end
  o = check.options("compile", o, "fullgraph dynamic backend mode")
  if B.is_tensor(fn) or not check.is_callable(fn) then
    check.fail("[compile] expected a function or a module, got %s", B.is_tensor(fn) and "a tensor" or type(fn))
  end
  if type(fn) == "table" and module.original(fn) then return fn end
  local box = new_box(fn, o)
  if switched_off then return fn end
  local call = compiled(fn, box)
  return module.is(fn) and module.wrap(fn, call) or call
end

--- What was counted on this thread since the start or reset(): calls of compiled functions; graphs (segments with a
-- record of their own), graph_breaks (different ones), recompiles (differences that made another record); ops recorded,
-- followed, and skipped (run as they came); compile_seconds; call_seconds, what all calls took, and hits, hit_seconds,
-- those of them in which nothing had to be compiled; turned_off (callables that were slower than uncompiled); groups of
-- calls that became one kernel, kernels (different ones, which were not there yet).
M.counters = signature("compile.counters()", function()
  local counters = C.counters()
  counters.turned_off = pace.turned_off
  counters.kernels, counters.groups, counters.timed = generated.kernels, generated.groups, generated.timed
  return counters
end)

--- Forgets all that was recorded, and the counters.
M.reset = signature("compile.reset()", function()
  for box in each(boxes) do
    box.trace, box.pace = nil, box.measured and pace.new()
  end
  if package.loaded["moth.compile.templates"] then require("moth.compile.templates").reset() end
  pace.turned_off, generated.kernels, generated.groups, generated.fused = 0, 0, 0, 0
  generated.timed = 0
  C.reset_counters()
end)

--- A version of fn that is never recorded: called in a compiled function, it breaks the graph.
function M.disable(fn)
  if not check.is_callable(fn) then check.fail("[compile.disable] expected a function, got %s", type(fn)) end
  local function call(...)
    local paused = C.recording() and C.pause("disabled: " .. name_of(fn))
    if not paused then return fn(...) end
    return within(function() return paused end, C.resume, nil, fn, ...)
  end
  return module.is(fn) and module.wrap(fn, call) or call
end

--- Breaks the graph here, if one is being recorded.
M.graph_break = signature("compile.graph_break()", function() C.break_graph("graph_break()") end)

--- Marks a dimension of a tensor, or several, as one that changes from call to call: a compiled function that gets x
-- does not compare sizes, as with dynamic = true, unless it was made with dynamic = false. Returns x.
M.mark_dynamic = signature("compile.mark_dynamic(Tensor x, int|int[] dim)", function(x, dim)
  for _, d in ipairs(type(dim) == "table" and dim or { dim }) do
    if d == 0 or math.abs(d) > B.dim(x) then
      check.fail("[compile.mark_dynamic] dim = %d is out of range for a tensor with %d dimensions: expected 1 to %d, "
        .. "or -1 to -%d from the end", d, B.dim(x), B.dim(x), B.dim(x))
    end
  end
  marked[x], any_marked = true, true
  return x
end)

--- Whether ops are being recorded.
M.is_compiling = signature("compile.is_compiling()", function() return (C.recording()) end)

--- Runs fn(...) once, compiled, and tells what became of it: { graphs, graph_count, graph_break_count, op_count,
-- ops_per_graph, ops, kinds, break_reasons, recompile_reasons }. It prints as a list. A compiled fn runs with its own
-- options.
function M.explain(fn, ...)
  return explain.explain(function(f, note)
    local known = box_of(f)
    f = known and known.fn or f
    local box = new_box(f, known and known.options or {})
    local inner = box.backend
    box.backend = function(handle, inputs)
      local g = graphs.new(handle)
      note(g)
      if inner then return inner(handle, inputs, true) end
      return g:interpreter()
    end
    return compiled(f, box), box, known
  end, fn, ...)
end

M.capture = explain.capture

--- What ops are made of, by their records' texts, and functions that the program sets in their place.
M.decompositions = decompositions.table

--- The smallest part of a graph with which a backend fails: moth.compile.minify(graph or function, inputs, { backend =
-- "inductor", check = true, save = path }). It returns { script, ops, call_count, inputs, message }, and prints as a
-- script of Lua that fails in the same way.
function M.minify(...) return require("moth.compile.minify").minify(...) end

-- Parts that few programs need are loaded when they are asked for.
local lazy = require "moth.lang.lazy"
local module_of = lazy(M, "moth.compile.", { aot = "aot" }, "moth.compile")
getmetatable(module_of).__call = function(_, ...) return compile(...) end
return M
