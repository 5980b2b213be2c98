--- Where this process stands in a job that a cluster's launcher started: srun (Slurm), or mpirun of OpenMPI, MPICH and
-- Intel MPI. init_process_group asks before it reads RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, which
-- are set here where they are missing; torchrun, `moth run` and Kubernetes' PyTorchJob set them themselves.
local ffi = require "ffi"
local moth = require "moth"
local check = require "moth.utils.check"
local store = require "moth.distributed.store"
local toolchain = require "moth.utils.toolchain"

pcall(ffi.cdef, "int getppid(void);")

local M = {}

-- The innermost launcher comes first: mpirun within a job of Slurm has variables of both. of: what each variable says.
local launchers = {
  { name = "mpirun (OpenMPI)", rank = "OMPI_COMM_WORLD_RANK", size = "OMPI_COMM_WORLD_SIZE",
    local_rank = "OMPI_COMM_WORLD_LOCAL_RANK", local_size = "OMPI_COMM_WORLD_LOCAL_SIZE" },
  { name = "srun", rank = "SLURM_PROCID", size = "SLURM_STEP_NUM_TASKS", local_rank = "SLURM_LOCALID", -- a step's alone
    nodes = "SLURM_STEP_NUM_NODES" },
  { name = "mpirun (PMI)", rank = "PMI_RANK", size = "PMI_SIZE", local_rank = "MPI_LOCALRANKID",
    local_size = "MPI_LOCALNRANKS" },
}

--- The value of a variable that is an integer of at least 0, or nil.
local function number(name)
  local n = name and tonumber(os.getenv(name) or "")
  return n and n >= 0 and n == math.floor(n) and n or nil
end

M.number = number

--- The first host of a list of Slurm's: "gpu[03-07,9],cpu1" is gpu03.
function M.first_host(list)
  local before, from, after = list:match "^([^,%[]*)%[(%w+)[^%]]*%]([^,]*)"
  if before then return before .. from .. after end
  return list:match "^[^,]+"
end

local function found()
  for _, l in ipairs(launchers) do
    local rank, size = number(l.rank), number(l.size)
    if rank and size then return l, rank, size end
  end
end

-- Whether all ranks are on this host.
local function is_one_host(l, size)
  if l.nodes then return number(l.nodes) == 1 end
  return number(l.local_size) == size
end

local function host_of(l, size)
  if is_one_host(l, size) then return "127.0.0.1" end
  local list = os.getenv "SLURM_STEP_NODELIST" or os.getenv "SLURM_JOB_NODELIST"
  return list and store.outside(M.first_host(list))
end

-- A port that all ranks know and other jobs of these hosts hardly have, below those that systems give out.
local function port_of(l, size)
  local job = number "SLURM_JOB_ID"
  if job then return 10000 + (job * 31 + (number "SLURM_STEP_ID" or 0)) % 20000 end
  if is_one_host(l, size) then return 10000 + ffi.C.getppid() % 20000 end -- all ranks have one parent
end

local function set(name, value, what)
  if (os.getenv(name) or "") ~= "" then return end
  if value == nil then
    check.fail("[distributed.init_process_group] the ranks that %s started are on several hosts: set %s, which they "
      .. "all must know (mpirun -x MASTER_ADDR=host -x MASTER_PORT=29500)", what, name)
  end
  moth.setenv(name, value)
end

--- Sets the variables of a job that are missing, of a launcher that is there; place: where rank 0 is, too. Errors: RANK
-- or WORLD_SIZE says another thing than the launcher (unless torchrun or moth run started this process below it); ranks
-- on several hosts without a place.
function M.adopt(place)
  local l, rank, size = found()
  if not l then return end
  local own, all = number "RANK", number "WORLD_SIZE"
  if os.getenv "TORCHELASTIC_RUN_ID" or os.getenv "TORCHELASTIC_USE_AGENT_STORE" or os.getenv "MOTH_RUN" then return end
  if own and own ~= rank or all and all ~= size then
    check.fail("[distributed.init_process_group] RANK=%s and WORLD_SIZE=%s, but %s says rank %d of %d (%s, %s): unset "
      .. "the first two, or give rank and world_size", tostring(own), tostring(all), l.name, rank, size, l.rank, l.size)
  end
  set("RANK", rank)
  set("WORLD_SIZE", size)
  set("LOCAL_RANK", number(l.local_rank) or 0)
  if place then
    set("MASTER_ADDR", host_of(l, size), l.name)
    set("MASTER_PORT", port_of(l, size), l.name)
  end
  toolchain.log("dist", false, "rank %d of %d by %s (%s), rank 0 at %s:%s", rank, size, l.name, l.rank,
    os.getenv "MASTER_ADDR" or "?", os.getenv "MASTER_PORT" or "?")
end

return M
