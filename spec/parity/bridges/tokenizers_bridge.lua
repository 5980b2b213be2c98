-- Ids of the texts of cases.json, with and without special tokens, and the texts of these, by each tokenizer; or why a
-- tokenizer is refused. With whole, as transformers takes them: also batches. Usage: moth tokenizers_bridge.lua FOLDER
local moth = require "moth"
local cjson = require "cjson"
cjson.decode_max_depth(100)
local f = assert(io.open(arg[1] .. "/cases.json", "rb"))
local todo = cjson.decode(f:read "*a")
f:close()
local said = {}
for _, case in ipairs(todo.cases) do
  local ok, tok = pcall(moth.tokenizer.load, case.file)
  local out = { ids = {}, texts = {}, plain = {}, pairs = {}, kinds = {} }
  local function from_0(ids)
    local list = {}
    for k, id in ipairs(ids) do list[k] = id - 1 end
    return list
  end
  if not ok then
    said[case.name] = { error = tok }
  else
    local fine, why = pcall(function()
      for _, special in ipairs { true, false } do
        for k, text in ipairs(todo.texts) do
          local ids = tok:encode(text, special, { whole = todo.whole })
          out.ids[#out.ids + 1] = from_0(ids)
          out.texts[#out.texts + 1] = tok:decode(ids)
          out.plain[#out.plain + 1] = tok:decode(ids, true)
          local other, kinds = tok:encode(text, special, { pair = todo.texts[k % #todo.texts + 1], whole = todo.whole })
          out.pairs[#out.pairs + 1], out.kinds[#out.kinds + 1] = from_0(other), from_0(kinds)
        end
      end
      if not todo.whole then return end
      local o = { add_special_tokens = true, max_length = 12, pad_id = case.pad + 1, padding_side = case.side }
      local ids, mask = tok(todo.texts, o)
      out.batch, out.mask = (ids - 1):totable(), mask:to(moth.int64):totable()
      o.pairs = {}
      for k = 1, #todo.texts do o.pairs[k] = todo.texts[k % #todo.texts + 1] end
      local _, types
      ids, _, types = tok(todo.texts, o)
      out.second, out.types = (ids - 1):totable(), (types - 1):totable()
    end)
    said[case.name] = fine and out or { error = why }
  end
end
print(cjson.encode(said))
