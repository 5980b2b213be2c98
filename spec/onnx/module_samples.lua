-- A list of modules of moth.nn with inputs: { name (the class, _ and more), module, inputs, more = inputs of another
-- first dimension, or nil }.
local moth = require "moth"
local nn = moth.nn

-- Random tensors of these shapes, the first size times `rows`; or what a function of `rows` gives.
local function inputs(shapes, rows)
  local list = {}
  for i, shape in ipairs(shapes) do
    if type(shape) == "function" then
      list[i] = shape(rows)
    else
      list[i] = moth.rand({ shape[1] * rows, unpack(shape, 2) }) * 2 - 1
    end
  end
  return list
end

return function()
  moth.manual_seed(7)
  local list = {}
  local function add(name, module, shapes, o)
    o = o or {}
    local made = inputs(shapes, 2)
    list[#list + 1] = { name = name, module = module:eval(), inputs = made, more = o.fixed ~= true and inputs(shapes, 3)
      or nil }
  end
  local line, image, volume = { 1, 4, 9 }, { 1, 4, 8, 8 }, { 1, 4, 6, 6, 6 }
  local function classes(n) return function(rows) return moth.randint(1, n + 1, { rows }) end end
  local function signs(...)
    local size = { ... }
    return function(rows) return moth.rand(rows, unpack(size)):sub(0.5):sign() end
  end
  local function positive(...)
    local size = { ... }
    return function(rows) return moth.rand(rows, unpack(size)) * 0.9 + 0.1 end
  end
  local pair = { { 1, 5 }, { 1, 5 } }

  for name in ([[CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish RReLU
    ReLU ReLU6 SELU SiLU Sigmoid Softmax Softmin Softplus Softshrink Softsign Tanh Tanhshrink Identity AlphaDropout
    Dropout FeatureAlphaDropout]]):gmatch("%S+") do
    local needs = name:find("^LogSoft") or name:find("^Softm") or name == "GLU"
    add(name, needs and nn[name](2) or nn[name](), { { 1, 6 } })
  end
  add("GELU_tanh", nn.GELU { approximate = "tanh" }, { { 1, 6 } })
  add("Threshold", nn.Threshold(0.1, 2), { { 1, 6 } })
  add("PReLU", nn.PReLU(4), { image })
  add("Softmax2d", nn.Softmax2d(), { image })
  for d, shape in ipairs { line, image, volume } do
    local function of(name, ...) add(name .. d .. "d", nn[name .. d .. "d"](...), { shape }) end
    of("Dropout", 0.3)
    of("AdaptiveAvgPool", 3)
    of("AdaptiveMaxPool", 3)
    of("AvgPool", 3, { stride = 2, padding = 1 })
    of("MaxPool", 3, { stride = 2, padding = 1, ceil_mode = true })
    of("LPPool", 2, 2)
    of("BatchNorm", 4)
    of("InstanceNorm", 4, { affine = true })
    of("Conv", 4, 6, 3, { stride = 2, padding = 1, groups = 2 })
    of("ConvTranspose", 4, 2, 3, { stride = 2, padding = 1, output_padding = 1 })
    of("CircularPad", 2)
    of("ConstantPad", 1, 0.5)
    of("ReflectionPad", 2)
    of("ReplicationPad", 1)
    of("ZeroPad", 1)
    for mode in ("reflect replicate circular"):gmatch("%a+") do
      add(("Conv%dd_%s"):format(d, mode), nn["Conv" .. d .. "d"](4, 2, 3, { padding = 1, padding_mode = mode }),
        { shape })
    end
  end
  add("AvgPool2d_divisor", nn.AvgPool2d(3, { ceil_mode = true, divisor_override = 5, stride = 2 }), { image })
  add("BatchNorm2d_stateless", nn.BatchNorm2d(4, { track_running_stats = false }), { image })
  add("Conv2d_same", nn.Conv2d(4, 2, 3, { padding = "same", dilation = 2 }), { image })
  add("GroupNorm", nn.GroupNorm(2, 4), { image })
  add("LayerNorm", nn.LayerNorm { 8, 8 }, { image })
  add("RMSNorm", nn.RMSNorm(8), { image })
  add("LocalResponseNorm", nn.LocalResponseNorm(3), { image })
  add("CrossMapLRN2d", nn.CrossMapLRN2d(3), { image })
  add("SyncBatchNorm", nn.SyncBatchNorm(4), { image })
  add("ChannelShuffle", nn.ChannelShuffle(2), { image })
  add("PixelShuffle", nn.PixelShuffle(2), { image })
  add("PixelUnshuffle", nn.PixelUnshuffle(2), { image })
  add("Flatten", nn.Flatten(), { image })
  add("Unflatten", nn.Unflatten(2, { 2, 2 }), { image })
  add("Unfold", nn.Unfold(2, { stride = 2 }), { image }, { fixed = true })
  add("Fold", nn.Fold({ 4, 5 }, { 2, 2 }), { { 1, 8, 12 } }, { fixed = true })
  for mode, o in require("moth.each") { nearest = { 2 }, bilinear = { 2 }, bicubic = { 2 },
    ["nearest-exact"] = { 2 } } do
    add("Upsample_" .. mode:gsub("%W", "_"), nn.Upsample { scale_factor = o[1], mode = mode }, { image })
  end
  add("Upsample_aligned", nn.Upsample { size = { 5, 11 }, mode = "bilinear", align_corners = true }, { image })
  add("Upsample_linear", nn.Upsample { scale_factor = 2, mode = "linear" }, { line })
  add("Upsample_trilinear", nn.Upsample { scale_factor = 2, mode = "trilinear" }, { volume })
  add("UpsamplingBilinear2d", nn.UpsamplingBilinear2d { scale_factor = 2 }, { image })
  add("UpsamplingNearest2d", nn.UpsamplingNearest2d { scale_factor = 2 }, { image })
  add("Linear", nn.Linear(5, 3), { { 1, 5 } })
  add("Bilinear", nn.Bilinear(3, 4, 2), { { 1, 3 }, { 1, 4 } })
  add("CosineSimilarity", nn.CosineSimilarity { dim = 2 }, pair)
  add("PairwiseDistance", nn.PairwiseDistance(), pair)
  add("Embedding", nn.Embedding(10, 4), { classes(10) })
  for mode in ("sum mean max"):gmatch("%a+") do
    add("EmbeddingBag_" .. mode, nn.EmbeddingBag(10, 4, { mode = mode }),
      { function(rows) return moth.randint(1, 11, { rows, 5 }) end })
  end
  -- recurrent layers: (batch, time, features)
  for name in ("RNN LSTM GRU"):gmatch("%S+") do
    local x = { { 1, 5, 3 } }
    add(name, nn[name](3, 4, 1, { batch_first = true }), x)
    add(name .. "_two", nn[name](3, 4, 2, { batch_first = true, bidirectional = true }), x)
    add(name .. "_plain", nn[name](3, 4, 1, { batch_first = true, bias = false }), x)
    add(name .. "Cell", nn[name .. "Cell"](3, 4), { { 1, 3 } })
  end
  add("LSTM_projected", nn.LSTM(3, 4, 1, { batch_first = true, proj_size = 2 }), { { 1, 5, 3 } })
  add("RNN_relu", nn.RNN(3, 4, 1, { batch_first = true, nonlinearity = "relu" }), { { 1, 5, 3 } })
  -- attention
  local words = { 1, 5, 8 }
  local Masked = nn.class("Masked")
  function Masked:__init(o)
    self.attention = nn.MultiheadAttention(8, 2, { batch_first = true })
    self.o = o
    self:register_buffer("mask", moth.ones(5, 5):triu(1):gt(0))
  end
  function Masked:forward(x)
    local o = {}
    for key, v in require("moth.each")(self.o) do o[key] = v end
    if o.mask then o.attn_mask, o.mask = self.mask, nil end
    return self.attention(x, x, x, o)
  end
  add("MultiheadAttention", Masked { need_weights = true }, { words })
  add("MultiheadAttention_masked", Masked { mask = true, need_weights = false }, { words })
  add("TransformerEncoderLayer", nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16, batch_first = true }),
    { words })
  add("TransformerEncoder", nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, { dim_feedforward = 16,
    batch_first = true, norm_first = true, activation = "gelu" }), 2), { words })
  add("TransformerDecoderLayer", nn.TransformerDecoderLayer(8, 2, { dim_feedforward = 16, batch_first = true }),
    { words, { 1, 3, 8 } })
  add("TransformerDecoder", nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, { dim_feedforward = 16,
    batch_first = true }), 1), { words, { 1, 3, 8 } })
  add("Transformer", nn.Transformer(8, 2, { num_encoder_layers = 1, num_decoder_layers = 1, dim_feedforward = 16,
    batch_first = true }), { { 1, 4, 8 }, words })
  -- losses
  for reduction in ("mean sum none"):gmatch("%a+") do
    local function loss(name, shapes, o)
      o = o or {}
      o.reduction = reduction
      add(name .. "_" .. reduction, nn[name](o), shapes)
    end
    loss("L1Loss", pair)
    loss("MSELoss", pair)
    loss("SmoothL1Loss", pair)
    loss("HuberLoss", pair)
    loss("BCELoss", { positive(5), positive(5) })
    loss("BCEWithLogitsLoss", pair)
    loss("KLDivLoss", { { 1, 5 }, positive(5) })
    loss("PoissonNLLLoss", pair)
    loss("SoftMarginLoss", { { 1, 5 }, signs(5) })
    loss("HingeEmbeddingLoss", { { 1, 5 }, signs(5) })
    loss("CosineEmbeddingLoss", { { 1, 5 }, { 1, 5 }, signs() })
    loss("MarginRankingLoss", { { 1 }, { 1 }, signs() })
    loss("TripletMarginLoss", { { 1, 5 }, { 1, 5 }, { 1, 5 } })
    loss("TripletMarginWithDistanceLoss", { { 1, 5 }, { 1, 5 }, { 1, 5 } })
    loss("GaussianNLLLoss", { { 1, 5 }, { 1, 5 }, positive(5) })
    loss("MultiMarginLoss", { { 1, 5 }, classes(5) })
    loss("MultiLabelSoftMarginLoss", { { 1, 5 }, positive(5) })
    loss("NLLLoss", { { 1, 5 }, classes(5) })
    loss("CrossEntropyLoss", { { 1, 5 }, classes(5) })
  end
  add("CrossEntropyLoss_smooth", nn.CrossEntropyLoss { label_smoothing = 0.1 }, { { 1, 5 }, classes(5) })
  add("NLLLoss_weighted", nn.NLLLoss { weight = moth.tensor { 1, 2, 3, 4, 5 } }, { { 1, 5 }, classes(5) })
  return list
end
