-- Families of language models in GGUF files, by llama.cpp's names and fields (gguf_fixtures.py): what transformers
-- computes with weights made by a formula.
local moth = require "moth"
local cjson = require "cjson"

local f = assert(io.open "spec/models/fixtures/gguf.json")
local cases = cjson.decode(f:read "*a")
f:close()
local names = {}
for name in pairs(cases) do names[#names + 1] = name end
table.sort(names)

local function made(name, shape)
  local at, n, list = 17, 1, {}
  for i = 1, #name do at = (at * 31 + name:byte(i)) % 65537 end
  for _, size in ipairs(shape) do n = n * size end
  local is_bias = name:find "bias$"
  local is_norm = not is_bias and (#shape == 1 and not name:find "sinks" or name:find("_norm.", 1, true))
  for k = 0, n - 1 do
    local x = (k * 7919 + at) ^ 2 % 65537 / 65537 - 0.5
    list[k + 1] = is_norm and 1 + 0.6 * x or x
  end
  return moth.tensor(list):view(shape)
end

local function tensors_of(case)
  local tensors = {}
  for name, shape in pairs(case.shapes) do tensors[name] = made(name, shape) end
  for name, list in pairs(case.more or {}) do tensors[name] = moth.tensor(list) end
  return tensors
end
local function path_of()
  local path = os.tmpname() .. ".gguf"
  finally(function() os.remove(path) end)
  return path
end
local function logits(model, case)
  return moth.no_grad(model.forward, model, moth.tensor(case.ids, { dtype = moth.int64 }) + 1)
end
local function last(y) return y:reshape(-1):narrow(1, y:numel() - 5, 6) end

describe("families of language models in GGUF files #quick", function()
  for _, name in ipairs(names) do
    it("are transformers' to 1e-4: " .. name, function()
      local case, path = cases[name], path_of()
      moth.gguf.save(path, case.fields, tensors_of(case))
      assert.is_close(moth.tensor(case.tail), last(logits(moth.models.load(path), case)), { rtol = 0, atol = 1e-4 })
    end)
  end
end)
