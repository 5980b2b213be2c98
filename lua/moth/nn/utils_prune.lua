--- nn.utils.prune: parameters with elements held at 0 by a mask.
--
--     nn.utils.prune.l1_unstructured(layer, "weight", 0.3)    -- the 30 % smallest elements become 0
--     layer.weight_mask, layer.weight_orig                     -- the mask, a buffer; the parameter that is trained
--     nn.utils.prune.remove(layer, "weight")                   -- layer.weight is a parameter again, with the zeros
--
-- layer.weight is weight_orig * weight_mask, computed each time it is read. Pruned again, the mask takes more elements.
local B = require "moth_lua"
local moth = require "moth"
local class = require "moth.class"
local check = require "moth.utils.check"
local signature = require "moth.utils.signature"
local Parameter = require "moth.nn.parameter"
local each = require "moth.each"

local M = {}

-- ---- methods -----------------------------------------------------------------------------------------

local function define(name, parameters, fn)
  M[name] = signature(("nn.utils.prune.%s(%s)"):format(name, parameters), fn)
end

-- The number of elements that `amount` means: a share of n from 0 to 1, or a count.
local function count_of(where, amount, n)
  if amount < 0 or amount > 1 and (amount ~= math.floor(amount) or amount > n) then
    check.fail("[nn.utils.prune.%s] amount is a share from 0 to 1, or a count up to %d, got %g", where, n, amount)
  end
  -- 1 is one element, as PyTorch's int 1; a share of 1 is all: write n.
  return amount >= 1 and amount or math.floor(amount * n + 0.5)
end

-- A mask of 0 at the `n` smallest of scores where `kept` is 1.
local function without_smallest(scores, n)
  local mask = moth.ones(scores:size(), { dtype = scores:dtype(), device = scores:device() })
  if n == 0 then return mask end
  local _, at = scores:reshape(-1):topk(n, 1, false)
  mask:view(-1):index_fill_(1, at, 0)
  return mask
end

-- ---- application -------------------------------------------------------------------------------------

local classes = setmetatable({}, { __mode = "k" })

local function pruned_class(base)
  if classes[base] then return classes[base] end
  local cls = class(base.__name, base) -- prints as it was
  local index = base.__index
  cls.__index = function(self, key)
    local names = rawget(self, "_pruned")
    if names and names[key] then
      return (B.computed(rawget(self._parameters, key .. "_orig") * rawget(self._buffers, key .. "_mask")))
    end
    return index(self, key)
  end
  local newindex = base.__newindex
  cls.__newindex = function(self, key, value)
    local names = rawget(self, "_pruned")
    if names and names[key] then
      check.fail("[nn.utils.prune] %s is %s_orig * %s_mask: write to %s_orig, or call nn.utils.prune.remove(module, \z
        '%s') first", key, key, key, key, key)
    end
    return newindex(self, key, value)
  end
  classes[base] = cls
  return cls
end

-- The tensor that is pruned, and the mask so far (nil: none).
local function state_of(where, module, name)
  local names = rawget(module, "_pruned")
  if names and names[name] then
    return rawget(module._parameters, name .. "_orig"), rawget(module._buffers, name .. "_mask")
  end
  local p = rawget(module:registry("_parameters"), name)
  if not p then check.fail("[nn.utils.prune.%s] %s has no parameter '%s'", where, module.__name, name) end
  return p, nil
end

local function apply(where, module, name, mask)
  local p, old = state_of(where, module, name)
  if tostring(mask:size()) ~= tostring(p:size()) then
    check.fail("[nn.utils.prune.%s] the mask must have the shape of '%s': expected %s, got %s", where, name,
      B.format(p), B.format(mask))
  end
  mask = mask:to(p:dtype())
  if old then
    module[name .. "_mask"] = old * mask
    return module
  end
  local names = rawget(module, "_pruned")
  if not names then
    names = {}
    rawset(module, "_pruned", names)
    setmetatable(module, pruned_class(getmetatable(module)))
  end
  module._parameters[name] = nil
  module[name .. "_orig"] = p
  module:register_buffer(name .. "_mask", mask)
  names[name] = true
  return module
end

-- Scores of the elements that are left: those that are pruned come last, and are not counted.
local function remaining(p, mask, scores)
  scores = (scores or p:detach():abs()):to(p:dtype())
  if not mask then return scores, B.numel(p) end
  return scores:masked_fill(mask:eq(0), math.huge), mask:sum():item()
end

--- No element becomes 0: for a mask to begin with.
define("identity", "Module module, string name", function(module, name)
  local p = state_of("identity", module, name)
  return apply("identity", module, name, moth.ones_like(p:detach()))
end)

--- The elements with the smallest absolute values (or importance_scores) become 0. amount: a share of those left, or a
-- count of 1 and more.
define("l1_unstructured", "Module module, string name, number amount, Tensor importance_scores?",
  function(module, name, amount, scores)
    local p, mask = state_of("l1_unstructured", module, name)
    local left, n = remaining(p, mask, scores)
    return apply("l1_unstructured", module, name, without_smallest(left, count_of("l1_unstructured", amount, n)))
  end)

--- Random elements become 0.
define("random_unstructured", "Module module, string name, number amount, *, Generator generator?",
  function(module, name, amount, generator)
    local p, mask = state_of("random_unstructured", module, name)
    local left, n = remaining(p, mask, moth.rand(p:size(), { generator = generator, device = p:device() }))
    local count = count_of("random_unstructured", amount, n)
    return apply("random_unstructured", module, name, without_smallest(left, count))
  end)

-- A mask that is 0 where the positions `at` of dimension d are.
local function slices(p, d, at)
  local mask = moth.ones(p:size(), { dtype = p:dtype(), device = p:device() })
  return #at > 0 and mask:index_fill(d, moth.tensor(at, { dtype = moth.int64 }):to(p:device()), 0) or mask
end

-- The slices along d that are left, and a score for each.
local function left_slices(p, mask, d, score)
  local list = {}
  for i = 1, B.size(p, d) do
    if not mask or mask:select(d, i):ne(0):any():item() then list[#list + 1] = { i, score(i) } end
  end
  return list
end

local function dim_of(where, p, dim)
  local d = dim < 0 and B.dim(p) + 1 + dim or dim
  if d < 1 or d > B.dim(p) then
    check.fail("[nn.utils.prune.%s] dim %d is out of range for %s", where, dim, B.format(p))
  end
  return d
end

local function cut(where, module, name, amount, dim, score)
  local p, mask = state_of(where, module, name)
  local d = dim_of(where, p, dim)
  local list = left_slices(p, mask, d, function(i) return score(p, d, i) end)
  table.sort(list, function(a, b)
    if a[2] ~= b[2] then return a[2] < b[2] end
    return a[1] < b[1]
  end)
  local at = {}
  for i = 1, count_of(where, amount, #list) do at[i] = list[i][1] end
  return apply(where, module, name, slices(p:detach(), d, at))
end

--- Whole slices along dim with the smallest n-norms become 0.
define("ln_structured", "Module module, string name, number amount, number n, Dim dim, Tensor importance_scores?",
  function(module, name, amount, n, dim, scores)
    return cut("ln_structured", module, name, amount, dim, function(p, d, i)
      return (scores or p:detach()):select(d, i):reshape(-1):norm(n):item()
    end)
  end)

--- Random whole slices along dim become 0.
define("random_structured", "Module module, string name, number amount, Dim dim, *, Generator generator?",
  function(module, name, amount, dim, generator)
    return cut("random_structured", module, name, amount, dim, function()
      return moth.rand({ 1 }, { generator = generator }):item()
    end)
  end)

--- Elements are 0 where the mask is 0.
define("custom_from_mask", "Module module, string name, Tensor mask", function(module, name, mask)
  return apply("custom_from_mask", module, name, mask)
end)

-- ---- methods as classes ------------------------------------------------------------------------------

--- The base of methods of one's own: compute_mask(tensor, default_mask) returns a mask of the tensor's shape, 0 where
-- it prunes; default_mask has the elements that are left.
--
--     local EverySecond = require "moth.class" ("EverySecond", nn.utils.prune.BasePruningMethod)
--     function EverySecond:compute_mask(t, mask) … end
--     EverySecond:apply(layer, "weight")        -- further arguments go to __init
local Base = class("BasePruningMethod")
M.BasePruningMethod = Base
function Base:__init(...)
  if select("#", ...) > 0 then check.fail("[nn.utils.prune.%s] has no arguments", self.__name) end
end
local target = signature("nn.utils.prune.apply(Module module, string name, ...)", function(...) return ... end)
local function method_class(where, cls)
  if type(cls) ~= "table" or type(cls.compute_mask) ~= "function" then
    check.fail("[nn.utils.prune.%s] expected a class with a method compute_mask, called as Class:apply(module, name)",
      where)
  end
end

--- Prunes module[name] by a new object of the class.
function Base.apply(cls, ...)
  method_class("apply", cls)
  local function run(module, name, ...)
    local p, old = state_of("apply", module, name)
    local mask = old or moth.ones_like(p:detach())
    local method = cls(...)
    local new = moth.no_grad(method.compute_mask, method, p:detach(), mask:clone())
    if not B.is_tensor(new) then
      check.fail("[nn.utils.prune.%s] compute_mask must return a tensor, got %s", cls.__name, class.name(new))
    end
    return apply("apply", module, name, new)
  end
  return run(target(...))
end

-- PyTorch's classes: their apply is the function.
for name, fn in each { Identity = "identity", L1Unstructured = "l1_unstructured", LnStructured = "ln_structured",
  RandomUnstructured = "random_unstructured", RandomStructured = "random_structured",
  CustomFromMask = "custom_from_mask" } do
  local cls = class(name, Base)
  M[name] = cls
  function cls.apply(self, ...)
    if self == cls then return M[fn](...) end
    return M[fn](self, ...) -- called with a dot, as in Python
  end
end

--- Prunes parameters { { module, name }, … } together: the smallest of all of them. method: "l1" or "random", or
-- prune.L1Unstructured or prune.RandomUnstructured.
define("global_unstructured", "list parameters, 'l1'|'random'|table pruning_method, number amount, *, \z
  Generator generator?", function(parameters, method, amount, generator)
    if method == M.L1Unstructured then method = "l1" elseif method == M.RandomUnstructured then method = "random" end
    if type(method) == "table" then
      check.fail("[nn.utils.prune.global_unstructured] pruning_method is 'l1', 'random', prune.L1Unstructured or \z
        prune.RandomUnstructured")
    end
    local scores, total = {}, 0
    for i, pair in ipairs(parameters) do
      if type(pair) ~= "table" or type(pair[2]) ~= "string" then
        check.fail("[nn.utils.prune.global_unstructured] element %d is no { module, name }", i)
      end
      local p, mask = state_of("global_unstructured", pair[1], pair[2])
      local left, n = remaining(p, mask, method == "random" and moth.rand(p:size(), { generator = generator }) or nil)
      scores[i], total = left:reshape(-1), total + n
    end
    if #scores == 0 then return end
    local mask, at = without_smallest(moth.cat(scores), count_of("global_unstructured", amount, total)), 1
    for i, pair in ipairs(parameters) do
      local n = B.numel(scores[i])
      local size = state_of("global_unstructured", pair[1], pair[2]):size()
      apply("global_unstructured", pair[1], pair[2], mask:narrow(1, at, n):reshape(size))
      at = at + n
    end
  end)

--- Makes a pruned parameter plain again, with the zeros that it has.
define("remove", "Module module, string name", function(module, name)
  local names = rawget(module, "_pruned")
  if not (names and names[name]) then
    check.fail("[nn.utils.prune.remove] '%s' of %s is not pruned", name, module.__name)
  end
  local p = rawget(module._parameters, name .. "_orig")
  moth.no_grad(function() p:mul_(rawget(module._buffers, name .. "_mask")) end)
  names[name] = nil
  module._parameters[name .. "_orig"], module._buffers[name .. "_mask"] = nil, nil
  if not next(names) then
    rawset(module, "_pruned", nil)
    setmetatable(module, getmetatable(module).super)
  end
  module[name] = Parameter.is(p) and p or Parameter(p)
  return module
end)

--- Is a parameter of this module, or of one within it, pruned?
define("is_pruned", "Module module", function(module)
  for _, m in ipairs(module:modules()) do
    if rawget(m, "_pruned") then return true end
  end
  return false
end)

return M
