-- The same specs with data by MPI, where `make mpi` was run and the mpirun of its MPI is there. MOTH_MPIRUN: another
-- one ("mpirun.mpich").
local dist = require "moth.distributed"

local mpirun = os.getenv "MOTH_MPIRUN" or "mpirun"
local can = dist.is_mpi_available() and os.execute("command -v " .. mpirun .. " > /dev/null") == 0
local open_mpi = can and io.popen(mpirun .. " --version 2>&1"):read "*a":find "Open MPI"

-- Runs code on `size` ranks, as spec.distributed.ranks does; its output, and the exit code.
local function run(size, code, more)
  local path = os.tmpname()
  local f = assert(io.open(path, "w"))
  f:write(([[
    local moth, dist = require "moth", require "moth.distributed"
    dist.init_process_group("mpi", { timeout = 30 })
    local rank, size = dist.get_rank(), dist.get_world_size()
    %s
    if dist.is_initialized() then dist.destroy_process_group() end]]):format(code))
  f:close()
  local flags = open_mpi and "--allow-run-as-root --oversubscribe --mca btl_base_warn_component_unused 0 "
    .. (more or "") or ""
  local pipe = io.popen(("env OMP_NUM_THREADS=1 MOTH_LUAJIT_WARNING=0 timeout -s KILL 100 %s %s -n %d %s %s 2>&1; "
    .. "echo status=$?"):format(mpirun, flags, size, os.getenv "LUAJIT" or "luajit", path))
  local text, status = pipe:read("*a"):match "^(.*)status=(%d+)%s*$"
  pipe:close()
  os.remove(path)
  return text, tonumber(status)
end

local function fine(size, code)
  local text, status = run(size, code .. ' io.write "fine\\n"')
  assert.equal(("fine\n"):rep(size), text)
  assert.equal(0, status)
end

local function each(name, size, more)
  fine(size or 2, ("require('distributed.%s')(rank, size%s)"):format(name, more or ""))
end

(can and describe or pending)("by MPI #noasan", function()
  it("collectives #M353 #M355", function()
    fine(2, [[assert(require("moth_lua").comm.group_engine(dist.new_group().handle) == "mpi")]])
    each "each_collective"
    each("each_collective", 3)
  end)
  it("collectives as ops", function() each "each_op" end)
  it("data parallel training", function() each "each_ddp" end)
  it("calls that differ are quoted on both sides", function()
    -- the groups are broken, so that MPI is not ended in its way
    assert.matches("^fine\nfine\n", (run(2, "require('distributed.each_mismatch')(rank, size) io.write 'fine\\n'")))
  end)
  it("groups of some ranks, and again after all were left", function()
    fine(4, [[
      local mine = dist.split_group { { 0, 3 }, { 1, 2 } }
      local x = moth.ones(3) * rank
      dist.all_reduce(x, { group = mine })
      assert(x[1]:item() == 3)
      dist.destroy_process_group()
      dist.init_process_group("mpi", { timeout = 30 })
      dist.all_reduce(x)
      assert(x[3]:item() == 12)]])
  end)
  it("a rank that dies is named where MPI's launcher lets the others live", function()
    if not open_mpi then pending "MPICH's launcher ends all at once" end
    local text = run(3, [[
      local x = moth.ones(1000000)
      for i = 1, 1000 do
        if rank == 1 and i == 5 then os.execute "kill -9 $PPID" end
        local ok, why = pcall(dist.all_reduce, x)
        if not ok then io.write(rank, " says ", why:match "rank 1 %(pid %d+", "\n") os.execute "sleep 0.2" break end
      end
      if rank ~= 1 then os.exit(0) end]], "--enable-recovery")
    assert.matches("0 says rank 1 %(pid", text)
    assert.matches("2 says rank 1 %(pid", text)
  end)
  it("ranks that MPI does not know are refused", function()
    local child = require "spec.child"
    local moth = (os.getenv "MOTH_BUILD" or "build") .. "/moth"
    local other = moth .. [[ -e 'require("moth.distributed").init_process_group("mpi", { rank = 1, world_size = 2, ]]
      .. [[init_method = "tcp://127.0.0.1:29777", timeout = 20 })' &]]
    local text = child([[
      local dist = require "moth.distributed"
      print(pcall(dist.init_process_group, "mpi", { rank = 0, world_size = 2, init_method = "tcp://127.0.0.1:29777",
        timeout = 20 }))]], { env = other })
    assert.matches("ranks 0 and 1 are both rank 0 of MPI's 1: start the program by the mpirun of the MPI", text)
  end)
end)

describe("the backend mpi", function()
  it("says how to make it where it is not there", function()
    local text = require "spec.child"([[
      local dist = require "moth.distributed"
      print(dist.is_mpi_available())
      local options = { rank = 0, world_size = 2, init_method = "tcp://127.0.0.1:29778" }
      print(pcall(dist.init_process_group, "mpi", options))]],
      { env = "MOTH_MPI_LIBRARY=/nowhere.so" })
    assert.matches("^false\nfalse\t.*/nowhere.so.*HINT: make mpi MPICC=mpicc", text)
  end)
end)
