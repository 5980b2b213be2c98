--- child(code, options): runs code in a process of its own; what it writes to both outputs, and the exit status.
-- options: env = "NAME=VALUE …" and other words in front; program = "moth" (the launcher of this build) or "luajit";
-- args = words behind.
local programs = { moth = (os.getenv("MOTH_BUILD") or "build") .. "/moth", luajit = os.getenv("LUAJIT") or "luajit" }

return function(code, options)
  options = options or {}
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(code)
  f:close()
  local pipe = assert(io.popen(("{ %s %s %s %s; } 2>&1; echo status=$?"):format(options.env or "",
    programs[options.program or "moth"], path, options.args or "")))
  local text, status = pipe:read("*a"):match("^(.*)status=(%d+)%s*$")
  pipe:close()
  os.remove(path)
  return text:gsub(path:gsub("%p", "%%%0"), "prog.lua"), tonumber(status)
end
