-- moth.serve when things go wrong: engines that end, hang or are replaced under load, clients that misbehave.
local moth = require "moth"
local cjson = require "cjson"
local system = require "moth.utils.system"

local has_http = require("moth.serve.front").available()
-- Not under ASan: OpenSSL and cqueues leave memory behind at the end of a process.
local function describe_served(name, fn) (has_http and describe or pending)(name .. " #noasan", fn) end
local build = os.getenv "MOTH_BUILD" or "build"

local function shell(command)
  local pipe = io.popen(command)
  local text = pipe:read "*a"
  pipe:close()
  return text
end

-- The pids of the engines of a server.
local function engines(server)
  local list = {}
  for pid in shell("pgrep -P " .. server.pid):gmatch "%d+" do list[#list + 1] = tonumber(pid) end
  return list
end

local BODY = '{"inputs":[{"name":"x1","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'

describe_served("moth.serve in trouble #M428", function()
  local path, sockets, servers = os.tmpname(), os.tmpname(), {}
  lazy_setup(function()
    local here = debug.getinfo(1, "S").source:match "^@(.*)/[^/]*$"
    package.path = here .. "/?.lua;" .. package.path
    local net = moth.nn.Linear(4, 3)
    moth.export.save(moth.export(function(x1) return net(x1) end, { moth.randn(2, 4) },
      { dynamic_shapes = { { [1] = moth.Dim("batch", { max = 64 }) } } }), path)
    os.remove(sockets)
  end)
  after_each(function()
    for _, server in ipairs(servers) do server:stop() end
    servers = {}
  end)
  lazy_teardown(function() os.remove(path) end)

  local function start(o)
    o.port, o.models = 0, o.models or { net = path }
    local server = moth.serve.spawn(o)
    servers[#servers + 1] = server
    return server
  end

  -- n clients for some seconds, while fn runs; the sums of their counts.
  local function load(server, n, seconds, fn, body)
    local pipes = {}
    for i = 1, n do
      pipes[i] = io.popen(("env -u LUA_PATH -u LUA_CPATH %s/moth spec/serve/load.lua %d %g %s '%s' 2>&1")
        :format(build, server.port, seconds, "/v2/models/net/infer", body or BODY))
    end
    system.sleep(0.3)
    fn()
    local sums = {}
    for _, pipe in ipairs(pipes) do
      for line in pipe:lines() do
        local key, count = line:match "^(%w+)\t(%d+)$"
        assert(key, line)
        sums[key] = (sums[key] or 0) + tonumber(count)
      end
      pipe:close()
    end
    return sums
  end

  local function wait_ready(server)
    for _ = 1, 500 do
      if server:get("/v2/health/ready").status == 200 then return end
      system.sleep(0.02)
    end
    error("not ready:\n" .. server:messages())
  end

  it("clients that send half, nothing, or leave; bodies at random", function()
    local server = start { limits = { connections = 200 } }
    local half, idle = server:connect(), {}
    half:send "POST /v2/models/net/infer HTTP/1.1\r\nhost: loc"
    for i = 1, 50 do idle[i] = server:connect() end
    for _ = 1, 20 do
      local client = server:connect()
      client:send(client.format("POST", "/v2/models/net/infer", BODY))
      client:close()
      client = server:connect()
      client:send(client.format("POST", "/v2/models/net/infer", BODY):sub(1, -10))
      client:close()
    end
    local client = server:connect()
    client:send "nonsense\r\n\r\n"
    assert.equal(400, (client:receive() or { status = 400 }).status)
    assert.equal(200, server:post("/v2/models/net/infer", BODY).status)
    for _, c in ipairs(idle) do c:close() end
    half:close()

    math.randomseed(tonumber(os.getenv "MOTH_SEED" or 5))
    local base = BODY:sub(1, -2) .. ',"id":"q","outputs":[{"name":"y1"}]}'
    local codes = {}
    for _ = 1, tonumber(os.getenv "MOTH_CASES" or 100) do
      local text = base
      for _ = 1, math.random(3) do
        local at, how = math.random(#text), math.random(4)
        local other = math.random(#text)
        if how == 1 then
          text = text:sub(1, at - 1) .. string.char(math.random(0, 255)) .. text:sub(at + 1)
        elseif how == 2 then
          text = text:sub(1, at) .. text:sub(other, other + 10) .. text:sub(at + 1)
        elseif how == 3 then
          text = text:sub(1, at) .. text:sub(at + math.random(8))
        else
          text = text:gsub("%d", function(d)
            return math.random(4) == 1 and ("%d"):format(10 ^ math.random(0, 12)) or d
          end)
        end
      end
      local headers = math.random(3) == 1
        and { ["inference-header-content-length"] = tostring(math.random(-1, #text + 2)) } or nil
      local answer = assert(server:post("/v2/models/net/infer", text, headers), text)
      codes[answer.status] = true
      assert.is_truthy(answer.status == 200 or answer.status == 400, answer.status .. " " .. text)
    end
    assert.is_true(codes[400])
    assert.not_matches("traceback", server:messages())
    assert.equal(200, server:post("/v2/models/net/infer", BODY).status)
  end)

  it("headers that raise errors in lua-http take no connection for ever", function()
    local server = start { limits = { connections = 6 } }
    for _ = 1, 10 do
      for _, wrong in ipairs { "content-length: -1", "transfer-encoding: gzip", "transfer-encoding: gzip, chunked" } do
        local client = server:connect()
        client:send("POST /v2/models/net/infer HTTP/1.1\r\nhost: localhost\r\n" .. wrong .. "\r\n\r\nabc")
        local answer = client:receive()
        assert.is_true(answer == nil or answer.status >= 400 and answer.status < 500, wrong)
        client:close()
      end
    end
    for i = 1, 10 do -- the second of two that were sent together is cut off, or damaged
      local client = server:connect()
      client:send(client.format("POST", "/v2/models/net/infer", BODY)
        .. ("GET /v2 HTTP/1.1\r\nhost: x\1\r\n"):sub(1, 3 * i))
      assert.equal(200, client:receive().status)
      client:close()
    end
    local client = server:connect()
    client:send(client.format("POST", "/v2/models/net/infer", BODY):rep(3))
    for _ = 1, 3 do assert.equal(200, client:receive().status) end
    client:close()
    assert.equal(200, server:post("/v2/models/net/infer", BODY).status)
    assert.not_matches("traceback", server:messages())
    assert.not_matches("attempt to", server:messages())
  end)

  it("a full queue and a long wait: 429 and 503 with Retry-After", function()
    local server = start { limits = { queue = 2, wait_ms = 150 }, step_timeout = 0.6 }
    shell("kill -STOP " .. engines(server)[1])
    local clients = {}
    for i = 1, 4 do
      clients[i] = server:connect()
      clients[i]:send(clients[i].format("POST", "/v2/models/net/infer", BODY))
      system.sleep(0.02)
    end
    local last = clients[4]:receive()
    assert.equal(429, last.status)
    assert.equal("1", last.headers["retry-after"])
    assert.equal(503, clients[2]:receive().status)
    assert.equal(200, server:get("/v2/health/live").status)
    assert.equal(503, clients[1]:receive().status) -- the engine is killed after step_timeout
    assert.equal(503, server:get("/v2/health/ready").status)
    assert.equal("1", server:post("/v2/models/net/infer", BODY).headers["retry-after"])
  end)

  it("reloads by the unix socket, and keeps the old model where the new one is broken", function()
    local server = start { admin = sockets }
    local admin = moth.serve.connect(sockets)
    local before = engines(server)[1]
    assert.equal(200, admin:request("POST", "/admin/reload/net", "").status)
    assert.equal(404, admin:request("POST", "/admin/reload/other", "").status)
    assert.equal(404, server:post("/admin/reload/net", "").status)
    assert.equal(200, server:post("/v2/models/net/infer", BODY).status)
    for _ = 1, 100 do
      if #engines(server) == 1 then break end
      system.sleep(0.02)
    end
    assert.not_equal(before, engines(server)[1])
    assert.equal("600\n", shell("stat -c %a " .. sockets))
    local kept = shell("cat " .. path)
    local file = io.open(path, "wb")
    file:write "broken"
    file:close()
    local answer = admin:request("POST", "/admin/reload/net", "")
    file = io.open(path, "wb")
    file:write(kept)
    file:close()
    assert.equal(500, answer.status)
    assert.matches("safetensors", answer.body)
    assert.equal(200, server:post("/v2/models/net/infer", BODY).status)
    -- nor where its tensors cannot be served
    moth.export.save(moth.export(function(x) return moth.complex(x, x) end, { moth.ones(2) }), path)
    answer = admin:request("POST", "/admin/reload/net", "")
    file = io.open(path, "wb")
    file:write(kept)
    file:close()
    assert.equal(500, answer.status)
    assert.matches("it has tensors of complex64, which cannot be served", answer.body, 1, true)
    assert.equal(200, server:post("/v2/models/net/infer", BODY).status)
    -- two at once: the second one follows the first
    local second = moth.serve.connect(sockets)
    second:send(second.format("POST", "/admin/reload/net", ""))
    assert.equal(200, admin:request("POST", "/admin/reload/net", "").status)
    assert.equal(200, second:receive().status)
    second:close()
    assert.equal(200, admin:request("POST", "/admin/stop", "").status)
    assert.equal(0, server:stop())
  end)

  it("kill -9 of the engine under load: 503, and 200 again #slow", function()
    local server = start {}
    local sums = load(server, 6, 5, function()
      for _ = 1, 2 do
        shell("kill -9 " .. engines(server)[1])
        system.sleep(0.2)
        wait_ready(server)
      end
    end)
    assert.is_nil(sums.lost)
    assert.is_true(sums["200"] > 100 and sums["503"] > 0, cjson.encode(sums))
    assert.is_nil(sums["500"])
    wait_ready(server)
  end)

  it("SIGSTOP of the engine under load: it is started again #slow", function()
    local server = start { step_timeout = 1 }
    local sums = load(server, 4, 5, function() shell("kill -STOP " .. engines(server)[1]) end)
    assert.is_true(sums["200"] > 0 and sums["503"] > 0 and not sums.lost, cjson.encode(sums))
    wait_ready(server)
    assert.equal(200, server:post("/v2/models/net/infer", BODY).status)
  end)

  it("ten reloads under load lose no request #slow", function()
    local server = start { admin = sockets }
    local sums = load(server, 6, 8, function()
      local admin = moth.serve.connect(sockets)
      for _ = 1, 10 do assert.equal(200, admin:request("POST", "/admin/reload/net", "").status) end
    end)
    assert.same({ "200" }, require("moth.lang.tree").keys(sums))
  end)

  it("a request that ends the engine twice is refused, others are not #slow", function()
    -- An engine that ends when the first value is 13.
    local server = start { models = { net = { engine = "dying_engine", options = {} } } }
    local bad = BODY:gsub("%[1,2", "[13,2")
    local sums = load(server, 4, 8, function()
      for _, wanted in ipairs { 503, 503, 422 } do
        assert.equal(wanted, server:post("/v2/models/net/infer", bad).status)
        if wanted == 503 then
          system.sleep(0.1)
          wait_ready(server)
        end
      end
    end)
    assert.is_nil(sums["422"], cjson.encode(sums))
    assert.equal(200, server:post("/v2/models/net/infer", BODY).status)
  end)

  it("SIGTERM answers what waits, and ends", function()
    local server = start { models = { net = { engine = "dying_engine", options = { pause = 0.3 } } } }
    local client = server:connect()
    client:send(client.format("POST", "/v2/models/net/infer", BODY))
    system.sleep(0.1)
    shell("kill -TERM " .. server.pid)
    system.sleep(0.05)
    assert.is_false((pcall(server.connect, server))) -- refused, and not left to wait
    assert.equal(200, client:receive().status)
    assert.equal(0, server:stop())
  end)

  it("SIGTERM says why it does not wait longer than drain", function()
    local server = start { drain = 0.05, models = { net = { engine = "dying_engine", options = { pause = 0.6 } } } }
    local client = server:connect()
    client:send(client.format("POST", "/v2/models/net/infer", BODY))
    system.sleep(0.1)
    shell("kill -TERM " .. server.pid)
    local answer = client:receive()
    assert.equal(503, answer.status)
    assert.matches("the server stops", answer.body)
    assert.equal(0, server:stop())
  end)

  it("SIGTERM waits for answers that are read, and bodies that are sent", function()
    local large = os.tmpname()
    finally(function() os.remove(large) end)
    moth.export.save(moth.export(function(x1) return x1:expand(-1, 1000000):clone() end, { moth.randn(2, 1) },
      { dynamic_shapes = { { [1] = moth.Dim("batch", { max = 64 }) } } }), large)
    local server = start { models = { net = path, large = large } }
    local reader, writer = server:connect(), server:connect()
    reader:send(reader.format("POST", "/v2/models/large/infer",
      '{"inputs":[{"name":"x1","shape":[8,1],"datatype":"FP32","data":[1,1,1,1,1,1,1,1]}]}'))
    local request = writer.format("POST", "/v2/models/net/infer", BODY)
    writer:send(request:sub(1, -20))
    system.sleep(0.5)
    os.execute("kill " .. server.pid)
    system.sleep(0.2)
    writer:send(request:sub(-19))
    assert.equal(200, (writer:receive() or {}).status)
    local answer = reader:receive()
    assert.equal(200, answer.status)
    assert.equal(8000000, select(2, answer.body:gsub("[%[,]1%f[,%]]", "")) + 0)
    reader:close()
    writer:close()
    assert.equal(0, server:stop())
  end)

  it("memory does not grow over ten thousand requests #slow", function()
    local server = start {}
    local function resident(pid) return tonumber(shell("grep VmRSS /proc/" .. pid .. "/status"):match "%d+") end
    local engine = engines(server)[1]
    load(server, 4, 5, function() end)
    local front, own = resident(server.pid), resident(engine)
    local sums = load(server, 4, 10, function() end)
    assert.is_true(sums["200"] > 5000, cjson.encode(sums))
    assert.is_true(resident(server.pid) < 1.1 * front + 4096, resident(server.pid) .. " after " .. front)
    assert.is_true(resident(engine) < 1.05 * own + 4096, resident(engine) .. " after " .. own)
  end)
end)
