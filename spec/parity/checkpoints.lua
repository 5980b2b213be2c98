-- Distributed checkpoints for PyTorch: writes DIR/four by 4 ranks with fully_shard, DIR/one by one process without
-- names, and what is in them as DIR/expected.safetensors. Usage: luajit spec/parity/checkpoints.lua DIR
package.path = "spec/?.lua;" .. package.path
local ranks = require "distributed.ranks"

local folder = arg[1]
local code = [[
  local moth = require "moth"
  local nn, dist = moth.nn, moth.distributed
  local placement = require "moth.distributed.placement"
  moth.manual_seed(1)
  local m = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1, { bias = false }))
  if size > 1 then dist.fully_shard(m) end
  local opt = moth.optim.Adam(m:parameters(), { lr = 0.5 })
  for _ = 1, 3 do
    opt:zero_grad()
    m(moth.tensor { { 1, 2 }, { 3, -1 } }):square():sum():backward()
    opt:step()
  end
  local state = { model = m:state_dict(), optim = opt, step = 3 }
  if size > 1 then state.model = m end
  dist.checkpoint.save(state, %q, { format = "dcp", async = true }):wait()
  local expected = {}
  for name, p in m:named_parameters() do
    local function whole(t) return (size > 1 and placement.full_tensor(t, p) or t):detach():clone() end
    expected[name] = whole(p)
    for _, key in ipairs { "exp_avg", "exp_avg_sq" } do expected[name .. "." .. key] = whole(opt.state[p][key]) end
  end
  if rank == 0 then moth.save_safetensors(expected, %q) end]]
local function text(name) return code:format(folder .. "/" .. name, ("%s/%s.safetensors"):format(folder, name)) end

for i, r in ipairs(ranks.run { size = 4, code = text "four" }) do
  if r.rc ~= 0 then error(("rank %d: %s"):format(i - 1, r.out)) end
end
assert(loadstring("local rank, size = 0, 1 " .. text "one"))()
