--- Checkpoints: functions whose intermediate tensors are not kept for backward but computed again there.
--
--     local utils = moth.utils
--     local y = utils.checkpoint(self.layers, x, { use_reentrant = false })
--     local y = utils.checkpoint_sequential(seq, 4, x)
--     utils.checkpoint_wrapper(block)               -- from now on block(x) is checkpoint(block, x)
--
-- The usual kind (use_reentrant = false) is made of saved-tensor hooks. In forward each saved tensor becomes a holder,
-- a number in its frame; the inputs are saved by a node of their own, outside the hooks, so that an enclosing
-- checkpoint or save_on_cpu has them. The first holder that backward reads runs the function again, under the
-- settings of forward, with hooks that collect what is saved; the run ends when the last tensor is there. The
-- reentrant kind is an autograd.Function that calls backward in its backward.
local B = require "moth_lua"
local around = require "moth.autograd.around"
local autograd = require "moth.autograd"
local graph = require "moth.autograd.graph"
local within = require "moth.dispatch.within"
local trace = require "moth.lang.trace"
local tree = require "moth.lang.tree"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local is_tensor = B.is_tensor

local M = {}

local OPTIONS = "use_reentrant preserve_rng_state determinism_check early_stop debug policy context_fn"
local known = {}
for name in OPTIONS:gmatch("%S+") do known[name] = true end

local names = {}
for name in OPTIONS:gmatch("%S+") do names[#names + 1] = name end

-- Splits a call's values: the last one is a table of options if one of its names is an option's. A table that only
-- looks like one is an error: it would be an argument of the function's, and the option would do nothing.
local function split(where, ...)
  local n, args = select("#", ...), { ... }
  local last = args[n]
  if type(last) == "table" and getmetatable(last) == nil then
    local odd, meant
    for key, value in each(last) do
      if known[key] then return n - 1, args, check.options(where, last, OPTIONS) end
      if type(key) ~= "string" or is_tensor(value) or type(value) == "table" then
        odd = false
      elseif odd == nil then
        odd, meant = key, check.suggest(key, names)
      end
    end
    if odd and meant ~= "" then
      check.fail("[%s] unknown option '%s'%s; if the table is an argument of the function, give options, such as \z
        { use_reentrant = false }, after it", where, odd, meant)
    end
  end
  return n, args, {}
end

local function flag(where, o, name, default)
  if o[name] == nil then return default end
  if type(o[name]) ~= "boolean" then
    check.fail("[%s] option '%s': expected true or false, got %s", where, name, type(o[name]))
  end
  return o[name]
end

-- ---- the settings of forward ---------------------------------------------------------------------------

local function settings(o)
  return { rng = o.rng and { B.generator_state() } or nil, autocast = B.autocast_state(), around = around.now() }
end

local function enter(s)
  local was = { autocast = B.set_autocast(s.autocast), grad = B.set_grad_enabled(true) }
  if s.rng then
    was.rng = { B.generator_state() }
    B.generator_set_state(nil, unpack(s.rng))
  end
  return was
end
local function leave(was)
  if was.rng then B.generator_set_state(nil, unpack(was.rng)) end
  B.set_grad_enabled(was.grad)
  B.set_autocast(was.autocast)
end
-- Calls fn(...) under the settings that forward had, and inside of what it was called in, recording.
local function as_before(s, fn, ...) return within(enter, leave, s, around.again, s.around, fn, ...) end

-- ---- policies: what is kept nevertheless ------------------------------------------------------------------

--- What a policy returns for an op. Words, of PyTorch's names; "prefer" and "must" do the same here.
M.CheckpointPolicy = { MUST_SAVE = "must_save", PREFER_SAVE = "prefer_save", MUST_RECOMPUTE = "must_recompute",
  PREFER_RECOMPUTE = "prefer_recompute" }
local saves = { must_save = true, prefer_save = true, must_recompute = false, prefer_recompute = false }

-- Results with tensors without history, which both runs share.
local function shared(value)
  if is_tensor(value) then return B.detach(value, false) end
  if type(value) == "table" and getmetatable(value) == nil then
    local out = {}
    for k, v in each(value) do out[k] = shared(v) end
    return out
  end
  return value
end

--- Two scopes, for the option context_fn, between which results of ops are kept: policy is a list of names of ops, or
-- policy(ctx, op, …) → one of CheckpointPolicy, for each op below autograd; ctx.is_recompute tells the run.
M.create_selective_checkpoint_contexts = signature(
  "utils.create_selective_checkpoint_contexts(string[]|callable policy)", function(policy)
  local decide = policy
  if not check.is_callable(policy) then
    local set = {}
    for i, name in ipairs(policy) do
      if not require("moth.dispatch.ops").get(name) then
        check.fail("[utils.create_selective_checkpoint_contexts] argument 'policy': element %d is no name of an op: %s",
          i, name)
      end
      set[name] = "must_save"
    end
    decide = function(_, op) return set[op] or "prefer_recompute" end
  end
  local dispatch = require "moth.dispatch"
  local kept, count = {}, {} -- op -> results in their order; how many the second run has taken
  local function wants(ctx, name, args)
    local answer = decide(ctx, name, unpack(args, 1, args.n))
    local save = saves[answer]
    if save == nil then
      check.fail("[checkpoint] the policy returned %s for %s: expected one of moth.utils.CheckpointPolicy",
        tostring(answer), name)
    end
    return save
  end
  local function pack(...) return { n = select("#", ...), ... } end
  local function forward(fn, ...)
    local ctx = { is_recompute = false }
    return dispatch.dispatch_mode(function(func, args)
      local save = wants(ctx, func.name, args)
      local results = pack(func(unpack(args, 1, args.n)))
      if save then
        kept[func.name] = kept[func.name] or {}
        table.insert(kept[func.name], shared(results))
      end
      return unpack(results, 1, results.n)
    end, fn, ...)
  end
  local function recompute(fn, ...)
    local ctx = { is_recompute = true }
    count = {}
    return dispatch.dispatch_mode(function(func, args)
      local name = func.name
      if not wants(ctx, name, args) then return func(unpack(args, 1, args.n)) end
      count[name] = (count[name] or 0) + 1
      local results = kept[name] and kept[name][count[name]]
      if not results then
        check.fail("[checkpoint] the policy wants the result of call %d of %s, which forward did not keep", count[name],
          name)
      end
      results = shared(results)
      return unpack(results, 1, results.n)
    end, fn, ...)
  end
  return forward, recompute
end)

-- ---- without backward in backward ------------------------------------------------------------------------

-- A node that saves the inputs: with the hooks of an enclosing scope, if there are any.
local save_inputs = autograd.Function {
  name = "CheckpointInputs",
  forward = function(ctx, dummy, ...)
    ctx:save_for_backward(...)
    return dummy:view_as(dummy)
  end,
  backward = function() error("checkpoint: the node that saves inputs has no derivative", 0) end,
}

local function meta(x) return { B.tensor_dtype(x), tostring(x:size()), tostring(B.tensor_device(x)) } end
local function bytes_of(x) return B.numel(x) * B.tensor_dtype(x).itemsize end

-- The tensors that a run has made and saved are garbage of Lua's once it is over; backward's memory would grow by
-- them until the next collection of garbage, so one runs here where they are many.
local SOME, SHARE = 8 * 2 ^ 20, 4
local garbage = 0
local function count_garbage(bytes)
  garbage = garbage + bytes
  if garbage > SOME and garbage > B.memory_stats().live / SHARE then
    garbage = 0
    collectgarbage()
  end
end
local function described(m) return ("%s %s on %s"):format(m[1].name, m[2], m[3]) end

-- The positions of tensors among the arguments; their values, and the node that saves them.
local function keep_inputs(frame, n, args)
  local tensors, places = {}, {}
  for i = 1, n do
    if is_tensor(args[i]) then
      tensors[#tensors + 1] = args[i]
      places[#places + 1] = i
      args[i] = nil
    end
  end
  frame.n, frame.args, frame.places = n, args, places
  if #tensors > 0 then
    frame.dummy = save_inputs(B.ops.zeros({ 0 }, { requires_grad = true }), unpack(tensors))
  end
  return tensors
end

local function inputs_again(frame)
  local args = {}
  for i = 1, frame.n do args[i] = frame.args[i] end
  for k, place in ipairs(frame.places) do args[place] = B.saved(frame.dummy.grad_fn, k, k) end
  return args
end

local function lines_of(fn, ...)
  local lines = {}
  return lines, within(B.push_trace, B.pop_trace, lines, fn, ...)
end

local function mismatch(frame, what, again)
  local text = { "[checkpoint] " .. what,
    "HINT: the function must compute the same each time: random numbers of other generators, globals that change, \z
      values of the host that differ" }
  if frame.lines then
    text[#text + 1] = "ops of forward:\n  " .. table.concat(frame.lines, "\n  ")
    text[#text + 1] = "ops of the second run:\n  " .. table.concat(again.lines or {}, "\n  ")
  else
    text[#text + 1] = "HINT: with { debug = true } this error lists the ops of both runs"
  end
  error(table.concat(text, "\n"), 0)
end

local STOP = "checkpoint: all that backward needs is there"

-- Runs the function again; returns the tensors that it saved.
local function run_again(frame)
  local again = { n = 0 }
  local stop = false
  local function pack(x)
    again.n = again.n + 1
    local due = frame.metas[again.n]
    -- A leaf is given as it is; of other tensors x is an alias without a history, and ours alone.
    if due then again[again.n] = B.is_leaf(x) and B.requires_grad(x) and B.detach(x, false) or x end
    if due and frame.checks then
      local m = meta(x)
      if m[1] ~= due[1] or m[2] ~= due[2] or m[3] ~= due[3] then
        local what = "tensor %d of %d that is saved for backward was %s in forward and is %s in the second run"
        again.wrong = what:format(again.n, #frame.metas, described(due), described(m))
        stop = true
        error(STOP, 0)
      end
    end
    if frame.early_stop and again.n >= #frame.metas then
      stop = true
      error(STOP, 0)
    end
    return due and again.n or x
  end
  -- Asked for by a gradient that the function itself takes.
  local function unpack_again(packed) return is_tensor(packed) and packed or again[packed] end
  local function run()
    local args = inputs_again(frame)
    return as_before(frame.settings, graph.saved_tensors_hooks, pack, unpack_again, frame.again, unpack(args, 1,
      frame.n))
  end
  local ok, err
  if frame.lines then
    local lines = {}
    again.lines = lines
    ok, err = xpcall(within, trace.keep, B.push_trace, B.pop_trace, lines, run)
  else
    ok, err = xpcall(run, trace.keep)
  end
  if not ok and not stop then trace.rethrow(err) end
  if again.wrong then mismatch(frame, again.wrong, again) end
  if frame.checks and again.n ~= #frame.metas then
    mismatch(frame, ("forward saved %d tensors for backward, the second run %s%d"):format(#frame.metas,
      stop and "at least " or "", again.n), again)
  end
  count_garbage(frame.bytes)
  return again
end

-- The tensor of a holder, in the pass of backward that runs. Each is handed out once, and is then backward's alone: our
-- handle is freed when the next one is asked for.
local last
local function tensor_of(holder)
  local frame, i = holder.frame, holder.at
  if last then
    B.free(last)
    last = nil
  end
  local pass = B.current_pass() or 0
  local tensors = frame.passes[pass]
  if not tensors or not tensors[i] then
    tensors = run_again(frame)
    if pass ~= 0 and not frame.passes[pass] then
      local passes = frame.passes
      autograd.queue_callback(function() passes[pass] = nil end)
    end
    frame.passes[pass] = pass ~= 0 and tensors or nil
  end
  local x = tensors[i]
  if not x then mismatch(frame, ("the second run saved no tensor %d of %d"):format(i, #frame.metas), tensors) end
  tensors[i] = nil
  last = x
  return x
end

local function non_reentrant(fn, o, n, args)
  local frame = { metas = {}, bytes = 0, passes = {}, settings = settings(o), checks = o.checks,
    early_stop = o.early_stop,
    again = fn }
  local first = fn
  if o.contexts then
    local forward, recompute = o.contexts()
    first = function(...) return forward(fn, ...) end
    frame.again = function(...) return recompute(fn, ...) end
  end
  local values = { unpack(args, 1, n) }
  keep_inputs(frame, n, args)
  local function pack(x)
    local at = #frame.metas + 1
    frame.metas[at] = meta(x)
    frame.bytes = frame.bytes + bytes_of(x)
    if not (B.is_leaf(x) and B.requires_grad(x)) then B.free(x) end -- an alias, ours alone
    return { frame = frame, at = at }
  end
  local function done(...)
    count_garbage(frame.bytes)
    return ...
  end
  local function run()
    return done(graph.saved_tensors_hooks(pack, tensor_of, first, unpack(values, 1, n)))
  end
  if not o.debug then return run() end
  return select(2, (function(lines, ...)
    frame.lines = lines
    return lines, ...
  end)(lines_of(run)))
end

-- ---- with backward in backward -----------------------------------------------------------------------------

local function count(...) return { n = select("#", ...), ... } end

-- The tensors of values (a list, or what holds lists), and what is left of them: together they make the values again.
local function taken_apart(values)
  local leaves, spec = tree.flatten(values)
  local tensors, places, rest = {}, {}, {}
  for i, v in ipairs(leaves) do
    if is_tensor(v) then
      tensors[#tensors + 1], places[#places + 1] = v, i
    else
      rest[i] = v
    end
  end
  return tensors, { spec = spec, places = places, rest = rest, n = #leaves }
end
local function put_together(parts, tensors)
  local leaves = {}
  for i = 1, parts.n do leaves[i] = parts.rest[i] end
  for k, place in ipairs(parts.places) do leaves[place] = tensors[k] end
  return tree.unflatten(leaves, parts.spec)
end

-- An object among the results that holds a tensor of floating-point numbers: it would have no history.
local function refuse_objects(parts)
  for _, v in each(parts.rest) do
    local mt = type(v) == "table" and getmetatable(v)
    if type(mt) == "table" and not rawget(mt, "__module") then
      for key, item in each(v) do
        if is_tensor(item) and B.tensor_dtype(item).is_floating_point then
          check.fail("[checkpoint] a result of the function is an object of class %s with a tensor '%s': the \z
            reentrant kind gives gradients to tensors and plain tables of them alone. Use { use_reentrant = false }",
            tostring(rawget(mt, "__name") or "?"), tostring(key))
        end
      end
    end
  end
end

local Reentrant = autograd.Function {
  name = "Checkpoint",
  forward = function(ctx, call, ...)
    ctx.call, ctx.settings = call, settings(call.o)
    ctx:save_for_backward(...)
    local values = call.values -- the caller's own tables, which the function may write to
    for i = 1, values and select("#", ...) or 0 do
      if not rawequal(call.tensors[i], (select(i, ...))) then values = nil end -- under vmap
    end
    call.values, call.tensors = nil, nil
    values = values or put_together(call.args, { ... })
    local tensors
    tensors, call.results = taken_apart(count(call.fn(unpack(values, 1, values.n))))
    refuse_objects(call.results)
    return unpack(tensors)
  end,
  backward = function(ctx, ...)
    if autograd.collecting() then
      error("[checkpoint] the reentrant kind does not work with autograd.grad: use { use_reentrant = false }", 0)
    end
    local tensors = { ctx:saved_tensors() }
    for k, x in ipairs(tensors) do
      tensors[k] = B.detach(x, false)
      if B.requires_grad(x) then B.set_requires_grad(tensors[k], true) end
    end
    local args = put_together(ctx.call.args, tensors)
    local outputs = taken_apart(count(as_before(ctx.settings, ctx.call.fn, unpack(args, 1, args.n))))
    local due = #ctx.call.results.places
    if #outputs ~= due then
      error(("[checkpoint] the function gave %d tensors in forward and %d in its second run"):format(due, #outputs), 0)
    end
    local roots, grads = {}, {}
    for i, output in ipairs(outputs) do
      if B.requires_grad(output) then
        roots[#roots + 1] = output
        grads[#roots] = (select(i, ...))
      end
    end
    if #roots == 0 then
      error("[checkpoint] no result of the function requires a gradient in its second run", 0)
    end
    B.set_grad_enabled(true)
    autograd.backward(roots, grads)
    local out = {}
    for k, x in ipairs(tensors) do out[k + 1] = B.get_grad(x) end
    return unpack(out, 1, #tensors + 1)
  end,
}

local function reentrant(fn, o, n, args)
  args = { n = n, unpack(args, 1, n) }
  local tensors, parts = taken_apart(args)
  local any = false
  for _, x in ipairs(tensors) do any = any or B.requires_grad(x) end
  if not any then
    check.fail("[checkpoint] none of the inputs requires a gradient: the reentrant kind would give the parameters \z
      none. Use { use_reentrant = false }, or input:requires_grad_()")
  end
  local call = { fn = fn, o = o, args = parts, values = args, tensors = tensors }
  around.note "reentrant"
  local outputs = { Reentrant(call, unpack(tensors)) }
  local results = put_together(call.results, outputs)
  return unpack(results, 1, results.n)
end

-- ---- public ----------------------------------------------------------------------------------------------

local function contexts_of(where, o)
  if o.policy ~= nil and o.context_fn ~= nil then
    check.fail("[%s] options 'policy' and 'context_fn' exclude each other", where)
  end
  if o.context_fn ~= nil and type(o.context_fn) ~= "function" then
    check.fail("[%s] option 'context_fn': expected a function, got %s", where, type(o.context_fn))
  end
  local policy = o.policy
  return o.context_fn or policy ~= nil and function() return M.create_selective_checkpoint_contexts(policy) end or nil
end

-- The options of all functions of this file, checked: plain values.
local function read(where, o)
  local again = { use_reentrant = flag(where, o, "use_reentrant", false), early_stop = flag(where, o, "early_stop",
    true),
    rng = flag(where, o, "preserve_rng_state", true), debug = flag(where, o, "debug", false),
    contexts = contexts_of(where, o) }
  local checks = o.determinism_check
  if checks == nil then checks = "default" end
  if checks ~= "default" and checks ~= "none" then
    check.fail("[%s] option 'determinism_check': expected 'default' or 'none', got %s", where, tostring(checks))
  end
  again.checks = checks == "default"
  if again.use_reentrant and (again.contexts or again.debug or checks == "none") then
    check.fail("[%s] options policy, context_fn, debug and determinism_check are for use_reentrant = false", where)
  end
  return again
end

local function run(fn, o, n, args)
  if not B.grad_enabled() then return fn(unpack(args, 1, n)) end
  if o.use_reentrant then return reentrant(fn, o, n, args) end
  return non_reentrant(fn, o, n, args)
end

--- fn(...), whose intermediate tensors are computed again in backward instead of being kept. Gradients are those of the
-- plain call. The last value may be a table of options; another table is passed on to fn.
--
-- Options: use_reentrant = false (true: by a backward within backward, as old programs need it: an input must require a
-- gradient, autograd.grad and hooks on saved tensors do not see inside); preserve_rng_state = true (dropout draws the
-- same again, from the default generator); determinism_check = "default" ("none": the two runs are not compared);
-- early_stop = true (the second run ends at the last tensor that is needed); debug = false (true: an error about
-- different runs lists the ops of both); policy (a list of ops whose results are kept, or a function, or context_fn:
-- see create_selective_checkpoint_contexts).
function M.checkpoint(fn, ...)
  if not check.is_callable(fn) then check.fail("[checkpoint] expected a function or a module, got %s", type(fn)) end
  local n, args, o = split("checkpoint", ...)
  return run(fn, read("checkpoint", o), n, args)
end

--- Runs a Sequential, or a list of functions, in `segments` parts, all but the last as checkpoints: with the square
-- root of their number the memory of activations grows by it. checkpoint_sequential(seq, segments, x, options).
function M.checkpoint_sequential(functions, segments, ...)
  local where = "checkpoint_sequential"
  if type(functions) ~= "table" then
    check.fail("[%s] argument 'functions': expected a Sequential or a list, got %s", where, type(functions))
  end
  local list = {}
  for i = 1, #functions do
    list[i] = functions[i]
    if not check.is_callable(list[i]) then
      check.fail("[%s] argument 'functions': element %d is no function and no module", where, i)
    end
  end
  if #list == 0 then check.fail("[%s] argument 'functions': there is none", where) end
  check.integer("[" .. where .. "]", "segments", segments, 1)
  local n, args, o = split(where, ...)
  if n < 1 then check.fail("[%s] argument 'input' is missing", where) end
  local options = read(where, o)
  local modules = true
  for i = 1, #list do modules = modules and type(list[i]) == "table" and list[i].__module == true end
  local function part(from, to)
    if modules then -- frees what lies between modules of moth.nn
      local slice = { unpack(list, from, to) }
      return function(...) return require("moth.nn").Sequential.forward(slice, ...) end
    end
    return function(...)
      local values = count(...)
      for i = from, to do values = count(list[i](unpack(values, 1, values.n))) end
      return unpack(values, 1, values.n)
    end
  end
  local size, at = math.floor(#list / math.min(segments, #list)), 1
  local values = count(unpack(args, 1, n))
  for _ = 1, math.min(segments, #list) - 1 do
    values = count(run(part(at, at + size - 1), options, values.n, { unpack(values, 1, values.n) }))
    at = at + size
  end
  return part(at, #list)(unpack(values, 1, values.n))
end

--- Makes each call of a module a checkpoint of it, with these options; returns the module. Its parameters keep their
-- names.
function M.checkpoint_wrapper(module, options)
  local where = "checkpoint_wrapper"
  if type(module) ~= "table" or not module.__module then
    check.fail("[%s] argument 'module': expected a module, got %s", where, type(module))
  end
  local o = read(where, check.options(where, options, OPTIONS))
  local forward = module.forward
  rawset(module, "forward", function(self, ...)
    return run(function(...) return forward(self, ...) end, o, select("#", ...), { ... })
  end)
  return module
end

--- checkpoint_wrapper for all modules below `model` for which check_fn(module, name) is true; returns their number.
-- What is below a wrapped one is left alone.
function M.apply_activation_checkpointing(model, check_fn, options)
  local where = "apply_activation_checkpointing"
  if type(model) ~= "table" or not model.__module then
    check.fail("[%s] argument 'model': expected a module, got %s", where, type(model))
  end
  if type(check_fn) ~= "function" then
    check.fail("[%s] argument 'check_fn': expected a function, got %s", where, type(check_fn))
  end
  local n = 0
  local function walk(module, prefix)
    for name, child in module:named_children() do
      local full = prefix == "" and name or prefix .. "." .. name
      if check_fn(child, full) then
        M.checkpoint_wrapper(child, options)
        n = n + 1
      else
        walk(child, full)
      end
    end
  end
  walk(model, "")
  return n
end

--- module(...), whose saved tensors are moved to page-locked host memory in forward and back in backward: of tensors on
-- the CPU nothing changes. Parameters stay where they are.
function M.offload_checkpoint(module, ...)
  if not check.is_callable(module) then
    check.fail("[offload_checkpoint] expected a function or a module, got %s", type(module))
  end
  return graph.save_on_cpu({ pin_memory = B.cuda_why() == nil }, module, ...)
end

return M
