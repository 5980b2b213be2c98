--- A table of measurements: a row for each sub_label, a column for each description, a part for each label.
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local Measurement = require "moth.benchmark.measurement"

local Compare = class "Compare"

--- results: a list of measurements; those of one label, sub_label, description, env and num_threads are merged.
function Compare:__init(results)
  self.results = {}
  self:extend(results or {})
end

--- A list of measurements, checked for the function `where`; returns it.
function Compare.check(where, results)
  if type(results) ~= "table" or not check.is_plain(results) then
    check.fail("[%s] expected a list of measurements, got %s", where, class.name(results))
  end
  for key in each(results) do
    if type(key) ~= "number" then
      check.fail("[%s] a list of measurements has no field '%s'", where, tostring(key))
    end
  end
  for i, m in ipairs(results) do
    if not class.is_a(m, Measurement) then
      check.fail("[%s] expected a list of measurements, got %s at %d", where, class.name(m), i)
    end
  end
  return results
end

--- Adds a list of measurements.
function Compare:extend(results)
  Compare.check("benchmark.Compare", results)
  for _, m in ipairs(results) do self.results[#self.results + 1] = m end
  return self
end

--- Shows as many digits as the spread leaves.
function Compare:trim_significant_figures()
  self.trimmed = true
  return self
end

--- Colours the fastest of each row green and those of more than twice its time red.
function Compare:colorize()
  self.colours = true
  return self
end

--- Marks times whose middle half spans more than a quarter of the median.
function Compare:highlight_warnings()
  self.warnings = true
  return self
end

-- An ordered set of keys with a list for each.
local function grouped(list, key)
  local order, groups = {}, {}
  for _, m in ipairs(list) do
    local k = key(m)
    if not groups[k] then
      order[#order + 1] = k
      groups[k] = {}
    end
    table.insert(groups[k], m)
  end
  return order, groups
end

local function row_name(m)
  local name = m.sub_label or m.stmt
  return m.env and ("%s (%s)"):format(name, m.env) or name
end

-- Characters, not bytes, so that columns of names in UTF-8 are straight.
local function width(text) return select(2, text:gsub("[^\128-\191]", "")) end
local function right(text, n) return (" "):rep(n - width(text)) .. text end
local function left(text, n) return text .. (" "):rep(n - width(text)) end

--- The text of a measurement in the table; scale: seconds of its unit.
function Compare:cell(m, scale)
  local text = Measurement.digits(m.median / scale, self.trimmed and m:significant_figures() or 4)
  if self.warnings and #m.times > 3 and not m:meets_confidence(0.25) then
    text = ("%s (! %.0f%%)"):format(text, 100 * m.iqr / m.median)
  end
  return text
end

-- The lines of the measurements of one label.
function Compare:part(title, list, scale)
  local rows, cells, names, widths = {}, {}, 0, {}
  local columns = grouped(list, function(m) return m.description or "" end)
  local threads, by_threads = grouped(list, function(m) return m.num_threads end)
  table.sort(threads)
  for _, n in ipairs(threads) do
    local order, by_row = grouped(by_threads[n], row_name)
    for _, name in ipairs(order) do
      local row = { threads = n, name = name, best = math.huge }
      names = math.max(names, width(name))
      local _, by_column = grouped(by_row[name], function(m) return m.description or "" end)
      for c, column in ipairs(columns) do
        local m = by_column[column] and Measurement.merge(by_column[column])
        row[c] = m or false
        row.best = m and math.min(row.best, m.median) or row.best
        cells[m or 0] = m and self:cell(m, scale)
        widths[c] = math.max(widths[c] or 0, width(column), m and width(cells[m]) or 0)
      end
      rows[#rows + 1] = row
    end
  end
  local total = names + 6
  for c = 1, #columns do total = total + widths[c] + 5 end
  local rest = math.max(0, total - width(title) - 4)
  local lines = { ("[%s %s %s]"):format(("-"):rep(math.floor(rest / 2)), title, ("-"):rep(math.ceil(rest / 2))) }
  local head = (" "):rep(names + 6)
  for c, column in ipairs(columns) do head = head .. "  |  " .. right(column, widths[c]) end
  lines[2] = head
  local last
  for _, row in ipairs(rows) do
    if row.threads ~= last then
      last = row.threads
      local text = ("%d thread%s: "):format(last, last == 1 and "" or "s")
      lines[#lines + 1] = text .. ("-"):rep(math.max(0, total - #text))
    end
    local line = "      " .. left(row.name, names)
    for c = 1, #columns do
      local m = row[c]
      local text = right(m and cells[m] or "", widths[c])
      if m and self.colours and #columns > 1 then
        local code = m.median == row.best and "32;1" or m.median > 2 * row.best and "31" or nil
        text = code and ("\27[%sm%s\27[0m"):format(code, text) or text
      end
      line = line .. "  |  " .. text
    end
    lines[#lines + 1] = (line:gsub(" +$", ""))
  end
  return lines
end

function Compare:__tostring()
  if #self.results == 0 then return "no measurements" end
  local least = math.huge
  for _, m in ipairs(self.results) do least = math.min(least, m.median) end
  local scale, symbol, name = Measurement.unit_of(least)
  local lines = {}
  local order, parts = grouped(self.results, function(m) return m.label or m.stmt end)
  for _, title in ipairs(order) do
    for _, line in ipairs(self:part(title, parts[title], scale)) do lines[#lines + 1] = line end
    lines[#lines + 1] = ""
  end
  lines[#lines] = ("Times are medians, in %s (%s)."):format(name, symbol)
  return table.concat(lines, "\n")
end

--- Prints the table.
function Compare:print()
  print(tostring(self))
  return self
end

return Compare
