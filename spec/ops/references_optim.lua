--- Naive float64 references of optimizer steps, as spec/ops/references.lua, which includes them: they change the lists
-- in place and give those that they write to. In PyTorch's order of operations, not in that of the records.
local M = {}

-- fn(at): the lists by name at one element; what it sets is written. Returns the lists named.
local function step(names, fn)
  local list = {}
  for name in names:gmatch("[%w_]+") do list[#list + 1] = name end
  return function(a)
    if a.found_inf and a.found_inf.data[1] ~= 0 then
      local out = {}
      for i, name in ipairs(list) do out[i] = a[name] end
      return out
    end
    local scale = (a.maximize and -1 or 1) * (a.grad_scale and a.grad_scale.data[1] or 1)
    for k, p in ipairs(a.params) do
      for i in ipairs(p.data) do
        local at = { params = p.data[i], g = scale * a.grads[k].data[i] }
        for _, name in ipairs(list) do at[name] = a[name][k] and a[name][k].data[i] end
        fn(at, a)
        for _, name in ipairs(list) do
          if a[name][k] then a[name][k].data[i] = at[name] end
        end
      end
    end
    local out = {}
    for i, name in ipairs(list) do out[i] = a[name] end
    return out
  end
end

local function sign(x) return x > 0 and 1 or x < 0 and -1 or 0 end

M.adagrad_step = step("params sums", function(at, a)
  local g = at.g + a.weight_decay * at.params
  at.sums = at.sums + g ^ 2
  at.params = at.params - a.lr / (1 + (a.step - 1) * a.lr_decay) * g / (math.sqrt(at.sums) + a.eps)
end)
M.adadelta_step = step("params square_avgs acc_deltas", function(at, a)
  local g = at.g + a.weight_decay * at.params
  at.square_avgs = a.rho * at.square_avgs + (1 - a.rho) * g ^ 2
  local delta = math.sqrt(at.acc_deltas + a.eps) / math.sqrt(at.square_avgs + a.eps) * g
  at.acc_deltas = a.rho * at.acc_deltas + (1 - a.rho) * delta ^ 2
  at.params = at.params - a.lr * delta
end)
M.adamax_step = step("params exp_avgs exp_infs", function(at, a)
  local g = at.g + a.weight_decay * at.params
  at.exp_avgs = a.beta1 * at.exp_avgs + (1 - a.beta1) * g
  at.exp_infs = math.max(a.beta2 * at.exp_infs, math.abs(g) + a.eps)
  at.params = at.params - a.lr / (1 - a.beta1 ^ a.step) * at.exp_avgs / at.exp_infs
end)

-- The means of Adam, and the gradient with its decay.
local function adam(at, a)
  local g = at.g
  if a.decoupled then
    at.params = at.params * (1 - a.lr * a.weight_decay)
  else
    g = g + a.weight_decay * at.params
  end
  at.exp_avgs = a.beta1 * at.exp_avgs + (1 - a.beta1) * g
  at.exp_avg_sqs = a.beta2 * at.exp_avg_sqs + (1 - a.beta2) * g ^ 2
  return g
end
M.nadam_step = step("params exp_avgs exp_avg_sqs", function(at, a)
  local g = adam(at, a)
  local mu = a.beta1 * (1 - 0.5 * 0.96 ^ (a.step * a.momentum_decay))
  local after = a.beta1 * (1 - 0.5 * 0.96 ^ ((a.step + 1) * a.momentum_decay))
  local root = math.sqrt(at.exp_avg_sqs / (1 - a.beta2 ^ a.step)) + a.eps
  at.params = at.params - a.lr * (1 - mu) / (1 - a.mu_product) * g / root
  at.params = at.params - a.lr * after / (1 - a.mu_product * after) * at.exp_avgs / root
end)
M.radam_step = step("params exp_avgs exp_avg_sqs", function(at, a)
  adam(at, a)
  local b2, t = a.beta2, a.step
  local mean, most = at.exp_avgs / (1 - a.beta1 ^ t), 2 / (1 - b2) - 1
  local rho = most - 2 * t * b2 ^ t / (1 - b2 ^ t)
  if rho > 5 then
    local r = math.sqrt((rho - 4) * (rho - 2) * most / ((most - 4) * (most - 2) * rho))
    mean = mean * r * math.sqrt(1 - b2 ^ t) / (math.sqrt(at.exp_avg_sqs) + a.eps)
  end
  at.params = at.params - a.lr * mean
end)
M.rmsprop_step = step("params square_avgs momentum_buffers grad_avgs", function(at, a)
  local g = at.g + a.weight_decay * at.params
  at.square_avgs = a.alpha * at.square_avgs + (1 - a.alpha) * g ^ 2
  local square = at.square_avgs
  if at.grad_avgs then
    at.grad_avgs = a.alpha * at.grad_avgs + (1 - a.alpha) * g
    square = square - at.grad_avgs ^ 2
  end
  local d = g / (math.sqrt(square) + a.eps)
  if at.momentum_buffers then
    at.momentum_buffers = a.momentum * at.momentum_buffers + d
    d = at.momentum_buffers
  end
  at.params = at.params - a.lr * d
end)
M.rprop_step = step("params prevs step_sizes", function(at, a)
  local g, s = at.g, sign(at.g * at.prevs)
  local factor = s > 0 and a.eta_plus or s < 0 and a.eta_minus or 1
  at.step_sizes = math.min(math.max(at.step_sizes * factor, a.least), a.most)
  if s < 0 then g = 0 end
  at.params = at.params - sign(g) * at.step_sizes
  at.prevs = g
end)
M.asgd_step = step("params axs", function(at, a)
  local g = at.g + a.weight_decay * at.params
  at.params = at.params * (1 - a.lambd * a.eta) - a.eta * g
  at.axs = a.mu == 1 and at.params or at.axs + (at.params - at.axs) * a.mu
end)
M.lion_step = step("params exp_avgs", function(at, a)
  local d = sign(a.beta1 * at.exp_avgs + (1 - a.beta1) * at.g)
  at.params = at.params * (1 - a.lr * a.weight_decay) - a.lr * d
  at.exp_avgs = a.beta2 * at.exp_avgs + (1 - a.beta2) * at.g
end)
M.native_lamb_directions = step("params exp_avgs exp_avg_sqs directions", function(at, a)
  at.exp_avgs = a.beta1 * at.exp_avgs + (1 - a.beta1) * at.g
  at.exp_avg_sqs = a.beta2 * at.exp_avg_sqs + (1 - a.beta2) * at.g ^ 2
  local mean, square = at.exp_avgs / (1 - a.beta1 ^ a.step), at.exp_avg_sqs / (1 - a.beta2 ^ a.step)
  at.directions = mean / (math.sqrt(square) + a.eps) + a.weight_decay * at.params
end)

-- ---- steps of whole parameters: fn(p, k, a, scale), of parameter k, changes the lists' data ------------------

local function whole(names, fn)
  local list = {}
  for name in names:gmatch("[%w_]+") do list[#list + 1] = name end
  return function(a)
    local scale = (a.maximize and -1 or 1) * (a.grad_scale and a.grad_scale.data[1] or 1)
    if not (a.found_inf and a.found_inf.data[1] ~= 0) then
      for k, p in ipairs(a.params) do
        if #p.data > 0 then fn(p, k, a, scale) end
      end
    end
    local out = {}
    for i, name in ipairs(list) do out[i] = a[name] end
    return out
  end
end
local function norm(data)
  local sum = 0
  for _, x in ipairs(data) do sum = sum + x * x end
  return math.sqrt(sum)
end

M.lamb_step = whole("params exp_avgs exp_avg_sqs", function(p, k, a)
  local copy = { data = {} }
  local one = { params = { p }, grads = { a.grads[k] }, exp_avgs = { a.exp_avgs[k] },
    exp_avg_sqs = { a.exp_avg_sqs[k] }, directions = { copy } }
  for i, x in ipairs(p.data) do copy.data[i] = x end
  M.native_lamb_directions(setmetatable(one, { __index = a }))
  local d = one.directions[1].data
  local of_x, of_d = norm(p.data), norm(d)
  local ratio = of_x > 0 and of_d > 0 and of_x / of_d or 1
  for i in ipairs(p.data) do p.data[i] = p.data[i] - a.lr * ratio * d[i] end
end)

M.adafactor_step = whole("params row_vars col_vars variances", function(p, k, a, scale)
  local n, share, v = #p.data, a.step ^ a.beta2_decay, {}
  local g = {}
  for i, x in ipairs(a.grads[k].data) do g[i] = scale * x end
  local function follow(t, i, x) t.data[i] = t.data[i] + (x - t.data[i]) * share end
  local least = a.eps1 < 0 and (p.eps or 2 ^ -52) or a.eps1
  if a.row_vars[k] then
    local row, col = a.row_vars[k], a.col_vars[k]
    local R, C = #row.data, #col.data
    local sums = { row = {}, col = {} }
    for r = 1, R do
      for c = 1, C do
        local x = g[(r - 1) * C + c] ^ 2
        sums.row[r], sums.col[c] = (sums.row[r] or 0) + x / C, (sums.col[c] or 0) + x / R
      end
    end
    local mean = 0
    for r = 1, R do
      follow(row, r, sums.row[r])
      mean = mean + row.data[r] / R
    end
    for c = 1, C do follow(col, c, sums.col[c]) end
    for r = 1, R do
      for c = 1, C do v[(r - 1) * C + c] = row.data[r] * col.data[c] / math.max(mean, least) end
    end
  else
    for i = 1, n do
      follow(a.variances[k], i, g[i] ^ 2)
      v[i] = a.variances[k].data[i]
    end
  end
  local size = math.max(norm(p.data) / math.sqrt(n), a.eps2) * math.min(a.lr, 1 / math.sqrt(a.step))
  local u = {}
  for i = 1, n do u[i] = g[i] / math.sqrt(math.max(v[i], least * least)) end
  local by = size / math.max(1, norm(u) / (math.sqrt(n) * a.d))
  for i = 1, n do p.data[i] = p.data[i] * (1 - a.lr * a.weight_decay) - u[i] * by end
end)

-- Matrices as lists of rows.
local function product(x, y)
  local out = {}
  for i = 1, #x do
    out[i] = {}
    for j = 1, #y[1] do
      local sum = 0
      for k = 1, #y do sum = sum + x[i][k] * y[k][j] end
      out[i][j] = sum
    end
  end
  return out
end
local function turned(x)
  local out = {}
  for j = 1, #x[1] do
    out[j] = {}
    for i = 1, #x do out[j][i] = x[i][j] end
  end
  return out
end
local function joined(...) -- a x + b y + …
  local parts, out = { ... }, {}
  for i = 1, #parts[2] do
    out[i] = {}
    for j = 1, #parts[2][1] do
      local sum = 0
      for k = 1, #parts, 2 do sum = sum + parts[k] * parts[k + 1][i][j] end
      out[i][j] = sum
    end
  end
  return out
end

M.muon_step = whole("params momentum_buffers", function(p, k, a, scale)
  local R, C = p.shape[1], p.shape[2]
  local b, u = a.momentum_buffers[k].data, {}
  for i in ipairs(p.data) do
    local g = scale * a.grads[k].data[i]
    b[i] = a.momentum * b[i] + (1 - a.momentum) * g
    local r = math.floor((i - 1) / C) + 1
    u[r] = u[r] or {}
    u[r][i - (r - 1) * C] = a.nesterov and (1 - a.momentum) * g + a.momentum * b[i] or b[i]
  end
  local flat, tall = {}, R > C
  for _, row in ipairs(u) do for _, x in ipairs(row) do flat[#flat + 1] = x end end
  if tall then u = turned(u) end
  u = joined(1 / math.max(norm(flat), a.eps), u)
  for _ = 1, a.ns_steps do
    local gram = product(u, turned(u))
    u = joined(a.ns_a, u, 1, product(joined(a.ns_b, gram, a.ns_c, product(gram, gram)), u))
  end
  if tall then u = turned(u) end
  local s = a.adjust_lr == "original" and math.sqrt(math.max(1, R / C))
    or a.adjust_lr == "match_rms_adamw" and 0.2 * math.sqrt(math.max(R, C)) or math.sqrt(R / C)
  for i in ipairs(p.data) do
    local r = math.floor((i - 1) / C) + 1
    p.data[i] = p.data[i] * (1 - a.lr * a.weight_decay) - a.lr * s * u[r][i - (r - 1) * C]
  end
end)

return M
