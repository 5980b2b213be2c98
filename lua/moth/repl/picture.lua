--- Pictures in the terminal: images by half blocks in 24-bit colours, or as sixels; curves by braille dots. Where only
-- ASCII may be written, an image is blanks on coloured ground and a curve is of . : ' signs.
local terminal = require "moth.repl.terminal"
local B = require "moth_lua"
local each = require "moth.each"
local ops = B.ops
local M = {}

local esc = "\27"

-- The pixels of an image: channels, height, width, get(channel, row, column) in 0..255.
local function pixels(x)
  if not B.is_tensor(x) then error("image: expected a tensor, got " .. type(x), 3) end
  local size = B.size(x)
  if #size == 2 then x, size = ops.unsqueeze(x, 1), { 1, size[1], size[2] } end
  if #size == 3 and size[1] ~= 1 and size[1] ~= 3 and (size[3] == 1 or size[3] == 3) then -- as files have them
    x, size = ops.permute(x, { 3, 1, 2 }), { size[3], size[1], size[2] }
  end
  if #size ~= 3 or (size[1] ~= 1 and size[1] ~= 3) or size[2] * size[3] == 0 then
    error(("image: expected (H, W), (1, H, W), (3, H, W), (H, W, 1) or (H, W, 3), got %s%s"):format(B.format(x),
      #size == 4 and "; HINT: one of the batch, x[1]" or ""), 3)
  end
  local t = B.totable(ops.to(B.alias(x, false), { dtype = "float32", device = "cpu" }))
  local top = 0
  for c = 1, size[1] do
    for r = 1, size[2] do
      for k = 1, size[3] do if t[c][r][k] > top then top = t[c][r][k] end end
    end
  end
  local scale = top > 1.5 and 1 or 255
  return size[1], size[2], size[3], function(c, r, k)
    local v = t[size[1] == 1 and 1 or c][r][k] * scale
    return v ~= v and 0 or math.max(0, math.min(255, math.floor(v + 0.5)))
  end
end

local function half_blocks(height, width, get, columns, ascii)
  local step = math.max(1, math.ceil(width / columns))
  local lines = {}
  local function mean(c, r, k)
    local sum, n = 0, 0
    for i = r, math.min(r + step - 1, height) do
      for j = k, math.min(k + step - 1, width) do sum, n = sum + get(c, i, j), n + 1 end
    end
    return n > 0 and math.floor(sum / n) or 0
  end
  for r = 1, height, 2 * step do
    local line = {}
    for k = 1, width, step do
      local upper, lower = { mean(1, r, k), mean(2, r, k), mean(3, r, k) }, { mean(1, r + step, k),
        mean(2, r + step, k), mean(3, r + step, k) }
      if ascii then
        if r + step > height then lower = upper end
        for c = 1, 3 do upper[c] = math.floor((upper[c] + lower[c]) / 2) end
        line[#line + 1] = (esc .. "[48;2;%d;%d;%dm "):format(unpack(upper))
      else
        line[#line + 1] = (esc .. "[38;2;%d;%d;%dm" .. esc .. "[48;2;%d;%d;%dm▀"):format(upper[1], upper[2], upper[3],
          lower[1], lower[2], lower[3])
      end
    end
    lines[#lines + 1] = table.concat(line) .. esc .. "[0m"
  end
  return table.concat(lines, "\n")
end

-- DEC's sixels: six rows a band, one pass a colour of a 6x6x6 cube, runs written as !count.
local function sixels(height, width, get, zoom)
  local out = { esc .. 'Pq"1;1;' .. width * zoom .. ";" .. height * zoom }
  local function level(v) return math.floor(v * 5 / 255 + 0.5) end
  local defined = {}
  for band = 0, height * zoom - 1, 6 do
    local used = {}
    for x = 0, width * zoom - 1 do
      for y = band, math.min(band + 5, height * zoom - 1) do
        local r, k = math.floor(y / zoom) + 1, math.floor(x / zoom) + 1
        local a, b, c = level(get(1, r, k)), level(get(2, r, k)), level(get(3, r, k))
        local id = a * 36 + b * 6 + c
        used[id] = used[id] or {}
        used[id][x] = (used[id][x] or 0) + 2 ^ (y - band)
        if not defined[id] then
          defined[id] = true
          out[#out + 1] = ("#%d;2;%d;%d;%d"):format(id, a * 20, b * 20, c * 20)
        end
      end
    end
    for id, columns in each(used) do
      out[#out + 1] = "#" .. id
      local x = 0
      while x < width * zoom do
        local bits, n = columns[x] or 0, 1
        while x + n < width * zoom and (columns[x + n] or 0) == bits do n = n + 1 end
        out[#out + 1] = (n > 3 and "!" .. n or "") .. string.char(63 + bits):rep(n > 3 and 1 or n)
        x = x + n
      end
      out[#out + 1] = "$"
    end
    out[#out + 1] = "-"
  end
  out[#out + 1] = esc .. "\\"
  return table.concat(out)
end

local function is_ascii(options)
  if options.ascii ~= nil then return options.ascii end
  return not terminal.utf8()
end

--- A tensor (H, W), (1, H, W), (3, H, W), (H, W, 1) or (H, W, 3), values 0 to 1 or 0 to 255, as text for the terminal.
-- options: sixel (guessed), columns (80), ascii (guessed).
function M.image(x, options)
  options = options or {}
  local _, height, width, get = pixels(x)
  local sixel = options.sixel
  if sixel == nil then sixel = terminal.sixel() end
  if sixel then return sixels(height, width, get, math.max(1, math.floor(256 / math.max(height, width)))) end
  return half_blocks(height, width, get, options.columns or 80, is_ascii(options))
end

local function numbers(v, what)
  if B.is_tensor(v) then
    v = B.totable(ops.flatten(ops.to(B.alias(v, false), { dtype = "float64", device = "cpu" })))
  end
  if type(v) ~= "table" then
    error(("plot: %s: expected a table of numbers or a tensor, got %s"):format(what, type(v)), 3)
  end
  for i = 1, #v do
    if type(v[i]) ~= "number" then error(("plot: %s[%d] is a %s"):format(what, i, type(v[i])), 3) end
  end
  return v
end

local dots = { { 0x01, 0x02, 0x04, 0x40 }, { 0x08, 0x10, 0x20, 0x80 } }

local function utf8(code)
  return string.char(0xE0 + math.floor(code / 4096), 0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
end

--- A curve of y (1-D tensor or table of numbers) over its positions, or curve(x, y); a text of 12 lines with axes.
-- options: columns (72), lines (12), ascii (guessed). Values that are not finite leave gaps.
function M.curve(x, y, options)
  if type(y) == "table" and not y[1] and next(y) then y, options = nil, y end
  options = options or {}
  if y == nil then
    y, x = numbers(x, "y"), {}
    for i = 1, #y do x[i] = i end
  else
    x, y = numbers(x, "x"), numbers(y, "y")
  end
  if #x ~= #y then error(("plot: %d x for %d y"):format(#x, #y), 2) end
  local columns, lines = options.columns or 72, options.lines or 12
  local x0, x1, y0, y1 = math.huge, -math.huge, math.huge, -math.huge
  for i = 1, #y do
    if math.abs(y[i]) < math.huge and math.abs(x[i]) < math.huge then
      x0, x1, y0, y1 = math.min(x0, x[i]), math.max(x1, x[i]), math.min(y0, y[i]), math.max(y1, y[i])
    end
  end
  if x0 > x1 then return "(nothing to plot: no finite values)" end
  if x0 == x1 then x0, x1 = x0 - 0.5, x1 + 0.5 end
  if y0 == y1 then y0, y1 = y0 - 0.5, y1 + 0.5 end
  local w, h, cells = columns * 2 - 1, lines * 4 - 1, {}
  local function set(px, py)
    local c, r = math.floor(px / 2), math.floor(py / 4)
    local at = r * columns + c
    cells[at] = bit.bor(cells[at] or 0, dots[px % 2 + 1][py % 4 + 1])
  end
  local last_x, last_y
  for i = 1, #y do
    if math.abs(y[i]) < math.huge and math.abs(x[i]) < math.huge then
      local px = math.floor((x[i] - x0) / (x1 - x0) * w + 0.5)
      local py = math.floor((y1 - y[i]) / (y1 - y0) * h + 0.5)
      local steps = last_x and math.max(math.abs(px - last_x), math.abs(py - last_y)) or 0
      for k = 1, steps do
        set(math.floor(last_x + (px - last_x) * k / steps + 0.5), math.floor(last_y + (py - last_y) * k / steps + 0.5))
      end
      set(px, py)
      last_x, last_y = px, py
    else
      last_x = nil
    end
  end
  local out, ascii = {}, is_ascii(options)
  local function sign(bits)
    if not ascii then return utf8(0x2800 + bits) end
    local upper, lower = bit.band(bits, 0x1b) ~= 0, bit.band(bits, 0xe4) ~= 0 -- rows 1 and 2, 3 and 4
    return upper and lower and ":" or upper and "'" or lower and "." or " "
  end
  for r = 0, lines - 1 do
    local row = {}
    for c = 0, columns - 1 do row[c + 1] = sign(cells[r * columns + c] or 0) end
    local label = r == 0 and ("%9.4g"):format(y1) or r == lines - 1 and ("%9.4g"):format(y0) or (" "):rep(9)
    out[r + 1] = label .. (ascii and " |" or " ┤") .. table.concat(row)
  end
  local left, right = ("%.4g"):format(x0), ("%.4g"):format(x1)
  out[lines + 1] = (" "):rep(11) .. left .. (" "):rep(columns - #left - #right) .. right
  return table.concat(out, "\n")
end

return M
