--- A small GPT whose parameters, gradients and optimizer's state are cut over the ranks (fully_shard), with a limit of
-- memory in which it does not train as a whole.
--
--     moth run --nproc-per-node 2 examples/fsdp_gpt.lua [--quick]
local moth = require "moth"
local dist = require "moth.distributed"
local nn, optim = moth.nn, moth.optim

local quick = moth.cli({ { "--quick", "a short run" } }).quick
dist.init_process_group "gloo"
local rank = dist.get_rank()
local function say(...) if rank == 0 then print(string.format(...)) end end

local text = ("the quick brown fox jumps over the lazy dog. "):rep(40)
local ids, known, n = {}, {}, 0
for c in text:gmatch "." do
  if not known[c] then
    n = n + 1
    known[c] = n
  end
  ids[#ids + 1] = known[c]
end
ids = moth.tensor(ids, { dtype = moth.int64 })
local T = 16
-- Each rank has its own part of the batch.
local function batch(step)
  local x, y = {}, {}
  for i = 1, 2 do
    local at = (step * 7919 + (rank * 2 + i) * 104729) % (#text - T - 1) + 1
    x[i], y[i] = ids:narrow(1, at, T), ids:narrow(1, at + 1, T)
  end
  return moth.stack(x), moth.stack(y)
end

local function new_model()
  moth.manual_seed(1)
  return moth.models.GPT { vocab_size = n, n_layer = 6, n_head = 4, n_embd = 128, block_size = T }
end

-- Trains for some steps; returns the loss, and the peak of memory in MB.
local function train(model, steps)
  local opt, loss = optim.AdamW(model:parameters(), { lr = 3e-3 }), nil
  moth.memory.reset_peak()
  for step = 1, steps do
    opt:zero_grad()
    local _
    _, loss = model(batch(step))
    collectgarbage() -- what forward has left: no collector runs within backward, and the limit is tight
    loss:backward()
    nn.utils.clip_grad_norm_(model:parameters(), 1)
    opt:step()
    if step % 10 == 0 then say("step %d: loss %.3f", step, loss:item()) end
  end
  return loss:item(), moth.memory.stats().peak / 2 ^ 20
end

local steps = quick and 10 or 60
local model = new_model()
local bytes = model:num_parameters() * 4
say("%d parameters, %.1f MB; with gradients and AdamW's state %.1f MB", bytes / 4, bytes / 2 ^ 20, 4 * bytes / 2 ^ 20)
for i = 1, 6 do dist.fully_shard(model.h[i]) end
dist.fully_shard(model)
local limit = math.floor(3.4 * bytes)
moth.memory.set_limit(limit)
local before = dist.stats().bytes_sent
local loss, peak = train(model, steps)
say("fully_shard: loss %.3f, peak %.1f MB, %.2f times the parameters sent each step by each rank", loss, peak,
  (dist.stats().bytes_sent - before) / steps / bytes)

local ok, message = pcall(function() train(dist.DistributedDataParallel(new_model()), 1) end)
say("DistributedDataParallel within the same limit, %.1f MB: %s", limit / 2 ^ 20,
  ok and "trains" or "out of memory")
if not ok and not tostring(message):find "memory" then error(message, 0) end
moth.memory.set_limit(false)
os.exit(0, true)
