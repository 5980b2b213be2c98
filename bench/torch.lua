--- Drives bench/torch_server.py: commands go to its stdin, answers come back through a FIFO. The shell opens the FIFO
-- before it starts python3, so that a missing python3 or torch is an end of file here.
local M = {}

--- The server, or nil and why there is none.
function M.start(folder)
  local fifo = folder .. "/torch.fifo"
  os.execute("rm -f " .. fifo .. " && mkfifo " .. fifo)
  -- The spin count that moth sets for itself: with its own, PyTorch is some times slower on a busy machine.
  local to = io.popen("exec env GOMP_SPINCOUNT=10000 python3 bench/torch_server.py > " .. fifo .. " 2> " .. folder
    .. "/torch.err", "w")
  local from = io.open(fifo, "r")
  os.remove(fifo)
  local version = from:read("*l")
  if not version then
    to:close()
    from:close()
    return nil, "python3 has no torch"
  end
  local server = { version = version }
  local function ask(...)
    to:write(table.concat({ ... }, " "), "\n")
    to:flush()
    return from:read("*l") or error("bench: torch_server.py ended: see " .. folder .. "/torch.err", 0)
  end
  function server.prepare(...) ask("prepare", ...) end -- row, size, threads, seconds, core or "any"
  function server.run() return tonumber(ask("run")) end
  function server.stop()
    to:close()
    from:close()
  end
  return server
end

return M
