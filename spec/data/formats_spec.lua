-- Formats of images: what is read, what is refused by its name, and folders of them.

local ffi = require "ffi"
local moth = require "moth"
local data = moth.data

local function bytes_of(hex) return (hex:gsub("..", function(pair) return string.char(tonumber(pair, 16)) end)) end
local function has(name) return (pcall(ffi.load, name)) end

-- By Pillow 13. The first is lossless: value i of (4, 5, 4) is (7 i i + 13 i) % 251, alpha is odd.
local rgba = bytes_of("5249464692000000574542505650384c850000002f04c00010cd5520a2ffb18b88fe07103500a1e92086043a"
  .. "98181248613a"
  .. "f87bea60d7e1aec03552d04692e25fd7a10a7c06110ada48529336ee61e14ec5a3a2da56220e2158b324016b223825706506"
  .. "038c198c61064398c01881bfcad3ef5697362c0e5d200d6d1b801bea347c6ac86578d890d270a1c1bce1fc5d6216fb369036"
  .. "acd38000")
local lossy = bytes_of("52494646600000005745425056503820540000003002009d012a0500040002804225b0027447ffee20026ec3"
  .. "938400fe84b5"
  .. "b2b087643b48aaffaffdd9ba7a5fffc00dc7100bb616b6c477bf6c424789ebcca41879f5eb12bb15adeabfbd0a2cf2979edb"
  .. "a71a0000")
local moving = bytes_of("524946466a01000057454250565038580a00000002000000040000030000414e494d06000000000000000000"
  .. "414e4d469a00"
  .. "0000000000000000040000030000000000025650384c810000002f04c000009fc02400c034a30214649a342bb2abb002ef40"
  .. "926a5cdfbfa0da4692dae87b0b6426a30f980400d0c621a9f07f0062500289fb6c725dfe514bb606f31f025c4280e5eedb51"
  .. "3e8b4eaf219f77056728050f8a92a7adff0d8753ae66f27aab20b4a065fce65f4161db466ae8189f3fa2ff0147f7972cc3eb"
  .. "8f7bae110400")

describe("WebP #quick", function()
  it("is pixels, as Pillow reads them", function()
    if not has "libwebp.so.7" then
      assert.error_matches(function() data.decode_image(rgba) end, "install libwebp7")
      return
    end
    local i = moth.arange(80)
    local x = (i * i * 7 + i * 13):remainder(251):view(4, 5, 4)
    local alpha = x:narrow(3, 4, 1)
    x = moth.cat({ x:narrow(3, 1, 3), alpha + 1 - alpha:remainder(2) }, 3):to(moth.uint8)
    assert.is_true(x:equal(data.decode_image(rgba)))
    assert.is_true(x:narrow(3, 1, 3):equal(data.decode_image(rgba, 3)))
    assert.same({ 4, 5, 1 }, data.decode_image(rgba, 1):size())
    local y = data.decode_image(lossy)
    assert.same({ { 0, 39, 0 }, { 164, 218, 163 } }, y[1]:narrow(1, 1, 2):tolist())
    assert.equal(6555, y:to(moth.int64):sum():item())
    assert.equal(255, data.decode_image(lossy, 4)[1][1][4]:item())
    assert.error_matches(function() data.decode_image(moving) end, "webp: an animation")
    assert.error_matches(function() data.decode_image(rgba:sub(1, 60)) end, "webp: the file is damaged, or ends early")
    assert.error_matches(function() data.decode_image(rgba:sub(1, 14)) end, "webp: the header")
    for n = 1, 200 do -- damaged files end in an error or in an image, nothing else
      local at = n * 7 % (#rgba - 1) + 1
      pcall(data.decode_image, rgba:sub(1, at - 1) .. string.char(n) .. rgba:sub(at + 1))
    end
  end)

  it("other formats are refused by name", function()
    for name, magic in pairs { GIF = "GIF89a", TIFF = "II*\0\8\0\0\0", BMP = "BM1234", AVIF = "\0\0\0\28ftypavif",
      ["JPEG 2000"] = "\0\0\0\12jP  \r\n", PNM = "P6 2 2 255\n" } do
      assert.error_matches(function() data.decode_image(magic) end, "this is " .. name .. ", which moth does not read")
    end
    assert.error_matches(function() data.decode_image("MM\0*abc") end, "this is TIFF")
    assert.error_matches(function() data.decode_image("hello") end, "neither JPEG, PNG nor WebP")
  end)
end)

describe("a folder of images #quick", function()
  local root
  before_each(function()
    root = os.tmpname()
    os.remove(root)
    os.execute(("mkdir -p %s/dog/b.1 %s/dog/a %s/cat"):format(root, root, root))
  end)
  after_each(function() os.execute("rm -r " .. root) end)
  local png = require("moth.plot.png").encode
  local function write(name, bytes)
    local f = assert(io.open(root .. "/" .. name, "wb"))
    f:write(bytes)
    f:close()
  end

  it("is read folder by folder, as torchvision orders it, in all formats", function()
    local deep = moth.tensor({ { 0, 257, 65535 } }, { dtype = moth.int64 }):to(moth.uint16)
    for _, name in ipairs { "dog/z.png", "dog/b.1/k.png", "dog/a/y.PNG", "cat/c.png" } do write(name, png(deep)) end
    write("cat/notes.txt", "words")
    write("dog/w.webp", rgba)
    local ds = moth.datasets.ImageFolder(root)
    local names = {}
    for i = 1, ds:size() do names[i] = ds:path(i):sub(#root + 2) end
    assert.same({ "cat/c.png", "dog/w.webp", "dog/z.png", "dog/a/y.PNG", "dog/b.1/k.png" }, names)
    local x, y = ds:get(1)
    assert.same({ moth.uint16, { { 0, 0, 0 }, { 257, 257, 257 }, { 65535, 65535, 65535 } }, 1 },
      { x:dtype(), x[1]:to(moth.int64):tolist(), y })
    assert.same({ 1, 3, 1 }, (moth.datasets.ImageFolder(root, { channels = 1 }):get(1)):size())
    if has "libwebp.so.7" then assert.same({ 4, 5, 3 }, (ds:get(2)):size()) end
  end)

  it("names what it cannot read, and classes without images", function()
    write("dog/1.png", png(moth.zeros({ 2, 2 }, { dtype = moth.uint8 })))
    assert.error_matches(function() moth.datasets.ImageFolder(root) end, "no images in the folders of the classes cat")
    assert.same({ "cat", "dog" }, moth.datasets.ImageFolder(root, { allow_empty = true }).classes)
    write("cat/2.gif", "GIF89a")
    write("cat/3.png", png(moth.zeros({ 2, 2 }, { dtype = moth.uint8 })))
    assert.error_matches(function() moth.datasets.ImageFolder(root) end, "cat/2.gif is GIF, which moth does not read")
    assert.equal(2, moth.datasets.ImageFolder(root, { extensions = { ".PNG" } }):size())
    assert.error_matches(function() moth.datasets.ImageFolder(root, { extensions = { "jpg" } }) end,
      "no folders with .jpg files")
  end)
end)
