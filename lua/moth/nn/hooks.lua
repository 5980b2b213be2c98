--- Hooks of modules. A module without hooks pays one test per call; `_hooks` is `false` then.
--
-- Backward hooks see all gradients of a module's inputs (or outputs) together: its inputs and outputs pass
-- through identity nodes: only the backward of one node sees several gradients at once.
local B = require "moth_lua"
local class = require "moth.class"

local M = {}

local kinds = { "forward_pre", "forward", "backward_pre", "backward" }

--- The handle of a registered hook; `remove()` may be called more than once.
local Handle = class("HookHandle")
function Handle:__init(module, kind, fn) self.module, self.kind, self.fn = module, kind, fn end

function Handle:remove()
  local hooks = self.module and self.module._hooks
  if not hooks then return end
  local left, any = {}, false
  for _, h in ipairs(hooks[self.kind]) do -- into a new list: a caller may be iterating over the old one
    if h ~= self then left[#left + 1] = h end
  end
  hooks[self.kind] = left
  for _, kind in ipairs(kinds) do any = any or #hooks[kind] > 0 end
  if not any then self.module._hooks = false end
  self.module = nil
end

--- Adds `fn` to the hooks of a kind, before the others with `prepend`; returns a handle.
function M.register(module, kind, fn, prepend)
  if not module._hooks then
    module._hooks = {}
    for _, k in ipairs(kinds) do module._hooks[k] = {} end
  end
  local handle = Handle(module, kind, fn)
  local list = { unpack(module._hooks[kind]) }
  table.insert(list, prepend and 1 or #list + 1, handle)
  module._hooks[kind] = list
  return handle
end

--- Gives a module the hooks of another one, whose place it takes.
function M.carry(from, to)
  for _, kind in ipairs(from._hooks and kinds or {}) do
    for _, h in ipairs(from._hooks[kind]) do M.register(to, kind, h.fn) end
  end
  return to
end

local function pack(...) return { n = select("#", ...), ... } end
local function list_of(value)
  if type(value) == "table" and getmetatable(value) == nil then
    value.n = value.n or #value
    return value
  end
  return { value, n = 1 }
end

-- `list` with each tensor that requires grad replaced by the output of one identity node, whose backward calls
-- on_grad(gradients, at the same indices) and passes on its result. Second result: whether any requires grad.
-- The node refers to on_grad, which must not refer to tensors with a history: they would retain the layers before, and
-- each collection of garbage would free one layer.
local function through(name, list, on_grad)
  local n = list.n
  local inputs, outputs, places, result = {}, {}, {}, { n = n }
  for i = 1, n do
    local t = list[i]
    if B.is_tensor(t) and B.requires_grad(t) then
      local k = #places + 1
      places[k], inputs[k], outputs[k] = i, t, B.detach(t, false)
      t = outputs[k]
    end
    result[i] = t
  end
  if #places == 0 then return list, false end
  B.record(name, function(_, _, _, ...)
    local grads, out = { n = n }, {}
    for k, i in ipairs(places) do grads[i] = (select(k, ...)) end
    grads = on_grad(grads)
    for k, i in ipairs(places) do out[k] = grads[i] end
    return out
  end, inputs, #inputs, outputs)
  return result, true
end

-- Runs backward hooks over `grads`; each may return replacements.
local function run_backward(module, kind, grads, ...)
  for _, h in ipairs(module._hooks and module._hooks[kind] or {}) do
    local other = h.fn(module, grads, ...)
    if other ~= nil then grads = list_of(other) end
  end
  return grads
end

--- The call of a module that has hooks.
function M.call(module, ...)
  local hooks, input = module._hooks, pack(...)
  for _, h in ipairs(hooks.forward_pre) do
    local other = h.fn(module, input)
    if other ~= nil then input = list_of(other) end
  end
  local watched = (#hooks.backward > 0 or #hooks.backward_pre > 0) and B.grad_enabled()
  local ninputs, inputs_watched, grad_output = input.n, false, nil
  if watched then
    input, inputs_watched = through("BackwardHook", input, function(grad_input)
      local grads = grad_output
      grad_output = nil
      return run_backward(module, "backward", grad_input, grads)
    end)
  end
  local output = pack(module:forward(unpack(input, 1, input.n)))
  for _, h in ipairs(hooks.forward) do
    local single = output.n == 1
    local seen = output
    if single then seen = output[1] end
    local other = h.fn(module, input, seen)
    if other ~= nil then output = single and { other, n = 1 } or list_of(other) end
  end
  if watched then
    output = through("BackwardHook", output, function(grads)
      grads = run_backward(module, "backward_pre", grads)
      if inputs_watched then
        grad_output = grads
      else
        run_backward(module, "backward", { n = ninputs }, grads)
      end
      return grads
    end)
  end
  return unpack(output, 1, output.n)
end

return M
