local ffi = require "ffi"
local moth = require "moth"
local T, datasets = moth.transforms, moth.datasets
ffi.cdef "int setenv(const char *name, const char *value, int replace); int unsetenv(const char *name);"

describe("transforms #quick #M244", function()
  it("ToTensor scales bytes and puts channels first", function()
    local grey = moth.tensor({ { 0, 255 }, { 51, 102 } }, { dtype = moth.uint8 })
    local x = T.ToTensor()(grey)
    assert.equal("[1, 2, 2]", tostring(x:size()))
    assert.is_near(0.2, x[1][2][1]:item(), 1e-7)
    assert.equal(1, x:max():item())
    local colour = moth.zeros({ 4, 5, 3 }, { dtype = moth.uint8 })
    assert.equal("[3, 4, 5]", tostring(T.ToTensor()(colour):size()))
    local batch = moth.zeros({ 7, 4, 5, 3 }, { dtype = moth.uint8 })
    assert.equal("[7, 3, 4, 5]", tostring(T.ToTensor():batch(batch):size()))
    assert.error_matches(function() T.ToTensor()(moth.ones(3)) end, "cannot take an image of shape %[3%]")
    assert.error_matches(function() T.ToTensor()(3) end, "expected a tensor")
  end)

  it("ToTensor finds channels that come first, and refuses where sizes do not tell", function()
    local image = moth.randint(0, 256, { 6, 5, 3 }):to(moth.uint8)
    local x = T.ToTensor()(image)
    assert.is_true(x:equal(T.ToTensor()(image:permute(3, 1, 2))))
    assert.is_true(x:equal(T.ToTensor()(x))) -- floats, too
    local batch = image:permute(3, 1, 2):unsqueeze(1)
    assert.is_true(x:equal(T.ToTensor():batch(batch)[1]))
    for _, size in ipairs { { 32, 32, 32 }, { 3, 32, 3 }, { 5, 6, 7 } } do
      local odd = moth.zeros(size, { dtype = moth.uint8 })
      assert.error_matches(function() T.ToTensor()(odd) end, 'ToTensor "HWC" or transforms.ToTensor "CHW"')
      assert.equal(size[3], T.ToTensor("HWC")(odd):size(1))
      assert.equal(size[1], T.ToTensor("CHW")(odd):size(1))
    end
  end)

  it("PNGs of 16 bits keep them", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    for _, size in ipairs { { 4, 5 }, { 4, 5, 3 }, { 3, 4, 5 }, { 6, 5, 4 } } do
      local image = moth.randint(0, 65536, size):to(moth.uint16)
      moth.plot.save_image(image, path)
      local back = moth.data.read_image(path)
      assert.equal(moth.uint16, back:dtype())
      local same = #size == 2 and image:unsqueeze(3) or size[1] == 3 and image:permute(2, 3, 1) or image
      assert.is_true(back:to(moth.int64):equal(same:to(moth.int64)))
      assert.is_true(T.ToTensor()(back):allclose(same:float():permute(3, 1, 2) / 65535))
      assert.same({ 4, 1 }, { moth.data.read_image(path, 4):size(3), moth.data.read_image(path, 1):size(3) })
    end
    local grey = moth.tensor({ { 0, 257, 65535 } }, { dtype = moth.int64 }):to(moth.uint16)
    moth.plot.save_image(grey, path)
    assert.same({ 0, 257, 65535 }, moth.data.read_image(path, 1):view(-1):to(moth.int64):tolist())
    assert.same({ 257, 257, 257 }, moth.data.read_image(path, 3)[1][2]:to(moth.int64):tolist())
    assert.error_matches(function() moth.data.read_image(path, 2) end, "channels are 1, 3, 4")
  end)

  it("Normalize is (x - mean) / std per channel", function()
    local x = moth.ones(2, 2, 2)
    local y = T.Normalize({ 0.5, 0 }, { 0.25, 2 })(x)
    assert.same({ { { 2, 2 }, { 2, 2 } }, { { 0.5, 0.5 }, { 0.5, 0.5 } } }, y:totable())
    assert.equal(1, x[1][1][1]:item())
    assert.error_matches(function() T.Normalize({ 1 }, { 0 }) end, "std%[1%] is 0")
    assert.error_matches(function() T.Normalize({ 1, 2 }, { 1, 1 })(moth.ones(1, 2, 2)) end, "2 means for 1 channels")
    local bytes = moth.ones({ 1, 2, 2 }, { dtype = moth.uint8 })
    assert.error_matches(function() T.Normalize({ 1 }, { 1 })(bytes) end, "expected a float tensor")
  end)

  it("Compose does the same to one image and to a batch", function()
    local t = T.Compose({ T.ToTensor(), T.Normalize({ 0.2860 }, { 0.3530 }) })
    local images = moth.randint(0, 256, { 5, 6, 7 }):to(moth.uint8)
    local batch = t:batch(images)
    assert.equal("[5, 1, 6, 7]", tostring(batch:size()))
    for i = 1, 5 do assert.is_true(batch[i]:equal(t(images[i]))) end
    assert.is_true(t:batchable())
    assert.is_false(T.Compose({ t, function(x) return x end }):batchable())
    assert.is_false(T.Compose({ T.Lambda(function(x) return x end) }):batchable())
    local double = T.Lambda(function(x) return x * 2 end, { batch = function(x) return x * 2 end })
    assert.is_true(T.Compose({ t, double }):batchable())
    assert.equal("Compose(\n    ToTensor()\n    Normalize(mean={0.5}, std={0.5})\n)",
      tostring(T.Compose({ T.ToTensor(), T.Normalize(0.5, 0.5) })))
    assert.error_matches(function() T.Compose({ 3 }) end, "element 1 is no transform")
  end)
end)

describe("image sets #quick", function()
  -- Functions to call after a spec; busted's finally takes one function only.
  local undo = {}
  after_each(function()
    for i = #undo, 1, -1 do table.remove(undo, i)() end
  end)
  local function later(fn) undo[#undo + 1] = fn end

  -- An IDX file of bytes.
  local function write_idx(path, shape, bytes)
    local f = assert(io.open(path, "wb"))
    f:write("\0\0\8", string.char(#shape))
    for _, n in ipairs(shape) do f:write(string.char(0, 0, math.floor(n / 256), n % 256)) end
    f:write(bytes)
    f:close()
  end

  local function folder()
    local path = os.tmpname()
    os.remove(path)
    assert(os.execute("mkdir -p " .. path .. "/mnist") == 0)
    later(function() os.execute("rm -r " .. path) end)
    return path
  end

  local function write_part(path, part, n)
    local labels = {}
    for i = 1, n do labels[i] = string.char((i - 1) % 10) end
    write_idx(("%s/mnist/%s-images-idx3-ubyte"):format(path, part), { n, 2, 3 }, ("\0\51\102\153\204\255"):rep(n))
    write_idx(("%s/mnist/%s-labels-idx1-ubyte"):format(path, part), { n }, table.concat(labels))
  end

  -- Without $MOTH_DATA, whatever it is.
  local function without_data()
    local was = os.getenv("MOTH_DATA")
    ffi.C.unsetenv("MOTH_DATA")
    later(function() if was then ffi.C.setenv("MOTH_DATA", was, 1) end end)
  end

  it("MNIST reads IDX files; classes become positions #M245", function()
    local path = folder()
    write_part(path, "train", 12)
    write_part(path, "t10k", 10)
    local train = datasets.MNIST(path, { check = false })
    assert.equal(12, train:size())
    for _, o in ipairs { { train = false }, { split = "test" }, { split = "t10k" } } do
      o.check = false
      local test = datasets.MNIST(path, o)
      assert.same({ 10, "test", false }, { test:size(), test.split, test.train })
    end
    assert.equal(12, datasets.MNIST(path, { split = "train", check = false }):size())
    local function with(o) return function() datasets.MNIST(path, o) end end
    assert.error_matches(with { split = "train", train = true }, "train or split, not both")
    assert.error_matches(with { split = "val" }, '"train" or "test", got val')
    assert.error_matches(with { train = "false" }, "argument 'train': expected true or false")
    local x, y = train:get(10)
    assert.equal(10, y)
    assert.equal("9", train.classes[y])
    assert.equal("[2, 3]", tostring(x:size()))
    assert.equal(moth.uint8, x:dtype())
    local t = T.Compose({ T.ToTensor() })
    local images, labels = datasets.MNIST({ root = path, transform = t, check = false }):get_batch(moth.arange(1, 4))
    assert.equal("[3, 1, 2, 3]", tostring(images:size()))
    assert.same({ 1, 2, 3 }, labels:totable())
    assert.is_nil(datasets.MNIST(path, { check = false, transform = function(image) return image end }).get_batch)
    assert.is_true(datasets.MNIST.available(path))
  end)

  it("with the t10k files alone there is no training set", function()
    without_data()
    local path = folder()
    write_part(path, "t10k", 20)
    assert.equal(20, datasets.MNIST(path, { split = "test", check = false }):size())
    for _, o in ipairs { {}, { train = true }, { split = "train" } } do
      assert.error_matches(function() datasets.MNIST(path, o) end, "no train files found in .*; the t10k files are "
        .. 'there %(.*/mnist/t10k%-images%-idx3%-ubyte%): split = "test" reads them\nHINT: put train%-images')
    end
    assert.is_false(datasets.MNIST.available(path, "train"))
    assert.is_true(datasets.MNIST.available(path, "test") and datasets.MNIST.available(path))
    assert.error_matches(function() datasets.MNIST.available(path, "val") end, '"train" or "test"')
  end)

  it("files that are not the set's are refused by their sums #M245", function()
    local path, known = folder(), require("moth.datasets.sources").MNIST.md5
    write_part(path, "train", 12)
    write_part(path, "t10k", 10)
    local function mnist(o) return function() return datasets.MNIST(path, o) end end
    assert.error_matches(mnist(), "train%-images%-idx3%-ubyte is not MNIST's train%-images%-idx3%-ubyte: its sum "
      .. "%(MD5 %x+, unpacked%) is that of no file of MNIST or FashionMNIST\nHINT.*check = false.*datasets.IDX")
    -- Makes the written files pass for the published ones: the checksums of each part's two files.
    local was = {}
    for file, sum in pairs(known) do was[file] = sum end
    later(function() for file, sum in pairs(was) do known[file] = sum end end)
    for file in pairs(was) do
      local pipe = io.popen(("unset LD_PRELOAD; md5sum < %s/mnist/%s"):format(path, file))
      known[file] = pipe:read("*a"):match("^%x+")
      pipe:close()
    end
    assert.equal(12, mnist()():size())
    assert(os.execute(("unset LD_PRELOAD; gzip %s/mnist/*"):format(path)) == 0)
    assert.equal(10, mnist { train = false }():size())
    assert.equal(0, os.execute(("unset LD_PRELOAD; cd %s/mnist && \z
      mv t10k-labels-idx1-ubyte.gz train-labels-idx1-ubyte.gz"):format(path)))
    assert.error_matches(mnist(), "train%-labels%-idx1%-ubyte.gz is not MNIST's train%-labels%-idx1%-ubyte: it is "
      .. "MNIST's t10k%-labels%-idx1%-ubyte\nHINT: give the folder of the right set")
    assert(os.execute(("unset LD_PRELOAD; mkdir %s/fashion && \z
      mv %s/mnist/train* %s/fashion"):format(path, path, path)) == 0)
    assert.error_matches(function() datasets.FashionMNIST(path) end, "is not FashionMNIST's "
      .. "train%-images%-idx3%-ubyte: it is MNIST's train%-images")
  end)

  it("MNIST's own test files have the sums, the sizes and the names #M245", function()
    if not datasets.MNIST.available(nil, "test") then return pending("MNIST is not in $MOTH_DATA") end
    local test = datasets.MNIST(nil, { split = "test" })
    assert.equal("MNIST: 10000 images of [28, 28], 10 classes", tostring(test))
    local mean, std = datasets.stats(test)
    assert.is_near(0.1325, mean, 1e-4)
    assert.is_near(0.3105, std, 1e-4)
  end)

  it("IDX reads files of one's own", function()
    local path = folder()
    write_part(path, "train", 12)
    local images, labels = path .. "/mnist/train-images-idx3-ubyte", path .. "/mnist/train-labels-idx1-ubyte"
    local ds = datasets.IDX(images, labels, { transform = T.ToTensor() })
    assert.equal("IDX: 12 images of [2, 3], 10 classes", tostring(ds))
    local x, y = ds:get(12)
    assert.same({ "[1, 2, 3]", 2 }, { tostring(x:size()), y })
    assert.equal("9", ds.classes[10])
    assert.error_matches(function() datasets.IDX(images, labels, { classes = { "a", "b" } }) end,
      "has the label 9, counted from 0, but there are 2 classes")
    assert.error_matches(function() datasets.IDX(images) end, "argument 'labels' is missing")
    assert.error_matches(function() datasets.IDX(labels, labels) end, "holds no grey images")
  end)

  it("synthetic = true makes images up where there are none, and says so #M245", function()
    without_data()
    local ds = datasets.FashionMNIST(folder(), { train = false, synthetic = true })
    assert.matches("^FashionMNIST: 2000 images of %[28, 28%], 10 classes; synthetic: made up", tostring(ds))
    assert.matches("no t10k files found in", ds.why, 1, true)
  end)

  it("MD5 is RFC 1321's", function()
    local md5 = require "moth.utils.md5"
    assert.equal("d41d8cd98f00b204e9800998ecf8427e", md5(""))
    assert.equal("900150983cd24fb0d6963f7d28e17f72", md5("abc"))
    for n, sum in pairs { [55] = "ef1772b6dff9a122358552954ad0df65", [56] = "3b0c8ac703f828b04c6c197006d17218",
      [64] = "014842d480b571495a4a0363793f7367" } do
      for cut = 0, n do
        local text = ("a"):rep(n - cut)
        assert.equal(sum, md5(("a"):rep(cut), ffi.cast("const char *", text), #text))
      end
    end
  end)

  it("MNIST reads gzipped files; what is cut short or damaged is an error that names the file", function()
    local path = folder()
    write_part(path, "train", 12)
    local function read(o) return datasets.MNIST(path, o or { check = false }) end
    local plain = read()
    assert(os.execute(("gzip %s/mnist/*"):format(path)) == 0)
    local packed = read()
    assert.is_true(packed.images:equal(plain.images) and packed.labels:equal(plain.labels))
    local name = path .. "/mnist/train-images-idx3-ubyte.gz"
    local f = assert(io.open(name, "rb"))
    local bytes = f:read("*a")
    f:close()
    for k = 0, #bytes - 1 do
      local flipped = string.char(bit.bxor(bytes:byte(k + 1), 255))
      for what, text in pairs { cut = bytes:sub(1, k), flipped = bytes:sub(1, k) .. flipped .. bytes:sub(k + 2) } do
        f = assert(io.open(name, "wb"))
        f:write(text)
        f:close()
        local ok, got = pcall(read)
        if ok then -- times and names of files are in no checksum
          assert.is_true(what == "flipped" and k >= 3 and k < 40, what .. " at " .. k)
          assert.is_true(got.images:equal(plain.images), what .. " at " .. k)
        else
          assert.matches("train%-images%-idx3%-ubyte", tostring(got), what .. " at " .. k)
        end
      end
    end
  end)

  it("downloads that fail, or bring something else, are errors and leave nothing", function()
    local path, was = folder(), { PATH = os.getenv("PATH"), MOTH_DATA = os.getenv("MOTH_DATA") }
    later(function()
      for name, value in pairs(was) do ffi.C.setenv(name, value, 1) end
    end)
    ffi.C.unsetenv("MOTH_DATA")
    ffi.C.setenv("PATH", path .. ":" .. was.PATH, 1)
    local function curl(text) -- in the place of the real one
      local f = assert(io.open(path .. "/curl", "w"))
      f:write("#!/bin/sh\n", text, "\n")
      f:close()
      assert(os.execute(("chmod +x %s/curl"):format(path)) == 0)
    end
    local function get() return datasets.FashionMNIST(path .. "/new", { download = true }) end
    curl("exit 6")
    assert.error_matches(get, "FashionMNIST: cannot download train%-images%-idx3%-ubyte.gz: no mirror could be reached")
    curl([[while [ "$1" != -o ]; do shift; done; echo something else > "$2"]])
    assert.error_matches(get, "cannot download .*train%-images%-idx3%-ubyte.gz has another SHA%-256 sum than expected")
    assert.is_nil(io.open(path .. "/new"))
    write_part(path, "t10k", 20)
    assert.error_matches(function() datasets.MNIST(path, { download = true }) end, "MNIST: cannot download "
      .. 'train%-images.*; the t10k files are there .*split = "test" reads them') -- and no part of them is "train"
  end)

  it("say where they looked", function()
    local path = folder()
    without_data()
    assert.error_matches(function() datasets.MNIST(path .. "/none") end, "no train files found in .*/none/mnist.*HINT")
    write_part(path, "t10k", 4)
    write_idx(path .. "/mnist/t10k-labels-idx1-ubyte", { 3 }, "\0\0\0")
    local function test() datasets.MNIST(path, { split = "test", check = false }) end
    assert.error_matches(test, "does not hold one label per image")
    write_idx(path .. "/mnist/t10k-labels-idx1-ubyte", { 3 }, "\0")
    assert.error_matches(test, "t10k%-labels")
  end)

  it("the digits come with moth: two parts, labels from 1, any size, workers", function()
    local train, test = datasets.Digits(), datasets.Digits { split = "test" }
    assert.equal("Digits: 1438 images of [8, 8], 10 classes", tostring(train))
    assert.same({ 359, "test", false }, { test:size(), test.split, test.train })
    assert.equal(359, datasets.Digits({ train = false }):size())
    -- The first line of the file: a 0, whose third pixel is 5 of 16; the fifth is the first test image.
    local x, y = train:get(1)
    assert.same({ 0, 0, 80, 207, 143, 16, 0, 0 }, x[1]:totable())
    assert.same({ 1, "0", moth.uint8 }, { y, train.classes[y], x:dtype() })
    assert.equal("4", test.classes[select(2, test:get(1))])
    assert.same({ 178, 182, 177, 183, 181, 182, 181, 179, 174, 180 }, -- as UCI counts them
      (moth.bincount(train.labels) + moth.bincount(test.labels)):totable())
    local large = datasets.Digits { size = 28, transform = T.Compose { T.ToTensor() } }
    local loader = moth.data.DataLoader(large, { batch_size = 100, num_workers = 1 })
    local images, labels = loader:iter()()
    assert.equal("[100, 1, 28, 28]", tostring(images:size()))
    assert.is_true(labels:equal(train.labels:narrow(1, 1, 100)))
    assert.error_matches(function() datasets.Digits { split = "val" } end, 'split must be "train" or "test"')
    assert.error_matches(function() datasets.Digits { split = "test", train = false } end, "train or split, not both")
    local help = require("moth.repl.help").text("moth.datasets.Digits", datasets.Digits)
    assert.matches("UCI's Optical Recognition.*CC BY 4%.0", (help:gsub("%s+", " ")))
  end)

  it("synthetic images are the same for a seed, and say that they are made up", function()
    local a = datasets.Synthetic({ n = 50 })
    moth.manual_seed(9)
    local b = datasets.Synthetic({ n = 50 })
    assert.is_true(a.images:equal(b.images) and a.labels:equal(b.labels))
    assert.is_false(a.images:equal(datasets.Synthetic({ n = 50, seed = 2 }).images))
    assert.is_false(a.images:equal(datasets.Synthetic({ n = 50, train = false }).images))
    assert.matches("synthetic", tostring(a))
    assert.equal("[50, 28, 28]", tostring(a.images:size()))
    assert.is_true(a.labels:min():item() >= 1 and a.labels:max():item() <= 10)
    assert.equal(10, #a.classes)
  end)

  it("stats are mean and deviation of the pixels", function()
    if datasets.FashionMNIST.available(nil, "train") then -- row M533
      local mean, std = datasets.stats(datasets.FashionMNIST())
      assert.same({ "0.2860", "0.3530" }, { ("%.4f"):format(mean), ("%.4f"):format(std) })
    end
    local ds = datasets.Synthetic({ n = 70 })
    local mean, std = datasets.stats(ds)
    local x = ds.images:double() / 255
    assert.is_near(x:mean():item(), mean, 1e-9)
    assert.is_near(x:std(nil, 0):item(), std, 1e-9)
    mean = datasets.stats(moth.data.TensorDataset(moth.tensor({ { 1, 2 }, { 3, 6 } })))
    assert.equal(3, mean)
  end)
end)
