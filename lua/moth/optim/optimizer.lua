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
local keep = require("moth.tensor.scope").keep
local class = require "moth.class"
local check = require "moth.utils.check"
local hints = require "moth.lang.hints"
local signature = require "moth.utils.signature"
local Parameter = require "moth.nn.parameter"
local rows = require "moth.autograd.row_grad"
local each = require "moth.each"
local range = require "moth.profiler.range"
local profiling, OPTIMIZER = B.profile.running, range.kinds.optimizer

local Optimizer = class("Optimizer")

-- Options that are read from the groups, not from the optimizer.
local of_group = { lr = true, weight_decay = true, momentum = true, betas = true, eps = true }

function Optimizer.__newindex(self, key, value)
  local defaults = rawget(self, "defaults")
  if of_group[key] and defaults and defaults[key] ~= nil then
    check.fail("optim.%s: '%s' cannot be assigned, each group has its own; write opt.param_groups[1].%s = …",
      self.__name, key, key)
  end
  rawset(self, key, value)
end

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
  local hole = check.hole(params)
  if hole then
    check.fail("optim.%s: the list of parameters has a hole: it has element %s and none before it", self.__name,
      tostring(hole))
  end
  if type(params[1]) ~= "table" then params = { { params = params } } end
  for _, group in ipairs(params) do self:add_param_group(group) end
end

--- The __init of an optimizer that takes `params` and then the parameters of a signature:
-- MySGD.__init = Optimizer.init("optim.MySGD", "number lr=1e-3, number momentum=0", function(self, params, o) … end).
-- `finish`, if there is one, checks the options and may change them; lr, weight_decay, momentum and eps are at least 0.
-- Every optimizer made by it also takes foreach and fused, which change nothing (a step is one call of an op for all
-- parameters anyway), and differentiable, which must be false.
function Optimizer.init(name, parameters, finish)
  local by_name = parameters:find("*, ", 1, true) and "" or "*, "
  local text = ("%s(list|Tensor params, %s, %sbool foreach?, bool fused?, bool differentiable=false)"):format(name,
    parameters, by_name)
  return signature.init(text, function(self, o)
    if o.differentiable then
      check.fail("[%s] a differentiable step is not there: step() records no gradient. Write the update with ops (see \z
        moth.func.functional_call), or use differentiable = false", name)
    end
    o.foreach, o.fused, o.differentiable = nil, nil, nil
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

-- What a group may have that is no option: what schedulers note, a name, and options of PyTorch's without effect.
local of_groups = { name = true, initial_lr = true, max_lr = true, min_lr = true, max_momentum = true,
  base_momentum = true, swa_lr = true, foreach = true, fused = true }

--- Adds { params = a parameter or a list of them, … }; other options are taken from the defaults.
function Optimizer:add_param_group(group)
  local where = "optim." .. self.__name
  if type(group) ~= "table" or group.params == nil then check.fail("%s: a group is { params = {…}, … }", where) end
  local new = { params = B.is_tensor(group.params) and { group.params } or group.params }
  if type(new.params) ~= "table" then
    check.fail("%s: params of a group: expected a list of parameters, got %s", where, class.name(new.params))
  end
  local hole = check.hole(new.params)
  if hole then
    check.fail("%s: params of a group have a hole: there is element %s and none before it", where, tostring(hole))
  end
  for key, value in each(group) do
    if key ~= "params" then
      if self.defaults[key] == nil and not of_groups[key] then
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
  if self == nil then hints.need_self(self, "opt:zero_grad()") end
  local none = select("#", ...) == 0 or set_to_none(...)
  for _, group in ipairs(self.param_groups) do Parameter.zero_grads(group.params, none) end
end

-- Whether to leave the step out since a gradient overflowed: found_inf, a tensor that GradScaler sets, is not 0. It is
-- read here if that waits for nothing, or if the numbers of steps are kept by the host; else by the kernels.
local function overflowed(self)
  local found = rawget(self, "found_inf")
  if not found then
    if rawget(self, "passed_inf") then self.passed_inf = nil end
    return false
  end
  self.passed_inf = nil
  if B.tensor_device(found).type ~= "cpu" and self:counts_on_device() then
    self.passed_inf = found
    return false
  end
  return found:item() ~= 0
end

--- Whether GradScaler may leave it to step() to look at found_inf.
Optimizer.supports_found_inf = false

--- Whether a step that is left out needs nothing of the host.
function Optimizer:counts_on_device()
  for _, group in ipairs(self.param_groups) do
    if not group.capturable then return false end
  end
  return true
end

--- What ops take as grad_scale and found_inf: GradScaler's scale divides, that of ops multiplies.
function Optimizer:scale_and_found()
  local scale, found = rawget(self, "grad_scale"), rawget(self, "passed_inf")
  if not scale and not found then return end
  return scale and moth.reciprocal(scale:detach()):reshape({}) or nil, found and found:reshape({})
end

local function update_groups(self)
  for _, group in ipairs(self.param_groups) do
    if rows.any() then self:step_rows(group) end
    self:step_group(group)
  end
end

local function update(self) moth.no_grad(update_groups, self) end

local stepped = setmetatable({}, { __mode = "k" }) -- optimizers whose step was called

--- Whether step was called, or cannot be known, since the class has a step of its own; for schedules.
function Optimizer:was_stepped() return stepped[self] or getmetatable(self).step ~= Optimizer.step end

--- Updates the parameters from their gradients.
-- @tparam[opt] function closure computes the loss anew and returns it @return what it returned
function Optimizer:step(closure, ...)
  if self == nil then hints.need_self(self, "opt:step()") end
  if select("#", ...) > 0 then check.fail("[optim.%s] step takes one argument, a function", self.__name) end
  if closure ~= nil and type(closure) ~= "function" then
    check.fail("[optim.%s] step: expected a function that computes the loss, got %s", self.__name, class.name(closure))
  end
  stepped[self] = true
  local loss = closure and moth.enable_grad(closure)
  if self.step_group == nil then check.fail("optim.%s has no step", self.__name) end
  if overflowed(self) then return loss end
  if profiling() then
    range(OPTIMIZER, "Optimizer.step#" .. self.__name, update, self)
  else
    update(self)
  end
  return loss
end

-- Updates parameters with row gradients by step_row(group, p, row gradient), if the optimizer has it.
function Optimizer:step_rows(group)
  for _, p in ipairs(group.params) do
    local g = rows.rows(p)
    if g and not self.step_row then
      check.fail("optim.%s does not take row gradients (of an embedding with sparse = true): use optim.SGD or \z
        optim.Adagrad, or sparse = false", self.__name)
    end
    if g then self:step_row(group, p, g:coalesce()) end
  end
end

-- ---- hooks -----------------------------------------------------------------------------------------

-- A hook is a function of the optimizer. The methods of an optimizer with hooks are its own, so that others pay
-- nothing, and steps that a subclass defines have hooks, too.
local function with_hooks(self, method)
  local hooks = rawget(self, "hooks") or {}
  self.hooks = hooks
  if hooks[method] then return hooks[method] end
  hooks[method] = { pre = {}, post = {} }
  local run = self[method]
  self[method] = function(optimizer, ...)
    for _, handle in ipairs(hooks[method].pre) do handle.fn(optimizer, ...) end
    local result = run(optimizer, ...)
    for _, handle in ipairs(hooks[method].post) do
      local other = handle.fn(optimizer, result)
      if method == "state_dict" and other ~= nil then result = other end
    end
    return result
  end
  return hooks[method]
end

local Handle = class("OptimizerHookHandle")
function Handle:__init(hooks, at, fn) self.hooks, self.at, self.fn = hooks, at, fn end
function Handle:remove()
  local left = {}
  for _, handle in ipairs(self.hooks[self.at]) do -- into a new list: a caller may be iterating over the old one
    if handle ~= self then left[#left + 1] = handle end
  end
  self.hooks[self.at] = left
end

local function registers(method, at)
  local name = ("register_%s_%s_hook"):format(method, at)
  --- register_step_pre_hook(fn), register_step_post_hook(fn), and the same for state_dict and load_state_dict:
  -- fn(optimizer) is called before or after; that after state_dict may return another one. Returns a handle with
  -- remove(). With { prepend = true } before those that are there.
  Optimizer[name] = signature.method(name .. "(callable hook, *, bool prepend=false)", function(self, fn, prepend)
    local hooks = with_hooks(self, method)
    local handle, list = Handle(hooks, at, fn), { unpack(hooks[at]) }
    table.insert(list, prepend and 1 or #list + 1, handle)
    hooks[at] = list
    return handle
  end)
end
for _, method in ipairs { "step", "state_dict", "load_state_dict" } do
  registers(method, "pre")
  registers(method, "post")
end

-- ---- saving ----------------------------------------------------------------------------------------

--- { state = { one table per parameter }, param_groups = {…} }: parameters by number, from 1, in the order of
-- the groups. The optimizer's tensors are shared, not copied.
function Optimizer:state_dict()
  local placement = package.loaded["moth.distributed.placement"] -- parameters may be parts of larger ones
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
      for key, value in each(rawget(self.state, p) or {}) do
        if placement and placement.is_state_like(self, key, value, p) then placement.share(value, p) end
        state[key] = value
      end
      sd.state[n] = state
    end
    sd.param_groups[g] = copy
  end
  return sd
end

-- Copies a tensor of a loaded state to the parameter's device and, if floating-point, its dtype, as PyTorch does; the
-- numbers of a state, such as the count of steps, keep their own: a half would lose them.
local function restored(value, p, numbers, key)
  if B.is_tensor(value) then
    local float = B.tensor_dtype(value).is_floating_point and not numbers[key]
    return moth.to_copy(value, { dtype = float and B.tensor_dtype(p) or nil, device = B.tensor_device(p) })
  end
  if type(value) ~= "table" then return value end
  local out = {}
  for k, v in each(value) do out[k] = restored(v, p, numbers, k) end
  return out
end

-- Numbers of a state, which PyTorch keeps in tensors: as tensors if the group is capturable, one for all parameters of
-- a device with the same numbers; else as numbers.
local function as_kept(self, state, group, p, shared)
  for _, key in ipairs(self.scalars or {}) do
    local value = state[key]
    if value ~= nil then
      value = B.is_tensor(value) and value:item() or value
      state[key] = group.capturable and Optimizer.new_count(shared, p, key, value) or value
    end
  end
end

--- A number of a state on p's device: one tensor for all parameters that have the same in the table `shared`.
function Optimizer.new_count(shared, p, key, value)
  local device = B.tensor_device(p)
  local name = ("%s %s %.17g"):format(tostring(device), key, value)
  shared[name] = shared[name] or keep(moth.full({}, value, { dtype = moth.float32, device = device }))
  return shared[name]
end

--- Parts the counts of parameters that step now from those of `absent`, states of parameters without a gradient this
-- time: what the former share with one of them becomes a tensor of their own. buckets: by the tensor of steps.
function Optimizer.part_counts(absent, buckets, scalars)
  for _, s in ipairs(absent) do
    local bucket = B.is_tensor(s.step) and buckets[s.step]
    if bucket then
      for _, key in ipairs(scalars) do
        local own = keep(s[key]:clone())
        for _, state in ipairs(bucket.states) do state[key] = own end
      end
      buckets[s.step] = nil
    end
  end
end

local function describe(v) return B.is_tensor(v) and tostring(v:size()) or class.name(v) end

-- The groups and states of sd, checked against the optimizer's.
local function check_saved(self, sd)
  local where = "load_state_dict of optim." .. self.__name
  if type(sd) ~= "table" or type(sd.param_groups) ~= "table" or type(sd.state) ~= "table" then
    check.fail("%s: expected { state = …, param_groups = … }", where)
  end
  if #sd.param_groups ~= #self.param_groups then
    check.fail("%s: it has %d parameter groups, the optimizer %d", where, #sd.param_groups, #self.param_groups)
  end
  for g, group in ipairs(self.param_groups) do
    local saved = sd.param_groups[g]
    local n = type(saved) == "table" and #(saved.params or {})
    if n ~= #group.params then
      check.fail("%s: group %d has %s parameters, that of the optimizer %d", where, g, tostring(n), #group.params)
    end
    for key, default in each(self.defaults) do
      local value = saved[key]
      local number = key == "lr" and (type(value) == "number" or B.is_tensor(value))
      if value ~= nil and not number and type(value) ~= type(default) and type(value) ~= self.nullable[key] then
        check.fail("%s: option '%s' of group %d: expected a %s, got %s", where, key, g, type(default), describe(value))
      end
    end
    for i, p in ipairs(group.params) do
      local of = sd.state[saved.params[i]]
      if of ~= nil and type(of) ~= "table" then
        check.fail("%s: the state of parameter %d: expected a table, got %s", where, i, class.name(of))
      end
      for key, value in each(of or {}) do
        if B.is_tensor(value) and B.dim(value) > 0 and self.own_shape[key] == nil and tostring(value:size()) ~=
            tostring(p:size()) then
          check.fail("%s: %s of parameter %d has shape %s, the parameter %s", where, tostring(key), i,
            tostring(value:size()), tostring(p:size()))
        end
      end
    end
  end
end

-- Keys of states that have not the shape of their parameters; options that are false where they are not given, with
-- their type else.
Optimizer.own_shape, Optimizer.nullable = {}, {}

--- Loads the state_dict of an optimizer over the same parameters: moth's, or one of PyTorch's that torch.save wrote.
function Optimizer:load_state_dict(sd)
  check_saved(self, sd)
  local state, shared, numbers = setmetatable({}, state_meta), {}, { step = true }
  for _, key in ipairs(self.scalars or {}) do numbers[key] = true end
  for g, group in ipairs(self.param_groups) do
    local saved, capturable = sd.param_groups[g], group.capturable
    for key, value in each(saved) do
      if key == "lr" then
        Optimizer.set_lr(group, value)
      elseif self.defaults[key] ~= nil or of_groups[key] and key ~= "foreach" and key ~= "fused" then
        if type(value) == "table" then
          local list = {}
          for k, v in each(value) do list[k] = v end
          value = list
        end
        group[key] = value
      end
    end
    group.capturable = capturable -- how this optimizer runs, whatever the saved one did
    for i, p in ipairs(group.params) do
      local of = sd.state[saved.params[i]]
      if of and next(of) ~= nil then
        state[p] = moth.no_grad(restored, of, p, numbers)
        as_kept(self, state[p], group, p, shared)
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
