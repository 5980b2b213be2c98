-- A worker of an elastic run. The loss, and so the weights, depend on the step alone: those at the end are those of a
-- run without faults. Arguments: a pattern of those that are killed, the steps, the ranks that step 6 waits for, the
-- signal (default: 9), the timeout (20).
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn
local now = require("moth.utils.system").now
local wait = require("moth_lua").process.wait

local victim, steps, least = arg[1], tonumber(arg[2]), tonumber(arg[3])
dist.init_process_group("gloo", { timeout = tonumber(arg[5] or 20) })
moth.manual_seed(1)
local model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))
local opt = moth.optim.Adam(model:parameters(), { lr = 0.01 })
local state = dist.elastic.State { model = model, opt = opt, step = 0, lost = 0 }
local attempted = 0

dist.elastic.run(state, function()
  local net = nn.parallel.DistributedDataParallel(model)
  local lost = moth.tensor { math.max(state.lost, attempted - state.step) }
  dist.all_reduce(lost, { op = "max" })
  state.lost = lost:item()
  local start = now()
  while state.step < steps do
    attempted = state.step + 1
    moth.manual_seed(100 + state.step)
    local x = moth.randn(8, 10)
    opt:zero_grad()
    local loss = nn.MSELoss()(net(x), x:sum(2, true))
    if state.step == 3 and (os.getenv "MOTH_WORKER" or ""):find("^" .. victim .. "$") then
      os.execute(("kill -%s $PPID"):format(arg[4] or 9))
    end
    loss:backward()
    opt:step()
    state.step = state.step + 1
    state:commit()
    if state.step == 6 and dist.get_world_size() < least then -- until another joins
      while now() - start < 10 do
        dist.barrier()
        wait({}, 0.002)
      end
    end
  end
end)
print(("%d ranks, lost %d, weights %.4f"):format(dist.get_world_size(), state.lost, model[1].weight:sum():item()))
dist.destroy_process_group()
