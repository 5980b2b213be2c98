--- train.find_lr: the loss over rising learning rates (Smith 2017), for a rate to begin with.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local moth = require "moth"
local signature = require "moth.utils.signature"
local each = require "moth.each"

local M = {}

local function copy(v)
  if B.is_tensor(v) then return v:detach():clone() end
  if type(v) ~= "table" then return v end
  local out = setmetatable({}, getmetatable(v))
  for key, value in each(v) do rawset(out, key, copy(value)) end
  return out
end

--- Trains for num_steps batches with rates from min_lr to max_lr, each the same factor above the one before, and puts
-- all back as it was. Ends early when the smoothed loss is stop_factor times its least. Returns { lrs, losses,
-- suggestion }: losses smoothed by beta, and the rate at which they fall most steeply (nil if they do not).
M.find_lr = signature("train.find_lr(table trainer, any loader, *, number min_lr=1e-7, number max_lr=1, \z
  count num_steps=100, number beta=0.9, number stop_factor=4)",
function(trainer, loader, min_lr, max_lr, num_steps, beta, stop_factor)
  if not class.is_a(trainer, require "moth.train.trainer") then
    check.fail("[train.find_lr] trainer: expected a Trainer, got %s", class.name(trainer))
  end
  if not (min_lr > 0 and max_lr > min_lr) then
    check.fail("[train.find_lr] expected 0 < min_lr < max_lr, got %g and %g", min_lr, max_lr)
  end
  local model, opt = trainer.model, trainer.optimizer
  local before = { model = copy(model:state_dict()), opt = copy(opt:state_dict()), rng = moth.get_rng_state(),
    loader = loader.state_dict and loader:state_dict(), training = model.training }
  local lrs, losses, mean, least = {}, {}, 0, math.huge
  model:train()
  local ok, message = pcall(function()
    local iterator, n = loader:iter(), 0
    local function go(...)
      if (...) == nil then return false end
      local lr = min_lr * (max_lr / min_lr) ^ (n / math.max(num_steps - 1, 1))
      n = n + 1
      for _, group in ipairs(opt.param_groups) do group.lr = lr end
      opt:zero_grad()
      local loss = trainer:run(model, ...)
      loss:backward()
      opt:step()
      mean = beta * mean + (1 - beta) * loss:item()
      lrs[n], losses[n] = lr, mean / (1 - beta ^ n)
      least = math.min(least, losses[n])
      return n < num_steps and losses[n] == losses[n] and losses[n] <= stop_factor * math.abs(least)
    end
    local function round()
      local more = go(iterator())
      if not more and n < num_steps and n == #lrs and losses[n] == losses[n]
        and losses[n] <= stop_factor * math.abs(least) then
        iterator = loader:iter() -- another epoch
        more = go(iterator())
      end
      return more
    end
    while round() do end -- luacheck: ignore
  end)
  model:load_state_dict(before.model)
  opt:load_state_dict(before.opt)
  opt:zero_grad()
  if before.loader then loader:load_state_dict(before.loader) end
  moth.set_rng_state(before.rng)
  if not before.training then model:eval() end
  if not ok then error(message, 0) end
  local best, steepest
  for i = 2, #lrs - 1 do -- the slope over log(lr), which rises evenly
    local slope = losses[i + 1] - losses[i - 1]
    if slope < (steepest or 0) then best, steepest = lrs[i], slope end
  end
  return { lrs = lrs, losses = losses, suggestion = best }
end)

return M
