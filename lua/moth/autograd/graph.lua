--- Hooks on saved tensors, on several gradients and on nodes: moth.autograd.graph, with PyTorch's names.
--
--     local graph = moth.autograd.graph
--     graph.saved_tensors_hooks(pack, unpack, function() loss = net(x):mean() end)
--     graph.save_on_cpu(function() loss = net(x):mean() end)
--     graph.register_multi_grad_hook({ a, b }, function(grads) … end)
local B = require "moth_lua"
local within = require "moth.dispatch.within"
local check = require "moth.utils.check"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local M = {}

--- While fn(...) runs, a tensor x that is saved for backward is replaced by pack(x), any value; unpack gets that when
-- backward reads the tensor, and returns a tensor of the same shape, dtype and device. Both run without recording; x is
-- a leaf itself, or has no history, and must not be changed in place. This includes tensors of save_for_backward in a
-- Function, not other fields of its ctx. Of nested hooks the innermost are used. A saved result is restored with its
-- history.
function M.saved_tensors_hooks(pack, unpack, fn, ...)
  return within(function() return B.open_saved_hooks(pack, unpack) end, B.close_frame, nil, fn, ...)
end

--- While fn(...) runs, saved_tensors_hooks (and save_on_cpu) is an error with this message; so is this function within
-- them.
function M.disable_saved_tensors_hooks(message, fn, ...)
  return within(B.disable_saved_hooks, B.close_frame, message, fn, ...)
end

--- Tensors that fn(...) saves for backward are kept in host memory until backward needs them, but not parameters
-- (leaves that require a gradient), which stay alive anyway. save_on_cpu(fn, …) or
-- save_on_cpu({ pin_memory = true }, fn, …): page-locked memory, for faster copies.
function M.save_on_cpu(options, fn, ...)
  if check.is_callable(options) then return M.save_on_cpu({}, options, fn, ...) end
  local pin = check.options("save_on_cpu", options or 0, "pin_memory").pin_memory
  if not check.is_callable(fn) then check.fail("[save_on_cpu] expected a function, got %s", type(fn)) end
  local function pack(x)
    local device = B.tensor_device(x)
    if device.type == "cpu" or B.is_leaf(x) and B.requires_grad(x) then return x end
    local host = B.ops.to(x, { device = "cpu" })
    return { pin and host:pin_memory() or host, device }
  end
  local function unpack(packed)
    if B.is_tensor(packed) then return packed end
    return B.ops.to(packed[1], { device = packed[2], non_blocking = pin })
  end
  return M.saved_tensors_hooks(pack, unpack, fn, ...)
end

local Handles = {}
Handles.__index = Handles
--- Removes the hook; may be called twice.
function Handles:remove()
  for _, h in ipairs(self) do h:remove() end
end

--- mode "all" (the default): fn(grads) once in each backward, when the gradients of all the tensors that it reaches are
-- computed; nil for the others, and grads.n is the number of tensors. mode "any": fn(grad) with the first gradient.
-- Returns a handle with remove().
function M.register_multi_grad_hook(tensors, fn, mode)
  mode = mode or "all"
  if mode ~= "all" and mode ~= "any" then
    check.fail("[register_multi_grad_hook] option 'mode': expected 'all' or 'any', got '%s'", tostring(mode))
  end
  local n, pass = #tensors, nil -- the running pass; a nested one has another number
  local function begin(id)
    local p = { id = id, outer = pass, grads = { n = n }, due = 0 }
    for _, t in ipairs(tensors) do p.due = p.due + (B.pass_runs(t) and 1 or 0) end
    return p
  end
  local function find(id)
    local p = pass
    while p and p.id ~= id do p = p.outer end
    if not p then
      p = begin(id)
      pass = p
      B.queue_callback(function() pass = nil end) -- also after an error in the middle
    end
    return p
  end
  local function hook(i)
    return function(grad)
      local p = find(B.current_pass())
      p.due = p.due - 1
      if mode == "any" then
        if not p.done then
          p.done = true
          fn(grad)
        end
        return
      end
      p.grads[i] = grad
      if p.due == 0 then
        local grads = p.grads
        p.grads = { n = n }
        fn(grads)
      end
    end
  end
  local handles = setmetatable({}, Handles)
  for i, t in ipairs(tensors) do handles[i] = t:register_hook(hook(i)) end
  return handles
end

--- While fn(...) runs on this thread, callbacks.made(node) is called for each node that is recorded,
-- callbacks.begin(node, grads) before one runs in backward, callbacks.finish(node, grads, ok) after it, with the
-- gradients of its inputs, or nil and false if it failed. node is as x.grad_fn; node.metadata is a table for data on
-- it. An error in a callback ends the call; ops in callbacks are not watched.
function M.watch_nodes(callbacks, fn, ...)
  check.options("watch_nodes", callbacks, "made begin finish")
  for _, name in ipairs { "made", "begin", "finish" } do
    if callbacks[name] ~= nil and type(callbacks[name]) ~= "function" then
      check.fail("[watch_nodes] option '%s': expected a function, got %s", name, type(callbacks[name]))
    end
  end
  return within(B.watch_nodes, B.close_frame, callbacks, fn, ...)
end

--- The graph of a tensor (or of x.grad_fn) as an indented tree: a line for each node, what it leads to below it; a node
-- that is reached again is `name ^number`. names: { w = w, … } marks these tensors.
function M.tree(of, names) return require("moth.autograd.drawing").tree(of, names) end
--- The same in the language of Graphviz: `dot -Tsvg` makes a picture of it.
function M.dot(of, names) return require("moth.autograd.drawing").dot(of, names) end

local Edge = {}
Edge.__index = Edge
function Edge.__tostring(e) return ("<gradient edge: result %d of %s>"):format(e.output_nr, e.node:name()) end
-- The node that a gradient of t goes to, and its place among the node's results, from 1.
local function edge_of(t)
  local view = require("moth.autograd").enable_grad(B.ops.view, t, B.size(t))
  local to = view.grad_fn:next_functions()[1]
  return to[1], to[2]
end
--- Where the gradient of a tensor goes to in the graph: { node =, output_nr = }, which autograd.grad takes in the place
-- of the tensor, among inputs and outputs. An error if the tensor does not require a gradient.
function M.get_gradient_edge(tensor)
  if not B.requires_grad(tensor) then
    check.fail("[get_gradient_edge] the tensor does not require a gradient; got %s", B.format(tensor))
  end
  local node, output_nr = edge_of(tensor)
  return setmetatable({ node = node, output_nr = output_nr, tensor = tensor }, Edge)
end
-- The tensor of an edge, as long as its gradient goes there.
function Edge:tensor_of()
  if edge_of(self.tensor):id() ~= self.node:id() then
    check.fail("[grad] the tensor of a gradient edge was written to in place since; ask for its edge afterwards")
  end
  return self.tensor
end
--- Whether x is a gradient edge.
function M.is_edge(x) return getmetatable(x) == Edge end

local mutation_allowed = false
--- While fn(...) runs, tensors that backward needs may be written to in place: before that, what is saved of them is
-- copied. Backward must run within fn. Nested calls are an error.
function M.allow_mutation_on_saved_tensors(fn, ...)
  if mutation_allowed then check.fail("[allow_mutation_on_saved_tensors] it is on already") end
  local get, again = require("moth.dispatch.ops").get, require("moth.debug.nan").again
  local saved = setmetatable({}, { __mode = "k" }) -- by entry, as long as the graph needs it
  local function pack(x)
    local entry = { tensor = x, storage = x:storage():data_ptr() }
    saved[entry] = true
    return entry
  end
  local function unpack_entry(entry) return entry.copy or entry.tensor end
  local function keep(target)
    if not B.is_tensor(target) or B.numel(target) == 0 then return end
    local storage = target:storage():data_ptr()
    for entry in each(saved) do
      if entry.storage == storage and not entry.copy then entry.copy = B.ops.clone(B.alias(entry.tensor, false)) end
    end
  end
  local function handler(func, args, kwargs)
    local op = get(func.name) or get((func.name:gsub("_$", "")))
    if func.name:find("_$") then keep(args[1]) end
    for i, a in ipairs(op and op.args or {}) do
      if a.mutated and type(args[i]) == "table" and not B.is_tensor(args[i]) then
        for _, t in ipairs(args[i]) do keep(t) end
      elseif a.mutated then
        keep(args[i])
      end
    end
    return again(func, args, kwargs)
  end
  local function set(on)
    mutation_allowed = on or false
    return false
  end
  return within(set, set, true, function(...)
    return require("moth.dispatch").dispatch_mode(handler, M.saved_tensors_hooks, pack, unpack_entry, fn, ...)
  end, ...)
end

--- Tells autograd that a tensor was written to by other means than ops (through data(), C): backward then refuses what
-- it has saved of it.
function M.increment_version(tensor) B.increment_version(tensor) end

-- ---- hooks of nodes ---------------------------------------------------------------------------------

local NodeHandle = {}
NodeHandle.__index = NodeHandle
function NodeHandle:remove()
  if self.node then B.remove_hook(self.id, nil, self.node) end
  self.node = nil
end

local function register(name, node, fn, pre)
  if type(fn) ~= "function" then check.fail("[%s] expected a function, got %s", name, type(fn)) end
  return setmetatable({ id = B.register_node_hook(node, fn, pre), node = node }, NodeHandle)
end

--- node:register_hook(fn): fn(grad_inputs, grad_outputs) after the node has run; a list that it returns, of the same
-- length, replaces grad_inputs. A missing gradient is nil; each list has n.
function B.Node.register_hook(node, fn) return register("register_hook", node, fn, false) end
--- node:register_prehook(fn): fn(grad_outputs) before the node runs; likewise.
function B.Node.register_prehook(node, fn) return register("register_prehook", node, fn, true) end

return signature.all(M, {
  "saved_tensors_hooks(function pack, function unpack, callable fn, ...)",
  "disable_saved_tensors_hooks(string message, callable fn, ...)",
  "register_multi_grad_hook(Tensor[] tensors, function fn, *, string mode='all')",
  "watch_nodes(table callbacks, callable fn, ...)", "tree(any of, table names?)", "dot(any of, table names?)",
  "increment_version(Tensor tensor)", "get_gradient_edge(Tensor tensor)",
  "allow_mutation_on_saved_tensors(callable fn, ...)" })
