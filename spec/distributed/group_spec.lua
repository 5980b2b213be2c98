-- Joining and leaving: where a process finds the others, groups of some ranks, what is recorded of calls.
local ranks = require "distributed.ranks"
local dist = require "moth.distributed"
local moth = require "moth"

local function alone()
  dist.init_process_group("gloo", { rank = 0, world_size = 1, init_method = "tcp://127.0.0.1:0" })
end

describe("process groups", function()
  it("are joined, left, and joined again #M348 #M351", function()
    for _ = 1, 2 do
      assert.is_false(dist.is_initialized())
      alone()
      assert.is_true(dist.is_initialized())
      assert.same({ 0, 1, "gloo" }, { dist.get_rank(), dist.get_world_size(), dist.get_backend() })
      dist.barrier()
      dist.destroy_process_group()
    end
    assert.error_matches(function() dist.barrier() end, "call dist.init_process_group first")
    alone()
    assert.error_matches(alone, "there is a process group already: destroy_process_group ends it")
    dist.destroy_process_group()
  end)

  it("name the variable that is missing or wrong #M349 #M350", function()
    local unset = "-u RANK -u WORLD_SIZE -u MASTER_ADDR -u MASTER_PORT"
    for _, case in ipairs {
      { "", "the variable RANK is not set, which says which process this is" },
      { "RANK=0", "the variable WORLD_SIZE is not set" },
      { "RANK=0 WORLD_SIZE=1", "the variable MASTER_ADDR is not set" },
      { "RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1", "the variable MASTER_PORT is not set" },
      { "RANK=x", "the variable RANK=x is no integer" },
    } do
      local program = 'require("moth.distributed").init_process_group("gloo", { timeout = 0.1 })'
      local pipe = io.popen(("env %s %s luajit -e '%s' 2>&1"):format(unset, case[1], program))
      local text = pipe:read "*a"
      pipe:close()
      assert.is_truthy(text:find(case[2], 1, true), text)
    end
  end)

  it("find what moth.setenv has set #M349", function()
    local was = {}
    for name in ("RANK WORLD_SIZE MASTER_ADDR MASTER_PORT"):gmatch "%S+" do was[name] = os.getenv(name) or false end
    finally(function() for name, value in pairs(was) do moth.setenv(name, value or nil) end end)
    moth.setenv("RANK", 0)
    moth.setenv("WORLD_SIZE", "1")
    moth.setenv("MASTER_ADDR", "127.0.0.1")
    moth.setenv("MASTER_PORT", nil)
    assert.is_nil(os.getenv "MASTER_PORT")
    assert.error_matches(function() dist.init_process_group "gloo" end, "the variable MASTER_PORT is not set")
    moth.setenv("MASTER_PORT", "0") -- any that is free
    assert.equal("0", os.getenv "MASTER_PORT")
    local pipe = io.popen 'echo "$MASTER_PORT $RANK"' -- a program that is started sees it
    assert.equal("0 0", pipe:read())
    pipe:close()
    dist.init_process_group "gloo"
    assert.same({ 0, 1 }, { dist.get_rank(), dist.get_world_size() })
    dist.destroy_process_group()
    assert.error_matches(function() moth.setenv("A=B", "1") end, "'A=B' is no name of a variable")
  end)

  it("take a store, an address, a timeout", function()
    assert.error_matches(function() dist.init_process_group("fake", { rank = 2, world_size = 2 }) end,
      "rank 2 is none of the 2 ranks")
    assert.error_matches(function() dist.init_process_group("nothing") end, "there is no backend 'nothing'")
    local function by_file() dist.init_process_group("gloo", { init_method = "file:///x" }) end
    assert.error_matches(by_file, "expected env://")
    assert.error_matches(function() dist.init_process_group("gloo", { timeout = 0 }) end, "expected seconds above 0")
    local store = dist.HashStore()
    finally(function() store:close() end)
    dist.init_process_group("tcp", { store = store, rank = 0, world_size = 1 })
    dist.destroy_process_group()
  end)

  it("of some ranks have numbers of their own", function()
    ranks.agree({ size = 3, code = [[
      local pair = dist.new_group { 2, 0 }
      assert((pair == nil) == (rank == 1))
      if pair then
        assert(dist.get_rank(pair) == (rank == 0 and 0 or 1) and dist.get_world_size(pair) == 2)
        assert(dist.get_global_rank(pair, 1) == 2 and dist.get_group_rank(pair, 2) == 1)
        assert(#dist.get_process_group_ranks(pair) == 2 and not pcall(dist.get_group_rank, pair, 1))
        local t = moth.full({ 2 }, rank)
        dist.broadcast(t, 2, { group = pair }) -- ranks of the whole job
        assert(t[1]:item() == 2)
        assert(not pcall(dist.broadcast, t, 1, { group = pair }))
      end
      local mine = dist.split_group { { 0 }, { 1, 2 } }
      local t = moth.ones(1)
      dist.all_reduce(t, { group = mine })
      assert(t:item() == (rank == 0 and 1 or 2))
      dist.destroy_process_group(mine)
      local ok, message = pcall(dist.barrier, { group = mine })
      assert(not ok and message:find "was destroyed", message)
      dist.barrier()
      print "fine"]] }, "fine\n")
  end)

  it("record and count their calls; write them when they break #M364 #M398", function()
    local path = os.tmpname()
    local results = ranks.run { size = 2, env = { "MOTH_DIST_DUMP=" .. path }, code = [[
      local t = moth.ones(100000)
      dist.all_reduce(t)
      local w = dist.broadcast(t, 0, { async = true })
      w:wait()
      assert(w:is_completed() and w:exception() == nil)
      local s = dist.stats()
      assert(s.calls.all_reduce == 1 and s.calls.broadcast == 1)
      assert(s.bytes_sent == 400000 + (rank == 0 and 400000 or 0), s.bytes_sent) -- 2 (P - 1) / P of the data
      local r = dist.flight_record()
      assert(#r == 2 and r[1].op == "all_reduce" and r[2].call:find "#2 broadcast %(root 0%) of float32 %[100000%]")
      assert(r[1].made <= r[1].begun and r[1].begun <= r[1].done and r[1].done <= r[2].begun and r[2].state == "done")
      local group = dist.new_group()
      if rank == 0 then dist.all_reduce(t, { group = group, timeout = 0.2 }) end
      require("moth.utils.system").sleep(1)]] }
    assert.matches("timed out after 0.2 s in #1 all_reduce.*rank 1 %(.*%) has not called it; its last call was none",
      results[1].out)
    local f = assert(io.open(path .. ".0"))
    local text = f:read "*a"
    f:close()
    for _, name in ipairs { path, path .. ".0", path .. ".1" } do os.remove(name) end
    assert.matches("^rank 0 of group %S+ is broken: timed out", text)
    assert.matches("running #1 all_reduce%(sum%) of float32 %[100000%] at %S+:%d+", text)
  end)

  it("give waits a limit, and calls one of their own #M396", function()
    ranks.agree({ size = 2, code = [[
      local t = moth.ones(3)
      if rank == 0 then
        local w = dist.irecv(t, 1)
        assert(w:wait(0.05) == false and not w:is_completed())
        dist.barrier()
        w:wait()
        local ok, message = pcall(dist.recv, t, 1, { timeout = 0.05 })
        assert(not ok and message:find "timed out after 0.05 s: rank 1 %(.-%) has sent nothing", message)
      else
        dist.barrier()
        dist.send(t, 0)
      end
      dist.barrier()
      print "fine"]] }, "fine\n")
  end)

  it("have a sampler's shares #M406", function()
    alone()
    local sampler = moth.data.DistributedSampler(10)
    assert.equal(32, sampler:global_batch(32))
    dist.destroy_process_group()
  end)

  it("are no numbers", function()
    alone()
    assert.error_matches(function() dist.context_parallel(moth.nn.Linear(3, 3), 3) end,
      "%[distributed.context_parallel%] expected a process group, got number")
    dist.destroy_process_group()
  end)
end)
