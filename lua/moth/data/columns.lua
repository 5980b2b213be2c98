--- Types of the columns of data.CSV: cells of text as values, and columns as tensors.
local ffi = require "ffi"
local moth = require "moth"
local check = require "moth.utils.check"
local json = require "moth.io.json"
local each = require "moth.each"

local M = {}

-- ---- cells ---------------------------------------------------------------------------------------------

local function float(text)
  local plain = text:match "^%s*(.-)%s*$"
  if plain:find "^[+-]?%.?%d" and not plain:find "^[+-]?0[xXbB]" then return tonumber(plain) end
  local sign, word = plain:lower():match "^([+-]?)(%a+)$"
  if word == "nan" then return 0 / 0 end
  if word == "inf" or word == "infinity" then return sign == "-" and -math.huge or math.huge end
  return nil
end

-- A whole number: a number up to 2^53, else int64_t; nil: none, or beyond 64 bits.
local function int(text)
  local sign, digits = text:match "^%s*([+-]?)0*(%d+)%s*$"
  if not digits then return nil end
  if #digits <= 15 then return tonumber(sign .. digits) end
  local value = json._whole((sign == "-" and "-" or "") .. digits)
  if ffi.istype("uint64_t", value) then return nil end
  return value
end

local words = { ["true"] = true, ["false"] = false, yes = true, no = false, ["1"] = true, ["0"] = false, t = true,
  f = false }
local function bool(text) return words[text:match "^%s*(.-)%s*$":lower()] end

--- type -> function of a cell's text: its value, or nil: it is none of this type.
M.read = { string = function(text) return text end, float = float, int = int, bool = bool,
  auto = function(text)
    local value = int(text)
    if value == nil then value = float(text) end
    if value == nil then return text end
    return value
  end }

--- Checks types = { column = type } against the names of columns; every type is known.
function M.check(self, types)
  local known, names = {}, {}
  for _, name in ipairs(self.columns) do known[name] = true end
  for name in each(M.read) do names[#names + 1] = name end
  table.sort(names)
  for name, kind in each(types) do
    if not known[name] then
      check.fail("[data.CSV] types: %s has no column '%s'%s", self.path, name, check.suggest(name, self.columns))
    elseif not M.read[kind] then
      check.fail("[data.CSV] types: column '%s': expected %s, got '%s'", name, table.concat(names, ", "),
        tostring(kind))
    end
  end
end

--- The texts of a line's cells as values; refuse(column, type, text) where one is not of its type. Missing ones: nil,
-- and so are those of columns that have no place (from 0) in `place`, a list.
function M.values(self, cells, refuse, place)
  local out = {}
  for k, name in ipairs(self.columns) do
    local text = cells[k]
    if (not place or place[k] >= 0) and text ~= "" and not self.missing[text] then
      local kind = self.types[name] or "auto"
      local value = M.read[kind](text)
      if value == nil then refuse(k, kind, text) end
      out[k] = value
    end
  end
  return out
end

-- ---- columns -------------------------------------------------------------------------------------------

-- What type holds all of n values: "int" or "float", "bool", "string".
local function common(values, n)
  local kind
  for i = 1, n do
    local v = values[i]
    local own = v ~= nil and (type(v) == "string" and "string" or type(v) == "boolean" and "bool"
      or (type(v) == "cdata" or v == math.floor(v) and math.abs(v) <= 2 ^ 53) and "int" or "float") or kind
    if kind == nil or kind == own then
      kind = own
    elseif kind ~= "string" and kind ~= "bool" and own ~= "string" and own ~= "bool" then
      kind = "float"
    else
      return "string"
    end
  end
  return kind or "float"
end

--- A column of n values as a tensor, or a list of texts in which false is missing. kind: its declared type; texts: as
-- they are written. refuse(i): there is no value i where one is needed.
function M.column(values, texts, n, kind, refuse)
  local is_declared = kind ~= nil and kind ~= "auto"
  if not is_declared then kind = common(values, n) end
  local lacks
  for i = 1, n do
    if values[i] == nil then lacks = lacks or i end
  end
  if kind == "int" and lacks and not is_declared then kind = "float" end
  if (kind == "int" or kind == "bool") and lacks then
    if is_declared then refuse(lacks) end
    kind = "string"
  end
  if kind == "string" then
    local list = {}
    for i = 1, n do list[i] = values[i] ~= nil and texts[i] or false end
    return list
  end
  local dtype = kind == "int" and moth.int64 or kind == "bool" and moth.bool or moth.float64
  local out = moth.empty({ n }, { dtype = dtype })
  local p = ffi.cast(kind == "int" and "int64_t *" or kind == "bool" and "bool *" or "double *", out:data())
  for i = 1, n do
    local v = values[i]
    if v == nil then v = 0 / 0 elseif kind == "float" then v = tonumber(v) end
    p[i - 1] = v
  end
  return out
end

return M
