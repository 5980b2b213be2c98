-- One call of each collective, for the specs of this folder: { name in messages, fn(o) }. o: rank, size, n (elements
-- for each rank), dtype, root, options (group, op of reductions, async).
local moth = require "moth"
local dist = require "moth.distributed"

local function zeros(o, n) return moth.zeros({ n or o.n }, { dtype = o.dtype }) end
local function list(o)
  local all = {}
  for r = 1, o.size do all[r] = zeros(o) end
  return all
end

return {
  { "all_reduce", function(o) return dist.all_reduce(zeros(o), o.options) end, reduces = true },
  { "broadcast", function(o) return dist.broadcast(zeros(o), o.root, o.options) end, rooted = true },
  { "reduce", function(o) return dist.reduce(zeros(o), o.root, o.options) end, rooted = true, reduces = true },
  { "all_gather", function(o) return dist.all_gather_into_tensor(zeros(o, o.n * o.size), zeros(o), o.options) end },
  { "reduce_scatter", function(o) return dist.reduce_scatter_tensor(zeros(o), zeros(o, o.n * o.size), o.options) end,
    reduces = true },
  { "all_to_all", function(o) return dist.all_to_all_single(zeros(o, o.n * o.size), zeros(o, o.n * o.size), nil, nil,
    o.options) end },
  { "gather", function(o) return dist.gather(zeros(o), o.rank == o.root and list(o) or nil, o.root, o.options) end,
    rooted = true },
  { "scatter", function(o) return dist.scatter(zeros(o), o.rank == o.root and list(o) or nil, o.root, o.options) end,
    rooted = true },
  { "permute_ranks", function(o) return dist.nn.shift(zeros(o), 1, { group = o.options.group }) end },
  { "barrier", function(o) return dist.barrier(o.options) end, bare = true },
}
