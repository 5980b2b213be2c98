--- Process groups: who takes part. dist.init_process_group makes the group of all processes, which collectives take by
-- default; dist.new_group makes groups of some of them.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local elastic = require "moth.distributed.launch.elastic"
local environment = require "moth.distributed.environment"
local signature = require "moth.utils.signature"
local store = require "moth.distributed.store"

local C = B.comm
local M = {}

local TIMEOUT = 600

-- Of this Lua state. `made`: how many groups were made from the store, the same on all ranks, so that each has a key
-- of its own. `servers`: of this process, by "host:port"; they stay, since other ranks may still connect.
-- generation: of an elastic run (elastic.lua).
local state = { made = 0, servers = {}, groups = {}, generation = 0 }

--- A group: rank, size, ranks (in the whole job, a list by rank + 1), backend, name, timeout.
local ProcessGroup = class("ProcessGroup")
M.ProcessGroup = ProcessGroup
ProcessGroup.__init = function()
  check.fail("[distributed.ProcessGroup] is made by dist.init_process_group and dist.new_group")
end
function ProcessGroup:__tostring()
  return ("ProcessGroup(%s, rank %d of %d, %s)"):format(self.name, self.rank, self.size, self.backend)
end

signature.type("ProcessGroup", function(v) return type(v) == "table" and getmetatable(v) == ProcessGroup end,
  "a process group")

local backends = { gloo = "gloo", mpi = "mpi", tcp = "tcp", nccl = "nccl", ["local"] = "local", fake = "fake" }

local function make(backend, rank, size, ranks, from, key, timeout)
  local g = setmetatable({}, ProcessGroup)
  g.handle, g.number = C.group(backends[backend], rank, size, ranks, from and from.handle, key, timeout,
    state.join_limit)
  g.rank, g.size, g.backend, g.name, g.timeout = rank, size, backend, key, timeout
  g.device = C.group_device(g.handle)
  g.ranks = ranks or {}
  if not ranks then for i = 1, size do g.ranks[i] = i - 1 end end
  state.groups[#state.groups + 1] = g
  return g
end

--- The group that is meant by an argument: itself, or the default one; for files of this folder.
function M.of(group, what)
  if group and type(group) ~= "table" then
    check.fail("[distributed.%s] expected a process group, got %s", what, type(group))
  end
  if group and not group.handle then check.fail("[distributed.%s] this process group was destroyed", what) end
  if not group and not state.default then
    check.fail("[distributed.%s] there is no process group: call dist.init_process_group first", what)
  end
  return group or state.default
end

--- The group of this process with a number, or nil.
function M.numbered(n) for _, g in ipairs(state.groups) do if g.number == n then return g end end end

--- The rank in group of a rank of the whole job.
function M.rank_in(group, rank, what, argument)
  for i, r in ipairs(group.ranks) do if r == rank then return i - 1 end end
  check.fail("[distributed.%s] %s: rank %s is not in the group, which has rank %s", what, argument, tostring(rank),
    table.concat(group.ranks, ", "))
end

-- Where the job is -----------------------------------------------------------------------------------

local function needed(name, for_what)
  local text = os.getenv(name)
  if not text or text == "" then
    check.fail("[distributed.init_process_group] the variable %s is not set, which says %s: start the program by "
      .. "`moth run`, or set it, or give rank, world_size and init_method", name, for_what)
  end
  return text
end

local function number_of(name, for_what)
  local text = needed(name, for_what)
  local n = tonumber(text)
  if not n or n < 0 or n ~= math.floor(n) then
    check.fail("[distributed.init_process_group] the variable %s=%s is no integer of at least 0", name, text)
  end
  return n
end

local function is_set(name)
  local text = (os.getenv(name) or ""):lower()
  return text == "1" or text == "true"
end

-- A store for this job: that of the launcher, else one that rank 0 runs. Port 0, a free one, is for a process alone.
local function store_at(host, port, rank, size, timeout)
  local token = store.token()
  local by_agent = is_set "TORCHELASTIC_USE_AGENT_STORE"
  local key = host .. ":" .. port
  local own = state.servers[key]
  if rank == 0 and not by_agent and not own then
    if port == 0 and not token then token = store.random_token() end -- nobody else is to come
    local server, bound = store.serve("init_process_group", host, port, token)
    own = { server, bound, token }
    state.servers[key] = own
  end
  if own then token = own[3] end
  if port == 0 then
    if size > 1 or not own then check.fail "[distributed.init_process_group] port 0: other ranks cannot know it" end
    port = own[2]
  end
  return store.TCPStore(host, port, { timeout = timeout, token = token }), by_agent
end

local function join(o)
  local rank, size, method = o.rank, o.world_size, o.init_method or "env://"
  local name, place = method:match("^(%a+)://(.*)$")
  if o.store then return rank, size, o.store end
  if not (rank and size) then environment.adopt(name == "env") end
  if name == "env" then
    rank = rank or number_of("RANK", "which process this is")
    size = size or number_of("WORLD_SIZE", "how many processes there are")
    local host, port = needed("MASTER_ADDR", "where rank 0 is"), number_of("MASTER_PORT", "the port of rank 0")
    if rank == 0 and size > (tonumber(os.getenv "LOCAL_WORLD_SIZE") or size) then host = store.outside(host) end
    return rank, size, store_at(host, port, rank, size, o.timeout)
  elseif name == "tcp" then
    local host, port = place:match("^%[?(.-)%]?:(%d+)$")
    if not host then
      check.fail("[distributed.init_process_group] init_method: expected tcp://host:port, got %s", method)
    end
    rank = rank or number_of("RANK", "which process this is")
    size = size or number_of("WORLD_SIZE", "how many processes there are")
    return rank, size, store_at(host, tonumber(port), rank, size, o.timeout)
  end
  check.fail("[distributed.init_process_group] init_method: expected env:// or tcp://host:port, got %s", method)
end

-- Keys of a run that the launcher started again are others than before, and so are those of its generations.
local function run_prefix()
  local run = tonumber(os.getenv "MOTH_RUN" or os.getenv "TORCHELASTIC_RESTART_COUNT") or 0
  return elastic.prefix("run/" .. run, state.generation)
end

--- Joins the group of all processes of the job. backend: "gloo" (the default) or "tcp" (CPU; CUDA tensors through the
-- host), "mpi" (the same by the site's MPI, for programs that mpirun or srun starts: `make mpi`), "nccl" (each rank on
-- its current CUDA device, with tensors that stay there), "local" (ranks are threads of this process, which have the
-- same init_method local://name), "fake" (any number of ranks, of which this process is one; nothing is sent). Without
-- rank, world_size and init_method they come from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which are set where
-- srun or mpirun started the process (environment.lua). timeout: seconds that a collective, or joining, may take.
-- Errors: a variable is missing; nobody answers; the port is taken; not all ranks came.
M.init_process_group = signature("distributed.init_process_group(string backend='gloo', *, size rank?, \z
  count world_size?, string init_method?, number timeout?, Store store?)", function(backend, o)
  local where = "[distributed.init_process_group] "
  if state.default then check.fail(where .. "there is a process group already: destroy_process_group ends it") end
  if not backends[backend] then
    check.fail(where .. "there is no backend '%s'; there are gloo, tcp, mpi, nccl, local, fake", backend)
  end
  local timeout = o.timeout or TIMEOUT
  if timeout <= 0 then check.fail(where .. "timeout: expected seconds above 0, got %g", timeout) end
  local rank, size, from, by_agent = o.rank, o.world_size, nil, nil
  local key
  if backend == "local" or backend == "fake" then
    if not (rank and size) then check.fail(where .. "the backend %s needs rank and world_size", backend) end
    key = run_prefix() .. (o.init_method or "local://default")
  else
    if o.store and not (rank and size) then check.fail(where .. "with a store, rank and world_size are needed") end
    rank, size, from, by_agent = join { rank = rank, world_size = size, init_method = o.init_method,
      store = o.store, timeout = timeout }
    if os.getenv "MOTH_JOIN" and state.generation == 0 then
      return require "moth.distributed.elastic"._join(from, backend, timeout)
    end
    key = run_prefix()
  end
  if rank >= size then
    check.fail(where .. "rank %d is none of the %d ranks, which count from 0", rank, size)
  end
  state.made = state.made + 1
  state.store, state.prefix = from, key
  state.default = make(backend, rank, size, nil, from, key .. "group/" .. state.made, timeout)
  if by_agent then C.watch(from.host, from.port, from.token, run_prefix() .. "fault") end
end, true)

--- The keys of this run; for elastic.lua, which sets the generation first.
function M.run_prefix(generation)
  if generation and generation ~= state.generation then state.generation, state.made = generation, 0 end
  return run_prefix(), state.generation
end
--- Calls fn, in which the ranks of a new group must come within so many seconds.
function M.within(seconds, fn, ...)
  state.join_limit = seconds
  local ok, why = pcall(fn, ...)
  state.join_limit = nil
  return ok, why
end
--- The store of the default group.
function M.store() return state.store end

--- Leaves a group (default: all of them). Other ranks that still wait for this one get an error.
M.destroy_process_group = signature("distributed.destroy_process_group(ProcessGroup group?)", function(group)
  group = M.of(group, "destroy_process_group")
  local all = group == state.default
  for i = #state.groups, 1, -1 do
    local g = state.groups[i]
    if all or g == group then
      if g.handle then C.group_close(g.handle) end
      g.handle = nil
      table.remove(state.groups, i)
    end
  end
  if all then
    C.unwatch()
    state.default, state.store = nil, nil
  end
end)

--- Whether this process has joined.
M.is_initialized = signature("distributed.is_initialized()", function() return state.default ~= nil end)
--- True: process groups are always there.
M.is_available = signature("distributed.is_available()", function() return true end)
--- Whether the library Gloo is there, by which data of the backend "gloo" travels between hosts.
M.is_gloo_available = signature("distributed.is_gloo_available()", function() return (C.has_transport "gloo") end)
--- Whether NCCL's library and a CUDA device are there.
M.is_nccl_available = signature("distributed.is_nccl_available()", function() return C.has_nccl() end)
--- Whether libmoth_mpi.so (`make mpi`) and its MPI are there.
M.is_mpi_available = signature("distributed.is_mpi_available()", function() return (C.has_transport "mpi") end)

--- This process's rank in a group, from 0; -1 if it is not in it.
M.get_rank = signature("distributed.get_rank(ProcessGroup group?)", function(group)
  return M.of(group, "get_rank").rank
end)
--- The number of ranks of a group.
M.get_world_size = signature("distributed.get_world_size(ProcessGroup group?)", function(group)
  return M.of(group, "get_world_size").size
end)
--- The backend of a group: "nccl", "gloo", "mpi", "tcp", "local" or "fake".
M.get_backend = signature("distributed.get_backend(ProcessGroup group?)", function(group)
  return M.of(group, "get_backend").backend
end)
--- The ranks of a group, as numbers in the whole job.
M.get_process_group_ranks = signature("distributed.get_process_group_ranks(ProcessGroup group?)", function(group)
  local list = {}
  for i, r in ipairs(M.of(group, "get_process_group_ranks").ranks) do list[i] = r end
  return list
end)
--- A rank of the group as a rank of the whole job, and back.
M.get_global_rank = signature("distributed.get_global_rank(ProcessGroup group, size group_rank)", function(group, r)
  return group.ranks[r + 1] or check.fail("[distributed.get_global_rank] rank %d is none of %d ranks", r, group.size)
end)
--- A rank of the whole job as a rank of the group.
M.get_group_rank = signature("distributed.get_group_rank(ProcessGroup group, size global_rank)", function(group, r)
  return M.rank_in(group, r, "get_group_rank", "global_rank")
end)

--- A group of some ranks (default: all). All processes that shall make groups later call it in the same order, also
-- those that are not in it: they get nil. It needs no other group to work: after a fault the ranks that are left make
-- a new one.
M.new_group = signature("distributed.new_group(size[] ranks?, *, number timeout?, string backend?)",
function(ranks, o)
  local all = M.of(nil, "new_group")
  local list, seen, mine = {}, {}, nil
  for i, r in ipairs(ranks or all.ranks) do
    if r >= all.size or seen[r] then
      check.fail("[distributed.new_group] ranks: %s %d", seen[r] and "two are" or "there is no rank", r)
    end
    list[i], seen[r] = r, true
  end
  table.sort(list)
  for i, r in ipairs(list) do if r == all.rank then mine = i - 1 end end
  local backend = o.backend or all.backend
  if not backends[backend] then check.fail("[distributed.new_group] there is no backend '%s'", backend) end
  if #list == 0 then check.fail("[distributed.new_group] ranks: expected at least one") end
  state.made = state.made + 1
  if not mine then return nil end
  local key = ("%sgroup/%d/%s"):format(state.prefix, state.made, table.concat(list, ","))
  return make(backend, mine, #list, list, state.store, key, o.timeout or all.timeout)
end, true)

--- The group of this process among lists of ranks, which have no rank in common; nil if it is in none.
M.split_group = signature("distributed.split_group(table split_ranks, *, number timeout?)", function(lists, o)
  local mine
  for i, list in ipairs(lists) do
    if type(list) ~= "table" then check.fail("[distributed.split_group] split_ranks: %d is no list of ranks", i) end
    mine = M.new_group(list, { timeout = o.timeout }) or mine
  end
  if #lists == 0 then check.fail("[distributed.split_group] split_ranks: expected lists of ranks") end
  return mine
end, true)

--- Counters of a group: bytes_sent, bytes_received, calls[name of a collective].
M.stats = signature("distributed.stats(ProcessGroup group?)", function(group)
  return (C.group_stats(M.of(group, "stats").handle))
end)
--- The last calls of a group (at most 2000), in their order: call (a text), op, seq, bytes, state, where (the line that
-- called), and the seconds made, begun, done by a monotonic clock.
M.flight_record = signature("distributed.flight_record(ProcessGroup group?)", function(group)
  return (C.group_record(M.of(group, "flight_record").handle))
end)

return M
