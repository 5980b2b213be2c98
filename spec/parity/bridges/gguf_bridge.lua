-- With names of types: reads one_TYPE.gguf of each as numbers, writes them as TYPE.npy, says true or why not. Without:
-- reads theirs.gguf with its blocks as they are and writes ours.gguf; makes blocks of floats.npy; says why big.gguf is
-- refused. Usage: moth gguf_bridge.lua FOLDER TYPE…
local moth = require "moth"
local cjson = require "cjson"
local folder = arg[1]
local said = { types = {} }
for i = 2, #arg do
  local ok, got = pcall(moth.gguf.load, ("%s/one_%s.gguf"):format(folder, arg[i]))
  said.types[arg[i]] = ok or got
  if ok then moth.save(got.tensors["t." .. arg[i]]:float(), ("%s/%s.npy"):format(folder, arg[i])) end
end
if #arg == 1 then
  local file = moth.gguf.load(folder .. "/theirs.gguf", { blocks = true })
  moth.gguf.save(folder .. "/ours.gguf", file.metadata, file.tensors, {
    type = function(name) return file.tensors[name]:dtype().name == "uint8" and file.types[name] or nil end,
  })
  for _, kind in ipairs { "Q8_0", "Q4_0" } do
    moth.gguf.save(("%s/made_%s.gguf"):format(folder, kind), {}, { x = moth.load(folder .. "/floats.npy") },
      { type = kind })
  end
  local ok, why = pcall(moth.gguf.load, folder .. "/big.gguf")
  said.big = ok and "read" or why
end
print(cjson.encode(said))
