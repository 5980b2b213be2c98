--- The path of the prompt's history: $MOTH_HISTORY, else $XDG_STATE_HOME/moth/history, else
-- ~/.local/state/moth/history; its folders are made. nil if there is none (MOTH_HISTORY= turns it off).
local system = require "moth.utils.system"
local M = {}

local function make_folder(path)
  return os.execute("mkdir -m 700 -p " .. system.quoted(path) .. " 2>/dev/null") == 0
end

function M.path()
  local set = os.getenv("MOTH_HISTORY")
  if set then return set ~= "" and set or nil end
  local state = os.getenv("XDG_STATE_HOME")
  if not state or state == "" then
    local home = os.getenv("HOME")
    if not home or home == "" then return nil end
    state = home .. "/.local/state"
  end
  return make_folder(state .. "/moth") and state .. "/moth/history" or nil
end

return M
