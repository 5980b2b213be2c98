--- Rows of figures to a file: moth.utils.CSVLogger(path), moth.utils.JSONLLogger(path).
--
--     local log = moth.utils.JSONLLogger("run.jsonl")
--     log:log({ step = 1, loss = 0.5 })
--     log:close()
--
-- A row is written whole and flushed at once. Tensors of one element count as numbers. An existing file is continued.
-- Names that come later become columns of a CSV file: its first line is written anew, with empty cells in the rows that
-- are there.
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local is_tensor = require("moth_lua").is_tensor

local M = {}

-- flat: no value is a table.
local function plain(row, flat)
  if type(row) ~= "table" then check.fail("log: expected a table { name = value }, got %s", class.name(row)) end
  local out, keys = {}, {}
  for k, v in each(row) do
    if type(k) ~= "string" then check.fail("log: names are strings, got %s", tostring(k)) end
    if is_tensor(v) then v = v:item() end
    local kind = type(v)
    if flat and kind == "table" or kind == "function" or kind == "thread" or kind == "userdata" then
      check.fail("log: '%s' is a %s; a value is a number, a string, a boolean or a tensor of one element", k,
        class.name(v))
    end
    out[k] = v
    keys[#keys + 1] = k
  end
  table.sort(keys)
  return out, keys
end

local function open(path, mode)
  local f, message = io.open(path, mode)
  if not f then check.fail("logger: %s", message) end
  return f
end

local Logger = class("Logger")
function Logger:write(line)
  if not self.file then check.fail("logger: %s is closed", self.path) end
  local ok, message = self.file:write(line, "\n")
  if ok then ok, message = self.file:flush() end
  if not ok then check.fail("logger: %s: %s", self.path, message) end
end
function Logger:close()
  if self.file then self.file:close() end
  self.file = nil
end

local JSONL = class("JSONLLogger", Logger)
M.JSONLLogger = JSONL

JSONL.__init = signature.init("JSONLLogger(path path)", function(self, o)
  self.path, self.file = o.path, open(o.path, "ab")
end)

--- Writes the row as one line, a JSON object; nan and inf, which JSON lacks, become strings.
function JSONL:log(row)
  row = plain(row)
  for k, v in each(row) do
    if type(v) == "number" and v - v ~= 0 then row[k] = tostring(v) end
  end
  self:write(require("cjson").encode(row))
end

local CSV = class("CSVLogger", Logger)
M.CSVLogger = CSV

local function field(v)
  if v == nil then return "" end
  v = type(v) == "number" and ("%.17g"):format(v) or tostring(v)
  return v:find('[",\r\n]') and '"' .. v:gsub('"', '""') .. '"' or v
end

local function record(cells)
  local out = {}
  for i, cell in ipairs(cells) do out[i] = field(cell) end
  return table.concat(out, ",")
end

-- The first row of a file, without its end; a quoted name may have lines of its own.
local function first_row(f)
  local row = f:read "*l"
  while row and select(2, row:gsub('"', "")) % 2 == 1 do
    local more = f:read "*l"
    if not more then break end
    row = row .. "\n" .. more
  end
  return row
end

-- The cells of a first row.
local function cells_of(line)
  local out, at = {}, 1
  line = line:gsub("\r$", "") .. ","
  while at <= #line do
    local quoted, after = line:match('^"(.-)",()', at)
    while quoted and select(2, quoted:gsub('"', "")) % 2 == 1 do -- a comma behind a quote that belongs to the text
      local more, behind = line:match('^(.-)",()', after)
      if not more then break end
      quoted, after = quoted .. '",' .. more, behind
    end
    if not quoted then quoted, after = line:match("^([^,]*),()", at) end
    out[#out + 1], at = quoted:gsub('""', '"'), after
  end
  return out
end

--- @tparam string path @tparam[opt] table columns names of the columns; by default the keys of the first row, sorted
CSV.__init = signature.init("CSVLogger(path path, string[] columns?)", function(self, o)
  local path, columns = o.path, o.columns
  self.path = path
  local old = io.open(path, "rb")
  local head = old and first_row(old)
  if old then old:close() end
  if columns then self.columns = { unpack(columns) } end
  if head and head ~= "" then
    if columns and record(columns) ~= head then
      check.fail("CSVLogger: %s has the columns %s, not %s", path, head, record(columns))
    end
    self.columns, self.headed = cells_of(head), true
  end
  self.file = open(path, "ab")
end)

-- Writes the file with more columns; a new file takes the place of the old one when it is whole.
local function widen(self, added)
  for _, name in ipairs(added) do self.columns[#self.columns + 1] = name end
  if not self.headed then return end
  if not self.file then check.fail("logger: %s is closed", self.path) end
  local old = open(self.path, "rb")
  local text = old:read("*a")
  old:close()
  local tail, rows, start, inside = (","):rep(#added), { record(self.columns) }, nil, false
  if text:sub(-1) ~= "\n" then text = text .. "\n" end
  for line in text:gmatch("([^\n]*)\n") do -- a quoted cell may have lines of its own
    local odd = select(2, line:gsub('"', "")) % 2 == 1
    inside = inside ~= odd
    if start == nil then
      if not inside then start = true end -- the first line, which is new
    else
      rows[#rows + 1] = inside and line or line .. tail
    end
  end
  local work = self.path .. ".part"
  local f = open(work, "wb")
  local ok, message = f:write(table.concat(rows, "\n"), "\n")
  local closed = f:close()
  if ok and closed then ok, message = os.rename(work, self.path) end
  if not ok or not closed then check.fail("logger: %s: %s", self.path, tostring(message)) end
  self.file:close()
  self.file = open(self.path, "ab")
end

--- Writes a row. A missing column stays empty; a new name becomes a column.
function CSV:log(row)
  local keys
  row, keys = plain(row, true)
  self.columns = self.columns or keys
  local known = {}
  for _, c in ipairs(self.columns) do known[c] = true end
  local added = {}
  for _, k in ipairs(keys) do
    if not known[k] then added[#added + 1] = k end
  end
  if #added > 0 then widen(self, added) end
  if not self.headed then
    self:write(record(self.columns))
    self.headed = true
  end
  local cells = {}
  for i, c in ipairs(self.columns) do cells[i] = field(row[c]) end
  self:write(table.concat(cells, ","))
end

return M
