--- What a program depends on, told by records with symbols for sizes (moth.compile.symbols): comparisons and
-- expressions.
local check = require "moth.utils.check"
local sizes = require "moth.compile.sizes"
local follow = require "moth.export.follow"
local merge = require "moth.export.merge"

local M = {}

local WHERE = "export"

local ROUNDS = 4

-- The formulas of the numbers that were asked for in records at points, { [recorder] = { formulas } }. A record is
-- { its program, what was asked }.
local function formulas_of(records, points, names, expressions)
  local first, programs, at, logs = records[1][2], {}, {}, {}
  for i, record in ipairs(records) do
    local alike = #record[1].nodes == #records[1][1].nodes -- records in which as much was asked for
    for id, log in ipairs(first) do alike = alike and record[2][id] and #record[2][id] == #log end
    if alike then programs[#programs + 1], at[#at + 1], logs[#logs + 1] = record[1], points[i], record[2] end
  end
  local known, out = follow.known(at, names, expressions), {}
  known:see(programs)
  for id, asked in ipairs(first) do
    out[id] = {}
    for k in ipairs(asked) do
      local list = {}
      for i, log in ipairs(logs) do list[i] = log[id][k] end
      out[id][k] = known:solve(list) or { kind = "size", op = "unknown" }
    end
  end
  return out
end

local function is_known(f)
  if type(f) ~= "table" then return true end
  return f.op ~= "unknown" and is_known(f.a) and is_known(f.b)
end

local function without_doubles(list, text)
  local out, known = {}, {}
  for _, item in ipairs(list) do
    local key = text(item)
    if not known[key] then out[#out + 1], known[key] = item, true end
  end
  return out
end

--- Records with symbols for sizes: what the program depends on, { guards, expressions }. record(point, watch); example:
-- the program there.
function M.watched(given, record, example, state, wide)
  local points, names = merge.points_of(given, wide)
  local logs, known, expressions, guards = {}, {}, {}, {}
  for _ = 1, ROUNDS do
    local all, at = {}, {}
    for _, list in ipairs { points, follow.turns(expressions, points, names, given.dims, guards) } do
      for _, point in ipairs(list) do all[#all + 1] = point end
    end
    local used = {}
    for _, point in ipairs(all) do
      local text = merge.point_text(point)
      if logs[text] == nil then
        local watch = { logs = {}, count = 0 }
        local ok, program = pcall(record, point, watch)
        logs[text] = ok and { program, watch.logs }
      end
      if logs[text] then used[#used + 1], at[#at + 1] = logs[text], point end
    end
    local formulas = formulas_of(used, at, names, expressions)
    local watch = { logs = {}, count = 0, formulas = formulas, expressions = {}, guards = {}, used = {} }
    local ok, made = pcall(record, given.example, watch)
    if not ok then
      check.fail("%s\nHINT: %s may have any size: where the program asks for it, it is no plain number. A loop over it "
        .. "is moth.while_loop; math.min, max, floor, ceil, abs, sqrt and fmod know it by these names; else give it a "
        .. "fixed size", tostring(made), table.concat(names, ", "))
    end
    if not merge.holds_at(example, made, given.example, state) then
      check.fail("[%s] the program makes other calls where sizes are symbols: a size that may change is the key of a "
        .. "table there, or an argument of a function that gets numbers alone; give %s a fixed size", WHERE,
        table.concat(names, ", "))
    end
    expressions = {}
    local lost -- where a size is used of which nothing is known
    local function note(f, place)
      if not is_known(f) then
        lost = lost or place
      elseif type(f) == "table" then
        expressions[#expressions + 1] = f
      end
    end
    for id, f in ipairs(watch.expressions) do
      if watch.used[id] then note(f, watch.used[id]) end
    end
    guards = {}
    for _, g in ipairs(without_doubles(watch.guards, sizes.guard_text)) do
      note(g.a, g.at)
      note(g.b, g.at)
      if is_known(g.a) and is_known(g.b) then guards[#guards + 1] = g end
    end
    expressions = without_doubles(expressions, sizes.text)
    local new = false
    for _, f in ipairs(expressions) do
      new = new or not known[sizes.text(f)]
      known[sizes.text(f)] = true
    end
    if not new then
      if lost and not wide then return M.watched(given, record, example, state, true) end
      if lost then
        check.fail("[%s] %s: a size that is used here depends on %s in no way that can be followed", WHERE, lost,
          table.concat(names, ", "))
      end
      break
    end
  end
  return guards, expressions
end

return M
