--- Independent float64 results of structured ops: naive loops over flat row-major lists, by op name.
-- reference(a) takes the arguments by name (tensors as { shape=, data= }, dimensions from 1) and returns one
-- { shape=, data= } per result.
local M = {}

local function numel(shape)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  return n
end

local function new(shape, value)
  local data = {}
  for i = 1, numel(shape) do data[i] = value or 0 end
  return { shape = shape, data = data }
end

local function strides(shape)
  local out, step = {}, 1
  for d = #shape, 1, -1 do
    out[d] = step
    step = step * shape[d]
  end
  return out
end

-- Calls fn(flat position from 1, coordinates from 0) for every element.
local function each(shape, fn)
  local at = {}
  for d = 1, #shape do at[d] = 0 end
  for i = 1, numel(shape) do
    fn(i, at)
    local d = #shape
    while d > 0 do
      at[d] = at[d] + 1
      if at[d] < shape[d] then break end
      at[d] = 0
      d = d - 1
    end
  end
end

local function wrap(dim, n) return dim < 0 and dim + n + 1 or dim end

local function dims_of(dim, n)
  local set = {}
  if type(dim) == "number" then dim = { dim } end
  if dim == nil or #dim == 0 then
    for d = 1, n do set[d] = true end
  else
    for _, d in ipairs(dim) do set[wrap(d, n)] = true end
  end
  return set
end

-- The elements that each result of a reduction is made of: shape, list of lists.
local function groups(x, dim, keepdim)
  local set, shape, kept = dims_of(dim, #x.shape), {}, {}
  for d, s in ipairs(x.shape) do
    if set[d] then
      if keepdim then shape[#shape + 1] = 1 end
    else
      shape[#shape + 1] = s
      kept[#kept + 1] = d
    end
  end
  local sizes = {}
  for i, d in ipairs(kept) do sizes[i] = x.shape[d] end
  local step, lists = strides(sizes), {}
  for i = 1, numel(sizes) do lists[i] = {} end
  each(x.shape, function(i, at)
    local k = 1
    for j, d in ipairs(kept) do k = k + at[d] * step[j] end
    table.insert(lists[k], x.data[i])
  end)
  return shape, lists
end

local function reduction(fn)
  return function(a)
    local shape, lists = groups(a.self, a.dim, a.keepdim)
    local out = new(shape)
    for i, list in ipairs(lists) do out.data[i] = fn(list, a) end
    return out
  end
end

local function sum(list)
  local s = 0
  for _, v in ipairs(list) do s = s + v end
  return s
end
local function max(list)
  local m = -math.huge
  for _, v in ipairs(list) do if v > m then m = v end end
  return m
end
local function var(list, a)
  local mean, s = sum(list) / #list, 0
  for _, v in ipairs(list) do s = s + (v - mean) ^ 2 end
  return s / math.max(0, #list - a.correction)
end
local function logsumexp(list)
  local m, s = max(list), 0
  for _, v in ipairs(list) do s = s + math.exp(v - m) end
  return m + math.log(s)
end

M.sum = reduction(sum)
M.mean = reduction(function(list) return sum(list) / #list end)
M.prod = reduction(function(list)
  local p = 1
  for _, v in ipairs(list) do p = p * v end
  return p
end)
M.amax = reduction(max)
M.amin = reduction(function(list)
  local m = math.huge
  for _, v in ipairs(list) do if v < m then m = v end end
  return m
end)
M.var = reduction(var)
M.std = reduction(function(list, a) return math.sqrt(var(list, a)) end)
M.logsumexp = reduction(logsumexp)
M.any = reduction(function(list)
  for _, v in ipairs(list) do if v ~= 0 then return 1 end end
  return 0
end)
M.all = reduction(function(list)
  for _, v in ipairs(list) do if v == 0 then return 0 end end
  return 1
end)
M.count_nonzero = reduction(function(list)
  local n = 0
  for _, v in ipairs(list) do if v ~= 0 then n = n + 1 end end
  return n
end)
M.norm2 = reduction(function(list)
  local s = 0
  for _, v in ipairs(list) do s = s + v * v end
  return math.sqrt(s)
end)
M.norm = reduction(function(list, a)
  local s = 0
  for _, v in ipairs(list) do
    if a.p == math.huge then s = math.max(s, math.abs(v)) else s = s + math.abs(v) ^ a.p end
  end
  return a.p == math.huge and s or s ^ (1 / a.p)
end)

local function position_of(better)
  return function(list)
    local at = 1
    for i, v in ipairs(list) do if better(v, list[at]) then at = i end end
    return at
  end
end
local first_max = position_of(function(a, b) return a > b end)
local first_min = position_of(function(a, b) return a < b end)
M.argmax, M.argmin = reduction(first_max), reduction(first_min)
local function pair(first)
  local values, positions = reduction(function(list) return list[first(list)] end), reduction(first)
  return function(a) return values(a), positions(a) end
end
M.max_dim, M.min_dim = pair(first_max), pair(first_min)

-- along one dimension: fn(list) -> list
local function along(x, dim, fn)
  dim = wrap(dim, #x.shape)
  local out, step, n = new(x.shape), strides(x.shape)[dim], x.shape[dim]
  each(x.shape, function(i, at)
    if at[dim] ~= 0 then return end
    local list = {}
    for k = 1, n do list[k] = x.data[i + (k - 1) * step] end
    for k, v in ipairs(fn(list)) do out.data[i + (k - 1) * step] = v end
  end)
  return out
end

function M.cumsum(a)
  return along(a.self, a.dim, function(list)
    local s, out = 0, {}
    for i, v in ipairs(list) do
      s = s + v
      out[i] = s
    end
    return out
  end)
end
local function softmax(list)
  local z, out = logsumexp(list), {}
  for i, v in ipairs(list) do out[i] = math.exp(v - z) end
  return out
end
function M.softmax(a) return along(a.self, a.dim, softmax) end
function M.log_softmax(a)
  return along(a.self, a.dim, function(list)
    local z, out = logsumexp(list), {}
    for i, v in ipairs(list) do out[i] = v - z end
    return out
  end)
end
function M.flip(a)
  local out = a.self
  for _, d in ipairs(a.dims) do
    out = along(out, d, function(list)
      local r = {}
      for i, v in ipairs(list) do r[#list + 1 - i] = v end
      return r
    end)
  end
  return out
end

local function triangle(keep)
  return function(a)
    local out, n = new(a.self.shape), #a.self.shape
    each(a.self.shape, function(i, at)
      if keep(at[n] - at[n - 1], a.diagonal) then out.data[i] = a.self.data[i] end
    end)
    return out
  end
end
M.tril = triangle(function(off, d) return off <= d end)
M.triu = triangle(function(off, d) return off >= d end)

-- products ----------------------------------------------------------------------------------------

-- (n, k) by (k, m), with offsets into the flat lists
local function multiply(out, o, x, xo, y, yo, n, k, m)
  for i = 0, n - 1 do
    for j = 0, m - 1 do
      local s = 0
      for l = 0, k - 1 do s = s + x[xo + i * k + l + 1] * y[yo + l * m + j + 1] end
      out[o + i * m + j + 1] = s
    end
  end
end

function M.mm(a)
  local x, y = a.self, a.mat2
  local n, k, m = x.shape[1], x.shape[2], y.shape[2]
  local out = new({ n, m })
  multiply(out.data, 0, x.data, 0, y.data, 0, n, k, m)
  return out
end
function M.bmm(a)
  local x, y = a.self, a.mat2
  local b, n, k, m = x.shape[1], x.shape[2], x.shape[3], y.shape[3]
  local out = new({ b, n, m })
  for i = 0, b - 1 do multiply(out.data, i * n * m, x.data, i * n * k, y.data, i * k * m, n, k, m) end
  return out
end

local function expand(x, shape)
  local out, step = new(shape), strides(x.shape)
  each(shape, function(i, at)
    local k = 1
    for d = 1, #x.shape do
      if x.shape[d] > 1 then k = k + at[#shape - #x.shape + d] * step[d] end
    end
    out.data[i] = x.data[k]
  end)
  return out
end
function M.expand(a)
  local shape, n = {}, #a.size - #a.self.shape
  for i, s in ipairs(a.size) do shape[i] = s == -1 and a.self.shape[i - n] or s end
  return expand(a.self, shape)
end

function M.addmm(a)
  local out = M.mm { self = a.mat1, mat2 = a.mat2 }
  local c = expand(a.self, out.shape)
  for i, v in ipairs(out.data) do out.data[i] = a.beta * c.data[i] + a.alpha * v end
  return out
end
function M.dot(a)
  local s = 0
  for i, v in ipairs(a.self.data) do s = s + v * a.other.data[i] end
  return { shape = {}, data = { s } }
end
function M.mv(a)
  local out = M.mm { self = a.self, mat2 = { shape = { #a.vec.data, 1 }, data = a.vec.data } }
  return { shape = { a.self.shape[1] }, data = out.data }
end
function M.outer(a)
  local out = M.mm { self = { shape = { #a.self.data, 1 }, data = a.self.data }, mat2 = { shape = { 1,
    #a.vec2.data }, data = a.vec2.data } }
  return out
end
function M.linear(a)
  local x, w = a.input, a.weight
  local k, m = w.shape[2], w.shape[1]
  local shape = {}
  for i, s in ipairs(x.shape) do shape[i] = s end
  shape[#shape] = m
  local out = new(shape)
  for i = 0, numel(shape) / m - 1 do
    for j = 0, m - 1 do
      local s = a.bias and a.bias.data[j + 1] or 0
      for l = 1, k do s = s + x.data[i * k + l] * w.data[j * k + l] end
      out.data[i * m + j + 1] = s
    end
  end
  return out
end

-- joining and indexing ----------------------------------------------------------------------------

function M.cat(a)
  local list = a.tensors
  local dim, shape = wrap(a.dim, #list[1].shape), {}
  for i, s in ipairs(list[1].shape) do shape[i] = s end
  shape[dim] = 0
  for _, t in ipairs(list) do shape[dim] = shape[dim] + t.shape[dim] end
  local out, step, from = new(shape), strides(shape), 0
  for _, t in ipairs(list) do
    each(t.shape, function(i, at)
      local k = 1
      for d = 1, #at do k = k + (at[d] + (d == dim and from or 0)) * step[d] end
      out.data[k] = t.data[i]
    end)
    from = from + t.shape[dim]
  end
  return out
end
function M.gather(a)
  local dim, step, out = wrap(a.dim, #a.self.shape), strides(a.self.shape), new(a.index.shape)
  each(a.index.shape, function(i, at)
    local k = 1
    for d = 1, #at do k = k + (d == dim and a.index.data[i] - 1 or at[d]) * step[d] end
    out.data[i] = a.self.data[k]
  end)
  return out
end

local function copy(x)
  local out = { shape = x.shape, data = {} }
  for i, v in ipairs(x.data) do out.data[i] = v end
  return out
end

local function scattering(put)
  return function(a)
    local src = a.src or a.value
    local dim, step, out = wrap(a.dim, #a.self.shape), strides(a.self.shape), copy(a.self)
    local from = type(src) == "table" and strides(src.shape)
    each(a.index.shape, function(i, at)
      local k, j = 1, 1
      for d = 1, #at do
        k = k + (d == dim and a.index.data[i] - 1 or at[d]) * step[d]
        if from then j = j + at[d] * from[d] end
      end
      out.data[k] = put(out.data[k], from and src.data[j] or src)
    end)
    return out
  end
end
local function replace(_, v) return v end
local function add(old, v) return old + v end
M.scatter, M.scatter_add = scattering(replace), scattering(add)

function M.index_select(a)
  local dim, shape = wrap(a.dim, #a.self.shape), {}
  for i, s in ipairs(a.self.shape) do shape[i] = s end
  shape[dim] = #a.index.data
  local out, step = new(shape), strides(a.self.shape)
  each(shape, function(i, at)
    local k = 1
    for d = 1, #at do k = k + (d == dim and a.index.data[at[d] + 1] - 1 or at[d]) * step[d] end
    out.data[i] = a.self.data[k]
  end)
  return out
end
local function putting(put)
  return function(a)
    local dim, step, out = wrap(a.dim, #a.self.shape), strides(a.self.shape), copy(a.self)
    each(a.source.shape, function(i, at)
      local k = 1
      for d = 1, #at do k = k + (d == dim and a.index.data[at[d] + 1] - 1 or at[d]) * step[d] end
      out.data[k] = put(out.data[k], a.source.data[i])
    end)
    return out
  end
end
M.index_add, M.index_copy = putting(add), putting(replace)

-- Calls fn(i, at) for the elements of what gather_nd reads: place i of it, place at of self.
local function each_place(a, fn)
  local dims, shape = type(a.dims) == "table" and a.dims or { a.dims }, {}
  local self, step = a.self.shape, strides(a.self.shape)
  local k, together, named, rest = #dims, true, {}, {}
  for j, d in ipairs(dims) do
    named[wrap(d, #self)] = j
    together = together and wrap(d, #self) == wrap(dims[1], #self) + j - 1
  end
  local before, n = together and wrap(dims[1], #self) - 1 or 0, #a.index.shape - (k > 1 and 1 or 0)
  for d = 1, #self do if not named[d] then rest[#rest + 1] = d end end
  for i = 1, before do shape[i] = self[rest[i]] end
  for i = 1, n do shape[before + i] = a.index.shape[i] end
  for i = before + 1, #rest do shape[n + i] = self[rest[i]] end
  each(shape, function(i, at)
    local place, row = 1, 0
    for d = 1, n do row = row * a.index.shape[d] + at[before + d] end
    for d = 1, #self do
      local j = named[d]
      if j then
        local x = a.index.data[row * k + j]
        place = place + (x < 0 and x + self[d] or x - 1) * step[d]
      end
    end
    for r, d in ipairs(rest) do place = place + at[r <= before and r or r + n] * step[d] end
    fn(i, place)
  end)
  return shape
end
function M.gather_nd(a)
  local data = {}
  local shape = each_place(a, function(i, at) data[i] = a.self.data[at] end)
  return { shape = shape, data = data }
end
M["scatter_nd_"] = function(a)
  local out, src = copy(a.self), expand(a.src, each_place(a, function() end))
  each_place(a, function(i, at)
    out.data[at] = a.accumulate and out.data[at] + src.data[i] or src.data[i]
  end)
  return out
end

function M.masked_select(a)
  local shape = {}
  for i = 1, math.max(#a.self.shape, #a.mask.shape) do
    local x, m = a.self.shape[#a.self.shape + 1 - i] or 1, a.mask.shape[#a.mask.shape + 1 - i] or 1
    table.insert(shape, 1, x == 1 and m or x)
  end
  local x, m, data = expand(a.self, shape), expand(a.mask, shape), {}
  for i, v in ipairs(x.data) do if m.data[i] ~= 0 then data[#data + 1] = v end end
  return { shape = { #data }, data = data }
end
function M.masked_scatter(a)
  local out, m, k = copy(a.self), expand(a.mask, a.self.shape), 0
  for i in ipairs(out.data) do
    if m.data[i] ~= 0 then
      k = k + 1
      out.data[i] = a.source.data[k]
    end
  end
  return out
end
function M.nonzero(a)
  local data, n = {}, 0
  each(a.self.shape, function(i, at)
    if a.self.data[i] ~= 0 then
      n = n + 1
      for d = 1, #at do data[#data + 1] = at[d] + 1 end
    end
  end)
  return { shape = { n, #a.self.shape }, data = data }
end

-- shapes ------------------------------------------------------------------------------------------

function M.permute(a)
  local shape, step, source = {}, strides(a.self.shape), {}
  for i, d in ipairs(a.dims) do
    d = wrap(d, #a.self.shape)
    shape[i], source[i] = a.self.shape[d], step[d]
  end
  local out = new(shape)
  each(shape, function(i, at)
    local k = 1
    for d = 1, #at do k = k + at[d] * source[d] end
    out.data[i] = a.self.data[k]
  end)
  return out
end
function M.transpose(a)
  local n, dims = #a.self.shape, {}
  for i = 1, n do dims[i] = i end
  local x, y = wrap(a.dim0, n), wrap(a.dim1, n)
  dims[x], dims[y] = y, x
  return M.permute { self = a.self, dims = dims }
end

-- losses ------------------------------------------------------------------------------------------

local function reduced(list, weight, how, n)
  if how == "none" then return { shape = { n }, data = list } end
  local s = sum(list)
  return { shape = {}, data = { how == "sum" and s or s / weight } }
end
function M.cross_entropy(a)
  local n, c, list, total = a.self.shape[1], a.self.shape[2], {}, 0
  for i = 1, n do
    local row, class = {}, a.target.data[i]
    for k = 1, c do row[k] = a.self.data[(i - 1) * c + k] end
    local z = logsumexp(row)
    if class == a.ignore_index then
      list[i] = 0
    else
      local w, smooth = a.weight and a.weight.data[class] or 1, 0
      for k = 1, c do smooth = smooth + (a.weight and a.weight.data[k] or 1) * (z - row[k]) end
      list[i] = (1 - a.label_smoothing) * w * (z - row[class]) + a.label_smoothing / c * smooth
      total = total + w
    end
  end
  return reduced(list, total, a.reduction, n)
end
function M.nll_loss(a)
  local n, c, list = a.self.shape[1], a.self.shape[2], {}
  for i = 1, n do list[i] = -a.self.data[(i - 1) * c + a.target.data[i]] end
  return reduced(list, n, a.reduction, n)
end
local function elementwise_loss(fn)
  return function(a)
    local list = {}
    for i, v in ipairs(a.self.data) do list[i] = fn(v, a.target.data[i]) end
    if a.reduction == "none" then return { shape = a.self.shape, data = list } end
    return reduced(list, #list, a.reduction)
  end
end
M.mse_loss = elementwise_loss(function(x, y) return (x - y) ^ 2 end)
M.l1_loss = elementwise_loss(function(x, y) return math.abs(x - y) end)
M.binary_cross_entropy_with_logits = elementwise_loss(function(x, y)
  return math.max(x, 0) - x * y + math.log(1 + math.exp(-math.abs(x)))
end)

-- optimizer steps: they change the lists in place and give those that they write to ----------------------

local function each_element(a, fn)
  for k, p in ipairs(a.params) do
    for i in ipairs(p.data) do fn(k, i) end
  end
end
function M.sgd_step(a)
  local buffers = a.momentum_buffers
  if a.found_inf and a.found_inf.data[1] ~= 0 then return { a.params, buffers } end
  local scale = (a.maximize and -1 or 1) * (a.grad_scale and a.grad_scale.data[1] or 1)
  each_element(a, function(k, i)
    local p = a.params[k].data
    local d = scale * a.grads[k].data[i] + a.weight_decay * p[i]
    if buffers[k] then
      local b = buffers[k].data
      b[i] = a.first and d or a.momentum * b[i] + (1 - a.dampening) * d
      d = a.nesterov and d + a.momentum * b[i] or b[i]
    end
    p[i] = p[i] - a.lr * d
  end)
  return { a.params, buffers }
end
function M.adam_step(a)
  if a.found_inf and a.found_inf.data[1] ~= 0 then return { a.params, a.exp_avgs, a.exp_avg_sqs, a.max_exp_avg_sqs } end
  local scale = (a.maximize and -1 or 1) * (a.grad_scale and a.grad_scale.data[1] or 1)
  each_element(a, function(k, i)
    local p, m, v = a.params[k].data, a.exp_avgs[k].data, a.exp_avg_sqs[k].data
    local d = scale * a.grads[k].data[i]
    if a.decoupled then p[i] = p[i] * (1 - a.lr * a.weight_decay) else d = d + a.weight_decay * p[i] end
    m[i] = a.beta1 * m[i] + (1 - a.beta1) * d
    v[i] = a.beta2 * v[i] + (1 - a.beta2) * d * d
    local square = v[i]
    if a.amsgrad then
      local top = a.max_exp_avg_sqs[k].data
      top[i] = math.max(top[i], v[i])
      square = top[i]
    end
    local mean, root = m[i] / (1 - a.beta1 ^ a.step), math.sqrt(square / (1 - a.beta2 ^ a.step))
    p[i] = p[i] - a.lr * mean / (root + a.eps)
  end)
  return { a.params, a.exp_avgs, a.exp_avg_sqs, a.max_exp_avg_sqs }
end

-- loss scaling

function M.amp_unscale(a)
  local inv, found = a.inv_scale.data[1], a.found_inf.data
  for _, g in ipairs(a.grads) do
    for i, v in ipairs(g.data) do
      if v - v ~= 0 then found[1] = 1 end
      g.data[i] = v * inv
    end
  end
  return { a.grads, a.found_inf }
end
function M.amp_update_scale(a)
  local scale, tracker = a.scale.data, a.growth_tracker.data
  if a.found_inf.data[1] ~= 0 then
    scale[1], tracker[1] = scale[1] * a.backoff_factor, 0
  elseif tracker[1] + 1 >= a.growth_interval then
    local grown = scale[1] * a.growth_factor
    scale[1], tracker[1] = grown == math.huge and scale[1] or grown, 0
  else
    tracker[1] = tracker[1] + 1
  end
  return { a.scale, a.growth_tracker }
end

for name, fn in pairs(require "ops.references_conv") do M[name] = fn end
for name, fn in pairs(require "ops.references_optim") do M[name] = fn end
-- normalisation and order -----------------------------------------------------------------------

-- Elements that share key(at) are normalised together; w and b at param(at) (from 1).
local function normalised(x, eps, key, w, b, param, rms)
  local lists, out = {}, new(x.shape)
  each(x.shape, function(i, at)
    local k = key(at)
    lists[k] = lists[k] or {}
    table.insert(lists[k], x.data[i])
  end)
  local mean, rstd = {}, {}
  for k, list in pairs(lists) do
    mean[k] = rms and 0 or sum(list) / #list
    local s = 0
    for _, v in ipairs(list) do s = s + (v - mean[k]) ^ 2 end
    rstd[k] = 1 / math.sqrt(s / #list + eps)
  end
  each(x.shape, function(i, at)
    local k, p = key(at), param(at)
    out.data[i] = (x.data[i] - mean[k]) * rstd[k] * (w and w.data[p] or 1) + (b and b.data[p] or 0)
  end)
  return out, mean, rstd
end
-- The position (from 1) of the first (last) n coordinates.
local function flat(shape, from, to)
  return function(at)
    local k = 0
    for d = from, to do k = k * shape[d] + at[d] end
    return k + 1
  end
end
local function rows(a, dims, rms)
  local n, stat = #a.self.shape, {}
  for d = 1, n do stat[d] = d <= n - dims and a.self.shape[d] or 1 end
  local out, mean, rstd = normalised(a.self, a.eps, flat(a.self.shape, 1, n - dims), a.weight, a.bias,
    flat(a.self.shape, n - dims + 1, n), rms)
  return out, { shape = stat, data = mean }, { shape = stat, data = rstd }
end
function M.native_layer_norm(a) return rows(a, a.dims) end
function M.layer_norm(a) return (rows(a, #a.normalized_shape)) end
function M.native_rms_norm(a)
  local out, _, rstd = rows(a, a.dims, true)
  return out, rstd
end
local function by_group(a, n)
  local each_group = a.self.shape[2] / n
  local function key(at) return at[1] * n + math.floor(at[2] / each_group) + 1 end
  local out, mean, rstd = normalised(a.self, a.eps, key, a.weight, a.bias, function(at) return at[2] + 1 end)
  local stat = { a.self.shape[1], n }
  return out, { shape = stat, data = mean }, { shape = stat, data = rstd }
end
function M.native_group_norm(a) return by_group(a, a.groups) end
function M.group_norm(a) return (by_group(a, a.num_groups)) end
function M.instance_norm(a) return (by_group(a, a.self.shape[2])) end
local function batch(a)
  local function channel(at) return at[2] + 1 end
  local c = { a.self.shape[2] }
  if a.training then
    local out, mean, rstd = normalised(a.self, a.eps, channel, a.weight, a.bias, channel)
    return out, { shape = c, data = mean }, { shape = c, data = rstd }
  end
  local out, rstd = new(a.self.shape), new(c)
  for k, v in ipairs(a.running_var.data) do rstd.data[k] = 1 / math.sqrt(v + a.eps) end
  each(a.self.shape, function(i, at)
    local k = channel(at)
    out.data[i] = (a.self.data[i] - a.running_mean.data[k]) * rstd.data[k] * (a.weight and a.weight.data[k] or 1) +
      (a.bias and a.bias.data[k] or 0)
  end)
  return out, { shape = c, data = a.running_mean.data }, rstd
end
M.native_batch_norm = batch
function M.batch_norm(a) return (batch(a)) end

-- The order of a list: values (NaN is the largest) and where they were, stable.
local function ordered(list, descending)
  local order = {}
  for i = 1, #list do order[i] = i end
  local function less(x, y)
    if x ~= x then return false end
    return y ~= y or x < y
  end
  for i = 2, #list do -- insertion
    local at, j = order[i], i
    local x = list[at]
    while j > 1 do
      local y = list[order[j - 1]]
      local before
      if descending then before = less(y, x) else before = less(x, y) end
      if not before then break end
      order[j] = order[j - 1]
      j = j - 1
    end
    order[j] = at
  end
  return order
end
local function picked(list, order)
  local out = {}
  for i, k in ipairs(order) do out[i] = list[k] end
  return out
end
function M.sort(a)
  return along(a.self, a.dim, function(list) return picked(list, ordered(list, a.descending)) end),
    along(a.self, a.dim, function(list) return ordered(list, a.descending) end)
end
function M.argsort(a)
  return along(a.self, a.dim, function(list) return ordered(list, a.descending) end)
end

-- Attention: element (b, h, i, d) of a (B, H, T, D) list; several heads of query share one of key.
local function head_at(t, b, h, i, d)
  local n = t.shape
  return t.data[((b * n[2] + h) * n[3] + i) * n[4] + d + 1]
end
local function scores(a, fn) -- fn(b, h, i, { j = score }) for every row
  local q, k, m = a.query.shape, a.key.shape, a.attn_mask
  local step, bool = m and strides(m.shape), true
  for _, v in ipairs(m and m.data or {}) do bool = bool and (v == 0 or v == 1) end -- samples add no such masks
  for b = 0, q[1] - 1 do
    for h = 0, q[2] - 1 do
      for i = 0, q[3] - 1 do
        local row = {}
        for j = 0, k[3] - 1 do
          local s = 0
          for d = 0, q[4] - 1 do
            s = s + head_at(a.query, b, h, i, d) * head_at(a.key, b, math.floor(h * k[2] / q[2]), j, d)
          end
          s = s * a.scale
          if m then
            local at, from = { b, h, i, j }, 1
            for d = 1, #m.shape do
              if m.shape[d] > 1 then from = from + at[4 - #m.shape + d] * step[d] end
            end
            local v = m.data[from]
            if bool then s = v ~= 0 and s or -math.huge else s = s + v end
          end
          if a.is_causal and j > i then s = -math.huge end
          row[j] = s
        end
        fn(b, h, i, row)
      end
    end
  end
end
function M.attention_forward(a)
  local q, v = a.query.shape, a.value.shape
  local out, lse = new({ q[1], q[2], q[3], v[4] }), new({ q[1], q[2], q[3] })
  scores(a, function(b, h, i, row)
    local top, total, at = -math.huge, 0, (b * q[2] + h) * q[3] + i
    for j = 0, v[3] - 1 do top = math.max(top, row[j]) end
    if top == -math.huge then
      lse.data[at + 1] = math.huge
      return
    end
    for j = 0, v[3] - 1 do total = total + math.exp(row[j] - top) end
    lse.data[at + 1] = top + math.log(total)
    for d = 0, v[4] - 1 do
      local x = 0
      for j = 0, v[3] - 1 do
        x = x + math.exp(row[j] - top) / total * head_at(a.value, b, math.floor(h * v[2] / q[2]), j, d)
      end
      out.data[at * v[4] + d + 1] = x
    end
  end)
  return out, lse, new({ 2 })
end
function M.rope(a)
  local out, n = new(a.self.shape), #a.self.shape
  local D = a.self.shape[n]
  local half = D / 2
  for i = 0, #a.self.data / D - 1 do
    for k = 0, half - 1 do
      -- the place in cos and sin, which are broadcast
      local width = a.cos.shape[#a.cos.shape]
      local rest, at, step = i, width > 1 and k or 0, width
      for d = n - 1, 1, -1 do
        local own = a.cos.shape[#a.cos.shape - (n - d)] or 1
        if own > 1 then at = at + rest % a.self.shape[d] * step end
        rest, step = math.floor(rest / a.self.shape[d]), step * own
      end
      local p, q = i * D + k, i * D + k + half
      if a.interleaved then p, q = i * D + 2 * k, i * D + 2 * k + 1 end
      local x, y, c, s = a.self.data[p + 1], a.self.data[q + 1], a.cos.data[at + 1], a.sin.data[at + 1]
      out.data[p + 1], out.data[q + 1] = x * c - y * s, y * c + x * s
    end
  end
  return out
end
function M.kv_write_(a)
  for _, name in ipairs { "k", "v" } do
    local pool, t = a[name .. "_pool"], a[name]
    local K, P, D = pool.shape[2], pool.shape[3], pool.shape[4]
    for i = 1, t.shape[1] do
      local slot = a.slots.data[i] - 1
      for h = 0, K - 1 do
        for d = 1, D do
          pool.data[((math.floor(slot / P) * K + h) * P + slot % P) * D + d] = t.data[((i - 1) * K + h) * D + d]
        end
      end
    end
  end
  return { a.k_pool, a.v_pool }
end
function M.paged_attention(a)
  local N, H, D = unpack(a.query.shape)
  local _, K, P, V = unpack(a.v_pool.shape)
  local out, row = new({ N, H, V }), 0
  for s = 1, a.table.shape[1] do
    for i = 1, a.counts.data[s] do
      local keys = a.lengths.data[s] - a.counts.data[s] + i
      for h = 0, H - 1 do
        local function place(t)
          local block = a.table.data[(s - 1) * a.table.shape[2] + math.floor(t / P) + 1] - 1
          return (block * K + math.floor(h * K / H)) * P + t % P
        end
        local w, total, top = {}, 0, a.sinks and a.sinks.data[h + 1] or -math.huge
        local sink, first = top, a.window and math.max(0, keys - a.window) or 0
        for t = first, keys - 1 do
          local x = 0
          for d = 1, D do x = x + a.query.data[(row * H + h) * D + d] * a.k_pool.data[place(t) * D + d] end
          w[t] = x * (a.scale or 1 / math.sqrt(D))
          top = math.max(top, w[t])
        end
        for t = first, keys - 1 do
          w[t] = math.exp(w[t] - top)
          total = total + w[t]
        end
        total = total + math.exp(sink - top)
        for d = 1, V do
          local x = 0
          for t = first, keys - 1 do x = x + w[t] / total * a.v_pool.data[place(t) * V + d] end
          out.data[(row * H + h) * V + d] = x
        end
      end
      row = row + 1
    end
  end
  return out
end
function M.scaled_dot_product_attention(a)
  local function four(t)
    local n, lead = t.shape, 1
    for d = 1, #n - 3 do lead = lead * n[d] end
    return { shape = { lead, #n > 2 and n[#n - 2] or 1, n[#n - 1], n[#n] }, data = t.data }
  end
  local out = M.attention_forward({ query = four(a.query), key = four(a.key), value = four(a.value),
    attn_mask = a.attn_mask, is_causal = a.is_causal, scale = a.scale or 1 / math.sqrt(a.query.shape[#a.query.shape]) })
  local shape = { unpack(a.query.shape) }
  shape[#shape] = a.value.shape[#a.value.shape]
  return { shape = shape, data = out.data }
end
function M.attention_backward(a)
  local q, k, v = a.query.shape, a.key.shape, a.value.shape
  local dq, dk, dv = new(q), new(k), new(v)
  scores(a, function(b, h, i, row)
    local at, hk, delta = (b * q[2] + h) * q[3] + i, math.floor(h * k[2] / q[2]), 0
    if a.grad_logsumexp then delta = -a.grad_logsumexp.data[at + 1] end
    for d = 0, v[4] - 1 do
      delta = delta + head_at(a.grad_output, b, h, i, d) * head_at(a.output, b, h, i, d)
    end
    for j = 0, k[3] - 1 do
      local p, dp, from = math.exp(row[j] - a.logsumexp.data[at + 1]), 0, (b * k[2] + hk) * k[3] + j
      for d = 0, v[4] - 1 do
        local g = head_at(a.grad_output, b, h, i, d)
        dp = dp + g * head_at(a.value, b, hk, j, d)
        dv.data[from * v[4] + d + 1] = dv.data[from * v[4] + d + 1] + p * g
      end
      local ds = p * (dp - delta) * a.scale
      for d = 0, q[4] - 1 do
        dq.data[at * q[4] + d + 1] = dq.data[at * q[4] + d + 1] + ds * head_at(a.key, b, hk, j, d)
        dk.data[from * k[4] + d + 1] = dk.data[from * k[4] + d + 1] + ds * head_at(a.query, b, h, i, d)
      end
    end
  end)
  return dq, dk, dv
end

require "ops.references_making"(M, { numel = numel, new = new, each = each, wrap = wrap, strides = strides })
require "ops.references_composite"(M, { numel = numel, new = new, strides = strides, each = each, wrap = wrap,
  along = along, ordered = ordered, picked = picked })
require "ops.references_decompositions"(M, { numel = numel })
require "ops.references_quantization"(M, { new = new })
require "ops.references_near"(M, { new = new })
require "ops.references_statistics"(M, { numel = numel, new = new, strides = strides, each = each, wrap = wrap,
  along = along, groups = groups })

return M
