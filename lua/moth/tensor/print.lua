--- Prints tensors: aligned, long ones by head and tail, with a footer of dtype, shape and device.
local B = require "moth_lua"
local signature = require "moth.utils.signature"
local ops = B.ops
local M = {}

local options = { precision = 4, threshold = 1000, edgeitems = 3, linewidth = 80 }

--- set_printoptions{precision=, threshold=, edgeitems=, linewidth=}
function M.set_printoptions(precision, threshold, edgeitems, linewidth)
  options.precision, options.threshold = precision or options.precision, threshold or options.threshold
  options.edgeitems, options.linewidth = edgeitems or options.edgeitems, linewidth or options.linewidth
end

local function is_int(v) return v == math.floor(v) and math.abs(v) < 1e15 end

local formatter

-- 1.5000-2.0000i: the parts by formats of their own.
local function complex_formatter(values, dtype)
  local re, im = {}, {}
  for i, v in ipairs(values) do re[i], im[i] = v.re, v.im end
  local real, imag = formatter(re, dtype), formatter(im, dtype)
  return function(v)
    local text = imag(v.im)
    return real(v.re) .. (text:find("^-") and "" or "+") .. text .. "i"
  end
end

-- One formatter for all the numbers shown.
function formatter(values, dtype)
  if dtype == "bool" then return tostring end
  local float = dtype:find("float") ~= nil
  local integral, largest, smallest = true, 0, math.huge
  for _, v in ipairs(values) do
    if type(v) == "number" and v == v and math.abs(v) ~= math.huge then
      local a = math.abs(v)
      if not is_int(v) then integral = false end
      if a > largest then largest = a end
      if a > 0 and a < smallest then smallest = a end
    end
  end
  local function special(v)
    if v ~= v then return "nan" end
    if v == math.huge then return "inf" end
    if v == -math.huge then return "-inf" end
  end
  if not float then -- beyond 2^53 elements are int64_t, or uint64_t
    return function(v) return type(v) == "cdata" and tostring(v):match("^-?%d+") or ("%.0f"):format(v) end
  end
  if integral and largest < 1e8 then return function(v) return special(v) or ("%.0f."):format(v) end end
  local fixed = "%." .. options.precision .. "f"
  local scientific = "%." .. options.precision .. "e"
  local use = (largest >= 1e8 or smallest < 1e-4 or largest / smallest > 1e5) and scientific or fixed
  return function(v) return special(v) or use:format(v) end
end

-- The positions to show of n.
local function shown(n, summarise)
  local e = options.edgeitems
  if not summarise or n <= 2 * e then return 1, n, nil end
  return 1, e, n - e + 1
end

local function collect(x, out, summarise)
  if B.dim(x) == 0 then
    out[#out + 1] = x:item()
    return
  end
  local n = B.size(x, 1)
  local first, last, tail = shown(n, summarise)
  for i = first, last do collect(ops.select(x, 1, i), out, summarise) end
  for i = tail or n + 1, n do collect(ops.select(x, 1, i), out, summarise) end
end

local function lines(x, format, width, depth, summarise)
  local n = B.size(x, 1)
  local first, last, tail = shown(n, summarise)
  local parts = {}
  local one_dim = B.dim(x) == 1
  local function add(i)
    local item = ops.select(x, 1, i)
    if one_dim then
      local s = format(item:item())
      parts[#parts + 1] = (" "):rep(width - #s) .. s
    else
      parts[#parts + 1] = lines(item, format, width, depth + 1, summarise)
    end
  end
  for i = first, last do add(i) end
  if tail then parts[#parts + 1] = "..." end
  for i = tail or n + 1, n do add(i) end
  if one_dim then
    local per_line = math.max(1, math.floor((options.linewidth - depth - 2) / (width + 2)))
    local rows = {}
    for i = 1, #parts, per_line do
      rows[#rows + 1] = table.concat(parts, ", ", i, math.min(i + per_line - 1, #parts))
    end
    return "[" .. table.concat(rows, ",\n" .. (" "):rep(depth + 1)) .. "]"
  end
  local gap = "," .. ("\n"):rep(B.dim(x) - 1) .. (" "):rep(depth + 1)
  return "[" .. table.concat(parts, gap) .. "]"
end

local function footer(x)
  local size = B.size(x)
  local s = ("[moth.%s %s, %s"):format(B.tensor_dtype(x).name, #size == 0 and "0-dim" or table.concat(size, "x"),
    tostring(B.tensor_device(x)))
  if B.is_fake(x) and B.tensor_device(x).type ~= "meta" then s = s .. ", fake" end
  if B.batch_level(x) > 0 then s = s .. ", inside vmap" end
  local fn = B.requires_grad(x) and B.grad_fn(x)
  if fn then s = s .. ", grad_fn=" .. tostring(fn) elseif B.requires_grad(x) then s = s .. ", requires_grad" end
  return s .. "]"
end

function M.tensor(x)
  local ok, dim = pcall(B.dim, x)
  if not ok then return "[released tensor]" end
  if B.is_fake(x) or B.batch_level(x) > 0 then return footer(x) end
  if B.numel(x) == 0 then return "[]\n" .. footer(x) end
  local plain = B.alias(x, false)
  if tostring(B.tensor_device(x)) ~= "cpu" then plain = ops.to(plain, { device = "cpu" }) end
  local dtype = B.tensor_dtype(x).name
  local summarise = B.numel(x) > options.threshold
  local values = {}
  collect(plain, values, summarise)
  local is_complex = B.tensor_dtype(x).is_complex
  local format, width = (is_complex and complex_formatter or formatter)(values, is_complex and "float64" or dtype), 0
  for _, v in ipairs(values) do width = math.max(width, #format(v)) end
  if dim == 0 then return format(values[1]) .. "\n" .. footer(x) end
  return lines(plain, format, width, 0, summarise) .. "\n" .. footer(x)
end

--- One line on a tensor's shape, stride, offset and contiguity.
function M.describe(x)
  return ("shape [%s], stride [%s], offset %d, %s, %s"):format(table.concat(B.size(x), ", "),
    table.concat(B.stride(x), ", "), B.storage_offset(x),
    B.is_contiguous(x) and "contiguous" or "not contiguous", footer(x))
end

return signature.all(M, { "describe(Tensor input)",
  "set_printoptions(size precision?, size threshold?, size edgeitems?, count linewidth?)" })
