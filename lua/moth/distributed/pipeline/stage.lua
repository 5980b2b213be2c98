--- A stage of a pipeline on its rank: forward and backward of micro-batches, and the values that it keeps between them.
--
-- Backward in two parts (zb, zbv): the gradients of the weights of nn.Linear are put off. Its backward gives the
-- gradient of its input, and keeps input and gradient of output; their product, the weight's gradient, is the second
-- part.
--
-- What comes from other stages is freed as soon as it is used, not by the collector.
local autograd = require "moth.autograd"
local class = require "moth.class"
local each = require "moth.each"
local moth = require "moth"

local Stage = class("Stage")

local function rows_of(t) return t:reshape(-1, t:size(-1)) end
local function weight_gradient(x, g) return rows_of(g):t():mm(rows_of(x):to(g:dtype())) end

-- Makes the linear layers below a module put off the gradients of their weights.
local function put_off(self, module, Linear)
  local current -- the leaf that the call is about
  local Split = autograd.Function {
    name = "SplitLinear",
    forward = function(ctx, x, w, b)
      ctx.leaf = current
      ctx:save_for_backward(x, w)
      return moth.linear(x, w, b)
    end,
    backward = function(ctx, g)
      local x, w = ctx:saved_tensors()
      local later = ctx.leaf:requires_grad() and self.put_off
      if later then later[#later + 1] = { ctx.leaf, x:detach(), g:detach() } end
      return ctx.needs_input_grad[1] and g:matmul(w:to(g:dtype())) or nil,
        ctx.needs_input_grad[2] and not later and weight_gradient(x, g) or nil,
        ctx.needs_input_grad[3] and rows_of(g):sum(1) or nil
    end,
  }
  for _, m in module:named_modules() do
    if getmetatable(m) == Linear and not rawget(m, "forward") then
      rawset(m, "forward", function(layer, x)
        if not self.active or not moth.is_grad_enabled() then return Linear.forward(layer, x) end
        current = layer.weight
        return Split(x, layer.weight, layer.bias)
      end)
    end
  end
end

--- children: modules, run one after the other; recompute: activations are computed again in backward; splits: backward
-- comes in two parts.
function Stage:__init(number, children, recompute, splits)
  self.splits = splits
  if splits then for _, m in ipairs(children) do put_off(self, m, moth.nn.Linear) end end
  self.number, self.children, self.recompute, self.kept, self.later = number, children, recompute, {}, {}
end

local function run(self, ...)
  local values = { ... }
  for _, m in ipairs(self.children) do values = { m(unpack(values)) } end
  return unpack(values)
end

--- The results of a micro-batch, without history; nothing is kept where `evaluating`. inputs: a list of tensors; first:
-- they are the user's. loss: nil, or a function of the results, whose value is then what is kept.
function Stage:forward(micro, inputs, first, evaluating, loss)
  if evaluating then return { run(self, unpack(inputs)) } end
  local leaves = {}
  for i, t in ipairs(inputs) do
    leaves[i] = t
    if not first and t:dtype().is_floating_point then
      leaves[i] = t:detach():requires_grad_(true)
      t:free()
    end
  end
  local outputs
  self.active = self.splits
  if self.recompute then
    outputs = { moth.utils.checkpoint(function(...) return run(self, ...) end, unpack(leaves)) }
  else
    outputs = { run(self, unpack(leaves)) }
  end
  self.active = false
  local results = {}
  for i, t in ipairs(outputs) do results[i] = t:detach() end
  if loss then outputs = { loss(unpack(outputs)) } end
  self.kept[micro] = { inputs = leaves, outputs = outputs, first = first }
  return results, loss and outputs[1]:detach() or nil
end

-- The outputs that have a history, and their gradients.
local function roots(k, gradients)
  local outs, grads = {}, {}
  for i, t in ipairs(k.outputs) do
    if t:requires_grad() and (not gradients or gradients[i]) then
      outs[#outs + 1] = t
      grads[#grads + 1] = gradients and gradients[i] or nil
    end
  end
  return outs, gradients and grads or nil
end

local function input_gradients(k)
  local out = {}
  for i, t in ipairs(k.inputs) do
    if not k.first and t:requires_grad() then out[i] = t.grad or moth.zeros_like(t) end
  end
  return out
end

--- Adds to the gradients of the parameters; returns those of the inputs, by position. gradients: of the results, by
-- position; nil at the last stage.
function Stage:backward(micro, gradients)
  local k = self.kept[micro]
  self.kept[micro] = nil
  local outs, grads = roots(k, gradients)
  if #outs > 0 then autograd.backward(outs, grads) end
  for _, g in each(gradients or {}) do g:free() end
  return input_gradients(k)
end

--- The first part of backward: as the whole one, without what is put off.
function Stage:backward_inputs(micro, gradients)
  self.put_off, self.active = {}, true -- active: where the forward is computed again
  local grads = self:backward(micro, gradients)
  self.later[micro], self.put_off, self.active = self.put_off, nil, false
  return grads
end

--- The second part: adds to the gradients of the weights.
function Stage:backward_weights(micro)
  local list = self.later[micro]
  self.later[micro] = nil
  moth.no_grad(function()
    for _, e in ipairs(list) do
      local p = e[1]
      local grad = weight_gradient(e[2], e[3]):to(p:dtype())
      if p.grad then p.grad:add_(grad) else p.grad = grad end
    end
  end)
end

--- Forgets micro-batches of a step that failed.
function Stage:reset() self.kept, self.later = {}, {} end

return Stage
