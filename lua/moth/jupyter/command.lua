--- `moth kernel`: notebooks with Jupyter. `moth kernel install` writes the kernel's description where Jupyter looks for
-- it; Jupyter then starts `moth kernel run FILE`.
local cjson = require "cjson"
local B = require "moth_lua"
local cli = require "moth.cli"
local system = require "moth.utils.system"

local M = {}

local where = {
  { "--prefix DIR", "for the Jupyter of an environment: DIR/share/jupyter/kernels; left out: for this user" },
  { "--sys-prefix", "for the environment that is active: VIRTUAL_ENV or CONDA_PREFIX" },
  { "--user", "for this user" },
  { "--name NAME", "what Jupyter lists", "moth" },
}

--- The options, as moth.cli reads them.
M.options = { "Notebooks with Jupyter.", name = "moth kernel", see = "docs/notebooks.md", commands = {
  { "Writes the kernel's description where Jupyter looks for it.", name = "install", config = false, unpack(where) },
  { "Removes the description again.", name = "uninstall", config = false, unpack(where) },
  { "What Jupyter starts.", name = "run", config = false, { "FILE", "the connection" } },
} }

local function fail(fmt, ...) error((fmt):format(...), 0) end

local function check(o)
  if (o.prefix and 1 or 0) + (o.sys_prefix and 1 or 0) + (o.user and 1 or 0) > 1 then
    cli._fail "--prefix, --sys-prefix and --user exclude each other"
  end
  if o.sys_prefix then
    o.prefix = os.getenv "VIRTUAL_ENV" or os.getenv "CONDA_PREFIX" or fail "--sys-prefix: no environment is active"
  end
  if not o.name:find "^[%w._-]+$" then
    cli._fail("--name: letters, digits, '.', '_' and '-' alone, got %s", o.name)
  end
  return o
end

local function folder_of(o)
  local home = os.getenv "HOME"
  local data = o.prefix and o.prefix .. "/share/jupyter" or os.getenv "JUPYTER_DATA_DIR"
    or (os.getenv "XDG_DATA_HOME" or home and home .. "/.local/share"
      or fail "HOME is not set; HINT: --prefix DIR") .. "/jupyter"
  return data .. "/kernels/" .. o.name
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
  assert(f:write(cjson.encode { argv = { program, "kernel", "run", "{connection_file}" }, language = "lua",
    display_name = o.name == "moth" and "moth (LuaJIT)" or o.name, interrupt_mode = "signal" }, "\n"))
  assert(f:close())
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
  return cli._run(M.options, words, function(o)
    if o.command == "run" then return require("moth.jupyter.kernel").run(o.file, words.host) end
    if o.command == "install" then install(check(o)) else uninstall(check(o)) end
    return 0
  end)
end

return M
