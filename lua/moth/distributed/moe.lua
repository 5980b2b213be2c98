--- Mixture of experts over the ranks of a group: each rank has some of the experts; tokens go to those that the router
-- chose, and come back.
--
--     local moe = dist.MoE(64, 256, { num_experts = 8, top_k = 2, mesh = mesh.ep })
--     local y = moe(x)                     -- x (…, 64) -> (…, 64)
--     (task_loss(y) + 0.01 * moe.aux_loss):backward()
--
-- Each rank has tokens of its own. The experts see those of all ranks; their gradients are divided by the number of
-- ranks, as an average of the ranks' losses has them (average = false: their sum). The router's weights are on all
-- ranks: average their gradients, as DistributedDataParallel does, which leaves experts of its own group alone.
local check = require "moth.utils.check"
local class = require "moth.class"
local autograd = require "moth.autograd"
local collectives = require "moth.distributed.collectives"
local dnn = require "moth.distributed.nn"
local functional = require "moth.nn.functional"
local init = require "moth.nn.init_"
local Linear = require "moth.nn.linear"
local mesh = require "moth.distributed.mesh"
local Module = require "moth.nn.module"
local moth = require "moth"
local Parameter = require "moth.nn.parameter"
local placement = require "moth.distributed.placement"
local signature = require "moth.utils.signature"

local MoE = class("MoE", Module)

local Scaled = autograd.Function { name = "ScaledGradient",
  forward = function(ctx, x, s)
    ctx.s = s
    return x:view(x.shape)
  end,
  backward = function(ctx, grad) return grad * ctx.s, nil end }

--- dim: of tokens; hidden: of each expert's two layers. num_experts: of all ranks. top_k: experts for each token, whose
-- results are weighed by their probabilities, which are made to sum to 1 (normalize). capacity_factor: an expert takes
-- at most ceil(capacity_factor * tokens * top_k / num_experts) of a rank's tokens, first choices before second ones;
-- the others get nothing from it, so that no expert is waited for. Without it none is dropped.
-- Parameters: router.weight (num_experts, dim); w1 (experts here, hidden, dim), w2 (experts here, dim, hidden).
MoE.__init = signature.init("distributed.MoE(count dim, count hidden, *, count num_experts, count top_k=2, \z
  number capacity_factor?, DeviceMesh|ProcessGroup mesh?, 'gelu'|'relu'|'silu' activation='gelu', \z
  bool normalize=true, bool average=true, device device?, dtype dtype?)", function(self, o)
  if o.top_k > o.num_experts then
    check.fail("[distributed.MoE] top_k is %d, of %d experts", o.top_k, o.num_experts)
  end
  if o.capacity_factor and o.capacity_factor <= 0 then
    check.fail("[distributed.MoE] capacity_factor: expected a number above 0, got %g", o.capacity_factor)
  end
  self.group, self.capacity_factor = mesh.group_of(o.mesh, "MoE"), o.capacity_factor
  self.dim, self.hidden, self.num_experts, self.top_k = o.dim, o.hidden, o.num_experts, o.top_k
  self.activation, self.normalize, self.average = o.activation, o.normalize, o.average
  local like = { dtype = o.dtype, device = o.device }
  self.router = Linear(o.dim, o.num_experts, { bias = false, dtype = o.dtype, device = o.device })
  local cut = { group = self.group, dim = 1, parts = 1, unit = 1 }
  local _, n = placement.rows(o.num_experts, self.group.size, self.group.rank)
  self.w1 = Parameter(moth.empty({ n, o.hidden, o.dim }, like))
  self.w2 = Parameter(moth.empty({ n, o.dim, o.hidden }, like))
  if self.group.size > 1 then
    placement.set(self.w1, { o.num_experts, o.hidden, o.dim }, { cut })
    placement.set(self.w2, { o.num_experts, o.dim, o.hidden }, { cut })
  end
  self:reset()
end)

--- As nn.Linear. With the same seed on all ranks the experts are those of one process.
function MoE:reset()
  self.router:reset()
  local first, n = placement.rows(self.num_experts, self.group.size, self.group.rank)
  moth.no_grad(function()
    for e = 0, self.num_experts - 1 do -- all of them, so that the numbers do not depend on the ranks
      local a, b = moth.empty({ self.hidden, self.dim }), moth.empty({ self.dim, self.hidden })
      init.kaiming_uniform_(a, { a = math.sqrt(5) })
      init.kaiming_uniform_(b, { a = math.sqrt(5) })
      if e >= first and e < first + n then
        self.w1:select(1, e - first + 1):copy_(a)
        self.w2:select(1, e - first + 1):copy_(b)
      end
    end
  end)
end

local function experts_of(self)
  local list = {}
  for r = 0, self.group.size - 1 do
    local _, n = placement.rows(self.num_experts, self.group.size, r)
    list[r + 1] = n
  end
  return list
end

-- How many rows of each expert go to each rank, and come from each: the numbers of rows for, and from, each rank, and
-- the local expert of each row that comes (from 1).
local function exchange(self, counts)
  local per_rank, group = experts_of(self), self.group
  local n, from = per_rank[group.rank + 1], {}
  for r = 1, group.size do from[r] = n end
  local like = { dtype = moth.int64, device = counts:device() }
  local theirs = moth.empty({ n * group.size }, like)
  collectives.all_to_all_single(theirs, counts, from, per_rank, { group = group })
  local mine, rows = counts:totable(), theirs:totable()
  local send, receive, of_row, at = {}, {}, {}, 1
  for r = 1, group.size do
    send[r], receive[r] = 0, 0
    for _ = 1, per_rank[r] do
      send[r], at = send[r] + mine[at], at + 1
    end
    for e = 1, n do
      local k = rows[(r - 1) * n + e]
      receive[r] = receive[r] + k
      if k > 0 then of_row[#of_row + 1] = moth.full({ k }, e, like) end
    end
  end
  return send, receive, #of_row > 0 and moth.cat(of_row) or moth.empty({ 0 }, like)
end

local function back(order) -- the inverse of a permutation
  local places = moth.arange(1, order:numel() + 1, { dtype = moth.int64, device = order:device() })
  return moth.empty_like(order):scatter(1, order, places)
end

-- flat: the expert of each choice. Returns the positions in it of the choices within the capacity of their expert,
-- ordered by expert; how many of each expert; and how many were dropped.
local function admitted(self, flat, counts)
  local n, E = flat:numel(), self.num_experts
  local capacity = math.ceil(self.capacity_factor * n / E)
  local order = ((flat - 1) * n + moth.arange(n, { dtype = moth.int64, device = flat:device() })):argsort()
  local starts = counts:cumsum(1) - counts -- of each expert's rows in that order
  local place = moth.arange(n, { dtype = moth.int64, device = flat:device() })
    - starts:index_select(1, flat:index_select(1, order))
  local kept = order:index_select(1, place:lt(capacity):nonzero():view(-1))
  return kept, counts:clamp { max = capacity }, n - kept:numel()
end

--- x (…, dim) -> the same. Afterwards aux_loss is the load-balancing loss of Switch Transformer over this rank's tokens
-- (1 if all experts get as many), counts how many tokens each expert got from here, and dropped how many choices of
-- tokens were beyond the capacity of their expert (capacity_factor).
function MoE:forward(x)
  check.tensor("distributed.MoE", "x", x)
  local group, E, k = self.group, self.num_experts, self.top_k
  if x:size(-1) ~= self.dim then
    check.fail("[distributed.MoE] expected tokens of %d numbers, got [%s]", self.dim, table.concat(x.shape, ", "))
  end
  local tokens = x:reshape(-1, self.dim)
  local probs = self.router(tokens):softmax(2)
  local weight, chosen = probs:topk(k, 2)
  if self.normalize then weight = weight / weight:sum(2, true) end
  local order, source, counts, wanted, send, receive, of_row, by_expert
  self.dropped = 0
  moth.no_grad(function()
    local flat = chosen:reshape(-1)
    wanted = moth.bincount(flat, nil, E):narrow(1, 1, E):to(moth.int64):contiguous()
    counts = wanted
    if self.capacity_factor and flat:numel() > 0 then
      order, counts, self.dropped = admitted(self, chosen:t():reshape(-1), wanted)
      local n = tokens:size(1)
      source = (order - 1):remainder(n) + 1
      order = (source - 1) * k + (order - 1):floor_divide(n) + 1
    else
      order = flat:argsort()
      source = (order - 1):floor_divide(k) + 1
    end
    send, receive, of_row = exchange(self, counts)
    by_expert = of_row:argsort()
  end)
  self.counts = counts
  self.aux_loss = (wanted:to(probs:dtype()) / math.max(1, tokens:size(1) * k) * probs:mean(1)):sum() * E
  local rows = dnn.all_to_all(tokens:index_select(1, source), receive, send, { group = group })
  rows = rows:index_select(1, by_expert)
  local w1, w2 = self.w1, self.w2
  if self.average and group.size > 1 then w1, w2 = Scaled(w1, 1 / group.size), Scaled(w2, 1 / group.size) end
  local mine, at, results = moth.bincount(of_row, nil, math.max(1, w1:size(1))):totable(), 1, {}
  local act = functional[self.activation]
  for e = 1, w1:size(1) do
    local h = act(moth.linear(rows:narrow(1, at, mine[e]), w1:select(1, e)))
    results[e], at = moth.linear(h, w2:select(1, e)), at + mine[e]
  end
  local y = #results > 0 and moth.cat(results) or rows + (w1:sum() + w2:sum())
  y = dnn.all_to_all(y:index_select(1, back(by_expert)), send, receive, { group = group })
  y = y * weight:reshape(-1):index_select(1, order):unsqueeze(2)
  return moth.zeros_like(tokens):index_add(1, source, y):view(x.shape)
end

function MoE:extra_repr()
  return ("%d, %d, num_experts=%d, top_k=%d%s, ranks=%d"):format(self.dim, self.hidden, self.num_experts, self.top_k,
    self.capacity_factor and (", capacity_factor=%g"):format(self.capacity_factor) or "", self.group.size)
end

return MoE
