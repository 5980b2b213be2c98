--- Context parallelism: attention over a sequence that is cut over the ranks of a group. Keys and values go around a
-- ring while each rank attends with those that it has; in backward they go around again, with their gradients.
--
--     local context = dist.context
--     local part = context.split(x, 2, mesh.cp)                        -- this rank's positions
--     local at = context.positions(x:size(2), mesh.cp)                 -- which those are, from 1
--     local y = dist.context_parallel(mesh.cp, function() return block(part) end)
--
-- Within the call F.scaled_dot_product_attention, and what is made of it, attends over the positions of all ranks.
-- `load_balance`: each rank has two pieces, one from the front and one from the end, so that with is_causal all have as
-- much to do; give it to split, positions and context_parallel alike. Without it sizes may differ as torch.chunk's do.
-- Masks: (…, 1, S) of this rank's keys, as of padding, which go to all ranks; or (…, L, T): rows of this rank's queries
-- over the T positions of all ranks.
local B = require "moth_lua"
local autograd = require "moth.autograd"
local check = require "moth.utils.check"
local collectives = require "moth.distributed.collectives"
local mesh = require "moth.distributed.mesh"
local messages = require "moth.distributed.messages"
local moth = require "moth"
local placement = require "moth.distributed.placement"
local signature = require "moth.utils.signature"

local M = {}
local KEYS, GRADS = 30001, 30003 -- tags of messages; the next numbers are of values

-- Pieces ---------------------------------------------------------------------------------------------

-- The pieces of rank r of a sequence of n positions: { { first (from 0), size }, … }.
local function pieces(n, size, r, balanced)
  if not balanced then
    local first, rows = placement.rows(n, size, r)
    return { { first, rows } }
  end
  local half = n / (2 * size)
  return { { r * half, half }, { (2 * size - 1 - r) * half, half } }
end

local function check_length(n, size, balanced, what)
  if balanced and n % (2 * size) ~= 0 then
    check.fail("[distributed.%s] %d positions are not divisible into %d pieces for load_balance", what, n, 2 * size)
  end
end

local COMMON = "DeviceMesh|ProcessGroup mesh?, *, bool load_balance=false"

--- The positions, from 1, of this rank among `length`: an integer vector.
M.positions = signature("distributed.context.positions(size length, " .. COMMON .. ")", function(n, where, o)
  local group = mesh.group_of(where, "context.positions")
  check_length(n, group.size, o.load_balance, "context.positions")
  local list = {}
  for i, piece in ipairs(pieces(n, group.size, group.rank, o.load_balance)) do
    list[i] = moth.arange(piece[1] + 1, piece[1] + piece[2] + 1, { dtype = moth.int64 })
  end
  return #list == 1 and list[1] or moth.cat(list)
end, true)

--- This rank's part of a tensor that all ranks have, along the dimension of positions.
M.split = signature("distributed.context.split(Tensor input, Dim dim, " .. COMMON .. ")", function(x, dim, where, o)
  local group = mesh.group_of(where, "context.split")
  check_length(x:size(dim), group.size, o.load_balance, "context.split")
  local list = {}
  for i, piece in ipairs(pieces(x:size(dim), group.size, group.rank, o.load_balance)) do
    list[i] = x:narrow(dim, piece[1] + 1, piece[2])
  end
  return #list == 1 and list[1] or moth.cat(list, dim)
end, true)

-- The ring -------------------------------------------------------------------------------------------

-- The pieces of each rank as they lie in its tensor: { { number, first (from 0), size }, … }; the number orders them.
local function layout(o)
  local all = {}
  for r = 0, o.size - 1 do
    local n = o.lengths[r + 1]
    if o.balanced then
      all[r + 1] = { { r, 0, n / 2 }, { 2 * o.size - 1 - r, n / 2, n / 2 } }
    else
      all[r + 1] = { { r, 0, n } }
    end
  end
  return all
end

-- The tensors of the rank before, while ours go to the next one; a function that waits, and returns them.
local function pass(tensors, shapes, group, tag)
  local size, works, got = group.size, {}, {}
  local to, from = group.ranks[(group.rank + 1) % size + 1], group.ranks[(group.rank - 1) % size + 1]
  for i, t in ipairs(tensors) do
    got[i] = t:new_empty(shapes[i])
    works[#works + 1] = messages.irecv(got[i], from, { group = group, tag = tag + i - 1 })
    works[#works + 1] = messages.isend(t:contiguous(), to, { group = group, tag = tag + i - 1 })
  end
  return function()
    for _, w in ipairs(works) do w:wait() end
    return got
  end
end

local function shape_with(t, n)
  local shape = { unpack(t.shape) }
  shape[3] = n
  return shape
end

-- The mask of each rank's keys, by rank + 1, whose last dimension is that of the rank's tensor.
local function masks_of(mask, o)
  local out, total = {}, 0
  for _, n in ipairs(o.lengths) do total = total + n end
  local function last(t, at, n) return t:narrow(t:dim(), at + 1, n) end
  if mask:size(-1) == total then
    local starts = { 0 }
    for r = 1, o.size do starts[r + 1] = starts[r] + o.lengths[r] end
    for r = 1, o.size do
      local list = {}
      for i, piece in ipairs(o.pieces[r]) do
        list[i] = last(mask, o.balanced and piece[1] * piece[3] or starts[r], piece[3])
      end
      out[r] = #list == 1 and list[1] or moth.cat(list, mask:dim())
    end
    return out
  end
  local most, shape = math.max(unpack(o.lengths)), { unpack(mask.shape) }
  shape[#shape] = most
  local own, all = mask:new_zeros(shape), {}
  if mask:size(-1) > 0 then last(own, 0, mask:size(-1)):copy_(mask) end
  for r = 1, o.size do all[r] = moth.empty_like(own) end
  collectives.all_gather(all, own, { group = o.group })
  for r = 1, o.size do out[r] = last(all[r], 0, o.lengths[r]) end
  return out
end

-- The part of a mask for these rows and columns; nil without one.
local function part_of(o, src, a, b)
  local m = o.masks and o.masks[src + 1]
  if not m then return nil end
  m = m:narrow(m:dim(), b[2] + 1, b[3])
  return m:dim() > 1 and m:size(-2) > 1 and m:narrow(m:dim() - 1, a[2] + 1, a[3]) or m
end

-- fn(query piece, piece of keys, is_causal) for each pair that sees each other; src: whose keys these are.
local function each_pair(o, src, fn)
  for _, a in ipairs(o.own) do
    for _, b in ipairs(o.pieces[src + 1]) do
      if a[3] > 0 and b[3] > 0 and not (o.causal and b[1] > a[1]) then fn(a, b, o.causal and a[1] == b[1]) end
    end
  end
end

local function around(o, tensors, tag, fn)
  local current = tensors
  for step = 0, o.size - 1 do
    local src = (o.rank - step) % o.size
    local arrive
    if step < o.size - 1 then
      local n, shapes = o.lengths[(src - 1) % o.size + 1], {}
      for i, t in ipairs(current) do shapes[i] = shape_with(t, n) end
      arrive = pass(current, shapes, o.group, tag)
    end
    fn(src, current)
    if arrive then current = arrive() end
  end
end

local function forward(ctx, q, k, v, o)
  local wide = q:dtype() == moth.float64 and moth.float64 or moth.float32
  local y = moth.zeros({ q:size(1), q:size(2), q:size(3), v:size(4) }, { dtype = wide, device = q:device() })
  local lse = moth.full({ q:size(1), q:size(2), q:size(3) }, -math.huge, { dtype = wide, device = q:device() })
  around(o, { k, v }, KEYS, function(src, kv)
    each_pair(o, src, function(a, b, causal)
      local part, weight = B.ops.attention_forward(q:narrow(3, a[2] + 1, a[3]), kv[1]:narrow(3, b[2] + 1, b[3]),
        kv[2]:narrow(3, b[2] + 1, b[3]), part_of(o, src, a, b), 0, causal, o.scale)
      local into, total = y:narrow(3, a[2] + 1, a[3]), lse:narrow(3, a[2] + 1, a[3])
      if o.masks then weight = weight:masked_fill(weight:eq(math.huge), -math.huge) end -- rows that see none of these
      local both = moth.logaddexp(total, weight)
      local shift = o.masks and both:masked_fill(both:eq(-math.huge), 0) or both
      into:mul_((total - shift):exp():unsqueeze(-1)):add_(part:to(wide) * (weight - shift):exp():unsqueeze(-1))
      total:copy_(both)
    end)
  end)
  local out = y:to(q:dtype())
  if o.masks then lse = lse:masked_fill(lse:eq(-math.huge), math.huge) end -- as attention_backward has them
  ctx:save_for_backward(q, k, v, out, lse)
  ctx.o = o
  return out
end

local function backward(ctx, grad)
  local q, k, v, out, lse = ctx:saved_tensors()
  local o = ctx.o
  local dq, state = moth.zeros_like(q), moth.zeros({ 2 }, { dtype = moth.int64, device = q:device() })
  local function empty(t, n) return t:new_zeros(shape_with(t, n)) end
  local dk, dv = empty(k, k:size(3)), empty(v, v:size(3))
  grad = grad:contiguous()
  around(o, { k, v }, KEYS, function(src, kv)
    each_pair(o, src, function(a, b, causal)
      local function of(t) return t:narrow(3, a[2] + 1, a[3]) end
      local gq, gk, gv = B.ops.attention_backward(of(grad), nil, of(q), kv[1]:narrow(3, b[2] + 1, b[3]),
        kv[2]:narrow(3, b[2] + 1, b[3]), part_of(o, src, a, b), of(out), of(lse):contiguous(), state, 0, causal,
        o.scale)
      of(dq):add_(gq)
      dk:narrow(3, b[2] + 1, b[3]):add_(gk)
      dv:narrow(3, b[2] + 1, b[3]):add_(gv)
    end)
    if o.size > 1 then -- the gradients of these keys go on with them; after the last step they are at home
      local n = o.lengths[(src - 1) % o.size + 1]
      local got = pass({ dk, dv }, { shape_with(dk, n), shape_with(dv, n) }, o.group, GRADS)()
      dk, dv = got[1], got[2]
    end
  end)
  return dq, dk, dv, nil
end

local Ring = autograd.Function { name = "RingAttention", forward = forward, backward = backward }

local function four(x)
  if x:dim() == 4 then return x end
  local lead, shape = 1, x.shape
  for i = 1, #shape - 3 do lead = lead * shape[i] end
  if #shape == 2 then return x:unsqueeze(1):unsqueeze(1) end
  if #shape == 3 then return x:unsqueeze(1) end
  return x:reshape(lead, shape[#shape - 2], shape[#shape - 1], shape[#shape])
end

-- A mask that fits query (…, L, E) as four() makes it.
local function mask_like(mask, q, o, where)
  local total = 0
  for _, n in ipairs(o.lengths) do total = total + n end
  local rows, columns, mine = mask:dim() > 1 and mask:size(-2) or 1, mask:size(-1), o.lengths[o.rank + 1]
  if mask:requires_grad() then check.fail("%s attn_mask has no gradient here: detach it", where) end
  local fits = columns == total and (rows == 1 or rows == q:size(-2)) or rows == 1 and columns == mine
  if mask:dim() == 0 or not fits then
    check.fail("%s attn_mask: expected (…, 1, %d), of the keys of this rank, or (…, %d, %d), of its queries and the \z
      positions of all ranks, got %s", where, mine, q:size(-2), total, B.format(mask))
  end
  if q:dim() > 4 and mask:dim() > 3 then
    local shape = { unpack(q.shape) }
    for i = 0, 2 do shape[#shape - i] = mask.shape[mask:dim() - i] end
    mask = mask:expand(shape):reshape(-1, shape[#shape - 2], rows, columns)
  end
  return mask
end

--- Attention of this rank's queries over the keys and values of all ranks: query (…, L, E), key (…, S, E), value
-- (…, S, V), as scaled_dot_product_attention has them, with the positions of this rank. lengths: S of each rank, by
-- rank + 1 (default: all as here). Rows see no keys behind them with is_causal; then L = S. attn_mask: of booleans, or
-- added to the scores; (…, 1, S) of this rank's keys, or (…, L, positions of all ranks). A row that sees nothing
-- gives 0.
M.ring_attention = signature("distributed.context.ring_attention(Tensor query, Tensor key, Tensor value, *, \z
  Tensor attn_mask?, bool is_causal=false, number scale?, DeviceMesh|ProcessGroup mesh?, bool load_balance=false, \z
  size[] lengths?)",
function(q, k, v, o)
  local where = "[distributed.context.ring_attention]"
  local group = mesh.group_of(o.mesh, "context.ring_attention")
  local n = q:dim()
  if n < 2 or k:dim() ~= n or v:dim() ~= n then
    check.fail("%s expected query, key and value of as many dimensions, at least 2, got %s, %s and %s", where,
      B.format(q), B.format(k), B.format(v))
  end
  local lengths = o.lengths
  if lengths and #lengths ~= group.size or lengths and lengths[group.rank + 1] ~= k:size(-2) then
    check.fail("%s lengths: expected %d numbers, of which that of rank %d is %d", where, group.size, group.rank,
      k:size(-2))
  end
  if not lengths then
    lengths = {}
    for r = 1, group.size do lengths[r] = k:size(-2) end
  end
  if o.is_causal and q:size(-2) ~= k:size(-2) then
    check.fail("%s is_causal needs as many queries as keys, got %s and %s", where, B.format(q), B.format(k))
  end
  if o.load_balance then
    for _, len in ipairs(lengths) do
      if len % 2 ~= 0 or len ~= lengths[1] then
        check.fail("%s load_balance needs the same even number of positions on all ranks, got %s", where,
          table.concat(lengths, ", "))
      end
    end
    if q:size(-2) ~= k:size(-2) then
      check.fail("%s load_balance needs as many queries as keys, got %s and %s", where, B.format(q), B.format(k))
    end
  end
  local ring = { group = group, rank = group.rank, size = group.size, causal = o.is_causal, lengths = lengths,
    scale = o.scale or 1 / math.sqrt(q:size(-1)), balanced = o.load_balance }
  ring.pieces = layout(ring)
  ring.own = q:size(-2) == k:size(-2) and ring.pieces[group.rank + 1] or { { group.rank, 0, q:size(-2) } }
  if o.attn_mask then ring.masks = masks_of(mask_like(o.attn_mask, q, ring, where), ring) end
  local y = Ring(four(q), four(k), four(v), ring)
  local shape = { unpack(q.shape) }
  shape[n] = v:size(-1)
  return y:view(shape)
end, true)

-- The context ----------------------------------------------------------------------------------------

local function attention(o)
  return signature("scaled_dot_product_attention(Tensor query, Tensor key, Tensor value, Tensor attn_mask?, \z
    number dropout_p=0, bool is_causal=false, number scale?, bool enable_gqa=false, Generator generator?)",
    function(q, k, v, mask, p, causal, scale, gqa)
      if p > 0 then check.fail "[scaled_dot_product_attention] within context_parallel there is no dropout_p" end
      if not gqa and q:dim() > 2 and q:size(-3) ~= k:size(-3) then
        check.fail("[scaled_dot_product_attention] query has %d heads, key %d: give enable_gqa", q:size(-3), k:size(-3))
      end
      return M.ring_attention(q, k, v, { attn_mask = mask, is_causal = causal, scale = scale, mesh = o.group,
        load_balance = o.load_balance, lengths = o.lengths })
    end)
end

local function within(o, fn, ...)
  local functional, inner = require("moth.nn").functional, require "moth.nn.functional_attention"
  local fake = attention(o)
  local was, was_f = rawget(moth, "scaled_dot_product_attention"), rawget(functional, "scaled_dot_product_attention")
  local was_cut = inner.is_cut
  inner.is_cut = true
  rawset(moth, "scaled_dot_product_attention", fake)
  rawset(functional, "scaled_dot_product_attention", fake)
  local function done(ok, ...)
    inner.is_cut = was_cut
    rawset(moth, "scaled_dot_product_attention", was)
    rawset(functional, "scaled_dot_product_attention", was_f)
    if not ok then error((...), 0) end
    return ...
  end
  return done(pcall(fn, ...))
end

local function options(group, o)
  local all = check.options("[distributed.context_parallel] options", o, "load_balance lengths")
  return { group = group, load_balance = all.load_balance == true, lengths = all.lengths }
end

--- context_parallel(mesh, fn, options): calls fn, in which scaled_dot_product_attention goes over the positions of all
-- ranks of the mesh (or group), and returns its results. context_parallel(module, mesh, options): the module's forward
-- does so from now on; returns the module. options: load_balance, lengths.
M.context_parallel = signature("distributed.context_parallel(DeviceMesh|ProcessGroup|Module mesh, any fn, \z
  table options?)", function(first, second, o)
  if type(first) == "table" and first.__module then
    local group = mesh.group_of(second, "context_parallel")
    local forward_of, all = first.forward, options(group, o)
    first.forward = function(...) return within(all, forward_of, ...) end
    return first
  end
  if not check.is_callable(second) then check.fail("[distributed.context_parallel] fn: expected a function") end
  return within(options(mesh.group_of(first, "context_parallel"), o), second)
end)

return M
