--- The frames of errors that moth catches and rethrows (in moth.no_grad(f), hooks, modes, backward functions), and the
-- module of a network in which an error happened.
--
-- A function that runs another one under a mode must catch its errors, and then the frames are lost. So it calls it by
-- xpcall(fn, keep), which stores them, and raises the same value again by rethrow. Code that shows a traceback (the
-- launcher, the prompt, trace.traceback) looks for the stored frames first. They are shown only if the error being
-- raised comes from rethrow, so that an error swallowed earlier is not shown for another one.
local M = {}

local frames -- text: the frames of the last caught error

local own = { "moth/lang/trace%.lua", "moth/dispatch/within%.lua" }

--- error(e, 0), for an error whose frames `keep` has stored.
function M.rethrow(e) error(e, 0) end

-- Whether rethrow raises the current error: it calls only error, so being on the stack is enough.
local function is_rethrown()
  for level = 3, 7 do
    local info = debug.getinfo(level, "f")
    if not info then return false end
    if info.func == M.rethrow then return true end
  end
  return false
end

--- The handler for xpcall: stores the frames and returns the error unchanged. M.observer, if set, is called first: it
-- may look at the frames.
function M.keep(e)
  if not is_rethrown() then
    frames = debug.traceback("", 2)
    if M.observer then M.observer(e) end
  end
  return e
end

-- The frames without moth's functions that catch and rethrow.
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

--- For error handlers: the traceback of the error being raised, if moth has caught it before, or nil.
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

-- The path from `top` to the module `m`, by identity: "features.2"; the first path of a shared module.
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
-- module, in hooks). Modules above a constructor's frame are being built, not run.
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
