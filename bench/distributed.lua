--- Process groups beside PyTorch's with Gloo, on this machine, in turn: two ranks of one thread each (four for the
-- start). See bench/README.md.
--   luajit bench/distributed.lua [rounds]
local rounds = tonumber(arg[1]) or 3
local system = require "moth.utils.system"

local function median(list)
  table.sort(list)
  return list[math.ceil(#list / 2)]
end

local port = 20000 + math.floor(system.now() * 1000) % 20000
-- link: the rate of a network of its own, in which the ranks run; nil: this machine's.
local function job(command, size, only, link)
  port = port + 1
  local commands = {}
  for rank = size - 1, 0, -1 do
    commands[#commands + 1] = ("RANK=%d WORLD_SIZE=%d MASTER_ADDR=127.0.0.1 MASTER_PORT=%d OMP_NUM_THREADS=1 "
      .. "ONLY=%s timeout 200 %s 2>/dev/null &"):format(rank, size, port, only or "", command)
  end
  local script = table.concat(commands, "\n") .. "\nwait"
  if link then
    script = ("unshare -rn sh -c 'ip link set lo up && tc qdisc add dev lo root tbf rate %s burst 256kb latency 200ms \z
      && { %s\n }' 2>/dev/null"):format(link, script)
  end
  local pipe = io.popen(script)
  local values = {}
  for line in pipe:lines() do
    local name, value = line:match "^(.-)\t(.*)$"
    if name then values[name] = tonumber(value) end
  end
  pipe:close()
  return values
end

-- Seconds for 100 MB one way between two sockets of this machine.
local function loopback()
  local pipe = io.popen([[python3 - <<'END'
import os, socket, time
s = socket.create_server(("127.0.0.1", 0)); n = 100 << 20
if os.fork() == 0:
    c = socket.create_connection(s.getsockname()); b = bytes(1 << 20)
    for _ in range(100): c.sendall(b)
    c.recv(1); os._exit(0)
c, _ = s.accept(); b = bytearray(4 << 20); t = time.perf_counter(); got = 0
while got < n: got += c.recv_into(b)
print(time.perf_counter() - t); c.send(b"x")
END]])
  local seconds = pipe:read "*n"
  pipe:close()
  return seconds
end

local LINK = os.getenv "LINK" or "4gbit"
local LUA, PYTHON = "luajit bench/distributed_rank.lua", "python3 bench/distributed_rank.py"
local all = { moth = {}, torch = {}, loopback = {} }
for i = 1, rounds do
  all.loopback[i] = loopback()
  for _, who in ipairs { "moth", "torch" } do
    local command = who == "moth" and LUA or PYTHON
    all[who][i] = job(command, 2)
    local four = job(command, 4, "init")
    all[who][i]["init of 4"], all[who][i]["start of 4"] = four.init, four.start
    -- A link that needs about as long as backward; sockets, since memory is no link.
    local slow = job("env MOTH_SHARED_MEMORY=0 " .. command, 2, "hidden", LINK)
    for name, value in pairs(slow) do all[who][i][name] = all[who][i][name] or value end
  end
end

local function of(who, name)
  local list = {}
  for _, values in ipairs(all[who]) do list[#list + 1] = values[name] end
  return #list > 0 and median(list) or nil
end

local function row(title, name, unit, digits)
  local m, t = of("moth", name), of("torch", name)
  local function text(x) return x and ("%." .. (digits or 2) .. "f"):format(x * (unit or 1)) or "-" end
  print(("%-44s %9s %9s %7s"):format(title, text(m), text(t), m and t and ("%.2f"):format(m / t) or ""))
end

print(("%-44s %9s %9s %7s"):format("", "moth", "PyTorch", "ratio"))
row("all_reduce of 4 KB, 2 ranks, us", "all_reduce 4 KB", 1e6, 0)
row("all_reduce of 1 MB, 2 ranks, ms", "all_reduce 1 MB", 1e3)
row("all_reduce of 25 MB, 2 ranks, ms", "all_reduce 25 MB", 1e3)
row("the same, best", "best all_reduce 25 MB", 1e3)
row("processor's seconds for a GB, calls of 25 MB", "cpu all_reduce 25 MB")
row("best all_reduce of 1 MB, ms", "best all_reduce 1 MB", 1e3)
row("joining, 2 ranks, ms", "init", 1e3, 1)
row("joining, 4 ranks, ms", "init of 4", 1e3, 1)
row("start and joining, 4 ranks, ms", "start of 4", 1e3, 0)
row("DDP step of the lab's CNN, batch 64, ms", "CNN step", 1e3, 1)
row("a parameter's hook of DDP, ns", "hook", 1e9, 0)
print("over a link of " .. LINK .. " that both directions share, nine layers of 512 x 512 in nine buckets:")
row("step alone, ms", "step alone", 1e3, 1)
row("communication alone, ms", "communication", 1e3, 1)
row("step of DDP, ms", "step with", 1e3, 1)
row("share of communication that backward hides", "hidden share")
row("the same by the records of a step", "share before the last gradient")
local way = 100 * 2 ^ 20 / median(all.loopback) / 1e9
local middle = of("moth", "all_reduce 25 MB")
print(("loopback one way %.2f GB/s; all_reduce of 25 MB %.2f GB/s: %.0f %%"):format(way, 25 * 2 ^ 20 / middle / 1e9,
  25 * 2 ^ 20 / middle / 1e9 / way * 100))
