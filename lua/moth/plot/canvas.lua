--- A drawing: a list of shapes on a sheet of width x height points, written as SVG or PNG.
--
-- Shapes are tables: { "line", points (x1, y1, x2, y2, …), colour, width }, { "rect", x, y, w, h, fill, stroke },
-- { "circle", x, y, r, fill }, { "text", x, y, text, size, anchor ("start", "middle", "end"), turned, colour },
-- { "image", x, y, w, h, tensor }. y grows downwards. Each format's writer walks the list (svg.lua, cairo.lua).
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"

local Canvas = class("Canvas")

function Canvas:__init(width, height)
  self.width, self.height, self.shapes = width, height, {}
end

function Canvas:add(...)
  self.shapes[#self.shapes + 1] = { ... }
  return self
end
function Canvas:line(points, colour, width) return self:add("line", points, colour or "#000000", width or 1) end
function Canvas:rect(x, y, w, h, fill, stroke) return self:add("rect", x, y, w, h, fill or false, stroke or false) end
function Canvas:circle(x, y, r, fill) return self:add("circle", x, y, r, fill) end
function Canvas:text(x, y, text, o)
  o = o or {}
  return self:add("text", x, y, tostring(text), o.size or 11, o.anchor or "start", o.turned or false,
    o.colour or "#202020")
end
function Canvas:image(x, y, w, h, tensor) return self:add("image", x, y, w, h, tensor) end

--- The drawing as SVG text.
function Canvas:svg() return require("moth.plot.svg").write(self) end

--- The drawing as PNG bytes; `scale` pixels a point (2). Needs cairo.
function Canvas:png(scale) return require("moth.plot.cairo").write(self, scale or 2) end

--- What a notebook shows: by MIME type.
function Canvas:__mime() return { ["image/svg+xml"] = self:svg() } end

--- What a notebook shows, by MIME type.
function Canvas:__mime() return { ["image/svg+xml"] = self:svg() } end

--- Writes a file: .svg or .png by its name. Errors: another extension, and the system's errors.
Canvas.save = signature.method("save(path path)", function(self, path)
  local ending = path:match("%.(%a+)$")
  local data
  if ending == "svg" then data = self:svg()
  elseif ending == "png" then data = self:png()
  else check.fail("save: '%s' must end in .svg or .png", path) end
  local f, message = io.open(path, "wb")
  if not f then check.fail("save: %s", message) end
  local ok
  ok, message = f:write(data)
  if ok then ok, message = f:close() else f:close() end
  if not ok then check.fail("save: %s: %s", path, message) end
  return path
end)

return Canvas
