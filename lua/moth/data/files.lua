--- Data sets in files that may be larger than memory: they are mapped, and pages are read when they are used. Workers
-- share the mapping.
local ffi = require "ffi"
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local strings = require "moth.data.strings"
local gunzip = require "moth.utils.gunzip"
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

pcall(ffi.cdef, "void *memchr(const void *s, int c, size_t n);")

-- Where the lines of a file begin and end: int64 tensors, without the ends of line. quoted: a line break between
-- double quotes ends no line (CSV).
local function index_lines(bytes, quoted)
  local n = bytes:numel()
  local p, begins, ends = ffi.cast("const uint8_t *", bytes:data()), {}, {}
  local from, at = 0, 0
  while from < n do
    local to
    if quoted then
      local inside = false
      while at < n and (inside or p[at] ~= 10) do
        if p[at] == 34 then inside = not inside end
        at = at + 1
      end
      to = at
    else
      local found = ffi.C.memchr(p + from, 10, n - from)
      to = found ~= nil and tonumber(ffi.cast("const uint8_t *", found) - p) or n
    end
    local last = to
    if last > from and p[last - 1] == 13 then last = last - 1 end
    if last > from then begins[#begins + 1], ends[#ends + 1] = from, last end -- no empty lines
    from, at = to + 1, to + 1
  end
  return moth.tensor(begins, { dtype = moth.int64 }), moth.tensor(ends, { dtype = moth.int64 })
end

local GUNZIP_MOST = 2 ^ 31 -- bytes of a .gz in memory

--- The lines of a text file that are not empty: sample i is a string, or what transform makes of it. A file that is
-- compressed by gzip is expanded in memory.
local TextLines = class("TextLines", Dataset)
M.TextLines = TextLines

local function open_lines(self, path, quoted)
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
  self.begins, self.ends = index_lines(empty and self.bytes:narrow(1, 1, 0) or self.bytes, quoted)
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

-- JSON's null is nothing.
local function without_null(v, null)
  if type(v) ~= "table" then return v end
  for k, value in each(v) do
    if value == null then v[k] = nil else without_null(value, null) end
  end
  return v
end

--- A file with a JSON value in each line: sample i is that value, or what transform makes of it.
local JSONL = class("JSONL", TextLines)
M.JSONL = JSONL
JSONL.__init = signature.init("data.JSONL(path path, *, callable transform?)", function(self, o)
  open_lines(self, o.path)
  self.transform = o.transform
end)
function JSONL:get(i)
  local ok, cjson = pcall(require, "cjson.safe")
  if not ok then check.fail("[data.JSONL] needs lua-cjson (Debian: lua-cjson)") end
  local value, why = cjson.decode(self:line(i))
  if value == nil then check.fail("[data.JSONL] %s: line %d: %s", self.path, i, tostring(why)) end
  value = without_null(value, cjson.null)
  if self.transform then return self.transform(value) end
  return value
end

-- The cells of a line of CSV (RFC 4180).
local function cells(line, delimiter)
  local out, at, n = {}, 1, #line
  while at <= n + 1 do
    if line:byte(at) == 34 then
      local parts, from = {}, at + 1
      while true do
        local quote = line:find('"', from, true)
        if not quote then return nil end
        parts[#parts + 1] = line:sub(from, quote - 1)
        if line:byte(quote + 1) ~= 34 then
          at = quote + 1
          break
        end
        parts[#parts + 1], from = '"', quote + 2
      end
      out[#out + 1] = table.concat(parts)
      if at <= n and line:byte(at) ~= delimiter then return nil end
      at = at + 1
    else
      local stop = line:find(string.char(delimiter), at, true) or n + 1
      out[#out + 1] = line:sub(at, stop - 1)
      at = stop + 1
    end
  end
  return out
end

--- A table in a text file. Sample i is { column = value, … }, numbers as numbers; with features (a list of columns), it
-- is a tensor of these, then, with target, that column's value. transform gets the table.
-- header = false: columns are called 1, 2, … ; columns: their names. An empty cell is nothing (in a tensor: nan).
local CSV = class("CSV", TextLines)
M.CSV = CSV
CSV.__init = signature.init("data.CSV(path path, *, string delimiter?, bool header=true, list columns?, \z
  list features?, string|int target?, callable transform?)", function(self, o)
  local delimiter = o.delimiter or ","
  if #delimiter ~= 1 then check.fail("[data.CSV] delimiter must be one character, got '%s'", delimiter) end
  open_lines(self, o.path, true)
  self.delimiter, self.first, self.transform = delimiter:byte(), o.header and 1 or 0, o.transform
  self.features, self.target, self.columns = o.features, o.target, o.columns
  if self.begins:size(1) == 0 then check.fail("[data.CSV] %s is empty", o.path) end
  if not self.columns then
    self.columns = cells(self:row(1), self.delimiter) or {}
    for k = 1, o.header and 0 or #self.columns do self.columns[k] = k end
    if self.columns[1] and o.header then self.columns[1] = self.columns[1]:gsub("^\239\187\191", "") end
  end
  local known = {}
  for _, name in ipairs(self.columns) do known[name] = true end
  for _, name in ipairs({ o.target, unpack(o.features or {}) }) do
    if not known[name] then
      check.fail("[data.CSV] %s has no column '%s'%s", o.path, name, check.suggest(name, self.columns))
    end
  end
end)
--- Line i of the file as a string, the header among them.
function CSV:row(i) return strings.cut(self.bytes, self.begins[i]:item(), self.ends[i]:item()) end
function CSV:size() return self.begins:size(1) - self.first end
function CSV:get(i)
  local row = cells(self:row(self:check_position(i) + self.first), self.delimiter)
  if not row then check.fail("[data.CSV] %s: sample %d: a quote is not closed", self.path, i) end
  if #row ~= #self.columns then
    check.fail("[data.CSV] %s: sample %d has %d cells, there are %d columns", self.path, i, #row, #self.columns)
  end
  local sample = {}
  for k, name in ipairs(self.columns) do
    if row[k] ~= "" then sample[name] = tonumber(row[k]) or row[k] end
  end
  if self.transform then return self.transform(sample) end
  if not self.features then return sample end
  local x = {}
  for k, name in ipairs(self.features) do
    x[k] = sample[name] == nil and 0 / 0 or sample[name]
    if type(x[k]) ~= "number" then
      check.fail("[data.CSV] %s: sample %d: column '%s' is no number: '%s'", self.path, i, name, x[k])
    end
  end
  local values = moth.tensor(x)
  if self.target then return values, sample[self.target] end
  return values
end

-- ---- images ------------------------------------------------------------------------------------------

--- The pixels of a JPEG or PNG file: uint8 (H, W, C). channels: 1, 3, 4; 0: as in the file.
M.read_image = signature("data.read_image(path path, size channels=0)",
  function(path, channels) return B.media.read_image(path, channels) end)
--- The same of a string with the bytes of a file.
M.decode_image = signature("data.decode_image(string bytes, size channels=0)",
  function(bytes, channels) return B.media.decode_image(bytes, channels) end)

return M
