--- Modules: tables of functions and classes, loaded file by file, in which an unknown name is an error.
--
--     return lazy({}, "moth.data.", { DataLoader = { "loader" } }, "moth.data")
--     lazy.strict(M, "moth.nn.functional")
--
-- A missing field is looked up in `files` and required when first asked for. files: { Name = "file" } or
-- { Name = { "file", "field" } }, below `prefix`; or a function of the name. An unknown name raises an error with a
-- suggestion; rawget(module, name) does not. Unknown names that begin with _ are nil: libraries probe for them.
local check = require "moth.utils.check"
local each = require "moth.each"

local lazy = {}

local function unknown(module, name, key)
  if type(key) == "string" and key:sub(1, 1) == "_" then return nil end
  local names = {}
  for k in each(module) do if type(k) == "string" then names[#names + 1] = k end end
  local mt = getmetatable(module)
  for _, k in ipairs(mt.__names and mt.__names(module) or {}) do names[#names + 1] = k end
  check.fail("%s has no '%s'%s", name, tostring(key), check.suggest(tostring(key), names))
end

--- Makes an unknown name an error in a module that is loaded as a whole; one that can be called keeps its metatable.
-- Returns it.
function lazy.strict(module, name)
  local mt = getmetatable(module) or {}
  mt.__index, mt.__module_name = function(t, key) return unknown(t, name, key) end, name
  return setmetatable(module, mt)
end

-- Whether a loaded value is a module in which unknown names are no error yet.
local function is_loose(value)
  local mt = type(value) == "table" and getmetatable(value)
  return mt == nil or mt and rawget(mt, "__module_name") and not rawget(mt, "__index")
end

return setmetatable(lazy, { __call = function(_, module, prefix, files, name)
  name = name or prefix:gsub("%.$", "")
  return setmetatable(module, {
    __module_name = name,
    __names = function() -- for completion: all names, loaded or not
      local list = {}
      for k in each(files) do list[#list + 1] = k end
      return list
    end,
    __index = function(t, key)
      local file = files[key]
      if not file then return unknown(t, name, key) end
      local value
      if type(file) == "function" then
        value = file(key)
      else
        local of_file = type(file) == "table"
        value = require(prefix .. (of_file and file[1] or file))
        if of_file and file[2] then
          value = value[file[2]]
        elseif is_loose(value) then
          lazy.strict(value, name .. "." .. key)
        end
      end
      rawset(t, key, value)
      return value
    end,
  })
end })
