--- Training in float16: autocast, a loss scaled so that small gradients survive, clipping of the unscaled gradients, a
-- step that is left out where one overflows.
--
--     moth examples/amp_fp16.lua [--steps 200]
local moth = require "moth"
local nn, F, optim, amp = moth.nn, moth.F, moth.optim, moth.amp

local steps = moth.cli({ { "--steps N", "of training", 200 } }).steps
local device = moth.cuda.is_available() and "cuda" or "cpu"

moth.manual_seed(0)
-- Three classes of points on spirals.
local n = 300
local t = moth.linspace(0, 1, n / 3)
local x, y = {}, {}
for class = 1, 3 do
  local angle = t * 4 + (class - 1) * 2.1 + moth.randn(n / 3) * 0.1
  x[class] = moth.stack({ t * angle:sin(), t * angle:cos() }, 2)
  y[class] = moth.full({ n / 3 }, class, { dtype = moth.int64 })
end
x, y = moth.cat(x):to(device), moth.cat(y):to(device)

local net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)):to(device)
local optimizer = optim.Adam(net:parameters(), { lr = 1e-2 })
local scaler = amp.GradScaler { growth_interval = 50 }

local first, last
for step = 1, steps do
  optimizer:zero_grad()
  local loss = amp.autocast({ dtype = moth.float16 }, function() return F.cross_entropy(net(x), y) end)
  scaler:scale(loss):backward()
  scaler:unscale_(optimizer) -- now the gradients are those of the loss itself
  local norm = nn.utils.clip_grad_norm_(net:parameters(), 1)
  scaler:step(optimizer)     -- left out if a gradient is infinite or NaN
  scaler:update()
  last = loss:item()
  first = first or last
  if step % 50 == 0 or step == 1 then
    print(("step %4d  loss %.4f  norm %.3f  scale %g"):format(step, last, norm:item(), scaler:get_scale()))
  end
end

local right = moth.no_grad(function() return net(x):argmax(2):eq(y):float():mean():item() end)
print(("loss %.3f -> %.3f, %.1f %% right; parameters are %s, their gradients %s"):format(first, last, 100 * right,
  net[1].weight:dtype().name, net[1].weight.grad:dtype().name))
