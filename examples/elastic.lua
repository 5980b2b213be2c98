--- Training that survives: rank 1 is killed in the middle; the others go on without it, and a new process takes its
-- place. A checkpoint of all ranks is written meanwhile, and loaded at the end.
--
--     moth run --nproc-per-node 2:3 --max-restarts 1 examples/elastic.lua
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn

dist.init_process_group("gloo", { timeout = 60 })
moth.manual_seed(1)
local model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
local opt = moth.optim.Adam(model:parameters(), { lr = 0.01 })
local state = dist.elastic.State { model = model, opt = opt, step = 0 }
local folder = os.getenv "TMPDIR" or "/tmp"
folder = ("%s/elastic-%s"):format(folder, os.getenv "MASTER_PORT")
local STEPS, began = 200, 0

-- Runs again, from the last commit, each time the ranks have changed.
dist.elastic.run(state, function()
  local net = nn.parallel.DistributedDataParallel(model)
  local rank, size = dist.get_rank(), dist.get_world_size()
  if rank == 0 then
    print(("step %d: %d ranks%s"):format(state.step, size,
      began > state.step and (", %d step is done again"):format(began - state.step) or ""))
  end
  while state.step < STEPS do
    if state.step == 50 and os.getenv "MOTH_WORKER" == "1" then os.execute "kill -9 $PPID" end -- an accident
    began = state.step + 1
    moth.manual_seed(1000 * state.step + rank)
    local x = moth.randn(16, 10)
    opt:zero_grad()
    local loss = nn.functional.mse_loss(net(x), x:sum(2, true))
    loss:backward()
    opt:step()
    state.step = state.step + 1
    state:commit()
    if rank == 0 and state.step % 50 == 0 then print(("step %d: loss %.4f"):format(state.step, loss:item())) end
    if state.step > 60 and size < 3 then moth.utils.system.sleep(0.005) end -- time for the new process to come
  end
end)

dist.checkpoint.save({ model = model, opt = opt, step = state.step }, folder)
local again = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
local saved = dist.checkpoint.load({ model = again, step = 0 }, folder)
assert(saved.step == STEPS and moth.equal(again[1].weight, model[1].weight))
dist.barrier()
if dist.get_rank() == 0 then
  os.execute("rm -r " .. folder)
  print(("the end: %d ranks, step %d"):format(dist.get_world_size(), saved.step))
end
dist.destroy_process_group()
