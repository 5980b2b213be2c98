--- Pictures over time: a row for each rank (and stream), time to the right.
local Canvas = require "moth.plot.canvas"

local M = {}

local colours = { F = "#9ecae1", B = "#a1d99b", I = "#a1d99b", W = "#fdd0a2", compute = "#9ecae1", comm = "#fdae6b",
  exposed = "#de2d26" }

local left, row, top = 64, 22, 30

-- A canvas for `rows` named rows and a scale: x(seconds).
local function sheet(title, rows, span, width)
  local canvas = Canvas(width, top + #rows * row + 34)
  local scale = (width - left - 14) / math.max(span, 1e-30)
  local function x(t) return left + t * scale end
  canvas:text(left, 18, title, { size = 12 })
  for i, name in ipairs(rows) do
    canvas:text(left - 6, top + (i - 1) * row + 14, name, { anchor = "end", size = 10 })
  end
  return canvas, x, scale
end

-- Marks of a time axis below the rows: about eight, at round numbers.
local function axis(canvas, x, span, y, unit)
  local ten = 10 ^ math.floor(math.log10(math.max(span, 1e-12) / 8))
  local step = ten
  for _, k in ipairs { 2, 5, 10 } do if span / step > 10 then step = ten * k end end
  for i = 0, math.floor(span / step + 1e-9) do
    canvas:line({ x(i * step), y, x(i * step), y + 4 }, "#808080", 1)
    canvas:text(x(i * step), y + 15, ("%g%s"):format(i * step * unit[1], unit[2]), { size = 9, anchor = "middle" })
  end
end

--- A schedule of a pipeline, by its timeline.
function M.schedule(s, width)
  local rows = {}
  for rank = 0, s.ranks - 1 do rows[#rows + 1] = "rank " .. rank end
  local canvas, x, scale = sheet(("%s, %d micro-batches: bubble %.1f %%"):format(s.name, s.micro_batches,
    100 * s.bubble), rows, s.span, width)
  for rank = 0, s.ranks - 1 do
    local y = top + rank * row
    canvas:rect(x(0), y, s.span * scale, row - 3, "#f2f2f2")
    for _, e in ipairs(s.timeline[rank]) do
      local w = (e.stop - e.start) * scale
      canvas:rect(x(e.start), y, w, row - 3, colours[e.action.op], "#606060")
      if w > 14 then
        canvas:text(x(e.start) + w / 2, y + 13, e.action.op .. e.action.micro, { size = 9, anchor = "middle" })
      end
    end
  end
  axis(canvas, x, s.span, top + s.ranks * row + 2, { 1, "" })
  return canvas
end

--- A simulated step: for each rank its compute and its communication; what is exposed is red, the critical path has a
-- dark frame. ranks: which, at most 16.
function M.timeline(result, ranks, width)
  local rows, on_path = {}, {}
  for _, rank in ipairs(ranks) do
    rows[#rows + 1] = "rank " .. rank
    rows[#rows + 1] = "comm"
  end
  for _, e in ipairs(result.critical) do on_path[e] = true end
  local canvas, x, scale = sheet(("step %.3g ms, communication %.3g ms a rank, exposed %.3g ms"):format(
    result.span * 1e3, result.communication * 1e3, result.exposed * 1e3), rows, result.span, width)
  for i, rank in ipairs(ranks) do
    local y = top + (i - 1) * 2 * row
    for _, e in ipairs(result.events[rank]) do
      local w, down = math.max(0.5, (e.stop - e.start) * scale), e.stream == "comm" and row or 0
      canvas:rect(x(e.start), y + down, w, row - 3, colours[e.stream], on_path[e] and "#202020" or "#b0b0b0")
      if w > 6 * #e.name then
        canvas:text(x(e.start) + w / 2, y + down + 13, e.name, { size = 9, anchor = "middle" })
      end
    end
    for _, gap in ipairs(result.waits[rank]) do
      canvas:rect(x(gap[1]), y + row - 5, (gap[2] - gap[1]) * scale, 3, colours.exposed)
    end
  end
  axis(canvas, x, result.span, top + #rows * row + 2, { 1e3, " ms" })
  return canvas
end

return M
