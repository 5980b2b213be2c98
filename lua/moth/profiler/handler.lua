--- Handlers for profile's on_trace_ready.
local check = require "moth.utils.check"
local system = require "moth.utils.system"

local function host()
  local file = io.open("/proc/sys/kernel/hostname")
  local name = file and file:read("*l") or "localhost"
  if file then file:close() end
  return name
end

--- A function(profile) that writes its trace to dir, which is made.
return function(dir, name, gzip)
  if os.execute("mkdir -p " .. system.quoted(dir) .. " 2>/dev/null") ~= 0 then
    check.fail("[profiler.tensorboard_trace_handler] the folder '%s' cannot be made", dir)
  end
  name = name or ("%s_%d"):format(host(), system.pid())
  return function(prof)
    local path = ("%s/%s.%.0f.pt.trace.json%s"):format(dir, name, system.time() * 1000, gzip and ".gz" or "")
    prof:export_chrome_trace(path)
    return path
  end
end
