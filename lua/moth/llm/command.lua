--- `moth generate`, `moth chat`, `moth convert` and `moth perplexity`: language models in a terminal.
local cli = require "moth.cli"
local each = require "moth.each"

local M = {}

-- Options that several of the commands take.
local loading = {
  "Loading",
  { "--device NAME", "cpu, cuda" },
  { "--dtype NAME", "float32, bfloat16, float16; left out: the file's" },
  { "--quantize NAME", "Q8_0 or Q4_0: what weights of floats become" },
  { "--threads N", "that compute", min = 1 },
}
local cache = { "--cache-type float32|float16|bfloat16|q8_0|f32|f16|bf16", "what keys and values are held as",
  key = "cache" }
local function writing(max_tokens, temperature)
  return {
    "Writing",
    { "--max-tokens N", "of an answer", default = max_tokens },
    { "--temperature X", "0: always the most probable token", default = temperature },
    { "--top-k N", "the most probable tokens that count" }, { "--top-p X", "their probability together" },
    { "--min-p X", "the least probability, of the greatest" },
    { "--repetition-penalty X", "of tokens that stand there already" }, { "--seed N", "of the drawn numbers" },
    { "--stop TEXT", "ends an answer", several = true },
    "Proposed tokens, which make it quicker",
    { "--draft MODEL", "a smaller model of the same tokens, which proposes some", type = "path" },
    { "--draft-tokens N", "how many", default = 4 },
    { "--lookup [N]", "as many tokens are proposed where the last ones stood before", bare = 8 },
  }
end

local function declare(name, about, ...)
  local out = { about .. "\nMODEL is a folder with config.json, model.safetensors and tokenizer.json, or a .gguf \z
      file.",
    name = "moth " .. name, sparse = true, see = "docs/language_models.md" }
  for _, list in ipairs { ... } do
    for _, entry in ipairs(list) do out[#out + 1] = entry end
  end
  return out
end

local MODEL = { "MODEL", type = "path" }
--- The options of each command, as moth.cli reads them.
M.options = {
  generate = declare("generate", "A language model writes on behind PROMPT, or behind standard input.",
    { MODEL, { "[PROMPT]" } }, writing(128, 1), { cache }, loading),
  chat = declare("chat", "A language model answers each line. /clear begins again, Ctrl-C ends an answer, /quit or \z
    the end of input ends the chat.", { MODEL }, {
      "Talking",
      { "--system TEXT", "what the model is told first" },
      { "--template NAME", "chatml, gemma, gpt-2, llama-2, llama-3, phi-3, zephyr, or a file of Jinja; left out: that \z
        of the model's folder" },
      { "--template-kwargs JSON", "variables of the template, such as '{\"enable_thinking\": false}'", type = "json" },
    }, writing(512, 0.8), { cache }, loading),
  convert = declare("convert", "A language model as one file, with its tokenizer and chat template.",
    { MODEL, { "OUT.gguf", type = "path", key = "prompt" } }, loading),
  perplexity = declare("perplexity", "How well a language model foresees a text, as llama-perplexity counts.",
    { MODEL, { "FILE", key = "prompt" }, { "--context N", "tokens of a piece", default = 512 },
      { "--chunks N", "pieces at most" }, cache }, loading),
}

local loads = { device = true, dtype = true, quantize = true } -- options of models.load

local without_place = cli._without_place

-- Without what is no option of moth.generate.
local function sampling(o)
  local out = {}
  for key, value in each(o) do
    if key ~= "model" and key ~= "prompt" and key ~= "threads" and not loads[key] then
      out[key] = value
    end
  end
  return out
end

local function write(pieces)
  for piece in pieces do
    io.write(piece)
    local ok, why = io.flush()
    if not ok then error("cannot write: " .. tostring(why), 0) end -- a full disk, a reader that left
  end
  io.write "\n"
end

-- What was proposed of an answer, where something was to be, to the terminal and not into the text.
local function told(kind, o, stats)
  if not o.draft and not o.lookup then return end
  io.stderr:write(("moth %s: %d tokens in %d steps; %d of %d that were proposed were accepted\n"):format(kind,
    stats.new_tokens, stats.steps, stats.accepted, stats.proposed))
end

-- host: what the launcher gives, or nil.
local function chat(model, tokenizer, info, o, host)
  local moth = require "moth"
  local given = sampling(o)
  given.max_tokens, given.temperature = given.max_tokens or 512, given.temperature or 0.8
  local file = given.template and io.open(given.template, "rb")
  if file then
    given.template = file:read "*a" -- nil of a folder
    file:close()
  end
  given.template = given.template or info.chat_template
  local function begin() return moth.llm.Chat(model, tokenizer, given) end
  local talk, terminal = begin(), moth.utils.system.is_terminal(0)
  local ask, try = io.read, pcall
  if terminal and host then -- the launcher's line editor, and calls that Ctrl-C stops, each time anew
    function ask() return host.read_line "> " end
    function try(f) return host.call(function() return assert(pcall(f)) end) end
    host.start(function() return {} end)
  end
  while true do
    local line = ask()
    if line == nil or line == "/quit" then break end
    if not line then
      io.stderr:write "/quit or Ctrl-D ends the chat\n"
    elseif line == "/clear" then
      talk = begin()
    elseif line:find "^/%l+$" then
      io.stderr:write("there is no command ", line, "; there are /clear and /quit\n")
    elseif line:find "%S" then
      if terminal and host then host.add_history(line) end
      local ok, why = try(function() write(talk:say(line)) end)
      if not ok and tostring(why):find "interrupted" then
        io.write "\n"
      elseif not ok and not terminal then
        error(why, 0)
      elseif not ok then
        io.stderr:write("moth chat: ", without_place(why), "\n")
      end
    end
  end
  if terminal and host then host.stop() end
  told("chat", o, talk.scheduler.stats)
end

local function perplexity(model, tokenizer, o)
  local moth = require "moth"
  local file, why = io.open(o.prompt, "rb")
  local text = file and file:read "*a"
  if not text then error("cannot read " .. (why or o.prompt), 0) end
  file:close()
  local shown = moth.utils.system.is_terminal(2)
  local r = moth.llm.perplexity(model, tokenizer, text, { context = o.context, chunks = o.chunks, cache = o.cache,
    on_chunk = shown and function(i, most, so_far)
      io.stderr:write(("\r%d of %d: %.4f "):format(i, most, so_far))
      if i == most then io.stderr:write "\n" end
    end or nil })
  print(("perplexity %.4f +- %.4f of %d tokens in %d pieces"):format(r.perplexity, r.error, r.tokens, r.chunks))
end

local function main(kind, o, words)
  local moth = require "moth"
  if o.threads then moth.set_num_threads(o.threads) end
  local how = { device = o.device, quantize = o.quantize, dtype = o.dtype and o.dtype:gsub("^moth%.", "") or nil }
  local model, tokenizer, info = moth.models.load(o.model, how)
  if not tokenizer and moth.utils.system.exists(o.model .. "/config.json") then moth.tokenizer.load(o.model) end
  if not tokenizer then error(("%s has no tokenizer"):format(o.model), 0) end
  if o.draft then o.draft = require("moth.llm.propose").load(o.draft, how, tokenizer) end
  if kind == "convert" then
    moth.models.save_gguf(model, o.prompt, { tokenizer = tokenizer, chat_template = info.chat_template })
  elseif kind == "perplexity" then
    perplexity(model, tokenizer, o)
  elseif kind == "chat" then
    chat(model, tokenizer, info, o, words.host)
  else
    local given, stats = sampling(o), {}
    given.stats = stats
    write(moth.generate(model, tokenizer, o.prompt or io.read "*a", given))
    told(kind, o, stats)
  end
  return 0
end

--- Runs the command words[0], "generate", "chat", "convert" or "perplexity"; its exit code.
function M.command(words)
  local kind = words[0]
  return cli._run(M.options[kind], words, function(o) return main(kind, o, words) end)
end

return M
