-- Every constructor of moth.models, exported and run in each way that docs/deploy.md names: the program reloaded in a
-- fresh process, the edge library by edge-run, the ONNX file by onnxruntime. A table of the largest error, as part of
-- the largest element, is printed; a way that differs or fails ends it with status 1.
--
--     luajit spec/parity/everywhere.lua FOLDER EDGE-RUN [--small] [NAME …]
--
-- --small: the models at sizes that take a second. Weights are drawn at random: a fresh ViT's head is zero, and would
-- hide what is before it. `make everywhere` builds edge-run with all ops and runs all at full size.
local moth = require "moth"
local ffi = require "ffi"
local models = moth.models

local M = {}

-- By name of a constructor: what it is at full size, and its inputs; the same at a small size. false: there is none;
-- nil: the full one is small.
local batch = { [1] = moth.Dim("batch", { min = 1, max = 8 }) }
local function image(size, n) return function() return { moth.randn(n or 1, 3, size, size) }, { batch } end end
local function classifier(name, small)
  return { function() return models[name]() end, image(224) },
    small and { function() return models[name] { num_classes = 10 } end, image(64, 2) } or false
end
local function tokens(vocab, b, t)
  return function()
    local time = moth.Dim("time", { min = 2, max = 64 })
    return { moth.randint(1, vocab + 1, { b, t }) }, { { [1] = batch[1], [2] = time } }
  end
end
local function flat(n) return function() return { moth.rand(2, n) }, { batch } end end
local function latent(n) return function() return { moth.randn(2, n, 1, 1) }, { batch } end end
local function with_mask(vocab, b, t)
  return function()
    local mask = moth.ones(b, t)
    mask:narrow(2, t - 1, 2):fill_(0)
    return { moth.randint(1, vocab + 1, { b, t }), mask, moth.randint(1, 3, { b, t }) }
  end
end

local recipes = {
  LeNet = function()
    return { function() return models.LeNet() end, function() return { moth.randn(2, 1, 28, 28) }, { batch } end }
  end,
  ViT = function()
    local small = function()
      return models.ViT { image_size = 32, patch_size = 8, num_classes = 10, hidden_dim = 32, num_layers = 2,
        num_heads = 2, mlp_dim = 64 }
    end
    return { function() return models.ViT { num_classes = 1000 } end, image(224) }, { small, image(32, 2) }
  end,
  UNet = function()
    return { function() return models.UNet() end, image(64) },
      { function() return models.UNet { num_classes = 2, channels = 8 } end, image(32) }
  end,
  VAE = function() return { function() return models.VAE() end, flat(784) } end,
  DCGANGenerator = function() return { function() return models.DCGANGenerator() end, latent(100) } end,
  DCGANDiscriminator = function() return { function() return models.DCGANDiscriminator() end, image(64) } end,
  GPT = function()
    return { function() return models.GPT { vocab_size = 50257 } end, tokens(50257, 1, 32) },
      { function() return models.GPT { vocab_size = 50, block_size = 64, n_layer = 2, n_head = 2, n_embd = 16 } end,
        tokens(50, 2, 5) }
  end,
  Llama = function()
    return { function()
      return models.Llama { vocab_size = 32000, hidden_size = 512, num_hidden_layers = 8, num_attention_heads = 8,
        num_key_value_heads = 4, intermediate_size = 1376 }
    end, tokens(32000, 1, 32) }, { function()
      return models.Llama { vocab_size = 50, hidden_size = 32, num_hidden_layers = 2, num_attention_heads = 4,
        num_key_value_heads = 2, intermediate_size = 64 }
    end, tokens(50, 2, 5) }
  end,
  BERT = function()
    return { function() return models.BERT { vocab_size = 30522 } end, with_mask(30522, 1, 32) }, { function()
      return models.BERT { vocab_size = 50, hidden_size = 32, num_hidden_layers = 2, num_attention_heads = 4,
        intermediate_size = 64 }
    end, with_mask(50, 2, 6) }
  end,
  minigpt = function()
    return { function() return models.minigpt { vocab = 1000, d_model = 256, n_layer = 4, n_head = 4 } end,
        tokens(1000, 2, 32) },
      { function() return models.minigpt { vocab = 20, d_model = 16, n_layer = 1, n_head = 2 } end, tokens(20, 2, 5) }
  end,
}
-- Networks of images that take any size; the small ones at a small size, too.
local with_small = { resnet18 = true, mobilenet_v2 = true, mobilenet_v3_small = true, efficientnet_b0 = true,
  regnet_y_400mf = true, densenet121 = true, swin_t = true }
for _, name in ipairs(getmetatable(models).__names()) do
  for _, kind in ipairs { "resne", "wide_resnet", "densenet", "mobilenet", "efficientnet", "regnet", "convnext",
    "swin" } do
    if name:find(kind, 1, true) == 1 then
      recipes[name] = function() return classifier(name, with_small[name]) end
    end
  end
end
for n in ("11 13 16 19"):gmatch "%d+" do
  for _, name in ipairs { "vgg" .. n, "vgg" .. n .. "_bn" } do
    recipes[name] = function() return classifier(name) end
  end
end
for name, size in require("moth.each") { vit_b_16 = 224, vit_b_32 = 224, vit_l_16 = 224 } do
  recipes[name] = function() return { function() return models[name]() end, image(size) } end
end

-- retinanet: its result depends on the values; Mamba, ModernBERT: run by the programs of language models alone.
local not_models = { load = true, save_gguf = true, retinanet_resnet50_fpn = true, Mamba = true, ModernBERT = true }

--- The names of all constructors; an error where one has no recipe above.
function M.names()
  local list = {}
  for _, name in ipairs(getmetatable(models).__names()) do
    if not not_models[name] then
      assert(recipes[name], "spec/parity/everywhere.lua has no recipe for moth.models." .. name)
      list[#list + 1] = name
    end
  end
  table.sort(list)
  return list
end

-- Values of a size that keeps signals as large as they are through layers.
local function fill(net)
  for name, p in net:named_parameters() do
    local fan = p:numel() / p:size(1)
    moth.no_grad(function()
      if p:dim() >= 2 then
        p:normal_(0, 1 / math.sqrt(fan))
      elseif name:find "weight$" then
        p:uniform_(0.5, 1.5)
      else
        p:normal_(0, 0.1)
      end
    end)
  end
  for name, b in net:named_buffers() do
    if name:find "running_mean$" then b:normal_(0, 0.1) end
    if name:find "running_var$" then b:uniform_(0.5, 1.5) end
  end
  return net
end

--- The model, its arguments and dynamic dimensions. nil: it has no small size.
function M.make(name, small)
  local full, little = recipes[name]()
  local recipe = small and (little or little == nil and full) or not small and full
  if not recipe then return end
  moth.manual_seed(1)
  local args, dynamic = recipe[2]()
  return fill(recipe[1]():eval()), args, dynamic
end

local function bytes(t) return ffi.string(t:contiguous():data(), t:numel() * t:element_size()) end

--- Writes STEM.mth2, .mte, .onnx, .in (the elements of all inputs), .inN.npy and .outN.npy. Returns the outputs.
function M.write(net, args, dynamic, stem, with_onnx)
  local outputs = moth.tree.flatten { moth.no_grad(net, unpack(args)) }
  local ep = moth.export(net, args, { dynamic_shapes = dynamic })
  moth.export.save(ep, stem .. ".mth2")
  moth.edge.export(ep, stem .. ".mte")
  local f = assert(io.open(stem .. ".in", "wb"))
  for i, t in ipairs(args) do
    f:write(bytes(t))
    moth.save(t:contiguous(), ("%s.in%d.npy"):format(stem, i))
  end
  f:close()
  for i, t in ipairs(outputs) do moth.save(t:contiguous(), ("%s.out%d.npy"):format(stem, i)) end
  if with_onnx then moth.onnx.export(ep, nil, stem .. ".onnx", { index_base = 1 }) end
  return outputs
end

--- The largest difference as part of the largest element; 0/0 where sizes or dtypes differ.
function M.error_of(want, got)
  if #want ~= #got then return 0 / 0 end
  local worst = 0
  for i, t in ipairs(want) do
    local g = got[i]
    if g:dtype() ~= t:dtype() or table.concat(g:size(), " ") ~= table.concat(t:size(), " ") then return 0 / 0 end
    local e = (g:double() - t:double()):abs():max():item() / math.max(1e-30, t:double():abs():max():item())
    if e > worst or e ~= e then worst = e end
  end
  return worst
end

-- ---- in a fresh process ------------------------------------------------------------------------------------

local function inputs_of(stem)
  local args = {}
  for i = 1, 9 do
    local f = io.open(("%s.in%d.npy"):format(stem, i), "rb")
    if not f then return args end
    f:close()
    args[i] = moth.load(("%s.in%d.npy"):format(stem, i))
  end
end

local function reload(stems)
  for _, stem in ipairs(stems) do
    local args, want = inputs_of(stem), {}
    local results = { moth.tree.flatten { moth.export.load(stem .. ".mth2")(unpack(args)) } }
    local ours = { moth.edge.load(stem .. ".mte")(unpack(args)) }
    for i = 1, #ours do want[i] = moth.load(("%s.out%d.npy"):format(stem, i)) end
    print(("reloaded %.3g %.3g"):format(M.error_of(want, results[1]), M.error_of(want, ours)))
  end
  for name in pairs(package.loaded) do assert(not name:find "^moth%.models%.", name) end
end

-- ---- the table -----------------------------------------------------------------------------------------------

local function output_of(command)
  local pipe = assert(io.popen(command .. " 2>&1"))
  local text = pipe:read("*a")
  pipe:close()
  return text
end

-- The outputs of edge-run, which lie one behind the other.
local function edge_outputs(path, want)
  local f = io.open(path, "rb")
  local text, at, list = f and f:read("*a") or "", 0, {}
  if f then f:close() end
  for i, t in ipairs(want) do
    local n = t:numel() * t:element_size()
    if #text < at + n then return {} end
    list[i] = moth.empty(t:size(), { dtype = t:dtype() })
    ffi.copy(list[i]:data(), ffi.cast("const char *", text) + at, n)
    at = at + n
  end
  return list
end

local function quoted(path) return "'" .. path:gsub("'", "'\\''") .. "'" end

local function run(folder, edge_run, small, chosen)
  os.execute("mkdir -p " .. quoted(folder))
  local has_onnx = output_of "python3 -c 'import onnxruntime, onnx; print(42)'":find "42"
  if not has_onnx then print "onnxruntime is not there: that column stays empty" end
  print(("%-20s %12s %10s %10s %12s"):format("model", "parameters", "reloaded", "edge", "onnxruntime"))
  local failed = 0
  local worst = { 0, 0, 0 }
  for _, name in ipairs(#chosen > 0 and chosen or M.names()) do
    local net, args, dynamic = M.make(name, small)
    if net then
      local stem, count, texts = folder .. "/" .. name, 0, {}
      for _, p in ipairs(net:parameters()) do count = count + p:numel() end
      local ok, want = pcall(M.write, net, args, dynamic, stem, has_onnx)
      net = nil -- luacheck: ignore
      collectgarbage()
      collectgarbage()
      if ok then
        local said = output_of(("LUA_PATH=%s LUA_CPATH=%s %s spec/parity/everywhere.lua --reload %s"):format(
          quoted(package.path), quoted(package.cpath), os.getenv "LUAJIT" or "luajit", quoted(stem)))
        texts[1] = said:match "reloaded (%S+)" or said
        said = output_of(("%s %s %s %s"):format(quoted(edge_run), quoted(stem .. ".mte"), quoted(stem .. ".in"),
          quoted(stem .. ".bin")))
        texts[2] = said:find "%S" and said or ("%.3g"):format(M.error_of(want, edge_outputs(stem .. ".bin", want)))
        texts[3] = has_onnx and output_of("python3 spec/parity/everywhere.py " .. quoted(stem)):gsub("%s+$", "")
      else
        texts[1] = tostring(want)
      end
      local right = true
      for i = 1, has_onnx and 3 or 2 do
        local e = tonumber(texts[i])
        right = right and e ~= nil and e <= (i == 1 and 0 or 1e-4)
        worst[i] = math.max(worst[i], e or 0)
      end
      failed = failed + (right and 0 or 1)
      local shown = { name, count, texts[1], texts[2] or "", texts[3] or "", right and "" or "   DIFFERS" }
      print(("%-20s %12d %10s %10s %12s%s"):format(unpack(shown)))
      io.stdout:flush()
      output_of("rm -f " .. quoted(stem) .. ".*")
    end
  end
  print(("everywhere: %d models differ; largest errors: reloaded %.3g, edge %.3g, onnxruntime %.3g"):format(failed,
    unpack(worst)))
  return failed == 0
end

if arg and arg[0] and arg[0]:find "everywhere%.lua$" then
  local list, small = {}, false
  for i = 1, #arg do
    if arg[i] == "--small" then small = true else list[#list + 1] = arg[i] end
  end
  if list[1] == "--reload" then
    reload { unpack(list, 2) }
  else
    assert(list[2], "usage: everywhere.lua FOLDER EDGE-RUN [--small] [NAME …]")
    os.exit(run(list[1], list[2], small, { unpack(list, 3) }) and 0 or 1)
  end
end

return M
