--- Random runs of ranks that train with checkpoints while something goes wrong: a rank or the launcher is killed, the
-- disk is full, a host is cut off for 5 s. Each run must survive, or end with an error that says what went wrong;
-- started again, it must go on from its last checkpoint and end with the same weights, to the bit, as a run that
-- nothing happened to.
--   build/moth bench/kills.lua [runs, 100] [seed] [kind: rank, launcher, disk, cut]
-- Needs root for "disk" (a small tmpfs) and "cut" (network namespaces); without it these are left out. Some 8 s a run.
-- KILLS_SHOW=1: what each job says.
local system = require "moth.utils.system"

local o = require "moth.cli" { { "[RUNS]", "", 100, min = 1, type = "integer" },
  { "[SEED]", "", 1, min = 0, type = "integer" },
  { "[KIND]", "the only one", choices = { "rank", "launcher", "disk", "cut" } } }
local RUNS, SEED, ONLY = o.runs, o.seed, o.kind
local MOTH = (os.getenv "MOTH_BUILD" or "build") .. "/moth"
local STEPS = 40

local function shell(command)
  local pipe = io.popen(("( %s\n) 2>&1; echo status=$?"):format(command))
  local text, status = pipe:read("*a"):match "^(.*)status=(%d+)%s*$"
  pipe:close()
  return text, tonumber(status)
end

local DIR = os.tmpname()
os.remove(DIR)
assert(os.execute("mkdir " .. DIR) == 0)

-- Trains; state and checkpoints in DIR/<name>. Prints the weights at the end.
local program = DIR .. "/train.lua"
local f = assert(io.open(program, "w"))
f:write(([[
local moth, dist = require "moth", require "moth.distributed"
local nn = moth.nn
local dir, STEPS = os.getenv "KILLS_DIR", %d
dist.init_process_group(os.getenv "KILLS_BACKEND" or "gloo", { timeout = 8 })
local rank, size = dist.get_rank(), dist.get_world_size()
moth.manual_seed(7)
local net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 8))
dist.fully_shard(net[1])
dist.fully_shard(net)
local opt = moth.optim.AdamW(net:parameters(), { lr = 0.01 })
local first = 1
local latest = io.open(dir .. "/latest")
if latest then
  local step = latest:read "*n"
  latest:close()
  dist.checkpoint.load({ model = net, optim = opt }, ("%%s/step%%d"):format(dir, step))
  first = step + 1
  if rank == 0 then print("resumed at", first) end
end
for step = first, STEPS do
  moth.manual_seed(1000 * step + rank)
  local x = moth.randn(16, 32)
  opt:zero_grad()
  net(x):pow(2):mean():backward()
  opt:step()
  local until_ = require("moth.utils.system").now() + 0.04 -- as long as a step of a larger model
  while require("moth.utils.system").now() < until_ do end
  if step %% 5 == 0 then
    dist.checkpoint.save({ model = net, optim = opt }, ("%%s/step%%d"):format(dir, step))
    if rank == 0 then
      local f = assert(io.open(dir .. "/latest.new", "w"))
      assert(f:write(step, "\n"))
      assert(f:close())
      assert(os.rename(dir .. "/latest.new", dir .. "/latest"))
    end
    dist.barrier()
  end
end
local sum = 0 -- of this rank's parts; each element has a weight of its own
for _, p in ipairs(net:parameters()) do
  local t = p:detach():flatten():to(moth.float64)
  sum = sum + (t * moth.arange(1, t:numel() + 1, { dtype = moth.float64 })):sum():item()
end
local sums = dist.all_gather_object(("%%.17g"):format(sum))
if rank == 0 then print("weights " .. table.concat(sums, ",")) end
dist.destroy_process_group()
]]):format(STEPS))
f:close()

local function launch(dir, n, more)
  return ("KILLS_DIR=%s OMP_NUM_THREADS=1 timeout -s KILL 90 %s run --nproc-per-node %d %s %s"):format(dir, MOTH, n,
    more or "", program)
end

-- What a run of n ranks ends with that nothing happens to.
local clean = {}
local function expected(n)
  if not clean[n] then
    local dir = ("%s/clean%d"):format(DIR, n)
    os.execute("mkdir " .. dir)
    local text = shell(launch(dir, n))
    clean[n] = assert(text:match "weights (%S+)", text)
  end
  return clean[n]
end

local state = SEED
local function random(n) -- 0 … n - 1
  state = (state * 1103515245 + 12345) % 2 ^ 31
  return math.floor(state / 65536) % n
end

local faults = {}
-- Each runs the job with a fault in it: its output, its exit code, patterns of which one must be in the output, and
-- what was done. The launcher's first child is no rank, but a guard: a job survives that. Ranks die with their
-- launcher, without a word.
function faults.rank(dir, n)
  local wait, who = 0.4 + random(220) / 100, random(n + 1)
  local text, status = shell(([[%s > %s/out 2>&1 & job=$!
    sleep %.2f
    launcher=$(pgrep -P $job moth || pgrep -P $(pgrep -P $job) moth)
    victim=$(pgrep -P $launcher | sed -n %dp)
    [ -n "$victim" ] && kill -9 $victim
    wait $job; r=$?; cat %s/out; exit $r]]):format(launch(dir, n), dir, wait, who + 1, dir))
  return text, status, { "rank %d", "signal 9", "SIGKILL", "killed" },
    ("%s at %.2f s"):format(who == 0 and "the guard" or "rank " .. who - 1, wait)
end
function faults.launcher(dir, n)
  local wait = 0.4 + random(220) / 100
  local text, status = shell(([[%s > %s/out 2>&1 & job=$!
    sleep %.2f
    launcher=$(pgrep -P $job moth || pgrep -P $(pgrep -P $job) moth)
    ranks=$(pgrep -P $launcher)
    kill -9 $launcher
    wait $job; r=$?
    for i in $(seq 150); do # all ranks end by themselves
      left=0
      for p in $ranks; do kill -0 $p 2>/dev/null && left=1; done
      [ $left = 0 ] && break
      sleep 0.1
    done
    [ $left = 1 ] && echo LEFT BEHIND && kill -9 $ranks
    cat %s/out; exit $r]]):format(launch(dir, n), dir, wait, dir))
  return text, status, { "Killed" }, ("the launcher at %.2f s"):format(wait)
end
function faults.disk(dir, n)
  local size = 60 + random(300)
  local text, status = shell(([[mkdir %s/small && mount -t tmpfs -o size=%dk none %s/small || exit 99
    %s; r=$?
    [ -f %s/small/latest ] && cp -r %s/small/. %s/
    umount %s/small; exit $r]]):format(dir, size, dir, launch(dir .. "/small", n), dir, dir, dir, dir))
  return text, status, { "[Nn]o space" }, ("a disk of %d KB"):format(size)
end
function faults.cut(dir, n)
  local a, b = ("mk%da"):format(SEED), ("mk%db"):format(SEED)
  local wait = 1 + random(200) / 100
  local function on(host, node, address)
    return ("ip netns exec %s env MOTH_STORE_TOKEN=kills KILLS_BACKEND=tcp MOTH_SHARED_MEMORY=0 %s"):format(host,
      launch(dir, n == 4 and 2 or 1, ("--nnodes 2 --node-rank %d --rdzv-endpoint %s:29411"):format(node, address)))
  end
  local text, status = shell(([[ip netns del A 2>/dev/null; ip netns del B 2>/dev/null
    { ip netns add A && ip netns add B && ip link add Ax type veth peer name Bx && ip link set Ax netns A &&
      ip link set Bx netns B && ip -n A addr add 10.78.1.1/24 dev Ax && ip -n B addr add 10.78.1.2/24 dev Bx &&
      ip -n A link set Ax up && ip -n B link set Bx up && ip -n A link set lo up && ip -n B link set lo up; } || exit 99
    FIRST > HERE/out1 2>&1 & one=$!
    SECOND > HERE/out2 2>&1 & two=$!
    sleep WAIT; ip -n B link set Bx down; sleep 5; ip -n B link set Bx up
    wait $one; r=$?; wait $two; r2=$?
    ip netns del A; ip netns del B
    cat HERE/out1 HERE/out2; [ $r = 0 ] && r=$r2; exit $r]]):gsub("FIRST", (on("A", 0, "10.78.1.1")))
    :gsub("SECOND", (on("B", 1, "10.78.1.1"))):gsub("WAIT", tostring(wait)):gsub("HERE", dir)
    :gsub("%f[%w]A(x?)%f[%W]", a .. "%1"):gsub("%f[%w]B(x?)%f[%W]", b .. "%1"))
  return text, status, { "has not been heard of", "rank %d", "timed out", "store" },
    ("a host, from %.2f s"):format(wait)
end

local kinds = { "rank", "rank", "launcher" }
if select(2, shell "mount -t tmpfs -o size=10k none /mnt && umount /mnt") == 0 then kinds[#kinds + 1] = "disk" end
if select(2, shell(("ip netns add mk%d && ip netns del mk%d"):format(SEED, SEED))) == 0 then
  kinds[#kinds + 1] = "cut"
end

local SHOW = os.getenv "KILLS_SHOW"
local bad, survived, named = 0, 0, 0
local function wrong(i, what, why, text)
  bad = bad + 1
  io.write(("%d: %s: %s\n%s\n"):format(i, what, why, text))
end

for i = 1, RUNS do
  local kind = ONLY or kinds[random(#kinds) + 1]
  local n = kind == "cut" and 4 or 3 + random(2)
  local dir = ("%s/%d"):format(DIR, i)
  os.execute("mkdir " .. dir)
  local want, began = expected(n), system.now()
  local text, status, patterns, what = faults[kind](dir, n)
  if SHOW then io.write(text, "\n") end
  local got = text:match "weights (%S+)"
  if status == 0 and got then
    survived = survived + 1
    if got ~= want then wrong(i, what, "other weights than " .. want, text) end
  else
    local found = false
    for _, p in ipairs(patterns) do found = found or text:find(p) ~= nil end
    if found then named = named + 1 else wrong(i, what, "no error says what went wrong", text) end
    if text:find "LEFT BEHIND" then wrong(i, what, "ranks live on", text) end
    if text:find "Segmentation" or text:find "signal 11" or text:find "SIGSEGV" or text:find "SIGABRT" then
      wrong(i, what, "a crash", text)
    end
    local again, rc = shell(launch(dir, n))
    local weights = again:match "weights (%S+)"
    if rc ~= 0 or weights ~= want then
      wrong(i, what, ("started again: %s instead of %s"):format(tostring(weights), want),
        again .. "\nbefore:\n" .. text)
    end
  end
  io.write(("%d: %s, %d ranks: %s, %.1f s; %s\n"):format(i, what, n, status == 0 and "survived" or "ended, resumed",
    system.now() - began, (text:match "moth run: ([^\n]*)" or text:match "[^\n]*$"):sub(1, 100)))
  io.flush()
  os.execute("rm -rf " .. dir)
end
os.execute("rm -rf " .. DIR)
print(("%d runs: %d survived, %d named, %d wrong"):format(RUNS, survived, named, bad))
if bad > 0 then error("some runs were wrong", 0) end
