-- A chat with a language model, as `moth chat` has it, in thirty lines: --model is a folder of Hugging Face's form, a
-- GGUF file, or what examples/finetune_gpt.lua saved. Without it a MiniGPT with random weights says nothing of sense.
--
--     moth examples/chat.lua [--model chat.gguf] [--temperature 0.8] [--tokens 200] [--system "Be brief."]
local moth = require "moth"
local o = require("moth.examples.training").options { model = "", temperature = 0.8, tokens = 200, system = "",
  seed = 1 }

local model, tokenizer, info
if o.model ~= "" then
  model, tokenizer, info = moth.models.load(o.model)
else
  print "no --model: a MiniGPT with random weights answers"
  moth.manual_seed(o.seed)
  local vocab = {}
  for b = 32, 126 do vocab[b == 32 and "\196\160" or string.char(b)] = b - 32 end -- a byte-level vocabulary's blank
  vocab["\196\138"] = 95 -- and its end of a line
  tokenizer = moth.data.Tokenizer { model = { type = "BPE", vocab = vocab, merges = {} },
    pre_tokenizer = { type = "ByteLevel", add_prefix_space = false } }
  model, info = moth.models.minigpt { vocab = tokenizer:size() }, {}
  o.tokens = 30
end

local chat = moth.llm.Chat(model, tokenizer, { system = o.system ~= "" and o.system or nil,
  template = info.chat_template, temperature = o.temperature, top_p = 0.95, max_tokens = o.tokens, seed = o.seed })
io.write "> "
for line in io.lines() do
  for piece in chat:say(line) do
    io.write(piece)
    io.flush()
  end
  io.write "\n> "
end
print ""
