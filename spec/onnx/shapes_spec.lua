-- What others' files ask of sizes: lists that grow with them, images, sequences, and values that no file should have.
local moth = require "moth"
local files = require "onnx.files"
local path = os.tmpname()

local graph, fails = files.graph, files.fails
local function write(opset, ...) -- a session
  files.write(path, opset, ...)
  return moth.onnx.InferenceSession(path)
end
local function int64(list) return moth.tensor(list, { dtype = moth.int64 }) end

describe("moth.onnx", function()
  teardown(function() os.remove(path) end)

  it("a list as long as a size is known where a shape asks, and grows where it is a tensor #M424", function()
    -- x[:last of 0..n-1], and the list itself as floats
    local session = write(17, { { "Shape", { "x" }, { "s" } }, { "Gather", { "s", "zero" }, { "n" } },
      { "Range", { "zero", "n", "one" }, { "r" } }, { "Gather", { "r", "last" }, { "end" } },
      { "Slice", { "x", "starts", "end", "starts" }, { "y" } }, { "Cast", { "r" }, { "f" }, { { "to", 1 } } } },
      { { "x", "float32", { "n", 2 } } }, { { "y", "float32", {} }, { "f", "float32", {} } },
      { { "zero", int64(0) }, { "one", int64(1) }, { "last", int64 { -1 } }, { "starts", int64 { 0 } } })
    local ep = moth.onnx.load(path)
    for _, n in ipairs { 4, 2, 7, 7 } do
      local x = moth.randn(n, 2)
      for _, results in ipairs { session:run(nil, { x = x }), { ep(x) } } do
        assert.same(x:narrow(1, 1, n - 1):totable(), results[1]:totable())
        assert.same(moth.arange(0, n):totable(), results[2]:totable())
      end
    end
  end)

  it("a dimension that has to be large for its windows is loaded at such a size", function()
    local w = moth.randn(1, 1, 9, 9)
    write(17, { { "Conv", { "x", "w" }, { "y" } } }, { { "x", "float32", { 1, 1, "h", "w" } } },
      { { "y", "float32", {} } }, { { "w", w } })
    local ep = moth.onnx.load(path)
    local x = moth.randn(1, 1, 20, 33)
    assert.is_true((ep(x) - moth.nn.functional.conv2d(x, w)):abs():max():item() < 1e-4)
    write(17, { { "Conv", { "x", "w" }, { "y" } }, { "Reshape", { "y", "shape" }, { "z" } } },
      { { "x", "float32", { 1, 1, "h", "w" } } }, { { "z", "float32", {} } },
      { { "w", w }, { "shape", int64 { 7, 7 } } })
    fails("with sizes of 4: .*Conv_1.*\nwith sizes of 64: .*reshape", moth.onnx.load, path)
  end)

  it("images that are made small and joined again are loaded in steps of 32, sound from long examples", function()
    -- MaxPool by 2, Resize by 2, Add: sides are even
    local session = write(17, { { "MaxPool", { "x" }, { "small" }, { { "kernel_shape", { 32, 32 } },
      { "strides", { 32, 32 } } } }, { "Resize", { "small", "", "scales" }, { "large" },
      { { "coordinate_transformation_mode", "asymmetric" }, { "nearest_mode", "floor" } } },
      { "Add", { "x", "large" }, { "y" } } }, { { "x", "float32", { "n", 3, "h", "w" } } }, { { "y", "float32", {} } },
      { { "scales", moth.tensor { 1, 1, 32, 32 } } })
    local ep = moth.onnx.load(path)
    for _, size in ipairs { { 1, 3, 32, 96 }, { 3, 3, 160, 64 } } do
      local x = moth.randn(unpack(size))
      assert.same(session:run(nil, { x = x })[1]:totable(), ep(x):totable())
    end
    assert.error_matches(function() ep(moth.randn(1, 3, 33, 64)) end, "outside its range of 0 to any, in steps of 32")
    local w = moth.randn(2, 1, 256)
    for mode, names in pairs { reflect = "reflect", edge = "replicate" } do
      write(17, { { "Pad", { "x", "pads" }, { "p" }, { { "mode", mode } } }, { "Conv", { "p", "w" }, { "y" } } },
        { { "x", "float32", { "n", 1, "t" } } }, { { "y", "float32", {} } },
        { { "w", w }, { "pads", int64 { 0, 0, 3, 0, 0, 5 } } })
      ep = moth.onnx.load(path)
      for _, n in ipairs { 256, 300 } do
        local x = moth.randn(2, 1, n)
        local want = moth.nn.functional.conv1d(moth.nn.functional.pad(x, { 3, 5 }, { mode = names }), w)
        assert.is_true((ep(x) - want):abs():max():item() < 1e-4)
      end
    end
  end)

  it("pools whose last window is cut are followed over sizes #M424", function()
    for op, fn in pairs { MaxPool = "max_pool2d", AveragePool = "avg_pool2d" } do
      local session = write(17, { { op, { "x" }, { "y" }, { { "ceil_mode", 1 }, { "kernel_shape", { 3, 3 } },
        { "strides", { 2, 2 } }, { "pads", { 1, 1, 1, 1 } } } } },
        { { "x", "float32", { 1, 1, "h", "w" } } }, { { "y", "float32", {} } })
      local ep = moth.onnx.load(path)
      for _, size in ipairs { { 6, 7 }, { 9, 8 }, { 4, 11 } } do
        local x = moth.randn(1, 1, unpack(size))
        local o = { stride = 2, padding = 1, ceil_mode = true }
        if op == "AveragePool" then o.count_include_pad = false end
        local want = moth.nn.functional[fn](x, 3, o)
        assert.same(want:totable(), ep(x):totable())
        assert.same(want:totable(), session:run(nil, { x = x })[1]:totable())
      end
    end
  end)

  it("regions of images #M424", function()
    local x = moth.arange(0, 16):to(moth.float32):view(1, 1, 4, 4)
    local inputs = { { "x", "float32", { 1, 1, 4, 4 } }, { "boxes", "float32", { "n", 5 } } }
    local y = { { "y", "float32", {} } }
    local pool = write(17, { { "MaxRoiPool", { "x", "boxes" }, { "y" }, { { "pooled_shape", { 2, 2 } } } } }, inputs, y)
    assert.same({ { { { 5, 7 }, { 13, 15 } } }, { { { 15, 0 }, { 0, 0 } } } },
      pool:run(nil, { x = x, boxes = moth.tensor { { 0, 0, 0, 3, 3 }, { 0, 3, 3, 6, 6 } } })[1]:totable())
    fails("region 1 is of image 1, of 1", pool.run, pool, nil, { x = x, boxes = moth.tensor { { 1, 0, 0, 3, 3 } } })
    -- the middle of a plane is its mean, of a region beyond the image 0
    inputs[2][3][2] = 4
    local align = write(16, { { "RoiAlign", { "x", "boxes", "batch" }, { "y" } } }, inputs, y,
      { { "batch", int64 { 0, 0, 0 } } })
    local boxes = moth.tensor { { 1, 1, 3, 3 }, { 1, 0.5, 2, 1.5 }, { 9, 9, 11, 11 } }
    assert.same({ 7.5, 3, 0 }, align:run(nil, { x = x, boxes = boxes })[1]:view(-1):totable())
  end)

  it("Resize computes places in float32, of a result that is whole #M424", function()
    local x = moth.tensor { 0, 1, 2, 3, 4, 5, 6, 7 }:view(1, 1, 8)
    local function resize(mode, nearest)
      return write(18, { { "Resize", { "x", "", "scales" }, { "y" }, { { "mode", nearest and "nearest" or "linear" },
        { "coordinate_transformation_mode", mode }, { "nearest_mode", nearest or "floor" } } } },
        { { "x", "float32", { 1, 1, 8 } } }, { { "y", "float32", {} } },
        { { "scales", moth.tensor { 1, 1, 0.6 } } }):run(nil, { x = x })[1]:view(-1)
    end
    assert.same({ 0, 1, 3, 5 }, resize("asymmetric", "floor"):totable())
    assert.is_true((resize "align_corners" - moth.tensor { 0, 7 / 3, 14 / 3, 7 }):abs():max():item() < 1e-5)
  end)

  it("tensors of a sequence are stacked", function()
    local session = write(17, { { "SequenceConstruct", { "x", "x" }, { "s" } },
      { "ConcatFromSequence", { "s" }, { "y" }, { { "axis", 1 }, { "new_axis", 1 } } } },
      { { "x", "float32", { 2, 3 } } }, { { "y", "float32", {} } })
    assert.same({ 2, 2, 3 }, session:run(nil, { x = moth.ones(2, 3) })[1]:size())
  end)

  it("axes that are no numbers, parts without results and regions without end are refused #quick", function()
    local unsqueeze = write(17, { { "Unsqueeze", { "x", "axes" }, { "y" } } },
      { { "x", "float32", { 2 } }, { "axes", "float32", { 1 } } }, { { "y", "float32", {} } })
    fails("an axis is a whole number, got nan", unsqueeze.run, unsqueeze, nil,
      { x = moth.ones(2), axes = moth.tensor { 0 / 0 } })

    local split = write(18, { { "Split", { "x" }, { "y", "z" }, { { "num_outputs", 65535 } } } },
      { { "x", "float32", { 4 } } }, { { "y", "float32", {} }, { "z", "float32", {} } })
    fails("num_outputs is 65535, but the node has 2 results", split.run, split, nil, { x = moth.ones(4) })
    split = write(18, { { "Split", { "x", "sizes" }, { "y", "z" } } }, { { "x", "float32", { 4 } } },
      { { "y", "float32", {} }, { "z", "float32", {} } }, { { "sizes", int64 { 4 } } })
    fails("the sizes of 1 parts, but the node has 2 results", split.run, split, nil, { x = moth.ones(4) })

    local names = {}
    for i = 1, 4001 do names[i] = "y" .. i end
    fails("1 inputs and 4001 results: at most 4000", write, 18, { { "Split", { "x" }, names } },
      { { "x", "float32", { 4001 } } }, { { "y1", "float32", {} } })

    local body = graph({ { "Identity", { "a" }, { "b" } } }, { { "a", "float32", {} } }, { { "b", "float32", {} } })
    local scan = write(17, { { "Scan", { "x" }, { "y" }, { { "body", body }, { "num_scan_inputs", -2 ^ 40 } } } },
      { { "x", "float32", { 4 } } }, { { "y", "float32", {} } })
    fails("num_scan_inputs is %-1099511627776, of 1 inputs", scan.run, scan, nil, { x = moth.ones(4) })

    local mel = write(17, { { "MelWeightMatrix", { "n", "size", "rate", "low", "high" }, { "y" } } },
      { { "n", "int64", {} }, { "size", "int64", {} }, { "rate", "int64", {} }, { "low", "float32", {} },
        { "high", "float32", {} } }, { { "y", "float32", {} } })
    local given = { n = int64(4), size = int64(16), rate = int64(0), low = moth.tensor(0), high = moth.tensor(1e30) }
    assert.same({ 9, 4 }, mel:run(nil, given)[1]:size())
    given.n = int64(2 ^ 20)
    fails("a matrix of 9 by 1.04858e%+06", mel.run, mel, nil, given)

    local roi = write(16, { { "RoiAlign", { "x", "boxes", "batch" }, { "y" } } },
      { { "x", "float32", { 1, 1, 4, 4 } }, { "boxes", "float32", { 1, 4 } } }, { { "y", "float32", {} } },
      { { "batch", int64 { 0 } } })
    fails("region 1, 1e%+20 elements long", roi.run, roi, nil,
      { x = moth.ones(1, 1, 4, 4), boxes = moth.tensor { { 0, 0, 1e20, 1e20 } } })
  end)
end)
