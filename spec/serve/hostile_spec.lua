-- moth.serve under attack: requests that would cost much memory or time are refused before they do. Harmless sizes.
local moth = require "moth"
local cjson = require "cjson"
local each = require "moth.each"

local has_http = require("moth.serve.front").available()
-- Not under ASan: OpenSSL and cqueues leave memory behind at the end of a process.
local function describe_served(name, fn) (has_http and describe or pending)(name .. " #noasan", fn) end

-- KB in memory of a server and its engines: the most there were, or are.
local function memory(server, field)
  local total = 0
  local pipe = io.popen(("cat /proc/%d/status /proc/[0-9]*/status 2>/dev/null"):format(server.pid))
  local text = pipe:read "*a"
  pipe:close()
  local seen = {}
  for pid, parent, rest in text:gmatch "\nPid:\t(%d+)\nPPid:\t(%d+)\n(.-)\nNSpgid" do
    if not seen[pid] and (tonumber(pid) == server.pid or tonumber(parent) == server.pid) then
      seen[pid] = true
      local after = text:match("\nPid:\t" .. pid .. "\n.-\n" .. field .. ":%s*(%d+) kB")
      total = total + tonumber(after or 0)
    end
    assert(rest)
  end
  return total
end

describe_served("moth.serve and large requests #M430", function()
  local server
  lazy_setup(function()
    server = moth.serve.spawn { port = 0, limits = { held = 2 ^ 20, wait_ms = 60000 },
      models = { llama = moth.serve.llm("spec/llm/fixtures/llama", { max_tokens = 512, max_seqs = 2 }) } }
  end)
  lazy_teardown(function() if server then assert.equal(0, server:stop()) end end)

  local function post(path, request)
    local answer = server:post(path, type(request) == "string" and request or cjson.encode(request))
    return answer.status, cjson.decode(answer.body)
  end

  it("refuses a prompt by its bytes, and keeps nothing of it", function()
    assert.equal(200, (post("/v1/completions", { model = "llama", prompt = "a", max_tokens = 1 })))
    local before = memory(server, "VmHWM")
    assert.is_true(before > 1000)
    for _, size in ipairs { 2 ^ 14, 2 ^ 20, 15 * 2 ^ 20 } do
      local long = ("ab cd "):rep(size / 6)
      for path, r in each { ["/v1/completions"] = { prompt = long }, ["/v1/chat/completions"] = { messages = {
        { role = "user", content = long } } } } do
        r.model = "llama"
        local status, out = post(path, r)
        assert.equal(400, status)
        assert.equal("invalid_request_error", out.error.type)
        assert.matches("%d+ bytes", out.error.message)
      end
    end
    local status, out = post("/v1/completions", { model = "llama", prompt = { "a", ("a"):rep(20000) } })
    assert.equal(400, status)
    assert.equal("prompt[1]", out.error.param)
    assert.matches("^prompt%[1%]: 20000 bytes: this model's maximum context length is 128 tokens, and no text of more "
      .. "than %d+ bytes", out.error.message)
    assert.equal("context_length_exceeded", out.error.code)
    -- 70 bytes for each of the prompt's would be a gigabyte.
    assert.is_true(memory(server, "VmHWM") - before < 2 * 65536, memory(server, "VmHWM") - before)
    assert.equal(200, (post("/v1/completions", { model = "llama", prompt = "a", max_tokens = 1 })))
    assert.matches("\nmoth_held_bytes %d+\n", server:get("/metrics").body)
  end)

  it("bounds lists and texts", function()
    local function refused(param, pattern, request)
      request.model = "llama"
      local status, out = post(request.messages and "/v1/chat/completions" or "/v1/completions", request)
      assert.equal(400, status)
      assert.equal(param, out.error.param)
      assert.matches(pattern, out.error.message)
      assert.is_true(#out.error.message < 3000)
    end
    local one, many = { role = "user", content = "" }, {}
    for i = 1, 2049 do many[i] = one end
    refused("messages", "at most 2048 messages, got 2049", { messages = many })
    refused("messages[0].role", "at most 1024 bytes", { messages = { { role = ("r"):rep(5000), content = "" } } })
    refused("stop[1]", "at most 4096 bytes, got 5000", { prompt = "a", stop = { "x", ("y"):rep(5000) } })
    refused("chat_template_kwargs", "at most 65536 bytes", { messages = { one },
      chat_template_kwargs = { a = ("x"):rep(70000) } })
    local ids = {}
    for i = 1, 200 do ids[i] = 1 end
    refused("prompt", "200 tokens: this model's maximum context length is 128", { prompt = ids })
    local status, out = post("/v1/completions", '{"model":"llama","prompt":"a","' .. ("k"):rep(90000) .. '":1}')
    assert.equal(400, status)
    assert.is_true(#out.error.message < 3000 and #out.error.param < 300)
    status, out = post("/v1/completions", '{"model":"llama","prompt":[' .. ("[],"):rep(300000) .. "[]]}")
    assert.equal(400, status)
    assert.matches("more than 32768 lists", out.error.message)
    status, out = post("/v1/completions", '{"model":"llama","prompt":[' .. ("1,"):rep(140000) .. "1]}")
    assert.equal(400, status)
    assert.matches("more than 131072 values", out.error.message)
    local names = {}
    for i = 1, 40000 do names[i] = ('"k%d":1'):format(i) end
    status, out = post("/v1/completions", '{"model":"llama","prompt":"a\\",[{",' .. table.concat(names, ",") .. "}")
    assert.equal(400, status)
    assert.matches("more than 32768 texts and names", out.error.message)
  end)

  it("makes large bodies behind refused ones wait, but not for each other's answers", function()
    local pad = (" "):rep(20000)
    local function large(fields) return '{"model":"llama","prompt":"a",' .. fields .. pad .. "}" end
    for _ = 1, 3 do assert.equal(400, (post("/v1/completions", large '"n":"x"'))) end
    local slow, other = server:connect(), server:connect()
    slow:send(slow.format("POST", "/v1/completions", large '"max_tokens":100,"stream":true,"temperature":0'))
    local seen = false
    slow:receive(function()
      if seen then return end
      seen = true
      assert.equal(200, other:request("POST", "/v1/completions", large '"max_tokens":1').status)
    end)
    assert.is_true(seen)
    assert.equal(200, (post("/v1/completions", '{"model":"llama","prompt":"a","max_tokens":1}')))
    slow:close()
    other:close()
  end)

  it("reads pieces of few bytes, but not any number of them", function()
    local head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    local function answer(parts)
      local client = server:connect()
      for _, part in ipairs(parts) do client:send(part) end
      local got = client:receive()
      client:close()
      return got.status, got.body
    end
    local body = '{"model":"llama","prompt":"a","max_tokens":1}'
    local bytes = { head .. ("content-length: %d\r\n\r\n"):format(#body) }
    for i = 1, #body do bytes[i + 1] = body:sub(i, i) end
    assert.equal(200, (answer(bytes)))
    local chunk = "1\r\n \r\n"
    head = head .. "transfer-encoding: chunked\r\n\r\n"
    body = ("%x\r\n%s\r\n0\r\n\r\n"):format(#body, body)
    assert.equal(200, (answer { head .. chunk:rep(10000) .. body }))
    local status, why = answer { head .. chunk:rep(40000) .. body }
    assert.equal(400, status)
    assert.matches("over 32768 chunks of less than 256 bytes", why)
  end)

  it("bounds the bytes of all bodies together, and small ones pass", function()
    local first, second = server:connect(), server:connect()
    local body = ("x"):rep(700000)
    local head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 700001\r\n\r\n"
    first:send(head .. body) -- one byte is missing
    for _ = 1, 1000 do
      if server:get("/metrics").body:find("\nmoth_held_bytes 700000\n", 1, true) then break end
      moth.utils.system.sleep(0.01)
    end
    second:send(head .. body .. "x")
    local answer = second:receive()
    assert.equal(429, answer.status)
    assert.equal("1", answer.headers["retry-after"])
    assert.equal(200, (post("/v1/completions", { model = "llama", prompt = "a", max_tokens = 1 })))
    first:send "x"
    assert.equal(400, first:receive().status)
    first:close()
    second:close()
  end)
end)

describe_served("moth.serve and what pages and sockets send #M428", function()
  local server
  lazy_setup(function()
    server = moth.serve.spawn { port = 0, limits = { connections = 40 }, allow_origins = { "https://page.example" },
      models = { llama = moth.serve.llm("spec/llm/fixtures/llama", { max_tokens = 512, max_seqs = 2 }) } }
  end)
  lazy_teardown(function() if server then assert.equal(0, server:stop()) end end)

  local function complete(fields, headers)
    return server:post("/v1/completions", '{"model":"llama","prompt":"a b","max_tokens":2' .. fields .. "}", headers)
  end
  local function first(bytes)
    local client = server:connect()
    client:send(bytes)
    local answer = client:receive()
    client:close()
    return answer
  end

  it("numbers at their ends: an answer, or 400", function()
    for _, field in ipairs { "temperature", "top_p", "seed", "n", "max_tokens", "logprobs" } do
      for value in ([[1e-300 5e-324 1e-45 1e-10 1e-5 -0 -0.0 0 -1 0.5 2 1e308 1e999 NaN Infinity -Infinity 1e30
        9007199254740993 "1" "" null [] {} [1] true]]):gmatch "%S+" do
        local answer = complete((',"%s":%s'):format(field, value))
        assert.is_true(answer.status == 200 or answer.status == 400, field .. "=" .. value .. ": " .. answer.body)
        assert.is_nil(answer.body:find('"finish_reason":"error"', 1, true), field .. "=" .. value)
      end
    end
    local infinite = server:post("/v1/chat/completions", '{"model":"llama","messages":[{"role":"user","content":"a"}],'
      .. '"chat_template_kwargs":{"a":1e999}}')
    assert.equal(400, infinite.status)
    assert.matches("^chat_template_kwargs: ", cjson.decode(infinite.body).error.message)
    local greedy = cjson.decode(complete(',"temperature":0').body).choices[1].text
    for _, value in ipairs { "1e-300", "1e-45", "1e-6" } do
      assert.equal(greedy, cjson.decode(complete(',"temperature":' .. value).body).choices[1].text)
    end
  end)

  it("refuses pages of other origins, and types that they may send", function()
    local own = "http://localhost"
    assert.equal(200, complete("", { origin = own }).status)
    assert.is_nil(complete("").headers["access-control-allow-origin"])
    for _, origin in ipairs { "http://evil.example", "null", "http://localhost:1", "https://page.example.evil" } do
      local answer = complete("", { origin = origin })
      assert.equal(403, answer.status)
      assert.matches("allow_origins", answer.body)
      assert.is_nil(answer.headers["access-control-allow-origin"])
    end
    local answer = complete("", { origin = "https://page.example" })
    assert.equal(200, answer.status)
    assert.equal("https://page.example", answer.headers["access-control-allow-origin"])
    answer = first("OPTIONS /v1/completions HTTP/1.1\r\nhost: localhost\r\norigin: https://page.example\r\n"
      .. "access-control-request-method: POST\r\n\r\n")
    assert.equal(200, answer.status)
    assert.matches("POST", answer.headers["access-control-allow-methods"])
    for _, kind in ipairs { "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x",
      "" } do
      assert.equal(415, complete("", { ["content-type"] = kind }).status)
    end
    assert.equal(200, complete("", { ["Content-Type"] = "Application/JSON; charset=utf-8" }).status)
    assert.has_error(function() moth.serve.spawn { models = { a = "x" }, allow_origins = { "page" } } end)
  end)

  it("wants one Host", function()
    assert.equal(400, first("GET /v2 HTTP/1.1\r\n\r\n").status)
    assert.equal(400, first("GET /v2 HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n").status)
    assert.equal(400, first("GET http://localhost/v2 HTTP/1.1\r\n\r\n").status)
    assert.equal(200, first("GET /v2 HTTP/1.0\r\n\r\n").status)
    assert.equal(200, first("GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n").status)
  end)

  it("half-open connections of one address take a quarter of all places", function()
    local half = {}
    for i = 1, 60 do
      half[i] = server:connect()
      if i % 2 == 0 then half[i]:send "GET /v2 HT" end
    end
    assert.equal(200, server:get("/v2/health/live").status)
    local count
    local client = server:connect() -- one: each new one takes the place of a silent one
    for _ = 1, 200 do
      local answer = client:request("GET", "/metrics")
      count = tonumber(answer.body:match "\nmoth_connections (%d+)")
      if count <= 12 then break end
      moth.utils.system.sleep(0.005)
    end
    client:close()
    assert.is_true(count <= 12, count)
    local seen = 0
    for i = 1, 60 do
      if half[i]:send "\r\n" and i % 2 == 1 and half[i]:send "GET /v2 HTTP/1.1\r\nhost: localhost\r\n\r\n"
        and half[i]:receive() then seen = seen + 1 end
      half[i]:close()
    end
    assert.is_true(seen <= 10, seen) -- of the youngest; which those are is the system's order of accepting
  end)
end)

describe_served("moth serve", function()
  it("ends with 130 by SIGINT, with 0 by SIGTERM", function()
    local P = require("moth_lua").process
    local words = require("moth.distributed.run").interpreter()
    for _, word in ipairs { "-e", "os.exit(require('moth.serve.command').command { '--port', '0', "
      .. "'llama=spec/llm/fixtures/llama' })" } do words[#words + 1] = word end
    for signal, wanted in each { INT = 130, TERM = 0 } do
      local pid, out, err, input = P.start(words, { "LUA_PATH=" .. package.path, "LUA_CPATH=" .. package.cpath,
        "MOTH_LUAJIT_WARNING=0" }, true)
      local text = ""
      while not text:find "ready on" do
        P.wait({ out }, 1)
        text = text .. assert(P.read(out))
      end
      P.signal(pid, signal)
      local status
      repeat
        P.wait({}, 0.01)
        status = P.ended(pid)
      until status
      for _, fd in ipairs { out, err, input } do P.close(fd) end
      assert.equal(wanted, status)
    end
  end)
end)

describe_served("moth.serve that is behind #M430", function()
  it("says so", function()
    local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$"
    package.path = here .. "/?.lua;" .. package.path
    local server = moth.serve.spawn { port = 0, limits = { wait_ms = 1000 },
      models = { echo = { engine = "echo_engine", options = { pause = 0.002 } } } }
    assert.equal(200, server:get("/v2/health/ready").status)
    local client, answer = server:connect(), nil
    local body = cjson.encode { model = "echo", prompt = "!hang" }
    client:send(client.format("POST", "/v1/completions", body))
    for _ = 1, 1000 do
      answer = server:get "/v2/health/ready"
      if answer.status == 503 then break end
      moth.utils.system.sleep(0.005)
    end
    assert.equal(503, answer.status)
    assert.matches('^{"ready":false,"behind":{"echo":"%d%.%d s"}}$', answer.body)
    assert.equal(200, server:get("/v2/health/live").status)
    assert.matches('\nmoth_lag_seconds{model="echo"} %d', server:get("/metrics").body)
    assert.equal(503, client:receive().status)
    assert.equal(200, server:get("/v2/health/ready").status)
    client:close()
    assert.equal(0, server:stop())
  end)
end)
