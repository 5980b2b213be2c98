-- Jobs that srun or mpirun started: what init_process_group makes of their variables.
local child = require "spec.child"
local environment = require "moth.distributed.environment"

local without = "env -u RANK -u WORLD_SIZE -u MASTER_ADDR -u MASTER_PORT -u LOCAL_RANK "

-- Joins in a process with these variables only; what it found.
local function joined(variables)
  return (child([[
    local dist = require "moth.distributed"
    local ok, why = pcall(dist.init_process_group, "tcp", { timeout = 20 })
    if not ok then io.write(why) return end
    io.write(("%d/%d local %s at %s:%s"):format(dist.get_rank(), dist.get_world_size(), os.getenv "LOCAL_RANK",
      os.getenv "MASTER_ADDR", os.getenv "MASTER_PORT"))
    dist.destroy_process_group()]], { env = without .. variables }))
end

describe("init_process_group under a cluster's launcher", function()
  it("takes rank, size and place of srun, of OpenMPI's and of MPICH's mpirun", function()
    local text = joined("SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 SLURM_STEP_NUM_NODES=1 "
      .. "SLURM_JOB_ID=1234 SLURM_STEP_ID=7")
    assert.equal("0/1 local 0 at 127.0.0.1:" .. 10000 + (1234 * 31 + 7) % 20000, text)
    text = joined("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_LOCAL_RANK=0 "
      .. "OMPI_COMM_WORLD_LOCAL_SIZE=1")
    assert.matches("^0/1 local 0 at 127%.0%.0%.1:%d+$", text)
    text = joined "PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_PORT=0"
    assert.equal("0/1 local 0 at 127.0.0.1:0", text)
    -- the script of a batch job is no step of it
    assert.matches("RANK is not set", joined "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=3")
  end)

  it("refuses what contradicts itself, and ranks on several hosts without a place", function()
    assert.matches("RANK=0 and WORLD_SIZE=2, but mpirun %(OpenMPI%) says rank 1 of 2 %(OMPI_COMM_WORLD_RANK,",
      joined "RANK=0 WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2")
    assert.matches("on several hosts: set MASTER_ADDR",
      joined "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_SIZE=2")
    assert.matches("^0/1 ", joined("RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=0 TORCHELASTIC_RUN_ID=a "
      .. "SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4"))
  end)

  it("reads Slurm's lists of hosts", function()
    assert.equal("gpu03", environment.first_host "gpu[03-07,9],cpu1")
    assert.equal("a-1b", environment.first_host "a-[1-3,5]b,c")
    assert.equal("one", environment.first_host "one,two[1-2]")
    assert.equal("one", environment.first_host "one")
  end)
end)
