-- moth.llm.engine, by itself and behind moth.serve; moth generate, moth chat, llm.Chat.
local moth = require "moth"
local cjson = require "cjson"

local folder = "spec/llm/fixtures/llama"
local function want()
  local f = assert(io.open(folder .. "/want.json", "rb"))
  local out = cjson.decode(f:read "*a")
  f:close()
  return out
end

-- All that an engine says of its requests: { [id] = { text by index, finish by index, last piece } }
local function run(engine, out)
  out = out or {}
  local function emit(id, piece)
    local r = out[id] or { texts = {}, finish = {}, pieces = 0 }
    out[id], r.pieces = r, r.pieces + 1
    assert.is_nil(r.last)
    if piece.error then
      r.error, r.last = piece.error, piece
      return
    end
    r.texts[piece.index] = (r.texts[piece.index] or "") .. piece.text
    r.finish[piece.index] = piece.finish_reason or r.finish[piece.index]
    if piece.done then r.last = piece end
  end
  local steps = 0
  while engine:step(emit) do
    steps = steps + 1
    assert(steps < 1000)
  end
  return out
end

describe("the engine of language models #M430", function()
  it("answers requests that come and go", function()
    local engine = require("moth.llm.engine").load { path = folder, max_tokens = 512, max_seqs = 4 }
    engine:warm()
    assert.is_true(engine.signature.steps)
    assert.equal(128, engine.signature.max_tokens)
    local w = want()
    local ids = {}
    for i, id in ipairs(w.ids) do ids[i] = id end
    engine:add(1, { kind = "completion", prompt = w.prompt, max_tokens = 24, temperature = 0 })
    engine:add(2, { kind = "completion", prompt = ids, max_tokens = 24, temperature = 0, n = 2, logprobs = 1 })
    engine:add(3, { kind = "chat", messages = { { role = "user", content = "hi" } }, max_tokens = 4, seed = 1 })
    engine:add(4, { kind = "completion", prompt = "x", max_tokens = 100 })
    engine:step(function() end)
    engine:cancel(4)
    local out = run(engine)
    assert.equal(w.text:sub(-8), out[1].texts[0]:sub(-8))
    assert.equal(w.text, out[2].texts[0])
    assert.equal(w.text, out[2].texts[1])
    assert.same({ [0] = "length", "length" }, out[2].finish)
    assert.equal(48, out[2].last.completion_tokens)
    assert.equal(#w.ids, out[2].last.prompt_tokens)
    assert.is_nil(out[4])
    assert.equal(0, engine:state().blocks_used)
    for message, r in pairs { ["prompt%[1%]: there is no token 420; the last one is 419"] = { prompt = { 1, 420 } },
      ["a prompt of 200 tokens: this model's maximum context length is 128, and a prompt must be shorter"] = {
        prompt = ids } } do
      for i = #ids + 1, 200 do ids[i] = 3 end
      r.kind = "completion"
      local ok, why = pcall(engine.add, engine, 5, r)
      assert.is_false(ok)
      assert.matches(message, why)
    end
    for message, template in pairs { ["the chat template, line 1: 'strange' is undefined"] = "{{ strange.x }}",
      ["the chat template makes no text"] = "{{ strange }}",
      ["the chat template, line 2: the template says: turns must"] = "\n{{ raise_exception('turns must') }}" } do
      engine.template, engine.talk = template, nil
      local ok, why = pcall(engine.add, engine, 6, { kind = "chat", messages = { { role = "user", content = "x" } } })
      assert.is_false(ok)
      assert.matches(message, why)
    end
  end)

  it("echoes prompts with what the model says of them", function()
    local engine = require("moth.llm.engine").load { path = folder, step_tokens = 4 }
    local logprobs, order = {}, 0
    local function ask(r)
      logprobs, r.kind, r.temperature = {}, "completion", 0
      order = order + 1
      engine:add(order, r)
      local out = {}
      while engine:step(function(id, piece)
        for _, t in ipairs(piece.logprobs or {}) do logprobs[#logprobs + 1] = t end
        assert.equal(order, id)
        out.text, out.last = (out.text or "") .. piece.text, piece
      end) do end -- luacheck: ignore 542
      return out
    end
    local plain = ask { prompt = "Once upon a", max_tokens = 3 }
    assert.equal("Once upon a" .. plain.text, ask { prompt = "Once upon a", max_tokens = 3, echo = true }.text)
    local out = ask { prompt = "Once upon a", max_tokens = 0, echo = true, logprobs = 2 }
    assert.equal("Once upon a", out.text)
    assert.same({ 0, "length" }, { out.last.completion_tokens, out.last.finish_reason })
    assert.is_nil(logprobs[1].logprob)
    local ids = engine.tokenizer:encode("Once upon a", true)
    local all = moth.no_grad(engine.model.decode, engine.model, moth.tensor({ ids }, { dtype = moth.int64 }))
    local log = all:select(1, 1):log_softmax(2)
    assert.equal(#ids, #logprobs)
    for i = 2, #ids do
      assert.near(log[i - 1][ids[i]]:item(), logprobs[i].logprob, 1e-4)
      assert.near(log[i - 1]:max():item(), logprobs[i].top[1][2], 1e-4)
    end
    for i, v in ipairs(ids) do ids[i] = v - 1 end
    assert.equal("Once upon a", ask { prompt = ids, max_tokens = 1, echo = true }.text:sub(1, 11))
  end)

  it("adds to logits, and keeps to schemas", function()
    local engine = require("moth.llm.engine").load { path = folder }
    local id = 0
    local function ask(r)
      id = id + 1
      r.messages, r.kind = { { role = "user", content = "hi" } }, "chat"
      engine:add(id, r)
      local out = run(engine)[id]
      return out.texts[0], out.finish[0]
    end
    local dollar = engine.tokenizer:encode("$")[1] - 1
    assert.equal("$$$$", (ask { max_tokens = 4, temperature = 0, logit_bias = { [tostring(dollar)] = 100 } }))
    -- 30 more for "$" alone; 2 less for each that is there: another comes once those are used up
    local bias = { [tostring(dollar)] = 30 }
    local text = ask { max_tokens = 40, temperature = 0, logit_bias = bias, frequency_penalty = 2 }
    local run_of = #text:match "^%$*"
    assert.is_true(run_of > 3 and run_of < 30, text)
    local same = ask { max_tokens = 40, temperature = 0, logit_bias = bias, presence_penalty = 2 }
    assert.equal(40, #same)
    assert.error_matches(function() ask { logit_bias = { ["420"] = 1 } } end, "no token 420; the last one is 419")
    local schema = [[{"type":"object","properties":{"name":{"type":"string","maxLength":5},"age":{"type":"integer"}},
      "required":["name","age"],"additionalProperties":false}]]
    for seed = 1, 4 do
      local object, finish = ask { max_tokens = 120, seed = seed, response_format = schema }
      assert.equal("stop", finish)
      local v = cjson.decode(object)
      assert.equal(v.age, math.floor(v.age))
      assert.equal("string", type(v.name))
      object, finish = ask { max_tokens = 120, seed = seed, response_format = "object" }
      if finish == "stop" then assert.equal("table", type(cjson.decode(object))) end
    end
    assert.equal(2, #engine.grammars)
    assert.error_matches(function() ask { response_format = '{"type":"string","pattern":"a"}' } end,
      "response_format.json_schema.schema.pattern: is not supported here")
  end)

  it("shows tools to the template in their order, and calls those that it must", function()
    local engine = require("moth.llm.engine").load { path = folder }
    engine.template = "[{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
      .. "{% for m in messages %}{{ m.content }}"
      .. "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}\n{% endfor %}"
      .. "{# <tool_call> #}"
    local tool = '{"type": "function", "function": {"name": "sum", "description": "é", '
      .. '"parameters": {"type": "object", "properties": {"b": {"type": "integer"}, "a": {"type": "boolean"}}, '
      .. '"required": ["b"]}}}'
    local shown
    local encode = engine.tokenizer.encode
    function engine.tokenizer.encode(t, text, ...)
      shown = text
      return text:find "^%[" and { 5, 6, 7 } or encode(t, text, ...)
    end
    finally(function() engine.tokenizer.encode = encode end)
    local function ask(choice, messages)
      local r = { kind = "chat", max_tokens = 120, seed = 1, tools = "[" .. tool .. "]", tool_choice = choice,
        messages = messages or { { role = "user", content = "hi" } } }
      engine:add(1, r)
      return run(engine)[1]
    end
    local out = ask({ name = "sum" })
    assert.equal("[" .. tool .. "\nhi", shown)
    local calls, said = require("moth.llm.tools").parse(out.texts[0], { sum = true })
    assert.same({ 1, "", "stop" }, { #calls, said, out.finish[0] })
    local given = cjson.decode(calls[1].arguments)
    assert.equal(given.b, math.floor(given.b))
    ask(nil, { { role = "assistant", content = "", tool_calls = { { type = "function",
      ["function"] = { name = "sum", arguments = '{"b":1,"a":true}' } } } } })
    assert.equal("[" .. tool .. '\nsum{"b": 1, "a": true}', shown)
    engine.template, engine.talk = "chatml", nil
    assert.error_matches(function() ask() end, "tools: this model's chat template knows no tools")
  end)

  it("takes vLLM's fields of a request, too", function()
    local engine = require("moth.llm.engine").load { path = folder }
    local w = want()
    local function ask(o)
      o.kind, o.prompt, o.max_tokens = "completion", w.prompt, 24
      engine:add(1, o)
      local r = run(engine)[1]
      return r.texts[0], r.finish[0], r.last.completion_tokens
    end
    assert.equal(w.text, (ask { top_k = 1 }))
    assert.equal(w.text, (ask { min_p = 1 }))
    assert.not_equal(w.text, (ask { temperature = 0, repetition_penalty = 3 }))
    local _, finish, n = ask { temperature = 0, stop_token_ids = { w.out[#w.ids + 3] } }
    assert.same({ "stop", 2 }, { finish, n })
    engine.info.eos = {}
    for id = 1, 420 do engine.info.eos[id] = id end
    _, finish, n = ask { temperature = 0 }
    assert.same({ "stop", 0 }, { finish, n })
    _, finish, n = ask { temperature = 0, ignore_eos = true }
    assert.same({ "length", 24 }, { finish, n })
    local chat = { kind = "chat", messages = { { role = "user", content = "x" } }, max_tokens = 1,
      reasoning_effort = "low" }
    assert.error_matches(function() engine:add(2, chat) end, "this model's chat template knows none")
    local shown
    engine.template = "{% for m in messages %}{{ m.content }}{% endfor %}{{ reasoning_effort }}"
    local encode = engine.tokenizer.encode
    engine.tokenizer.encode = function(self, text, ...)
      shown = text
      return encode(self, text, ...)
    end
    engine:add(2, chat)
    engine.tokenizer.encode = nil
    assert.equal("xlow", shown)
  end)

  it("makes blocks of floats, as models.load does", function()
    local path = os.tmpname() .. ".gguf"
    finally(function()
      os.remove(path)
      os.remove((path:gsub("%.gguf$", "")))
    end)
    local _, tokenizer = moth.models.load(folder)
    local model = moth.models.Llama { vocab_size = 420, hidden_size = 32, intermediate_size = 32, num_hidden_layers = 1,
      num_attention_heads = 2, num_key_value_heads = 1, max_position_embeddings = 32 }
    moth.models.save_gguf(model, path, { tokenizer = tokenizer })
    local engine = require("moth.llm.engine").load { path = path, quantize = "Q4_0", dtype = "float32" }
    local types = require("moth.quantization.blocks").types(engine.model)
    assert.equal("Q4_0", types[next(types)])
    assert.error_matches(function() require("moth.llm.engine").load { path = path, quantize = "Q3" } end,
      "there are Q8_0 and Q4_0")
  end)

  it("a step that raises ends what runs, and nothing else", function()
    local engine = require("moth.llm.engine").load { path = folder }
    local step, stderr = engine.model.step, io.stderr
    engine:add(1, { kind = "completion", prompt = "x", max_tokens = 3, temperature = 0 })
    engine.model.step = function() error("[op] it does not work", 0) end
    io.stderr = { write = function() end } -- luacheck: ignore 122
    finally(function() io.stderr = stderr end) -- luacheck: ignore 122
    local out = run(engine)
    assert.equal("it does not work", out[1].error)
    engine.model.step = step
    engine:add(2, { kind = "completion", prompt = "x", max_tokens = 3, temperature = 0 })
    assert.equal("length", run(engine)[2].finish[0])
  end)

  it("stands behind moth.serve", function()
    if not require("moth.serve.front").available() then pending "lua-http is not there" return end
    local server = moth.serve.spawn { models = { lm = folder }, port = 0, llm = { draft = folder } }
    finally(function() server:stop() end)
    local w = want()
    local r = server:post("/v1/completions", cjson.encode { model = "lm", prompt = w.prompt, max_tokens = 24,
      temperature = 0 })
    assert.equal(200, r.status)
    local body = cjson.decode(r.body)
    assert.equal(w.text, body.choices[1].text)
    assert.equal(#w.ids, body.usage.prompt_tokens)
    local details = body.usage.completion_tokens_details
    assert.is_true(details.accepted_prediction_tokens > 8 and details.rejected_prediction_tokens == 0)
    assert.matches('moth_engine_accepted_tokens_total{model="lm"}', server:get("/metrics").body, 1, true)
    local function ask(prompt, n)
      r = server:post("/v1/completions", cjson.encode { model = "lm", prompt = prompt, n = n,
        max_tokens = 5, seed = 3 })
      local answer, texts = cjson.decode(r.body), {}
      for i, choice in ipairs(answer.choices) do texts[i] = choice.text end
      return texts, answer.usage
    end
    local first, used = ask("It is", 2)
    local second, used_too = ask({ 5, 7, 9 }, 2)
    local both, used_by_both = ask({ "It is", { 5, 7, 9 } }, 2) -- several prompts in one request
    assert.same({ first[1], first[2], second[1], second[2] }, both)
    assert.equal(used.total_tokens + used_too.total_tokens, used_by_both.total_tokens)
    r = server:post("/v1/completions", cjson.encode { model = "lm", prompt = { "a", { 5, 500 } } })
    assert.equal(400, r.status)
    assert.matches("prompt[1][1]: there is no token 500", r.body, 1, true)
    r = server:post("/v1/completions", cjson.encode { model = "lm", prompt = { "a", "b", "c" }, n = 16, stream = true,
      max_tokens = 2, seed = 1 })
    assert.equal(48, select(2, r.body:gsub('"finish_reason":"length"', "")))
    local list = {}
    for i = 1, 129 do list[i] = "a" end
    r = server:post("/v1/completions", cjson.encode { model = "lm", prompt = list })
    assert.equal(400, r.status)
    assert.matches("at most 128 answers", r.body)
    r = server:post("/v1/completions", cjson.encode { model = "lm", prompt = { 5, 500 } })
    assert.equal(400, r.status)
    assert.matches("there is no token 500", r.body)
  end)
end)

describe("a model in a terminal", function()
  local build = os.getenv "MOTH_BUILD" or "build"
  local function output(command)
    local pipe = assert(io.popen(("MOTH_LUAJIT_WARNING=0 %s/moth %s 2>&1"):format(build, command)))
    local text = pipe:read "*a"
    pipe:close()
    return text
  end

  it("writes behind a prompt, and chats", function()
    local w = want()
    assert.equal(w.text .. "\n", output(("generate --temperature 0 --max-tokens 24 %s '%s'"):format(folder, w.prompt)))
    local said = output(("chat --temperature 0 --max-tokens 6 %s <<'END'\nhi\n/clear\nhi\n\n/quit\nx\nEND")
      :format(folder))
    local first, second = said:match "^(.+)\n(.+)\n$"
    assert.is_string(first)
    assert.equal(first, second)
    assert.matches("moth generate: there is no option %-%-strange\nmoth generate %-%-help",
      output("generate --strange 1 x"))
    assert.matches("moth chat: %[models.load%] there is no file or folder /nowhere", output "chat /nowhere")
    local args = ("--temperature 0 --max-tokens 24 --dtype moth.float32 %s '%s'"):format(folder, w.prompt)
    assert.equal(w.text .. "\n", output("generate " .. args))
    assert.equal("moth generate: cannot write: No space left on device\n",
      output(("generate %s 2>&1 >/dev/full #"):format(args)))
  end)

  it("is written as one file, quantized", function()
    local path = os.tmpname() .. ".gguf"
    finally(function()
      os.remove(path)
      os.remove((path:gsub("%.gguf$", "")))
    end)
    assert.equal("", output(("convert %s %s"):format(folder, path)))
    local w = want()
    assert.equal(w.text .. "\n", output(("generate --temperature 0 --max-tokens 24 %s '%s'"):format(path, w.prompt)))
    assert.matches("expected OUT.gguf", output("convert " .. folder))
    assert.matches("there is no option %-%-top%-k", output("convert --top-k 3 a b"))
    assert.matches("moth convert: .*there are Q8_0 and Q4_0",
      output(("convert --quantize Q3 %s %s"):format(folder, path)))
  end)

  it("says how well a model foresees a text", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local text = ("It is the moon that goes on. They say no, "):rep(8)
    local f = assert(io.open(path, "w"))
    f:write(text)
    f:close()
    local model, tokenizer = moth.models.load(folder)
    local ids, chunks = tokenizer:encode(text, true, { whole = true }), {}
    local r = moth.llm.perplexity(model, tokenizer, text, { context = 30,
      on_chunk = function(i, of, so_far) chunks[i] = { of, so_far } end })
    local sum, n, count = 0, math.floor(#ids / 30), 0 -- by the logits of a plain pass
    for i = 0, n - 1 do
      local own = { ids[1] } -- the token before a text begins each piece
      for k = 2, 30 do own[k] = ids[30 * i + k] end
      local log = model(moth.tensor({ own }, { dtype = moth.int64 }))[1]:log_softmax(2)
      for k = 16, 29 do sum, count = sum - log[k][own[k + 1]]:item(), count + 1 end
    end
    assert.same({ n, count }, { r.chunks, r.tokens })
    assert.is_true(n > 2 and math.abs(r.perplexity / math.exp(sum / count) - 1) < 1e-5)
    assert.is_true(r.error > 0 and chunks[n][1] == n and chunks[n][2] == r.perplexity)
    assert.equal(2, moth.llm.perplexity(model, tokenizer, ids, { context = 30, chunks = 2 }).chunks)
    assert.matches(("^perplexity %.4f %%+%%- [%%d.]+ of %d tokens in %d pieces\n$"):format(r.perplexity, count, n):gsub(
      "(%d)%.(%d)", "%1%%.%2"), output(("perplexity --context 30 %s %s"):format(folder, path)))
    assert.matches("expected FILE", output("perplexity " .. folder))
    assert.matches("cannot read /no/such", output(("perplexity %s /no/such"):format(folder)))
    assert.matches("there is no option %-%-temperature", output("perplexity --temperature 1 a b"))
    local half = output(("perplexity --context 30 --cache-type float16 %s %s"):format(folder, path))
    local figure = tonumber(half:match "^perplexity ([%d.]+)")
    assert.is_true(math.abs(figure / r.perplexity - 1) < 1e-3)
    assert.matches("cache: q8_0 is of 32 elements", output(("perplexity --cache-type q8_0 %s %s"):format(folder, path)))
    assert.error_matches(function() moth.llm.perplexity(model, tokenizer, "a") end, "no whole piece of 128")
  end)

  it("a chat at a terminal outlives Ctrl-C and questions that are too long; wrong options end it at once", function()
    local function chat(script, options) -- what the fake launcher's prompt reads; false: Ctrl-C
      local words = { [0] = "chat", "spec/llm/fixtures/llama", "--max-tokens=3", "--seed=1", unpack(options or {}) }
      local at, written, is_terminal = 0, {}, moth.utils.system.is_terminal
      local function note(_, ...) written[#written + 1] = table.concat { ... } end
      local out, err = io.write, io.stderr
      moth.utils.system.is_terminal = function() return true end
      rawset(io, "write", function(...) note(nil, ...) end)
      rawset(io, "stderr", { write = note })
      words.host = { start = function() end, stop = function() end, add_history = function() end, call = pcall,
        read_line = function()
          at = at + 1
          return script[at]
        end }
      local ok, code = pcall(require("moth.llm.command").command, words)
      moth.utils.system.is_terminal = is_terminal
      rawset(io, "write", out)
      rawset(io, "stderr", err)
      assert.is_true(ok, code)
      return table.concat(written), code
    end
    local text, code = chat { false, ("moon "):rep(500), "Hello", "/clear", "/quit" }
    assert.equal(0, code)
    assert.matches("^/quit or Ctrl%-D ends the chat\nmoth chat: %[llm.Chat:say%] %d+ tokens are too many: the model "
      .. "can look at 128\n.+\n$", text)
    text, code = chat({ "Hello" }, { "--stop=" })
    assert.equal(1, code)
    assert.matches("stop: an empty text would end each answer before it begins", text)
    text, code = chat({ "Hello" }, { "--temperature=-1" })
    assert.equal(1, code)
    assert.matches("temperature must be a number of at least 0, got %-1", text)
  end)

  it("a chat at a terminal is typed by the launcher's editor #slow", function()
    if os.execute "command -v script >/dev/null" ~= 0 then return end
    local f = assert(io.popen("{ sleep 1; printf '\\003'; sleep 1; printf 'Hello\\n'; sleep 1; printf '\\003'; "
      .. "sleep 1; printf '/quit\\n'; sleep 1; } | script -qec '" .. build
      .. "/moth chat --max-tokens=3 --seed=1 spec/llm/fixtures/llama' /dev/null 2>&1; echo status=$?"))
    local text = f:read "*a"
    f:close()
    assert.equal(2, select(2, text:gsub("/quit or Ctrl%-D ends the chat", "")))
    assert.matches("status=0", text)
  end)

  it("keeps what was said, and forgets the first where there is too much", function()
    local model, tokenizer, info = moth.models.load(folder)
    local chat = moth.llm.Chat(model, tokenizer, { system = "Be brief.", template = info.chat_template, temperature = 0,
      max_tokens = 6, eos = {} })
    local answers = {}
    for i = 1, 6 do
      local parts = {}
      for piece in chat:say "moon" do parts[#parts + 1] = piece end
      answers[i] = table.concat(parts)
    end
    assert.equal("system", chat.messages[1].role)
    assert.equal(answers[6], chat.messages[#chat.messages].content)
    assert.is_true(#chat.messages < 13)
    assert.is_true(chat.scheduler.stats.shared_tokens > 0)
    assert.error_matches(function() chat:say(("word "):rep(200)) end, "tokens are too many")
    assert.error_matches(function() moth.llm.Chat(model, tokenizer, { template = "x" }) end,
      "there are chatml, gemma, gpt%-2, llama%-2, llama%-3, phi%-3 and zephyr\nHINT")
    -- a loop that was left: what was said stays, and the next answer comes
    local left = moth.llm.Chat(model, tokenizer, { template = "gpt-2", temperature = 0, max_tokens = 20 })
    local said = left:say("Hello")()
    for _ in left:say "again" do end -- luacheck: ignore 542
    assert.same({ "user", "assistant", "user", "assistant" }, { left.messages[1].role, left.messages[2].role,
      left.messages[3].role, left.messages[4].role })
    assert.equal(said, left.messages[2].content)
  end)
end)
