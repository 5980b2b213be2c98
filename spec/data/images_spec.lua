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
    finally(function() os.execute("rm -r " .. path) end)
    return path
  end

  local function write_part(path, part, n)
    local labels = {}
    for i = 1, n do labels[i] = string.char((i - 1) % 10) end
    write_idx(("%s/mnist/%s-images-idx3-ubyte"):format(path, part), { n, 2, 3 }, ("\0\51\102\153\204\255"):rep(n))
    write_idx(("%s/mnist/%s-labels-idx1-ubyte"):format(path, part), { n }, table.concat(labels))
  end

  it("MNIST reads IDX files; classes become positions #M245", function()
    local path = folder()
    write_part(path, "train", 12)
    write_part(path, "t10k", 10)
    local train = datasets.MNIST(path)
    assert.equal(12, train:size())
    assert.equal(10, datasets.MNIST(path, { train = false }):size())
    local x, y = train:get(10)
    assert.equal(10, y)
    assert.equal("9", train.classes[y])
    assert.equal("[2, 3]", tostring(x:size()))
    assert.equal(moth.uint8, x:dtype())
    local t = T.Compose({ T.ToTensor() })
    local images, labels = datasets.MNIST({ root = path, transform = t }):get_batch(moth.arange(1, 4))
    assert.equal("[3, 1, 2, 3]", tostring(images:size()))
    assert.same({ 1, 2, 3 }, labels:totable())
    assert.is_nil(datasets.MNIST(path, { transform = function(image) return image end }).get_batch)
    assert.is_true(datasets.MNIST.available(path))
  end)

  it("MNIST splits the t10k files where they are all there is", function()
    local path = folder()
    write_part(path, "t10k", 20)
    local train, test = datasets.MNIST(path), datasets.MNIST(path, { train = false })
    assert.equal(16, train:size())
    assert.equal(4, test:size())
    assert.equal(7, (select(2, test:get(1))))
    assert.matches("only the t10k files are there: their last 4 images", tostring(test), 1, true)
  end)

  it("MNIST reads gzipped files; what is cut short or damaged is an error that names the file", function()
    local path = folder()
    write_part(path, "train", 12)
    local plain = datasets.MNIST(path)
    assert(os.execute(("gzip %s/mnist/*"):format(path)) == 0)
    local packed = datasets.MNIST(path)
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
        local ok, got = pcall(datasets.MNIST, path)
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
    finally(function()
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
  end)

  it("say where they looked", function()
    local path = folder()
    local data = os.getenv("MOTH_DATA")
    ffi.C.unsetenv("MOTH_DATA")
    finally(function() if data then ffi.C.setenv("MOTH_DATA", data, 1) end end)
    assert.error_matches(function() datasets.MNIST(path .. "/none") end, "no files found in .*/none/mnist.*HINT")
    write_part(path, "t10k", 4)
    write_idx(path .. "/mnist/t10k-labels-idx1-ubyte", { 3 }, "\0\0\0")
    assert.error_matches(function() datasets.MNIST(path) end, "does not hold one label per image")
    write_idx(path .. "/mnist/t10k-labels-idx1-ubyte", { 3 }, "\0")
    assert.error_matches(function() datasets.MNIST(path) end, "t10k%-labels")
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

  it("stats are mean and deviation of the pixels #M533", function()
    local ds = datasets.Synthetic({ n = 70 })
    local mean, std = datasets.stats(ds)
    local x = ds.images:double() / 255
    assert.is_near(x:mean():item(), mean, 1e-9)
    assert.is_near(x:std(nil, 0):item(), std, 1e-9)
    mean = datasets.stats(moth.data.TensorDataset(moth.tensor({ { 1, 2 }, { 3, 6 } })))
    assert.equal(3, mean)
  end)
end)
