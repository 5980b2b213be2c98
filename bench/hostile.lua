-- moth serve under attack: build/moth bench/hostile.lua [seconds a row [rounds [attackers]]]. Needs lua-http.
-- A small random GPT of 1,024 positions with a byte-pair tokenizer learned from the sources of moth. One client asks
-- for one token at a time, quiet and beside attackers in turn, so many rounds. Attackers are processes that run only
-- where a processor has nothing else to do (chrt --idle), as those of other machines would. "Alone": five requests, one
-- behind the other, which the server makes wait for each other; their processor time is the front's and the engine's.
local moth = require "moth"
local cjson = require "cjson"
local each = require "moth.each"
local now = require("moth.utils.system").now

local POSITIONS, MERGES = 1024, 1500

-- ---- a model -------------------------------------------------------------------------------------------------

local function shell(command)
  local pipe = io.popen(command)
  local text = pipe:read "*a"
  pipe:close()
  return (text:gsub("%s+$", ""))
end

-- GPT-2's table of the characters that stand for bytes.
local function shown_bytes()
  local shown, extra = {}, 256
  for b = 0, 255 do
    local plain = b >= 33 and b <= 126 or b >= 161 and b <= 172 or b >= 174
    local c = plain and b or extra
    if not plain then extra = extra + 1 end
    shown[b] = c < 128 and string.char(c) or string.char(192 + math.floor(c / 64), 128 + c % 64)
  end
  return shown
end

-- Merges of byte pairs, the most frequent first, of the words of a text; and runs of blanks, as such tokenizers have.
local function learn(text)
  local shown, words, count = shown_bytes(), {}, {}
  for word in text:gmatch " ?%w+" do count[word] = (count[word] or 0) + 1 end
  for word, n in each(count) do
    local w = { n = n }
    for i = 1, #word do w[i] = shown[word:byte(i)] end
    words[#words + 1] = w
  end
  local merges, vocab = {}, {}
  for b = 0, 255 do vocab[#vocab + 1] = shown[b] end
  local run = shown[32]
  for _ = 1, 6 do -- up to 64 blanks
    merges[#merges + 1] = { run, run }
    run = run .. run
    vocab[#vocab + 1] = run
  end
  local seen = {}
  for _, token in ipairs(vocab) do seen[token] = true end
  while #merges < MERGES do
    local pairs_of, best, most = {}, nil, 0
    for _, w in ipairs(words) do
      for i = 1, #w - 1 do
        local key = w[i] .. "\n" .. w[i + 1]
        pairs_of[key] = (pairs_of[key] or 0) + w.n
      end
    end
    for key, n in each(pairs_of) do
      if n > most then best, most = key, n end
    end
    local a, b = best:match "^(.-)\n(.*)$"
    for _, w in ipairs(words) do
      local i = 1
      while i < #w do
        if w[i] == a and w[i + 1] == b then
          w[i] = a .. b
          table.remove(w, i + 1)
        end
        i = i + 1
      end
    end
    merges[#merges + 1] = { a, b }
    if not seen[a .. b] then vocab[#vocab + 1], seen[a .. b] = a .. b, true end
  end
  return vocab, merges
end

local function write(path, text)
  local f = assert(io.open(path, "wb"))
  f:write(text)
  f:close()
end

local function make_model(folder)
  os.execute("mkdir -p " .. folder)
  local vocab, merges = learn(shell "cat lua/moth/nn/*.lua lua/moth/llm/*.lua")
  local ids = {}
  for i, token in ipairs(vocab) do ids[token] = i - 1 end
  write(folder .. "/tokenizer.json", cjson.encode { version = "1.0", added_tokens = cjson.empty_array,
    pre_tokenizer = { type = "ByteLevel", add_prefix_space = false, trim_offsets = true, use_regex = true },
    decoder = { type = "ByteLevel", add_prefix_space = true, trim_offsets = true, use_regex = true },
    model = { type = "BPE", vocab = ids, merges = merges } })
  local net = moth.models.GPT { vocab_size = #vocab, n_layer = 2, n_head = 4, n_embd = 64, block_size = POSITIONS }
  moth.models.save_gguf(net, folder .. "/model.gguf", { tokenizer = moth.data.Tokenizer(folder .. "/tokenizer.json") })
  return folder .. "/model.gguf"
end

-- ---- attacks ---------------------------------------------------------------------------------------------------

local function request(fields)
  fields.model = "gpt"
  return { "POST", fields.messages and "/v1/chat/completions" or "/v1/completions", cjson.encode(fields) }
end

-- By name: what one request is, of a server that takes texts of so many bytes; or what a process does in its stead.
local attacks = {
  { "prompt of 15 MB", function() return request { prompt = ("ab cd "):rep(2.5 * 2 ^ 20), max_tokens = 1 } end },
  { "a word just below the bound", function(most) return request { prompt = ("ab"):rep(most / 2) } end },
  { "blanks just below the bound", function(most) return request { prompt = (" "):rep(most - 64) .. "a" } end },
  { "words just below the bound", function(most) return request { prompt = ("a b "):rep(most / 4) } end },
  { "chat just below the bound", function(most)
    return request { messages = { { role = "user", content = ("é?"):rep(most / 3 - 8) } }, max_tokens = 1 }
  end },
  { "900 KB of nested lists", function()
    return { "POST", "/v1/completions", '{"model":"gpt","prompt":[' .. ("[],"):rep(2.6e5) .. "[]]}" }
  end },
  { "900 KB of nested objects", function()
    return { "POST", "/v1/completions", '{"model":"gpt","prompt":' .. ('{"a":'):rep(50) .. "1" .. ("}"):rep(50)
      .. ',"x":[' .. ("{},"):rep(2.6e5) .. "{}]}" }
  end },
  { "900 KB of numbers", function()
    return { "POST", "/v1/completions", '{"model":"gpt","prompt":[' .. ("1,"):rep(450000) .. "1]}" }
  end },
  { "900 KB of fields", function()
    local fields = {}
    for i = 1, 70000 do fields[i] = ('"k%d":1'):format(i) end
    return { "POST", "/v1/completions", '{"model":"gpt","prompt":"a",' .. table.concat(fields, ",") .. "}" }
  end },
  { "16 stop texts of 60 KB", function()
    local stop = {}
    for i = 1, 16 do stop[i] = ("x"):rep(60000) .. i end
    return request { prompt = "a", max_tokens = 1, stop = stop }
  end },
  { "gzip of 16 MB", function()
    local path = os.tmpname()
    os.execute(("head -c 16000000 /dev/zero | gzip -9 > %s"):format(path))
    local f = io.open(path, "rb")
    local body = f:read "*a"
    f:close()
    os.remove(path)
    return { "POST", "/v1/completions", body, { ["content-encoding"] = "gzip" } }
  end },
  { "2,048 messages", function()
    local messages = {}
    for i = 1, 2048 do messages[i] = { role = "user", content = "a b c" } end
    return request { messages = messages, max_tokens = 1 }
  end },
  -- These hold connections rather than ask.
  { "slow bodies", hold = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    .. "content-length: 60000\r\n\r\n", drip = true },
  { "slow headers", hold = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n", drip = true },
  { "silent connections", hold = "" },
  { "connections that come and go", hold = "GET /v2/health/live HTTP/1.1\r\nhost: localhost\r\n\r\n", leave = true },
}

local function named(name)
  for _, a in ipairs(attacks) do
    if a[1] == name then return a end
  end
end

if arg[1] == "attack" then -- a process: port, name, bytes
  local port, attack, most = tonumber(arg[2]), named(arg[3]), tonumber(arg[4])
  local connect = require("moth.serve.client").connect
  local bytes = attack[2] and require("moth.serve.client").Client.format(unpack(attack[2](most), 1, 4))
  local held = {}
  while true do
    local ok, client = pcall(connect, port)
    if ok and bytes then
      local answer = client:send(bytes) and client:receive()
      if answer then io.write(answer.status, "\n"):flush() end
      client:close()
    elseif ok then
      client:send(attack.hold)
      if attack.leave then
        client:close()
      else
        held[#held + 1] = client
        if #held > 60 then table.remove(held, 1):close() end
      end
      if attack.drip then
        for _, c in ipairs(held) do c:send "a" end
      end
    end
  end
end

-- ---- measuring -------------------------------------------------------------------------------------------------

local seconds, rounds, attackers = tonumber(arg[1]) or 3, tonumber(arg[2]) or 5, tonumber(arg[3]) or 16
local only = arg[4]
local folder = os.tmpname() .. ".hostile"
local model = make_model(folder)
local server = moth.serve.spawn { port = 0, threads = 1, models = { gpt = moth.serve.llm(model, { max_seqs = 4 }) } }
local engine = tonumber(shell("pgrep -P " .. server.pid):match "%d+")
local small = cjson.encode { model = "gpt", prompt = "local a", max_tokens = 1, temperature = 0 }
local most = POSITIONS * moth.data.Tokenizer(folder .. "/tokenizer.json"):longest_token()

local function status_of(pid, field)
  local f = io.open(("/proc/%d/status"):format(pid))
  local text = f:read "*a"
  f:close()
  return tonumber(text:match(field .. ":%s*(%d+)")) / 1024
end
local function cpu(pid)
  local fields = {}
  for word in shell(("cat /proc/%d/stat"):format(pid)):match("%) (.*)"):gmatch "%S+" do fields[#fields + 1] = word end
  return (fields[12] + fields[13]) / 100
end

-- The times of small requests for so many seconds, sorted (ms).
local function ask(client)
  local list, stop = {}, now() + seconds
  repeat
    local begun = now()
    local answer = client:request("POST", "/v1/completions", small)
    if answer and answer.status == 200 then list[#list + 1] = (now() - begun) * 1e3 end
    if not answer or answer.status ~= 200 then list.bad = (list.bad or 0) + 1 end
    moth.utils.system.sleep(0.002)
  until now() > stop
  table.sort(list)
  return list
end
local function at(list, q) return list[math.max(1, math.ceil(q * #list))] or math.huge end
local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end
local function load_of_machine() return shell("cat /proc/loadavg"):match "%S+" end

local function reset_peaks()
  for _, pid in ipairs { server.pid, engine } do os.execute(("echo 5 > /proc/%d/clear_refs"):format(pid)) end
end

-- One request alone: ms until its answer, status, MB more at the peak, ms of the server's processors.
local function alone(attack)
  if not attack[2] then return "", "", "" end
  local r, times, status = attack[2](most), {}, nil
  local more, before_cpu = 0, cpu(server.pid) + cpu(engine)
  for i = 1, 5 do
    local before = status_of(server.pid, "VmRSS") + status_of(engine, "VmRSS")
    reset_peaks()
    local begun = now()
    local answer = server:post(r[2], r[3], r[4])
    times[i], status = (now() - begun) * 1e3, answer and answer.status or 0
    more = math.max(more, status_of(server.pid, "VmHWM") + status_of(engine, "VmHWM") - before)
  end
  return ("%.1f"):format(median(times)), ("%.1f"):format((cpu(server.pid) + cpu(engine) - before_cpu) / 5 * 1e3),
    ("%.0f"):format(more), status
end

local P = require("moth_lua").process
local function attack_with(attack)
  local list = {}
  local words = { "chrt", "--idle", "0", unpack(require("moth.distributed.run").interpreter()) }
  for _, word in ipairs { "bench/hostile.lua", "attack", tostring(server.port), attack[1], tostring(most) } do
    words[#words + 1] = word
  end
  for i = 1, attackers do
    local pid, o, e, input = P.start(words, { "LUA_PATH=" .. package.path, "LUA_CPATH=" .. package.cpath,
      "MOTH_LUAJIT_WARNING=0" }, true)
    list[i] = { pid = pid, out = o, err = e, input = input }
  end
  return function()
    for _, p in ipairs(list) do P.signal(p.pid, "KILL") end
    local answers = 0
    for _, p in ipairs(list) do
      while true do
        local bytes = P.read(p.out)
        if not bytes then
          if #P.wait({ p.out }, 0.01) == 0 or not P.read(p.out) then break end
        else
          answers = answers + select(2, bytes:gsub("\n", ""))
        end
      end
      while not P.ended(p.pid) do P.wait({}, 0.002) end
      for _, fd in ipairs { p.out, p.err, p.input } do P.close(fd) end
    end
    return answers
  end
end

io.stdout:setvbuf "no"
print(("%d attackers, rounds of %g s: %d; texts of at most %d bytes; load %s"):format(attackers, seconds, rounds, most,
  load_of_machine()))
print("| attack | alone: status, ms, ms of processor, MB more | answers/s | p50 ms, quiet, attacked "
  .. "| p99 ms, quiet, attacked | ratio | MB, front, engine | failed |")
print "|---|---|---|---|---|---|---|---|"
local client = server:connect()
ask(client)
for _, attack in ipairs(attacks) do
  if not only or attack[1]:find(only, 1, true) then
    local ms, ticks, mb, status = alone(attack)
    local p50, p99, q50, q99, ratios, answers, bad = {}, {}, {}, {}, {}, 0, 0
    reset_peaks()
    for r = 1, rounds do
      local quiet = ask(client)
      local stop = attack_with(attack)
      moth.utils.system.sleep(0.5)
      local list = ask(client)
      answers, bad = answers + stop(), bad + (list.bad or 0)
      q50[r], q99[r], p50[r], p99[r] = at(quiet, 0.5), at(quiet, 0.99), at(list, 0.5), at(list, 0.99)
      ratios[r] = p99[r] / q99[r]
    end
    print(("| %s | %s, %s, %s, %s | %.0f | %.2f, %.2f | %.2f, %.2f | %.2f | %.0f, %.0f | %d |"):format(attack[1],
      status or "", ms, ticks, mb, answers / rounds / (seconds + 0.5), median(q50), median(p50), median(q99),
      median(p99), median(ratios), status_of(server.pid, "VmHWM"), status_of(engine, "VmHWM"), bad))
  end
end
print("load " .. load_of_machine())
client:close()
server:stop()
os.execute("rm -r " .. folder)
