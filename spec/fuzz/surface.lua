--- Calls of what is made in Lua: functions of moth and nn.functional, modules, optimizers, schedulers, func, data. The
-- lines are written below as they should be; numbers, tensors and arguments are then changed at random. Beside them all
-- functions there are get any arguments. A source of lines for spec/fuzz/api.lua.
local B = require "moth_lua"
local moth = require "moth"
local each = require "moth.each"
local P = require "fuzz.program"

-- The pieces of a text between ";;".
local function list(text)
  local out = {}
  for piece in (text .. ";;"):gmatch("%s*(.-)%s*;;") do if piece ~= "" then out[#out + 1] = piece end end
  return out
end

-- m is a module, o an optimizer, s a scheduler of this program.
local lines = list [[
  moth.meshgrid(randn(3), randn(4), {indexing='xy'}) ;; moth.broadcast_tensors(randn(3,1), randn(1,4)) ;;
  moth.hstack(randn(2,3), randn(2,1)) ;; moth.vstack({randn(3), randn(2,3)}) ;;
  moth.dstack(randn(2,3), randn(2,3)) ;; moth.cartesian_prod(randn(2), randn(3)) ;;
  moth.einsum('bij,bjk->bik', randn(2,3,4), randn(2,4,2)) ;; moth.einsum('ii->i', randn(3,3)) ;;
  moth.einsum('...ij,jk', randn(2,3,4), randn(4,2)) ;; moth.median(randn(5,3), 1, true) ;; randn(5):median() ;;
  moth.var_mean(randn(4,3), 1, 1, true) ;; moth.std_mean(randn(4,3), {dim=2, keepdim=true}) ;;
  moth.aminmax(randn(3,4), {dim=1}) ;; randn(3,5):diff(2, 1) ;; moth.bincount(I(5,{7}), {minlength=6}) ;;
  moth.bincount(I(5,{7}), {weights=randn(7)}) ;;
  moth.unique(randn(8):round(), {return_inverse=true, return_counts=true}) ;; moth.isin(randn(3,2), {1,2,3}) ;;
  moth.repeat_interleave(randn(3,2), I(4,{3}), 1) ;; moth.repeat_interleave(randn(3), 2) ;;
  moth.nan_to_num(randn(4), {nan=1, posinf=2, neginf=-2}) ;; moth.logspace(0, 3, 4, 2) ;;
  moth.cdist(randn(3,4), randn(2,4), 2) ;; moth.take_along_dim(randn(3,4), I(4,{3,2}), 2) ;; randn(3,4):max(2) ;;
  randn(3,4):max(randn(3,4)) ;; randn(3,4):min({dim=1, keepdim=true}) ;; moth.arange(5) ;;
  moth.arange(1, 10, 2.5, {dtype=moth.float64}) ;; moth.where(randn(3):gt(0), randn(3), 0) ;;
  moth.where(randn(3):gt(0)) ;; randn(7,2):split(3, 1) ;; randn(7):split({3,4}) ;; randn(7,2):chunk(3) ;;
  randn(3,2):unbind(2) ;; randn(2,3):new_zeros(2,2) ;; randn(2):new_full({2,2}, 7) ;; randn(2):new_tensor({1,2}) ;;
  randn(2,3):repeat_(2,1,2) ;; randn(2,3):tile({2}) ;; randn(3):stats() ;; randn(2,3):storage():totable() ;;
  tostring(randn(3,4)) ;; randn(2,2):totable() ;; randn(2):to(moth.int64) ;; randn(2):to('cpu', moth.float16) ;;
  randn(2):to({dtype='int8', copy=true}) ;; randn(3):type('float64') ;;
  moth.tensor({{1,2},{3,4}}, {dtype=moth.int32, requires_grad=false}) ;;
  moth.allclose(randn(3), randn(3), 1e-3, 1e-3, true) ;; moth.equal(randn(3), randn(3)) ;; randn(2,3)[{1,{2,3}}] ;;
  moth.broadcast_shapes({2,1}, {3}) ;; moth.finfo(moth.float16).max ;; moth.iinfo('int8').max ;;
  moth.zeros(2, 3, {dtype=moth.int64}) ;; moth.ones({2,3}) ;; moth.full({2,2}, 3) ;; moth.rand(2,3) ;;
  moth.eye(3, 4) ;; moth.cat({randn(2,3), randn(2,3)}, 1) ;; moth.cat{randn(2,3), randn(2,3), dim=2} ;;
  moth.stack({randn(2), randn(2)}, 2) ;; randn(2,3):sum({1,2}, true) ;; randn(3,4):sum{2, keepdim=true} ;;
  randn(2,3):mean(1) ;; randn(3):norm(2) ;; randn(2,3):register_hook(function(g) return g * 2 end):remove() ;;
  moth.testing.make_tensor({2,3}, {dtype=moth.float32}) ;; moth.result_type(randn(2), 3) ;;
  moth.promote_types(moth.int8, moth.float16) ;; moth.fmt.bytes(1024) ;;
  moth.no_grad(function() return randn(3) * 2 end) ;; moth.describe(randn(2,3)) ;; moth.ops.describe('add') ;;
  moth.fake_mode(function() return moth.randn(3,4):matmul(moth.randn(4,2)):size() end) ;;
  moth.autocast(function() return randn(3,4):matmul(randn(4,2)) end, {dtype=moth.bfloat16}) ;;
  moth.autograd.grad(randn(3):sum(), randn(3), {allow_unused=true}) ;;
  moth.dispatch.count(function() return randn(3) + 1 end) ;;
  moth.tree.map(function(x) return x * 2 end, {randn(2), {randn(3)}}) ;;
  moth.tree.flatten({randn(2), {a=randn(3)}}) ;; F.interpolate(randn(1,2,4,4), {size={8,6}, mode='bilinear'}) ;;
  F.interpolate(randn(1,2,4), {scale_factor=2}) ;; F.upsample(randn(1,1,3,3), {size=5}) ;;
  F.unfold(randn(1,2,5,5), 3, {padding=1, stride=2}) ;; F.fold(randn(1,8,4), {3,3}, 2) ;;
  F.pad(randn(2,3), {1,2}, 'constant', 1) ;; F.pad(randn(1,2,4,4), {1,1,2,2}, {mode='reflect'}) ;;
  F.pixel_shuffle(randn(1,8,2,2), 2) ;; F.pixel_unshuffle(randn(1,2,4,4), 2) ;;
  F.normalize(randn(3,4), {p=2, dim=2}) ;; F.cosine_similarity(randn(3,4), randn(3,4), {dim=2}) ;;
  F.pairwise_distance(randn(3,4), randn(3,4), {p=1}) ;; F.gumbel_softmax(randn(3,4), {tau=0.5, hard=true}) ;;
  F.softmin(randn(3,4), 2) ;; F.softmax(randn(3,4), {dim=2}) ;; F.dropout(randn(3,4), 0.5, true) ;;
  F.dropout2d(randn(2,3,4,4), 0.5, true) ;; F.logsigmoid(randn(3)) ;;
  F.cross_entropy(randn(4,3), I(3,{4}), {label_smoothing=0.1, reduction='sum'}) ;; F.mse_loss(randn(3), randn(3)) ;;
  F.cross_entropy(randn(4,3), I(3,{4}), {weight=randn(3):abs(), ignore_index=2}) ;;
  F.nll_loss(randn(4,3), I(3,{4})) ;; F.gaussian_nll_loss(randn(3), randn(3), randn(3):abs()) ;;
  F.poisson_nll_loss(randn(3), randn(3), {full=true}) ;;
  F.margin_ranking_loss(randn(3), randn(3), randn(3):sign()) ;; F.hinge_embedding_loss(randn(3), randn(3):sign()) ;;
  F.triplet_margin_loss(randn(3,4), randn(3,4), randn(3,4)) ;;
  F.cosine_embedding_loss(randn(3,4), randn(3,4), randn(3):sign()) ;;
  F.soft_margin_loss(randn(3), randn(3):sign()) ;; F.kl_div(randn(3,4), randn(3,4), {log_target=true}) ;;
  F.huber_loss(randn(3), randn(3), {delta=0.5}) ;; F.one_hot(I(4,{3}), 5) ;;
  F.linear(randn(2,3), randn(4,3), randn(4)) ;;
  F.conv2d(randn(1,2,5,5), randn(3,2,3,3), randn(3), {stride=2, padding=1}) ;;
  F.conv1d(randn(1,2,7), randn(3,2,3)) ;; F.conv_transpose2d(randn(1,2,3,3), randn(2,3,3,3), nil, 2, 1, 1) ;;
  F.max_pool2d(randn(1,2,6,6), 2) ;; F.avg_pool2d(randn(1,2,6,6), 3, 2, 1) ;;
  F.adaptive_avg_pool2d(randn(1,2,6,6), {2,3}) ;; F.embedding(I(5,{2,3}), randn(5,4)) ;;
  F.layer_norm(randn(2,3), {3}) ;; F.batch_norm(randn(4,3), randn(3), randn(3):abs(), {training=true}) ;;
  F.group_norm(randn(2,4,3), 2) ;;
  F.scaled_dot_product_attention(randn(1,2,3,4), randn(1,2,3,4), randn(1,2,3,4), {is_causal=true}) ;;
  F.prelu(randn(2,3), randn(3)) ;; F.glu(randn(2,4)) ;; F.threshold(randn(3), 0.1, 20) ;;
  nn.Linear(4, 3, {bias=false}) ;; nn.Conv1d(2, 3, 3) ;; nn.Conv2d(2, 3, 3, {padding=1, groups=1}) ;;
  nn.ConvTranspose2d(2, 3, 2, {stride=2}) ;; nn.BatchNorm1d(4) ;; nn.BatchNorm2d(2, {affine=false}) ;;
  nn.LayerNorm({4}) ;; nn.GroupNorm(2, 4) ;; nn.InstanceNorm2d(2) ;; nn.RMSNorm({4}) ;;
  nn.Embedding(5, 4, {padding_idx=1}) ;; nn.LSTM(4, 3, {num_layers=2, batch_first=true, bidirectional=true}) ;;
  nn.GRU(4, 3) ;; nn.RNN(4, 3, {nonlinearity='relu'}) ;; nn.LSTMCell(4, 3) ;; nn.GRUCell(4,3) ;;
  nn.MultiheadAttention(4, 2, {batch_first=true}) ;; nn.TransformerEncoderLayer(4, 2, {dim_feedforward=8}) ;;
  nn.TransformerDecoderLayer(4, 2, {dim_feedforward=8}) ;; nn.Dropout(0.5) ;; nn.Flatten(1, 2) ;;
  nn.Unflatten(2, {2,2}) ;; nn.MaxPool2d(2) ;; nn.AvgPool2d(2, {stride=1}) ;; nn.AdaptiveAvgPool2d({1,1}) ;;
  nn.Upsample({scale_factor=2}) ;; nn.ReLU() ;; nn.LeakyReLU(0.1) ;; nn.PReLU() ;; nn.GELU() ;; nn.Softmax(2) ;;
  nn.Hardtanh(-1, 1) ;; nn.ELU(1) ;; nn.Softplus() ;; nn.Identity() ;; nn.ZeroPad2d(1) ;;
  nn.Sequential(nn.Linear(4,4), nn.ReLU(), nn.Linear(4,2)) ;; nn.ModuleList({nn.Linear(4,2), nn.ReLU()}) ;;
  nn.ModuleDict({a=nn.Linear(4,2)}) ;; nn.CrossEntropyLoss({label_smoothing=0.1}) ;;
  nn.MSELoss({reduction='sum'}) ;; nn.BCEWithLogitsLoss() ;; nn.KLDivLoss() ;; nn.SmoothL1Loss({beta=0.5}) ;;
  nn.CosineSimilarity() ;; nn.Parameter(randn(3))
]]
local on_module = list [[
  m(randn(2,4)) ;; m(randn(1,2,6,6)) ;; m(randn(2,3,4)) ;; m(p[1]) ;; m(p[3], p[4]) ;; m(randn(3,4), I(4,{3})) ;;
  m(I(5,{3})) ;; tostring(m) ;; m:parameters() ;; m:train() ;; m:eval() ;; m:zero_grad() ;; m:state_dict() ;;
  m:load_state_dict(m:state_dict()) ;; m:to(moth.float64) ;; m:half() ;; m:apply(function(x) end) ;;
  m:requires_grad_(false) ;; m:named_parameters() ;; m:register_forward_hook(function(_, i, o) return o end) ;;
  m:register_forward_pre_hook(function(_, i) end) ;; m:children() ;; m:named_modules() ;; m:buffers() ;; m.weight ;;
  m:register_buffer('b', randn(2)) ;; m:register_parameter('q', nn.Parameter(randn(2))) ;;
  m:add_module('sub', nn.ReLU()) ;; m[1] ;; m:append(nn.ReLU()) ;; m(randn(2,4)):sum():backward() ;;
  moth.func.functional_call(m, m:state_dict(), randn(2,4)) ;;
  moth.func.grad(function(x) return m(x):sum() end)(randn(2,4)) ;;
  moth.func.vjp(function(x) return m(x) end, randn(2,4)) ;; nn.utils.clip_grad_norm_(m:parameters(), 1) ;;
  nn.utils.clip_grad_value_(m:parameters(), 0.5) ;; nn.utils.parameters_to_vector(m:parameters()) ;;
  nn.utils.vector_to_parameters(randn(15), m:parameters()) ;;
  nn.utils.pad_sequence({randn(2,3), randn(4,3)}, {batch_first=true}) ;; nn.init.xavier_uniform_(randn(3,4), 2) ;;
  nn.init.kaiming_normal_(randn(3,4), {mode='fan_out'}) ;; nn.init.orthogonal_(randn(3,3)) ;;
  nn.init.constant_(randn(3), 2) ;; nn.init.eye_(randn(3,3)) ;; nn.init.calculate_gain('leaky_relu', 0.1) ;;
  moth.summary(m, randn(2,4))
]]
local optimizers = list [[
  optim.SGD(m:parameters(), {lr=0.1, momentum=0.9, nesterov=true}) ;;
  optim.Adam(m:parameters(), {lr=1e-3, amsgrad=true}) ;; optim.AdamW(m:parameters()) ;;
  optim.RMSprop(m:parameters(), {momentum=0.5, centered=true}) ;; optim.Adagrad(m:parameters(), {lr=0.1}) ;;
  optim.SGD({{params=m:parameters(), lr=0.2}}, {lr=0.1})
]]
local on_optimizer = list [[
  o:step() ;; o:zero_grad() ;; o:state_dict() ;; o:load_state_dict(o:state_dict()) ;;
  o:add_param_group({params={randn(3):detach()}}) ;; tostring(o) ;;
  o:step(function() return m(randn(2,4)):sum() end) ;; o:zero_grad({set_to_none=false}) ;; s:step() ;;
  s:step(0.5) ;; s:get_last_lr() ;; s:state_dict() ;; s:load_state_dict(s:state_dict()) ;;
  m(randn(2,4)):sum():backward() o:step() s:step()
]]
local schedulers = list [[
  StepLR(o, {step_size=2, gamma=0.5}) ;; MultiStepLR(o, {milestones={2,4}}) ;; ExponentialLR(o, {gamma=0.9}) ;;
  CosineAnnealingLR(o, {T_max=5}) ;; CosineAnnealingWarmRestarts(o, {T_0=3, T_mult=2}) ;;
  LinearLR(o, {total_iters=4}) ;; LambdaLR(o, {lr_lambda=function(e) return 0.9 ^ e end}) ;;
  ReduceLROnPlateau(o, {patience=1}) ;; PolynomialLR(o, {power=2}) ;; OneCycleLR(o, {max_lr=0.1, total_steps=10}) ;;
  ConstantLR(o, {factor=0.5})
]]
local data = list [[
  moth.data.TensorDataset(randn(5,2), randn(5)) ;;
  moth.data.DataLoader(moth.data.TensorDataset(randn(5,2)), {batch_size=2, shuffle=true}) ;;
  moth.data.random_split(moth.data.TensorDataset(randn(6,2)), {4,2}) ;;
  moth.data.Subset(moth.data.TensorDataset(randn(6,2)), {1,3}) ;;
  moth.data.BatchSampler(moth.data.RandomSampler(moth.data.TensorDataset(randn(6,2))), 2, false) ;;
  moth.data.WeightedRandomSampler({0.1,0.9}, 5) ;;
  moth.transforms.Compose({moth.transforms.Normalize({0.5}, {0.5})})(randn(1,2,2)) ;;
  moth.transforms.ToTensor()(randn(2,2,1)) ;;
  moth.data.ConcatDataset({moth.data.TensorDataset(randn(2)), moth.data.TensorDataset(randn(3))})
]]

-- Every function there is, but those that act on the process or the disk.
local banned = {}
for name in ("from_ptr save load load_safetensors save_safetensors manual_seed set_num_threads cpu_level "
  .. "set_default_dtype set_grad_enabled seed_all seed set_rng_state use_deterministic_algorithms set_printoptions "
  .. "cuda data_ptr data_pointer tensor_subclass make_subclass type scope free release record_stream class "
  .. "share_memory_ pin_memory set_limit record_history leak_check fail_at set_debug"):gmatch("%S+") do
  banned[name] = true
end
local all = {}
local function gather(prefix, t, skip)
  local names = {}
  for name, v in each(t) do
    if type(name) == "string" and name:find("^[%a_][%w_]*$") and not banned[name] and not skip(name, v)
      and loadstring("local " .. name) then -- x:repeat() cannot be written
      names[#names + 1] = prefix .. name
    end
  end
  table.sort(names) -- the order of keys is not the same in every run
  for _, name in ipairs(names) do all[#all + 1] = name end
end
local function is_op(name, v) return B.ops[name] == v or type(v) ~= "function" end
gather("moth.", moth, is_op)
gather("F.", moth.nn.functional, is_op)
gather("nn.init.", moth.nn.init, is_op)
gather("nn.utils.", moth.nn.utils, is_op)
gather("p[1]:", require("moth.tensor").methods, is_op)
gather("p[5]:", require("moth.tensor").methods, is_op)
for name in ("Linear Conv1d Conv2d ConvTranspose1d ConvTranspose2d BatchNorm1d BatchNorm2d LayerNorm GroupNorm "
  .. "Embedding LSTM GRU MultiheadAttention Dropout MaxPool2d AvgPool2d Flatten Softmax Sequential ModuleList "
  .. "ModuleDict CrossEntropyLoss NLLLoss BCELoss Upsample PReLU"):gmatch("%S+") do
  all[#all + 1] = "m = nn." .. name
end

local keys = { "dim", "keepdim", "dtype", "size", "p", "reduction", "mode", "bias", "padding", "stride", "n", "bogus",
  "eps" }
local function any_arguments(c)
  local out = {}
  for i = 1, c:int(0, 4) do
    local n = c:int(10)
    out[i] = n <= 4 and ("p[%d]"):format(c:int(P.POOL)) or n <= 7 and c:integer() or n == 8 and c:oddity()
      or n == 9 and ("{%d,%d}"):format(c:int(0, 4), c:int(0, 4)) or ("{%s=%s}"):format(c:pick(keys), c:number())
  end
  return table.concat(out, ",")
end

return function(c, _, i)
  if i == 1 then
    return P.first_line(c) .. " m = nn.Linear(4, 3) o = optim.SGD(m:parameters(), {lr=0.1}) "
      .. "s = optim.lr_scheduler.StepLR(o, {step_size=2})", false, "pool"
  end
  local head = ("seed(%d,'%s','%s') "):format(c:int(99999),
    c:pick(c:one_in(4) and P.dtypes or { "float32", "float64" }), c:pick(P.layouts))
  local n, before, text = c:int(20), ""
  if n <= 5 then text = c:pick(lines)
    if text:find("^nn%.%u") then before = "m = " end
  elseif n <= 10 then text = c:pick(on_module)
  elseif n == 11 then text, before = c:pick(optimizers), "o = "
  elseif n <= 13 then text = c:pick(on_optimizer)
  elseif n == 14 then text, before = c:pick(schedulers), "s = optim.lr_scheduler."
  elseif n == 15 then text = c:pick(data)
  elseif n == 16 then
    text = c:pick({ "G(p[3], true)", "GG(p[4], 1)", ("p[%d] = %s"):format(c:int(P.POOL), P.some_tensor(c)) })
    return head .. text, false, "pool"
  else
    local name = c:pick(all)
    return head .. ("%s%s(%s)"):format(name:find("^m = ") and "" or "local _ = ", name, any_arguments(c)), false, name
  end
  local what = text:match("^[%w_.]+") or text
  if before == "" and not text:find("backward%(%) ") then before = "local _ = " end
  text = text:gsub("%f[%w_]randn%b()", function(t) return c:one_in(12) and ("p[%d]"):format(c:int(P.POOL)) or t end)
  local changed = text
  while c:one_in(3) do changed = c:change_number(changed) end
  while c:one_in(4) do changed = c:change_argument(changed) end
  if loadstring(before .. changed) then text = changed end -- a change may have made it no Lua
  return head .. before .. text, false, what
end
