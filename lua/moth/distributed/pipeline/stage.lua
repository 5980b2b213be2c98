--- A stage of a pipeline on its rank: forward and backward of micro-batches, and the values that it keeps between them.
local autograd = require "moth.autograd"
local class = require "moth.class"
local moth = require "moth"

local Stage = class("Stage")

--- children: modules, run one after the other; recompute: activations are computed again in backward.
function Stage:__init(number, children, recompute)
  self.number, self.children, self.recompute, self.kept = number, children, recompute, {}
  self.parameters, self.seen = {}, {}
  for _, m in ipairs(children) do
    for _, p in ipairs(m:parameters()) do
      if p:requires_grad() and not self.seen[p] then
        self.seen[p] = true
        self.parameters[#self.parameters + 1] = p
      end
    end
  end
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
    if not first and t:dtype().is_floating_point then leaves[i] = t:detach():requires_grad_(true) end
  end
  local outputs
  if self.recompute then
    outputs = { moth.utils.checkpoint(function(...) return run(self, ...) end, unpack(leaves)) }
  else
    outputs = { run(self, unpack(leaves)) }
  end
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
  return input_gradients(k)
end

--- The first part of backward: the gradients of the inputs alone.
function Stage:backward_inputs(micro, gradients)
  local k = self.kept[micro]
  k.outs, k.grads = roots(k, gradients)
  local wanted = {}
  for _, t in ipairs(k.inputs) do if not k.first and t:requires_grad() then wanted[#wanted + 1] = t end end
  if #wanted > 0 and #k.outs > 0 then
    local found = { autograd.grad(k.outs, wanted, k.grads, true, false, true) }
    for i, t in ipairs(wanted) do t.grad = found[i] end
  end
  return input_gradients(k)
end

--- The second part: adds to the gradients of the parameters.
function Stage:backward_weights(micro)
  local k = self.kept[micro]
  self.kept[micro] = nil
  if #k.outs == 0 or #self.parameters == 0 then return end
  local found = { autograd.grad(k.outs, self.parameters, k.grads, false, false, true) }
  moth.no_grad(function()
    for i, p in ipairs(self.parameters) do
      if found[i] then
        if p.grad then p.grad:add_(found[i]) else p.grad = found[i]:detach() end
      end
    end
  end)
end

--- Forgets micro-batches of a step that failed.
function Stage:reset() self.kept = {} end

return Stage
