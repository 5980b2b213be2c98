-- Drawings: what stands in SVG and PNG, and what is refused.
local moth = require "moth"
local ffi = require "ffi"
local plot = moth.plot
local png = require "moth.plot.png"
local fails = require "fails"

local function big(s, at)
  local a, b, c, d = s:byte(at, at + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

-- Width, height, colour type and raw rows of a PNG of ours: zlib takes it apart again.
local function decode(data)
  assert.equal("\137PNG\r\n\26\n", data:sub(1, 8))
  local at, idat, header = 9, {}, nil
  while at < #data do
    local n, kind = big(data, at), data:sub(at + 4, at + 7)
    local body = data:sub(at + 8, at + 7 + n)
    if kind == "IHDR" then header = body elseif kind == "IDAT" then idat[#idat + 1] = body end
    at = at + 12 + n
  end
  pcall(ffi.cdef, "int uncompress(uint8_t *, unsigned long *, const uint8_t *, unsigned long);")
  local w, h, colour = big(header, 1), big(header, 5), header:byte(10)
  local channels = ({ [0] = 1, [2] = 3, [6] = 4 })[colour]
  local size = ffi.new("unsigned long[1]", h * (w * channels + 1))
  local out, packed = ffi.new("uint8_t[?]", tonumber(size[0])), table.concat(idat)
  assert.equal(0, ffi.load("libz.so.1").uncompress(out, size, ffi.cast("const uint8_t *", packed), #packed))
  return w, h, channels, ffi.string(out, tonumber(size[0]))
end

describe("plot", function()
  it("encodes images as PNG, whatever dtype and layout", function()
    local w, h, c, rows = decode((png.encode(moth.tensor { { 0, 0.5, 1 }, { 1, 2, -1 } })))
    assert.same({ 3, 2, 1 }, { w, h, c })
    assert.equal("\0\0\128\255\0\255\255\0", rows)
    local bytes = moth.tensor({ { { 1, 2 } }, { { 3, 4 } }, { { 5, 6 } } }, { dtype = moth.uint8 })
    w, h, c, rows = decode((png.encode(bytes)))
    assert.same({ 2, 1, 3 }, { w, h, c })
    assert.equal("\0\1\3\5\2\4\6", rows)
    local x = moth.rand(5, 4)
    assert.equal((png.encode(x:t():contiguous())), (png.encode(x:t())))
    assert.equal((png.encode(x)), (png.encode(x:to(moth.float64))))
    assert.equal("\0\255\0", select(4, decode((png.encode(moth.tensor { { 1, 0 } }:gt(0))))))
    assert.equal("\0\0", select(4, decode((png.encode(moth.tensor { { 0 / 0 } })))))
    w, h, c = decode((png.encode(moth.ones(6, 5, 3)))) -- channels last, as the sizes say
    assert.same({ 5, 6, 3 }, { w, h, c })
    assert.equal("[3, 10, 20]", tostring(moth.plot.make_grid(moth.ones(2, 6, 7, 3)):size()))
    fails("expected an image", function() png.encode(moth.ones(2, 3, 5)) end)
    fails("with elements", function() png.encode(moth.ones(0, 3)) end)
    fails("expected an image tensor, got number", function() png.encode(3) end)
  end)

  it("draws curves with labels, gaps and logarithms as SVG", function()
    local svg = plot.lines({ { { 1, 2, 0 / 0, 4, 5 }, label = "a<b" }, { { 1, 10, 100 }, moth.tensor { 3, 2, 1 } } },
      { title = "T & U", xlabel = "x", ylabel = "y" }):svg()
    assert.matches("^<svg ", svg)
    assert.matches("</svg>\n$", svg)
    assert.matches("a&lt;b", svg)
    assert.matches("T &amp; U", svg)
    assert.equal(3, select(2, svg:gsub('stroke%-width="1.6"', "")), "two pieces of one curve, and the other")
    assert.matches("1e%+03", plot.lines({ 1, 10, 100, 1000 }, { logy = true }):svg())
    fails("no finite value", function() plot.lines { 0 / 0 } end)
    fails("2 x for 3 y", function() plot.lines { { { 1, 2 }, { 1, 2, 3 } } } end)
    fails("unknown option", function() plot.lines({ 1 }, { colour = "red" }) end)
    fails("element 2 is a string", function() plot.lines { 1, "b" } end)
    plot.lines({ 5 }):svg()
    plot.scatter({ { moth.randn(9), moth.randn(9) } }):svg()
  end)

  it("counts for histograms", function()
    local c = plot.hist({ 0, 0.1, 0.9, 1, 0 / 0, 1 / 0 }, { bins = 2 })
    assert.same({ 2, 2 }, c.counts)
    assert.same({ 1, 0 }, plot.hist(moth.tensor { 0.25, 7 }, { bins = 2, range = { 0, 1 } }).counts)
    assert.same({ 0, 3 }, plot.hist({ 2, 2, 2 }, { bins = 2 }).counts)
    fails("no finite value", function() plot.hist {} end)
    fails("'bins': expected an integer of at least 1", function() plot.hist({ 1 }, { bins = 0 }) end)
  end)

  it("lays images out", function()
    local grid = plot.make_grid(moth.ones(5, 3, 4, 6), { nrow = 2, padding = 1, pad_value = 0.5 })
    assert.same({ 3, 16, 15 }, { unpack(grid:size()) })
    assert.equal(0.5, grid[{ 1, 1, 1 }]:item())
    assert.equal(1, grid[{ 2, 2, 2 }]:item())
    assert.equal(0.5, grid[{ 3, 12, 9 }]:item(), "the sixth place stays empty")
    local svg = plot.images(moth.rand(3, 2, 2), { titles = { "one" }, title = "three" }):svg()
    assert.equal(3, select(2, svg:gsub("data:image/png;base64,iVBORw0KGgo", "")))
    fails("expected images", function() plot.images(moth.ones(3)) end)
    fails("expected images", function() plot.make_grid(moth.ones(0, 1, 2, 2)) end)
  end)

  it("counts confusions", function()
    local m = plot.confusion(moth.tensor({ 1, 1, 2 }), { 1, 2, 2 }, 2)
    assert.same({ { 1, 1 }, { 0, 1 } }, m:totable())
    local svg = plot.confusion_matrix(m, { classes = { "cat", "dog" } }):svg()
    assert.matches("cat", svg)
    fails("pair 1 is %(3, 1%); expected classes 1 to 2", function() plot.confusion({ 3 }, { 1 }, 2) end)
    fails("expected a %(C, C%) tensor", function() plot.confusion_matrix(moth.ones(2, 3)) end)
  end)

  -- fontconfig loses 652 bytes of its own with the first font that cairo asks it for.
  it("saves files by their ending #noasan", function()
    local base = os.tmpname()
    finally(function()
      for _, e in ipairs { "", ".svg", ".png" } do os.remove(base .. e) end
    end)
    local canvas = plot.lines({ 1, 2, 3 })
    canvas:save(base .. ".svg")
    assert.matches("^<svg ", io.open(base .. ".svg"):read("*a"))
    fails("must end in .svg or .png", function() canvas:save(base .. ".jpg") end)
    fails("No such file", function() canvas:save("/nonexistent/a.svg") end)
    plot.save_image(moth.rand(2, 1, 3, 3), base .. ".png")
    assert.equal("\137PNG", io.open(base .. ".png", "rb"):read(4))
    if not pcall(ffi.load, "libcairo.so.2") then
      fails("libcairo2", function() canvas:png() end)
      return
    end
    canvas = plot.images(moth.rand(2, 3, 4, 4), { titles = { "ä" }, title = "t" })
    local w, h, c = decode(canvas:png(1))
    assert.same({ math.ceil(canvas.width), math.ceil(canvas.height), 3 }, { w, h, c })
  end)
end)
