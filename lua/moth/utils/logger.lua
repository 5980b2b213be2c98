--- Rows of figures to a file: moth.utils.CSVLogger(path), moth.utils.JSONLLogger(path).
--
--     local log = moth.utils.JSONLLogger("run.jsonl")
--     log:log({ step = 1, loss = 0.5 })
--     log:close()
--
-- A row is written whole and flushed at once. Tensors of one element count as numbers. An existing file is continued
-- (a CSV file only if its columns are the same ones).
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local each = require "moth.each"
local is_tensor = require("moth_lua").is_tensor

local M = {}

local function plain(row)
  if type(row) ~= "table" then check.fail("log: expected a table { name = value }, got %s", class.name(row)) end
  local out, keys = {}, {}
  for k, v in each(row) do
    if type(k) ~= "string" then check.fail("log: names are strings, got %s", tostring(k)) end
    out[k] = is_tensor(v) and v:item() or v
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

--- @tparam string path @tparam[opt] table columns names of the columns; by default the keys of the first row, sorted
CSV.__init = signature.init("CSVLogger(path path, string[] columns?)", function(self, o)
  local path, columns = o.path, o.columns
  self.path = path
  local old = io.open(path, "rb")
  local head = old and old:read("*l")
  if old then old:close() end
  if columns then self.columns = { unpack(columns) } end
  if head and head ~= "" then
    local found = {}
    for name in head:gmatch("[^,]+") do found[#found + 1] = name end
    if columns and table.concat(columns, ",") ~= head then
      check.fail("CSVLogger: %s has the columns %s, not %s", path, head, table.concat(columns, ","))
    end
    self.columns, self.headed = found, true
  end
  self.file = open(path, "ab")
end)

local function field(v)
  if v == nil then return "" end
  v = type(v) == "number" and ("%.17g"):format(v) or tostring(v)
  return v:find('[",\r\n]') and '"' .. v:gsub('"', '""') .. '"' or v
end

--- Writes a row. A missing column stays empty; an unknown name is an error.
function CSV:log(row)
  local keys
  row, keys = plain(row)
  self.columns = self.columns or keys
  local known = {}
  for _, c in ipairs(self.columns) do known[c] = true end
  for _, k in ipairs(keys) do
    if not known[k] then check.fail("CSVLogger: '%s' is no column of %s (%s)", k, self.path,
      table.concat(self.columns, ", ")) end
  end
  if not self.headed then
    self:write(table.concat(self.columns, ","))
    self.headed = true
  end
  local cells = {}
  for i, c in ipairs(self.columns) do cells[i] = field(row[c]) end
  self:write(table.concat(cells, ","))
end

return M
