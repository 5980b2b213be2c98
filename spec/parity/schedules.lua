-- Every learning rate schedule against PyTorch: rates and momenta of 20 steps; the same for a schedule that goes on
-- from PyTorch's state after some steps.
-- Usage: python3 spec/parity/schedules.py FILE; luajit spec/parity/schedules.lua FILE
local moth = require "moth"
local cjson = require "cjson"
local L, optim = moth.optim.lr_scheduler, moth.optim

local f = assert(io.open(arg[1]))
local want = cjson.decode(f:read("*a"))
f:close()

local lambdas = {
  wave = function(e) return 1 + 0.5 * (e % 3) end, fall = function(e) return 0.9 ^ e end,
  ratio = function(e) return e % 2 == 1 and 0.95 or 1.1 end,
}

local function make(case, o)
  local options = {}
  for key, value in pairs(case.options) do options[key] = value end
  local names = options.lr_lambda
  if type(names) == "string" then
    options.lr_lambda = lambdas[names]
  elseif names then
    options.lr_lambda = {}
    for i, name in ipairs(names) do options.lr_lambda[i] = lambdas[name] end
  end
  if #case.parts > 0 then
    options.schedulers = {}
    for i, part in ipairs(case.parts) do options.schedulers[i] = make(part, o) end
    if case.kind == "ChainedScheduler" then return L.ChainedScheduler(options.schedulers, o) end
  end
  return (case.kind == "SWALR" and optim.swa_utils.SWALR or L[case.kind])(o, options)
end

local n, failed = 0, 0
local function compare(case, what, i, o)
  for k, group in ipairs(o.param_groups) do
    for j, got in ipairs { group.lr, group.momentum } do
      local expected = case.rows[i][k][j]
      n = n + 1
      local off = math.abs(got - expected) / (1e-2 + math.abs(expected))
      if off ~= off or off > 1e-10 then
        failed = failed + 1
        if failed <= 10 then
          print(("✗ %s %s%s, step %d, group %d: %s %.12g, PyTorch's %.12g"):format(case.kind,
            cjson.encode(case.options), what, i - 1, k, j == 1 and "lr" or "momentum", got, expected))
        end
      end
    end
  end
end

local function optimizer()
  local function w() return { moth.nn.Parameter(moth.zeros(1)) } end
  return optim.SGD({ { params = w() }, { params = w(), lr = 0.4 } }, { lr = 0.1, momentum = 0.9 })
end

local function walk(case, what, schedule, o, from)
  for i = from, #case.rows do
    compare(case, what, i, o)
    if i < #case.rows then schedule:step(case.kind == "ReduceLROnPlateau" and want.metrics[i] or nil) end
  end
end

for _, case in ipairs(want.cases) do
  local o = optimizer()
  walk(case, "", make(case, o), o, 1)
  o = optimizer()
  local schedule = make(case, o)
  for k, group in ipairs(o.param_groups) do group.lr, group.momentum = unpack(case.rows[want.at + 1][k]) end
  schedule:load_state_dict(case.state)
  walk(case, " from PyTorch's state", schedule, o, want.at + 1)
end
print(("schedules: %d rates and momenta of PyTorch, %d differ"):format(n, failed))
os.exit(failed == 0 and 0 or 1, true)
