--- optim.Rprop: steps by the signs of gradients alone, for whole batches (Riedmiller and Braun 1993).
--
-- Arguments: params, lr = 1e-2, etas = { 0.5, 1.2 }, step_sizes = { 1e-6, 50 }; maximize = false, capturable = false
-- (see optim.Adam)
--
-- For each element of a parameter x with gradient g:
--   1. g = -g if maximize; c = g times the last g                       (prev)
--   2. s = clamp(etas[2] s, step_sizes) if c > 0, clamp(etas[1] s, …) if c < 0; it begins with lr     (step_size)
--   3. g = 0 if c < 0
--   4. x = x - sign(g) s
local moth = require "moth"
local check = require "moth.utils.check"

return require "moth.optim.stepped" ("Rprop", {
  parameters = "number|Tensor lr=1e-2, number[] etas?, number[] step_sizes?, *, bool maximize=false, \z
    bool capturable=false",
  verify = function(_, o)
    local etas, sizes = o.etas or { 0.5, 1.2 }, o.step_sizes or { 1e-6, 50 }
    if #etas ~= 2 or not (etas[1] > 0 and etas[1] < 1 and etas[2] > 1) then
      check.fail("[optim.Rprop] etas are two numbers, the first between 0 and 1, the second above 1")
    end
    if #sizes ~= 2 or sizes[1] > sizes[2] then
      check.fail("[optim.Rprop] step_sizes are two numbers, the smallest and the largest step")
    end
    o.etas, o.step_sizes = { unpack(etas) }, { unpack(sizes) }
  end,
  op = "rprop_step", states = { "prev", "step_size" },
  start = { step_size = function(group, p)
    return moth.full_like(p, type(group.lr) == "number" and group.lr or group.lr:item())
  end },
  call = function(op, l, group, _, _, ...)
    op(l.params, l.grads, l.prev, l.step_size, group.etas[1], group.etas[2], group.step_sizes[1], group.step_sizes[2],
      group.maximize, ...)
  end,
})
