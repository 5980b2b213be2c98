--- What training and serving share: the network, and how a checkpoint of it is made and read.
local moth = require "moth"
local nn = moth.nn
local M = {}

--- Images of 28x28 as rows of 784 numbers from 0 to 1 -> scores of ten digits.
function M.network(hidden)
  return nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
end

--- Writes a checkpoint that `open` reads.
function M.save(model, hidden, path) moth.save({ hidden = hidden, model = model:state_dict() }, path) end

--- The network of a checkpoint, ready to answer.
function M.open(path)
  local saved = moth.load(path)
  local model = M.network(saved.hidden):eval()
  model:load_state_dict(saved.model)
  for _, p in ipairs(model:parameters()) do p:requires_grad_(false) end
  return model
end

return M
