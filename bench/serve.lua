-- moth serve under load: build/moth bench/serve.lua [seconds a row [rounds [folder of a language model]]]. Needs
-- lua-http and wrk (Debian packages); curl for the language model.
-- An MLP 784-2048-2048-10 with one thread, tensors in binary. Beside the times on the clock stand those of the
-- processor, front and engine apart: they hold on a machine with other work, too. Rows are measured in turn, so many
-- rounds; the medians are printed.
local moth = require "moth"

local seconds, rounds, folder = tonumber(arg[1]) or 3, tonumber(arg[2]) or 3, arg[3]
local model, script, plain = os.tmpname(), os.tmpname(), os.tmpname()

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

-- What wrk prints at its end: of its own, it has no 95th percentile.
local DONE = [[

function done(_, latency)
  for _, p in ipairs { 50, 95, 99 } do print(("p%d %d us"):format(p, latency:percentile(p))) end
end
]]

-- A request of so many rows, in binary, for wrk.
local function write_script(rows)
  local file = io.open(script, "w")
  file:write(([[
local head = '{"inputs":[{"name":"x1","shape":[%d,784],"datatype":"FP32","parameters":{"binary_data_size":%d}}],'
  .. '"parameters":{"binary_data_output":true}}'
wrk.method = "POST"
wrk.headers["Inference-Header-Content-Length"] = tostring(#head)
wrk.body = head .. ("\0\0\128\63"):rep(784 * %d)
]]):format(rows, rows * 3136, rows) .. DONE)
  file:close()
end
write_script(1)
local file = io.open(plain, "w")
file:write(DONE)
file:close()

-- Seconds of processor that a process has taken.
local function cpu(pid)
  local fields = {}
  for word in shell("cat /proc/" .. pid .. "/stat"):match("%) (.*)"):gmatch "%S+" do fields[#fields + 1] = word end
  return (fields[12] + fields[13]) / 100
end

-- What wrk says: { rate, p50, p95, p99 (ms), bad }.
local function wrk(server, clients, path, with_script)
  local text = shell(("wrk -t1 -c%d -d%d --timeout 20 -s %s %s%s 2>&1"):format(clients, seconds,
    with_script and script or plain, server.url, path))
  local rate = text:match "Requests/sec: +([%d.]+)"
  if not rate then error(text, 0) end
  local function percentile(p) return text:match("p" .. p .. " (%d+) us") / 1000 end
  return { rate = tonumber(rate), p50 = percentile(50), p95 = percentile(95), p99 = percentile(99),
    bad = tonumber(text:match "Non%-2xx or 3xx responses: (%d+)") or 0, n = tonumber(text:match "(%d+) requests in") }
end

local function engine_of(server) return tonumber(shell("pgrep -P " .. server.pid):match "%d+") end

local function load_of_machine() return shell("cat /proc/loadavg"):match "%S+" end

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

local names, samples = {}, {} -- of the table, in order; what was measured of each

local function measure(server, name, clients, path, with_script)
  local engine = engine_of(server)
  local front_before, engine_before = cpu(server.pid), cpu(engine)
  local r = wrk(server, clients, path, with_script)
  r.front, r.engine = (cpu(server.pid) - front_before) / r.n, (cpu(engine) - engine_before) / r.n
  if r.bad > 0 then error(("%s: %d answers are not 200"):format(name, r.bad), 0) end
  if not samples[name] then
    names[#names + 1], samples[name] = name, {}
  end
  table.insert(samples[name], r)
end

local function of(name, what)
  local list = {}
  for i, r in ipairs(samples[name]) do list[i] = r[what] end
  return median(list)
end

local function start(max_size, delay)
  return moth.serve.spawn { port = 0, threads = 1, models = { mlp = model },
    batching = { max_size = max_size, max_delay_ms = delay or 0 } }
end

print(("the program itself, one thread, load %s:"):format(load_of_machine()))
moth.set_num_threads(1)
local program, one_row, own = moth.export.load(model), moth.randn(1, 784), {}
moth.benchmark.latency(program, { batch_sizes = { 1, 8, 16, 32 }, seconds = seconds / 3 })

-- Milliseconds of one row in this process.
local function in_process()
  local list = {}
  for i = 1, 300 do
    local begun = moth.utils.system.now()
    program(one_row)
    list[i] = (moth.utils.system.now() - begun) * 1e3
  end
  return median(list)
end

local infer = "/v2/models/mlp/infer"
local apart, joined, delayed = start(1), start(32), start(32, 5)
local first_load = load_of_machine()
for r = 1, rounds do
  own[r] = in_process()
  measure(apart, "one by one, 1 client", 1, infer, true)
  measure(apart, "one by one, 32 clients", 32, infer, true)
  measure(joined, "batches of at most 32, 1 client", 1, infer, true)
  measure(joined, "batches of at most 32, 32 clients", 32, infer, true)
  measure(delayed, "and 5 ms delay, 32 clients", 32, infer, true)
  local load = io.popen(("wrk -t1 -c32 -d%d -s %s %s%s >/dev/null 2>&1"):format(seconds + 1, script, joined.url, infer))
  measure(joined, "health under that load", 1, "/v2/health/ready")
  load:close()
  measure(joined, "empty requests, 8 clients", 8, "/v2/health/live")
  for _, rows in ipairs { 8, 32 } do
    write_script(rows)
    measure(joined, ("requests of %d rows, 1 client"):format(rows), 1, infer, true)
  end
  write_script(1)
end
print(("\n| load %s to %s | requests/s | p50 ms | p95 ms | p99 ms | front, µs of processor a request | engine |")
  :format(first_load, load_of_machine()))
print "|---|---|---|---|---|---|---|"
for _, name in ipairs(names) do
  local other = name:find "^health" ~= nil -- what the processes do there is mostly another's
  print(("| %s | %.0f | %.2f | %.2f | %.2f | %s | %s |"):format(name, of(name, "rate"), of(name, "p50"),
    of(name, "p95"), of(name, "p99"), other and "" or ("%.0f"):format(of(name, "front") * 1e6),
    other and "" or ("%.0f"):format(of(name, "engine") * 1e6)))
end
local metrics = joined:get("/metrics").body
local compute = metrics:match 'moth_compute_seconds_sum{model="mlp"} (%S+)'
  / metrics:match 'moth_compute_seconds_count{model="mlp"} (%S+)'
local rows = metrics:match 'moth_batch_rows_sum{model="mlp"} (%S+)'
  / metrics:match 'moth_batch_rows_count{model="mlp"} (%S+)'
local alone, together = "one by one, 32 clients", "batches of at most 32, 32 clients"
print(("\nbatches gain %.1f times on the clock, %.1f times on the engine's processor; %.1f rows and %.2f ms a batch "
  .. "over all; a lone client waits %.2f ms, %.2f in this process"):format(of(together, "rate") / of(alone, "rate"),
  of(alone, "engine") / of(together, "engine"), rows, compute * 1e3,
  of("one by one, 1 client", "p50"), median(own)))
for _, server in ipairs { apart, joined, delayed } do server:stop() end
for _, name in ipairs { model, script, plain } do os.remove(name) end

-- ---- a language model, by one client and by eight -------------------------------------------------------

if folder then
  local json = require "cjson"
  local server = moth.serve.spawn { port = 0, threads = 1, models = { lm = folder } }
  local function tokens_per_second(clients)
    local requests, pipes, tokens, begun = {}, {}, 0, moth.utils.system.now()
    for i = 1, clients do
      local ids = {}
      for k = 1, 32 do ids[k] = (k * 7919 + i * 104729) % 400 end
      requests[i] = os.tmpname()
      local body = io.open(requests[i], "w")
      body:write(json.encode { model = "lm", prompt = ids, max_tokens = 48, temperature = 0 })
      body:close()
      pipes[i] = io.popen(("curl --silent --data @%s %s/v1/completions"):format(requests[i], server.url))
    end
    for i, pipe in ipairs(pipes) do
      tokens = tokens + json.decode(pipe:read "*a").usage.completion_tokens
      pipe:close()
      os.remove(requests[i])
    end
    return tokens / (moth.utils.system.now() - begun)
  end
  tokens_per_second(1)
  local one, eight, ratio = {}, {}, {}
  for r = 1, rounds do
    one[r], eight[r] = tokens_per_second(1), tokens_per_second(8)
    ratio[r] = eight[r] / one[r]
  end
  print(("language model, one thread, load %s: 1 client %.1f tokens/s, 8 clients %.1f: %.1f times"):format(
    load_of_machine(), median(one), median(eight), median(ratio)))
  server:stop()
end
