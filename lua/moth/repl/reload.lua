--- Modules of the user's that are loaded again: %reload and %autoreload of the prompt.
local each = require "moth.each"
local M = {}

-- Gives a table the fields of a new one, in its place. Classes that both have stay the same tables, too, so that their
-- objects get the new methods.
local function update(old, new)
  local function is_class(v) return type(v) == "table" and type(rawget(v, "__name")) == "string" end
  for key in each(old) do if rawget(new, key) == nil then old[key] = nil end end
  for key, value in each(new) do
    local before = rawget(old, key)
    if key == "super" and is_class(before) then
      value = before.__name == value.__name and before or value
    elseif key == "__index" and value == new then
      value = old
    elseif is_class(value) and is_class(before) and before.__name == value.__name and before ~= value then
      update(before, value)
      value = before
    end
    rawset(old, key, value)
  end
end

--- Loads a module again. What had its table has the new fields; a module that fails to load stays as it was.
function M.module(name)
  local old = package.loaded[name]
  if old == nil then error("%reload: '" .. name .. "' was not loaded", 0) end
  package.loaded[name] = nil
  local ok, new = pcall(require, name)
  if not ok then
    package.loaded[name] = old
    error(new, 0)
  end
  if type(old) ~= "table" or type(new) ~= "table" then return end
  update(old, new)
  package.loaded[name] = old
end

local function read(path)
  local f = io.open(path, "rb")
  local text = f and f:read "*a"
  if f then f:close() end
  return text
end

--- Watches the files of modules, moth's own left out: changed() gives the names of those whose text is another than
-- at its last call. Modules are known from the first call on after they were loaded.
function M.watch()
  local texts, paths = {}, {}
  local function changed()
    local list, names = {}, {}
    for name in each(package.loaded) do
      if type(name) == "string" and name ~= "moth" and not name:find "^moth[._]" then names[#names + 1] = name end
    end
    table.sort(names)
    for _, name in ipairs(names) do
      if paths[name] == nil then paths[name] = package.searchpath(name, package.path) or false end
      local text = paths[name] and read(paths[name])
      if text and texts[name] and texts[name] ~= text then list[#list + 1] = name end
      texts[name] = text or texts[name]
    end
    return list
  end
  changed()
  return changed
end

--- Loads again what has changed, if the session watches its modules; says which, and which failed.
function M.changed(session)
  for _, name in ipairs(session.watch and session.watch() or {}) do
    local ok, why = pcall(M.module, name)
    if ok then session.out:write("reloaded ", name, "\n")
    else io.stderr:write(session.colour("error", ("%s was not reloaded: %s"):format(name, tostring(why))), "\n") end
  end
end

return M
