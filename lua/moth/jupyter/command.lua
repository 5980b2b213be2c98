--- `moth kernel`: notebooks with Jupyter. `moth kernel install` writes the kernel's description where Jupyter looks for
-- it; Jupyter then starts `moth kernel run FILE`.
local cjson = require "cjson"
local B = require "moth_lua"
local system = require "moth.utils.system"

local M = {}

M.usage = [[
usage: moth kernel install [--prefix DIR | --sys-prefix] [--name NAME]   for notebooks: jupyter lab, nbconvert
       moth kernel uninstall [the same options]
       moth kernel run FILE        what Jupyter starts
--prefix DIR: for the Jupyter of an environment (DIR/share/jupyter/kernels); --sys-prefix: of the one that is active
(VIRTUAL_ENV or CONDA_PREFIX). Without either: for this user. The name is moth.
]]

local function fail(fmt, ...) error(("moth kernel: " .. fmt):format(...), 0) end

local function read(words)
  local o, i = { name = "moth" }, 1
  while words[i] do
    local word = words[i]
    local name, value = word:match "^%-%-([%a-]+)=?(.*)$"
    if name == "sys-prefix" then
      o.prefix = os.getenv "VIRTUAL_ENV" or os.getenv "CONDA_PREFIX" or fail "--sys-prefix: no environment is active"
    elseif name == "prefix" or name == "name" then
      if value == "" then
        i = i + 1
        value = words[i] or fail("--%s needs a value", name)
      end
      o[name] = value
    elseif name == "user" then
      o.prefix = nil
    elseif name then
      fail("there is no option %s\n%s", word, M.usage)
    else
      o[#o + 1] = word
    end
    i = i + 1
  end
  if not o.name:find "^[%w._-]+$" then fail("--name: letters, digits, '.', '_' and '-' alone, got %s", o.name) end
  return o
end

local function folder_of(o)
  local data = os.getenv "JUPYTER_DATA_DIR" or (os.getenv "XDG_DATA_HOME" or os.getenv "HOME" .. "/.local/share")
    .. "/jupyter"
  return (o.prefix and o.prefix .. "/share/jupyter" or data) .. "/kernels/" .. o.name
end

local function install(o)
  local zmq = require "moth.jupyter.zmq"
  local program = B.process.executable()
  if not program or not program:match "[^/]*$":find "^moth" then
    fail "install is a command of the launcher: moth kernel install"
  end
  local folder = folder_of(o)
  if os.execute("mkdir -p " .. system.quoted(folder)) ~= 0 then fail("the folder %s cannot be made", folder) end
  local f, why = io.open(folder .. "/kernel.json", "w")
  if not f then fail("%s", why) end
  f:write(cjson.encode { argv = { program, "kernel", "run", "{connection_file}" }, language = "lua",
    display_name = o.name == "moth" and "moth (LuaJIT)" or o.name, interrupt_mode = "signal" }, "\n")
  f:close()
  print("wrote " .. folder .. "/kernel.json")
  if not zmq.available() then print "libzmq.so.5 is not on this machine yet: install libzmq5 (Debian)" end
end

local function uninstall(o)
  local folder = folder_of(o)
  if not os.remove(folder .. "/kernel.json") then fail("there is no kernel at %s", folder) end
  os.remove(folder)
  print("removed " .. folder)
end

--- Runs the words behind `moth kernel`; returns the exit code.
function M.command(words)
  local ok, code = pcall(function()
    local what = words[1]
    if what == "run" and words[2] then return require("moth.jupyter.kernel").run(words[2], words.host) end
    local o = read { unpack(words, 2) }
    if what == "install" then install(o)
    elseif what == "uninstall" then uninstall(o)
    elseif what == "--help" or what == "-h" then io.write(M.usage)
    else fail("expected install, uninstall or run\n%s", M.usage) end
    return 0
  end)
  if ok then return code end
  io.stderr:write((tostring(code):gsub("^[^\n]-%.lua:%d+: ", "")), "\n")
  return 1
end

return M
