--- nn.Parameter: a leaf tensor that a module registers when it is assigned to a field.
--
--     self.scale = nn.Parameter(moth.ones(8))
--     self.frozen = nn.Parameter(moth.ones(8), { requires_grad = false })
--
-- A tensor is a userdata without fields, so a weak table records which tensors are parameters.
local B = require "moth_lua"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local rows = require "moth.autograd.row_grad"

local set = setmetatable({}, { __mode = "k" })
local optimized = setmetatable({}, { __mode = "k" }) -- parameters whose handle an optimizer retains
local Parameter = {}

--- Is `x` a parameter?
function Parameter.is(x) return set[x] == true end

--- A parameter that shares the storage of a tensor.
Parameter.new = signature("nn.Parameter(Tensor data, bool requires_grad=true)", function(t, requires_grad)
  local p = B.detach(t, true)
  if requires_grad then B.set_requires_grad(p, true) end
  set[p] = true
  return p
end)

--- Records that an optimizer retains `p`.
function Parameter.held(p) optimized[p] = true end

--- Removes the gradients of a list of parameters, or fills them with zeros where set_to_none is false.
function Parameter.zero_grads(list, set_to_none)
  if set_to_none ~= false then
    rows.clear(list)
    return B.zero_grads(list)
  end
  rows.empty(list)
  for _, p in ipairs(list) do
    local grad = B.get_grad(p)
    if grad and B.requires_grad(grad) then -- of backward with create_graph: it forgets its history
      local own = B.alias(grad, false)
      B.ops.zero_(own)
      B.set_grad(p, own)
    elseif grad then
      B.ops.zero_(grad)
    end
  end
end

--- Replaces the data of `p` by fn(p), in another dtype or on another device. Returns `p` itself, as optimizers know a
-- parameter by its handle.
function Parameter.convert(p, fn)
  local grad = B.get_grad(p)
  local data = fn(B.alias(p, false))
  if B.shares_storage(p, data) then return p end
  B.set_grad(p, nil)
  if B.set_data then
    B.set_data(p, data)
  else
    if optimized[p] then
      check.fail("a parameter that an optimizer holds cannot change dtype or device: convert the module first")
    end
    p = Parameter.new(data, { requires_grad = B.requires_grad(p) })
  end
  if grad then B.set_grad(p, fn(grad)) end
  return p
end

return setmetatable(Parameter, { __call = function(_, ...) return Parameter.new(...) end })
