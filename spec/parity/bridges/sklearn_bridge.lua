-- Runs the models of cases.json on rows.npy, twice, and prints their results, or why there are none.
-- Usage: moth sklearn_bridge.lua FOLDER
local moth = require "moth"
local cjson = require "cjson"
cjson.encode_sparse_array(true)
local f = assert(io.open(arg[1] .. "/cases.json", "rb"))
local cases = cjson.decode(f:read "*a")
f:close()
local x = moth.load(arg[1] .. "/rows.npy")

local function plain(v)
  if moth.is_tensor(v) then return v:reshape(-1):totable() end
  local out = {}
  for i, item in ipairs(v) do
    out[i] = item
    if type(item) == "table" then
      out[i] = {}
      for label, score in pairs(item) do out[i][tostring(label)] = score end
    end
  end
  return out
end

local said = {}
for _, case in ipairs(cases) do
  local ok, results = pcall(function()
    local session = moth.onnx.InferenceSession(case.file)
    session:run(nil, { [case.input] = x })
    return session:run(nil, { [case.input] = x })
  end)
  local out = ok and { results = {} } or { error = results }
  for k, v in ipairs(ok and results or {}) do out.results[k] = plain(v) end
  said[case.name] = out
end
print(cjson.encode(said))
