--- What all metrics share: a state that grows with update, a value of it, and the sums over ranks.
--
--     local Hits = moth.metrics.Metric:subclass("Hits")
--     function Hits:states() return { hits = moth.zeros({}) } end         -- what it begins with; {} is a list
--     function Hits:measure(preds, target) return { hits = preds:eq(target):sum() } end   -- of one batch
--     function Hits:result(s) return s.hits end                           -- of a state
--
-- A state is a table of tensors. A batch is added to those before ("max" or "min" in Hits.merges: the greater, the
-- lesser); where `states` gives a list, its tensors are kept and joined along dimension 1. compute joins the states of
-- all ranks when moth.distributed has a process group, and leaves this rank's own as it is.
local B = require "moth_lua"
local check = require "moth.utils.check"
local class = require "moth.class"
local each = require "moth.each"
local signature = require "moth.utils.signature"
local moth = require "moth"

local M = {}

local Metric = class("Metric")
M.Metric = Metric

local COMMON = "any process_group?, bool sync_on_compute=true"

--- The base of metrics. process_group: whose ranks compute adds up (all); sync_on_compute = false: this rank alone.
Metric.__init = signature.init(("metrics.Metric(*, %s)"):format(COMMON), function(self, o)
  for key, value in each(o) do self[key] = value end
end)

-- Nothing is set up before the first use, so that a subclass needs no call of the base's __init.
local function state_of(self)
  if not rawget(self, "state") then self.state, self.updates = self:states(), 0 end
  return self.state
end

local function names_of(state)
  local names = {}
  for name in each(state) do names[#names + 1] = name end
  table.sort(names)
  return names
end

-- b joined to a, by the metric's rule for the state of this name.
local function merged(self, name, a, b)
  local rule = self.merges and self.merges[name] or "sum"
  if a:device() ~= b:device() then a = a:to(b:device()) end -- the first update brings the device
  if rule == "sum" then return a + b end
  return rule == "max" and moth.maximum(a, b) or moth.minimum(a, b)
end

local function add(self, batch)
  local state = state_of(self)
  for name, value in each(batch) do
    local kept = state[name]
    if kept == nil then
      check.fail("[%s] measure gave a state '%s' that states() has not", self.__name, tostring(name))
    elseif type(kept) == "table" then
      kept[#kept + 1] = value:detach()
    else
      state[name] = merged(self, name, kept, value:detach())
    end
  end
  self.updates = self.updates + 1
end

-- A list of tensors as one; false for none.
local function joined(list) return #list > 0 and (#list == 1 and list[1] or moth.cat(list, 1)) end

-- The state with lists joined, over all ranks.
local function whole(self)
  local state, out = state_of(self), {}
  local dist = package.loaded["moth.distributed.group"]
  local wanted = rawget(self, "sync_on_compute") ~= false
  local ranks = wanted and dist and dist.is_initialized() and require "moth.distributed"
  local options = ranks and { group = rawget(self, "process_group") }
  for _, name in ipairs(names_of(state)) do
    local value = state[name]
    if type(value) == "table" then
      value = joined(value)
      if ranks then
        local all, device = {}, value and value:device()
        for _, part in ipairs(ranks.all_gather_object({ value }, options)) do
          if part[1] then all[#all + 1] = device and part[1]:to(device) or part[1] end
        end
        value = joined(all)
      end
    elseif ranks then
      value = value:clone()
      ranks.all_reduce(value, { op = self.merges and self.merges[name] or "sum", group = options.group })
    end
    out[name] = value
  end
  return out
end

--- What the states are before the first update: tensors, or {} for lists. A subclass has one.
function Metric:states() check.fail("[%s] has no states(): a subclass of Metric needs one", self.__name) end
--- The states of one batch, from the arguments of update. A subclass has one.
function Metric:measure() check.fail("[%s] has no measure(…): a subclass of Metric needs one", self.__name) end
--- The value of a state. A subclass has one.
function Metric:result() check.fail("[%s] has no result(state): a subclass of Metric needs one", self.__name) end

--- Adds a batch: (predictions, targets) of most metrics. Nothing is recorded for gradients.
function Metric:update(...)
  local n, values = select("#", ...), { ... }
  moth.no_grad(function() add(self, self:measure(unpack(values, 1, n))) end)
end

--- The value of all that was added, over all ranks.
function Metric:compute()
  state_of(self)
  return moth.no_grad(function()
    local state = whole(self)
    if self.updates == 0 and not package.loaded["moth.distributed.group"] then
      check.warn("[%s] compute was called before update: the value is that of no data", self.__name)
    end
    return self:result(state)
  end)
end

--- metric(…): adds a batch and returns the value of this batch alone, of this rank alone.
function Metric:__call(...)
  local n, values = select("#", ...), { ... }
  return moth.no_grad(function()
    local batch = self:measure(unpack(values, 1, n))
    add(self, batch)
    return self:result(batch)
  end)
end

--- Forgets what was added.
function Metric:reset() self.state, self.updates = nil, nil end

--- Adds what another metric of the same kind was given.
function Metric:merge_state(other)
  if type(other) ~= "table" or getmetatable(other) ~= getmetatable(self) then
    check.fail("[%s] merge_state: expected another %s, got %s", self.__name, self.__name, class.name(other))
  end
  local state = state_of(self)
  for name, value in each(state_of(other)) do
    if type(value) == "table" then
      for _, t in ipairs(value) do table.insert(state[name], t) end
    else
      state[name] = merged(self, name, state[name], value)
    end
  end
  self.updates = self.updates + other.updates
end

--- The state as a table of tensors, for moth.save: a run that goes on later counts on.
function Metric:state_dict()
  local out = { updates = state_of(self) and self.updates }
  for name, value in each(self.state) do out[name] = type(value) == "table" and { unpack(value) } or value end
  return out
end

--- Takes what state_dict gave.
function Metric:load_state_dict(sd)
  self:reset()
  local state = state_of(self)
  for _, name in ipairs(names_of(state)) do
    local value = type(sd) == "table" and sd[name]
    local listed = type(state[name]) == "table"
    if not (listed and type(value) == "table" or not listed and B.is_tensor(value)) then
      check.fail("[%s] load_state_dict: expected the state '%s' of a %s, got %s", self.__name, name, self.__name,
        class.name(value))
    end
    state[name] = listed and { unpack(value) } or value
  end
  self.updates = sd.updates or 1
end

--- Accuracy(0.9) or Accuracy() for print.
function Metric:__tostring()
  return ("%s (%d updates)"):format(self.__name, rawget(self, "updates") or 0)
end

--- define(M, "Accuracy", "accuracy", options, inputs, parts): a class and its functional form in the table M. `options`
-- and `inputs` are signatures' parameters: options become fields; update and the function check the inputs. parts:
-- states, measure, result, prepare (called with a new instance).
function M.define(module, name, fn_name, options, inputs, parts)
  local cls = class(name, Metric)
  local starred = options:find("*", 1, true) and options or (options ~= "" and options .. ", " or "") .. "*"
  cls.__init = signature.init(("metrics.%s(%s, %s)"):format(name, starred, COMMON):gsub("%(, ", "("), function(self, o)
    for key, value in each(o) do self[key] = value end
    if parts.prepare then parts.prepare(self) end
  end)
  cls.states, cls.measure, cls.result = parts.states, parts.measure, parts.result
  local update = signature.method(("%s.update(%s)"):format(name, inputs), function(self, ...)
    Metric.update(self, ...)
  end)
  local call = signature.method(("%s.call(%s)"):format(name, inputs), function(self, ...)
    return Metric.__call(self, ...)
  end)
  cls.update = update
  cls.__call = function(self, ...) return call(self, ...) end
  module[name] = cls
  if not fn_name then return cls end
  local text = ("metrics.functional.%s(%s%s)"):format(fn_name, inputs, options ~= "" and ", " .. options or "")
  local _, given = signature.parameters(("f(%s)"):format(inputs))
  local _, all = signature.parameters(text)
  --- The value of one batch, without a metric that keeps state: the arguments of update, then the options of the class.
  module[fn_name] = signature.wrap(text, function(...)
    local values, self = { ... }, setmetatable({}, cls)
    for i = #given + 1, #all do self[all[i].name] = values[i] end
    if parts.prepare then parts.prepare(self) end
    return self:result(self:measure(unpack(values, 1, #given)))
  end)
  return cls
end

--- num / den as float64, `zero` (0) where den is 0.
function M.ratio(num, den, zero)
  num, den = num:to(moth.float64), den:to(moth.float64)
  local none = den:eq(0)
  return moth.where(none, zero or 0, num / moth.where(none, 1, den))
end

--- A value in the default dtype: what metrics return.
function M.value(t) return t:to(moth.get_default_dtype()) end

return M
