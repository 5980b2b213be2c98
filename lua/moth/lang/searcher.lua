--- How moth's own Lua files are loaded once `require "moth"` has begun: as LuaJIT does it, but an error in the middle
-- (Ctrl-C, a debug hook, no memory) leaves nothing behind, and the next `require` of the file tries again. Without it
-- that says "loop or previous error loading module" for the rest of the program.
local function same(e) return e end

-- Few instructions before xpcall: an error in them would leave what this file is to prevent.
local keep, rethrow = same, error

local function finish(name, ok, value)
  local trace = rethrow == error and package.loaded["moth.lang.trace"]
  if type(trace) == "table" then keep, rethrow = trace.keep, trace.rethrow end -- not while it is being loaded
  if ok then return value end
  package.loaded[name] = nil
  rethrow(value, 0)
end

local function load(chunk)
  return function(name) return finish(name, xpcall(chunk, keep, name)) end
end

-- Behind package.preload, before the search of LuaJIT, which has what is not found here.
table.insert(package.loaders, 2, function(name)
  if name:sub(1, 5) ~= "moth." then return nil end
  local path = package.searchpath(name, package.path)
  local chunk = path and loadfile(path)
  return chunk and load(chunk) or nil
end)

-- The last: words for the error of `require "torch"`, where nobody has such a file.
table.insert(package.loaders, function(name) return require("moth.lang.torch7").packages[name] end)
