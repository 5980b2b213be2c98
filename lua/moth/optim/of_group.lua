--- Options of schedules that are a number, or a list of one for each group.
local check = require "moth.utils.check"
local M = {}

--- The number of group i.
function M.value(v, i)
  if type(v) == "table" then return v[i] end
  return v
end

--- Checks that there is one for each group, of at least 0.
function M.check(where, name, v, groups)
  if type(v) == "table" and #v ~= #groups then
    check.fail("%s %s has %d numbers for %d groups", where, name, #v, #groups)
  end
  for i = 1, type(v) == "table" and #v or 1 do check.number(where, name, M.value(v, i), 0) end
end

return M
