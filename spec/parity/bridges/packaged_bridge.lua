-- Runs the models of cases.json twice, writes the results as .npy files, and loads each as a program.
-- Usage: moth packaged_bridge.lua FOLDER
local moth = require "moth"
local cjson = require "cjson"
local f = assert(io.open(arg[1] .. "/cases.json", "rb"))
local cases = cjson.decode(f:read "*a")
f:close()
local said = {}
for _, case in ipairs(cases) do
  local ran, why = pcall(function()
    local session, inputs = moth.onnx.InferenceSession(case.file), {}
    for k, name in ipairs(case.inputs) do inputs[name] = moth.load(("%s.in%d.npy"):format(case.stem, k)) end
    session:run(nil, inputs)
    for k, t in ipairs(session:run(nil, inputs)) do moth.save(t, ("%s.out%d.npy"):format(case.stem, k)) end
  end)
  local ok, program = pcall(moth.onnx.load, case.file)
  said[case.name] = { session = ran or why, program = ok or program }
end
print(cjson.encode(said))
