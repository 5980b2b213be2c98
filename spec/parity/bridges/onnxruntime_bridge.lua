-- Reads new NAME.onnx of each name and says true, or why not. Usage: moth onnxruntime_bridge.lua FOLDER NAME…
local moth = require "moth"
local cjson = require "cjson"
local said = {}
for i = 2, #arg do
  local ok, why = pcall(moth.onnx.load, ("%s/new %s.onnx"):format(arg[1], arg[i]))
  said[arg[i]] = ok or why
end
print(cjson.encode(said))
