-- Texts of the chats of chats.json, false where one is refused; results of the models of models.json.
-- Usage: moth transformers_bridge.lua FOLDER
local moth = require "moth"
local cjson = require "cjson"
local ordered = require "moth.utils.ordered_json"

local f = assert(io.open(arg[1] .. "/chats.json", "rb"))
local said = { chats = {}, models = {} }
for i, part in ipairs(ordered.parts(f:read "*a")) do
  local case = ordered.decode(part.text).map
  local ok, text = pcall(function()
    local tokenizer = { special_tokens = { bos_token = "<s>", eos_token = "</s>" } }
    local talk = moth.llm.template.of(case.template, { tokenizer = tokenizer })
    return (talk(case.messages, case.variables.map))
  end)
  if not ok then io.stderr:write(i, " ", text, "\n") end
  said.chats[i] = ok and text
end
f:close()

f = assert(io.open(arg[1] .. "/models.json", "rb"))
local inputs, out = moth.load_safetensors(arg[1] .. "/inputs.safetensors"), {}
for _, case in ipairs(cjson.decode(f:read "*a")) do
  local ok, why = pcall(function()
    local net = moth.models[case.class].from_pretrained(arg[1] .. "/" .. case.name)
    local types = case.typed and inputs.types + 1 or nil
    local y = { net(inputs.ids + 1, { attention_mask = inputs.mask, token_type_ids = types }) }
    for i, v in ipairs(y) do out[("%s.%d"):format(case.name, i)] = v:detach():clone() end
  end)
  if not ok then said.models[case.name] = why end
end
f:close()
moth.save_safetensors(out, arg[1] .. "/outputs.safetensors")
if not next(said.models) then said.models[""] = "" end -- no list
print(cjson.encode(said))
