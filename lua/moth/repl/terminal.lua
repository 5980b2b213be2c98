--- The terminal's abilities: colours, width, pictures.
local ffi = require "ffi"
local system = require "moth.utils.system"
local M = {}

local codes = { prompt = "1;32", error = "31", key = "36", string = "33", number = "35", dim = "2", title = "1" }

local function is_terminal(file)
  return (file == io.stdout or file == io.stderr) and system.is_terminal(file == io.stdout and 1 or 2)
end
M.is_terminal = is_terminal

ffi.cdef "struct moth_winsize { unsigned short rows, columns, x, y; }; int ioctl(int fd, unsigned long request, ...);"
local TIOCGWINSZ = 0x5413

--- Columns of the terminal behind `file`; 100 if it is none.
function M.columns(file)
  local size = ffi.new "struct moth_winsize"
  if not is_terminal(file) or ffi.C.ioctl(file == io.stdout and 1 or 2, TIOCGWINSZ, size) ~= 0 or size.columns < 20 then
    return 100
  end
  return size.columns
end

--- colour(kind, text) for a file: plain text if it is no terminal, TERM is dumb or NO_COLOR is set.
function M.colour(file)
  local on = is_terminal(file) and not os.getenv("NO_COLOR")
  if not on then return function(_, text) return text end end
  return function(kind, text)
    -- readline does not count characters between \1 and \2
    if kind == "prompt" then return ("\1\27[%sm\2%s\1\27[0m\2"):format(codes[kind], text) end
    return ("\27[%sm%s\27[0m"):format(codes[kind], text)
  end
end

--- Whether letters beyond ASCII may be written: unless the environment names another encoding than UTF-8, as LC_ALL=C
-- does, or the terminal is one that has only few letters.
function M.utf8()
  local locale = system.getenv "LC_ALL" or system.getenv "LC_CTYPE" or system.getenv "LANG"
  local term = os.getenv "TERM"
  if term == "linux" or term == "vt100" then return false end
  return not locale or locale:lower():find "utf%-?8" ~= nil
end

--- Whether pictures may be sent as sixels: MOTH_SIXEL=1 or 0 decides, else the terminal's name.
function M.sixel()
  local set = os.getenv("MOTH_SIXEL")
  if set then return set ~= "0" end
  local term = (os.getenv("TERM") or "") .. " " .. (os.getenv("TERM_PROGRAM") or "")
  for _, name in ipairs { "sixel", "foot", "mlterm", "WezTerm", "contour", "yaft" } do
    if term:find(name, 1, true) then return true end
  end
  return false
end

return M
