-- Sets of images in files of several forms: CIFAR, SVHN, KMNIST, EMNIST; arrays in MATLAB's files.

local ffi = require "ffi"
local moth = require "moth"
local datasets = moth.datasets
local mat = require "moth.io.mat"

local function bytes_of(hex) return (hex:gsub("..", function(pair) return string.char(tonumber(pair, 16)) end)) end
local function u16(n) return string.char(n % 256, math.floor(n / 256) % 256) end
local function u32(n) return u16(n % 65536) .. u16(math.floor(n / 65536)) end

local root
before_each(function()
  root = os.tmpname()
  os.remove(root)
  os.execute("mkdir " .. root)
end)
after_each(function() os.execute("rm -r " .. root) end)
local function write(name, bytes)
  local folder = name:match "^(.*)/"
  if folder then os.execute(("mkdir -p %s/%s"):format(root, folder)) end
  local f = assert(io.open(root .. "/" .. name, "wb"))
  f:write(bytes)
  f:close()
  return root .. "/" .. name
end

-- n images (n, 3, 32, 32), and their bytes.
local function pixels(n)
  local i = moth.arange(n * 3072)
  local x = ((i * 7 + i:div(13, { rounding_mode = "floor" })):remainder(251)):to(moth.uint8)
  return x:view(n, 3, 32, 32), ffi.string(x:data(), n * 3072)
end

-- A dictionary of labels and an array, as Python 2 pickles it (CIFAR's own files), or Python 3 with NumPy 2.
local function python2(labels, bytes, key)
  local list = {}
  for k, label in ipairs(labels) do list[k] = "K" .. string.char(label) end
  return table.concat { "\128\2}q\1(U\11batch_labelq\2U\21training batch 1 of 5q\3U", string.char(#key), key,
    "q\4]q\5(", table.concat(list), "eU\4dataq\6cnumpy.core.multiarray\n_reconstruct\nq\7cnumpy\nndarray\nq\8K\0\133",
    "U\1b\135Rq\9(K\1M", u16(#labels), "M", u16(3072), "\134cnumpy\ndtype\nq\10U\2u1K\0K\1\135Rq\11(K\3U\1|NNN",
    "J\255\255\255\255J\255\255\255\255K\0tb\137T", u32(#bytes), bytes, "tbU\9filenamesq\12](U\5a.pngU\5b.pngeu." }
end
local function python3(labels, bytes, key)
  local list = {}
  for k, label in ipairs(labels) do list[k] = "K" .. string.char(label) end
  local function text(s) return "\140" .. string.char(#s) .. s .. "\148" end
  return table.concat { "\128\4}\148(", text "data", text "numpy._core.multiarray", text "_reconstruct", "\147\148",
    text "numpy", text "ndarray", "\147\148K\0\133\148C\1b\148\135\148R\148(K\1M", u16(#labels), "M", u16(3072),
    "\134\148", text "numpy", text "dtype", "\147\148", text "u1", "\137\136\135\148R\148(K\3", text "|",
    "NNNJ\255\255\255\255J\255\255\255\255K\0t\148b\137B", u32(#bytes), bytes, "\148t\148b", text(key), "]\148(",
    table.concat(list), "eu." }
end

describe("CIFAR #quick", function()
  it("10: pickles of Python 2 and 3, and the binary form", function()
    local x, bytes = pixels(3)
    local expected = x:permute(1, 3, 4, 2)
    for _, form in ipairs { python2, python3 } do
      write("cifar-10-batches-py/test_batch", form({ 3, 9, 0 }, bytes, "labels"))
      for k = 1, 5 do write("cifar-10-batches-py/data_batch_" .. k, form({ 3, 9, k }, bytes, "labels")) end
      local ds = datasets.CIFAR10(root, { split = "test", check = false })
      assert.is_true(expected:equal(ds.images))
      assert.same({ 4, 10, 1 }, ds.labels:tolist())
      assert.equal("truck", ds.classes[10])
      assert.equal("CIFAR10: 3 images of [32, 32, 3], 10 classes", tostring(ds))
      local train = datasets.CIFAR10(root, { check = false, transform = moth.transforms.ToTensor() })
      assert.equal(15, train:size())
      assert.same({ 2, 3, 4, 5, 6 }, train.labels:view(5, 3):select(2, 3):tolist())
      assert.same({ 4, 3, 32, 32 }, (moth.data.DataLoader(train, { batch_size = 4 }):iter()()):size())
    end
    assert.error_matches(function() datasets.CIFAR10(root) end, "data_batch_1 is damaged, or another file: its MD5 is")
    os.remove(root .. "/cifar-10-batches-py/data_batch_4")
    assert.error_matches(function() datasets.CIFAR10(root) end, "data_batch_4 is missing, others are there")
    local rows = {}
    for k = 1, 3 do rows[k] = string.char(k + 5) .. bytes:sub(3072 * (k - 1) + 1, 3072 * k) end
    write("cifar-10-batches-bin/test_batch.bin", table.concat(rows))
    os.remove(root .. "/cifar-10-batches-py/test_batch")
    local ds = datasets.CIFAR10(root, { train = false })
    assert.is_true(expected:equal(ds.images))
    assert.same({ 7, 8, 9 }, ds.labels:tolist())
    write("cifar-10-batches-bin/test_batch.bin", table.concat(rows):sub(1, -2))
    assert.error_matches(function() datasets.CIFAR10(root, { train = false }) end, "no whole images of 3073")
    write("cifar-10-batches-bin/test_batch.bin", "\10" .. bytes:sub(1, 3072))
    assert.error_matches(function() datasets.CIFAR10(root, { train = false }) end, "labels beyond the 10 classes")
    assert.error_matches(function() datasets.CIFAR10(root, { coarse = true }) end, "an option of CIFAR100")
  end)

  it("100: fine and coarse labels", function()
    local x, bytes = pixels(2)
    write("cifar-100-binary/test.bin", "\19\99" .. bytes:sub(1, 3072) .. "\0\7" .. bytes:sub(3073))
    local ds = datasets.CIFAR100(root, { split = "test" })
    assert.is_true(x:permute(1, 3, 4, 2):equal(ds.images))
    assert.same({ 100, 8 }, ds.labels:tolist())
    assert.same({ "worm", "beetle", 100 }, { ds.classes[100], ds.classes[8], #ds.classes })
    local coarse = datasets.CIFAR100(root, { split = "test", coarse = true })
    assert.same({ 20, 1 }, coarse.labels:tolist())
    assert.same({ "vehicles_2", 20 }, { coarse.classes[20], #coarse.classes })
    write("cifar-100-python/test", python2({ 4, 98 }, bytes, "fine_labels"))
    assert.same({ 5, 99 }, datasets.CIFAR100(root, { split = "test", check = false }).labels:tolist())
    assert.error_matches(function() datasets.CIFAR100(root, { split = "test", check = false, coarse = true }) end,
      "holds no 'data' of bytes %(N, 3072%) with a 'coarse_labels' for each")
    write("cifar-100-python/test", "\128\2cos\nsystem\n(U\2lst\133R.")
    assert.error_matches(function() datasets.CIFAR100(root, { split = "test", check = false }) end,
      "the file asks for os.system.*nothing was run")
    assert.error_matches(function() datasets.CIFAR100(root) end,
      "there is no train in .*cifar%-100%-python.tar.gz there")
  end)

  it("damaged pickles end in an error or in images, nothing else", function()
    local _, bytes = pixels(1)
    local good = python2({ 1 }, bytes, "labels")
    for n = 1, 200 do
      local at = n * 3 % 260 + 1
      write("test_batch", good:sub(1, at - 1) .. string.char(n * 7 % 256) .. good:sub(at + 1))
      pcall(datasets.CIFAR10, root, { train = false, check = false })
    end
  end)
end)

-- By scipy 1.17: a = [[1, 2.5, -3], [4, 5, 6]], bytes = arange(24) (2, 3, 4), text, z = 1 + 2i; compressed and not.
local head = ("MATLAB 5.0 MAT-file"):rep(6)
local function mat_of(hex)
  return head .. (" "):rep(116 - #head) .. bytes_of(hex)
end
local packed = mat_of(""
  .. "00000000000000000001494d0f0000003a000000789ce36360604800623620e680d220c00ae533013133103302612290e604"
  .. "62030618f8600fa1051c20340b941681d21c0720b4840300aaad04680f00000047000000789ce36360608800623620e60062"
  .. "4e06086005621e20660262662066818a3342e5922a4b528ba1f21220091e16010e11465e56414e51263e36212e31667e7661"
  .. "6e7100951203f30f0000002b000000789ce36360603000623620e600621606086085f2198198094cb33094a4569408007919"
  .. "990c0c002822030e0f0000002b000000789ce3636060f000623620e600d120020858a17c46386664a802d29c507108f8608f"
  .. "ca677000004e21028f")
local plain = mat_of(""
  .. "00000000000000000001494d0e00000060000000060000000800000006000000000000000500000008000000020000000300"
  .. "000001000100610000000900000030000000000000000000f03f000000000000104000000000000004400000000000001440"
  .. "00000000000008c000000000000018400e0000005800000006000000080000000900000000000000050000000c0000000200"
  .. "0000030000000400000000000000010000000500000062797465730000000200000018000000000c04100814010d05110915"
  .. "020e06120a16030f07130b170e00000030000000060000000800000004000000000000000500000008000000010000000200"
  .. "0000010004007465787410000200686900000e00000048000000060000000800000006080000000000000500000008000000"
  .. "0100000001000000010001007a0000000900000008000000000000000000f03f09000000080000000000000000000040")

describe("MATLAB's files #quick", function()
  it("are arrays by name", function()
    for _, bytes in ipairs { packed, plain } do
      local path = write("a.mat", bytes)
      local t = mat.read(path, { "a", "bytes" })
      assert.same({ { 1, 2.5, -3 }, { 4, 5, 6 } }, t.a:tolist())
      assert.equal(moth.float64, t.a:dtype())
      assert.is_true(moth.arange(24):view(2, 3, 4):to(moth.uint8):equal(t.bytes))
      assert.error_matches(function() mat.read(path, { "text" }) end, "a.mat: 'text' is text, no numbers")
      assert.error_matches(function() mat.read(path, { "z" }) end, "'z' is complex numbers")
      assert.error_matches(function() mat.read(path, { "b" }) end, "there is no array 'b'")
      for n = 129, #bytes - 1, 3 do
        write("a.mat", bytes:sub(1, n))
        assert.is_false((pcall(mat.read, path, { "a", "bytes", "z" })))
        write("a.mat", bytes:sub(1, n) .. string.char(n % 256) .. bytes:sub(n + 2))
        pcall(mat.read, path)
      end
    end
    assert.error_matches(function() mat.read(write("b.mat", "MATLAB 7.3 MAT-file" .. (" "):rep(200))) end,
      "format 7.3, which is HDF5")
    assert.error_matches(function() mat.read(write("b.mat", "hello")) end, "no .mat file of version 5")
  end)
end)

describe("SVHN #quick", function()
  local function element(kind, bytes) return u32(kind) .. u32(#bytes) .. bytes .. ("\0"):rep(-#bytes % 8) end
  local function matrix(name, is, dims, kind, bytes)
    local sizes = {}
    for k, n in ipairs(dims) do sizes[k] = u32(n) end
    return element(14, element(6, u32(is) .. u32(0)) .. element(5, table.concat(sizes)) .. element(1, name)
      .. element(kind, bytes))
  end
  it("is read from its .mat file; class 1 is the digit 0", function()
    local x, bytes = pixels(3) -- as MATLAB has them: columns first
    local file = mat_of "00000000000000000001494d" .. matrix("X", 9, { 32, 32, 3, 3 }, 2, bytes)
      .. matrix("y", 6, { 3, 1 }, 2, "\10\1\9")
    write("svhn/train_32x32.mat", file)
    local ds = datasets.SVHN(root, { check = false })
    assert.is_true(x:permute(1, 4, 3, 2):equal(ds.images))
    assert.same({ 1, 2, 10 }, ds.labels:tolist())
    assert.equal("9", ds.classes[10])
    assert.error_matches(function() datasets.SVHN(root) end, "is damaged, or another file")
    assert.error_matches(function() datasets.SVHN(root, "extra") end, "there is no extra_32x32.mat in")
    write("svhn/test_32x32.mat", mat_of "00000000000000000001494d" .. matrix("X", 9, { 32, 96 }, 2, bytes:sub(1, 3072))
      .. matrix("y", 9, { 1, 1 }, 2, "\1"))
    assert.error_matches(function() datasets.SVHN(root, { split = "test", check = false }) end, "expected X of bytes")
  end)
end)

describe("KMNIST and EMNIST #quick", function()
  local function write_idx(name, shape, bytes)
    local text = { "\0\0\8", string.char(#shape) }
    for _, n in ipairs(shape) do text[#text + 1] = string.char(0, 0, math.floor(n / 256), n % 256) end
    write(name, table.concat(text) .. bytes)
  end
  it("are IDX files under their names", function()
    write_idx("KMNIST/raw/t10k-images-idx3-ubyte", { 2, 28, 28 }, ("\1"):rep(2 * 784))
    write_idx("KMNIST/raw/t10k-labels-idx1-ubyte", { 2 }, "\0\9")
    local ds = datasets.KMNIST(root, { split = "test", check = false })
    assert.same({ 2, { 1, 10 }, "wo" }, { ds:size(), ds.labels:tolist(), ds.classes[10] })
    assert.error_matches(function() datasets.KMNIST(root, { split = "test" }) end, "is not the published file")
    write_idx("emnist/emnist-letters-test-images-idx3-ubyte", { 2, 28, 28 }, ("\1"):rep(2 * 784))
    write_idx("emnist/emnist-letters-test-labels-idx1-ubyte", { 2 }, "\1\26")
    local letters = datasets.EMNIST(root, "letters", { train = false, check = false })
    assert.same({ { 2, 27 }, "a", "z" }, { letters.labels:tolist(), letters.classes[2], letters.classes[27] })
    assert.error_matches(function() datasets.EMNIST(root, "letters", false) end, "has 2 images, expected 20800")
    assert.error_matches(function() datasets.EMNIST(root, "balanced") end,
      "there is no emnist%-balanced%-train%-images%-idx3%-ubyte.gz in")
    for _, name in ipairs { "byclass", "bymerge", "balanced", "digits", "mnist" } do
      write_idx(("emnist/emnist-%s-train-images-idx3-ubyte"):format(name), { 1, 28, 28 }, ("\1"):rep(784))
      write_idx(("emnist/emnist-%s-train-labels-idx1-ubyte"):format(name), { 1 }, "\3")
    end
    local counts = {}
    for k, name in ipairs { "byclass", "bymerge", "balanced", "digits", "mnist" } do
      counts[k] = #datasets.EMNIST(root, name, { check = false }).classes
    end
    assert.same({ 62, 47, 47, 10, 10 }, counts)
  end)
end)
