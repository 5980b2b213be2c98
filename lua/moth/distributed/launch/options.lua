--- The command line of `moth run`: torchrun's flags, with - or _ between words, `--flag value` or `--flag=value`. One
-- that is not given comes from the variable PET_FLAG, as torchrun has it. --local-addr, --start-method, --use-env and
-- --run-path are taken and change nothing.
local B = require "moth_lua"
local check = require "moth.utils.check"

local M = {}

M.usage = [[
usage: moth run [options] script.lua [arguments]
       mothrun [options] script.lua [arguments]
Starts a script in several processes, each with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and the other
variables of torchrun; dist.init_process_group() reads them. When one fails, the others are told which and why, and are
stopped.
  --nproc-per-node N        processes on this machine: a number, cpu, gpu, auto (1); MIN:MAX: go on with MIN of MAX
                            when some die, and start others in their place (dist.elastic, --max-restarts)
  --nnodes N | MIN:MAX      machines, each with its own `moth run` (1)
  --node-rank K             which of them this is, from 0; without it: in the order in which they come
  --rdzv-endpoint HOST:PORT where the machines find each other: an address of machine 0
  --master-addr HOST --master-port PORT   the same
  --rdzv-id ID              the name of the job; all machines need the same
  --rdzv-backend NAME, --rdzv-conf K=V,…  static, c10d; join_timeout, last_call_timeout in seconds
  --standalone              one machine and a free port, which is also what happens without --nnodes
  --max-restarts N          how often all is started again after a failure (0)
  --monitor-interval S      seconds between looks at the other machines (0.1)
  --log-dir DIR             the output of each rank as DIR/ID/attempt_N/RANK/stdout.log and stderr.log
  -r, --redirects S         1: standard output only to the files, 2: errors, 3: both; 0:3,1:1 by local rank
  -t, --tee S               the same to the files and, with the rank in front, to the terminal
  --local-ranks-filter R,…  whose output is shown
  --role NAME               in ROLE_NAME (default)
  -m, --module              the script is the name of a module
  --no-python, --no-lua     the script is any program
  MOTH_STORE_TOKEN          a secret of the job's processes (one machine: drawn at random)
]]

local FAIL = "moth run: "

-- flag -> { kind, name }; "-r" and the like are other names.
local flags, letters = {}, { r = "redirects", t = "tee", m = "module", h = "help" }
for kind, names in require "moth.each" {
  text = [[nproc-per-node nnodes rdzv-endpoint master-addr rdzv-id rdzv-backend rdzv-conf log-dir redirects tee role
    local-addr local-ranks-filter start-method node-rank master-port max-restarts monitor-interval]],
  switch = "standalone module no-python no-lua use-env run-path help",
} do
  for name in names:gmatch("%S+") do flags[name] = kind end
end

local function fail(fmt, ...) error(FAIL .. fmt:format(...), 0) end

local function whole(o, name, low)
  local text = o[name]
  if text == nil then return nil end
  local n = tonumber(text)
  if not n or n ~= math.floor(n) or n < low then
    fail("--%s: expected an integer of at least %d, got %s", (name:gsub("_", "-")), low, text)
  end
  return n
end

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

local function read(words)
  local o, i = {}, 1
  while words[i] and words[i]:sub(1, 1) == "-" and #words[i] > 1 do
    local word = words[i]
    i = i + 1
    if word == "--" then break end
    local name, value = word:match("^%-%-([^=]+)=?(.*)$")
    name = name and name:gsub("_", "-") or letters[word:sub(2)]
    local kind = flags[name]
    if not kind then
      local list = {}
      for k in require "moth.each"(flags) do list[#list + 1] = k end
      fail("there is no option %s%s", word, check.suggest(name or word, list))
    end
    if kind == "switch" then
      value = true
    elseif not word:find("=", 1, true) then
      value = words[i] or fail("%s needs a value", word)
      i = i + 1
    end
    o[(name:gsub("-", "_"))] = value
  end
  for name, kind in require "moth.each"(flags) do
    local key = name:gsub("-", "_")
    local text = os.getenv("PET_" .. key:upper())
    if text and o[key] == nil then o[key] = kind == "text" and text or kind == "switch" and text ~= "0" end
  end
  o.words = { unpack(words, i) }
  return o
end

--- The options of a list of words. Errors are texts for the user.
function M.parse(words)
  local o = read(words)
  if o.help then return o end
  if #o.words == 0 then fail("there is no script\n%s", M.usage) end
  if o.nproc_per_node then o.nproc_per_node = processes(o.nproc_per_node) end
  o.min_local, o.max_local = range(o, "nproc_per_node")
  o.min_nodes, o.max_nodes = range(o, "nnodes")
  o.node_rank, o.master_port = whole(o, "node_rank", 0), whole(o, "master_port", 0)
  o.max_restarts = whole(o, "max_restarts", 0) or 0
  o.monitor_interval = tonumber(o.monitor_interval or 0.1)
  if not o.monitor_interval or o.monitor_interval <= 0 then
    fail("--monitor-interval: expected seconds above 0")
  end
  if o.node_rank and o.node_rank >= o.max_nodes then
    fail("--node-rank %d is none of %d machines, which count from 0", o.node_rank, o.max_nodes)
  end
  if o.rdzv_backend and o.rdzv_backend ~= "static" and o.rdzv_backend ~= "c10d" then
    fail("--rdzv-backend: there are static and c10d, both the store of machine 0; got %s", o.rdzv_backend)
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
