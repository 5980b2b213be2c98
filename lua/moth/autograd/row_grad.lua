--- Row gradients: the gradient of a table as the few rows that were read and their positions.
--
--     local e = nn.Embedding(100000, 64, { sparse = true })
--     e(tokens):sum():backward()
--     e.weight.grad:is_sparse()      --> true; :indices() (n), :values() (n, 64), :coalesce(), :to_dense()
--
-- backward of F.embedding with sparse = true adds to a row gradient, not to a tensor of the table's size; `.grad` then
-- returns it. optim.SGD (without momentum and weight decay) and optim.Adagrad change only its rows, other optimizers
-- refuse it. If the same parameter also has an ordinary gradient (tied weights), both are joined to an ordinary one.
-- The hooks of a parameter get an ordinary gradient: one that has hooks at the time of backward has no row gradient.
-- Row gradients have no history: they have no second derivative, and autograd.grad does not return them.
local B = require "moth_lua"
local class = require "moth.class"
local ops = B.ops

local M = {}

local RowGradient = class("RowGradient")
M.RowGradient = RowGradient

-- parameter -> its row gradient
local gradients = setmetatable({}, { __mode = "k" })

--- @param indices 1-D, positions of rows, which may repeat @param values (n, …): a row for each
-- @tparam table size of the whole gradient
function RowGradient:__init(indices, values, size)
  self.parts, self.shape = { { indices, values } }, size
end

local function joined(self)
  if #self.parts > 1 then
    local indices, values = {}, {}
    for i, part in ipairs(self.parts) do indices[i], values[i] = part[1], part[2] end
    self.parts = { { ops.cat(indices, 1), ops.cat(values, 1) } }
  end
  return self.parts[1]
end

function RowGradient.is_sparse() return true end
--- Positions of rows, (n); they may repeat unless the gradient is coalesced.
function RowGradient:indices() return joined(self)[1] end
--- The rows, (n, …).
function RowGradient:values() return joined(self)[2] end
function RowGradient:size(dim) return dim and self.shape[dim] or self.shape end
function RowGradient:dtype() return B.tensor_dtype(self:values()) end
function RowGradient:device() return B.tensor_device(self:values()) end

--- Sorts the rows and adds up repeated ones, in place. Returns itself.
function RowGradient:coalesce()
  if self.coalesced then return self end
  local part = joined(self)
  local indices, inverse = require("moth.tensor.functions").functions.unique(part[1], { return_inverse = true })
  local size = B.size(part[2])
  size[1] = B.numel(indices)
  local zeros = ops.zeros(size, { dtype = B.tensor_dtype(part[2]), device = B.tensor_device(part[2]) })
  self.parts = { { indices, ops.index_add(zeros, 1, inverse, part[2]) } }
  self.coalesced = true
  return self
end

--- The same gradient as an ordinary tensor.
function RowGradient:to_dense()
  local part = joined(self)
  local zeros = ops.zeros(self.shape, { dtype = B.tensor_dtype(part[2]), device = B.tensor_device(part[2]) })
  return ops.index_add(zeros, 1, part[1], part[2])
end

function RowGradient:__tostring()
  return ("RowGradient(%d rows of %s)"):format(B.numel(self:indices()), tostring(self.shape))
end

--- Adds rows to the gradient of a parameter.
function M.add(p, indices, values)
  local g = gradients[p]
  if g then
    g.parts[#g.parts + 1] = { indices, values }
    g.coalesced = nil
  else
    gradients[p] = RowGradient(indices, values, p:size())
  end
end

--- The gradient of a tensor: its row gradient, its ordinary one (to which rows are added if it has both), or nil.
function M.get(p)
  local g = gradients[p]
  if not g then return B.get_grad(p) end
  local dense = B.get_grad(p)
  if not dense then return g end
  ops.index_add_(B.alias(dense, false), 1, g:indices(), g:values())
  gradients[p] = nil
  return dense
end

--- Sets it: a tensor, a row gradient or nil.
function M.set(p, g)
  if class.is_a(g, RowGradient) then
    gradients[p] = g
    return B.set_grad(p, nil)
  end
  gradients[p] = nil
  return B.set_grad(p, g)
end

--- Whether any parameter has a row gradient.
function M.any() return next(gradients) ~= nil end

--- Removes the row gradients of a list of parameters.
function M.clear(list)
  if next(gradients) == nil then return end
  for _, p in ipairs(list) do gradients[p] = nil end
end

--- Removes all rows from the row gradients of a list of parameters.
function M.empty(list)
  if next(gradients) == nil then return end
  for _, p in ipairs(list) do
    local g = gradients[p]
    if g then
      local part = joined(g)
      g.parts, g.coalesced = { { ops.narrow(part[1], 1, 1, 0), ops.narrow(part[2], 1, 1, 0) } }, true
    end
  end
end

--- The row gradient of p if it has no ordinary one; else nil, and its rows are added to its .grad.
function M.rows(p)
  if not gradients[p] then return nil end
  local g = M.get(p)
  return gradients[p] and g or nil
end

local lookup
--- Rows `index` (…) of weight, a leaf: (…, D), with a row gradient. Rows at position padding get none.
function M.embedding(weight, index, padding)
  lookup = lookup or require("moth.autograd").Function {
    name = "SparseEmbedding",
    forward = function(ctx, w, i, pad)
      ctx:save_for_backward(i)
      ctx.weight, ctx.padding = w, pad
      return ops.embedding(w, i)
    end,
    backward = function(ctx, grad)
      if require("moth.autograd").collecting() then
        error("autograd.grad does not go through an embedding with sparse = true; use backward, or sparse = false", 0)
      end
      local i = ops.reshape(ctx:saved_tensors(), { -1 })
      local values = ops.reshape(B.alias(grad, false), { -1, B.size(ctx.weight, 2) })
      if ctx.padding then
        local kept = ops.reshape(ops.nonzero(ops.ne(i, ctx.padding)), { -1 })
        i, values = ops.index_select(i, 1, kept), ops.index_select(values, 1, kept)
      end
      if B.has_hooks(ctx.weight) then return RowGradient(i, values, B.size(ctx.weight)):to_dense(), nil, nil end
      M.add(ctx.weight, i, values)
      return nil, nil, nil
    end,
  }
  return lookup(weight, index, padding)
end

return M
