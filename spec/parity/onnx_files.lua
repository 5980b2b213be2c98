-- Writes models, modules and functions as ONNX files, with inputs and moth's results; spec/parity/onnx_files.py has
-- onnxruntime compute them.   luajit spec/parity/onnx_files.lua FOLDER [opset]
local moth = require "moth"
local nn, models = moth.nn, moth.models
local folder, opset = assert(arg[1], "a folder is expected"), tonumber(arg[2] or 17)
os.execute("mkdir -p '" .. folder .. "'")
moth.manual_seed(1)
local list = assert(io.open(folder .. "/list.txt", "w"))

local function put(t, name, run, kind, i)
  moth.save(t:contiguous(), ("%s/%s.%d.%s%d.npy"):format(folder, name, run, kind, i))
end

-- Index inputs and results count from 0 in the file.
local function from_zero(t) return t:dtype() == moth.int64 and t - 1 or t end

local function write(name, fn, args, dynamic, more)
  if type(fn) == "table" then fn:eval() end
  local ok, message = pcall(moth.onnx.export, fn, args, folder .. "/" .. name .. ".onnx",
    { dynamic_shapes = dynamic, opset_version = opset })
  if not ok then
    list:write(name, " 0 ", (message:gsub("\n.*", "")), "\n")
    return
  end
  for run, given in ipairs { args, more } do
    local results = moth.tree.flatten { moth.no_grad(fn, unpack(given)) }
    for i, t in ipairs(given) do put(from_zero(t), name, run, "in", i) end
    for i, t in ipairs(results) do put(from_zero(t), name, run, "out", i) end
    list:write(("%s %d %d %d\n"):format(name, run, #given, #results))
  end
end

local batch = { { [1] = "batch" } }
local tokens = { { [1] = "batch", [2] = moth.Dim("time", { min = 2, max = 16 }) } }
local image, images = moth.randn(1, 3, 32, 32), moth.randn(2, 3, 32, 32)
local words, other = moth.randint(1, 21, { 2, 5 }), moth.randint(1, 21, { 3, 9 })
write("lenet", models.LeNet(), { moth.randn(1, 1, 28, 28) }, batch, { moth.randn(3, 1, 28, 28) })
write("resnet18", models.resnet18(), { image }, batch, { images })
write("mobilenet_v2", models.mobilenet_v2(), { image }, batch, { images })
write("unet", models.UNet { num_classes = 2, channels = 8 }, { image },
  { { [1] = "batch", [3] = moth.Dim("height", { multiple_of = 16, min = 16 }) } }, { moth.randn(2, 3, 48, 32) })
write("vit", models.ViT { image_size = 32, patch_size = 8, num_classes = 10, hidden_dim = 32, num_layers = 2,
  num_heads = 2, mlp_dim = 64 }, { image }, batch, { images })
write("gpt", models.GPT { vocab_size = 20, block_size = 16, n_layer = 2, n_head = 2, n_embd = 16 }, { words }, tokens,
  { other })
write("llama", models.Llama { vocab_size = 20, hidden_size = 32, num_hidden_layers = 2, num_attention_heads = 4,
  num_key_value_heads = 2, intermediate_size = 64 }, { words }, tokens, { other })
write("bert", models.BERT { vocab_size = 20, hidden_size = 32, num_hidden_layers = 2, num_attention_heads = 4,
  intermediate_size = 64 }, { words }, tokens, { other })
write("dcgan", models.DCGANGenerator { channels = 8 }, { moth.randn(1, 100, 1, 1) }, batch,
  { moth.randn(2, 100, 1, 1) })
local steps = { { [1] = "time", [2] = "batch" } }
write("gru", nn.GRU(3, 4, 2, { bidirectional = true }), { moth.randn(4, 2, 3) }, steps, { moth.randn(6, 3, 3) })
write("lstm", nn.LSTM(3, 4, 2, { bidirectional = true }), { moth.randn(4, 2, 3) }, steps, { moth.randn(6, 3, 3) })
write("transformer", nn.TransformerEncoderLayer(8, 2, 16), { moth.randn(4, 2, 8) }, steps, { moth.randn(6, 3, 8) })
for name, module in require("moth.each") {
  group_norm = nn.GroupNorm(2, 4), instance_norm = nn.InstanceNorm2d(4), layer_norm = nn.LayerNorm(8),
  rms_norm = nn.RMSNorm(8), batch_norm = nn.BatchNorm2d(4, { affine = false }), prelu = nn.PReLU(4),
  hardswish = nn.Hardswish(), mish = nn.Mish(), softplus = nn.Softplus(), log_sigmoid = nn.LogSigmoid(),
  threshold = nn.Threshold(0.1, 2), glu = nn.GLU(2), avg_pool = nn.AvgPool2d(2), adaptive = nn.AdaptiveAvgPool2d(4),
  max_pool = nn.MaxPool2d(3, { stride = 2, padding = 1, ceil_mode = true }), nearest = nn.Upsample { scale_factor = 2 },
  bilinear = nn.Upsample { scale_factor = 2, mode = "bilinear" }, reflect = nn.ReflectionPad2d(1),
  zero_pad = nn.ZeroPad2d(2), pixel_shuffle = nn.PixelShuffle(2), channel_shuffle = nn.ChannelShuffle(2),
  transposed = nn.ConvTranspose2d(4, 3, 3, { stride = 2, padding = 1, output_padding = 1 }),
  dilated = nn.Conv2d(4, 4, 3, { dilation = 2, groups = 2, padding = "same" }), lrn = nn.LocalResponseNorm(2),
} do
  write(name, module, { moth.randn(2, 4, 8, 8) }, batch, { moth.randn(3, 4, 8, 8) })
end
-- M424: an image of the usual size.
write("cnn", nn.Sequential(nn.Conv2d(3, 8, 3, { stride = 2, padding = 1 }), nn.BatchNorm2d(8), nn.ReLU(),
  nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 56 * 56, 10)), { moth.randn(1, 3, 224, 224) }, batch,
  { moth.randn(2, 3, 224, 224) })
local matrix = moth.randn(3, 3)
write("branches", function(x)
  local y = moth.cond(x:sum():gt(0), function(v) return v:matmul(matrix) end, function(v) return -v end, { x })
  local _, z = moth.while_loop(function(n) return n:lt(5) end, function(n, v) return n + 2, v * 2 + matrix end,
    { moth.tensor(0), y })
  return y, z
end, { moth.ones(3, 3) }, nil, { -moth.ones(3, 3) })
write("unfold", nn.Unfold(2, { padding = 1, stride = 2 }), { moth.randn(2, 3, 5, 6) }, nil, { moth.randn(2, 3, 5, 6) })
local function several(x, y)
  return x:std(2), x:var({ 1, 2 }), x:argmax(2), (x:topk(2, 1)), x:max(2), x:cumsum(1), x:flip({ 2 }), x:triu(),
    moth.where(x:gt(0), x, y), x % 2, (x * y):sum(), x:clamp({ min = -1 }), x:log_softmax(2), x:logsumexp(1),
    moth.stack({ x, y }, 1), x:mean({ 2 }, { keepdim = true }), x:norm(), x:sort(2, { descending = true }), x:roll(1, 1)
end
write("in_place", nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(true), nn.Dropout(0.5)), { moth.randn(2, 4, 8, 8) }, batch,
  { moth.randn(1, 4, 8, 8) })
write("several", several, { moth.randn(4, 4), moth.randn(4, 4) }, nil, { moth.randn(4, 4), moth.randn(4, 4) })
for _, s in ipairs(dofile((arg[0]:gsub("[^/]*$", "")) .. "../onnx/module_samples.lua")()) do
  local open = {}
  for i = 1, #s.inputs do open[i] = { [1] = "batch" } end
  write("module_" .. s.name, s.module, s.inputs, s.more and open, s.more)
end
list:close()
