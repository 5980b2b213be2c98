--- `moth generate`, `moth chat`, `moth convert` and `moth perplexity`: language models in a terminal.
local each = require "moth.each"

local M = {}

M.usage = [[
usage: moth generate [options] MODEL [PROMPT]     writes what the model writes behind PROMPT (or standard input)
       moth chat [options] MODEL                  answers each line; /clear begins again, Ctrl-C ends an answer,
                                                  /quit or the end of input ends the chat
       moth convert [options] MODEL OUT.gguf      writes it as one file, with its tokenizer and chat template
       moth perplexity [options] MODEL FILE       how well it foresees a text, as llama-perplexity counts
MODEL is a folder with config.json, model.safetensors and tokenizer.json, or a .gguf file.
  --max-tokens N        of an answer, 128 (chat: 512)
  --temperature X       1 (chat: 0.8); 0: always the most probable token
  --top-k N, --top-p X, --min-p X, --repetition-penalty X, --seed N
  --stop TEXT           ends an answer; several times
  --threads N, --device NAME, --dtype NAME
  --quantize NAME       Q8_0 or Q4_0: what weights of floats become
  --draft MODEL         generate, chat: a smaller model of the same tokens, which proposes some; --draft-tokens N, 4
  --lookup [N]          generate, chat: as many tokens, 8, are proposed where the last ones stood before
  --cache-type NAME     generate, chat, perplexity: float32, float16, bfloat16 or q8_0: what keys and values are held as
  --context N, --chunks N  perplexity: tokens of a piece, 512; pieces at most
  --system TEXT         chat: what the model is told first
  --template NAME       chat: chatml, gemma, gpt-2, llama-2, llama-3, phi-3, zephyr, or a file of Jinja; left out:
                        that of the model's folder
  --template-kwargs JSON  chat: variables of the template, such as '{"enable_thinking": false}'
]]

local numbers = { ["max-tokens"] = "max_tokens", temperature = "temperature", ["top-k"] = "top_k", ["top-p"] = "top_p",
  ["min-p"] = "min_p", ["repetition-penalty"] = "repetition_penalty", seed = "seed", threads = "threads",
  lookup = "lookup", ["draft-tokens"] = "draft_tokens" }
local counting = { context = "context", chunks = "chunks", threads = "threads" } -- of perplexity
local writes = { generate = true, chat = true }
local loading = { device = true, dtype = true, quantize = true } -- options of models.load
-- Options that are texts, of some commands.
local of_some = { draft = { generate = true }, ["cache-type"] = { generate = true, perplexity = true } }
local texts = { draft = "draft", ["cache-type"] = "cache", device = "device", dtype = "dtype", quantize = "quantize",
  system = "system",
  template = "template", ["template-kwargs"] = "template_kwargs" }

local function without_place(why)
  return (tostring(why):gsub("\nstack traceback:.*", ""):gsub("^[^\n:]-%.lua:%d+: ", ""))
end

local function fail(...) error({ usage = (...):format(select(2, ...)) }, 0) end

local function parse(kind, words)
  local o, rest, i = { stop = {} }, {}, 1
  while words[i] do
    local word = words[i]
    local name, value = word:match "^%-%-([%w-]+)=?(.*)$"
    if word == "-h" or name == "help" then return { help = true } end
    if name and not word:find("=", 1, true) then
      i = i + 1
      value = words[i]
      if name == "lookup" and not tonumber(value) then
        i, value = i - 1, 8
      elseif not value then
        fail("--%s needs a value", name)
      end
    end
    if not name then
      rest[#rest + 1] = word
    elseif kind == "perplexity" and counting[name] or numbers[name] and (writes[kind] or name == "threads") then
      o[counting[name] or numbers[name]] = tonumber(value) or fail("--%s: expected a number, got '%s'", name, value)
    elseif name == "stop" and writes[kind] then
      table.insert(o.stop, value)
    elseif texts[name] and (kind == "chat" or loading[name] or of_some[name] and of_some[name][kind]) then
      o[texts[name]] = value
    else
      fail("there is no option --%s", name)
    end
    i = i + 1
  end
  if #rest < (writes[kind] and 1 or 2) or #rest > (kind == "chat" and 1 or 2) then
    fail("expected a model%s", kind == "generate" and ", and one text at most"
      or kind == "convert" and " and the path of a .gguf file"
      or kind == "perplexity" and " and the file of a text" or " and nothing else")
  end
  o.model, o.prompt = rest[1], rest[2]
  return o
end

-- Without what is no option of moth.generate.
local function sampling(o)
  local out = {}
  for key, value in each(o) do
    if key ~= "model" and key ~= "prompt" and key ~= "threads" and not loading[key] then
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
  if given.template_kwargs then
    given.template_kwargs = require("cjson.safe").decode(given.template_kwargs)
    if type(given.template_kwargs) ~= "table" then fail "--template-kwargs: expected a JSON object" end
  end
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

local function main(kind, words)
  local o = parse(kind, words)
  if o.help then
    io.write(M.usage)
    return 0
  end
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
  local ok, code = pcall(main, kind, words)
  if ok then return code end
  if type(code) == "table" and code.usage then
    io.stderr:write("moth ", kind, ": ", code.usage, "\n", M.usage)
    return 2
  end
  io.stderr:write("moth ", kind, ": ", without_place(code), "\n")
  return 1
end

return M
