-- Optimizers against PyTorch: the parameters of each of 20 steps, and the last ten from PyTorch's own state dict, for
-- many sets of options (spec/parity/optim.py).
-- Usage: python3 spec/parity/optim.py make DIR; luajit spec/parity/optim.lua DIR;
-- python3 spec/parity/optim.py check DIR
local moth = require "moth"
local json = require "cjson"
local optim = moth.optim
local dir, STEPS = arg[1], 20

local function read(name)
  local f = assert(io.open(dir .. "/" .. name))
  local text = f:read("*a")
  f:close()
  return json.decode(text)
end

local function numel(shape)
  local n = 1
  for _, s in ipairs(shape) do n = n * s end
  return n
end
local function wave(fn, shape, dtype)
  local data = {}
  for k = 0, numel(shape) - 1 do data[k + 1] = fn(k) end
  return moth.tensor(data, { dtype = moth.float64 }):to(dtype):view(shape)
end
local function parameters(name, dtype)
  local list = {}
  for i, shape in ipairs(name == "Muon" and { { 3, 4 }, { 5, 2 } } or { { 3, 4 }, { 5 }, {} }) do
    list[i] = wave(function(k) return math.sin(1.7 * k + i - 1) end, shape, dtype):clone():requires_grad_()
  end
  return list
end
local function gradient(p, i, t)
  local g = wave(function(k) return (k + t) % 7 == 0 and 0 or math.cos(0.9 * k + 1.3 * t + i - 1) end, p:size(),
    p:dtype())
  return g + p:detach() * 0.125
end

local function advance(name, o, params, t)
  if name == "LBFGS" then
    return o:step(function()
      o:zero_grad()
      local loss
      for i, p in ipairs(params) do
        local l = ((p * i - 0.5) ^ 4):sum() + ((p - 0.3) ^ 2):sum()
        loss = loss and loss + l or l
      end
      loss:backward()
      return loss
    end)
  end
  for i, p in ipairs(params) do p.grad = gradient(p, i, t) end
  if t == 4 then params[#params].grad = nil end
  o:step()
end

local failed, n = 0, 0
local function same(what, params, row, limit)
  n = n + 1
  local k, worst = 0, 0
  for _, p in ipairs(params) do
    for _, x in ipairs(p:detach():reshape(-1):totable()) do
      k = k + 1
      worst = math.max(worst, math.abs(x - row[k]) / math.max(1, math.abs(row[k])))
    end
  end
  if worst > limit or worst ~= worst then
    failed = failed + 1
    print(("%s: differs by %g"):format(what, worst))
    return false
  end
  return true
end

for _, dtype in ipairs { "float32", "float64" } do
  local d = moth[dtype]
  for k, case in ipairs(read(dtype .. ".json")) do
    -- Muon works in bfloat16; LBFGS ends where rounding decides.
    local limit = case.name == "Muon" and 2e-2 or dtype == "float64" and 1e-12 or case.name == "LBFGS" and 1e-4 or 1e-6
    local what = ("%s %s %s"):format(case.name, json.encode(case.options), dtype)
    local options = { foreach = false }
    for key, value in pairs(case.options) do options[key] = value end
    local params = parameters(case.name, d)
    local o = optim[case.name](params, options)
    for t = 1, STEPS do
      if t == STEPS / 2 + 1 then
        local values = {}
        for i, p in ipairs(params) do values[i] = p.data end
        moth.save({ optimizer = o:state_dict(), params = values }, ("%s/moth_%s_%d.pt"):format(dir, dtype, k))
      end
      advance(case.name, o, params, t)
      if not same(("%s, step %d"):format(what, t), params, case.rows[t], limit) then break end
    end
    local saved = moth.load(("%s/%s_%d.pt"):format(dir, dtype, k))
    params = parameters(case.name, d)
    o = optim[case.name](params)
    o:load_state_dict(saved.optimizer)
    for i, p in ipairs(params) do p.data:copy_(saved.params[i]) end
    for t = STEPS / 2 + 1, STEPS do advance(case.name, o, params, t) end
    same(what .. ", from PyTorch's state", params, case.rows[STEPS], limit * 10)
  end
end
-- Schedules and means: as in optim.py.
moth.set_default_dtype(moth.float64)
local L, swa = optim.lr_scheduler, optim.swa_utils
local makes = {
  StepLR = function(o) return L.StepLR(o, 4, 0.5) end,
  MultiStepLR = function(o) return L.MultiStepLR(o, { 2, 5, 9 }, { gamma = 0.3 }) end,
  ConstantLR = function(o) return L.ConstantLR(o, 0.25, 6) end,
  LinearLR = function(o) return L.LinearLR(o, 0.1, 0.8, 7) end,
  ExponentialLR = function(o) return L.ExponentialLR(o, 0.9) end,
  CosineAnnealingLR = function(o) return L.CosineAnnealingLR(o, 8, 0.01) end,
  Warm = function(o) return L.CosineAnnealingWarmRestarts(o, 4, 2, 0.001) end,
  PolynomialLR = function(o) return L.PolynomialLR(o, 12, 2) end,
  LambdaLR = function(o)
    return L.LambdaLR(o, { function(e) return 0.95 ^ e end, function(e) return 1 / (1 + e) end })
  end,
  MultiplicativeLR = function(o) return L.MultiplicativeLR(o, function(e) return 0.9 + 0.01 * e end) end,
  CyclicLR = function(o) return L.CyclicLR(o, 0.01, 0.2, 4, 6) end,
  Cyclic2 = function(o) return L.CyclicLR(o, 0.01, { 0.2, 0.5 }, 3, { mode = "triangular2" }) end,
  CyclicExp = function(o)
    return L.CyclicLR(o, { 0.01, 0.02 }, 0.2, 5, { mode = "exp_range", gamma = 0.97, cycle_momentum = false })
  end,
  CyclicFn = function(o)
    return L.CyclicLR(o, 0.01, 0.2, 5, { scale_fn = function(c) return 1 / 5 ^ (c * 0.1) end,
      scale_mode = "iterations" })
  end,
  OneCycleLR = function(o) return L.OneCycleLR(o, 0.5, 26) end,
  OneCycle3 = function(o)
    return L.OneCycleLR(o, { 0.5, 1 }, { epochs = 2, steps_per_epoch = 13, three_phase = true,
      anneal_strategy = "linear" })
  end,
  Chained = function(o) return L.ChainedScheduler { L.ConstantLR(o, 0.1, 3), L.ExponentialLR(o, 0.9) } end,
  Chained2 = function(o)
    return L.ChainedScheduler({ L.LinearLR(o, 0.2, 1, 5), L.CosineAnnealingLR(o, 6, 0.01), L.StepLR(o, 7) })
  end,
  Sequential = function(o)
    return L.SequentialLR(o, { L.ConstantLR(o, 0.1, 2), L.ExponentialLR(o, 0.9), L.CosineAnnealingLR(o, 9) }, { 2, 10 })
  end,
  SWALR = function(o) return swa.SWALR(o, 0.05, 6) end,
  SWALinear = function(o) return swa.SWALR(o, { 0.05, 0.2 }, 0, "linear") end,
  Plateau = function(o)
    return L.ReduceLROnPlateau(o, "max", { factor = 0.3, patience = 1, threshold = 0.01, threshold_mode = "abs",
      cooldown = 2, min_lr = { 0.001, 0.01 } })
  end,
}
local function near(what, got, want)
  n = n + 1
  if #got ~= #want then
    failed = failed + 1
    return print(what .. ": other sizes")
  end
  for i, x in ipairs(got) do
    if math.abs(x - want[i]) > 1e-11 * math.max(1, math.abs(want[i])) or x ~= x then
      failed = failed + 1
      return print(("%s: number %d is %.12g, should be %.12g"):format(what, i, x, want[i]))
    end
  end
end
local file = read "schedules.json"
for name, rows in pairs(file.schedules) do
  local function new()
    local o = optim.SGD({ { params = moth.zeros(1):requires_grad_() }, { params = moth.zeros(1):requires_grad_(),
      lr = 0.02 } }, { lr = 0.1, momentum = 0.5 })
    return o, makes[name](o)
  end
  local o, s = new()
  for t, row in ipairs(rows) do
    local got = {}
    for _, g in ipairs(o.param_groups) do got[#got + 1], got[#got + 2] = g.lr, g.momentum end
    near(("%s, epoch %d"):format(name, t - 1), got, row)
    if t == 12 then -- goes on from a state
      local saved, of = s:state_dict(), o:state_dict()
      o, s = new()
      o:load_state_dict(of)
      s:load_state_dict(saved)
    end
    o:step()
    if name == "Plateau" then s:step((t - 1) * 7 % 5) else s:step() end
  end
end

local function sine(at, ...)
  local shape = { ... }
  return wave(function(k) return math.sin(1.7 * k + at) end, shape, moth.float64)
end
local data = {}
for i = 0, 4 do data[i + 1] = sine(i, 8, 3) end
local loader = { iter = function()
  local i = 0
  return function()
    i = i + 1
    return data[i]
  end
end }
local means = { swa = {}, ema = { multi_avg_fn = swa.get_ema_multi_avg_fn(0.8) },
  ema_buffers = { multi_avg_fn = swa.get_ema_multi_avg_fn(0.8), use_buffers = true },
  own = { avg_fn = function(mean, new) return mean * 0.5 + new * 0.5 end } }
for name, case in pairs(file.averages) do
  local nn = moth.nn
  local model = nn.Sequential(nn.Linear(3, 4, { bias = false }), nn.BatchNorm1d(4), nn.Linear(4, 2))
  for i, p in ipairs(model:parameters()) do p.data:copy_(sine(i - 1, unpack(p:size()))) end
  local mean, o = swa.AveragedModel(model, means[name]), optim.SGD(model:parameters(), { lr = 0.01 })
  for t = 0, 5 do
    o:zero_grad()
    model(data[t % 5 + 1]):square():sum():backward()
    o:step()
    mean:update_parameters(model)
  end
  local sd = mean:state_dict()
  for i, key in ipairs(case.names) do
    near(name .. " " .. key, sd[key]:to(moth.float64):reshape(-1):totable(), case.states[i])
  end
  swa.update_bn(loader, mean)
  mean:eval()
  near(name .. " after update_bn", mean(data[1]):detach():reshape(-1):totable(), case.after)
end

print(("optim: %d comparisons with PyTorch, %d differ"):format(n, failed))
os.exit(failed == 0 and 0 or 1, true)
