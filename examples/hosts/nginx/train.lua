--- Trains the network that nginx serves, on MNIST where its images are (--data DIR, $MOTH_DATA), else on the
-- digits that come with moth.
--
--     moth examples/hosts/nginx/train.lua [--steps 500] [--hidden 256] [--data DIR] [--checkpoint digits.mth]
local moth = require "moth"
package.path = arg[0]:gsub("[^/]*$", "?.lua;") .. package.path
local digits = require "digits"
local o = { steps = 500, hidden = 256, data = false, checkpoint = "digits.mth" }
for flag, value in table.concat(arg, "\n"):gmatch("%-%-(%w+)\n([^\n]+)") do
  assert(o[flag] ~= nil, "unknown option --" .. flag)
  o[flag] = type(o[flag]) == "number" and tonumber(value) or value
end
moth.manual_seed(1)

local set
for _, split in ipairs { "train", "t10k" } do
  if moth.datasets.MNIST.available(o.data or nil, split) then
    set = moth.datasets.MNIST(o.data or nil, { split = split })
    break
  end
end
set = set or moth.datasets.Digits { size = 28 }
print(set)
local x, y = set.images:float():div(255):flatten(2), set.labels
local held = math.floor(x:size(1) / 5) -- the last fifth is not trained on
local n = x:size(1) - held

local model = digits.network(o.hidden)
local opt = moth.optim.Adam(model:parameters(), { lr = 1e-3 })
for _ = 1, o.steps do
  local rows = moth.randint(1, n + 1, { 64 })
  opt:zero_grad()
  moth.nn.functional.cross_entropy(model(x:index_select(1, rows)), y:index_select(1, rows)):backward()
  opt:step()
end
local right = moth.no_grad(function() return model(x:narrow(1, n + 1, held)):argmax(2):eq(y:narrow(1, n + 1, held)) end)
digits.save(model, o.hidden, o.checkpoint)
print(("%.1f %% of %d others are right; written: %s"):format(100 * right:float():mean():item(), held, o.checkpoint))
