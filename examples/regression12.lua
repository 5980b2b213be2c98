--- Linear regression in twelve lines, and the one that production adds.
local moth = require "moth"; local nn, optim = moth.nn, moth.optim
moth.manual_seed(0)
local X = moth.randn(100, 5); local y = X:matmul(moth.randn(5, 1)) + 0.1 * moth.randn(100, 1)
local model = nn.Linear(5, 1)
local opt = optim.SGD(model:parameters(), { lr = 0.01 })
local loss_fn = nn.MSELoss()
for epoch = 0, 99 do
  opt:zero_grad()
  local loss = loss_fn(model(X), y)
  loss:backward()
  nn.utils.clip_grad_norm_(model:parameters(), 1.0) -- the production line: no single batch can throw the model off
  opt:step()
  if epoch % 10 == 0 then print(("epoch %d loss %.4f"):format(epoch, loss:item())) end
end
