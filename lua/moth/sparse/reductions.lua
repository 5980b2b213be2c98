--- Methods of sparse tensors: sums, norms, softmax.
local B = require "moth_lua"
local check = require "moth.utils.check"
local T = require "moth.sparse.tensor"
local Pattern = require "moth.sparse.pattern"
local ops = B.ops
local method, new = T.method, T.new

--- The sum over all, or some dimensions: dense where no sparse dimension is left.
method("sum(Dim|Dim[] dim?)", function(s, dim)
  if dim == nil then return (ops.sum(s.elements)) end
  if type(dim) == "number" then dim = { dim } end
  local n, sparse, gone = #s.full, #s.pattern.size, {}
  for _, d in ipairs(dim) do
    d = T.dim("sum", s, d)
    if gone[d] then check.fail("[sum] dimension %d is given twice", d) end
    gone[d] = true
  end
  local values, size, left, dense = s.elements, {}, {}, {}
  for d = 1, n do
    if not gone[d] then
      size[#size + 1] = s.full[d]
      if d <= sparse then left[#left + 1] = d end
    elseif d > sparse then
      dense[#dense + 1] = d - sparse + 1
    end
  end
  if #dense > 0 then values = ops.sum(values, dense) end
  if #left == 0 then return (ops.sum(values, { 1 })) end
  local dtype = B.tensor_dtype(values)
  if not (dtype.is_floating_point or dtype.is_complex) then values = ops.to(values, { dtype = "int64" }) end
  if #left == sparse then return new(s.pattern, values, size) end
  local rows, of = {}, {}
  for i, d in ipairs(left) do rows[i], of[i] = ops.select(s.pattern:indices(), 1, d), s.full[d] end
  return new(Pattern("coo", of, ops.stack(rows, 1)), values, size):coalesce()
end)
--- The p-norm of all elements.
method("norm(number p=2)", function(s, p)
  if p <= 0 then check.fail("[norm] of a sparse tensor takes p > 0, got %g; use s:to_dense()", p) end
  return (ops.norm(s:coalesce().elements, p))
end)

-- softmax along dim over the elements that are there; the others count as -inf.
local function softmax(name, s, dim, dtype)
  local like, sparse = s, #s.pattern.size
  dim = T.dim(name, s, dim)
  s = s:to_sparse_coo():coalesce()
  if dtype then s = s:to { dtype = dtype } end
  if not s:is_floating_point() then check.fail("[%s] expected a float dtype, got %s", name, s:dtype().name) end
  if dim > sparse then return T.with(s, ops[name](s.elements, dim - sparse + 1)) end
  if s:nnz() == 0 then return T.as(s, like) end
  local group -- the other positions of each element, as one number
  for d, size in ipairs(s.pattern.size) do
    if d ~= dim then
      local at = ops.select(s.pattern:indices(), 1, d)
      group = group and ops.add(ops.mul(ops.sub(group, 1), size), at) or at
    end
  end
  local values, count = s.elements, 1
  if group then
    local distinct, inverse = require("moth.tensor.functions").functions.unique(group, { return_inverse = true })
    group, count = inverse, B.numel(distinct)
  else
    group = ops.ones({ s:nnz() }, { dtype = "int64", device = s:device() })
  end
  local size = B.size(values)
  size[1] = count
  local least = ops.full(size, -math.huge, { dtype = s:dtype(), device = s:device() })
  local top = ops.index_select(ops.index_reduce(least, 1, group, B.detach(values), "amax", true), 1, group)
  local shifted = ops.sub(values, top)
  local total = ops.index_select(T.sums(ops.exp(shifted), count, group), 1, group)
  local out = name == "log_softmax" and ops.sub(shifted, ops.log(total)) or ops.div(ops.exp(shifted), total)
  return T.as(T.with(s, out), like)
end
method("softmax(Dim dim, dtype dtype?)", function(s, dim, dtype) return (softmax("softmax", s, dim, dtype)) end)
method("log_softmax(Dim dim, dtype dtype?)", function(s, dim, dtype) return (softmax("log_softmax", s, dim, dtype)) end)
