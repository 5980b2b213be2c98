-- The thread of the Jupyter kernel that answers, while code runs, that the kernel lives. It ends by a signal.
return function(_, address)
  local zmq = require "moth.jupyter.zmq"
  local socket = zmq.socket(zmq.REP, address)
  while true do
    local parts = socket:receive()
    if not parts then return end
    socket:send(parts)
  end
end
