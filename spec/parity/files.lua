-- Files of NumPy's and PyTorch's, there and back: reads what files.py has made and writes it as safetensors, and each
-- array as .npy. Usage: luajit spec/parity/files.lua DIR FILE…
local moth = require "moth"

local folder = arg[1]
for i = 2, #arg do
  local t = {}
  for name, tensor in pairs(moth.load(folder .. "/" .. arg[i])) do t[name] = tensor end
  moth.save_safetensors(t, ("%s/%s.moth"):format(folder, arg[i]))
  if arg[i] == "stored.npz" then
    for name, tensor in pairs(t) do moth.save(tensor, ("%s/%s.npy"):format(folder, name)) end
  end
end
