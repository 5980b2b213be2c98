--- moth.distributed.hooks: communication hooks of DistributedDataParallel, which send less than all of the gradients.
--
--     net:register_comm_hook(dist.hooks.bf16)
--     net:register_comm_hook(dist.hooks.power_sgd { rank = 2 })
--
-- Those that lose something keep what they lost, and add it to the next gradients (error feedback).
local collectives = require "moth.distributed.collectives"
local moth = require "moth"
local signature = require "moth.utils.signature"

local M = {}

signature.type("GradBucket", function(v) return type(v) == "table" and v.__is_bucket == true end,
  "a bucket, as DistributedDataParallel gives it to its hook")

local function group_of(bucket) return bucket.ddp._group end

--- The average, as without a hook.
M.allreduce = signature("distributed.hooks.allreduce(GradBucket bucket)", function(bucket)
  return collectives.all_reduce(bucket:buffer(), { op = "avg", async = true, group = group_of(bucket) })
end)

local function cast_to(name, dtype)
  --- The average, sent as float16 or bfloat16: half of the bytes.
  return signature(("distributed.hooks.%s(GradBucket bucket)"):format(name), function(bucket)
    local low = bucket:buffer():to(moth[dtype])
    local work = collectives.all_reduce(low, { op = "avg", async = true, group = group_of(bucket) })
    return function()
      work:wait()
      return low
    end
  end)
end
--- The average in float16 or bfloat16: half the bytes.
M.fp16, M.bf16 = cast_to("fp16", "float16"), cast_to("bf16", "bfloat16")

-- The bucket's gradients with what was lost before; `lost` keeps a tensor for each bucket.
local function with_lost(bucket, lost)
  local buffer = bucket:buffer()
  local before = lost[bucket:index()]
  return before and before:numel() == buffer:numel() and buffer + before or buffer:clone()
end

local function all_rows(t, group)
  local shape = { group.size }
  for i, n in ipairs(t.shape) do shape[i + 1] = n end
  local all = moth.empty(shape, { dtype = t:dtype() })
  return all, collectives.all_gather_into_tensor(all, t, { async = true, group = group })
end

--- The largest share `ratio` of a bucket's elements, by size.
M.top_k = signature("distributed.hooks.top_k(number ratio=0.01)", function(ratio)
  local lost = {}
  return function(bucket)
    return moth.no_grad(function()
      local group, x = group_of(bucket), with_lost(bucket, lost)
      local k = math.min(x:numel(), math.max(1, math.ceil(x:numel() * ratio)))
      local _, at = x:abs():topk(k)
      local values = x:index_select(1, at)
      lost[bucket:index()] = x:index_fill(1, at, 0)
      local all_values, first = all_rows(values, group)
      local all_at, second = all_rows(at, group)
      return function()
        first:wait()
        second:wait()
        return moth.zeros_like(x):index_add(1, all_at:view(-1), all_values:view(-1)) / group.size
      end
    end)
  end
end)

--- Eight bits for each element, with one scale for a bucket: a quarter of the bytes for two ranks. stochastic: rounded
-- up or down by chance, so that the mean is the gradient (the draws begin with seed, and differ by rank); else to
-- nearest, and what is lost is kept for the next gradients.
M.int8 = signature("distributed.hooks.int8(*, bool stochastic=true, int seed=0)", function(stochastic, seed)
  local lost, generators = {}, {}
  local function nearest(bucket)
    local x = with_lost(bucket, lost)
    local scale = x:abs():max():clamp(1e-30, math.huge):view(1) / 127
    local q = (x / scale):round():to(moth.int8)
    lost[bucket:index()] = x - q:to(x:dtype()) * scale
    return q, scale
  end
  local function by_chance(bucket, group)
    local g = generators[group] or moth.Generator(seed * 65536 + group.rank)
    generators[group] = g
    return moth.quantization.stochastic_int8(bucket:buffer(), g)
  end
  return function(bucket)
    return moth.no_grad(function()
      local group, dtype = group_of(bucket), bucket:buffer():dtype()
      local q, scale = (stochastic and by_chance or nearest)(bucket, group)
      local all, first = all_rows(q, group)
      local scales, second = all_rows(scale, group)
      return function()
        first:wait()
        second:wait()
        return (all:to(dtype) * scales):sum(1) / group.size
      end
    end)
  end
end)

-- Columns of length 1 that are orthogonal to each other.
local function orthogonal(p) return (moth.linalg.qr(p)) end

--- PowerSGD: gradients of matrices as products of two thin ones, of `rank` columns; others as they are.
M.power_sgd = signature("distributed.hooks.power_sgd(count rank=1)", function(rank)
  local state = {}
  return function(bucket)
    return moth.no_grad(function()
      local group, grads = group_of(bucket), bucket:gradients()
      for i, p in ipairs(bucket:parameters()) do
        local g = grads[i]
        local matrix = g:dim() >= 2 and g:reshape(g:size(1), -1) or nil
        local options = { op = "avg", group = group }
        if not matrix or math.min(matrix:size(1), matrix:size(2)) <= rank then
          collectives.all_reduce(g, options)
        else
          local s = state[p]
          if not s then
            s = { q = moth.randn(matrix:size(2), rank, { generator = moth.Generator(matrix:numel()) }):to(g:dtype()),
              lost = moth.zeros_like(matrix) }
            state[p] = s
          end
          local m = matrix + s.lost
          local left = m:matmul(orthogonal(s.q))
          collectives.all_reduce(left, options)
          left = orthogonal(left)
          s.q = m:t():matmul(left)
          collectives.all_reduce(s.q, options)
          local approximate = left:matmul(s.q:t())
          s.lost = m - approximate
          g:copy_(approximate:view(g.shape))
        end
      end
      return bucket:buffer()
    end)
  end
end)

return M
