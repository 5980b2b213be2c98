--- The instruction sets of kernels that this machine has, the least first: names for moth.cpu_level and MOTH_CPU.
local moth = require "moth"
local was, list = moth.cpu_level(), {}
for _, level in ipairs { "generic", "avx2", "avx512", "neon" } do
  if pcall(moth.cpu_level, level) then list[#list + 1] = level end
end
moth.cpu_level(was)
return list
