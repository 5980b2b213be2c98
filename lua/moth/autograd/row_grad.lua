--- Row gradients: the gradient of a table as the few rows that were read and their positions.
--
--     local e = nn.Embedding(100000, 64, { sparse = true })
--     e(tokens):sum():backward()
--     e.weight.grad      --> a sparse tensor (moth.sparse): :indices() (1, n), :values() (n, 64)
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

--- Positions of rows, (n); they may repeat unless the gradient is coalesced.
function RowGradient:indices() return joined(self)[1] end
--- The rows, (n, …).
function RowGradient:values() return joined(self)[2] end

--- The gradient as users see it: a sparse tensor over the same memory.
function RowGradient:tensor()
  local part = joined(self)
  if self.seen_of ~= part then
    require "moth.sparse"
    local T, Pattern = require "moth.sparse.tensor", require "moth.sparse.pattern"
    local pattern = Pattern("coo", { self.shape[1] }, ops.reshape(part[1], { 1, -1 }))
    if self.coalesced then pattern.sorted = true end
    self.seen, self.seen_of = T.new(pattern, part[2], { unpack(self.shape) }), part
  end
  return self.seen
end

--- Sorts the rows and adds up repeated ones, in place. Returns itself.
function RowGradient:coalesce()
  if self.coalesced then return self end
  local part = joined(self)
  local indices, inverse = require("moth.tensor.functions").functions.unique(part[1], { return_inverse = true })
  local size = B.size(part[2])
  size[1] = B.numel(indices)
  local zeros = ops.zeros(size, { dtype = B.tensor_dtype(part[2]), device = B.tensor_device(part[2]) })
  self.parts = { { indices, ops.index_add_(zeros, 1, inverse, part[2]) } }
  self.coalesced = true
  return self
end

--- The same gradient as an ordinary tensor.
function RowGradient:to_dense()
  local part = joined(self)
  local zeros = ops.zeros(self.shape, { dtype = B.tensor_dtype(part[2]), device = B.tensor_device(part[2]) })
  return ops.index_add_(zeros, 1, part[1], part[2])
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

-- The row gradient of p, or its ordinary one, to which rows are added if it has both, or nil.
local function either(p)
  local g = gradients[p]
  if not g then return B.get_grad(p) end
  local dense = B.get_grad(p)
  if not dense then return g end
  ops.index_add_(B.alias(dense, false), 1, g:indices(), g:values())
  gradients[p] = nil
  return dense
end

--- The gradient of a tensor: a sparse tensor, an ordinary one, or nil.
function M.get(p)
  local g = either(p)
  return class.is_a(g, RowGradient) and g:tensor() or g
end

--- Sets it: a tensor, a sparse one or nil. A sparse one of more than one sparse dimension becomes an ordinary one.
function M.set(p, g)
  if class.name(g) == "SparseTensor" then
    if tostring(g:size()) ~= tostring(p:size()) or g:dtype() ~= p:dtype() or g:device() ~= p:device() then
      require("moth.utils.check").fail("[grad] the gradient of a tensor %s is like it, got %s of %s on %s",
        B.format(p), tostring(g:size()), g:dtype().name, tostring(g:device()))
    end
    if g:sparse_dim() == 1 and not g:is_sparse_csr() then
      B.set_grad(p, nil)
      gradients[p] = RowGradient(ops.reshape(g:indices(), { -1 }), B.alias(g:values(), false), p:size())
      return
    end
    g = B.alias(g:to_dense(), false)
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

--- The row gradient of p if it has no ordinary one, as the optimizers take it: indices() (n), values() (n, …),
-- coalesce(), which changes it in place. Else nil, and its rows are added to its .grad.
function M.rows(p)
  if not gradients[p] then return nil end
  local g = either(p)
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
