--- Torch7's nn objects as modules of moth.nn: what reader.lua gives for them, by the names of their classes.
--
-- Layers become moth.nn's own, with the tensors of the file as parameters; containers and table layers that moth.nn has
-- not are small modules of this file. Their forward is Torch7's: dimensions without the batch where it had nInputDims.
local B = require "moth_lua"
local check = require "moth.utils.check"
local each = require "moth.each"
local reader = require "moth.torch7.reader"
local moth = require "moth"
local nn = moth.nn

local M = {}

-- name -> function(o, sub) that gives a module: o is the object's table, sub makes the modules of a list.
local makers = {}

-- ---- modules without counterpart ----------------------------------------------------------------------

local Op = nn.class("Torch7Op")
--- A module that calls a function with fixed settings: forward(x) is run(x, settings).
function Op:__init(name, run, settings, tensors)
  self.name, self.run, self.settings = name, run, settings
  for key, t in each(tensors or {}) do self[key] = nn.Parameter(t) end
end
--- What the function gives for x: a tensor or a table of tensors.
function Op:forward(x) return self.run(x, self.settings or self, self) end
--- Its name in Torch7.
function Op:extra_repr() return self.name end

local Branches = nn.class("Torch7Branches")
--- Torch7's containers but Sequential: several modules, and how their values become one.
function Branches:__init(name, list, run, settings)
  self.name, self.run, self.settings = name, run, settings
  self.branches = nn.ModuleList(list)
end
--- The branches' values for x, joined as the container's name says.
function Branches:forward(x)
  local list = {}
  for i = 1, #self.branches do list[i] = self.branches[i] end
  return self.run(list, x, self.settings)
end
--- Its name in Torch7.
function Branches:extra_repr() return self.name end

-- define("Exp Log", run): run(x, o), o being the plain fields of the object.
local function define(names, run, tensors)
  for name in names:gmatch "%S+" do
    makers[name] = function(o)
      local settings, own = {}, {}
      for key, v in each(o) do if type(v) ~= "table" and not B.is_tensor(v) then settings[key] = v end end
      for _, key in ipairs(tensors or {}) do
        own[key] = o[key]
        if not B.is_tensor(o[key]) then check.fail("[torch7.load] nn.%s has no tensor '%s'", name, key) end
      end
      return Op(name, run, settings, own)
    end
  end
end
local function container(name, run)
  makers[name] = function(o, sub)
    return Branches(name, sub(o.modules), run,
      { dimension = o.dimension, inputDimension = o.inputDimension, outputDimension = o.outputDimension })
  end
end

-- A dimension of Torch7's: nInputDims is the number of dimensions without the batch.
local function dim_of(x, dim, n) return dim > 0 and n and n > 0 and x:dim() == n + 1 and dim + 1 or dim end

makers.Sequential = function(o, sub) return nn.Sequential(sub(o.modules)) end
makers.gModule = function(o, sub) return require "moth.torch7.graph"(o, sub) end
container("ConcatTable", function(list, x)
  local out = {}
  for i, m in ipairs(list) do out[i] = m(x) end
  return out
end)
container("ParallelTable", function(list, x)
  local out = {}
  for i, m in ipairs(list) do out[i] = m(x[i]) end
  return out
end)
container("Concat", function(list, x, s)
  local out = {}
  for i, m in ipairs(list) do out[i] = m(x) end
  return moth.cat(out, s.dimension)
end)
container("Parallel", function(list, x, s)
  local out = {}
  for i, m in ipairs(list) do out[i] = m(x:select(s.inputDimension, i)) end
  return moth.cat(out, s.outputDimension)
end)
container("MapTable", function(list, x)
  local out = {}
  for i, t in ipairs(x) do out[i] = list[1](t) end
  return out
end)
container("DepthConcat", function(list, x, s)
  local out, size = {}, {}
  for i, m in ipairs(list) do
    out[i] = m(x)
    for d, n in ipairs(out[i].shape) do size[d] = math.max(size[d] or 0, n) end
  end
  for i, t in ipairs(out) do -- smaller ones stand in the middle of zeros
    local pads = {}
    for d = t:dim(), 1, -1 do
      local more = d == s.dimension and 0 or size[d] - t:size(d)
      pads[#pads + 1], pads[#pads + 2] = math.floor(more / 2), more - math.floor(more / 2)
    end
    out[i] = moth.F.pad(t, pads)
  end
  return moth.cat(out, s.dimension)
end)

local function fold(name, f)
  define(name, function(x)
    local y = x[1]
    for i = 2, #x do y = f(y, x[i]) end
    return y
  end)
end
fold("CAddTable", function(a, b) return a + b end)
fold("CSubTable", function(a, b) return a - b end)
fold("CMulTable", function(a, b) return a * b end)
fold("CDivTable", function(a, b) return a / b end)
fold("CMaxTable", function(a, b) return moth.maximum(a, b) end)
fold("CMinTable", function(a, b) return moth.minimum(a, b) end)

define("JoinTable", function(x, o) return moth.cat(x, dim_of(x[1], o.dimension, o.nInputDims)) end)
define("SplitTable", function(x, o) return { unpack(x:unbind(dim_of(x, o.dimension, o.nInputDims))) } end)
define("SelectTable", function(x, o) return x[o.index < 0 and #x + o.index + 1 or o.index] end)
define("NarrowTable", function(x, o)
  local out = {}
  for i = 1, o.length do out[i] = x[o.offset + i - 1] end
  return out
end)
local function flatten(x, out)
  for _, v in ipairs(x) do if B.is_tensor(v) then out[#out + 1] = v else flatten(v, out) end end
  return out
end
define("FlattenTable", function(x) return flatten(x, {}) end)

define("Identity Contiguous Copy", function(x) return x end)
define("MulConstant", function(x, o) return x * o.constant_scalar end)
define("AddConstant", function(x, o) return x + o.constant_scalar end)
define("Abs", function(x) return x:abs() end)
define("Square", function(x) return x:square() end)
define("Sqrt", function(x, o) return o.eps and o.eps > 0 and (x + o.eps):sqrt() or x:sqrt() end)
define("Power", function(x, o) return x ^ o.pow end)
define("Exp", function(x) return x:exp() end)
define("Log", function(x) return x:log() end)
define("Clamp", function(x, o) return x:clamp(o.min_val, o.max_val) end)
define("Narrow", function(x, o)
  local d = o.dimension > 0 and o.dimension or x:dim() + o.dimension + 1
  return x:narrow(d, o.index, o.length < 0 and x:size(d) - o.index + o.length + 2 or o.length)
end)
define("Select", function(x, o) return x:select(o.dimension, o.index) end)
define("Unsqueeze", function(x, o) return x:unsqueeze(dim_of(x, o.pos, o.numInputDims)) end)
define("Squeeze", function(x, o)
  if o.dim == nil then return x:squeeze() end
  return x:squeeze(dim_of(x, o.dim, o.numInputDims))
end)
define("Sum", function(x, o)
  local d = dim_of(x, o.dimension, o.nInputDims)
  return x:sum { dim = d, keepdim = o.squeeze == false } / (o.sizeAverage and x:size(d) or 1)
end)
define("Mean", function(x, o)
  return x:mean { dim = dim_of(x, o.dimension, o.nInputDims), keepdim = o.squeeze == false }
end)
define("Max", function(x, o) return (x:max(dim_of(x, o.dimension, o.nInputDims))) end)
define("Min", function(x, o) return (x:min(dim_of(x, o.dimension, o.nInputDims))) end)
define("Normalize", function(x, o)
  return x / (x:norm(o.p, -1, true) + (o.p == math.huge and 0 or o.eps or 1e-10))
end)
define("MM", function(x, o)
  local a, b = x[1], x[2]
  return (o.transA and a:transpose(-2, -1) or a):matmul(o.transB and b:transpose(-2, -1) or b)
end)
define("MV", function(x, o)
  return (o.trans and x[1]:transpose(-2, -1) or x[1]):matmul(x[2]:unsqueeze(-1)):squeeze(-1)
end)
define("DotProduct", function(x) return (x[1] * x[2]):sum(-1) end)
define("CosineDistance", function(x) return moth.F.cosine_similarity(x[1], x[2], -1) end)
define("PairwiseDistance", function(x, o) return (x[1] - x[2]):norm(o.norm, -1) end)
define("Mul", function(x, _, m) return x * m.weight end, { "weight" })
define("Add", function(x, _, m) return x + m.bias end, { "bias" })
define("CMul", function(x, _, m) return x * m.weight end, { "weight" })
define("CAdd", function(x, _, m) return x + m.bias end, { "bias" })

-- Sizes of View and Reshape: a storage, or a list.
local function sizes(v) return B.is_tensor(v) and v:tolist() or v end
local function numel(list)
  local n = 1
  for _, s in ipairs(list) do n = n * s end
  return n
end

-- Torch7's View keeps the batch where the elements are more than those of the sizes, or numInputDims says so.
makers.View = function(o)
  local size, dims = sizes(o.size), o.numInputDims
  return Op("View", function(x)
    local n, wild = numel(size), false
    for _, s in ipairs(size) do wild = wild or s == -1 end
    local inner = wild and nil or n
    local batched
    if wild then
      batched = dims and dims > 0 and x:dim() > dims
    else
      batched = x:numel() ~= inner or dims and x:dim() > dims
    end
    if not batched then return x:reshape(size) end
    local lead = dims and x:dim() - dims or 0
    if lead > 0 then -- the dimensions in front of the sample stay
      local out = {}
      for d = 1, lead do out[d] = x:size(d) end
      for _, s in ipairs(size) do out[#out + 1] = s end
      return x:reshape(out)
    end
    return x:reshape(-1, unpack(size))
  end)
end
makers.Reshape = function(o)
  local size, mode = sizes(o.size), o.batchMode
  local n = o.nelement or numel(size)
  return Op("Reshape", function(x)
    if mode == false or mode == nil and x:numel() == n and x:size(1) ~= 1 then return x:reshape(size) end
    return x:reshape(x:size(1), unpack(size))
  end)
end
makers.Transpose = function(o)
  local swaps = o.permutations or {}
  return Op("Transpose", function(x)
    for _, p in ipairs(swaps) do x = x:transpose(dim_of(x, p[1], o.numInputDims), dim_of(x, p[2], o.numInputDims)) end
    return x
  end)
end
makers.Replicate = function(o)
  return Op("Replicate", function(x)
    local d = dim_of(x, o.dim or 1, o.ndim)
    local size = {}
    for i, n in ipairs(x.shape) do size[i] = n end
    table.insert(size, d, o.nfeatures)
    return x:unsqueeze(d):expand(size)
  end)
end
makers.Padding = function(o)
  return Op("Padding", function(x)
    local d = dim_of(x, o.dim, o.nInputDim)
    local pads = {}
    for _ = d + 1, x:dim() do pads[#pads + 1], pads[#pads + 2] = 0, 0 end
    local n = math.abs(o.pad)
    pads[#pads + 1], pads[#pads + 2] = o.pad < 0 and n or 0, o.pad > 0 and n or 0
    return moth.F.pad(x, pads, "constant", o.value or 0)
  end)
end

-- ---- layers of moth.nn --------------------------------------------------------------------------------

-- Puts a file's tensors in place of a module's parameters and buffers, whose shapes they must have.
local function filled(m, name, tensors)
  for key, t in each(tensors) do
    local own = m[key]
    if not B.is_tensor(t) then
      check.fail("[torch7.load] %s has no tensor '%s': the file is damaged, or of an unknown Torch7", name, key)
    end
    if t:numel() ~= own:numel() then
      check.fail("[torch7.load] %s: '%s' has %d elements, [%s] has %d", name, key, t:numel(),
        table.concat(own.shape, ", "), own:numel())
    end
    t = t:reshape(own.shape)
    if m._parameters and m._parameters[key] then m[key] = nn.Parameter(t) else m[key] = t end
  end
  return m
end

-- A whole number of the object, or a default.
local function int(o, key, default)
  local v = o[key]
  if v == nil then v = default end
  if type(v) ~= "number" or v ~= math.floor(v) or math.abs(v) > 2 ^ 31 then
    check.fail("[torch7.load] %s: the field '%s' is %s, expected a whole number", o[reader.TYPENAME], key, tostring(v))
  end
  return v
end

-- The weight decides the sizes: a layer is no larger than its tensors in the file.
local function weight_of(o, dims)
  local w = o.weight
  if not B.is_tensor(w) or dims and w:dim() ~= dims then
    check.fail("[torch7.load] %s: 'weight' is no tensor%s", o[reader.TYPENAME],
      dims and (" of %d dimensions"):format(dims) or "")
  end
  return w
end

local function with_bias(o, m)
  return filled(m, o[reader.TYPENAME], { weight = o.weight, bias = B.is_tensor(o.bias) and o.bias or nil })
end

makers.Linear = function(o)
  local w = weight_of(o, 2)
  return with_bias(o, nn.Linear(w:size(2), w:size(1), B.is_tensor(o.bias)))
end
makers.LinearWithoutBias = makers.Linear

local axes = { "T", "H", "W" }
-- { d<axis>, … } for the last n axes: fields of Torch7 such as dH, dW.
local function along(o, prefix, n, default)
  local list = {}
  for i = 1, n do
    local axis = n == 1 and "W" or axes[3 - n + i]
    list[i] = int(o, prefix .. axis, default == "first" and int(o, prefix .. "W") or default)
  end
  return list
end
local function pads(o, n) -- padW; the first files had padding alone
  local default = o.padding ~= nil and int(o, "padding") or 0
  return along(o, "pad", n, default)
end

local function convolution(class, n, transposed)
  return function(o)
    local w = weight_of(o)
    local inputs, outputs = int(o, "nInputPlane"), int(o, "nOutputPlane")
    local kernel = along(o, "k", n)
    local groups = o.groups and int(o, "groups") or 1
    if inputs < 1 or outputs < 1 or groups < 1 or inputs % groups ~= 0
      or w:numel() ~= inputs * outputs / groups * numel(kernel) then
      check.fail("[torch7.load] %s: %d to %d planes with kernels [%s] have another weight than one of %d elements",
        o[reader.TYPENAME], inputs, outputs, table.concat(kernel, ", "), w:numel())
    end
    local options = { stride = along(o, "d", n, 1), padding = pads(o, n), bias = B.is_tensor(o.bias), groups = groups,
      dilation = along(o, "dilation", n, 1) }
    if transposed then options.output_padding = along(o, "adj", n, 0) end
    return with_bias(o, nn[class](inputs, outputs, kernel, options))
  end
end
makers.SpatialConvolution = convolution("Conv2d", 2)
makers.SpatialConvolutionMM = makers.SpatialConvolution
makers.SpatialDilatedConvolution = makers.SpatialConvolution
makers.SpatialFullConvolution = convolution("ConvTranspose2d", 2, true)
makers.VolumetricConvolution = convolution("Conv3d", 3)
makers.VolumetricFullConvolution = convolution("ConvTranspose3d", 3, true)
makers.TemporalConvolution = function(o) -- (N, time, frames), and its weight in that order
  local w, inputs, outputs, k = weight_of(o, 2), int(o, "inputFrameSize"), int(o, "outputFrameSize"), int(o, "kW")
  if inputs < 1 or k < 1 or w:size(1) ~= outputs or w:size(2) ~= inputs * k then
    check.fail("[torch7.load] %s: its weight is [%s]", o[reader.TYPENAME], table.concat(w.shape, ", "))
  end
  local conv = nn.Conv1d(inputs, outputs, k, { stride = int(o, "dW", 1) })
  filled(conv, "nn.TemporalConvolution", { weight = w:reshape(outputs, k, inputs):transpose(2, 3):contiguous(),
    bias = o.bias })
  return Branches("TemporalConvolution", { conv }, function(list, x)
    return list[1](x:transpose(-2, -1)):transpose(-2, -1)
  end)
end

local function batch_norm(class)
  return function(o)
    local name = o[reader.TYPENAME]
    local mean, var, eps = o.running_mean, o.running_var, o.eps or 1e-5
    if not B.is_tensor(mean) then check.fail("[torch7.load] %s has no running_mean", name) end
    if not B.is_tensor(var) and B.is_tensor(o.running_std) then var = o.running_std ^ -2 - eps end -- the first files
    local affine = B.is_tensor(o.weight)
    local m = nn[class](mean:numel(), { eps = eps, momentum = o.momentum or 0.1, affine = affine })
    filled(m, name, { running_mean = mean, running_var = var or false })
    return affine and with_bias(o, m) or m
  end
end
makers.BatchNormalization = batch_norm "BatchNorm1d"
makers.SpatialBatchNormalization = batch_norm "BatchNorm2d"
makers.VolumetricBatchNormalization = batch_norm "BatchNorm3d"

local function pooling(class, n, average)
  return function(o)
    local options = { stride = along(o, "d", n, 1), padding = pads(o, n), ceil_mode = o.ceil_mode == true }
    if average then
      options.count_include_pad = o.count_include_pad ~= false
      if o.divide == false then options.divisor_override = 1 end
    elseif o.dilationW then
      options.dilation = along(o, "dilation", n, 1)
    end
    return nn[class](along(o, "k", n), options)
  end
end
makers.SpatialMaxPooling = pooling("MaxPool2d", 2)
makers.SpatialDilatedMaxPooling = makers.SpatialMaxPooling
makers.SpatialAveragePooling = pooling("AvgPool2d", 2, true)
makers.VolumetricMaxPooling = pooling("MaxPool3d", 3)
makers.VolumetricAveragePooling = pooling("AvgPool3d", 3, true)
makers.TemporalMaxPooling = function(o)
  local pool = nn.MaxPool1d(int(o, "kW"), { stride = int(o, "dW", int(o, "kW")) })
  return Branches("TemporalMaxPooling", { pool }, function(list, x)
    return list[1](x:transpose(-2, -1)):transpose(-2, -1)
  end)
end
makers.SpatialAdaptiveMaxPooling = function(o) return nn.AdaptiveMaxPool2d { int(o, "H"), int(o, "W") } end
makers.SpatialAdaptiveAveragePooling = function(o) return nn.AdaptiveAvgPool2d { int(o, "H"), int(o, "W") } end

local function spatial_pad(class)
  return function(o) return nn[class] { int(o, "pad_l"), int(o, "pad_r"), int(o, "pad_t"), int(o, "pad_b") } end
end
makers.SpatialZeroPadding = spatial_pad "ZeroPad2d"
makers.SpatialReflectionPadding = spatial_pad "ReflectionPad2d"
makers.SpatialReplicationPadding = spatial_pad "ReplicationPad2d"
makers.SpatialUpSamplingNearest = function(o) return nn.Upsample { scale_factor = int(o, "scale_factor") } end
makers.SpatialUpSamplingBilinear = function(o)
  return nn.Upsample { scale_factor = int(o, "scale_factor"), mode = "bilinear", align_corners = true }
end
makers.SpatialCrossMapLRN = function(o)
  return nn.LocalResponseNorm(int(o, "size"), { alpha = o.alpha or 1e-4, beta = o.beta or 0.75, k = o.k or 1 })
end
makers.LookupTable = function(o)
  local w = weight_of(o, 2)
  local pad = o.paddingValue
  if pad == 0 or type(pad) ~= "number" then pad = nil end
  local m = nn.Embedding(w:size(1), w:size(2), { padding_idx = pad, max_norm = o.maxNorm or nil,
    norm_type = o.normType or 2 })
  return filled(m, "nn.LookupTable", { weight = w })
end

-- Features are dimension 1 without a batch and 2 with one: of vectors and of images.
local function over_features(fn)
  return function(x) return fn(x, (x:dim() == 1 or x:dim() == 3) and 1 or 2) end
end
define("SoftMax SpatialSoftMax", over_features(function(x, d) return x:softmax(d) end))
define("LogSoftMax SpatialLogSoftMax", over_features(function(x, d) return x:log_softmax(d) end))
define("SoftMin", over_features(function(x, d) return (-x):softmax(d) end))

-- Activations: the class here, and its arguments from the fields.
for name, make in each {
  ReLU = function() return nn.ReLU() end, ReLU6 = function() return nn.ReLU6() end,
  Tanh = function() return nn.Tanh() end, Sigmoid = function() return nn.Sigmoid() end,
  SoftSign = function() return nn.Softsign() end, LogSigmoid = function() return nn.LogSigmoid() end,
  TanhShrink = function() return nn.Tanhshrink() end,
  SoftPlus = function(o) return nn.Softplus(o.beta or 1, o.threshold or 20) end,
  HardTanh = function(o) return nn.Hardtanh(o.min_val or -1, o.max_val or 1) end,
  ELU = function(o) return nn.ELU(o.alpha or 1) end,
  LeakyReLU = function(o) return nn.LeakyReLU(o.negval or 0.01) end,
  RReLU = function(o) return nn.RReLU(o.lower or 1 / 8, o.upper or 1 / 3) end,
  Threshold = function(o) return nn.Threshold(o.threshold or 0, o.val or 0) end,
  HardShrink = function(o) return nn.Hardshrink(o.lambda or 0.5) end,
  SoftShrink = function(o) return nn.Softshrink(o.lambda or 0.5) end,
  PReLU = function(o)
    return filled(nn.PReLU(weight_of(o):numel()), "nn.PReLU", { weight = o.weight })
  end,
  Dropout = function(o) return nn.Dropout(o.p or 0.5) end,
  SpatialDropout = function(o) return nn.Dropout2d(o.p or 0.5) end,
  VolumetricDropout = function(o) return nn.Dropout3d(o.p or 0.5) end,
} do
  makers[name] = make
end

-- ---- criterions ---------------------------------------------------------------------------------------

local function criterion(class, options)
  return function(o)
    local settings = options and options(o) or {}
    local weights = o.weights
    if B.is_tensor(weights) and weights:numel() > 0 then settings.weight = weights end
    if o.sizeAverage == false then settings.reduction = "sum" end
    return nn[class](settings)
  end
end
for old, new in each {
  MSECriterion = "MSELoss", AbsCriterion = "L1Loss", SmoothL1Criterion = "SmoothL1Loss", BCECriterion = "BCELoss",
  ClassNLLCriterion = "NLLLoss", SpatialClassNLLCriterion = "NLLLoss", SoftMarginCriterion = "SoftMarginLoss",
  MultiLabelMarginCriterion = "MultiLabelMarginLoss", MultiLabelSoftMarginCriterion = "MultiLabelSoftMarginLoss",
} do
  makers[old] = criterion(new)
end
makers.CrossEntropyCriterion = function(o, sub)
  local inner = o.nll and sub { o.nll }[1]
  return nn.CrossEntropyLoss { weight = inner and inner.weight or nil, reduction = inner and inner.reduction or nil }
end
makers.DistKLDivCriterion = criterion("KLDivLoss", function() return { reduction = "mean" } end)
makers.MultiMarginCriterion = criterion("MultiMarginLoss", function(o)
  return { p = o.p or 1, margin = o.margin or 1 }
end)
makers.HingeEmbeddingCriterion = criterion("HingeEmbeddingLoss", function(o) return { margin = o.margin or 1 } end)
-- Its inputs are a table of two, as Torch7 has them.
for old, new in each {
  MarginRankingCriterion = "MarginRankingLoss", CosineEmbeddingCriterion = "CosineEmbeddingLoss",
} do
  local make = criterion(new, function(o) return { margin = o.margin or nil } end)
  makers[old] = function(o)
    local loss = make(o)
    return Branches(old, { loss }, function(list, x, _) return list[1](x[1], x[2], x[3]) end)
  end
end

-- ---- a file's objects ----------------------------------------------------------------------------------

--- The name of nn's maker for a class: nn.Linear, cudnn.ReLU; or nil.
local function known(name)
  local own = name:match "^nn%.(%w+)$" or name:match "^cudnn%.(%w+)$"
  return own and makers[own] and own
end

--- Puts modules in place of the objects in what reader.read gave, everywhere; tables stay the same tables. An nn object
-- that has no counterpart is an error that names it.
function M.convert(value)
  local done = {}
  local convert

  local function module(o)
    local name = o[reader.TYPENAME]
    local own = known(name)
    if not own then
      check.fail("[torch7.load] %s has no counterpart in moth.nn\nHINT: moth.torch7.load(path, { modules = false }) \z
        gives its fields and tensors as tables; write the module with nn.class (docs/from-torch7.md)", name)
    end
    done[o] = "being made"
    local function sub(list)
      local out = {}
      if type(list) ~= "table" then check.fail("[torch7.load] %s has no list of modules", name) end
      for i, inner in ipairs(list) do
        out[i] = convert(inner)
        if not nn.Module.is(out[i]) then
          check.fail("[torch7.load] %s: its part %d is no module", name, i)
        end
      end
      return out
    end
    local m = makers[own](o, sub)
    if o.train == false then m:eval() end
    done[o] = m
    return m
  end

  function convert(v)
    if type(v) ~= "table" or B.is_tensor(v) then return v end
    if done[v] == "being made" then check.fail("[torch7.load] %s contains itself", v[reader.TYPENAME]) end
    if done[v] ~= nil then return done[v] end
    local name = rawget(v, reader.TYPENAME)
    if name and (name:find "^nn%." or name:find "^cudnn%." or name:find "^nngraph%.") then return module(v) end
    done[v] = v
    local keys = {}
    for key in each(v) do keys[#keys + 1] = key end
    for _, key in ipairs(keys) do v[key] = convert(v[key]) end
    return v
  end
  return convert(value)
end

return M
