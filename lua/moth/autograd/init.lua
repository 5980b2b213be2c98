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

--- d outputs / d inputs, one return value per input; .grad fields do not change.
function M.grad(outputs, inputs, grad_outputs, retain_graph, create_graph, allow_unused)
  if retain_graph == nil then retain_graph = create_graph end
  return M.collect(list(outputs), list(inputs), list(grad_outputs), retain_graph, create_graph, allow_unused)
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
--- Declares inputs that forward has changed in place: for PyTorch's programs, not needed here.
function Context.mark_dirty() end

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
      outputs[#outputs + 1] = B.detach(r, false)
      nr_of[i] = #outputs
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
  B.record(spec.name .. "Backward", backward, args, nargs, outputs, saved, n, of, n - (mine.saved or 0))
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

local function apply(spec, ...)
  local nargs, args = select("#", ...), { ... }
  local ctx, record = new_context(args, nargs)
  local results = { n = 0 }
  local function keep(...) results = { n = select("#", ...), ... } end
  keep(M.no_grad(spec.forward, ctx, ...))
  if record then results = give_history(spec, ctx, args, nargs, results) end
  return unpack(results, 1, results.n)
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
function M.Function(spec)
  if type(spec.forward) ~= "function" or type(spec.backward) ~= "function" then
    check.fail("[Function] expected a table with functions 'forward' and 'backward'")
  end
  spec = { name = spec.name or "Function", forward = spec.forward, backward = spec.backward }
  local f = { name = spec.name }
  function f.apply(...) return apply(spec, ...) end
  return setmetatable(f, { __call = function(_, ...) return apply(spec, ...) end,
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
function M.detect_anomaly(...) return require("moth.autograd.anomaly")(...) end

--- Compares the gradients of fn (float64) with finite differences.
-- Returns true, or raises an error that names input, element and both values.
function M.gradcheck(...) return require("moth.autograd.gradcheck").gradcheck(...) end
--- The same for the gradients of the gradients.
function M.gradgradcheck(...) return require("moth.autograd.gradcheck").gradgradcheck(...) end

signature.all(M, {
  "no_grad(callable fn, ...)", "enable_grad(callable fn, ...)", "no_grad_fn(callable fn)",
  "set_grad_enabled(bool mode)", "is_grad_enabled()", "collecting()", "topo(any grad_fn)",
  "queue_callback(function fn)", "Function(table spec)",
  "record(table spec, table inputs, table flat, size n, table results, size nresults, callable setup)",
  "grad(Tensor|Tensor[] outputs, Tensor|Tensor[] inputs, Tensor|Tensor[] grad_outputs?, bool retain_graph?, \z
    bool create_graph=false, bool allow_unused=false)",
  "backward(Tensor|Tensor[] tensors, Tensor|Tensor[] grad_tensors?, bool retain_graph?, bool create_graph=false)",
  "collect(table outputs, table inputs, table gradients?, bool retain_graph=false, bool create_graph=false, \z
    bool allow_unused=false, bool of_gradients=false)",
})
--- no_grad under PyTorch's other name.
M.inference_mode = signature.alias("inference_mode", M.no_grad)
--- moth.profiler's functions under their older name.
M.profiler = require("moth.lang.lazy").strict({
  profile = function(...) return require("moth.profiler").profile(...) end,
  record_function = function(...) return require("moth.profiler").record_function(...) end,
}, "moth.autograd.profiler")

return M
