--- Drives torch_server.py: commands go to its stdin, answers come back through a FIFO (as in bench/torch.lua). An
-- answer "error …" leaves a column empty.
local M = {}

--- The server, or nil and why there is none. target: seconds of a repetition; queued: steps of a host row.
function M.start(folder, target, queued)
  local fifo = folder .. "/torch.fifo"
  os.execute(("rm -f '%s' && mkfifo '%s'"):format(fifo, fifo))
  local to = io.popen(("exec %s bench/gpu/torch_server.py %g %d > '%s' 2> '%s/torch.err'"):format(
    os.getenv("PYTHON") or "python3", target, queued, fifo, folder), "w")
  local from = io.open(fifo, "r")
  os.remove(fifo)
  local version = from:read("*l")
  if not version then
    to:close()
    from:close()
    return nil, "python3 has no torch"
  end
  local gone
  local function ask(...)
    if gone then return nil, gone end
    to:write(table.concat({ ... }, " "), "\n")
    to:flush()
    local answer = from:read("*l")
    if not answer then gone = "its process has ended" end
    if gone or answer:find("^error") then return nil, gone or answer:sub(7) end
    return answer
  end
  return {
    version = version,
    --- true, or nil and why not.
    prepare = function(row) return ask("prepare", row) end,
    --- Seconds of a step, or nil and why not.
    run = function()
      local answer, why = ask("run")
      return tonumber(answer), why
    end,
    clear = function() ask("clear") end,
    stop = function()
      to:close()
      from:close()
    end,
  }
end

return M
