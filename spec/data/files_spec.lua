-- Data sets in files: mapped tensors, token streams, lines, tables, folders of images.

local moth = require "moth"
local ffi = require "ffi"
local data = moth.data

local function file(text, suffix)
  local base = os.tmpname()
  local path = base .. (suffix or "")
  finally(function() os.remove(path) os.remove(base) end)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
  return path
end

local letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
local function from_base64(s)
  local out, bits, n = {}, 0, 0
  for c in s:gmatch("[%w+/]") do
    bits, n = bits * 64 + letters:find(c, 1, true) - 1, n + 6
    if n >= 8 then
      n = n - 8
      out[#out + 1] = string.char(math.floor(bits / 2 ^ n) % 256)
      bits = bits % 2 ^ n
    end
  end
  return table.concat(out)
end

-- 4 rows of 6 pixels, three red, three blue ones, by Pillow.
local jpeg = from_base64(""
  .. "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB"
  .. "AQEBAQEBAQEBAQEBAQH/2wBDAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB"
  .. "AQEBAQEBAQH/wAARCAAEAAYDAREAAhEBAxEB/8QAFAABAAAAAAAAAAAAAAAAAAAACv/EABoQAAEFAQAAAAAAAAAAAAAAAAUABAg2"
  .. "drX/xAAUAQEAAAAAAAAAAAAAAAAAAAAJ/8QAGxEAAQUBAQAAAAAAAAAAAAAABwAGOHi3CQr/2gAMAwEAAhEDEQA/ADXSXvYnJMOw"
  .. "eTweeeFxOtA9MoCiQTurLcd1zaOmF1f/2Q==")

local function has(library) return (pcall(ffi.load, library)) end

describe("files as data #quick", function()
  it("a file is a tensor without being read #M233", function()
    local path = file("\1\0\2\0\255\255\4\0", ".bin")
    local t = moth.mmap(path, { dtype = moth.uint16 })
    assert.same({ 1, 2, 65535, 4 }, t:totable())
    assert.same({ { 2, 65535 } }, moth.mmap(path, { dtype = "uint16", shape = { 1, 2 }, offset = 2 }):totable())
    t:fill_(7) -- changes memory, not the file
    assert.same({ 7, 7, 7, 7 }, t:totable())
    assert.same({ 1, 2, 65535, 4 }, moth.mmap(path, { dtype = moth.uint16 }):totable())
    local before = moth.memory.stats().live
    local big = file(("\0"):rep(4e6))
    local m = moth.mmap(big, { dtype = moth.uint8 })
    assert.is_true(moth.memory.stats().live - before < 1e5)
    assert.equal(4e6, m:numel())
    assert.error_matches(function() moth.mmap(path, { dtype = moth.float64, offset = 1 }) end, "from byte 1 on")
    assert.error_matches(function() moth.mmap(path, { dtype = "float32", shape = { 3 } }) end, "2 elements of float32")
    assert.error_matches(function() moth.mmap(file("abc"), { dtype = moth.float32 }) end, "no whole number of float32")
    assert.error_matches(function() moth.mmap(file(""), { dtype = moth.uint8 }) end, "it is empty")
    assert.error_matches(function() moth.mmap(path, { dtype = moth.bool }) end, "HINT: uint8")
    assert.error_matches(function() moth.mmap("/nowhere/x") end, "cannot open /nowhere/x")
    assert.error_matches(function() moth.mmap("/tmp") end, "cannot map /tmp: not a regular file")
  end)

  it("a .npy file says its shape itself", function()
    local path = os.tmpname() .. ".npy"
    finally(function() os.remove(path) end)
    local x = moth.arange(24):float():view(2, 3, 4)
    moth.save(x, path)
    assert.is_true(moth.equal(x, moth.mmap(path)))
    local header = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }"
    header = header .. (" "):rep(117 - #header) .. "\n"
    local bytes = ffi.string(ffi.new("float[6]", 1, 2, 3, 4, 5, 6), 24)
    local columns = file("\147NUMPY\1\0" .. string.char(#header, 0) .. header .. bytes, ".npy")
    assert.same({ { 1, 3, 5 }, { 2, 4, 6 } }, moth.mmap(columns):totable())
    assert.error_matches(function() moth.mmap(path, { shape = { 3 } }) end, "says its shape itself")
  end)

  it("a token stream gives blocks and what follows each token #M234", function()
    local tokens = {}
    for i = 0, 19 do tokens[#tokens + 1] = string.char(i, 1) end
    local path = file(table.concat(tokens))
    local ds = data.TokenStream(path, { block_size = 4 })
    assert.equal(20 - 4 - 1, ds:size())
    local x, y = ds:get(3)
    assert.same({ 259, 260, 261, 262 }, x:totable()) -- positions: from 1
    assert.same({ 260, 261, 262, 263 }, y:totable())
    assert.equal(moth.int64, x:dtype())
    for n = 0, 2 do
      local seen = 0
      for a, b in data.DataLoader(ds, { batch_size = 4, num_workers = n }):iter() do
        assert.is_true(moth.equal(a:narrow(2, 2, 3), b:narrow(2, 1, 3)))
        seen = seen + a:size(1)
      end
      assert.equal(15, seen)
    end
    assert.error_matches(function() data.TokenStream(path, 30) end, "20 tokens are too few for blocks of 30")
  end)

  it("lines, JSON in lines", function()
    local lines = data.TextLines(file("one\r\n\ntwo\nthree"))
    assert.equal(3, #lines)
    assert.same({ "one", "two", "three" }, { lines[1], lines[2], lines[3] })
    local json = data.JSONL(file('{"a":1,"b":null,"c":[1,2]}\n{"a":2}\n{x}\n'))
    assert.same({ a = 1, c = { 1, 2 } }, json:get(1))
    assert.error_matches(function() json:get(3) end, "line 3, column 2: expected a string")
    local packed = file("one\r\n\ntwo\nthree")
    assert(os.execute(("unset LD_PRELOAD; gzip -c '%s' > '%s.gz'"):format(packed, packed)) == 0)
    finally(function() os.remove(packed .. ".gz") end)
    local unpacked = data.TextLines(packed .. ".gz")
    assert.same({ 3, "two", "three" }, { unpacked:size(), unpacked:get(2), unpacked:get(3) })
    assert.error_matches(function() data.TextLines(file("\31\139 is no gzip")) end, "%[data.TextLines%] .*gunzip")
    local upper = data.TextLines(file("a\nb\nc\nd\n"), { transform = string.upper })
    local seen = {}
    for batch in data.DataLoader(upper, { batch_size = 3, num_workers = 2 }):iter() do seen[#seen + 1] = batch end
    assert.same({ { "A", "B", "C" }, { "D" } }, seen)
    assert.equal(0, data.TextLines(file("")):size())
  end)

  it("tables as text, with quotes", function()
    local path = file('\239\187\191x,"y, z",kind\r\n1,2.5,cat\r\n-3,,"a ""big""\ndog"\n')
    local csv = data.CSV(path)
    assert.same({ x = 1, ["y, z"] = 2.5, kind = "cat" }, csv:get(1))
    assert.same({ x = -3, kind = 'a "big"\ndog' }, csv:get(2))
    local x, kind = data.CSV(path, { features = { "x", "y, z" }, target = "kind" }):get(2)
    assert.equal(-3, x[1]:item())
    assert.is_true(moth.isnan(x[2]):item())
    assert.equal('a "big"\ndog', kind)
    local plain = data.CSV(file("4;5"), { header = false, delimiter = ";", features = { 1, 2 } })
    assert.same({ 4, 5 }, plain:get(1):totable())
    assert.error_matches(function() data.CSV(path, { target = "kin" }) end, "no column 'kin'; did you mean 'kind'")
    assert.error_matches(function() data.CSV(file("a,b\n1\n")):get(1) end,
      "sample 1 %(line 2 of the file%) has 1 cells, there are 2 columns")
    assert.error_matches(function() data.CSV(file("a\nx\n"), { features = { "a" } }):get(1) end, "no number: 'x'")
  end)

  it("JPEG and PNG are pixels, and errors name the file", function()
    if not has("libturbojpeg.so.0") or not has("libspng.so.0") then
      pending("needs libturbojpeg.so.0 and libspng.so.0")
      return
    end
    local x = data.decode_image(jpeg)
    assert.equal("[4, 6, 3]", tostring(x:size()))
    assert.same({ 250, 10, 11 }, x[1][3]:totable())
    assert.same({ 9, 10, 250 }, x[4][4]:totable())
    assert.same({ 4, 6, 1 }, data.decode_image(jpeg, { channels = 1 }):size())
    assert.same({ 250, 10, 11, 255 }, data.decode_image(jpeg, 4)[1][1]:totable())
    local pixels = moth.randint(0, 256, { 3, 5, 7 }):to(moth.uint8)
    local png = require("moth.plot.png").encode(pixels)
    assert.is_true(moth.equal(pixels:permute(2, 3, 1), data.decode_image(png)))
    assert.same({ 5, 7, 4 }, data.decode_image(png, 4):size())
    local grey = moth.arange(6):to(moth.uint8):view(1, 2, 3)
    local grey_png = require("moth.plot.png").encode(grey)
    assert.is_true(moth.equal(grey:permute(2, 3, 1), data.decode_image(grey_png)))
    assert.is_true(moth.equal(grey:permute(2, 3, 1), data.decode_image(grey_png, 3):narrow(3, 2, 1)))
    local path = file(jpeg:sub(1, #jpeg - 30))
    assert.error_matches(function() data.read_image(path) end, path:gsub("%p", "%%%0") .. ": jpeg: Premature end")
    assert.error_matches(function() data.decode_image(png:sub(1, 50)) end, "png: ")
    assert.error_matches(function() data.decode_image("GIF89a") end, "this is GIF, which moth does not read")
    assert.error_matches(function() data.decode_image(jpeg, 7) end, "from 0 to 4")
    local seed = 1
    for n = 1, 300 do -- damaged files end in an error or in an image, nothing else
      seed = (seed * 16807) % 2147483647
      local at = seed % (#jpeg - 1) + 1
      local bad = jpeg:sub(1, at - 1) .. string.char(n % 256) .. jpeg:sub(at + 1)
      pcall(data.decode_image, bad)
      at = seed % (#png - 1) + 1
      pcall(data.decode_image, png:sub(1, at - 1) .. string.char(n % 256) .. png:sub(at + 1))
    end
  end)

  it("folders of images", function()
    if not has("libturbojpeg.so.0") then
      pending("needs libturbojpeg.so.0")
      return
    end
    local root = os.tmpname()
    os.remove(root)
    os.execute("mkdir -p " .. root .. "/dog/small " .. root .. "/cat")
    finally(function() os.execute("rm -r " .. root) end)
    for _, name in ipairs({ "dog/1.jpg", "dog/small/2.JPEG", "cat/3.jpg", "cat/notes.txt" }) do
      local f = io.open(root .. "/" .. name, "wb")
      f:write(jpeg)
      f:close()
    end
    local ds = moth.datasets.ImageFolder(root, { transform = moth.transforms.ToTensor() })
    assert.same({ "cat", "dog" }, ds.classes)
    assert.equal(2, ds.class_to_idx.dog)
    assert.equal("ImageFolder: 3 images in " .. root .. ", 2 classes", tostring(ds))
    assert.equal(root .. "/dog/small/2.JPEG", ds:path(3))
    for n = 0, 2, 2 do
      local x, y = data.DataLoader(ds, { batch_size = 3, num_workers = n }):iter()()
      assert.same({ 3, 3, 4, 6 }, x:size())
      assert.same({ 1, 2, 2 }, y:totable())
    end
    assert.error_matches(function() moth.datasets.ImageFolder(root .. "/cat") end, "has no folders with .jpg")
    assert.error_matches(function() moth.datasets.ImageFolder("/nowhere") end, "there is no folder /nowhere")
  end)

  it("Arrow files: not read, but the error says how to convert them #M237", function()
    assert.error_matches(function() data.arrow.open("a.parquet") end,
      "a.parquet: Arrow and Parquet files are not supported; HINT: convert the columns to .npy by pyarrow.*python3 %-c")
  end)

  it("samplers: lists, functions, random parts; sequences are padded #M228 #M229", function()
    local ds = data.TensorDataset(moth.arange(1, 7))
    local function order(sampler)
      local out = {}
      for x in data.DataLoader(ds, { sampler = sampler, batch_size = 2 }):iter() do
        for _, v in ipairs(x:totable()) do out[#out + 1] = v end
      end
      return out
    end
    assert.same({ 5, 2, 2 }, order { 5, 2, 2 })
    assert.same({ 6, 1 }, order(moth.tensor({ 6, 1 }, { dtype = moth.int64 })))
    assert.same({ 3, 2, 1 }, order(function()
      local k = 4
      return function()
        k = k - 1
        return k > 0 and k or nil
      end
    end))
    local part = order(data.SubsetRandomSampler({ 2, 4, 6 }, { generator = moth.Generator(1) }))
    table.sort(part)
    assert.same({ 2, 4, 6 }, part)
    local Words = data.Dataset:subclass("Words")
    function Words.size() return 3 end
    function Words.get(_, i) return moth.full({ i }, i), i end
    local loader = data.DataLoader(Words(), { batch_size = 3, collate_fn = data.pad_collate { padding_value = -1 },
      num_workers = 1 })
    local x, i, lengths = loader:iter()()
    assert.same({ { 1, -1, -1 }, { 2, 2, -1 }, { 3, 3, 3 } }, x:totable())
    assert.same({ 1, 2, 3 }, i:totable())
    assert.same({ 1, 2, 3 }, lengths:totable())
    function Words.get(_, k) return { id = k, part = { text = "t" .. k, x = moth.full({ 4 - k }, k) } } end
    x, lengths = loader:iter()()
    assert.same({ { 1, 1, 1 }, { 2, 2, -1 }, { 3, -1, -1 } }, x.part.x:totable())
    assert.same({ "t1", "t2", "t3" }, x.part.text)
    assert.same({ 3, 2, 1 }, lengths:totable())
    function Words.get(_, k) return moth.full({ k }, k), k end
    assert.error_matches(function() data.DataLoader(Words(), { batch_size = 2 }):iter()() end,
      "sample 2 of a batch has a tensor of shape %[2%], the first one of %[1%].*HINT: collate_fn = data.pad_collate")
  end)

  it("datasets side by side and one after the other", function()
    local a, b = data.TensorDataset(moth.arange(1, 4)), data.TensorDataset(moth.arange(11, 14), moth.arange(21, 24))
    local both = data.StackDataset { a, b }
    assert.equal(3, #both)
    local x, y, z = both:get(2)
    assert.same({ 2, 12, 22 }, { x:item(), y:item(), z:item() })
    local named = data.StackDataset { left = a, right = b }
    for n = 0, 1 do
      local batch = data.DataLoader(named, { batch_size = 2, num_workers = n }):iter()()
      assert.same({ 1, 2 }, batch.left:totable())
      assert.same({ 21, 22 }, batch.right[2]:totable())
    end
    assert.error_matches(function() data.StackDataset { a, data.TensorDataset(moth.ones(2)) } end, "samples, another")
    local Count = data.IterableDataset:subclass("Count")
    function Count:__init(from, to) self.from, self.to = from, to end
    function Count:iter()
      local i = self.from - 1
      return function()
        i = i + 1
        if i <= self.to then return i end
      end
    end
    local seen = {}
    for k in data.DataLoader(data.ChainDataset { Count(1, 2), Count(5, 4), Count(7, 9) }):iter() do
      seen[#seen + 1] = k:item()
    end
    assert.same({ 1, 2, 7, 8, 9 }, seen)
  end)
end)
