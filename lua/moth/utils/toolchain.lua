--- Compilers that are called while the program runs, and what they made: kept in folders of the user's, shared by
-- processes. moth.cpp_extension and moth.kernel make libraries by it.
--
--     local path = toolchain.keep { folder = folder, name = "add_1f3c.so", make = function(work) … end }
--
-- What is kept ends in a seal, the hash of all that is before it: a file that was cut short, or written by something
-- else, is removed and made again. It is written under another name and renamed, so that processes may do the same at
-- the same time.
local ffi = require "ffi"
local B = require "moth_lua"
local each = require "moth.each"
local system = require "moth.utils.system"

local M = {}

M.quoted = system.quoted
local quoted = M.quoted

--- The bytes of a file, or nil.
function M.read(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local text = f:read("*a")
  f:close()
  return text
end

--- What a command prints, and whether it succeeded. A preloaded sanitizer is not for compilers.
function M.output(command)
  local pipe = assert(io.popen("{ unset LD_PRELOAD; " .. command .. "; } 2>&1; echo status=$?"))
  local text, status = pipe:read("*a"):match("^(.-)status=(%d+)%s*$")
  pipe:close()
  return text or "", status == "0"
end

pcall(ffi.cdef, [[
typedef struct { uint32_t mask, block; uint64_t attributes; uint32_t nlink, uid, gid; uint16_t mode, pad;
  uint64_t rest[28]; } moth_file_status;
int statx(int folder, const char *path, int flags, unsigned mask, moth_file_status *out);
unsigned getuid(void);
int utimes(const char *path, const void *times);
bool moth_log_on(const char *topic);
void moth_log_write(const char *topic, const char *fmt, ...);
]])
-- statx has one structure on all processors. The path is one of this process's folder; a link is not followed.
local HERE, NO_FOLLOW, BASIC = -100, 0x100, 0x7ff

local C
--- A line of the log under a topic of MOTH_LOGS; `always`: also on stderr where the topic is off.
function M.log(topic, always, message, ...)
  C = C or ffi.load(B.soname)
  local text = select("#", ...) > 0 and message:format(...) or message
  if C.moth_log_on(topic) then
    C.moth_log_write(topic, "%s", text)
  elseif always then
    io.stderr:write("moth: ", text, "\n")
  end
end
function M.logs(topic)
  C = C or ffi.load(B.soname)
  return C.moth_log_on(topic)
end

local said = {}
local function once(message, ...)
  local text = message:format(...)
  if not said[text] then M.log("kernel", true, text) end
  said[text] = true
end

-- Why a folder is not this user's alone, or nil.
local function wrong(path)
  local status = ffi.new("moth_file_status")
  if ffi.C.statx(HERE, path, NO_FOLLOW, BASIC, status) ~= 0 then return "it cannot be made" end
  if status.mode / 4096 - status.mode / 4096 % 1 ~= 4 then return "it is no folder" end
  if status.uid ~= ffi.C.getuid() then return "it belongs to another user" end
  if status.mode % 64 ~= 0 then return "others may use it; chmod 700 it" end
end

local temporary -- of this process, where the user's folder cannot be used
local function temporary_folder()
  if not temporary then
    local path = M.output("mktemp -d"):match("^(/%S+)")
    if not path then return nil end
    temporary = newproxy(true)
    getmetatable(temporary).__gc = function() os.execute("rm -rf " .. quoted(path)) end
    getmetatable(temporary).__tostring = function() return path end
  end
  return tostring(temporary)
end

-- What tells files of this Lua state from those of other processes and of the process's other states.
local own = system.pid() .. tostring({}):match("0x(%x+)")

local folders = {} -- path -> path that is used
--- The folder `name` below $XDG_CACHE_HOME/moth (~/.cache/moth), or the one that the environment's variable
-- `own_variable` names, made for this user alone. One that cannot be made or is not safe to load code from is said
-- once, and a folder of this process takes its place.
function M.folder(name, own_variable)
  local cache, home = system.getenv "XDG_CACHE_HOME", system.getenv "HOME"
  if not cache then cache = home and home .. "/.cache" end
  local path = (cache or "$HOME/.cache") .. "/moth/" .. name
  local given = own_variable and system.getenv(own_variable)
  if given then cache, path = given, given end
  if not folders[path] then
    local why = not cache and "neither XDG_CACHE_HOME nor HOME is set" or wrong(path)
    if cache and why then
      M.output(("umask 077; mkdir -p %s && chmod 700 %s"):format(quoted(path), quoted(path)))
      why = wrong(path)
    end
    local probe = path .. "/.writable." .. own
    local f = not why and io.open(probe, "w")
    if f then
      f:close()
      os.remove(probe)
    elseif not why then
      why = "it cannot be written to"
    end
    if why then once("%s: %s; what is compiled is not kept", path, why) end
    folders[path] = why and temporary_folder() or path
  end
  return folders[path]
end

local SEAL = "\nmoth:%s\n"
local seal_size = #SEAL:format(("0"):rep(64))

local function seal(path)
  local text = M.read(path)
  local f = text and io.open(path, "ab")
  if not f then return false end
  local ok = f:write(SEAL:format(B.sha256(text)))
  return f:close() and ok and true
end

local function intact(path)
  local text = M.read(path)
  if not text then return nil end
  local from = #text - seal_size
  return from > 0 and text:sub(from + 1) == SEAL:format(B.sha256(text:sub(1, from)))
end

--- What `make` wrote to a file that was kept; nil if it is broken.
function M.kept(path)
  local text = M.read(path)
  return text and intact(path) and text:sub(1, #text - seal_size) or nil
end

-- Removes what was not used for longest, where the folder's files ending in `suffix` take more than `limit` bytes.
local function trim(folder, suffix, limit)
  local list = M.output(("cd %s && ls -t -l --time-style=+ | awk '{ print $5, $NF }'"):format(quoted(folder)))
  local total = 0
  for size, name in list:gmatch("(%d+) (%S+)") do
    if name:sub(-#suffix) == suffix and name:sub(1, 1) ~= "." then
      total = total + tonumber(size)
      if total > limit then os.remove(folder .. "/" .. name) end
    end
  end
end

--- The path of a file that is kept: found, or made. o: folder, name; make(work) writes the file `work` and returns
-- true, or nil and a message; limit of the folder's bytes. Returns path, whether it was found; or nil, message.
function M.keep(o)
  local path = o.folder .. "/" .. o.name
  local good = intact(path)
  if good then
    ffi.C.utimes(path, nil)
    return path, true
  elseif good == false then
    os.remove(path)
  end
  local work = ("%s/.%s.%s"):format(o.folder, o.name, own)
  local made, message = o.make(work)
  if made and not seal(work) then made, message = nil, "cannot write " .. work end
  if made then made, message = os.rename(work, path) end
  if not made then
    os.remove(work)
    return nil, message
  end
  if o.limit then trim(o.folder, o.name:match("%.%w+$") or "", o.limit) end
  return path, false
end

-- ---- compilers ----------------------------------------------------------------------------------

--- cc: the C compiler for generated code, instead of the search.
M.config = {}

local found = {} -- command -> { path, version } or false
local function probe(command)
  if found[command] == nil then
    local text, ok = M.output(("command -v %s && %s --version"):format(quoted(command), quoted(command)))
    local path, version = text:match("^([^\n]+)\n(.*)$")
    found[command] = ok and { path = path, version = version } or false
  end
  return found[command]
end
M.probe = probe

--- The C compiler for generated code, { path, version }: $MOTH_CC, config.cc, cc, gcc, clang; nil where there is none.
function M.cc()
  local named = system.getenv("MOTH_CC")
  if named then
    local c = probe(named)
    if not c then once("MOTH_CC=%s is no compiler that runs", named) end
    return c or nil
  end
  for _, command in ipairs { M.config.cc or "cc", "gcc", "clang" } do
    local c = probe(command)
    if c then return c end
  end
end

function M.nvcc()
  local home = os.getenv("CUDA_HOME") or "/usr/local/cuda"
  for _, command in ipairs { os.getenv("NVCC") or "nvcc", home .. "/bin/nvcc" } do
    local c = probe(command)
    if c then return c.path end
  end
end

-- For tests: forgets what was found.
function M.forget()
  for t in each { [found] = 1, [said] = 1, [folders] = 1 } do
    for key in each(t) do t[key] = nil end
  end
end

return M
