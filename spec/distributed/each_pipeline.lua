-- Pipelines on one rank, against one process with the whole model.
local moth = require "moth"
local dist, nn = moth.distributed, moth.nn

local function layers(n)
  moth.manual_seed(7)
  local list = {}
  for i = 1, n or 8 do list[i] = nn.Sequential(nn.Linear(6, 6), nn.Tanh()) end
  return list
end

-- A stage of two results, one of which needs no gradient.
local Two = nn.class("Two")
function Two:__init() self.l = nn.Linear(6, 6) end
function Two:forward(x) return self.l(x), x:detach():sign():to(moth.int64) end
local Join = nn.class("Join")
function Join:__init() self.l = nn.Linear(6, 6) end
function Join:forward(x, s) return self.l(x) * s:to(moth.float32) end

local function near(a, b, what)
  local d = (a - b):abs():max():item()
  assert(d < 1e-6, ("%s: %g"):format(what, d))
end

-- Two steps of training by the pipeline and by one process.
local function compare(list, options, batch, loss)
  local x, y = moth.randn(batch, 6), moth.randn(batch, 6)
  local one = nn.ModuleList(list)
  local function forward(v)
    local values = { v }
    for i = 1, #list do values = { one[i](unpack(values)) } end
    return values[1]
  end
  local expected = loss(forward(x), y)
  expected:backward()
  local grads = {}
  for _, p in one:named_parameters() do
    grads[p], p.grad = p.grad, nil
  end
  local pipe = dist.pipeline(list, options)
  local s = pipe.schedule
  local mine, last = s.place[1] == dist.get_rank(), s.place[s.stages] == dist.get_rank()
  local got = pipe:step(mine and x or nil, last and y or nil, loss)
  local what = options.schedule .. " of " .. options.microbatches
  near(got, expected:detach(), what .. ": loss")
  local n = 0
  for name, p in pipe:named_parameters() do
    near(p.grad, grads[p], what .. ": " .. name)
    n = n + 1
  end
  assert(n > 0 and n < #list * 2 or dist.get_world_size() == 1, "this rank has some of the layers")
  local result = pipe(x)
  assert((result ~= nil) == last)
  if last then near(result, forward(x):detach(), what .. ": forward") end
  return pipe
end

return function(rank, size)
  local mse = nn.MSELoss()
  moth.manual_seed(3)
  for _, name in ipairs { "naive", "gpipe", "1f1b", "interleaved", "zb", "zbv" } do
    local n = name == "interleaved" and 2 * size or 5
    compare(layers(2 * math.max(4, size)), { microbatches = n, schedule = name }, math.max(13, 2 * size + 3), mse)
  end
  local list = layers()
  list[2], list[3] = Two(), Join()
  local pipe = compare(list, { microbatches = 4, schedule = "1f1b", recompute = true }, 8, mse)
  assert(tostring(pipe):find("rank " .. rank, 1, true))

  -- shared weights; a list of functions; a split
  list = layers()
  list[8] = list[1]
  compare(list, { microbatches = 3, schedule = "gpipe" }, 9, mse)

  -- gradients add up over steps, also those of shared weights; their norm over all stages
  do
    local one, x = nn.Sequential(unpack(list)):clone(), moth.randn(6, 6)
    for _, m in ipairs(list) do m:zero_grad() end
    local tied = dist.pipeline(list, { microbatches = 3, schedule = "1f1b" })
    for i = 1, 2 do
      tied:step(x * i, x, mse)
      mse(one(x * i), x):backward()
    end
    for _, kind in ipairs { 2, math.huge } do
      near(tied:clip_grad_norm_(kind == 2 and 0.05 or 1e-3, kind),
        nn.utils.clip_grad_norm_(one:parameters(), kind == 2 and 0.05 or 1e-3, kind), "norm")
    end
    for _, p in tied:named_parameters() do
      local found = false
      for _, q in one:named_parameters() do
        found = found or moth.equal(p:detach(), q:detach()) and (p.grad - q.grad):abs():max():item() < 1e-6
      end
      assert(found, "a gradient of two steps")
    end
  end
  local made = 0
  local lazy = {}
  for i = 1, size + 1 do
    lazy[i] = function()
      made = made + 1
      return nn.Linear(6, 6)
    end
  end
  local split = { 2 }
  for i = 2, size do split[i] = 1 end
  dist.pipeline(lazy, { microbatches = 2, split = split })
  assert(made == split[rank + 1], "functions are called where the layer is")

  -- what is held at most is what the schedule says
  local held, most = 0, 0
  local f1b1 = dist.pipeline(layers(), { microbatches = 6, schedule = "1f1b" })
  local stage = f1b1.stages[rank + 1]
  local forward, backward = stage.forward, stage.backward
  rawset(stage, "forward", function(...)
    held = held + 1
    most = math.max(most, held)
    return forward(...)
  end)
  rawset(stage, "backward", function(...)
    held = held - 1
    return backward(...)
  end)
  f1b1:step(moth.randn(6, 6), moth.randn(6, 6), mse)
  assert(most == f1b1.schedule.peak[rank] and most == math.min(6, size - rank), "held: " .. most)

  if size == 1 then
    -- zb: the first part of backward leaves the weights of linear layers to the second one
    for _, recompute in ipairs { false, true } do
      local layer = nn.Linear(6, 2)
      local stages = dist.pipeline({ layer }, { microbatches = 1, schedule = "zb", recompute = recompute })
      local v, g = moth.randn(2, 3, 6):requires_grad_(true), moth.randn(2, 3, 2)
      layer(v):backward(g)
      local w, b = layer.weight.grad, layer.bias.grad
      layer:zero_grad()
      local part = stages.stages[1]
      part:forward(1, { v:detach() }, false) -- it frees what it gets
      local grads = part:backward_inputs(1, { g:clone() })
      assert(not layer.weight.grad and moth.equal(layer.bias.grad, b))
      near(grads[1], v.grad, "gradient of the input")
      part:backward_weights(1)
      near(layer.weight.grad, w, "gradient of the weight")
    end
    local ok, message = pcall(f1b1.step, f1b1, moth.randn(4, 6), moth.randn(4, 6), mse)
    assert(not ok and message:find("4 rows are too few for 6", 1, true), message)
    ok, message = pcall(dist.pipeline, { nn.Linear(2, 2) }, { split = { 2 } })
    assert(not ok and message:find("split: expected the numbers of layers of 1 stages", 1, true), message)
    ok, message = pcall(dist.pipeline, { 5 }, {})
    assert(not ok and message:find("element 1 is no module", 1, true), message)
  end
end
