-- Ids of the texts of cases.json, with and without special tokens, and the texts of these, by each tokenizer; or why a
-- tokenizer is refused. Usage: moth tokenizers_bridge.lua FOLDER
local moth = require "moth"
local cjson = require "cjson"
cjson.decode_max_depth(100)
local f = assert(io.open(arg[1] .. "/cases.json", "rb"))
local todo = cjson.decode(f:read "*a")
f:close()
local said = {}
for _, case in ipairs(todo.cases) do
  local ok, tok = pcall(moth.tokenizer.load, case.file)
  local out = { ids = {}, texts = {}, plain = {} }
  if not ok then
    said[case.name] = { error = tok }
  else
    local fine, why = pcall(function()
      for _, special in ipairs { true, false } do
        for _, text in ipairs(todo.texts) do
          local ids, from_0 = tok:encode(text, special), {}
          for k, id in ipairs(ids) do from_0[k] = id - 1 end
          out.ids[#out.ids + 1] = from_0
          out.texts[#out.texts + 1] = tok:decode(ids)
          out.plain[#out.plain + 1] = tok:decode(ids, true)
        end
      end
    end)
    said[case.name] = fine and out or { error = why }
  end
end
print(cjson.encode(said))
