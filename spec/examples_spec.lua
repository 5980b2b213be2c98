-- The examples in a short form, each started by `moth` from another directory; their output is checked. Those of the
-- course's lab are run in lab_spec.lua.
local function output(command)
  local pipe = assert(io.popen(command .. " 2>&1; echo $?"))
  local text = pipe:read("*a")
  pipe:close()
  return text:match("^(.-)(%d+)\n$")
end

local here = output("pwd"):match("[^\n]+")
local build = os.getenv("MOTH_BUILD") or "build"
if build:sub(1, 1) ~= "/" then build = here .. "/" .. build end

local function example(name, ...)
  local text, status = output(("cd / && env -u LUA_PATH -u LUA_CPATH %s/moth %s/examples/%s.lua %s"):format(build, here,
    name, table.concat({ ... }, " ")))
  assert.equal("0", status, text)
  return text
end

local function has(text, ...)
  for _, part in ipairs { ... } do
    assert.is_truthy(text:find(part, 1, true), ("expected %q in\n%s"):format(part, text))
  end
end

-- The number behind a text, as in "loss 0.25".
local function number(text, before)
  local at = assert(select(2, text:find(before, 1, true)), before .. " is not in\n" .. text)
  return tonumber(text:match("^%s*([%d.e+-]+)", at + 1))
end

describe("example", function()
  it("stride_explorer: shape, stride, offset, places by hand #M046 #M048", function()
    has(example("stride_explorer"), "x:permute(3, 1, 2)                 shape [4, 2, 3], stride [1, 12, 4], offset 0",
      "use reshape(...) instead", "does that share x's storage?     false",
      "80 of 80 places computed by hand are right")
  end)

  it("async_timing: a launch is not the work #M485 #M486", function()
    has(example("async_timing", "1500"), "product of 1500 x 1500 on a stream of", "two events of the stream",
      "launch is the smaller one: true; the result is there: true")
  end)

  it("bench_determinism: two runs to the bit #M455 #M458", function()
    local text = example("bench_determinism", "--quick")
    for _, name in ipairs { "index_add", "scatter_add", "embedding's gradient" } do
      assert.matches(name .. " +[%d.]+ ms +[%d.]+ ms +[%d.]+ true, ", text)
    end
  end)

  it("nan, leak, debug_lab: planted faults are named #M472 #M473", function()
    has(example("nan"), "the loss: nan", "nan in the output of 1.1 (Normalise), op div", "its inputs were finite: true",
      "false: Function '", "examples/nan.lua", "find_nan: nil")
    has(example("leak"), "held by history[", "examples/leak.lua:13", "no leak in 5 steps")
    local text = example("debug_lab")
    has(text, "1.weight   vanishing", "3.bias     vanishing", "flagged: 0", "forward", "backward", "optimizer")
    assert.is_true(number(text, "   loss ") > number(text, " -> "))
  end)

  it("serve: a model behind HTTP, asked with curl #M429", function()
    if not require("moth.serve.front").available() then return pending "needs lua-http" end
    has(example("serve"), 'ready:  {"ready":true}', "equal to the model's: \ttrue", "expected [-1,16], got [2,15]",
      'moth_requests_total{model="digits",code="200"} 2')
  end)

  it("ship: trained, quantized, exported, served and asked #M438", function()
    if not require("moth.serve.front").available() then return pending "needs lua-http" end
    local text = example("ship")
    has(text, "float: status 200", "int8: status 200")
    assert.is_true(number(text, "int8: status 200,") >= 28, text)
  end)

  it("checklist: what the course teaches, demonstrated #M501", function()
    local text = example("checklist")
    local passed = select(2, text:gsub("md  pass\n", ""))
    assert.equal(13, passed, text)
  end)

  it("ext_add: an op of a library of C, compiled when it is loaded #noasan", function()
    local folder = os.tmpname()
    os.remove(folder)
    finally(function() os.execute("rm -rf " .. folder) end)
    local text, status = output(("cd / && env -u LUA_PATH -u LUA_CPATH -u LD_PRELOAD MOTH_EXTENSIONS=%s %s/moth \z
      %s/examples/ext_add/ext_add.lua"):format(folder, build, here))
    assert.equal("0", status, text)
    has(text, "ext_add::add(Tensor a, Tensor b) -> Tensor", "the same as a + b: true", "w + w after training: 1 2 3",
      "[moth.float32 2x3, cpu, fake]", "expected two float32 tensors of one shape; got a: float32 [2] cpu")
  end)

  it("pretend: a device of one's own, from a file of C #noasan", function()
    local folder = os.tmpname()
    os.remove(folder)
    finally(function() os.execute("rm -rf " .. folder) end)
    local text, status = output(("cd / && env -u LUA_PATH -u LUA_CPATH -u LD_PRELOAD MOTH_EXTENSIONS=%s %s/moth \z
      %s/examples/pretend/pretend.lua"):format(folder, build, here))
    assert.equal("0", status, text)
    has(text, "[moth.float32 2x3, pretend]", "a slice, a sum: [3, 2]\t12", "kernels of the device ran")
  end)

  it("per_sample_gradients, hessian_vector, ensemble: moth.func at work #M504", function()
    has(example("per_sample_gradients"), "MLP: 64 samples", "CNN: 64 samples", "difference is below 1e-5: true",
      "at most 64: true")
    local text = example("hessian_vector")
    has(text, "of 129 x 129: true")
    assert.is_true(number(text, "after one step") < number(text, "the loss before"))
    text = example("ensemble")
    assert.is_true(number(text, " to ") < 0.05)
    assert.is_true(number(text, "answers:") < number(text, "within the data,"))
  end)

  it("bayes_regression: the guessed posterior comes near the exact one", function()
    local text = example("bayes_regression", 300)
    assert.is_true(number(text, "after:  KL to the exact posterior") < 0.5)
  end)

  it("ffi_train: trains through the C API alone #M511", function()
    assert.is_true(number(example("ffi_train", 100), "loss 0.7285 -> ") < 0.2)
  end)

  it("resume: stopped within an epoch, it ends with the same bits #M434", function()
    local text = example("resume")
    assert.equal(number(text, "whole:   loss"), number(text, "resumed: loss"))
    has(text, "all weights are the same bits: true")
  end)

  it("quant_llm: int8 and int4, speed and perplexity #M444", function()
    local own = "cd / && env -u LUA_PATH -u LUA_CPATH -u MOTH_DATA %s/moth %s/examples/quant_llm.lua %s"
    local text = output(own:format(build, here, "--steps=8 --layers=1 --width=32 --context=16 --batch=4"))
    has(text, "tokens/s  speedup  perplexity    loss", "GGUF Q8_0", "GGUF Q4_0", "weight dB")
    for _, name in ipairs { "float32", "int8", "int4" } do
      assert.matches("\n" .. name .. " +[%d.]+ +%d+ +[%d.]+x +[%d.]+ +[+-][%d.]+", text)
    end
    local loss = tonumber(text:match("\nint8 .-([+-][%d.]+)\n"))
    assert.is_true(math.abs(loss) < 0.1, text)
  end)

  it("char_gpt: stopped, resumed, it goes through the same losses, writes the same text and checkpoint", function()
    local paths = { os.tmpname(), os.tmpname() }
    finally(function() for _, p in ipairs(paths) do os.remove(p) end end)
    local function run(path, ...)
      return example("char_gpt", "--layers 2 --width 32 --heads 2 --context 16 --batch 4 --warmup 2 --log 2",
        "--length 40 --dropout 0.1 --steps 6 --save", path, ...)
    end
    local function losses(text)
      local list = {}
      for step, a, b in text:gmatch("step (%d+)  train (%S+)  validation (%S+)") do
        list[tonumber(step)] = a .. " " .. b
      end
      return list, text:match("tokens/s\n([^\n]*\n.*)$"):gsub("step[^\n]*\n", "")
    end
    local whole, text = losses(run(paths[1]))
    run(paths[2], "--stop 3")
    local rest, again = losses(run(paths[2], "--resume"))
    assert.equal(whole[4], rest[4])
    assert.equal(whole[6], rest[6])
    assert.equal(text, again)
    local function bytes(path)
      local f = assert(io.open(path, "rb"))
      local all = f:read("*a")
      f:close()
      return all
    end
    assert.is_true(bytes(paths[1]) == bytes(paths[2]))
    assert.is_true(#text > 20)
    assert.is_true(tonumber(whole[6]:match("%S+")) < tonumber(whole[2]:match("%S+")))
  end)

  it("view_or_copy: what shares storage #M047", function()
    local text = example("view_or_copy")
    assert.is_truthy(text:find("x:view%(12%) +view"))
    assert.is_truthy(text:find("x:t%(%):reshape%(12%) +COPY"))
    has(text, "[  7.,   9.,  10., -11.]", "x is as before: true")
  end)

  it("dtype_precision: a million small numbers #M049", function()
    local text = example("dtype_precision", "--quick")
    local off = {}
    for name, naive, own in text:gmatch("(%w+) +[%d.]+ %( *([%d.+-]+) %%%) +[%d.]+ %( *([%d.+-]+) %%%)") do
      off[name] = { tonumber(naive), tonumber(own) }
    end
    for name, least in pairs { float16 = 80, bfloat16 = 80 } do
      assert.is_true(off[name][1] < -least, text)
      assert.is_true(math.abs(off[name][2]) == 0, text)
    end
    assert.is_truthy(text:find("float16 +0\n"))
  end)

  it("broadcasting_bugs: five, with the rule #M050", function()
    local text = "\n" .. example("broadcasting_bugs")
    for i = 1, 5 do has(text, "\n" .. i .. ". ") end
    has(text, "as written: (4, 4)     as meant: (4, 1)", "cannot be broadcast together")
  end)

  it("micrograd: an engine in Lua, whose gradients are moth's #M111", function()
    has(example("micrograd", "--quick"), "(they agree)")
  end)

  it("manual_backprop: gradients by hand equal autograd's at each step #M112", function()
    local text = example("manual_backprop", "--quick")
    has(text, "(they are equal)")
    local first, last = text:match("loss ([%d.]+) %-> ([%d.]+)")
    assert.is_true(tonumber(last) < tonumber(first))
  end)

  it("custom_function: ReLU, sigmoid, straight-through rounding #M104 #M113 #M114 #M123", function()
    local text = example("custom_function", "--quick")
    for _, name in ipairs { "MyReLU    ", "MySigmoid " } do
      has(text, name .. " equals moth's: true  its gradient too: true  gradcheck: true  gradgradcheck: true")
    end
    has(text, "is 1 by autograd, 0 by differences", "weights 0, 0, 0", "weights 2, -3, 1")
  end)

  it("maml: second-order meta-gradients pay #M107", function()
    local text = example("maml", "--quick")
    local function after(name) return tonumber(text:match(name .. " +[%d.]+ +([%d.]+)")) end
    assert.is_true(after("MAML") < 0.6 * after("trained on all waves"), text)
    assert.is_true(after("MAML") < after("first order"), text)
  end)

  it("hooks: vanishing gradients, statistics, clipping #M108 #M450", function()
    local text = example("hooks")
    assert.is_true(number(text, "ratio of the ends") < 1e-5, text) -- of the first network, whose activation is sigmoid
    local six = "%d%.%d%d%d%d%d%d"
    assert.is_truthy(text:find("\n   0%.weight" .. (" "):rep(13) .. "grad mean=%-?" .. six .. " std=" .. six .. "\n"))
    has(text, "features [64, 16]", "after doubling: 4, 8", "after doubling: 2, 4", "limit inf   nan")
    assert.is_true(number(text, "limit 0.1") < 1)
  end)

  it("spirals: all points, and a picture", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    has(example("spirals", path), "270 of 270 points right\nwritten: " .. path)
    local f = assert(io.open(path, "rb"))
    assert.equal("\137PNG\r\n", f:read(6))
    assert.is_true(f:seek("end") < 40000)
    f:close()
  end)

  it("bench_no_grad: without a graph no activations are kept #M098", function()
    local text, rows = example("bench_no_grad", "--quick"), 0
    for with, without in text:gmatch("kept +([%d,]+) bytes, +([%d,]+) without") do
      with, without = with:gsub(",", ""), without:gsub(",", "")
      assert.is_true(tonumber(with) > 15 * tonumber(without), text)
      rows = rows + 1
    end
    assert.equal(4, rows, text)
  end)

  it("gradient_accumulation: the large batch on less memory #M084 #M115", function()
    local text = example("gradient_accumulation")
    has(text, "(the same training)")
    assert.is_true(number(text, "scaled       loss") == number(text, "one batch of 512             loss"))
    assert.is_true(number(text:match("\n8 parts[^\n]*"), "peak") < 0.6 * number(text, "peak"), text)
  end)

  it("compile_breaks: breaks with their lines, graphs, a backend #M310 #M319 #M320", function()
    has(example("compile_breaks"), "3 graphs, 2 breaks, 8 ops", "break 1: item, at", "compile_breaks.lua:10",
      "nonzero: sizes of its result depend on elements", "%4 = relu(%3)", "without: 1 graph, 0 breaks",
      "equal results: true", "relu became gelu: yes")
  end)

  it("compile_slow: what compiling makes slower is found and mended #M310", function()
    local text = example("compile_slow", "--quick")
    local slow, mended = text:match "^(slow: .*)(mended: .*)$"
    assert.matches("slow: uncompiled [%d.]+ ms, compiled [%d.]+ ms; the calls that compiled took [%d.]+ ms\n"
      .. "  graphs 9, breaks 1\n  break: item, at [^\n]*compile_slow.lua:19\n", slow)
    assert.matches("mended: uncompiled [%d.]+ ms, compiled [%d.]+ ms; .-\n  graphs 1, breaks 0\n"
      .. "the same values: true\n$", mended)
  end)

  it("export: a CNN as a program and as ONNX, read back #M424 #M437", function()
    local text = example("export")
    has(text, "read back: equal to the bit: true", "takes\tinput\ttensor(float)\tbatch 3 224 224")
    for _, what in ipairs { "ONNX, by moth", "ONNX as a program", "compiled" } do
      assert.is_true(number(text, what .. ": off by") < 1e-3)
    end
    if not text:find("onnxruntime: not run") then assert.is_true(number(text, "onnxruntime: off by") < 1e-3) end
  end)

  it("loader_sweep: the same samples for any number of workers, as CSV #M238", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    has(example("loader_sweep", "--samples 300 --workers 0,1,2 --csv", path), " 2 workers: ", "the same bits each time")
    local f = assert(io.open(path))
    assert.matches("^workers,samples_per_second\n0,%d+%.%d\n1,%d+%.%d\n2,%d+%.%d\n$", f:read("*a"))
    f:close()
  end)

  it("slow_loader: found by moth.diagnose, mended, more than twice as fast #M239 #M247", function()
    local text = example("slow_loader", 800)
    has(text, "as it was:", "the step waits for batches", "mended:")
    assert.is_true(tonumber(text:match("\n([%d.]+) times as fast")) > 2, text)
  end)

  it("token_stream: bytes in a mapped file, a model that learns them #M234", function()
    local text = example("token_stream", "--steps 40")
    has(text, " blocks of 32", "step 40: loss")
    local first, last = text:match("loss ([%d.]+) %-> ([%d.]+) nats a byte")
    assert.is_true(tonumber(last) < 0.7 * tonumber(first), text)
  end)

  it("lstm_lm: an LSTM learns bytes, with a curve and a checkpoint", function()
    local curve = os.tmpname() .. ".svg"
    finally(function() os.remove(curve) end)
    local text = example("lstm_lm", "--steps 10 --hidden 32 --streams 4 --curve " .. curve)
    has(text, "step 10 of 10: loss", "curve: " .. curve)
    assert.is_true(number(text, "loss") > number(text, "step 10 of 10: loss"))
    assert.is_truthy(assert(io.open(curve)):read("*a"):find("<svg", 1, true))
  end)

  it("vae: the bound falls; a run goes on from its checkpoint", function()
    local path = os.tmpname()
    os.remove(path)
    finally(function() os.remove(path) end)
    local options = "--batch 16 --checkpoint " .. path
    example("vae", "--steps 20 " .. options)
    local resumed, whole = example("vae", "--steps 40 " .. options), example("vae", "--steps 40 --batch 16")
    has(resumed, "goes on from step 20")
    assert.equal(number(whole, "step 40 of 40: loss"), number(resumed, "step 40 of 40: loss"))
    assert.is_true(number(whole, "-> ") < 120)
  end)

  it("unet_segmentation, dcgan: pictures", function()
    local text = example("unet_segmentation", "--steps 20 --size 16")
    has(text, "IoU of frame")
    assert.is_true(number(text, "mean IoU") > 0.3)
    has(example("dcgan", "--steps 2 --batch 4 --channels 2"), "step 2 of 2", "real ones for real with")
  end)

  it("word2vec: words of a kind are near, by row gradients", function()
    assert.is_true(number(example("word2vec", "--steps 300"), "; ") > 15)
  end)

  it("graph_conv: a network on a graph, by products with a sparse matrix", function()
    assert.is_true(number(example("graph_conv", "--steps 25 --people 200"), "told right: ") > 70)
  end)

  it("finetune_gpt, chat: a MiniGPT learns to answer, and does #M505", function()
    local said = os.tmpname()
    local path = said .. ".gguf"
    finally(function()
      os.remove(said)
      os.remove(path)
    end)
    local f = assert(io.open(said, "w"))
    f:write "hello\n"
    f:close()
    has(example("finetune_gpt", "--before 2 --steps 3 --batch 2 --save " .. path), "after reading: loss",
      "saved " .. path)
    has(example("chat", "--tokens 5 --model", path, "<", said), "> ")
    local text = example("chat", "<", said)
    has(text, "no --model", "> ")
    assert.is_true(#text:match "> ([^\n]*)\n" > 0)
  end)

  it("finetune: a folder of images, the last layer first, then all", function()
    local text = example("finetune", "--before 20 --steps 12 --few 2")
    has(text, "ImageFolder: 20 images", "10 classes", "step 12 of 12: loss")
    assert.is_true(number(text, "last layer after 4 steps:") > number(text, "last layer before:"), text)
  end)

  it("webdataset: .tar files as a stream, by workers", function()
    local text = example("webdataset", "--steps 20 --batch 32")
    has(text, "samples of", "in 4 shards", "640 samples in 1 epochs")
    assert.is_true(number(text, "step 20 of 20: loss") < number(text, "step 2 of 20: loss"), text)
  end)

  it("feature_extractor: what a ResNet computes inside #M171", function()
    local path = os.tmpname() .. ".png"
    finally(function() os.remove(path) end)
    has(example("feature_extractor", "--picture " .. path), "layer3   output [1, 256, 4, 4]",
      "the extractor gives the same:\ttrue", "without hooks the model gives the same:\ttrue",
      "one channel set to 0 moves the logits:\ttrue", "written: " .. path)
  end)

  it("bench_ddp_memory: buckets cost a copy of the gradients, views of them do not #M341", function()
    local text = example("bench_ddp_memory", "--quick")
    local function peak(name) return tonumber(text:match(name .. " +([%d.]+)")) end
    local one, copies, views = peak "one process", peak "gradients and buckets", peak "views of buckets"
    assert.is_true(copies > one + 0.2 and views < copies - 0.2, text)
  end)

  it("translate: a transformer learns to turn digits around", function()
    local text = example("translate", "--steps 150 --longest 3")
    assert.is_true(tonumber(text:match("(%d+) of 50 numbers")) > 25, text)
  end)

  it("train_minigpt: a corpus in one .bin file, a GPT that learns from it #M235", function()
    local text = example("train_minigpt", "--steps 40")
    has(text, "tokens, 120576 weights", "step 40: loss")
    local first, last = text:match("loss ([%d.]+) %-> ([%d.]+) nats a byte")
    assert.is_true(tonumber(last) < 0.75 * tonumber(first), text)
  end)
end)
