--- optim.Optimizer: parameter groups, state per parameter, saving and loading.
--
--     local MySGD = optim.class("MySGD")
--     MySGD.__init = optim.Optimizer.init("MySGD", "number lr=1e-3")
--     function MySGD:step()
--       moth.no_grad(function()
--         for _, group in ipairs(self.param_groups) do
--           for _, p in ipairs(group.params) do
--             if p.grad then p:sub_(p.grad, group.lr) end
--           end
--         end
--       end)
--     end
--
-- Fields: param_groups (a list of { params = {…}, lr = …, … }), defaults, state (parameter -> table, made empty on
-- first access).
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Parameter = require "moth.nn.parameter"
local rows = require "moth.autograd.row_grad"
local each = require "moth.each"
local range = require "moth.profiler.range"
local profiling, OPTIMIZER = B.profile.running, range.kinds.optimizer

local Optimizer = class("Optimizer")

local state_meta = {
  __index = function(t, p)
    local s = {}
    rawset(t, p, s)
    return s
  end,
}

--- @param params a list of parameters, or of groups { params = {…}, lr = … }
-- @tparam table defaults options for groups that do not set them
function Optimizer:__init(params, defaults, ...)
  if select("#", ...) > 0 then check.fail("[optim.%s] too many arguments; (params, defaults)", self.__name) end
  self.defaults = defaults or {}
  self.param_groups, self.owned = {}, {}
  self.state = setmetatable({}, state_meta)
  if B.is_tensor(params) then
    check.fail("optim.%s: expected a list of parameters, got one tensor; write { p }", self.__name)
  end
  if type(params) ~= "table" or #params == 0 then
    check.fail("optim.%s: expected a list of parameters, got %s", self.__name,
      type(params) == "table" and "an empty table" or type(params))
  end
  if type(params[1]) ~= "table" then params = { { params = params } } end
  for _, group in ipairs(params) do self:add_param_group(group) end
end

--- The __init of an optimizer that takes `params` and then the parameters of a signature:
-- MySGD.__init = Optimizer.init("optim.MySGD", "number lr=1e-3, number momentum=0", function(self, params, o) … end).
-- `finish`, if there is one, checks the options and may change them; lr, weight_decay, momentum and eps are at least 0.
function Optimizer.init(name, parameters, finish)
  local text = ("%s(list|Tensor params, %s)"):format(name, parameters)
  return signature.init(text, function(self, o)
    for _, key in ipairs({ "lr", "weight_decay", "momentum", "eps" }) do
      if B.is_tensor(o[key]) then
        if B.numel(o[key]) ~= 1 then check.fail("[%s] %s: expected a tensor of one element", name, key) end
      elseif o[key] then
        check.number(name, key, o[key], 0)
      end
    end
    if finish then finish(self, o) end
    local params = o.params
    o.params = nil
    Optimizer.__init(self, params, o)
  end)
end

--- Adds { params = a parameter or a list of them, … }; other options are taken from the defaults.
function Optimizer:add_param_group(group)
  local where = "optim." .. self.__name
  if type(group) ~= "table" or group.params == nil then check.fail("%s: a group is { params = {…}, … }", where) end
  local new = { params = B.is_tensor(group.params) and { group.params } or group.params }
  if type(new.params) ~= "table" then
    check.fail("%s: params of a group: expected a list of parameters, got %s", where, class.name(new.params))
  end
  for key, value in each(group) do
    if key ~= "params" then
      if self.defaults[key] == nil and key ~= "name" and key ~= "initial_lr" then
        check.fail("%s: unknown option '%s' in a group", where, tostring(key))
      end
      local default = self.defaults[key]
      local lr = key == "lr" and (type(value) == "number" or B.is_tensor(value))
      if default ~= nil and type(value) ~= type(default) and not lr then
        check.fail("%s: option '%s' of a group: expected a %s, got %s", where, key, type(default), type(value))
      end
      new[key] = value
    end
  end
  for key, value in each(self.defaults) do
    if new[key] == nil then new[key] = value end
  end
  for i, p in ipairs(new.params) do
    if not B.is_tensor(p) then check.fail("%s: parameter %d is no tensor but %s", where, i, class.name(p)) end
    if not B.is_leaf(p) then check.fail("%s: parameter %d is no leaf: it is the result of an op", where, i) end
    if self.owned[p] then check.fail("%s: parameter %d is given twice", where, i) end
    self.owned[p] = true
    Parameter.held(p)
  end
  self.param_groups[#self.param_groups + 1] = new
end

--- A group's learning rate as a number (a tensor's is read, which waits for its device).
function Optimizer.get_lr(group) return B.is_tensor(group.lr) and group.lr:item() or group.lr end

--- Sets a group's learning rate; a tensor is written to, so that a captured graph uses the new rate.
function Optimizer.set_lr(group, lr)
  if B.is_tensor(group.lr) then
    if B.is_tensor(lr) then lr = lr:item() end
    moth.no_grad(group.lr.fill_, group.lr, lr)
  else
    group.lr = B.is_tensor(lr) and moth.no_grad(lr.clone, lr:detach()) or lr
  end
end

-- The rate as an argument of ops on a device: a tensor that is there, else a number.
function Optimizer.rate(group, p)
  local lr = group.lr
  if type(lr) == "number" then return lr end
  local here, there = B.tensor_device(lr), B.tensor_device(p)
  return here == there and lr or lr:item()
end

local set_to_none = signature("zero_grad(bool set_to_none=true)", function(yes) return yes end)

--- Removes the gradients (one call of C); set_to_none = false: fills them with zeros, in place.
function Optimizer:zero_grad(...)
  local none = select("#", ...) == 0 or set_to_none(...)
  for _, group in ipairs(self.param_groups) do Parameter.zero_grads(group.params, none) end
end

local function update(self)
  for _, group in ipairs(self.param_groups) do
    moth.no_grad(self.step_rows, self, group)
    moth.no_grad(self.step_group, self, group)
  end
end

--- @tparam[opt] function closure computes the loss anew and returns it @return what it returned
function Optimizer:step(closure)
  if closure ~= nil and type(closure) ~= "function" then
    check.fail("[optim.%s] step: expected a function that computes the loss, got %s", self.__name, class.name(closure))
  end
  local loss = closure and moth.enable_grad(closure)
  if self.step_group == nil then check.fail("optim.%s has no step", self.__name) end
  if profiling() then
    range(OPTIMIZER, "Optimizer.step#" .. self.__name, update, self)
  else
    update(self)
  end
  return loss
end

-- Updates parameters with row gradients by step_row(group, p, row gradient), if the optimizer has it.
function Optimizer:step_rows(group)
  if not rows.any() then return end
  for _, p in ipairs(group.params) do
    local g = rows.rows(p)
    if g and not self.step_row then
      check.fail("optim.%s does not take row gradients (of an embedding with sparse = true): use optim.SGD or \z
        optim.Adagrad, or sparse = false", self.__name)
    end
    if g then self:step_row(group, p, g:coalesce()) end
  end
end

-- ---- saving ----------------------------------------------------------------------------------------

--- { state = { one table per parameter }, param_groups = {…} }: parameters by number, from 1, in the order of
-- the groups. The optimizer's tensors are shared, not copied.
function Optimizer:state_dict()
  local sd, n = { state = {}, param_groups = {} }, 0
  for g, group in ipairs(self.param_groups) do
    local copy = { params = {} }
    for key, value in each(group) do
      if key ~= "params" then copy[key] = value end
    end
    for i, p in ipairs(group.params) do
      n = n + 1
      copy.params[i] = n
      local state = {}
      for key, value in each(rawget(self.state, p) or {}) do state[key] = value end
      sd.state[n] = state
    end
    sd.param_groups[g] = copy
  end
  return sd
end

-- Copies a tensor of a loaded state to the parameter's device and, if floating-point, its dtype; a count
-- of steps keeps its own: a half would lose it.
local function restored(value, p, key)
  if B.is_tensor(value) then
    local float = B.tensor_dtype(value).is_floating_point and key ~= "step"
    return moth.to_copy(value, { dtype = float and B.tensor_dtype(p) or nil, device = B.tensor_device(p) })
  end
  if type(value) ~= "table" then return value end
  local out = {}
  for k, v in each(value) do out[k] = restored(v, p, k) end
  return out
end

--- Loads the state_dict of an optimizer over the same parameters.
function Optimizer:load_state_dict(sd)
  local where = "load_state_dict of optim." .. self.__name
  if type(sd) ~= "table" or type(sd.param_groups) ~= "table" or type(sd.state) ~= "table" then
    check.fail("%s: expected { state = …, param_groups = … }", where)
  end
  if #sd.param_groups ~= #self.param_groups then
    check.fail("%s: it has %d parameter groups, the optimizer %d", where, #sd.param_groups, #self.param_groups)
  end
  for g, group in ipairs(self.param_groups) do
    local n = #(sd.param_groups[g].params or {})
    if n ~= #group.params then
      check.fail("%s: group %d has %d parameters, that of the optimizer %d", where, g, n, #group.params)
    end
  end
  local state = setmetatable({}, state_meta)
  for g, group in ipairs(self.param_groups) do
    local saved = sd.param_groups[g]
    for key, value in each(saved) do
      if key == "lr" then Optimizer.set_lr(group, value) elseif key ~= "params" then group[key] = value end
    end
    for i, p in ipairs(group.params) do
      local of = sd.state[saved.params[i]]
      if of and next(of) ~= nil then
        for key, value in each(of) do
          if B.is_tensor(value) and B.dim(value) > 0 and tostring(value:size()) ~= tostring(p:size()) then
            check.fail("%s: %s of parameter %d has shape %s, the parameter %s", where, tostring(key), i,
              tostring(value:size()), tostring(p:size()))
          end
        end
        state[p] = moth.no_grad(restored, of, p)
      end
    end
  end
  self.state = state
end

--- The parameters of each group, and its options in alphabetical order.
function Optimizer.__tostring(self)
  local lines = { self.__name .. " (" }
  for g, group in ipairs(self.param_groups) do
    lines[#lines + 1] = ("Parameter group %d: %d parameters"):format(g, #group.params)
    local keys = {}
    for key in each(group) do
      if key ~= "params" then keys[#keys + 1] = key end
    end
    table.sort(keys)
    for _, key in ipairs(keys) do
      local value = group[key]
      if type(value) == "table" then value = "{" .. table.concat(value, ", ") .. "}" end
      if B.is_tensor(value) then value = ("tensor(%.14g)"):format(value:item()) end
      lines[#lines + 1] = ("    %s: %s"):format(key, tostring(value))
    end
  end
  lines[#lines + 1] = ")"
  return table.concat(lines, "\n")
end

return Optimizer
