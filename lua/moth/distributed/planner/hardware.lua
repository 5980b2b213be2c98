--- Devices and their networks as numbers, and the time of a collective by an alpha-beta model.
--
-- peak and fp8 are the maker's figures, operations a second of dense products. gemm and attention are the shares of
-- peak that training reaches, as measured over whole runs: clocks under load and the units that communication takes are
-- in them. fp8_gain is what products gain from fp8 beside bfloat16. Bytes a second: hbm of the
-- device's memory; link, what one device gets of the links within a node (bus bandwidth); nic, its share of the
-- network. A machine of one's own is best measured once; a table with these fields is a gpu, too.
local check = require "moth.utils.check"
local each = require "moth.each"

local M = {}

local GiB = 2 ^ 30

M.gpus = {
  -- gemm from Llama 3's 405B runs and Megatron's 175B on H100, attention from FlashAttention 2 in both passes.
  h100 = { peak = 989e12, fp8 = true, fp8_gain = 1.75, gemm = 0.55, attention = 0.335, memory = 80 * GiB,
    hbm = 3.35e12, link = 370e9, nic = 46e9, node = 8 },
  -- The H100s of torchtitan's reports: 500 W, 96 GB of slower memory.
  ["h100-500w"] = { peak = 989e12, fp8 = true, fp8_gain = 1.75, gemm = 0.45, attention = 0.335, memory = 96 * GiB,
    hbm = 2.4e12, link = 370e9, nic = 46e9, node = 8 },
  h200 = { peak = 989e12, fp8 = true, fp8_gain = 1.75, gemm = 0.55, attention = 0.335, memory = 141e9,
    hbm = 4.8e12, link = 370e9, nic = 46e9, node = 8 },
  -- From Megatron's run of 10^12 parameters on 3072 A100.
  a100 = { peak = 312e12, gemm = 0.65, attention = 0.55, memory = 80 * GiB, hbm = 2.04e12, link = 230e9, nic = 23e9,
    node = 8 },
  ["a100-40gb"] = { peak = 312e12, gemm = 0.65, attention = 0.55, memory = 40 * GiB, hbm = 1.56e12, link = 230e9,
    nic = 23e9, node = 8 },
  v100 = { peak = 125e12, gemm = 0.45, attention = 0.2, memory = 32 * GiB, hbm = 0.9e12, link = 120e9, nic = 11e9,
    node = 8 },
}

-- Latencies in seconds, of NCCL's own tuner: { base, a step within a node, a step between nodes, share of the
-- bandwidth } of its protocols.
local protocols = {
  { base = 14.0e-6, link = 1.9e-6, net = 4.0e-6, share = 0.9375 }, -- LL128: 120 of 128 bytes are data
  { base = 8.4e-6, link = 3.4e-6, net = 14.0e-6, share = 1 },      -- Simple
}
local tree = { base = 14.0e-6, link = 1.9e-6, net = 8.5e-6, share = 0.85 }

--- The description of a gpu: one of the table's by its name, or a table of its fields, completed by those of an h100.
function M.gpu(where, gpu)
  if type(gpu) == "string" then
    local found = M.gpus[gpu:lower()]
    if not found then
      local names = {}
      for name in each(M.gpus) do names[#names + 1] = name end
      table.sort(names)
      check.fail("%s: there is no gpu '%s'%s; there are: %s; or give a table { peak = , memory = , … }", where, gpu,
        check.suggest(gpu, names), table.concat(names, " "))
    end
    return found
  end
  check.options(where .. ": gpu", gpu, "peak fp8 fp8_gain gemm attention memory hbm link nic node")
  for key, value in each(gpu) do
    if key ~= "fp8" then check.number(where, "gpu." .. key, value, key == "node" and 1 or 1e-9) end
  end
  return setmetatable(gpu, { __index = M.gpus.h100 })
end

--- Bytes a second that each of `ranks` devices gets in a collective, with `near` of them in one node.
function M.bandwidth(gpu, ranks, near)
  if ranks <= near then return gpu.link end
  return math.min(gpu.link, near * gpu.nic)
end

M.kinds = {}
for kind in ("all_reduce all_gather reduce_scatter broadcast all_to_all send barrier"):gmatch("%S+") do
  M.kinds[kind] = true
end

--- Seconds that a collective takes among `ranks` devices of which `near` share a node.
-- bytes: of the whole tensor: an all_gather's result, a reduce_scatter's input; with send, what is sent.
-- kind: one of M.kinds.
function M.collective(gpu, kind, bytes, ranks, near)
  near = math.min(near, ranks)
  if ranks <= 1 then return 0 end
  local nodes = math.ceil(ranks / near)
  local bandwidth = M.bandwidth(gpu, ranks, near)
  if kind == "send" then
    return (nodes > 1 and protocols[2].net or protocols[2].link) + bytes / (nodes > 1 and gpu.nic or gpu.link)
  elseif kind == "barrier" then
    kind, bytes = "all_reduce", 4
  end
  local rounds = kind == "all_reduce" and 2 or 1
  local best = math.huge
  for _, p in ipairs(protocols) do
    local time = p.base + rounds * ((ranks - nodes) * p.link + (nodes - 1) * p.net
      + bytes * (ranks - 1) / ranks / (bandwidth * p.share))
    best = math.min(best, time)
  end
  if kind == "all_reduce" or kind == "broadcast" then
    local hops = (near - 1) * tree.link + math.ceil(math.log(nodes) / math.log(2)) * tree.net
    best = math.min(best, tree.base + rounds * (hops + bytes / (bandwidth * tree.share)))
  end
  return best
end

return M
