--- Data sets in files that may be larger than memory: they are mapped, and pages are read when they are used. Workers
-- share the mapping.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local fetch = require "moth.data.fetch"
local strings = require "moth.data.strings"
local columns = require "moth.data.columns"
local gunzip = require "moth.utils.gunzip"
local json = require "moth.io.json"
local Dataset = require("moth.data.dataset").Dataset
local each = require "moth.each"

local M = {}

-- ---- tensors -------------------------------------------------------------------------------------------

local function map(path, o)
  if path:match("%.npy$") and not o.dtype then
    if o.shape or o.offset ~= 0 then check.fail("[mmap] %s says its shape itself: no shape, no offset", path) end
    local t, shape, reversed = B.media.map_npy(path)
    if not reversed then return t:view(shape) end
    local back, order = {}, {}
    for k = 1, #shape do back[k], order[k] = shape[#shape - k + 1], #shape - k + 1 end
    return t:view(back):permute(unpack(order))
  end
  local count = -1
  if o.shape then
    count = 1
    for _, n in ipairs(o.shape) do count = count * n end
  end
  local t = B.media.map_file(path, o.dtype or moth.float32, o.offset, count)
  return o.shape and t:view(o.shape) or t
end

--- A file as a tensor, without reading it: moth.mmap("tokens.bin", { dtype = moth.uint16 }). Writing to the tensor
-- changes memory, not the file. A .npy file says dtype and shape itself. offset: bytes before the first element.
M.mmap = signature("mmap(path path, *, dtype dtype?, size[] shape?, size offset=0)", map, true)

--- Sequences for a language model, from a file of token ids (counted from 0, as other programs write them): sample i is
-- x, the block_size tokens from the i-th on, and y, the ones that follow each; both int64, counted from 1.
local TokenStream = class("TokenStream", Dataset)
M.TokenStream = TokenStream
TokenStream.__init = signature.init("data.TokenStream(path|Tensor tokens, count block_size, *, dtype dtype='uint16', \z
  size offset=0)", function(self, o)
  self.tokens, self.block_size = o.tokens, o.block_size
  if type(o.tokens) == "string" then
    local own = o.tokens:match("%.npy$")
    self.tokens = map(o.tokens, { dtype = not own and o.dtype or nil, offset = own and 0 or o.offset })
  end
  if self.tokens:dim() ~= 1 then check.fail("[data.TokenStream] expected one dimension of tokens") end
  if self:size() < 1 then
    check.fail("[data.TokenStream] %d tokens are too few for blocks of %d", self.tokens:size(1), o.block_size)
  end
end)
function TokenStream:size() return math.max(self.tokens:size(1) - self.block_size - 1, 0) end
function TokenStream:get(i)
  local block = self.tokens:narrow(1, self:check_position(i), self.block_size + 1):to(moth.int64):add_(1)
  return block:narrow(1, 1, self.block_size), block:narrow(1, 2, self.block_size)
end

-- ---- lines ---------------------------------------------------------------------------------------------

local GUNZIP_MOST = 2 ^ 31 -- bytes of a .gz in memory

--- The lines of a text file that are not empty: sample i is a string, or what transform makes of it. A file that is
-- compressed by gzip is expanded in memory.
local TextLines = class("TextLines", Dataset)
M.TextLines = TextLines

local function open_lines(self, path, delimiter)
  local f, why = io.open(path, "rb")
  if not f then check.fail("[data.%s] cannot open %s", self.__name, why) end
  local head, empty = f:read(2), f:seek("end") == 0
  f:close()
  self.path = path
  self.bytes = empty and strings.bytes("") or map(path, { dtype = moth.uint8, offset = 0 })
  if head == "\31\139" then
    local text
    text, why = gunzip(ffi.string(self.bytes:data(), self.bytes:numel()), GUNZIP_MOST)
    if not text then check.fail("[data.%s] %s: %s", self.__name, path, why) end
    self.bytes, empty = strings.bytes(text), text == ""
  end
  -- Where the lines begin and end: int64 tensors. delimiter: of cells; a line break in a quoted one ends no line.
  self.begins, self.ends = B.media.index_lines(self.bytes, empty and 0 or self.bytes:numel(), delimiter or -1)
end

TextLines.__init = signature.init("data.TextLines(path path, *, callable transform?)", function(self, o)
  open_lines(self, o.path)
  self.transform = o.transform
end)
function TextLines:size() return self.begins:size(1) end
--- Line i as a string, without its end.
function TextLines:line(i)
  self:check_position(i)
  return strings.cut(self.bytes, self.begins[i]:item(), self.ends[i]:item())
end
function TextLines:get(i)
  local line = self:line(i)
  if self.transform then return self.transform(line) end
  return line
end

--- A file with a JSON value in each line: sample i is that value, or what transform makes of it. null is nothing.
local JSONL = class("JSONL", TextLines)
M.JSONL = JSONL
JSONL.__init = signature.init("data.JSONL(path path, *, callable transform?)", function(self, o)
  open_lines(self, o.path)
  self.transform = o.transform
end)
function JSONL:get(i)
  local value, why, _, column = json._read(self:line(i), nil, nil, "either")
  if why then check.fail("[data.JSONL] %s: line %d, column %d: %s", self.path, i, column, why) end
  if self.transform then return self.transform(value) end
  return value
end

--- A table in a text file. Sample i is { column = value, … }, numbers as numbers; with features (a list of columns), it
-- is a tensor of these, then, with target, that column's value. transform gets the table.
-- header = false: columns are called 1, 2, … ; columns: names for all of them. An empty cell is nothing (in a tensor:
-- nan), and so are those of `missing`, a list of texts such as "NA". types: { column = "string", "float", "int"
-- (exact), "bool" or "auto" }; a cell that is not of its type is an error. Without types and missing, what looks like a
-- number is one.
local CSV = class("CSV", TextLines)
M.CSV = CSV
CSV.__init = signature.init("data.CSV(path path, *, string delimiter?, bool header=true, list columns?, \z
  list features?, string|int target?, callable transform?, *, table types?, string[] missing?)", function(self, o)
  local delimiter = o.delimiter or ","
  if #delimiter ~= 1 then check.fail("[data.CSV] delimiter must be one character, got '%s'", delimiter) end
  open_lines(self, o.path, delimiter:byte())
  self.delimiter, self.first, self.transform = delimiter:byte(), o.header and 1 or 0, o.transform
  self.features, self.target, self.columns = o.features, o.target, o.columns
  if self.begins:size(1) == 0 then check.fail("[data.CSV] %s is empty", o.path) end
  if self:row(1):find "^\239\187\191" then self.begins[1] = self.begins[1] + 3 end -- the mark of UTF-8
  if not self.columns then
    self.columns = B.media.csv_cells(self:row(1), self.delimiter, true) or {}
    for k = 1, o.header and 0 or #self.columns do self.columns[k] = k end
  else
    local _, n = B.media.csv_cells(self:row(1), self.delimiter, true)
    if n and n ~= #self.columns then
      check.fail("[data.CSV] %s: columns has %d names, the first line has %d cells; it names all columns\n\z
        HINT: features = { … }, or csv:read { … }, takes some of them", o.path, #self.columns, n)
    end
  end
  if o.types or o.missing then
    self.types, self.missing, self.plan = o.types or {}, {}, false
    columns.check(self, self.types)
    for _, text in ipairs(o.missing or {}) do self.missing[text] = true end
  end
  local known = {}
  for _, name in ipairs(self.columns) do
    if known[name] then self.twice = self.twice or name end
    known[name] = true
  end
  for _, name in ipairs({ o.target, unpack(o.features or {}) }) do
    if not known[name] then
      check.fail("[data.CSV] %s has no column '%s'%s", o.path, name, check.suggest(name, self.columns))
    end
  end
end)
--- Line i of the file as a string, the header among them.
function CSV:row(i) return strings.cut(self.bytes, self.begins[i]:item(), self.ends[i]:item()) end
function CSV:size() return self.begins:size(1) - self.first end

-- Where line i stands; that it has n cells; -1: a quote is not closed, in cell `column`.
local function where_of(self, i)
  local _, breaks = strings.cut(self.bytes, 0, self.begins[i]:item()):gsub("\n", "")
  return ("[data.CSV] %s: sample %d (line %d of the file)"):format(self.path, i - self.first, breaks + 1)
end
local function refuse(self, i, n, column)
  if n == -1 then
    check.fail("%s: a quote is not closed%s", where_of(self, i), column and (", in cell %d"):format(column) or "")
  end
  check.fail("%s has %d cells, there are %d columns", where_of(self, i), n, #self.columns)
end

-- The values of line i by the types of the columns, of those that have a place in `place`, and all cells as text.
local function typed(self, i, place)
  local cells, n = B.media.csv_cells(self:row(i), self.delimiter, true)
  if not cells or n ~= #self.columns then refuse(self, i, cells and n or -1) end
  return columns.values(self, cells, function(k, kind, text)
    check.fail("%s: column '%s' is no %s: '%s'", where_of(self, i), self.columns[k], kind, text)
  end, place), cells
end

-- That a table of columns would lose one of this name.
local function refuse_twice(self, name)
  check.fail("[data.CSV] %s has two columns '%s'\nHINT: give others by columns = { … }", self.path, name)
end

function CSV:get(i)
  local row, n
  if self.twice and not self.features then refuse_twice(self, self.twice) end
  if self.types then
    row, n = typed(self, self:check_position(i) + self.first), #self.columns
  else
    row, n = B.media.csv_cells(self:row(self:check_position(i) + self.first), self.delimiter, false)
  end
  if not row or n ~= #self.columns then refuse(self, i + self.first, row and n or -1) end
  local sample = {}
  for k, name in ipairs(self.columns) do
    if row[k] ~= nil then sample[name] = row[k] end
  end
  if self.transform then return self.transform(sample) end
  if not self.features then return sample end
  local x = {}
  for k, name in ipairs(self.features) do
    x[k] = sample[name] == nil and 0 / 0 or type(sample[name]) == "cdata" and tonumber(sample[name]) or sample[name]
    if type(x[k]) ~= "number" then
      check.fail("[data.CSV] %s: sample %d: column '%s' is no number: '%s'", self.path, i, name, x[k])
    end
  end
  local values = moth.tensor(x)
  if self.target then return values, sample[self.target] end
  return values
end

local function all(...) return ... end
local which = signature("numbers(list columns?, *, dtype dtype?, count from=1, size count?)", all)

-- Where the values of each column go, and how many go somewhere; names: nil: all of them.
local function places(self, names)
  local wanted, place = {}, {}
  for k, name in ipairs(names or {}) do
    if wanted[name] then check.fail("[data.CSV] %s: column '%s' is asked for twice", self.path, name) end
    wanted[name] = k - 1
  end
  for k, name in ipairs(self.columns) do
    place[k] = not names and k - 1 or wanted[name] or -1
    if wanted[name] == false then refuse_twice(self, name) end
    if wanted[name] then wanted[name] = false end
  end
  for name, at in each(wanted) do
    if at then
      check.fail("[data.CSV] %s has no column '%s'%s", self.path, name, check.suggest(name, self.columns))
    end
  end
  return place, #(names or place)
end

--- Columns of numbers as one tensor (samples, columns), without a table for each sample: all columns, or those named,
-- of `count` samples from `from` on. nan: an empty cell.
function CSV:numbers(...)
  local names, dtype, from, count = which(...)
  local place, width = places(self, names)
  count = count or math.max(self:size() - from + 1, 0)
  if count > 0 and from + count - 1 > self:size() then
    check.fail("[data.CSV] %s: numbers: %d samples from %d on, there are %d", self.path, count, from, self:size())
  end
  if self.types then
    local out = moth.full({ count, width }, 0 / 0, { dtype = moth.float64 })
    local p = ffi.cast("double *", out:data())
    for r = 0, count - 1 do
      local i = from + r + self.first
      for k, v in each(typed(self, i, place)) do
        if type(v) == "string" or type(v) == "boolean" then
          check.fail("%s: column '%s' is no number: '%s'", where_of(self, i), self.columns[k], tostring(v))
        end
        p[r * width + place[k]] = tonumber(v)
      end
    end
    return out:to(dtype or moth.get_default_dtype())
  end
  local values, line, column, n, cell = B.media.csv_numbers(self.bytes, self.begins, self.ends, self.delimiter, place,
    width, count > 0 and from - 1 + self.first or 0, count)
  if values then return values:to(dtype or moth.get_default_dtype()) end
  if n >= -1 then refuse(self, line + 1, n, column) end
  check.fail("%s: column '%s' is no number: '%s'", where_of(self, line + 1), self.columns[column], cell)
end

local part = signature("read(list columns?, *, count from=1, size count?)", all)

--- Columns as { name = values }, all or those named, of `count` samples from `from` on: int64, float64 (nan: missing)
-- or bool tensors, or lists of texts (false: missing), by `types` or by what the cells are.
function CSV:read(...)
  local names, from, count = part(...)
  local left = math.max(self:size() - from + 1, 0)
  count = count or left
  if count > left then
    check.fail("[data.CSV] %s: read: %d samples from %d on, there are %d", self.path, count, from, self:size())
  end
  local place = places(self, names)
  if self.twice and not names then refuse_twice(self, self.twice) end
  local source = self.types and self or setmetatable({ types = {}, missing = {} }, { __index = self })
  local values, texts = {}, {}
  for k = 1, #self.columns do values[k], texts[k] = {}, {} end
  for r = 1, count do
    local row, cells = typed(source, from + r - 1 + self.first, place)
    for k = 1, #self.columns do values[k][r], texts[k][r] = row[k], cells[k] end
  end
  local out = {}
  for k, name in ipairs(self.columns) do
    if place[k] >= 0 then
      out[name] = columns.column(values[k], texts[k], count, source.types[name], function(r)
        check.fail("%s: column '%s' has no value\nHINT: types = { %s = \"float\" } makes it nan",
          where_of(self, from + r - 1 + self.first), name, tostring(name))
      end)
    end
  end
  return out
end

local slices = signature("chunks(count count, list columns?)", all)

--- for chunk, from in csv:chunks(1000) do … end: what read gives of so many samples at a time; columns without declared
-- types may be of another type in another chunk.
function CSV:chunks(...)
  local count, names = slices(...)
  local from = 1
  return function()
    if from > self:size() then return nil end
    local first = from
    from = from + count
    return self:read(names, { from = first, count = math.min(count, self:size() - first + 1) }), first
  end
end

-- The columns of a batch of features: { place, width, where each feature is, where the target is }; false: the samples
-- must be made one by one (a transform, a get of a subclass, names that occur twice).
local function plan_of(self)
  if self.transform or not self.features or #self.features == 0 or self.get ~= CSV.get then return false end
  local names, has = { unpack(self.features) }, {}
  for k, name in ipairs(names) do has[name] = k end
  if self.target and not has[self.target] then
    names[#names + 1] = self.target
    has[self.target] = #names
  end
  local ok, place, width = pcall(places, self, names)
  return ok and { place = place, width = width, target = self.target and has[self.target] }
end

-- The target as data.default_collate makes it of numbers; nil: that has to see them.
local function numbers_of(column)
  if not column:isfinite():all():item() then return nil end
  return column:to(column:eq(column:floor()):all():item() and moth.int64 or moth.get_default_dtype()):contiguous()
end

--- The batch of the samples at `positions`, which the loader asks for: as get and default_collate make it, but features
-- and a target that are numbers are read at once.
function CSV:get_batch(positions)
  if self.plan == nil then self.plan = plan_of(self) end
  local plan = self.plan
  local n = plan and positions:size(1) or 0
  if n > 0 and positions:min():item() >= 1 and positions:max():item() <= self:size() then
    local at = positions + self.first
    local values = B.media.csv_numbers(self.bytes, self.begins:index_select(1, at), self.ends:index_select(1, at),
      self.delimiter, plan.place, plan.width, 0, n)
    local y = values and plan.target and numbers_of(values:select(2, plan.target))
    if y or values and not plan.target then
      return values:narrow(2, 1, #self.features):to(moth.get_default_dtype()):contiguous(), y
    end
    self.plan = false -- the target is text, or a sample is damaged, which get says
  end
  return fetch.map({ dataset = self }, positions)
end

-- ---- images ------------------------------------------------------------------------------------------

--- The pixels of a JPEG, PNG or WebP file: uint8 (H, W, C), uint16 of a PNG of 16 bits. channels: 1, 3, 4; 0: as in the
-- file.
M.read_image = signature("data.read_image(path path, size channels=0)",
  function(path, channels) return B.media.read_image(path, channels) end)
--- The same of a string with the bytes of a file.
M.decode_image = signature("data.decode_image(string bytes, size channels=0)",
  function(bytes, channels) return B.media.decode_image(bytes, channels) end)

return M
