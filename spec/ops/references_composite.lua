--- Naive float64 references of composites and of what only moves elements, as spec/ops/references.lua, which includes
-- them. t: the helpers of that file.
return function(M, t)
  local numel, new, strides, each, wrap = t.numel, t.new, t.strides, t.each, t.wrap
  local along, ordered, picked = t.along, t.ordered, t.picked

  -- A result of this shape whose element at coordinates `at` (from 0) is fn(at).
  local function made(shape, fn)
    local out = new(shape)
    each(shape, function(i, at) out.data[i] = fn(at) end)
    return out
  end
  -- Element of x at coordinates from 0.
  local function get(x, at)
    local i, step = 1, strides(x.shape)
    for d = 1, #x.shape do i = i + at[d] * step[d] end
    return x.data[i]
  end
  local function copied(list)
    local out = {}
    for i, v in ipairs(list) do out[i] = v end
    return out
  end
  -- With coordinate d changed to v.
  local function with(at, d, v)
    local out = copied(at)
    out[d] = v
    return out
  end
  -- Element by element, other operands broadcast.
  local function mapped(shape, fn, ...)
    local xs = { ... }
    return made(shape, function(at)
      local v = {}
      for k, x in ipairs(xs) do
        local mine, skip = {}, #shape - #x.shape
        for d, s in ipairs(x.shape) do mine[d] = s == 1 and 0 or at[d + skip] end
        v[k] = get(x, mine)
      end
      return fn(unpack(v))
    end)
  end
  local function broadcast(a, b)
    local out, n = {}, math.max(#a, #b)
    for d = 1, n do
      local x, y = a[d - n + #a] or 1, b[d - n + #b] or 1
      out[d] = x == 1 and y or x
    end
    return out
  end

  -- order ---------------------------------------------------------------------------------------

  local function first(list, n)
    local out = {}
    for i = 1, n do out[i] = list[i] end
    return out
  end
  -- along, of a fn that gives k elements for each list.
  local function shortened(x, dim, k, fn)
    if #x.shape == 0 then return { shape = {}, data = fn(x.data) } end
    local d = wrap(dim, #x.shape)
    local shape = with(x.shape, d, k)
    local cache = {}
    return made(shape, function(at)
      local list = {}
      for i = 0, x.shape[d] - 1 do list[i + 1] = get(x, with(at, d, i)) end
      local key = table.concat(with(at, d, 0), ",")
      cache[key] = cache[key] or fn(list)
      return cache[key][at[d] + 1]
    end)
  end
  function M.topk(a)
    return shortened(a.self, a.dim, a.k, function(l) return picked(l, first(ordered(l, a.largest), a.k)) end),
      shortened(a.self, a.dim, a.k, function(l) return first(ordered(l, a.largest), a.k) end)
  end
  function M.kthvalue(a)
    local values = shortened(a.self, a.dim, 1, function(l) return { l[ordered(l, false)[a.k]] } end)
    local places = shortened(a.self, a.dim, 1, function(l) return { ordered(l, false)[a.k] } end)
    if not a.keepdim then
      table.remove(values.shape, wrap(a.dim, #a.self.shape))
      places.shape = values.shape
    end
    return values, places
  end
  function M.cumprod(a)
    return along(a.self, a.dim, function(list)
      local p, out = 1, {}
      for i, v in ipairs(list) do
        p = p * v
        out[i] = p
      end
      return out
    end)
  end

  -- moved elements --------------------------------------------------------------------------------

  function M.pad(a)
    local x, n = a.self, #a.self.shape
    local shape, before = copied(x.shape), {}
    for d = 1, n do before[d] = 0 end
    for i = 1, #a.pad, 2 do
      local d = n - (i - 1) / 2
      shape[d], before[d] = shape[d] + a.pad[i] + a.pad[i + 1], a.pad[i]
    end
    return made(shape, function(at)
      local from = {}
      for d = 1, n do
        local i, size = at[d] - before[d], x.shape[d]
        if i < 0 or i >= size then
          if a.mode == "constant" then return a.value end
          if a.mode == "replicate" then i = math.max(0, math.min(size - 1, i))
          elseif a.mode == "circular" then i = i % size
          else i = i < 0 and -i or 2 * (size - 1) - i end
        end
        from[d] = i
      end
      return get(x, from)
    end)
  end
  local function list_of(v) return type(v) == "number" and { v } or v end
  function M.roll(a)
    local x = a.self
    if a.dims == nil then x = { shape = { numel(x.shape) }, data = x.data } end
    local out = made(x.shape, function(at)
      local from = copied(at)
      for k, s in ipairs(list_of(a.shifts)) do
        local d = a.dims and wrap(list_of(a.dims)[k], #x.shape) or 1
        from[d] = (from[d] - s) % x.shape[d]
      end
      return get(x, from)
    end)
    out.shape = a.self.shape
    return out
  end
  function M.repeat_interleave(a)
    local x = a.dim and a.self or { shape = { numel(a.self.shape) }, data = a.self.data }
    local d = wrap(a.dim or 1, #x.shape)
    return made(with(x.shape, d, x.shape[d] * a.repeats), function(at)
      return get(x, with(at, d, math.floor(at[d] / a.repeats)))
    end)
  end
  function M.diag(a)
    local x, k = a.self, a.diagonal
    if #x.shape == 1 then
      local m = x.shape[1] + math.abs(k)
      return made({ m, m }, function(at)
        return at[1] + k == at[2] and x.data[math.min(at[1], at[2]) + 1] or 0
      end)
    end
    local n = 0
    while n - math.min(k, 0) < x.shape[1] and n + math.max(k, 0) < x.shape[2] do n = n + 1 end
    return made({ math.max(0, n) }, function(at) return get(x, { at[1] - math.min(k, 0), at[1] + math.max(k, 0) }) end)
  end
  function M.trace(a)
    local s = 0
    for i = 0, math.min(a.self.shape[1], a.self.shape[2]) - 1 do s = s + get(a.self, { i, i }) end
    return { shape = {}, data = { s } }
  end
  function M.permute(a)
    local dims, shape = a.dims, {}
    for i, d in ipairs(dims) do shape[i] = a.self.shape[wrap(d, #dims)] end
    return made(shape, function(at)
      local from = {}
      for i, d in ipairs(dims) do from[wrap(d, #dims)] = at[i] end
      return get(a.self, from)
    end)
  end
  function M.embedding(a)
    local shape, w = copied(a.index.shape), a.weight.shape[2]
    shape[#shape + 1] = w
    local out = new(shape)
    for i, row in ipairs(a.index.data) do
      for k = 1, w do out.data[(i - 1) * w + k] = a.weight.data[(row - 1) * w + k] end
    end
    return out
  end
  function M.one_hot(a)
    local shape = copied(a.self.shape)
    shape[#shape + 1] = a.num_classes
    local out = new(shape)
    for i, class in ipairs(a.self.data) do out.data[(i - 1) * a.num_classes + class] = 1 end
    return out
  end
  function M.stack(a)
    local n = #a.tensors[1].shape
    local d, shape = a.dim < 0 and a.dim + n + 2 or a.dim, copied(a.tensors[1].shape)
    table.insert(shape, d, #a.tensors)
    return made(shape, function(at)
      local from = copied(at)
      return get(a.tensors[table.remove(from, d) + 1], from)
    end)
  end

  -- interpolation -----------------------------------------------------------------------------------

  local function resized(a)
    local shape = { a.self.shape[1], a.self.shape[2] }
    for i, s in ipairs(list_of(a.size)) do shape[2 + i] = s end
    return shape
  end
  function M.upsample_nearest(a)
    local shape = resized(a)
    return made(shape, function(at)
      local from = copied(at)
      for d = 3, #shape do from[d] = math.floor(at[d] * a.self.shape[d] / shape[d]) end
      return get(a.self, from)
    end)
  end
  function M.upsample_linear(a)
    local shape = resized(a)
    return made(shape, function(at)
      local function value(d, from) -- a weighted sum over the corners
        if d > #shape then return get(a.self, from) end
        local n, m = a.self.shape[d], shape[d]
        local x = a.align_corners and (m > 1 and at[d] * (n - 1) / (m - 1) or 0) or (at[d] + 0.5) * n / m - 0.5
        x = math.max(0, math.min(n - 1, x))
        local low = math.floor(x)
        local high = math.min(n - 1, low + 1)
        return (1 - x + low) * value(d + 1, with(from, d, low)) + (x - low) * value(d + 1, with(from, d, high))
      end
      return value(3, copied(at))
    end)
  end

  -- element by element ------------------------------------------------------------------------------

  local function unary(fn)
    return function(a) return mapped(a.self.shape, function(x) return fn(x, a) end, a.self) end
  end
  M.logit = unary(function(x, a)
    if a.eps then x = math.max(a.eps, math.min(1 - a.eps, x)) end
    return math.log(x / (1 - x))
  end)
  M.hardshrink = unary(function(x, a) return math.abs(x) > a.lambd and x or 0 end)
  M.softshrink = unary(function(x, a)
    return x > a.lambd and x - a.lambd or x < -a.lambd and x + a.lambd or 0
  end)
  M.tanhshrink = unary(function(x) return x - math.tanh(x) end)
  M.threshold = unary(function(x, a) return x > a.threshold and x or a.value end)
  function M.prelu(a)
    local w = a.weight.data
    return made(a.self.shape, function(at)
      local x = get(a.self, at)
      return x > 0 and x or x * (#w > 1 and w[at[2] + 1] or w[1])
    end)
  end
  function M.glu(a)
    local d = wrap(a.dim, #a.self.shape)
    local half = a.self.shape[d] / 2
    return made(with(a.self.shape, d, half), function(at)
      return get(a.self, at) / (1 + math.exp(-get(a.self, with(at, d, at[d] + half))))
    end)
  end
  function M.isclose(a)
    return mapped(broadcast(a.self.shape, a.other.shape), function(x, y)
      local close = x == y or math.abs(x - y) <= a.atol + a.rtol * math.abs(y) and math.abs(y) < math.huge
      return (close or a.equal_nan and x ~= x and y ~= y) and 1 or 0
    end, a.self, a.other)
  end

  -- products --------------------------------------------------------------------------------------

  function M.baddbmm(a)
    local n, m, k, p = a.batch1.shape[1], a.batch1.shape[2], a.batch1.shape[3], a.batch2.shape[3]
    local product = made({ n, m, p }, function(at)
      local s = 0
      for j = 0, k - 1 do s = s + get(a.batch1, { at[1], at[2], j }) * get(a.batch2, { at[1], j, at[3] }) end
      return s
    end)
    return mapped(product.shape, function(s, x) return a.alpha * s + a.beta * x end, product, a.self)
  end
  -- Vectors as a row or a column, leading dimensions broadcast.
  function M.matmul(a)
    local x = #a.self.shape == 1 and { shape = { 1, a.self.shape[1] }, data = a.self.data } or a.self
    local y = #a.other.shape == 1 and { shape = { a.other.shape[1], 1 }, data = a.other.data } or a.other
    local nx, ny = #x.shape, #y.shape
    local lead_x, lead_y = first(x.shape, nx - 2), first(y.shape, ny - 2)
    local shape = broadcast(lead_x, lead_y)
    local n = #shape
    shape[n + 1], shape[n + 2] = x.shape[nx - 1], y.shape[ny]
    local out = made(shape, function(at)
      local from_x, from_y, s = {}, {}, 0
      for d = 1, nx - 2 do from_x[d] = x.shape[d] == 1 and 0 or at[d + n - nx + 2] end
      for d = 1, ny - 2 do from_y[d] = y.shape[d] == 1 and 0 or at[d + n - ny + 2] end
      from_x[nx - 1], from_y[ny] = at[n + 1], at[n + 2]
      for j = 0, x.shape[nx] - 1 do
        from_x[nx], from_y[ny - 1] = j, j
        s = s + get(x, from_x) * get(y, from_y)
      end
      return s
    end)
    if #a.other.shape == 1 then table.remove(out.shape) end
    if #a.self.shape == 1 then table.remove(out.shape, n + 1) end
    return out
  end

  -- losses ----------------------------------------------------------------------------------------

  local function loss(fn)
    return function(a)
      local out = mapped(broadcast(a.self.shape, a.target.shape), function(x, y, w) return fn(x, y, a) * (w or 1) end,
        a.self, a.target, a.weight)
      if a.reduction == "none" then return out end
      local s, n = 0, #out.data
      for _, v in ipairs(out.data) do s = s + v end
      if a.reduction == "mean" then s = s / n elseif a.reduction == "batchmean" then s = s / a.self.shape[1] end
      return { shape = {}, data = { s } }
    end
  end
  M.smooth_l1_loss = loss(function(x, y, a)
    local d = math.abs(x - y)
    return d < a.beta and d * d / (2 * a.beta) or d - a.beta / 2
  end)
  M.huber_loss = loss(function(x, y, a)
    local d = math.abs(x - y)
    return d < a.delta and d * d / 2 or a.delta * (d - a.delta / 2)
  end)
  M.kl_div = loss(function(x, y, a)
    if a.log_target then return math.exp(y) * (y - x) end
    return y > 0 and y * (math.log(y) - x) or 0
  end)
  M.binary_cross_entropy = loss(function(x, y)
    local function log(v) return math.log(math.max(v, math.exp(-100))) end
    return -(y * log(x) + (1 - y) * log(1 - x))
  end)

  -- derivatives of softmax --------------------------------------------------------------------------

  local function softmax_grad(fn)
    return function(a)
      local pairs_of = {}
      along(a.output, a.dim, function(list)
        pairs_of[#pairs_of + 1] = list
        return list
      end)
      local k = 0
      return along(a.grad_output, a.dim, function(g)
        k = k + 1
        return fn(g, pairs_of[k])
      end)
    end
  end
  M.softmax_backward = softmax_grad(function(g, y)
    local s, out = 0, {}
    for i, v in ipairs(g) do s = s + v * y[i] end
    for i, v in ipairs(g) do out[i] = y[i] * (v - s) end
    return out
  end)
  M.log_softmax_backward = softmax_grad(function(g, y)
    local s, out = 0, {}
    for _, v in ipairs(g) do s = s + v end
    for i, v in ipairs(g) do out[i] = v - math.exp(y[i]) * s end
    return out
  end)
end
