--- What training takes, by arithmetic: before there is a machine for it.
local B = require "moth_lua"
local signature = require "moth.utils.signature"
local check = require "moth.utils.check"
local summary = require "moth.memory.summary"

local M = {}

-- Numbers that an optimizer keeps for each parameter, in the parameter's dtype (Adafactor's few rows and columns not
-- counted).
local states = { SGD = 0, ["SGD with momentum"] = 1, Adam = 2, AdamW = 2, NAdam = 2, RAdam = 2, Adamax = 2, LAMB = 2,
  Adagrad = 1, Adadelta = 2, RMSprop = 1, Rprop = 2, ASGD = 1, Lion = 1, Muon = 1, Adafactor = 0 }

--- The numbers that an optimizer keeps for each parameter: by its name, or of an optimizer with its options.
function M.states_of(optimizer)
  if type(optimizer) == "table" and optimizer.param_groups then
    local o = optimizer.param_groups[1]
    local n = states[optimizer.__name]
    if not n then return nil end
    if optimizer.__name == "SGD" or optimizer.__name == "RMSprop" then n = n + ((o.momentum or 0) ~= 0 and 1 or 0) end
    return n + ((o.amsgrad or o.centered) and 1 or 0)
  end
  return states[optimizer]
end

local Estimate = {}
Estimate.__index = Estimate
function Estimate:__tostring()
  local out = {}
  for _, name in ipairs { "parameters", "gradients", "optimizer_state", "activations", "total" } do
    if self[name] and self[name] > 0 then
      out[#out + 1] = ("%-16s %10.2f GB"):format(name:gsub("_", " "), self[name] / 1e9)
    end
  end
  return table.concat(out, "\n")
end

--- The bytes that each device needs: the total, and { parameters, gradients, optimizer_state, activations, total }.
-- estimate{ params = 7e9, optimizer = "AdamW", dtype = "float32" } --> 112e9. Options: params (their number) or model;
-- optimizer (its name, or one; without it nothing is trained: parameters alone), dtype (of parameters and gradients),
-- master (dtype of a second copy of the parameters, which the optimizer's state then has, too), activations (bytes),
-- strategy ("single", "ddp": everything on each device; "zero1": the optimizer's state is divided among `world`
-- devices,
-- "zero2": the gradients, too, "fsdp": all), world.
M.estimate = signature("memory.estimate(*, number params?, Module model?, any optimizer?, dtype dtype?, \z
  dtype master?, number activations=0, \z
  'single'|'ddp'|'zero1'|'zero2'|'fsdp' strategy='single', count world=1)", function(o)
  if (o.params == nil) == (o.model == nil) then
    check.fail("[memory.estimate] expected one of the options 'params' and 'model'")
  end
  local params = o.params or o.model:num_parameters()
  if not (params >= 0 and params < math.huge) then
    check.fail("[memory.estimate] params: expected a number of parameters, got %g", params)
  end
  local size = B.dtype(o.dtype or "float32").itemsize
  local keeps = 0
  if o.optimizer ~= nil then
    keeps = M.states_of(o.optimizer)
    if not keeps then
      local names = {}
      for name in require("moth.each")(states) do names[#names + 1] = name end
      table.sort(names)
      local name = type(o.optimizer) == "table" and o.optimizer.__name or tostring(o.optimizer)
      check.fail("[memory.estimate] option 'optimizer': there is none named '%s'%s; there are: %s", name,
        check.suggest(name, names), table.concat(names, ", "))
    end
  end
  local function share(strategies) return strategies:find(o.strategy, 1, true) and o.world or 1 end
  local master = o.master and B.dtype(o.master).itemsize
  local e = setmetatable({
    parameters = params * size / share "fsdp",
    gradients = o.optimizer ~= nil and params * size / share "zero2 fsdp" or 0,
    optimizer_state = params * (keeps * (master or size) + (master or 0)) / share "zero1 zero2 fsdp",
    activations = o.activations,
  }, Estimate)
  e.total = e.parameters + e.gradients + e.optimizer_state + e.activations
  return e.total, e
end, true)

M.size = summary.size
return M
