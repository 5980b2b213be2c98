-- Context parallelism on one rank, against one process.
local moth = require "moth"
local dist = require "moth.distributed"
local compare = require "distributed.compare"
local nn, context = moth.nn, dist.context
local close = compare.close

-- Puts parts together, in the order of the positions.
local function joined(part, dim, total, size, o)
  local most = math.ceil(total / size)
  local shape = { unpack(part.shape) }
  shape[dim] = most
  local padded = moth.zeros(shape, { dtype = part:dtype() })
  if part:size(dim) > 0 then padded:narrow(dim, 1, part:size(dim)):copy_(part:detach()) end
  local at = moth.zeros({ most }, { dtype = moth.int64 })
  if part:size(dim) > 0 then at:narrow(1, 1, part:size(dim)):copy_(context.positions(total, nil, o)) end
  local all, all_at = dist.nn.all_gather(padded, { dim = dim }), dist.nn.all_gather(at)
  local kept = all_at:gt(0):nonzero():view(-1)
  local order = all_at:index_select(1, kept):argsort()
  return all:index_select(dim, kept):index_select(dim, order)
end

return function(_, size)
  moth.manual_seed(5)
  local function case(what, T, o, q_heads, k_heads, width, dtype)
    o = o or {}
    local function make(h, e) return moth.randn({ 2, h, T, e }, { dtype = dtype }) end
    local q, k, v = make(q_heads, 4), make(k_heads, 4), make(k_heads, width)
    local w = make(q_heads, width)
    local whole, parts = {}, {}
    local share = { load_balance = o.load_balance }
    local lengths
    if T % size ~= 0 then
      lengths = {}
      for r = 1, size do lengths[r] = math.max(0, math.min(math.ceil(T / size), T - (r - 1) * math.ceil(T / size))) end
    end
    for i, t in ipairs { q, k, v } do
      whole[i] = t:clone():requires_grad_()
      parts[i] = context.split(t, 3, nil, share):clone():requires_grad_()
    end
    local z = moth.scaled_dot_product_attention(whole[1], whole[2], whole[3], { is_causal = o.is_causal,
      enable_gqa = true })
    local y = dist.context_parallel(dist.device_mesh { size }, function()
      return moth.scaled_dot_product_attention(parts[1], parts[2], parts[3], { is_causal = o.is_causal,
        enable_gqa = true })
    end, { load_balance = o.load_balance, lengths = lengths })
    local tolerance = dtype == moth.float64 and 1e-12 or 1e-6
    close(what, joined(y, 3, T, size, share), z, tolerance)
    z:backward(w)
    y:backward(context.split(w, 3, nil, share))
    for i, name in ipairs { "query", "key", "value" } do
      close(what .. " " .. name, joined(parts[i].grad, 3, T, size, share), whole[i].grad, tolerance)
    end
  end
  case("full", 24, {}, 2, 2, 4)
  case("causal", 24, { is_causal = true }, 2, 2, 5)
  case("uneven", 13, { is_causal = true }, 3, 1, 4, moth.float64)
  case("uneven, full", 11, {}, 2, 2, 3)
  if 48 % (2 * size) == 0 then case("balanced", 48, { is_causal = true, load_balance = true }, 4, 2, 4) end

  if size < 4 then -- gradients across ranks
    local mesh = dist.device_mesh { size }
    local function input() return moth.randn({ 1, 1, 5, 2 }, { dtype = moth.float64 }):requires_grad_() end
    local lengths = size == 3 and { 2, 2, 1 } or size == 2 and { 3, 2 } or nil
    assert(moth.autograd.gradcheck(function(a, b, c)
      local y = context.ring_attention(dist.tp.split(a, 3, mesh), dist.tp.split(b, 3, mesh), dist.tp.split(c, 3, mesh),
        { is_causal = true, lengths = lengths })
      return dist.tp.gather(y, 3, mesh, 5)
    end, { input(), input(), input() }))
  end

  -- a block of a transformer, its sequence cut #M392
  local layer = nn.TransformerEncoderLayer(8, 2, 16, 0, { batch_first = true })
  local one, cut = layer:clone(), layer:clone()
  local x = moth.randn(2, 24, 8)
  local part = context.split(x, 2)
  dist.context_parallel(cut, dist.device_mesh { size })
  local y, z = cut(part, nil, nil, true), one(x, nil, nil, true)
  close("block", joined(y, 2, 24, size), z)
  local l, m = y:pow(2):sum() / 400, z:pow(2):sum() / 400
  l:backward()
  m:backward()
  for name, p in one:named_parameters() do
    local g = cut:get_submodule(name:match "^(.*)%." or "")._parameters[name:match "[^.]+$"].grad
    dist.all_reduce(g)
    close("block " .. name, g, p.grad, 2e-6)
  end

  local function fails(text, fn, ...)
    local ok, message = pcall(fn, ...)
    assert(not ok and message:find(text, 1, true), message)
  end
  -- masks: of keys (padding), of this rank's rows, both kinds with is_causal; rows that see nothing
  local function masked(what, T, o, mask_of_all, mask_of_part)
    local q, k, v = moth.randn(2, 2, T, 4), moth.randn(2, 2, T, 4), moth.randn(2, 2, T, 3)
    local w = moth.randn(2, 2, T, 3)
    local share, whole, parts = { load_balance = o.load_balance }, {}, {}
    for i, t in ipairs { q, k, v } do
      whole[i] = t:clone():requires_grad_()
      parts[i] = context.split(t, 3, nil, share):clone():requires_grad_()
    end
    local mask = mask_of_all
    if o.is_causal then mask = mask:logical_and(moth.ones({ T, T }, { dtype = moth.bool }):tril()) end
    local right = moth.scaled_dot_product_attention(whole[1], whole[2], whole[3], { attn_mask = mask })
    local got = dist.context_parallel(dist.device_mesh { size }, function()
      return moth.scaled_dot_product_attention(parts[1], parts[2], parts[3], { attn_mask = mask_of_part,
        is_causal = o.is_causal })
    end, { load_balance = o.load_balance, lengths = o.lengths })
    close(what, joined(got, 3, T, size, share), right)
    right:backward(w)
    got:backward(context.split(w, 3, nil, share))
    for i, name in ipairs { "query", "key", "value" } do
      close(what .. " " .. name, joined(parts[i].grad, 3, T, size, share), whole[i].grad)
    end
  end
  local function bits(...) return moth.rand(...):gt(0.4) end
  local padding, rows = bits(2, 1, 1, 24), bits(2, 1, 24, 24)
  rows:narrow(3, 5, 2):fill_(false)
  masked("padding", 24, {}, padding, context.split(padding, 4))
  masked("padding, causal", 24, { is_causal = true }, padding, context.split(padding, 4))
  masked("rows", 24, {}, rows, context.split(rows, 3))
  local added = moth.randn(24, 24)
  masked("added", 24, {}, added, context.split(added, 1))
  if 48 % (2 * size) == 0 then
    local o, wide = { is_causal = true, load_balance = true }, bits(2, 1, 1, 48)
    masked("padding, balanced", 48, o, wide, context.split(wide, 4, nil, { load_balance = true }))
    local all = bits(48, 48)
    masked("rows, balanced", 48, o, all, context.split(all, 1, nil, { load_balance = true }))
  end
  if size > 1 and size < 4 then
    local n, lengths = 4 * size + 1, {}
    for r = 1, size do lengths[r] = select(2, require("moth.distributed.placement").rows(n, size, r - 1)) end
    local uneven = bits(2, 1, 1, n)
    masked("padding, uneven", n, { lengths = lengths }, uneven, context.split(uneven, 4))
  end

  -- a padded batch through a layer
  local pad = moth.arange(1, 25):unsqueeze(1):gt(moth.tensor { { 20 }, { 24 } }:squeeze(2):unsqueeze(2))
  close("padded block", joined(cut(part, nil, context.split(pad, 2), true), 2, 24, size):narrow(2, 1, 20),
    one(x, nil, pad, true):narrow(2, 1, 20))

  if size > 1 then
    fails("attn_mask: expected (…, 1, 24), of the keys of this rank, or (…, 24, " .. 24 * size .. ")",
      dist.context_parallel, dist.device_mesh { size }, function()
        return moth.scaled_dot_product_attention(x, x, x, { attn_mask = moth.ones(24, 24) })
      end)
  end
  fails("need_weights = false", dist.context_parallel, dist.device_mesh { size }, function()
    return nn.MultiheadAttention(8, 2, { batch_first = true })(x, x, x)
  end)
  fails("is_causal needs as many queries as keys", context.ring_attention, x, part:narrow(2, 1, 1):expand(2, 25, 8),
    part:narrow(2, 1, 1):expand(2, 25, 8), { is_causal = true })
  fails("positions are not divisible into", context.positions, 2 * size + 1, nil, { load_balance = true })
  assert(moth.scaled_dot_product_attention(x, x, x):size(2) == 24, "outside all is as before")
  dist.barrier()
end
