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
  fails("within context_parallel there is no attn_mask", dist.context_parallel, dist.device_mesh { size }, function()
    return moth.scaled_dot_product_attention(x, x, x, { attn_mask = moth.ones(24, 24) })
  end)
  fails("is_causal needs as many queries as keys", context.ring_attention, x, part:narrow(2, 1, 1):expand(2, 25, 8),
    part:narrow(2, 1, 1):expand(2, 25, 8), { is_causal = true })
  fails("positions are not divisible into", context.positions, 2 * size + 1, nil, { load_balance = true })
  assert(moth.scaled_dot_product_attention(x, x, x):size(2) == 24, "outside all is as before")
  dist.barrier()
end
