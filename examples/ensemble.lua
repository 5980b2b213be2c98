--- An ensemble trained as one: the parameters of eight models stacked, one forward and backward for all by vmap.
--
--     moth examples/ensemble.lua
local moth = require "moth"
local nn, func = moth.nn, moth.func

moth.manual_seed(0)
local members = 8
local models = {}
for i = 1, members do models[i] = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)) end
local params = func.stack_module_state(models)

local xs = moth.rand(64, 1) * 4 - 2
local ys = (xs * 2):sin() + moth.randn(64, 1) * 0.1
local function loss(p, x, y) return nn.functional.mse_loss(func.functional_call(models[1], p, x), y) end
local each = func.vmap(loss, { 1, false, false })

local list = {}
for _, p in pairs(params) do list[#list + 1] = p end
local optimizer = moth.optim.Adam(list, { lr = 0.01 })
for _ = 1, 400 do
  optimizer:zero_grad()
  each(params, xs, ys):sum():backward() -- the models share nothing: the sum has each one's gradient
  optimizer:step()
end
local losses = each(params, xs, ys)
print(("losses of %d models: from %.4f to %.4f"):format(members, losses:min():item(), losses:max():item()))

-- Where there was data they agree; far from it they do not.
local at = moth.tensor { { 0 }, { 6 } }
local out = moth.no_grad(function()
  return func.vmap(function(p) return func.functional_call(models[1], p, at) end)(params)
end)
local spread = out:squeeze(-1):std(1)
print(("spread of their answers: %.3f within the data, %.3f outside of it"):format(spread[1]:item(), spread[2]:item()))
