--- Naive float64 references of factories, conversions, views and the derivatives of norms and cross_entropy, as
-- spec/ops/references.lua, which includes them. t: the helpers of that file.
return function(M, t)
  local numel, new, each, wrap, strides = t.numel, t.new, t.each, t.wrap, t.strides

  -- factories ------------------------------------------------------------------------------------

  local function filled(value)
    return function(a) return new(a.size or a.self.shape, value or a.value) end
  end
  M.zeros, M.ones, M.full = filled(0), filled(1), filled()
  M.zeros_like, M.ones_like, M.full_like, M.zero_ = filled(0), filled(1), filled(), filled(0)
  function M.fill_(a)
    local v = a.value
    return new(a.self.shape, type(v) == "table" and v.data[1] or v)
  end
  function M.arange(a)
    local data, step = {}, a.step or 1
    local v = a.start
    while step > 0 and v < a.stop or step < 0 and v > a.stop do
      data[#data + 1] = v
      v = a.start + #data * step
    end
    return { shape = { #data }, data = data }
  end
  function M.linspace(a)
    local out = new({ a.steps })
    for i = 1, a.steps do
      out.data[i] = a.steps == 1 and a.start or a.start + (a.stop - a.start) * (i - 1) / (a.steps - 1)
    end
    return out
  end
  function M.eye(a)
    local m = a.m or a.n
    local out = new({ a.n, m })
    for i = 1, math.min(a.n, m) do out.data[(i - 1) * m + i] = 1 end
    return out
  end

  -- copies and conversions: the values stay ------------------------------------------------------

  local function same(a) return a.self end
  M.clone, M.contiguous, M.to_copy, M.to, M.type_as, M.detach = same, same, same, same, same, same
  local function expanded(x, shape)
    local out, lead, step = new(shape), #shape - #x.shape, strides(x.shape)
    each(shape, function(i, at)
      local k = 1
      for d, s in ipairs(x.shape) do if s > 1 then k = k + at[d + lead] * step[d] end end
      out.data[i] = x.data[k]
    end)
    return out
  end
  function M.copy_(a) return expanded(a.src, a.self.shape) end
  function M.expand_as(a) return expanded(a.self, a.other.shape) end

  -- views ----------------------------------------------------------------------------------------

  -- The same elements in another shape; -1 is inferred.
  local function reshaped(x, size)
    local shape, known = {}, 1
    for d, s in ipairs(size) do
      shape[d] = s
      if s ~= -1 then known = known * s end
    end
    for d, s in ipairs(shape) do if s == -1 then shape[d] = #x.data / known end end
    return { shape = shape, data = x.data }
  end
  function M.view(a) return reshaped(a.self, a.size) end
  M.reshape = M.view
  function M.squeeze(a)
    local shape, dim = {}, a.dim and wrap(a.dim, #a.self.shape)
    for d, s in ipairs(a.self.shape) do
      if s ~= 1 or (dim and d ~= dim) then shape[#shape + 1] = s end
    end
    return { shape = shape, data = a.self.data }
  end
  function M.unsqueeze(a)
    local shape = { unpack(a.self.shape) }
    table.insert(shape, wrap(a.dim, #shape + 1), 1)
    return { shape = shape, data = a.self.data }
  end
  function M.flatten(a)
    local x, shape, n = a.self, {}, #a.self.shape
    if n == 0 then return { shape = { 1 }, data = x.data } end
    local first, last, size = wrap(a.start_dim or 1, n), wrap(a.end_dim or -1, n), 1
    for d, s in ipairs(x.shape) do
      if d < first or d > last then shape[#shape + 1] = s else size = size * s end
      if d == last then shape[#shape + 1] = size end
    end
    return { shape = shape, data = x.data }
  end
  function M.unflatten(a)
    local shape, dim = {}, wrap(a.dim, #a.self.shape)
    for d, s in ipairs(a.self.shape) do
      if d ~= dim then
        shape[#shape + 1] = s
      else
        local known = 1
        for _, part in ipairs(a.sizes) do known = part == -1 and known or known * part end
        for _, part in ipairs(a.sizes) do shape[#shape + 1] = part == -1 and s / known or part end
      end
    end
    return reshaped(a.self, shape)
  end
  -- An element of x for each of the result: x's coordinates (from 0) of the result's.
  local function picked(x, shape, from)
    local out, step = new(shape), strides(x.shape)
    each(shape, function(i, at)
      local k = 1
      for d, c in ipairs(from(at)) do k = k + c * step[d] end
      out.data[i] = x.data[k]
    end)
    return out
  end
  local function with(list, d, v)
    local out = { unpack(list) }
    out[d] = v
    return out
  end
  function M.t(a)
    local s = a.self.shape
    if #s < 2 then return a.self end
    return picked(a.self, { s[2], s[1] }, function(at) return { at[2], at[1] } end)
  end
  function M.movedim(a)
    local x, n = a.self, #a.self.shape
    local order = {}
    for d = 1, n do order[d] = d end
    table.insert(order, wrap(a.destination, n), table.remove(order, wrap(a.source, n)))
    local shape = {}
    for d = 1, n do shape[d] = x.shape[order[d]] end
    return picked(x, shape, function(at)
      local from = {}
      for d = 1, n do from[order[d]] = at[d] end
      return from
    end)
  end
  function M.narrow(a)
    local d = wrap(a.dim, #a.self.shape)
    local start = a.start < 0 and a.self.shape[d] + a.start or a.start - 1
    return picked(a.self, with(a.self.shape, d, a.length), function(at) return with(at, d, at[d] + start) end)
  end
  function M.slice(a)
    local d, step = wrap(a.dim, #a.self.shape), a.step or 1
    local shape = with(a.self.shape, d, math.ceil((a.stop - a.start) / step))
    return picked(a.self, shape, function(at) return with(at, d, a.start + at[d] * step) end)
  end
  M["select"] = function(a)
    local d = wrap(a.dim, #a.self.shape)
    local i, shape = a.index < 0 and a.self.shape[d] + a.index or a.index - 1, { unpack(a.self.shape) }
    table.remove(shape, d)
    return picked(a.self, shape, function(at)
      local from = { unpack(at) }
      table.insert(from, d, i)
      return from
    end)
  end
  function M.diagonal(a)
    local x, n, offset = a.self, #a.self.shape, a.offset or 0
    local d1, d2 = wrap(a.dim1 or 1, n), wrap(a.dim2 or 2, n)
    local down, right = math.max(0, -offset), math.max(0, offset)
    local shape = {}
    for d, s in ipairs(x.shape) do if d ~= d1 and d ~= d2 then shape[#shape + 1] = s end end
    shape[#shape + 1] = math.max(0, math.min(x.shape[d1] - down, x.shape[d2] - right))
    return picked(x, shape, function(at)
      local from, k, last = {}, 0, at[#at]
      for d = 1, n do
        if d == d1 then from[d] = last + down elseif d == d2 then from[d] = last + right
        else
          k = k + 1
          from[d] = at[k]
        end
      end
      return from
    end)
  end
  -- self is row-major in samples: its storage is its elements.
  local function at_strides(at, stride, offset)
    local k = offset + 1
    for d, c in ipairs(at) do k = k + c * stride[d] end
    return k
  end
  function M.as_strided(a)
    local out = new(a.size)
    each(a.size, function(i, at) out.data[i] = a.self.data[at_strides(at, a.stride, a.storage_offset or 0)] end)
    return out
  end
  function M.as_strided_scatter(a)
    local out = new(a.self.shape)
    for i = 1, #a.self.data do out.data[i] = a.self.data[i] end
    each(a.size, function(i, at) out.data[at_strides(at, a.stride, a.storage_offset)] = a.src.data[i] end)
    return out
  end
  function M.as_strided_backward(a)
    local base, memory = new(a.base_size), {}
    each(a.size, function(i, at)
      local k = at_strides(at, a.stride, a.storage_offset)
      memory[k] = (memory[k] or 0) + a.grad_output.data[i]
    end)
    each(a.base_size, function(i, at) base.data[i] = memory[at_strides(at, a.base_stride, a.base_offset)] or 0 end)
    return base
  end

  -- derivatives ----------------------------------------------------------------------------------

  -- Of a normalisation: key(at) is the group that an element is normalised with, channel(at) its weight. The statistics
  -- are constants with `fixed`.
  local function norm_backward(a, weight_shape, key, channel, fixed)
    local x, dy = a.self, a.grad_output
    local dx, dw, db = new(x.shape), new(weight_shape), new(weight_shape)
    local sums, products, count = {}, {}, {}
    local function normal(i, k) return (x.data[i] - (a.mean and a.mean.data[k] or 0)) * a.rstd.data[k] end
    local function scaled(i, at) return dy.data[i] * (a.weight and a.weight.data[channel(at)] or 1) end
    each(x.shape, function(i, at)
      local k, c = key(at), channel(at)
      sums[k] = (sums[k] or 0) + scaled(i, at)
      products[k] = (products[k] or 0) + scaled(i, at) * normal(i, k)
      count[k] = (count[k] or 0) + 1
      dw.data[c] = dw.data[c] + dy.data[i] * normal(i, k)
      db.data[c] = db.data[c] + dy.data[i]
    end)
    each(x.shape, function(i, at)
      local k = key(at)
      local g = scaled(i, at)
      if not fixed then
        g = g - (a.mean and sums[k] / count[k] or 0) - normal(i, k) * products[k] / count[k]
      end
      dx.data[i] = g * a.rstd.data[k]
    end)
    return dx, dw, db
  end
  local function over_rows(a)
    local shape, lead, inner = a.self.shape, #a.self.shape - a.dims, {}
    for d = lead + 1, #shape do inner[#inner + 1] = shape[d] end
    local step, inner_step = strides(shape), strides(inner)
    local row = numel(inner)
    local function key(at)
      local k = 0
      for d = 1, lead do k = k + at[d] * step[d] end
      return k / row + 1
    end
    local function channel(at)
      local c = 1
      for d = 1, #inner do c = c + at[lead + d] * inner_step[d] end
      return c
    end
    return norm_backward(a, inner, key, channel)
  end
  M.layer_norm_backward = over_rows
  function M.rms_norm_backward(a)
    local dx, dw = over_rows(a)
    return dx, dw
  end
  local function channel_of(at) return at[2] + 1 end
  function M.group_norm_backward(a)
    local each_group = a.self.shape[2] / a.groups
    local function key(at) return at[1] * a.groups + math.floor(at[2] / each_group) + 1 end
    return norm_backward(a, { a.self.shape[2] }, key, channel_of)
  end
  function M.batch_norm_backward(a)
    return norm_backward(a, { a.self.shape[2] }, channel_of, channel_of, not a.training)
  end
  function M.rms_norm(a)
    local inner, x = numel(a.normalized_shape), a.self
    local out = new(x.shape)
    for from = 0, #x.data - 1, inner do
      local squares = 0
      for k = 1, inner do squares = squares + x.data[from + k] ^ 2 end
      for k = 1, inner do
        out.data[from + k] = x.data[from + k] / math.sqrt(squares / inner + (a.eps or 2 ^ -52))
          * (a.weight and a.weight.data[k] or 1)
      end
    end
    return out
  end

  -- With p the softmax of a row: w (p - [class]) (1 - smoothing), and smoothing / C of the sum over all classes.
  function M.cross_entropy_backward(a)
    local classes = a.self.shape[#a.self.shape]
    local out, total = new(a.self.shape), 0
    local function weight(k) return a.weight and a.weight.data[k] or 1 end
    for _, class in ipairs(a.target.data) do
      if class ~= a.ignore_index then total = total + weight(class) end
    end
    for i, class in ipairs(a.target.data) do
      if class ~= a.ignore_index then
        local from, z, all = (i - 1) * classes, 0, 0
        for k = 1, classes do
          z = z + math.exp(a.self.data[from + k])
          all = all + weight(k)
        end
        local g = a.grad_output.data[a.reduction == "none" and i or 1]
        if a.reduction == "mean" then g = g / total end
        for k = 1, classes do
          local p, hit = math.exp(a.self.data[from + k]) / z, k == class and 1 or 0
          out.data[from + k] = g * ((1 - a.label_smoothing) * weight(class) * (p - hit)
            + a.label_smoothing / classes * (p * all - weight(k)))
        end
      end
    end
    return out
  end

  -- ---- connectionist temporal classification, by plain recursion ------------------------------------

  local function log_sum(list)
    local top, sum = -math.huge, 0
    for _, v in ipairs(list) do top = math.max(top, v) end
    if top == -math.huge then return top end
    for _, v in ipairs(list) do sum = sum + math.exp(v - top) end
    return top + math.log(sum)
  end
  -- What the kernels share: sizes, the class of state s (from 0) of sequence n, whether s - 2 may come before s.
  local function ctc(a)
    local q = { T = a.log_probs.shape[1], N = a.log_probs.shape[2], C = a.log_probs.shape[3], S = a.target.shape[2] }
    q.L = 2 * q.S + 1
    function q.class(n, s) return s % 2 == 1 and a.target.data[n * q.S + (s - 1) / 2 + 1] or a.blank end
    function q.skip(n, s) return s % 2 == 1 and s > 1 and q.class(n, s) ~= q.class(n, s - 2) end
    function q.p(step, n, k) return a.log_probs.data[(step * q.N + n) * q.C + k] end
    return q
  end
  function M.ctc_loss_forward(a)
    local q = ctc(a)
    local losses, alpha = new({ q.N }), new({ q.N, q.T, q.L }, -math.huge)
    for n = 0, q.N - 1 do
      local steps, L = a.input_lengths.data[n + 1], 2 * a.target_lengths.data[n + 1] + 1
      local function place(step, s) return (n * q.T + step) * q.L + s + 1 end
      for i = 0, steps - 1 do
        for s = 0, L - 1 do
          local from = { i == 0 and s < 2 and 0 or -math.huge }
          if i > 0 then
            from = { alpha.data[place(i - 1, s)], s > 0 and alpha.data[place(i - 1, s - 1)] or -math.huge,
              q.skip(n, s) and alpha.data[place(i - 1, s - 2)] or -math.huge }
          end
          alpha.data[place(i, s)] = log_sum(from) + q.p(i, n, q.class(n, s))
        end
      end
      losses.data[n + 1] = -log_sum { alpha.data[place(steps - 1, L - 1)],
        L > 1 and alpha.data[place(steps - 1, L - 2)] or -math.huge }
    end
    return losses, alpha
  end
  function M.ctc_loss_backward(a)
    local q = ctc(a)
    local out = new({ q.T, q.N, q.C })
    for n = 0, q.N - 1 do
      local steps, L = a.input_lengths.data[n + 1], 2 * a.target_lengths.data[n + 1] + 1
      local function alpha(step, s) return a.log_alpha.data[(n * q.T + step) * q.L + s + 1] end
      local loss = -log_sum { alpha(steps - 1, L - 1), L > 1 and alpha(steps - 1, L - 2) or -math.huge }
      local behind = {}
      for i = steps - 1, 0, -1 do
        local beta = {}
        for s = 0, L - 1 do
          local from = { i == steps - 1 and s >= L - 2 and 0 or -math.huge }
          if i < steps - 1 then
            from = { behind[s], behind[s + 1] or -math.huge,
              s + 2 < L and q.skip(n, s + 2) and behind[s + 2] or -math.huge }
          end
          local k = q.class(n, s)
          beta[s] = log_sum(from) + q.p(i, n, k)
          local at = (i * q.N + n) * q.C + k
          local share = math.exp(alpha(i, s) + beta[s] - q.p(i, n, k) + loss)
          out.data[at] = out.data[at] - share * a.grad_output.data[n + 1]
        end
        behind = beta
      end
    end
    return out
  end
end
