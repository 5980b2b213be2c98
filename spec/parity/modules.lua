-- Modules, functional forms, optimizers and schedules against PyTorch: modules.py writes weights, inputs, results and
-- gradients to a JSON file, this compares.
-- Usage: python3 spec/parity/modules.py FILE; luajit spec/parity/modules.lua FILE
local moth = require "moth"
local nn, F, optim = moth.nn, moth.nn.functional, moth.optim
moth.set_default_dtype(moth.float64)

local file = assert(io.open(arg[1]))
local want = require("cjson").decode(file:read("*a"))
file:close()

local function T(t)
  if #t.shape == 0 then return moth.tensor(t.data[1]) end
  return moth.tensor(t.data):view(t.shape)
end
local failed, n = 0, 0
local function same(name, a, b)
  n = n + 1
  if tostring(a:size()) ~= tostring(b:size()) or not moth.allclose(a, b, 1e-9, 1e-10) then
    failed = failed + 1
    print(("%-24s differs: %s, %s; by %s"):format(name, tostring(a:size()), tostring(b:size()),
      tostring(a:numel() == b:numel() and (a:reshape(-1) - b:reshape(-1)):abs():max():item())))
  end
end
local function ramp(o) return moth.arange(1, o:numel() + 1):to(moth.float64):view(o:size()) end

local function all_of(m, ...) -- its results as a flat list
  local r = { m(...) }
  if type(r[2]) == "table" then r = { r[1], r[2][1], r[2][2] } end
  if type(r[1]) == "table" then r = r[1] end
  return r
end
local mask = nn.Transformer.generate_square_subsequent_mask(4)
local two = { num_layers = 2, bidirectional = true }
local layer = { dim_feedforward = 16, dropout = 0 }
local modules = {
  enc = { nn.TransformerEncoderLayer(8, 2, layer) },
  enc_gelu = { nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16, dropout = 0, activation = "gelu",
    norm_first = true }) },
  dec = { nn.TransformerDecoderLayer(8, 2, layer), { tgt_mask = mask } },
  full = { nn.Transformer { d_model = 8, nhead = 2, num_encoder_layers = 2, num_decoder_layers = 2,
    dim_feedforward = 16, dropout = 0 }, { tgt_mask = mask } },
  LSTM = { nn.LSTM(8, 6, two) }, GRU = { nn.GRU(8, 6, two) }, RNN = { nn.RNN(8, 6, two) },
  LSTMCell = { nn.LSTMCell(8, 6) }, GRUCell = { nn.GRUCell(8, 6) }, RNNCell = { nn.RNNCell(8, 6) },
}
for name, case in pairs(want.modules) do
  local m, state, inputs = modules[name][1], {}, {}
  for key, t in pairs(case.state) do state[key] = T(t) end
  m:load_state_dict(state)
  for i, t in ipairs(case.inputs) do inputs[i] = T(t) end
  inputs[#inputs + 1] = modules[name][2]
  local out, loss = all_of(m, unpack(inputs)), 0
  for i, t in ipairs(case.outputs) do
    same(name .. " result " .. i, out[i], T(t))
    loss = loss + (out[i] * ramp(out[i])):sum()
  end
  loss:backward()
  for key, p in m:named_parameters() do same(name .. " " .. key .. ".grad", p.grad, T(case.grads[key])) end
end

local functions = {
  bilinear = function(x) return F.interpolate(x, { size = { 9, 4 }, mode = "bilinear" }) end,
  bilinear_ac = function(x) return F.interpolate(x, { size = { 9, 4 }, mode = "bilinear", align_corners = true }) end,
  nearest = function(x) return F.interpolate(x, { scale_factor = 2 }) end,
  nearest2 = function(x) return F.interpolate(x, { size = { 3, 11 } }) end,
  area = function(x) return F.interpolate(x, { size = { 3, 4 }, mode = "area" }) end,
  shuffle = function(x) return F.pixel_shuffle(x, 2) end,
  unshuffle = function(x) return F.pixel_unshuffle(x, 2) end,
  smooth = function(a, b) return F.smooth_l1_loss(a, b, { beta = 0.5 }) end,
  huber = function(a, b) return F.huber_loss(a, b, { delta = 0.7 }) end,
  kl = function(a, b) return F.kl_div(a, b, { reduction = "batchmean" }) end,
  kll = function(a, b) return F.kl_div(a, b, { log_target = true }) end,
  bce = F.binary_cross_entropy,
  triplet = function(a, b, c) return F.triplet_margin_loss(a, b, c, { swap = true }) end,
  cosine = F.cosine_similarity, pdist = F.pairwise_distance, cdist = moth.cdist,
  cosemb = function(a, b, y) return F.cosine_embedding_loss(a, b, y, { margin = 0.1 }) end,
  ranking = function(a, b, y) return F.margin_ranking_loss(a, b, y, { margin = 0.1 }) end,
  hinge = F.hinge_embedding_loss, soft = F.soft_margin_loss,
  poisson = function(a, b) return F.poisson_nll_loss(a, b, { full = true }) end,
  gaussian = function(a, b, c) return F.gaussian_nll_loss(a, b, c, { full = true }) end,
  cumprod = function(a) return a:cumprod(2) end,
  hardshrink = F.hardshrink, softshrink = F.softshrink, tanhshrink = F.tanhshrink,
}
for name, case in pairs(want.functions) do
  local inputs = {}
  for i, t in ipairs(case.inputs) do inputs[i] = T(t) end
  same(name, functions[name](unpack(inputs)), T(case.out))
end

local optimizers = {
  RMSprop = function(p) return optim.RMSprop(p) end,
  RMSprop_c = function(p)
    return optim.RMSprop(p, { lr = 0.01, centered = true, momentum = 0.9, weight_decay = 0.1 })
  end,
  Adagrad = function(p) return optim.Adagrad(p, { lr = 0.1, lr_decay = 0.1, weight_decay = 0.01 }) end,
}
for name, rows in pairs(want.optim) do
  local w = nn.Parameter(moth.linspace(-0.9, 1, 7))
  local o = optimizers[name]({ w })
  for i, row in ipairs(rows) do
    o:zero_grad()
    local y = w * moth.linspace(1, 3, 7)
    y:sin():square():sum():backward()
    o:step()
    same(name .. " step " .. i, w:detach(), moth.tensor(row))
  end
end

-- Of an embedding whose gradients have the rows that were read.
local of_rows = {
  SparseAdam = optim.SparseAdam, Adagrad = function(p) return optim.Adagrad(p, { lr = 0.1 }) end,
  SGD = function(p) return optim.SGD(p, { lr = 0.1 }) end,
  SparseAdam_o = function(p)
    return optim.SparseAdam(p, { lr = 0.1, betas = { 0.7, 0.9 }, eps = 1e-3, maximize = true })
  end,
}
for name, rows in pairs(want.sparse) do
  local e = nn.Embedding(6, 3, { sparse = true })
  e.weight:detach():copy_(moth.linspace(-0.9, 1, 18):view(6, 3))
  local o = of_rows[name](e:parameters())
  for t, row in ipairs(rows) do
    o:zero_grad()
    local ids = moth.tensor({ (t - 1) % 6 + 1, 2 * (t - 1) % 6 + 1, (t - 1) % 6 + 1 }, { dtype = moth.int64 })
    local loss = (e(ids):sin() * moth.linspace(1, 3, 3)):sum()
    loss:backward()
    o:step()
    same(name .. " of rows, step " .. t, e.weight:detach():view(-1), moth.tensor(row))
  end
end

local L = optim.lr_scheduler
local losses = { 1, .9, .95, .95, .95, .95, .95, .95, .8, .8, .8, .8 }
local schedules = {
  poly = function(o) return L.PolynomialLR(o, { total_iters = 7, power = 2 }) end,
  restarts = function(o) return L.CosineAnnealingWarmRestarts(o, { T_0 = 3, T_mult = 2 }) end,
  one = function(o) return L.OneCycleLR(o, { max_lr = 1, total_steps = 13 }) end,
  onel = function(o) return L.OneCycleLR(o, { max_lr = 1, total_steps = 13, anneal_strategy = "linear" }) end,
  plateau = function(o) return L.ReduceLROnPlateau(o, { patience = 2, factor = 0.5, cooldown = 1 }) end,
}
for name, rates in pairs(want.sched) do
  local o = optim.SGD({ nn.Parameter(moth.zeros(1)) }, { lr = 0.1 })
  local s = schedules[name](o)
  for i, rate in ipairs(rates) do
    same(name .. " epoch " .. i, moth.tensor(o.param_groups[1].lr), moth.tensor(rate))
    if i < #rates then s:step(name == "plateau" and losses[i] or nil) end
  end
end

print(("modules: %d comparisons with PyTorch, %d differ"):format(n, failed))
os.exit(failed == 0 and 0 or 1, true)
