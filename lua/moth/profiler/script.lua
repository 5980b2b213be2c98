--- `moth --profile script.lua`: profiles a script that knows nothing of it.
local system = require "moth.utils.system"

local M = {}

local profile, path

--- Begins to record. to: where the report goes (".json", ".pftrace": a trace), "" for moth-profile.html.
function M.start(to)
  path = to ~= "" and to or "moth-profile.html"
  profile = require("moth.profiler").profile { with_modules = true, record_shapes = true, with_flops = true }
  profile:start()
end

--- Prints the table to stderr and writes the report; nothing if nothing was recorded.
function M.finish()
  if not profile then return end
  local prof = profile
  profile = nil
  prof:stop()
  local list = prof:key_averages()
  io.stderr:write(list:table { row_limit = 20, header = ("moth --profile, process %d"):format(system.pid()) }, "\n")
  local plain = path:gsub("%.gz$", "")
  if plain:find("%.json$") or plain:find("%.pftrace$") then
    prof:export_chrome_trace(path)
  elseif path:find("%.svg$") then
    prof:flame_graph(path)
  else
    prof:report(path)
  end
  io.stderr:write("the profile is in ", path, "\n")
end

return M
