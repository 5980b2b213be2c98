--- Where a parameter's elements are: what it is a part of, and how that is cut over ranks. Kept beside the tensor,
-- which is a plain one: the local part.
--
--     local p = placement.of(weight)      -- nil: the whole tensor is here
--     p.shape                             -- of the whole tensor
--     p.cuts                              -- a list of { group =, dim =, parts =, unit = }: first p.cuts[1] is cut, …
--     placement.boxes(weight)             -- what the local part has: { { offset, start, size }, … }, lists from 0
--     placement.full_tensor(weight)       -- all ranks call it
--
-- A dimension of n rows is cut as torch.chunk does: ceil(n / ranks) for each rank, less or none for the last ones.
-- `parts`: the dimension consists of that many equal blocks, each of which is cut (query, key and value in one weight).
-- `unit`: rows that stay together (those of a head).
local B = require "moth_lua"
local check = require "moth.utils.check"
local collectives = require "moth.distributed.collectives"
local each = require "moth.each"
local moth = require "moth"
local signature = require "moth.utils.signature"

local M = {}

local known = setmetatable({}, { __mode = "k" })
local replicas = setmetatable({}, { __mode = "k" }) -- parameter -> the group of ranks that train the same on other data

local function copy(list)
  local out = {}
  for i, v in ipairs(list) do out[i] = v end
  return out
end

--- The placement of a tensor, or nil.
function M.of(t) return known[t] end

--- Records that t is a part of a tensor of this shape.
function M.set(t, shape, cuts)
  known[t] = { shape = copy(shape), cuts = cuts }
  return t
end

--- Records that t is placed as `like` is: another handle of its memory, a copy, a state of an optimizer.
function M.share(t, like)
  known[t] = known[like]
  return t
end

--- Records that the ranks of a group have the same t, and each its part of a batch.
function M.set_replicas(t, group) replicas[t] = group end

--- The shape of the whole tensor, that of t itself where it has no placement.
function M.whole_shape(t)
  local p = known[t]
  return p and (p.scalar and {} or p.shape) or t.shape
end

--- The first row (from 0) and the number of rows of rank r, of a block of n rows.
function M.rows(n, size, r, unit)
  unit = unit or 1
  local units = n / unit
  local share = math.ceil(units / size)
  local first = math.min(r * share, units)
  return first * unit, (math.min(first + share, units) - first) * unit
end

--- Whether ranks of a group have different parts of t.
function M.is_cut_over(t, group)
  for _, cut in ipairs(known[t] and known[t].cuts or {}) do
    local common = 0
    for _, r in ipairs(cut.group.ranks) do
      for _, other in ipairs(group.ranks) do if r == other then common = common + 1 end end
    end
    if common > 1 then return true end
  end
  return false
end

--- Checks that a dimension of n rows can be cut so; returns the cut. `what`: for the error.
function M.cut(group, dim, n, o, what)
  local parts, unit = o and o.parts or 1, o and o.unit or 1
  if n % (parts * unit) ~= 0 then
    check.fail("%s: dimension %d has %d rows, which %d blocks of units of %d do not divide", what, dim, n, parts, unit)
  end
  return { group = group, dim = dim, parts = parts, unit = unit }
end

--- The part of a tensor that a rank has, contiguous, with memory of its own.
function M.part(t, cut, rank)
  return moth.no_grad(function()
    local block = t:size(cut.dim) / cut.parts
    local first, n = M.rows(block, cut.group.size, rank or cut.group.rank, cut.unit)
    local pieces, whole = {}, t:detach()
    for k = 1, cut.parts do pieces[k] = whole:narrow(cut.dim, (k - 1) * block + first + 1, n) end
    local part = moth.cat(pieces, cut.dim)
    B.free(whole) -- the whole's memory is not to wait for the collector
    for _, piece in ipairs(pieces) do B.free(piece) end
    return part
  end)
end

-- The tensor that has n rows in the dimension of the cut, from the parts of all ranks.
local function gathered(t, cut, n)
  local group, dim = cut.group, cut.dim
  local block = n / cut.parts
  local _, most = M.rows(block, group.size, 0, cut.unit)
  local shape = copy(t.shape)
  shape[dim] = most * cut.parts
  local padded = t
  if t:size(dim) ~= shape[dim] then
    padded = t:new_zeros(shape)
    if t:size(dim) > 0 then padded:narrow(dim, 1, t:size(dim)):copy_(t) end
  end
  table.insert(shape, 1, group.size)
  local all = moth.empty(shape, { dtype = t:dtype(), device = t:device() })
  collectives.all_gather_into_tensor(all, padded:contiguous(), { group = group })
  local pieces = {}
  for k = 1, cut.parts do
    for r = 0, group.size - 1 do
      local _, rows = M.rows(block, group.size, r, cut.unit)
      if rows > 0 then pieces[#pieces + 1] = all:select(1, r + 1):narrow(dim, (k - 1) * rows + 1, rows) end
    end
  end
  if #pieces == 0 then return t:clone() end
  return moth.cat(pieces, dim)
end

-- The shapes before each cut: of the whole tensor, of what the first cut leaves here, …
local function shapes(p)
  local list = { p.shape }
  for i, cut in ipairs(p.cuts) do
    local s = copy(list[i])
    local _, n = M.rows(s[cut.dim] / cut.parts, cut.group.size, cut.group.rank, cut.unit)
    s[cut.dim] = n * cut.parts
    list[i + 1] = s
  end
  return list
end

--- The shape of the part that this rank has.
function M.local_shape(p)
  local list = shapes(p)
  return list[#list]
end

--- The whole tensor, without history; `like`: a tensor of the same placement as `t` (default: t itself), such as its
-- gradient's or its optimizer's state's parameter. All ranks call it.
M.full_tensor = signature("distributed.full_tensor(Tensor tensor, Tensor like?)", function(t, like)
  local p = known[like or t]
  if not p then return t:detach() end
  local list = shapes(p)
  return moth.no_grad(function()
    local x = t:detach()
    x = x:reshape(list[#list])
    for i = #p.cuts, 1, -1 do
      local cut = p.cuts[i]
      x = gathered(x, cut, list[i][cut.dim])
    end
    return p.scalar and x:reshape({}) or x
  end)
end)

--- The part of a whole tensor that belongs to where `like` is placed here.
function M.part_of(full, like)
  local p = known[like]
  if not p then return full end
  local x = full
  for _, cut in ipairs(p.cuts) do x = M.part(x, cut) end
  return x
end

local function same_shape(a, b)
  if #a ~= #b then return false end
  for i, n in ipairs(a) do if n ~= b[i] then return false end end
  return true
end

--- A tensor as `like` is placed here: the part of a whole one; others are returned as they are.
function M.fitted(t, like)
  local p = known[like]
  if not p or not same_shape(t.shape, M.whole_shape(like)) or same_shape(t.shape, like.shape) then
    return t
  end
  return M.part_of(p.scalar and t:reshape(1) or t, like)
end

--- Calls fn with whole tensors in the place of a list of parts, all placed as `like` is; what it changes of them is in
-- the parts afterwards. All ranks call it.
function M.with_whole(parts, like, fn)
  local list = {}
  for i, t in ipairs(parts) do list[i] = M.full_tensor(t, like) end
  fn(list)
  for i, t in ipairs(parts) do
    local whole = list[i]
    local part = M.part_of(known[like].scalar and whole:reshape(1) or whole, like)
    t:copy_(part)
    if whole:data_ptr() ~= t:data_ptr() then B.free(whole) end -- handles: memory is not to wait for the collector
    B.free(part)
  end
end

--- What the local part has of the whole tensor, as boxes: offset (in the whole tensor), start (in the part), size; each
-- a list with a number from 0 for each dimension. Nil if the tensor has no placement.
function M.boxes(t)
  local p = known[t]
  if not p then return nil end
  local ndim = #p.shape
  local function zeros()
    local z = {}
    for i = 1, ndim do z[i] = 0 end
    return z
  end
  local boxes = { { offset = zeros(), start = zeros(), size = copy(p.shape) } }
  local before = p.shape
  for i, cut in ipairs(p.cuts) do
    local d, block, left = cut.dim, before[cut.dim] / cut.parts, {}
    local first, n = M.rows(block, cut.group.size, cut.group.rank, cut.unit)
    for k = 0, cut.parts - 1 do -- rows first … first + n of block k go to k * n …
      for _, b in ipairs(boxes) do
        local from = math.max(b.start[d], k * block + first)
        local to = math.min(b.start[d] + b.size[d], k * block + first + n)
        if to > from then
          local piece = { offset = copy(b.offset), start = copy(b.start), size = copy(b.size) }
          piece.offset[d] = b.offset[d] + from - b.start[d]
          piece.start[d] = k * n + from - (k * block + first)
          piece.size[d] = to - from
          left[#left + 1] = piece
        end
      end
    end
    boxes, before = left, shapes(p)[i + 1]
  end
  return boxes
end

--- Whether a state of an optimizer's parameter p is placed as p is: it has p's shape, and not one of its own.
function M.is_state_like(optimizer, key, v, p)
  local own = optimizer.own_shape
  return B.is_tensor(v) and known[p] ~= nil and not (own and own[key]) and same_shape(v.shape, p.shape)
end

--- Fails for an optimizer whose state is one of all its parameters, which are cut: of this rank's elements.
function M.check_state(optimizer, where)
  local own = optimizer.own_shape
  if not (own and own.prev_flat_grad) then return end -- optim.LBFGS
  for _, group in ipairs(optimizer.param_groups) do
    if M.any(group.params) then
      check.fail("[%s] the state of optim.%s is one vector of this rank's parts: it cannot be saved with parameters \z
        that are cut over ranks", where, optimizer.__name)
    end
  end
end

-- Norms over ranks -----------------------------------------------------------------------------------

-- The groups that hold other parts of a parameter, as a list and as a key.
local function groups_of(p)
  local place, list, key = known[p], {}, {}
  for i, cut in ipairs(place and place.cuts or {}) do
    list[i], key[i] = cut.group, cut.group.number
  end
  return list, table.concat(key, ",")
end

-- Parameters by the groups that hold other parts: a list of { groups =, params = (positions) }.
local function sets_of(parameters)
  local sets, order = {}, {}
  for i, p in ipairs(parameters) do
    local list, key = groups_of(p)
    if not sets[key] then
      sets[key] = { groups = list, at = {} }
      order[#order + 1] = sets[key]
    end
    table.insert(sets[key].at, i)
  end
  return order
end

local function reduced(t, groups, op)
  for _, group in ipairs(groups) do t = B.ops.comm_reduce_by(t, op, group.number, group.size) end
  return t
end

--- The norms of whole tensors, of which list[i] is a part that is placed as parameters[i] is; 0-dim tensors. All ranks
-- call it.
function M.norms(list, parameters)
  local out = {}
  for _, set in ipairs(sets_of(parameters)) do
    local squares = {}
    for k, i in ipairs(set.at) do
      local t = list[i]
      if not t:dtype().is_floating_point or t:dtype().itemsize < 4 then t = t:to(moth.float32) end
      squares[k] = t:square():sum()
    end
    local sums = reduced(moth.stack(squares), set.groups, "sum"):sqrt()
    for k, i in ipairs(set.at) do out[i] = sums:select(1, k) end
  end
  return out
end

--- Parameters as one vector over ranks, for methods that take products of such vectors: their order, in which those cut
-- over the same groups follow each other; total(fn, op): the sum (or another op) over all of fn(from, n), a number for
-- n of the elements here; mean(t): of a tensor over all ranks that have parts, or replicas of them.
function M.vector(parameters)
  local order, spans, every, seen, from = {}, {}, {}, {}, 1
  local o = { dtype = moth.float64, device = parameters[1]:device() }
  for _, set in ipairs(sets_of(parameters)) do
    local n = 0
    for _, i in ipairs(set.at) do
      local p = parameters[i]
      order[#order + 1], n = p, n + p:numel()
      local list = { unpack(set.groups) }
      list[#list + 1] = replicas[p]
      for _, group in ipairs(list) do
        if not seen[group] then
          seen[group], every[#every + 1] = true, group
        end
      end
    end
    spans[#spans + 1], from = { from, n, set.groups }, from + n
  end
  local function total(fn, op)
    local all
    for _, span in ipairs(spans) do
      local t = reduced(moth.tensor({ fn(span[1], span[2]) }, o), span[3], op or "sum")
      local v = t:item()
      if not all then all = v elseif op == "max" then all = math.max(all, v) else all = all + v end
    end
    return all
  end
  return order, total, function(t) return reduced(t:detach():reshape(1), every, "avg"):reshape({}) end
end

--- For moth.amp's GradScaler: found[device] ~= 0 where a gradient of this rank overflowed becomes so on all ranks that
-- have parts of the optimizer's parameters.
function M.share_overflow(optimizer, found)
  local seen, list, any = {}, {}, nil
  for _, group in ipairs(optimizer.param_groups) do
    for _, p in ipairs(group.params) do
      for _, cut in ipairs(known[p] and known[p].cuts or {}) do
        if not seen[cut.group] then
          seen[cut.group], list[#list + 1] = true, cut.group
        end
      end
    end
  end
  if #list == 0 then return end
  for _, t in each(found) do
    local here = t:to("cpu"):reshape(1)
    any = any and any + here or here:clone()
  end
  any = any or moth.zeros(1)
  for _, group in ipairs(list) do collectives.all_reduce(any, { op = "max", group = group }) end
  for _, t in each(found) do t:copy_(any:reshape(t.shape)) end
end

--- The parameter whose gradient t is, if it is cut over ranks; of a list.
function M.of_gradients(list)
  local at, out = {}, {}
  for p in each(known) do
    local ok, g = pcall(B.get_grad, p) -- not of a handle that was freed
    if ok and g then
      local key = g:data_ptr()
      at[key] = at[key] or {}
      table.insert(at[key], { p, g })
    end
  end
  for i, t in ipairs(list) do
    for _, pair in ipairs(at[t:data_ptr()] or {}) do if pair[2] == t then out[i] = pair[1] end end
  end
  return out
end

--- Whether a list has parameters that are cut over ranks; or some of which other ranks have replicas, too.
function M.any(parameters)
  for _, p in ipairs(parameters) do if known[p] then return true end end
  return false
end
function M.any_or_replicas(parameters)
  for _, p in ipairs(parameters) do if known[p] or replicas[p] then return true end end
  return false
end

-- What parts add to the norm of a kind: op over the ranks, the value of no elements, that of a part.
local function kind_of(norm_type)
  if norm_type == math.huge then return "max", 0, function(g) return g:norm(norm_type) end end
  if norm_type == -math.huge then return "min", math.huge, function(g) return g:norm(norm_type) end end
  if norm_type == 0 then return "sum", 0, function(g) return g:ne(0):sum() end end
  return "sum", 0, function(g) return g:norm(norm_type):to(moth.float32):pow(norm_type) end
end

--- The norm of the gradients of parameters as one vector, over the ranks that hold their parts; a 0-dim tensor. All of
-- those ranks call it.
function M.grad_norm(parameters, norm_type, grads_of)
  local op, none, value = kind_of(norm_type)
  local lists, any = {}, false
  for i, set in ipairs(sets_of(parameters)) do
    local values = {}
    for k, at in ipairs(set.at) do
      local g = grads_of(parameters[at])
      any = any or g ~= nil
      values[k] = g and g:numel() > 0 and value(g):to(moth.float32)
        or moth.full({}, none, { device = parameters[at]:device() })
    end
    lists[i] = reduced(moth.stack(values), set.groups, op)
  end
  if not any then return moth.zeros() end
  local all = moth.cat(lists)
  if op ~= "sum" then return op == "max" and all:max() or all:min() end
  return norm_type == 0 and all:ne(0):sum():to(moth.float32) or all:sum():pow(1 / norm_type)
end

return M
