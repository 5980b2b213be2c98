--- The command line of `moth run`: torchrun's flags, with - or _ between words, `--flag value` or `--flag=value`. One
-- that is not given comes from the variable PET_FLAG, as torchrun has it. --local-addr, --start-method, --use-env and
-- --run-path are taken and change nothing.
local B = require "moth_lua"
local cli = require "moth.cli"

local M = {}

--- The options, as moth.cli reads them.
M.options = {
  "Starts a script in several processes.\nEach has RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the \z
    other variables of torchrun; dist.init_process_group() reads them. When one fails, the others are told which and \z
    why, and are stopped. MOTH_STORE_TOKEN is a secret of the job's processes (one machine: drawn at random).",
  name = "moth run", strict = true, sparse = true, config = false, see = "docs/launcher.md",
  { "SCRIPT", type = "path" }, { "[ARGUMENTS...]" },
  { "--nproc-per-node N", "processes on this machine: a number, cpu, gpu, auto; MIN:MAX: go on with MIN of MAX when \z
    some die, and start others in their place (dist.elastic, --max-restarts)", type = "string", default = 1 },
  { "--nnodes N|MIN:MAX", "machines, each with its own `moth run`", type = "string", default = 1 },
  { "--node-rank K", "which of them this is, from 0; left out: in the order in which they come", type = "integer",
    min = 0 },
  { "--rdzv-endpoint HOST:PORT", "where the machines find each other: an address of machine 0" },
  { "--master-addr HOST", "the same, with --master-port" },
  { "--master-port PORT", "the port", type = "integer", min = 0 },
  { "--rdzv-id ID", "the name of the job; all machines need the same" },
  { "--rdzv-backend static|c10d", "both are the store of machine 0" },
  { "--rdzv-conf K=V,…", "join_timeout, last_call_timeout in seconds" },
  { "--standalone", "one machine and a free port, which is also what happens without --nnodes" },
  { "--max-restarts N", "how often all is started again after a failure", min = 0, default = 0 },
  { "--monitor-interval SECONDS", "between looks at the other machines", default = 0.1 },
  { "--log-dir DIR", "the output of each rank as DIR/ID/attempt_N/RANK/stdout.log and stderr.log" },
  { "-r, --redirects S", "1: standard output only to the files, 2: errors, 3: both; 0:3,1:1 by local rank" },
  { "-t, --tee S", "the same to the files and, with the rank in front, to the terminal" },
  { "--local-ranks-filter R,…", "whose output is shown" },
  { "--role NAME", "in ROLE_NAME", default = "default" },
  { "-m, --module", "the script is the name of a module" },
  { "--no-python", "the script is any program; --no-lua is the same" },
  { "--no-lua", hidden = true }, { "--local-addr HOST", hidden = true }, { "--start-method NAME", hidden = true },
  { "--use-env", hidden = true }, { "--run-path", hidden = true },
}
for _, option in ipairs(M.options) do
  local name = type(option) == "table" and option[1]:match "%-%-([%w-]+)"
  if name then option.env = "PET_" .. name:gsub("-", "_"):upper() end
end

local fail = cli._fail

-- "2" or "2:4" as two numbers.
local function range(o, name)
  local text = o[name] or "1"
  local low, high = text:match("^(%d+):(%d+)$")
  low, high = tonumber(low or text), tonumber(high or text)
  if not low or low < 1 or low > high or low ~= math.floor(low) then
    fail("--%s: expected a number of at least 1, or MIN:MAX, got %s", (name:gsub("_", "-")), text)
  end
  return low, high
end

-- "3", "0:3,1:1" as a function of the local rank.
local function streams(o, name)
  local text = o[name] or "0"
  local all, by = tonumber(text), {}
  if not all then
    for part in (text .. ","):gmatch("(.-),") do
      local rank, bits = part:match("^(%d+):([0-3])$")
      if not rank then fail("--%s: expected 0 to 3, or RANK:0-3,…, got %s", name, text) end
      by[tonumber(rank)] = tonumber(bits)
    end
  elseif all < 0 or all > 3 or all ~= math.floor(all) then
    fail("--%s: expected 0 to 3, or RANK:0-3,…, got %s", name, text)
  end
  return function(rank) return by[rank] or all or 0 end
end

local function processes(text)
  if text == "gpu" or text == "auto" then
    local cuda = require("moth").cuda
    local n = cuda.is_available() and cuda.device_count() or 0
    if n > 0 then return tostring(n) end
    if text == "gpu" then fail("--nproc-per-node gpu: there is no GPU") end
    text = "cpu"
  end
  if text == "cpu" then
    local _, n = B.process.host()
    return tostring(n)
  end
  return text
end

--- The options of a list of words. Errors are texts for the user.
function M.parse(words) return M.read(cli.parse(M.options, words)) end

--- The same of what moth.cli has read.
function M.read(o)
  if o.help then return o end
  o.words = { o.script, unpack(o.arguments or {}) }
  if o.nproc_per_node then o.nproc_per_node = processes(o.nproc_per_node) end
  o.min_local, o.max_local = range(o, "nproc_per_node")
  o.min_nodes, o.max_nodes = range(o, "nnodes")
  o.max_restarts, o.monitor_interval = o.max_restarts or 0, o.monitor_interval or 0.1
  if o.monitor_interval <= 0 then
    fail("--monitor-interval: expected seconds above 0")
  end
  if o.node_rank and o.node_rank >= o.max_nodes then
    fail("--node-rank %d is none of %d machines, which count from 0", o.node_rank, o.max_nodes)
  end
  o.redirects, o.tee = streams(o, "redirects"), streams(o, "tee")
  o.conf = {}
  for part in ((o.rdzv_conf or "") .. ","):gmatch("(.-),") do
    local k, v = part:match("^([%w_]+)=(.*)$")
    if k then o.conf[k] = tonumber(v) or v end
  end
  if o.local_ranks_filter then
    o.shown = {}
    for rank in o.local_ranks_filter:gmatch("%d+") do o.shown[tonumber(rank)] = true end
  end
  local host, port = (o.rdzv_endpoint or ""):match("^%[?(.-)%]?:(%d+)$")
  if not host and o.rdzv_endpoint and o.rdzv_endpoint ~= "" then host = o.rdzv_endpoint end
  o.host, o.port = host or o.master_addr, tonumber(port) or o.master_port
  if o.standalone then o.host, o.port, o.min_nodes, o.max_nodes = nil, nil, 1, 1 end
  if o.max_nodes > 1 and not o.host then
    fail("--nnodes %s needs --rdzv-endpoint HOST:PORT, an address of machine 0 that the others reach", o.nnodes)
  end
  o.host, o.port = o.host or "127.0.0.1", o.port or o.max_nodes > 1 and 29400 or 0
  return o
end

return M
