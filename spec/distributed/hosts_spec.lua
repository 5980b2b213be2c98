-- Several hosts: two network namespaces with names, addresses and a hosts file of their own, joined by two links. As
-- Debian does, each host's own name is 127.0.1.1 in its file.
local build = os.getenv "MOTH_BUILD" or "build"
local here = io.popen("pwd"):read "*l"
local moth = (build:sub(1, 1) == "/" and build or here .. "/" .. build) .. "/moth"

local function run(command)
  local pipe = io.popen(("( %s\n) 2>&1; echo status=$?"):format(command))
  local text, status = pipe:read("*a"):match "^(.*)status=(%d+)%s*$"
  pipe:close()
  return text, tonumber(status)
end

-- The names are of this process: several runs at once.
local tag = ("m%d"):format(select(2, math.modf(os.clock() * 1e6)) + math.random(1e5, 9e5))
local a, b = tag .. "a", tag .. "b"

local can = select(2, run((("ip netns add A && ip netns exec A unshare -u -m true; r=$?; ip netns del A; exit $r")
  :gsub("A", a)))) == 0

local PROGRAM = [[
local moth, dist = require "moth", require "moth.distributed"
dist.init_process_group(os.getenv "BACKEND", { timeout = 20 })
local x = moth.ones { 100000 } * (dist.get_rank() + 1)
dist.all_reduce(x)
io.write(("rank %d of %d: %g\n"):format(dist.get_rank(), dist.get_world_size(), x:sum():item() / 1e5))
dist.destroy_process_group()
]];

(can and describe or pending)("two hosts #noasan", function()
  local dir

  lazy_setup(function()
    dir = os.tmpname()
    os.remove(dir)
    local text, status = run((([[set -e
      mkdir DIR
      ip netns add HA; ip netns add HB
      for k in 1 2; do
        ip link add HAx$k type veth peer name HBx$k
        for n in HA HB; do ip link set ${n}x$k netns $n; ip -n $n link set ${n}x$k name eth$k; done
        ip -n HA addr add 10.77.$k.1/24 dev eth$k; ip -n HB addr add 10.77.$k.2/24 dev eth$k
        ip -n HA link set eth$k up; ip -n HB link set eth$k up
      done
      ip -n HA link set lo up; ip -n HB link set lo up
      ip -n HA -6 addr add fd77::1/64 dev eth1 nodad; ip -n HB -6 addr add fd77::2/64 dev eth1 nodad
      printf '%s\n' '127.0.0.1 localhost' '127.0.1.1 hosta' '10.77.1.2 hostb' > DIR/A
      printf '%s\n' '127.0.0.1 localhost' '127.0.1.1 hostb' '10.77.1.1 hosta' > DIR/B]]):gsub("H([AB])",
      { A = a, B = b }):gsub("DIR", dir)))
    assert(status == 0, text)
    local f = assert(io.open(dir .. "/x.lua", "w"))
    f:write(PROGRAM)
    f:close()
  end)
  lazy_teardown(function() run(("ip netns del %s; ip netns del %s; rm -r %s"):format(a, b, dir)) end)

  -- A command on host A or B.
  local function on(which, command)
    return ([[ip netns exec %s unshare -u -m sh -c 'hostname host%s; mount --bind %s/%s /etc/hosts && %s']]):format(
      which == "A" and a or b, which:lower(), dir, which, command)
  end
  -- Both launchers; the text of both.
  local function both(options, variables)
    local function launch(k)
      return ("env MOTH_STORE_TOKEN=t %s timeout -s KILL 60 %s run --nnodes 2 --nproc-per-node 2 --node-rank %d "
        .. "--rdzv-conf join_timeout=20 %s %s/x.lua"):format(variables or "", moth, k, options, dir)
    end
    return run(("%s & %s; r=$?; wait $! && exit $r"):format(on("B", launch(1)), on("A", launch(0))))
  end
  local function sent(link)
    return tonumber((run(("ip netns exec %s cat /sys/class/net/%s/statistics/tx_bytes"):format(a, link))))
  end
  local function right(text, status)
    for rank = 0, 3 do assert.matches(("rank %d of 4: 10\n"):format(rank), text) end
    assert.equal(0, status)
  end

  for _, backend in ipairs { "tcp", "gloo" } do
    it("find each other by a name that is loopback on one, and data takes the link that is said: " .. backend,
    function()
      -- two links: which one is hosta?
      assert.matches("hosta is a loopback address on this machine.*give its address, or set MOTH_SOCKET_IFNAME to an "
        .. "interface; there are 10.77.1.1 %(eth1%), 10.77.2.1 %(eth2%), fd77::1 %(eth1%)",
        (run(on("A", ("timeout 20 %s run --nnodes 2 --node-rank 0 --rdzv-endpoint hosta:29700 %s/x.lua"):format(moth,
          dir)))))
      local before = sent "eth2"
      right(both("--rdzv-endpoint hosta:29700", "MOTH_SOCKET_IFNAME=eth1 BACKEND=" .. backend))
      assert.is_true(sent "eth2" - before < 1e5)
      right(both("--rdzv-endpoint 10.77.1.1:29701", "MOTH_SOCKET_IFNAME==eth2 BACKEND=" .. backend))
      assert.is_true(sent "eth2" - before > 4e5)
      before = sent "eth2"
      right(both("--rdzv-endpoint [fd77::1]:29702", "GLOO_SOCKET_IFNAME=eth2 BACKEND=" .. backend))
      assert.is_true(sent "eth2" - before > 4e5)
    end)
  end

  it("say which interfaces there are", function()
    local text, status = both("--rdzv-endpoint 10.77.1.1:29703", "MOTH_SOCKET_IFNAME=ib BACKEND=tcp")
    assert.matches("MOTH_SOCKET_IFNAME=ib names no interface that is up; there are lo %(127.0.0.1%), eth1 %(10.77",
      text)
    assert.not_equal(0, status)
  end)
end)
