-- A checkpoint on one rank: saves, or loads what any number of ranks have saved, in the folder dir.
-- Weights are known functions of their positions.
local moth = require "moth"
local dist = moth.distributed
local placement = require "moth.distributed.placement"
local nn = moth.nn

local M = {}

-- A module of which two tensors are cut over the ranks, on different dimensions, one also as blocks.
function M.make(size, seed)
  moth.manual_seed(seed)
  local whole = nn.Sequential(nn.Linear(5, 12), nn.Linear(12, 7), nn.BatchNorm1d(7))
  local group = size > 1 and dist.is_initialized() and require("moth.distributed.group").of(nil, "spec") or nil
  if group then
    for i, o in ipairs { { dim = 1, parts = 2 }, { dim = 2, parts = 1 } } do
      local p = whole[i].weight
      local cut = placement.cut(group, o.dim, p:size(o.dim), o, "spec")
      local part = nn.Parameter(placement.part(p, cut))
      whole[i]._parameters.weight = placement.set(part, p.shape, { cut })
    end
  end
  local opt = moth.optim.Adam(whole:parameters(), { lr = 0.1 })
  return whole, opt
end

function M.step(m, opt, seed) -- gradients that are functions of the whole tensor's positions
  moth.manual_seed(seed)
  for _, p in m:named_parameters() do
    local place = placement.of(p)
    local g = moth.randn(place and place.shape or p.shape)
    p.grad = placement.part_of(g, p)
  end
  opt:step()
end

function M.whole(t, like) return placement.full_tensor(t, like) end

-- The same with fully_shard, by the module's state dict; states of other shapes than their parameters, a parameter
-- without dimensions. Returns the losses of two more steps.
local Net = nn.class("Net")
function Net:__init()
  self.one, self.two, self.scale = nn.Linear(5, 7), nn.Linear(7, 3), nn.Parameter(moth.full({}, 1.5))
end
function Net:forward(x) return self.two(self.one(x):tanh()) * self.scale end

function M.sharded(_, size, dir, what)
  moth.manual_seed(what == "load" and 6 or 5)
  local m = Net()
  if size > 1 then
    dist.fully_shard(m.one)
    dist.fully_shard(m)
  end
  local opt = moth.optim.Adam({ m.one.weight, m.scale }, { lr = 0.1 })
  local rows, losses = moth.optim.Adafactor({ m.two.weight, m.two.bias, m.one.bias }, { lr = 0.1 }), {}
  local function step(i)
    moth.manual_seed(i)
    opt:zero_grad()
    rows:zero_grad()
    local loss = m(moth.randn(4, 5)):square():mean()
    loss:backward()
    opt:step()
    rows:step()
    return loss:item()
  end
  if what ~= "load" then
    for i = 1, 3 do step(i) end
    local format = what == "dcp" and "dcp" or nil
    dist.checkpoint.save({ m = m:state_dict(), opt = opt, rows = rows, of_model = m }, dir, { format = format })
  else
    dist.checkpoint.load({ m = m:state_dict(), opt = opt, rows = rows, of_model = m }, dir)
  end
  for i = 1, 2 do losses[i] = ("%.5f"):format(step(10 + i)) end
  return table.concat(losses, " ")
end

-- A pipeline, saved by stages; one process loads the whole model.
function M.stages(_, size, dir, what)
  moth.manual_seed(8)
  local list = {}
  for i = 1, 4 do list[i] = nn.Linear(3, 3) end
  local x, y = moth.randn(4, 3), moth.randn(4, 3)
  local m = size > 1 and dist.pipeline(list, { microbatches = 2, schedule = "zb" }) or nn.Sequential(list)
  local opt = moth.optim.Adam(m:parameters(), { lr = 0.1 })
  local function step()
    opt:zero_grad()
    local loss
    if size > 1 then
      loss = m:step(x, y, nn.functional.mse_loss)
    else
      loss = nn.functional.mse_loss(m(x), y)
      loss:backward()
    end
    opt:step()
    return loss:item()
  end
  if what ~= "load" then
    for _ = 1, 2 do step() end
    dist.checkpoint.save({ m = m, opt = opt }, dir, { format = what == "dcp" and "dcp" or nil })
  else
    dist.checkpoint.load({ m = m, opt = opt }, dir)
  end
  return ("%.5f %.5f"):format(step(), step())
end

function M.save(rank, size, dir, async, format)
  local m, opt = M.make(size, 1)
  for i = 1, 3 do M.step(m, opt, i) end
  m[3].running_mean:fill_(3)
  local saved = dist.checkpoint.save({ model = m, optim = opt, step = 3, extra = { moth.arange(4), name = "x" },
    z = moth.view_as_complex(moth.ones(3, 2)) }, dir, { async = async, format = format })
  if async then -- what is written is what was there when it was called
    moth.no_grad(function() for _, p in m:named_parameters() do p:zero_() end end)
  end
  saved:wait()
  local info = dist.checkpoint.info(dir)
  assert(info.world_size == size and table.concat(info.tensors["model.0.weight"].shape, ",") == "12,5")
  assert(rank < size)
end

function M.load(_, size, dir)
  local m, opt = M.make(size, 2)
  local z = moth.view_as_complex(moth.zeros(3, 2))
  local c = dist.checkpoint.load({ model = m, optim = opt, step = 0, extra = { moth.zeros(4):long() }, z = z }, dir)
  assert(c.step == 3 and c.extra.name == "x" and moth.equal(c.extra[1], moth.arange(4)))
  assert(moth.view_as_real(z):sum():item() == 6 and m[3].running_mean:sum():item() == 21)
  local one, plain = M.make(1, 1)
  for i = 1, 3 do M.step(one, plain, i) end
  for k = 1, 2 do
    local w = m[k].weight
    assert(moth.equal(M.whole(w), one[k].weight:detach()), "weights")
    assert(moth.equal(M.whole(opt.state[w].exp_avg, w), plain.state[one[k].weight].exp_avg), "state")
  end
  M.step(m, opt, 4) -- it goes on as one process would
  M.step(one, plain, 4)
  assert(moth.equal(M.whole(m[1].weight), one[1].weight:detach()), "the step after")
end

return M
