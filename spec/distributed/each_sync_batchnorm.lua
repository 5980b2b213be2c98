-- nn.SyncBatchNorm on one rank, against batch norm of all ranks' samples; the ranks have different numbers of them.
local moth = require "moth"
local dist = require "moth.distributed"
local nn = moth.nn

local function close(a, b, what)
  assert(moth.allclose(a, b, 1e-10, 1e-12), what)
end

return function(rank, size)
  moth.manual_seed(7)
  local total, first = 0, 0
  for r = 0, size - 1 do
    if r == rank then first = total end
    total = total + r + 2
  end
  for _, momentum in ipairs { 0.3, false } do
    local x = moth.randn({ total, 3, 2, 5 }, { dtype = moth.float64, requires_grad = true })
    local w = moth.randn({ total, 3, 2, 5 }, { dtype = moth.float64 })
    local bn = nn.BatchNorm2d(3, { momentum = momentum }):double()
    moth.no_grad(function() bn.weight:uniform_() end)
    local sync = nn.SyncBatchNorm.convert_sync_batchnorm(bn:clone(), momentum and dist.new_group() or nil)
    local whole = bn(x)
    local expected = { moth.autograd.grad((whole * w):sum(), { x, bn.weight, bn.bias }) }
    local mine = x:narrow(1, first + 1, rank + 2):detach():requires_grad_()
    local y = sync(mine)
    local loss = (y * w:narrow(1, first + 1, rank + 2)):sum()
    local grads = { moth.autograd.grad(loss, { mine, sync.weight, sync.bias }) }
    close(whole:narrow(1, first + 1, rank + 2), y, "values")
    close(expected[1]:narrow(1, first + 1, rank + 2), grads[1], "gradient of the input")
    for i = 2, 3 do
      dist.all_reduce(grads[i])
      close(expected[i], grads[i], "gradient of a parameter")
    end
    close(bn.running_mean, sync.running_mean, "running mean")
    close(bn.running_var, sync.running_var, "running variance")
    close(sync:eval()(x), bn:eval()(x), "evaluation")
    local low = sync:train():bfloat16()(mine:detach():bfloat16())
    assert(low:dtype() == moth.bfloat16 and moth.allclose(low:double(), y:detach(), 5e-2, 5e-2), "bfloat16")
  end
end
