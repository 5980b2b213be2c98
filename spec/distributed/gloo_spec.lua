-- The same specs with data by the library Gloo, on one host, where "gloo" would take memory that ranks share.
local ranks = require "distributed.ranks"
local dist = require "moth.distributed"

local LUAJIT = os.getenv "LUAJIT" or "luajit"

local function run(name, more, size)
  if not dist.is_gloo_available() then pending("libgloo-dev: not built") end
  return ranks.run { size = size or 2, env = { "MOTH_GLOO=always" }, code = ([[
    assert(require("moth_lua").comm.group_engine(dist.new_group().handle) == "gloo")
    require("distributed.%s")(rank, size%s) print "fine"]]):format(name, more and (", %q"):format(more) or "") }
end

local function agree(results, victim)
  for i, r in ipairs(results) do
    assert(i - 1 == victim or r.rc == 0 and r.out == "fine\n", ("rank %d ended with %s: %s"):format(i - 1,
      tostring(r.rc), r.out))
  end
end

describe("by Gloo", function()
  it("between hosts, where no memory is shared: a rank that dies is named", function()
    if not dist.is_gloo_available() then pending("libgloo-dev: not built") end
    if os.execute "unshare -ru true 2>/dev/null" ~= 0 then pending("unshare: not permitted") end
    local results = ranks.run { size = 2, env = { "MOTH_GLOO=hosts" }, wrap = function(rank)
      return ([[unshare -ru sh -c 'hostname host%d; exec "$@"' host]]):format(rank)
    end, code = [[
      local t = moth.ones(100003)
      dist.all_reduce(t)
      print(require("moth_lua").comm.group_engine(dist.new_group().handle), t:sum():item())
      if rank == 1 then os.execute "kill -9 $PPID" end
      print(select(2, pcall(dist.barrier)))]] }
    assert.matches("^gloo\t200006\n.*rank 1 %(pid %d+ on host1%) is gone", results[1].out)
  end)
  it("a rank that leaves before the others have its data waits for them, on a slow link #noasan", function()
    if not dist.is_gloo_available() then pending("libgloo-dev: not built") end
    local slow = "ip link set lo up && tc qdisc add dev lo root tbf rate 400mbit burst 256kb latency 200ms"
    local can = os.execute(("unshare -rn sh -c '%s' 2>/dev/null"):format(slow)) == 0
    if not can then pending("unshare, tc: not permitted") end
    local path = os.tmpname()
    local f = assert(io.open(path, "w"))
    f:write [[
      local moth, dist = require "moth", require "moth.distributed"
      dist.init_process_group("gloo", { timeout = 30 })
      local rank = dist.get_rank()
      local x, busy = moth.full({ 2000000 }, rank == 0 and 7 or 0), moth.ones(300, 300)
      if rank == 1 then for _ = 1, 20 do busy:mm(busy) end end
      dist.broadcast(x, 0)
      io.write(("%d has %d\n"):format(rank, x:min():item()))
      dist.destroy_process_group()]]
    f:close()
    local pipe = io.popen(([[unshare -rn sh -c '%s
      export MASTER_ADDR=127.0.0.1 MASTER_PORT=29345 WORLD_SIZE=2 OMP_NUM_THREADS=1 MOTH_GLOO=always
      export MOTH_LUAJIT_WARNING=0
      RANK=0 timeout -s KILL 60 %s %s & RANK=1 timeout -s KILL 60 %s %s; wait' 2>&1]]):format(slow, LUAJIT, path,
      LUAJIT, path))
    local lines = {}
    for line in pipe:lines() do lines[#lines + 1] = line end
    pipe:close()
    os.remove(path)
    table.sort(lines)
    assert.same({ "0 has 7", "1 has 7" }, lines)
  end)
  it("collectives #M353 #M355", function() agree(run("each_collective", nil, 3)) end)
  it("collectives as ops", function() agree(run "each_op") end)
  it("calls that differ are quoted on both sides", function() agree(run "each_mismatch") end)
  it("a rank that dies or stops is named", function()
    agree(run("each_fault", "killed in the middle", 3), 1)
    agree(run("each_fault", "stopped", 3))
  end)
end)
