--- Python's formats of chat templates (jinja/init.lua): "%-5.1f" % x, and "{:>8}".format(x).
local ffi = require "ffi"
local unicode = require "moth.data.unicode"
local V = require "moth.llm.jinja.values"

local M = {}

local fail, wrong, spend, is, text, kind, size = V.fail, V.wrong, V.spend, V.is, V.text, V.kind, V.size
local List, Dict = V.List, V.Dict

ffi.cdef [[int moth_jinja_print(char *to, size_t n, const char *format, int precision, double v, ...)
  __asm__("snprintf");]]

--- A float by C's letter ("f", "#g"): of two numbers that are as near, the even one, as string.format does not choose.
function M.digits(v, letter, precision)
  spend(1 + precision / 16)
  local n = 400 + precision
  local to = ffi.new("char[?]", n)
  ffi.C.moth_jinja_print(to, n, "%" .. letter:sub(1, -2) .. ".*" .. letter:sub(-1), precision, v)
  return ffi.string(to)
end

--- `s` in a field of `width` characters; align: "<", ">", "^", or "=" (behind the sign of a number).
function M.pad(s, width, align, fill)
  local missing = width - size(s)
  if missing <= 0 then return s end
  spend(missing * #fill / 16)
  if align == "<" then return s .. fill:rep(missing) end
  if align == "=" then
    local sign, rest = s:match "^([-+ ]?0?[xXobB]?)(.*)$"
    if not s:find "^[-+ ]?0[xXobB]" then sign, rest = s:match "^([-+ ]?)(.*)$" end
    return sign .. fill:rep(missing) .. rest
  end
  local left = align == "^" and math.floor(missing / 2) or missing
  return fill:rep(left) .. s .. fill:rep(missing - left)
end

-- The first n characters.
local function cut(s, n)
  if #s <= n then return s end
  local out = {}
  for c in s:gmatch(V.CHARACTER) do
    if #out == n then break end
    out[#out + 1] = c
  end
  return table.concat(out)
end

local function character(v, what)
  local n = V.int_of(v, what)
  if n < 0 or n > 0x10ffff then fail("%s: there is no character %d", what, n) end
  return unicode.char(n)
end

-- As Python's repr, in ASCII.
local function ascii(v)
  return (V.shown(v, nil, 0):gsub("[\194-\244][\128-\191]+", function(c)
    local n = unicode.point(c)
    return (n < 256 and "\\x%02x" or n < 65536 and "\\u%04x" or "\\U%08x"):format(n)
  end))
end

local bases = { o = "%o", x = "%x", X = "%X" }

-- The digits of a whole number >= 0 in a base.
local function digits_of(v, c)
  if c == "b" then
    local out = {}
    repeat
      table.insert(out, 1, ("%d"):format(v % 2))
      v = math.floor(v / 2)
    until v == 0
    return table.concat(out)
  end
  if bases[c] then
    if v >= 2 ^ 53 then fail("a number of over 53 bits in base %s", c) end
    return (bases[c]:format(v))
  end
  return ("%.0f"):format(v)
end

-- A number by its letter, without width. o: sign ("+", " ", ""), alt (#), precision, group.
local function number_text(v, c, o)
  local x = V.number(v) or wrong(v, "the format '%s' of %s: expected a number", c, kind(v))
  local minus = x < 0 or 1 / x < 0 and c:find "[eEfFgG%%]"
  local sign = minus and "-" or o.sign
  x = math.abs(x)
  local s
  if c:find "[doxXb]" then
    if x ~= x or x == math.huge then fail("the format '%s' of %s", c, text(v)) end
    if V.is_float(v) then
      if c ~= "d" or o.exact then fail("the format '%s' of %s: expected a whole number", c, text(v)) end
      x = math.floor(x)
      sign = x == 0 and minus and o.sign or sign
    end
    s = digits_of(x, c)
    if o.precision and #s < o.precision then
      spend(o.precision / 16)
      s = ("0"):rep(o.precision - #s) .. s
    end
    if o.alt and c ~= "d" then sign = sign .. "0" .. c end
  else
    local precision = o.precision or 6
    if precision > 1000 then fail("a precision of %.0f; it is at most 1000", precision) end
    local of = c == "%" and "f" or c
    s = x ~= x and "nan" or x == math.huge and "inf"
      or M.digits(c == "%" and x * 100 or x, (o.alt and "#" or "") .. of, precision)
    if of:find "%u" then s = s:upper() end
    if c == "%" then s = s .. "%" end
  end
  if o.group then
    local whole, rest = s:match "^(%d+)(.*)$"
    if whole then
      whole = whole:reverse():gsub("(%d%d%d)", "%1" .. o.group):reverse()
      s = (whole:sub(1, 1) == o.group and whole:sub(2) or whole) .. rest
    end
  end
  return sign .. s
end

--- pattern % args: a tuple's values one after the other, a mapping's by %(name)s, or one value.
function M.percent(pattern, args)
  local values, at, used = is(args, List) and args.tuple and args or { args }, 0, false
  local function next_value()
    at, used = at + 1, true
    local v = values[at]
    if v == nil then fail "%: there are too few values for the format" end
    return v
  end
  local function number_or_next(s)
    if s ~= "*" then return tonumber(s) end
    return V.int_of(next_value(), "%*")
  end
  local out, from = {}, 1
  while true do
    local first = pattern:find("%", from, true)
    out[#out + 1] = pattern:sub(from, (first or 0) - 1)
    if not first then break end
    local key, place = pattern:match("^(%b())()", first + 1)
    local flags, width, point, precision, c, behind =
      pattern:match("^([-#0 +]*)([%d*]*)(%.?)([%d*]*)[hlL]?(.?)()", place or first + 1)
    local value
    if key then
      if not is(args, Dict) then fail("%%%s: the values are no mapping", key) end
      value, used = args.map[key:sub(2, -2)], true
      if value == nil then fail("%%%s: the mapping has no such key", key) end
    end
    local n = number_or_next(width)
    local left = flags:find("-", 1, true) or n and n < 0
    local digits = point ~= "" and (number_or_next(precision) or 0) or nil
    local o = { sign = flags:find("+", 1, true) and "+" or flags:find(" ", 1, true) and " " or "",
      alt = flags:find("#", 1, true), precision = digits }
    local s, zeros
    if c == "%" then
      s = "%"
    elseif c:find "[sra]" then
      if value == nil then value = next_value() end
      s = c == "s" and text(value) or c == "r" and V.shown(value, nil, 0) or ascii(value)
      if digits then s = cut(s, digits) end
    elseif c == "c" then
      if value == nil then value = next_value() end
      s = V.number(value) and character(value, "%c") or V.string_of(value, "%c")
      if size(s) ~= 1 then fail "%c: expected one character" end
    elseif c ~= "" and c:find "[diuoxXeEfFgG]" then
      if value == nil then value = next_value() end
      c = c:gsub("[iu]", "d")
      o.exact = c ~= "d"
      s, zeros = number_text(value, c, o), flags:find("0", 1, true)
    else
      fail("%%: there is no format '%%%s'", c)
    end
    spend(1 + #s / 16)
    n = n and math.abs(n) or 0
    if left then s = M.pad(s, n, "<", " ") else s = M.pad(s, n, zeros and "=" or ">", zeros and "0" or " ") end
    out[#out + 1], from = s, behind
  end
  if is(args, List) and args.tuple and at < #args or not used and not is(args, List) and not is(args, Dict) then
    fail "%: there are more values than the format takes"
  end
  return table.concat(out)
end

-- value by a format of "{:…}".
local function by_spec(v, spec)
  local fill, align, rest = spec:match "^(.[\128-\191]*)([<>=^])(.*)$"
  if not fill then
    fill, align, rest = nil, spec:match "^([<>=^]?)(.*)$"
  end
  local sign, alt, zero, width, group, precision, c =
    rest:match "^([-+ ]?)(#?)(0?)(%d*)([,_]?)(%.?%d*)(.?)$"
  if not sign or not c:find "^[bcdeEfFgGnosxX%%]?$" or precision == "." then
    fail("format: '%s' is no format, or is not supported", spec)
  end
  if c == "n" then c = V.is_float(v) and "g" or "d" end -- of no language
  local s
  local numeric = V.number(v) ~= nil
  local o = { sign = sign == "-" and "" or sign, alt = alt ~= "", precision = tonumber(precision:sub(2)),
    group = group ~= "" and group, exact = true }
  if numeric and c ~= "" and c ~= "s" then
    if c == "c" then
      s = character(v, "format")
    else
      if c:find "[bdoxX]" and o.precision then fail "format: a precision of a whole number" end
      s = number_text(v, c, o)
    end
  elseif numeric then
    if c == "s" then fail "format: 's' of a number" end
    if not V.is_float(v) then
      if o.precision then fail "format: a precision of a whole number" end
      s = number_text(v, "d", o)
    elseif o.precision then
      s = number_text(v, "g", o)
    else
      local x = V.number(v)
      s = (x < 0 and "-" or o.sign) .. text(V.float(math.abs(x)))
    end
  else
    if c ~= "" and c ~= "s" then wrong(v, "format: '%s' of %s", c, kind(v)) end
    if type(v) ~= "string" and type(v) ~= "boolean" then wrong(v, "format: '%s' of %s", spec, kind(v)) end
    if sign ~= "" or alt ~= "" or group ~= "" or align == "=" then fail("format: '%s' of a text", spec) end
    s = text(v)
    if o.precision then s = cut(s, o.precision) end
  end
  if align == "" then align = zero ~= "" and numeric and "=" or numeric and ">" or "<" end
  return M.pad(s, tonumber(width) or 0, align, fill or zero ~= "" and "0" or " ")
end

--- "{} {name!r:>8}".format(args, kwargs)
function M.braces(pattern, args, kwargs)
  local out, from, auto = {}, 1, 0
  while true do
    local first = pattern:find("[{}]", from)
    out[#out + 1] = pattern:sub(from, (first or 0) - 1)
    if not first then break end
    local c = pattern:sub(first, first)
    if pattern:sub(first + 1, first + 1) == c then
      out[#out + 1], from = c, first + 2
    else
      local name, path, convert, spec, behind =
        pattern:match("^{([%w_]*)([^!:{}]*)!?([rsa]?):?([^{}]*)}()", first)
      if not name then fail("format: '%s' is no field, or is not supported", pattern:sub(first, first + 20)) end
      local v
      if name == "" then
        if auto == nil then fail "format: fields with and without a number" end
        auto, v = auto + 1, args[auto + 1]
      elseif tonumber(name) then
        if auto and auto > 0 then fail "format: fields with and without a number" end
        auto, v = nil, args[tonumber(name) + 1]
      else
        v = kwargs[name]
      end
      if v == nil then fail("format: there is no value for the field '%s'", name) end
      for dot, part in path:gmatch "([.%[])([^.%[%]]+)%]?" do
        v = dot == "." and V.attribute(v, part) or dot == "[" and V.item(v, tonumber(part) or part) or v
      end
      if convert == "r" then v = V.shown(v, nil, 0) elseif convert == "a" then v = ascii(v)
      elseif convert == "s" then v = text(v) end
      if spec == "" and type(v) ~= "string" then v = text(v) end
      local s = by_spec(v, spec)
      spend(1 + #s / 16)
      out[#out + 1], from = s, behind
    end
  end
  return table.concat(out)
end

return M
