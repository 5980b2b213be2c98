-- What goes wrong: ranks that die, stop, leave or call something else, in each collective and in a step of
-- DistributedDataParallel; stores that die or are none. All ranks that are left get an error that says who it is; none
-- hangs. Asserted is what they say, and in which order things happen: not how fast.
local ranks = require "distributed.ranks"

local function program(name, more)
  return ('require("distributed.%s")(rank, size%s) print "fine"'):format(name, more and ", " .. more or "")
end

-- All ranks but `victim` end well; it ended with `rc`.
local function survive(results, victim, rc)
  for i, r in ipairs(results) do
    if i - 1 == victim then
      assert.equal(rc, r.rc, r.out)
    else
      assert(r.rc == 0 and r.out:find "fine\n$", ("rank %d ended with %s: %s"):format(i - 1, tostring(r.rc), r.out))
    end
  end
end

describe("a rank that", function()
  for how, rc in require "moth.each" { killed = 137, ["killed in the middle"] = 137, exits = 0 } do
    it(("is or was %s is named by all others, in each collective"):format(how), function()
      survive(ranks.run { size = 3, code = program("each_fault", ("%q"):format(how)) }, 1, rc)
    end)
  end
  it("is killed in the middle is named by sockets, too", function()
    survive(ranks.run { size = 3, backend = "tcp", code = program("each_fault", '"killed in the middle"') }, 1, 137)
  end)
  it("leaves is named, on threads", function() ranks.threads("distributed.each_left", 3) end)
  it("is stopped is named after the timeout, and is told when it goes on #M397", function()
    survive(ranks.run { size = 3, code = program("each_fault", '"stopped"') })
  end)

  it("calls something else: both calls are quoted, on all ranks", function()
    survive(ranks.run { size = 2, code = program "each_mismatch" })
    survive(ranks.run { size = 3, code = program("each_mismatch", "true") })
    survive(ranks.run { size = 2, backend = "tcp", code = program("each_mismatch", "true") })
    ranks.threads("distributed.each_mismatch", 3)
  end)
  it("calls something else: at once with MOTH_DISTRIBUTED_DEBUG=DETAIL, which writes each call #M395 #M400", function()
    local results = ranks.run { size = 3, env = { "MOTH_DISTRIBUTED_DEBUG=DETAIL" }, code = program "each_mismatch" }
    survive(results)
    assert.matches("%[moth%] rank 1 group %S+: 3 ranks joined, engine %w+", results[2].out)
    assert.matches("%[moth%] rank 1 group %S+: #1 all_reduce%(sum%) of float32 %[5%] at %S+each_mismatch.lua:%d+",
      results[2].out)
  end)

  it("is late with a message of another shape: both are quoted", function()
    for i, r in ipairs(ranks.run { size = 2, code = [[
      if rank == 0 then dist.send(moth.ones(3), 1) else dist.recv(moth.empty(4), 0) end
      dist.barrier()]] }) do
      assert.equal(1, r.rc)
      assert.matches("rank 1 calls #1 recv of float32 %[4%].*rank 0 calls #1 send of float32 %[3%]", r.out, nil, nil,
        "rank " .. i - 1)
    end
  end)
end)

describe("a step of DistributedDataParallel", function()
  local step = [[
    local ffi = require "ffi"
    ffi.cdef "int getpid(void); int kill(int, int);"
    local m = moth.nn.Sequential(moth.nn.Linear(64, 64), moth.nn.Linear(64, 64), moth.nn.Linear(64, 64))
    local ddp = moth.nn.parallel.DistributedDataParallel(m, { bucket_cap_mb = 0.017 })
    local function step() ddp(moth.randn(8, 64)):sum():backward() end
    step() step()
    %s
    local ok, message = pcall(function() for _ = 1, 3 do step() end end)
    assert(not ok, "no error")
    print(message)]]

  local function each(results, victim, pattern)
    for i, r in ipairs(results) do
      if i - 1 ~= victim then assert.matches(pattern, r.out, nil, nil, ("rank %d: %s"):format(i - 1, r.out)) end
    end
  end

  it("in which a rank is killed while buckets travel", function()
    each(ranks.run { size = 3, code = step:format [[
      if rank == 2 then m[2].weight:register_hook(function() ffi.C.kill(ffi.C.getpid(), 9) end) end]] }, 2,
      "rank 2 %(pid %d+ on .*%) is gone.*; it.* #%d+ all_reduce%(avg%) of float32 %[4160%] at DistributedDataParallel")
  end)
  it("in which the launcher knows why", function()
    each(ranks.run { size = 3, code = step:format [[
      local store = dist.TCPStore("127.0.0.1", tonumber(os.getenv "MASTER_PORT"))
      local function ends() store:set("now", "1") store:wait("run/0/fault", 10) end
      if rank == 2 then m[2].weight:register_hook(ends) end
      dist.barrier()]], meanwhile = function(_, store)
        store:get("now", 10)
        store:set("run/0/fault", "rank 2 (pid 4711) was killed by signal 9")
      end }, nil, "rank 2 %(pid 4711%) was killed by signal 9")
  end)
  it("in which a rank is stopped", function()
    each(ranks.run { size = 3, timeout = 1.5, code = step:format [[
      local pids = dist.all_gather_object(ffi.C.getpid())
      if rank == 2 then m[2].weight:register_hook(function() ffi.C.kill(pids[3], 19) end) end
      local was = pcall
      pcall = function(f)
        local ok, message = was(f)
        if rank == 0 then -- when rank 1 has asked it, too
          require("moth_lua").process.wait({}, 0.1)
          ffi.C.kill(pids[3], 18)
        end
        return ok, message
      end]] }, nil, "rank 2 %(pid %d+ on .*%) does not answer: it is stopped")
  end)
  it("in which a rank has an error of its own", function()
    local results = ranks.run { size = 3, code = step:format [[
      if rank == 2 then m[2].weight:register_hook(function() error("no such number", 0) end) end]] }
    assert.matches("no such number", results[3].out)
    each(results, 2, "rank 2: a function of the program raised an error")
  end)
  it("in which a rank calls another collective before", function()
    each(ranks.run { size = 2, code = step:format [[
      if rank == 1 then dist.all_reduce(moth.ones(7), { async = true }) end]] }, nil,
      "rank 1 calls #%d+ all_reduce%(sum%) of float32 %[7%] at %S+:%d+")
  end)
end)
