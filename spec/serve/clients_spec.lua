-- Clients that are not ours, where they are there: curl, ab, wrk, the openai package, tritonclient's HTTP.
local moth = require "moth"

local has_http = require("moth.serve.front").available()

local function output(command)
  local pipe = io.popen(command .. " 2>&1; echo status=$?")
  local text, status = pipe:read("*a"):match "^(.-)status=(%d+)%s*$"
  pipe:close()
  return text, tonumber(status)
end
local function there(command) return select(2, output(command)) == 0 end

local BODY = '{"inputs":[{"name":"x1","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'

(has_http and describe or pending)("moth.serve's clients #M428 #M429 #noasan", function()
  local path, body, token, server, lm = os.tmpname(), os.tmpname(), os.tmpname(), nil, nil

  local function write(name, text)
    local file = io.open(name, "w")
    file:write(text)
    file:close()
  end

  lazy_setup(function()
    local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$"
    package.path = here .. "/?.lua;" .. package.path
    moth.export.save(moth.export(function(x1) return x1 * 2 end, { moth.randn(2, 4) },
      { dynamic_shapes = { { [1] = moth.Dim("batch", { max = 64 }) } } }), path)
    write(body, BODY)
    write(token, "a-long-word\n")
    os.execute("chmod 600 " .. token)
    server = moth.serve.spawn { models = { net = path }, port = 0 }
    lm = moth.serve.spawn { models = { echo = { engine = "echo_engine", options = { pause = 0.001 } } }, port = 0,
      token_file = token }
  end)
  lazy_teardown(function()
    for _, s in ipairs { server, lm } do assert.equal(0, s:stop()) end
    for _, name in ipairs { path, body, token } do os.remove(name) end
  end)

  it("curl: every path, its status and headers", function()
    if not there "command -v curl" then return pending "there is no curl" end
    local usual = "--silent --include --max-time 10 -H content-type:application/json "
    local function curl(words, s)
      local text = output("curl " .. usual .. words:gsub("URL", (s or server).url))
      return tonumber(text:match "^HTTP/1.1 (%d+)" or text:match "\nHTTP/1.1 (%d+)"), text
    end
    for _, case in ipairs { { 200, "URL/v2" }, { 200, "URL/v2/health/live" }, { 200, "URL/v2/health/ready" },
      { 200, "URL/v2/models/net" }, { 200, "URL/v2/models/net/ready" }, { 200, "URL/metrics" },
      { 200, "URL/v1/models" }, { 404, "URL/v2/models/none" }, { 404, "URL/" }, { 405, "-X DELETE URL/v2" },
      { 405, "URL/v2/models/net/infer" }, { 400, "-d '{' URL/v2/models/net/infer" }, { 200, "--head URL/v2" },
      { 421, "-H 'Host: other.example' URL/v2" }, { 200, "-H Expect: -T - URL/v2/models/net/infer -X POST < " .. body },
      { 413, ("-H 'Content-Length: %d' -d x URL/v2/models/net/infer"):format(2 ^ 30) },
      { 404, "-d '{\"model\":\"x\",\"prompt\":\"a\"}' URL/v1/completions" } } do
      assert.equal(case[1], (curl(case[2])), case[2])
    end
    local status, text = curl("-d @" .. body .. " URL/v2/models/net/infer")
    assert.equal(200, status)
    assert.matches("\r\ncontent%-type: application/json\r\n", text)
    assert.matches('"data":[2,4,6,8]', text, 1, true)
    local asked = ("--expect100-timeout 60 -H 'Expect: 100-continue' -d @%s URL/v2/models/net/infer"):format(body)
    status, text = curl(asked .. " --next " .. usual .. asked) -- twice on one connection
    assert.equal(100, status)
    assert.equal(2, select(2, text:gsub('"data":%[2,4,6,8%]', "")), text)
    status, text = curl("URL/v1/models", lm)
    assert.equal(401, status)
    assert.matches("\r\nwww-authenticate: Bearer\r\n", text, 1, true)
    assert.equal(200, (curl("-H 'Authorization: BEARER a-long-word' URL/v1/models", lm)))
    assert.equal(200, (curl("-H 'Authorization: Bearer a-long-word' URL/v1/models", lm)))
    assert.equal(200, (curl("URL/v2/health/ready", lm)))
  end)

  it("ab: HTTP/1.0, kept alive and not", function()
    if not there "command -v ab" then return pending "there is no ab (Debian: apache2-utils)" end
    for _, keep in ipairs { "", "-k " } do
      local text = output(("ab -q %s-n 200 -c 4 -T application/json -p %s %s/v2/models/net/infer")
        :format(keep, body, server.url))
      assert.matches("Complete requests: +200", text)
      assert.matches("Failed requests: +0", text)
      assert.not_matches("Non%-2xx", text)
      if keep ~= "" then assert.matches("Keep%-Alive requests: +200", text) end
    end
  end)

  it("wrk: no errors", function()
    if not there "command -v wrk" then return pending "there is no wrk (Debian: wrk)" end
    local script = os.tmpname()
    finally(function() os.remove(script) end)
    write(script, ("wrk.method = 'POST' wrk.body = %q"):format(BODY))
    local text = output(("wrk -t1 -c16 -d1s -s %s %s/v2/models/net/infer"):format(script, server.url))
    assert.is_true(tonumber(text:match "(%d+) requests in") > 20, text)
    assert.not_matches("Non%-2xx", text)
    assert.not_matches("Socket errors", text)
  end)

  for _, case in ipairs { { "triton", "tritonclient: JSON and binary, refusals, several at a time" },
    { "openai", "openai: whole, as a stream, left early, wrong keys and fields" } } do
    it(case[2], function()
      if not there "command -v python3" then return pending "there is no python3" end
      local s = case[1] == "openai" and lm or server
      local text = output(("python3 spec/serve/clients.py %s %d"):format(case[1], s.port))
      if text:find "^missing" then return pending(text:match "^[^\n]*" .. " (PyPI)") end
      assert.equal("ok\n", text)
    end)
  end
end)
