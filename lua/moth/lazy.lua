--- Modules that are loaded piece by piece: a missing field is looked up in `files` and required when first asked for.
-- files: { Name = "file" } or { Name = { "file", "field" } }, below `prefix`.
local each = require "moth.each"

return function(module, prefix, files)
  return setmetatable(module, {
    __names = function() -- for completion: what could be asked for
      local list = {}
      for name in each(files) do list[#list + 1] = name end
      return list
    end,
    __index = function(t, key)
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
