--- A running moth serve with what no client should send: request lines, headers, chunks and lengths that are damaged,
-- requests cut off or sent one behind the other, clients that leave at any point; while another client asks for answers
-- all the time.
--
--     build/moth spec/fuzz/sockets.lua
--
-- MOTH_SEED (1), MOTH_CASES (5000 connections) or MOTH_SECONDS. Findings: a server that ends or answers no more, a
-- traceback in its messages, a status of 500, a request of the good client that is not answered by 200, memory that
-- grows.
local ffi = require "ffi"
local moth = require "moth"
local Chance = require "fuzz.chance"
local damage = require "fuzz.damage"
local now = require("moth.utils.system").now

local seed = tonumber(os.getenv("MOTH_SEED")) or 1
local cases = tonumber(os.getenv("MOTH_CASES")) or os.getenv("MOTH_SECONDS") and math.huge or 5000
local seconds = tonumber(os.getenv("MOTH_SECONDS")) or math.huge
local GROWTH = 1.25 -- of resident memory, from a quarter of the way on, and 16 MB

local path = os.tmpname()
moth.export.save(moth.export(function(x) return x * 2 end, { moth.randn(2, 4) },
  { dynamic_shapes = { { [1] = moth.Dim("batch", { max = 64 }) } } }), path)
local server = moth.serve.spawn { port = 0, models = { net = path }, limits = { body = 65536, connections = 200 } }

-- ---- inputs ------------------------------------------------------------------------------------------------------

local BODY = '{"inputs":[{"name":"x","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'
local lines = { "POST /v2/models/net/infer HTTP/1.1", "GET /v2/health/live HTTP/1.1", "GET /metrics HTTP/1.0",
  "GET  /v2 HTTP/1.1", "get / http/1.1", "GET /v2", "POST /v2/models/net/infer HTTP/9.9", "GET http://[::1/ HTTP/1.1",
  "GET /" .. ("a"):rep(9000) .. " HTTP/1.1", "PRI * HTTP/2.0", "\22\3\1\2\0\1\0\1\252\3\3", "CONNECT x:1 HTTP/1.1",
  "GET /%00%ff HTTP/1.1", "", "\0\0\0\0", "OPTIONS * HTTP/1.1", "HEAD /v2 HTTP/1.1", "GET /v2 HTTP/1.1\r\nX: y\r\n z" }
local headers = { "host: localhost", "host: a\r\nhost: b", "host:", "content-length: 5\r\ncontent-length: 6",
  "content-length: -1", "content-length: 18446744073709551616", "content-length: 99999999", "content-length: 0x10",
  "content-length: 3, 3", "transfer-encoding: chunked", "transfer-encoding: chunked, chunked",
  "transfer-encoding: gzip", "transfer-encoding: chunked\r\ncontent-length: 4", "expect: 100-continue",
  "expect: 200-ok", "connection: close", "connection: keep-alive", "connection: upgrade\r\nupgrade: h2c",
  "x-" .. ("y"):rep(5000) .. ": z", ": empty", "no colon", "a b: c", "\255: \254", "x: \0", "content-encoding: gzip",
  "inference-header-content-length: 99999", ("x: y\r\n"):rep(300) .. "x: z", "http2-settings: AAAA" }
local chunks = { "4\r\nabcd\r\n0\r\n\r\n", "ffffffffffffffff\r\nabc", "-1\r\n", "zz\r\n",
  "4;x=y\r\nabcd\r\n0\r\nt: u\r\n\r\n",
  "4\r\nabcdefgh", "0\r\n\r\n", "00000000000000000000004\r\nabcd\r\n0\r\n\r\n", "4\nabcd\n0\n\n", "" }

local function request(c)
  local line = c:one_in(3) and c:pick(lines) or lines[c:int(2)]
  local parts = { line }
  if not c:one_in(4) then parts[#parts + 1] = "host: localhost" end
  for _ = 1, c:int(0, 3) do parts[#parts + 1] = c:pick(headers) end
  local body = c:one_in(3) and c:pick(chunks) or c:one_in(3) and damage.bytes(c, BODY) or BODY
  if c:one_in(2) then parts[#parts + 1] = ("content-length: %d"):format(#body + (c:one_in(4) and c:int(-3, 3) or 0)) end
  local ending = c:one_in(12) and "\n" or "\r\n"
  return table.concat(parts, ending) .. ending .. ending .. body
end

local function bytes_of(c)
  local text = request(c)
  for _ = 2, c:pick { 1, 1, 1, 2, 5 } do text = text .. request(c) end -- one behind the other
  if c:one_in(3) then text = damage.bytes(c, text) end
  if c:one_in(4) then text = text:sub(1, c:int(0, #text)) end
  return text
end

-- ---- the run -----------------------------------------------------------------------------------------------------

local function resident()
  local n = 0
  local pipe = io.popen(("cat /proc/%d/status; for p in $(pgrep -P %d); do cat /proc/$p/status; done"):format(
    server.pid, server.pid))
  for kb in pipe:read("*a"):gmatch("VmRSS:%s*(%d+)") do n = n + tonumber(kb) end
  pipe:close()
  return n
end

local findings = 0
local function report(...)
  findings = findings + 1
  print(("✗ MOTH_SEED=%d %s"):format(seed, (...):format(select(2, ...))))
end

local patience = ffi.new("struct { int64_t s, us; }")

local good, asked = moth.serve.connect(server.port), 0
local function ask(i)
  local answer
  for _ = 1, 2 do -- a connection may have been closed meanwhile
    answer = good:request("POST", "/v2/models/net/infer", BODY)
    if answer then break end
    good:close()
    good = moth.serve.connect(server.port)
  end
  asked = asked + 1
  if not answer or answer.status ~= 200 then
    report("MOTH_EPISODE=%d a good request had %s", i, answer and answer.status or "no answer")
  end
  return answer ~= nil
end

local statuses, begun, i, base = {}, now(), 0, nil
while i < cases and now() - begun < seconds and findings < 5 do
  local c = Chance.new(seed, i)
  local text, client = bytes_of(c), moth.serve.connect(server.port)
  patience.us = c:one_in(50) and 200e3 or 20e3
  ffi.C.moth_setsockopt(client.fd, 1, 20, patience, 16) -- SO_RCVTIMEO
  client:send(text)
  if not c:one_in(4) then
    local ok, answer = pcall(client.receive, client) -- or it is closed, or waits for more
    local status = ok and answer and answer.status or "none"
    statuses[status] = (statuses[status] or 0) + 1
    if status == 500 then report("MOTH_EPISODE=%d 500: %s", i, answer.body) end
  end
  client:close()
  i = i + 1
  if i % 20 == 0 and not ask(i) then break end
  if i % 500 == 0 then
    if i >= math.min(cases, 20000) / 4 and not base then base = resident() end
    if server:messages():find("traceback", 1, true) then report("MOTH_EPISODE=%d %s", i, server:messages()) end
  end
end
local last = resident()
if base and last > GROWTH * base + 16384 then report("memory grew from %d to %d KB", base, last) end
good:close()
local code = server:stop()
if code ~= 0 then report("the server ended with %s:\n%s", tostring(code), server:messages()) end
os.remove(path)
local parts = {}
for status, n in require("moth.each")(statuses) do parts[#parts + 1] = ("%d %s"):format(n, status) end
print(("%s sockets: %d connections (%s), %d good requests, %.0f/s, memory %d to %d KB: %d findings"):format(
  findings == 0 and "✓" or "✗", i, table.concat(parts, ", "), asked, i / (now() - begun), base or last, last, findings))
os.exit(findings == 0 and 0 or 1)
