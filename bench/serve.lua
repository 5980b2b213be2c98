-- moth serve under load: build/moth bench/serve.lua [seconds a row]. Needs lua-http and wrk (Debian packages).
-- An MLP 784-2048-2048-10 with one thread, tensors in binary. Beside the times on the clock stand those of the
-- processor, front and engine apart: they hold on a machine with other work, too.
local moth = require "moth"

local seconds = tonumber(arg[1]) or 5
local model, script = os.tmpname(), os.tmpname()

local function shell(command)
  local pipe = io.popen(command)
  local text = pipe:read "*a"
  pipe:close()
  return text
end
if shell "command -v wrk" == "" then error("bench/serve.lua needs wrk (Debian: apt-get install wrk)", 0) end

local nn = moth.nn
local net = nn.Sequential(nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)):eval()
local batch = { { [1] = moth.Dim("batch", { max = 256 }) } }
moth.export.save(moth.export(net, { moth.randn(2, 784) }, { dynamic_shapes = batch }), model)

local file = io.open(script, "w")
file:write [[
local head = '{"inputs":[{"name":"x1","shape":[1,784],"datatype":"FP32","parameters":{"binary_data_size":3136}}],'
  .. '"parameters":{"binary_data_output":true}}'
wrk.method = "POST"
wrk.headers["Inference-Header-Content-Length"] = tostring(#head)
wrk.body = head .. ("\0\0\128\63"):rep(784)
]]
file:close()

-- Seconds of processor that a process has taken.
local function cpu(pid)
  local fields = {}
  for word in shell("cat /proc/" .. pid .. "/stat"):match("%) (.*)"):gmatch "%S+" do fields[#fields + 1] = word end
  return (fields[12] + fields[13]) / 100
end

local function milliseconds(text)
  local n, unit = text:match "([%d.]+)(%a+)"
  return tonumber(n) * (unit == "us" and 1e-3 or unit == "s" and 1e3 or 1)
end

-- What wrk says: { rate, p50, p99 (ms), bad }.
local function wrk(server, clients, path, with_script)
  local text = shell(("wrk -t1 -c%d -d%g --timeout 20 --latency %s %s%s 2>&1"):format(clients, seconds,
    with_script and "-s " .. script or "", server.url, path))
  local rate = text:match "Requests/sec: +([%d.]+)"
  if not rate then error(text, 0) end
  return { rate = tonumber(rate), p50 = milliseconds(text:match "50%% +(%S+)"),
    p99 = milliseconds(text:match "99%% +(%S+)"), bad = tonumber(text:match "Non%-2xx or 3xx responses: (%d+)") or 0,
    n = tonumber(text:match "(%d+) requests in") }
end

local function engine_of(server) return tonumber(shell("pgrep -P " .. server.pid):match "%d+") end

local function print_row(name, r)
  print(("| %s | %.0f | %.2f | %.2f | %s | %s |"):format(name, r.rate, r.p50, r.p99,
    r.front and ("%.0f"):format(r.front * 1e6) or "", r.engine and ("%.0f"):format(r.engine * 1e6) or ""))
end

local function measure(server, name, clients, path, with_script)
  local engine = engine_of(server)
  local front_before, engine_before = cpu(server.pid), cpu(engine)
  local r = wrk(server, clients, path, with_script)
  r.front, r.engine = (cpu(server.pid) - front_before) / r.n, (cpu(engine) - engine_before) / r.n
  print_row(name .. (r.bad > 0 and (" (%d refused)"):format(r.bad) or ""), r)
  return r
end

local function start(max_size, delay)
  return moth.serve.spawn { port = 0, threads = 1, models = { mlp = model },
    batching = { max_size = max_size, max_delay_ms = delay or 0 } }
end

print(("load of the machine: %s"):format(shell("cat /proc/loadavg"):match "%S+"))
print "| | requests/s | p50 ms | p99 ms | front, µs of processor a request | engine, the same |"
print "|---|---|---|---|---|---|"
local infer = "/v2/models/mlp/infer"
local server = start(1)
measure(server, "one by one, 1 client", 1, infer, true)
local alone = measure(server, "one by one, 32 clients", 32, infer, true)
server:stop()
server = start(32)
local one = measure(server, "batches of at most 32, 1 client", 1, infer, true)
local metrics = server:get("/metrics").body
local compute = metrics:match 'moth_compute_seconds_sum{model="mlp"} (%S+)'
  / metrics:match 'moth_compute_seconds_count{model="mlp"} (%S+)'
local together = measure(server, "batches of at most 32, 32 clients", 32, infer, true)
local load = io.popen(("wrk -t1 -c32 -d%g -s %s %s%s >/dev/null 2>&1"):format(seconds + 1, script, server.url, infer))
local health = wrk(server, 1, "/v2/health/ready")
print_row("health under that load", health)
load:close()
measure(server, "empty requests, 8 clients", 8, "/v2/health/live")
server:stop()
server = start(32, 5)
measure(server, "and 5 ms delay, 32 clients", 32, infer, true)
server:stop()
print(("\nbatches gain %.1f times on the clock, %.1f times on the engine's processor; a lone client waits %.2f ms "
  .. "beside the engine's %.2f"):format(together.rate / alone.rate, alone.engine / together.engine,
  one.p50 - compute * 1e3,
  compute * 1e3))
os.remove(model)
os.remove(script)
