--- Modules that are loaded piece by piece: a missing field is looked up in `files` and required when first asked for.
-- files: { Name = "file" } or { Name = { "file", "field" } }, below `prefix`.
-- groups: { { "file", pattern, … }, … }: files all of whose fields are names of the module. Those with a pattern that
-- fits the name are looked at first, then the others: no list of their names can fall out of step.
local each = require "moth.each"

local function fits(group, key)
  for i = 2, #group do if key:find(group[i]) then return true end end
  return false
end

return function(module, prefix, files, _, groups)
  groups = groups or {}
  local function load(group)
    for name, value in each(require(prefix .. group[1])) do rawset(module, name, value) end
  end
  return setmetatable(module, {
    __names = function() -- for completion: what could be asked for
      local list = {}
      for name in each(files) do list[#list + 1] = name end
      for _, group in ipairs(groups) do
        for name in each(require(prefix .. group[1])) do list[#list + 1] = name end
      end
      return list
    end,
    __index = function(t, key)
      for pass = 1, type(key) == "string" and not files[key] and 2 or 0 do
        for _, group in ipairs(groups) do
          if fits(group, key) == (pass == 1) then load(group) end
          if rawget(t, key) ~= nil then return rawget(t, key) end
        end
      end
      local file = files[key]
      if not file then return nil end
      local of_file = type(file) == "table"
      local value = require(prefix .. (of_file and file[1] or file))
      if of_file and file[2] then value = value[file[2]] end
      rawset(t, key, value)
      return value
    end,
  })
end
