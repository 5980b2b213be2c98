--- A drawing as SVG 1.1.
local base64 = require "moth.utils.base64"

local M = {}

local function escape(s)
  return (s:gsub("[&<>\"]", { ["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;", ['"'] = "&quot;" }))
end

local function number(x) return (("%.2f"):format(x):gsub("%.?0+$", "")) end

local shapes = {}

function shapes.line(points, colour, width)
  local list = {}
  for i = 1, #points, 2 do list[#list + 1] = number(points[i]) .. "," .. number(points[i + 1]) end
  return ('<polyline points="%s" fill="none" stroke="%s" stroke-width="%s" stroke-linejoin="round"/>'):format(
    table.concat(list, " "), colour, number(width))
end
function shapes.rect(x, y, w, h, fill, stroke)
  return ('<rect x="%s" y="%s" width="%s" height="%s" fill="%s" stroke="%s"/>'):format(number(x), number(y), number(w),
    number(h), fill or "none", stroke or "none")
end
function shapes.circle(x, y, r, fill)
  return ('<circle cx="%s" cy="%s" r="%s" fill="%s"/>'):format(number(x), number(y), number(r), fill)
end
function shapes.text(x, y, text, size, anchor, turned, colour)
  local turn = turned and (' transform="rotate(-90 %s %s)"'):format(number(x), number(y)) or ""
  return ('<text x="%s" y="%s" font-size="%s" text-anchor="%s" fill="%s"%s>%s</text>'):format(number(x), number(y),
    number(size), anchor, colour, turn, escape(text))
end
function shapes.image(x, y, w, h, tensor)
  local data = base64.encode((require("moth.plot.png").encode(tensor)))
  return ('<image x="%s" y="%s" width="%s" height="%s" preserveAspectRatio="none" style="image-rendering:pixelated" '
    .. 'xlink:href="data:image/png;base64,%s"/>'):format(number(x), number(y), number(w), number(h), data)
end

function M.write(canvas)
  local out = {
    ('<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" version="1.1" width="%s" '
      .. 'height="%s" viewBox="0 0 %s %s" font-family="DejaVu Sans, Arial, sans-serif">'):format(
      number(canvas.width), number(canvas.height), number(canvas.width), number(canvas.height)),
    '<rect width="100%" height="100%" fill="#ffffff"/>',
  }
  for _, s in ipairs(canvas.shapes) do out[#out + 1] = shapes[s[1]](unpack(s, 2, 9)) end
  out[#out + 1] = "</svg>\n"
  return table.concat(out, "\n")
end

return M
