-- OpenAI's paths of moth.serve, with an engine that gives the prompt's words back (echo_engine.lua).
local moth = require "moth"
local cjson = require "cjson"

local has_http = require("moth.serve.front").available()
-- Not under ASan: OpenSSL and cqueues leave memory behind at the end of a process.
local function describe_served(name, fn) (has_http and describe or pending)(name .. " #noasan", fn) end

describe_served("moth.serve's OpenAI paths #M430", function()
  local server
  lazy_setup(function()
    local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$"
    package.path = here .. "/?.lua;" .. package.path
    server = moth.serve.spawn { port = 0, limits = { queue = 4, wait_ms = 400 },
      models = { echo = { engine = "echo_engine", options = { pause = 0.002 } } } }
  end)
  lazy_teardown(function() if server then assert.equal(0, server:stop()) end end)

  local function post(path, request)
    local answer = server:post(path, cjson.encode(request))
    return answer.status, cjson.decode(answer.body), answer
  end

  it("completes", function()
    local status, out = post("/v1/completions", { model = "echo", prompt = "one two three", max_tokens = 2, n = 2,
      temperature = 0.5, seed = 7, stop = "x", logprobs = 1 })
    assert.equal(200, status)
    assert.equal("text_completion", out.object)
    assert.equal("one two ", out.choices[1].text)
    assert.equal("length", out.choices[2].finish_reason)
    assert.same({ 0, 4 }, out.choices[1].logprobs.text_offset)
    assert.same({ prompt_tokens = 3, completion_tokens = 2, total_tokens = 5 }, out.usage)
    assert.matches('moth_tokens_total{model="echo",direction="out"} 2', server:get("/metrics").body, 1, true)
    assert.equal("echo", cjson.decode(server:get("/v1/models").body).data[1].id)
  end)

  it("takes zero bytes as characters", function()
    local status, out = post("/v1/completions", { model = "echo", prompt = "a\0b", stop = "\0c" })
    assert.equal(200, status)
    assert.equal("a\0b", out.choices[1].text)
  end)

  it("chats, whole and as a stream", function()
    local messages = { { role = "system", content = "be" }, { role = "user",
      content = { { type = "text", text = "good " }, { type = "text", text = "morning" } } } }
    local status, out = post("/v1/chat/completions", { model = "echo", messages = messages })
    assert.equal(200, status)
    assert.same({ role = "assistant", content = "good morning" }, out.choices[1].message)
    local answer = server:post("/v1/chat/completions", cjson.encode { model = "echo", messages = messages,
      stream = true, stream_options = { include_usage = true }, logprobs = true, top_logprobs = 1 })
    assert.matches("^text/event%-stream", answer.headers["content-type"])
    local text, last, usage = {}, nil, nil
    for data in answer.body:gmatch "data: ([^\n]+)\n\n" do
      if data ~= "[DONE]" then
        local event = cjson.decode(data)
        assert.equal("chat.completion.chunk", event.object)
        if event.choices[1] then
          text[#text + 1] = event.choices[1].delta.content
          assert.equal(#text == 1 and "assistant" or nil, event.choices[1].delta.role)
          last = event.choices[1].finish_reason
        else
          usage = event.usage
        end
      end
    end
    assert.same({ "good ", "morning" }, text)
    assert.equal("stop", last)
    assert.equal(2, usage.completion_tokens)
    assert.matches("data: %[DONE%]\n\n$", answer.body)
  end)

  it("takes what says nothing, and answers for one model", function()
    local request = { model = "echo", tool_choice = "none", response_format = { type = "text" }, logprobs = false,
      modalities = { "text" }, messages = { { role = "user", content = "a b" },
        { role = "assistant", content = "a b", refusal = cjson.null, tool_calls = cjson.null } } }
    local body = cjson.encode(request):gsub("^{", '{"tools":[],"logit_bias":{},')
    local first = server:post("/v1/chat/completions", body)
    assert.equal(200, first.status, first.body)
    local status, out = post("/v1/completions", { model = "echo", prompt = { { 1, "x" } } })
    assert.equal(400, status)
    assert.equal("prompt[0][1]", out.error.param)
    assert.equal("echo", cjson.decode(server:get("/v1/models/echo").body).id)
    local missing = server:get "/v1/models/none"
    assert.equal(404, missing.status)
    assert.equal("there is no language model 'none'", cjson.decode(missing.body).error.message)
    assert.equal("model_not_found", cjson.decode(missing.body).error.code)
    assert.equal("unsupported_parameter", select(2, post("/v1/completions", { model = "echo", prompt = "a",
      frob = 1 })).error.code)
    assert.equal(cjson.null, out.error.code)
    local nothing = server:post("/v1/moderations", "{}").body
    assert.equal("there is nothing at /v1/moderations", cjson.decode(nothing).error.message)
  end)

  it("finds calls of tools, whole and in a stream", function()
    local tools = { { type = "function", ["function"] = { name = "sum", parameters = { type = "object" } } } }
    local function ask(content, more)
      local request = { model = "echo", messages = { { role = "user", content = content } }, tools = tools }
      for key, v in pairs(more or {}) do request[key] = v end
      return request
    end
    local call = '<tool_call> {"name": "sum", "arguments": {"b": [1, 2], "a": 3}} </tool_call>'
    local function seen(content)
      local status, out = post("/v1/chat/completions", ask(content))
      assert.equal(200, status)
      local whole = out.choices[1]
      local text, calls, finish = {}, {}, nil
      for data in server:post("/v1/chat/completions", cjson.encode(ask(content, { stream = true }))).body
        :gmatch "data: ([^\n]+)\n\n" do
        if data ~= "[DONE]" then
          local c = cjson.decode(data).choices[1]
          text[#text + 1], finish = c.delta.content, c.finish_reason
          for _, one in ipairs(c.delta.tool_calls or {}) do calls[one.index + 1] = one end
        end
      end
      assert.equal(whole.message.content == cjson.null and "" or whole.message.content, table.concat(text))
      assert.equal(whole.finish_reason, finish)
      assert.equal(#(whole.message.tool_calls or {}), #calls)
      for i, one in ipairs(calls) do assert.same(whole.message.tool_calls[i]["function"], one["function"]) end
      return whole.message, finish
    end
    local message, finish = seen("I add. " .. call .. call)
    assert.equal("I add.", message.content)
    assert.equal("tool_calls", finish)
    assert.equal(2, #message.tool_calls)
    assert.same({ name = "sum", arguments = '{"b": [1, 2], "a": 3}' }, message.tool_calls[1]["function"])
    assert.matches("^call_", message.tool_calls[1].id)
    assert.not_equal(message.tool_calls[1].id, message.tool_calls[2].id)
    message = seen(call)
    assert.equal(cjson.null, message.content)
    message = seen '[ {"name": "sum", "parameters": {}} ]'
    assert.equal("{}", message.tool_calls[1]["function"].arguments)
    for _, plain in ipairs { "a < b <tool", '{"name": "other", "arguments": {}}', "<tool_call> no </tool_call> x",
      "{ x", "a  b " } do
      message, finish = seen(plain)
      assert.same({ plain, "stop" }, { message.content, finish })
      assert.is_nil(message.tool_calls)
    end
    local history = { { role = "user", content = "x" },
      { role = "assistant", content = cjson.null, tool_calls = { { id = "1", type = "function",
        ["function"] = { name = "sum", arguments = '{"a":1}' } } } },
      { role = "tool", tool_call_id = "1", content = "3 4" } }
    local status, out = post("/v1/chat/completions", { model = "echo", messages = history, tools = tools })
    assert.same({ 200, "3 4" }, { status, out.choices[1].message.content })
  end)

  it("answers /v1/responses, whole and as events", function()
    local function ask(o)
      o.model = "echo"
      local status, out = post("/v1/responses", o)
      return status, out
    end
    local status, out = ask { input = "one two", instructions = "be", store = true,
      text = { format = { type = "text" } } }
    assert.equal(200, status)
    assert.same({ "response", "completed", "echo" }, { out.object, out.status, out.model })
    assert.same({ "message", "assistant" }, { out.output[1].type, out.output[1].role })
    assert.same({ "output_text", "one two" }, { out.output[1].content[1].type, out.output[1].content[1].text })
    assert.same({ 2, 2, 4 }, { out.usage.input_tokens, out.usage.output_tokens, out.usage.total_tokens })
    status, out = ask { input = { { role = "user", content = "x" }, { type = "reasoning", summary = {} },
      { role = "user", content = { { type = "input_text", text = "a " }, { type = "input_text", text = "b c" } } } },
      max_output_tokens = 2 }
    assert.same({ 200, "incomplete", "a b ", "max_output_tokens" },
      { status, out.status, out.output[1].content[1].text, out.incomplete_details.reason })
    local tools = { { type = "function", name = "sum", parameters = { type = "object" } } }
    local call = '<tool_call> {"name": "sum", "arguments": {"b": 1}} </tool_call>'
    status, out = ask { input = "I add. " .. call, tools = tools, tool_choice = "auto" }
    assert.equal(200, status)
    local item = out.output[2]
    assert.same({ "I add.", "function_call", "sum", '{"b": 1}' }, { out.output[1].content[1].text, item.type, item.name,
      item.arguments })
    status, out = ask { tools = tools, input = { { role = "user", content = "x" }, item,
      { type = "function_call_output", call_id = item.call_id, output = "3 4" } } }
    assert.same({ 200, "3 4" }, { status, out.output[1].content[1].text })
    local wanted = { input = "one two", include = { "message.output_text.logprobs" }, top_logprobs = 1 }
    local list = select(2, ask(wanted)).output[1].content[1].logprobs
    assert.same({ 2, "one ", -0.5, "x" }, { #list, list[1].token, list[1].logprob, list[1].top_logprobs[1].token })
    wanted.stream = true
    local tokens = {}
    for data in server:post("/v1/responses", cjson.encode(wanted)).body:gmatch "data: ([^\n]+)" do
      local event = cjson.decode(data)
      if event.type == "response.output_text.delta" then tokens[#tokens + 1] = event.logprobs[1].token end
      if event.type == "response.output_text.done" then assert.same(list, event.logprobs) end
    end
    assert.same({ "one ", "two" }, tokens)
    local seen, text, last, at = {}, {}, nil, -1
    local answer = server:post("/v1/responses", cjson.encode { model = "echo", input = "I add. " .. call, tools = tools,
      stream = true })
    assert.matches("^text/event%-stream", answer.headers["content-type"])
    for kind, data in answer.body:gmatch "event: (%S+)\ndata: ([^\n]+)\n\n" do
      last = cjson.decode(data)
      assert.same({ kind, at + 1 }, { last.type, last.sequence_number })
      at, seen[#seen + 1] = at + 1, kind
      if kind == "response.output_text.delta" then text[#text + 1] = last.delta end
    end
    assert.equal("I add.", (table.concat(text):gsub("%s+$", "")))
    assert.same({ "response.created", "response.in_progress", "response.output_item.added" },
      { seen[1], seen[2], seen[3] })
    assert.equal("response.completed", seen[#seen])
    assert.same({ "message", "function_call" }, { last.response.output[1].type, last.response.output[2].type })
    local function refused(param, pattern, o)
      status, out = ask(o)
      assert.same({ 400, param }, { status, out.error.param })
      assert.matches(pattern, out.error.message)
    end
    refused("input", "is missing", {})
    refused("previous_response_id", "no responses are stored here", { input = "a", previous_response_id = "x" })
    refused("tools[0]", "expected type function", { input = "a", tools = { { type = "web_search" } } })
    refused("input[0].type", "item_reference", { input = { { type = "item_reference" } } })
    refused("input[0].content[0]", "of type text",
      { input = { { role = "user", content = { { type = "input_image" } } } } })
    refused("max_output_tokens", "from 1", { input = "a", max_output_tokens = 0 })
    refused("text.format.type", "expected text", { input = "a", text = { format = { type = "xml" } } })
    refused("truncation", "not supported", { input = "a", truncation = "auto" })
    refused("include", "file_search_call.results is not supported", { input = "a",
      include = { "file_search_call.results" } })
    refused("top_logprobs", "from 0 to 20", { input = "a", top_logprobs = 21 })
  end)

  it("refuses by the field's name", function()
    local function refused(code, param, pattern, request, path)
      local status, out = post(path or "/v1/completions", request)
      assert.equal(code, status)
      assert.equal(param or cjson.null, out.error.param)
      assert.matches(pattern, out.error.message)
    end
    refused(400, "tools", "only an empty one", { model = "echo", prompt = "a", tools = { { type = "function" } } })
    refused(400, "model", "'echo' gives no vectors", { model = "echo", input = "a" }, "/v1/embeddings")
    refused(400, "best_of", "only n", { model = "echo", prompt = "a", best_of = 3, n = 2 })
    refused(400, "min_p", "from 0 to 1", { model = "echo", prompt = "a", min_p = 2 })
    refused(400, "verbosity", 'only "medium"', { model = "echo", prompt = "a", verbosity = "low" })
    refused(400, "stop_token_ids[1]", "a token id", { model = "echo", prompt = "a", stop_token_ids = { 1, -1 } })
    refused(400, "max_tokens", "at least 1; 0 goes with echo", { model = "echo", prompt = "a", max_tokens = 0 })
    for param, format in pairs { ["response_format.type"] = { type = "xml" },
      ["response_format.x"] = { type = "text", x = 1 },
      ["response_format.json_schema"] = { type = "json_schema" },
      ["response_format.json_schema.schema"] = { type = "json_schema", json_schema = { name = "a" } } } do
      refused(400, param, "^response_format", { model = "echo", messages = { { role = "user", content = "a" } },
        response_format = format }, "/v1/chat/completions")
    end
    local hello = { { role = "user", content = "a" } }
    for param, more in pairs { ["tools[0]"] = { tools = { { type = "x" } } },
      tool_choice = { tool_choice = "required" },
      ["tools[0].function.name"] = { tools = { { type = "function", ["function"] = { name = "a b" } } } },
      ["messages[0].tool_calls"] = { messages = { { role = "user", content = "a", tool_calls = { {} } } } },
      ["messages[0].tool_calls[0].function.arguments"] = { messages = { { role = "assistant", tool_calls = { {
        ["function"] = { name = "f", arguments = "no" } } } } } } } do
      more.model, more.messages = "echo", more.messages or hello
      refused(400, param, ".", more, "/v1/chat/completions")
    end
    refused(400, "logit_bias.x", "a token id", { model = "echo", prompt = "a", logit_bias = { x = 1 } })
    refused(400, "logit_bias.1", "from %-100 to 100", { model = "echo", prompt = "a", logit_bias = { ["1"] = 101 } })
    refused(400, "stop", "a list of texts", { model = "echo", prompt = "a", stop = { x = "a" } })
    refused(400, "presence_penalty", "from %-2 to 2", { model = "echo", prompt = "a", presence_penalty = 3 })
    refused(400, "temperature", "expected a number from 0 to 2", { model = "echo", prompt = "a", temperature = -1 })
    refused(400, "max_tokens", "at most 100", { model = "echo", prompt = "a", max_tokens = 101 })
    refused(400, "messages[0].content", "UTF%-8",
      { model = "echo", messages = { { role = "user", content = "\255" } } }, "/v1/chat/completions")
    refused(400, "prompt", "is missing", { model = "echo" })
    refused(400, "prompt[1]", "expected a token id", { model = "echo", prompt = { 1, 1e300 } })
    refused(404, "model", "there is no language model 'x'", { model = "x", prompt = "a" })
    refused(400, nil, "^%[llm%] the prompt is too long$", { model = "echo", prompt = "!refuse" })
    local status = server:post("/v2/models/echo/infer", "{}").status
    assert.equal(400, status)
  end)

  it("a client that leaves ends its request, and waiting has an end", function()
    local client = server:connect()
    local seen = 0
    local request = { model = "echo", prompt = ("word "):rep(100000), stream = true }
    client:request("POST", "/v1/completions", cjson.encode(request), nil, function()
      seen = seen + 1
      return seen < 3
    end)
    client:close()
    assert.equal(3, seen)
    local status, _, answer = post("/v1/completions", { model = "echo", prompt = "!hang" })
    assert.equal(503, status)
    assert.equal("1", answer.headers["retry-after"])
    local text
    for _ = 1, 100 do
      post("/v1/completions", { model = "echo", prompt = "x" })
      text = server:get("/metrics").body
      if text:find('moth_engine_cancelled_total{model="echo"} 2', 1, true) then break end
    end
    assert.matches('moth_engine_cancelled_total{model="echo"} 2', text, 1, true)
    assert.matches('moth_engine_running{model="echo"} 0', text, 1, true)
    assert.matches("\n# TYPE moth_engine_cancelled_total counter\n", text, 1, true)
    for name in text:gmatch "\n# TYPE (%S+)" do assert.matches("# HELP " .. name .. " ", text, 1, true) end
  end)

  it("an engine that ends: 503, and again when it is back; a request that ends it twice is refused #slow", function()
    for _, wanted in ipairs { 503, 503, 422 } do
      assert.equal(wanted, (post("/v1/completions", { model = "echo", prompt = "!die" })))
      if wanted == 503 then
        assert.equal(503, (post("/v1/completions", { model = "echo", prompt = "a" })))
        for _ = 1, 400 do
          if server:get("/v2/health/ready").status == 200 then break end
          require("moth.utils.system").sleep(0.02)
        end
      end
    end
    assert.equal(200, (post("/v1/completions", { model = "echo", prompt = "a" })))
  end)
end)
