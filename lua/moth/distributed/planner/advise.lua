--- dist.advise: which kind of parallelism, from the size of the model, the memory of a device and their number.
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local shape = require "moth.distributed.planner.shape"

local function GB(bytes) return ("%.0f GB"):format(bytes / 1e9) end

-- Bytes that one token takes in one layer at work, in the inputs of all layers, and in the logits.
local function token_bytes(s) return 2 * s.hidden * s.layers + 2 * shape.saved(s, "none") + 10 * s.vocab end

--- The choice, the reason, and options for it: name, reason, { strategy =, tp =, pp =, cp = }.
--     dist.advise{ params = 7e9, gpu_mem = 80e9, gpus = 8 } --> "FSDP", "… 112 GB …", { strategy = "FULL_SHARD" }
-- The names: "one device", "DDP", "FSDP" (strategy "SHARD_GRAD_OP" or "FULL_SHARD"), "FSDP + TP", "CP", "PP",
-- "3D parallelism".
-- Options: params, gpu_mem (bytes, 80e9), gpus (8), seq (tokens of a sequence), bytes (of a parameter with gradient and
-- optimizer: 16 for AdamW in float32), layer_fits (false: not even one layer fits on a device).
return signature("distributed.advise(*, number params?, number gpu_mem=80e9, count gpus=8, count seq?, \z
  number bytes=16, bool layer_fits?)", function(o)
  local where = "[distributed.advise]"
  if not o.params and o.layer_fits == nil and o.gpus < 128 then
    check.fail("%s expected the option 'params', the number of parameters", where)
  end
  check.number(where, "gpu_mem", o.gpu_mem, 1)
  check.number(where, "bytes", o.bytes, 0)
  local params = check.number(where, "params", o.params or o.gpu_mem, 1)
  local s = shape.read(where, params)
  local states, mem, gpus = params * o.bytes, o.gpu_mem, o.gpus
  local one_layer = s.block * o.bytes
  local fits = states <= 0.95 * mem
  local long = o.seq and o.seq * token_bytes(s) > 0.5 * mem
  local cp = 1
  if long then
    while cp < gpus and o.seq * token_bytes(s) / cp > 0.5 * mem do cp = cp * 2 end
  end
  if gpus >= 128 and not (o.params and fits) then
    return "3D parallelism", ("%d devices, and a model that does not fit on one: tensor parallelism within a node, \z
      stages of a pipeline over nodes, data parallelism over the rest"):format(gpus),
      { strategy = "FULL_SHARD", tp = 8, pp = math.max(2, math.min(16, math.floor(gpus / 64))), cp = cp }
  end
  if o.layer_fits == false or o.layer_fits == nil and one_layer > mem then
    if gpus > 8 then
      return "3D parallelism", "not even one layer fits: split its products (TP), the depth (PP), and shard the rest \z
        (FSDP)", { strategy = "FULL_SHARD", tp = 8, pp = math.max(2, math.floor(gpus / 8)) }
    end
    return "PP", "not even one layer fits beside the others: split the depth; on more devices combine it with FSDP \z
      and TP (3D)", { pp = gpus }
  end
  if long and gpus > 1 then
    return "CP", ("the sequence is the bottleneck: %d tokens need %s of activations even with recomputation; split \z
      it"):format(o.seq, GB(o.seq * token_bytes(s))), { cp = cp, strategy = fits and "NO_SHARD" or "FULL_SHARD" }
  end
  if gpus == 1 then
    if fits then return "one device", ("states are %s of %s"):format(GB(states), GB(mem)), {} end
    return "FSDP", ("states are %s, the device has %s: one device needs CPU offload"):format(GB(states), GB(mem)),
      { strategy = "FULL_SHARD", offload = true }
  end
  if states <= 0.6 * mem then
    return "DDP", ("the model with its optimizer (%s of %s) fits on one device%s"):format(GB(states), GB(mem),
      gpus > 64 and "; beyond 64 devices the whole model's all-reduce shows: watch its exposed time" or ""),
      { strategy = "NO_SHARD" }
  end
  if fits then
    return "FSDP", ("the model barely fits: %s of %s before activations; shard optimizer state and gradients")
      :format(GB(states), GB(mem)), { strategy = "SHARD_GRAD_OP" }
  end
  local working = 2 * s.block * 2 + s.embedding * 10
  if states / gpus + working <= 0.7 * mem then
    return "FSDP", ("parameters, gradients and optimizer are %s, a device has %s: %s a device over %d"):format(
      GB(states), GB(mem), GB(states / gpus), gpus), { strategy = "FULL_SHARD" }
  end
  local need = math.ceil(states / (0.7 * mem))
  return "FSDP + TP", ("%s a device even with FSDP over %d, of %s: add tensor parallelism%s"):format(
    GB(states / gpus + working), gpus, GB(mem),
    need > gpus and ("; the states alone need at least %d such devices"):format(need) or ""),
    { strategy = "FULL_SHARD", tp = math.min(8, gpus) }
end, true)
