--- Hooks, the gradient report and the profiler on the lab's network, with a fault to find: a layer whose weights began
-- much too small, so that nothing in front of it learns.
--
--     moth examples/debug_lab.lua
local moth = require "moth"
local nn, optim = moth.nn, moth.optim

moth.manual_seed(0)
local ds = moth.datasets.Digits { size = 28, transform = moth.transforms.ToTensor() }
local images, labels = moth.data.DataLoader(ds, { batch_size = 128 }):iter()()

local model = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(),
  nn.Linear(32, 10))
model[6].weight.data:mul_(1e-10) -- the fault
local opt = optim.SGD(model:parameters(), { lr = 0.1 })
local loss_of = nn.CrossEntropyLoss()

print("1. Hooks: the mean size of what each Linear gives")
local handles = {}
for name, m in model:named_modules() do
  if m:is_a(nn.Linear) then
    handles[#handles + 1] = m:register_forward_hook(function(_, _, output)
      print(("   %-3s %.3g"):format(name, output:detach():abs():mean():item()))
    end)
  end
end
local loss = loss_of(model(images), labels)
for _, handle in ipairs(handles) do handle:remove() end

print("2. The step's checks, and the report of its gradients")
moth.debug.check_step { model = model, opt = opt, loss = loss, inputs = images }
loss:backward()
local report = moth.debug.grad_report(model)
for _, row in ipairs(report.flagged) do print(("   %-10s %s: norm %.2g"):format(row.name, row.flag, row.norm)) end

print("3. After the cure the same report is clean, and the loss falls")
nn.init.kaiming_uniform_(model[6].weight)
local first
for step = 1, 30 do
  opt:zero_grad()
  loss = loss_of(model(images), labels)
  loss:backward()
  if step == 1 then
    first = loss:item()
    print("   flagged: " .. #moth.debug.grad_report(model).flagged)
  end
  opt:step()
end
print(("   loss %.3f -> %.3f"):format(first, loss:item()))

print("4. The profile of a step: where its time goes")
local function step()
  opt:zero_grad()
  loss_of(model(images), labels):backward()
  opt:step()
end
print(moth.profiler.step_breakdown(step, { steps = 5 }))
local prof = moth.profiler.profile({ with_modules = true }, step)
for _, row in ipairs(prof:top(3)) do print(("   %-24s %d calls"):format(row.key, row.count)) end
