--- A pair of axes: maps numbers to coordinates on a canvas, with ticks at round numbers.
local class = require "moth.class"

local Axes = class("Axes")

-- Round steps of 1, 2 or 5 times a power of ten, about `n` of them.
local function ticks(low, high, n)
  local raw = (high - low) / n
  local power = 10 ^ math.floor(math.log10(raw))
  local step = power
  for _, m in ipairs { 1, 2, 5, 10 } do
    step = m * power
    if step >= raw then break end
  end
  local list = {}
  for i = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) do list[#list + 1] = i * step end
  return list
end

local function powers(low, high) -- of log10
  local list = {}
  for e = math.ceil(low), math.floor(high) do list[#list + 1] = e end
  return #list >= 2 and list or ticks(low, high, 4)
end

local function label(v, log)
  if log then return ("%.3g"):format(10 ^ v) end
  if v ~= 0 and (math.abs(v) >= 1e6 or math.abs(v) < 1e-4) then return ("%.1e"):format(v) end
  return ("%.6g"):format(math.abs(v) < 1e-12 and 0 or v)
end

--- x, y, w, h: a rectangle of the canvas; range: { x0, x1, y0, y1 } (logarithms for logx, logy).
function Axes:__init(canvas, x, y, w, h, range, o)
  self.canvas, self.x, self.y, self.w, self.h, self.o = canvas, x, y, w, h, o or {}
  local x0, x1, y0, y1 = unpack(range)
  if x0 == x1 then x0, x1 = x0 - 0.5, x1 + 0.5 end
  if y0 == y1 then y0, y1 = y0 - 0.5, y1 + 0.5 end
  self.x0, self.x1, self.y0, self.y1 = x0, x1, y0, y1
end

function Axes:place(vx, vy)
  return self.x + (vx - self.x0) / (self.x1 - self.x0) * self.w, self.y + (self.y1 - vy) / (self.y1 - self.y0) * self.h
end

--- Frame, grid, ticks with numbers, title and names.
function Axes:draw()
  local c, o = self.canvas, self.o
  for _, v in ipairs((o.logx and powers or ticks)(self.x0, self.x1, 6)) do
    local px = self:place(v, self.y0)
    c:line({ px, self.y, px, self.y + self.h }, "#e4e4e4", 0.7)
    c:text(px, self.y + self.h + 15, label(v, o.logx), { anchor = "middle", size = 10 })
  end
  for _, v in ipairs((o.logy and powers or ticks)(self.y0, self.y1, 5)) do
    local _, py = self:place(self.x0, v)
    c:line({ self.x, py, self.x + self.w, py }, "#e4e4e4", 0.7)
    c:text(self.x - 6, py + 4, label(v, o.logy), { anchor = "end", size = 10 })
  end
  c:rect(self.x, self.y, self.w, self.h, false, "#606060")
  if o.title then c:text(self.x + self.w / 2, self.y - 10, o.title, { anchor = "middle", size = 14 }) end
  if o.xlabel then c:text(self.x + self.w / 2, self.y + self.h + 34, o.xlabel, { anchor = "middle", size = 12 }) end
  if o.ylabel then
    c:text(self.x - 48, self.y + self.h / 2, o.ylabel, { anchor = "middle", size = 12, turned = true })
  end
end

return Axes
