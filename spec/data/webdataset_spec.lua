-- Streams of .tar files, as the Python library WebDataset writes them.

local moth = require "moth"
local ffi = require "ffi"
local data = moth.data

-- A member of a tar file (ustar).
local function member(name, bytes)
  local function octal(n, width) return ("%0" .. width - 1 .. "o\0"):format(n) end
  local head = name .. ("\0"):rep(100 - #name) .. octal(420, 8) .. octal(0, 8) .. octal(0, 8) .. octal(#bytes, 12)
    .. octal(0, 12)
  local rest = "0" .. ("\0"):rep(100) .. "ustar\00000" .. ("\0"):rep(247)
  local sum = 8 * 32
  for i = 1, #head do sum = sum + head:byte(i) end
  for i = 1, #rest do sum = sum + rest:byte(i) end
  return head .. ("%06o\0 "):format(sum) .. rest .. bytes .. ("\0"):rep(-#bytes % 512)
end

local function folder()
  local dir = os.tmpname()
  os.remove(dir)
  os.execute("mkdir " .. dir)
  finally(function() os.execute("rm -r " .. dir) end)
  return dir
end

local function write(path, ...)
  local f = assert(io.open(path, "wb"))
  f:write(table.concat { ... }, ("\0"):rep(1024))
  f:close()
end

-- Files train-0.tar …, with samples of a number each.
local function shards(n, each)
  local dir = folder()
  for k = 0, n - 1 do
    local parts = {}
    for i = 1, each do
      local number = k * each + i
      parts[#parts + 1] = member(("d/%04d.cls"):format(number), tostring(number - 1))
      parts[#parts + 1] = member(("d/%04d.txt"):format(number), "n" .. number .. "\n")
    end
    write(("%s/train-%d.tar"):format(dir, k), unpack(parts))
  end
  return ("%s/train-{0..%d}.tar"):format(dir, n - 1), dir
end

local function numbers(ds, options)
  local out = {}
  for x in data.DataLoader(ds, options):iter() do
    for _, v in ipairs(x:totable()) do out[#out + 1] = v end
  end
  return out
end

describe("WebDataset #quick #M236", function()
  if not pcall(ffi.load, "libarchive.so.13") then
    pending("needs libarchive.so.13")
    return
  end

  it("expands ranges of names up or down, and says where they are too many", function()
    assert.same({ "a-08.tar", "a-09.tar", "a-10.tar" }, data.WebDataset("a-{08..10}.tar").shards)
    assert.same({ "a-2", "a-1", "b-2", "b-1" }, data.WebDataset("{a,b}-{2..1}").shards)
    assert.error_matches(function() data.WebDataset "a-{000000..999999999}.tar" end,
      "'a%-{000000..999999999}.tar': {000000..999999999} stands for 1000000000 files, more than 1000000: name fewer")
    assert.error_matches(function() data.WebDataset "{0..9999}-{0..9999}.tar" end, "stands for more than 1000000 files")
  end)

  it("names fields in small letters, and refuses two files for one", function()
    local dir = folder()
    write(dir .. "/a.tar", member("x.JPG", "a"), member("x.seg.PNG", "b"), member("y.jpg", "c"), member("y.JPG", "d"))
    local next_sample = data.WebDataset(dir .. "/a.tar"):iter()
    assert.same({ __key__ = "x", jpg = "a", ["seg.png"] = "b" }, next_sample())
    assert.error_matches(next_sample, "a.tar: sample y has two files for the field jpg")
  end)

  it("groups files by their base name, decodes by suffix", function()
    local dir = folder()
    local png = require("moth.plot.png").encode(moth.full({ 3, 2, 4 }, 7):to(moth.uint8))
    local npy = os.tmpname() .. ".npy"
    finally(function() os.remove(npy) end)
    moth.save(moth.tensor { { 1, 2 }, { 3, 4 } }, npy)
    local f = io.open(npy, "rb")
    local array = f:read("*a")
    f:close()
    write(dir .. "/a.tar", member("x/1.seg.png", png), member("x/1.png", png), member("x/1.cls", "4"),
      member("x/1.json", '{"a":[1,2]}'), member("x/1.txt", "hi"), member("x/1.npy", array), member("x/1.bin", "\0\1"),
      member("x/2.cls", "0"), member("README", "not a sample"))
    local next_sample = data.WebDataset(dir .. "/a.tar"):iter()
    local raw = next_sample()
    assert.equal("x/1", raw.__key__)
    assert.equal(png, raw["seg.png"])
    assert.equal("4", raw.cls)
    assert.same({ __key__ = "x/2", cls = "0" }, next_sample())
    assert.is_nil(next_sample())
    local ds = data.WebDataset(dir .. "/a.tar"):decode { bin = function(bytes) return #bytes end }
    local sample = ds:iter()()
    assert.equal(5, sample.cls) -- a position
    assert.same({ 1, 2 }, sample.json.a)
    assert.same({ { 1, 2 }, { 3, 4 } }, sample.npy:totable())
    assert.equal(2, sample.bin)
    if pcall(ffi.load, "libspng.so.0") then
      assert.same({ 2, 4, 3 }, sample["seg.png"]:size())
      local image, label = ds:to_tuple("jpg;png", "cls"):map_tuple(moth.transforms.ToTensor()):iter()()
      assert.same({ 3, 2, 4 }, image:size())
      assert.equal(5, label)
    end
    assert.error_matches(function() ds:to_tuple("wav"):iter()() end, "a.tar: sample x/1 has no wav")
    write(dir .. "/b.tar", member("1.png", "no image"), member("1.cls", "x"))
    assert.error_matches(function() data.WebDataset(dir .. "/b.tar"):decode():iter()() end, "b.tar: sample 1: ")
    assert.error_matches(function() data.WebDataset(dir .. "/c.tar"):iter()() end,
      "cannot open .*c.tar: No such file or directory")
    assert.error_matches(function() data.WebDataset(dir):iter()() end, "cannot open .*: Is a directory")
  end)

  it("every sample comes once, for any number of workers and ranks", function()
    local pattern = shards(5, 7)
    local all = {}
    for i = 1, 35 do all[i] = i end
    local ds = data.WebDataset(pattern):decode():to_tuple("cls")
    assert.same(all, numbers(ds, { batch_size = 4 }))
    for _, n in ipairs({ 1, 2, 8 }) do
      local seen = numbers(ds:shuffle(6), { batch_size = 4, num_workers = n, seed = n })
      assert.is_not.same(all, seen)
      table.sort(seen)
      assert.same(all, seen)
    end
    local both = {}
    for rank = 0, 1 do
      local part = data.WebDataset(pattern, { rank = rank, world_size = 2, seed = 3 }):shuffle(3):decode()
      for _, v in ipairs(numbers(part:to_tuple("cls"), { batch_size = 4, num_workers = 2 })) do both[#both + 1] = v end
    end
    table.sort(both)
    assert.same(all, both)
    assert.error_matches(function() data.WebDataset(pattern, { rank = 2, world_size = 2 }) end, "rank 2 is none of 2")
  end)

  it("shuffles anew each epoch, as the seed says", function()
    local pattern = shards(3, 10)
    local ds = data.WebDataset(pattern):shuffle(8):decode():select(function(s) return s.cls % 2 == 0 end)
      :map(function(s) return { __key__ = s.__key__, double = s.cls * 2 } end):to_tuple("double")
    local function two(n)
      local loader = data.DataLoader(ds, { batch_size = 5, num_workers = n, seed = 5 })
      local out = {}
      for e = 1, 2 do
        out[e] = {}
        for x in loader:iter() do
          for _, v in ipairs(x:totable()) do out[e][#out[e] + 1] = v end
        end
        assert.equal(15, #out[e])
      end
      return out
    end
    local a = two(0)
    assert.is_not.same(a[1], a[2])
    assert.same(a, two(0))
    assert.same(two(2), two(2))
  end)

  it("reads compressed files, and says which is damaged", function()
    local pattern, dir = shards(1, 4)
    os.execute("gzip -k " .. dir .. "/train-0.tar")
    assert.same({ 1, 2, 3, 4 }, numbers(data.WebDataset(dir .. "/train-0.tar.gz"):decode():to_tuple("cls"), {}))
    local f = io.open(dir .. "/train-0.tar.gz", "rb")
    local bytes = f:read("*a")
    f:close()
    f = io.open(dir .. "/cut.tar.gz", "wb")
    f:write(bytes:sub(1, #bytes - 40))
    f:close()
    local cut = data.WebDataset(dir .. "/cut.tar.gz"):to_tuple("cls")
    assert.error_matches(function() numbers(cut, {}) end, "cut.tar.gz")
    assert.same({ "a1.tar", "a2.tar", "b1.tar", "b2.tar" }, data.WebDataset("{a,b}{1..2}.tar").shards)
    assert.equal("WebDataset(1 files)", tostring(data.WebDataset(pattern)))
  end)
end)
