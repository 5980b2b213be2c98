-- HTTP/1.1 of moth.serve, byte by byte, with a handler of its own in a process of its own.
local moth = require "moth"
local each = require "moth.each"

local has_http = require("moth.serve.front").available()

local SERVER = [[
local front = require "moth.serve.front"
local listener
listener = front.listen { host = "127.0.0.1", port = 0, connections = 3, keep_alive = 0.7, handler = function(request)
  if request.path == "/echo" then
    local body, status, why = request:body(100000, 0.3)
    return request:respond(status and not body and status or 200, { "x-query", request.query }, body or why,
      body == nil)
  elseif request.path == "/stream" then
    request:begin(200, {})
    for i = 1, 3 do
      request:write("part " .. i)
      front.sleep(0.01)
    end
    return request:finish()
  elseif request.path == "/large" then
    return request:respond(200, {}, ("x"):rep(2 ^ 25))
  elseif request.path == "/none" then
    return request:respond(200, {}, "", true)
  elseif request.path == "/stop" then
    listener.pause()
    request:respond(200, {}, "")
    front.spawn(function() front.sleep(0.05) listener.close() front.stop() end)
    return
  elseif request.path == "/error" then
    error "planted"
  end
  return request:respond(200, { "content-type", "text/plain" }, request.method .. " " .. request.path)
end }
print(listener.port)
io.stdout:flush()
front.loop()
]]

(has_http and describe or pending)("moth.serve's HTTP #M428 #noasan", function()
  local file, child, port = os.tmpname(), nil, nil
  lazy_setup(function()
    local f = io.open(file, "w")
    f:write(SERVER)
    f:close()
    local build = os.getenv "MOTH_BUILD" or "build"
    child = io.popen(("env -u LUA_PATH -u LUA_CPATH %s/moth %s 2>&1"):format(build, file))
    port = tonumber(child:read "*l")
  end)
  lazy_teardown(function()
    assert.equal(200, moth.serve.connect(port):request("GET", "/stop").status)
    local rest = child:read "*a"
    child:close()
    os.remove(file)
    assert.matches("planted", rest)
  end)

  -- Sends bytes on a connection of their own; the answers until it ends or no more come.
  local function talk(bytes, n, method)
    local client = moth.serve.connect(port, { seconds = 2 })
    client:send(bytes)
    local list = {}
    for i = 1, n or 1 do list[i] = client:receive(nil, method) end
    local closed = not client:receive()
    client:close()
    return list, closed
  end

  -- The answer to bytes on a connection of their own; an empty table: none.
  local function first(bytes)
    local client = moth.serve.connect(port, { seconds = 2 })
    client:send(bytes)
    local answer = client:receive()
    client:close()
    return answer or {}
  end

  it("several requests in one piece, and one in many", function()
    local client = moth.serve.connect(port)
    client:send("\r\nGET /a HTTP/1.1\r\nHost: x\r\n\r\nPOST /echo?q=1 HTTP/1.1\r\nhost:x\r\nContent-Length:3\r\n\r\nabc"
      .. "HEAD /b HTTP/1.1\r\nHOST: x \r\n\r\nGET /c?d HTTP/1.1\r\nHost: x\r\n\r\n")
    assert.equal("GET /a", client:receive().body)
    local echo = client:receive()
    assert.equal("abc", echo.body)
    assert.equal("q=1", echo.headers["x-query"])
    local head = client:receive(nil, "HEAD")
    assert.matches("^7", head.headers["content-length"])
    assert.equal("GET /c", client:receive().body)
    local text = "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nhi"
    for i = 1, #text do client:send(text:sub(i, i)) end
    assert.equal("hi", client:receive().body)
    client:close()
  end)

  it("a stream in chunks; to HTTP/1.0 until the end", function()
    local parts = {}
    local client = moth.serve.connect(port)
    local answer = client:request("GET", "/stream", nil, nil, function(part) parts[#parts + 1] = part end)
    client:close()
    assert.equal(200, answer.status)
    assert.same({ "part 1", "part 2", "part 3" }, parts)
    local old, closed = talk("GET /stream HTTP/1.0\r\n\r\n")
    assert.equal("close", old[1].headers.connection)
    assert.is_true(closed)
    old, closed = talk("GET /a HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\nGET /b HTTP/1.0\r\n\r\n", 2)
    assert.equal("keep-alive", old[1].headers.connection)
    assert.equal("GET /b", old[2].body)
    assert.is_true(closed)
  end)

  it("refuses bodies without their length, too large ones and slow ones", function()
    for bytes, wanted in each {
      ["POST /echo HTTP/1.1\r\nhost: x\r\n\r\n"] = 411,
      ["POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 100001\r\n\r\n"] = 413,
      ["POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nab"] = 408,
    } do
      local list, closed = talk(bytes)
      assert.equal(wanted, (list[1] or {}).status, bytes:sub(1, 100))
      assert.is_true(closed, bytes:sub(1, 100))
    end
  end)

  it("reads bodies in chunks", function()
    local head = "POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    local whole = "3\r\nabc\r\n0A;note=\"x\"\r\ndefghijklm\r\n0\r\nsum: 1\r\n\r\n"
    local client = moth.serve.connect(port, { seconds = 2 })
    client:send(head .. "\r\n" .. whole .. head .. "\r\n0\r\n\r\n")
    assert.equal("abcdefghijklm", client:receive().body)
    assert.equal("", client:receive().body)
    for at = 1, #whole, 3 do -- cut anywhere
      client:send(head .. "\r\n" .. whole:sub(1, at))
      moth.utils.system.sleep(0.002)
      client:send(whole:sub(at + 1))
      assert.equal("abcdefghijklm", client:receive().body)
    end
    client:close()
    for _, case in ipairs { { 400, "zz\r\n" }, { 400, "-1\r\n" }, { 400, "123456789\r\n" }, { 400, "1\r\nab\r\n" },
      { 413, "fffffff\r\n" .. ("x"):rep(200000) }, { 408, "3\r\nab" } } do
      local list, closed = talk(head .. "\r\n" .. case[2])
      assert.equal(case[1], (list[1] or {}).status, case[2]:sub(1, 20))
      assert.is_true(closed)
    end
    for _, wrong in ipairs { head .. "content-length: 3\r\n", (head:gsub("1%.1", "1.0")), head .. head:match "tr.*" } do
      assert.equal(400, first(wrong .. "\r\n" .. whole).status, wrong)
    end
  end)

  it("reads compressed bodies", function()
    local abc = "\31\139\8\0\0\0\0\0\2\3KLJ\6\0\194A$5\3\0\0\0"
    local large = "\31\139\8\0\0\0\0\0\2\3\237\1931\1\0\0\0\194\160\218\139o\6\127\160" .. ("\0"):rep(193)
      .. "\128\215\0r\2\191Q@\13\3\0" -- 200,000 times "x"
    local function send(body, coding)
      return first(("POST /echo HTTP/1.1\r\nhost: x\r\ncontent-encoding: %s\r\ncontent-length: %d\r\n\r\n%s")
        :format(coding or "gzip", #body, body))
    end
    assert.equal("abc", send(abc).body)
    assert.equal("abcabc", send(abc .. abc, "GZIP").body)
    assert.equal(400, send(abc:sub(1, -2)).status)
    assert.equal(400, send("abc").status)
    assert.equal(413, send(large).status)
    assert.equal(415, send(abc, "deflate").status)
  end)

  it("reads what comes in pieces, wherever they are cut", function()
    local bytes = "GET /pieces HTTP/1.1\r\nhost: x\r\na: b\r\n\r\n"
    for _, at in ipairs { 1, 15, 22, 23, #bytes - 3, #bytes - 1 } do
      local client = moth.serve.connect(port, { seconds = 2 })
      client:send(bytes:sub(1, at))
      moth.utils.system.sleep(0.02)
      client:send(bytes:sub(at + 1))
      assert.equal("GET /pieces", client:receive().body, at)
      client:close()
    end
  end)

  it("answers what is no request, whole addresses, and two lengths", function()
    local function status(bytes) return first(bytes).status end
    assert.equal(400, status "GET / HTTP/3\r\n\r\n")
    assert.equal(400, status("GET /" .. ("a"):rep(9000) .. " HTTP/1.1\r\n\r\n"))
    assert.equal(400, status "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\nabc")
    assert.equal(413, status "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999\r\n\r\n")
    assert.equal("GET /a", first("GET http://x/a?b HTTP/1.1\r\nhost: y\r\n\r\n").body)
    assert.equal("GET /", first("GET http://x HTTP/1.1\r\nhost: y\r\n\r\n").body)
  end)

  it("an answer without a body that ends its connection arrives", function()
    local list, closed = talk "GET /none HTTP/1.1\r\nhost: x\r\n\r\n"
    assert.equal(200, (list[1] or {}).status)
    assert.is_true(closed)
  end)

  it("asks for a body that waits to be asked for", function()
    local client = moth.serve.connect(port)
    client:send "POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\nexpect: 100-continue\r\n\r\n"
    client:send "ab"
    assert.equal("ab", client:receive().body)
    client:close()
  end)

  it("closes connections on which nothing comes", function()
    local silent = {}
    for i = 1, 3 do silent[i] = moth.serve.connect(port, { seconds = 2 }) end
    local fourth = first "GET /next HTTP/1.1\r\nhost: x\r\n\r\n"
    for _, client in ipairs(silent) do client:close() end
    assert.equal("GET /next", fourth.body)
  end)

  it("an error of the handler, a client that does not read, more clients than places", function()
    local failed = moth.serve.connect(port, { seconds = 2 })
    failed:request("GET", "/error")
    failed:close()
    local lazy = moth.serve.connect(port, { seconds = 2 })
    lazy:send "GET /large HTTP/1.1\r\nhost: x\r\n\r\n"
    local other = moth.serve.connect(port, { seconds = 2 })
    assert.equal(200, other:request("GET", "/").status)
    other:close()
    lazy:close()
    local clients = {}
    for i = 1, 3 do
      clients[i] = moth.serve.connect(port, { seconds = 2 })
      assert.equal(200, clients[i]:request("GET", "/").status)
    end
    local fourth = moth.serve.connect(port, { seconds = 5 })
    fourth:send "GET /fourth HTTP/1.1\r\nhost: x\r\n\r\n"
    clients[1]:close()
    assert.equal("GET /fourth", fourth:receive().body)
    fourth:close()
    for _, client in ipairs(clients) do client:close() end
    local last, closed = talk "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    assert.equal(200, last[1].status)
    assert.is_true(closed)
  end)
end)
