--- The links of docs/source_tour.md to lines: [`name`](../path#L12) must be near a line that has the name.
-- `luajit spec/tour.lua` (make tour) writes the present numbers.
local PAGE, NEAR = "docs/source_tour.md", 40

local function lines_of(path)
  local list = {}
  for line in io.lines(path) do list[#list + 1] = line end
  return list
end

-- The line that has `name` next to `at`; definitions come before other lines.
local function find(path, name, at)
  local best, best_distance
  local word = name:find("^[%w_]+$") and "%f[%w_]" .. name .. "%f[^%w_]"
  for i, line in ipairs(lines_of(path)) do
    if line:find(word or name, 1, not word) then
      local defines = line:find("^%S") and not line:find("^/[/*]") and not line:find("^#")
      local distance = math.abs(i - at) + (defines and 0 or 10000)
      if not best or distance < best_distance then best, best_distance = i, distance end
    end
  end
  return best
end

local M = {}

--- The links whose lines are wrong: { "path: name is at line 12, not 99" }, and the page with right ones.
function M.check()
  local file = assert(io.open(PAGE))
  local text = file:read("*a")
  file:close()
  local wrong, count = {}, 0
  text = text:gsub("%[`([^`]+)`%]%(%.%./([^)#]+)#L(%d+)%)", function(name, path, at)
    local found = find(path, name, tonumber(at))
    count = count + 1
    if not found then
      wrong[#wrong + 1] = ("%s has no %s"):format(path, name)
    elseif math.abs(found - at) > NEAR then
      wrong[#wrong + 1] = ("%s: %s is at line %d, not %s; make tour"):format(path, name, found, at)
    end
    return ("[`%s`](../%s#L%d)"):format(name, path, found or at)
  end)
  return wrong, text, count
end

if arg and arg[0] and arg[0]:find("spec/tour.lua", 1, true) then
  local _, text = M.check()
  local file = assert(io.open(PAGE, "w"))
  file:write(text)
  file:close()
end

return M
