--- Automatic differentiation: scopes, gradients, functions with a derivative of their own, checks.
local trace = require "moth.lang.trace"
local B = require "moth_lua"
local within = require "moth.dispatch.within"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local M = {}

--- Calls fn(...) without recording and returns its results; nests, and restores on error.
function M.no_grad(fn, ...)
  return within(B.set_grad_enabled, B.set_grad_enabled, false, fn, ...)
end

--- Calls fn(...) with recording on, also within no_grad.
function M.enable_grad(fn, ...)
  return within(B.set_grad_enabled, B.set_grad_enabled, true, fn, ...)
end

--- A version of fn that runs under no_grad.
function M.no_grad_fn(fn)
  return function(...) return M.no_grad(fn, ...) end
end

--- Turns recording on or off on this thread; returns the former state.
function M.set_grad_enabled(on) return B.set_grad_enabled(on) end
function M.is_grad_enabled() return B.grad_enabled() end

local function list(x) return B.is_tensor(x) and { x } or x end

local collecting = false
local function set_collecting(on)
  local was = collecting
  collecting = on
  return was
end

--- The binding's grad(outputs, inputs, gradients, retain_graph, create_graph, allow_unused). Other modules call it by
-- this, so that Lua functions that write to .grad themselves can tell (collecting()).
function M.collect(...) return within(set_collecting, set_collecting, true, B.grad, ...) end

-- The tensors of a list in which edges (graph.get_gradient_edge) may stand for them.
local function tensors_of(name, x)
  if B.is_tensor(x) then return { x } end
  if M.graph.is_edge(x) then return { x:tensor_of() } end
  local out = {}
  for i = 1, #x do
    out[i] = M.graph.is_edge(x[i]) and x[i]:tensor_of() or x[i]
    if not B.is_tensor(out[i]) then
      check.fail("[grad] argument '%s': expected tensors or gradient edges, got %s as element %d", name,
        type(out[i]), i)
    end
  end
  return out
end

--- d outputs / d inputs, one return value per input; .grad fields do not change. Either may be edges, as
-- graph.get_gradient_edge gives them. is_grads_batched: grad_outputs have one dimension more, in front, and so have the
-- gradients. materialize_grads: zeros in place of nil for inputs that outputs do not depend on.
function M.grad(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused, is_grads_batched,
    materialize_grads)
  if retain_graph == nil then retain_graph = create_graph end
  outputs, inputs, grad_outputs = tensors_of("outputs", outputs), tensors_of("inputs", inputs), list(grad_outputs)
  allow_unused = allow_unused or materialize_grads
  local function collect(...)
    return M.collect(outputs, inputs, { ... }, is_grads_batched or retain_graph, create_graph, allow_unused)
  end
  if not is_grads_batched and not materialize_grads then
    return M.collect(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused)
  end
  local n, found = #inputs
  if is_grads_batched then
    if not grad_outputs then check.fail "[grad] is_grads_batched needs grad_outputs, with a batch in front" end
    local there = {} -- vmap's results are tensors
    local results = { require("moth.autograd.func").vmap(function(...)
      local grads, out = { collect(...) }, {}
      for i = 1, n do
        if grads[i] ~= nil then there[#there + 1], out[#out + 1] = i, grads[i] end
      end
      return unpack(out)
    end)(unpack(grad_outputs)) }
    found = {}
    for k, i in ipairs(there) do found[i] = results[k] end
  else
    found = { M.collect(outputs, inputs, grad_outputs, retain_graph, create_graph, true) }
  end
  for i = 1, materialize_grads and n or 0 do
    if found[i] == nil then
      local size, x = B.size(inputs[i]), inputs[i]
      if is_grads_batched then table.insert(size, 1, B.size(grad_outputs[1], 1)) end
      found[i] = B.ops.zeros(size, { dtype = B.tensor_dtype(x), device = B.tensor_device(x) })
    end
  end
  return unpack(found, 1, n)
end

--- Whether grad, which must not change .grad, is running.
function M.collecting() return collecting end

--- backward of several tensors at once.
function M.backward(tensors, grad_tensors, retain_graph, create_graph)
  if retain_graph == nil then retain_graph = create_graph end
  B.backward(list(tensors), list(grad_tensors), retain_graph, create_graph)
end

--- The names of the nodes that a backward from grad_fn would run, in that order.
function M.topo(fn)
  local ok = pcall(function() return fn:next_functions() end)
  if not ok then check.fail("[topo] argument 'grad_fn': expected x.grad_fn of a tensor, got %s", type(fn)) end
  local function following(node)
    local nodes = {}
    for _, edge in ipairs(node:next_functions()) do nodes[#nodes + 1] = edge[1] end
    return nodes
  end
  local done, seen = {}, { [fn:id()] = true } -- depth first; a stack in a table, for graphs deeper than Lua's stack
  local stack = { { node = fn, next = following(fn), at = 0 } }
  while #stack > 0 do
    local top = stack[#stack]
    top.at = top.at + 1
    local n = top.next[top.at]
    if not n then
      done[#done + 1] = top.node:name()
      stack[#stack] = nil
    elseif not seen[n:id()] then
      seen[n:id()] = true
      stack[#stack + 1] = { node = n, next = following(n), at = 0 }
    end
  end
  local names = {}
  for i = #done, 1, -1 do names[#names + 1] = done[i] end
  return names
end

-- functions written in Lua ------------------------------------------------------------------------

-- The node, in C, owns the tensors for backward, so that they are freed with the graph. If Lua owned them, each full
-- collection would free only one level of a chain of functions, as each level's tensors retain the level before.
local Context = {}

-- ctx[own]: moth's data of a context, beside the program's fields: node (while backward runs), saved (a list, from the
-- end of forward on a count), places and parts (see __index), non_differentiable.
local own = {}

--- Keeps tensors for backward, with a check of their versions. Inputs and results only.
function Context:save_for_backward(...) self[own].saved = { n = select("#", ...), ... } end

--- Returns the saved tensors.
function Context:saved_tensors()
  local saved, node = self[own].saved, self[own].node
  if type(saved) == "table" then return unpack(saved, 1, saved.n) end -- in forward, or nothing was recorded
  if not node then
    if not saved then return end
    error("saved_tensors: what is saved can be read in backward", 2)
  end
  return B.saved(node, 1, saved or 0)
end
Context.saved_values = Context.saved_tensors

-- Marks the place of a tensor in a copy of a table of the program's.
local Place = {}

local function is_plain(value) return type(value) == "table" and getmetatable(value) == nil end

local function filled(part, node, seen)
  if seen[part] then return seen[part] end
  local copy = {}
  seen[part] = copy
  for key, value in each(part) do
    if type(value) == "table" and getmetatable(value) == Place then
      value = B.saved(node, value[1], value[1])
    elseif is_plain(value) then
      value = filled(value, node, seen)
    end
    copy[key] = value
  end
  return copy
end

-- A field that is a tensor is kept by the node, too (places); and of a field that is a table, the tensors in it that
-- have a history: a copy of the table (parts) says where they were, and backward sees another copy with the tensors in
-- it.
Context.__index = function(ctx, key)
  local method = Context[key]
  if method ~= nil then return method end
  local mine = rawget(ctx, own)
  local node, places, parts = mine.node, mine.places, mine.parts
  if not node or not places then return nil end
  if places[key] then return (B.saved(node, places[key], places[key])) end
  if parts[key] then return filled(parts[key], node, mine.open) end
end

--- Declares results without a gradient.
function Context:mark_non_differentiable(...) self[own].non_differentiable = { ... } end
--- Declares inputs that forward has changed in place and returns: they get the history themselves.
function Context:mark_dirty(...) self[own].dirty = { ... } end
--- With false, backward gets nil, not zeros, for results whose gradient nobody has given.
function Context:set_materialize_grads(value) self[own].keeps_none = value == false end
--- Keeps tensors for jvp, which runs right after forward.
function Context:save_for_forward(...) self[own].forward = { n = select("#", ...), ... } end
--- Returns these.
function Context:saved_for_forward()
  local saved = self[own].forward
  if saved then return unpack(saved, 1, saved.n) end
end

local function contains(t, x)
  for i = 1, #t do if t[i] == x then return i end end
end

-- Whether a table, plain or with plain ones in it, has a tensor with a history. If Lua refers to such a tensor, it
-- retains the graph before it, and each collection frees only one level of a chain of these.
local function has_history(t, seen)
  seen[t] = true
  for _, value in each(t) do
    if B.is_tensor(value) then
      if not B.is_leaf(value) then return true end
    elseif is_plain(value) and not seen[value] and has_history(value, seen) then
      return true
    end
  end
  return false
end

-- The tensors of ctx as a list for the node, with which of them are results (nr_of), and how many there are: first the
-- saved ones, whose count is left in ctx[own].saved, then those of fields.
local function hand_over(ctx, results, nr_of)
  local mine, tensors, of, n = ctx[own], {}, {}, 0
  local function add(t)
    n = n + 1
    tensors[n] = t
    for k = 1, t ~= nil and results.n or 0 do
      if nr_of[k] and t == results[k] then of[n] = nr_of[k] end
    end
    return n
  end
  for i = 1, mine.saved and mine.saved.n or 0 do
    local t = mine.saved[i]
    if t ~= nil and not B.is_tensor(t) then error("save_for_backward: expected tensors, got " .. type(t), 3) end
    add(t)
  end
  mine.saved = mine.saved and n
  local places, parts, taken = {}, {}, {}
  local function take_apart(t)
    if taken[t] then return taken[t] end
    local copy = {}
    taken[t] = copy
    for key, value in each(t) do
      if B.is_tensor(value) and not B.is_leaf(value) then
        value = setmetatable({ add(value) }, Place)
      elseif is_plain(value) then
        value = take_apart(value)
      end
      copy[key] = value
    end
    return copy
  end
  for key, value in each(ctx) do
    if B.is_tensor(value) then
      places[key] = add(value)
    elseif key ~= own and is_plain(value) and has_history(value, {}) then
      parts[key] = take_apart(value)
    end
  end
  for key in each(places) do ctx[key] = nil end
  for key in each(parts) do ctx[key] = nil end
  mine.places, mine.parts, mine.non_differentiable = places, parts, nil
  return tensors, of, n
end

-- Gives results a history that calls spec.backward(ctx, …); returns them, a list. Aliases of them get it, so that the
-- tensors saved in ctx do not retain the graph.
local function give_history(spec, ctx, args, nargs, results)
  local mine = ctx[own]
  local outputs, nr_of = {}, {}
  for i = 1, results.n do
    local r = results[i]
    if B.is_tensor(r) and not (mine.non_differentiable and contains(mine.non_differentiable, r)) then
      outputs[#outputs + 1] = mine.dirty and contains(mine.dirty, r) and r or B.detach(r, false)
      nr_of[i] = #outputs
    end
  end
  for _, x in ipairs(mine.dirty or {}) do
    local given, returned = false, false
    for i = 1, nargs do given = given or args[i] == x end
    for i = 1, results.n do returned = returned or results[i] == x end
    if not given or not returned then
      error(("function %s: mark_dirty is for inputs that forward returns"):format(spec.name), 0)
    end
  end
  if #outputs == 0 then return results end
  local saved, of, n = hand_over(ctx, results, nr_of)
  local function backward(node, _, _, ...)
    mine.node, mine.open = node, {}
    local count, grads = 0, nil
    local function take(...)
      count = select("#", ...)
      grads = { ... }
    end
    local ok, err = xpcall(function(...) take(spec.backward(ctx, ...)) end, trace.keep, ...)
    mine.node, mine.open = nil, nil -- breaks a cycle
    if not ok then trace.rethrow(err) end
    local wrong = count < nargs
    for i = nargs + 1, count do wrong = wrong or grads[i] ~= nil end
    if wrong then
      error(("function %s returned an incorrect number of gradients (expected %d, got %d)"):format(
        spec.name, nargs, count), 0)
    end
    return grads
  end
  B.record(spec.name .. "Backward", backward, args, nargs, outputs, saved, n, of, n - (mine.saved or 0),
    mine.keeps_none == true)
  local out = { n = results.n }
  for i = 1, results.n do out[i] = nr_of[i] and outputs[nr_of[i]] or results[i] end
  return out
end

-- A context, and whether one of the arguments requires a gradient.
local function new_context(args, nargs)
  local ctx, record = setmetatable({ [own] = {}, needs_input_grad = {} }, Context), false
  for i = 1, nargs do
    local needs = B.is_tensor(args[i]) and B.requires_grad(args[i]) and B.grad_enabled()
    ctx.needs_input_grad[i] = needs
    record = record or needs
  end
  return ctx, record
end

-- The results of forward, which records nothing and sees no tangents; after(ctx) is called then.
local function run_forward(spec, ctx, args, nargs, after)
  local results, was = { n = 0 }, B.dual_limit(1)
  local function keep(...) results = { n = select("#", ...), ... } end
  local ok, err = xpcall(function()
    if spec.setup_context then
      keep(M.no_grad(spec.forward, unpack(args, 1, nargs)))
      local inputs = { n = nargs, unpack(args, 1, nargs) }
      M.no_grad(spec.setup_context, ctx, inputs, results.n == 1 and results[1] or results)
    else
      keep(M.no_grad(spec.forward, ctx, unpack(args, 1, nargs)))
    end
  end, trace.keep)
  B.dual_limit(was)
  if not ok then trace.rethrow(err) end
  if after then after(ctx) end
  return results
end

local forward_mode, batched

-- The results of a function, a list with n.
local function apply(spec, args, nargs, after)
  local level, dual, highest = 0, nil, 0
  for i = 1, nargs do
    if B.is_tensor(args[i]) then
      level = math.max(level, spec.vmap and B.batch_level(args[i]) or 0)
      local duals, number = B.dual_levels(args[i])
      if duals and number > highest then dual, highest = duals[1], number end
    end
  end
  if dual then return forward_mode(spec, args, nargs, dual, after) end
  if level > 0 then return batched(spec, args, nargs, level) end
  local ctx, record = new_context(args, nargs)
  local results = run_forward(spec, ctx, args, nargs, after)
  if record then results = give_history(spec, ctx, args, nargs, results) end
  return results
end

-- Calls fn with tangents from `limit` on off.
local function limited(limit, fn)
  local was = B.dual_limit(limit)
  local ok, err = xpcall(fn, trace.keep)
  B.dual_limit(was)
  if not ok then trace.rethrow(err) end
end

-- The function on arguments with tangents at the level `dual`: by its jvp, else by its backward, which is linear in the
-- gradients v that it gets: the derivative by v, in the direction of the tangents.
function forward_mode(spec, args, nargs, dual, after)
  local tangents, results, made = {}, nil, {}
  for i = 1, nargs do tangents[i] = B.is_tensor(args[i]) and B.dual_tangent(args[i], dual) or nil end
  local function by_jvp(ctx)
    limited(dual, function() made = { spec.jvp(ctx, unpack(tangents, 1, nargs)) } end)
    if after then after(ctx) end
  end
  local function by_backward()
    local inputs, xs, ts, kept = {}, {}, {}, false
    for i = 1, nargs do
      local x = args[i]
      inputs[i] = x
      if B.is_tensor(x) then kept = kept or B.grad_enabled() and B.requires_grad(x) end
      if tangents[i] then
        if B.requires_grad(x) then
          x = B.ops.view(x, B.size(x))
        else
          x = B.set_requires_grad(B.alias(x, false), true)
        end
        B.dual_share(x, args[i]) -- what backward saves of it has them all
        inputs[i], xs[#xs + 1], ts[#ts + 1] = x, x, tangents[i]
      end
    end
    local ys, vs, at = {}, {}, {}
    local create = B.grad_enabled()
    M.enable_grad(function()
      results = apply(spec, inputs, nargs, after)
      for i = 1, results.n do
        local y = results[i]
        if B.is_tensor(y) and B.requires_grad(y) then
          ys[#ys + 1], at[#ys + 1] = y, i
          vs[#ys] = B.set_requires_grad(B.alias(B.ops.zeros_like(y), false), true)
        end
      end
      if #ys == 0 then return end
      local from, weights = {}, {}
      local gs = { M.collect(ys, xs, vs, true, true, true) }
      for k = 1, #xs do
        if gs[k] and B.requires_grad(gs[k]) then from[#from + 1], weights[#weights + 1] = gs[k], ts[k] end
      end
      local found = #from > 0 and { M.collect(from, vs, weights, true, create, true) } or {}
      for k, i in ipairs(at) do made[i] = found[k] end
    end)
    if not kept then
      for i = 1, results.n do
        if B.is_tensor(results[i]) and B.requires_grad(results[i]) then
          local y = results[i]
          results[i] = B.alias(y, false)
          if B.dual_levels(y) then B.dual_share(results[i], y) end
        end
      end
    end
  end
  limited(dual, function()
    if spec.jvp then results = apply(spec, args, nargs, by_jvp) else by_backward() end
  end)
  for i = 1, results.n do
    if B.is_tensor(results[i]) and made[i] ~= nil then B.dual_set(results[i], made[i], dual) end
  end
  return results
end

-- The function on a batch, by spec.vmap(info, in_dims, …), which returns its results for the whole batch (a table of
-- several) and their dimensions of the batch.
function batched(spec, args, nargs, level)
  local given, dims, size = {}, {}, nil
  for i = 1, nargs do
    given[i], dims[i] = args[i], false
    if B.is_tensor(args[i]) and B.batch_level(args[i]) == level then
      size = size or B.size(B.batch_physical(args[i]))[1]
      given[i], dims[i] = B.batch_leave(args[i], 1, level, size), 1
    end
  end
  local out, out_dims = spec.vmap({ batch_size = size, randomness = B.vmap_randomness(level) }, dims,
    unpack(given, 1, nargs))
  local single = B.is_tensor(out)
  local results, made = { n = single and 1 or #out }, single and { out } or out
  for i = 1, results.n do
    local dim = out_dims
    if type(out_dims) == "table" then dim = out_dims[i] end
    if dim == nil then
      error(("function %s: vmap must return its results and their dimensions"):format(spec.name), 0)
    end
    if dim and dim < 0 then dim = dim + B.dim(made[i]) + 1 end
    results[i] = dim and B.batch_enter(made[i], dim, level) or made[i]
  end
  return results
end

--- For ops defined at run time (moth.library): the history of results that were computed already, by
-- spec.backward(ctx, grad …), after setup(ctx, inputs, output), which saves what that reads. flat: the n values that
-- gradients are for. Returns the results.
function M.record(spec, inputs, flat, n, results, nresults, setup)
  local ctx = new_context(flat, n)
  results.n = nresults
  M.no_grad(setup, ctx, inputs, nresults == 1 and results[1] or results)
  results = give_history(spec, ctx, flat, n, results)
  return unpack(results, 1, nresults)
end

--- A function with its own derivative.
-- moth.autograd.Function{ name=, forward = function(ctx, ...) … end, backward = function(ctx, grad) … end } is called
-- like a function, or by F.apply(...). backward returns one value per input of forward, nil where there is no gradient.
-- It may also have: setup_context(ctx, inputs, output), then forward gets no ctx; jvp(ctx, tangent, …), one tangent per
-- input, nil where there is none, returns those of the results (without it forward mode uses backward); and
-- vmap(info, in_dims, …), which returns the results for a whole batch and their dimensions (without it vmap looks into
-- forward and backward).
function M.Function(spec)
  check.options("[Function]", spec, "name forward backward setup_context jvp vmap")
  if type(spec.forward) ~= "function" or type(spec.backward) ~= "function" then
    check.fail("[Function] expected a table with functions 'forward' and 'backward'")
  end
  for _, name in ipairs({ "setup_context", "jvp", "vmap" }) do
    if spec[name] ~= nil and type(spec[name]) ~= "function" then
      check.fail("[Function] '%s': expected a function, got %s", name, type(spec[name]))
    end
  end
  spec = { name = spec.name or "Function", forward = spec.forward, backward = spec.backward, jvp = spec.jvp,
    vmap = spec.vmap, setup_context = spec.setup_context }
  local f = { name = spec.name }
  local function call(...)
    local results = apply(spec, { ... }, select("#", ...))
    return unpack(results, 1, results.n)
  end
  f.apply = call
  return setmetatable(f, { __call = function(_, ...) return call(...) end,
    __tostring = function() return "<Function " .. spec.name .. ">" end })
end

--- For hooks and the backward of Functions: fn(err) at the end of the outermost running backward, with its error or
-- nil. Callbacks run in their order, also after an error, and may queue others.
function M.queue_callback(fn) B.queue_callback(fn) end

--- Hooks on saved tensors, on several gradients, on nodes: see moth.autograd.graph.
M.graph = require "moth.autograd.graph"
M.saved_tensors_hooks, M.save_on_cpu = M.graph.saved_tensors_hooks, M.graph.save_on_cpu

--- detect_anomaly(fn, …): an error of backward, NaN included, says where the op was called whose derivative it came
-- from. With { check_nan = false } before fn, errors alone.
function M.detect_anomaly(...) return require("moth.autograd.anomaly").detect_anomaly(...) end
--- set_detect_anomaly(true): the same from now on, for this thread; off by default, and then without cost.
function M.set_detect_anomaly(mode, o) require("moth.autograd.anomaly").set_detect_anomaly(mode, o) end
function M.is_anomaly_enabled() return require("moth.autograd.anomaly").is_anomaly_enabled() end
function M.is_anomaly_check_nan_enabled() return require("moth.autograd.anomaly").is_anomaly_check_nan_enabled() end

--- Compares the gradients of fn (float64) with finite differences.
-- Returns true, or raises an error that names input, element and both values.
function M.gradcheck(...) return require("moth.autograd.gradcheck").gradcheck(...) end
--- The same for the gradients of the gradients.
function M.gradgradcheck(...) return require("moth.autograd.gradcheck").gradgradcheck(...) end

signature.all(M, {
  "no_grad(callable fn, ...)", "enable_grad(callable fn, ...)", "no_grad_fn(callable fn)",
  "set_detect_anomaly(bool mode, table options?)", "is_anomaly_enabled()", "is_anomaly_check_nan_enabled()",
  "set_grad_enabled(bool mode)", "is_grad_enabled()", "collecting()", "topo(any grad_fn)",
  "queue_callback(function fn)", "Function(table spec)",
  "record(table spec, table inputs, table flat, size n, table results, size nresults, callable setup)",
  "grad(Tensor|table outputs, Tensor|table inputs, Tensor|Tensor[] grad_outputs?, bool retain_graph?, \z
    bool create_graph=false, bool allow_unused=false, bool is_grads_batched=false, bool materialize_grads=false)",
  "backward(Tensor|Tensor[] tensors, Tensor|Tensor[] grad_tensors?, bool retain_graph?, bool create_graph=false)",
  "collect(table outputs, table inputs, table gradients?, bool retain_graph=false, bool create_graph=false, \z
    bool allow_unused=false, bool of_gradients=false)",
})
--- no_grad under PyTorch's other name.
M.inference_mode = signature.alias("inference_mode", M.no_grad)
--- moth.profiler's functions under their older name.
M.profiler = require("moth.lang.lazy").strict({
  --- moth.profiler.profile, by its older name.
  profile = function(...) return require("moth.profiler").profile(...) end,
  --- moth.profiler.record_function, by its older name.
  record_function = function(...) return require("moth.profiler").record_function(...) end,
}, "moth.autograd.profiler")

return M
