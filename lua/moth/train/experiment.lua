--- What a run was: run.json in its folder, with the configuration, versions, the machine and the state of git.
local B = require "moth_lua"
local check = require "moth.utils.check"
local moth = require "moth"
local signature = require "moth.utils.signature"
local system = require "moth.utils.system"

local M = {}

local function output(command)
  local pipe = io.popen(command .. " 2>/dev/null")
  local text = pipe and pipe:read "*a" or ""
  if pipe then pipe:close() end
  text = text:gsub("%s+$", "")
  return text ~= "" and text or nil
end

--- The versions of moth and LuaJIT, the machine, the command line, the time, and of git the commit and whether files of
-- the current folder differ from it. A plain table.
M.describe = signature("train.describe()", function()
  local commit = output "git rev-parse HEAD"
  local arguments = {}
  for i = 0, #(rawget(_G, "arg") or {}) do arguments[#arguments + 1] = tostring(rawget(_G, "arg")[i]) end
  return {
    time = os.date("!%Y-%m-%dT%H:%M:%SZ"), moth = moth.version, luajit = jit.version, os = jit.os, arch = jit.arch,
    cpu_level = moth.cpu_level(), threads = moth.get_num_threads(), cuda = moth.cuda.is_available(),
    seed = tostring(moth.initial_seed()), command = table.concat(arguments, " "), folder = output "pwd",
    git = commit and { commit = commit, branch = output "git rev-parse --abbrev-ref HEAD",
      changed = output "git status --porcelain --untracked-files=no" ~= nil } or nil,
  }
end)

--- Writes run.json, and git.diff with what is not committed; a run that goes on adds to the list of starts.
function M.write(folder, config)
  if os.execute("mkdir -p " .. system.quoted(folder)) ~= 0 then
    check.fail("[train.Trainer] cannot make the folder %s", folder)
  end
  local json, path = require "cjson", folder .. "/run.json"
  local old = io.open(path)
  local text = old and old:read "*a"
  if old then old:close() end
  local ok, all = pcall(json.decode, text or "")
  if not ok or type(all) ~= "table" or type(all.starts) ~= "table" then all = { starts = {} } end
  local now = M.describe()
  if config then
    local fine, why = pcall(json.encode, config)
    if not fine then check.fail("[train.Trainer] config: plain values only: %s", tostring(why)) end
    all.config = config
  end
  table.insert(all.starts, now)
  B.write_pieces(path, { json.encode(all) .. "\n" }, "train.Trainer")
  if now.git and now.git.changed then
    os.execute(("git diff HEAD > %s 2>/dev/null"):format(system.quoted(folder .. "/git.diff")))
  end
end

return M
