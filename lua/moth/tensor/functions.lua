--- Functions and methods made of ops in Lua: functions of lists of tensors, of results whose size depends on values,
-- and aliases of ops.
local B = require "moth_lua"
local ops = B.ops
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local reshaped = require "moth.tensor.reshaped"

local M = { functions = {}, methods = {} }
local F, methods = M.functions, M.methods
local is_tensor = B.is_tensor

-- Defines a function and a method under the name in the signature.
local function both(text, fn)
  local name, checked = text:match("^[%w_]+"), signature(text, fn)
  F[name], methods[name] = checked, checked
  return fn
end

-- ---- other names -----------------------------------------------------------------------------------

for name, op in each({ absolute = "abs", clip = "clamp", multiply = "mul", divide = "div", true_divide = "div",
  subtract = "sub", negative = "neg", greater = "gt", greater_equal = "ge", less = "lt", less_equal = "le",
  not_equal = "ne", arcsin = "asin", arccos = "acos", arctan = "atan", arctan2 = "atan2", concat = "cat",
  swapaxes = "transpose", swapdims = "transpose", broadcast_to = "expand",
  moveaxis = "movedim" }) do
  F[name] = signature.alias(name, ops[op])
  methods[name] = F[name]
end
for _, name in ipairs({ "index_put", "index_put_" }) do
  F[name] = require("moth.tensor.index")[name]
  methods[name] = F[name]
end

--- gather with x and index broadcast to each other in all dimensions but dim; negative indices count from the end.
-- Without dim, of the flattened tensors.
both("take_along_dim(Tensor input, Tensor indices, Dim dim?)", function(x, at, dim)
  if dim == nil then x, at, dim = ops.reshape(x, { -1 }), ops.reshape(at, { -1 }), 1 end
  local n, a, b, shape = B.dim(x), B.size(x), B.size(at), {}
  if #b ~= n then
    check.fail("take_along_dim: x and index must have as many dimensions, got %s and %s", B.format(x), B.format(at))
  end
  local size = B.size(x, dim)
  local d = dim < 0 and dim + n + 1 or dim
  for i = 1, n do
    if i ~= d and a[i] ~= b[i] and a[i] ~= 1 and b[i] ~= 1 then
      check.fail("take_along_dim: shapes %s and %s do not broadcast but in dimension %d", B.format(x), B.format(at), d)
    end
    shape[i] = a[i] == 1 and b[i] or a[i]
  end
  shape[d] = b[d]
  at = ops.expand(at, shape)
  shape[d] = a[d]
  at = ops.where(ops.lt(at, 0), ops.add(at, size + 1), at)
  return (ops.gather(ops.expand(x, shape), d, at))
end)

-- ---- several tensors -------------------------------------------------------------------------------

local function some(where, list)
  if #list == 0 then check.fail("[%s] expected at least one tensor", where) end
end

--- Coordinates of a grid: moth.meshgrid(x, y, …, { indexing = "ij" | "xy" }) of 1-D (or 0-dim) tensors of sizes
-- X, Y, … returns as many views (X, Y, …); with "xy" the first two dimensions are swapped.
local function meshgrid(list, how)
  some("meshgrid", list)
  local shape, out = {}, {}
  for i, t in ipairs(list) do
    if B.dim(t) > 1 then check.fail("[meshgrid] tensor %d has %d dimensions, expected 1", i, B.dim(t)) end
    shape[i] = B.numel(t)
  end
  for i, t in ipairs(list) do
    local own = {}
    for d = 1, #list do own[d] = d == i and shape[i] or 1 end
    out[i] = ops.expand(ops.reshape(t, own), shape)
    if how == "xy" and #list > 1 then out[i] = ops.transpose(out[i], 1, 2) end
  end
  return unpack(out)
end
F.meshgrid = signature("meshgrid(Tensor... tensors, *, 'ij'|'xy' indexing='ij')", meshgrid)

--- Tensors expanded to their common shape, as several values.
F.broadcast_tensors = signature("broadcast_tensors(Tensor... tensors)", function(list)
  local shapes, out = {}, {}
  for i, t in ipairs(list) do shapes[i] = B.size(t) end
  local shape = require("moth.tensor").broadcast_shapes(unpack(shapes))
  for i, t in ipairs(list) do out[i] = ops.expand(t, shape) end
  return unpack(out)
end)

local function stacking(name, least, dim_of)
  --- Tensors of at least one (hstack), two (vstack, row_stack) or three (dstack) dimensions, joined along the second
  -- (of vectors the first), first or third.
  F[name] = signature(name .. "(Tensor... tensors)", function(given)
    some(name, given)
    local list = {}
    for i, t in ipairs(given) do
      if B.dim(t) == 0 then t = ops.reshape(t, { 1 }) end
      if least >= 2 and B.dim(t) == 1 then t = ops.unsqueeze(t, 1) end
      if least == 3 and B.dim(t) == 2 then t = ops.unsqueeze(t, 3) end
      list[i] = t
    end
    return ops.cat(list, dim_of(list[1]))
  end)
end
stacking("hstack", 1, function(t) return B.dim(t) == 1 and 1 or 2 end)
stacking("vstack", 2, function() return 1 end)
stacking("dstack", 3, function() return 3 end)

--- All combinations of one element of each 1-D tensor: (the product of the sizes, their number).
F.cartesian_prod = signature("cartesian_prod(Tensor... tensors)", function(list)
  some("cartesian_prod", list)
  if #list == 1 then return list[1] end
  local grids = { meshgrid(list, "ij") }
  for i, g in ipairs(grids) do grids[i] = ops.reshape(g, { -1 }) end
  return ops.stack(grids, 2)
end)

-- ---- sums over indices -------------------------------------------------------------------------------

-- "ij,jk" -> { { "i", "j" }, { "j", "k" } }; "..." becomes a letter for each further dimension of the tensors.
local function letters(equation, list)
  local left, right = equation:gsub("%s+", ""):match("^([^>]-)%->(.*)$")
  left = left or equation:gsub("%s+", "")
  local terms, most = {}, 0
  for term in (left .. ","):gmatch("(.-),") do terms[#terms + 1] = term end
  if #terms ~= #list then check.fail("[einsum] '%s' is for %d tensors, got %d", equation, #terms, #list) end
  for i, term in ipairs(terms) do
    if term:find("...", 1, true) then most = math.max(most, B.dim(list[i]) - (#term - 3)) end
  end
  local function read(term, dims)
    local out, rest = {}, dims and (term:find("...", 1, true) and dims - (#term - 3) or 0) or most
    for part in term:gsub("%.%.%.", "@"):gmatch(".") do
      if part == "@" then
        for k = most - rest + 1, most do out[#out + 1] = "." .. k end
      elseif part:find("%a") then
        out[#out + 1] = part
      else
        check.fail("[einsum] '%s' in '%s' is no letter", part, equation)
      end
    end
    return out
  end
  local count, order = {}, {}
  for i, term in ipairs(terms) do
    terms[i] = read(term, B.dim(list[i]))
    if #terms[i] ~= B.dim(list[i]) then
      check.fail("[einsum] '%s' names %d dimensions of tensor %d, which has %d", equation, #terms[i], i, B.dim(list[i]))
    end
    for _, l in ipairs(terms[i]) do
      if not count[l] then order[#order + 1] = l end
      count[l] = (count[l] or 0) + 1
    end
  end
  local result
  if right then
    result = read(right)
    local seen = {}
    for _, l in ipairs(result) do
      if not count[l] then check.fail("[einsum] '%s' of the result stands for no dimension in '%s'", l, equation) end
      if seen[l] then check.fail("[einsum] '%s' stands twice in the result of '%s'", l, equation) end
      seen[l] = true
    end
  else -- letters that occur once, in alphabetical order; "..." first
    result = {}
    for _, l in ipairs(order) do if count[l] == 1 or l:sub(1, 1) == "." then result[#result + 1] = l end end
    table.sort(result)
  end
  return terms, result
end

-- Dimensions with the same letter become one, at the end: the first two that there are.
local function same_letters(term)
  for i = 1, #term do for j = i + 1, #term do if term[i] == term[j] then return i, j end end end
end
local function without(term, i, j)
  local out = {}
  for k, l in ipairs(term) do if k ~= i and k ~= j then out[#out + 1] = l end end
  out[#out + 1] = term[i]
  return out
end
local function diagonal_of(term)
  local i, j = same_letters(term)
  return i and diagonal_of(without(term, i, j)) or term
end
-- y, which was made of t: t's memory does not wait for the collector, unless t is one of the given tensors.
local function made_of(t, y, given)
  if rawequal(t, y) then return y end
  for i = 1, #given do if rawequal(t, given[i]) then return y end end
  B.free(t)
  return y
end

local function take_diagonals(t, term, given)
  local i, j = same_letters(term)
  return i and take_diagonals(made_of(t, ops.diagonal(t, 0, i, j), given), without(term, i, j), given) or t
end

local function set_of(list)
  local set = {}
  for i, l in ipairs(list) do set[l] = i end
  return set
end

-- How dimensions of `term` are permuted into the order of `want`; nil: they are.
local function order_of(term, want)
  local at, dims, same = set_of(term), {}, true
  for i, l in ipairs(want) do
    dims[i] = at[l]
    same = same and dims[i] == i
  end
  return not same and dims or nil
end

-- The plan of a product of two tensors, summed over the letters not in `needed`, by letters alone: how their dimensions
-- are permuted, how many there are of each group, and the letters of the result.
local function pair_of(of_a, of_b, needed)
  local in_a, in_b = set_of(of_a), set_of(of_b)
  local batch, left, inner, right = {}, {}, {}, {}
  for _, l in ipairs(of_a) do
    local group = not in_b[l] and left or needed[l] and batch or inner
    group[#group + 1] = l
  end
  for _, l in ipairs(of_b) do if not in_a[l] then right[#right + 1] = l end end
  local function joined(...)
    local out = {}
    for _, group in ipairs { ... } do for _, l in ipairs(group) do out[#out + 1] = l end end
    return out
  end
  -- What lies last in a tensor stays last, so that a copy moves whole rows; a matrix that is turned round then is none.
  local turn_a = #inner > 0 and set_of(left)[of_a[#of_a]] ~= nil
  local turn_b = #inner > 0 and set_of(inner)[of_b[#of_b]] ~= nil
  local want_a = turn_a and joined(batch, inner, left) or joined(batch, left, inner)
  local want_b = turn_b and joined(batch, right, inner) or joined(batch, inner, right)
  return { a = order_of(of_a, want_a), b = order_of(of_b, want_b), names = joined(batch, inner),
    term = joined(batch, left, right), turn_a = turn_a, turn_b = turn_b,
    batch = #batch, left = #left, inner = #inner, right = #right }
end

-- Dimensions [from, from + n) of sizes, multiplied.
local function elements(size, from, n)
  local all = 1
  for i = from, from + n - 1 do all = all * size[i] end
  return all
end

-- t, whose sizes are `size`, as matrices: nb dimensions of a batch, then n and m that become one each.
local function matrices(t, size, nb, n, m, turn, given)
  if nb > 1 or n ~= 1 or m ~= 1 then
    local rows, cols = elements(size, nb + 1, n), elements(size, nb + n + 1, m)
    t = made_of(t, ops.reshape(t, nb > 0 and { elements(size, 1, nb), rows, cols } or { rows, cols }), given)
  end
  return turn and made_of(t, ops.transpose(t, -2, -1), given) or t
end

-- By a plan: one batched matrix product, or, where nothing is summed, elements times elements.
local function contract(a, b, p, given)
  if p.a then a = made_of(a, ops.permute(a, p.a), given) end
  if p.b then b = made_of(b, ops.permute(b, p.b), given) end
  local nb, nl, ni, nr = p.batch, p.left, p.inner, p.right
  local turn_a, turn_b = p.turn_a, p.turn_b
  local sa, sb, wide_a, wide_b = B.size(a), B.size(b), false, false
  local inner_a, inner_b = turn_a and 0 or nl, turn_b and nr or 0 -- dimensions between the batch and the inner ones
  for i = 1, nb + ni do -- the letters of both
    local at, to = i <= nb and i or i + inner_a, i <= nb and i or i + inner_b
    local m, n = sa[at], sb[to]
    if m ~= n then
      if m ~= 1 and n ~= 1 then
        check.fail("[einsum] '%s' stands for dimensions of %d and of %d elements", p.names[i], m, n)
      end
      wide_a, wide_b = wide_a or m == 1, wide_b or n == 1
      sa[at], sb[to] = m == 1 and n or m, m == 1 and n or m
    end
  end
  if wide_a then a = made_of(a, ops.expand(a, sa), given) end
  if wide_b then b = made_of(b, ops.expand(b, sb), given) end
  local shape = {}
  for i = 1, nb do shape[i] = sa[i] end
  for i = 1, nl do shape[nb + i] = sa[nb + (turn_a and ni or 0) + i] end
  for i = 1, nr do shape[nb + nl + i] = sb[nb + (turn_b and 0 or ni) + i] end
  if ni == 0 then
    local x, y = {}, {}
    for i = 1, nb + nl + nr do
      x[i] = i <= nb + nl and shape[i] or 1
      y[i] = (i <= nb or i > nb + nl) and shape[i] or 1
    end
    a = nr > 0 and made_of(a, ops.reshape(a, x), given) or a
    b = nl > 0 and made_of(b, ops.reshape(b, y), given) or b
    return made_of(b, made_of(a, ops.mul(a, b), given), given)
  end
  a = matrices(a, sa, nb, turn_a and ni or nl, turn_a and nl or ni, turn_a, given)
  b = matrices(b, sb, nb, turn_b and nr or ni, turn_b and ni or nr, turn_b, given)
  local y = made_of(b, made_of(a, nb == 0 and ops.mm(a, b) or ops.bmm(a, b), given), given)
  return nb < 2 and nl == 1 and nr == 1 and y or reshaped(y, shape)
end

-- The dimensions of `term` whose letters are not in `needed`, or nil: there are none; the letters that are left.
local function unneeded(term, needed)
  local dims, left = {}, {}
  for i, l in ipairs(term) do
    if needed[l] then left[#left + 1] = l else dims[#dims + 1] = i end
  end
  return #dims > 0 and dims or nil, left
end

-- Sums of integers are int64, as those of moth.sum; so is the product before a sum.
local function widened(list)
  local common = B.tensor_dtype(list[1])
  for i = 1, #list do common = B.promote(common, B.tensor_dtype(list[i])) end
  if common.is_floating_point or common.is_complex then return list end
  local out = {}
  for i, t in ipairs(list) do out[i] = ops.to(t, { dtype = "int64" }) end
  return out
end

-- What einsum does, by letters alone: which dimensions of a tensor have the same letter, which are summed, how it
-- is multiplied by the product so far, what is summed then.
local function plan_of(equation, list)
  local terms, result = letters(equation, list)
  local kept, steps, term = set_of(result), {}, nil
  local plan = { steps = steps, sums = false }
  for _, t in ipairs(terms) do for _, l in ipairs(t) do plan.sums = plan.sums or not kept[l] end end
  for i, own in ipairs(terms) do
    local step, needed = {}, set_of(result)
    for k = i + 1, #list do for _, l in ipairs(terms[k]) do needed[l] = needed[l] or true end end
    local alone = diagonal_of(own)
    if #alone < #own then step.term, own = own, alone end
    if i == 1 then
      step.sum, term = unneeded(own, needed)
    else
      local with = set_of(term)
      for l in each(needed) do with[l] = true end
      step.sum, own = unneeded(own, with)
      step.pair = pair_of(term, own, needed)
      step.after, term = unneeded(step.pair.term, needed)
    end
    steps[i] = step
  end
  plan.order = order_of(term, result)
  return plan
end

local plans, planned = {}, 0
local function planned_for(equation, list)
  local key = equation
  for i = 1, #list do key = key .. "|" .. B.dim(list[i]) end
  local plan = plans[key]
  if not plan then
    plan = plan_of(equation, list)
    if planned >= 1000 then plans, planned = {}, 0 end
    plans[key], planned = plan, planned + 1
  end
  return plan
end

--- Sums of products, by letters for dimensions: moth.einsum("bij,bjk->bik", x, y). A letter that the result lacks is
-- summed over, a letter twice in one tensor takes its diagonal, "..." is any leading dimensions. Without "->" the
-- result has the letters that occur once. Sums of integers are int64.
F.einsum = signature("einsum(string equation, Tensor... operands)", function(equation, list)
  some("einsum", list)
  local plan, given, t = planned_for(equation, list), list, nil
  if plan.sums then list = widened(list) end
  for i = 1, #list do
    local step, own = plan.steps[i], list[i]
    if step.term then own = take_diagonals(own, step.term, given) end
    if step.sum then own = made_of(own, ops.sum(own, step.sum), given) end
    if i > 1 then
      own = contract(t, own, step.pair, given)
      if step.after then own = made_of(own, ops.sum(own, step.after), given) end
    end
    t = own
  end
  return plan.order and made_of(t, ops.permute(t, plan.order), given) or t
end)

-- ---- statistics ------------------------------------------------------------------------------------

-- Replaces results of rows with NaN by NaN and its position.
local function nan_first(x, dim, keepdim, value, position)
  if not B.tensor_dtype(x).is_floating_point then return value, position end
  local top, at = ops.max_dim(x, dim, keepdim)
  local bad = ops.isnan(top)
  return ops.where(bad, top, value), ops.where(bad, at, position)
end

--- x:median(): the median of all elements (the lower one of two); x:median(dim, keepdim): medians and their positions.
-- NaN if an element is NaN.
both("median(Tensor input, Dim dim?, bool keepdim=false)", function(x, dim, keepdim)
  local all = dim == nil
  if all then
    if B.numel(x) == 0 then check.fail("[median] a tensor without elements has no median; got %s", B.format(x)) end
    x, dim = ops.reshape(x, { -1 }), 1
  end
  local n = B.dim(x) > 0 and B.size(x, dim) or 1
  local value, position = nan_first(x, dim, keepdim, ops.kthvalue(x, math.floor((n + 1) / 2), dim, keepdim))
  if all then return value end
  return value, position
end)

-- var_mean, std_mean; unbiased = false is correction = 0, as in PyTorch.
local function with_mean(name, plain)
  both(name .. "(Tensor input, Dim|Dim[]|bool dim?, number|bool correction=1, bool keepdim=false, *, bool unbiased?)",
    function(x, dim, correction, keepdim, unbiased)
      if type(correction) == "boolean" then unbiased = correction end
      if type(dim) == "boolean" then dim, unbiased = nil, dim end
      if unbiased ~= nil then correction = unbiased and 1 or 0 end
      if type(dim) == "number" then dim = { dim } end
      -- of complex numbers: the function of moth, for both parts
      local op = B.tensor_dtype(x).is_complex and F[plain] or ops[plain]
      return op(x, dim, correction, keepdim), ops.mean(x, dim, keepdim)
    end)
end
--- Variance and mean over dim (all): var_mean(x, { dim = 2, unbiased = false }).
with_mean("var_mean", "var")
--- Standard deviation and mean.
with_mean("std_mean", "std")

--- Least and largest element (along dim).
both("aminmax(Tensor input, Dim|Dim[] dim?, bool keepdim=false)", function(x, dim, keepdim)
  if type(dim) == "number" then dim = { dim } end
  return ops.amin(x, dim, keepdim), ops.amax(x, dim, keepdim)
end)

--- Differences of neighbours along dim (default: the last), n times; `prepend` and `append` are joined to x first.
both("diff(Tensor input, size n=1, Dim dim=-1, Tensor prepend?, Tensor append?)", function(x, n, dim, prepend, append)
  if n > 0 and (prepend or append) then
    local parts = { prepend, x }
    if not prepend then parts = { x } end
    parts[#parts + 1] = append
    x = ops.cat(parts, dim)
  end
  for _ = 1, n do
    local size = B.size(x, dim)
    if size < 2 then return ops.narrow(x, dim, 1, 0) end
    local after, before = ops.narrow(x, dim, 2, size - 1), ops.narrow(x, dim, 1, size - 1)
    x = B.tensor_dtype(x).name == "bool" and ops.logical_xor(after, before) or ops.sub(after, before)
  end
  return x
end)

--- Counts each position in a 1-D integer tensor of positions (from 1): int64, of size max(largest, minlength). With
-- weights (of x's size): their sums, of integers in float64.
local bincount = both("bincount(Tensor input, Tensor weights?, size minlength=0)", function(x, weights, minlength)
  if B.dim(x) ~= 1 or B.tensor_dtype(x).is_floating_point or B.tensor_dtype(x).name == "bool" then
    check.fail("[bincount] expected a 1-D integer tensor, got %s", B.format(x))
  end
  if weights and (B.dim(weights) ~= 1 or B.numel(weights) ~= B.numel(x)) then
    check.fail("[bincount] weights must have the size of the input, [%d]; got %s", B.numel(x), B.format(weights))
  end
  local least = B.numel(x) > 0 and ops.amin(x):item() or 1
  if least < 1 then check.fail("[bincount] positions count from 1; the input has %s", tostring(least)) end
  local n = math.max(minlength, B.numel(x) > 0 and tonumber(ops.amax(x):item()) or 0)
  if weights and not (B.tensor_dtype(weights).is_floating_point or B.tensor_dtype(weights).is_complex) then
    weights = ops.to(weights, { dtype = "float64" })
  end
  local values = weights
    or ops.expand(ops.ones({ 1 }, { dtype = "int64", device = B.tensor_device(x) }), B.size(x))
  local zeros = ops.zeros({ n }, { dtype = B.tensor_dtype(values), device = B.tensor_device(x) })
  return (ops.index_add_(zeros, 1, x, values))
end)

-- The order of the rows of a matrix (n, m), by the first column, then the second, ….
local function row_order(rows)
  local n, m = B.size(rows, 1), B.size(rows, 2)
  local order = ops.arange(1, n + 1, 1, { dtype = "int64", device = B.tensor_device(rows) })
  for c = m, 1, -1 do -- sort is stable
    local _, by = ops.sort(ops.index_select(ops.select(rows, 2, c), 1, order), 1)
    order = ops.index_select(order, 1, by)
  end
  return order
end

--- The unique elements, sorted; with return_inverse also the position among them of each element of x, with
-- return_counts their counts: unique(x, { return_inverse = true, return_counts = true }) returns three values. With
-- dim: the unique slices along it, in lexicographic order. (`sorted` is ignored: results always are.)
both("unique(Tensor input, bool sorted=true, bool return_inverse=false, bool return_counts=false, Dim dim?)",
function(x, _, return_inverse, return_counts, dim)
  local moved = dim and ops.movedim(x, dim, 1) or ops.reshape(x, { -1 })
  local n = B.size(moved, 1)
  local int = { dtype = "int64", device = B.tensor_device(x) }
  local inverse_size = dim and { n } or B.size(x)
  if n == 0 then
    local inverse, counts = ops.zeros(inverse_size, int), ops.zeros({ 0 }, int)
    local none = dim and x or moved
    if return_inverse then return none, inverse, return_counts and counts or nil end
    return none, return_counts and counts or nil
  end
  local values, order, differs
  if dim then
    local rows = ops.reshape(moved, { n, B.numel(moved) / n })
    order = row_order(rows)
    values = ops.index_select(rows, 1, order)
    differs = ops.any(ops.ne(ops.narrow(values, 1, 2, n - 1), ops.narrow(values, 1, 1, n - 1)), 2)
  else
    values, order = ops.sort(moved, 1)
    differs = ops.ne(ops.narrow(values, 1, 2, n - 1), ops.narrow(values, 1, 1, n - 1))
  end
  local fresh = ops.cat({ ops.ones({ 1 }, { dtype = "bool", device = B.tensor_device(x) }), differs })
  local out
  if dim then
    local first = ops.index_select(order, 1, ops.reshape(ops.nonzero(fresh), { -1 }))
    out = ops.index_select(x, dim, first)
  else
    out = ops.masked_select(values, fresh)
  end
  local inverse, counts
  if return_inverse or return_counts then
    local at = ops.cumsum(ops.to(fresh, { dtype = "int64" }), 1)
    if return_inverse then inverse = ops.reshape(ops.scatter(ops.zeros({ n }, int), 1, order, at), inverse_size) end
    if return_counts then counts = bincount(at, nil, dim and B.size(out, dim) or B.numel(out)) end
  end
  if return_inverse then return out, inverse, counts end
  return out, counts
end)

-- An argument of isin as a tensor: a number or a list of them in the dtype of the other argument.
local function as_tensor(v, other)
  if is_tensor(v) then return v end
  local dtype = is_tensor(other) and B.tensor_dtype(other) or nil
  local values = type(v) == "table" and v or { v }
  for i = 1, #values do -- a fraction equals no integer, and must not be truncated
    if values[i] ~= math.floor(values[i]) and dtype and not dtype.is_floating_point then dtype = B.dtype("float64") end
  end
  return B.tensor(values, dtype)
end

--- Whether each element is among test_elements: a bool tensor of the shape of `elements`. One of both may be a number,
-- test_elements also a list. invert: the negation; assume_unique affects only the time.
both("isin(Tensor|number elements, Tensor|number|number[] test_elements, *, bool assume_unique=false, \z
  bool invert=false)",
function(x, values, _, invert)
  if not is_tensor(x) and not is_tensor(values) then
    check.fail("[isin] expected a tensor as elements or test_elements, got two numbers or lists")
  end
  if is_tensor(x) then
    values = as_tensor(values, x)
    values = ops.to(values, { device = B.tensor_device(x) })
  else
    x = ops.to(ops.reshape(as_tensor(x, values), {}), { device = B.tensor_device(values) })
  end
  local found = ops.any(ops.eq(ops.unsqueeze(x, -1), ops.reshape(values, { -1 })), -1)
  return invert and ops.logical_not(found) or found
end)

-- ---- elements ----------------------------------------------------------------------------------------

--- Repeats each slice along dim; `repeats` is a number, or a 1-D integer tensor with one for each slice.
both("repeat_interleave(Tensor input, Tensor|size repeats, Dim dim?, *, size output_size?)", function(x, repeats, dim)
  if not is_tensor(repeats) then return (ops.repeat_interleave(x, repeats, dim)) end
  if dim == nil then x, dim = ops.reshape(x, { -1 }), 1 end
  local n = B.size(x, dim)
  if B.dim(repeats) ~= 1 or (B.numel(repeats) ~= n and B.numel(repeats) ~= 1)
    or B.tensor_dtype(repeats).is_floating_point then
    check.fail("[repeat_interleave] repeats must hold an integer for each of %d slices, got %s", n, B.format(repeats))
  end
  if n == 0 then return ops.clone(x) end
  if ops.amin(repeats):item() < 0 then check.fail("[repeat_interleave] repeats must not be negative") end
  local ends = ops.cumsum(ops.expand(ops.to(repeats, { dtype = "int64" }), { n }), 1)
  -- Position k of the result takes the first slice that ends at k or behind it.
  local at = ops.arange(1, ends[n]:item() + 1, 1, { dtype = "int64", device = B.tensor_device(x) })
  return (ops.index_select(x, dim, ops.searchsorted(ends, at)))
end)

--- x with NaN replaced by `nan` (0) and infinities by posinf and neginf (the largest and least of the dtype).
both("nan_to_num(Tensor input, number nan=0, number posinf?, number neginf?)", function(x, nan, posinf, neginf)
  if B.tensor_dtype(x).is_complex then
    return (ops.view_as_complex(F.nan_to_num(ops.view_as_real(x), nan, posinf, neginf)))
  end
  if not B.tensor_dtype(x).is_floating_point then return (ops.clone(x)) end
  local limit = require("moth.tensor").finfo(B.tensor_dtype(x)).max
  local y = ops.masked_fill(x, ops.isnan(x), nan)
  y = ops.masked_fill(y, ops.eq(x, math.huge), posinf or limit)
  return (ops.masked_fill(y, ops.eq(x, -math.huge), neginf or -limit))
end)

-- Sparse tensors are objects of another kind (moth.sparse).
for _, name in ipairs({ "is_sparse", "is_sparse_csr" }) do
  methods[name] = signature(name .. "(Tensor input)", function() return false end)
end
methods.layout = signature("layout(Tensor input)", function() return "strided" end)
methods.to_dense = signature("to_dense(Tensor input)", function(x) return x end)
for _, name in ipairs({ "to_sparse", "to_sparse_coo", "to_sparse_csr", "sparse_mask" }) do
  methods[name] = function(...)
    local result = require("moth.sparse")[name](...)
    return result
  end
  B.names[methods[name]] = name
end

--- x in one dimension; a view where strides allow.
both("ravel(Tensor input)", function(x) return (ops.reshape(x, { -1 })) end)
--- Columns in the other order: flip of dimension 2.
both("fliplr(Tensor input)", function(x) return (ops.flip(x, 2)) end)
--- Rows in the other order: flip of dimension 1.
both("flipud(Tensor input)", function(x)
  if B.dim(x) < 1 then check.fail("[flipud] expected at least 1 dimension, got %s", B.format(x)) end
  return (ops.flip(x, 1))
end)

--- base ^ linspace(start, stop, steps), truncated for an integer dtype.
F.logspace = signature("logspace(number|Tensor start, number|Tensor stop, size steps, number base=10, *, \z
  dtype dtype?, device device?, bool requires_grad=false)",
function(start, stop, steps, base, dtype, device, requires_grad)
  local options = { dtype = dtype, device = device }
  local kind = B.tensor_dtype(ops.empty({ 0 }, options))
  if kind.is_floating_point then
    local y = ops.pow(base, ops.linspace(start, stop, steps, options))
    return requires_grad and B.set_requires_grad(y, true) or y
  end
  if requires_grad then check.fail("[logspace] only floats can require a gradient, got %s", kind.name) end
  options.dtype = "float64"
  local powers = ops.pow(base, ops.linspace(start, stop, steps, options))
  local whole = ops.round(powers) -- 999.9999999999999 is meant to be 1000
  local near = ops.le(ops.abs(ops.sub(powers, whole)), ops.mul(ops.abs(whole), 1e-13))
  return (ops.to(ops.where(near, whole, powers), { dtype = kind }))
end)

local function count(sizes)
  local n = 1
  for _, s in ipairs(sizes) do n = n * s end
  return n
end

-- The dimensions of x and y before the last two, broadcast.
local function broadcast_lead(x, y)
  local a, b, lead = B.size(x), B.size(y), {}
  local n = math.max(#a, #b) - 2
  for k = 1, n do
    local p, q = a[k + #a - 2 - n] or 1, b[k + #b - 2 - n] or 1
    if p ~= q and p ~= 1 and q ~= 1 then
      check.fail("[cdist] the batches cannot be broadcast: %s and %s", B.format(x), B.format(y))
    end
    lead[k] = p == 1 and q or p
  end
  return lead
end

--- Distances between the rows of x (…, P, M) and y (…, R, M): (…, P, R). p (2); compute_mode is accepted for PyTorch's
-- sake: those of p 2 between long rows come from a product, but of rows that are near, where its digits would not do.
both("cdist(Tensor x1, Tensor x2, number p=2, 'use_mm_for_euclid_dist_if_necessary'|'use_mm_for_euclid_dist'|\z
  'donot_use_mm_for_euclid_dist' compute_mode='use_mm_for_euclid_dist_if_necessary')", function(x, y, p)
  if B.dim(x) < 2 or B.dim(y) < 2 or B.size(x, -1) ~= B.size(y, -1) then
    check.fail("[cdist] expected (…, P, M) and (…, R, M), got %s and %s", B.format(x), B.format(y))
  end
  local lead, m = broadcast_lead(x, y), B.size(x, -1)
  local function flat(t)
    local size = { unpack(lead) }
    size[#size + 1], size[#size + 2] = B.size(t, -2), m
    return (ops.reshape(ops.expand(t, size), { count(lead), B.size(t, -2), m }))
  end
  local d = ops.native_cdist(flat(x), flat(y), p)
  lead[#lead + 1] = B.size(x, -2)
  lead[#lead + 1] = B.size(y, -2)
  return (ops.reshape(d, lead))
end)

for _, file in ipairs({ "options", "joining", "numbers", "matrices", "complex", "spectra" }) do
  for name, fn in each(require("moth.tensor." .. file)(F, methods) or {}) do M[name] = fn end
end

return M
