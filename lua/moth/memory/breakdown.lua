--- What the memory of training is for: measured, and predicted on fake tensors; saved activations by module.
local B = require "moth_lua"
local moth = require "moth"
local check = require "moth.utils.check"
local graph = require "moth.autograd.graph"
local estimate = require "moth.memory.estimate"
local summary = require "moth.memory.summary"
local each = require "moth.each"

local M = {}

-- A set of storages; add(t) returns the bytes of t's, 0 if it was there.
local function storages()
  local seen = {}
  return function(t)
    local id = B.storage_id(t)
    if seen[id] then return 0 end
    seen[id] = t -- retained: the address is not used again
    return B.storage_nbytes(t)
  end
end

local function walk(value, add)
  if B.is_tensor(value) then return add(value) end
  if type(value) ~= "table" or getmetatable(value) ~= nil and not value.__list then return 0 end
  local sum = 0
  for _, v in each(value) do sum = sum + walk(v, add) end
  return sum
end

local function parameters_of(model, add)
  local sum = 0
  for _, p in model:named_parameters() do sum = sum + add(p) end
  for _, b in model:named_buffers() do sum = sum + add(b) end
  return sum
end

local function settle()
  for _ = 1, 2 do
    collectgarbage()
    moth.zeros(1) -- what backward has released is removed when a handle is made
  end
  collectgarbage()
end

local function live(device)
  settle()
  if device.type == "cuda" then return require("moth.cuda").memory_allocated(device) end
  return B.memory_stats().live
end
local function peak(device)
  if device.type == "cuda" then return require("moth.cuda").max_memory_allocated(device) end
  return B.memory_stats().peak
end
local function reset_peak(device)
  if device.type == "cuda" then return require("moth.cuda").reset_peak_memory_stats(device) end
  B.reset_peak()
end

local order = { "parameters", "gradients", "optimizer_state", "activations", "workspace", "total" }

local Breakdown = {}
Breakdown.__index = Breakdown
function Breakdown:__tostring()
  local out = { ("%-18s %12s %12s %8s"):format("", "measured", "predicted", "off by") }
  for _, name in ipairs(order) do
    local m, p = self.measured[name], self.predicted[name]
    local off = p and m > 0 and ("%+.1f %%"):format(100 * (p - m) / m) or ""
    out[#out + 1] = ("%-18s %12s %12s %8s"):format(name:gsub("_", " "), summary.size(m), p and summary.size(p) or "",
      off)
  end
  return table.concat(out, "\n")
end

local function scalar(y)
  if B.is_tensor(y) then return B.numel(y) == 1 and y or y:float():sum() end
  local sum
  local function add(v)
    if B.is_tensor(v) then
      if B.requires_grad(v) then sum = sum and sum + v:float():sum() or v:float():sum() end
    elseif type(v) == "table" then
      for _, inner in each(v) do add(inner) end
    end
  end
  add(y)
  return sum or check.fail("[memory.breakdown] the model returned no tensor that requires a gradient")
end

-- The bytes that allocators take for n: the CPU's size classes are eight steps a doubling, four below 32 KB, 64 bytes
-- below
-- 1 KB; CUDA's 512 bytes.
local function taken(n, device)
  if device.type == "cuda" then return math.ceil(n / 512) * 512 end
  if n <= 1024 then return math.ceil(n / 64) * 64 end
  local _, e = math.frexp(n - 1) -- 2 ^ (e - 1) <= n - 1 < 2 ^ e
  local step = 2 ^ (e - (n <= 32768 and 3 or 4))
  return math.ceil(n / step) * step
end

-- The bytes that forward saves for backward, on fake tensors: nothing is computed.
local function predicted_activations(model, inputs, loss, device)
  local add, sum = storages(), 0
  parameters_of(model, add)
  for _, v in ipairs(inputs) do walk(v, add) end
  moth.dispatch.fake_mode(function()
    local function pack(x)
      sum = sum + taken(add(x), device)
      return x
    end
    local function forward()
      local y = loss(model(unpack(inputs, 1, inputs.n)))
      sum = sum + taken(walk(y, add), device)
    end
    graph.saved_tensors_hooks(pack, function(x) return x end, forward)
  end)
  return sum
end

--- The memory of one training step by purpose, measured and predicted: breakdown(model, optimizer, x, …) runs a step of
-- loss(model(x, …)) and prints as a table. measured and predicted have parameters (with buffers), gradients,
-- optimizer_state, activations (what forward saves for backward), total; measured also workspace: what backward takes
-- at its peak beyond these. optimizer may be nil. The last value may be { loss = fn }: of the model's results; the sum
-- of them, if none is given. The prediction runs on fake tensors and computes nothing. The step changes the model.
function M.breakdown(model, optimizer, ...)
  local where = "[memory.breakdown]"
  if type(model) ~= "table" or not model.__module then
    check.fail("%s argument 'model': expected a module, got %s", where, type(model))
  end
  if optimizer ~= nil and (type(optimizer) ~= "table" or type(optimizer.param_groups) ~= "table") then
    check.fail("%s argument 'optimizer': expected an optimizer or nil, got %s", where, type(optimizer))
  end
  local inputs = { n = select("#", ...), ... }
  local last, loss = inputs[inputs.n], scalar
  if type(last) == "table" and getmetatable(last) == nil and last.loss ~= nil then
    check.options(where, last, "loss")
    if not check.is_callable(last.loss) then
      check.fail("%s option 'loss': expected a function, got %s", where, type(last.loss))
    end
    loss = last.loss
    inputs.n = inputs.n - 1
  end
  if inputs.n == 0 then check.fail("%s argument 'x': expected what the model is called with", where) end
  local first
  for _, p in model:named_parameters() do first = first or p end
  if not first then check.fail("%s the model has no parameters", where) end
  local device = B.tensor_device(first)
  local parameters = model:parameters()

  local predicted = { parameters = parameters_of(model, storages()), gradients = 0, optimizer_state = 0 }
  local keeps = optimizer and estimate.states_of(optimizer) or 0
  local add = storages()
  for _, p in ipairs(parameters) do
    if B.requires_grad(p) then
      local bytes = add(p) > 0 and B.numel(p) * B.tensor_dtype(p).itemsize or 0
      predicted.gradients = predicted.gradients + bytes
      predicted.optimizer_state = predicted.optimizer_state + keeps * bytes
    end
  end
  predicted.activations = predicted_activations(model, inputs, loss, device)
  predicted.total = predicted.parameters + predicted.gradients + predicted.optimizer_state + predicted.activations

  local measured = { parameters = parameters_of(model, storages()) }
  for _, p in ipairs(parameters) do B.set_grad(p, nil) end
  local before = live(device)
  local y = loss(model(unpack(inputs, 1, inputs.n)))
  local after = live(device)
  measured.activations = after - before
  reset_peak(device)
  y:backward()
  local highest = peak(device)
  y = nil -- luacheck: ignore
  settle()
  local gradients = storages()
  measured.gradients = 0
  for _, p in ipairs(parameters) do
    local g = B.get_grad(p)
    measured.gradients = measured.gradients + (g and gradients(g) or 0)
  end
  measured.workspace = math.max(0, highest - after - measured.gradients)
  measured.optimizer_state = 0
  if optimizer then
    optimizer:step()
    local state = storages()
    for _, p in ipairs(parameters) do
      measured.optimizer_state = measured.optimizer_state + walk(rawget(optimizer.state, p) or {}, state)
    end
  end
  measured.total = measured.parameters + measured.gradients + measured.optimizer_state + measured.activations
  return setmetatable({ measured = measured, predicted = predicted }, Breakdown)
end

-- ---- by module ---------------------------------------------------------------------------------------------

local ByModule = {}
ByModule.__index = ByModule
function ByModule:__tostring()
  local out = { ("%-32s %-18s %10s %10s %10s"):format("module", "class", "saved", "output", "parameters") }
  for _, m in ipairs(self) do
    out[#out + 1] = ("%-32s %-18s %10s %10s %10s"):format(m.name == "" and "(all)" or m.name, m.class,
      summary.size(m.saved), summary.size(m.output), summary.size(m.parameters))
  end
  return table.concat(out, "\n")
end

--- Memory by module: runs model(...), and returns a list of { name, class, saved (bytes that the module's own ops save
-- for backward), total (with the modules below), output (bytes of its results), parameters (its own), calls }, in the
-- order of the model; prints as a table. Each storage is counted once, for the module that saves it first; parameters
-- and inputs are not.
function M.by_module(model, ...)
  if type(model) ~= "table" or not model.__module then
    check.fail("[memory.by_module] argument 'model': expected a module, got %s", type(model))
  end
  local list, handles, stack, add = setmetatable({}, ByModule), {}, {}, storages()
  parameters_of(model, add)
  local inputs = { n = select("#", ...), ... }
  for i = 1, inputs.n do walk(inputs[i], add) end
  for name, m in model:named_modules() do
    local own, count = 0, storages()
    for _, p in each(m:registry("_parameters")) do own = own + count(p) end
    local entry = { name = name, class = m.__name, saved = 0, total = 0, output = 0, parameters = own, calls = 0 }
    list[#list + 1] = entry
    handles[#handles + 1] = m:register_forward_pre_hook(function() stack[#stack + 1] = entry end)
    handles[#handles + 1] = m:register_forward_hook(function(_, _, output)
      stack[#stack] = nil
      entry.calls = entry.calls + 1
      entry.output = entry.output + walk(output, storages())
    end)
  end
  local function pack(x)
    local bytes = add(x)
    for i, entry in ipairs(stack) do
      entry.total = entry.total + bytes
      if i == #stack then entry.saved = entry.saved + bytes end
    end
    return x
  end
  local ok, err = pcall(graph.saved_tensors_hooks, pack, function(x) return x end, model, ...)
  for _, handle in ipairs(handles) do handle:remove() end
  if not ok then error(err, 0) end
  return list
end

return M
