--- The frames of errors that moth catches and raises again (in moth.no_grad(f), hooks, modes, backward functions), and
-- where in a network an error happened.
--
-- A function that runs another one under a mode must catch its errors, and then the frames of what failed are gone.
-- So it calls it by xpcall(fn, keep), which notes them, and raises the same value again by rethrow. What shows a
-- traceback (the launcher, the prompt, trace.traceback) asks for the noted frames first. They are shown only if the
-- error that is being raised comes from rethrow: what was swallowed since cannot be shown for another error.
local M = {}

local frames -- of the error that was caught last, as text

local own = { "lua/moth/trace%.lua", "lua/moth/within%.lua" }

--- error(e, 0), for an error whose frames `keep` has noted.
function M.rethrow(e) error(e, 0) end

-- Is rethrow what raises? It calls nothing but error, so where it is on the stack, it is.
local function is_rethrown()
  for level = 3, 7 do
    local info = debug.getinfo(level, "f")
    if not info then return false end
    if info.func == M.rethrow then return true end
  end
  return false
end

--- The handler for xpcall: notes the frames, leaves the error as it is.
function M.keep(e)
  if not is_rethrown() then frames = debug.traceback("", 2) end
  return e
end

-- Without what says nothing: functions of moth's that catch and raise.
local function cleared(text)
  local kept = {}
  for frame in text:gmatch("[^\n]+") do
    local mine = frame:find("[C]: in function 'xpcall'", 1, true) or frame:find("[C]: in function 'error'", 1, true)
      or frame:find("in function 'xpcall'", 1, true)
    for _, pattern in ipairs(own) do mine = mine or frame:find(pattern) end
    if not mine then kept[#kept + 1] = frame end
  end
  return table.concat(kept, "\n")
end

--- The traceback of the error that is being raised, if moth has caught it before: for handlers of errors. Or nil.
function M.pending() return frames and is_rethrown() and cleared(frames) or nil end

--- A handler for xpcall like debug.traceback, with the frames of errors that moth has caught before.
function M.traceback(e)
  if type(e) ~= "string" then return e end
  local text = frames and is_rethrown() and cleared(frames)
  return text and e .. "\n" .. text or debug.traceback(e, 2)
end

-- ---- where in a network ----------------------------------------------------------------------------

local function is_module(x)
  local mt = type(x) == "table" and getmetatable(x)
  return type(mt) == "table" and rawget(mt, "__module") == true
end

-- The path from `top` to the module `m`, by identity: "features.2". Shared ones have their first.
local function path(top, m, seen)
  if seen[top] then return nil end
  seen[top] = true
  local children = rawget(top, "_modules")
  for _, name in ipairs(children and children:keys() or {}) do
    local child = rawget(children, name)
    if rawequal(child, m) then return name end
    local below = path(child, m, seen)
    if below then return name .. "." .. below end
  end
end

-- The modules whose calls are running, the innermost first: frames whose first local is a module named self (or
-- module, in hooks). What lies above a constructor's frame is being made, not run.
local function running()
  local chain, level = {}, 3
  local construct = require("moth.class").construct
  while true do
    local info = debug.getinfo(level, "f")
    if not info then return chain end
    if info.func == construct then chain = {} end
    local name, value = debug.getlocal(level, 1)
    if (name == "self" or name == "module") and is_module(value) and not rawequal(chain[#chain], value) then
      chain[#chain + 1] = value
    end
    level = level + 1
  end
end

--- "; in features.2 (Conv2d) of Net" where a module is running, or "".
function M.place()
  local chain = running()
  local top = chain[#chain]
  if not top then return "" end
  for i = 1, #chain - 1 do
    local found = path(top, chain[i], {})
    if found then return ("; in %s (%s) of %s"):format(found, chain[i].__name, top.__name) end
  end
  return "; in " .. top.__name
end

require("moth_lua").set_trace(M)

return M
