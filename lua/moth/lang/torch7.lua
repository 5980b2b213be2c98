--- What Torch7's names are here, for errors about unknown names (moth.utils.check.suggest). docs/from-torch7.md says
-- more.
local M = {}

local function names(text)
  for old, new in text:gmatch("(%S+)%s+([^\n]+)\n") do M[old] = new end
end

names [[
SpatialConvolution       nn.Conv2d
SpatialConvolutionMM     nn.Conv2d
SpatialFullConvolution   nn.ConvTranspose2d
SpatialDilatedConvolution nn.Conv2d with dilation
TemporalConvolution      nn.Conv1d
VolumetricConvolution    nn.Conv3d
SpatialMaxPooling        nn.MaxPool2d
SpatialAveragePooling    nn.AvgPool2d
SpatialAdaptiveMaxPooling nn.AdaptiveMaxPool2d
SpatialAdaptiveAveragePooling nn.AdaptiveAvgPool2d
TemporalMaxPooling       nn.MaxPool1d
VolumetricMaxPooling     nn.MaxPool3d
VolumetricAveragePooling nn.AvgPool3d
SpatialBatchNormalization nn.BatchNorm2d
BatchNormalization       nn.BatchNorm1d
VolumetricBatchNormalization nn.BatchNorm3d
SpatialDropout           nn.Dropout2d
SpatialUpSamplingNearest nn.Upsample
SpatialUpSamplingBilinear nn.Upsample with mode = "bilinear"
SpatialZeroPadding       nn.ZeroPad2d
SpatialReflectionPadding nn.ReflectionPad2d
SpatialReplicationPadding nn.ReplicationPad2d
SpatialSoftMax           nn.Softmax(2)
LookupTable              nn.Embedding
SoftMax                  nn.Softmax
LogSoftMax               nn.LogSoftmax
SoftPlus                 nn.Softplus
SoftMin                  nn.Softmin
SoftSign                 nn.Softsign
HardTanh                 nn.Hardtanh
LeakyReLU                nn.LeakyReLU
View                     nn.Flatten, nn.Unflatten or x:view in forward
Reshape                  nn.Flatten, nn.Unflatten or x:view in forward
CMul                     x * weight in forward
CAdd                     x + bias in forward
CAddTable                x + y in forward
CSubTable                x - y in forward
CMulTable                x * y in forward
CDivTable                x / y in forward
JoinTable                moth.cat in forward
SplitTable               x:unbind in forward
SelectTable              an index in forward
NarrowTable              a part of the table in forward
FlattenTable             plain Lua in forward
Concat                   moth.cat of the branches in forward
ConcatTable              plain Lua in forward
ParallelTable            plain Lua in forward
DepthConcat              moth.cat of the branches in forward
MulConstant              x * c in forward
AddConstant              x + c in forward
Add                      x + bias in forward
Mul                      x * weight in forward
Transpose                x:transpose in forward
Sum                      x:sum in forward
Mean                     x:mean in forward
Max                      x:max in forward
Min                      x:min in forward
MM                       x:matmul(y) in forward
gModule                  nn.class with plain Lua in forward
MSECriterion             nn.MSELoss
AbsCriterion             nn.L1Loss
SmoothL1Criterion        nn.SmoothL1Loss
ClassNLLCriterion        nn.NLLLoss
CrossEntropyCriterion    nn.CrossEntropyLoss
BCECriterion             nn.BCELoss
DistKLDivCriterion       nn.KLDivLoss
MarginCriterion          nn.HingeEmbeddingLoss
MultiMarginCriterion     nn.MultiMarginLoss
MultiLabelMarginCriterion nn.MultiLabelMarginLoss
MultiLabelSoftMarginCriterion nn.MultiLabelSoftMarginLoss
MarginRankingCriterion   nn.MarginRankingLoss
CosineEmbeddingCriterion nn.CosineEmbeddingLoss
HingeEmbeddingCriterion  nn.HingeEmbeddingLoss
SoftMarginCriterion      nn.SoftMarginLoss
ParallelCriterion        a sum of losses
MultiCriterion           a sum of losses
ModuleCriterion          plain Lua
Criterion                nn.class with forward
Container                nn.class with modules as fields, or nn.ModuleList
Parallel                 plain Lua in forward
Bottle                   x:view in forward
Squeeze                  x:squeeze in forward
Unsqueeze                x:unsqueeze in forward
Replicate                x:expand in forward
Padding                  nn.functional.pad in forward
Contiguous               x:contiguous in forward
Copy                     x:to in forward
Select                   x:select in forward
Narrow                   x:narrow in forward
MaskedSelect             x:masked_select in forward
MV                       x:mv(y) in forward
DotProduct               (x * y):sum(2) in forward
CosineDistance           nn.CosineSimilarity
Euclidean                moth.cdist in forward
WeightedEuclidean        moth.cdist in forward
Normalize                nn.functional.normalize in forward
Square                   x:square in forward
Sqrt                     x:sqrt in forward
Power                    x ^ p in forward
Exp                      x:exp in forward
Log                      x:log in forward
Abs                      x:abs in forward
Clamp                    x:clamp in forward
HardShrink               nn.Hardshrink
SoftShrink               nn.Softshrink
SpatialLPPooling         nn.LPPool2d
SpatialCrossMapLRN       nn.LocalResponseNorm
SpatialLogSoftMax        nn.LogSoftmax(2)
L1Penalty                a term of the loss, x:abs():sum() * c
GradientReversal         moth.autograd.Function with a backward of its own
SparseLinear             nn.EmbeddingBag
Sequencer                nn.LSTM, nn.GRU or nn.RNN, which take whole sequences
SeqLSTM                  nn.LSTM
FastLSTM                 nn.LSTM
SeqGRU                   nn.GRU
Recurrent                nn.RNN, or plain Lua in forward
BiSequencer              nn.LSTM with bidirectional = true
sgd                      optim.SGD(model:parameters(), { lr = … }), then loss:backward() and opt:step()
adam                     optim.Adam(model:parameters(), { lr = … }), then loss:backward() and opt:step()
adagrad                  optim.Adagrad(model:parameters(), …), then loss:backward() and opt:step()
adadelta                 optim.Adadelta(model:parameters(), …), then loss:backward() and opt:step()
adamax                   optim.Adamax(model:parameters(), …), then loss:backward() and opt:step()
rmsprop                  optim.RMSprop(model:parameters(), …), then loss:backward() and opt:step()
rprop                    optim.Rprop(model:parameters(), …), then loss:backward() and opt:step()
nag                      optim.SGD with nesterov = true
asgd                     optim.ASGD(model:parameters(), …), then loss:backward() and opt:step()
lbfgs                    optim.LBFGS(model:parameters(), …), then opt:step(closure)
cg                       optim.LBFGS(model:parameters(), …), then opt:step(closure)
ConfusionMatrix          moth.metrics.ConfusionMatrix
Logger                   moth.utils.CSVLogger
add                      append, or nn.Sequential(a, b, …)
get                      net[i]
remove                   nn.Sequential's pop
replace                  a new nn.Sequential
listModules              modules
findModules              modules, with class.is_a
backward                 loss:backward(); autograd finds gradients
updateOutput             forward
updateGradInput          loss:backward(); autograd finds gradients
accGradParameters        loss:backward(); autograd finds gradients
zeroGradParameters       zero_grad
updateParameters         opt:step()
getParameters            parameters, or nn.utils.parameters_to_vector
training                 train
evaluate                 eval
clearState               nothing: results are not kept in modules
zero                     zero_, in place
copy                     copy_, in place
resize                   a new tensor, or reshape
resizeAs                 a new tensor, or reshape_as
apply                    ops on the whole tensor, or moth.func.vmap
map                      ops on whole tensors
index                    index_select
cfmod                    fmod
cremainder               remainder
lshift                   bitwise_left_shift
nElement                 numel
nDimension               dim
isContiguous             is_contiguous
isSameSizeAs             a:size() == b:size()
expandAs                 expand_as
repeatTensor             tile
maskedFill               masked_fill
maskedSelect             masked_select
maskedCopy               masked_scatter
indexCopy                index_copy
indexAdd                 index_add
indexFill                index_fill
storageOffset            storage_offset
typeAs                   type_as
cmul                     mul, or *
cdiv                     div, or /
cadd                     add, or +
csub                     sub, or -
cpow                     pow, or ^
cmax                     maximum
cmin                     minimum
ger                      outer
range                    moth.arange, without the end
manualSeed               moth.manual_seed
setdefaulttensortype     moth.set_default_dtype
getdefaulttensortype     moth.get_default_dtype
getnumthreads            moth.get_num_threads
initialSeed              moth.initial_seed
getRNGState              moth.get_rng_state
setRNGState              moth.set_rng_state
serialize                moth.save
deserialize              moth.load
DiskFile                 io.open, moth.save and moth.load
MemoryFile               plain Lua strings
Tensor                   moth.tensor (of values) or moth.zeros (of sizes)
ShortTensor              moth.tensor or moth.zeros with dtype = moth.int16
CharTensor               moth.tensor or moth.zeros with dtype = moth.int8
CudaDoubleTensor         moth.tensor or moth.zeros with dtype = moth.float64, device = "cuda"
setnumthreads            moth.set_num_threads
isTensor                 moth.is_tensor
DoubleTensor             moth.tensor or moth.zeros with dtype = moth.float64
FloatTensor              moth.tensor or moth.zeros
LongTensor               moth.tensor or moth.zeros with dtype = moth.int64
IntTensor                moth.tensor or moth.zeros with dtype = moth.int32
ByteTensor               moth.tensor or moth.zeros with dtype = moth.uint8
CudaTensor               moth.tensor or moth.zeros with device = "cuda"
Timer                    moth.benchmark
]]

--- What Torch7's packages are here, for `require "torch"` (moth.lang.searcher).
local packages = {}
for old, new in ([[
torch     moth
nn        moth.nn
optim     moth.optim
nngraph   nn.class with plain Lua in forward
cutorch   moth.cuda
cunn      moth.nn with model:cuda()
cudnn     moth.nn with model:cuda()
rnn       nn.LSTM, nn.GRU, nn.RNN
tds       plain Lua tables
threads   moth.data.DataLoader with num_workers
image     moth.data.read_image, moth.transforms
gnuplot   moth.plot
xlua      moth.utils.progress
paths     plain Lua (io, os.rename) or LuaFileSystem
dpnn      moth.nn, and plain Lua in forward
hdf5      moth.save and moth.load, safetensors
npy4th    moth.load of .npy files
trepl     the prompt of the program moth
]]):gmatch "(%S+)%s+([^\n]+)\n" do
  packages[old] = ("\n\tTorch7's '%s' is %s here (docs/from-torch7.md; moth.torch7.load reads .t7 files)"):format(old,
    new)
end
-- What stands behind an error that a name is nil or no function; nil where Torch7 has no such name.
local function hint(name)
  local new = rawget(M, name)
  if new then return ("; Torch7's '%s' is %s here (docs/from-torch7.md)"):format(name, new) end
end
-- The same of a global, which may be a package.
local function hint_of_global(name)
  local package = packages[name]
  return package and package:gsub("^\n\t", "; ") or hint(name)
end
-- They are no names of Torch7's: suggest asks by rawget.
setmetatable(M, { __index = { packages = packages, hint = hint, hint_of_global = hint_of_global } })

return M
