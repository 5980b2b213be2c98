--- Naive float64 references of the ops in src/ops/places.lua and src/ops/statistics.lua, as spec/ops/references.lua,
-- which includes them. t: the helpers of that file.
return function(M, t)
  local numel, new, strides, each, wrap, along, groups = t.numel, t.new, t.strides, t.each, t.wrap, t.along, t.groups

  local function copied(list)
    local out = {}
    for i, v in ipairs(list) do out[i] = v end
    return out
  end
  local function made(shape, fn)
    local out = new(shape)
    each(shape, function(i, at) out.data[i] = fn(at) end)
    return out
  end
  -- The place (from 1) of coordinates from 0.
  local function place(x, at)
    local i, step = 1, strides(x.shape)
    for d = 1, #x.shape do i = i + at[d] * step[d] end
    return i
  end
  local function with(at, d, v)
    local out = copied(at)
    out[d] = v
    return out
  end
  local function clone(x) return { shape = copied(x.shape), data = copied(x.data) } end
  local function broadcast(a, b)
    local out, n = {}, math.max(#a, #b)
    for d = 1, n do
      local x, y = a[d - n + #a] or 1, b[d - n + #b] or 1
      out[d] = x == 1 and y or x
    end
    return out
  end
  -- The element of x at coordinates of a shape that it broadcasts to.
  local function at_of(x, at)
    local mine = {}
    for d, s in ipairs(x.shape) do mine[d] = s == 1 and 0 or at[d + #at - #x.shape] end
    return x.data[place(x, mine)]
  end
  local function same(x) return clone(x) end

  -- ---- places ----------------------------------------------------------------------------------------

  function M.view_as(a) return { shape = a.other.shape, data = a.self.data } end
  function M.adjoint(a)
    local n = #a.self.shape
    local function swapped(at) return with(with(at, n, at[n - 1]), n - 1, at[n]) end
    return made(swapped(a.self.shape), function(at) return a.self.data[place(a.self, swapped(at))] end)
  end
  function M.atleast(a, name)
    local shape = copied(a.self.shape)
    local least = tonumber(name:match "%d")
    if #shape == 0 then shape[1] = 1 end
    if least > 1 and #shape == 1 then table.insert(shape, 1, 1) end
    if least > 2 and #shape == 2 then shape[3] = 1 end
    return { shape = shape, data = a.self.data }
  end
  function M.rot90(a)
    local x, n = a.self, #a.self.shape
    local d, e = wrap((a.dims or { 1, 2 })[1], n), wrap((a.dims or { 1, 2 })[2], n)
    for _ = 1, a.k % 4 do
      local from = x
      x = made(with(with(x.shape, d, x.shape[e]), e, x.shape[d]), function(at)
        return from.data[place(from, with(with(at, d, at[e]), e, from.shape[e] - 1 - at[d]))]
      end)
    end
    return same(x)
  end
  function M.unfold(a)
    local x, d = a.self, wrap(a.dimension, #a.self.shape)
    local shape = with(x.shape, d, math.floor((x.shape[d] - a.size) / a.step) + 1)
    shape[#shape + 1] = a.size
    return made(shape, function(at)
      return x.data[place(x, with(at, d, at[d] * a.step + at[#at]))]
    end)
  end
  function M.diag_embed(a)
    local n = #a.self.shape + 1
    local d, e, off = wrap(a.dim1 or -2, n), wrap(a.dim2 or -1, n), a.offset
    local size = a.self.shape[n - 1] + math.abs(off)
    local shape, k = {}, 0
    for i = 1, n do
      if i == d or i == e then shape[i] = size else
        k = k + 1
        shape[i] = a.self.shape[k]
      end
    end
    return made(shape, function(at)
      if at[e] - at[d] ~= off then return 0 end
      local rest = {}
      for i = 1, n do if i ~= d and i ~= e then rest[#rest + 1] = at[i] end end
      rest[n - 1] = math.min(at[d], at[e])
      return a.self.data[place(a.self, rest)]
    end)
  end
  function M.diagflat(a)
    return M.diag_embed({ self = { shape = { #a.self.data }, data = a.self.data }, offset = a.offset })
  end
  function M.select_scatter(a)
    local out, d = clone(a.self), wrap(a.dim, #a.self.shape)
    local index = a.index < 0 and a.self.shape[d] + a.index or a.index - 1
    each(a.src.shape, function(i, at)
      local full = copied(at)
      table.insert(full, d, index)
      out.data[place(out, full)] = a.src.data[i]
    end)
    return out
  end
  function M.slice_scatter(a)
    local out, d = clone(a.self), wrap(a.dim or 1, #a.self.shape)
    local start = (a.start or 0) < 0 and a.start + out.shape[d] or a.start or 0
    each(a.src.shape, function(i, at)
      out.data[place(out, with(at, d, start + at[d] * (a.step or 1)))] = a.src.data[i]
    end)
    return out
  end
  function M.diagonal_scatter(a)
    local out, n = clone(a.self), #a.self.shape
    local d, e = wrap(a.dim1 or 1, n), wrap(a.dim2 or 2, n)
    each(a.src.shape, function(i, at)
      local full, k = {}, 0
      for j = 1, n do
        if j == d then full[j] = at[#at] + math.max(0, -a.offset)
        elseif j == e then full[j] = at[#at] + math.max(0, a.offset)
        else
          k = k + 1
          full[j] = at[k]
        end
      end
      out.data[place(out, full)] = a.src.data[i]
    end)
    return out
  end
  function M.index_fill(a)
    local out, d = clone(a.self), wrap(a.dim, #a.self.shape)
    local chosen = {}
    for _, v in ipairs(a.index.data) do chosen[v < 0 and v + out.shape[d] or v - 1] = true end
    local value = type(a.value) == "table" and a.value.data[1] or a.value
    each(out.shape, function(i, at) if chosen[at[d]] then out.data[i] = value end end)
    return out
  end
  local function flat(x, v) return v < 0 and #x.data + v + 1 or v end
  function M.take(a)
    return made(a.index.shape, function(at) return a.self.data[flat(a.self, a.index.data[place(a.index, at)])] end)
  end
  function M.put(a)
    local out = clone(a.self)
    for i, v in ipairs(a.index.data) do
      local p = flat(out, v)
      out.data[p] = a.accumulate and out.data[p] + a.source.data[i] or a.source.data[i]
    end
    return out
  end

  function M.scatter_reduce(a)
    local out, d = clone(a.self), wrap(a.dim, #a.self.shape)
    local lists = {}
    each(a.index.shape, function(i, at)
      local p = place(out, with(at, d, a.index.data[i] - 1))
      lists[p] = lists[p] or (a.include_self and { a.self.data[p] } or {})
      table.insert(lists[p], a.src.data[place(a.src, at)])
    end)
    for p, list in pairs(lists) do
      local v = list[1]
      for i = 2, #list do
        if a.reduce == "prod" then v = v * list[i]
        elseif a.reduce == "amax" then v = math.max(v, list[i])
        elseif a.reduce == "amin" then v = math.min(v, list[i])
        else v = v + list[i] end
      end
      out.data[p] = a.reduce == "mean" and v / #list or v
    end
    return out
  end
  function M.scatter_extreme(a)
    return M.scatter_reduce({ self = a.self, dim = a.dim, index = a.index, src = a.src, include_self = a.include_self,
      reduce = a.largest and "amax" or "amin" })
  end
  function M.index_reduce(a)
    local d = wrap(a.dim, #a.self.shape)
    local index = made(a.source.shape, function(at) return a.index.data[at[d] + 1] end)
    return M.scatter_reduce({ self = a.self, dim = a.dim, index = index, src = a.source, reduce = a.reduce,
      include_self = a.include_self })
  end

  -- ---- running values and order ----------------------------------------------------------------------

  local function running(better, want)
    return function(a)
      local function go(list)
        local values, at, best, position = {}, {}, nil, nil
        for i, v in ipairs(list) do
          if best == nil or v ~= v or best == best and (v == best or better(v, best)) then best, position = v, i end
          values[i], at[i] = best, position
        end
        return want == "at" and at or values
      end
      if #a.self.shape == 0 then return { shape = {}, data = go(a.self.data) } end
      return along(a.self, a.dim, go)
    end
  end
  local function more(x, y) return x > y end
  local function less(x, y) return x < y end
  M.running_max, M.running_min = running(more), running(less)
  local max_at, min_at = running(more, "at"), running(less, "at")
  function M.cummax(a) return M.running_max(a), max_at(a) end
  function M.cummin(a) return M.running_min(a), min_at(a) end
  function M.logcumsumexp(a)
    return along(a.self, a.dim, function(list)
      local out = {}
      for i in ipairs(list) do
        local m, s = -math.huge, 0
        for k = 1, i do m = math.max(m, list[k]) end
        for k = 1, i do s = s + math.exp(list[k] - m) end
        out[i] = m + math.log(s)
      end
      return out
    end)
  end
  local function sorted(list)
    local out = copied(list)
    table.sort(out, function(x, y) return x == x and (y ~= y or x < y) end)
    return out
  end
  function M.msort(a) return along(a.self, 1, sorted) end
  -- Results of fn(list) for the lists along dim.
  local function reduced(x, dim, keepdim, fn)
    if #x.shape == 0 then return { shape = {}, data = { fn(x.data) } } end
    local shape, lists = groups(x, dim, keepdim)
    local out = new(shape)
    for i, list in ipairs(lists) do out.data[i] = fn(list) end
    return out
  end
  function M.mode(a)
    local function find(list)
      local best, most, at = nil, 0, nil
      for _, v in ipairs(list) do
        local n, last = 0, nil
        for k, w in ipairs(list) do if v == w then n, last = n + 1, k end end
        if n > most or n == most and v < best then best, most, at = v, n, last end
      end
      return best, at
    end
    return reduced(a.self, a.dim, a.keepdim, function(l) return (find(l)) end),
      reduced(a.self, a.dim, a.keepdim, function(l) return (select(2, find(l))) end)
  end
  function M.quantile(a, name)
    local points = type(a.q) == "table" and a.q.data or { a.q }
    local parts = {}
    for i, q in ipairs(points) do
      parts[i] = reduced(a.self, a.dim, a.keepdim, function(list)
        local s = sorted(list)
        if name == "nanquantile" then while #s > 0 and s[#s] ~= s[#s] do s[#s] = nil end end
        if #s == 0 or s[#s] ~= s[#s] then return 0 / 0 end
        local r = q * (#s - 1)
        local low, high = s[math.floor(r) + 1], s[math.ceil(r) + 1]
        if a.interpolation == "nearest" then
          return r % 1 == 0.5 and s[2 * math.floor(r / 2 + 0.5) + 1] or s[math.floor(r + 0.5) + 1]
        end
        return low + (high - low) * (r - math.floor(r))
      end)
    end
    if type(a.q) ~= "table" or #a.q.shape == 0 then return parts[1] end
    local shape, data = copied(parts[1].shape), {}
    table.insert(shape, 1, #points)
    for _, p in ipairs(parts) do for _, v in ipairs(p.data) do data[#data + 1] = v end end
    return { shape = shape, data = data }
  end
  local function numbers(list)
    local out = {}
    for _, v in ipairs(list) do if v == v then out[#out + 1] = v end end
    return out
  end
  local function sum(list)
    local s = 0
    for _, v in ipairs(list) do s = s + v end
    return s
  end
  function M.nansum(a) return reduced(a.self, a.dim, a.keepdim, function(l) return sum(numbers(l)) end) end
  function M.nanmean(a)
    return reduced(a.self, a.dim, a.keepdim, function(l) return sum(numbers(l)) / #numbers(l) end)
  end
  function M.histc(a)
    local low, high = a.min or 0, a.max or 0
    if low == high and #a.self.data > 0 then
      low, high = math.huge, -math.huge
      for _, v in ipairs(a.self.data) do low, high = math.min(low, v), math.max(high, v) end
    end
    if low == high then low, high = low - 1, high + 1 end
    local out = new({ a.bins })
    for _, v in ipairs(a.self.data) do
      if v >= low and v <= high then
        local k = math.min(a.bins, math.floor((v - low) / (high - low) * a.bins) + 1)
        out.data[k] = out.data[k] + 1
      end
    end
    return out
  end
  function M.searchsorted(a)
    local s, v = a.sorted_sequence, a.input
    if type(v) ~= "table" then v = { shape = {}, data = { v } } end
    local n, m = s.shape[#s.shape], #s.shape == 1 and #v.data or v.shape[#v.shape]
    local out = new(v.shape)
    for i, x in ipairs(v.data) do
      local row, k = math.floor((i - 1) / m), 0
      while k < n do
        local y = s.data[row * n + k + 1]
        local right = a.right or a.side == "right"
        if (right and y > x) or (not right and y >= x) or (y ~= y and x == x) then break end
        k = k + 1
      end
      out.data[i] = k + 1
    end
    return out
  end
  function M.native_searchsorted(a)
    return M.searchsorted({ sorted_sequence = a.table, input = a.wanted, right = a.right })
  end
  function M.bucketize(a)
    return M.searchsorted({ sorted_sequence = a.boundaries, input = a.input, right = a.right })
  end

  -- ---- numbers of all elements --------------------------------------------------------------------------

  local function norm(list, p)
    local s = 0
    for _, v in ipairs(list) do
      if p == math.huge then s = math.max(s, math.abs(v)) else s = s + math.abs(v) ^ p end
    end
    return p == math.huge and s or s ^ (1 / p)
  end
  function M.dist(a)
    local shape = broadcast(a.self.shape, a.other.shape)
    local off = made(shape, function(at) return at_of(a.self, at) - at_of(a.other, at) end)
    return { shape = {}, data = { norm(off.data, a.p) } }
  end
  function M.vector_norm(a)
    local x = { shape = a.x.shape, data = a.x.data }
    return reduced(x, a.dim, a.keepdim, function(l) return norm(l, a.ord) end)
  end
  function M.renorm(a)
    local out, d = clone(a.self), wrap(a.dim, #a.self.shape)
    for k = 0, out.shape[d] - 1 do
      local list = {}
      each(out.shape, function(i, at) if at[d] == k then list[#list + 1] = a.self.data[i] end end)
      local size = norm(list, a.p)
      if size > a.maxnorm then
        local factor = a.maxnorm / (size + 1e-7)
        each(out.shape, function(i, at) if at[d] == k then out.data[i] = out.data[i] * factor end end)
      end
    end
    return out
  end
  function M.cov(a)
    local vector = #a.self.shape < 2 or a.self.shape[1] == 1
    local m, n = #a.self.shape < 2 and 1 or a.self.shape[1], #a.self.shape < 2 and #a.self.data or a.self.shape[2]
    local function x(i, k) return a.self.data[i * n + k + 1] end
    local mean = {}
    for i = 0, m - 1 do
      mean[i] = 0
      for k = 0, n - 1 do mean[i] = mean[i] + x(i, k) / n end
    end
    local c = made({ m, m }, function(at)
      local s = 0
      for k = 0, n - 1 do s = s + (x(at[1], k) - mean[at[1]]) * (x(at[2], k) - mean[at[2]]) end
      return s / (n - (a.correction or 1))
    end)
    return vector and { shape = {}, data = c.data } or c
  end
  function M.corrcoef(a)
    local c = M.cov(a)
    if #c.shape == 0 then return { shape = {}, data = { 1 } } end
    local m = c.shape[1]
    return made(c.shape, function(at)
      return c.data[at[1] * m + at[2] + 1] / math.sqrt(c.data[at[1] * m + at[1] + 1] * c.data[at[2] * m + at[2] + 1])
    end)
  end
  local function areas(a)
    local y, d = a.y, wrap(a.dim, #a.y.shape)
    local function width(at)
      if not a.x then return a.dx end
      local x = a.x
      if #x.shape == 1 then return x.data[at[d] + 2] - x.data[at[d] + 1] end
      return at_of(x, with(at, d, at[d] + 1)) - at_of(x, at)
    end
    return made(with(y.shape, d, math.max(0, y.shape[d] - 1)), function(at)
      return (y.data[place(y, at)] + y.data[place(y, with(at, d, at[d] + 1))]) / 2 * width(at)
    end), d
  end
  function M.trapezoid(a)
    local x, d = areas(a)
    return reduced(x, d, false, sum)
  end
  function M.cumulative_trapezoid(a)
    local x, d = areas(a)
    return M.cumsum({ self = x, dim = d })
  end

  -- ---- products ---------------------------------------------------------------------------------------

  local function added(x, shape, beta, alpha, fn)
    return made(shape, function(at) return beta * at_of(x, at) + alpha * fn(at) end)
  end
  function M.addmv(a)
    local m, n = a.mat.shape[1], a.mat.shape[2]
    return added(a.self, { m }, a.beta, a.alpha, function(at)
      local s = 0
      for k = 1, n do s = s + a.mat.data[at[1] * n + k] * a.vec.data[k] end
      return s
    end)
  end
  function M.addr(a)
    return added(a.self, { #a.vec1.data, #a.vec2.data }, a.beta, a.alpha, function(at)
      return a.vec1.data[at[1] + 1] * a.vec2.data[at[2] + 1]
    end)
  end
  function M.addbmm(a)
    local b, m, k, n = a.batch1.shape[1], a.batch1.shape[2], a.batch1.shape[3], a.batch2.shape[3]
    return added(a.self, { m, n }, a.beta, a.alpha, function(at)
      local s = 0
      for i = 0, b - 1 do
        for j = 0, k - 1 do
          s = s + a.batch1.data[(i * m + at[1]) * k + j + 1] * a.batch2.data[(i * k + j) * n + at[2] + 1]
        end
      end
      return s
    end)
  end
  function M.inner(a)
    local x, y = a.self, a.other
    if #x.shape == 0 or #y.shape == 0 then
      return made(broadcast(x.shape, y.shape), function(at) return at_of(x, at) * at_of(y, at) end)
    end
    local k, shape = x.shape[#x.shape], {}
    for d = 1, #x.shape - 1 do shape[#shape + 1] = x.shape[d] end
    for d = 1, #y.shape - 1 do shape[#shape + 1] = y.shape[d] end
    local out, rows = new(shape), numel(y.shape) / k
    for i = 1, #out.data do
      local r, c = math.floor((i - 1) / rows), (i - 1) % rows
      for j = 1, k do out.data[i] = out.data[i] + x.data[r * k + j] * y.data[c * k + j] end
    end
    return out
  end
  function M.cross(a)
    local shape = broadcast(a.self.shape, a.other.shape)
    local d = wrap(a.dim, #shape)
    local function get(x, at, k) return at_of(x, with(at, d, k % 3)) end
    return made(shape, function(at)
      local i, x, y = at[d], a.self, a.other
      return get(x, at, i + 1) * get(y, at, i + 2) - get(x, at, i + 2) * get(y, at, i + 1)
    end)
  end
  function M.vecdot(a)
    local shape = broadcast(a.x.shape, a.y.shape)
    local product = made(shape, function(at) return at_of(a.x, at) * at_of(a.y, at) end)
    return reduced(product, wrap(a.dim, #a.x.shape) + #shape - #a.x.shape, false, sum)
  end
  function M.mvlgamma(a)
    local C = require("ffi").C
    return made(a.self.shape, function(at)
      local s = a.p * (a.p - 1) / 4 * math.log(math.pi)
      for i = 0, a.p - 1 do s = s + C.lgamma(a.self.data[place(a.self, at)] - i / 2) end
      return s
    end)
  end
end
